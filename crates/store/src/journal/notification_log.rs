//! Notification batches, their attempts and progress. Read-only.

use std::ops::Deref;

use async_trait::async_trait;
use tocsin_model::{
    id::{EventBatchId, NotificationBatchId},
    notification::NotificationHead,
    receipt::Attempt,
};

use super::Progress;
use crate::{error::StoreError, journal::notifications::StoredNotificationBatch};

/// Read access to notification batches, in the order of their creation. Steps write them
/// ([`WorkQueue::commit`](super::WorkQueue::commit)).
///
/// A read returns what was committed before the call. Pruned batches are missing. Lists contain heads and counts; only
/// [`notification_batch`](NotificationLog::notification_batch) unpacks notifications.
#[async_trait]
pub trait NotificationLog: Send + Sync + 'static {
    /// Notification batch, unpacked.
    async fn notification_batch(&self, id: NotificationBatchId) -> Result<Option<StoredNotificationBatch>, StoreError>;

    /// Newest notification batches before `before` (or all), newest first: heads and counts only.
    async fn notification_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError>;

    /// Notification batches after `after` made from an event batch or from a run at its due time, oldest first, up to
    /// `limit`: heads and counts only.
    async fn notification_batches_of(
        &self,
        events: EventBatchId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError>;

    /// Notification batches after `after`, oldest first, up to `limit`: heads and counts only.
    async fn notification_batches_after(
        &self,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError>;

    /// Newest notification batches before `before` (or all) with a refused or expired notification, newest first.
    async fn failed_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError>;

    /// All attempts at the notifications of a batch, in the order they were recorded.
    async fn attempts(&self, batch: NotificationBatchId) -> Result<Vec<Attempt>, StoreError>;

    /// Delivery progress of notification batches, in the order of `batches`; `None` for unknown ones.
    async fn progress(&self, batches: &[NotificationBatchId]) -> Result<Vec<Option<Progress>>, StoreError>;
}

/// Implementation for pointers: a decorator of the journal passes these reads through by [`Deref`].
#[async_trait]
impl<P> NotificationLog for P
where
    P: Deref + Send + Sync + 'static,
    P::Target: NotificationLog,
{
    async fn notification_batch(&self, id: NotificationBatchId) -> Result<Option<StoredNotificationBatch>, StoreError> {
        (**self).notification_batch(id).await
    }

    async fn notification_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        (**self).notification_batches(before, limit).await
    }

    async fn notification_batches_of(
        &self,
        events: EventBatchId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        (**self).notification_batches_of(events, after, limit).await
    }

    async fn notification_batches_after(
        &self,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
        (**self).notification_batches_after(after, limit).await
    }

    async fn failed_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
        (**self).failed_batches(before, limit).await
    }

    async fn attempts(&self, batch: NotificationBatchId) -> Result<Vec<Attempt>, StoreError> {
        (**self).attempts(batch).await
    }

    async fn progress(&self, batches: &[NotificationBatchId]) -> Result<Vec<Option<Progress>>, StoreError> {
        (**self).progress(batches).await
    }
}
