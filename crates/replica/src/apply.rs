//! Applies downloaded changes to the tables. A row with unsent edits keeps its local values until the edits are sent
//! and answered; the server's version is stored beside it.

use std::collections::HashMap;

use rusqlite::{Connection, config::DbConfig, types::Value as Cell};
use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::Stamp,
    replica::{BlockEnd, CollectionShape, RowLine},
};

use crate::{
    Replica, ReplicaError,
    cells::{cell_of, is_of_type},
    schema::{self, OF_SERVER},
};

/// Counts of an applied block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) rows: u64,
    pub(crate) removed: u64,
}

impl Replica {
    /// Applies a block and stores its cursor, in one transaction.
    pub(crate) fn apply(&self, block: &[u8]) -> Result<(Applied, BlockEnd), ReplicaError> {
        let invalid_block = |error: serde_json::Error| ReplicaError::Protocol(format!("a block: {error}"));
        let shapes = self.shapes()?;
        let tables: HashMap<&str, Table> = shapes.iter().map(|shape| (shape.name.as_str(), Table::of(shape))).collect();
        let mut lines = block.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).peekable();
        let transaction = self.write_transaction()?;
        transaction.execute("UPDATE _replica SET applying = 1", ())?;
        let mut applied = Applied::default();
        let has_triggers = has_triggers(&transaction)?;
        let mut written = Vec::new();
        let end = loop {
            let line = lines.next().ok_or_else(|| ReplicaError::Protocol("a block without its end".to_owned()))?;
            if lines.peek().is_none() {
                break serde_json::from_slice::<BlockEnd>(line).map_err(invalid_block)?;
            }
            let (collection, id, version, body): RowLine = serde_json::from_slice(line).map_err(invalid_block)?;
            if body.is_some() {
                applied.rows += 1
            } else {
                applied.removed += 1
            }
            // A collection created after the session began is read by the next session.
            if let Some(table) = tables.get(collection.as_str()) {
                table.take(&transaction, &id, version, body.as_ref())?;
                if has_triggers && body.is_some() {
                    written.push((table, id, version, body));
                }
            }
        };
        without_triggers(&transaction, !written.is_empty(), || {
            written
                .iter()
                .try_for_each(|(table, id, version, body)| table.take(&transaction, id, *version, body.as_ref()))
        })?;
        transaction.execute("UPDATE _replica SET applying = 0, cursor = ?1", (&end.cursor,))?;
        transaction.commit()?;
        Ok((applied, end))
    }

    /// Starts a complete read: rows that the server does not send again are removed at the end.
    pub(crate) fn begin_anew(&self, cursor: &str) -> Result<(), ReplicaError> {
        let transaction = self.write_transaction()?;
        transaction.execute("DELETE FROM _unseen", ())?;
        for shape in self.shapes()? {
            let sql = format!("INSERT INTO _unseen SELECT ?1, id FROM {}", schema::quoted(shape.name.as_str()));
            transaction.execute(&sql, (shape.name.as_str(),))?;
            let sql = "INSERT OR IGNORE INTO _unseen SELECT collection, row FROM _server WHERE collection = ?1";
            transaction.execute(sql, (shape.name.as_str(),))?;
        }
        transaction.execute("UPDATE _replica SET cursor = ?1", (cursor,))?;
        Ok(transaction.commit()?)
    }

    /// Completes a download: removes rows that the server did not send again, and sets rows without unsent edits to the
    /// server's version.
    pub(crate) fn complete_download(&self, seen: Stamp) -> Result<(), ReplicaError> {
        let shapes = self.shapes()?;
        let transaction = self.write_transaction()?;
        transaction.execute("UPDATE _replica SET applying = 1, seen = ?1", (seen.0,))?;
        for shape in &shapes {
            let (table, name) = (Table::of(shape), shape.name.as_str());
            for id in ids(&transaction, "SELECT row FROM _unseen WHERE collection = ?1", name)? {
                table.take(&transaction, &id, Stamp(0), None)?;
            }
            let sql = "SELECT row FROM _server WHERE collection = ?1 \
                       AND NOT EXISTS (SELECT 1 FROM _pending p WHERE p.collection = ?1 AND p.row = _server.row) \
                       AND NOT EXISTS (SELECT 1 FROM _outbox o WHERE o.collection = ?1 AND o.row = _server.row)";
            let settled = ids(&transaction, sql, name)?;
            let has_triggers = !settled.is_empty() && has_triggers(&transaction)?;
            if has_triggers {
                settled.iter().try_for_each(|id| table.take_over(&transaction, id, StoredVersion::Keep))?;
            }
            without_triggers(&transaction, has_triggers, || {
                settled.iter().try_for_each(|id| table.take_over(&transaction, id, StoredVersion::Delete))
            })?;
        }
        transaction.execute("DELETE FROM _unseen", ())?;
        transaction.execute("UPDATE _replica SET applying = 0", ())?;
        Ok(transaction.commit()?)
    }

    /// Drops all data.
    pub(crate) fn wipe(&self) -> Result<(), ReplicaError> {
        self.connection.pragma_update(None, "secure_delete", true)?;
        for shape in self.shapes()? {
            schema::drop_collection(&self.connection, shape.name.as_str())?;
        }
        let sql = "UPDATE _replica SET cursor = NULL, seen = 0, after = NULL, point = NULL";
        self.connection.execute(sql, ())?;
        Ok(self.connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")?)
    }
}

fn ids(connection: &Connection, sql: &str, collection: &str) -> Result<Vec<String>, ReplicaError> {
    let mut statement = connection.prepare_cached(sql)?;
    let ids = statement.query_map((collection,), |row| row.get(0))?;
    Ok(ids.collect::<Result<_, _>>()?)
}

/// Whether the application has added triggers to the file.
fn has_triggers(connection: &Connection) -> Result<bool, ReplicaError> {
    let own = schema::TRIGGERS.map(|what| format!("'_' || tbl_name || '_{what}'")).join(", ");
    let sql = format!("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name NOT IN ({own}))");
    Ok(connection.query_row(&sql, (), |row| row.get(0))?)
}

/// Writes rows again without triggers if the application's own triggers changed them: a row must have the server's
/// values.
fn without_triggers(
    connection: &Connection,
    has_triggers: bool,
    work: impl FnOnce() -> Result<(), ReplicaError>,
) -> Result<(), ReplicaError> {
    if !has_triggers {
        return work();
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    let done = work();
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, true)?;
    done
}

/// Whether the stored version of a row is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoredVersion {
    Keep,
    Delete,
}

/// SQL statements of a collection's table.
struct Table<'a> {
    shape: &'a CollectionShape,
    put: String,
    remove: String,
    /// Stores the server's version of an edited row.
    keep: String,
    /// Restores the stored version.
    restore: String,
    know: String,
    remove_known: String,
}

impl Table<'_> {
    fn of(shape: &CollectionShape) -> Table<'_> {
        let table = schema::quoted(shape.name.as_str());
        let (shadow, known) = (schema::shadow(shape), schema::known(shape));
        let names: Vec<String> = shape.fields.iter().map(|field| schema::quoted(field.name.as_str())).collect();
        let columns = names.iter().map(|name| format!(", {name}")).collect::<String>();
        let places = (3..names.len() + 3).map(|at| format!(", ?{at}")).collect::<String>();
        let sets = names.iter().map(|name| format!(", {name} = excluded.{name}")).collect::<String>();
        let or_update = format!("ON CONFLICT (id) DO UPDATE SET _version = excluded._version{sets}");
        Table {
            shape,
            put: format!("INSERT INTO {table} (id, _version{columns}) VALUES (?1, ?2{places}) {or_update}"),
            remove: format!("DELETE FROM {table} WHERE id = ?1"),
            keep: format!(
                "INSERT OR REPLACE INTO {shadow} (_row, _side{columns}) VALUES (?1, {OF_SERVER} + 0 * ?2{places})"
            ),
            restore: format!(
                "INSERT INTO {table} (id, _version{columns}) SELECT _row, ?2{columns} FROM {shadow} \
                 WHERE _row = ?1 AND _side = {OF_SERVER} {or_update}"
            ),
            know: format!(
                "INSERT INTO {known} (_row, _version) VALUES (?1, ?2) ON CONFLICT (_row) DO UPDATE SET _version = excluded._version"
            ),
            remove_known: format!("DELETE FROM {known} WHERE _row = ?1"),
        }
    }

    /// Applies the server's version of a row; without a body the row is removed.
    fn take(
        &self,
        connection: &Connection,
        id: &str,
        version: Stamp,
        body: Option<&Map<String, Json>>,
    ) -> Result<(), ReplicaError> {
        let name = self.shape.name.as_str();
        connection.prepare_cached("DELETE FROM _unseen WHERE collection = ?1 AND row = ?2")?.execute((name, id))?;
        match body {
            Some(_) => connection.prepare_cached(&self.know)?.execute((id, version.0))?,
            None => connection.prepare_cached(&self.remove_known)?.execute((id,))?,
        };
        let sql = "UPDATE _server SET version = ?3, is_there = ?4 WHERE collection = ?1 AND row = ?2";
        if connection.prepare_cached(sql)?.execute((name, id, version.0, body.is_some()))? == 0 {
            return self.write(connection, id, version, body);
        }
        match body {
            Some(body) => self.run(connection, &self.keep, id, version, body),
            None => self.delete_server_version(connection, id),
        }
    }

    fn write(
        &self,
        connection: &Connection,
        id: &str,
        version: Stamp,
        body: Option<&Map<String, Json>>,
    ) -> Result<(), ReplicaError> {
        match body {
            Some(body) => self.run(connection, &self.put, id, version, body),
            None => {
                connection.prepare_cached(&self.remove)?.execute((id,))?;
                Ok(())
            }
        }
    }

    fn run(
        &self,
        connection: &Connection,
        sql: &str,
        id: &str,
        version: Stamp,
        body: &Map<String, Json>,
    ) -> Result<(), ReplicaError> {
        let mut cells = Vec::with_capacity(self.shape.fields.len() + 2);
        cells.extend([Cell::Text(id.to_owned()), Cell::Integer(version.0.cast_signed())]);
        for field in &self.shape.fields {
            cells.push(match body.get(field.name.as_str()) {
                Some(value) if is_of_type(field.kind, value) => cell_of(field.kind, value)?,
                _ => Cell::Null,
            });
        }
        let done = connection.prepare_cached(sql)?.execute(rusqlite::params_from_iter(cells));
        done.map(drop).map_err(|error| self.explain(id, error))
    }

    /// Sets a row to the server's version.
    fn take_over(&self, connection: &Connection, id: &str, kept: StoredVersion) -> Result<(), ReplicaError> {
        let name = self.shape.name.as_str();
        let sql = "SELECT version, is_there FROM _server WHERE collection = ?1 AND row = ?2";
        let (version, is_there): (u64, bool) =
            connection.prepare_cached(sql)?.query_row((name, id), |row| Ok((row.get(0)?, row.get(1)?)))?;
        if is_there {
            let done = connection.prepare_cached(&self.restore)?.execute((id, version));
            done.map_err(|error| self.explain(id, error))?;
        } else {
            connection.prepare_cached(&self.remove)?.execute((id,))?;
        }
        if kept == StoredVersion::Keep {
            return Ok(());
        }
        let sql = "DELETE FROM _server WHERE collection = ?1 AND row = ?2";
        connection.prepare_cached(sql)?.execute((name, id))?;
        self.delete_server_version(connection, id)
    }

    fn delete_server_version(&self, connection: &Connection, id: &str) -> Result<(), ReplicaError> {
        let sql = format!("DELETE FROM {} WHERE _row = ?1 AND _side = {OF_SERVER}", schema::shadow(self.shape));
        connection.prepare_cached(&sql)?.execute((id,))?;
        Ok(())
    }

    /// The application may have added indexes and triggers to the file that reject the server's rows.
    fn explain(&self, id: &str, error: rusqlite::Error) -> ReplicaError {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::ConstraintViolation) => ReplicaError::Unfit(format!(
                "a constraint that was added to the table `{}` of this file refuses the row `{id}` of the server: {error}; drop \
                 the constraint or index, and synchronise again",
                self.shape.name
            )),
            _ => error.into(),
        }
    }
}

/// Converts the stored row of a layout 1 file: a JSON object of cells.
pub(crate) fn convert_layout_1_row(
    connection: &Connection,
    shape: &CollectionShape,
    id: &str,
    side: i64,
    noted: &str,
) -> Result<(), ReplicaError> {
    // An unreadable object had a cell that no field can hold. Its fields are sent as if they had been null.
    let body: Map<String, Json> = match serde_json::from_str(noted) {
        Ok(body) => body,
        Err(_) => Map::new(),
    };
    let table = Table::of(shape);
    let keep = table.keep.replace(&format!("{OF_SERVER} + 0 * ?2"), &format!("{side} + 0 * ?2"));
    table.run(connection, &keep, id, Stamp(0), &body)
}
