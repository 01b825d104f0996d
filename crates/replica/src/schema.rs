//! SQL schema of a replica: tables and triggers of the server's collections.

use rusqlite::Connection;
use serde_json::{Map, Value as Json};
use tocsin_model::{
    field::FieldType,
    replica::{CollectionShape, Edit},
};

use crate::{
    ReplicaError,
    cells::shown,
    edits::{RefusedCell, record_refused},
};

/// Version of the file layout.
pub(crate) const LAYOUT: i64 = 2;

/// Internal tables of a replica.
pub(crate) const OWN_TABLES: &str = "
CREATE TABLE _replica (
    one INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    url TEXT NOT NULL,
    token TEXT NOT NULL,
    cursor TEXT,                            -- how far it has read; null: all anew
    seen INTEGER NOT NULL DEFAULT 0,        -- up to when it knows all
    last INTEGER NOT NULL DEFAULT 0,        -- the number of its last edit
    applying INTEGER NOT NULL DEFAULT 0,    -- 1 while the server's rows are written: they are no edits
    layout INTEGER NOT NULL DEFAULT 2,
    after TEXT,                             -- the last batch of edits that the server confirmed
    point TEXT                              -- the point in the server's history that was confirmed last
);
CREATE TABLE _collections (name TEXT PRIMARY KEY, shape TEXT NOT NULL);
-- Edits in their order, until the server has them. Those without a batch are of a version without batches.
CREATE TABLE _outbox (n INTEGER PRIMARY KEY, collection TEXT NOT NULL, row TEXT NOT NULL, edit TEXT NOT NULL, batch TEXT);
CREATE INDEX _outbox_by_row ON _outbox (collection, row);
-- Rows that the server has not sent again during a complete read.
CREATE TABLE _unseen (collection TEXT, row TEXT, PRIMARY KEY (collection, row));
";

/// Tables added or changed with layout 2.
pub(crate) const TABLES_OF_LAYOUT_2: &str = "
-- Rows that were edited since they were sent last. What they said before is in the table `_was_` of their collection.
CREATE TABLE _pending (
    collection TEXT NOT NULL,
    row TEXT NOT NULL,
    was_there INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    PRIMARY KEY (collection, row)
);
-- Edited rows, until they have the version of the server: the edited version, and the latest version of the server.
CREATE TABLE _server (
    collection TEXT NOT NULL,
    row TEXT NOT NULL,
    base INTEGER NOT NULL,
    version INTEGER NOT NULL,
    is_there INTEGER NOT NULL,
    PRIMARY KEY (collection, row)
);
-- Edits that the server confirmed, the newest of them, in case that it is restored from a backup.
CREATE TABLE _sent (n INTEGER PRIMARY KEY, batch TEXT NOT NULL, collection TEXT NOT NULL, row TEXT NOT NULL, edit TEXT NOT NULL);
-- Edits, or fields of edits, that were refused here or by the server.
CREATE TABLE _refused (
    number INTEGER PRIMARY KEY,
    n INTEGER,                              -- the number of the edit, if it was sent
    collection TEXT NOT NULL,
    row TEXT NOT NULL,
    fields TEXT NOT NULL,                   -- a JSON list; empty: the row as a whole
    why TEXT NOT NULL,
    \"values\" TEXT NOT NULL                -- what the fields were given, a JSON object
);
";

/// Side of `_was_` with the server's version.
pub(crate) const OF_SERVER: i64 = 0;
/// Side of `_was_` with the row before it was edited.
pub(crate) const BEFORE_EDIT: i64 = 1;

/// Quoted name of the table with previous versions of edited rows. Its columns have no type, so that any cell is kept
/// unchanged.
pub(crate) fn shadow(shape: &CollectionShape) -> String {
    quoted(&format!("_was_{}", shape.name))
}

/// Quoted name of the table that lists the rows received from the server.
pub(crate) fn known(shape: &CollectionShape) -> String {
    quoted(&format!("_known_{}", shape.name))
}

/// The columns of the fields, in order; `NULL` if there are none.
pub(crate) fn columns(shape: &CollectionShape) -> String {
    let names: Vec<String> = shape.fields.iter().map(|field| quoted(field.name.as_str())).collect();
    if names.is_empty() { "NULL".to_owned() } else { names.join(", ") }
}

/// Quotes a name for SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Migrates the tables to the server's collections. Returns whether rows must be read again because a table has other
/// fields.
pub(crate) fn migrate(
    connection: &Connection,
    old: &[CollectionShape],
    new: &[CollectionShape],
) -> Result<bool, ReplicaError> {
    let mut anew = false;
    for gone in old.iter().filter(|old| new.iter().all(|new| new.name != old.name)) {
        let unsent = unsent_of_collection(connection, gone)?;
        drop_collection(connection, gone.name.as_str())?;
        record_unsent(connection, gone, unsent)?;
    }
    for shape in new {
        match old.iter().find(|old| old.name == shape.name) {
            Some(old) if old == shape => continue,
            Some(old) => {
                let unsent = unsent_of_fields(connection, old, shape)?;
                change_table(connection, old, shape)?;
                record_unsent(connection, old, unsent)?;
                anew = true;
            }
            None => make_table(connection, shape)?,
        }
        make_triggers(connection, shape)?;
        let text = serde_json::to_string(shape).expect("names are JSON");
        connection.execute("INSERT OR REPLACE INTO _collections VALUES (?1, ?2)", (shape.name.as_str(), text))?;
    }
    Ok(anew)
}

/// An edit that cannot be sent because its collection or field was removed.
struct Unsent {
    row: String,
    n: Option<u64>,
    fields: Vec<String>,
    values: Map<String, Json>,
    why: String,
}

/// Pending edits of a removed collection.
fn unsent_of_collection(connection: &Connection, shape: &CollectionShape) -> Result<Vec<Unsent>, ReplicaError> {
    let name = shape.name.as_str();
    let why = format!("the collection `{name}` is no longer available to this device");
    let mut unsent = Vec::new();
    let mut statement = connection.prepare("SELECT n, row, edit FROM _outbox WHERE collection = ?1 ORDER BY n")?;
    let mut rows = statement.query((name,))?;
    while let Some(row) = rows.next()? {
        let edit: Edit = serde_json::from_str(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?)
            .map_err(|error| ReplicaError::Unfit(format!("an edit of `{name}` cannot be read: {error}")))?;
        let (values, why) = (edit.set.unwrap_or_default(), why.clone());
        unsent.push(Unsent { row: row.get(1)?, n: Some(row.get(0)?), fields: Vec::new(), values, why });
    }
    let sql = format!(
        "SELECT p.row{} FROM _pending p LEFT JOIN {} t ON t.id = p.row WHERE p.collection = ?1 ORDER BY p.rowid",
        shape.fields.iter().map(|field| format!(", t.{}", quoted(field.name.as_str()))).collect::<String>(),
        quoted(name),
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query((name,))?;
    while let Some(row) = rows.next()? {
        let mut values = Map::new();
        for (at, field) in shape.fields.iter().enumerate() {
            let value = shown(row.get_ref(at + 1)?);
            if !value.is_null() {
                values.insert(field.name.to_string(), value);
            }
        }
        let id = shown(row.get_ref(0)?).as_str().unwrap_or_default().to_owned();
        unsent.push(Unsent { row: id, n: None, fields: Vec::new(), values, why: why.clone() });
    }
    Ok(unsent)
}

/// Pending edits of fields that are removed or change their type.
fn unsent_of_fields(
    connection: &Connection,
    old: &CollectionShape,
    new: &CollectionShape,
) -> Result<Vec<Unsent>, ReplicaError> {
    let mut unsent = Vec::new();
    for field in old.fields.iter().filter(|old| !new.fields.contains(old)) {
        let (name, column) = (field.name.to_string(), quoted(field.name.as_str()));
        let sql = format!(
            "SELECT p.row, t.{column} FROM _pending p JOIN {} t ON t.id = p.row \
             LEFT JOIN {} w ON w._row = p.row AND w._side = {BEFORE_EDIT} AND p.was_there \
             WHERE p.collection = ?1 AND t.{column} IS NOT w.{column} AND t.{column} IS NOT NULL ORDER BY p.rowid",
            quoted(old.name.as_str()),
            shadow(old),
        );
        let mut statement = connection.prepare(&sql)?;
        let mut rows = statement.query((old.name.as_str(),))?;
        while let Some(row) = rows.next()? {
            unsent.push(Unsent {
                row: shown(row.get_ref(0)?).as_str().unwrap_or_default().to_owned(),
                n: None,
                values: Map::from_iter([(name.clone(), shown(row.get_ref(1)?))]),
                why: format!("{name}: was removed from `{}` or has another type now", old.name),
                fields: vec![name.clone()],
            });
        }
    }
    Ok(unsent)
}

fn record_unsent(connection: &Connection, shape: &CollectionShape, unsent: Vec<Unsent>) -> Result<(), ReplicaError> {
    for Unsent { row, n, fields, values, why } in unsent {
        let refused = RefusedCell { fields, why, values };
        record_refused(connection, shape.name.as_str(), &row, n, &[refused])?;
    }
    Ok(())
}

/// Drops a collection and its metadata.
pub(crate) fn drop_collection(connection: &Connection, name: &str) -> Result<(), ReplicaError> {
    for table in [name.to_owned(), format!("_was_{name}"), format!("_known_{name}")] {
        connection.execute_batch(&format!("DROP TABLE IF EXISTS {}", quoted(&table)))?;
    }
    for table in ["_pending", "_server", "_unseen", "_outbox", "_sent", "_refused"] {
        connection.execute(&format!("DELETE FROM {table} WHERE collection = ?1"), (name,))?;
    }
    connection.execute("DELETE FROM _collections WHERE name = ?1", (name,))?;
    Ok(())
}

fn column(kind: FieldType) -> &'static str {
    match kind {
        FieldType::Boolean | FieldType::Integer => "INTEGER",
        FieldType::Number => "REAL",
        FieldType::String | FieldType::Timestamp | FieldType::List | FieldType::Map => "TEXT",
    }
}

fn make_table(connection: &Connection, shape: &CollectionShape) -> Result<(), ReplicaError> {
    let fields = shape.fields.iter().map(|field| format!(", {} {}", quoted(field.name.as_str()), column(field.kind)));
    let (table, fields) = (quoted(shape.name.as_str()), fields.collect::<String>());
    let sql = format!("CREATE TABLE {table} (id TEXT PRIMARY KEY NOT NULL{fields}, _version INTEGER)");
    connection.execute_batch(&sql)?;
    make_tables_beside(connection, shape)
}

/// Creates the metadata tables of a collection.
pub(crate) fn make_tables_beside(connection: &Connection, shape: &CollectionShape) -> Result<(), ReplicaError> {
    let fields = shape.fields.iter().map(|field| format!(", {}", quoted(field.name.as_str()))).collect::<String>();
    let (shadow, known) = (shadow(shape), known(shape));
    Ok(connection.execute_batch(&format!(
        "CREATE TABLE {shadow} (_row TEXT NOT NULL, _side INTEGER NOT NULL{fields}, PRIMARY KEY (_row, _side)); \
         CREATE TABLE {known} (_row TEXT PRIMARY KEY NOT NULL, _version INTEGER NOT NULL) WITHOUT ROWID;"
    ))?)
}

/// Removed fields stay in the table, empty; those with a new type start empty.
fn change_table(connection: &Connection, old: &CollectionShape, new: &CollectionShape) -> Result<(), ReplicaError> {
    drop_triggers(connection, new)?;
    for (table, has_types) in [(quoted(new.name.as_str()), true), (shadow(new), false)] {
        for field in &new.fields {
            let name = quoted(field.name.as_str());
            match old.fields.iter().find(|old| old.name == field.name) {
                Some(old) if old.kind == field.kind => continue,
                Some(_) => connection.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {name}"))?,
                None => {}
            }
            let kind = if has_types { column(field.kind) } else { "" };
            connection.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {name} {kind}"))?;
        }
        for field in old.fields.iter().filter(|old| new.fields.iter().all(|new| new.name != old.name)) {
            connection.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {}", quoted(field.name.as_str())))?;
        }
    }
    Ok(())
}

/// Suffixes of the trigger names of a collection.
pub(crate) const TRIGGERS: [&str; 6] = ["inserted", "replaced", "updated", "removed", "renamed", "named"];

fn drop_triggers(connection: &Connection, shape: &CollectionShape) -> Result<(), ReplicaError> {
    for what in TRIGGERS {
        let name = quoted(&format!("_{}_{what}", shape.name));
        connection.execute_batch(&format!("DROP TRIGGER IF EXISTS {name}"))?;
    }
    Ok(())
}

/// Creates the triggers that record edits. The row before its first edit stays recorded until it is sent.
///
/// The triggers run before the change. So they see the rows that `REPLACE` is about to remove, even where SQLite runs
/// no trigger for the removal, and the row before the application's own triggers change it further.
pub(crate) fn make_triggers(connection: &Connection, shape: &CollectionShape) -> Result<(), ReplicaError> {
    drop_triggers(connection, shape)?;
    let (name, table, shadow) = (shape.name.as_str(), quoted(shape.name.as_str()), shadow(shape));
    let trigger = |what: &str| quoted(&format!("_{name}_{what}"));
    let fields: Vec<String> = shape.fields.iter().map(|field| quoted(field.name.as_str())).collect();
    let names = fields.iter().map(|field| format!(", {field}")).collect::<String>();
    let seen = "(SELECT seen FROM _replica)";
    // `of` is `OLD.`, or empty where `from` names the table.
    let record_change = |of: &str, from: &str| {
        let cells = fields.iter().map(|field| format!(", {of}{field}")).collect::<String>();
        let and = if from.is_empty() { "WHERE" } else { "AND" };
        let unless = |list: &str| {
            format!("{and} NOT EXISTS (SELECT 1 FROM {list} l WHERE l.collection = '{name}' AND l.row = {of}id)")
        };
        let (no_server, no_pending) = (unless("_server"), unless("_pending"));
        let version = format!("coalesce({of}_version, 0)");
        format!(
            "INSERT INTO {shadow} (_row, _side{names}) SELECT {of}id, {OF_SERVER}{cells} {from} {no_server} ON CONFLICT DO NOTHING; \
             INSERT INTO _server (collection, row, base, version, is_there) SELECT '{name}', {of}id, {version}, {version}, 1 {from} {no_server} ON CONFLICT DO NOTHING; \
             INSERT INTO {shadow} (_row, _side{names}) SELECT {of}id, {BEFORE_EDIT}{cells} {from} {no_pending} ON CONFLICT DO NOTHING; \
             INSERT INTO _pending (collection, row, was_there, seen) SELECT '{name}', {of}id, 1, {seen} {from} {no_pending} ON CONFLICT DO NOTHING;"
        )
    };
    let changed = record_change("OLD.", "");
    let replaced = record_change("", &format!("FROM {table} WHERE id = NEW.id"));
    let local = "(SELECT applying FROM _replica) = 0";
    let is_there = format!("EXISTS (SELECT 1 FROM {table} WHERE id = NEW.id)");
    connection.execute_batch(&format!(
        "CREATE TRIGGER {} BEFORE INSERT ON {table} WHEN typeof(NEW.id) NOT IN ('text', 'null') \
         BEGIN SELECT RAISE(ABORT, 'id: the id of a row is text'); END; \
         CREATE TRIGGER {} BEFORE INSERT ON {table} WHEN {local} AND {is_there} BEGIN {replaced} END; \
         CREATE TRIGGER {} BEFORE INSERT ON {table} WHEN {local} AND NEW.id IS NOT NULL AND NOT {is_there} BEGIN \
         INSERT INTO _server (collection, row, base, version, is_there) VALUES ('{name}', NEW.id, 0, 0, 0) ON CONFLICT DO NOTHING; \
         INSERT INTO _pending (collection, row, was_there, seen) VALUES ('{name}', NEW.id, 0, {seen}) ON CONFLICT DO NOTHING; END; \
         CREATE TRIGGER {} BEFORE UPDATE ON {table} WHEN {local} BEGIN {changed} END; \
         CREATE TRIGGER {} BEFORE DELETE ON {table} WHEN {local} BEGIN {changed} END; \
         CREATE TRIGGER {} BEFORE UPDATE OF id ON {table} WHEN OLD.id IS NOT NEW.id \
         BEGIN SELECT RAISE(ABORT, 'id: the id of a row does not change; insert a row of the new id and delete this one'); END;",
        trigger("named"),
        trigger("replaced"),
        trigger("inserted"),
        trigger("updated"),
        trigger("removed"),
        trigger("renamed"),
    ))?;
    Ok(())
}
