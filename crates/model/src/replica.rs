//! What devices and the server say to each other about rows: the bodies of the protocol of sync, and the lines of its blocks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::{
    collection::{Direction, Stamp},
    field::FieldType,
    id::Name,
    json::{self, VALUES_MAX},
    problem::Problem,
};

/// Edits of a block that is sent up, at most.
pub const EDITS_MAX: usize = 2_000;
/// Bytes of a block that is sent up, unpacked, at most.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;
/// Bytes of a row as JSON, at most.
pub const ROW_BYTES_MAX: usize = 256 << 10;
/// Characters of the id of a batch of edits, at most.
pub const BATCH_CHARS_MAX: usize = 64;

/// A device begins.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Begin {
    /// How far it has read; `None`: it has nothing, or wants all anew.
    pub cursor: Option<String>,
    /// It has dropped all that it had, as it was told.
    pub wiped: bool,
    /// Its log of edits. A client of the first version of the protocol sends none, and counts its edits without batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edits: Option<EditLog>,
}

/// The state of a device's log of edits.
///
/// Edits are numbered in batches. The id of a batch is random and new each time, so two copies of one replica never use the same
/// id for different edits. The order of the batches is the lineage of the copy: the server detects a copy that was put back to an
/// earlier state, and a second copy, because both continue at a batch that another batch already follows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EditLog {
    /// The last batch of this copy that the server confirmed as a whole.
    pub after: Option<String>,
    /// The batch of the first edit that the server did not confirm.
    pub batch: Option<String>,
    /// The point in the server's history that was confirmed last.
    pub point: Option<String>,
}

/// What a device that begins is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// Its session.
    pub session: String,
    /// The last of its edits that was taken in; it sends those behind it. For a client that numbers its edits in batches: the
    /// last one of the batch that it named, 0 if that batch is not known.
    pub uploaded: u64,
    /// Whether it is told all rows anew: after the last block it drops those that it was not told.
    pub anew: bool,
    /// Where it goes on reading.
    pub cursor: String,
    /// Whether it is to drop all that it has; it gets nothing else.
    pub wipe: bool,
    /// The collections that it may use.
    pub collections: Vec<CollectionShape>,
    /// The server was restored from a backup that is older than the point which the device knows. The batches that the server
    /// has, each with the last edit of it; the device sends all later ones again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Vec<(String, u64)>>,
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
    /// Its batch. Edits without one are of a client of the first version of the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
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
    /// The edits that cannot be, or of which some fields cannot be.
    pub refused: Vec<Refused>,
    /// The point in the server's history behind this block; empty for a client of the first version of the protocol.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub point: String,
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

/// An edit as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub enum SentEdit {
    /// It can be read.
    Edit(Edit),
    /// It cannot be read, but its number can. It is refused, and the others of its block are not concerned.
    Unreadable(UnreadableEdit),
}

/// An edit that cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub struct UnreadableEdit {
    /// Its number.
    pub n: u64,
    /// Its batch.
    pub batch: Option<String>,
    /// Why it cannot be read.
    pub problem: Problem,
}

impl SentEdit {
    /// Its number.
    pub fn n(&self) -> u64 {
        match self {
            SentEdit::Edit(edit) => edit.n,
            SentEdit::Unreadable(edit) => edit.n,
        }
    }

    /// Its batch.
    pub fn batch(&self) -> Option<&str> {
        match self {
            SentEdit::Edit(edit) => edit.batch.as_deref(),
            SentEdit::Unreadable(edit) => edit.batch.as_deref(),
        }
    }
}

/// Reads the lines of a block of edits, up to [`EDITS_MAX`].
///
/// # Errors
/// A line has no number that can be read, or there are too many.
pub fn read_edits(lines: &[u8]) -> Result<Vec<SentEdit>, Vec<Problem>> {
    /// The parts of a line that is no edit. Numbers and texts of other fields are passed over, valid or not.
    #[derive(Deserialize)]
    struct Numbered {
        n: u64,
        #[serde(default)]
        batch: Option<String>,
    }
    let mut edits = Vec::new();
    for (at, line) in lines.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let number = u32::try_from(at + 1).unwrap_or(u32::MAX);
        let read = json::check(line, VALUES_MAX).and_then(|_| {
            let problem = |error: serde_json::Error| Problem::at("", format!("is not an edit: {error}"));
            serde_json::from_slice::<Edit>(line).map_err(problem)
        });
        edits.push(match read.map_err(|problem| problem.position(number, 1)) {
            Ok(edit) => SentEdit::Edit(edit),
            Err(problem) => match serde_json::from_slice::<Numbered>(line) {
                Ok(Numbered { n, batch }) => SentEdit::Unreadable(UnreadableEdit { n, batch, problem }),
                Err(_) => return Err(vec![problem]),
            },
        });
        if edits.len() > EDITS_MAX {
            return Err(vec![Problem::at("", format!("has more than {EDITS_MAX} edits"))]);
        }
    }
    Ok(edits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b5_an_edit_that_cannot_be_read_stops_no_other() {
        let check = |line: &[u8]| {
            let mut lines = line.to_vec();
            lines.extend_from_slice(b"\n{\"n\": 2, \"collection\": \"notes\", \"id\": \"a\", \"set\": {}}\n");
            let edits = read_edits(&lines).expect("numbers");
            assert!(matches!(&edits[..], [SentEdit::Unreadable(bad), SentEdit::Edit(_)] if bad.n == 1), "{edits:?}");
        };
        check(br#"{"n": 1, "collection": "notes", "id": "a", "set": {"text": "\ud800"}}"#);
        check(br#"{"n": 1, "collection": "notes", "id": "a", "set": {"share": 1e999}}"#);
        check(br#"{"n": 1, "collection": "no name", "id": "a", "set": {}}"#);
        check(br#"{"n": 1, "collection": "notes", "id": 7, "set": {}}"#);
        check(br#"{"n": 1, "collection": "notes", "id": "a", "set": 7}"#);
        check(b"{\"n\": 1, \"collection\": \"notes\", \"id\": \"a\", \"set\": {\"text\": \"\xff\"}}");
        assert!(read_edits(b"{\"n\": 1").is_err());
        assert!(read_edits(b"{\"n\": -1, \"id\": \"a\"}").is_err());
    }
}
