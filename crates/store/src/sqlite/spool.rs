//! The message spool on SQLite: `spool.db`, or several partition files with a part of the messages each.
//!
//! A message, its legs, its parts and its replies are in the same partition. So each commit concerns a single file,
//! and partitions are independent. There is no port trait: this is the only backend, and its public functions are the
//! interface for exchanges.

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
    bounded_scan::{SCANNED_ROWS_MAX, ScanPage},
    error::StoreError,
    keyring::Keyring,
    spool::{
        AffectedCounts, CorrelatedLeg, CorrelationKey, EditedMessage, ExpiredMessages, HistoryEntry, IdempotencyKey,
        LegOrder, LegOutcome, MessageAcceptance, MessageEdit, MessageFilter, NewLeg, NewMessage, OriginalMessage,
        PartitionAffinity, PartitionLoad, PartitionNumber, ReceivedMessage, ReprocessedMessage, SetPort, SettleResult,
        SpoolCounts, StoredExchange, StoredMessage, WaitingLeg, WaitingLegs,
    },
};

mod operator_actions; // resume, reroute, edit, end
mod flow; // rate limits and throttling
mod aggregation; // groups of messages aggregated into one
mod history; // history of attempts and operator actions
mod intake; // storing of new messages
mod locations; // messages received by locations, committed with their checkpoints
mod outcomes; // outcomes of legs, timeouts, retention
mod partitions; // partition files, and changes of their number
mod views; // read-only queries: messages, legs, lists
mod schema;
mod encryption; // encryption of definitions at rest
mod partition_assignment; // partition of a message
mod orphaned_legs; // legs to send ports that no longer exist
mod due_legs; // due legs, in the order in which they leave

pub use partition_assignment::PARTITIONS_MAX;
use partition_assignment::PartitionAssignment;
pub use partitions::FILES;
use partitions::Partition;
pub(super) use schema::MIGRATIONS;

/// Options of the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolOptions {
    /// With less free disk space than this, new messages are refused with `Full`; stored ones are still sent. 0
    /// disables the check.
    pub reserve_bytes: u64,
    /// Number of reader threads per partition.
    pub readers: usize,
    /// Number of partition files, from 1 to [`PARTITIONS_MAX`]. A changed number takes effect when the spool is
    /// opened; it can only decrease once the partitions to be removed are empty.
    pub partitions: u8,
    /// Keys that seal definitions, which may contain passwords. Anything that is not sealed with the first key is
    /// resealed when the spool is opened.
    pub keys: Keyring,
}

impl Default for SpoolOptions {
    fn default() -> Self {
        SpoolOptions { reserve_bytes: 64 << 20, readers: 2, partitions: 1, keys: Keyring::default() }
    }
}

/// Spool in SQLite files. A write is durable when its call returns; concurrent writes of a partition share one fsync.
/// Dropping it blocks until the accepted writes are done.
pub struct SqliteSpool {
    /// The first partition also holds everything besides messages.
    partitions: Vec<Partition>,
    assignment: PartitionAssignment,
    free_space: FreeSpace,
    keys: Keyring,
    reserved_ids: Arc<ReservedIds>,
}

/// Ids reserved durably: no other message gets one of them after a restart, whether it was stored or not.
#[derive(Default)]
struct ReservedIds {
    /// Last reserved id.
    last: AtomicU64,
    /// Whether a reservation is being stored.
    is_pending: AtomicBool,
}

/// Number of ids reserved at a time.
const RESERVED_IDS: u64 = 4_096;

/// Number of open messages per exchange, as committed.
#[derive(Default)]
struct OpenCounts(Mutex<HashMap<String, i64>>);

impl OpenCounts {
    fn change(&self, exchange: &str, change: i64) {
        let mut open = self.0.lock();
        match open.get_mut(exchange) {
            Some(count) => *count += change,
            None => drop(open.insert(exchange.to_owned(), change)),
        }
    }

    /// Updates the count of one exchange after the commit.
    fn change_after(self: &Arc<Self>, after: &mut AfterCommit, exchange: &Name, change: i64) {
        if change != 0 {
            let (open, exchange) = (self.clone(), exchange.clone());
            after.run(move || open.change(exchange.as_str(), change));
        }
    }
}

/// Changes of the open counts by one commit.
#[derive(Default)]
struct OpenChanges(HashMap<String, i64>);

impl OpenChanges {
    fn add(&mut self, exchange: &str, change: i64) {
        if change != 0 {
            *self.0.entry(exchange.to_owned()).or_default() += change;
        }
    }

    /// Applies the changes after the commit.
    fn count_after(self, after: &mut AfterCommit, open: &Arc<OpenCounts>) {
        if !self.0.is_empty() {
            let open = open.clone();
            after.run(move || self.0.into_iter().for_each(|(exchange, change)| open.change(&exchange, change)));
        }
    }
}

impl SqliteSpool {
    /// Opens or creates `spool.db` in a folder, and the files of further partitions. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process uses a file, a newer version wrote it, or a partition to be removed is not
    /// empty; `Damaged` if a file is missing or is not a spool.
    pub fn open(folder: &Path, options: &SpoolOptions) -> Result<SqliteSpool, StoreError> {
        let (partitions, assignment) = partitions::open(folder, options)?;
        let free_space = FreeSpace::of(&folder.join(FILES[0]), options.reserve_bytes);
        Ok(SqliteSpool { partitions, assignment, free_space, keys: options.keys.clone(), reserved_ids: Arc::default() })
    }

    fn first(&self) -> &Partition {
        &self.partitions[0]
    }

    fn at(&self, number: PartitionNumber) -> &Partition {
        &self.partitions[usize::from(number.0)]
    }

    /// Partition of a message.
    fn of(&self, id: MessageId) -> &Partition {
        self.at(self.assignment.of(id))
    }

    /// Runs a request on all partitions concurrently.
    async fn of_all<'a, T, F: Future<Output = Result<T, StoreError>>>(
        &'a self,
        read: impl FnMut(&'a Partition) -> F,
    ) -> Result<Vec<T>, StoreError> {
        try_join_all(self.partitions.iter().map(read)).await
    }

    /// The same, with partition numbers.
    async fn of_all_numbered<'a, T, F: Future<Output = Result<T, StoreError>>>(
        &'a self,
        mut read: impl FnMut(PartitionNumber, &'a Partition) -> F,
    ) -> Result<Vec<T>, StoreError> {
        let mut number = 0;
        self.of_all(|partition| {
            let asked = read(PartitionNumber(number), partition);
            number += 1;
            asked
        })
        .await
    }

    /// Partition for a new message.
    ///
    /// # Errors
    /// The store does not respond: the home partition of a port is stored before its first message.
    pub async fn partition_for(
        &self,
        exchange: &Name,
        port: &Name,
        beside: PartitionAffinity<'_>,
    ) -> Result<PartitionNumber, StoreError> {
        match beside {
            PartitionAffinity::Nothing => Ok(self.assignment.in_turn()),
            PartitionAffinity::Key(key) => Ok(self.assignment.of_key(exchange, port, key)),
            PartitionAffinity::Port => self.home_of(exchange, port).await,
            PartitionAffinity::Ports(others) => self.home_with(exchange, port, others).await,
        }
    }

    /// Partition of an existing message.
    pub fn partition_of(&self, id: MessageId) -> PartitionNumber {
        self.assignment.of(id)
    }

    /// Home partition of a port, which keeps its messages together.
    async fn home_of(&self, exchange: &Name, port: &Name) -> Result<PartitionNumber, StoreError> {
        self.home_with(exchange, port, std::slice::from_ref(port)).await
    }

    /// Home partition shared with other ports. A port that has a home keeps it.
    async fn home_with(&self, exchange: &Name, port: &Name, others: &[Name]) -> Result<PartitionNumber, StoreError> {
        if let Some(home) = self.assignment.home(exchange, port) {
            return Ok(home);
        }
        let known = others.iter().find_map(|other| self.assignment.home(exchange, other));
        let chosen = known.unwrap_or_else(|| self.assignment.new_home(exchange, others.first().unwrap_or(port)));
        let (of, to) = (exchange.clone(), port.clone());
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let row = (of.as_str(), to.as_str(), chosen.0);
            execute(connection, "INSERT OR IGNORE INTO homes VALUES (?1, ?2, ?3)", row)?;
            Ok(())
        };
        self.first().write(job).await?;
        self.assignment.remember_home(exchange.clone(), port.clone(), chosen);
        Ok(chosen)
    }

    /// Assigns an id for a new message, above all before. After a restart, an id that was not stored can be assigned
    /// again, unless [`SqliteSpool::is_reserved`] returns true.
    pub fn next_id(&self, partition: PartitionNumber) -> MessageId {
        self.assignment.next_id(partition)
    }

    /// Id that is `count` possible message ids before this one; at least the first.
    pub fn ids_before(&self, id: MessageId, count: u64) -> MessageId {
        self.assignment.ids_before(id, count)
    }

    /// Row counts.
    pub fn counts(&self) -> SpoolCounts {
        SpoolCounts { open: self.open_by_exchange().into_iter().map(|(_, open)| open).sum() }
    }

    /// Number of open messages of an exchange. Cheap to read.
    pub fn open_of(&self, exchange: &Name) -> u64 {
        let open = self.partitions.iter().map(|partition| partition.open.0.lock().get(exchange.as_str()).copied());
        open.flatten().sum::<i64>().max(0).cast_unsigned()
    }

    /// Number of open messages by exchange.
    pub fn open_by_exchange(&self) -> Vec<(String, u64)> {
        let mut all: BTreeMap<String, i64> = BTreeMap::new();
        for partition in &self.partitions {
            let open = partition.open.0.lock();
            open.iter().for_each(|(exchange, open)| *all.entry(exchange.clone()).or_default() += open);
        }
        all.into_iter().map(|(exchange, open)| (exchange, open.max(0).cast_unsigned())).collect()
    }

    /// Load of each partition, with its metric label.
    pub fn load_by_partition(&self) -> Vec<(&'static str, PartitionLoad)> {
        let load = |partition: &Partition| {
            let open = partition.open.0.lock().values().sum::<i64>().max(0).cast_unsigned();
            PartitionLoad { open, bytes: partition.bytes() }
        };
        self.partitions.iter().map(|partition| (partition.label(), load(partition))).collect()
    }

    /// Result of storing a message with this key, if one exists.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn known(
        &self,
        exchange: &Name,
        port: &Name,
        sender: &str,
        key: &IdempotencyKey,
    ) -> Result<Option<MessageAcceptance>, StoreError> {
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

    /// The same for a message whose key may be stored in another partition.
    async fn find_in_other_partitions(&self, new: &NewMessage) -> Result<Option<MessageAcceptance>, StoreError> {
        let Some(key) = &new.key else { return Ok(None) };
        let here = self.assignment.of(new.id);
        for other in self.assignment.former_of_key(&new.exchange, &new.port, &key.key) {
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

    /// Stores a message with its legs, unless its key exists. Its parts or its membership in a group are stored in
    /// the same commit.
    ///
    /// # Errors
    /// Nothing was stored; `Full` if the disk is full.
    pub async fn accept(&self, taken: impl Into<ReceivedMessage>) -> Result<MessageAcceptance, StoreError> {
        let (answer, answered) = oneshot::channel();
        let answer = move |accepted| _ = answer.send(accepted);
        self.accept_then(Arc::new(taken.into()), answer).await;
        let (accepted, _) = answered.await.map_err(StoreError::unavailable)??;
        Ok(accepted)
    }

    /// The same with a callback: `stored` is called after the commit or its failure. It must be quick, since the
    /// writer waits. It also gets the time at which the message's group is due, if any.
    pub async fn accept_then(
        &self,
        taken: Arc<ReceivedMessage>,
        stored: impl FnOnce(Result<(MessageAcceptance, Option<Timestamp>), StoreError>) + Send + 'static,
    ) {
        let known = match self.free_space.check() {
            Ok(()) => self.find_in_other_partitions(&taken.whole).await,
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
            let (change, due_at) = intake::insert_received(connection, &taken)?;
            open.change_after(after, &taken.whole.exchange, change);
            Ok((MessageAcceptance::New, due_at))
        };
        partition.write_retryable_then(job, stored);
    }

    /// Whether an id is reserved durably, so that the message can be sent before it is stored. If not, starts a
    /// reservation for later ids.
    pub fn is_reserved(&self, id: MessageId) -> bool {
        let ReservedIds { last, is_pending } = &*self.reserved_ids;
        let taken = last.load(Ordering::Acquire);
        if self.assignment.ids_ahead(RESERVED_IDS / 2).0 > taken && !is_pending.swap(true, Ordering::AcqRel) {
            let (until, reserved_ids) = (self.assignment.ids_ahead(RESERVED_IDS), self.reserved_ids.clone());
            let job = move |connection: &Connection, _: &mut AfterCommit| outcomes::reserve_ids(connection, until);
            self.first().write_retryable_then(job, move |stored| {
                if stored.is_ok() {
                    reserved_ids.last.store(until.0, Ordering::Release);
                }
                reserved_ids.is_pending.store(false, Ordering::Release);
            });
        }
        id.0 <= taken
    }

    /// Checks whether new messages are accepted as far as disk space is concerned.
    ///
    /// # Errors
    /// `Full`: the free space is below the reserve.
    pub fn room(&self) -> Result<(), StoreError> {
        self.free_space.check()
    }

    /// Stores a message that was sent before the commit together with its outcome. The message has no key, and is
    /// neither split nor aggregated. `stored` is called as by [`SqliteSpool::accept_then`].
    pub fn accept_settled_then(
        &self,
        taken: Arc<ReceivedMessage>,
        outcome: Arc<LegOutcome>,
        stored: impl FnOnce(Result<SettleResult, StoreError>) + Send + 'static,
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
        partition.write_retryable_then(job, stored);
    }

    /// Finds the first leg that awaits a reply with one of these correlation keys; if none waits any more, the last
    /// one that did.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn awaiting(
        &self,
        exchange: &Name,
        awaits: Vec<CorrelationKey>,
    ) -> Result<Option<CorrelatedLeg>, StoreError> {
        let awaits = Arc::new(awaits);
        let found = self.of_all(|partition| {
            let (exchange, awaits) = (exchange.clone(), awaits.clone());
            partition.read(move |connection| outcomes::awaiting(connection, &exchange, &awaits))
        });
        let found = found.await?.into_iter().flatten();
        Ok(found.min_by_key(|leg| (!leg.waits, if leg.waits { leg.message.0 } else { u64::MAX - leg.message.0 })))
    }

    /// Stores the outcome of an attempt, and the reply with its legs, in one commit. The reply's id is of the same
    /// partition.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn settle(&self, outcome: LegOutcome) -> Result<SettleResult, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.settle_then(Arc::new(outcome), move |settled| _ = answer.send(settled));
        answered.await.map_err(StoreError::unavailable)?
    }

    /// The same with a callback: `stored` is called after the commit or its failure. It must be quick, since the
    /// writer waits.
    pub fn settle_then(
        &self,
        outcome: Arc<LegOutcome>,
        stored: impl FnOnce(Result<SettleResult, StoreError>) + Send + 'static,
    ) {
        let partition = self.of(outcome.message);
        let open = partition.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let (settled, change) = outcomes::settle(connection, &outcome)?;
            open.change_after(after, &outcome.exchange, change);
            Ok(settled)
        };
        partition.write_retryable_then(job, stored);
    }

    /// Up to `limit` due legs of a send port with everything that sending needs, in the given order, without those in
    /// `not`. Stops after about `bytes_max` bytes of bodies.
    ///
    /// # Errors
    /// The store does not respond.
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
        let asked = due_legs::DueLegsQuery { exchange, port, now, not, limit, bytes_max };
        if let [only] = &self.partitions[..] {
            return only.read(move |connection| due_legs::due_legs(connection, &asked, order)).await;
        }
        due_legs::due_legs_of_all(&self.partitions, asked, order, self.assignment.horizon()).await
    }

    /// Due time of the next leg of a send port that is not due yet.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn next_due(
        &self,
        exchange: &Name,
        port: &Name,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let next = self.of_all(|partition| {
            let (exchange, port) = (exchange.clone(), port.clone());
            partition.read(move |connection| due_legs::next_due(connection, &exchange, &port, now))
        });
        Ok(next.await?.into_iter().flatten().min())
    }

    /// Legs that wait to be sent, by exchange and send port. A port can occur several times.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn waiting_legs(&self, now: Timestamp) -> Result<Vec<WaitingLegs>, StoreError> {
        let all = self.of_all(|partition| partition.read(move |connection| views::waiting_legs(connection, now)));
        Ok(all.await?.into_iter().flatten().collect())
    }

    /// Message without its body.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn message(&self, id: MessageId) -> Result<Option<StoredMessage>, StoreError> {
        self.of(id).read(move |connection| views::message(connection, id)).await
    }

    /// History of a message, oldest first: failed attempts, and actions.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn history(&self, id: MessageId) -> Result<Vec<HistoryEntry>, StoreError> {
        self.of(id).read(move |connection| history::of(connection, id)).await
    }

    /// Existing messages among these ids, in any state.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn existing(&self, ids: &[MessageId]) -> Result<HashSet<MessageId>, StoreError> {
        let there = self.of_all_numbered(|number, partition| {
            let here: Vec<MessageId> = ids.iter().copied().filter(|id| self.assignment.of(*id) == number).collect();
            partition.read(move |connection| views::existing(connection, &here))
        });
        Ok(there.await?.into_iter().flatten().collect())
    }

    /// Body of a message.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn body(&self, id: MessageId) -> Result<Option<Bytes>, StoreError> {
        let sql = "SELECT body FROM bodies WHERE id = ?1";
        let read = |row: &rusqlite::Row<'_>| row.get::<_, Vec<u8>>(0);
        Ok(self.of(id).read(move |connection| query_one(connection, sql, [id.0], read)).await?.map(Bytes::from))
    }

    /// Up to `limit` messages that match a filter and have ids below `before`, newest first.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn messages(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        // Parts are in the partition of their original.
        if let Some(id) = filter.id.or(filter.part_of) {
            let partition = self.of(id);
            return partition.read(move |connection| views::messages(connection, &filter, before, limit)).await;
        }
        let found = self.of_all(|partition| {
            let filter = filter.clone();
            partition.read(move |connection| views::messages(connection, &filter, before, limit))
        });
        let mut found: Vec<StoredMessage> = found.await?.into_iter().flatten().collect();
        found.sort_unstable_by_key(|message| std::cmp::Reverse(message.id));
        found.truncate(limit);
        Ok(found)
    }

    /// A page of messages that match a filter and have ids below `before`, newest first. Reads at most
    /// [`SCANNED_ROWS_MAX`] rows of each partition, so a page can have fewer messages than `limit`, and a next one.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn page(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<ScanPage<StoredMessage, MessageId>, StoreError> {
        self.scan(filter, before, limit, SCANNED_ROWS_MAX).await
    }

    async fn scan(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
        rows_max: usize,
    ) -> Result<ScanPage<StoredMessage, MessageId>, StoreError> {
        // Parts are in the partition of their original.
        let scans = match filter.id.or(filter.part_of) {
            Some(id) => {
                let scan =
                    self.of(id).read(move |connection| views::scan(connection, &filter, before, limit, rows_max));
                vec![scan.await?]
            }
            None => {
                let scans = self.of_all(|partition| {
                    let filter = filter.clone();
                    partition.read(move |connection| views::scan(connection, &filter, before, limit, rows_max))
                });
                scans.await?
            }
        };
        // Messages below the row at which the scan of any partition stopped are read again by the next page.
        let reached = scans.iter().filter_map(|scan| scan.next).max();
        let mut found: Vec<StoredMessage> = scans.into_iter().flat_map(|scan| scan.items).collect();
        found.retain(|message| reached.is_none_or(|reached| message.id >= reached));
        found.sort_unstable_by_key(|message| std::cmp::Reverse(message.id));
        Ok(ScanPage::cut(found, limit, reached, |message: &StoredMessage| message.id))
    }

    /// Number of suspended messages; in each partition at most `limit` messages suspended as a whole are counted, and
    /// at most `limit` with a suspended leg.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn suspended(&self, limit: u64) -> Result<u64, StoreError> {
        let counts = self.of_all(|partition| partition.read(move |connection| views::suspended(connection, limit)));
        Ok(counts.await?.into_iter().sum())
    }

    /// Resumes suspended legs, due at `now`, with no attempts counted. Each is given by message and leg number; legs
    /// of one message must be consecutive.
    ///
    /// # Errors
    /// The legs of at least one partition are unchanged.
    pub async fn resume_legs(
        &self,
        legs: Vec<(MessageId, u32)>,
        by: &str,
        now: Timestamp,
    ) -> Result<AffectedCounts, StoreError> {
        let mut by_partition: BTreeMap<_, Vec<_>> = BTreeMap::new();
        legs.into_iter().for_each(|leg| by_partition.entry(self.assignment.of(leg.0)).or_default().push(leg));
        let acts = by_partition.into_iter().map(|(number, legs)| {
            let by = by.to_owned();
            self.at(number).write(move |connection, _| operator_actions::resume_legs(connection, &legs, &by, now))
        });
        Ok(AffectedCounts::sum(try_join_all(acts).await?))
    }

    /// Suspends legs that wait for send ports of an exchange other than `known`, up to `limit` per partition and
    /// without those in `not`. Returns their messages. Cheap if there are none.
    ///
    /// # Errors
    /// The legs of at least one partition are unchanged.
    pub async fn suspend_orphaned_legs(
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
                let ports = partition.read(move |connection| orphaned_legs::ports(connection, &of, &known)).await?;
                if ports.is_empty() {
                    return Ok(Vec::new());
                }
                let job = move |connection: &Connection, _: &mut AfterCommit| {
                    orphaned_legs::suspend(connection, &exchange, &ports, &not, limit, now)
                };
                partition.write(job).await
            }
        });
        Ok(suspended.await?.into_iter().flatten().collect())
    }

    /// Replaces suspended legs of a message by others, due at `now`, or stores the reason why there are none. Returns
    /// the number of new legs: zero if the old ones are no longer suspended.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn replace_legs(
        &self,
        exchange: &Name,
        id: MessageId,
        orphans: Vec<u32>,
        legs: Result<Vec<NewLeg>, String>,
        by: &str,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let (exchange, by) = (exchange.clone(), by.to_owned());
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            operator_actions::record_routed(connection, id, &legs, &by, now)?;
            orphaned_legs::replace(connection, (&exchange, id), &orphans, &legs, now)
        };
        self.of(id).write(job).await
    }

    /// Routes a message that is suspended as a whole: stores its legs, or another reason. Returns whether it was
    /// suspended.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn reroute(
        &self,
        id: MessageId,
        legs: Result<Vec<NewLeg>, String>,
        by: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let by = by.to_owned();
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let was_suspended = operator_actions::reroute(connection, id, &legs, now)?;
            if was_suspended {
                operator_actions::record_routed(connection, id, &legs, &by, now)?;
            }
            Ok(was_suspended)
        };
        self.of(id).write(job).await
    }

    /// Stores an operator's edit of a suspended message. The content before the first edit is kept.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn edit(&self, id: MessageId, edited: EditedMessage) -> Result<MessageEdit, StoreError> {
        self.of(id).write(move |connection, _| operator_actions::edit(connection, id, &edited)).await
    }

    /// Message before its first edit; `None` if it was not edited.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn original(&self, id: MessageId) -> Result<Option<OriginalMessage>, StoreError> {
        self.of(id).read(move |connection| views::original(connection, id)).await
    }

    /// Stores the result of processing a suspended raw message again. A message that is no longer suspended stays
    /// unchanged.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn rework(
        &self,
        exchange: &Name,
        id: MessageId,
        reworked: ReprocessedMessage,
        by: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let partition = self.of(id);
        let (open, exchange, by) = (partition.open.clone(), exchange.clone(), by.to_owned());
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            open.change_after(after, &exchange, operator_actions::rework(connection, id, &reworked, &by, now)?);
            Ok(())
        };
        partition.write(job).await
    }

    /// Ends messages: none of their legs is sent any more.
    ///
    /// # Errors
    /// The messages of at least one partition are unchanged.
    pub async fn end(&self, ids: Vec<MessageId>, by: &str, now: Timestamp) -> Result<AffectedCounts, StoreError> {
        let acts = self.by_partition(ids).into_iter().map(|(number, ids)| {
            let partition = self.at(number);
            let (open, by) = (partition.open.clone(), by.to_owned());
            partition.write(move |connection, after| {
                let (acted, changes) = operator_actions::end(connection, &ids, &by, now)?;
                changes.count_after(after, &open);
                Ok(acted)
            })
        });
        Ok(AffectedCounts::sum(try_join_all(acts).await?))
    }

    fn by_partition(&self, ids: Vec<MessageId>) -> BTreeMap<PartitionNumber, Vec<MessageId>> {
        let mut by_partition: BTreeMap<_, Vec<MessageId>> = BTreeMap::new();
        ids.into_iter().for_each(|id| by_partition.entry(self.assignment.of(id)).or_default().push(id));
        by_partition
    }

    /// Ends requests whose reply timeout has passed, and suspends legs whose later reply did not come in time, up to
    /// `limit` of each per partition.
    ///
    /// # Errors
    /// The messages of at least one partition are unchanged.
    pub async fn expire(&self, now: Timestamp, limit: usize) -> Result<ExpiredMessages, StoreError> {
        let over = self.of_all(|partition| {
            let open = partition.open.clone();
            partition.write(move |connection, after| {
                let (over, changes) = outcomes::expire(connection, now, limit)?;
                changes.count_after(after, &open);
                Ok(over)
            })
        });
        let mut all = ExpiredMessages::default();
        for over in over.await? {
            all.expired.extend(over.expired);
            all.unanswered.extend(over.unanswered);
            all.next = all.next.into_iter().chain(over.next).min();
        }
        Ok(all)
    }

    /// Deletes messages past their retention, up to `limit` per partition. Returns their number.
    ///
    /// # Errors
    /// Nothing was deleted.
    pub async fn prune(&self, now: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let pruned =
            self.of_all(|partition| partition.write(move |connection, _| outcomes::prune(connection, now, limit)));
        Ok(pruned.await?.into_iter().sum())
    }

    /// Stores a definition as the next version.
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

    /// Current versions of all definitions, by name.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn exchanges(&self) -> Result<Vec<StoredExchange>, StoreError> {
        let stored = self.first().read(views::exchanges).await?;
        let open = |stored: StoredExchange| {
            Ok::<_, StoreError>(StoredExchange { text: self.keys.open(stored.text)?, ..stored })
        };
        stored.into_iter().map(open).collect()
    }

    /// Removes the definition of an exchange with its versions and port states. Returns whether it existed.
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
        // If a crash prevents this, the next start removes them.
        self.of_all(|partition| {
            let exchange = exchange.clone();
            partition.write(move |connection, _| {
                execute(connection, "DELETE FROM location_marks WHERE exchange = ?1", [exchange.as_str()])
            })
        })
        .await?;
        Ok(was_there)
    }

    /// Sets the state of a send port; `None`: as defined.
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

    /// Send ports whose state was set by an operator.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn set_ports(&self) -> Result<Vec<SetPort>, StoreError> {
        let sql = "SELECT exchange, port, state FROM ports ORDER BY exchange, port";
        let job = move |connection: &Connection| {
            query_all(connection, sql, (), |row| {
                Ok(SetPort {
                    exchange: views::parsed(row, 0)?,
                    port: views::parsed(row, 1)?,
                    state: views::parsed(row, 2)?,
                })
            })
        };
        self.first().read(job).await
    }

    /// Writes and syncs a few bytes in every partition; returns the time of the slowest.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn probe(&self) -> Result<Duration, StoreError> {
        Ok(self.of_all(Partition::probe).await?.into_iter().max().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
