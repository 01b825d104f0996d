//! SQLite backend of the journal port. Each step of the flow claims rows and commits its results: events become
//! notification batches and work items, work items become receipts.

mod submission_queue; // submissions that wait for the writer
mod context; // shared state: counters, claims, names
mod accept; // store an event batch: group commit, idempotency keys
mod firings; // failed and skipped rule firings, stopped rules
mod claim; // claim event batches and work items
mod prune; // retention: delete finished batches in small commits
mod views; // read-only queries for reports and traces
mod resends; // resend requests
mod schedules; // progress of rule schedules
mod mail_providers; // mails to mailbox providers by day
mod broadcasts; // broadcasts and their progress
mod delays; // notifications of delayed rules that wait
mod erasures; // erasure of a person
mod checkpoints; // checkpoints of sources
mod states; // pages of rule state
mod activity; // per-minute activity counters
mod quanta; // quanta: runs of the matcher
mod switches; // paused and disabled components
mod row_writer; // writes the rows of a commit
mod step; // commit of a step: its results and the acknowledgement of its input
mod suspensions; // suspended work: list, edit, resume, end
mod removal; // open work of removed applications
mod leases; // leases with fencing tokens, in memory
mod names; // dictionary of names as small integers
mod packing; // compression of bodies and of lists of numbers
mod schema; // tables and migrations
mod counters; // backlog and totals, updated in the commit of what they count

#[cfg(test)]
mod migration_crash_test; // migrations are atomic when the process is killed

#[cfg(debug_assertions)]
mod faults; // fault injection that the crash tests must detect

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use rusqlite::Connection;
use tocsin_model::{
    event::EventBatch,
    id::{BroadcastId, ChangeSequence, EventBatchId, Name, NotificationBatchId, WorkItemId},
    notification::NotificationHead,
    receipt::Attempt,
    state::StatePage,
    time::Timestamp,
};

use crate::{
    bounded_scan::ScanPage,
    error::StoreError,
    journal::{
        ActivityLog, ActivityRow, Arrivals, Backlog, Broadcast, BroadcastChange, BroadcastFilter, BroadcastTotals,
        Broadcasts, CLOCK_LEEWAY, Checkpoints, Claim, ClaimEvents, ClaimWindow, ClaimWork, ClaimedEvents, Component,
        Cutoffs, Delayed, DelayedFilter, Delays, DueDelays, EndedWork, EventAcceptance, EventBatchState, EventLog,
        EventPage, EventRange, Firing, FiringFilter, JournalOptions, Maintenance, Mark, NewBroadcast, NewEventBatch,
        NewResend, NotificationLog, OpenWork, OperatorActions, Progress, Quantum, QuantumQuery, Resend, Resolution,
        RuleStop, RuleStore, ScheduleKey, ScheduleRun, Schedules, SourceKey, Step, StoredNotificationBatch,
        StoredSuspension, SuspensionFilter, Switch, Totals, Window, WindowWorkQuery, WorkCounts, WorkItem, WorkQueue,
    },
    sqlite::{
        journal::{
            activity::BatchKind,
            context::{JournalContext, Senders},
            row_writer::RowWriter,
        },
        writer::{Database, Erases, FreeSpace, LOG_STEP_BYTES, Options, store_error},
    },
};

pub(super) use schema::MIGRATIONS;

/// Small pages suit bodies that are written once, in order, and read once.
const FILE: Options = Options {
    page_bytes: 4_096,
    log_bytes_max: 64 << 20,
    log_step_bytes: LOG_STEP_BYTES,
    writer_cache_kib: 32 << 10,
    reader_cache_kib: 4 << 10,
    readers: 2,
    synced: true,
    erases: Erases::Cells,
    migrations: MIGRATIONS,
};

/// Maximum number of failed event batches that one commit returns to matching.
const REMATCHED_MAX: usize = 1_000;

/// Journal in one SQLite file; only one process can have it open.
///
/// Concurrent writes share one fsync (group commit). Claims live in memory: they cost no write, and a restart voids
/// them.
pub struct SqliteJournal {
    database: Database,
    shared: JournalContext,
    options: JournalOptions,
    free_space: FreeSpace,
}

impl SqliteJournal {
    /// Opens or creates the journal file. The time it takes does not depend on the file's size.
    ///
    /// # Errors
    /// `Unavailable` if another process has the file open or a newer version wrote it, `Full` if the disk is full,
    /// `Damaged` if it is not a journal.
    pub async fn open(path: impl AsRef<Path>, options: JournalOptions) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let free_space = FreeSpace::of(&path, options.free_bytes_min);
        let opening = tokio::task::spawn_blocking(move || Database::open(&path, &FILE));
        let database = opening.await.map_err(StoreError::unavailable)??;
        let shared = database.write(|connection, _| JournalContext::load(connection)).await?;
        Ok(SqliteJournal { database, shared, options, free_space })
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &JournalContext) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        self.database.read(move |connection| job(connection, &shared)).await
    }
}

crate::sqlite::audit::trail!(SqliteJournal, "journal");

#[async_trait]
impl EventLog for SqliteJournal {
    async fn accept(&self, batch: NewEventBatch) -> Result<EventAcceptance, StoreError> {
        self.options.check(&self.shared.counters.backlog(), &batch)?;
        self.free_space.check()?;
        accept::accept(&self.database, &self.shared, batch).await
    }

    async fn event_batch(&self, id: EventBatchId) -> Result<Option<(EventBatch, EventBatchState)>, StoreError> {
        self.read(move |connection, shared| views::find_event_batch(connection, &shared.names, id)).await
    }

    async fn event_batches(
        &self,
        before: Option<EventBatchId>,
        limit: usize,
    ) -> Result<Vec<(EventBatch, EventBatchState)>, StoreError> {
        self.read(move |connection, shared| views::event_batches(connection, &shared.names, before, limit)).await
    }

    async fn oldest_waiting_sequence(&self) -> Result<Option<ChangeSequence>, StoreError> {
        self.read(|connection, _| views::oldest_waiting_sequence(connection)).await
    }

    async fn events_between(&self, range: EventRange<'_>) -> Result<EventPage, StoreError> {
        let EventRange { application, class, after, before, bytes } = range;
        let Some((application, class)) = self.lane(application, class) else { return Ok(EventPage::default()) };
        self.read(move |connection, shared| {
            schedules::events_between(connection, &shared.names, [application, class], after, before, bytes)
        })
        .await
    }

    async fn position_at(&self, time: Timestamp) -> Result<EventBatchId, StoreError> {
        let time = time - CLOCK_LEEWAY;
        self.read(move |connection, _| schedules::position_at(connection, time)).await
    }
}

#[async_trait]
impl OpenWork for SqliteJournal {
    fn arrivals(&self) -> Arrivals {
        let Senders { events, work } = &*self.shared.arrivals;
        Arrivals { events: events.subscribe(), work: work.subscribe() }
    }

    fn backlog(&self) -> Backlog {
        self.shared.counters.backlog()
    }

    async fn work_counts(&self, now: Timestamp) -> Result<WorkCounts, StoreError> {
        self.read(move |connection, _| views::work_counts(connection, now)).await
    }

    async fn next_due(
        &self,
        application: &Name,
        channel: &Name,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let Some((application, channel)) = self.lane(application, channel) else { return Ok(None) };
        self.read(move |connection, _| {
            // One look into the index for each priority.
            connection
                .prepare_cached(
                    "WITH priorities (number) AS (VALUES (0), (1), (2), (3))
                     SELECT min((SELECT min(due_at) FROM work
                         WHERE application = ?1 AND channel = ?2 AND priority = number AND due_at > ?3))
                     FROM priorities",
                )
                .and_then(|mut statement| {
                    statement.query_row((application, channel, now.0), |row| row.get::<_, Option<i64>>(0))
                })
                .map(|due_at| due_at.map(Timestamp))
                .map_err(store_error)
        })
        .await
    }

    async fn open_channels(&self, application: &Name) -> Result<Vec<Name>, StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(Vec::new()) };
        self.read(move |connection, _| views::open_channels(connection, application)).await
    }

    async fn open_applications(&self) -> Result<Vec<Name>, StoreError> {
        self.read(|connection, _| removal::open_applications(connection)).await
    }

    async fn open_batches(
        &self,
        application: &Name,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(Vec::new()) };
        self.read(move |connection, shared| views::open_batches(connection, &shared.names, application, after, limit))
            .await
    }

    async fn open_work(&self, batch: NotificationBatchId) -> Result<Vec<WorkItem>, StoreError> {
        self.read(move |connection, shared| claim::open_work(connection, shared, batch)).await
    }

    async fn digest_window_work(&self, query: WindowWorkQuery<'_>) -> Result<Vec<WorkItem>, StoreError> {
        let WindowWorkQuery { application, channel, now, after, limit } = query;
        let Some(lane) = self.lane(application, channel) else { return Ok(Vec::new()) };
        self.read(move |connection, shared| claim::digest_window_work(connection, shared, lane, now, after, limit))
            .await
    }
}

#[async_trait]
impl WorkQueue for SqliteJournal {
    async fn claim_events(&self, claim: ClaimEvents<'_>) -> Result<Vec<ClaimedEvents>, StoreError> {
        let ClaimEvents { batches, bytes, except, lease, now } = claim;
        loop {
            let number = |name: &Name| self.shared.names.find(name);
            let except = claim::ExcludedEvents {
                applications: except.applications.iter().filter_map(number).collect(),
                classes: except.classes.iter().filter_map(|(one, class)| number(one).zip(number(class))).collect(),
            };
            let claim = move |connection: &Connection, shared: &JournalContext| {
                claim::claim_events(connection, shared, batches, bytes, &except, lease, now)
            };
            let (claimed, damaged) = self.read(claim).await?;
            if damaged.is_empty() {
                return Ok(claimed);
            }
            // An unreadable batch must not block those behind it.
            for (claim, why) in &damaged {
                tracing::error!(batch = %claim.id, why, "an event batch is unreadable and was set aside");
            }
            self.commit(Step { failed: damaged, ..Step::default() }).await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
        }
    }

    async fn claim_work(&self, claim: ClaimWork<'_>) -> Result<Vec<WorkItem>, StoreError> {
        let ClaimWork { application, channel, least, limit, lease, now } = claim;
        let Some(lane) = self.lane(application, channel) else { return Ok(Vec::new()) };
        self.read(move |connection, shared| claim::claim_work(connection, shared, lane, least, limit, lease, now)).await
    }

    async fn claim_window(&self, claim: ClaimWindow<'_>) -> Result<Vec<WorkItem>, StoreError> {
        let ClaimWindow { application, channel, window, notifications, lease, now } = claim;
        let Some(lane) = self.lane(application, channel) else { return Ok(Vec::new()) };
        self.read(move |connection, shared| {
            claim::claim_window(connection, shared, lane, window, notifications, lease, now)
        })
        .await
    }

    async fn extend(&self, claim: Claim<WorkItemId>, lease: Duration, now: Timestamp) -> Result<(), StoreError> {
        self.shared.claims.lock().work.extend(claim.id.0, claim.token, now + lease, claim.id)
    }

    async fn release(&self, claim: Claim<WorkItemId>, due_at: Option<Timestamp>) -> Result<(), StoreError> {
        if let Some(due_at) = due_at {
            let shared = self.shared.clone();
            self.database
                .write(move |connection, after| {
                    let held = Step { held: vec![claim], ..Step::default() };
                    let committing = shared.claims.begin(&held)?;
                    connection
                        .prepare_cached("UPDATE work SET due_at = ?2 WHERE id = ?1")
                        .and_then(|mut statement| statement.execute((claim.id.0, due_at.0)))
                        .map_err(store_error)?;
                    after.run(move || drop(committing));
                    Ok(())
                })
                .await?;
        }
        self.shared.claims.lock().work.release(claim.id.0, claim.token, claim.id)?;
        self.shared.arrivals.work();
        Ok(())
    }

    async fn release_events(&self, claim: Claim<EventBatchId>) -> Result<(), StoreError> {
        self.shared.claims.lock().events.release(claim.id.0, claim.token, claim.id)?;
        self.shared.arrivals.events();
        Ok(())
    }

    async fn commit(&self, step: Step) -> Result<Vec<NotificationBatchId>, StoreError> {
        step::commit(&self.database, &self.shared, step).await
    }
}

#[async_trait]
impl NotificationLog for SqliteJournal {
    async fn notification_batch(&self, id: NotificationBatchId) -> Result<Option<StoredNotificationBatch>, StoreError> {
        self.read(move |connection, shared| views::find_notification_batch(connection, &shared.names, id)).await
    }

    async fn notification_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        self.read(move |connection, shared| views::notification_batches(connection, &shared.names, before, limit)).await
    }

    async fn notification_batches_of(
        &self,
        events: EventBatchId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        self.read(move |connection, shared| {
            views::notification_batches_of(connection, &shared.names, events, after, limit)
        })
        .await
    }

    async fn notification_batches_after(
        &self,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        self.read(move |connection, shared| views::notification_batches_after(connection, &shared.names, after, limit))
            .await
    }

    async fn failed_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
        self.read(move |connection, shared| views::failed_batches(connection, &shared.names, before, limit)).await
    }

    async fn attempts(&self, batch: NotificationBatchId) -> Result<Vec<Attempt>, StoreError> {
        self.read(move |connection, _| views::attempts(connection, batch)).await
    }

    async fn progress(&self, batches: &[NotificationBatchId]) -> Result<Vec<Option<Progress>>, StoreError> {
        let batches = batches.to_vec();
        self.read(move |connection, _| views::progress(connection, &batches)).await
    }
}

#[async_trait]
impl RuleStore for SqliteJournal {
    async fn state_pages(
        &self,
        application: &Name,
        after: Option<&StatePage>,
        limit: usize,
    ) -> Result<Vec<StatePage>, StoreError> {
        let (application, after) = (application.clone(), after.map(|page| (page.name.clone(), page.number)));
        self.read(move |connection, _| states::list(connection, &application, after, limit)).await
    }

    async fn firings(&self, filter: &FiringFilter, after: u64, limit: usize) -> Result<Vec<Firing>, StoreError> {
        let filter = filter.clone();
        self.read(move |connection, _| firings::list(connection, &filter, after, limit)).await
    }

    async fn dismiss_firings(&self, filter: &FiringFilter) -> Result<u64, StoreError> {
        let filter = filter.clone();
        self.database.write(move |connection, _| firings::dismiss(connection, &filter)).await
    }

    async fn stop_rule(&self, stop: RuleStop) -> Result<(), StoreError> {
        self.database.write(move |connection, _| firings::add_stop(connection, &stop)).await
    }

    async fn resume_rule(&self, application: &Name, rule: &Name) -> Result<bool, StoreError> {
        let (application, rule) = (application.clone(), rule.clone());
        self.database.write(move |connection, _| firings::remove_stop(connection, &application, &rule)).await
    }

    async fn rule_stops(&self) -> Result<Vec<RuleStop>, StoreError> {
        self.read(|connection, _| firings::stops(connection)).await
    }
}

#[async_trait]
impl Schedules for SqliteJournal {
    async fn record_runs(
        &self,
        due: Option<NewEventBatch>,
        runs: Vec<ScheduleRun>,
    ) -> Result<Option<EventBatchId>, StoreError> {
        let row = match due {
            Some(due) => {
                self.options.check(&self.shared.counters.backlog(), &due)?;
                self.free_space.check()?;
                Some(accept::row(&self.database, &self.shared, NewEventBatch { idempotency: None, ..due }).await?)
            }
            None => None,
        };
        let shared = self.shared.clone();
        self.database
            .write(move |connection, after| {
                let accepted = accept::store_all(connection, after, &shared, row.as_slice())?;
                let due = accepted.first().map(|accepted| accepted.id());
                schedules::store(connection, &runs, due)?;
                Ok(due)
            })
            .await
    }

    async fn schedule_runs(
        &self,
        application: &Name,
        after: Option<&ScheduleKey>,
        limit: usize,
    ) -> Result<Vec<ScheduleRun>, StoreError> {
        let (application, after) = (application.clone(), after.cloned());
        self.read(move |connection, _| schedules::list(connection, &application, after.as_ref(), limit)).await
    }

    async fn schedule_run(
        &self,
        application: &Name,
        schedule: &ScheduleKey,
    ) -> Result<Option<ScheduleRun>, StoreError> {
        let (application, schedule) = (application.clone(), schedule.clone());
        self.read(move |connection, _| schedules::find(connection, &application, &schedule)).await
    }

    async fn delete_schedule(&self, application: &Name, schedule: &ScheduleKey) -> Result<(), StoreError> {
        let (application, schedule) = (application.clone(), schedule.clone());
        self.database.write(move |connection, _| schedules::delete(connection, &application, &schedule)).await
    }
}

#[async_trait]
impl Broadcasts for SqliteJournal {
    async fn put_broadcast(&self, new: NewBroadcast) -> Result<(Broadcast, bool), StoreError> {
        self.database.write(move |connection, _| broadcasts::put(connection, &new)).await
    }

    async fn broadcast(&self, id: BroadcastId) -> Result<Option<Broadcast>, StoreError> {
        self.read(move |connection, _| broadcasts::find(connection, id)).await
    }

    async fn broadcasts(
        &self,
        filter: &BroadcastFilter,
        before: Option<BroadcastId>,
        limit: usize,
    ) -> Result<Vec<Broadcast>, StoreError> {
        let filter = filter.clone();
        self.read(move |connection, _| broadcasts::list(connection, &filter, before, limit)).await
    }

    async fn startable_broadcasts(&self, limit: usize) -> Result<Vec<Broadcast>, StoreError> {
        self.read(move |connection, _| broadcasts::startable(connection, limit)).await
    }

    async fn begin_broadcast(&self, id: BroadcastId, event: NewEventBatch) -> Result<Option<EventBatchId>, StoreError> {
        self.options.check(&self.shared.counters.backlog(), &event)?;
        self.free_space.check()?;
        let event = NewEventBatch { idempotency: None, ..event };
        let (row, shared) = (accept::row(&self.database, &self.shared, event).await?, self.shared.clone());
        self.database.write(move |connection, after| broadcasts::begin(connection, after, &shared, id, &row)).await
    }

    async fn change_broadcast(&self, id: BroadcastId, change: BroadcastChange) -> Result<Broadcast, StoreError> {
        let shared = self.shared.clone();
        self.database.write(move |connection, after| broadcasts::change(connection, after, &shared, id, &change)).await
    }

    async fn broadcast_totals(&self, id: BroadcastId) -> Result<BroadcastTotals, StoreError> {
        self.read(move |connection, _| broadcasts::totals(connection, id)).await
    }

    async fn broadcast_batches(
        &self,
        id: BroadcastId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<NotificationBatchId>, StoreError> {
        self.read(move |connection, _| broadcasts::batches(connection, id, after, limit)).await
    }
}

#[async_trait]
impl Delays for SqliteJournal {
    async fn next_delayed(&self, application: &Name, except: &[Name]) -> Result<Option<(Timestamp, Name)>, StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(None) };
        let except: Vec<i64> = except.iter().filter_map(|rule| self.shared.names.find(rule)).collect();
        self.read(move |connection, shared| delays::next(connection, shared, application, &except)).await
    }

    async fn assign_due(&self, due: DueDelays) -> Result<Option<EventBatchId>, StoreError> {
        let DueDelays { batch, rule, now, limit } = due;
        let Some(lane) = self.lane(&batch.application, &rule) else { return Ok(None) };
        self.options.check(&self.shared.counters.backlog(), &batch)?;
        self.free_space.check()?;
        let batch = NewEventBatch { idempotency: None, ..batch };
        let row = accept::row(&self.database, &self.shared, batch).await?;
        let shared = self.shared.clone();
        let (application, rule) = lane;
        self.database
            .write(move |connection, after| {
                let ids = delays::due(connection, [application, rule], now, limit)?;
                if ids.is_empty() {
                    return Ok(None);
                }
                let accepted = accept::store_all(connection, after, &shared, std::slice::from_ref(&row))?;
                let Some(run) = accepted.first().map(|accepted| accepted.id()) else { return Ok(None) };
                delays::assign(connection, &ids, run)?;
                Ok(Some(run))
            })
            .await
    }

    async fn delayed_of(&self, run: EventBatchId) -> Result<Vec<Delayed>, StoreError> {
        self.read(move |connection, shared| delays::of_run(connection, shared, run)).await
    }

    async fn delayed(&self, filter: &DelayedFilter, after: u64, limit: usize) -> Result<Vec<Delayed>, StoreError> {
        let filter = filter.clone();
        self.read(move |connection, shared| delays::list(connection, shared, &filter, after, limit)).await
    }

    async fn cancel_delayed(&self, filter: &DelayedFilter, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let (shared, filter) = (self.shared.clone(), filter.clone());
        self.database
            .write(move |connection, after| delays::cancel(connection, after, &shared, &filter, now, limit))
            .await
    }

    async fn delayed_count(&self, application: &Name) -> Result<u64, StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(0) };
        self.read(move |connection, _| delays::count(connection, application)).await
    }
}

#[async_trait]
impl Checkpoints for SqliteJournal {
    async fn record_marks(&self, source: &SourceKey, marks: Vec<Mark>) -> Result<(), StoreError> {
        let [application, source] = self.shared.names.numbers(&self.database, [&source.0, &source.1]).await?;
        self.database.write(move |connection, _| checkpoints::store(connection, application, source, &marks)).await
    }

    async fn marks(&self, source: &SourceKey, after: Option<&str>, limit: usize) -> Result<Vec<Mark>, StoreError> {
        let Some(source) = self.lane(&source.0, &source.1) else { return Ok(Vec::new()) };
        let after = after.map(str::to_owned);
        self.read(move |connection, _| checkpoints::list(connection, source, after.as_deref(), limit)).await
    }

    async fn delete_marks(&self, application: &Name) -> Result<(), StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(()) };
        self.database.write(move |connection, _| checkpoints::delete_all(connection, application)).await
    }
}

#[async_trait]
impl OperatorActions for SqliteJournal {
    async fn scan_suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<ScanPage<StoredSuspension, u64>, StoreError> {
        let filter = filter.clone();
        self.read(move |connection, shared| suspensions::scan(connection, shared, &filter, after, limit)).await
    }

    async fn resolve(
        &self,
        filter: &SuspensionFilter,
        resolution: Resolution,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        // Work suspended again during this loop is not included.
        let to = self.shared.counters.last.suspension.load(std::sync::atomic::Ordering::Relaxed);
        let (mut from, mut total) = (0, 0);
        loop {
            let (shared, filter) = (self.shared.clone(), filter.clone());
            let resolved = self
                .database
                .write(move |connection, after| {
                    suspensions::resolve_some(connection, after, &shared, &filter, resolution, now, (from, to))
                })
                .await?;
            total += resolved.notifications;
            match resolved.last {
                Some(last) => from = last,
                None => return Ok(total),
            }
        }
    }

    async fn edit_suspension(
        &self,
        id: u64,
        ordinals: Option<&[u32]>,
        edit: Option<Arc<str>>,
    ) -> Result<Option<u64>, StoreError> {
        let (shared, ordinals) = (self.shared.clone(), ordinals.map(<[u32]>::to_vec));
        self.database
            .write(move |connection, after| {
                suspensions::edit(connection, after, &shared, id, ordinals.as_deref(), edit.as_deref())
            })
            .await
    }

    async fn begin_resend(&self, new: NewResend) -> Result<(Resend, bool), StoreError> {
        self.database.write(move |connection, _| resends::begin(connection, &new)).await
    }

    async fn resends(&self, unfinished: bool, after: u64, limit: usize) -> Result<Vec<Resend>, StoreError> {
        self.read(move |connection, _| resends::list(connection, unfinished, after, limit)).await
    }

    async fn rematch(&self, application: &Name) -> Result<u64, StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(0) };
        let mut total = 0;
        loop {
            let shared = self.shared.clone();
            let count = self
                .database
                .write(move |connection, after| {
                    let mut rows = RowWriter::new(connection, &shared, Timestamp::default());
                    let count = rows.rematch(application, REMATCHED_MAX)?;
                    rows.store_counts(after, Some(counters::oldest_event(connection)?), false)?;
                    after.run(move || shared.arrivals.events());
                    Ok(count)
                })
                .await?;
            total += count as u64;
            if count < REMATCHED_MAX {
                return Ok(total);
            }
        }
    }

    async fn end_application(&self, application: &Name, now: Timestamp) -> Result<EndedWork, StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(EndedWork::default()) };
        let mut total = EndedWork::default();
        loop {
            let shared = self.shared.clone();
            let (ended, is_done) = self
                .database
                .write(move |connection, after| removal::end_some(connection, after, &shared, application, now))
                .await?;
            total.notifications += ended.notifications;
            total.event_batches += ended.event_batches;
            if is_done {
                return Ok(total);
            }
        }
    }

    async fn set_switch(&self, switch: Switch) -> Result<(), StoreError> {
        self.database.write(move |connection, _| switches::set(connection, &switch)).await
    }

    async fn remove_switch(&self, component: &Component) -> Result<bool, StoreError> {
        let component = component.clone();
        self.database.write(move |connection, _| switches::remove(connection, &component)).await
    }

    async fn switches(&self) -> Result<Vec<Switch>, StoreError> {
        self.read(|connection, _| switches::list(connection)).await
    }
}

#[async_trait]
impl ActivityLog for SqliteJournal {
    async fn activity(&self, window: &Window, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError> {
        let Some(application) = self.number_if_any(application) else { return Ok(Vec::new()) };
        let window = *window;
        self.read(move |connection, shared| activity::window(connection, &shared.names, &window, application)).await
    }

    async fn latest_activity(&self, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError> {
        let Some(application) = self.number_if_any(application) else { return Ok(Vec::new()) };
        self.read(move |connection, shared| activity::latest(connection, &shared.names, application)).await
    }

    async fn quanta(&self, query: QuantumQuery) -> Result<Vec<Quantum>, StoreError> {
        let QuantumQuery { from, to, before, limit } = query;
        self.read(move |connection, _| quanta::list(connection, from, to, before, limit)).await
    }

    async fn quantum(&self, id: u64) -> Result<Option<Quantum>, StoreError> {
        self.read(move |connection, _| quanta::find(connection, id)).await
    }

    fn totals(&self) -> Totals {
        self.shared.counters.totals()
    }
}

#[async_trait]
impl Maintenance for SqliteJournal {
    async fn prune(&self, cutoffs: &Cutoffs, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let (before, minutes_before) = (cutoffs.before, cutoffs.activity);
        let prune_rows = move |connection: &Connection| {
            let keys = prune::prune_keys(connection, now)?;
            let quanta = quanta::prune(connection, before, prune::KEYS_MAX)?;
            Ok(keys.max(quanta).max(activity::prune(connection, minutes_before, prune::KEYS_MAX)?))
        };
        while self.database.write(move |connection, _| prune_rows(connection)).await? == prune::KEYS_MAX {}
        if self.read(move |connection, _| resends::is_any_expired(connection, before)).await? {
            self.database.write(move |connection, _| resends::prune(connection, before)).await?;
        }
        if self.read(move |connection, _| broadcasts::is_any_expired(connection, before)).await? {
            self.database.write(move |connection, _| broadcasts::prune(connection, before)).await?;
        }
        // An event batch is deleted after the notification batches made from it, which were closed no later.
        let mut removed = 0;
        for of in [BatchKind::Notifications, BatchKind::Events] {
            let cutoffs = cutoffs.clone();
            let lanes = self
                .read(move |connection, shared| prune::expired_classes(connection, &shared.names, of, &cutoffs))
                .await?;
            for (lane, before) in lanes {
                removed += self.prune_class(of, lane, before, limit - removed).await?;
            }
        }
        Ok(removed)
    }

    async fn prunable(&self, cutoffs: &Cutoffs, most: usize) -> Result<usize, StoreError> {
        let cutoffs = cutoffs.clone();
        self.read(move |connection, shared| {
            let mut total = 0;
            for of in [BatchKind::Notifications, BatchKind::Events] {
                for (lane, before) in prune::expired_classes(connection, &shared.names, of, &cutoffs)? {
                    total += prune::count(connection, of, lane, before, most - total)?;
                }
            }
            Ok(total)
        })
        .await
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        self.database.probe().await
    }
}

impl SqliteJournal {
    /// Deletes the batches of a class that were closed first, some per commit. Returns their number.
    async fn prune_class(
        &self,
        of: BatchKind,
        lane: (i64, i64),
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let mut removed = 0;
        loop {
            let some = prune::BATCHES_MAX.min(limit - removed);
            let count = self
                .database
                .write(move |connection, _| match of {
                    BatchKind::Notifications => prune::prune_notifications(connection, lane, before, some),
                    BatchKind::Events => prune::prune_events(connection, lane, before, some),
                })
                .await?;
            removed += count;
            if count < some || some == 0 {
                return Ok(removed);
            }
        }
    }

    /// Number of an application, if one is named; `None`: the name was never used.
    fn number_if_any(&self, application: Option<&Name>) -> Option<Option<i64>> {
        match application {
            None => Some(None),
            Some(name) => self.shared.names.find(name).map(Some),
        }
    }

    /// Numbers of an application and its channel or class, if both names were ever used.
    fn lane(&self, application: &Name, channel: &Name) -> Option<(i64, i64)> {
        Some((self.shared.names.find(application)?, self.shared.names.find(channel)?))
    }
}
