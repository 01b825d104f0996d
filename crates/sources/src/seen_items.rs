//! Seen items of a page (de-duplication): each item becomes an event once, and again when it has changed.
//!
//! A removed item is remembered for some further polls: generated pages sometimes omit an item temporarily, and when it
//! returns it is not new.

use std::collections::{HashMap, HashSet};

use ring::digest;
use serde::{Deserialize, Serialize};
use tocsin_model::{hexadecimal::digits_of, mark::Mark, problem::Problem};

use crate::source::read_mark;

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
}

impl SeenItem {
    fn new(version: &str, second: Option<&str>) -> SeenItem {
        SeenItem {
            version: version.to_owned(),
            second: second.map(str::to_owned),
            gone: 0,
            is_shared: false,
            is_refused: false,
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
    pub fn judge(&self, key: &str, version: &str) -> Option<Change> {
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
        self.keep(key, SeenItem { is_refused: true, ..SeenItem::new(version, second) })
    }

    /// Records an item.
    pub fn remember(&mut self, key: &str, version: &str, second: Option<&str>) -> Mark {
        self.keep(key, SeenItem::new(version, second))
    }

    fn keep(&mut self, key: &str, entry: SeenItem) -> Mark {
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
                marks.push(Mark::forget(format!("{PREFIX}{key}")));
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
    digits_of(&hash.finish().as_ref()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_reported_once_and_when_it_changes() {
        let long = "x".repeat(1_000);
        let mut known = SeenItems::default();
        assert_eq!(known.judge(&long, "1"), Some(Change::New));
        let mark = known.remember(&long, "1", None);
        assert!(mark.part.len() < 100);
        let known = SeenItems::read(&[mark, Mark::set("etag", "x")]).expect("entries");
        assert_eq!((known.judge(&long, "1"), known.judge(&long, "2")), (None, Some(Change::Updated)));
    }

    #[test]
    fn removed_items_are_forgotten_after_some_polls() {
        let mut known = SeenItems::default();
        known.remember("a", "1", None);
        known.remember("b", "1", None);
        assert_eq!(known.end_poll(["a", "b"].into_iter(), 1), []);
        assert_eq!(known.end_poll(["a"].into_iter(), 1).len(), 1, "b is gone");
        assert_eq!(known.judge("b", "1"), None, "and would not be new yet");
        assert_eq!(known.end_poll(["a", "b"].into_iter(), 1).len(), 1, "b is back");
        known.end_poll(["a"].into_iter(), 1);
        assert_eq!(known.end_poll(["a"].into_iter(), 1), [Mark::forget("item:b")]);
        assert_eq!(known.judge("b", "1"), Some(Change::New));
    }
}
