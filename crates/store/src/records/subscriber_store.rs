//! Subscribers, their devices and merges.

use async_trait::async_trait;
use tocsin_model::{
    id::{Name, SubscriberId, SubscriberNumber},
    subscriber::{Device, Subscriber},
    time::Timestamp,
};

use super::{Merge, MergeRefusal, NewSubscriber, SubscriberFilter};
use crate::{
    bounded_scan::ScanPage,
    error::StoreError,
    records::writes::{Precondition, Written},
};

/// Subscribers with their devices, and merges of subscribers.
///
/// A write is durable when the call returns and is logged in the same commit; an unchanged value is a no-op. Lists are
/// in the order of ids. Reading one subscriber is one look-up; a scan stops after a fixed number of rows.
#[async_trait]
pub trait SubscriberStore: Send + Sync + 'static {
    /// Stores a subscriber; its devices are replaced if given.
    async fn put_subscriber(
        &self,
        new: NewSubscriber,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError>;

    /// Stores many subscribers in one commit. Each succeeds or fails on its own.
    async fn put_subscribers(
        &self,
        new: Vec<NewSubscriber>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriberNumber>>, StoreError>;

    /// Subscriber by id.
    async fn subscriber(&self, id: &SubscriberId) -> Result<Option<Subscriber>, StoreError>;

    /// Subscriber by number. The number of a removed or merged one is not reused.
    async fn subscriber_numbered(&self, number: SubscriberNumber) -> Result<Option<Subscriber>, StoreError>;

    /// Whether there is a subscriber with a number. The number of a removed or merged one is not reused.
    async fn has_subscriber(&self, number: SubscriberNumber) -> Result<bool, StoreError>;

    /// Finds up to `limit` subscribers by id, after `after`, and reads at most
    /// [`SCANNED_ROWS_MAX`](crate::bounded_scan::SCANNED_ROWS_MAX) rows.
    async fn scan_subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<ScanPage<Subscriber, SubscriberId>, StoreError>;

    /// Up to `limit` subscribers by id, after `after`, without a bound on the rows read.
    async fn subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<Vec<Subscriber>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after.cloned());
        while found.len() < limit {
            let page = self.scan_subscribers(filter, after.as_ref(), limit - found.len()).await?;
            found.extend(page.items);
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        Ok(found)
    }

    /// Removes a subscriber with its devices, their suppressions, and its subscriptions. Suppressions of its
    /// addresses stay.
    async fn remove_subscriber(
        &self,
        id: &SubscriberId,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    /// Merges subscriber `from` into `into` in one commit and removes `from`. Subscriptions keep their numbers;
    /// devices and their suppressions get the names of the account. Where both have a value, that of `into` stays.
    /// The merge is recorded. Moved subscriptions are also logged as [`ChangeKind::Moved`](super::ChangeKind::Moved).
    ///
    /// # Errors
    /// `Missing`: one of the two does not exist.
    async fn merge_subscribers(
        &self,
        from: &SubscriberId,
        into: &SubscriberId,
        now: Timestamp,
    ) -> Result<Result<Merge, MergeRefusal>, StoreError>;

    /// Last merge of a subscriber with this id.
    async fn merge_of(&self, from: &SubscriberId) -> Result<Option<Merge>, StoreError>;

    /// Merges whose inbox feeds may not have been moved yet, oldest first.
    async fn unfinished_merges(&self) -> Result<Vec<Merge>, StoreError>;

    /// Marks the inbox feed of a merged subscriber as moved.
    async fn finish_merge(&self, from: SubscriberNumber) -> Result<(), StoreError>;

    /// Stores a device. Returns the updated subscriber.
    async fn put_device(&self, put: PutDevice<'_>) -> Result<Subscriber, StoreError>;

    /// Removes a device. Returns the updated subscriber.
    async fn remove_device(&self, id: &SubscriberId, name: &Name, now: Timestamp) -> Result<Subscriber, StoreError>;
}

/// Parameters of [`SubscriberStore::put_device`].
#[derive(Debug, Clone)]
pub struct PutDevice<'a> {
    /// Subscriber.
    pub id: &'a SubscriberId,
    /// Name of the device; an existing device is replaced.
    pub name: &'a Name,
    /// The device.
    pub device: Device,
    /// Whether a stored device with the same channel and address keeps its state; decided in the commit.
    pub keeps_state: bool,
    /// Current time.
    pub now: Timestamp,
}
