//! Subscriptions, as stored and as used by matching, schedules and reports.

use tocsin_model::{
    consent::ConsentState,
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    schedule::{MissedPolicy, Schedule},
    subscription::SubscriptionParams,
    time::Timestamp,
};

use crate::error::StoreError;

/// Subscription to store.
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
    /// Whether it is matched; while snoozed, whether it is matched afterwards. `None` keeps the stored state, with its
    /// snooze unless `terms` has another; a new subscription is enabled.
    pub enabled: Option<bool>,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub values: Box<str>,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub terms: SubscriptionParams,
}

/// Mutable fields of a subscription.
#[derive(Debug, Clone, PartialEq)]
pub struct SubscriptionChange {
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub device: Option<Name>,
    /// See [`NewSubscription`].
    pub enabled: Option<bool>,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub values: Box<str>,
    /// See [`Subscription`](tocsin_model::subscription::Subscription).
    pub terms: SubscriptionParams,
}

/// State of a subscription, as stored.
pub(crate) struct StoredState {
    pub(crate) enabled: bool,
    pub(crate) snoozed_until: Option<Timestamp>,
    pub(crate) consent: Option<ConsentState>,
}

/// Whether a subscription is enabled, and its terms with the effective snooze. Without `requested`, the stored state is
/// kept. Only an enabled subscription can be snoozed, and it is disabled until then. One whose consent is pending or
/// withdrawn is disabled.
pub(crate) fn effective_state(
    requested: Option<bool>,
    terms: &SubscriptionParams,
    stored: Option<StoredState>,
    now: Timestamp,
) -> (bool, SubscriptionParams) {
    let mut terms = terms.clone();
    let permitted = stored.as_ref().and_then(|stored| stored.consent).is_none_or(ConsentState::permits);
    let enabled = match (requested, stored) {
        (Some(enabled), _) => enabled,
        (None, Some(stored)) => {
            terms.snoozed_until = terms.snoozed_until.or(stored.snoozed_until);
            stored.enabled || stored.snoozed_until.is_some()
        }
        (None, None) => true,
    };
    let enabled = enabled && permitted;
    terms.snoozed_until = terms.snoozed_until.filter(|until| enabled && *until > now);
    (enabled && terms.snoozed_until.is_none(), terms)
}

impl NewSubscription {
    /// Change that replaces an existing subscription with the same key.
    pub(crate) fn change(&self) -> SubscriptionChange {
        SubscriptionChange {
            device: self.device.clone(),
            enabled: self.enabled,
            values: self.values.clone(),
            terms: self.terms.clone(),
        }
    }
}

/// Filter of subscriptions; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubscriptionFilter {
    /// Application.
    pub application: Option<Name>,
    /// Subscription class.
    pub class: Option<Name>,
    /// Subscriber.
    pub subscriber: Option<SubscriberId>,
    /// Key.
    pub key: Option<String>,
    /// Enabled or disabled.
    pub enabled: Option<bool>,
}

/// Subscription as the match index needs it: only those that may fire.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexedSubscription {
    /// Subscription number.
    pub id: SubscriptionId,
    /// Subscriber; it changes only by a merge.
    pub subscriber: SubscriberNumber,
    /// Subscription class.
    pub class: Name,
    /// Parameters, as JSON.
    pub values: Box<str>,
    /// Filter and schedule of the subscription.
    pub terms: SubscriptionParams,
    /// Creation time.
    pub created_at: Timestamp,
    /// Latest time at which the subscription or its subscriber was enabled after it was disabled or snoozed. `None`:
    /// never, or not known because it was read as of a snapshot.
    pub enabled_at: Option<Timestamp>,
    /// Channel of the receiving device: the one named by the subscription, or else the subscriber's first active
    /// device by name. `None` if no device is active.
    pub channel: Option<Name>,
}

impl IndexedSubscription {
    /// Time from which on events are evaluated for it by scheduled rules.
    pub fn since(&self) -> Timestamp {
        self.enabled_at.map_or(self.created_at, |enabled_at| enabled_at.max(self.created_at))
    }
}

/// Schedule used by subscriptions of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedSchedule {
    /// Schedule number. Numbers increase and are not reused.
    pub number: u64,
    /// Subscription class.
    pub class: Name,
    /// Canonical text of a [`Schedule`], with a time zone: the subscriber's, unless the subscription names one.
    pub schedule: Box<str>,
    /// Time at which its first subscription joined.
    pub made_at: Timestamp,
}

/// Subscription with a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledSubscription {
    /// Subscription.
    pub subscription: IndexedSubscription,
    /// Time at which it joined the schedule. It receives no events accepted before: it did not exist, was disabled,
    /// or received them by its former schedule.
    pub since: Timestamp,
    /// Change by which it joined the schedule.
    pub joined: ChangeSequence,
}

/// Number of subscriptions of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionCounts {
    /// Application.
    pub application: Name,
    /// Subscription class.
    pub class: Name,
    /// Enabled subscriptions.
    pub enabled: u64,
    /// Disabled subscriptions.
    pub disabled: u64,
    /// Subscriptions ever added, including removed ones.
    pub added: u64,
    /// Time of the last addition.
    pub last_added_at: Option<Timestamp>,
}

pub(crate) fn no_subscription(id: SubscriptionId) -> StoreError {
    StoreError::Missing(format!("subscription `{id}`"))
}

/// Effective schedule of a subscription: its own, in its own time zone, or else the subscriber's, or else UTC. `None`
/// if the text is invalid; such a schedule is never due.
pub(crate) fn due_schedule(text: &str, zone: Option<&str>) -> Option<Box<str>> {
    let schedule = Schedule::parse_floating(text).ok()?;
    let schedule = schedule.in_zone(zone.unwrap_or("UTC")).or_else(|| schedule.in_zone("UTC"))?;
    Some(schedule.to_string().into())
}

/// Start of the events of a subscription that changes its schedule: the last due time of the former schedule.
pub(crate) fn since_change(before: &str, since: Timestamp, now: Timestamp) -> Timestamp {
    let Ok(before) = Schedule::parse(before) else { return since };
    before.due(Some(since), now, MissedPolicy::Once).runs.last().map_or(since, |run| run.at)
}
