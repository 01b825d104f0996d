//! Outbox of edits: numbered in batches, sent in order, and kept until the server confirms them.
//!
//! Batch ids are random, so a copied or restored file never reuses the number of another edit. A cell that its field
//! cannot hold is set aside with the reason; the other fields and rows are sent.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, types::Value as Cell};
use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::{ROW_ID_CHARS_MAX, Stamp},
    replica::{BLOCK_BYTES_MAX, CollectionShape, EDITS_MAX, Edit, EditLog, ROW_BYTES_MAX, Uploaded},
};

use crate::{
    Replica, ReplicaError,
    cells::{shown, value_of},
    schema::{self, BEFORE_EDIT},
};

/// Confirmed edits that are kept, to send them again if the server is restored from a backup.
const SENT_KEPT: u64 = 5_000;
/// Maximum bytes of these.
const SENT_BYTES_KEPT: u64 = 8 << 20;
/// Maximum rejected edits that are kept; the oldest are dropped.
const REFUSED_KEPT: u64 = 1_000;

impl Replica {
    /// The state of the outbox, for the server.
    pub(crate) fn edit_log(&self) -> Result<EditLog, ReplicaError> {
        let sql = "SELECT after, (SELECT batch FROM _outbox ORDER BY n LIMIT 1), point FROM _replica";
        let read = |row: &rusqlite::Row<'_>| Ok(EditLog { after: row.get(0)?, batch: row.get(1)?, point: row.get(2)? });
        Ok(self.connection.query_row(sql, (), read)?)
    }

    /// Whether there are edits numbered by a version without batches.
    pub(crate) fn has_unbatched(&self) -> Result<bool, ReplicaError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM _outbox WHERE batch IS NULL)";
        Ok(self.connection.query_row(sql, (), |row| row.get(0))?)
    }

    /// Makes a numbered batch of the pending edits. It does not change afterwards; later changes are new edits. Returns
    /// how many edits or fields were set aside because they cannot be sent.
    pub(crate) fn number_edits(&self) -> Result<u64, ReplicaError> {
        // A number that the server saw must not be reused after a power failure.
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction = self.write_transaction()?;
        let shapes: HashMap<String, CollectionShape> =
            self.shapes()?.into_iter().map(|shape| (shape.name.to_string(), shape)).collect();
        for shape in shapes.values() {
            record_unseen_removals(&transaction, shape)?;
        }
        let mut set_aside = drop_unreadable_ids(&transaction, &shapes)?;
        let batch = random_id(&transaction)?;
        for PendingEdit { collection, row, existed, base, seen } in pending(&transaction)? {
            let Some(shape) = shapes.get(&collection) else { continue };
            let was = if existed { cells_before(&transaction, shape, &row)? } else { None };
            let is = cells(&transaction, shape, &row)?;
            let difference = match check_row_id(&row) {
                Some(why) if is.is_some() => Difference { change: None, refused: vec![RefusedCell::row(why)] },
                _ => Difference::of(shape, was, is),
            };
            if let Some((set, _)) = &difference.change {
                clear_refused(&transaction, &collection, &row, set.as_ref())?;
            }
            record_refused(&transaction, &collection, &row, None, &difference.refused)?;
            set_aside += difference.refused.len() as u64;
            if let Some((set, was)) = difference.change {
                let n: u64 =
                    transaction
                        .query_row("UPDATE _replica SET last = last + 1 RETURNING last", (), |row| row.get(0))?;
                let name = shape.name.clone();
                let edit =
                    Edit { n, batch: Some(batch.clone()), collection: name, id: row.clone(), base, seen, set, was };
                let text = serde_json::to_string(&edit).expect("an edit is JSON");
                let sql = "INSERT INTO _outbox (n, batch, collection, row, edit) VALUES (?1, ?2, ?3, ?4, ?5)";
                transaction.execute(sql, (n, &batch, &collection, &row, text))?;
            }
            transaction.execute("DELETE FROM _pending WHERE collection = ?1 AND row = ?2", (&collection, &row))?;
            let sql = format!("DELETE FROM {} WHERE _row = ?1 AND _side = {BEFORE_EDIT}", schema::shadow(shape));
            transaction.execute(&sql, (&row,))?;
        }
        transaction.commit()?;
        self.connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(set_aside)
    }

    /// The lines of the next block, and its number of edits; empty if there are none.
    pub(crate) fn next_block(&self) -> Result<(Vec<u8>, u64), ReplicaError> {
        let mut statement = self.connection.prepare_cached("SELECT n, edit FROM _outbox ORDER BY n LIMIT ?1")?;
        let mut rows = statement.query((EDITS_MAX / 4,))?;
        let (mut lines, mut edits) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            let edit = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
            if edits > 0 && lines.len() + edit.len() > BLOCK_BYTES_MAX / 4 {
                break;
            }
            // An edit made by an older version may be longer than any block. Its number is sent without contents.
            if edit.len() >= BLOCK_BYTES_MAX {
                lines.extend_from_slice(self.set_aside(row.get(0)?, edit)?.as_bytes());
            } else {
                lines.extend_from_slice(edit.as_bytes());
            }
            lines.push(b'\n');
            edits += 1;
        }
        Ok((lines, edits))
    }

    /// Sets aside an edit that is too long. Returns an empty edit with the same number.
    fn set_aside(&self, n: u64, edit: &str) -> Result<String, ReplicaError> {
        let read = serde_json::from_str::<Edit>(edit);
        let edit_of = read.map_err(|error| ReplicaError::Unfit(format!("the edit {n} cannot be read: {error}")))?;
        let why = format!("is an edit of {} bytes; at most {BLOCK_BYTES_MAX} can be sent", edit.len());
        let (collection, row) = (edit_of.collection.to_string(), edit_of.id.clone());
        record_refused(&self.connection, &collection, &row, Some(n), &[RefusedCell::row(why)])?;
        // A base version makes it an edit of an existing row, so that none is created.
        let base = edit_of.base.max(Stamp(1));
        let empty = Edit { set: Some(Map::new()), was: Map::new(), base, ..edit_of };
        let text = serde_json::to_string(&empty).expect("an edit is JSON");
        self.connection.execute("UPDATE _outbox SET edit = ?2 WHERE n = ?1", (n, &text))?;
        Ok(text)
    }

    /// Records how many edits of the batch of this session the server has stored.
    pub(crate) fn acknowledge(&self, batch: Option<&str>, uploaded: u64) -> Result<(), ReplicaError> {
        let transaction = self.write_transaction()?;
        confirm(&transaction, "batch IS ?2 AND n <= ?1", (uploaded, batch))?;
        if batch.is_none() {
            transaction.execute("UPDATE _replica SET last = ?1 WHERE last < ?1", (uploaded,))?;
        }
        Ok(transaction.commit()?)
    }

    /// Records the outcome of a block.
    pub(crate) fn record_outcome(&self, outcome: &Uploaded) -> Result<(), ReplicaError> {
        let transaction = self.write_transaction()?;
        for refused in &outcome.refused {
            let sql = "SELECT collection, row, edit FROM _outbox WHERE n = ?1";
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            let found: Option<(String, String, String)> = transaction.query_row(sql, (refused.n,), read).optional()?;
            let Some((collection, row, edit)) = found else { continue };
            let why: Vec<String> = refused.problems.iter().map(ToString::to_string).collect();
            let edit: Edit = serde_json::from_str(&edit)
                .map_err(|error| ReplicaError::Unfit(format!("the edit {} cannot be read: {error}", refused.n)))?;
            let set = edit.set.unwrap_or_default();
            // A problem may lie within a field, such as `values.symbol`.
            let named = |name: &String| {
                let is_within = |path: &str| path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'));
                refused.problems.iter().any(|problem| problem.path == **name || is_within(&problem.path))
            };
            let values: Map<String, Json> = set.into_iter().filter(|(name, _)| named(name)).collect();
            let fields = values.keys().cloned().collect();
            let cell = RefusedCell { fields, why: why.join("; "), values };
            record_refused(&transaction, &collection, &row, Some(refused.n), &[cell])?;
        }
        confirm(&transaction, "n <= ?1 AND (?2 IS NULL OR true)", (outcome.uploaded, None))?;
        if !outcome.point.is_empty() {
            transaction.execute("UPDATE _replica SET point = ?1", (&outcome.point,))?;
        }
        Ok(transaction.commit()?)
    }

    /// Queues confirmed edits again that the server lost by a restore from a backup. `known`: the batches it has, each
    /// with its last edit. Returns how many are queued.
    pub(crate) fn mark_unsent(&self, known: &[(String, u64)]) -> Result<u64, ReplicaError> {
        let known: HashMap<&str, u64> = known.iter().map(|(batch, upto)| (batch.as_str(), *upto)).collect();
        let transaction = self.write_transaction()?;
        let upto = {
            let mut statement = transaction.prepare("SELECT n, batch FROM _sent ORDER BY n DESC")?;
            let mut rows = statement.query(())?;
            let mut upto = 0_u64;
            while let Some(row) = rows.next()? {
                let n: u64 = row.get(0)?;
                if known.get(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?).is_some_and(|last| n <= *last) {
                    upto = n;
                    break;
                }
            }
            upto
        };
        // A single new batch, so that the server remembers all of it if the link breaks.
        let batch = random_id(&transaction)?;
        let lost: Vec<(String, String, String)> = transaction
            .prepare("DELETE FROM _sent WHERE n > ?1 RETURNING collection, row, edit")?
            .query_map((upto,), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<Result<_, _>>()?;
        let count = lost.len() as u64;
        for (collection, row, edit) in lost {
            let edit: Edit = serde_json::from_str(&edit)
                .map_err(|error| ReplicaError::Unfit(format!("an edit that was sent cannot be read: {error}")))?;
            let edit = Edit { batch: Some(batch.clone()), ..edit };
            let text = serde_json::to_string(&edit).expect("an edit is JSON");
            let sql = "INSERT INTO _outbox (n, batch, collection, row, edit) VALUES (?1, ?2, ?3, ?4, ?5)";
            transaction.execute(sql, (edit.n, &batch, collection, row, text))?;
        }
        transaction.execute("UPDATE _replica SET point = NULL", ())?;
        transaction.commit()?;
        Ok(count)
    }

    /// Drops confirmed edits beyond the limits.
    pub(crate) fn prune_sent(&self) -> Result<(), ReplicaError> {
        let sql = "DELETE FROM _sent WHERE n <= (SELECT max(n) FROM _sent) - ?1 OR n <= (SELECT n FROM \
                   (SELECT n, sum(length(edit)) OVER (ORDER BY n DESC) AS bytes FROM _sent) \
                   WHERE bytes > ?2 ORDER BY n DESC LIMIT 1)";
        self.connection.execute(sql, (SENT_KEPT, SENT_BYTES_KEPT))?;
        Ok(())
    }
}

/// Creates an id of 128 random bits.
fn random_id(connection: &Connection) -> Result<String, ReplicaError> {
    Ok(connection.query_row("SELECT lower(hex(randomblob(16)))", (), |row| row.get(0))?)
}

/// Moves confirmed edits out of the outbox.
fn confirm(connection: &Connection, which: &str, of: (u64, Option<&str>)) -> Result<(), ReplicaError> {
    let sql = format!("SELECT batch FROM _outbox WHERE {which} ORDER BY n DESC LIMIT 1");
    let last: Option<Option<String>> = connection.query_row(&sql, of, |row| row.get(0)).optional()?;
    let Some(last) = last else { return Ok(()) };
    let sql = format!(
        "INSERT OR REPLACE INTO _sent (n, batch, collection, row, edit) \
         SELECT n, batch, collection, row, edit FROM _outbox WHERE {which} AND batch IS NOT NULL"
    );
    connection.execute(&sql, of)?;
    connection.execute(&format!("DELETE FROM _outbox WHERE {which}"), of)?;
    if let Some(batch) = last {
        let sql = "UPDATE _replica SET after = ?1 WHERE NOT EXISTS (SELECT 1 FROM _outbox WHERE batch = ?1)";
        connection.execute(sql, (batch,))?;
    }
    Ok(())
}

/// An edited row: its base version and state of knowledge.
struct PendingEdit {
    collection: String,
    row: String,
    existed: bool,
    base: Stamp,
    seen: Stamp,
}

/// Pending edits in order of the first edit of each row, so that rows through which others are shared come first.
fn pending(connection: &Connection) -> Result<Vec<PendingEdit>, ReplicaError> {
    let sql = "SELECT p.collection, p.row, p.was_there, iif(p.was_there, coalesce(s.base, 0), 0), p.seen FROM _pending p \
               LEFT JOIN _server s ON s.collection = p.collection AND s.row = p.row ORDER BY p.rowid";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map((), |row| {
        Ok(PendingEdit {
            collection: row.get(0)?,
            row: row.get(1)?,
            existed: row.get(2)?,
            base: Stamp(row.get(3)?),
            seen: Stamp(row.get(4)?),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Rows whose ids are not UTF-8 cannot be sent: they are set aside and removed.
fn drop_unreadable_ids(
    connection: &Connection,
    shapes: &HashMap<String, CollectionShape>,
) -> Result<u64, ReplicaError> {
    let mut statement = connection.prepare_cached("SELECT rowid, collection, row FROM _pending")?;
    let mut rows = statement.query(())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        if let rusqlite::types::ValueRef::Text(bytes) | rusqlite::types::ValueRef::Blob(bytes) = row.get_ref(2)?
            && std::str::from_utf8(bytes).is_err()
        {
            found.push((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, bytes.to_vec()));
        }
    }
    let count = found.len() as u64;
    for (number, collection, id) in found {
        if let Some(shape) = shapes.get(&collection) {
            connection.execute("UPDATE _replica SET applying = 1", ())?;
            let sql = format!("DELETE FROM {} WHERE id = CAST(?1 AS TEXT)", schema::quoted(&collection));
            connection.execute(&sql, (&id,))?;
            connection.execute("UPDATE _replica SET applying = 0", ())?;
            let sql = format!("DELETE FROM {} WHERE _row = CAST(?1 AS TEXT)", schema::shadow(shape));
            connection.execute(&sql, (&id,))?;
        }
        connection.execute("DELETE FROM _pending WHERE rowid = ?1", (number,))?;
        let sql = "DELETE FROM _server WHERE collection = ?1 AND row = CAST(?2 AS TEXT)";
        connection.execute(sql, (&collection, &id))?;
        let why = RefusedCell::row("id: is text that is not UTF-8".to_owned());
        record_refused(connection, &collection, &String::from_utf8_lossy(&id), None, &[why])?;
    }
    Ok(count)
}

/// Finds rows that `REPLACE` removed through a unique index of the application, for which SQLite runs no trigger: rows
/// from the server that are gone without a recorded removal.
fn record_unseen_removals(connection: &Connection, shape: &CollectionShape) -> Result<(), ReplicaError> {
    let name = shape.name.as_str();
    let sql = "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?1) WHERE \"unique\" AND origin <> 'pk')";
    if !connection.query_row(sql, (name,), |row| row.get::<_, bool>(0))? {
        return Ok(());
    }
    let (table, known) = (schema::quoted(name), schema::known(shape));
    let unseen = format!(
        "SELECT k._row, k._version FROM {known} k WHERE NOT EXISTS (SELECT 1 FROM {table} t WHERE t.id = k._row) \
         AND NOT EXISTS (SELECT 1 FROM _server s WHERE s.collection = ?1 AND s.row = k._row)"
    );
    let sql = format!(
        "INSERT INTO _pending (collection, row, was_there, seen) SELECT ?1, _row, 1, (SELECT seen FROM _replica) FROM ({unseen}) WHERE true ON CONFLICT DO NOTHING"
    );
    if connection.execute(&sql, (name,))? == 0 {
        return Ok(());
    }
    let sql = format!(
        "INSERT INTO _server (collection, row, base, version, is_there) SELECT ?1, _row, _version, _version, 0 FROM ({unseen}) WHERE true ON CONFLICT DO NOTHING"
    );
    connection.execute(&sql, (name,))?;
    // Their values are unknown. If a removal is rejected, its row is read again in a complete read.
    connection.execute("UPDATE _replica SET cursor = NULL", ())?;
    Ok(())
}

/// The problem with a row id, if the server would reject it.
pub(crate) fn check_row_id(id: &str) -> Option<String> {
    let fits = (1..=ROW_ID_CHARS_MAX).contains(&id.chars().count()) && !id.chars().any(|c| c.is_control() || c == '/');
    (!fits).then(|| format!("id: must be 1 to {ROW_ID_CHARS_MAX} characters without `/` and control characters"))
}

/// Current cells of a row; `None` if it does not exist.
pub(crate) fn cells(
    connection: &Connection,
    shape: &CollectionShape,
    row: &str,
) -> Result<Option<Vec<Cell>>, ReplicaError> {
    let sql = format!("SELECT {} FROM {} WHERE id = ?1", schema::columns(shape), schema::quoted(shape.name.as_str()));
    read_cells(connection, &sql, shape, row)
}

/// Cells of a row before it was edited; `None` if unknown.
fn cells_before(
    connection: &Connection,
    shape: &CollectionShape,
    row: &str,
) -> Result<Option<Vec<Cell>>, ReplicaError> {
    let (columns, shadow) = (schema::columns(shape), schema::shadow(shape));
    let sql = format!("SELECT {columns} FROM {shadow} WHERE _row = ?1 AND _side = {BEFORE_EDIT}");
    // A row whose removal was not recorded has no known cells.
    Ok(Some(read_cells(connection, &sql, shape, row)?.unwrap_or_else(|| vec![Cell::Null; shape.fields.len()])))
}

fn read_cells(
    connection: &Connection,
    sql: &str,
    shape: &CollectionShape,
    row: &str,
) -> Result<Option<Vec<Cell>>, ReplicaError> {
    let mut statement = connection.prepare_cached(sql)?;
    let read = |row: &rusqlite::Row<'_>| {
        // Text that is not UTF-8 is kept as bytes, which no field can hold either.
        (0..shape.fields.len())
            .map(|at| match row.get_ref(at)? {
                rusqlite::types::ValueRef::Text(bytes) if std::str::from_utf8(bytes).is_err() => {
                    Ok(Cell::Blob(bytes.to_vec()))
                }
                other => Cell::try_from(other)
                    .map_err(|error| rusqlite::Error::FromSqlConversionFailure(at, other.data_type(), Box::new(error))),
            })
            .collect()
    };
    Ok(statement.query_row((row,), read).optional()?)
}

/// Fields that cannot hold their cells, and why.
pub(crate) struct RefusedCell {
    pub(crate) fields: Vec<String>,
    pub(crate) why: String,
    pub(crate) values: Map<String, Json>,
}

impl RefusedCell {
    fn row(why: String) -> RefusedCell {
        RefusedCell { fields: Vec::new(), why, values: Map::new() }
    }
}

/// Fields set by an edit (`None` if it removes the row), and their previous values.
type Change = (Option<Map<String, Json>>, Map<String, Json>);

/// Difference between two states of a row.
struct Difference {
    /// `None` if nothing changed that can be sent.
    change: Option<Change>,
    refused: Vec<RefusedCell>,
}

impl Difference {
    fn of(shape: &CollectionShape, was: Option<Vec<Cell>>, is: Option<Vec<Cell>>) -> Difference {
        let nothing = || vec![Cell::Null; shape.fields.len()];
        let (existed, exists) = (was.is_some(), is.is_some());
        let (was, is) = (was.unwrap_or_else(nothing), is.unwrap_or_else(nothing));
        let (mut set, mut before, mut refused, mut bytes) = (Map::new(), Map::new(), Vec::new(), 2);
        for ((field, was), is) in shape.fields.iter().zip(&was).zip(&is) {
            let name = field.name.to_string();
            let (old, new) = (value_of(field.kind, was.into()), value_of(field.kind, is.into()));
            let is_same = match (&old, &new) {
                (Ok(old), Ok(new)) => old == new,
                _ => was == is,
            };
            // A cell that no field can hold was never sent.
            let old = old.unwrap_or(Json::Null);
            if !exists {
                if !old.is_null() {
                    before.insert(name, old);
                }
                continue;
            }
            match new {
                Ok(new) => {
                    bytes += name.len() + 4 + if new.is_null() { 0 } else { new.to_string().len() };
                    if !is_same && (existed || !new.is_null()) {
                        if existed {
                            before.insert(name.clone(), old);
                        }
                        set.insert(name, new);
                    }
                }
                Err(_) if is_same => {}
                Err(why) => refused.push(RefusedCell {
                    why: format!("{name}: {why}"),
                    values: Map::from_iter([(name.clone(), shown(is.into()))]),
                    fields: vec![name],
                }),
            }
        }
        // Sets aside the longest fields of an oversized row until the rest fits.
        while bytes > ROW_BYTES_MAX {
            let longest = set.iter().max_by_key(|(_, value)| value.to_string().len()).map(|(name, _)| name.clone());
            let Some((name, value)) = longest.and_then(|name| set.remove_entry(&name)) else { break };
            let length = value.to_string().len();
            before.remove(&name);
            let why =
                format!("{name}: has {length} bytes as JSON, and its row {bytes}; a row has at most {ROW_BYTES_MAX}");
            bytes -= length;
            refused.push(RefusedCell { why, fields: vec![name.clone()], values: Map::from_iter([(name, value)]) });
        }
        let change = match (existed, exists) {
            (false, false) => None,
            (true, false) => Some((None, before)),
            (false, true) => Some((Some(set), Map::new())),
            (true, true) => (!set.is_empty()).then_some((Some(set), before)),
        };
        Difference { change, refused }
    }
}

/// A later edit that removes the row or sets its rejected fields supersedes their rejection.
fn clear_refused(
    connection: &Connection,
    collection: &str,
    row: &str,
    set: Option<&Map<String, Json>>,
) -> Result<(), ReplicaError> {
    let mut statement =
        connection.prepare_cached("SELECT number, fields FROM _refused WHERE collection = ?1 AND row = ?2")?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    let found: Vec<(i64, String)> = statement.query_map((collection, row), read)?.collect::<Result<_, _>>()?;
    for (number, fields) in found {
        let fields: Vec<String> = serde_json::from_str(&fields)
            .map_err(|error| ReplicaError::Unfit(format!("the list of refused edits cannot be read: {error}")))?;
        let is_past = set.is_none_or(|set| fields.is_empty() || fields.iter().any(|name| set.contains_key(name)));
        if is_past {
            connection.execute("DELETE FROM _refused WHERE number = ?1", (number,))?;
        }
    }
    Ok(())
}

pub(crate) fn record_refused(
    connection: &Connection,
    collection: &str,
    row: &str,
    n: Option<u64>,
    refused: &[RefusedCell],
) -> Result<(), ReplicaError> {
    if refused.is_empty() {
        return Ok(());
    }
    for cell in refused {
        let fields = serde_json::to_string(&cell.fields).expect("names are JSON");
        let values = serde_json::to_string(&cell.values).expect("values are JSON");
        let same = "DELETE FROM _refused WHERE collection = ?1 AND row = ?2 AND fields = ?3";
        connection.execute(same, (collection, row, &fields))?;
        let sql = "INSERT INTO _refused (n, collection, row, fields, why, \"values\") VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        connection.execute(sql, (n, collection, row, fields, &cell.why, values))?;
    }
    let sql = "DELETE FROM _refused WHERE number <= (SELECT max(number) FROM _refused) - ?1";
    connection.execute(sql, (REFUSED_KEPT,))?;
    Ok(())
}
