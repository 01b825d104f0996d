//! A journal that simulates a crash at a chosen write, before or after the commit.

use std::{
    future::pending,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{
    event::EventBatch,
    id::{BroadcastId, ChangeSequence, EventBatchId, Name, NotificationBatchId, SubscriberNumber, WorkItemId},
    mail_provider::ProviderDay,
    state::StatePage,
    time::Timestamp,
};
use tocsin_store::{
    bounded_scan::ScanPage,
    error::StoreError,
    journal::{
        Broadcast, BroadcastChange, BroadcastFilter, BroadcastTotals, Broadcasts, Checkpoints, Claim, ClaimEvents,
        ClaimWindow, ClaimWork, ClaimedEvents, Component, Cutoffs, Delayed, DelayedFilter, Delays, DueDelays,
        EndedWork, ErasedEvents, ErasedNotifications, ErasedPerson, Erasure, Erasures, EventAcceptance,
        EventBatchState, EventLog, EventPage, EventRange, Firing, FiringFilter, MailProviders, Maintenance, Mark,
        NewBroadcast, NewEventBatch, NewResend, OperatorActions, Resend, Resolution, RuleStop, RuleStore, ScheduleKey,
        ScheduleRun, Schedules, SourceKey, Step, StoredSuspension, SuspensionFilter, Switch, WorkItem, WorkQueue,
    },
    memory::journal::MemoryJournal,
};
use tokio::{sync::watch, time::Instant};

/// The side of a write on which the process crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPoint {
    /// Nothing was stored.
    BeforeWrite,
    /// The write is durable, but the caller got no answer.
    AfterWrite,
}

/// The runs of a simulated process. A run that has crashed does nothing more.
#[derive(Default)]
pub(crate) struct Process {
    run: AtomicU64,
    planned_crash: Mutex<Option<(u64, CrashPoint)>>,
    /// Number of the last run that crashed, starting with 1.
    crashed_run: watch::Sender<u64>,
    /// Number of commits of work, over all runs.
    commits: AtomicU64,
    /// Until when commits of work fail.
    fails_until: Mutex<Option<Instant>>,
}

impl Process {
    pub fn crash_at(&self, write: u64, moment: CrashPoint) {
        *self.planned_crash.lock() = Some((write, moment));
    }

    pub fn has_crashed(&self) -> bool {
        *self.crashed_run.borrow() > 0
    }

    /// Number of commits of work, over all runs.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    /// Lets all commits of work fail for a time.
    pub fn fail(&self, time: Duration) {
        *self.fails_until.lock() = Some(Instant::now() + time);
    }

    fn fails(&self) -> bool {
        self.fails_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Waits for the crash of the current run.
    pub async fn crashed(&self) {
        let run = self.run.load(Ordering::SeqCst);
        if self.crashed_run.subscribe().wait_for(|ended| *ended > run).await.is_err() {
            pending().await
        }
    }

    /// Starts the next run.
    pub fn restart(&self) {
        self.run.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the process crashes at this write, and on which side.
    fn last_write(&self) -> Option<CrashPoint> {
        let mut planned_crash = self.planned_crash.lock();
        let (left, moment) = planned_crash.as_mut()?;
        *left -= 1;
        let moment = (*left == 0).then_some(*moment);
        if moment.is_some() {
            *planned_crash = None;
        }
        moment
    }

    async fn crash<T>(&self) -> T {
        self.crashed_run.send_replace(self.run.load(Ordering::SeqCst) + 1);
        pending().await
    }
}

/// The journal of one run of a process.
pub(crate) struct CrashingJournal {
    journal: Arc<MemoryJournal>,
    process: Arc<Process>,
    run: u64,
}

impl CrashingJournal {
    pub fn new(journal: Arc<MemoryJournal>, process: Arc<Process>) -> Self {
        let run = process.run.load(Ordering::SeqCst);
        CrashingJournal { journal, process, run }
    }

    /// Never returns after the crash.
    async fn unless_crashed(&self) -> &MemoryJournal {
        if *self.process.crashed_run.borrow() > self.run {
            pending().await
        }
        &self.journal
    }

    async fn write<T>(&self, write: impl Future<Output = T>) -> T {
        self.unless_crashed().await;
        match self.process.last_write() {
            None => write.await,
            Some(CrashPoint::BeforeWrite) => self.process.crash().await,
            Some(CrashPoint::AfterWrite) => {
                write.await;
                self.process.crash().await
            }
        }
    }
}

/// Passes the facets without writes through. After the crash they still answer; only claims and writes do not.
impl Deref for CrashingJournal {
    type Target = MemoryJournal;

    fn deref(&self) -> &MemoryJournal {
        &self.journal
    }
}

#[async_trait]
impl EventLog for CrashingJournal {
    async fn accept(&self, batch: NewEventBatch) -> Result<EventAcceptance, StoreError> {
        self.write(self.journal.accept(batch)).await
    }

    async fn event_batch(&self, id: EventBatchId) -> Result<Option<(EventBatch, EventBatchState)>, StoreError> {
        self.unless_crashed().await.event_batch(id).await
    }

    async fn event_batches(
        &self,
        before: Option<EventBatchId>,
        limit: usize,
    ) -> Result<Vec<(EventBatch, EventBatchState)>, StoreError> {
        self.unless_crashed().await.event_batches(before, limit).await
    }

    async fn oldest_waiting_sequence(&self) -> Result<Option<ChangeSequence>, StoreError> {
        self.unless_crashed().await.oldest_waiting_sequence().await
    }

    async fn events_between(&self, range: EventRange<'_>) -> Result<EventPage, StoreError> {
        self.unless_crashed().await.events_between(range).await
    }

    async fn position_at(&self, time: Timestamp) -> Result<EventBatchId, StoreError> {
        self.unless_crashed().await.position_at(time).await
    }
}

#[async_trait]
impl WorkQueue for CrashingJournal {
    async fn claim_events(&self, claim: ClaimEvents<'_>) -> Result<Vec<ClaimedEvents>, StoreError> {
        self.unless_crashed().await.claim_events(claim).await
    }

    async fn claim_work(&self, claim: ClaimWork<'_>) -> Result<Vec<WorkItem>, StoreError> {
        self.unless_crashed().await.claim_work(claim).await
    }

    async fn claim_window(&self, claim: ClaimWindow<'_>) -> Result<Vec<WorkItem>, StoreError> {
        self.unless_crashed().await.claim_window(claim).await
    }

    async fn extend(&self, claim: Claim<WorkItemId>, lease: Duration, now: Timestamp) -> Result<(), StoreError> {
        self.unless_crashed().await.extend(claim, lease, now).await
    }

    async fn release(&self, claim: Claim<WorkItemId>, due_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.write(self.journal.release(claim, due_at)).await
    }

    async fn release_events(&self, claim: Claim<EventBatchId>) -> Result<(), StoreError> {
        self.unless_crashed().await.release_events(claim).await
    }

    async fn commit(&self, step: Step) -> Result<Vec<NotificationBatchId>, StoreError> {
        if self.process.fails() {
            return Err(StoreError::unavailable("scripted"));
        }
        self.process.commits.fetch_add(1, Ordering::SeqCst);
        self.write(self.journal.commit(step)).await
    }
}

#[async_trait]
impl RuleStore for CrashingJournal {
    async fn state_pages(
        &self,
        application: &Name,
        after: Option<&StatePage>,
        limit: usize,
    ) -> Result<Vec<StatePage>, StoreError> {
        self.unless_crashed().await.state_pages(application, after, limit).await
    }

    async fn firings(&self, filter: &FiringFilter, after: u64, limit: usize) -> Result<Vec<Firing>, StoreError> {
        self.unless_crashed().await.firings(filter, after, limit).await
    }

    async fn dismiss_firings(&self, filter: &FiringFilter) -> Result<u64, StoreError> {
        self.write(self.journal.dismiss_firings(filter)).await
    }

    async fn stop_rule(&self, stop: RuleStop) -> Result<(), StoreError> {
        self.write(self.journal.stop_rule(stop)).await
    }

    async fn resume_rule(&self, application: &Name, rule: &Name) -> Result<bool, StoreError> {
        self.write(self.journal.resume_rule(application, rule)).await
    }

    async fn rule_stops(&self) -> Result<Vec<RuleStop>, StoreError> {
        self.unless_crashed().await.rule_stops().await
    }
}

#[async_trait]
impl Schedules for CrashingJournal {
    async fn record_runs(
        &self,
        due: Option<NewEventBatch>,
        runs: Vec<ScheduleRun>,
    ) -> Result<Option<EventBatchId>, StoreError> {
        self.write(self.journal.record_runs(due, runs)).await
    }

    async fn schedule_runs(
        &self,
        application: &Name,
        after: Option<&ScheduleKey>,
        limit: usize,
    ) -> Result<Vec<ScheduleRun>, StoreError> {
        self.unless_crashed().await.schedule_runs(application, after, limit).await
    }

    async fn schedule_run(
        &self,
        application: &Name,
        schedule: &ScheduleKey,
    ) -> Result<Option<ScheduleRun>, StoreError> {
        self.unless_crashed().await.schedule_run(application, schedule).await
    }

    async fn delete_schedule(&self, application: &Name, schedule: &ScheduleKey) -> Result<(), StoreError> {
        self.write(self.journal.delete_schedule(application, schedule)).await
    }
}

#[async_trait]
impl MailProviders for CrashingJournal {
    async fn add_provider_days(
        &self,
        application: &Name,
        channel: &Name,
        days: Vec<(Box<str>, ProviderDay)>,
    ) -> Result<(), StoreError> {
        self.write(self.journal.add_provider_days(application, channel, days)).await
    }

    async fn last_provider_days(
        &self,
        application: &Name,
        channel: &Name,
    ) -> Result<Vec<(Box<str>, ProviderDay)>, StoreError> {
        self.unless_crashed().await.last_provider_days(application, channel).await
    }
}

#[async_trait]
impl Delays for CrashingJournal {
    async fn next_delayed(&self, application: &Name, except: &[Name]) -> Result<Option<(Timestamp, Name)>, StoreError> {
        self.unless_crashed().await.next_delayed(application, except).await
    }

    async fn assign_due(&self, due: DueDelays) -> Result<Option<EventBatchId>, StoreError> {
        self.write(self.journal.assign_due(due)).await
    }

    async fn delayed_of(&self, run: EventBatchId) -> Result<Vec<Delayed>, StoreError> {
        self.unless_crashed().await.delayed_of(run).await
    }

    async fn delayed(&self, filter: &DelayedFilter, after: u64, limit: usize) -> Result<Vec<Delayed>, StoreError> {
        self.unless_crashed().await.delayed(filter, after, limit).await
    }

    async fn cancel_delayed(&self, filter: &DelayedFilter, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.write(self.journal.cancel_delayed(filter, now, limit)).await
    }

    async fn delayed_count(&self, application: &Name) -> Result<u64, StoreError> {
        self.unless_crashed().await.delayed_count(application).await
    }
}

#[async_trait]
impl Broadcasts for CrashingJournal {
    async fn put_broadcast(&self, new: NewBroadcast) -> Result<(Broadcast, bool), StoreError> {
        self.write(self.journal.put_broadcast(new)).await
    }

    async fn broadcast(&self, id: BroadcastId) -> Result<Option<Broadcast>, StoreError> {
        self.unless_crashed().await.broadcast(id).await
    }

    async fn broadcasts(
        &self,
        filter: &BroadcastFilter,
        before: Option<BroadcastId>,
        limit: usize,
    ) -> Result<Vec<Broadcast>, StoreError> {
        self.unless_crashed().await.broadcasts(filter, before, limit).await
    }

    async fn startable_broadcasts(&self, limit: usize) -> Result<Vec<Broadcast>, StoreError> {
        self.unless_crashed().await.startable_broadcasts(limit).await
    }

    async fn begin_broadcast(&self, id: BroadcastId, event: NewEventBatch) -> Result<Option<EventBatchId>, StoreError> {
        self.write(self.journal.begin_broadcast(id, event)).await
    }

    async fn change_broadcast(&self, id: BroadcastId, change: BroadcastChange) -> Result<Broadcast, StoreError> {
        self.write(self.journal.change_broadcast(id, change)).await
    }

    async fn broadcast_totals(&self, id: BroadcastId) -> Result<BroadcastTotals, StoreError> {
        self.unless_crashed().await.broadcast_totals(id).await
    }

    async fn broadcast_batches(
        &self,
        id: BroadcastId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<NotificationBatchId>, StoreError> {
        self.unless_crashed().await.broadcast_batches(id, after, limit).await
    }
}

#[async_trait]
impl Checkpoints for CrashingJournal {
    async fn record_marks(&self, source: &SourceKey, marks: Vec<Mark>) -> Result<(), StoreError> {
        self.write(self.journal.record_marks(source, marks)).await
    }

    async fn marks(&self, source: &SourceKey, after: Option<&str>, limit: usize) -> Result<Vec<Mark>, StoreError> {
        self.unless_crashed().await.marks(source, after, limit).await
    }

    async fn delete_marks(&self, application: &Name) -> Result<(), StoreError> {
        self.write(self.journal.delete_marks(application)).await
    }
}

#[async_trait]
impl OperatorActions for CrashingJournal {
    async fn scan_suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<ScanPage<StoredSuspension, u64>, StoreError> {
        self.unless_crashed().await.scan_suspensions(filter, after, limit).await
    }

    async fn resolve(
        &self,
        filter: &SuspensionFilter,
        resolution: Resolution,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        self.unless_crashed().await.resolve(filter, resolution, now).await
    }

    async fn edit_suspension(
        &self,
        id: u64,
        ordinals: Option<&[u32]>,
        edit: Option<Arc<str>>,
    ) -> Result<Option<u64>, StoreError> {
        self.write(self.journal.edit_suspension(id, ordinals, edit)).await
    }

    async fn begin_resend(&self, new: NewResend) -> Result<(Resend, bool), StoreError> {
        self.write(self.journal.begin_resend(new)).await
    }

    async fn resends(&self, unfinished: bool, after: u64, limit: usize) -> Result<Vec<Resend>, StoreError> {
        self.unless_crashed().await.resends(unfinished, after, limit).await
    }

    async fn rematch(&self, application: &Name) -> Result<u64, StoreError> {
        self.unless_crashed().await.rematch(application).await
    }

    async fn end_application(&self, application: &Name, now: Timestamp) -> Result<EndedWork, StoreError> {
        self.write(self.journal.end_application(application, now)).await
    }

    async fn set_switch(&self, switch: Switch) -> Result<(), StoreError> {
        self.write(self.journal.set_switch(switch)).await
    }

    async fn remove_switch(&self, component: &Component) -> Result<bool, StoreError> {
        self.write(self.journal.remove_switch(component)).await
    }

    async fn switches(&self) -> Result<Vec<Switch>, StoreError> {
        self.unless_crashed().await.switches().await
    }
}

#[async_trait]
impl Maintenance for CrashingJournal {
    async fn prune(&self, cutoffs: &Cutoffs, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.unless_crashed().await.prune(cutoffs, now, limit).await
    }

    async fn prunable(&self, cutoffs: &Cutoffs, most: usize) -> Result<usize, StoreError> {
        self.unless_crashed().await.prunable(cutoffs, most).await
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        self.unless_crashed().await.probe().await
    }
}

#[async_trait]
impl Erasures for CrashingJournal {
    async fn begin_erasure(&self, person: ErasedPerson, now: Timestamp) -> Result<(), StoreError> {
        self.write(self.journal.begin_erasure(person, now)).await
    }

    async fn erasures(&self) -> Result<Vec<Erasure>, StoreError> {
        self.unless_crashed().await.erasures().await
    }

    async fn event_batches_naming(
        &self,
        erasure: &Erasure,
        limit: usize,
    ) -> Result<(Vec<EventBatchId>, EventBatchId), StoreError> {
        self.unless_crashed().await.event_batches_naming(erasure, limit).await
    }

    async fn erase_events(
        &self,
        person: SubscriberNumber,
        events: Vec<ErasedEvents>,
        examined: EventBatchId,
    ) -> Result<(), StoreError> {
        self.write(self.journal.erase_events(person, events, examined)).await
    }

    async fn erase_notifications(&self, erasure: &Erasure, now: Timestamp) -> Result<ErasedNotifications, StoreError> {
        self.write(self.journal.erase_notifications(erasure, now)).await
    }

    async fn erase_texts(&self, erasure: &Erasure, now: Timestamp) -> Result<(), StoreError> {
        self.write(self.journal.erase_texts(erasure, now)).await
    }

    async fn finish_erasure(&self, person: SubscriberNumber) -> Result<(), StoreError> {
        self.write(self.journal.finish_erasure(person)).await
    }
}
