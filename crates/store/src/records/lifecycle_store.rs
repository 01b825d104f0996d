//! Outbox of lifecycle events: changes of subscriptions, subscribers and devices, stored in the commit of the change
//! until the journal has them.

use async_trait::async_trait;
use tocsin_model::{
    consent::{ConsentAct, ConsentChange, ConsentState, Evidence},
    field::Row,
    id::{Name, SubscriptionId},
    lifecycle::{ChangeOrigin, ChangeWay, LifecycleChange, LifecycleSubject, fields_of, lifecycle_fields},
    subscriber::{Device, DeviceState, Subscriber},
    time::Timestamp,
    value::Value,
};

use crate::error::StoreError;

/// Outbox of lifecycle events (transactional outbox). Each change of a subscription that a filter covers adds an entry
/// in the same commit. One task of the pipeline makes events of the entries, in order, and removes old ones.
///
/// Positions increase and are not reused. A list is one range of an index.
#[async_trait]
pub trait LifecycleStore: Send + Sync + 'static {
    /// Replaces the filters of an application. Without filters, changes of its subscriptions add no entries.
    async fn set_lifecycle_filters(&self, application: &Name, filters: Vec<LifecycleFilter>) -> Result<(), StoreError>;

    /// Up to `limit` entries of an application after a position, in order.
    async fn lifecycle_entries(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LifecycleEntry>, StoreError>;

    /// Position such that all present entries, of any application, are at it or before, and all later ones after it.
    async fn last_lifecycle_position(&self) -> Result<u64, StoreError>;

    /// Removes up to `limit` entries of an application up to a position that were added before a time. Returns their
    /// number.
    async fn trim_lifecycle(&self, trim: TrimLifecycle<'_>) -> Result<usize, StoreError>;
}

/// Parameters of [`LifecycleStore::trim_lifecycle`].
#[derive(Debug, Clone, Copy)]
pub struct TrimLifecycle<'a> {
    /// Application.
    pub application: &'a Name,
    /// Last position to remove.
    pub through: u64,
    /// Time before which the entries were added.
    pub before: Timestamp,
    /// Most entries.
    pub limit: usize,
}

/// Changes that add entries to the outbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LifecycleFilter {
    /// Change.
    pub change: LifecycleChange,
    /// Subscription class; `None`: all.
    pub class: Option<Name>,
}

/// Entry of the outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct LifecycleEntry {
    /// Position.
    pub position: u64,
    /// Change.
    pub change: LifecycleChange,
    /// Subscription class; `subscriber` or `device` for a change of these.
    pub class: Name,
    /// Time of the change.
    pub at: Timestamp,
    /// The event, a row of [`fields_of`] the change.
    pub row: Row,
}

/// The source of an entry.
pub(crate) struct ChangedSubscription<'a> {
    pub(crate) id: SubscriptionId,
    pub(crate) subscriber: &'a str,
    pub(crate) class: &'a str,
    pub(crate) key: Option<&'a str>,
    pub(crate) device: Option<&'a str>,
    /// Parameters, as JSON.
    pub(crate) values: &'a str,
    /// Parameters before the change, as JSON.
    pub(crate) before: Option<&'a str>,
    pub(crate) locale: Option<&'a str>,
    pub(crate) time_zone: Option<&'a str>,
    /// Attributes of the subscriber, as JSON.
    pub(crate) attributes: Option<&'a str>,
}

/// The event of a change, as JSON. That of a removed subscriber has no personal data beyond the ids.
pub(crate) fn lifecycle_event(
    change: LifecycleChange,
    of: &ChangedSubscription<'_>,
    origin: &ChangeOrigin,
    at: Timestamp,
) -> String {
    let text = |text: Option<&str>| text.map_or(Value::Null, Value::from);
    let map = |json: Option<&str>| json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or(Value::Null);
    let is_removed = origin.way == ChangeWay::SubscriberRemoved;
    let personal = |value: Value| if is_removed { Value::Null } else { value };
    let before = of.before.filter(|before| *before != of.values);
    let row = vec![
        Value::from(&*of.id.to_string()),
        Value::from(of.subscriber),
        Value::from(of.class),
        Value::from(change.word()),
        Value::Timestamp(at),
        text(origin.actor.as_deref()),
        Value::from(origin.way.word()),
        personal(text(of.key)),
        personal(text(of.device)),
        personal(map(Some(of.values))),
        personal(map(before)),
        personal(text(of.locale)),
        personal(text(of.time_zone)),
        personal(map(of.attributes)),
    ];
    lifecycle_fields().to_json(&row)
}

/// The changes of a subscriber and its devices that a write makes, with the events, as JSON. A removed subscriber has no
/// personal data beyond the id.
pub(crate) fn person_events(
    old: Option<&Subscriber>,
    new: Option<&Subscriber>,
    origin: &ChangeOrigin,
    at: Timestamp,
) -> Vec<(LifecycleChange, String)> {
    let Some(person) = new.or(old) else { return Vec::new() };
    let none = std::collections::BTreeMap::new();
    let mut changes: Vec<(LifecycleChange, Option<(&Name, &Device)>)> = Vec::new();
    match (old, new) {
        (None, Some(_)) => changes.push((LifecycleChange::SubscriberCreated, None)),
        (Some(_), None) => changes.push((LifecycleChange::SubscriberRemoved, None)),
        (Some(old), Some(new)) if old.profile != new.profile || old.preferences != new.preferences => {
            changes.push((LifecycleChange::SubscriberChanged, None));
        }
        _ => {}
    }
    if let Some(new) = new {
        let before = old.map_or(&none, |old| &old.devices);
        for (name, device) in &new.devices {
            let is_same = |held: &&Device| held.channel == device.channel && held.address == device.address;
            match before.get(name).filter(is_same) {
                None => changes.push((LifecycleChange::DeviceAdded, Some((name, device)))),
                Some(held) if held.state == DeviceState::Pending && device.state == DeviceState::Active => {
                    changes.push((LifecycleChange::DeviceConfirmed, Some((name, device))));
                }
                Some(_) => {}
            }
        }
        let gone = before.iter().filter(|(name, _)| !new.devices.contains_key(*name));
        changes.extend(gone.map(|device| (LifecycleChange::DeviceRemoved, Some(device))));
    }
    let event = |(change, device)| (change, person_event(change, old, person, device, origin, at));
    changes.into_iter().map(event).collect()
}

fn person_event(
    change: LifecycleChange,
    old: Option<&Subscriber>,
    person: &Subscriber,
    device: Option<(&Name, &Device)>,
    origin: &ChangeOrigin,
    at: Timestamp,
) -> String {
    let text = |text: Option<&str>| text.map_or(Value::Null, Value::from);
    let is_removed = change == LifecycleChange::SubscriberRemoved;
    let personal = |value: Value| if is_removed { Value::Null } else { value };
    let attributes = |of: &Subscriber| match of.profile.attributes.is_empty() {
        true => Value::Null,
        false => Value::Map(
            of.profile.attributes.iter().map(|(name, value)| (name.as_str().into(), value.clone())).collect(),
        ),
    };
    let mut row = vec![
        Value::from(person.id.as_str()),
        Value::from(change.word()),
        Value::Timestamp(at),
        text(origin.actor.as_deref()),
        Value::from(origin.way.word()),
        personal(Value::Boolean(person.profile.enabled)),
        personal(text(person.profile.locale.as_deref())),
        personal(text(person.profile.time_zone.as_deref())),
        personal(attributes(person)),
    ];
    match device {
        Some((name, device)) => row.extend([
            Value::from(name.as_str()),
            Value::from(device.channel.as_str()),
            Value::from(&*device.address),
            serde_json::to_value(device.state).map_or(Value::Null, Value::from),
        ]),
        None => {
            let before = old.filter(|old| old.profile.attributes != person.profile.attributes);
            row.push(before.map_or(Value::Null, attributes));
        }
    }
    fields_of(change).to_json(&row)
}

/// The name that an entry has in place of a subscription class.
pub(crate) fn subject_name(change: LifecycleChange) -> Name {
    let name = match change.subject() {
        LifecycleSubject::Subscription => "subscription",
        LifecycleSubject::Subscriber => "subscriber",
        LifecycleSubject::Device => "device",
    };
    name.parse().expect("a name")
}

/// The row of a stored event.
pub(crate) fn lifecycle_row(change: LifecycleChange, event: &str) -> Result<Row, StoreError> {
    fields_of(change)
        .row_from_json(event.as_bytes())
        .map_err(|_| StoreError::Damaged("an entry of the outbox of lifecycle events".to_owned()))
}

/// The lifecycle event of a change of consent. The insertion of a subscription records its own events, and a request
/// that expired or was withdrawn never became active. An undone withdrawal is no new confirmation, so it starts no
/// welcome again.
pub(crate) fn lifecycle_change(change: &ConsentChange) -> Option<LifecycleChange> {
    match change.act {
        _ if change.is_new => None,
        ConsentAct::Requested | ConsentAct::Resent => Some(LifecycleChange::Requested),
        ConsentAct::Confirmed => Some(LifecycleChange::Confirmed),
        ConsentAct::Restored => Some(LifecycleChange::Changed),
        ConsentAct::Withdrawn if change.before != Some(ConsentState::Pending) => Some(LifecycleChange::Ended),
        ConsentAct::Withdrawn | ConsentAct::Expired => None,
    }
}

/// The origin of a change by its evidence.
pub(crate) fn origin(evidence: &Evidence) -> ChangeOrigin {
    let way = ChangeWay::ALL.into_iter().find(|way| way.word() == evidence.way.word());
    ChangeOrigin::by(way.unwrap_or_default(), Some(&evidence.by))
}
