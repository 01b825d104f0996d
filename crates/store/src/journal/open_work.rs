//! Backlog, open work items and wake-ups. Read-only.

use std::ops::Deref;

use async_trait::async_trait;
use tocsin_model::{
    id::{Name, NotificationBatchId, WorkItemId},
    notification::NotificationHead,
    time::Timestamp,
};

use crate::{
    error::StoreError,
    journal::work::{Arrivals, Backlog, WorkCounts, WorkItem},
};

/// Read access to the backlog and to open work items. Nothing is claimed or written.
///
/// Wake-ups and the backlog cost no I/O. The other methods read open work only, so their cost does not grow with the
/// history. A result is a snapshot: workers can claim or finish the items at any time.
#[async_trait]
pub trait OpenWork: Send + Sync + 'static {
    /// Subscribes to wake-ups for new events and work. Receivers see each arrival after this call, none before it.
    fn arrivals(&self) -> Arrivals;

    /// Current backlog. Cheap: reads counters.
    fn backlog(&self) -> Backlog;

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

    /// Notification batches of an application after `after` with open work items, by number, up to `limit`.
    async fn open_batches(
        &self,
        application: &Name,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError>;

    /// Open work items of a batch, claimed or not, oldest first. The token of an unclaimed item is 0.
    async fn open_work(&self, batch: NotificationBatchId) -> Result<Vec<WorkItem>, StoreError>;

    /// Open work items of a channel whose digest window closes after `now`, by number, from after `after`, up to
    /// `limit`. The token of an unclaimed item is 0.
    async fn digest_window_work(&self, query: WindowWorkQuery<'_>) -> Result<Vec<WorkItem>, StoreError>;
}

/// Implementation for pointers: a decorator of the journal passes these reads through by [`Deref`].
#[async_trait]
impl<P> OpenWork for P
where
    P: Deref + Send + Sync + 'static,
    P::Target: OpenWork,
{
    fn arrivals(&self) -> Arrivals {
        (**self).arrivals()
    }

    fn backlog(&self) -> Backlog {
        (**self).backlog()
    }

    async fn work_counts(&self, now: Timestamp) -> Result<WorkCounts, StoreError> {
        (**self).work_counts(now).await
    }

    async fn next_due(
        &self,
        application: &Name,
        channel: &Name,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        (**self).next_due(application, channel, now).await
    }

    async fn open_channels(&self, application: &Name) -> Result<Vec<Name>, StoreError> {
        (**self).open_channels(application).await
    }

    async fn open_applications(&self) -> Result<Vec<Name>, StoreError> {
        (**self).open_applications().await
    }

    async fn open_batches(
        &self,
        application: &Name,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
        (**self).open_batches(application, after, limit).await
    }

    async fn open_work(&self, batch: NotificationBatchId) -> Result<Vec<WorkItem>, StoreError> {
        (**self).open_work(batch).await
    }

    async fn digest_window_work(&self, query: WindowWorkQuery<'_>) -> Result<Vec<WorkItem>, StoreError> {
        (**self).digest_window_work(query).await
    }
}

/// Parameters of [`OpenWork::digest_window_work`].
#[derive(Debug, Clone, Copy)]
pub struct WindowWorkQuery<'a> {
    /// Application of the channel.
    pub application: &'a Name,
    /// Channel.
    pub channel: &'a Name,
    /// Windows that close after this time are included.
    pub now: Timestamp,
    /// Number after which the page begins.
    pub after: WorkItemId,
    /// Maximum number of work items.
    pub limit: usize,
}
