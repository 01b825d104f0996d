//! Data of collections: rows, the partition keys to which they belong, and the progress of each device.
//!
//! A row belongs to partition keys, and a device has some keys: it may see the rows that belong to one of its keys.
//! Each change of a row has a [`Stamp`], its position in the order of all changes, so that the changes for a device
//! are read from an index over key and stamp. The owners of keys are determined by the sync crate; here a key is a
//! number.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tocsin_model::{
    collection::Stamp,
    field::Fields,
    id::{Name, SubscriberId, SubscriberNumber},
    time::Timestamp,
};

/// A collection of an application, as a number.
pub type CollectionNumber = u32;
/// A partition key, as a number.
pub type KeyNumber = u32;
/// A device, as a number; 0 stands for writes through the API.
pub type DeviceNumber = u32;
/// The author of a version of a row: 0 for writes through the API, the number of the device for the first copy of its
/// replica, and a separate number, from [`FIRST_COPY_AUTHOR`] on, for each further copy.
pub type AuthorNumber = u32;

/// Authors with this number or above are further copies of a device's replica.
pub const FIRST_COPY_AUTHOR: AuthorNumber = 1 << 31;
/// Number of edit batches that are remembered for each author. An older batch that is sent again is applied again, as
/// the batch of a copy.
pub const BATCHES_KEPT: u32 = 16;
/// Number of edit batches that are remembered for each device, over all its authors.
pub const BATCHES_OF_DEVICE_MAX: u32 = 256;
/// Number of server periods that are remembered. A device whose cursor is of an older one reads all rows again.
pub const PERIODS_KEPT: usize = 10_000;

/// Number of key generations that are remembered for each device. A cursor of an older one has expired.
pub const GENERATIONS_KEPT: u32 = 8;
/// Maximum number of devices.
pub const DEVICES_MAX: usize = 100_000;

/// A stored row.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRow {
    /// The number of the row.
    pub number: i64,
    /// The collection.
    pub collection: CollectionNumber,
    /// The id in the collection.
    pub id: Box<str>,
    /// The last change of the content.
    pub version: Stamp,
    /// The last change of the content or of the keys.
    pub sequence: Stamp,
    /// The author of the version.
    pub author: AuthorNumber,
    /// The newest version that the author knew at that time.
    pub seen: Stamp,
    /// The content, a JSON object; `None` if the row was removed.
    pub body: Option<Box<str>>,
    /// The last author of each field that was not written by the author of the row: a JSON object.
    pub columns: Option<Box<str>>,
    /// The partition keys to which it belongs, ascending.
    pub keys: Vec<KeyNumber>,
}

/// A new state of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowWrite {
    /// The collection.
    pub collection: CollectionNumber,
    /// The id.
    pub id: Box<str>,
    /// See [`StoredRow`].
    pub body: Option<Box<str>>,
    /// See [`StoredRow`].
    pub author: AuthorNumber,
    /// See [`StoredRow`].
    pub seen: Stamp,
    /// See [`StoredRow`].
    pub columns: Option<Box<str>>,
    /// See [`StoredRow`]; ascending.
    pub keys: Vec<KeyNumber>,
    /// The rows that determine its keys.
    pub joins: Vec<(CollectionNumber, Box<str>)>,
}

/// Read position of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaCursor {
    /// The generation of its keys; 0: none yet.
    pub generation: u32,
    /// The device knows all changes of its keys up to this stamp.
    pub sequence: Stamp,
    /// Present while the device changes to another generation of keys.
    pub moving: Option<GenerationMove>,
}

/// Progress of the change to another generation of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationMove {
    /// The new generation.
    pub to: u32,
    /// The stamp of the device after the change.
    pub upto: Stamp,
    /// The current step.
    pub stage: MoveStage,
    /// The key that is being read, in steps that read one key after another.
    pub key: KeyNumber,
    /// The last change that was sent.
    pub after: Stamp,
}

/// Steps of a change of keys, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveStage {
    /// Removals of the rows of lost keys.
    Lost,
    /// Changes in the keys that stay.
    Kept,
    /// The rows of new keys.
    Gained,
}

impl ReplicaCursor {
    /// The newest stamp that a device with this cursor may know.
    pub fn newest(&self) -> Stamp {
        self.moving.map_or(self.sequence, |moving| self.sequence.max(moving.upto).max(moving.after))
    }

    /// The cursor of a device without data.
    pub const START: ReplicaCursor = ReplicaCursor { generation: 0, sequence: Stamp(0), moving: None };

    /// Whether all removals since this cursor are still known. For a first read, the end of the read counts.
    pub fn is_known_since(&self, forgotten: Stamp) -> bool {
        match self.moving {
            Some(moving) if self.generation == 0 => moving.upto >= forgotten,
            _ => self.sequence >= forgotten,
        }
    }

    /// The cursor of a device that begins to change to other keys.
    #[must_use]
    pub fn begin_move(self, to: u32, upto: Stamp) -> ReplicaCursor {
        let moving = GenerationMove { to, upto, stage: MoveStage::Lost, key: 0, after: Stamp(0) };
        ReplicaCursor { moving: Some(moving), ..self }
    }
}

/// A collection as a device reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadCollection {
    /// The name.
    pub name: Box<str>,
    /// The fields of the current version. Stored values of other fields or types are not sent.
    pub fields: Fields,
}

/// A request for a block of changes.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockRequest {
    /// The position of the device.
    pub cursor: ReplicaCursor,
    /// The collections to read.
    pub collections: HashMap<CollectionNumber, ReadCollection>,
    /// The keys of the device, or its keys after the change; ascending.
    pub held: Vec<KeyNumber>,
    /// The keys before the change; ascending. Empty if there is no change.
    pub held_before: Vec<KeyNumber>,
    /// Maximum number of rows.
    pub rows_max: usize,
    /// A block with this many bytes is complete.
    pub bytes_max: usize,
}

/// A block of changes for a device.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaBlock {
    /// A line for each row: `["collection","id",version,{...}]`, with `null` for a removed row.
    pub lines: Vec<u8>,
    /// Number of rows with content.
    pub rows: u64,
    /// Number of removed rows.
    pub removed: u64,
    /// The cursor of the device after this block.
    pub cursor: ReplicaCursor,
    /// Whether there are more changes.
    pub more: bool,
}

/// A device that has a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaDevice {
    /// The number of the device.
    pub number: DeviceNumber,
    /// The id, for people.
    pub id: Box<str>,
    /// The application whose collections it reads.
    pub application: Name,
    /// The owner.
    pub subscriber: SubscriberId,
    /// The number of the owner: a later subscriber with the same id has another number.
    pub subscriber_number: SubscriberNumber,
    /// The name chosen by the owner.
    pub name: String,
    /// The collections that it may read; `None`: all.
    pub collections: Option<Vec<Name>>,
    /// Whether it may send edits.
    pub may_write: bool,
    /// The hash of its token.
    pub hash: [u8; 32],
    /// The time of its creation.
    pub created_at: Timestamp,
    /// The end of its validity.
    pub expires_at: Option<Timestamp>,
    /// The time from which it must delete its data.
    pub wipe_at: Option<Timestamp>,
    /// The time at which it confirmed the deletion.
    pub wiped_at: Option<Timestamp>,
}

/// Read and write state of a device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceState {
    /// The newest generation of its keys, and the keys; ascending.
    pub generation: u32,
    /// See `generation`.
    pub keys: Vec<KeyNumber>,
    /// The last of its edits that was applied.
    pub uploaded: u64,
}

/// An edit batch of a device and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditBatch {
    /// The id.
    pub id: Box<str>,
    /// The author.
    pub author: AuthorNumber,
    /// The last edit that was applied.
    pub upto: u64,
    /// Whether it is the newest batch of its author.
    pub is_last: bool,
}

/// A point in the history of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPoint {
    /// The id of the period; empty for points from before periods had ids.
    pub period: Box<str>,
    /// The last stamp that was known.
    pub stamp: Stamp,
}

/// The periods of the server: their ids, each with the last stamp before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History(pub Vec<(Box<str>, Stamp)>);

impl History {
    /// The id of the current period.
    pub fn current(&self) -> &str {
        self.0.last().map_or("", |(id, _)| id)
    }

    /// Whether a point belongs to this history. It does not if the server was restored from a backup that is older
    /// than the point.
    pub fn contains(&self, point: &HistoryPoint, newest: Stamp) -> bool {
        let follower = match self.0.iter().position(|(id, _)| *id == point.period) {
            Some(at) => at + 1,
            None if point.period.is_empty() => 0,
            None => return false,
        };
        let end = self.0.get(follower).map_or(newest, |(_, began)| *began);
        point.stamp <= end
    }
}

/// A conflict of edits.
#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    /// The number of the conflict.
    pub number: u64,
    /// The collection.
    pub collection: CollectionNumber,
    /// The row.
    pub row: Box<str>,
    /// The time.
    pub at: Timestamp,
    /// The device whose edit came second.
    pub device: DeviceNumber,
    /// The rule that decided.
    pub resolver: Box<str>,
    /// The edit that was kept: `server`, `client` or `both`.
    pub winner: Box<str>,
    /// The fields that the device edited, as they were before; JSON.
    pub base: Box<str>,
    /// The content on the server; JSON, `null` if the row was removed.
    pub server: Box<str>,
    /// The edit of the device; JSON, `null` if it removed the row.
    pub client: Box<str>,
    /// The time at which the losing edit was applied after all.
    pub reverted_at: Option<Timestamp>,
}

/// A session that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct PastSession {
    /// The device.
    pub device: DeviceNumber,
    /// The times of its begin and its end.
    pub began_at: Timestamp,
    /// See `began_at`.
    pub ended_at: Timestamp,
    /// The outcome: `done`, `ended` by another session or an operator, or `lost` if the device did not return.
    pub outcome: Box<str>,
    /// Counts of the session.
    pub tally: SessionCounts,
}

/// Counts of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionCounts {
    /// Edits that were applied.
    pub edits: u64,
    /// Edits with a conflict.
    pub conflicts: u64,
    /// Edits that were refused.
    pub refused: u64,
    /// Rows that were sent.
    pub rows: u64,
    /// Removals that were sent.
    pub removed: u64,
    /// Bytes received, as transmitted.
    pub bytes_up: u64,
    /// Bytes sent, as transmitted.
    pub bytes_down: u64,
    /// Milliseconds spent in queues.
    pub waited_ms: u64,
}

/// Counts of all rows. Cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CollectionCounts {
    /// Rows with content.
    pub rows: u64,
    /// Removed rows that are still recorded.
    pub removed: u64,
    /// Events of changes that were not accepted yet.
    pub raised: u64,
}

/// Maximum number of events of row changes that were not accepted yet; above it, changes that raise more are refused.
pub const RAISED_MAX: u64 = 1_000_000;

/// An event raised by a change of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaisedEvent {
    /// The stamp of the change.
    pub stamp: Stamp,
    /// The class of the event.
    pub class: Name,
    /// The event, as a JSON object.
    pub event: Box<str>,
}
