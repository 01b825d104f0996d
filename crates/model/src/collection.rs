//! Collections: typed rows of which each device may see its own part, and what becomes of edits that meet.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{field::Fields, id::Name, time::Timestamp, value::Value};

mod built_in; // those that the platform fills by itself
mod raise; // events that changes of rows raise

pub use built_in::{BuiltIn, OWNER};
pub use raise::{ChangeKind, Changed, RAISES_MAX, Raise, Told};

/// Fields of a collection, at most.
pub const FIELDS_MAX: usize = 200;
/// Characters of the id of a row, at most.
pub const ROW_ID_CHARS_MAX: usize = 128;
/// Ways in which the rows of a collection become somebody's, at most.
pub const SHARES_MAX: usize = 16;

/// A kind of rows that devices keep replicas of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Collection {
    /// What it is for.
    pub description: Option<String>,
    /// What it tells, if the platform fills it; then all else but the direction follows from that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub built_in: Option<BuiltIn>,
    /// Its fields.
    pub fields: Fields,
    /// What a row must be like beyond that, as JSON Schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<serde_json::Value>,
    /// Which way its rows go.
    pub direction: Direction,
    /// Whose the rows are: a row belongs to whomever one of these gives it to.
    pub partition: Vec<Share>,
    /// Whether a device may give a row away, by an edit after which it does not see it any more.
    pub may_leave: bool,
    /// What becomes of edits that meet.
    pub conflicts: Conflicts,
    /// The events that changes of its rows raise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub raises: Vec<Raise>,
}

/// Which way the rows of a collection go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Devices receive rows and send edits.
    #[default]
    Both,
    /// Devices only receive rows.
    Down,
    /// Devices only send rows; they never receive one.
    Up,
}

impl Direction {
    /// Whether devices send edits.
    pub fn is_up(self) -> bool {
        self != Direction::Down
    }

    /// Whether devices receive rows.
    pub fn is_down(self) -> bool {
        self != Direction::Up
    }
}

/// One way in which a row becomes somebody's.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// By what is known of the subscriber: all its conditions hold.
    Identity {
        /// Fields of the row, each with what of the subscriber it must be equal to. None: the row is everybody's.
        fields: BTreeMap<Name, Identity>,
        /// Only rows whose fields have one of these values.
        rows: BTreeMap<Name, Vec<Value>>,
        /// Only members of this segment.
        audience: Option<Name>,
    },
    /// By a row of another collection: whoever has that one has this one as well.
    Through {
        /// The field that holds the id of the other row.
        field: Name,
        /// Its collection.
        collection: Name,
    },
}

/// What is known of a subscriber, as far as rows may be shared by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// Its id.
    Id,
    /// An attribute; each value of it, if it is a list.
    Attribute(Name),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Id => f.write_str("subscriber.id"),
            Identity::Attribute(name) => write!(f, "attributes.{name}"),
        }
    }
}

impl Serialize for Identity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What becomes of edits that meet.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Conflicts {
    /// When edits meet.
    pub track: Track,
    /// Which of them stays.
    pub resolver: Resolver,
    /// Fields that are put together instead, conflict or not.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<Name, Combine>,
}

/// When two edits of a row meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Track {
    /// When both changed the same field; edits of different fields are both kept.
    #[default]
    Column,
    /// When both changed the row.
    Row,
}

/// Which of two edits stays.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolver {
    /// What the server has.
    Server,
    /// What the device sends.
    Client,
    /// That whose author knew the oldest state; the one that came first where both knew the same.
    First,
    /// That whose author knew the newest state; the one that came last where both knew the same.
    #[default]
    Last,
    /// What the device sends, where a predicate over `client`, `server` and `base` holds; else what the server has.
    Predicate(String),
    /// What a program of the operator's says.
    Process(Process),
}

/// A program that decides between two edits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// The program by its whole path, and its arguments.
    pub command: Vec<String>,
    /// How long it may think about one question.
    #[serde(rename = "timeout_seconds", serialize_with = "seconds")]
    pub timeout: Duration,
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// How two edits of a field become one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// The greater one.
    Max,
    /// The smaller one.
    Min,
    /// What the edit added is added.
    Sum,
    /// The changes of both in one text.
    Merge,
}

/// A moment of the server, and at the same time a place in the order of all changes of rows: a hybrid logical clock. It
/// follows the clock of the server, never stands and never goes back; clocks of devices have no part in it.
///
/// 48 bits of milliseconds since 1970, and 15 bits that count within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub u64);

impl Serialize for Stamp {
    /// As text: JavaScript has no integers of this length.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Stamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let number = text.parse().ok().filter(|number| *number <= i64::MAX.cast_unsigned());
        number.map(Stamp).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no stamp")))
    }
}

impl Stamp {
    const COUNT_BITS: u32 = 15;

    /// The first of a moment.
    pub fn at(time: Timestamp) -> Stamp {
        Stamp(u64::try_from(time.as_millis()).unwrap_or(0) << Stamp::COUNT_BITS)
    }

    /// One after this, and as late as the clock.
    #[must_use]
    pub fn next(self, now: Timestamp) -> Stamp {
        Stamp::at(now).max(Stamp(self.0 + 1))
    }

    /// Its moment, to the millisecond.
    pub fn time(self) -> Timestamp {
        Timestamp::from_millis((self.0 >> Stamp::COUNT_BITS).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_follow_the_clock_and_never_go_back() {
        let noon = Timestamp::from_millis(1_700_000_000_000);
        let first = Stamp::default().next(noon);
        assert_eq!(first.time(), noon);
        let second = first.next(noon);
        assert_eq!((second.0, second.time()), (first.0 + 1, noon));
        let yesterday = noon - Duration::from_secs(86_400);
        assert_eq!(second.next(yesterday).0, second.0 + 1);
        assert_eq!(second.next(noon + Duration::from_millis(5)).time(), noon + Duration::from_millis(5));
    }

    #[test]
    fn many_stamps_of_a_moment_borrow_from_the_next() {
        let noon = Timestamp::from_millis(1_700_000_000_000);
        let last = (0..100_000).fold(Stamp::default(), |stamp, _| stamp.next(noon));
        assert_eq!(last.time(), noon + Duration::from_millis(3));
    }
}
