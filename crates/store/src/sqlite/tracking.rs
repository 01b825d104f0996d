//! Tracking on SQLite: `tracking.db`, a file of its own with its own writer, which syncs no commit.
//!
//! Entries are kept in compressed blocks, so that what is tracked costs bytes and hardly any rows: one for each stretch of
//! ids of which a block has messages. Those of one time have ids of one stretch, so whoever looks for a message takes a few
//! blocks apart.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use rusqlite::{Connection, Row};
use tocsin_model::{
    exchange::{TrackPlace, TrackSwitch},
    id::{MessageId, Name},
    time::Timestamp,
};

use super::{
    records::{execute, query_all, query_one},
    writer::{AfterCommit, Database, FreeSpace, LOG_STEP_BYTES, Options},
};
use crate::{
    error::StoreError,
    tracking::{
        Entries, Findable, NewBlock, OverBlock, Search, SetTracking, TrackedBody,
        packing::{self, stretch},
    },
};

/// Blocks that are told to be over at a time, so that they fit into memory and one commit that removes them takes no longer than
/// others.
pub const OVER_MAX: usize = 8;
/// Most bodies of one message that are told.
const BODIES_MAX: usize = 1_000;
const BODIES: u32 = 0;
const FINDABLE: u32 = 1;

const MIGRATIONS: &[&str] = &[
    r#"
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    exchange TEXT NOT NULL,
    kind INTEGER NOT NULL,              -- 0: bodies, 1: by what messages are found
    goes_at INTEGER NOT NULL,           -- times are microseconds since 1970
    bytes INTEGER NOT NULL,
    packed BLOB NOT NULL
) STRICT;
CREATE INDEX blocks_that_go ON blocks (goes_at);

-- Which blocks have bodies of a message.
CREATE TABLE places (message INTEGER NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (message, block)) STRICT, WITHOUT ROWID;

CREATE TABLE properties (
    exchange TEXT NOT NULL,
    property TEXT NOT NULL,
    value TEXT NOT NULL,
    at INTEGER NOT NULL,
    message INTEGER NOT NULL,
    PRIMARY KEY (exchange, property, value, at, message)
) STRICT, WITHOUT ROWID;

-- Up to which message an exchange's can be found.
CREATE TABLE progress (exchange TEXT PRIMARY KEY, message INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- What operators have set; the port is empty for a whole exchange.
CREATE TABLE switches (
    exchange TEXT NOT NULL,
    port TEXT NOT NULL,
    switch TEXT NOT NULL,
    PRIMARY KEY (exchange, port)
) STRICT, WITHOUT ROWID;
"#,
    // A row for each message cost as much as its body did.
    r#"
CREATE TABLE stretches (stretch INTEGER NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (stretch, block)) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO stretches SELECT message >> 12, block FROM places;
DROP TABLE places;
"#,
    // The same tables. A body may be told by its place in the block, which versions before do not know.
    "",
];

/// How much tracking may keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackingOptions {
    /// While less than this is free on the disk, nothing more is kept. 0 switches the guard off.
    pub reserve_bytes: u64,
    /// Most bytes of blocks; then those go first whose time is over first.
    pub bytes_max: u64,
}

impl Default for TrackingOptions {
    fn default() -> Self {
        TrackingOptions { reserve_bytes: 64 << 20, bytes_max: 1 << 30 }
    }
}

/// What is tracked, in one SQLite file. Dropping it waits for the writes that were taken on, and blocks meanwhile.
pub struct SqliteTracking {
    database: Database,
    free_space: FreeSpace,
    bytes: Arc<AtomicI64>,
    bytes_max: i64,
}

impl SqliteTracking {
    /// Opens or makes `tracking.db` in a folder. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process works with the file or a newer version wrote it, `Damaged` if it is no such file.
    pub fn open(folder: &Path, options: &TrackingOptions) -> Result<SqliteTracking, StoreError> {
        let path = folder.join("tracking.db");
        let options_of_file = Options {
            page_bytes: 8_192,
            log_bytes_max: 32 << 20,
            log_step_bytes: LOG_STEP_BYTES,
            writer_cache_kib: 8 << 10,
            reader_cache_kib: 2 << 10,
            readers: 1,
            synced: false,
            migrations: MIGRATIONS,
        };
        let database = Database::open(&path, &options_of_file)?;
        let bytes = database.write_blocking(|connection, _| {
            query_one(connection, "SELECT coalesce(sum(bytes), 0) FROM blocks", (), |row| row.get(0))
        })?;
        Ok(SqliteTracking {
            database,
            free_space: FreeSpace::beside(&path, options.reserve_bytes),
            bytes: Arc::new(AtomicI64::new(bytes.unwrap_or(0))),
            bytes_max: i64::try_from(options.bytes_max).unwrap_or(i64::MAX),
        })
    }

    /// Bytes of all blocks. Cheap to tell.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// Keeps entries. Gives how many blocks had to go for them before their time.
    ///
    /// # Errors
    /// Nothing was stored; `Full` where there is no room on the disk.
    pub async fn keep(&self, blocks: Vec<NewBlock>) -> Result<u64, StoreError> {
        self.free_space.check()?;
        let (bytes, bytes_max) = (self.bytes.clone(), self.bytes_max);
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let mut grown = 0;
            for block in &blocks {
                grown += insert(connection, block)?;
            }
            let (mut gone, mut freed, excess) = (0, 0, bytes.load(Ordering::Relaxed) + grown - bytes_max);
            while freed < excess {
                let oldest = "SELECT id FROM blocks ORDER BY goes_at, id LIMIT 1";
                let Some(oldest) = query_one(connection, oldest, (), |row| row.get(0))? else { break };
                freed += remove(connection, oldest)?;
                gone += 1;
            }
            after.run(move || {
                bytes.fetch_add(grown - freed, Ordering::Relaxed);
            });
            Ok(gone)
        };
        self.database.write(job).await
    }

    /// Up to [`OVER_MAX`] blocks whose time is over, those first that are over for longest.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn over(&self, now: Timestamp) -> Result<Vec<OverBlock>, StoreError> {
        let job = move |connection: &Connection| {
            let sql = "SELECT id, exchange, iif(kind = ?1, packed, NULL) FROM blocks WHERE goes_at <= ?2 ORDER BY goes_at LIMIT ?3";
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            let over: Vec<(u64, String, Option<Vec<u8>>)> =
                query_all(connection, sql, (FINDABLE, now.0, OVER_MAX), read)?;
            let over = over.into_iter().map(|(id, exchange, packed)| {
                let findable = packed.map(|packed| packing::findable(&packed)).transpose()?.unwrap_or_default();
                let exchange = exchange.parse().map_err(|error| StoreError::Damaged(format!("a block: {error}")))?;
                Ok(OverBlock { id, exchange, findable })
            });
            over.collect()
        };
        self.database.read(job).await
    }

    /// Removes blocks, and keeps others in their place.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn replace(&self, blocks: Vec<u64>, others: Vec<NewBlock>) -> Result<(), StoreError> {
        let bytes = self.bytes.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let mut grown = 0;
            for id in &blocks {
                grown -= remove(connection, *id)?;
            }
            // Behind the others: what both lead to is one row.
            for block in &others {
                grown += insert(connection, block)?;
            }
            after.run(move || {
                bytes.fetch_add(grown, Ordering::Relaxed);
            });
            Ok(())
        };
        self.database.write(job).await
    }

    /// The bodies of a message, as they came about; at most a thousand.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn bodies(&self, message: MessageId) -> Result<Vec<TrackedBody>, StoreError> {
        let job = move |connection: &Connection| {
            let sql = "SELECT block FROM stretches WHERE stretch = ?1 ORDER BY block";
            let blocks: Vec<u64> = query_all(connection, sql, [stretch(message)], |row| row.get(0))?;
            let mut bodies = Vec::new();
            for block in blocks {
                let sql = "SELECT packed FROM blocks WHERE id = ?1";
                let packed: Option<Vec<u8>> = query_one(connection, sql, [block], |row| row.get(0))?;
                let found = packed.map(|packed| packing::bodies(&packed)).transpose()?.unwrap_or_default();
                bodies.extend(found.into_iter().filter(|body| body.message == message));
                bodies.truncate(BODIES_MAX);
            }
            // Stable: what happened at the same time stays in the order in which it came.
            bodies.sort_by_key(|body: &TrackedBody| body.at);
            Ok(bodies)
        };
        self.database.read(job).await
    }

    /// Up to `limit` messages with a value of a property, newest first, each with when it came.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn find(&self, search: Search, limit: usize) -> Result<Vec<(Timestamp, MessageId)>, StoreError> {
        let job = move |connection: &Connection| {
            let sql = "SELECT at, message FROM properties WHERE exchange = ?1 AND property = ?2 AND value = ?3 AND at >= ?4 AND \
                       (at, message) < (?5, ?6) ORDER BY at DESC, message DESC LIMIT ?7";
            let (until, message) = match search.after {
                Some((at, message)) if at < search.until => (at.0, message.0.cast_signed()),
                _ => (search.until.0, 0),
            };
            let row = (
                search.exchange.as_str(),
                search.property.as_str(),
                &search.value,
                search.since.0,
                until,
                message,
                limit,
            );
            query_all(connection, sql, row, |row| Ok((Timestamp(row.get(0)?), MessageId(row.get(1)?))))
        };
        self.database.read(job).await
    }

    /// Up to which message those of an exchange can be found.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn progress(&self, exchange: &Name) -> Result<Option<MessageId>, StoreError> {
        let exchange = exchange.clone();
        let sql = "SELECT message FROM progress WHERE exchange = ?1";
        let job = move |connection: &Connection| {
            query_one(connection, sql, [exchange.as_str()], |row| Ok(MessageId(row.get(0)?)))
        };
        self.database.read(job).await
    }

    /// Sets what is tracked of an exchange, or of its ports of one name; `None`: as the definition says.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn set(&self, exchange: Name, place: TrackPlace, switch: Option<TrackSwitch>) -> Result<(), StoreError> {
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let place = place.to_string();
            let key = (exchange.as_str(), &place);
            execute(connection, "DELETE FROM switches WHERE exchange = ?1 AND port = ?2", key)?;
            if let Some(switch) = switch {
                let text = serde_json::to_string(&switch).expect("a switch is always JSON");
                execute(connection, "INSERT INTO switches VALUES (?1, ?2, ?3)", (key.0, key.1, text))?;
            }
            Ok(())
        };
        self.database.write(job).await
    }

    /// What operators have set.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn switches(&self) -> Result<Vec<SetTracking>, StoreError> {
        let sql = "SELECT exchange, port, switch FROM switches ORDER BY exchange, port";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let stored: Vec<(String, String, String)> =
            self.database.read(move |connection| query_all(connection, sql, (), read)).await?;
        let damaged = |what: &dyn std::fmt::Display| StoreError::Damaged(format!("what is set of tracking: {what}"));
        let set = stored.into_iter().map(|(exchange, port, switch)| {
            let name = |text: &str| text.parse::<Name>().map_err(|error| damaged(&error));
            Ok(SetTracking {
                exchange: name(&exchange)?,
                place: port.parse().map_err(|error| damaged(&error))?,
                switch: serde_json::from_str(&switch).map_err(|error| damaged(&error))?,
            })
        });
        set.collect()
    }
}

/// Stores a block. Gives its bytes.
fn insert(connection: &Connection, block: &NewBlock) -> Result<i64, StoreError> {
    let (kind, packed) = match &block.entries {
        Entries::Bodies(bodies) => (BODIES, Cow::from(&bodies.packed)),
        Entries::Findable(findable) => (FINDABLE, Cow::from(packing::pack_findable(findable))),
    };
    let bytes = i64::try_from(packed.len()).unwrap_or(i64::MAX);
    let sql = "INSERT INTO blocks (exchange, kind, goes_at, bytes, packed) VALUES (?1, ?2, ?3, ?4, ?5)";
    execute(connection, sql, (block.exchange.as_str(), kind, block.goes_at.0, bytes, packed))?;
    match &block.entries {
        Entries::Bodies(bodies) => {
            let id = connection.last_insert_rowid();
            for stretch in &bodies.stretches {
                execute(connection, "INSERT INTO stretches VALUES (?1, ?2)", (stretch, id))?;
            }
        }
        Entries::Findable(findable) => index(connection, &block.exchange, findable)?,
    }
    Ok(bytes)
}

fn index(connection: &Connection, exchange: &Name, findable: &[Findable]) -> Result<(), StoreError> {
    let sql = "INSERT OR IGNORE INTO properties VALUES (?1, ?2, ?3, ?4, ?5)";
    for found in findable {
        for (property, value) in &found.properties {
            let row = (exchange.as_str(), property.as_str(), value, found.at.0, found.message.0);
            execute(connection, sql, row)?;
        }
    }
    let sql = "INSERT INTO progress VALUES (?1, ?2) ON CONFLICT DO UPDATE SET message = max(message, excluded.message)";
    if let Some(last) = findable.iter().map(|found| found.message.0).max() {
        execute(connection, sql, (exchange.as_str(), last))?;
    }
    Ok(())
}

/// Removes a block, and what leads to it. Gives its bytes; none if it is gone already.
fn remove(connection: &Connection, id: u64) -> Result<i64, StoreError> {
    let sql = "DELETE FROM blocks WHERE id = ?1 RETURNING exchange, kind, bytes, packed";
    let read = |row: &Row<'_>| {
        Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?, row.get::<_, i64>(2)?, row.get::<_, Vec<u8>>(3)?))
    };
    let Some((exchange, kind, bytes, packed)) = query_one(connection, sql, [id], read)? else { return Ok(0) };
    if kind == BODIES {
        let bodies = packing::bodies(&packed)?;
        for stretch in bodies.iter().map(|body| stretch(body.message)).collect::<BTreeSet<_>>() {
            execute(connection, "DELETE FROM stretches WHERE stretch = ?1 AND block = ?2", (stretch, id))?;
        }
    } else {
        let sql =
            "DELETE FROM properties WHERE exchange = ?1 AND property = ?2 AND value = ?3 AND at = ?4 AND message = ?5";
        for found in packing::findable(&packed)? {
            for (property, value) in &found.properties {
                execute(connection, sql, (&exchange, property.as_str(), value, found.at.0, found.message.0))?;
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
