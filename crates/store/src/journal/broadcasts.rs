//! Broadcasts: messages of people to an audience, with their state and progress.

use async_trait::async_trait;
use tocsin_model::{
    id::{BroadcastId, EventBatchId, Name, NotificationBatchId, SubscriptionId},
    time::Timestamp,
};

use crate::{error::StoreError, journal::events::NewEventBatch};

/// Due time of the work of a paused broadcast: the end of the year 9999.
pub const HELD: Timestamp = Timestamp(253_402_300_799_000_000);
/// Broadcasts of all applications.
///
/// A broadcast has at most one event in the journal at a time, for the part of its audience that is matched next.
/// The event, the notifications of the part and the progress change in one commit: after a crash no part is left out
/// or matched twice.
#[async_trait]
pub trait Broadcasts: Send + Sync + 'static {
    /// Stores a broadcast unless its key exists. Returns the stored broadcast and whether it is new.
    async fn put_broadcast(&self, new: NewBroadcast) -> Result<(Broadcast, bool), StoreError>;

    /// Broadcast by number.
    async fn broadcast(&self, id: BroadcastId) -> Result<Option<Broadcast>, StoreError>;

    /// Broadcasts before a number, newest first, up to `limit`.
    async fn broadcasts(
        &self,
        filter: &BroadcastFilter,
        before: Option<BroadcastId>,
        limit: usize,
    ) -> Result<Vec<Broadcast>, StoreError>;

    /// Broadcasts that are scheduled or running and have neither an event in the journal nor a completed match, by
    /// start time, up to `limit`.
    async fn startable_broadcasts(&self, limit: usize) -> Result<Vec<Broadcast>, StoreError>;

    /// Accepts the event for the next part of a broadcast, unless it has one or its state does not permit it. Returns
    /// the number of the event batch.
    ///
    /// # Errors
    /// `Full`, as in [`EventLog::accept`](super::EventLog::accept).
    async fn begin_broadcast(&self, id: BroadcastId, event: NewEventBatch) -> Result<Option<EventBatchId>, StoreError>;

    /// Changes the state of a broadcast. Work that a pause held becomes due on a resumption, all work on a
    /// cancellation. Returns the broadcast, whose state is the old one if the change does not apply to it: a cancelled
    /// or failed broadcast stays so, and only a paused one is resumed.
    ///
    /// # Errors
    /// `Missing`.
    async fn change_broadcast(&self, id: BroadcastId, change: BroadcastChange) -> Result<Broadcast, StoreError>;

    /// Sums over the notifications of a broadcast.
    async fn broadcast_totals(&self, id: BroadcastId) -> Result<BroadcastTotals, StoreError>;

    /// Notification batches of a broadcast after one, oldest first, up to `limit`.
    async fn broadcast_batches(
        &self,
        id: BroadcastId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<NotificationBatchId>, StoreError>;
}

/// Broadcast to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBroadcast {
    /// Idempotency key.
    pub key: String,
    /// Application.
    pub application: Name,
    /// Draft, encoded by the caller. The journal does not interpret it.
    pub draft: String,
    /// Caller that made it.
    pub by: String,
    /// Time of the request.
    pub created_at: Timestamp,
    /// Start time.
    pub starts_at: Timestamp,
}

/// Stored state of a broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BroadcastState {
    /// It waits for its start time.
    Scheduled,
    /// It has begun.
    Running,
    /// An operator paused it.
    Paused,
    /// An operator cancelled it.
    Cancelled,
    /// It could not be matched.
    Failed,
}

impl BroadcastState {
    /// All states.
    pub const ALL: [BroadcastState; 5] = [
        BroadcastState::Scheduled,
        BroadcastState::Running,
        BroadcastState::Paused,
        BroadcastState::Cancelled,
        BroadcastState::Failed,
    ];

    /// Name of the state, as stored and shown.
    pub const fn word(self) -> &'static str {
        match self {
            BroadcastState::Scheduled => "scheduled",
            BroadcastState::Running => "running",
            BroadcastState::Paused => "paused",
            BroadcastState::Cancelled => "cancelled",
            BroadcastState::Failed => "failed",
        }
    }
}

/// Broadcast with its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broadcast {
    /// Its number, in order of the requests.
    pub id: BroadcastId,
    /// See [`NewBroadcast`].
    pub application: Name,
    /// See [`NewBroadcast`].
    pub draft: String,
    /// See [`NewBroadcast`].
    pub by: String,
    /// See [`NewBroadcast`].
    pub created_at: Timestamp,
    /// See [`NewBroadcast`].
    pub starts_at: Timestamp,
    /// State.
    pub state: BroadcastState,
    /// Whether an event for its next part is in the journal.
    pub is_queued: bool,
    /// Version of the application under which it is matched and formatted; `None` before its first event.
    pub version: Option<u32>,
    /// Acceptance of its first event. Later subscriptions are not in its audience.
    pub started_at: Option<Timestamp>,
    /// Last subscription examined.
    pub reached: SubscriptionId,
    /// Number of subscriptions examined.
    pub examined: u64,
    /// Time at which its whole audience was matched.
    pub matched_at: Option<Timestamp>,
    /// Time of the last change of its state.
    pub changed_at: Timestamp,
    /// Caller of that change.
    pub changed_by: String,
    /// Reason of a failure or a change.
    pub reason: Option<String>,
}

/// Filter of broadcasts; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BroadcastFilter {
    /// Application.
    pub application: Option<Name>,
    /// Stored state.
    pub state: Option<BroadcastState>,
    /// Idempotency key.
    pub key: Option<String>,
}

/// Requested change of a broadcast's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BroadcastChange {
    /// The requested state.
    pub to: RequestedState,
    /// Caller.
    pub by: String,
    /// Reason.
    pub reason: Option<String>,
    /// Current time.
    pub now: Timestamp,
}

/// State that an operator or the platform requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedState {
    /// Holds it.
    Paused,
    /// Lets a paused one continue.
    Resumed,
    /// Ends it.
    Cancelled,
    /// It cannot be matched.
    Failed,
}

/// Sums over the notifications of a broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BroadcastTotals {
    /// Notifications.
    pub recipients: u64,
    /// Notifications without a closing attempt, suspended ones included.
    pub open: u64,
    /// Suspended notifications.
    pub suspended: u64,
    /// Delivered notifications.
    pub delivered: u64,
    /// Refused and expired notifications.
    pub failed: u64,
}

impl BroadcastTotals {
    /// Notifications that were ended without delivery, by a cancellation or by an operator.
    pub fn ended(&self) -> u64 {
        self.recipients.saturating_sub(self.open + self.delivered + self.failed)
    }
}

/// Progress of a broadcast, recorded by the step that matched a part of its audience.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BroadcastStep {
    /// Broadcast.
    pub id: BroadcastId,
    /// Last subscription examined.
    pub reached: SubscriptionId,
    /// Number of subscriptions examined by this step.
    pub examined: u64,
    /// Continuation.
    pub next: NextPart,
    /// Current time.
    pub now: Timestamp,
}

/// Continuation of a broadcast after a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextPart {
    /// An event for the next part is among [`Step::continued`](super::Step::continued).
    Continued,
    /// It is paused, so no event follows.
    Parked,
    /// The whole audience is matched.
    Matched,
    /// It cannot be matched, for this reason.
    Failed(String),
}

/// State after a requested change; `None`: nothing changes.
pub(crate) fn changed_state(broadcast: &Broadcast, to: RequestedState) -> Option<BroadcastState> {
    use BroadcastState::{Cancelled, Failed, Paused, Running, Scheduled};
    let next = match (broadcast.state, to) {
        (Cancelled | Failed, _) => return None,
        (Paused, RequestedState::Resumed) if broadcast.started_at.is_some() => Running,
        (Paused, RequestedState::Resumed) => Scheduled,
        (_, RequestedState::Resumed) => return None,
        (_, RequestedState::Paused) => Paused,
        (_, RequestedState::Cancelled) => Cancelled,
        (_, RequestedState::Failed) => Failed,
    };
    (next != broadcast.state).then_some(next)
}

pub(crate) fn no_broadcast(id: BroadcastId) -> StoreError {
    StoreError::Missing(format!("the broadcast {id}"))
}
