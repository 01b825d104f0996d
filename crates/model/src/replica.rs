//! What devices and the server say to each other about rows: the bodies of the protocol of sync, and the lines of its blocks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::{
    collection::{Direction, Stamp},
    field::FieldType,
    id::Name,
    problem::Problem,
};

/// Edits of a block that is sent up, at most.
pub const EDITS_MAX: usize = 2_000;
/// Bytes of a block that is sent up, unpacked, at most.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;
/// Bytes of a row as JSON, at most.
pub const ROW_BYTES_MAX: usize = 256 << 10;

/// A device begins.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Begin {
    /// How far it has read; `None`: it has nothing, or wants all anew.
    pub cursor: Option<String>,
    /// It has dropped all that it had, as it was told.
    pub wiped: bool,
}

/// What a device that begins is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// Its session.
    pub session: String,
    /// The last of its edits that was taken in; it sends those behind it.
    pub uploaded: u64,
    /// Whether it is told all rows anew: after the last block it drops those that it was not told.
    pub anew: bool,
    /// Where it goes on reading.
    pub cursor: String,
    /// Whether it is to drop all that it has; it gets nothing else.
    pub wipe: bool,
    /// The collections that it may use.
    pub collections: Vec<CollectionShape>,
}

/// What a device knows of a collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectionShape {
    /// Its name.
    pub name: Name,
    /// Its fields.
    pub fields: Vec<FieldShape>,
    /// Which way its rows go.
    pub direction: Direction,
}

/// What a device knows of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldShape {
    /// Its name.
    pub name: Name,
    /// What it holds.
    #[serde(rename = "type")]
    pub kind: FieldType,
}

/// An edit of a device: a line of a block that is sent up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// Its number: each device counts its edits from 1, without gaps. One that came before is not taken in again.
    pub n: u64,
    /// The collection.
    pub collection: Name,
    /// The row.
    pub id: String,
    /// The version of the row that it was made on; 0 if there was none.
    #[serde(default)]
    pub base: Stamp,
    /// What its author knew: the newest stamp that the device had been told.
    #[serde(default)]
    pub seen: Stamp,
    /// The fields that it changes; `null` empties one. `None`: it removes the row.
    #[serde(default)]
    pub set: Option<Map<String, Json>>,
    /// What these fields were before.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub was: Map<String, Json>,
}

/// What became of a block that was sent up.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Uploaded {
    /// The last edit that was taken in.
    pub uploaded: u64,
    /// Edits that stay.
    pub applied: u64,
    /// Those that met others, and did not stay or not as they were.
    pub conflicts: Vec<Met>,
    /// Those that cannot be.
    pub refused: Vec<Refused>,
}

/// An edit that met another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Met {
    /// The edit.
    pub n: u64,
    /// Whose edit stayed.
    pub winner: Winner,
}

/// Whose edit stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Winner {
    /// That of the device.
    Client,
    /// What the server had.
    Server,
    /// They were put together.
    Both,
}

impl Winner {
    /// Its one spelling.
    pub fn word(self) -> &'static str {
        match self {
            Winner::Client => "client",
            Winner::Server => "server",
            Winner::Both => "both",
        }
    }
}

/// An edit that cannot be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The edit.
    pub n: u64,
    /// Why.
    pub problems: Vec<Problem>,
}

/// A row as it is sent down: collection, id, version, and what it says; without that it is gone.
pub type RowLine = (Name, String, Stamp, Option<Map<String, Json>>);

/// The last line of a block that is sent down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockEnd {
    /// How far the device has read with this block.
    pub cursor: String,
    /// The stamp up to which it knows all rows, if there is no more.
    pub seen: Stamp,
    /// Whether there is more.
    pub more: bool,
}
