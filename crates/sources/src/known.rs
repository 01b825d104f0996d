//! Which items of a page are known, so that each is told once, and again when it has changed.
//!
//! An item that is gone is remembered for some polls more: pages are made by machines that now and then leave something
//! out, and what comes back is not new.

use std::collections::{HashMap, HashSet};

use ring::digest;
use serde::{Deserialize, Serialize};
use tocsin_model::{hexadecimal::digits_of, mark::Mark, problem::Problem};

use crate::source::read_mark;

/// What the parts of items begin with; there are other marks beside them.
const PREFIX: &str = "item:";
/// A longer key stands as its hash.
const KEY_BYTES_MAX: usize = 200;

/// Known items, by their keys.
#[derive(Default)]
pub(crate) struct Known(HashMap<String, Entry>);

/// What is remembered of an item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    /// A hash of what is looked at to see whether it has changed.
    version: String,
    /// Its second key, by which it differs from others with the same first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    second: Option<String>,
    /// For how many polls it has been gone.
    #[serde(default, skip_serializing_if = "is_zero")]
    gone: u32,
    /// Whether several items had the key at a time, which is no identity since then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_shared: bool,
    /// Whether it was no event.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_refused: bool,
}

impl Entry {
    fn new(version: &str, second: Option<&str>) -> Entry {
        Entry {
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

/// What an item is to whoever knows the others.
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

impl Known {
    /// Takes what is about items out of the marks of a source.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn read(marks: &[Mark]) -> Result<Known, Vec<Problem>> {
        let entry = |mark: &Mark| {
            let key = mark.part.strip_prefix(PREFIX)?;
            Some(read_mark(mark)?.map(|entry| (key.to_owned(), entry)))
        };
        Ok(Known(marks.iter().filter_map(entry).collect::<Result<_, _>>()?))
    }

    /// Whether the item that is known by this key is the one with this second key.
    pub fn is_own(&self, key: &str, second: &str) -> bool {
        self.0.get(&short(key)).is_some_and(|entry| entry.second.as_deref() == Some(second))
    }

    /// Whether several items had this key at a time.
    pub fn is_shared(&self, key: &str) -> bool {
        self.0.get(&short(key)).is_some_and(|entry| entry.is_shared)
    }

    /// Remembers that several items have this key.
    pub fn share(&mut self, key: &str) -> Mark {
        let entry = self.0.entry(short(key)).or_insert_with(|| Entry::new("", None));
        entry.is_shared = true;
        mark(&short(key), entry)
    }

    /// The change of an item, if it is new or differs.
    pub fn judge(&self, key: &str, version: &str) -> Option<Change> {
        match self.0.get(&short(key)) {
            None => Some(Change::New),
            Some(entry) if entry.version != version => Some(Change::Updated),
            Some(_) => None,
        }
    }

    /// Whether an item of this key was an event when it was taken.
    pub fn is_good(&self, key: &str) -> bool {
        self.0.get(&short(key)).is_some_and(|entry| !entry.is_refused)
    }

    /// Remembers an item that is no event, so that it is set aside once.
    pub fn remember_refused(&mut self, key: &str, version: &str, second: Option<&str>) -> Mark {
        self.keep(key, Entry { is_refused: true, ..Entry::new(version, second) })
    }

    /// Remembers an item.
    pub fn remember(&mut self, key: &str, version: &str, second: Option<&str>) -> Mark {
        self.keep(key, Entry::new(version, second))
    }

    fn keep(&mut self, key: &str, entry: Entry) -> Mark {
        let entry = Entry { is_shared: self.is_shared(key), ..entry };
        let mark = mark(&short(key), &entry);
        self.0.insert(short(key), entry);
        mark
    }

    /// Ends a poll that has seen these items: the others have been gone for a poll more, and are forgotten after
    /// `retention` of them.
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

fn mark(key: &str, entry: &Entry) -> Mark {
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
    fn an_item_is_told_once_and_when_it_changes() {
        let long = "x".repeat(1_000);
        let mut known = Known::default();
        assert_eq!(known.judge(&long, "1"), Some(Change::New));
        let mark = known.remember(&long, "1", None);
        assert!(mark.part.len() < 100);
        let known = Known::read(&[mark, Mark::set("etag", "x")]).expect("entries");
        assert_eq!((known.judge(&long, "1"), known.judge(&long, "2")), (None, Some(Change::Updated)));
    }

    #[test]
    fn what_is_gone_is_forgotten_after_some_polls() {
        let mut known = Known::default();
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
