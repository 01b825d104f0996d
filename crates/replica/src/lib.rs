//! Replica on a device: a SQLite file with one table per collection, edited by plain SQL and synchronized when there is
//! a connection.
//!
//! Triggers record which rows were edited, with their previous values, so any program may edit the file. A sync sends
//! the edits, downloads changes, and then sets each edited row to the server's version. It may be interrupted anywhere
//! and resumes there; later edits wait for the next sync.

pub mod http; // link over HTTPS
pub mod link; // link to the server (trait)

mod apply; // applies downloaded changes
mod cells; // conversion between SQLite cells and field values
mod edits; // outbox: edits, numbered and sent in order
mod layout; // migration of older files
mod schema; // tables and triggers of the collections
mod sync; // one sync, from begin to end
mod watch; // waiting between two syncs

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, limits::Limit};
use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::Stamp,
    replica::{CollectionShape, ROW_BYTES_MAX},
    value::Value,
};

pub use link::{Link, LinkError};
pub use sync::{Progress, Summary};
pub use watch::WakeReason;

/// Error of a replica.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The file has no replica; create one.
    #[error("{0} holds no replica; make one with `init`")]
    Missing(String),
    /// The file has a replica already.
    #[error("{0} holds a replica already")]
    Taken(String),
    /// SQLite error.
    #[error("the replica: {0}")]
    File(#[from] rusqlite::Error),
    /// The replica cannot hold this: an unknown collection or field, or a value of the wrong type.
    #[error("{0}")]
    Unfit(String),
    /// The server violated the protocol.
    #[error("unexpected response of the server: {0}")]
    Protocol(String),
    /// Error of the server or the connection.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The server requested a wipe, and the replica dropped its data.
    #[error("the server requested a wipe; the replica has dropped its data")]
    Wiped,
}

/// A replica with its open file.
pub struct Replica {
    connection: Connection,
}

/// Server and credentials of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCredentials {
    /// Base URL of the server.
    pub url: String,
    /// Device token.
    pub token: String,
}

/// Status of a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaStatus {
    /// Collections, with their row counts.
    pub collections: Vec<(String, u64)>,
    /// Rows with unsent edits.
    pub edited: u64,
    /// Edits being sent.
    pub sending: u64,
    /// Rejected edits.
    pub refused: Vec<RefusedEdit>,
    /// Stamp up to which the replica is complete.
    pub seen: Stamp,
    /// Whether it was read completely at least once.
    pub is_whole: bool,
}

/// An edit, or fields of one, rejected locally or by the server. A later edit that removes the row or sets these fields
/// clears it.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedEdit {
    /// Number, if it was sent.
    pub n: Option<u64>,
    /// Collection and row.
    pub row: (String, String),
    /// Fields; empty: the whole row.
    pub fields: Vec<String>,
    /// Rejected values of the fields.
    pub values: Map<String, Json>,
    /// Reason.
    pub why: String,
}

impl Replica {
    /// Creates a replica in a new file. It has no tables before its first sync.
    ///
    /// # Errors
    /// `Taken` if there is one; the file cannot be created.
    pub fn create(path: &Path, server: &ServerCredentials) -> Result<Replica, ReplicaError> {
        let connection = connect(path)?;
        if is_replica(&connection)? {
            return Err(ReplicaError::Taken(path.display().to_string()));
        }
        connection.execute_batch(schema::OWN_TABLES)?;
        connection.execute_batch(schema::TABLES_OF_LAYOUT_2)?;
        connection.execute("INSERT INTO _replica (url, token) VALUES (?1, ?2)", (&server.url, &server.token))?;
        Ok(Replica { connection })
    }

    /// Opens the replica in a file.
    ///
    /// # Errors
    /// `Missing` if there is none.
    pub fn open(path: &Path) -> Result<Replica, ReplicaError> {
        let missing = || ReplicaError::Missing(path.display().to_string());
        if !path.exists() {
            return Err(missing());
        }
        let connection = connect(path)?;
        if !is_replica(&connection)? {
            return Err(missing());
        }
        // An interrupted apply left nothing: its transaction was rolled back.
        let replica = Replica { connection };
        replica.convert_layout()?;
        Ok(replica)
    }

    /// Server and credentials.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn server(&self) -> Result<ServerCredentials, ReplicaError> {
        let read = |row: &rusqlite::Row<'_>| Ok(ServerCredentials { url: row.get(0)?, token: row.get(1)? });
        Ok(self.connection.query_row("SELECT url, token FROM _replica", (), read)?)
    }

    /// The connection, for queries and edits by plain SQL; triggers record the edits.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Runs a query, which must not write. Returns its column names, and its rows as JSON values.
    ///
    /// # Errors
    /// The statement writes; the error of SQLite.
    pub fn query(&self, sql: &str) -> Result<(Vec<String>, Vec<Vec<Json>>), ReplicaError> {
        self.connection.pragma_update(None, "query_only", true)?;
        // ATTACH counts as reading, and would create a file.
        let attached_max = self.connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        let found = self.rows_of(sql);
        self.connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, attached_max)?;
        self.connection.pragma_update(None, "query_only", false)?;
        found
    }

    fn rows_of(&self, sql: &str) -> Result<(Vec<String>, Vec<Vec<Json>>), ReplicaError> {
        let mut statement = self.connection.prepare(sql)?;
        if !statement.readonly() {
            return Err(ReplicaError::Unfit(
                "the statement writes, and a query only reads; `replica edit` changes rows".to_owned(),
            ));
        }
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = statement.query(())?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let cells = (0..names.len()).map(|at| Ok(cells::shown(row.get_ref(at)?)));
            found.push(cells.collect::<Result<_, rusqlite::Error>>()?);
        }
        Ok((names, found))
    }

    /// Sets fields of a row, which is created if missing.
    ///
    /// # Errors
    /// The collection or field is unknown; a field cannot hold its value; the id or the row is too long.
    pub fn put(&self, collection: &str, id: &str, fields: &Map<String, Json>) -> Result<(), ReplicaError> {
        let shape = self.shape(collection)?;
        let table = schema::quoted(collection);
        if let Some(why) = edits::check_row_id(id) {
            return Err(ReplicaError::Unfit(why));
        }
        let transaction = self.write_transaction()?;
        transaction.execute(&format!("INSERT INTO {table} (id) VALUES (?1) ON CONFLICT DO NOTHING"), (id,))?;
        for (name, value) in fields {
            let known = shape.fields.iter().find(|field| field.name.as_str() == name);
            let field = known.ok_or_else(|| ReplicaError::Unfit(format!("`{collection}` has no field `{name}`")))?;
            let fits = field.kind.accept(Value::from(value.clone()));
            fits.map_err(|message| ReplicaError::Unfit(format!("`{name}`: {message}")))?;
            let sql = format!("UPDATE {table} SET {} = ?2 WHERE id = ?1", schema::quoted(name));
            transaction.execute(&sql, (id, cells::cell_of(field.kind, value)?))?;
        }
        let bytes = self.row_bytes(&shape, id)?;
        if bytes > ROW_BYTES_MAX {
            let why = format!("the row `{id}` would have {bytes} bytes as JSON; at most {ROW_BYTES_MAX} fit");
            return Err(ReplicaError::Unfit(why));
        }
        Ok(transaction.commit()?)
    }

    /// Length of a row as JSON, counting the cells that can be sent.
    fn row_bytes(&self, shape: &CollectionShape, id: &str) -> Result<usize, ReplicaError> {
        let cells = edits::cells(&self.connection, shape, id)?.unwrap_or_default();
        let lengths = shape.fields.iter().zip(&cells).map(|(field, cell)| {
            let value = cells::value_of(field.kind, cell.into()).unwrap_or(Json::Null);
            if value.is_null() { 0 } else { field.name.as_str().len() + 4 + value.to_string().len() }
        });
        Ok(2 + lengths.sum::<usize>())
    }

    /// Removes a row. Returns whether it existed.
    ///
    /// # Errors
    /// The collection is unknown.
    pub fn remove(&self, collection: &str, id: &str) -> Result<bool, ReplicaError> {
        self.shape(collection)?;
        let sql = format!("DELETE FROM {} WHERE id = ?1", schema::quoted(collection));
        Ok(self.connection.execute(&sql, (id,))? > 0)
    }

    /// Status of the replica.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn status(&self) -> Result<ReplicaStatus, ReplicaError> {
        let count = |sql: &str| self.connection.query_row(sql, (), |row| row.get::<_, u64>(0));
        let mut collections = Vec::new();
        for shape in self.shapes()? {
            let table = schema::quoted(shape.name.as_str());
            collections.push((shape.name.to_string(), count(&format!("SELECT count(*) FROM {table}"))?));
        }
        let sql = "SELECT n, collection, row, fields, \"values\", why FROM _refused ORDER BY number";
        let mut refused = self.connection.prepare(sql)?;
        let refused = refused.query_map((), |row| {
            let unreadable =
                |error| rusqlite::Error::FromSqlConversionFailure(3, rusqlite::types::Type::Text, Box::new(error));
            Ok(RefusedEdit {
                n: row.get(0)?,
                row: (row.get(1)?, row.get(2)?),
                fields: serde_json::from_str(row.get_ref(3)?.as_str()?).map_err(unreadable)?,
                values: serde_json::from_str(row.get_ref(4)?.as_str()?).map_err(unreadable)?,
                why: row.get(5)?,
            })
        })?;
        let seen = self.connection.query_row("SELECT seen FROM _replica", (), |row| row.get(0))?;
        Ok(ReplicaStatus {
            collections,
            edited: count("SELECT count(*) FROM _pending")?,
            sending: count("SELECT count(*) FROM _outbox")?,
            refused: refused.collect::<Result<_, _>>()?,
            seen: Stamp(seen),
            is_whole: seen > 0,
        })
    }

    /// Deletes the list of rejected edits.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn forget_refused(&self) -> Result<(), ReplicaError> {
        self.connection.execute("DELETE FROM _refused", ())?;
        Ok(())
    }

    /// The collections of the replica.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn shapes(&self) -> Result<Vec<CollectionShape>, ReplicaError> {
        let mut statement = self.connection.prepare_cached("SELECT shape FROM _collections ORDER BY name")?;
        let texts = statement.query_map((), |row| row.get::<_, String>(0))?;
        let mut shapes = Vec::new();
        for text in texts {
            shapes.push(serde_json::from_str(&text?).map_err(|error| ReplicaError::Protocol(error.to_string()))?);
        }
        Ok(shapes)
    }

    /// Starts a write transaction: it waits for other writers at its start, where a failure loses nothing.
    fn write_transaction(&self) -> Result<Transaction<'_>, ReplicaError> {
        Ok(Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?)
    }

    fn shape(&self, collection: &str) -> Result<CollectionShape, ReplicaError> {
        let shapes = self.shapes()?;
        let known: Vec<&str> = shapes.iter().map(|shape| shape.name.as_str()).collect();
        let unfit = format!("this replica has no collection `{collection}`; it has {}", known.join(", "));
        shapes.into_iter().find(|shape| shape.name.as_str() == collection).ok_or(ReplicaError::Unfit(unfit))
    }
}

fn connect(path: &Path) -> Result<Connection, ReplicaError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn is_replica(connection: &Connection) -> Result<bool, ReplicaError> {
    let sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '_replica'";
    Ok(connection.query_row(sql, (), |_| Ok(())).optional()?.is_some())
}
