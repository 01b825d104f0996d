//! What is kept of collections: rows, whose they are, and how far each device has read them.
//!
//! A row belongs to partition keys, and a device holds some: what it may see are the rows that belong to one of its keys. Each
//! change of a row has a [`Stamp`], its place in the order of all changes, so that what is new for a device is read from an index
//! over key and stamp. Who has which key is worked out above; here a key is a number.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tocsin_model::{
    collection::Stamp,
    id::{Name, SubscriberId, SubscriberNumber},
    time::Timestamp,
};

/// A collection of an application, as a number.
pub type CollectionNumber = u32;
/// A partition key, as a number.
pub type KeyNumber = u32;
/// A device, as a number; 0 stands for writes over the API.
pub type DeviceNumber = u32;
/// The author of a version of a row: 0 for writes over the API, the number of a device for the first copy of its replica, and a
/// number of its own, from [`FIRST_COPY_AUTHOR`] on, for each further copy.
pub type AuthorNumber = u32;

/// Authors from here on are further copies of a device's replica.
pub const FIRST_COPY_AUTHOR: AuthorNumber = 1 << 31;
/// Batches of edits that are remembered of an author. An older batch that arrives again is taken in again, as a copy's.
pub const BATCHES_KEPT: u32 = 16;
/// Batches of edits that are remembered of a device, over all its authors.
pub const BATCHES_OF_DEVICE_MAX: u32 = 256;
/// Periods of the server that are remembered. A device whose cursor is of an older one reads all rows anew.
pub const PERIODS_KEPT: usize = 10_000;

/// Generations of a device's keys that are remembered. A cursor of an older one has expired.
pub const GENERATIONS_KEPT: u32 = 8;
/// Devices, at most.
pub const DEVICES_MAX: usize = 100_000;

/// A row as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRow {
    /// Its number.
    pub number: i64,
    /// Its collection.
    pub collection: CollectionNumber,
    /// Its id in the collection.
    pub id: Box<str>,
    /// When what it says last changed.
    pub version: Stamp,
    /// When it, or whose it is, last changed.
    pub sequence: Stamp,
    /// Whose edit made the version.
    pub author: AuthorNumber,
    /// What the author knew then.
    pub seen: Stamp,
    /// What it says, a JSON object; `None`: it was removed.
    pub body: Option<Box<str>>,
    /// Who last wrote which field, where that was not the author of the row: a JSON object.
    pub columns: Option<Box<str>>,
    /// The partition keys that it belongs to, ascending.
    pub keys: Vec<KeyNumber>,
}

/// What a row becomes.
#[derive(Debug, Clone, PartialEq)]
pub struct RowWrite {
    /// Its collection.
    pub collection: CollectionNumber,
    /// Its id.
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
    /// The rows through which it is shared.
    pub joins: Vec<(CollectionNumber, Box<str>)>,
}

/// How far a device has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The generation of keys that it holds; 0: none yet.
    pub generation: u32,
    /// It knows all changes of its keys up to here.
    pub sequence: Stamp,
    /// While its keys become others.
    pub moving: Option<Moving>,
}

/// How far the move to another generation of keys has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// The new generation.
    pub to: u32,
    /// Where the device will stand after it.
    pub upto: Stamp,
    /// What is being told.
    pub stage: Stage,
    /// The key that is read, where keys are read one after the other.
    pub key: KeyNumber,
    /// The last change that was told.
    pub after: Stamp,
}

/// What is told while keys become others, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// What rows go with the keys that are lost.
    Lost,
    /// What changed of those that stay.
    Kept,
    /// What rows come with those that are new.
    Gained,
}

impl Place {
    /// The newest stamp that a device at this place may know of.
    pub fn newest(&self) -> Stamp {
        self.moving.map_or(self.sequence, |moving| self.sequence.max(moving.upto).max(moving.after))
    }

    /// That of a device which has nothing.
    pub const NOWHERE: Place = Place { generation: 0, sequence: Stamp(0), moving: None };

    /// It is known what was removed since. That of a first reading is its end.
    pub fn is_known_since(&self, forgotten: Stamp) -> bool {
        match self.moving {
            Some(moving) if self.generation == 0 => moving.upto >= forgotten,
            _ => self.sequence >= forgotten,
        }
    }

    /// The place at which a device begins to take over other keys.
    #[must_use]
    pub fn begin_move(self, to: u32, upto: Stamp) -> Place {
        let moving = Moving { to, upto, stage: Stage::Lost, key: 0, after: Stamp(0) };
        Place { moving: Some(moving), ..self }
    }
}

/// What a device wants to read.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Where it stands.
    pub place: Place,
    /// The collections that it reads, with their names.
    pub collections: HashMap<CollectionNumber, Box<str>>,
    /// The keys that it holds, or will hold after the move; ascending.
    pub held: Vec<KeyNumber>,
    /// The keys that it held before the move; ascending. Empty where there is none.
    pub held_before: Vec<KeyNumber>,
    /// Rows of a block, at most.
    pub rows_max: usize,
    /// A block that has this many bytes is full.
    pub bytes_max: usize,
}

/// A part of what a device wants to read.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// A line for each row: `["collection","id",version,{...}]`, with `null` for one that is gone.
    pub lines: Vec<u8>,
    /// Rows that are there.
    pub rows: u64,
    /// Rows that are gone.
    pub removed: u64,
    /// Where the device stands after it.
    pub place: Place,
    /// Whether there is more.
    pub more: bool,
}

/// A device that keeps a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaDevice {
    /// Its number.
    pub number: DeviceNumber,
    /// Its id, for people.
    pub id: Box<str>,
    /// The application whose collections it reads.
    pub application: Name,
    /// Whose it is.
    pub subscriber: SubscriberId,
    /// The number of that subscriber: another one of the same id is somebody else.
    pub subscriber_number: SubscriberNumber,
    /// What its owner calls it.
    pub name: String,
    /// The collections that it may read; `None`: all.
    pub collections: Option<Vec<Name>>,
    /// Whether it may send edits.
    pub may_write: bool,
    /// Of its token.
    pub hash: [u8; 32],
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
    /// Since when it is to drop all that it has.
    pub wipe_at: Option<Timestamp>,
    /// When it told that it did.
    pub wiped_at: Option<Timestamp>,
}

/// What is known of a device's reading and writing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceState {
    /// The newest generation of its keys, and these; ascending.
    pub generation: u32,
    /// See `generation`.
    pub keys: Vec<KeyNumber>,
    /// The last of its edits that was taken in.
    pub uploaded: u64,
}

/// A batch of edits of a device, as far as it was taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditBatch {
    /// Its id.
    pub id: Box<str>,
    /// The writer.
    pub author: AuthorNumber,
    /// The last edit that was taken in.
    pub upto: u64,
    /// Whether no other batch of its author came after it.
    pub is_last: bool,
}

/// A point in the history of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPoint {
    /// The id of the period; empty: before periods were numbered.
    pub period: Box<str>,
    /// The last stamp that was known.
    pub stamp: Stamp,
}

/// The periods of the server: their ids, each with the last stamp before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History(pub Vec<(Box<str>, Stamp)>);

impl History {
    /// The id of the period of now.
    pub fn current(&self) -> &str {
        self.0.last().map_or("", |(id, _)| id)
    }

    /// Whether a point is of this history. It is not if the server was restored from a backup that is older than the point.
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

/// Edits that met.
#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    /// Its number.
    pub number: u64,
    /// Its collection.
    pub collection: CollectionNumber,
    /// The row.
    pub row: Box<str>,
    /// When.
    pub at: Timestamp,
    /// The device whose edit came second.
    pub device: DeviceNumber,
    /// What decided.
    pub resolver: Box<str>,
    /// Whose edit stayed: `server`, `client` or `both`.
    pub winner: Box<str>,
    /// What the row said when the device edited it, as far as it edited; JSON.
    pub base: Box<str>,
    /// What the row said; JSON, `null` if it was gone.
    pub server: Box<str>,
    /// What the device wanted; JSON, `null` if it removed the row.
    pub client: Box<str>,
    /// When what had lost was put in place.
    pub reverted_at: Option<Timestamp>,
}

/// A session that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct PastSession {
    /// The device.
    pub device: DeviceNumber,
    /// When it began and ended.
    pub began_at: Timestamp,
    /// See `began_at`.
    pub ended_at: Timestamp,
    /// How: `done`, `ended` by somebody, or `lost` when the device did not come back.
    pub outcome: Box<str>,
    /// What it carried.
    pub tally: Tally,
}

/// What a session carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Edits that were taken in.
    pub edits: u64,
    /// Those that met others.
    pub conflicts: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Rows that were sent.
    pub rows: u64,
    /// Those that were told to be gone.
    pub removed: u64,
    /// Bytes that came, as they came.
    pub bytes_up: u64,
    /// Bytes that were sent, as they were sent.
    pub bytes_down: u64,
    /// Milliseconds in queues.
    pub waited_ms: u64,
}

/// How much there is. Cheap to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CollectionCounts {
    /// Rows that are there.
    pub rows: u64,
    /// Rows of which is only known that they are gone.
    pub removed: u64,
    /// Events of changes that wait to be taken in.
    pub raised: u64,
}

/// Events of changes of rows that may wait to be taken in; beyond that, changes that raise more are refused.
pub const RAISED_MAX: u64 = 1_000_000;

/// An event that a change of a row raised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaisedEvent {
    /// The stamp of the change.
    pub stamp: Stamp,
    /// The class of the event.
    pub class: Name,
    /// What it says, as a JSON object.
    pub event: Box<str>,
}
