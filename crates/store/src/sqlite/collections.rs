//! Rows of collections on SQLite: `sync.db`.
//!
//! A separate file with its own writer, so that many devices at once delay neither events nor records. Edits of many
//! devices share a commit; the changes for a device are read from an index by the reader threads.

mod key_listeners; // wakes waiting devices after changes
mod devices; // devices and their sessions
mod row_transaction; // changes of rows within a transaction
mod row_events; // events raised by changes of rows
mod device_blocks; // blocks of changes for a device
mod erasure; // erasure of a person
mod schema;

#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rusqlite::Connection;
use tocsin_model::{collection::Stamp, id::Name, time::Timestamp};
use tokio::sync::{Notify, watch};

use super::writer::{AfterCommit, Database, Erases, FreeSpace, LOG_STEP_BYTES, Options};
use crate::{
    audit::unaudited,
    collections::{
        BlockRequest, CollectionCounts, CollectionNumber, Conflict, DeviceNumber, DeviceState, History, KeyNumber,
        PERIODS_KEPT, PastSession, RaisedEvent, ReplicaBlock, ReplicaDevice, StoredRow,
    },
    error::StoreError,
    sqlite::statements::{execute, query_all, query_one},
};

pub use key_listeners::KeyListener;
pub use row_transaction::RowTransaction;
pub(super) use schema::MIGRATIONS;

/// Options of the store for rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionsOptions {
    /// While less than this is free on the disk, writes are refused with `Full`; reads continue. 0 disables the
    /// check.
    pub reserve_bytes: u64,
    /// Number of reader threads.
    pub readers: usize,
}

impl Default for CollectionsOptions {
    fn default() -> Self {
        CollectionsOptions { reserve_bytes: 64 << 20, readers: 2 }
    }
}

/// The rows in one SQLite file. Dropping it waits for the writes that were accepted, and blocks meanwhile.
pub struct SqliteCollections {
    database: Database,
    free_space: FreeSpace,
    published: Arc<PublishedState>,
    history: History,
}

/// State of the last commit.
struct PublishedState {
    newest: watch::Sender<Stamp>,
    forgotten: Mutex<Stamp>,
    counts: Mutex<CollectionCounts>,
    raised: Notify,
    listeners: Arc<key_listeners::KeyListeners>,
}

crate::sqlite::audit::trail!(SqliteCollections, "sync");

impl SqliteCollections {
    /// Opens or creates `sync.db` in a folder. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process uses the file or a newer version wrote it, `Damaged` if it is not such a
    /// file.
    pub fn open(folder: &Path, options: &CollectionsOptions) -> Result<SqliteCollections, StoreError> {
        let path = folder.join("sync.db");
        let database = Database::open(
            &path,
            &Options {
                // Rows of one device are scattered; small pages make reading and writing each of them cheap.
                page_bytes: 4_096,
                log_bytes_max: 256 << 20,
                log_step_bytes: LOG_STEP_BYTES,
                writer_cache_kib: 128 << 10,
                reader_cache_kib: 32 << 10,
                readers: options.readers,
                synced: true,
                erases: Erases::Pages,
                migrations: MIGRATIONS,
            },
        )?;
        let ((newest, forgotten, counts), history) = database.write_blocking(|connection, _| {
            let history = begin_period(connection)?;
            let counters =
                query_one(connection, "SELECT sequence, forgotten, rows, removed, raised FROM books", (), |row| {
                    let counts = CollectionCounts { rows: row.get(2)?, removed: row.get(3)?, raised: row.get(4)? };
                    Ok((Stamp(row.get(0)?), Stamp(row.get(1)?), counts))
                })?;
            let counters = counters.ok_or_else(|| StoreError::Damaged("the table of counters".into()))?;
            Ok((counters, history))
        })?;
        let published = Arc::new(PublishedState {
            newest: watch::Sender::new(newest),
            forgotten: Mutex::new(forgotten),
            counts: Mutex::new(counts),
            raised: Notify::new(),
            listeners: Arc::default(),
        });
        let free_space = FreeSpace::of(&path, options.reserve_bytes);
        Ok(SqliteCollections { free_space, database, published, history })
    }

    /// The periods of the server; the last one began when the store was opened.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Runs a job on the rows; all its changes are one commit, durable when the call returns, or nothing if it fails.
    /// Concurrent jobs share an fsync.
    ///
    /// # Errors
    /// Errors of the job; `Full` if there is no room.
    pub async fn write<T: Send + 'static>(
        &self,
        now: Timestamp,
        job: impl FnOnce(&mut RowTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.free_space.check()?;
        self.commit(now, job).await
    }

    /// Like `write`, but also if there is no room.
    async fn commit<T: Send + 'static>(
        &self,
        now: Timestamp,
        job: impl FnOnce(&mut RowTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let published = self.published.clone();
        let write = move |connection: &Connection, after: &mut AfterCommit| {
            let mut transaction = open_transaction(connection, now)?;
            let began = (transaction.sequence, transaction.raised);
            let result = job(&mut transaction)?;
            let RowTransaction { sequence, rows, removed, raised, touched, .. } = transaction;
            if (sequence, raised) != began {
                let sql = "UPDATE books SET sequence = ?1, rows = ?2, removed = ?3, raised = ?4";
                execute(connection, sql, (sequence.0, rows, removed, raised))?;
                after.run(move || {
                    *published.counts.lock() = CollectionCounts { rows, removed, raised };
                    published.newest.send_replace(sequence);
                    published.listeners.notify(touched);
                    if raised > began.1 {
                        published.raised.notify_one();
                    }
                });
            }
            Ok(result)
        };
        self.database.write(write).await
    }

    /// The applications that have stored events of row changes, accepted or not.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn raisers(&self) -> Result<Vec<Name>, StoreError> {
        self.database.read(row_events::applications).await
    }

    /// Events of an application after a stamp, in the order of the changes: up to `limit`, and about `bytes_max`
    /// bytes, but at least one if there is any.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn raised(
        &self,
        application: &Name,
        after: Stamp,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<RaisedEvent>, StoreError> {
        let application = application.clone();
        self.database.read(move |connection| row_events::list(connection, &application, after, limit, bytes_max)).await
    }

    /// The stamp up to which events of an application were accepted, as far as it was recorded here.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn raised_upto(&self, application: &Name) -> Result<Option<Stamp>, StoreError> {
        let application = application.clone();
        self.database.read(move |connection| row_events::upto_of(connection, application.as_str())).await
    }

    /// Returns when events were raised since the last return; for a single waiting task.
    pub async fn wait_raised(&self) {
        self.published.raised.notified().await;
    }

    /// The next block of changes for a device.
    ///
    /// # Errors
    /// The store does not respond, or too many reads are waiting.
    pub async fn read_block(&self, request: BlockRequest) -> Result<ReplicaBlock, StoreError> {
        self.database.read(move |connection| device_blocks::block(connection, &request)).await
    }

    /// Whether rows of these keys changed after a stamp.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn has_changes(&self, keys: Vec<KeyNumber>, after: Stamp) -> Result<bool, StoreError> {
        self.database.read(move |connection| device_blocks::has_changes(connection, &keys, after)).await
    }

    /// The returned listener is woken by changes of rows of these keys.
    pub fn listen(&self, keys: &[KeyNumber]) -> KeyListener {
        self.published.listeners.listen(keys)
    }

    /// The last assigned stamp; the receiver is notified of later ones.
    pub fn newest(&self) -> watch::Receiver<Stamp> {
        self.published.newest.subscribe()
    }

    /// The stamp up to which removals are no longer known.
    pub fn forgotten(&self) -> Stamp {
        *self.published.forgotten.lock()
    }

    /// Counts of rows and events.
    pub fn counts(&self) -> CollectionCounts {
        *self.published.counts.lock()
    }

    /// A row, including removed ones.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn row(&self, collection: CollectionNumber, id: &str) -> Result<Option<StoredRow>, StoreError> {
        let id = id.to_owned();
        self.database.read(move |connection| row_transaction::find_row(connection, collection, &id)).await
    }

    /// Rows with content, in order of id.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn rows(
        &self,
        collection: CollectionNumber,
        after: &str,
        limit: usize,
    ) -> Result<Vec<StoredRow>, StoreError> {
        let after = after.to_owned();
        self.database.read(move |connection| row_transaction::list_rows(connection, collection, &after, limit)).await
    }

    /// The conflicts of some collections, newest first.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn conflicts(
        &self,
        collections: Vec<CollectionNumber>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Conflict>, StoreError> {
        let before = before.map_or(i64::MAX, u64::cast_signed);
        let read = move |connection: &Connection| {
            let sql = format!(
                "SELECT {} FROM conflicts WHERE collection = ?1 AND number < ?2 ORDER BY number DESC LIMIT ?3",
                row_transaction::CONFLICT
            );
            let mut found = Vec::new();
            for collection in collections {
                found.extend(query_all(connection, &sql, (collection, before, limit), row_transaction::read_conflict)?);
            }
            found.sort_by_key(|conflict| std::cmp::Reverse(conflict.number));
            found.truncate(limit);
            Ok(found)
        };
        self.database.read(read).await
    }

    /// Adds a device. Returns its number.
    ///
    /// # Errors
    /// `Full` if there are too many.
    pub async fn put_device(&self, device: ReplicaDevice) -> Result<DeviceNumber, StoreError> {
        self.database.write(move |connection, _| devices::put(connection, &device)).await
    }

    /// All devices, oldest first.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn devices(&self) -> Result<Vec<ReplicaDevice>, StoreError> {
        self.database.read(devices::list).await
    }

    /// Removes a device. What it wrote stays.
    ///
    /// # Errors
    /// `Missing` if there is none.
    pub async fn remove_device(&self, number: DeviceNumber) -> Result<(), StoreError> {
        self.database.write(move |connection, _| devices::remove(connection, number)).await
    }

    /// Records that a device must delete its data, and that it did.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn set_wipe(
        &self,
        number: DeviceNumber,
        asked: Option<Timestamp>,
        done: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        self.database.write(move |connection, _| devices::set_wipe(connection, number, asked, done)).await
    }

    /// Read and write state of a device.
    ///
    /// # Errors
    /// `Missing` if there is no such device.
    pub async fn device_state(&self, number: DeviceNumber) -> Result<DeviceState, StoreError> {
        self.database.read(move |connection| devices::state(connection, number)).await
    }

    /// The keys of a generation, ascending, if they are still known.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn keys_of(&self, number: DeviceNumber, generation: u32) -> Result<Option<Vec<KeyNumber>>, StoreError> {
        self.database.read(move |connection| devices::keys_of(connection, number, generation)).await
    }

    /// The numbers of partition keys, ascending. Missing numbers are assigned.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn key_numbers(&self, texts: Vec<String>) -> Result<Vec<KeyNumber>, StoreError> {
        let find = {
            let texts = texts.clone();
            move |connection: &Connection| {
                let sql = "SELECT number FROM keys WHERE text = ?1";
                let found = texts.iter().map(|text| query_one(connection, sql, (text,), |row| row.get(0)));
                found.collect::<Result<Option<Vec<KeyNumber>>, StoreError>>()
            }
        };
        let mut keys = match self.database.read(find).await? {
            Some(keys) => keys,
            None => {
                let make = move |connection: &Connection, _: &mut AfterCommit| {
                    let mut transaction = open_transaction(connection, Timestamp(0))?;
                    texts.iter().map(|text| transaction.key(text)).collect::<Result<Vec<_>, _>>()
                };
                unaudited(self.database.write(make)).await?
            }
        };
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// Stores a new generation of keys of a device, unless the keys are the same. Returns the number of the
    /// generation.
    ///
    /// # Errors
    /// `Missing` if there is no such device.
    pub async fn put_keys(
        &self,
        now: Timestamp,
        number: DeviceNumber,
        keys: Vec<KeyNumber>,
    ) -> Result<u32, StoreError> {
        // A device can also read with other keys while the disk is full.
        unaudited(self.commit(now, move |transaction| devices::put_keys(transaction, number, &keys))).await
    }

    /// The remembered edit batches of a device, in order of arrival, each with its last edit.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn batches(&self, number: DeviceNumber) -> Result<Vec<(String, u64)>, StoreError> {
        self.database.read(move |connection| devices::batches(connection, number)).await
    }

    /// The last edit of a batch that was applied; 0 if the batch is not remembered.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn batch_upto(&self, number: DeviceNumber, batch: &str) -> Result<u64, StoreError> {
        let batch = batch.to_owned();
        let find = move |connection: &Connection| row_transaction::find_batch(connection, number, &batch);
        Ok(self.database.read(find).await?.map_or(0, |batch| batch.upto))
    }

    /// The numbers of collections; missing numbers are assigned.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn collection_numbers(
        &self,
        application: Name,
        names: Vec<Name>,
    ) -> Result<Vec<CollectionNumber>, StoreError> {
        let make = move |connection: &Connection, _: &mut AfterCommit| {
            let mut transaction = open_transaction(connection, Timestamp(0))?;
            names.iter().map(|name| transaction.collection(&application, name)).collect::<Result<Vec<_>, _>>()
        };
        unaudited(self.database.write(make)).await
    }

    /// Stores an ended session.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn put_session(&self, session: PastSession) -> Result<(), StoreError> {
        self.database.write(move |connection, _| devices::put_session(connection, &session)).await
    }

    /// Ended sessions of one or all devices, newest first, each with its number.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn sessions(
        &self,
        device: Option<DeviceNumber>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, PastSession)>, StoreError> {
        self.database.read(move |connection| devices::sessions(connection, device, before, limit)).await
    }

    /// Removes records of removals before one time, and conflicts and sessions before another, about `limit` of each.
    /// Returns whether there are more.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn prune(&self, removed: Timestamp, past: Timestamp, limit: usize) -> Result<bool, StoreError> {
        let published = self.published.clone();
        let prune = move |connection: &Connection, after: &mut AfterCommit| {
            let upto = Stamp::at(removed).0;
            let mut newest = 0;
            let mut delete = |sql: &str| -> Result<usize, StoreError> {
                let sequences: Vec<u64> = query_all(connection, sql, (upto, limit), |row| row.get(0))?;
                newest = sequences.iter().copied().fold(newest, u64::max);
                Ok(sequences.len())
            };
            let gone = delete(
                "DELETE FROM rows WHERE number IN (SELECT number FROM rows WHERE body IS NULL AND sequence < ?1 LIMIT ?2)
                 RETURNING sequence",
            )?;
            let left = delete(
                "DELETE FROM absent WHERE (key, sequence) IN (SELECT key, sequence FROM absent WHERE sequence < ?1 LIMIT ?2)
                 RETURNING sequence",
            )?;
            let mut more = gone == limit || left == limit;
            for sql in [
                "DELETE FROM conflicts WHERE number IN (SELECT number FROM conflicts WHERE at < ?1 LIMIT ?2)",
                "DELETE FROM sessions WHERE number IN (SELECT number FROM sessions WHERE ended_at < ?1 LIMIT ?2)",
            ] {
                more |= execute(connection, sql, (past.0, limit))? == limit;
            }
            // A device that knows the newest removed record has missed nothing, however long ago that was.
            let sql = "UPDATE books SET forgotten = max(forgotten, ?1), removed = removed - ?2";
            execute(connection, sql, (newest, gone))?;
            after.run(move || {
                let mut forgotten = published.forgotten.lock();
                *forgotten = (*forgotten).max(Stamp(newest));
                published.counts.lock().removed -= gone as u64;
            });
            Ok(more)
        };
        self.database.write(prune).await
    }

    /// Writes and syncs a few bytes; returns the time it took.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn probe(&self) -> Result<Duration, StoreError> {
        self.database.probe().await
    }
}

/// Begins a period of the server, and returns all remembered periods.
fn begin_period(connection: &Connection) -> Result<History, StoreError> {
    let mut bytes = [0; 16];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| StoreError::unavailable("the system gives no random numbers"))?;
    let id = hex::encode(bytes);
    execute(connection, "INSERT INTO periods (id, began) SELECT ?1, sequence FROM books", (id,))?;
    let sql = "DELETE FROM periods WHERE number <= (SELECT number FROM periods ORDER BY number DESC LIMIT 1 OFFSET ?1)";
    execute(connection, sql, (PERIODS_KEPT,))?;
    let sql = "SELECT id, began FROM periods ORDER BY number";
    let periods = query_all(connection, sql, (), |row| Ok((row.get::<_, String>(0)?.into(), Stamp(row.get(1)?))))?;
    Ok(History(periods))
}

fn open_transaction(connection: &Connection, now: Timestamp) -> Result<RowTransaction<'_>, StoreError> {
    let counters = query_one(connection, "SELECT sequence, rows, removed, raised FROM books", (), |row| {
        Ok((Stamp(row.get(0)?), row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    let (sequence, rows, removed, raised) =
        counters.ok_or_else(|| StoreError::Damaged("the table of counters".into()))?;
    Ok(RowTransaction { connection, now, sequence, rows, removed, raised, touched: Vec::new() })
}
