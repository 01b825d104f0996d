//! Built-in collections: the subscriber's own data, for its devices.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Direction, Identity, Share};
use crate::{
    field::{Field, FieldType, Fields},
    value::Value,
};

/// Content of a built-in collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BuiltIn {
    /// The subscriber's profile: one row.
    Profile,
    /// Its devices.
    Devices,
    /// Its subscriptions in this application.
    Subscriptions,
    /// Its inbox items of this application.
    Inbox,
}

/// The field with the owner of a row.
pub const OWNER: &str = "subscriber";

impl BuiltIn {
    /// All of them, with their names.
    pub const ALL: [(&'static str, BuiltIn); 4] = [
        ("profile", BuiltIn::Profile),
        ("devices", BuiltIn::Devices),
        ("subscriptions", BuiltIn::Subscriptions),
        ("inbox", BuiltIn::Inbox),
    ];

    /// The fields of its rows.
    pub fn fields(self) -> Fields {
        use FieldType::{Boolean, List, Map, String, Timestamp};
        let named: &[(&str, FieldType)] = match self {
            BuiltIn::Profile => &[("enabled", Boolean), ("locale", String), ("time_zone", String), ("attributes", Map)],
            BuiltIn::Devices => &[("name", String), ("channel", String), ("address", String), ("state", String)],
            BuiltIn::Subscriptions => &[
                ("class", String),
                ("key", String),
                ("device", String),
                ("enabled", Boolean),
                ("values", Map),
                ("filter", String),
                ("schedule", String),
                ("snoozed_until", Timestamp),
            ],
            BuiltIn::Inbox => &[
                ("class", String),
                ("channel", String),
                ("subject", String),
                ("text", String),
                ("data", Map),
                ("link", String),
                ("actions", List),
                ("created_at", Timestamp),
                ("expires_at", Timestamp),
                ("read", Boolean),
                ("archived", Boolean),
            ],
        };
        let field = |(name, kind): (&str, FieldType)| Field::new(name.parse().expect("a name"), kind);
        let owner = Field { required: true, default: Value::Null, ..field((OWNER, String)) };
        Fields::new([owner].into_iter().chain(named.iter().copied().map(field)).collect())
    }

    /// The fields that devices may edit. Attributes are excluded: they decide what a device may see.
    pub fn editable(self) -> &'static [&'static str] {
        match self {
            BuiltIn::Profile => &["enabled", "locale", "time_zone"],
            BuiltIn::Devices => &["channel", "address", "state"],
            BuiltIn::Subscriptions => &["device", "enabled", "values", "filter", "schedule", "snoozed_until"],
            BuiltIn::Inbox => &["read", "archived"],
        }
    }

    /// Fields that a device sets only when it creates a row.
    pub fn insert_only_fields(self) -> &'static [&'static str] {
        match self {
            BuiltIn::Devices => &["name"],
            BuiltIn::Subscriptions => &["class", "key"],
            BuiltIn::Profile | BuiltIn::Inbox => &[],
        }
    }

    /// Default direction of replication. Devices may edit devices and subscriptions only if that is configured.
    pub fn direction(self) -> Direction {
        match self {
            BuiltIn::Profile | BuiltIn::Inbox => Direction::Both,
            BuiltIn::Devices | BuiltIn::Subscriptions => Direction::Down,
        }
    }

    /// Its rows belong to the subscriber.
    pub fn partition() -> Vec<Share> {
        let fields = BTreeMap::from([(OWNER.parse().expect("a name"), Identity::Id)]);
        vec![Share::Identity { fields, rows: BTreeMap::new(), audience: None }]
    }
}
