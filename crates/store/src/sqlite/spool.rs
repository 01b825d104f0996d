//! The spool on SQLite: `spool.db`, a file of its own with its own writer.
//!
//! No trait stands before it: there is one backend, and what exchanges need of it is its public functions.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::Connection;
use tocsin_model::{
    exchange::PortState,
    id::{MessageId, Name},
    time::Timestamp,
};

use super::{
    records::{execute, query_all, query_one},
    writer::{AfterCommit, Database, FreeSpace, Options},
};
use crate::{
    error::StoreError,
    keyring::Keyring,
    spool::{
        Accepted, Acted, EditedMessage, LegOrder, LegOutcome, MessageEdit, MessageFilter, NewLeg, NewMessage,
        OriginalMessage, Reworked, SetPort, Settled, SpoolCounts, StoredExchange, StoredMessage, WaitingLeg,
    },
};

mod acts; // what operators do to messages
mod flow; // what slows messages down, and since when
mod gathering; // messages that become one with others
mod intake; // messages come
mod locations; // messages are taken, with how far their locations have come
mod outcomes; // what became of their legs; what is over
mod reading; // messages, legs and lists of them
mod schema;
mod sealed; // what is secret
mod waiting; // legs that are due, in the order in which they leave

pub(super) use schema::MIGRATIONS;

/// How the spool is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolOptions {
    /// While less than this is free on the disk, new messages are refused with `Full`; those that are there go on. 0
    /// switches the guard off.
    pub reserve_bytes: u64,
    /// Threads that read.
    pub readers: usize,
    /// Seal definitions, in which there may be passwords. What is sealed with another key than the first, or not at all, is
    /// sealed anew when the spool is opened.
    pub keys: Keyring,
}

impl Default for SpoolOptions {
    fn default() -> Self {
        SpoolOptions { reserve_bytes: 64 << 20, readers: 2, keys: Keyring::default() }
    }
}

/// The spool in one SQLite file. A write is durable when its call returns; concurrent writes share one fsync. Dropping it
/// waits for the writes that were taken on, and blocks meanwhile.
pub struct SqliteSpool {
    database: Database,
    free_space: FreeSpace,
    next_id: AtomicU64,
    open: Arc<Open>,
    keys: Keyring,
}

/// How many messages of each exchange are not ended, as of what is committed.
#[derive(Default)]
struct Open(Mutex<HashMap<String, i64>>);

/// How a commit changes that.
#[derive(Default)]
struct OpenChanges(HashMap<String, i64>);

impl OpenChanges {
    fn of(exchange: &Name, change: i64) -> OpenChanges {
        let mut changes = OpenChanges::default();
        changes.add(exchange.as_str(), change);
        changes
    }

    fn add(&mut self, exchange: &str, change: i64) {
        if change != 0 {
            *self.0.entry(exchange.to_owned()).or_default() += change;
        }
    }

    /// Counts it once it is committed.
    fn count_after(self, after: &mut AfterCommit, open: &Arc<Open>) {
        if !self.0.is_empty() {
            let open = open.clone();
            after.run(move || {
                let mut open = open.0.lock();
                self.0.into_iter().for_each(|(exchange, change)| *open.entry(exchange).or_default() += change);
            });
        }
    }
}

impl SqliteSpool {
    /// Opens or makes `spool.db` in a folder. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process works with the file or a newer version wrote it, `Damaged` if it is no such file.
    pub fn open(folder: &Path, options: &SpoolOptions) -> Result<SqliteSpool, StoreError> {
        let path = folder.join("spool.db");
        let options_of_file = Options {
            page_bytes: 8_192,
            log_bytes_max: 64 << 20,
            writer_cache_kib: 64 << 10,
            reader_cache_kib: 16 << 10,
            readers: options.readers,
            synced: true,
            migrations: MIGRATIONS,
        };
        let database = Database::open(&path, &options_of_file)?;
        let keys = options.keys.clone();
        let (last, open) = database.write_blocking(move |connection, _| {
            sealed::definitions(connection, &keys)?;
            Ok((reading::last_id(connection)?, reading::open(connection)?))
        })?;
        Ok(SqliteSpool {
            database,
            free_space: FreeSpace::beside(&path, options.reserve_bytes),
            next_id: AtomicU64::new(last + 1),
            open: Arc::new(Open(Mutex::new(open.into_iter().collect()))),
            keys: options.keys.clone(),
        })
    }

    /// An id for a new message. One that is not stored is never another's until a restart.
    pub fn next_id(&self) -> MessageId {
        MessageId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// How much there is.
    pub fn counts(&self) -> SpoolCounts {
        SpoolCounts { open: self.open_by_exchange().into_iter().map(|(_, open)| open).sum() }
    }

    /// How many messages of an exchange are not ended. Cheap to tell.
    pub fn open_of(&self, exchange: &Name) -> u64 {
        self.open.0.lock().get(exchange.as_str()).map_or(0, |open| (*open).max(0).cast_unsigned())
    }

    /// How many messages are not ended, by exchange.
    pub fn open_by_exchange(&self) -> Vec<(String, u64)> {
        let open = self.open.0.lock();
        open.iter().map(|(exchange, open)| (exchange.clone(), (*open).max(0).cast_unsigned())).collect()
    }

    /// Stores a message with its legs, unless its key came before.
    ///
    /// # Errors
    /// Nothing was stored; `Full` where there is no room.
    pub async fn accept(&self, new: NewMessage) -> Result<Accepted, StoreError> {
        self.free_space.check()?;
        let open = self.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            if let Some(known) = intake::find_known(connection, &new)? {
                return Ok(known);
            }
            let change = i64::from(intake::insert(connection, &new)?);
            OpenChanges::of(&new.exchange, change).count_after(after, &open);
            Ok(Accepted::New)
        };
        self.database.write(job).await
    }

    /// Stores a message that became several, and these with their legs, in one commit; unless its key came before.
    ///
    /// # Errors
    /// Nothing was stored; `Full` where there is no room.
    pub async fn accept_split(&self, whole: NewMessage, parts: Vec<NewMessage>) -> Result<Accepted, StoreError> {
        self.free_space.check()?;
        let open = self.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            if let Some(known) = intake::find_known(connection, &whole)? {
                return Ok(known);
            }
            let change = intake::insert_split(connection, &whole, &parts)?;
            OpenChanges::of(&whole.exchange, change).count_after(after, &open);
            Ok(Accepted::New)
        };
        self.database.write(job).await
    }

    /// Stores what came of an attempt, and the reply with its legs, in one commit.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn settle(&self, outcome: LegOutcome) -> Result<Settled, StoreError> {
        let open = self.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let (settled, change) = outcomes::settle(connection, &outcome)?;
            OpenChanges::of(&outcome.exchange, change).count_after(after, &open);
            Ok(settled)
        };
        self.database.write(job).await
    }

    /// Up to `limit` legs of a send port that are due, with all that sending needs, in an order. Those among `not` are passed
    /// over. Stops after about `bytes_max` of bodies.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn due_legs(
        &self,
        exchange: &Name,
        port: &Name,
        order: LegOrder,
        now: Timestamp,
        not: Arc<std::collections::HashSet<(MessageId, u32)>>,
        (limit, bytes_max): (usize, usize),
    ) -> Result<Vec<WaitingLeg>, StoreError> {
        let (exchange, port) = (exchange.clone(), port.clone());
        let asked = waiting::Asked { exchange, port, now, not, limit, bytes_max };
        self.database.read(move |connection| waiting::due_legs(connection, &asked, order)).await
    }

    /// When the next leg of a send port is due that is not due yet.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn next_due(
        &self,
        exchange: &Name,
        port: &Name,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let (exchange, port) = (exchange.clone(), port.clone());
        self.database.read(move |connection| waiting::next_due(connection, &exchange, &port, now)).await
    }

    /// A message without its body.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn message(&self, id: MessageId) -> Result<Option<StoredMessage>, StoreError> {
        self.database.read(move |connection| reading::message(connection, id)).await
    }

    /// The body of a message.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn body(&self, id: MessageId) -> Result<Option<Bytes>, StoreError> {
        let sql = "SELECT body FROM bodies WHERE id = ?1";
        let read = |row: &rusqlite::Row<'_>| row.get::<_, Vec<u8>>(0);
        Ok(self.database.read(move |connection| query_one(connection, sql, [id.0], read)).await?.map(Bytes::from))
    }

    /// Up to `limit` messages that a filter chooses and whose id is below `before`, newest first.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn messages(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        self.database.read(move |connection| reading::messages(connection, &filter, before, limit)).await
    }

    /// Lets the suspended legs of messages wait again, due at `now`, as if they had not been tried.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn resume_legs(&self, ids: Vec<MessageId>, now: Timestamp) -> Result<Acted, StoreError> {
        self.database.write(move |connection, _| acts::resume_legs(connection, &ids, now)).await
    }

    /// Gives a message that is suspended as a whole its legs, or another reason. Gives whether it was suspended.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn route_anew(
        &self,
        id: MessageId,
        legs: Result<Vec<NewLeg>, String>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.database.write(move |connection, _| acts::route_anew(connection, id, &legs, now)).await
    }

    /// Makes of a suspended message what an operator wants. What it was before the first edit is kept.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn edit(&self, id: MessageId, edited: EditedMessage) -> Result<MessageEdit, StoreError> {
        self.database.write(move |connection, _| acts::edit(connection, id, &edited)).await
    }

    /// A message as it was before it was edited; `None` if it was not.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn original(&self, id: MessageId) -> Result<Option<OriginalMessage>, StoreError> {
        self.database.read(move |connection| reading::original(connection, id)).await
    }

    /// Gives a message that is suspended as a whole what it became. One that is not suspended any more stays as it is.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn rework(
        &self,
        exchange: &Name,
        id: MessageId,
        reworked: Reworked,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let (open, exchange) = (self.open.clone(), exchange.clone());
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            OpenChanges::of(&exchange, acts::rework(connection, id, &reworked, now)?).count_after(after, &open);
            Ok(())
        };
        self.database.write(job).await
    }

    /// Ends messages: nothing more of them leaves.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn end(&self, ids: Vec<MessageId>, now: Timestamp) -> Result<Acted, StoreError> {
        let open = self.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let (acted, changes) = acts::end(connection, &ids, now)?;
            changes.count_after(after, &open);
            Ok(acted)
        };
        self.database.write(job).await
    }

    /// Ends up to `limit` requests whose time is over. Gives them, and when the next one's time is over.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn expire(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<MessageId>, Option<Timestamp>), StoreError> {
        let open = self.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let (expired, changes, next) = outcomes::expire(connection, now, limit)?;
            changes.count_after(after, &open);
            Ok((expired, next))
        };
        self.database.write(job).await
    }

    /// Removes up to `limit` messages whose time to be kept is over. Gives how many it were.
    ///
    /// # Errors
    /// Nothing was removed.
    pub async fn prune(&self, now: Timestamp, limit: usize) -> Result<u64, StoreError> {
        self.database.write(move |connection, _| outcomes::prune(connection, now, limit)).await
    }

    /// Stores a definition, as its next version.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn put_exchange(
        &self,
        name: Name,
        text: String,
        author: String,
        now: Timestamp,
    ) -> Result<StoredExchange, StoreError> {
        let sealed = self.keys.seal(&text)?;
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let sql = "INSERT INTO exchanges SELECT ?1, coalesce(max(version), 0) + 1, ?2, ?3, ?4 FROM exchanges WHERE \
                       name = ?1 RETURNING version";
            let read = |row: &rusqlite::Row<'_>| row.get(0);
            let version = query_one(connection, sql, (name.as_str(), &sealed, &author, now.0), read)?;
            let version = version.ok_or_else(|| StoreError::Damaged("the versions of exchanges".into()))?;
            Ok(StoredExchange { name, version, text, author, applied_at: now })
        };
        self.database.write(job).await
    }

    /// The present versions of all definitions, by name.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn exchanges(&self) -> Result<Vec<StoredExchange>, StoreError> {
        let stored = self.database.read(reading::exchanges).await?;
        let open = |stored: StoredExchange| {
            Ok::<_, StoreError>(StoredExchange { text: self.keys.open(stored.text)?, ..stored })
        };
        stored.into_iter().map(open).collect()
    }

    /// Removes an exchange's definition, its versions and the states of its ports. Gives whether there was one.
    ///
    /// # Errors
    /// Nothing was removed.
    pub async fn remove_exchange(&self, name: Name) -> Result<bool, StoreError> {
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            execute(connection, "DELETE FROM ports WHERE exchange = ?1", [name.as_str()])?;
            execute(connection, "DELETE FROM rates WHERE exchange = ?1", [name.as_str()])?;
            execute(connection, "DELETE FROM location_marks WHERE exchange = ?1", [name.as_str()])?;
            Ok(execute(connection, "DELETE FROM exchanges WHERE name = ?1", [name.as_str()])? > 0)
        };
        self.database.write(job).await
    }

    /// Sets the state of a send port; `None`: as its definition says.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn set_port(&self, exchange: Name, port: Name, state: Option<PortState>) -> Result<(), StoreError> {
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let place = (exchange.as_str(), port.as_str());
            execute(connection, "DELETE FROM ports WHERE exchange = ?1 AND port = ?2", place)?;
            if let Some(state) = state {
                let row = (exchange.as_str(), port.as_str(), state.word());
                execute(connection, "INSERT INTO ports VALUES (?1, ?2, ?3)", row)?;
            }
            Ok(())
        };
        self.database.write(job).await
    }

    /// The send ports whose state an operator has set.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn set_ports(&self) -> Result<Vec<SetPort>, StoreError> {
        let sql = "SELECT exchange, port, state FROM ports ORDER BY exchange, port";
        let job = move |connection: &Connection| {
            query_all(connection, sql, (), |row| {
                Ok(SetPort {
                    exchange: reading::parsed(row, 0)?,
                    port: reading::parsed(row, 1)?,
                    state: reading::parsed(row, 2)?,
                })
            })
        };
        self.database.read(job).await
    }

    /// Writes and syncs a few bytes; says how long that took.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn probe(&self) -> Result<Duration, StoreError> {
        self.database.probe().await
    }
}

#[cfg(test)]
mod tests;
