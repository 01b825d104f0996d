//! Messages of the synchronisation protocol between devices and the server: request and response bodies, and the
//! lines of blocks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::{
    collection::{Direction, Stamp},
    field::FieldType,
    id::Name,
    json::{self, VALUES_MAX},
    problem::{Code, Problem},
};

/// Most edits of an uploaded block.
pub const EDITS_MAX: usize = 2_000;
/// Most bytes of an uploaded block, uncompressed.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;
/// Most bytes of a row as JSON.
pub const ROW_BYTES_MAX: usize = 256 << 10;
/// Most characters of an edit batch id.
pub const BATCH_CHARS_MAX: usize = 64;

/// Request of a device to begin a session.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Begin {
    /// The cursor that it has reached; `None`: it has no rows, or wants all rows again.
    pub cursor: Option<String>,
    /// Whether it has dropped all rows, as the server asked.
    pub wiped: bool,
    /// State of its edit log. A client of the first version of the protocol sends none, and counts its edits without
    /// batches.
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

/// Response to a device that begins a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BeginResponse {
    /// Its session.
    pub session: String,
    /// The last stored edit; the device sends later ones. For a client that numbers its edits in batches: the last
    /// one of the batch that it named, 0 if that batch is unknown.
    pub uploaded: u64,
    /// Whether it gets all rows again: after the last block it drops all rows that it did not get.
    pub anew: bool,
    /// The cursor to continue from.
    pub cursor: String,
    /// Whether it must drop all rows; it gets nothing else.
    pub wipe: bool,
    /// The collections that it may use.
    pub collections: Vec<CollectionShape>,
    /// The server was restored from a backup that is older than the point which the device knows. The batches that the server
    /// has, each with the last edit of it; the device sends all later ones again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Vec<(String, u64)>>,
}

/// Shape of a collection for a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectionShape {
    /// Its name.
    pub name: Name,
    /// Its fields.
    pub fields: Vec<FieldShape>,
    /// Direction of replication.
    pub direction: Direction,
}

/// Shape of a field for a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldShape {
    /// Its name.
    pub name: Name,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: FieldType,
}

/// An edit of a device: a line of an uploaded block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// Its number: each device counts its edits from 1, without gaps. A repeated edit is ignored.
    pub n: u64,
    /// Its batch. Edits without one come from a client of the first version of the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// The collection.
    pub collection: Name,
    /// The row.
    pub id: String,
    /// The base version of the row; 0 if there was none.
    #[serde(default)]
    pub base: Stamp,
    /// The newest stamp that the device had received when the edit was made.
    #[serde(default)]
    pub seen: Stamp,
    /// The changed fields; `null` clears one. `None` removes the row; it is written as `null`, and
    /// the member is required.
    #[serde(deserialize_with = "present_members")]
    pub set: Option<Map<String, Json>>,
    /// The previous values of these fields.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub was: Map<String, Json>,
}

/// A value that must be present, although it may be null: a missing member must not remove a row.
fn present_members<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Map<String, Json>>, D::Error> {
    Option::deserialize(deserializer)
}

/// Result of an uploaded block.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Uploaded {
    /// The last stored edit.
    pub uploaded: u64,
    /// Number of edits that were applied.
    pub applied: u64,
    /// Edits that conflicted, and were rejected or merged.
    pub conflicts: Vec<Met>,
    /// Invalid edits, or edits with invalid fields.
    pub refused: Vec<Refused>,
    /// The point in the server's history after this block; empty for a client of the first version of the protocol.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub point: String,
}

/// An edit that conflicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Met {
    /// The edit.
    pub n: u64,
    /// Side whose edit was kept.
    pub winner: Winner,
}

/// Winner of a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Winner {
    /// The device.
    Client,
    /// The server.
    Server,
    /// Both were merged.
    Both,
}

impl Winner {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Winner::Client => "client",
            Winner::Server => "server",
            Winner::Both => "both",
        }
    }
}

/// An invalid edit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The edit.
    pub n: u64,
    /// The problems.
    pub problems: Vec<Problem>,
}

/// A downloaded row: collection, id, version, and fields; without fields it was removed.
pub type RowLine = (Name, String, Stamp, Option<Map<String, Json>>);

/// The last line of a downloaded block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockEnd {
    /// The cursor after this block.
    pub cursor: String,
    /// The stamp up to which the device has all rows, if there is no more.
    pub seen: Stamp,
    /// Whether there is more.
    pub more: bool,
}

/// A line of an uploaded block.
#[derive(Debug, Clone, PartialEq)]
pub enum SentEdit {
    /// It can be read.
    Edit(Edit),
    /// Unreadable except for its number. It is refused, without effect on the other edits of its block.
    Unreadable(UnreadableEdit),
}

/// An unreadable edit.
#[derive(Debug, Clone, PartialEq)]
pub struct UnreadableEdit {
    /// Its number.
    pub n: u64,
    /// Its batch.
    pub batch: Option<String>,
    /// The problem.
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

/// Parses the lines of an uploaded block, up to [`EDITS_MAX`].
///
/// # Errors
/// A line has no readable number, or there are too many.
pub fn read_edits(lines: &[u8]) -> Result<Vec<SentEdit>, Vec<Problem>> {
    /// Members of an unreadable edit. Other fields are ignored, valid or not.
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
            let problem = |error: serde_json::Error| Problem::syntax("json", "", format!("is not an edit: {error}"));
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
            return Err(vec![
                Problem::new(Code::TooMany, "", format!("has more than {EDITS_MAX} edits")).param("limit", EDITS_MAX),
            ]);
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
        check(br#"{"n": 1, "collection": "notes", "id": "a"}"#);
        check(b"{\"n\": 1, \"collection\": \"notes\", \"id\": \"a\", \"set\": {\"text\": \"\xff\"}}");
        assert!(read_edits(b"{\"n\": 1").is_err());
        assert!(read_edits(b"{\"n\": -1, \"id\": \"a\"}").is_err());
    }
}
