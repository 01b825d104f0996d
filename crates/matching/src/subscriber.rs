//! Subscriber columns: `subscriber.id`, `subscriber.locale`, `subscriber.time_zone` and `subscriber.attributes.NAME`,
//! for the attributes that the application declares.
//!
//! In an index they are columns of the subscription, behind the fields of its class.

use tocsin_model::{
    field::{FieldType, Fields, Row},
    id::SubscriberId,
    subscriber::Profile,
    value::Value,
};

/// The names before the attributes.
pub(crate) const PARTS: [&str; 3] = ["id", "locale", "time_zone"];

/// The columns of a subscriber.
#[derive(Debug, Clone, Default)]
pub struct SubscriberColumns {
    attributes: Fields,
}

/// The values of a subscriber that rules use.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubscriberView {
    /// The audiences of the subscriber.
    pub memberships: Memberships,
    /// The values of its columns; empty if no rule reads them.
    pub columns: Row,
}

impl SubscriberView {
    /// A subscriber with these memberships and without column values.
    pub fn member(memberships: Memberships) -> SubscriberView {
        SubscriberView { memberships, columns: Row::new() }
    }
}

impl SubscriberColumns {
    /// The columns of an application that declares these attributes.
    pub fn new(attributes: Fields) -> SubscriberColumns {
        SubscriberColumns { attributes }
    }

    /// The attributes that expressions may name.
    pub fn attributes(&self) -> &Fields {
        &self.attributes
    }

    /// The number of columns.
    #[allow(clippy::len_without_is_empty)] // There is always an id.
    pub fn len(&self) -> usize {
        PARTS.len() + self.attributes.len()
    }

    /// Types of the columns, in order.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = FieldType> + '_ {
        let attributes = self.attributes.iter().map(|attribute| attribute.kind);
        PARTS.iter().map(|_| FieldType::String).chain(attributes)
    }

    /// The index of a column that is not an attribute.
    pub(crate) fn part(&self, name: &str) -> Option<usize> {
        PARTS.iter().position(|part| *part == name)
    }

    /// The index of an attribute's column.
    pub(crate) fn attribute(&self, name: &str) -> Option<usize> {
        Some(PARTS.len() + self.attributes.position(name)?)
    }

    /// The spelling of a column in expressions.
    pub(crate) fn name(&self, at: usize) -> String {
        match PARTS.get(at) {
            Some(part) => format!("subscriber.{part}"),
            None => self.attributes.iter().nth(at - PARTS.len()).map_or_else(
                || "subscriber".to_owned(),
                |attribute| format!("subscriber.attributes.{}", attribute.name),
            ),
        }
    }

    /// The column values of a subscriber. A missing value, or one of another type than declared, is replaced by the
    /// default.
    pub fn row(&self, id: &SubscriberId, profile: &Profile) -> Row {
        let text = |text: Option<&str>| text.map_or(Value::Null, Value::from);
        let parts = [text(Some(id.as_str())), text(profile.locale.as_deref()), text(profile.time_zone.as_deref())];
        let attributes = self.attributes.iter().map(|attribute| {
            let given = profile.attributes.get(attribute.name.as_str()).cloned().unwrap_or_default();
            match attribute.kind.accept(given) {
                Ok(Value::Null) | Err(_) => attribute.default.clone(),
                Ok(value) => value,
            }
        });
        parts.into_iter().chain(attributes).collect()
    }
}

/// Most segments that the rules of an application can use.
pub const AUDIENCES_MAX: usize = 64;

/// The audiences of a subscriber, as a bit set: bit 0 is the first audience of the rule set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memberships(pub u64);

impl Memberships {
    /// All audiences: the audience is not checked.
    pub const ALL: Memberships = Memberships(u64::MAX);

    /// Whether the subscriber is in the audience of a rule.
    pub(crate) fn includes(self, audience: Option<usize>) -> bool {
        audience.is_none_or(|audience| self.0 >> audience & 1 == 1)
    }
}
