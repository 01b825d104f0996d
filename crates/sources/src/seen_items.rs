//! Seen items of a page (de-duplication): each item becomes an event once, and again when it has changed.
//!
//! A removed item is remembered for some further polls: generated pages sometimes omit an item temporarily, and when it
//! returns it is not new.

use std::collections::{HashMap, HashSet};

use ring::digest;
use serde::{Deserialize, Serialize};
use tocsin_model::{mark::Mark, problem::Problem};

use crate::{mapping::PointedValue, source::read_mark};

/// Prefix of the parts of items; there are other marks beside them.
const PREFIX: &str = "item:";
/// Longer keys are hashed.
const KEY_BYTES_MAX: usize = 200;

/// Seen items, by their keys.
#[derive(Default)]
pub(crate) struct SeenItems(HashMap<String, SeenItem>);

/// The stored state of an item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SeenItem {
    /// A hash of the values that determine whether it has changed.
    version: String,
    /// Second key, which distinguishes it from others with the same first key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    second: Option<String>,
    /// The number of polls since it was removed.
    #[serde(default, skip_serializing_if = "is_zero")]
    gone: u32,
    /// Whether several items had the key at some time; then the key is not an identity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_shared: bool,
    /// Whether it was rejected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_refused: bool,
    /// Whether its key is a [`typed_key`]. Older versions stored keys without types.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_typed: bool,
}

impl SeenItem {
    fn new(version: &str, second: Option<&str>) -> SeenItem {
        SeenItem {
            version: version.to_owned(),
            second: second.map(str::to_owned),
            gone: 0,
            is_shared: false,
            is_refused: false,
            is_typed: true,
        }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The change of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    New,
    Updated,
}

impl Change {
    pub const fn word(self) -> &'static str {
        match self {
            Change::New => "new",
            Change::Updated => "updated",
        }
    }
}

impl SeenItems {
    /// Reads the items from the marks of a source.
    ///
    /// # Errors
    /// One of them is unreadable.
    pub fn read(marks: &[Mark]) -> Result<SeenItems, Vec<Problem>> {
        let entry = |mark: &Mark| {
            let key = mark.part.strip_prefix(PREFIX)?;
            Some(read_mark(mark)?.map(|entry| (key.to_owned(), entry)))
        };
        Ok(SeenItems(marks.iter().filter_map(entry).collect::<Result<_, _>>()?))
    }

    /// Whether a seen item was stored by an older version, without the type of its key.
    pub fn has_untyped(&self) -> bool {
        self.0.values().any(|entry| !entry.is_typed)
    }

    /// Whether an older version stored this version of an item under this key.
    pub fn is_untyped_version(&self, untyped: &str, version: &str) -> bool {
        self.0.get(&short(untyped)).is_some_and(|entry| !entry.is_typed && entry.version == version)
    }

    /// Assigns the seen item that an older version stored under an untyped key to a key.
    pub fn adopt(&mut self, key: &str, untyped: &str) -> Vec<Mark> {
        let (key, untyped) = (short(key), short(untyped));
        let is_free = key == untyped || !self.0.contains_key(&key);
        if !is_free || self.0.get(&untyped).is_none_or(|entry| entry.is_typed) {
            return Vec::new();
        }
        let Some(mut entry) = self.0.remove(&untyped) else { return Vec::new() };
        entry.is_typed = true;
        let moved = (key != untyped).then(|| Mark::delete(format!("{PREFIX}{untyped}")));
        let marks = moved.into_iter().chain([mark(&key, &entry)]).collect();
        self.0.insert(key, entry);
        marks
    }

    /// Whether the seen item of this key has this second key.
    pub fn is_own(&self, key: &str, second: &str) -> bool {
        self.0.get(&short(key)).is_some_and(|entry| entry.second.as_deref() == Some(second))
    }

    /// Whether several items had this key at some time.
    pub fn is_shared(&self, key: &str) -> bool {
        self.0.get(&short(key)).is_some_and(|entry| entry.is_shared)
    }

    /// Records that several items have this key.
    pub fn share(&mut self, key: &str) -> Mark {
        let entry = self.0.entry(short(key)).or_insert_with(|| SeenItem::new("", None));
        entry.is_shared = true;
        mark(&short(key), entry)
    }

    /// The change of an item, if it is new or has changed.
    pub fn change_of(&self, key: &str, version: &str) -> Option<Change> {
        match self.0.get(&short(key)) {
            None => Some(Change::New),
            Some(entry) if entry.version != version => Some(Change::Updated),
            Some(_) => None,
        }
    }

    /// Whether the item of this key was accepted as an event.
    pub fn was_accepted(&self, key: &str) -> bool {
        self.0.get(&short(key)).is_some_and(|entry| !entry.is_refused)
    }

    /// Records a rejected item, so that it is rejected once.
    pub fn remember_refused(&mut self, key: &str, version: &str, second: Option<&str>) -> Mark {
        self.mark_seen(key, SeenItem { is_refused: true, ..SeenItem::new(version, second) })
    }

    /// Records an item.
    pub fn remember(&mut self, key: &str, version: &str, second: Option<&str>) -> Mark {
        self.mark_seen(key, SeenItem::new(version, second))
    }

    fn mark_seen(&mut self, key: &str, entry: SeenItem) -> Mark {
        let entry = SeenItem { is_shared: self.is_shared(key), ..entry };
        let mark = mark(&short(key), &entry);
        self.0.insert(short(key), entry);
        mark
    }

    /// Ends a poll in which these items were present: the absence count of the others is increased, and they are
    /// forgotten after `retention` polls.
    pub fn end_poll<'a>(&mut self, seen: impl Iterator<Item = &'a str>, retention: u32) -> Vec<Mark> {
        let seen: HashSet<String> = seen.map(short).collect();
        let mut marks = Vec::new();
        self.0.retain(|key, entry| {
            let gone = if seen.contains(key) { 0 } else { entry.gone + 1 };
            if gone > retention {
                marks.push(Mark::delete(format!("{PREFIX}{key}")));
                return false;
            }
            if gone != entry.gone {
                entry.gone = gone;
                marks.push(mark(key, entry));
            }
            true
        });
        marks
    }
}

/// The key of a value, different for values of different types: a text is its own key; other values, and texts that
/// would be read as another key, are `=` and their JSON.
pub(crate) fn typed_key(value: &PointedValue) -> String {
    match value {
        PointedValue::Text(text) if !text.starts_with(['=', '#']) => text.clone(),
        PointedValue::Text(text) => format!("={}", serde_json::Value::from(text.as_str())),
        PointedValue::Json(json) => format!("={json}"),
    }
}

fn mark(key: &str, entry: &SeenItem) -> Mark {
    Mark::set(format!("{PREFIX}{key}"), serde_json::to_vec(entry).expect("it is JSON"))
}

fn short(key: &str) -> String {
    if key.len() <= KEY_BYTES_MAX { key.to_owned() } else { format!("#{}", hash(&[key.as_bytes()])) }
}

/// The first half of the SHA-256 of some parts, in hexadecimal digits.
pub(crate) fn hash(parts: &[&[u8]]) -> String {
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex::encode(&hash.finish().as_ref()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_reported_once_and_when_it_changes() {
        let long = "x".repeat(1_000);
        let mut known = SeenItems::default();
        assert_eq!(known.change_of(&long, "1"), Some(Change::New));
        let mark = known.remember(&long, "1", None);
        assert!(mark.part.len() < 100);
        let known = SeenItems::read(&[mark, Mark::set("etag", "x")]).expect("entries");
        assert_eq!((known.change_of(&long, "1"), known.change_of(&long, "2")), (None, Some(Change::Updated)));
    }

    #[test]
    fn d_keys_of_different_types_are_different() {
        let values = ["1", "true", "=1", "#1", "=\"=1\"", ""].map(|text| PointedValue::Text(text.to_owned()));
        let json = ["1", "true", "[1]"].map(|json| PointedValue::Json(json.to_owned()));
        let keys: HashSet<String> = values.iter().chain(&json).map(typed_key).collect();
        assert_eq!(keys.len(), values.len() + json.len(), "{keys:?}");
        assert_eq!((typed_key(&values[0]), typed_key(&json[0])), ("1".to_owned(), "=1".to_owned()));
    }

    #[test]
    fn d_an_untyped_key_is_assigned_once() {
        let stored = Mark::set("item:1", &br#"{"version":"v","second":"s"}"#[..]);
        let mut known = SeenItems::read(std::slice::from_ref(&stored)).expect("as an older version stored it");
        assert!(known.has_untyped() && known.is_untyped_version("1", "v") && !known.is_untyped_version("1", "w"));
        let marks = known.adopt("=1", "1");
        assert_eq!((&marks[0], &*marks[1].part), (&Mark::delete("item:1"), "item:=1"));
        assert_eq!((known.change_of("=1", "v"), known.change_of("1", "v")), (None, Some(Change::New)));
        assert!(known.adopt("1", "1").is_empty() && !known.has_untyped());
        let mut known = SeenItems::read(&[stored]).expect("as an older version stored it");
        assert_eq!(known.adopt("1", "1").len(), 1);
        assert_eq!((known.adopt("=1", "1").len(), known.change_of("=1", "v")), (0, Some(Change::New)));
    }

    #[test]
    fn removed_items_are_forgotten_after_some_polls() {
        let mut known = SeenItems::default();
        known.remember("a", "1", None);
        known.remember("b", "1", None);
        assert_eq!(known.end_poll(["a", "b"].into_iter(), 1), []);
        assert_eq!(known.end_poll(["a"].into_iter(), 1).len(), 1, "b is gone");
        assert_eq!(known.change_of("b", "1"), None, "and would not be new yet");
        assert_eq!(known.end_poll(["a", "b"].into_iter(), 1).len(), 1, "b is back");
        known.end_poll(["a"].into_iter(), 1);
        assert_eq!(known.end_poll(["a"].into_iter(), 1), [Mark::delete("item:b")]);
        assert_eq!(known.change_of("b", "1"), Some(Change::New));
    }
}
