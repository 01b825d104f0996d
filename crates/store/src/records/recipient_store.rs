//! Recipients and failing endpoints, for delivery.

use std::sync::Arc;

use async_trait::async_trait;
use tocsin_model::{
    id::{SubscriberNumber, SubscriptionId},
    suppression::Target,
};

use super::{EndpointKey, FailingEndpoint, Recipient};
use crate::error::StoreError;

/// Records that delivery reads and writes: recipients of notifications, and endpoints that fail.
///
/// A recipient is as new as the change log; backends keep recipients in a cache, because each delivery reads some.
/// Failing endpoints are delivery state: they are durable when the call returns and are not part of the change log.
#[async_trait]
pub trait RecipientStore: Send + Sync + 'static {
    /// Recipients of subscriptions, in the order asked; `None` for a subscription that no longer exists.
    async fn recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError>;

    /// Recipients of removed subscriptions as they last were, in the order asked; `None` for one that exists, whose
    /// subscriber is removed, or whose removal is no longer in the change log.
    async fn former_recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError>;

    /// Stores the state of failing endpoints.
    async fn put_failing_endpoints(&self, endpoints: Vec<FailingEndpoint>) -> Result<(), StoreError>;

    /// Removes failing endpoints; unknown ones are ignored.
    async fn remove_failing_endpoints(&self, endpoints: Vec<EndpointKey>) -> Result<(), StoreError>;

    /// Up to `limit` failing endpoints by key, after `after`.
    async fn failing_endpoints(
        &self,
        after: Option<&EndpointKey>,
        limit: usize,
    ) -> Result<Vec<FailingEndpoint>, StoreError>;

    /// Sets the commit hook of delivery. It replaces the former one.
    fn watch_recipients(&self, watcher: Arc<dyn RecipientWatcher>);
}

/// Commit hook of delivery, for any change of recipients, by any writer.
pub trait RecipientWatcher: Send + Sync + 'static {
    /// Called after the commit of a change, when reads return it, and before its acknowledgement. Must not block.
    fn recipients_changed(&self, change: &RecipientChange);
}

/// Change of recipients by one commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecipientChange {
    /// Subscribers that changed or were removed, also in their devices, subscriptions, or suppressions of a device.
    pub subscribers: Vec<SubscriberNumber>,
    /// Addresses whose suppressions changed.
    pub addresses: Vec<Target>,
}

impl RecipientChange {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.subscribers.is_empty() && self.addresses.is_empty()
    }
}
