//! Subscriptions.

use async_trait::async_trait;
use tocsin_model::{id::SubscriptionId, lifecycle::ChangeOrigin, subscription::Subscription, time::Timestamp};

use super::{NewSubscription, SubscriptionChange, SubscriptionCounts, SubscriptionFilter};
use crate::{
    bounded_scan::ScanPage,
    error::StoreError,
    records::writes::{Precondition, Written},
};

/// Subscriptions, as their owners and operators see them.
///
/// A write is durable when the call returns and is logged in the same commit; an unchanged value is a no-op. Lists are
/// in the order of numbers. Reading one subscription is one look-up; a scan stops after a fixed number of rows.
#[async_trait]
pub trait SubscriptionStore: Send + Sync + 'static {
    /// Stores a new subscription, or replaces the one with the same key.
    async fn put_subscription_as(
        &self,
        new: NewSubscription,
        origin: ChangeOrigin,
        now: Timestamp,
    ) -> Result<Subscription, StoreError>;

    /// The same by an unknown origin.
    async fn put_subscription(&self, new: NewSubscription, now: Timestamp) -> Result<Subscription, StoreError> {
        self.put_subscription_as(new, ChangeOrigin::default(), now).await
    }

    /// Stores many subscriptions in one commit. Each succeeds or fails on its own (`Missing` subscriber).
    async fn put_subscriptions_as(
        &self,
        new: Vec<NewSubscription>,
        origin: ChangeOrigin,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriptionId>>, StoreError>;

    /// The same by an unknown origin.
    async fn put_subscriptions(
        &self,
        new: Vec<NewSubscription>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriptionId>>, StoreError> {
        self.put_subscriptions_as(new, ChangeOrigin::default(), now).await
    }

    /// Replaces the mutable fields of a subscription.
    async fn update_subscription_as(
        &self,
        update: UpdateSubscription,
        origin: ChangeOrigin,
    ) -> Result<Subscription, StoreError>;

    /// The same by an unknown origin.
    async fn update_subscription(&self, update: UpdateSubscription) -> Result<Subscription, StoreError> {
        self.update_subscription_as(update, ChangeOrigin::default()).await
    }

    /// Enables up to `limit` subscriptions whose snooze ended by `now`. Each is logged as a change. Returns their
    /// number.
    async fn wake_subscriptions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Subscription by number.
    async fn subscription(&self, id: SubscriptionId) -> Result<Option<Subscription>, StoreError>;

    /// Finds up to `limit` subscriptions by number, after `after`, and reads at most
    /// [`SCANNED_ROWS_MAX`](crate::bounded_scan::SCANNED_ROWS_MAX) rows.
    async fn scan_subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<ScanPage<Subscription, SubscriptionId>, StoreError>;

    /// Up to `limit` subscriptions by number, after `after`, without a bound on the rows read.
    async fn subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<Subscription>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let page = self.scan_subscriptions(filter, after, limit - found.len()).await?;
            found.extend(page.items);
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        Ok(found)
    }

    /// Removes a subscription.
    async fn remove_subscription_as(&self, removal: RemoveSubscription, origin: ChangeOrigin)
    -> Result<(), StoreError>;

    /// The same by an unknown origin.
    async fn remove_subscription(
        &self,
        id: SubscriptionId,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.remove_subscription_as(RemoveSubscription { id, expect, now }, ChangeOrigin::default()).await
    }

    /// Number of subscriptions by application and class; classes that never had any may be missing. Cheap: reads
    /// counters.
    async fn subscription_counts(&self) -> Result<Vec<SubscriptionCounts>, StoreError>;
}

/// Parameters of [`SubscriptionStore::update_subscription`].
#[derive(Debug, Clone)]
pub struct UpdateSubscription {
    /// Subscription.
    pub id: SubscriptionId,
    /// New values of the mutable fields.
    pub change: SubscriptionChange,
    /// Precondition on the stored revision.
    pub expect: Precondition,
    /// Current time.
    pub now: Timestamp,
}

/// Parameters of [`SubscriptionStore::remove_subscription_as`].
#[derive(Debug, Clone, Copy)]
pub struct RemoveSubscription {
    /// Subscription.
    pub id: SubscriptionId,
    /// Precondition on the stored revision.
    pub expect: Precondition,
    /// Current time.
    pub now: Timestamp,
}
