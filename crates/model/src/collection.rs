//! Collections: typed rows with partitions per device, and conflict resolution of concurrent edits.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{field::Fields, id::Name, time::Timestamp, value::Value};

mod built_in; // built-in collections with the subscriber's own data
mod raise; // events raised by row changes

pub use built_in::{BuiltIn, OWNER};
pub use raise::{ChangeKind, Changed, RAISES_MAX, Raise, RaisedFieldSource};

/// Most fields of a collection.
pub const FIELDS_MAX: usize = 200;
/// Most characters of a row id.
pub const ROW_ID_CHARS_MAX: usize = 128;
/// Most shares of a collection.
pub const SHARES_MAX: usize = 16;

/// A collection of rows that devices replicate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Collection {
    /// A description for readers.
    pub description: Option<String>,
    /// The built-in content, if the platform fills it; everything but the direction follows from that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub built_in: Option<BuiltIn>,
    /// Its fields.
    pub fields: Fields,
    /// Further constraints on a row, as JSON Schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<serde_json::Value>,
    /// Direction of replication.
    pub direction: Direction,
    /// Partitioning: a row belongs to every subscriber selected by one of these shares.
    pub partition: Vec<Share>,
    /// Whether a device may edit a row so that it leaves the device's own partition.
    pub may_leave: bool,
    /// Conflict detection and resolution.
    pub conflicts: Conflicts,
    /// Events raised by changes of its rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub raises: Vec<Raise>,
}

/// Direction of replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Devices receive rows and send edits.
    #[default]
    Both,
    /// Devices only receive rows.
    Down,
    /// Devices only send rows and never receive any.
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

/// A share: selects the subscribers that a row belongs to.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// By properties of the subscriber: all conditions must hold.
    Identity {
        /// Fields of the row with the subscriber property they must equal. Empty: the row belongs to all.
        fields: BTreeMap<Name, Identity>,
        /// Only rows whose fields have one of these values.
        rows: BTreeMap<Name, Vec<Value>>,
        /// Only members of this segment.
        audience: Option<Name>,
    },
    /// Through a row of another collection: a subscriber that has that row has this one as well.
    Through {
        /// The field with the id of the other row.
        field: Name,
        /// Its collection.
        collection: Name,
    },
}

/// A property of a subscriber, for shares.
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

/// Conflict detection and resolution of a collection.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Conflicts {
    /// Granularity of conflict detection.
    pub track: Track,
    /// Resolver of conflicts.
    pub resolver: Resolver,
    /// Fields that are merged instead, with or without a conflict.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<Name, Combine>,
}

/// Granularity at which two edits of a row conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Track {
    /// Field level: only edits of the same field conflict.
    #[default]
    Column,
    /// Row level.
    Row,
}

/// Conflict resolver: which of two edits is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolver {
    /// The server's.
    Server,
    /// The device's.
    Client,
    /// The edit based on the oldest state; if equal, the one received first.
    First,
    /// The edit based on the newest state; if equal, the one received last.
    #[default]
    Last,
    /// The device's if a predicate over `client`, `server` and `base` holds, else the server's.
    Predicate(String),
    /// Decided by a program of the operator.
    Process(Process),
}

/// A program that resolves conflicts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Absolute path of the program, and its arguments.
    pub command: Vec<String>,
    /// Timeout of one decision.
    #[serde(rename = "timeout_seconds", serialize_with = "seconds")]
    pub timeout: Duration,
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// Merge function of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// The greater one.
    Max,
    /// The smaller one.
    Min,
    /// The edit's difference to its base is added.
    Sum,
    /// Three-way merge of texts.
    Merge,
}

/// A hybrid logical clock: a server time that is also a position in the order of all row changes. It follows the
/// server's clock and is strictly increasing; clocks of devices are not used.
///
/// 48 bits of milliseconds since 1970, and a 15-bit counter within a millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub u64);

impl Serialize for Stamp {
    /// Serialized as text: JavaScript has no integers of this length.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Stamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let number = text.parse().ok().filter(|number| *number <= i64::MAX.cast_unsigned());
        number.map(Stamp).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a stamp")))
    }
}

impl Stamp {
    const COUNT_BITS: u32 = 15;

    /// The first stamp of a time.
    pub fn at(time: Timestamp) -> Stamp {
        Stamp(u64::try_from(time.as_millis()).unwrap_or(0) << Stamp::COUNT_BITS)
    }

    /// The next stamp, not before the clock.
    #[must_use]
    pub fn next(self, now: Timestamp) -> Stamp {
        Stamp::at(now).max(Stamp(self.0 + 1))
    }

    /// Its time, to the millisecond.
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
