//! What a subscriber cares about: typed parameters of one subscription class, and terms of one's own.

use crate::{
    filter::Filter,
    id::{Name, SubscriberId, SubscriberNumber, SubscriptionId},
    time::Timestamp,
};

/// One subscriber's interest.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    /// The records' number.
    pub id: SubscriptionId,
    /// The application whose class it is of.
    pub application: Name,
    /// Its subscription class.
    pub class: Name,
    /// Whose it is.
    pub subscriber: SubscriberId,
    /// Whose it is, by number.
    pub subscriber_number: SubscriberNumber,
    /// Its creator's own key, unique for the subscriber and class, by which an import finds it again.
    pub key: Option<String>,
    /// The device to tell; without it, the subscriber's first usable one by name.
    pub device: Option<Name>,
    /// Whether it is matched. One that is snoozed is not.
    pub enabled: bool,
    /// Its parameters: a JSON object that was checked against its class, without nulls. `Fields::row_from_stored` reads
    /// it, whatever has become of the class since.
    pub values: Box<str>,
    /// What it asks for beside its parameters.
    pub terms: Terms,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Grows with each change; the basis of its ETag.
    pub revision: u64,
}

impl Subscription {
    /// Whether it is matched, or will be when it is not snoozed any more.
    pub fn is_wanted(&self) -> bool {
        self.enabled || self.terms.snoozed_until.is_some()
    }
}

/// What a subscription asks for beside its parameters, where its class allows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// Its own predicate over the event: it is matched only where a rule and this hold.
    pub filter: Option<Filter>,
    /// When its scheduled rules are evaluated: the canonical text of a [`Schedule`](crate::schedule::Schedule).
    pub schedule: Option<Box<str>>,
    /// It is not matched before this time, and is again from then on. Only of one that would be matched otherwise.
    pub snoozed_until: Option<Timestamp>,
}
