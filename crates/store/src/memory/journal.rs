//! In-memory backend of the journal port: one lock around ordered maps. The backlog is counted on each call, so it
//! cannot drift.

mod state; // its data, and the changes of a step
mod mail_providers; // mails to mailbox providers by day
mod broadcasts; // broadcasts and their progress
mod erasures; // erasure of a person

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tocsin_model::{
    event::{EventBatch, PackedEvents},
    id::{ChangeSequence, EventBatchId, Name, NotificationBatchId, WorkItemId},
    notification::{NotificationHead, Notifications},
    receipt::Attempt,
    state::StatePage,
    time::Timestamp,
};
use tokio::sync::watch;

use crate::{
    bounded_scan::ScanPage,
    error::StoreError,
    journal::{
        ActivityLog, ActivityRow, Arrivals, Backlog, CLOCK_LEEWAY, Checkpoints, Claim, ClaimEvents, ClaimWindow,
        ClaimWork, ClaimedEvents, Component, Cutoffs, Delayed, DelayedFilter, Delays, DueDelays, ENDED_BY_OPERATOR,
        EndedWork, EventAcceptance, EventBatchState, EventLog, EventPage, EventRange, Firing, FiringFilter,
        JournalOptions, Maintenance, Mark, NewEventBatch, NewResend, NotificationLog, OpenWork, OperatorActions,
        Progress, Quantum, QuantumQuery, ReceiptChunk, Resend, Resolution, Retry, RuleStop, RuleStore, ScheduleKey,
        ScheduleRun, Schedules, SourceKey, Step, StoredNotificationBatch, StoredSuspension, Stream, Suspension,
        SuspensionFilter, Switch, Totals, Window, WindowWorkQuery, WorkCounts, WorkItem, WorkQueue, WorkState,
        activity::{WindowSums, minute_of},
        ended_attempt, split_suspension,
    },
    memory::journal::state::{Batch, Events, Item, Lease, State, check, expired, is_free},
};

/// Journal that is lost with the process.
pub struct MemoryJournal {
    options: JournalOptions,
    state: Mutex<State>,
    events: watch::Sender<u64>,
    work: watch::Sender<u64>,
}

impl MemoryJournal {
    /// Creates an empty journal.
    pub fn new(options: JournalOptions) -> Self {
        MemoryJournal { options, state: Mutex::default(), events: watch::Sender::new(0), work: watch::Sender::new(0) }
    }

    /// Drops all claims, like a restart. For tests.
    pub fn drop_claims(&self) {
        let mut state = self.state.lock();
        state.event_claims.clear();
        state.work_claims.clear();
        drop(state);
        Self::wake(&self.events);
        Self::wake(&self.work);
    }

    /// Makes a notification batch unreadable, like a damaged disk. For tests.
    pub fn damage(&self, id: NotificationBatchId) {
        if let Some(batch) = self.state.lock().notification_batches.get_mut(&id.0) {
            batch.packed.truncate(batch.packed.len() / 2);
        }
    }

    fn wake(sender: &watch::Sender<u64>) {
        sender.send_modify(|count| *count += 1);
    }
}

#[async_trait]
impl EventLog for MemoryJournal {
    async fn accept(&self, new: NewEventBatch) -> Result<EventAcceptance, StoreError> {
        let mut state = self.state.lock();
        self.options.check(&state.backlog(), &new)?;
        if let Some(idempotency) = &new.idempotency
            && let Some((known, id)) = state.keys.get(&idempotency.key)
            && known.until > new.accepted_at
        {
            let (same, id) = (known.content == idempotency.content, *id);
            if same {
                state.mark(&(new.application, new.source), new.marks);
            }
            return Ok(if same { EventAcceptance::Duplicate(id) } else { EventAcceptance::KeyReused(id) });
        }
        let idempotency = new.idempotency.clone();
        let id = state.add_events(new);
        if let Some(idempotency) = idempotency {
            state.keys.insert(idempotency.key, (idempotency, id));
        }
        Self::wake(&self.events);
        Ok(EventAcceptance::New(id))
    }

    async fn event_batch(&self, id: EventBatchId) -> Result<Option<(EventBatch, EventBatchState)>, StoreError> {
        let state = self.state.lock();
        Ok(state.event_batches.get(&id.0).map(|events| (events.batch.clone(), events.state.clone())))
    }

    async fn event_batches(
        &self,
        before: Option<EventBatchId>,
        limit: usize,
    ) -> Result<Vec<(EventBatch, EventBatchState)>, StoreError> {
        let state = self.state.lock();
        let before = before.map_or(u64::MAX, |id| id.0);
        let without_events = |events: &Events| {
            let events_of = &events.batch.events;
            let packed = PackedEvents::from_parts(events_of.count(), Bytes::new());
            let packed = packed.with_traces(events_of.traces().clone());
            let chronicled = Bytes::new();
            (EventBatch { events: packed, chronicled, ..events.batch.clone() }, events.state.clone())
        };
        Ok(state.event_batches.range(..before).rev().take(limit).map(|(_, events)| without_events(events)).collect())
    }

    async fn oldest_waiting_sequence(&self) -> Result<Option<ChangeSequence>, StoreError> {
        Ok(self.state.lock().waiting().next().and_then(|(_, batch)| batch.snapshot_sequence))
    }

    async fn events_between(&self, range: EventRange<'_>) -> Result<EventPage, StoreError> {
        let EventRange { application, class, after, before, bytes } = range;
        let state = self.state.lock();
        let (mut page, mut taken) = (EventPage::default(), 0);
        if after.0.saturating_add(1) >= before.0 {
            return Ok(page);
        }
        let between = state.event_batches.range(after.0 + 1..before.0).map(|(_, events)| &events.batch);
        for batch in between.filter(|batch| batch.application == *application && batch.class == *class) {
            taken += batch.events.bytes().len();
            if taken > bytes && !page.batches.is_empty() {
                page.next = page.batches.last().map(|batch| batch.id);
                break;
            }
            page.batches.push(batch.clone());
        }
        Ok(page)
    }

    async fn position_at(&self, time: Timestamp) -> Result<EventBatchId, StoreError> {
        let (state, time) = (self.state.lock(), time - CLOCK_LEEWAY);
        let batches: Vec<&EventBatch> = state.event_batches.values().map(|events| &events.batch).collect();
        let early = batches.partition_point(|batch| batch.accepted_at < time);
        Ok(early.checked_sub(1).map_or(EventBatchId(0), |last| batches[last].id))
    }
}

#[async_trait]
impl OpenWork for MemoryJournal {
    fn arrivals(&self) -> Arrivals {
        Arrivals { events: self.events.subscribe(), work: self.work.subscribe() }
    }

    fn backlog(&self) -> Backlog {
        self.state.lock().backlog()
    }

    async fn work_counts(&self, now: Timestamp) -> Result<WorkCounts, StoreError> {
        let state = self.state.lock();
        let due = state.work.values().filter(|item| item.due_at <= now).count() as u64;
        let next = state.work.values().map(|item| item.due_at).filter(|due_at| *due_at > now).min();
        Ok(WorkCounts { due, later: state.work.len() as u64 - due, next })
    }

    async fn next_due(
        &self,
        application: &Name,
        channel: &Name,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let state = self.state.lock();
        let of_channel = |item: &&Item| item.application == *application && item.channel == *channel;
        Ok(state.work.values().filter(of_channel).map(|item| item.due_at).filter(|due_at| *due_at > now).min())
    }

    async fn open_channels(&self, application: &Name) -> Result<Vec<Name>, StoreError> {
        let state = self.state.lock();
        let items = state.work.values().filter(|item| item.application == *application);
        let suspended = state.suspensions.values().filter(|suspension| suspension.application == *application);
        let suspended = suspended.map(|suspension| suspension.channel.clone());
        let channels: BTreeSet<Name> = items.map(|item| item.channel.clone()).chain(suspended).collect();
        Ok(channels.into_iter().collect())
    }

    async fn open_applications(&self) -> Result<Vec<Name>, StoreError> {
        let state = self.state.lock();
        let is_open = |events: &&Events| !matches!(events.state, EventBatchState::Matched(_));
        let events = state.event_batches.values().filter(is_open).map(|events| &events.batch.application);
        let work = state.work.values().map(|item| &item.application);
        let suspended = state.suspensions.values().map(|suspension| &suspension.application);
        let names: BTreeSet<&Name> = events.chain(work).chain(suspended).collect();
        Ok(names.into_iter().cloned().collect())
    }

    async fn open_batches(
        &self,
        application: &Name,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
        let state = self.state.lock();
        let open: BTreeSet<NotificationBatchId> = state
            .work
            .values()
            .filter(|item| item.application == *application && item.batch > after)
            .map(|item| item.batch)
            .collect();
        let head = |id: NotificationBatchId| Some((id, state.notification_batches.get(&id.0)?.head.clone()));
        Ok(open.into_iter().filter_map(head).take(limit).collect())
    }

    async fn open_work(&self, batch: NotificationBatchId) -> Result<Vec<WorkItem>, StoreError> {
        let state = self.state.lock();
        let token = |id: &u64| state.work_claims.get(id).map_or(0, |held| held.token);
        let of_batch = state.work.iter().filter(|(_, item)| item.batch == batch);
        Ok(of_batch.map(|(id, item)| item.to_work_item(*id, token(id))).collect())
    }

    async fn digest_window_work(&self, query: WindowWorkQuery<'_>) -> Result<Vec<WorkItem>, StoreError> {
        let WindowWorkQuery { application, channel, now, after, limit } = query;
        let state = self.state.lock();
        let waits = |item: &Item| {
            item.application == *application
                && item.channel == *channel
                && item.work_state.window.is_some_and(|window| window > now)
        };
        let token = |id: &u64| state.work_claims.get(id).map_or(0, |held| held.token);
        let items = state.work.range(after.0 + 1..).filter(|(_, item)| waits(item)).take(limit);
        Ok(items.map(|(id, item)| item.to_work_item(*id, token(id))).collect())
    }
}

#[async_trait]
impl WorkQueue for MemoryJournal {
    async fn claim_events(&self, claim: ClaimEvents<'_>) -> Result<Vec<ClaimedEvents>, StoreError> {
        let ClaimEvents { batches, bytes, except, lease, now } = claim;
        let mut state = self.state.lock();
        let mut taken: Vec<EventBatch> = Vec::new();
        let mut taken_bytes = 0;
        for (id, batch) in state.waiting() {
            if !is_free(&state.event_claims, id, now) || except.has(&batch.application, &batch.class) {
                continue;
            }
            taken_bytes += batch.events.bytes().len();
            if taken.len() == batches || (!taken.is_empty() && taken_bytes > bytes) {
                break;
            }
            taken.push(batch.clone());
        }
        let claim = |batch: EventBatch| {
            let held = state.claim(now, lease);
            state.event_claims.insert(batch.id.0, held);
            ClaimedEvents { claim: Claim { id: batch.id, token: held.token }, batch }
        };
        Ok(taken.into_iter().map(claim).collect())
    }

    async fn claim_work(&self, claim: ClaimWork<'_>) -> Result<Vec<WorkItem>, StoreError> {
        let ClaimWork { application, channel, least, limit, lease, now } = claim;
        let mut state = self.state.lock();
        let mut due: Vec<(Timestamp, u64)> = state
            .work
            .iter()
            .filter(|(_, item)| item.application == *application && item.channel == *channel && item.due_at <= now)
            .filter(|(_, item)| item.work_state.priority <= least)
            .filter(|(id, _)| is_free(&state.work_claims, **id, now))
            .map(|(id, item)| (item.due_at + item.work_state.priority.aging(), *id))
            .collect();
        due.sort_unstable();
        due.truncate(limit);
        Ok(due.into_iter().map(|(_, id)| state.claim_item(id, lease, now)).collect())
    }

    async fn claim_window(&self, claim: ClaimWindow<'_>) -> Result<Vec<WorkItem>, StoreError> {
        let ClaimWindow { application, channel, window, notifications, lease, now } = claim;
        let mut state = self.state.lock();
        let is_due = |item: &Item| {
            item.application == *application
                && item.channel == *channel
                && item.work_state.window == Some(window)
                && item.due_at <= now
        };
        let mut room = notifications as u64;
        let mut due = Vec::new();
        for (id, item) in state.work.iter().filter(|(_, item)| is_due(item)) {
            if !is_free(&state.work_claims, *id, now) {
                continue;
            }
            if !due.is_empty() && item.open() > room {
                break;
            }
            room = room.saturating_sub(item.open());
            due.push(*id);
        }
        Ok(due.into_iter().map(|id| state.claim_item(id, lease, now)).collect())
    }

    async fn extend(&self, claim: Claim<WorkItemId>, lease: Duration, now: Timestamp) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let held = check(&state.work_claims, claim.id.0, claim.token, claim.id)?;
        state.work_claims.insert(claim.id.0, Lease { until: now + lease, ..held });
        Ok(())
    }

    async fn release(&self, claim: Claim<WorkItemId>, due_at: Option<Timestamp>) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        check(&state.work_claims, claim.id.0, claim.token, claim.id)?;
        state.work_claims.remove(&claim.id.0);
        if let (Some(due_at), Some(item)) = (due_at, state.work.get_mut(&claim.id.0)) {
            item.due_at = due_at;
        }
        Self::wake(&self.work);
        Ok(())
    }

    async fn release_events(&self, claim: Claim<EventBatchId>) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        check(&state.event_claims, claim.id.0, claim.token, claim.id)?;
        state.event_claims.remove(&claim.id.0);
        Self::wake(&self.events);
        Ok(())
    }

    async fn commit(&self, mut step: Step) -> Result<Vec<NotificationBatchId>, StoreError> {
        for batch in &step.batches {
            Notifications::event_batches(&batch.packed)?;
        }
        let mut state = self.state.lock();
        let time = step.time(state.check_claims(&step)?);
        if let Some(resent) = &step.resent {
            state.check_resent(resent)?;
        }
        let wakes = !(step.batches.is_empty() && step.retries.is_empty() && step.resent.is_none());

        let first_batch = (!step.batches.is_empty()).then_some(NotificationBatchId(state.last.notification_batch + 1));
        state.record_matching(&step, first_batch);
        let mut ids = Vec::with_capacity(step.batches.len());
        for batch in std::mem::take(&mut step.batches) {
            ids.push(state.add_batch(batch, time)?);
        }
        for claim in step.matched {
            state.event_claims.remove(&claim.id.0);
            if let Some(events) = state.event_batches.get_mut(&claim.id.0) {
                events.state = EventBatchState::Matched(time);
                events.closed_at = (events.open == 0).then_some(time);
            }
        }
        for (id, packed) in step.chronicled {
            if let Some(events) = state.event_batches.get_mut(&id.0) {
                events.batch.chronicled = packed;
            }
        }
        for (claim, reason) in step.failed {
            state.event_claims.remove(&claim.id.0);
            if let Some(events) = state.event_batches.get_mut(&claim.id.0) {
                events.state = EventBatchState::Failed(reason);
            }
        }
        state.store_delays((step.delayed, step.cancelled, step.released), time);
        state.mark_progress(&step.held, &step.receipts);
        for claim in step.finished {
            state.work_claims.remove(&claim.id.0);
            state.work.remove(&claim.id.0);
        }
        if let Some(resent) = step.resent {
            state.advance(resent);
        }
        for chunk in step.receipts {
            state.record(chunk, time);
        }
        for mut retry in step.retries {
            retry.due_at = state.due_at(retry.batch, retry.due_at, time);
            state.add_retry(retry);
        }
        for suspension in step.suspensions {
            state.add_suspension(suspension);
        }
        for firing in step.firings {
            state.add_firing(firing);
        }
        for refired in step.refired {
            state.refire(refired);
        }
        for stop in step.stops {
            state.stop(stop);
        }
        for (application, page) in step.states {
            let key = (application, page.name, page.number);
            match page.body.is_empty() {
                true => state.states.remove(&key),
                false => state.states.insert(key, page.body),
            };
        }
        for broadcast in step.broadcasts {
            state.record_broadcast(broadcast);
        }
        if !step.continued.is_empty() {
            Self::wake(&self.events);
        }
        for events in step.continued {
            state.add_events(events);
        }
        if wakes {
            Self::wake(&self.work);
        }
        Ok(ids)
    }
}

#[async_trait]
impl NotificationLog for MemoryJournal {
    async fn notification_batch(&self, id: NotificationBatchId) -> Result<Option<StoredNotificationBatch>, StoreError> {
        let state = self.state.lock();
        let Some(batch) = state.notification_batches.get(&id.0) else { return Ok(None) };
        let notifications = Notifications::unpack(&batch.packed)?;
        Ok(Some(StoredNotificationBatch { id, head: batch.head.clone(), notifications }))
    }

    async fn notification_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        let state = self.state.lock();
        let before = before.map_or(u64::MAX, |id| id.0);
        let head = |(id, batch): (&u64, &Batch)| (NotificationBatchId(*id), batch.head.clone(), batch.count);
        Ok(state.notification_batches.range(..before).rev().take(limit).map(head).collect())
    }

    async fn notification_batches_of(
        &self,
        events: EventBatchId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        let state = self.state.lock();
        let is_linked = |(id, batch): &(&u64, &Batch)| {
            **id > after.0 && (batch.events.contains(&events) || batch.run == Some(events))
        };
        let head = |(id, batch): (&u64, &Batch)| (NotificationBatchId(*id), batch.head.clone(), batch.count);
        Ok(state.notification_batches.iter().filter(is_linked).take(limit).map(head).collect())
    }

    async fn notification_batches_after(
        &self,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        let state = self.state.lock();
        let later = state.notification_batches.range((Bound::Excluded(after.0), Bound::Unbounded));
        let head = |(id, batch): (&u64, &Batch)| (NotificationBatchId(*id), batch.head.clone(), batch.count);
        Ok(later.take(limit).map(head).collect())
    }

    async fn failed_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
        let state = self.state.lock();
        let earlier = state.notification_batches.range(..before.map_or(u64::MAX, |id| id.0)).rev();
        let failed = earlier.filter(|(_, batch)| batch.progress.failed > 0).take(limit);
        Ok(failed.map(|(id, batch)| (NotificationBatchId(*id), batch.head.clone())).collect())
    }

    async fn attempts(&self, batch: NotificationBatchId) -> Result<Vec<Attempt>, StoreError> {
        let state = self.state.lock();
        Ok(state.notification_batches.get(&batch.0).map(|batch| batch.attempts.clone()).unwrap_or_default())
    }

    async fn progress(&self, batches: &[NotificationBatchId]) -> Result<Vec<Option<Progress>>, StoreError> {
        let state = self.state.lock();
        Ok(batches.iter().map(|id| state.notification_batches.get(&id.0).map(|batch| batch.progress)).collect())
    }
}

#[async_trait]
impl RuleStore for MemoryJournal {
    async fn state_pages(
        &self,
        application: &Name,
        after: Option<&StatePage>,
        limit: usize,
    ) -> Result<Vec<StatePage>, StoreError> {
        let state = self.state.lock();
        let from = match after {
            Some(page) => Bound::Excluded((application.clone(), page.name.clone(), page.number)),
            None => Bound::Included((application.clone(), "".into(), 0)),
        };
        let mine = state.states.range((from, Bound::Unbounded)).take_while(|((of, ..), _)| of == application);
        let page = |((_, name, number), body): (&(Name, Box<str>, u64), &Bytes)| StatePage {
            name: name.clone(),
            number: *number,
            body: body.clone(),
        };
        Ok(mine.take(limit).map(page).collect())
    }

    async fn firings(&self, filter: &FiringFilter, after: u64, limit: usize) -> Result<Vec<Firing>, StoreError> {
        let state = self.state.lock();
        let later = state.firings.range(after.saturating_add(1)..).map(|(_, (firing, _))| firing);
        Ok(later.filter(|firing| filter.matches(firing)).take(limit).cloned().collect())
    }

    async fn dismiss_firings(&self, filter: &FiringFilter) -> Result<u64, StoreError> {
        let mut dismissed = 0;
        self.state.lock().firings.retain(|_, (firing, _)| {
            let is_match = filter.matches(firing);
            dismissed += if is_match { firing.batches } else { 0 };
            !is_match
        });
        Ok(dismissed)
    }

    async fn stop_rule(&self, stop: RuleStop) -> Result<(), StoreError> {
        self.state.lock().stop(stop);
        Ok(())
    }

    async fn resume_rule(&self, application: &Name, rule: &Name) -> Result<bool, StoreError> {
        Ok(self.state.lock().stops.remove(&(application.clone(), rule.clone())).is_some())
    }

    async fn rule_stops(&self) -> Result<Vec<RuleStop>, StoreError> {
        Ok(self.state.lock().stops.values().cloned().collect())
    }
}

#[async_trait]
impl Schedules for MemoryJournal {
    async fn record_runs(
        &self,
        due: Option<NewEventBatch>,
        runs: Vec<ScheduleRun>,
    ) -> Result<Option<EventBatchId>, StoreError> {
        let mut state = self.state.lock();
        let due = match due {
            Some(due) => {
                self.options.check(&state.backlog(), &due)?;
                Some(state.add_events(due))
            }
            None => None,
        };
        for run in runs {
            let run = ScheduleRun { after: due.unwrap_or(run.after), ..run };
            state.runs.insert((run.application.clone(), (run.rule.clone(), run.schedule.clone())), run);
        }
        if due.is_some() {
            Self::wake(&self.events);
        }
        Ok(due)
    }

    async fn schedule_runs(
        &self,
        application: &Name,
        after: Option<&ScheduleKey>,
        limit: usize,
    ) -> Result<Vec<ScheduleRun>, StoreError> {
        let state = self.state.lock();
        let of_application = state.runs.iter().filter(|((of, _), _)| of == application);
        let later = of_application.filter(|((_, key), _)| after.is_none_or(|after| key > after));
        Ok(later.map(|(_, run)| run.clone()).take(limit).collect())
    }

    async fn schedule_run(
        &self,
        application: &Name,
        schedule: &ScheduleKey,
    ) -> Result<Option<ScheduleRun>, StoreError> {
        Ok(self.state.lock().runs.get(&(application.clone(), schedule.clone())).cloned())
    }

    async fn delete_schedule(&self, application: &Name, schedule: &ScheduleKey) -> Result<(), StoreError> {
        self.state.lock().runs.remove(&(application.clone(), schedule.clone()));
        Ok(())
    }
}

#[async_trait]
impl Delays for MemoryJournal {
    async fn next_delayed(&self, application: &Name, except: &[Name]) -> Result<Option<(Timestamp, Name)>, StoreError> {
        let state = self.state.lock();
        let waiting = state.delayed.values().filter(|found| found.application == *application && found.run.is_none());
        let waiting = waiting.filter(|found| !except.contains(&found.rule));
        Ok(waiting.map(|found| (found.due_at, found.rule.clone())).min())
    }

    async fn assign_due(&self, due: DueDelays) -> Result<Option<EventBatchId>, StoreError> {
        let DueDelays { batch, rule, now, limit } = due;
        let mut state = self.state.lock();
        self.options.check(&state.backlog(), &batch)?;
        let is_due = |found: &&Delayed| {
            (&found.application, &found.rule) == (&batch.application, &rule)
                && found.run.is_none()
                && found.due_at <= now
        };
        let mut found: Vec<(Timestamp, u64)> =
            state.delayed.values().filter(is_due).map(|found| (found.due_at, found.id)).collect();
        if found.is_empty() {
            return Ok(None);
        }
        found.sort_unstable();
        let run = state.add_events(NewEventBatch { idempotency: None, ..batch });
        for (_, id) in found.into_iter().take(limit) {
            if let Some(delayed) = state.delayed.get_mut(&id) {
                delayed.run = Some(run);
            }
        }
        Self::wake(&self.events);
        Ok(Some(run))
    }

    async fn delayed_of(&self, run: EventBatchId) -> Result<Vec<Delayed>, StoreError> {
        Ok(self.state.lock().delayed.values().filter(|found| found.run == Some(run)).cloned().collect())
    }

    async fn delayed(&self, filter: &DelayedFilter, after: u64, limit: usize) -> Result<Vec<Delayed>, StoreError> {
        let state = self.state.lock();
        let later = state.delayed.values().filter(|found| found.id > after && filter.matches(found));
        Ok(later.take(limit).cloned().collect())
    }

    async fn cancel_delayed(&self, filter: &DelayedFilter, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        Ok(self.state.lock().end_delayed(|found| found.run.is_none() && filter.matches(found), limit, now))
    }

    async fn delayed_count(&self, application: &Name) -> Result<u64, StoreError> {
        let state = self.state.lock();
        Ok(state.delayed.values().filter(|found| found.application == *application).count() as u64)
    }
}

#[async_trait]
impl Checkpoints for MemoryJournal {
    async fn record_marks(&self, source: &SourceKey, marks: Vec<Mark>) -> Result<(), StoreError> {
        self.state.lock().mark(source, marks);
        Ok(())
    }

    async fn marks(&self, source: &SourceKey, after: Option<&str>, limit: usize) -> Result<Vec<Mark>, StoreError> {
        let state = self.state.lock();
        let of_source = state.marks.iter().filter(|((of, _), _)| of == source);
        let later = of_source.filter(|((_, part), _)| after.is_none_or(|after| &**part > after));
        Ok(later.map(|((_, part), value)| Mark::set(part.clone(), value.clone())).take(limit).collect())
    }

    async fn delete_marks(&self, application: &Name) -> Result<(), StoreError> {
        self.state.lock().marks.retain(|((of, _), _), _| of != application);
        Ok(())
    }
}

#[async_trait]
impl OperatorActions for MemoryJournal {
    async fn scan_suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<ScanPage<StoredSuspension, u64>, StoreError> {
        let state = self.state.lock();
        let stored = |(id, suspension): (u64, &Suspension)| StoredSuspension { id, suspension: suspension.clone() };
        let later = state.matching(filter).filter(|(id, _)| *id > after);
        let found = later.take(limit.saturating_add(1)).map(stored).collect();
        Ok(ScanPage::cut(found, limit, None, |found: &StoredSuspension| found.id))
    }

    async fn resolve(
        &self,
        filter: &SuspensionFilter,
        resolution: Resolution,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut state = self.state.lock();
        let ids: Vec<u64> = state.matching(filter).map(|(id, _)| id).collect();
        let ended = |of: &Suspension, ordinal| ended_attempt(of.attempts, ordinal, ENDED_BY_OPERATOR, now);
        let mut touched = 0;
        for id in ids {
            let Some(suspension) = state.suspensions.remove(&id) else { continue };
            touched += suspension.ordinals.len() as u64;
            match resolution {
                Resolution::Resume => state.add_retry(Retry {
                    batch: suspension.batch,
                    application: suspension.application,
                    channel: suspension.channel,
                    ordinals: suspension.ordinals,
                    attempts: 0,
                    due_at: now,
                    work_state: WorkState { since: None, ..suspension.work_state },
                }),
                Resolution::End => {
                    let attempts: Vec<Attempt> =
                        suspension.ordinals.iter().map(|ordinal| ended(&suspension, *ordinal)).collect();
                    let (batch, channel) = (suspension.batch, suspension.channel);
                    state.record(ReceiptChunk { batch, channel, attempts: attempts.into() }, now);
                }
            }
        }
        if touched > 0 && resolution == Resolution::Resume {
            Self::wake(&self.work);
        }
        Ok(touched)
    }

    async fn edit_suspension(
        &self,
        id: u64,
        ordinals: Option<&[u32]>,
        edit: Option<Arc<str>>,
    ) -> Result<Option<u64>, StoreError> {
        let mut state = self.state.lock();
        let Some(suspension) = state.suspensions.get_mut(&id) else { return Ok(None) };
        match ordinals.map_or(Some(None), |ordinals| split_suspension(suspension, ordinals)) {
            None => Ok(None),
            Some(None) => {
                suspension.work_state.edit = edit;
                Ok(Some(id))
            }
            Some(Some(mut cut)) => {
                cut.work_state.edit = edit;
                state.add_suspension(cut);
                Ok(Some(state.last.suspension))
            }
        }
    }

    async fn begin_resend(&self, new: NewResend) -> Result<(Resend, bool), StoreError> {
        let mut state = self.state.lock();
        if let Some((_, known)) = state.resends.values().find(|(key, _)| *key == new.key) {
            return Ok((known.clone(), false));
        }
        state.last.resend += 1;
        let resend = Resend {
            id: state.last.resend,
            request: new.request,
            by: new.by,
            asked_at: new.asked_at,
            reached: NotificationBatchId(0),
            last: NotificationBatchId(state.notification_batches.keys().next_back().copied().unwrap_or(0)),
            notifications: 0,
            done_at: None,
        };
        state.resends.insert(resend.id, (new.key, resend.clone()));
        Ok((resend, true))
    }

    async fn resends(&self, unfinished: bool, after: u64, limit: usize) -> Result<Vec<Resend>, StoreError> {
        let state = self.state.lock();
        let later = state.resends.range((Bound::Excluded(after), Bound::Unbounded)).map(|(_, (_, found))| found);
        Ok(later.filter(|found| !unfinished || found.done_at.is_none()).take(limit).cloned().collect())
    }

    async fn rematch(&self, application: &Name) -> Result<u64, StoreError> {
        let mut state = self.state.lock();
        let mut count = 0;
        for events in state.event_batches.values_mut() {
            if events.batch.application == *application && matches!(events.state, EventBatchState::Failed(_)) {
                events.state = EventBatchState::Accepted;
                count += 1;
            }
        }
        if count > 0 {
            Self::wake(&self.events);
        }
        Ok(count)
    }

    async fn end_application(&self, application: &Name, now: Timestamp) -> Result<EndedWork, StoreError> {
        Ok(self.state.lock().end_application(application, now))
    }

    async fn set_switch(&self, switch: Switch) -> Result<(), StoreError> {
        self.state.lock().switches.insert(switch.component.to_string(), switch);
        Ok(())
    }

    async fn remove_switch(&self, component: &Component) -> Result<bool, StoreError> {
        Ok(self.state.lock().switches.remove(&component.to_string()).is_some())
    }

    async fn switches(&self) -> Result<Vec<Switch>, StoreError> {
        Ok(self.state.lock().switches.values().cloned().collect())
    }
}

#[async_trait]
impl ActivityLog for MemoryJournal {
    async fn activity(&self, window: &Window, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError> {
        let state = self.state.lock();
        let mut parts = WindowSums::default();
        for ((stream, minute), activity) in &state.activity {
            if application.is_none_or(|application| application == stream.application()) {
                parts.add(window, stream.clone(), *minute, activity);
            }
        }
        Ok(parts.rows())
    }

    async fn latest_activity(&self, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError> {
        let state = self.state.lock();
        let of_application = |(stream, _): &&(Stream, Timestamp)| {
            application.is_none_or(|application| application == stream.application())
        };
        let newest: BTreeMap<Stream, Timestamp> = state.activity.keys().filter(of_application).cloned().collect();
        let row = |(stream, from): (Stream, Timestamp)| {
            let activity = state.activity[&(stream.clone(), from)].clone();
            ActivityRow { stream, from, activity }
        };
        Ok(newest.into_iter().map(row).collect())
    }

    async fn quanta(&self, query: QuantumQuery) -> Result<Vec<Quantum>, StoreError> {
        let QuantumQuery { from, to, before, limit } = query;
        let state = self.state.lock();
        let earlier = state.quanta.range(..before.unwrap_or(u64::MAX)).map(|(_, quantum)| quantum);
        let mut found: Vec<Quantum> =
            earlier.filter(|quantum| (from..to).contains(&quantum.ended_at)).cloned().collect();
        found.sort_by_key(|quantum| std::cmp::Reverse((quantum.ended_at, quantum.id)));
        found.truncate(limit);
        Ok(found)
    }

    async fn quantum(&self, id: u64) -> Result<Option<Quantum>, StoreError> {
        Ok(self.state.lock().quanta.get(&id).cloned())
    }

    fn totals(&self) -> Totals {
        self.state.lock().totals.clone()
    }
}

#[async_trait]
impl Maintenance for MemoryJournal {
    async fn prune(&self, cutoffs: &Cutoffs, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let mut state = self.state.lock();
        state.keys.retain(|_, (key, _)| key.until > now);
        let before = cutoffs.before;
        state.resends.retain(|_, (_, request)| request.done_at.is_none_or(|done_at| done_at >= before));
        state.prune_broadcasts(before);
        state.quanta.retain(|_, quantum| quantum.ended_at >= before);
        let newest: BTreeMap<Stream, Timestamp> = state.activity.keys().cloned().collect();
        let minutes_before = minute_of(cutoffs.activity);
        state.activity.retain(|(stream, minute), _| *minute >= minutes_before || newest[stream] == *minute);

        let (mut batches, mut events) = expired(&state, cutoffs);
        batches.sort_unstable();
        batches.truncate(limit);
        for (_, _, id) in &batches {
            state.keep_broadcast_counts(*id);
            state.notification_batches.remove(id);
        }

        events.sort_unstable();
        events.truncate(limit - batches.len());
        for (_, _, id) in &events {
            state.event_batches.remove(id);
        }
        Ok(batches.len() + events.len())
    }

    async fn prunable(&self, cutoffs: &Cutoffs, most: usize) -> Result<usize, StoreError> {
        let (batches, events) = expired(&self.state.lock(), cutoffs);
        Ok((batches.len() + events.len()).min(most))
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        Ok(Duration::ZERO)
    }
}
