//! Event batches and the order of their acceptance.

use async_trait::async_trait;
use tocsin_model::{
    event::EventBatch,
    id::{ChangeSequence, EventBatchId, Name},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    journal::events::{EventAcceptance, EventBatchState, EventPage, NewEventBatch},
};

/// Log of event batches, in the order of their acceptance. Faces and sources append; matching, schedules and operators
/// read.
///
/// An accepted batch is durable when the call returns. A later batch has a higher number. A read returns every batch
/// that was accepted before the call. Reading one batch is one look-up by its number; lists are read without bodies.
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// Stores an event batch. Concurrent calls share one fsync (group commit).
    ///
    /// # Errors
    /// `Full`: the disk or a limit is full; nothing was stored. The client should try again later.
    async fn accept(&self, batch: NewEventBatch) -> Result<EventAcceptance, StoreError>;

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

    /// Event batches of a class between two numbers (both exclusive), oldest first, in any state. Returns up to about
    /// `bytes` packed bytes, but at least one batch if there is any. Pruned batches are missing.
    async fn events_between(&self, range: EventRange<'_>) -> Result<EventPage, StoreError>;

    /// Number of a batch such that every batch accepted at `time` or later comes after it. It is close to that time.
    /// Relies on clocks that do not go back by more than a second.
    async fn position_at(&self, time: Timestamp) -> Result<EventBatchId, StoreError>;
}

/// Parameters of [`EventLog::events_between`].
#[derive(Debug, Clone, Copy)]
pub struct EventRange<'a> {
    /// Application.
    pub application: &'a Name,
    /// Event class.
    pub class: &'a Name,
    /// Batch after which the range begins.
    pub after: EventBatchId,
    /// Batch before which the range ends.
    pub before: EventBatchId,
    /// Packed bytes after which the page ends.
    pub bytes: usize,
}
