//! Schedules of subscriptions.

use async_trait::async_trait;
use tocsin_model::{
    id::{Name, SubscriptionId},
    time::Timestamp,
};

use super::{FollowedSchedule, ScheduledSubscription};
use crate::error::StoreError;

/// Schedules that subscriptions follow, and their members.
///
/// Lists are in the order of numbers. A schedule is stored once for all subscriptions that have it.
#[async_trait]
pub trait ScheduleStore: Send + Sync + 'static {
    /// Schedules of an application's subscriptions, by number, after the number `after`, up to `limit`. Some may have
    /// no subscription left.
    async fn schedules(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<FollowedSchedule>, StoreError>;

    /// Enabled subscriptions of a class with a schedule, with numbers after `after`, up to `limit`. Fewer than
    /// `limit` means the end.
    async fn scheduled_subscriptions(
        &self,
        members: ScheduleMembers<'_>,
    ) -> Result<Vec<ScheduledSubscription>, StoreError>;

    /// Schedule of a subscription, with its time zone, and when the subscription joined it.
    async fn schedule_of(&self, id: SubscriptionId) -> Result<Option<(Box<str>, Timestamp)>, StoreError>;

    /// Removes a schedule that no subscription has, enabled or not. Returns whether it was removed; its return is
    /// logged as a change.
    async fn delete_schedule(&self, application: &Name, class: &Name, schedule: &str) -> Result<bool, StoreError>;
}

/// Parameters of [`ScheduleStore::scheduled_subscriptions`].
#[derive(Debug, Clone, Copy)]
pub struct ScheduleMembers<'a> {
    /// Application.
    pub application: &'a Name,
    /// Subscription class.
    pub class: &'a Name,
    /// The schedule, as canonical text.
    pub schedule: &'a str,
    /// Number after which the page begins.
    pub after: Option<SubscriptionId>,
    /// Maximum number of subscriptions.
    pub limit: usize,
}
