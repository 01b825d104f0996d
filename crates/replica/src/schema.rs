//! Tables and triggers, made from what the server tells of its collections.

use rusqlite::Connection;
use tocsin_model::{field::FieldType, replica::CollectionShape};

use crate::ReplicaError;

/// What a replica keeps beside its rows.
pub(crate) const OWN_TABLES: &str = "
CREATE TABLE _replica (
    one INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    url TEXT NOT NULL,
    token TEXT NOT NULL,
    cursor TEXT,                            -- how far it has read; null: all anew
    seen INTEGER NOT NULL DEFAULT 0,        -- up to when it knows all
    last INTEGER NOT NULL DEFAULT 0,        -- the number of its last edit
    applying INTEGER NOT NULL DEFAULT 0     -- 1 while the server's rows are written: they are no edits
);
CREATE TABLE _collections (name TEXT PRIMARY KEY, shape TEXT NOT NULL);
-- Rows that were edited since they were sent last, with what they said before.
CREATE TABLE _pending (collection TEXT, row TEXT, was TEXT, base INTEGER NOT NULL, seen INTEGER NOT NULL, PRIMARY KEY (collection, row));
-- What the server says of rows that were edited, until they say the same.
CREATE TABLE _server (collection TEXT, row TEXT, version INTEGER NOT NULL, body TEXT, PRIMARY KEY (collection, row));
-- Edits in their order, until the server has them.
CREATE TABLE _outbox (n INTEGER PRIMARY KEY, collection TEXT NOT NULL, row TEXT NOT NULL, edit TEXT NOT NULL);
CREATE INDEX _outbox_by_row ON _outbox (collection, row);
-- Rows that were not told again while all is read anew.
CREATE TABLE _unseen (collection TEXT, row TEXT, PRIMARY KEY (collection, row));
CREATE TABLE _refused (n INTEGER PRIMARY KEY, collection TEXT NOT NULL, row TEXT NOT NULL, why TEXT NOT NULL);
";

/// A name in SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// What a row says as a JSON object of cells, for a trigger or a query. `of` is `OLD.`, or nothing.
pub(crate) fn object_of(shape: &CollectionShape, of: &str) -> String {
    let pairs = shape.fields.iter().map(|field| format!("'{}', {of}{}", field.name, quoted(field.name.as_str())));
    format!("json_object({})", pairs.collect::<Vec<_>>().join(", "))
}

/// Makes the tables as the server's collections are. Gives whether rows have to be read anew because a table has other fields.
pub(crate) fn follow(
    connection: &Connection,
    old: &[CollectionShape],
    new: &[CollectionShape],
) -> Result<bool, ReplicaError> {
    let mut anew = false;
    for gone in old.iter().filter(|old| new.iter().all(|new| new.name != old.name)) {
        drop_collection(connection, gone.name.as_str())?;
    }
    for shape in new {
        match old.iter().find(|old| old.name == shape.name) {
            Some(old) if old == shape => continue,
            Some(old) => {
                change_table(connection, old, shape)?;
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

/// Drops a collection with all that is known of it.
pub(crate) fn drop_collection(connection: &Connection, name: &str) -> Result<(), ReplicaError> {
    connection.execute_batch(&format!("DROP TABLE IF EXISTS {}", quoted(name)))?;
    for table in ["_pending", "_server", "_unseen", "_outbox", "_refused"] {
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
    Ok(connection.execute_batch(&sql)?)
}

/// Fields that went stay in the table, empty; those of another type begin anew.
fn change_table(connection: &Connection, old: &CollectionShape, new: &CollectionShape) -> Result<(), ReplicaError> {
    let table = quoted(new.name.as_str());
    drop_triggers(connection, new)?;
    for field in &new.fields {
        let name = quoted(field.name.as_str());
        match old.fields.iter().find(|old| old.name == field.name) {
            Some(old) if old.kind == field.kind => continue,
            Some(_) => connection.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {name}"))?,
            None => {}
        }
        connection.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {name} {}", column(field.kind)))?;
    }
    for field in old.fields.iter().filter(|old| new.fields.iter().all(|new| new.name != old.name)) {
        connection.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {}", quoted(field.name.as_str())))?;
    }
    Ok(())
}

fn drop_triggers(connection: &Connection, shape: &CollectionShape) -> Result<(), ReplicaError> {
    for what in ["inserted", "updated", "removed", "renamed"] {
        let name = quoted(&format!("_{}_{what}", shape.name));
        connection.execute_batch(&format!("DROP TRIGGER IF EXISTS {name}"))?;
    }
    Ok(())
}

/// What notes edits. What a row said when it was edited first stays noted until it is sent.
fn make_triggers(connection: &Connection, shape: &CollectionShape) -> Result<(), ReplicaError> {
    drop_triggers(connection, shape)?;
    let (name, table) = (shape.name.as_str(), quoted(shape.name.as_str()));
    let trigger = |what: &str| quoted(&format!("_{name}_{what}"));
    let local = "WHEN (SELECT applying FROM _replica) = 0";
    let old = object_of(shape, "OLD.");
    let note = |id: &str, was: &str, version: &str| {
        format!(
            "INSERT INTO _server VALUES ('{name}', {id}, {version}, {was}) ON CONFLICT DO NOTHING; \
             INSERT INTO _pending VALUES ('{name}', {id}, {was}, {version}, (SELECT seen FROM _replica)) ON CONFLICT DO NOTHING;"
        )
    };
    let changed = note("OLD.id", &old, "coalesce(OLD._version, 0)");
    connection.execute_batch(&format!(
        "CREATE TRIGGER {} AFTER INSERT ON {table} {local} BEGIN {} END; \
         CREATE TRIGGER {} AFTER UPDATE ON {table} {local} BEGIN {changed} END; \
         CREATE TRIGGER {} AFTER DELETE ON {table} {local} BEGIN {changed} END; \
         CREATE TRIGGER {} BEFORE UPDATE OF id ON {table} WHEN OLD.id <> NEW.id \
         BEGIN SELECT RAISE(ABORT, 'the id of a row does not change'); END;",
        trigger("inserted"),
        note("NEW.id", "NULL", "0"),
        trigger("updated"),
        trigger("removed"),
        trigger("renamed"),
    ))?;
    Ok(())
}
