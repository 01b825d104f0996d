//! Tracking data of the messages of exchanges, stored separately from the messages: their bodies at points of their
//! path, and the properties by which they are found.
//!
//! Nothing waits for tracking and nothing else depends on it: it may lag a little behind the spool, and a power
//! failure may lose its last entries.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tocsin_model::{
    exchange::{TrackPlace, TrackPoint, TrackSwitch},
    id::{MessageId, Name},
    time::Timestamp,
};

pub(crate) mod packing; // binary format of entries

pub use packing::{PackedBodies, Packer, PlainBodies};

/// A body at one point of the path of its message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrackedBody {
    /// The message; for a reply, its request.
    pub message: MessageId,
    /// The point.
    pub point: TrackPoint,
    /// The port at that point.
    pub port: Name,
    /// At a send port: the number of the leg, and the number of the attempt, starting with 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<(u32, u32)>,
    /// The time.
    pub at: Timestamp,
    /// The media type.
    pub content_type: String,
    /// Length of the original body in bytes.
    pub bytes: u64,
    /// The reason why the stored body differs from the original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<BodyChange>,
    /// The body.
    #[serde(skip)]
    pub body: Bytes,
}

/// Reason why a tracked body differs from the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyChange {
    /// It was too long.
    Cut,
    /// Parts were redacted.
    Redacted,
    /// Parts had to be redacted but could not be located: nothing of it is stored.
    Withheld,
}

impl BodyChange {
    /// The word in answers.
    pub fn word(self) -> &'static str {
        match self {
            BodyChange::Cut => "cut",
            BodyChange::Redacted => "redacted",
            BodyChange::Withheld => "withheld",
        }
    }
}

/// Properties by which a message is found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexedProperties {
    /// The message.
    pub message: MessageId,
    /// The time of its acceptance.
    pub at: Timestamp,
    /// The properties, as text.
    pub properties: Vec<(Name, String)>,
}

/// Entries of one exchange with the same retention.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBlock {
    /// The exchange.
    pub exchange: Name,
    /// The end of the retention.
    pub goes_at: Timestamp,
    /// The entries.
    pub entries: Entries,
}

/// A block whose retention has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpiredBlock {
    /// The id.
    pub id: u64,
    /// Its exchange.
    pub exchange: Name,
    /// The indexed properties, if the block has them.
    pub findable: Vec<IndexedProperties>,
}

/// Content of a block.
#[derive(Debug, Clone, PartialEq)]
pub enum Entries {
    /// Bodies.
    Bodies(PackedBodies),
    /// Indexed properties.
    Properties(Vec<IndexedProperties>),
}

/// A search for messages by a property.
#[derive(Debug, Clone, PartialEq)]
pub struct PropertySearch {
    /// Their exchange.
    pub exchange: Name,
    /// The property.
    pub property: Name,
    /// Its value, as text.
    pub value: String,
    /// Earliest acceptance time.
    pub since: Timestamp,
    /// End of the time range (exclusive).
    pub until: Timestamp,
    /// The last message of the previous page, with its acceptance time.
    pub after: Option<(Timestamp, MessageId)>,
}

/// Tracking switch that was set by an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct SetTracking {
    /// The exchange.
    pub exchange: Name,
    /// The part of the exchange.
    pub place: TrackPlace,
    /// The points that are tracked there.
    pub switch: TrackSwitch,
}
