//! Event batches: as submitted, as stored, and their states.

use tocsin_model::{
    event::{EventBatch, PackedEvents},
    id::{ChangeSequence, EventBatchId, Name},
    mark::Mark,
    time::Timestamp,
};

use crate::journal::work::Claim;

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

/// Event batch claimed for matching.
#[derive(Debug, Clone)]
pub struct ClaimedEvents {
    /// Lease on the batch.
    pub claim: Claim<EventBatchId>,
    /// The batch.
    pub batch: EventBatch,
}

/// Page of events between two positions of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventPage {
    /// Event batches, in order of acceptance.
    pub batches: Vec<EventBatch>,
    /// Event batches that are too damaged to read, in order.
    pub damaged: Vec<EventBatchId>,
    /// Batch after which the next page begins; `None` at the end.
    pub next: Option<EventBatchId>,
}
