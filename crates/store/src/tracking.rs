//! Tracking data of the messages of exchanges, stored separately from the messages: their bodies at points of their
//! path, and the properties by which they are found.
//!
//! Nothing waits for tracking and nothing else depends on it: it may lag a little behind the spool, and a power
//! failure may lose its last entries.

pub(crate) mod bodies; // tracked bodies and properties
pub(crate) mod packing; // binary format of entries

use tocsin_model::{
    exchange::{TrackPlace, TrackSwitch},
    id::{MessageId, Name},
    time::Timestamp,
};

pub use bodies::{BodyChange, IndexedProperties, TrackedBody};
pub use packing::{PackedBodies, Packer, PlainBodies};

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
