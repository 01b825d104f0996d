//! Notification batches, and the attempts to deliver them.

use std::sync::Arc;

use bytes::Bytes;
use tocsin_model::{
    delivery_policy::Priority,
    id::{EventBatchId, Name, NotificationBatchId, NotificationId},
    notification::{NotificationHead, Notifications},
    receipt::{Attempt, Outcome},
    time::Timestamp,
};

use crate::journal::WorkState;

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

/// Id of a notification by its ordinal, if the batch has it.
pub fn notification_of(batch: &StoredNotificationBatch, ordinal: u32) -> Option<NotificationId> {
    ((ordinal as usize) < batch.notifications.count()).then_some(NotificationId { batch: batch.id, ordinal })
}

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
