//! A replica on a device: a SQLite file with a table for each collection, edited by plain SQL and synchronised when there is a
//! link.
//!
//! Triggers note which rows were edited, with what they said before, so that any program may edit the file. A sync sends the
//! edits, reads what is new, and then lets each edited row say what the server says. It may be cut off anywhere and goes on
//! where it was; what was edited meanwhile waits for the next.

pub mod http; // the server, over HTTPS
pub mod link; // the server, as a replica sees it

mod apply; // what the server says comes into the tables
mod cells; // cells of SQLite as values of fields
mod edits; // what was edited becomes edits, numbered and sent in order
mod layout; // files of older versions
mod schema; // tables and triggers, made from what the server tells of its collections
mod sync; // one sync, from its begin to its end
mod watch; // a rest between two syncs

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::Stamp,
    replica::{CollectionShape, ROW_BYTES_MAX},
    value::Value,
};

pub use link::{Link, LinkError};
pub use sync::{Progress, Summary};
pub use watch::Woken;

/// Why a replica does not do something.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// There is none in this file: make one.
    #[error("{0} holds no replica; make one with `init`")]
    Missing(String),
    /// There is one already.
    #[error("{0} holds a replica already")]
    Taken(String),
    /// The file does not do it; the message is SQLite's.
    #[error("the replica: {0}")]
    File(#[from] rusqlite::Error),
    /// The replica cannot hold this: a collection or field that it does not have, or a value of another type.
    #[error("{0}")]
    Unfit(String),
    /// The server says something that is not of the protocol.
    #[error("the server says something else than expected: {0}")]
    Protocol(String),
    /// The server, or the way to it.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The server told it to drop all that it had, and it did.
    #[error("the server told this replica to drop all that it had")]
    Wiped,
}

/// A replica: its file, open.
pub struct Replica {
    connection: Connection,
}

/// Where a replica gets its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The address of the server.
    pub url: String,
    /// The token of the device.
    pub token: String,
}

/// How a replica stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Its collections, with how many rows it has of each.
    pub collections: Vec<(String, u64)>,
    /// Rows with edits that were not sent.
    pub edited: u64,
    /// Edits that are on their way.
    pub sending: u64,
    /// Edits that were refused.
    pub refused: Vec<RefusedEdit>,
    /// Up to when it knows all.
    pub seen: Stamp,
    /// Whether it has read all at least once.
    pub is_whole: bool,
}

/// An edit, or fields of one, that was refused here or by the server. A later edit of the row that removes it or sets these
/// fields ends the refusal.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedEdit {
    /// Its number, if it was sent.
    pub n: Option<u64>,
    /// Its collection and row.
    pub row: (String, String),
    /// The fields; none: the row as a whole.
    pub fields: Vec<String>,
    /// The values that these fields were given.
    pub values: Map<String, Json>,
    /// Why.
    pub why: String,
}

impl Replica {
    /// Makes a replica in a new file. It has no tables before its first sync.
    ///
    /// # Errors
    /// `Taken` if there is one; the file cannot be made.
    pub fn create(path: &Path, home: &Home) -> Result<Replica, ReplicaError> {
        let connection = connect(path)?;
        if is_replica(&connection)? {
            return Err(ReplicaError::Taken(path.display().to_string()));
        }
        connection.execute_batch(schema::OWN_TABLES)?;
        connection.execute_batch(schema::TABLES_OF_LAYOUT_2)?;
        connection.execute("INSERT INTO _replica (url, token) VALUES (?1, ?2)", (&home.url, &home.token))?;
        Ok(Replica { connection })
    }

    /// Opens the replica of a file.
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
        // A program that ended in the middle of an apply left nothing: its transaction was undone.
        let replica = Replica { connection };
        replica.convert_layout()?;
        Ok(replica)
    }

    /// Where it gets its rows.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn home(&self) -> Result<Home, ReplicaError> {
        let read = |row: &rusqlite::Row<'_>| Ok(Home { url: row.get(0)?, token: row.get(1)? });
        Ok(self.connection.query_row("SELECT url, token FROM _replica", (), read)?)
    }

    /// The file, for SQL of one's own: queries, and edits, which are noted by triggers.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Runs a query. Gives the names of its columns, and its rows as JSON values.
    ///
    /// # Errors
    /// SQLite's.
    pub fn query(&self, sql: &str) -> Result<(Vec<String>, Vec<Vec<Json>>), ReplicaError> {
        let mut statement = self.connection.prepare(sql)?;
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = statement.query(())?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let cells = (0..names.len()).map(|at| Ok(cells::shown(row.get_ref(at)?)));
            found.push(cells.collect::<Result<_, rusqlite::Error>>()?);
        }
        Ok((names, found))
    }

    /// Writes some fields of a row, which is made if it is not there.
    ///
    /// # Errors
    /// There is no such collection or field; a field cannot hold its value; the id or the row is too long.
    pub fn put(&self, collection: &str, id: &str, fields: &Map<String, Json>) -> Result<(), ReplicaError> {
        let shape = self.shape(collection)?;
        let table = schema::quoted(collection);
        if let Some(why) = edits::objection_to_id(id) {
            return Err(ReplicaError::Unfit(why));
        }
        let transaction = self.writing()?;
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

    /// The length of a row as JSON, as far as its cells can be sent.
    fn row_bytes(&self, shape: &CollectionShape, id: &str) -> Result<usize, ReplicaError> {
        let cells = edits::cells(&self.connection, shape, id)?.unwrap_or_default();
        let lengths = shape.fields.iter().zip(&cells).map(|(field, cell)| {
            let value = cells::value_of(field.kind, cell.into()).unwrap_or(Json::Null);
            if value.is_null() { 0 } else { field.name.as_str().len() + 4 + value.to_string().len() }
        });
        Ok(2 + lengths.sum::<usize>())
    }

    /// Removes a row. Gives whether it was there.
    ///
    /// # Errors
    /// There is no such collection.
    pub fn remove(&self, collection: &str, id: &str) -> Result<bool, ReplicaError> {
        self.shape(collection)?;
        let sql = format!("DELETE FROM {} WHERE id = ?1", schema::quoted(collection));
        Ok(self.connection.execute(&sql, (id,))? > 0)
    }

    /// How it stands.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn standing(&self) -> Result<Standing, ReplicaError> {
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
        Ok(Standing {
            collections,
            edited: count("SELECT count(*) FROM _pending")?,
            sending: count("SELECT count(*) FROM _outbox")?,
            refused: refused.collect::<Result<_, _>>()?,
            seen: Stamp(seen),
            is_whole: seen > 0,
        })
    }

    /// Forgets the edits that were refused.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn forget_refused(&self) -> Result<(), ReplicaError> {
        self.connection.execute("DELETE FROM _refused", ())?;
        Ok(())
    }

    /// The collections that it has.
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

    /// A transaction that may write: it waits for other programs at its beginning, where nothing is lost by it.
    fn writing(&self) -> Result<Transaction<'_>, ReplicaError> {
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
