//! What tracking keeps of the messages of exchanges, apart from the messages: their bodies at points of their ways, and the
//! properties by which they are found.
//!
//! Nothing waits for it and nothing else depends on it: it may lag a moment behind the spool, and a power cut may take its
//! last entries.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tocsin_model::{
    exchange::{TrackPlace, TrackPoint, TrackSwitch},
    id::{MessageId, Name},
    time::Timestamp,
};

pub(crate) mod packing; // entries as bytes, and back

pub use packing::{PackedBodies, Packer, PlainBodies};

/// A body at a point of its message's way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrackedBody {
    /// The message; of a reply its request.
    pub message: MessageId,
    /// The point.
    pub point: TrackPoint,
    /// The port there.
    pub port: Name,
    /// At a send port: the way of the message, and which attempt it was, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<(u32, u32)>,
    /// When.
    pub at: Timestamp,
    /// The media type.
    pub content_type: String,
    /// Bytes that it had.
    pub bytes: u64,
    /// Why it is not here as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<BodyChange>,
    /// The body.
    #[serde(skip)]
    pub body: Bytes,
}

/// Why a tracked body is not as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyChange {
    /// It was too long.
    Cut,
    /// Something was struck out.
    Redacted,
    /// Something had to be struck out, and where was not to be told: nothing of it is kept.
    Withheld,
}

impl BodyChange {
    /// Its one word.
    pub fn word(self) -> &'static str {
        match self {
            BodyChange::Cut => "cut",
            BodyChange::Redacted => "redacted",
            BodyChange::Withheld => "withheld",
        }
    }
}

/// By what a message is found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Findable {
    /// The message.
    pub message: MessageId,
    /// When it came.
    pub at: Timestamp,
    /// Its properties, as text.
    pub properties: Vec<(Name, String)>,
}

/// Entries of one exchange that go at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBlock {
    /// The exchange.
    pub exchange: Name,
    /// When they need not be kept any more.
    pub goes_at: Timestamp,
    /// The entries.
    pub entries: Entries,
}

/// A block whose time is over.
#[derive(Debug, Clone, PartialEq)]
pub struct OverBlock {
    /// Which.
    pub id: u64,
    /// Its exchange.
    pub exchange: Name,
    /// By what messages are found, if it holds that.
    pub findable: Vec<Findable>,
}

/// What a block holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Entries {
    /// Bodies.
    Bodies(PackedBodies),
    /// By what messages are found.
    Findable(Vec<Findable>),
}

/// Which messages are looked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Search {
    /// Their exchange.
    pub exchange: Name,
    /// The property.
    pub property: Name,
    /// Its value, as text.
    pub value: String,
    /// Not earlier than this.
    pub since: Timestamp,
    /// Earlier than this.
    pub until: Timestamp,
    /// Behind this one of the page before, and when it came.
    pub after: Option<(Timestamp, MessageId)>,
}

/// What an operator has set.
#[derive(Debug, Clone, PartialEq)]
pub struct SetTracking {
    /// The exchange.
    pub exchange: Name,
    /// Where.
    pub place: TrackPlace,
    /// What is tracked there.
    pub switch: TrackSwitch,
}
