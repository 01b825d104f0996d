//! Lifecycle of subscriptions: its changes, their origin, and the events that an event class with `on` makes of them.

use serde::{Deserialize, Serialize};

use crate::{
    field::{Field, FieldType, Fields},
    id::{Name, SubscriptionId},
    value::Value,
};

/// A change in the life of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LifecycleChange {
    /// It was created, active or waiting for its confirmation.
    Requested,
    /// It became active for the first time: created without a need for confirmation, or confirmed.
    Confirmed,
    /// Its parameters, filter, schedule, device or state changed.
    Changed,
    /// It was disabled, withdrawn or removed.
    Ended,
}

impl LifecycleChange {
    /// All changes.
    pub const ALL: [LifecycleChange; 4] =
        [LifecycleChange::Requested, LifecycleChange::Confirmed, LifecycleChange::Changed, LifecycleChange::Ended];

    /// Its word: `requested`.
    pub fn word(self) -> &'static str {
        match self {
            LifecycleChange::Requested => "requested",
            LifecycleChange::Confirmed => "confirmed",
            LifecycleChange::Changed => "changed",
            LifecycleChange::Ended => "ended",
        }
    }

    /// The change by its name in a definition: `subscription.requested`.
    pub fn parse(name: &str) -> Option<LifecycleChange> {
        let word = name.strip_prefix("subscription.")?;
        Self::ALL.into_iter().find(|change| change.word() == word)
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
    serializer.collect_str(&format_args!("subscription.{}", change.word()))
}

impl Lifecycle {
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
            assert_eq!(LifecycleChange::parse(&format!("subscription.{}", change.word())), Some(change));
            let word = serde_json::to_value(change).expect("a word");
            assert_eq!(word, change.word());
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
