//! The rows of collections on SQLite: `sync.db`.
//!
//! A file of its own with its own writer, so that a storm of devices holds up neither the flow nor the records. Edits of many
//! devices share a commit; what is new for a device is read by the readers from an index.

use std::{path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rusqlite::Connection;
use tocsin_model::{collection::Stamp, hexadecimal::digits_of, id::Name, time::Timestamp};
use tokio::sync::{Notify, watch};

use super::{
    records::{execute, query_all, query_one},
    writer::{AfterCommit, Database, FreeSpace, LOG_STEP_BYTES, Options},
};
use crate::{
    collections::{
        Block, CollectionCounts, CollectionNumber, Conflict, DeviceNumber, DeviceState, History, KeyNumber,
        PERIODS_KEPT, PastSession, RaisedEvent, ReplicaDevice, StoredRow, Wanted,
    },
    error::StoreError,
};

mod bell; // wakes who waits for rows
mod devices; // who keeps replicas
mod ledger; // rows while they change
mod raised; // events that changes of rows raise
mod reading; // what is new for a device
mod schema;
#[cfg(test)]
mod tests;

pub use bell::KeyListener;
pub use ledger::Ledger;
pub(super) use schema::MIGRATIONS;

/// How the rows are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionsOptions {
    /// While less than this is free on the disk, writes are refused with `Full`; reading goes on. 0 switches the guard off.
    pub reserve_bytes: u64,
    /// Threads that read.
    pub readers: usize,
}

impl Default for CollectionsOptions {
    fn default() -> Self {
        CollectionsOptions { reserve_bytes: 64 << 20, readers: 2 }
    }
}

/// The rows in one SQLite file. Dropping it waits for the writes that were taken on, and blocks meanwhile.
pub struct SqliteCollections {
    database: Database,
    free_space: FreeSpace,
    published: Arc<Published>,
    history: History,
}

/// What the last commit made true.
struct Published {
    newest: watch::Sender<Stamp>,
    forgotten: Mutex<Stamp>,
    counts: Mutex<CollectionCounts>,
    raised: Notify,
    bell: Arc<bell::KeyBell>,
}

impl SqliteCollections {
    /// Opens or makes `sync.db` in a folder. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process works with the file or a newer version wrote it, `Damaged` if it is no such file.
    pub fn open(folder: &Path, options: &CollectionsOptions) -> Result<SqliteCollections, StoreError> {
        let path = folder.join("sync.db");
        let database = Database::open(
            &path,
            &Options {
                // Rows of one device lie apart; small pages make each of them cheap to touch.
                page_bytes: 4_096,
                log_bytes_max: 256 << 20,
                log_step_bytes: LOG_STEP_BYTES,
                writer_cache_kib: 128 << 10,
                reader_cache_kib: 32 << 10,
                readers: options.readers,
                synced: true,
                migrations: MIGRATIONS,
            },
        )?;
        let ((newest, forgotten, counts), history) = database.write_blocking(|connection, _| {
            let history = begin_period(connection)?;
            let books =
                query_one(connection, "SELECT sequence, forgotten, rows, removed, raised FROM books", (), |row| {
                    let counts = CollectionCounts { rows: row.get(2)?, removed: row.get(3)?, raised: row.get(4)? };
                    Ok((Stamp(row.get(0)?), Stamp(row.get(1)?), counts))
                })?;
            let books = books.ok_or_else(|| StoreError::Damaged("the books of the collections".into()))?;
            Ok((books, history))
        })?;
        let published = Arc::new(Published {
            newest: watch::Sender::new(newest),
            forgotten: Mutex::new(forgotten),
            counts: Mutex::new(counts),
            raised: Notify::new(),
            bell: Arc::default(),
        });
        let free_space = FreeSpace::beside(&path, options.reserve_bytes);
        Ok(SqliteCollections { free_space, database, published, history })
    }

    /// The periods of the server, the last one of which began when the store was opened.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Runs a job over the rows; all that it changes is one commit, durable when the call returns, or nothing if it fails.
    /// Jobs that come together share an fsync.
    ///
    /// # Errors
    /// The job's own; `Full` where there is no room.
    pub async fn write<T: Send + 'static>(
        &self,
        now: Timestamp,
        job: impl FnOnce(&mut Ledger<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.free_space.check()?;
        self.commit(now, job).await
    }

    /// As `write`, also where there is no room.
    async fn commit<T: Send + 'static>(
        &self,
        now: Timestamp,
        job: impl FnOnce(&mut Ledger<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let published = self.published.clone();
        let write = move |connection: &Connection, after: &mut AfterCommit| {
            let mut ledger = open_books(connection, now)?;
            let began = (ledger.sequence, ledger.raised);
            let result = job(&mut ledger)?;
            let Ledger { sequence, rows, removed, raised, touched, .. } = ledger;
            if (sequence, raised) != began {
                let sql = "UPDATE books SET sequence = ?1, rows = ?2, removed = ?3, raised = ?4";
                execute(connection, sql, (sequence.0, rows, removed, raised))?;
                after.run(move || {
                    *published.counts.lock() = CollectionCounts { rows, removed, raised };
                    published.newest.send_replace(sequence);
                    published.bell.ring(touched);
                    if raised > began.1 {
                        published.raised.notify_one();
                    }
                });
            }
            Ok(result)
        };
        self.database.write(write).await
    }

    /// The applications of which changes of rows raised events that are still here, taken in or not.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn raisers(&self) -> Result<Vec<Name>, StoreError> {
        self.database.read(raised::applications).await
    }

    /// Events of an application behind a stamp, in the order of their changes: up to `limit`, and not many more bytes than
    /// `bytes_max`, but at least one if there is any.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn raised(
        &self,
        application: &Name,
        after: Stamp,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<RaisedEvent>, StoreError> {
        let application = application.clone();
        self.database.read(move |connection| raised::list(connection, &application, after, limit, bytes_max)).await
    }

    /// Up to where the events of an application were taken in, as far as this store was told.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn raised_upto(&self, application: &Name) -> Result<Option<Stamp>, StoreError> {
        let application = application.clone();
        self.database.read(move |connection| raised::upto_of(connection, application.as_str())).await
    }

    /// Returns when events were raised since it returned last; for one who waits.
    pub async fn wait_raised(&self) {
        self.published.raised.notified().await;
    }

    /// What is new for a device, a part of it.
    ///
    /// # Errors
    /// The store does not answer, or too many read.
    pub async fn read_block(&self, wanted: Wanted) -> Result<Block, StoreError> {
        self.database.read(move |connection| reading::block(connection, &wanted)).await
    }

    /// Whether rows of these keys changed behind a stamp.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn has_news(&self, keys: Vec<KeyNumber>, after: Stamp) -> Result<bool, StoreError> {
        self.database.read(move |connection| reading::has_news(connection, &keys, after)).await
    }

    /// From now on whoever holds the listener is woken by changes of rows of these keys.
    pub fn listen(&self, keys: &[KeyNumber]) -> KeyListener {
        self.published.bell.listen(keys)
    }

    /// The last stamp that was given out; whoever holds it is told of the next.
    pub fn newest(&self) -> watch::Receiver<Stamp> {
        self.published.newest.subscribe()
    }

    /// Up to here it is not known any more what was removed.
    pub fn forgotten(&self) -> Stamp {
        *self.published.forgotten.lock()
    }

    /// How much there is.
    pub fn counts(&self) -> CollectionCounts {
        *self.published.counts.lock()
    }

    /// A row, also one that was removed.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn row(&self, collection: CollectionNumber, id: &str) -> Result<Option<StoredRow>, StoreError> {
        let id = id.to_owned();
        self.database.read(move |connection| ledger::find_row(connection, collection, &id)).await
    }

    /// Rows that are there, by their ids.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn rows(
        &self,
        collection: CollectionNumber,
        after: &str,
        limit: usize,
    ) -> Result<Vec<StoredRow>, StoreError> {
        let after = after.to_owned();
        self.database.read(move |connection| ledger::list_rows(connection, collection, &after, limit)).await
    }

    /// The conflicts of some collections, newest first.
    ///
    /// # Errors
    /// The store does not answer.
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
                ledger::CONFLICT
            );
            let mut found = Vec::new();
            for collection in collections {
                found.extend(query_all(connection, &sql, (collection, before, limit), ledger::read_conflict)?);
            }
            found.sort_by_key(|conflict| std::cmp::Reverse(conflict.number));
            found.truncate(limit);
            Ok(found)
        };
        self.database.read(read).await
    }

    /// Makes a device. Gives its number.
    ///
    /// # Errors
    /// `Full` if there are too many.
    pub async fn put_device(&self, device: ReplicaDevice) -> Result<DeviceNumber, StoreError> {
        self.database.write(move |connection, _| devices::put(connection, &device)).await
    }

    /// All devices, oldest first.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn devices(&self) -> Result<Vec<ReplicaDevice>, StoreError> {
        self.database.read(devices::list).await
    }

    /// Forgets a device. What it wrote stays.
    ///
    /// # Errors
    /// `Missing` if there is none.
    pub async fn remove_device(&self, number: DeviceNumber) -> Result<(), StoreError> {
        self.database.write(move |connection, _| devices::remove(connection, number)).await
    }

    /// Notes that a device is to drop what it has, and that it did.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn set_wipe(
        &self,
        number: DeviceNumber,
        asked: Option<Timestamp>,
        done: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        self.database.write(move |connection, _| devices::set_wipe(connection, number, asked, done)).await
    }

    /// How far a device has come.
    ///
    /// # Errors
    /// `Missing` if there is no such device.
    pub async fn device_state(&self, number: DeviceNumber) -> Result<DeviceState, StoreError> {
        self.database.read(move |connection| devices::state(connection, number)).await
    }

    /// The keys of a generation, ascending, if it is still known.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn keys_of(&self, number: DeviceNumber, generation: u32) -> Result<Option<Vec<KeyNumber>>, StoreError> {
        self.database.read(move |connection| devices::keys_of(connection, number, generation)).await
    }

    /// The numbers of partition keys, ascending. A key that no row and no device ever had is made.
    ///
    /// # Errors
    /// The store does not answer.
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
                    let mut ledger = open_books(connection, Timestamp(0))?;
                    texts.iter().map(|text| ledger.key(text)).collect::<Result<Vec<_>, _>>()
                };
                self.database.write(make).await?
            }
        };
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// Gives a device a new generation of keys, unless it has these. Gives the number of the generation.
    ///
    /// # Errors
    /// `Missing` if there is no such device.
    pub async fn put_keys(
        &self,
        now: Timestamp,
        number: DeviceNumber,
        keys: Vec<KeyNumber>,
    ) -> Result<u32, StoreError> {
        // A device reads on while the disk is full, also with other keys.
        self.commit(now, move |ledger| devices::put_keys(ledger, number, &keys)).await
    }

    /// The batches of edits of a device that are remembered, in the order in which they arrived, each with its last edit.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn batches(&self, number: DeviceNumber) -> Result<Vec<(String, u64)>, StoreError> {
        self.database.read(move |connection| devices::batches(connection, number)).await
    }

    /// The last edit of a batch that was taken in; 0 if the batch is not remembered.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn batch_upto(&self, number: DeviceNumber, batch: &str) -> Result<u64, StoreError> {
        let batch = batch.to_owned();
        let find = move |connection: &Connection| ledger::find_batch(connection, number, &batch);
        Ok(self.database.read(find).await?.map_or(0, |batch| batch.upto))
    }

    /// The numbers of collections, made where they are missing.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn collection_numbers(
        &self,
        application: Name,
        names: Vec<Name>,
    ) -> Result<Vec<CollectionNumber>, StoreError> {
        let make = move |connection: &Connection, _: &mut AfterCommit| {
            let mut ledger = open_books(connection, Timestamp(0))?;
            names.iter().map(|name| ledger.collection(&application, name)).collect::<Result<Vec<_>, _>>()
        };
        self.database.write(make).await
    }

    /// Keeps a session that has ended.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn put_session(&self, session: PastSession) -> Result<(), StoreError> {
        self.database.write(move |connection, _| devices::put_session(connection, &session)).await
    }

    /// Sessions that have ended, of a device or of all, newest first, each with its number.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn sessions(
        &self,
        device: Option<DeviceNumber>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, PastSession)>, StoreError> {
        self.database.read(move |connection| devices::sessions(connection, device, before, limit)).await
    }

    /// Forgets what was removed before a time, and conflicts and sessions before another, about `limit` of each. Gives
    /// whether there is more.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn prune(&self, removed: Timestamp, past: Timestamp, limit: usize) -> Result<bool, StoreError> {
        let published = self.published.clone();
        let prune = move |connection: &Connection, after: &mut AfterCommit| {
            let upto = Stamp::at(removed).0;
            let mut newest = 0;
            let mut forget = |sql: &str| -> Result<usize, StoreError> {
                let sequences: Vec<u64> = query_all(connection, sql, (upto, limit), |row| row.get(0))?;
                newest = sequences.iter().copied().fold(newest, u64::max);
                Ok(sequences.len())
            };
            let gone = forget(
                "DELETE FROM rows WHERE number IN (SELECT number FROM rows WHERE body IS NULL AND sequence < ?1 LIMIT ?2)
                 RETURNING sequence",
            )?;
            let left = forget(
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
            // Whoever knows the newest of what is gone misses nothing, however long ago that was.
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

    /// Writes and syncs a few bytes; says how long that took.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn probe(&self) -> Result<Duration, StoreError> {
        self.database.probe().await
    }
}

/// Begins a period of the server, and gives all that are remembered.
fn begin_period(connection: &Connection) -> Result<History, StoreError> {
    let mut bytes = [0; 16];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| StoreError::unavailable("the system gives no random numbers"))?;
    let id = digits_of(&bytes);
    execute(connection, "INSERT INTO periods (id, began) SELECT ?1, sequence FROM books", (id,))?;
    let sql = "DELETE FROM periods WHERE number <= (SELECT number FROM periods ORDER BY number DESC LIMIT 1 OFFSET ?1)";
    execute(connection, sql, (PERIODS_KEPT,))?;
    let sql = "SELECT id, began FROM periods ORDER BY number";
    let periods = query_all(connection, sql, (), |row| Ok((row.get::<_, String>(0)?.into(), Stamp(row.get(1)?))))?;
    Ok(History(periods))
}

fn open_books(connection: &Connection, now: Timestamp) -> Result<Ledger<'_>, StoreError> {
    let books = query_one(connection, "SELECT sequence, rows, removed, raised FROM books", (), |row| {
        Ok((Stamp(row.get(0)?), row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    let (sequence, rows, removed, raised) =
        books.ok_or_else(|| StoreError::Damaged("the books of the collections".into()))?;
    Ok(Ledger { connection, now, sequence, rows, removed, raised, touched: Vec::new() })
}
