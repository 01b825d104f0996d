//! Lifecycle of subscriptions, subscribers and devices: changes, their origin, and the events that an event class with
//! `on` makes of them.

use serde::{Deserialize, Serialize};

use crate::{
    field::{Field, FieldType, Fields},
    id::{Name, SubscriptionId},
    value::Value,
};

/// A change in the life of a subscription, a subscriber or a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LifecycleChange {
    /// A subscription was created, active or waiting for its confirmation.
    Requested,
    /// A subscription became active for the first time: created without a need for confirmation, or confirmed.
    Confirmed,
    /// The parameters, filter, schedule, device or state of a subscription changed.
    Changed,
    /// A subscription was disabled, withdrawn or removed.
    Ended,
    /// A subscriber was created.
    SubscriberCreated,
    /// The profile or the preferences of a subscriber changed.
    SubscriberChanged,
    /// A subscriber was removed.
    SubscriberRemoved,
    /// A device was added, or got another channel or address.
    DeviceAdded,
    /// A device was removed; not with its subscriber.
    DeviceRemoved,
    /// The owner of the address of a device confirmed it.
    DeviceConfirmed,
}

/// Subject of a lifecycle change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifecycleSubject {
    /// A subscription.
    Subscription,
    /// A subscriber.
    Subscriber,
    /// A device.
    Device,
}

impl LifecycleChange {
    /// All changes.
    pub const ALL: [LifecycleChange; 10] = [
        LifecycleChange::Requested,
        LifecycleChange::Confirmed,
        LifecycleChange::Changed,
        LifecycleChange::Ended,
        LifecycleChange::SubscriberCreated,
        LifecycleChange::SubscriberChanged,
        LifecycleChange::SubscriberRemoved,
        LifecycleChange::DeviceAdded,
        LifecycleChange::DeviceRemoved,
        LifecycleChange::DeviceConfirmed,
    ];

    /// Its name in a definition: `subscription.requested`.
    pub fn name(self) -> &'static str {
        match self {
            LifecycleChange::Requested => "subscription.requested",
            LifecycleChange::Confirmed => "subscription.confirmed",
            LifecycleChange::Changed => "subscription.changed",
            LifecycleChange::Ended => "subscription.ended",
            LifecycleChange::SubscriberCreated => "subscriber.created",
            LifecycleChange::SubscriberChanged => "subscriber.changed",
            LifecycleChange::SubscriberRemoved => "subscriber.removed",
            LifecycleChange::DeviceAdded => "device.added",
            LifecycleChange::DeviceRemoved => "device.removed",
            LifecycleChange::DeviceConfirmed => "device.confirmed",
        }
    }

    /// Its word in events: `requested`.
    pub fn word(self) -> &'static str {
        let name = self.name();
        name.split_once('.').map_or(name, |(_, word)| word)
    }

    /// Its subject.
    pub fn subject(self) -> LifecycleSubject {
        match self {
            LifecycleChange::Requested
            | LifecycleChange::Confirmed
            | LifecycleChange::Changed
            | LifecycleChange::Ended => LifecycleSubject::Subscription,
            LifecycleChange::SubscriberCreated
            | LifecycleChange::SubscriberChanged
            | LifecycleChange::SubscriberRemoved => LifecycleSubject::Subscriber,
            LifecycleChange::DeviceAdded | LifecycleChange::DeviceRemoved | LifecycleChange::DeviceConfirmed => {
                LifecycleSubject::Device
            }
        }
    }

    /// The change by its name in a definition.
    pub fn parse(name: &str) -> Option<LifecycleChange> {
        Self::ALL.into_iter().find(|change| change.name() == name)
    }

    /// Its name in stores: that of a subscription is its word.
    pub fn stored(self) -> &'static str {
        if self.subject() == LifecycleSubject::Subscription { self.word() } else { self.name() }
    }

    /// Inverse of [`LifecycleChange::stored`].
    pub fn from_stored(name: &str) -> Option<LifecycleChange> {
        Self::ALL.into_iter().find(|change| change.stored() == name)
    }

    /// Whether a notification about it reaches a subscription that is not active: one that waits for its confirmation,
    /// or that has ended.
    pub fn reaches_inactive(self) -> bool {
        matches!(self, LifecycleChange::Requested | LifecycleChange::Ended)
    }
}

/// Binding of an event class to a lifecycle change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lifecycle {
    /// The change that makes an event.
    #[serde(rename = "on", serialize_with = "as_defined")]
    pub change: LifecycleChange,
    /// Subscription classes; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<Name>,
}

/// Writes a change by its name in a definition.
fn as_defined<S: serde::Serializer>(change: &LifecycleChange, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(change.name())
}

impl Lifecycle {
    /// Whether its rules are evaluated for the subscription of each event only. Events about subscribers and devices
    /// are matched like all others.
    pub fn is_targeted(&self) -> bool {
        self.change.subject() == LifecycleSubject::Subscription
    }

    /// The fields of its events.
    pub fn fields(&self) -> Fields {
        fields_of(self.change)
    }

    /// Whether a change of a subscription of this class makes an event.
    pub fn covers(&self, change: LifecycleChange, class: &Name) -> bool {
        self.change == change && (self.of.is_empty() || self.of.contains(class))
    }
}

/// Way by which a subscription was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeWay {
    /// Not known.
    #[default]
    Unknown,
    /// The API, by an API key.
    Api,
    /// An import.
    Import,
    /// A hosted page, or a session of the subscriber.
    Page,
    /// A signed link, such as that of a one-click unsubscription.
    Link,
    /// A code.
    Code,
    /// A confirmation encrypted by another installation.
    Encrypted,
    /// An operator, by a command.
    Operator,
    /// A mail.
    Mail,
    /// A short message.
    Sms,
    /// The directory.
    Directory,
    /// A replica of a device.
    Replica,
    /// The end of a time limit.
    Expiry,
    /// The removal of the subscriber.
    SubscriberRemoved,
}

impl ChangeWay {
    /// All ways.
    pub const ALL: [ChangeWay; 14] = [
        ChangeWay::Unknown,
        ChangeWay::Api,
        ChangeWay::Import,
        ChangeWay::Page,
        ChangeWay::Link,
        ChangeWay::Code,
        ChangeWay::Encrypted,
        ChangeWay::Operator,
        ChangeWay::Mail,
        ChangeWay::Sms,
        ChangeWay::Directory,
        ChangeWay::Replica,
        ChangeWay::Expiry,
        ChangeWay::SubscriberRemoved,
    ];

    /// Its word: `subscriber_removed`.
    pub fn word(self) -> &'static str {
        match self {
            ChangeWay::Unknown => "unknown",
            ChangeWay::Api => "api",
            ChangeWay::Import => "import",
            ChangeWay::Page => "page",
            ChangeWay::Link => "link",
            ChangeWay::Code => "code",
            ChangeWay::Encrypted => "encrypted",
            ChangeWay::Operator => "operator",
            ChangeWay::Mail => "mail",
            ChangeWay::Sms => "sms",
            ChangeWay::Directory => "directory",
            ChangeWay::Replica => "replica",
            ChangeWay::Expiry => "expiry",
            ChangeWay::SubscriberRemoved => "subscriber_removed",
        }
    }
}

/// Origin of a change of subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangeOrigin {
    /// The id of the API key that made it, or `subscriber`. `None` if not known.
    pub actor: Option<Box<str>>,
    /// By which way.
    pub way: ChangeWay,
    /// Whether it makes no lifecycle events, as in a quiet import.
    pub quiet: bool,
}

impl ChangeOrigin {
    /// A change by this way.
    pub fn by(way: ChangeWay, actor: Option<&str>) -> ChangeOrigin {
        ChangeOrigin { actor: actor.map(Box::from), way, quiet: false }
    }
}

/// The fields of lifecycle events, in this order. The values of a subscription are a map, as each class has its own.
pub fn lifecycle_fields() -> Fields {
    let described = |name: &str, kind, about: &str| Field {
        description: Some(about.to_owned()),
        ..Field::new(name.parse().expect("a field's name"), kind)
    };
    Fields::new(vec![
        described("subscription_id", FieldType::String, "The id of the subscription, such as `s-15`."),
        described("subscriber_id", FieldType::String, "The id of its subscriber."),
        described("class", FieldType::String, "The subscription class."),
        described("change", FieldType::String, "The change: `requested`, `confirmed`, `changed` or `ended`."),
        described("changed_at", FieldType::Timestamp, "Time of the change."),
        described("actor", FieldType::String, "The API key that made the change, or `subscriber`; null if not known."),
        described("way", FieldType::String, "The way of the change, such as `api`, `import`, `link` or `page`."),
        described("key", FieldType::String, "The key of the subscription; null if it has none."),
        described("device", FieldType::String, "The device that the subscription names; null if it names none."),
        described("values", FieldType::Map, "The parameters of the subscription, at an end the last ones."),
        described("before", FieldType::Map, "The parameters before the change; null unless they changed."),
        described("locale", FieldType::String, "The locale of the subscriber."),
        described("time_zone", FieldType::String, "The time zone of the subscriber."),
        described("attributes", FieldType::Map, "The attributes of the subscriber."),
    ])
}

/// The fields of the events of a change.
pub fn fields_of(change: LifecycleChange) -> Fields {
    match change.subject() {
        LifecycleSubject::Subscription => lifecycle_fields(),
        LifecycleSubject::Subscriber => person_fields(false),
        LifecycleSubject::Device => person_fields(true),
    }
}

/// The fields of events about subscribers and devices, in this order.
fn person_fields(is_device: bool) -> Fields {
    let described = |name: &str, kind, about: &str| Field {
        description: Some(about.to_owned()),
        ..Field::new(name.parse().expect("a field's name"), kind)
    };
    let mut fields = vec![
        described("subscriber_id", FieldType::String, "The id of the subscriber."),
        described("change", FieldType::String, "The change, such as `created`, `removed` or `added`."),
        described("changed_at", FieldType::Timestamp, "Time of the change."),
        described("actor", FieldType::String, "The API key that made the change, or `subscriber`; null if not known."),
        described("way", FieldType::String, "The way of the change, such as `api`, `import` or `code`, or `unknown`."),
        described("enabled", FieldType::Boolean, "Whether the subscriber is enabled."),
        described("locale", FieldType::String, "The locale of the subscriber."),
        described("time_zone", FieldType::String, "The time zone of the subscriber."),
        described("attributes", FieldType::Map, "The attributes of the subscriber."),
    ];
    if is_device {
        fields.extend([
            described("device", FieldType::String, "The name of the device."),
            described("channel", FieldType::String, "Its channel."),
            described("address", FieldType::String, "Its address."),
            described("state", FieldType::String, "Its state, such as `active` or `pending`."),
        ]);
    } else {
        fields.push(described("before", FieldType::Map, "The attributes before the change; null unless they changed."));
    }
    Fields::new(fields)
}

/// The subscription of a lifecycle event, a row of [`lifecycle_fields`].
pub fn subscription_of(row: &[Value]) -> Option<SubscriptionId> {
    match row.first()? {
        Value::Text(id) => id.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_one_name_in_definitions_and_events() {
        for change in LifecycleChange::ALL {
            assert_eq!(LifecycleChange::parse(change.name()), Some(change));
            assert_eq!(LifecycleChange::from_stored(change.stored()), Some(change));
            assert!(change.name().ends_with(&format!(".{}", change.word())));
            let bound = serde_json::to_value(Lifecycle { change, of: Vec::new() }).expect("JSON");
            assert_eq!(bound["on"].as_str().and_then(LifecycleChange::parse), Some(change));
        }
        assert_eq!(LifecycleChange::parse("subscriber.requested"), None);
        assert_eq!(LifecycleChange::parse("subscription.deleted"), None);
    }

    #[test]
    fn the_first_field_of_an_event_names_its_subscription() {
        let fields = lifecycle_fields();
        assert_eq!(fields[0].name.as_str(), "subscription_id");
        let row = fields.row_from_json(br#"{"subscription_id": "s-15", "change": "ended"}"#).expect("a row");
        assert_eq!(subscription_of(&row), Some(SubscriptionId(15)));
        assert_eq!(subscription_of(&[Value::Null]), None);
    }
}
