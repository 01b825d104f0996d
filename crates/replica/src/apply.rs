//! What the server says comes into the tables. A row that was edited here keeps what it says until its edits were sent and
//! answered; what the server says of it waits beside it.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, types::Value as Cell};
use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::Stamp,
    field::FieldType,
    replica::{BlockEnd, CollectionShape, RowLine},
};

use crate::{Replica, ReplicaError, schema};

/// What a block did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) rows: u64,
    pub(crate) removed: u64,
}

impl Replica {
    /// Writes a block and the cursor behind it, both or neither.
    pub(crate) fn apply(&self, block: &[u8]) -> Result<(Applied, BlockEnd), ReplicaError> {
        let not_of_it = |error: serde_json::Error| ReplicaError::Protocol(format!("a block: {error}"));
        let shapes = self.shapes()?;
        let tables: HashMap<&str, Table> = shapes.iter().map(|shape| (shape.name.as_str(), Table::of(shape))).collect();
        let mut lines = block.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).peekable();
        let transaction = self.writing()?;
        transaction.execute("UPDATE _replica SET applying = 1", ())?;
        let mut applied = Applied::default();
        let end = loop {
            let line = lines.next().ok_or_else(|| ReplicaError::Protocol("a block without its end".to_owned()))?;
            if lines.peek().is_none() {
                break serde_json::from_slice::<BlockEnd>(line).map_err(not_of_it)?;
            }
            let (collection, id, version, body): RowLine = serde_json::from_slice(line).map_err(not_of_it)?;
            if body.is_some() {
                applied.rows += 1
            } else {
                applied.removed += 1
            }
            // A collection that came into being after the session began is read by the next one.
            if let Some(table) = tables.get(collection.as_str()) {
                table.take(&transaction, &id, version, body.as_ref())?;
            }
        };
        transaction.execute("UPDATE _replica SET applying = 0, cursor = ?1", (&end.cursor,))?;
        transaction.commit()?;
        Ok((applied, end))
    }

    /// Begins to read all anew: what is not told again will go at the end.
    pub(crate) fn begin_anew(&self, cursor: &str) -> Result<(), ReplicaError> {
        let transaction = self.writing()?;
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

    /// After the last block: rows that the server did not tell again go, and rows whose edits were all sent say what the server
    /// says.
    pub(crate) fn settle(&self, seen: Stamp) -> Result<(), ReplicaError> {
        let shapes = self.shapes()?;
        let transaction = self.writing()?;
        transaction.execute("UPDATE _replica SET applying = 1, seen = max(seen, ?1)", (seen.0,))?;
        for shape in &shapes {
            let (table, name) = (Table::of(shape), shape.name.as_str());
            for id in ids(&transaction, "SELECT row FROM _unseen WHERE collection = ?1", name)? {
                table.take(&transaction, &id, Stamp(0), None)?;
            }
            let sql = "SELECT row FROM _server WHERE collection = ?1 \
                       AND NOT EXISTS (SELECT 1 FROM _pending p WHERE p.collection = ?1 AND p.row = _server.row) \
                       AND NOT EXISTS (SELECT 1 FROM _outbox o WHERE o.collection = ?1 AND o.row = _server.row)";
            for id in ids(&transaction, sql, name)? {
                table.take_over(&transaction, &id)?;
            }
        }
        transaction.execute("DELETE FROM _unseen", ())?;
        transaction.execute("UPDATE _replica SET applying = 0", ())?;
        Ok(transaction.commit()?)
    }

    /// Drops all that it has.
    pub(crate) fn wipe(&self) -> Result<(), ReplicaError> {
        self.connection.pragma_update(None, "secure_delete", true)?;
        for shape in self.shapes()? {
            schema::drop_collection(&self.connection, shape.name.as_str())?;
        }
        self.connection.execute("UPDATE _replica SET cursor = NULL, seen = 0", ())?;
        Ok(self.connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")?)
    }
}

fn ids(connection: &Connection, sql: &str, collection: &str) -> Result<Vec<String>, ReplicaError> {
    let mut statement = connection.prepare_cached(sql)?;
    let ids = statement.query_map((collection,), |row| row.get(0))?;
    Ok(ids.collect::<Result<_, _>>()?)
}

/// The table of a collection, with its statements.
struct Table<'a> {
    shape: &'a CollectionShape,
    put: String,
    remove: String,
}

impl Table<'_> {
    fn of(shape: &CollectionShape) -> Table<'_> {
        let table = schema::quoted(shape.name.as_str());
        let names: Vec<String> = shape.fields.iter().map(|field| schema::quoted(field.name.as_str())).collect();
        let columns = names.iter().map(|name| format!(", {name}")).collect::<String>();
        let places = (3..names.len() + 3).map(|at| format!(", ?{at}")).collect::<String>();
        let sets = names.iter().map(|name| format!(", {name} = excluded.{name}")).collect::<String>();
        let put = format!(
            "INSERT INTO {table} (id, _version{columns}) VALUES (?1, ?2{places}) \
             ON CONFLICT (id) DO UPDATE SET _version = excluded._version{sets}"
        );
        Table { shape, put, remove: format!("DELETE FROM {table} WHERE id = ?1") }
    }

    /// Takes what the server says of a row; without a body it is gone.
    fn take(
        &self,
        connection: &Connection,
        id: &str,
        version: Stamp,
        body: Option<&Map<String, Json>>,
    ) -> Result<(), ReplicaError> {
        let name = self.shape.name.as_str();
        connection.prepare_cached("DELETE FROM _unseen WHERE collection = ?1 AND row = ?2")?.execute((name, id))?;
        let sql = "UPDATE _server SET version = ?3, body = ?4 WHERE collection = ?1 AND row = ?2";
        let text = body.map(|body| serde_json::to_string(&self.cells_of(body)).expect("cells are JSON"));
        if connection.prepare_cached(sql)?.execute((name, id, version.0, text))? > 0 {
            return Ok(());
        }
        self.write(connection, id, version, body)
    }

    fn write(
        &self,
        connection: &Connection,
        id: &str,
        version: Stamp,
        body: Option<&Map<String, Json>>,
    ) -> Result<(), ReplicaError> {
        let Some(body) = body else {
            connection.prepare_cached(&self.remove)?.execute((id,))?;
            return Ok(());
        };
        let cells = self
            .shape
            .fields
            .iter()
            .map(|field| body.get(field.name.as_str()).map_or(Cell::Null, |value| cell(field.kind, value)));
        let fixed = [Cell::Text(id.to_owned()), Cell::Integer(version.0.cast_signed())];
        connection.prepare_cached(&self.put)?.execute(rusqlite::params_from_iter(fixed.into_iter().chain(cells)))?;
        Ok(())
    }

    /// Lets a row say what the server says of it.
    fn take_over(&self, connection: &Connection, id: &str) -> Result<(), ReplicaError> {
        let name = self.shape.name.as_str();
        let sql = "DELETE FROM _server WHERE collection = ?1 AND row = ?2 RETURNING version, body";
        let found = connection
            .prepare_cached(sql)?
            .query_row((name, id), |row| Ok((Stamp(row.get(0)?), row.get::<_, Option<String>>(1)?)))
            .optional()?;
        let Some((version, body)) = found else { return Ok(()) };
        let body: Option<Map<String, Json>> = body.and_then(|text| serde_json::from_str(&text).ok());
        self.write(connection, id, version, body.as_ref())
    }

    /// Values as the triggers note them, so that both read alike.
    fn cells_of(&self, body: &Map<String, Json>) -> Map<String, Json> {
        let cells = self.shape.fields.iter().filter_map(|field| {
            let value = match (field.kind, body.get(field.name.as_str())?) {
                (FieldType::Boolean, Json::Bool(truth)) => Json::from(i64::from(*truth)),
                (FieldType::List | FieldType::Map, value) if !value.is_string() => Json::String(value.to_string()),
                (_, value) => value.clone(),
            };
            Some((field.name.to_string(), value))
        });
        cells.collect()
    }
}

/// A value as a cell of SQLite: truth is 0 or 1, lists and maps are their JSON.
pub(crate) fn cell(kind: FieldType, value: &Json) -> Cell {
    match (kind, value) {
        (_, Json::Null) => Cell::Null,
        (_, Json::Bool(truth)) => Cell::Integer(i64::from(*truth)),
        (FieldType::Number, Json::Number(number)) => Cell::Real(number.as_f64().unwrap_or(f64::NAN)),
        (_, Json::Number(number)) => {
            number.as_i64().map_or_else(|| Cell::Real(number.as_f64().unwrap_or(f64::NAN)), Cell::Integer)
        }
        (_, Json::String(text)) => Cell::Text(text.clone()),
        (_, value) => Cell::Text(value.to_string()),
    }
}
