//! Events that changes of rows raise: which changes, of which class, and what their fields say.

use std::{collections::BTreeMap, fmt};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json};

use crate::{field::FieldType, id::Name, time::Timestamp};

/// Ways of raising events that a collection may have, at most: one for each kind of change.
pub const RAISES_MAX: usize = 3;

/// Events that changes of rows raise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Raise {
    /// By these changes. Each raises one event at most.
    pub on: Vec<ChangeKind>,
    /// Of updates, only by those that change one of these fields; by all if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<Name>,
    /// The class of the events.
    pub event: Name,
    /// What their fields say.
    pub fields: BTreeMap<Name, Told>,
}

/// What is done to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It comes.
    Insert,
    /// It says something else.
    Update,
    /// It goes.
    Remove,
}

impl ChangeKind {
    /// All of them.
    pub const ALL: [ChangeKind; 3] = [ChangeKind::Insert, ChangeKind::Update, ChangeKind::Remove];

    /// Its one spelling.
    pub fn word(self) -> &'static str {
        match self {
            ChangeKind::Insert => "insert",
            ChangeKind::Update => "update",
            ChangeKind::Remove => "remove",
        }
    }
}

/// What of a change a field of its event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The id of the row.
    Id,
    /// The word of the kind of change.
    Change,
    /// When it was made.
    At,
    /// What a field says after the change; of a row that goes, what it said last.
    Row(Name),
    /// What a field said before it; nothing of a row that comes.
    Before(Name),
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Told::Id => f.write_str("id"),
            Told::Change => f.write_str("change"),
            Told::At => f.write_str("at"),
            Told::Row(field) => write!(f, "row.{field}"),
            Told::Before(field) => write!(f, "before.{field}"),
        }
    }
}

impl Serialize for Told {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Told {
    /// Reads its spelling.
    pub fn parse(text: &str) -> Option<Told> {
        Some(match text.split_once('.') {
            Some(("row", field)) => Told::Row(field.parse().ok()?),
            Some(("before", field)) => Told::Before(field.parse().ok()?),
            None if text == "id" => Told::Id,
            None if text == "change" => Told::Change,
            None if text == "at" => Told::At,
            _ => return None,
        })
    }

    /// What it holds, where that does not depend on a field.
    pub fn kind(&self) -> Option<FieldType> {
        match self {
            Told::Id | Told::Change => Some(FieldType::String),
            Told::At => Some(FieldType::Timestamp),
            Told::Row(_) | Told::Before(_) => None,
        }
    }
}

/// A change of a row.
#[derive(Debug, Clone, Copy)]
pub struct Changed<'a> {
    /// The row.
    pub id: &'a str,
    /// What it said; `None` if it was not there.
    pub before: Option<&'a Map<String, Json>>,
    /// What it says; `None` if it is gone.
    pub after: Option<&'a Map<String, Json>>,
    /// When.
    pub at: Timestamp,
}

impl Raise {
    /// The event that a change raises, if it does: the fields that say something.
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
        let fields = self.fields.iter().filter_map(|(name, told)| {
            let value = match told {
                Told::Id => changed.id.into(),
                Told::Change => kind.word().into(),
                Told::At => changed.at.to_string().into(),
                Told::Row(field) => changed.after.or(changed.before)?.get(field.as_str())?.clone(),
                Told::Before(field) => changed.before?.get(field.as_str())?.clone(),
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
    fn a_change_raises_what_its_collection_says() {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let fields = [("order", "id"), ("how", "change"), ("total", "row.total"), ("was", "before.total")];
        let raise = Raise {
            on: vec![ChangeKind::Update, ChangeKind::Remove],
            of: vec![name("total")],
            event: name("changed"),
            fields: fields.map(|(field, told)| (name(field), Told::parse(told).expect("told"))).into(),
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
