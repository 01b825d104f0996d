//! Records of the journal about an event: its notifications, delayed notifications and skipped firings.

use tocsin_model::{
    id::{EventId, Name, NotificationBatchId, NotificationId, SubscriptionId},
    notification::NotificationHead,
};
use tocsin_store::journal::{Delayed, DelayedFilter, Firing, FiringFilter};

use crate::{Service, error::ServiceError, trace::BATCHES_MAX};

/// Maximum number of delayed notifications of an event batch that are read.
const DELAYED_MAX: usize = 1_000;
/// Maximum number of listed firings that are read.
const FIRINGS_MAX: usize = 1_000;

/// Records of the journal about an event.
#[derive(Default)]
pub(super) struct Recorded {
    /// Its notifications.
    notifications: Vec<RecordedNotification>,
    /// Its notifications that are delayed.
    delayed: Vec<Delayed>,
    /// Failed and skipped firings of its batch.
    firings: Vec<Firing>,
    /// Version of the definition that made its notifications.
    pub version: Option<u32>,
    /// Whether there are more notification batches than were read.
    pub truncated: bool,
}

/// A notification of the event.
pub(super) struct RecordedNotification {
    pub id: NotificationId,
    pub head: NotificationHead,
    subscription: SubscriptionId,
}

impl Recorded {
    /// The notification of a rule for a subscription.
    pub fn of(&self, rule: &Name, subscription: SubscriptionId) -> Option<&RecordedNotification> {
        self.notifications.iter().find(|found| found.head.rule == *rule && found.subscription == subscription)
    }

    /// The delayed notification of a rule for a subscription.
    pub fn delayed(&self, rule: &Name, subscription: SubscriptionId) -> Option<&Delayed> {
        self.delayed.iter().find(|found| found.rule == *rule && found.subscription == subscription)
    }

    /// The failed or skipped firing of a rule.
    pub fn firing(&self, rule: &Name) -> Option<&Firing> {
        self.firings.iter().find(|found| found.rule == *rule)
    }
}

impl Service {
    /// Reads what the journal has about an event.
    pub(super) async fn recorded(&self, application: &Name, event: EventId) -> Result<Recorded, ServiceError> {
        let first = NotificationBatchId(0);
        let batches = self.notification_log.notification_batches_of(event.batch, first, BATCHES_MAX + 1).await?;
        let mut recorded = Recorded { truncated: batches.len() > BATCHES_MAX, ..Recorded::default() };
        for (id, head, _) in batches.into_iter().take(BATCHES_MAX) {
            recorded.version = recorded.version.or(Some(head.version));
            let Some(stored) = self.notification_log.notification_batch(id).await? else { continue };
            let places = (0u32..).zip(stored.notifications.event_of_each()).zip(&stored.notifications.subscriptions);
            let own = places.filter(|((_, found), _)| *found == event);
            recorded.notifications.extend(own.map(|((ordinal, _), subscription)| RecordedNotification {
                id: NotificationId { batch: id, ordinal },
                head: head.clone(),
                subscription: *subscription,
            }));
        }
        let filter = DelayedFilter { event_batch: Some(event.batch), ..DelayedFilter::default() };
        recorded.delayed = self.delays.delayed(&filter, 0, DELAYED_MAX).await?;
        recorded.delayed.retain(|delayed| delayed.event == event);
        let filter = FiringFilter { application: Some(application.clone()), ..FiringFilter::default() };
        recorded.firings = self.rule_store.firings(&filter, 0, FIRINGS_MAX).await?;
        recorded.firings.retain(|firing| (firing.first..=firing.last).contains(&event.batch));
        Ok(recorded)
    }
}
