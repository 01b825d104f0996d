//! Events raised by row changes: which changes, which class, and the source of each field.

use std::{collections::BTreeMap, fmt};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json};

use crate::{field::FieldType, id::Name, time::Timestamp};

/// Most raises of a collection: one for each kind of change.
pub const RAISES_MAX: usize = 3;

/// A rule that raises events for row changes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Raise {
    /// Kinds of changes. Each raises at most one event.
    pub on: Vec<ChangeKind>,
    /// Restricts updates to those that change one of these fields; empty: all updates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<Name>,
    /// The class of the events.
    pub event: Name,
    /// Sources of the event's fields.
    pub fields: BTreeMap<Name, RaisedFieldSource>,
}

/// Kind of a row change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The row is new.
    Insert,
    /// The row changed.
    Update,
    /// The row was removed.
    Remove,
}

impl ChangeKind {
    /// All of them.
    pub const ALL: [ChangeKind; 3] = [ChangeKind::Insert, ChangeKind::Update, ChangeKind::Remove];

    /// Its name in definitions and events.
    pub fn word(self) -> &'static str {
        match self {
            ChangeKind::Insert => "insert",
            ChangeKind::Update => "update",
            ChangeKind::Remove => "remove",
        }
    }
}

/// Source of an event field in a row change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RaisedFieldSource {
    /// The id of the row.
    Id,
    /// The kind of change, as a word.
    Change,
    /// Time of the change.
    At,
    /// A field after the change; for a removed row, its last value.
    Row(Name),
    /// A field before the change; none for a new row.
    Before(Name),
}

impl fmt::Display for RaisedFieldSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RaisedFieldSource::Id => f.write_str("id"),
            RaisedFieldSource::Change => f.write_str("change"),
            RaisedFieldSource::At => f.write_str("at"),
            RaisedFieldSource::Row(field) => write!(f, "row.{field}"),
            RaisedFieldSource::Before(field) => write!(f, "before.{field}"),
        }
    }
}

impl Serialize for RaisedFieldSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl RaisedFieldSource {
    /// Parses its text.
    pub fn parse(text: &str) -> Option<RaisedFieldSource> {
        Some(match text.split_once('.') {
            Some(("row", field)) => RaisedFieldSource::Row(field.parse().ok()?),
            Some(("before", field)) => RaisedFieldSource::Before(field.parse().ok()?),
            None if text == "id" => RaisedFieldSource::Id,
            None if text == "change" => RaisedFieldSource::Change,
            None if text == "at" => RaisedFieldSource::At,
            _ => return None,
        })
    }

    /// Its type, if it does not depend on a field.
    pub fn kind(&self) -> Option<FieldType> {
        match self {
            RaisedFieldSource::Id | RaisedFieldSource::Change => Some(FieldType::String),
            RaisedFieldSource::At => Some(FieldType::Timestamp),
            RaisedFieldSource::Row(_) | RaisedFieldSource::Before(_) => None,
        }
    }
}

/// A row change.
#[derive(Debug, Clone, Copy)]
pub struct Changed<'a> {
    /// The row.
    pub id: &'a str,
    /// The row before; `None` if it is new.
    pub before: Option<&'a Map<String, Json>>,
    /// The row after; `None` if it was removed.
    pub after: Option<&'a Map<String, Json>>,
    /// Time of the change.
    pub at: Timestamp,
}

impl Raise {
    /// The event raised by a change, if any: the fields that have a value.
    pub fn event(&self, changed: &Changed<'_>) -> Option<Map<String, Json>> {
        let kind = match (changed.before, changed.after) {
            (None, None) => return None,
            (None, Some(_)) => ChangeKind::Insert,
            (Some(_), Some(_)) => ChangeKind::Update,
            (Some(_), None) => ChangeKind::Remove,
        };
        if !self.on.contains(&kind) {
            return None;
        }
        let differs = |field: &Name| {
            let of = |row: Option<&Map<String, Json>>| row.and_then(|row| row.get(field.as_str())).cloned();
            of(changed.before) != of(changed.after)
        };
        if kind == ChangeKind::Update && !self.of.is_empty() && !self.of.iter().any(differs) {
            return None;
        }
        let fields = self.fields.iter().filter_map(|(name, source)| {
            let value = match source {
                RaisedFieldSource::Id => changed.id.into(),
                RaisedFieldSource::Change => kind.word().into(),
                RaisedFieldSource::At => changed.at.to_string().into(),
                RaisedFieldSource::Row(field) => changed.after.or(changed.before)?.get(field.as_str())?.clone(),
                RaisedFieldSource::Before(field) => changed.before?.get(field.as_str())?.clone(),
            };
            (!value.is_null()).then(|| (name.to_string(), value))
        });
        Some(fields.collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn row_changes_raise_the_configured_events() {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let fields = [("order", "id"), ("how", "change"), ("total", "row.total"), ("was", "before.total")];
        let raise = Raise {
            on: vec![ChangeKind::Update, ChangeKind::Remove],
            of: vec![name("total")],
            event: name("changed"),
            fields: fields
                .map(|(field, source)| (name(field), RaisedFieldSource::parse(source).expect("a source")))
                .into(),
        };
        let check = |before: Json, after: Json, expected: Json| {
            let changed =
                Changed { id: "o-1", before: before.as_object(), after: after.as_object(), at: Timestamp::default() };
            assert_eq!(raise.event(&changed).map_or(Json::Null, Json::Object), expected);
        };
        check(json!(null), json!({"total": 3}), json!(null));
        let changed = json!({"order": "o-1", "how": "update", "total": 4, "was": 3});
        check(json!({"total": 3}), json!({"total": 4}), changed);
        check(json!({"total": 3, "note": "a"}), json!({"total": 3}), json!(null));
        check(json!({"total": 3}), json!({}), json!({"order": "o-1", "how": "update", "was": 3}));
        let gone = json!({"order": "o-1", "how": "remove", "total": 4, "was": 4});
        check(json!({"total": 4}), json!(null), gone);
    }
}
