//! What was edited becomes edits: numbered, sent in order, and kept until the server has them.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension};
use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::Stamp,
    field::FieldType,
    replica::{BLOCK_BYTES_MAX, CollectionShape, EDITS_MAX, Edit, Uploaded},
};

use crate::{Replica, ReplicaError, schema};

impl Replica {
    /// Makes numbered edits of what was edited. From now on they do not change; what is edited later is another edit.
    pub(crate) fn number_edits(&self) -> Result<(), ReplicaError> {
        // A number that the server saw must not be given to another edit after a power cut.
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction = self.writing()?;
        let shapes: HashMap<String, CollectionShape> =
            self.shapes()?.into_iter().map(|shape| (shape.name.to_string(), shape)).collect();
        for (collection, row, was, base, seen) in pending(&transaction)? {
            let Some(shape) = shapes.get(&collection) else { continue };
            let (was, is) = (was.map(|text| fields_of(shape, &text)), cells(&transaction, shape, &row)?);
            if let Some((set, was)) = difference(shape, was.as_ref(), is.as_ref()) {
                let n: u64 =
                    transaction
                        .query_row("UPDATE _replica SET last = last + 1 RETURNING last", (), |row| row.get(0))?;
                let edit = Edit { n, collection: shape.name.clone(), id: row.clone(), base, seen, set, was };
                let text = serde_json::to_string(&edit).expect("an edit is JSON");
                transaction.execute("INSERT INTO _outbox VALUES (?1, ?2, ?3, ?4)", (n, &collection, &row, text))?;
            }
            transaction.execute("DELETE FROM _pending WHERE collection = ?1 AND row = ?2", (&collection, &row))?;
        }
        transaction.commit()?;
        Ok(self.connection.pragma_update(None, "synchronous", "NORMAL")?)
    }

    /// The lines of the next block to send, and how many edits are in it; empty if there is none.
    pub(crate) fn next_block(&self) -> Result<(Vec<u8>, u64), ReplicaError> {
        let mut statement = self.connection.prepare_cached("SELECT edit FROM _outbox ORDER BY n LIMIT ?1")?;
        let mut rows = statement.query((EDITS_MAX / 4,))?;
        let (mut lines, mut edits) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            let edit = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            if edits > 0 && lines.len() + edit.len() > BLOCK_BYTES_MAX / 4 {
                break;
            }
            lines.extend_from_slice(edit.as_bytes());
            lines.push(b'\n');
            edits += 1;
        }
        Ok((lines, edits))
    }

    /// Notes what the server has. A file that was put back to an earlier state counts on from there.
    pub(crate) fn acknowledge(&self, uploaded: u64) -> Result<(), ReplicaError> {
        let transaction = self.writing()?;
        transaction.execute("DELETE FROM _outbox WHERE n <= ?1", (uploaded,))?;
        transaction.execute("UPDATE _replica SET last = ?1 WHERE last < ?1", (uploaded,))?;
        Ok(transaction.commit()?)
    }

    /// Notes what became of a block.
    pub(crate) fn note_outcome(&self, outcome: &Uploaded) -> Result<(), ReplicaError> {
        for refused in &outcome.refused {
            let why: Vec<String> = refused.problems.iter().map(ToString::to_string).collect();
            let sql = "INSERT OR REPLACE INTO _refused SELECT n, collection, row, ?2 FROM _outbox WHERE n = ?1";
            self.connection.execute(sql, (refused.n, why.join("; ")))?;
        }
        self.acknowledge(outcome.uploaded)
    }
}

/// A row that was edited: its collection, its id, what it said before, on which version and knowing what.
type Pending = (String, String, Option<String>, Stamp, Stamp);

/// In the order in which rows were edited first, so that what others are shared through is there before them.
fn pending(connection: &Connection) -> Result<Vec<Pending>, ReplicaError> {
    let mut statement =
        connection.prepare_cached("SELECT collection, row, was, base, seen FROM _pending ORDER BY rowid")?;
    let rows = statement
        .query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, Stamp(row.get(3)?), Stamp(row.get(4)?))))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// What a row says now; `None` if it is not there.
fn cells(
    connection: &Connection,
    shape: &CollectionShape,
    row: &str,
) -> Result<Option<Map<String, Json>>, ReplicaError> {
    let sql =
        format!("SELECT {} FROM {} WHERE id = ?1", schema::object_of(shape, ""), schema::quoted(shape.name.as_str()));
    let text: Option<String> = connection.prepare_cached(&sql)?.query_row((row,), |row| row.get(0)).optional()?;
    Ok(text.map(|text| fields_of(shape, &text)))
}

/// Cells of SQLite as values of the fields.
fn fields_of(shape: &CollectionShape, text: &str) -> Map<String, Json> {
    let mut cells: Map<String, Json> = serde_json::from_str(text).unwrap_or_default();
    let fields = shape.fields.iter().filter_map(|field| {
        let value = match (field.kind, cells.remove(field.name.as_str())?) {
            (FieldType::Boolean, Json::Number(number)) => Json::Bool(number.as_i64() != Some(0)),
            (FieldType::List | FieldType::Map, Json::String(text)) => {
                serde_json::from_str(&text).unwrap_or(Json::String(text))
            }
            (_, value) => value,
        };
        Some((field.name.to_string(), value))
    });
    fields.collect()
}

type Changes = (Option<Map<String, Json>>, Map<String, Json>);

/// What an edit sets and what that was; `None` if nothing changed.
fn difference(
    shape: &CollectionShape,
    was: Option<&Map<String, Json>>,
    is: Option<&Map<String, Json>>,
) -> Option<Changes> {
    match (was, is) {
        (None, None) => None,
        (None, Some(is)) => Some((Some(present(is)), Map::new())),
        (Some(was), None) => Some((None, present(was))),
        (Some(was), Some(is)) => {
            let (mut set, mut before) = (Map::new(), Map::new());
            for field in &shape.fields {
                let name = field.name.as_str();
                let (old, new) = (was.get(name).unwrap_or(&Json::Null), is.get(name).unwrap_or(&Json::Null));
                if old != new {
                    set.insert(name.to_owned(), new.clone());
                    before.insert(name.to_owned(), old.clone());
                }
            }
            (!set.is_empty()).then_some((Some(set), before))
        }
    }
}

/// Without the fields that are null.
fn present(fields: &Map<String, Json>) -> Map<String, Json> {
    fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone())).collect()
}
