//! Port of the event flow. The result of a step and the acknowledgement of its input are one commit.
//!
//! A step claims input and commits its result together with the mark that the input is done. A crash before the
//! commit repeats the step; a crash after it does not. Claims carry a fencing token: a worker that lost its claim
//! cannot commit ([`StoreError::Fenced`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tocsin_model::{
    delivery_policy::Priority,
    event::{EventBatch, PackedEvents},
    id::{ChangeSequence, EventBatchId, Name, NotificationBatchId, NotificationId, WorkItemId},
    notification::{NotificationHead, Notifications},
    receipt::{Attempt, Outcome},
    state::StatePage,
    time::Timestamp,
};

use crate::{bounded_scan::ScanPage, error::StoreError};

pub use activity::{Activity, ActivityRow, Count, DurationHistogram, Progress, Stream, Timing, Window};
pub use firings::{Firing, FiringFilter, FiringStatus, NewFiring, RefiredBatch, RuleStop};
pub use quanta::{NewQuantum, Quantum, QuantumInput};
pub use resends::{NewResend, ReopenedNotifications, Resend, ResendProgress};
pub use schedules::{EventPage, ScheduleKey, ScheduleRun};
pub use source_key::SourceKey;
pub use switches::{Component, ComponentError, Role, Switch, SwitchState};
pub use tocsin_model::mark::Mark;
pub use work_state::WorkState;

pub(crate) mod work_state; // scheduling state of a work item
mod resends; // requests to send failed notifications again
mod firings; // rule firings that failed or were skipped, and stopped rules
mod schedules; // progress of rule schedules
mod switches; // components that an operator paused or disabled
pub(crate) mod activity; // per-minute counters for reports
pub(crate) mod quanta; // quanta: runs of the matcher
mod source_key; // key of a source's checkpoints

/// Limits of a journal. When one is reached, [`Journal::accept`] returns `Full` before it stores anything. Steps
/// still commit, so accepted work drains. Submissions that are already being stored when a limit is reached still
/// pass.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JournalOptions {
    /// Event batches that may wait to be matched. Default: 1,000,000.
    pub event_batches_waiting_max: u64,
    /// Packed bytes of events that may wait to be matched. Default: 1 GiB.
    pub event_bytes_waiting_max: u64,
    /// Notifications that may wait to be sent. Default: 10,000,000.
    pub notifications_waiting_max: u64,
    /// Bytes that stay free on the journal's file system for the steps that drain it. Default: 256 MiB; 0 disables
    /// the check. Backends without a file system ignore it.
    pub free_bytes_min: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        JournalOptions {
            event_batches_waiting_max: 1_000_000,
            event_bytes_waiting_max: 1 << 30,
            notifications_waiting_max: 10_000_000,
            free_bytes_min: 256 << 20,
        }
    }
}

impl JournalOptions {
    /// Checks whether a batch may be accepted on top of this backlog.
    pub(crate) fn check(&self, backlog: &Backlog, batch: &NewEventBatch) -> Result<(), StoreError> {
        let bytes = batch.events.bytes().len() as u64;
        if backlog.event_batches >= self.event_batches_waiting_max {
            return Err(StoreError::Full(format!("{} event batches wait to be matched", backlog.event_batches)));
        }
        // An empty backlog takes a batch of any size; otherwise a large batch could never be accepted.
        if backlog.event_bytes > 0 && backlog.event_bytes.saturating_add(bytes) > self.event_bytes_waiting_max {
            return Err(StoreError::Full(format!("{} bytes of events wait to be matched", backlog.event_bytes)));
        }
        if backlog.notifications >= self.notifications_waiting_max {
            return Err(StoreError::Full(format!("{} notifications wait to be sent", backlog.notifications)));
        }
        Ok(())
    }
}

/// An event batch to accept.
#[derive(Debug, Clone)]
pub struct NewEventBatch {
    /// See [`EventBatch`].
    pub application: Name,
    /// See [`EventBatch`].
    pub version: u32,
    /// See [`EventBatch`].
    pub class: Name,
    /// See [`EventBatch`].
    pub source: Name,
    /// See [`EventBatch`].
    pub received_at: Timestamp,
    /// See [`EventBatch`].
    pub accepted_at: Timestamp,
    /// Snapshot sequence: the newest change of the records at submission. If a batch accepted earlier has a higher
    /// sequence, this is raised to it, so sequences never decrease with batch numbers.
    pub snapshot_sequence: ChangeSequence,
    /// See [`EventBatch`].
    pub events: PackedEvents,
    /// Idempotency key of the submission.
    pub idempotency: Option<Idempotency>,
    /// Checkpoints that the source stores in the same commit. They are also stored for a duplicate submission, but
    /// not if the key was reused with other content.
    pub marks: Vec<Mark>,
}

/// Idempotency key with a hash of the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// Key, already unique per caller: a hash of application, source and the caller's own key.
    pub key: [u8; 16],
    /// Hash of the submitted content.
    pub content: [u8; 16],
    /// Expiry of the key.
    pub until: Timestamp,
}

/// Result of a submission. The events are durable unless the key was reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventAcceptance {
    /// A new batch was stored.
    New(EventBatchId),
    /// A batch with the same key and content exists; nothing was stored.
    Duplicate(EventBatchId),
    /// A batch with the same key and other content exists; nothing was stored.
    KeyReused(EventBatchId),
}

impl EventAcceptance {
    /// Number of the new or existing batch.
    pub fn id(self) -> EventBatchId {
        match self {
            EventAcceptance::New(id) | EventAcceptance::Duplicate(id) | EventAcceptance::KeyReused(id) => id,
        }
    }
}

/// Lease on an item. The fencing token increases with each claim of the same item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim<Id> {
    /// Claimed item.
    pub id: Id,
    /// Fencing token.
    pub token: u64,
}

/// Event batch claimed for matching.
#[derive(Debug, Clone)]
pub struct ClaimedEvents {
    /// Lease on the batch.
    pub claim: Claim<EventBatchId>,
    /// The batch.
    pub batch: EventBatch,
}

/// Unit of delivery: the due notifications of one batch on one channel, all or some.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkItem {
    /// Lease on the item.
    pub claim: Claim<WorkItemId>,
    /// Notification batch.
    pub batch: NotificationBatchId,
    /// Ordinals of the notifications, ascending; `None` means all. Ordinals completed by an earlier holder are left
    /// out (see [`Step::held`]); if all were, the list is empty and the item only needs to be closed.
    pub ordinals: Option<Vec<u32>>,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Due time.
    pub due_at: Timestamp,
    /// Scheduling state.
    pub work_state: WorkState,
}

/// Notification batch created by a step. Its first work item is due at once.
#[derive(Debug, Clone)]
pub struct NewNotificationBatch {
    /// Properties shared by all notifications of the batch.
    pub head: NotificationHead,
    /// Number of notifications.
    pub count: u32,
    /// Encoded by `Notifications::pack`; the backend compresses it.
    pub packed: Bytes,
    /// Priority of the work item.
    pub priority: Priority,
    /// If set, the notifications are suspended with this reason and no work item is created.
    pub suspended: Option<String>,
    /// For notifications of a scheduled run: the event batch of the run's due time.
    pub run: Option<EventBatchId>,
}

/// Notification batch as stored.
#[derive(Debug, Clone)]
pub struct StoredNotificationBatch {
    /// Batch number.
    pub id: NotificationBatchId,
    /// Properties shared by all notifications of the batch.
    pub head: NotificationHead,
    /// The notifications.
    pub notifications: Notifications,
}

/// Delivery attempts of one notification batch.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptChunk {
    /// Notification batch.
    pub batch: NotificationBatchId,
    /// Channel of the attempts: the batch's own, or one of its fallbacks.
    pub channel: Name,
    /// Attempts; shared with the caller, which keeps them until the commit.
    pub attempts: Arc<Vec<Attempt>>,
}

/// Notifications of one batch that are retried at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Notification batch.
    pub batch: NotificationBatchId,
    /// Application of the channel.
    pub application: Name,
    /// Channel.
    pub channel: Name,
    /// Ordinals, ascending, not empty.
    pub ordinals: Vec<u32>,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Due time of the retry.
    pub due_at: Timestamp,
    /// Scheduling state of the retry.
    pub work_state: WorkState,
}

/// Suspended notifications of one batch: they wait for an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Suspension {
    /// Notification batch.
    pub batch: NotificationBatchId,
    /// Application.
    pub application: Name,
    /// Channel.
    pub channel: Name,
    /// Ordinals, ascending, not empty.
    pub ordinals: Vec<u32>,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Reason of the suspension.
    pub reason: String,
    /// Time of the suspension.
    pub since: Timestamp,
    /// Scheduling state, restored on resume.
    pub work_state: WorkState,
}

/// Suspension with the number by which an operator resumes or ends it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSuspension {
    /// Suspension number.
    pub id: u64,
    /// Suspended notifications and the reason.
    pub suspension: Suspension,
}

/// Operator's decision about suspensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Make them due again, with a fresh retry schedule.
    Resume,
    /// Close them without sending.
    End,
}

/// Filter of suspensions; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SuspensionFilter {
    /// Suspension number.
    pub id: Option<u64>,
    /// Application.
    pub application: Option<Name>,
    /// Channel.
    pub channel: Option<Name>,
    /// Notification batch.
    pub batch: Option<NotificationBatchId>,
    /// Notification class.
    pub class: Option<Name>,
    /// Text that the reason contains, ignoring ASCII case.
    pub reason: Option<String>,
    /// Suspended before this time.
    pub before: Option<Timestamp>,
}

/// Step: the results and the acknowledgement of the input, stored atomically.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// Event batches matched by this step.
    pub matched: Vec<Claim<EventBatchId>>,
    /// Event batches that could not be matched, with the reason. They are set aside, listed and kept.
    pub failed: Vec<(Claim<EventBatchId>, String)>,
    /// Work items finished by this step. Each of their notifications needs a closing attempt, retry or suspension;
    /// one without is lost.
    pub finished: Vec<Claim<WorkItemId>>,
    /// Work items that stay claimed: the step is rejected if one of these claims is lost. Notifications with an
    /// attempt in this step numbered above the item's `attempts` are completed, whatever the outcome: the item is not
    /// claimed with them again.
    pub held: Vec<Claim<WorkItemId>>,
    /// New notification batches.
    pub batches: Vec<NewNotificationBatch>,
    /// Attempts.
    pub receipts: Vec<ReceiptChunk>,
    /// New work items for a later time.
    pub retries: Vec<Retry>,
    /// Notifications to suspend.
    pub suspensions: Vec<Suspension>,
    /// Rule firings that failed or were skipped for batches of this step.
    pub firings: Vec<NewFiring>,
    /// Listed firings that were repeated successfully, with the notification batches of this step.
    pub refired: Vec<RefiredBatch>,
    /// Rules stopped by this step.
    pub stops: Vec<RuleStop>,
    /// Pages of rule state, by application. Each replaces the stored page; an empty page deletes it.
    pub states: Vec<(Name, StatePage)>,
    /// Chronicle values that rules read while these event batches were matched. Stored with the batches, in
    /// [`EventBatch::chronicled`].
    pub chronicled: Vec<(EventBatchId, Bytes)>,
    /// Event batches that continue the work of this step, such as the rest of a long scheduled run. They are accepted
    /// regardless of the backlog limits; their idempotency key is ignored.
    pub continued: Vec<NewEventBatch>,
    /// Progress of a resend request.
    pub resent: Option<ResendProgress>,
    /// Statistics of the quantum that matched or set aside the event batches of this step.
    pub quantum: Option<NewQuantum>,
}

impl Step {
    /// Latest time known to the step: claim of the input, match of the batches, or last answer. It becomes the time
    /// at which inputs are marked as matched or closed.
    pub(crate) fn time(&self, claimed_at: Timestamp) -> Timestamp {
        let matched = self.batches.iter().map(|batch| batch.head.matched_at);
        let answered = self.receipts.iter().flat_map(|chunk| &*chunk.attempts).map(|attempt| attempt.answered_at);
        let resent = self.resent.iter().map(|resent| resent.now);
        matched.chain(answered).chain(resent).fold(claimed_at, Timestamp::max)
    }
}

/// Tolerance of [`Journal::position_at`] for clocks that go back.
pub(crate) const CLOCK_LEEWAY: Duration = Duration::from_secs(1);

/// Splits notifications off a suspension; `suspension` keeps the others.
///
/// Returns `None` if it has none of `ordinals`, `Some(None)` if it has no others.
pub(crate) fn split_suspension(suspension: &mut Suspension, ordinals: &[u32]) -> Option<Option<Suspension>> {
    let (meant, others): (Vec<u32>, Vec<u32>) =
        suspension.ordinals.iter().copied().partition(|ordinal| ordinals.contains(ordinal));
    match (meant.is_empty(), others.is_empty()) {
        (true, _) => None,
        (_, true) => Some(None),
        _ => {
            suspension.ordinals = others;
            Some(Some(Suspension { ordinals: meant, ..suspension.clone() }))
        }
    }
}

/// Reply of the closing attempts that an operator's decision makes.
pub(crate) const ENDED_BY_OPERATOR: &str = "ended by an operator";
/// Reply of the closing attempts that the removal of an application makes.
pub(crate) const APPLICATION_REMOVED: &str = "the application was removed";

/// Closing attempt of a notification that is not sent any more.
pub(crate) fn ended_attempt(attempts: u32, ordinal: u32, reply: &str, now: Timestamp) -> Attempt {
    Attempt {
        ordinal,
        number: attempts.saturating_add(1),
        formatted_at: now,
        sent_at: now,
        answered_at: now,
        outcome: Outcome::Ended,
        reply: reply.to_owned(),
    }
}

/// Work that the removal of an application ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndedWork {
    /// Notifications that got a closing attempt.
    pub notifications: u64,
    /// Event batches that were closed without notifications.
    pub event_batches: u64,
}

/// Number of work items of all channels, by due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkCounts {
    /// Due work items, claimed or not.
    pub due: u64,
    /// Work items due in the future.
    pub later: u64,
    /// Earliest due time in the future.
    pub next: Option<Timestamp>,
}

/// Current backlog, as counters that are cheap to read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Event batches not yet matched.
    pub event_batches: u64,
    /// Events in them.
    pub events: u64,
    /// Packed bytes of them.
    pub event_bytes: u64,
    /// Event batches set aside because matching failed.
    pub failed_batches: u64,
    /// Notifications of open work items: due, claimed, or waiting for a retry.
    pub notifications: u64,
    /// Open work items.
    pub work_items: u64,
    /// Suspended notifications.
    pub suspended: u64,
    /// Acceptance time of the oldest unmatched event batch.
    pub oldest_event: Option<Timestamp>,
}

/// Totals since the creation of the journal, for status and reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Event batches accepted.
    pub event_batches: u64,
    /// Events accepted.
    pub events: u64,
    /// Notification batches made.
    pub notification_batches: u64,
    /// Notifications made.
    pub notifications: u64,
    /// Attempts by outcome, in the order of `Outcome::ALL`.
    pub attempts: [u64; Outcome::ALL.len()],
}

/// Matching state of an event batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventBatchState {
    /// Waiting to be matched.
    Accepted,
    /// Matched, with the time.
    Matched(Timestamp),
    /// Matching failed; set aside, with the reason.
    Failed(String),
}

impl EventBatchState {
    /// The state as text.
    pub const fn word(&self) -> &'static str {
        match self {
            EventBatchState::Accepted => "accepted",
            EventBatchState::Matched(_) => "matched",
            EventBatchState::Failed(_) => "failed",
        }
    }
}

/// Retention cutoffs: items finished before these times are deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cutoffs {
    /// Default cutoff.
    pub before: Timestamp,
    /// Cutoffs of event batches, by application and class.
    pub events: BTreeMap<(Name, Name), Timestamp>,
    /// Cutoffs of notification batches, by application and class.
    pub notifications: BTreeMap<(Name, Name), Timestamp>,
    /// Cutoff of the per-minute activity counters.
    pub activity: Timestamp,
}

impl Cutoffs {
    /// The same cutoff for everything.
    pub fn all(before: Timestamp) -> Cutoffs {
        Cutoffs { before, events: BTreeMap::new(), notifications: BTreeMap::new(), activity: before }
    }

    pub(crate) fn of_events(&self, application: Name, class: Name) -> Timestamp {
        self.events.get(&(application, class)).copied().unwrap_or(self.before)
    }

    pub(crate) fn of_notifications(&self, application: Name, class: Name) -> Timestamp {
        self.notifications.get(&(application, class)).copied().unwrap_or(self.before)
    }
}

/// Wake-up signals: each receiver wakes when its number grows. The numbers have no other meaning.
#[derive(Debug, Clone)]
pub struct Arrivals {
    /// Grows when event batches arrive.
    pub events: tokio::sync::watch::Receiver<u64>,
    /// Grows when work becomes due or is released.
    pub work: tokio::sync::watch::Receiver<u64>,
}

/// Event batches excluded from claiming, such as those of paused applications.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Except {
    /// Excluded applications.
    pub applications: BTreeSet<Name>,
    /// Excluded event classes, each with its application.
    pub classes: BTreeSet<(Name, Name)>,
}

impl Except {
    /// Checks whether batches of a class are excluded.
    pub fn has(&self, application: &Name, class: &Name) -> bool {
        self.applications.contains(application)
            || !self.classes.is_empty() && self.classes.contains(&(application.clone(), class.clone()))
    }
}

/// Port of the durable event flow. Methods may be called from any task.
///
/// Writes are durable when a method returns: they survive a crash of the process and of the machine.
#[async_trait]
pub trait Journal: Send + Sync + 'static {
    /// Stores an event batch. Concurrent calls share one fsync (group commit).
    ///
    /// # Errors
    /// `Full`: the disk or a limit is full; nothing was stored. The client should try again later.
    async fn accept(&self, batch: NewEventBatch) -> Result<EventAcceptance, StoreError>;

    /// Claims unmatched event batches in order of acceptance, each for one matcher until `now + lease`. Returns at
    /// most `batches` of them and not much more than `bytes` packed bytes, but at least one if any waits. Batches in
    /// `except` stay; their number does not affect the cost.
    async fn claim_events(
        &self,
        batches: usize,
        bytes: usize,
        except: &Except,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<ClaimedEvents>, StoreError>;

    /// Claims up to `limit` due work items of a channel with priority `least` or higher, each for one worker. The
    /// longest due comes first, where [`Priority::aging`] is added to the due time.
    ///
    /// A worker that neither finishes nor extends an item within `lease` loses it to another, so a step must be safe
    /// to run twice.
    async fn claim_work(
        &self,
        application: &Name,
        channel: &Name,
        least: Priority,
        limit: usize,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<WorkItem>, StoreError>;

    /// Claims the due work items of a digest window that closes at `window`, oldest first: up to `notifications`
    /// notifications, at least one item if there is any.
    async fn claim_window(
        &self,
        application: &Name,
        channel: &Name,
        window: Timestamp,
        notifications: usize,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<WorkItem>, StoreError>;

    /// Open work items of a channel whose digest window closes after `now`, by number, from after `after`, up to
    /// `limit`. The token of an unclaimed item is 0.
    async fn digest_window_work(
        &self,
        application: &Name,
        channel: &Name,
        now: Timestamp,
        after: WorkItemId,
        limit: usize,
    ) -> Result<Vec<WorkItem>, StoreError>;

    /// Extends a lease to `now + lease`.
    ///
    /// # Errors
    /// `Fenced`: the claim is lost.
    async fn extend(&self, claim: Claim<WorkItemId>, lease: Duration, now: Timestamp) -> Result<(), StoreError>;

    /// Releases a claimed work item without an attempt, due at once or at `due_at`.
    ///
    /// # Errors
    /// `Fenced`: the claim is lost.
    async fn release(&self, claim: Claim<WorkItemId>, due_at: Option<Timestamp>) -> Result<(), StoreError>;

    /// Releases a claimed event batch.
    ///
    /// # Errors
    /// `Fenced`: the claim is lost.
    async fn release_events(&self, claim: Claim<EventBatchId>) -> Result<(), StoreError>;

    /// Commits a step atomically. Returns the numbers of its new notification batches, in order.
    ///
    /// # Errors
    /// `Fenced`: one of its claims is lost; nothing was stored.
    async fn commit(&self, step: Step) -> Result<Vec<NotificationBatchId>, StoreError>;

    /// Counts due, claimed and future work items. Scans all of them.
    async fn work_counts(&self, now: Timestamp) -> Result<WorkCounts, StoreError>;

    /// Due time of the next work item of a channel that is not due yet.
    async fn next_due(
        &self,
        application: &Name,
        channel: &Name,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError>;

    /// Channels of an application that have open or suspended work, by name. They need a worker even if the
    /// application no longer defines them, since suspended work may be resumed.
    async fn open_channels(&self, application: &Name) -> Result<Vec<Name>, StoreError>;

    /// Applications with open work, by name: event batches that wait or failed, work items, suspensions.
    async fn open_applications(&self) -> Result<Vec<Name>, StoreError>;

    /// Ends the open work of a removed application, claimed or not. Each open or suspended notification gets a closing
    /// attempt with outcome `Ended`; event batches that wait or failed are closed without notifications. A file is
    /// written in several commits: the call can be repeated after a crash.
    async fn end_application(&self, application: &Name, now: Timestamp) -> Result<EndedWork, StoreError>;

    /// Subscribes to wake-ups for new events and work. Receivers see each arrival after this call, none before it.
    fn arrivals(&self) -> Arrivals;

    /// Current backlog. Cheap: reads counters.
    fn backlog(&self) -> Backlog;

    /// Totals since the creation of the journal. Cheap: reads counters.
    fn totals(&self) -> Totals;

    /// Event batch with its state.
    async fn event_batch(&self, id: EventBatchId) -> Result<Option<(EventBatch, EventBatchState)>, StoreError>;

    /// Newest event batches before `before` (or all), newest first, without their events, each with its event count.
    async fn event_batches(
        &self,
        before: Option<EventBatchId>,
        limit: usize,
    ) -> Result<Vec<(EventBatch, EventBatchState)>, StoreError>;

    /// Snapshot sequence of the oldest unmatched event batch; `None` if none waits or its sequence is unknown.
    async fn oldest_waiting_sequence(&self) -> Result<Option<ChangeSequence>, StoreError>;

    /// Returns failed event batches of an application to matching. Returns their number.
    async fn rematch(&self, application: &Name) -> Result<u64, StoreError>;

    /// Failed and skipped firings, oldest first, from after the number `after`.
    async fn firings(&self, filter: &FiringFilter, after: u64, limit: usize) -> Result<Vec<Firing>, StoreError>;

    /// Dismisses firings: they leave the list and are not repeated. Returns the number of event batches.
    async fn dismiss_firings(&self, filter: &FiringFilter) -> Result<u64, StoreError>;

    /// Stops a rule. A rule that is stopped already keeps its first stop.
    async fn stop_rule(&self, stop: RuleStop) -> Result<(), StoreError>;

    /// Resumes a stopped rule. Returns whether it was stopped.
    async fn resume_rule(&self, application: &Name, rule: &Name) -> Result<bool, StoreError>;

    /// All stopped rules, by application and name.
    async fn rule_stops(&self) -> Result<Vec<RuleStop>, StoreError>;

    /// Up to `limit` pages of an application's rule state, after the given one. The order is fixed per backend.
    async fn state_pages(
        &self,
        application: &Name,
        after: Option<&StatePage>,
        limit: usize,
    ) -> Result<Vec<StatePage>, StoreError>;

    /// Event batches of a class between two numbers (both exclusive), oldest first, in any state. Returns up to about
    /// `bytes` packed bytes, but at least one batch if there is any. Pruned batches are missing.
    async fn events_between(
        &self,
        application: &Name,
        class: &Name,
        after: EventBatchId,
        before: EventBatchId,
        bytes: usize,
    ) -> Result<EventPage, StoreError>;

    /// Number of a batch such that every batch accepted at `time` or later comes after it. It is close to that time.
    /// Relies on clocks that do not go back by more than a second.
    async fn position_at(&self, time: Timestamp) -> Result<EventBatchId, StoreError>;

    /// Stores the progress of schedules. With `due`, that event batch is accepted in the same commit, and the next
    /// runs of these schedules begin after it: their `after` is set to it. Returns its number.
    ///
    /// # Errors
    /// `Full`, as in [`Journal::accept`]; nothing was stored. Without `due`, no limit is checked.
    async fn record_runs(
        &self,
        due: Option<NewEventBatch>,
        runs: Vec<ScheduleRun>,
    ) -> Result<Option<EventBatchId>, StoreError>;

    /// Progress of an application's schedules, by rule and schedule, from after `after`.
    async fn schedule_runs(
        &self,
        application: &Name,
        after: Option<&ScheduleKey>,
        limit: usize,
    ) -> Result<Vec<ScheduleRun>, StoreError>;

    /// Progress of one schedule, if known.
    async fn schedule_run(&self, application: &Name, schedule: &ScheduleKey)
    -> Result<Option<ScheduleRun>, StoreError>;

    /// Deletes the progress of a schedule that has no subscriptions any more.
    async fn delete_schedule(&self, application: &Name, schedule: &ScheduleKey) -> Result<(), StoreError>;

    /// Stores checkpoints of a source without events.
    async fn record_marks(&self, source: &SourceKey, marks: Vec<Mark>) -> Result<(), StoreError>;

    /// Checkpoints of a source, by part, from after the part `after`, up to `limit`.
    async fn marks(&self, source: &SourceKey, after: Option<&str>, limit: usize) -> Result<Vec<Mark>, StoreError>;

    /// Deletes the checkpoints of all sources of an application.
    async fn delete_marks(&self, application: &Name) -> Result<(), StoreError>;

    /// Notification batch, unpacked.
    async fn notification_batch(&self, id: NotificationBatchId) -> Result<Option<StoredNotificationBatch>, StoreError>;

    /// Notification batches after `after` made from an event batch or from a run at its due time, oldest first, up to
    /// `limit`: heads and counts only.
    async fn notification_batches_of(
        &self,
        events: EventBatchId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError>;

    /// Newest notification batches before `before` (or all), newest first: heads and counts only.
    async fn notification_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError>;

    /// Notification batches after `after`, oldest first, up to `limit`: heads and counts only.
    async fn notification_batches_after(
        &self,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError>;

    /// Notification batches of an application after `after` with open work items, by number, up to `limit`.
    async fn open_batches(
        &self,
        application: &Name,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError>;

    /// All attempts at the notifications of a batch, in the order they were recorded.
    async fn attempts(&self, batch: NotificationBatchId) -> Result<Vec<Attempt>, StoreError>;

    /// Open work items of a batch, claimed or not, oldest first. The token of an unclaimed item is 0.
    async fn open_work(&self, batch: NotificationBatchId) -> Result<Vec<WorkItem>, StoreError>;

    /// Finds up to `limit` suspensions, oldest first, from after the number `after`, and reads at most
    /// [`SCANNED_ROWS_MAX`] rows.
    ///
    /// [`SCANNED_ROWS_MAX`]: crate::bounded_scan::SCANNED_ROWS_MAX
    async fn scan_suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<ScanPage<StoredSuspension, u64>, StoreError>;

    /// Suspensions, oldest first, from after the number `after`, without a bound on the rows read.
    async fn suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredSuspension>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let looked = self.scan_suspensions(filter, after, limit - found.len()).await?;
            found.extend(looked.items);
            let Some(next) = looked.next else { break };
            after = next;
        }
        Ok(found)
    }

    /// Resumes or ends suspensions. Ended notifications get a closing attempt with outcome `Ended`. Returns the
    /// number of notifications affected.
    async fn resolve(
        &self,
        filter: &SuspensionFilter,
        resolution: Resolution,
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// Stores a request to send failed notifications again. A request whose key is known is not stored twice. Returns
    /// the stored request and whether it is new. Steps carry it out ([`Step::resent`]); [`Journal::prune`] deletes it
    /// afterwards.
    async fn begin_resend(&self, new: NewResend) -> Result<(Resend, bool), StoreError>;

    /// Resend requests, all or only unfinished, oldest first, from after the number `after`.
    async fn resends(&self, unfinished: bool, after: u64, limit: usize) -> Result<Vec<Resend>, StoreError>;

    /// Sets or removes an operator's edit of a suspension: the content to send in place of the original once it is
    /// resumed. With `ordinals`, these notifications are split off as a suspension of their own if there are others.
    /// Returns the number of the edited suspension; `None` if it does not exist or has none of the ordinals.
    async fn edit_suspension(
        &self,
        id: u64,
        ordinals: Option<&[u32]>,
        edit: Option<Arc<str>>,
    ) -> Result<Option<u64>, StoreError>;

    /// Deletes up to `limit` finished event batches and closed notification batches older than the cutoff of their class,
    /// with their receipts, class by class, oldest first. Also deletes idempotency keys expired at `now`, and quanta and
    /// activity counters older than their cutoffs. Open, suspended and failed work stays, and so does the newest minute of
    /// each stream. Returns the number of deleted batches; less than `limit` means that no more are due.
    async fn prune(&self, cutoffs: &Cutoffs, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Number of batches that [`Journal::prune`] would delete, counted up to `most`.
    async fn prunable(&self, cutoffs: &Cutoffs, most: usize) -> Result<usize, StoreError>;

    /// Activity in a window, by stream and part, of one application or of all. Empty parts are left out.
    async fn activity(&self, window: &Window, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError>;

    /// Newest minute of each stream.
    async fn latest_activity(&self, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError>;

    /// Quanta that ended from `from` on and before `to`, newest first, with numbers below `before`.
    async fn quanta(
        &self,
        from: Timestamp,
        to: Timestamp,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Quantum>, StoreError>;

    /// Quantum by number, if it was not pruned.
    async fn quantum(&self, id: u64) -> Result<Option<Quantum>, StoreError>;

    /// Delivery progress of notification batches, in the order of `batches`; `None` for unknown ones.
    async fn progress(&self, batches: &[NotificationBatchId]) -> Result<Vec<Option<Progress>>, StoreError>;

    /// Newest notification batches before `before` (or all) with a refused or expired notification, newest first.
    async fn failed_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError>;

    /// Pauses or disables a component, or changes its switch.
    async fn set_switch(&self, switch: Switch) -> Result<(), StoreError>;

    /// Removes a switch. Returns whether the component was paused or disabled.
    async fn remove_switch(&self, component: &Component) -> Result<bool, StoreError>;

    /// All switches, by the text of their component.
    async fn switches(&self) -> Result<Vec<Switch>, StoreError>;

    /// Writes and syncs a few bytes and returns the time it took, for `doctor` and readiness.
    async fn probe(&self) -> Result<Duration, StoreError>;
}

/// Id of a notification by its ordinal, if the batch has it.
pub fn notification_of(batch: &StoredNotificationBatch, ordinal: u32) -> Option<NotificationId> {
    ((ordinal as usize) < batch.notifications.count()).then_some(NotificationId { batch: batch.id, ordinal })
}
