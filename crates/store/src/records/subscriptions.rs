//! Subscriptions: what is put and asked for, and what matching, schedules and reports want of them.

use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    schedule::{MissedPolicy, Schedule},
    subscription::Terms,
    time::Timestamp,
};

use crate::error::StoreError;

/// A subscription that asks to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSubscription {
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub application: Name,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub class: Name,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub subscriber: SubscriberId,
    /// With a key, an existing subscription of the same subscriber, class and key is replaced.
    pub key: Option<String>,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub device: Option<Name>,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub enabled: bool,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub values: Box<str>,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub terms: Terms,
}

/// What of a subscription can be replaced.
#[derive(Debug, Clone, PartialEq)]
pub struct SubscriptionChange {
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub device: Option<Name>,
    /// Whether it is to be matched, from the time on until which it is snoozed.
    pub enabled: bool,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub values: Box<str>,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub terms: Terms,
}

/// Puts to sleep who wants to be enabled from a later time on, and forgets of all others that they wanted to sleep.
pub(crate) fn snooze(enabled: &mut bool, terms: &mut Terms, now: Timestamp) {
    terms.snoozed_until = terms.snoozed_until.filter(|until| *enabled && *until > now);
    *enabled &= terms.snoozed_until.is_none();
}

impl NewSubscription {
    /// What replaces a subscription of its key.
    pub(crate) fn change(&self) -> SubscriptionChange {
        SubscriptionChange {
            device: self.device.clone(),
            enabled: self.enabled,
            values: self.values.clone(),
            terms: self.terms.clone(),
        }
    }
}

/// What is wanted of a list of subscriptions; conditions are joined by and.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubscriptionFilter {
    /// Only of this application.
    pub application: Option<Name>,
    /// Only of this class.
    pub class: Option<Name>,
    /// Only of this subscriber.
    pub subscriber: Option<SubscriberId>,
    /// Only with this key.
    pub key: Option<String>,
    /// Only enabled or disabled ones.
    pub enabled: Option<bool>,
}

/// A subscription as the match index wants it: only those that may fire.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexedSubscription {
    /// Its number.
    pub id: SubscriptionId,
    /// Whose it is; a subscription never changes its subscriber.
    pub subscriber: SubscriberNumber,
    /// Its class.
    pub class: Name,
    /// Its parameters, as JSON.
    pub values: Box<str>,
    /// Its own filter and schedule.
    pub terms: Terms,
    /// When it was made.
    pub created_at: Timestamp,
    /// The channel of the device that is told: the subscription's own device, else the subscriber's first active one by
    /// name. `None` if there is none that is active.
    pub channel: Option<Name>,
}

/// A schedule that subscriptions of a class follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedSchedule {
    /// Its number. Later ones have higher numbers, and none is used twice.
    pub number: u64,
    /// The class.
    pub class: Name,
    /// The canonical text of a [`Schedule`], with a zone: that of the subscriber where the subscription names none.
    pub schedule: Box<str>,
    /// When the first of them came to it.
    pub made_at: Timestamp,
}

/// A subscription that follows a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledSubscription {
    /// The subscription.
    pub subscription: IndexedSubscription,
    /// Since when it follows it. Events that were accepted before are not its: it did not exist, was disabled, or was told
    /// of them when its schedule before was due.
    pub since: Timestamp,
    /// The change by which it came to this schedule.
    pub joined: ChangeSequence,
}

/// How many subscriptions a class has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionCounts {
    /// The application.
    pub application: Name,
    /// The class.
    pub class: Name,
    /// Those that are enabled.
    pub enabled: u64,
    /// Those that are not.
    pub disabled: u64,
    /// How many were ever added, those that are gone included.
    pub added: u64,
    /// When one was added last.
    pub last_added_at: Option<Timestamp>,
}

pub(crate) fn no_subscription(id: SubscriptionId) -> StoreError {
    StoreError::Missing(format!("subscription `{id}`"))
}

/// The schedule that decides when a subscription is due: its own, in the zone of its subscriber where it names none, or
/// in UTC where neither does. `None`: it cannot be read, and nothing is ever due.
pub(crate) fn due_schedule(text: &str, zone: Option<&str>) -> Option<Box<str>> {
    let schedule = Schedule::parse_floating(text).ok()?;
    let schedule = schedule.in_zone(zone.unwrap_or("UTC")).or_else(|| schedule.in_zone("UTC"))?;
    Some(schedule.to_string().into())
}

/// From when events are a subscription's that followed another schedule until now: from when that was last due.
pub(crate) fn since_change(before: &str, since: Timestamp, now: Timestamp) -> Timestamp {
    let Ok(before) = Schedule::parse(before) else { return since };
    before.due(Some(since), now, MissedPolicy::Once).runs.last().map_or(since, |run| run.at)
}
