//! A subscription as the index needs it.

use tocsin_model::{
    filter::Filter,
    id::{Name, SubscriberNumber, SubscriptionId},
};

/// A subscription as the index needs it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The id of the subscription.
    pub id: SubscriptionId,
    /// The subscriber: notifications for one digest stay in one notification batch.
    pub subscriber: SubscriberNumber,
    /// The class of the subscription.
    pub class: &'a Name,
    /// Parameters, a JSON object as `Subscription::values` holds it.
    pub values: &'a str,
    /// The channel that delivers to it now, if there is a usable one.
    pub channel: Option<&'a Name>,
    /// Own filter, if its class accepts one: it matches only if both the rule and the filter match.
    pub filter: Option<&'a Filter>,
}
