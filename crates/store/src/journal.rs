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

use crate::error::StoreError;

pub use activity::{Activity, ActivityRow, Count, DurationHistogram, Progress, Stream, Timing, Window};
pub use activity_log::{ActivityLog, QuantumQuery};
pub use checkpoints::Checkpoints;
pub use event_log::{EventLog, EventRange};
pub use firings::{Firing, FiringFilter, FiringStatus, NewFiring, RefiredBatch, RuleStop};
pub use maintenance::Maintenance;
pub use notification_log::NotificationLog;
pub use open_work::{OpenWork, WindowWorkQuery};
pub use operator_actions::OperatorActions;
pub use quanta::{NewQuantum, Quantum, QuantumInput};
pub use resends::{NewResend, ReopenedNotifications, Resend, ResendProgress};
pub use rule_store::RuleStore;
pub use schedules::{EventPage, ScheduleKey, ScheduleRun, Schedules};
pub use source_key::SourceKey;
pub use switches::{Component, ComponentError, Role, Switch, SwitchState};
pub use tocsin_model::mark::Mark;
pub use work_queue::{ClaimEvents, ClaimWindow, ClaimWork, WorkQueue};
pub use work_state::WorkState;

// Facets
mod event_log; // event batches in the order of acceptance
mod open_work; // backlog, open work, wake-ups; read-only
mod work_queue; // claims, and the commit of steps
mod notification_log; // notification batches and attempts; read-only
mod rule_store; // rule firings, stopped rules, rule state
mod checkpoints; // checkpoints of sources
mod operator_actions; // suspensions, resends, switches
mod activity_log; // statistics; read-only
mod maintenance; // retention and the health check
mod schedules; // progress of rule schedules

// Types
pub(crate) mod work_state; // scheduling state of a work item
mod resends; // requests to send failed notifications again
mod firings; // rule firings that failed or were skipped, and stopped rules
mod switches; // components that an operator paused or disabled
pub(crate) mod activity; // per-minute counters for reports
pub(crate) mod quanta; // quanta: runs of the matcher
mod source_key; // key of a source's checkpoints

/// Limits of a journal. When one is reached, [`EventLog::accept`] returns `Full` before it stores anything. Steps
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

/// Tolerance of [`EventLog::position_at`] for clocks that go back.
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

/// Port of the durable event flow: all facets, for wiring. A caller asks for the facet it uses, such as
/// `Arc<dyn WorkQueue>`.
///
/// Writes are durable when a method returns: they survive a crash of the process and of the machine. Methods may be
/// called from any task.
pub trait Journal:
    EventLog
    + WorkQueue
    + NotificationLog
    + RuleStore
    + Schedules
    + Checkpoints
    + OperatorActions
    + ActivityLog
    + Maintenance
{
}

impl<J> Journal for J where
    J: EventLog
        + WorkQueue
        + NotificationLog
        + RuleStore
        + Schedules
        + Checkpoints
        + OperatorActions
        + ActivityLog
        + Maintenance
{
}

/// Id of a notification by its ordinal, if the batch has it.
pub fn notification_of(batch: &StoredNotificationBatch, ordinal: u32) -> Option<NotificationId> {
    ((ordinal as usize) < batch.notifications.count()).then_some(NotificationId { batch: batch.id, ordinal })
}
