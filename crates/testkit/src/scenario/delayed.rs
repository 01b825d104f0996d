//! Acts on delayed notifications and on the life of subscriptions.

use tocsin_store::{
    journal::{DelayedFilter, Delays},
    records::{
        Precondition, SubscriberStore, SubscriptionChange, SubscriptionFilter, SubscriptionStore, UpdateSubscription,
    },
};

use super::{Clock, Scenario, subscriber};

impl Scenario {
    /// Lists the delayed notifications that wait.
    pub(super) async fn list_delayed(&self) {
        for found in self.journal.delayed(&DelayedFilter::default(), 0, 1_000).await.expect("they are listed") {
            let (now, due) = (self.now(), self.clock.time_of_day(found.due_at));
            let key = found.key.map_or(String::new(), |key| format!(" key {key}"));
            let run = found.run.map_or(String::new(), |run| format!(" in {run}"));
            let (rule, subscription, event) = (found.rule, found.subscription, found.event);
            let line = format!("{now} delayed {}: {rule} {subscription} {event}{key} due {due}{run}", found.id);
            self.scripted.lock().note(line);
        }
    }

    /// Cancels a delayed notification by its number.
    pub(super) async fn cancel_delayed(&self, id: &str) {
        let filter = DelayedFilter { id: Some(id.parse().expect("a number")), ..DelayedFilter::default() };
        let count = self.journal.cancel_delayed(&filter, self.clock.now(), 10).await.expect("it can be cancelled");
        self.scripted.lock().note(format!("{} cancelled {count}", self.now()));
    }

    /// Removes a subscriber.
    pub(super) async fn delete(&self, id: &str) {
        let removed = self.records.remove_subscriber(&subscriber(id), Precondition::Any, self.clock.now()).await;
        removed.expect("it can be removed");
    }

    /// Changes the values of all subscriptions of a subscriber.
    pub(super) async fn change_values(&self, id: &str, values: &str) {
        let filter = SubscriptionFilter { subscriber: Some(subscriber(id)), ..SubscriptionFilter::default() };
        for found in self.records.subscriptions(&filter, None, 1_000).await.expect("records answer") {
            let enabled = Some(found.enabled);
            let change =
                SubscriptionChange { device: found.device, enabled, values: values.into(), terms: found.terms };
            let (id, expect, now) = (found.id, Precondition::Any, self.clock.now());
            let changed = self.records.update_subscription(UpdateSubscription { id, change, expect, now }).await;
            changed.expect("it can be changed");
        }
    }
}
