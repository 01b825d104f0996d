//! The spool on SQLite: `spool.db`, a file of its own with its own writer; or several of them, its partitions, each with a
//! part of the messages.
//!
//! Whatever is said of a message is said in its partition: its legs, its parts and its replies are there. So a commit is one
//! of a single file, and partitions know nothing of each other. No trait stands before it: there is one backend, and what exchanges need of it is its public functions.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use rusqlite::Connection;
use tocsin_model::{
    exchange::PortState,
    id::{MessageId, Name},
    time::Timestamp,
};
use tokio::sync::oneshot;

use super::{
    records::{execute, query_all, query_one},
    writer::{AfterCommit, FreeSpace},
};
use crate::{
    error::StoreError,
    keyring::Keyring,
    spool::{
        Accepted, Acted, Awaiting, Awaits, Beside, EditedMessage, HistoryEntry, IdempotencyKey, LegOrder, LegOutcome,
        MessageEdit, MessageFilter, NewLeg, NewMessage, OriginalMessage, Over, PartitionLoad, PartitionNumber,
        Reworked, SetPort, Settled, SpoolCounts, StoredExchange, StoredMessage, TakenMessage, WaitingLeg,
    },
};

mod acts; // what operators do to messages
mod flow; // what slows messages down, and since when
mod gathering; // messages that become one with others
mod history; // attempts and acts, for people
mod intake; // messages come
mod locations; // messages are taken, with how far their locations have come
mod outcomes; // what became of their legs; what is over
mod partitions; // the files, and how their number changes
mod reading; // messages, legs and lists of them
mod schema;
mod sealed; // what is secret
mod spread; // which partition a message is in
mod strays; // legs to send ports that are not there any more
mod waiting; // legs that are due, in the order in which they leave

pub use partitions::FILES;
use partitions::Partition;
pub(super) use schema::MIGRATIONS;
pub use spread::PARTITIONS_MAX;
use spread::Spread;

/// How the spool is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolOptions {
    /// While less than this is free on the disk, new messages are refused with `Full`; those that are there go on. 0
    /// switches the guard off.
    pub reserve_bytes: u64,
    /// Threads that read, of each partition.
    pub readers: usize,
    /// How many files messages are spread over, from 1 to [`PARTITIONS_MAX`]. Another number than before is taken up when
    /// the spool is opened; fewer only once nothing is in those that go.
    pub partitions: u8,
    /// Seal definitions, in which there may be passwords. What is sealed with another key than the first, or not at all, is
    /// sealed anew when the spool is opened.
    pub keys: Keyring,
}

impl Default for SpoolOptions {
    fn default() -> Self {
        SpoolOptions { reserve_bytes: 64 << 20, readers: 2, partitions: 1, keys: Keyring::default() }
    }
}

/// The spool in SQLite files. A write is durable when its call returns; concurrent writes of a partition share one fsync.
/// Dropping it waits for the writes that were taken on, and blocks meanwhile.
pub struct SqliteSpool {
    /// The first has what is known beside messages, too.
    partitions: Vec<Partition>,
    spread: Spread,
    free_space: FreeSpace,
    keys: Keyring,
    taken_ids: Arc<TakenIds>,
}

/// Ids that no message gets after a restart, whether they are stored or not.
#[derive(Default)]
struct TakenIds {
    /// Up to this one.
    last: AtomicU64,
    /// More are being taken.
    is_asked: AtomicBool,
}

/// How many ids are taken at a time.
const IDS_TAKEN: u64 = 4_096;

/// How many messages of each exchange are not ended, as of what is committed.
#[derive(Default)]
struct Open(Mutex<HashMap<String, i64>>);

impl Open {
    fn change(&self, exchange: &str, change: i64) {
        let mut open = self.0.lock();
        match open.get_mut(exchange) {
            Some(count) => *count += change,
            None => drop(open.insert(exchange.to_owned(), change)),
        }
    }

    /// Counts one exchange's change once it is committed.
    fn change_after(self: &Arc<Self>, after: &mut AfterCommit, exchange: &Name, change: i64) {
        if change != 0 {
            let (open, exchange) = (self.clone(), exchange.clone());
            after.run(move || open.change(exchange.as_str(), change));
        }
    }
}

/// How a commit changes that of several exchanges.
#[derive(Default)]
struct OpenChanges(HashMap<String, i64>);

impl OpenChanges {
    fn add(&mut self, exchange: &str, change: i64) {
        if change != 0 {
            *self.0.entry(exchange.to_owned()).or_default() += change;
        }
    }

    /// Counts it once it is committed.
    fn count_after(self, after: &mut AfterCommit, open: &Arc<Open>) {
        if !self.0.is_empty() {
            let open = open.clone();
            after.run(move || self.0.into_iter().for_each(|(exchange, change)| open.change(&exchange, change)));
        }
    }
}

impl SqliteSpool {
    /// Opens or makes `spool.db` in a folder, and the files of further partitions. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process works with a file, a newer version wrote it, or there are to be fewer partitions and
    /// something is left in one that is to go; `Damaged` if one is no such file or is not there.
    pub fn open(folder: &Path, options: &SpoolOptions) -> Result<SqliteSpool, StoreError> {
        let (partitions, spread) = partitions::open(folder, options)?;
        let free_space = FreeSpace::beside(&folder.join(FILES[0]), options.reserve_bytes);
        Ok(SqliteSpool { partitions, spread, free_space, keys: options.keys.clone(), taken_ids: Arc::default() })
    }

    fn first(&self) -> &Partition {
        &self.partitions[0]
    }

    fn at(&self, number: PartitionNumber) -> &Partition {
        &self.partitions[usize::from(number.0)]
    }

    /// The partition of a message.
    fn of(&self, id: MessageId) -> &Partition {
        self.at(self.spread.of(id))
    }

    /// Asks all partitions at the same time.
    async fn of_all<'a, T, F: Future<Output = Result<T, StoreError>>>(
        &'a self,
        ask: impl FnMut(&'a Partition) -> F,
    ) -> Result<Vec<T>, StoreError> {
        try_join_all(self.partitions.iter().map(ask)).await
    }

    /// The same, with their numbers.
    async fn of_all_numbered<'a, T, F: Future<Output = Result<T, StoreError>>>(
        &'a self,
        mut ask: impl FnMut(PartitionNumber, &'a Partition) -> F,
    ) -> Result<Vec<T>, StoreError> {
        let mut number = 0;
        self.of_all(|partition| {
            let asked = ask(PartitionNumber(number), partition);
            number += 1;
            asked
        })
        .await
    }

    /// Where a message that comes now is to be.
    ///
    /// # Errors
    /// The store does not answer: that messages of a port stay together is stored before the first of them.
    pub async fn partition_for(
        &self,
        exchange: &Name,
        port: &Name,
        beside: Beside<'_>,
    ) -> Result<PartitionNumber, StoreError> {
        match beside {
            Beside::Nothing => Ok(self.spread.in_turn()),
            Beside::Key(key) => Ok(self.spread.of_key(exchange, port, key)),
            Beside::Port => self.home_of(exchange, port).await,
            Beside::Ports(others) => self.home_beside(exchange, port, others).await,
        }
    }

    /// The partition of a message that is there.
    pub fn partition_of(&self, id: MessageId) -> PartitionNumber {
        self.spread.of(id)
    }

    /// Where the messages of a port stay together.
    async fn home_of(&self, exchange: &Name, port: &Name) -> Result<PartitionNumber, StoreError> {
        self.home_beside(exchange, port, std::slice::from_ref(port)).await
    }

    /// The same where those of other ports should be there too. Where its messages are already, they stay.
    async fn home_beside(&self, exchange: &Name, port: &Name, others: &[Name]) -> Result<PartitionNumber, StoreError> {
        if let Some(home) = self.spread.home(exchange, port) {
            return Ok(home);
        }
        let known = others.iter().find_map(|other| self.spread.home(exchange, other));
        let chosen = known.unwrap_or_else(|| self.spread.new_home(exchange, others.first().unwrap_or(port)));
        let (of, to) = (exchange.clone(), port.clone());
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let row = (of.as_str(), to.as_str(), chosen.0);
            execute(connection, "INSERT OR IGNORE INTO homes VALUES (?1, ?2, ?3)", row)?;
            Ok(())
        };
        self.first().write(job).await?;
        self.spread.remember_home(exchange.clone(), port.clone(), chosen);
        Ok(chosen)
    }

    /// An id for a new message, higher than all before. One that is not stored is another's after a restart, unless
    /// [`SqliteSpool::is_taken`] says that it is not.
    pub fn next_id(&self, partition: PartitionNumber) -> MessageId {
        self.spread.next_id(partition)
    }

    /// An id before this one, with so many between them that messages may have; or the first.
    pub fn ids_before(&self, id: MessageId, count: u64) -> MessageId {
        self.spread.ids_before(id, count)
    }

    /// How much there is.
    pub fn counts(&self) -> SpoolCounts {
        SpoolCounts { open: self.open_by_exchange().into_iter().map(|(_, open)| open).sum() }
    }

    /// How many messages of an exchange are not ended. Cheap to tell.
    pub fn open_of(&self, exchange: &Name) -> u64 {
        let open = self.partitions.iter().map(|partition| partition.open.0.lock().get(exchange.as_str()).copied());
        open.flatten().sum::<i64>().max(0).cast_unsigned()
    }

    /// How many messages are not ended, by exchange.
    pub fn open_by_exchange(&self) -> Vec<(String, u64)> {
        let mut all: BTreeMap<String, i64> = BTreeMap::new();
        for partition in &self.partitions {
            let open = partition.open.0.lock();
            open.iter().for_each(|(exchange, open)| *all.entry(exchange.clone()).or_default() += open);
        }
        all.into_iter().map(|(exchange, open)| (exchange, open.max(0).cast_unsigned())).collect()
    }

    /// How much there is in each partition, with its number as metrics have it.
    pub fn load_by_partition(&self) -> Vec<(&'static str, PartitionLoad)> {
        let load = |partition: &Partition| {
            let open = partition.open.0.lock().values().sum::<i64>().max(0).cast_unsigned();
            PartitionLoad { open, bytes: partition.bytes() }
        };
        self.partitions.iter().map(|partition| (partition.label(), load(partition))).collect()
    }

    /// What a message with this key would be, if one came before.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn known(
        &self,
        exchange: &Name,
        port: &Name,
        sender: &str,
        key: &IdempotencyKey,
    ) -> Result<Option<Accepted>, StoreError> {
        for partition in &self.partitions {
            let (exchange, port, key) = (exchange.clone(), port.clone(), key.clone());
            let sender = sender.to_owned();
            let find = move |connection: &Connection| intake::find_key(connection, (&exchange, &port), &sender, &key);
            if let Some(known) = partition.read(find).await? {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    /// What a message with the key of this one is that is in another partition, if one came before.
    async fn find_elsewhere(&self, new: &NewMessage) -> Result<Option<Accepted>, StoreError> {
        let Some(key) = &new.key else { return Ok(None) };
        let here = self.spread.of(new.id);
        for other in self.spread.former_of_key(&new.exchange, &new.port, &key.key) {
            if other != here {
                let (exchange, port, key) = (new.exchange.clone(), new.port.clone(), key.clone());
                let sender = new.sender.clone();
                let find =
                    move |connection: &Connection| intake::find_key(connection, (&exchange, &port), &sender, &key);
                if let Some(known) = self.at(other).read(find).await? {
                    return Ok(Some(known));
                }
            }
        }
        Ok(None)
    }

    /// Stores a message with its legs, unless its key came before; and in the same commit what it became, if it was split, or
    /// with whom it waits to become one.
    ///
    /// # Errors
    /// Nothing was stored; `Full` where there is no room.
    pub async fn accept(&self, taken: impl Into<TakenMessage>) -> Result<Accepted, StoreError> {
        let (answer, answered) = oneshot::channel();
        let answer = move |accepted| _ = answer.send(accepted);
        self.accept_then(Arc::new(taken.into()), answer).await;
        let (accepted, _) = answered.await.map_err(StoreError::unavailable)??;
        Ok(accepted)
    }

    /// The same for who does not wait until it is durable: `stored` is called then, or when that has failed, and must be
    /// quick, for the writer waits. It gets when the message becomes one with others, too, if it does.
    pub async fn accept_then(
        &self,
        taken: Arc<TakenMessage>,
        stored: impl FnOnce(Result<(Accepted, Option<Timestamp>), StoreError>) + Send + 'static,
    ) {
        let known = match self.free_space.check() {
            Ok(()) => self.find_elsewhere(&taken.whole).await,
            Err(error) => Err(error),
        };
        if let Some(known) = known.transpose() {
            return stored(known.map(|known| (known, None)));
        }
        let partition = self.of(taken.whole.id);
        let open = partition.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            if let Some(known) = intake::find_known(connection, &taken.whole)? {
                return Ok((known, None));
            }
            let (change, due_at) = intake::insert_taken(connection, &taken)?;
            open.change_after(after, &taken.whole.exchange, change);
            Ok((Accepted::New, due_at))
        };
        partition.write_again_then(job, stored);
    }

    /// Whether a message may be known by its id before it is stored: no other gets the same, even if this one never is. If
    /// not, that is seen to for those that come later.
    pub fn is_taken(&self, id: MessageId) -> bool {
        let TakenIds { last, is_asked } = &*self.taken_ids;
        let taken = last.load(Ordering::Acquire);
        if self.spread.ids_ahead(IDS_TAKEN / 2).0 > taken && !is_asked.swap(true, Ordering::AcqRel) {
            let (until, taken_ids) = (self.spread.ids_ahead(IDS_TAKEN), self.taken_ids.clone());
            let job = move |connection: &Connection, _: &mut AfterCommit| outcomes::take_ids(connection, until);
            self.first().write_again_then(job, move |stored| {
                if stored.is_ok() {
                    taken_ids.last.store(until.0, Ordering::Release);
                }
                taken_ids.is_asked.store(false, Ordering::Release);
            });
        }
        id.0 <= taken
    }

    /// Whether new messages are taken, as far as the room on the disk goes.
    ///
    /// # Errors
    /// `Full`: it is in the reserve.
    pub fn room(&self) -> Result<(), StoreError> {
        self.free_space.check()
    }

    /// Stores a message that left before, and what came of that, in one commit. It has no key, is one, and stays alone.
    /// `stored` is called as by [`SqliteSpool::accept_then`].
    pub fn accept_settled_then(
        &self,
        taken: Arc<TakenMessage>,
        outcome: Arc<LegOutcome>,
        stored: impl FnOnce(Result<Settled, StoreError>) + Send + 'static,
    ) {
        if let Err(error) = self.free_space.check() {
            return stored(Err(error));
        }
        let partition = self.of(outcome.message);
        let open = partition.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let (settled, change) = outcomes::insert_settled(connection, &taken, &outcome)?;
            open.change_after(after, &outcome.exchange, change);
            Ok(settled)
        };
        partition.write_again_then(job, stored);
    }

    /// Which leg waits for a message with one of these keys, and came first; if none does any more, which did last.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn awaiting(&self, exchange: &Name, awaits: Vec<Awaits>) -> Result<Option<Awaiting>, StoreError> {
        let awaits = Arc::new(awaits);
        let found = self.of_all(|partition| {
            let (exchange, awaits) = (exchange.clone(), awaits.clone());
            partition.read(move |connection| outcomes::awaiting(connection, &exchange, &awaits))
        });
        let found = found.await?.into_iter().flatten();
        Ok(found.min_by_key(|leg| (!leg.waits, if leg.waits { leg.message.0 } else { u64::MAX - leg.message.0 })))
    }

    /// Stores what came of an attempt, and the reply with its legs, in one commit: its id is of the same partition.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn settle(&self, outcome: LegOutcome) -> Result<Settled, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.settle_then(Arc::new(outcome), move |settled| _ = answer.send(settled));
        answered.await.map_err(StoreError::unavailable)?
    }

    /// The same for who does not wait until it is durable: `stored` is called then, or when that has failed, and must be
    /// quick, for the writer waits.
    pub fn settle_then(
        &self,
        outcome: Arc<LegOutcome>,
        stored: impl FnOnce(Result<Settled, StoreError>) + Send + 'static,
    ) {
        let partition = self.of(outcome.message);
        let open = partition.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let (settled, change) = outcomes::settle(connection, &outcome)?;
            open.change_after(after, &outcome.exchange, change);
            Ok(settled)
        };
        partition.write_again_then(job, stored);
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
        not: Arc<HashSet<(MessageId, u32)>>,
        (limit, bytes_max): (usize, usize),
    ) -> Result<Vec<WaitingLeg>, StoreError> {
        let (exchange, port) = (exchange.clone(), port.clone());
        let asked = waiting::Asked { exchange, port, now, not, limit, bytes_max };
        if let [only] = &self.partitions[..] {
            return only.read(move |connection| waiting::due_legs(connection, &asked, order)).await;
        }
        waiting::due_legs_of_all(&self.partitions, asked, order, self.spread.horizon()).await
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
        let next = self.of_all(|partition| {
            let (exchange, port) = (exchange.clone(), port.clone());
            partition.read(move |connection| waiting::next_due(connection, &exchange, &port, now))
        });
        Ok(next.await?.into_iter().flatten().min())
    }

    /// A message without its body.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn message(&self, id: MessageId) -> Result<Option<StoredMessage>, StoreError> {
        self.of(id).read(move |connection| reading::message(connection, id)).await
    }

    /// The history of a message, oldest first: attempts that failed, and acts.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn history(&self, id: MessageId) -> Result<Vec<HistoryEntry>, StoreError> {
        self.of(id).read(move |connection| history::of(connection, id)).await
    }

    /// Which of these messages are there, whatever came of them.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn those_there(&self, ids: &[MessageId]) -> Result<HashSet<MessageId>, StoreError> {
        let there = self.of_all_numbered(|number, partition| {
            let here: Vec<MessageId> = ids.iter().copied().filter(|id| self.spread.of(*id) == number).collect();
            partition.read(move |connection| reading::there(connection, &here))
        });
        Ok(there.await?.into_iter().flatten().collect())
    }

    /// The body of a message.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn body(&self, id: MessageId) -> Result<Option<Bytes>, StoreError> {
        let sql = "SELECT body FROM bodies WHERE id = ?1";
        let read = |row: &rusqlite::Row<'_>| row.get::<_, Vec<u8>>(0);
        Ok(self.of(id).read(move |connection| query_one(connection, sql, [id.0], read)).await?.map(Bytes::from))
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
        // Parts are beside what they are parts of.
        if let Some(id) = filter.id.or(filter.part_of) {
            let partition = self.of(id);
            return partition.read(move |connection| reading::messages(connection, &filter, before, limit)).await;
        }
        let found = self.of_all(|partition| {
            let filter = filter.clone();
            partition.read(move |connection| reading::messages(connection, &filter, before, limit))
        });
        let mut found: Vec<StoredMessage> = found.await?.into_iter().flatten().collect();
        found.sort_unstable_by_key(|message| std::cmp::Reverse(message.id));
        found.truncate(limit);
        Ok(found)
    }

    /// Lets suspended legs wait again, due at `now`, as if they had not been tried. Each is its message and its number there;
    /// those of a message stand together.
    ///
    /// # Errors
    /// Those of one partition at least are as they were.
    pub async fn resume_legs(
        &self,
        legs: Vec<(MessageId, u32)>,
        by: &str,
        now: Timestamp,
    ) -> Result<Acted, StoreError> {
        let mut by_partition: BTreeMap<_, Vec<_>> = BTreeMap::new();
        legs.into_iter().for_each(|leg| by_partition.entry(self.spread.of(leg.0)).or_default().push(leg));
        let acts = by_partition.into_iter().map(|(number, legs)| {
            let by = by.to_owned();
            self.at(number).write(move |connection, _| acts::resume_legs(connection, &legs, &by, now))
        });
        Ok(Acted::sum(try_join_all(acts).await?))
    }

    /// Suspends up to `limit` legs of each partition that wait for send ports of an exchange which are not among the `known`
    /// ones, but for those among `not`. Gives whose they are. Cheap where there are none.
    ///
    /// # Errors
    /// Those of one partition at least are as they were.
    pub async fn suspend_strays(
        &self,
        exchange: &Name,
        known: Arc<[Name]>,
        not: Arc<HashSet<(MessageId, u32)>>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<MessageId>, StoreError> {
        let suspended = self.of_all(|partition| {
            let (exchange, known, not) = (exchange.clone(), known.clone(), not.clone());
            async move {
                let of = exchange.clone();
                let ports = partition.read(move |connection| strays::ports(connection, &of, &known)).await?;
                if ports.is_empty() {
                    return Ok(Vec::new());
                }
                let job = move |connection: &Connection, _: &mut AfterCommit| {
                    strays::suspend(connection, &exchange, &ports, &not, limit, now)
                };
                partition.write(job).await
            }
        });
        Ok(suspended.await?.into_iter().flatten().collect())
    }

    /// Gives a message other legs in place of suspended ones, due at `now`, or says of these why there are none. Gives how
    /// many it got: none if those are not suspended any more.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn replace_legs(
        &self,
        exchange: &Name,
        id: MessageId,
        strays: Vec<u32>,
        legs: Result<Vec<NewLeg>, String>,
        by: &str,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let (exchange, by) = (exchange.clone(), by.to_owned());
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            acts::note_routed(connection, id, &legs, &by, now)?;
            strays::replace(connection, (&exchange, id), &strays, &legs, now)
        };
        self.of(id).write(job).await
    }

    /// Gives a message that is suspended as a whole its legs, or another reason. Gives whether it was suspended.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn route_anew(
        &self,
        id: MessageId,
        legs: Result<Vec<NewLeg>, String>,
        by: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let by = by.to_owned();
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let was_suspended = acts::route_anew(connection, id, &legs, now)?;
            if was_suspended {
                acts::note_routed(connection, id, &legs, &by, now)?;
            }
            Ok(was_suspended)
        };
        self.of(id).write(job).await
    }

    /// Makes of a suspended message what an operator wants. What it was before the first edit is kept.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn edit(&self, id: MessageId, edited: EditedMessage) -> Result<MessageEdit, StoreError> {
        self.of(id).write(move |connection, _| acts::edit(connection, id, &edited)).await
    }

    /// A message as it was before it was edited; `None` if it was not.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn original(&self, id: MessageId) -> Result<Option<OriginalMessage>, StoreError> {
        self.of(id).read(move |connection| reading::original(connection, id)).await
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
        by: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let partition = self.of(id);
        let (open, exchange, by) = (partition.open.clone(), exchange.clone(), by.to_owned());
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            open.change_after(after, &exchange, acts::rework(connection, id, &reworked, &by, now)?);
            Ok(())
        };
        partition.write(job).await
    }

    /// Ends messages: nothing more of them leaves.
    ///
    /// # Errors
    /// Those of one partition at least are as they were.
    pub async fn end(&self, ids: Vec<MessageId>, by: &str, now: Timestamp) -> Result<Acted, StoreError> {
        let acts = self.by_partition(ids).into_iter().map(|(number, ids)| {
            let partition = self.at(number);
            let (open, by) = (partition.open.clone(), by.to_owned());
            partition.write(move |connection, after| {
                let (acted, changes) = acts::end(connection, &ids, &by, now)?;
                changes.count_after(after, &open);
                Ok(acted)
            })
        });
        Ok(Acted::sum(try_join_all(acts).await?))
    }

    fn by_partition(&self, ids: Vec<MessageId>) -> BTreeMap<PartitionNumber, Vec<MessageId>> {
        let mut by_partition: BTreeMap<_, Vec<MessageId>> = BTreeMap::new();
        ids.into_iter().for_each(|id| by_partition.entry(self.spread.of(id)).or_default().push(id));
        by_partition
    }

    /// Ends up to `limit` requests of each partition whose time is over, and suspends as many legs whose later reply did not come
    /// in time.
    ///
    /// # Errors
    /// Those of one partition at least are as they were.
    pub async fn expire(&self, now: Timestamp, limit: usize) -> Result<Over, StoreError> {
        let over = self.of_all(|partition| {
            let open = partition.open.clone();
            partition.write(move |connection, after| {
                let (over, changes) = outcomes::expire(connection, now, limit)?;
                changes.count_after(after, &open);
                Ok(over)
            })
        });
        let mut all = Over::default();
        for over in over.await? {
            all.expired.extend(over.expired);
            all.unanswered.extend(over.unanswered);
            all.next = all.next.into_iter().chain(over.next).min();
        }
        Ok(all)
    }

    /// Removes up to `limit` messages of each partition whose time to be kept is over. Gives how many it were.
    ///
    /// # Errors
    /// Nothing was removed.
    pub async fn prune(&self, now: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let pruned =
            self.of_all(|partition| partition.write(move |connection, _| outcomes::prune(connection, now, limit)));
        Ok(pruned.await?.into_iter().sum())
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
        self.first().write(job).await
    }

    /// The present versions of all definitions, by name.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn exchanges(&self) -> Result<Vec<StoredExchange>, StoreError> {
        let stored = self.first().read(reading::exchanges).await?;
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
        let exchange = name.clone();
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            execute(connection, "DELETE FROM ports WHERE exchange = ?1", [name.as_str()])?;
            execute(connection, "DELETE FROM rates WHERE exchange = ?1", [name.as_str()])?;
            Ok(execute(connection, "DELETE FROM exchanges WHERE name = ?1", [name.as_str()])? > 0)
        };
        let was_there = self.first().write(job).await?;
        // What a crash keeps of them here goes with the next start.
        self.of_all(|partition| {
            let exchange = exchange.clone();
            partition.write(move |connection, _| {
                execute(connection, "DELETE FROM location_marks WHERE exchange = ?1", [exchange.as_str()])
            })
        })
        .await?;
        Ok(was_there)
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
        self.first().write(job).await
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
        self.first().read(job).await
    }

    /// Writes and syncs a few bytes in every partition; says how long the slowest took.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn probe(&self) -> Result<Duration, StoreError> {
        Ok(self.of_all(Partition::probe).await?.into_iter().max().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
