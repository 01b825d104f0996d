//! The flow in one SQLite file. An event batch is accepted, handed out, and becomes notification batches and work items
//! by a step; a work item is handed out and becomes receipts by the next.

mod accept; // a submission becomes an event batch, found again by its key
mod firings; // rules that did not fire
mod hand_out; // event batches and work items are claimed
mod prune; // what is over is removed
mod reading;
mod resends; // what had failed is sent again
mod schedules; // how far the schedules of rules have come
mod marks; // how far sources have come
mod states; // what matching remembers
mod activity; // what happened in each minute
mod quanta; // turns of the matcher
mod switches; // what an operator has switched off
mod step; // the result of a step and the acknowledgement of its input, in one commit
mod suspended; // what waits for an operator: listed, resumed, ended // what is stored, for those who look at it

mod claims; // who works on what, in memory
mod names; // names as small numbers
mod packing; // bodies and lists of numbers, made small
mod schema; // the tables
mod tally; // counters that are always true

#[cfg(test)]
mod migrating; // killed at any moment

#[cfg(debug_assertions)]
mod faults; // a broken build, on purpose

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use rusqlite::Connection;
use tocsin_model::{
    conduct::Priority,
    event::EventBatch,
    id::{ChangeSequence, EventBatchId, Name, NotificationBatchId, WorkItemId},
    notification::NotificationHead,
    receipt::Attempt,
    state::StatePage,
    time::Timestamp,
};
use tokio::sync::watch;

use self::{activity::Of, claims::Claims, names::Names, step::Rows, tally::Counters};
use super::writer::{Database, FreeSpace, LOG_STEP_BYTES, Options, store_error};
pub(super) use schema::MIGRATIONS;

use crate::{
    error::StoreError,
    journal::{
        Accepted, ActivityRow, Arrivals, Backlog, CLOCK_LEEWAY, Claim, ClaimedEvents, Component, Cutoffs,
        EventBatchState, EventPage, Except, Firing, FiringFilter, Journal, JournalOptions, Mark, NewEventBatch,
        NewResend, Progress, Quantum, Resend, Resolution, RuleStop, ScheduleKey, ScheduleRun, SourceKey, Step,
        StoredNotificationBatch, StoredSuspension, SuspensionFilter, Switch, Totals, Window, WorkAhead, WorkItem,
    },
    look::Looked,
};

/// Small pages suit bodies that are written once, in order, and read once.
const FILE: Options = Options {
    page_bytes: 4_096,
    log_bytes_max: 64 << 20,
    log_step_bytes: LOG_STEP_BYTES,
    writer_cache_kib: 32 << 10,
    reader_cache_kib: 4 << 10,
    readers: 2,
    synced: true,
    migrations: MIGRATIONS,
};
/// Failed event batches that one commit sends to be matched again.
const REMATCHED_MAX: usize = 1_000;
/// Work on more bytes than this would keep a runtime's thread from its other tasks.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// A journal in a file of SQLite, which no other process may have open.
///
/// Concurrent writes share one fsync. Claims live in memory: they cost no write, and after a restart there are none.
pub struct SqliteJournal {
    database: Database,
    shared: Shared,
    options: JournalOptions,
    free_space: FreeSpace,
}

/// What jobs on the writer's and the readers' threads share with their callers.
#[derive(Clone)]
struct Shared {
    names: Arc<Names>,
    claims: Arc<Claims>,
    counters: Arc<Counters>,
    arrivals: Arc<Senders>,
    gathering: Arc<accept::Gathering>,
}

/// Wakes whoever waits.
struct Senders {
    events: watch::Sender<u64>,
    work: watch::Sender<u64>,
}

impl Senders {
    fn events(&self) {
        self.events.send_modify(|count| *count += 1);
    }

    fn work(&self) {
        self.work.send_modify(|count| *count += 1);
    }
}

impl SqliteJournal {
    /// Opens the journal in this file, or makes it. Takes no longer the more is in it.
    ///
    /// # Errors
    /// `Unavailable` if another process has it open or it was written by a newer version, `Full` if the disk is,
    /// `Damaged` if it is no journal.
    pub async fn open(path: impl AsRef<Path>, options: JournalOptions) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let free_space = FreeSpace::beside(&path, options.free_bytes_min);
        let opening = tokio::task::spawn_blocking(move || Database::open(&path, &FILE));
        let database = opening.await.map_err(StoreError::unavailable)??;
        let shared = database.write(|connection, _| Shared::load(connection)).await?;
        Ok(SqliteJournal { database, shared, options, free_space })
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        self.database.read(move |connection| job(connection, &shared)).await
    }
}

impl Shared {
    /// What a new opening of a file begins with.
    fn load(connection: &Connection) -> Result<Shared, StoreError> {
        let epoch = connection
            .query_row("UPDATE epoch SET number = number + 1 RETURNING number", (), |row| row.get(0))
            .map_err(store_error)?;
        Ok(Shared {
            names: Arc::new(Names::load(connection)?),
            claims: Arc::new(Claims::new(epoch)),
            counters: Arc::new(Counters::load(connection)?),
            arrivals: Arc::new(Senders { events: watch::Sender::new(0), work: watch::Sender::new(0) }),
            gathering: Arc::default(),
        })
    }
}

/// Does work on so many bytes here if they are few, and on a thread for such work if they are many.
async fn off_the_runtime<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(StoreError::unavailable)
}

#[async_trait]
impl Journal for SqliteJournal {
    async fn accept(&self, batch: NewEventBatch) -> Result<Accepted, StoreError> {
        self.options.check(&self.shared.counters.backlog(), &batch)?;
        self.free_space.check()?;
        accept::accept(&self.database, &self.shared, batch).await
    }

    async fn claim_events(
        &self,
        batches: usize,
        bytes: usize,
        except: &Except,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<ClaimedEvents>, StoreError> {
        loop {
            let number = |name: &Name| self.shared.names.find(name);
            let except = hand_out::Excepted {
                applications: except.applications.iter().filter_map(number).collect(),
                classes: except.classes.iter().filter_map(|(one, class)| number(one).zip(number(class))).collect(),
            };
            let claim = move |connection: &Connection, shared: &Shared| {
                hand_out::claim_events(connection, shared, (batches, bytes), &except, lease, now)
            };
            let (claimed, damaged) = self.read(claim).await?;
            if damaged.is_empty() {
                return Ok(claimed);
            }
            // One that cannot be read must not hold up those behind it.
            for (claim, why) in &damaged {
                tracing::error!(batch = %claim.id, why, "an event batch cannot be read and is set aside");
            }
            self.commit(Step { failed: damaged, ..Step::default() }).await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
        }
    }

    async fn claim_work(
        &self,
        application: &Name,
        channel: &Name,
        least: Priority,
        limit: usize,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<WorkItem>, StoreError> {
        let Some(lane) = self.lane(application, channel) else { return Ok(Vec::new()) };
        let which = (least, limit);
        self.read(move |connection, shared| hand_out::claim_work(connection, shared, lane, which, lease, now)).await
    }

    async fn claim_window(
        &self,
        application: &Name,
        channel: &Name,
        window: Timestamp,
        notifications: usize,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<WorkItem>, StoreError> {
        let Some(lane) = self.lane(application, channel) else { return Ok(Vec::new()) };
        let which = (window, notifications);
        self.read(move |connection, shared| hand_out::claim_window(connection, shared, lane, which, lease, now)).await
    }

    async fn gathering(
        &self,
        application: &Name,
        channel: &Name,
        now: Timestamp,
        after: WorkItemId,
        limit: usize,
    ) -> Result<Vec<WorkItem>, StoreError> {
        let Some(lane) = self.lane(application, channel) else { return Ok(Vec::new()) };
        self.read(move |connection, shared| hand_out::gathering(connection, shared, lane, now, after, limit)).await
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

    async fn work_ahead(&self, now: Timestamp) -> Result<WorkAhead, StoreError> {
        self.read(move |connection, _| reading::work_ahead(connection, now)).await
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
        self.read(move |connection, _| reading::open_channels(connection, application)).await
    }

    fn arrivals(&self) -> Arrivals {
        let Senders { events, work } = &*self.shared.arrivals;
        Arrivals { events: events.subscribe(), work: work.subscribe() }
    }

    fn backlog(&self) -> Backlog {
        self.shared.counters.backlog()
    }

    fn totals(&self) -> Totals {
        self.shared.counters.totals()
    }

    async fn event_batch(&self, id: EventBatchId) -> Result<Option<(EventBatch, EventBatchState)>, StoreError> {
        self.read(move |connection, shared| reading::find_event_batch(connection, &shared.names, id)).await
    }

    async fn event_batches(
        &self,
        before: Option<EventBatchId>,
        limit: usize,
    ) -> Result<Vec<(EventBatch, EventBatchState)>, StoreError> {
        self.read(move |connection, shared| reading::event_batches(connection, &shared.names, before, limit)).await
    }

    async fn oldest_place(&self) -> Result<Option<ChangeSequence>, StoreError> {
        self.read(|connection, _| reading::oldest_place(connection)).await
    }

    async fn rematch(&self, application: &Name) -> Result<u64, StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(0) };
        let mut total = 0;
        loop {
            let shared = self.shared.clone();
            let count = self
                .database
                .write(move |connection, after| {
                    let mut rows = Rows::new(connection, &shared, Timestamp::default());
                    let count = rows.rematch(application, REMATCHED_MAX)?;
                    rows.keep(after, Some(tally::oldest_event(connection)?), false)?;
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

    async fn state_pages(
        &self,
        application: &Name,
        after: Option<&StatePage>,
        limit: usize,
    ) -> Result<Vec<StatePage>, StoreError> {
        let (application, after) = (application.clone(), after.map(|page| (page.name.clone(), page.number)));
        self.read(move |connection, _| states::list(connection, &application, after, limit)).await
    }

    async fn events_between(
        &self,
        application: &Name,
        class: &Name,
        after: EventBatchId,
        before: EventBatchId,
        bytes: usize,
    ) -> Result<EventPage, StoreError> {
        let Some((application, class)) = self.lane(application, class) else { return Ok(EventPage::default()) };
        self.read(move |connection, shared| {
            schedules::events_between(connection, &shared.names, [application, class], after, before, bytes)
        })
        .await
    }

    async fn place_at(&self, time: Timestamp) -> Result<EventBatchId, StoreError> {
        let time = time - CLOCK_LEEWAY;
        self.read(move |connection, _| schedules::place_at(connection, time)).await
    }

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

    async fn forget_schedule(&self, application: &Name, schedule: &ScheduleKey) -> Result<(), StoreError> {
        let (application, schedule) = (application.clone(), schedule.clone());
        self.database.write(move |connection, _| schedules::forget(connection, &application, &schedule)).await
    }

    async fn record_marks(&self, source: &SourceKey, marks: Vec<Mark>) -> Result<(), StoreError> {
        let [application, source] = self.shared.names.numbers(&self.database, [&source.0, &source.1]).await?;
        self.database.write(move |connection, _| marks::store(connection, application, source, &marks)).await
    }

    async fn marks(&self, source: &SourceKey, after: Option<&str>, limit: usize) -> Result<Vec<Mark>, StoreError> {
        let Some(source) = self.lane(&source.0, &source.1) else { return Ok(Vec::new()) };
        let after = after.map(str::to_owned);
        self.read(move |connection, _| marks::list(connection, source, after.as_deref(), limit)).await
    }

    async fn forget_marks(&self, application: &Name) -> Result<(), StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(()) };
        self.database.write(move |connection, _| marks::forget(connection, application)).await
    }

    async fn notification_batch(&self, id: NotificationBatchId) -> Result<Option<StoredNotificationBatch>, StoreError> {
        self.read(move |connection, shared| reading::find_notification_batch(connection, &shared.names, id)).await
    }

    async fn notification_batches_of(
        &self,
        events: EventBatchId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        self.read(move |connection, shared| {
            reading::notification_batches_of(connection, &shared.names, events, after, limit)
        })
        .await
    }

    async fn notification_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        self.read(move |connection, shared| reading::notification_batches(connection, &shared.names, before, limit))
            .await
    }

    async fn notification_batches_after(
        &self,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        self.read(move |connection, shared| {
            reading::notification_batches_after(connection, &shared.names, after, limit)
        })
        .await
    }

    async fn begin_resend(&self, new: NewResend) -> Result<(Resend, bool), StoreError> {
        self.database.write(move |connection, _| resends::begin(connection, &new)).await
    }

    async fn resends(&self, unfinished: bool, after: u64, limit: usize) -> Result<Vec<Resend>, StoreError> {
        self.read(move |connection, _| resends::list(connection, unfinished, after, limit)).await
    }

    async fn open_batches(
        &self,
        application: &Name,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
        let Some(application) = self.shared.names.find(application) else { return Ok(Vec::new()) };
        self.read(move |connection, shared| reading::open_batches(connection, &shared.names, application, after, limit))
            .await
    }

    async fn attempts(&self, batch: NotificationBatchId) -> Result<Vec<Attempt>, StoreError> {
        self.read(move |connection, _| reading::attempts(connection, batch)).await
    }

    async fn open_work(&self, batch: NotificationBatchId) -> Result<Vec<WorkItem>, StoreError> {
        self.read(move |connection, shared| hand_out::open_work(connection, shared, batch)).await
    }

    async fn look_for_suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<Looked<StoredSuspension, u64>, StoreError> {
        let filter = filter.clone();
        self.read(move |connection, shared| suspended::look(connection, shared, &filter, after, limit)).await
    }

    async fn resolve(
        &self,
        filter: &SuspensionFilter,
        resolution: Resolution,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        // What is suspended again while this goes on is not meant.
        let to = self.shared.counters.last.suspension.load(std::sync::atomic::Ordering::Relaxed);
        let (mut from, mut total) = (0, 0);
        loop {
            let (shared, filter) = (self.shared.clone(), filter.clone());
            let resolved = self
                .database
                .write(move |connection, after| {
                    suspended::resolve_some(connection, after, &shared, &filter, resolution, now, (from, to))
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
                suspended::edit(connection, after, &shared, id, ordinals.as_deref(), edit.as_deref())
            })
            .await
    }

    async fn prune(&self, cutoffs: &Cutoffs, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let (before, minutes_before) = (cutoffs.before, cutoffs.activity);
        let prune_rows = move |connection: &Connection| {
            let keys = prune::prune_keys(connection, now)?;
            let quanta = quanta::prune(connection, before, prune::KEYS_MAX)?;
            Ok(keys.max(quanta).max(activity::prune(connection, minutes_before, prune::KEYS_MAX)?))
        };
        while self.database.write(move |connection, _| prune_rows(connection)).await? == prune::KEYS_MAX {}
        if self.read(move |connection, _| resends::is_any_over(connection, before)).await? {
            self.database.write(move |connection, _| resends::prune(connection, before)).await?;
        }
        // An event batch goes after the notification batches that tell of it, which were closed no later.
        let mut removed = 0;
        for of in [Of::Notifications, Of::Events] {
            let cutoffs = cutoffs.clone();
            let lanes =
                self.read(move |connection, shared| prune::lanes(connection, &shared.names, of, &cutoffs)).await?;
            for (lane, before) in lanes {
                removed += self.prune_lane(of, lane, before, limit - removed).await?;
            }
        }
        Ok(removed)
    }

    async fn prunable(&self, cutoffs: &Cutoffs, most: usize) -> Result<usize, StoreError> {
        let cutoffs = cutoffs.clone();
        self.read(move |connection, shared| {
            let mut total = 0;
            for of in [Of::Notifications, Of::Events] {
                for (lane, before) in prune::lanes(connection, &shared.names, of, &cutoffs)? {
                    total += prune::count(connection, of, lane, before, most - total)?;
                }
            }
            Ok(total)
        })
        .await
    }

    async fn activity(&self, window: &Window, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError> {
        let Some(application) = self.number_if_any(application) else { return Ok(Vec::new()) };
        let window = *window;
        self.read(move |connection, shared| activity::window(connection, &shared.names, &window, application)).await
    }

    async fn latest_activity(&self, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError> {
        let Some(application) = self.number_if_any(application) else { return Ok(Vec::new()) };
        self.read(move |connection, shared| activity::latest(connection, &shared.names, application)).await
    }

    async fn quanta(
        &self,
        from: Timestamp,
        to: Timestamp,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Quantum>, StoreError> {
        self.read(move |connection, _| quanta::list(connection, from, to, before, limit)).await
    }

    async fn quantum(&self, id: u64) -> Result<Option<Quantum>, StoreError> {
        self.read(move |connection, _| quanta::find(connection, id)).await
    }

    async fn progress(&self, batches: &[NotificationBatchId]) -> Result<Vec<Option<Progress>>, StoreError> {
        let batches = batches.to_vec();
        self.read(move |connection, _| reading::progress(connection, &batches)).await
    }

    async fn failed_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
        self.read(move |connection, shared| reading::failed_batches(connection, &shared.names, before, limit)).await
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

    async fn probe(&self) -> Result<Duration, StoreError> {
        self.database.probe().await
    }
}

impl SqliteJournal {
    /// Removes the batches of a class that were closed first, some in each commit. Gives how many.
    async fn prune_lane(&self, of: Of, lane: (i64, i64), before: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let mut removed = 0;
        loop {
            let some = prune::BATCHES_MAX.min(limit - removed);
            let count = self
                .database
                .write(move |connection, _| match of {
                    Of::Notifications => prune::prune_notifications(connection, lane, before, some),
                    Of::Events => prune::prune_events(connection, lane, before, some),
                })
                .await?;
            removed += count;
            if count < some || some == 0 {
                return Ok(removed);
            }
        }
    }

    /// The number of an application, if one is named; `None`: it was never used.
    fn number_if_any(&self, application: Option<&Name>) -> Option<Option<i64>> {
        match application {
            None => Some(None),
            Some(name) => self.shared.names.find(name).map(Some),
        }
    }

    /// A channel or class of an application, if it was ever used.
    fn lane(&self, application: &Name, channel: &Name) -> Option<(i64, i64)> {
        Some((self.shared.names.find(application)?, self.shared.names.find(channel)?))
    }
}
