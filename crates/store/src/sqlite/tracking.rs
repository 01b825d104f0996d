//! Tracking on SQLite: `tracking.db`, a separate file with its own writer, without fsync on commit.
//!
//! Entries are stored in compressed blocks, so that tracking costs bytes but few rows: one row for each stretch of
//! ids of which a block contains messages. Messages of the same time have ids of one stretch, so a search for a
//! message decompresses only a few blocks.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::BTreeSet,
    path::{Path, PathBuf},
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

use super::writer::{AfterCommit, Database, Erases, FreeSpace, LOG_STEP_BYTES, Options};
use crate::{
    error::StoreError,
    sqlite::statements::{execute, query_all, query_one},
    tracking::{
        Entries, ExpiredBlock, IndexedProperties, NewBlock, PropertySearch, SetTracking, TrackedBody,
        packing::{self, stretch},
    },
};

/// Maximum number of expired blocks returned at a time, so that they fit into memory and the commit that removes them
/// takes no longer than other commits.
pub const EXPIRED_BLOCKS_MAX: usize = 8;
/// Maximum number of bodies returned for one message.
const BODIES_MAX: usize = 1_000;
const BODIES: u32 = 0;
const FINDABLE: u32 = 1;

const MIGRATIONS: &[&str] = &[
    r#"
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    exchange TEXT NOT NULL,
    kind INTEGER NOT NULL,              -- 0: bodies, 1: indexed properties
    goes_at INTEGER NOT NULL,           -- times are microseconds since 1970
    bytes INTEGER NOT NULL,
    packed BLOB NOT NULL
) STRICT;

CREATE INDEX blocks_that_go ON blocks (goes_at);

-- Blocks that have bodies of a message.
CREATE TABLE places (message INTEGER NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (message, block)) STRICT, WITHOUT ROWID;

CREATE TABLE properties (
    exchange TEXT NOT NULL,
    property TEXT NOT NULL,
    value TEXT NOT NULL,
    at INTEGER NOT NULL,
    message INTEGER NOT NULL,
    PRIMARY KEY (exchange, property, value, at, message)
) STRICT, WITHOUT ROWID;

-- The last indexed message of each exchange.
CREATE TABLE progress (exchange TEXT PRIMARY KEY, message INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- Settings of operators; the port is empty for a whole exchange.
CREATE TABLE switches (
    exchange TEXT NOT NULL,
    port TEXT NOT NULL,
    switch TEXT NOT NULL,
    PRIMARY KEY (exchange, port)
) STRICT, WITHOUT ROWID;

"#,
    // A row per message would take as much space as its body.
    r#"
CREATE TABLE stretches (stretch INTEGER NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (stretch, block)) STRICT, WITHOUT ROWID;

INSERT OR IGNORE INTO stretches SELECT message >> 12, block FROM places;

DROP TABLE places;

"#,
    // The same tables. A body may now be a reference to an earlier entry of the block, which earlier versions cannot
    // read.
    "",
    super::audit::SCHEMA,
];

/// Limits of tracking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackingOptions {
    /// While less than this is free on the disk, nothing more is stored. 0 disables the check.
    pub reserve_bytes: u64,
    /// Maximum number of bytes of blocks; above it, the blocks whose retention ends first are removed first.
    pub bytes_max: u64,
}

impl Default for TrackingOptions {
    fn default() -> Self {
        TrackingOptions { reserve_bytes: 64 << 20, bytes_max: 1 << 30 }
    }
}

/// Tracking data in one SQLite file. Dropping it waits for the writes that were accepted, and blocks meanwhile.
pub struct SqliteTracking {
    database: Database,
    free_space: FreeSpace,
    bytes: Arc<AtomicI64>,
    bytes_max: i64,
}

/// Renames a damaged file with its log. Returns the new name.
fn set_aside(folder: &Path) -> std::io::Result<PathBuf> {
    let to = folder.join("tracking.db.damaged");
    for ending in ["-wal", "-shm", ""] {
        let (from, to) =
            (folder.join(format!("tracking.db{ending}")), folder.join(format!("tracking.db.damaged{ending}")));
        match std::fs::rename(&from, &to) {
            // A log of an earlier damaged file does not belong to this one.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !ending.is_empty() => {
                if let Err(error) = std::fs::remove_file(&to)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    return Err(error);
                }
            }
            renamed => renamed?,
        }
    }
    Ok(to)
}

super::audit::trail!(SqliteTracking, "tracking");

impl SqliteTracking {
    /// Opens or creates `tracking.db` in a folder. Blocks. A damaged file is renamed to `tracking.db.damaged`, in place of
    /// an earlier one, and a new file is created: tracking holds only copies.
    ///
    /// # Errors
    /// `Unavailable` if another process uses the file, a newer version wrote it, or a damaged file cannot be renamed.
    pub fn open(folder: &Path, options: &TrackingOptions) -> Result<SqliteTracking, StoreError> {
        match Self::open_file(folder, options) {
            Err(StoreError::Damaged(reason)) => {
                let to = set_aside(folder).map_err(|error| {
                    StoreError::unavailable(format!("the damaged `tracking.db` cannot be renamed: {error}"))
                })?;
                tracing::error!(
                    reason,
                    renamed_to = %to.display(),
                    "tracking.db is damaged; tracking begins with an empty file, and the tracking set by operators is lost"
                );
                Self::open_file(folder, options)
            }
            opened => opened,
        }
    }

    fn open_file(folder: &Path, options: &TrackingOptions) -> Result<SqliteTracking, StoreError> {
        let path = folder.join("tracking.db");
        let options_of_file = Options {
            page_bytes: 8_192,
            log_bytes_max: 32 << 20,
            log_step_bytes: LOG_STEP_BYTES,
            writer_cache_kib: 8 << 10,
            reader_cache_kib: 2 << 10,
            readers: 1,
            synced: false,
            erases: Erases::No,
            migrations: MIGRATIONS,
        };
        let database = Database::open(&path, &options_of_file)?;
        let bytes = database.write_blocking(|connection, _| {
            query_one(connection, "SELECT count(*) FROM switches", (), |_| Ok(()))?;
            query_one(connection, "SELECT coalesce(sum(bytes), 0) FROM blocks", (), |row| row.get(0))
        })?;
        Ok(SqliteTracking {
            database,
            free_space: FreeSpace::of(&path, options.reserve_bytes),
            bytes: Arc::new(AtomicI64::new(bytes.unwrap_or(0))),
            bytes_max: i64::try_from(options.bytes_max).unwrap_or(i64::MAX),
        })
    }

    /// Total bytes of all blocks. Cheap.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// Stores blocks. Returns the number of blocks that were removed before the end of their retention to make room.
    ///
    /// # Errors
    /// Nothing was stored; `Full` if there is no room on the disk.
    pub async fn store_blocks(&self, blocks: Vec<NewBlock>) -> Result<u64, StoreError> {
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

    /// Up to [`EXPIRED_BLOCKS_MAX`] blocks whose retention has ended, the oldest end first.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn expired_blocks(&self, now: Timestamp) -> Result<Vec<ExpiredBlock>, StoreError> {
        let job = move |connection: &Connection| {
            let sql = "SELECT id, exchange, iif(kind = ?1, packed, NULL) FROM blocks WHERE goes_at <= ?2 ORDER BY goes_at LIMIT ?3";
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            let over: Vec<(u64, String, Option<Vec<u8>>)> =
                query_all(connection, sql, (FINDABLE, now.0, EXPIRED_BLOCKS_MAX), read)?;
            let over = over.into_iter().map(|(id, exchange, packed)| {
                let findable = packed.map(|packed| packing::findable(&packed)).transpose()?.unwrap_or_default();
                let exchange = exchange.parse().map_err(|error| StoreError::Damaged(format!("a block: {error}")))?;
                Ok(ExpiredBlock { id, exchange, findable })
            });
            over.collect()
        };
        self.database.read(job).await
    }

    /// Removes blocks and stores others instead.
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
            // After the removal: properties that are in both are one row.
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

    /// The bodies of a message in order of time; at most a thousand.
    ///
    /// # Errors
    /// The store does not respond.
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
            // Stable: bodies with the same time stay in the order of storage.
            bodies.sort_by_key(|body: &TrackedBody| body.at);
            Ok(bodies)
        };
        self.database.read(job).await
    }

    /// Up to `limit` messages with a value of a property, newest first, each with its acceptance time.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn find(&self, search: PropertySearch, limit: usize) -> Result<Vec<(Timestamp, MessageId)>, StoreError> {
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

    /// The last message of an exchange whose properties are indexed.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn progress(&self, exchange: &Name) -> Result<Option<MessageId>, StoreError> {
        let exchange = exchange.clone();
        let sql = "SELECT message FROM progress WHERE exchange = ?1";
        let job = move |connection: &Connection| {
            query_one(connection, sql, [exchange.as_str()], |row| Ok(MessageId(row.get(0)?)))
        };
        self.database.read(job).await
    }

    /// Sets what is tracked of an exchange or of its ports with one name; `None` restores the setting of the
    /// definition.
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

    /// The settings of operators.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn switches(&self) -> Result<Vec<SetTracking>, StoreError> {
        let sql = "SELECT exchange, port, switch FROM switches ORDER BY exchange, port";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let stored: Vec<(String, String, String)> =
            self.database.read(move |connection| query_all(connection, sql, (), read)).await?;
        let damaged = |what: &dyn std::fmt::Display| StoreError::Damaged(format!("a tracking setting: {what}"));
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

/// Stores a block. Returns its bytes.
fn insert(connection: &Connection, block: &NewBlock) -> Result<i64, StoreError> {
    let (kind, packed) = match &block.entries {
        Entries::Bodies(bodies) => (BODIES, Cow::from(&bodies.packed)),
        Entries::Properties(findable) => (FINDABLE, Cow::from(packing::pack_findable(findable))),
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
        Entries::Properties(findable) => index(connection, &block.exchange, findable)?,
    }
    Ok(bytes)
}

fn index(connection: &Connection, exchange: &Name, findable: &[IndexedProperties]) -> Result<(), StoreError> {
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

/// Removes a block and its index rows. Returns its bytes; 0 if it does not exist.
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
