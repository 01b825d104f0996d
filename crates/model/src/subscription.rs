//! Subscriptions: typed parameters of one subscription class, with an optional filter and schedule.

use crate::{
    consent::ConsentState,
    filter::Filter,
    id::{Name, SubscriberId, SubscriberNumber, SubscriptionId},
    time::Timestamp,
};

/// A subscription of one subscriber.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    /// Its id.
    pub id: SubscriptionId,
    /// The application.
    pub application: Name,
    /// Its subscription class.
    pub class: Name,
    /// Its owner.
    pub subscriber: SubscriberId,
    /// Its owner, by number.
    pub subscriber_number: SubscriberNumber,
    /// Key chosen by its creator, unique for the subscriber and class, by which imports identify it.
    pub key: Option<String>,
    /// The device to notify; default: the subscriber's first usable one by name.
    pub device: Option<Name>,
    /// Whether it is matched. A snoozed one is not.
    pub enabled: bool,
    /// Its parameters: a JSON object that was checked against its class, without nulls. `Fields::row_from_stored`
    /// reads it under any later version of the class.
    pub values: Box<str>,
    /// Its filter, schedule and snooze.
    pub terms: SubscriptionParams,
    /// State of its consent; `None` if it needs none. It is enabled only if the state permits.
    pub consent: Option<ConsentState>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Grows with each change; the basis of its ETag.
    pub revision: u64,
}

impl Subscription {
    /// Whether it is matched, or will be when the snooze ends.
    pub fn is_active_or_snoozed(&self) -> bool {
        self.enabled || self.terms.snoozed_until.is_some()
    }
}

/// Filter, schedule and snooze of a subscription, as its class allows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscriptionParams {
    /// Filter over the event: it is matched only if a rule and the filter hold.
    pub filter: Option<Filter>,
    /// Schedule of its scheduled rules: the canonical text of a [`Schedule`](crate::schedule::Schedule).
    pub schedule: Option<Box<str>>,
    /// End of a snooze: it is not matched before this time. Only for a subscription that is otherwise enabled.
    pub snoozed_until: Option<Timestamp>,
}
