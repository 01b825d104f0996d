//! The spool over its partition files: partitions of messages, their ids and counts.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
};

use futures_util::future::try_join_all;
use rusqlite::Connection;
use tocsin_model::id::{MessageId, Name};

use super::partitions::FILES;
use crate::{
    error::StoreError,
    keyring::Keyring,
    spool::{PartitionAffinity, PartitionLoad, PartitionNumber, SpoolCounts},
    sqlite::{
        spool::{
            options::SpoolOptions,
            partition_assignment::PartitionAssignment,
            partitions::{self, Partition},
        },
        statements::execute,
        writer::{AfterCommit, FreeSpace},
    },
};

/// Spool in SQLite files. A write is durable when its call returns; concurrent writes of a partition share one fsync.
/// Dropping it blocks until the accepted writes are done.
pub struct SqliteSpool {
    /// The first partition also holds everything besides messages.
    pub(super) partitions: Vec<Partition>,
    pub(super) assignment: PartitionAssignment,
    pub(super) free_space: FreeSpace,
    pub(super) keys: Keyring,
    pub(super) reserved_ids: Arc<ReservedIds>,
}

/// Ids reserved durably: no other message gets one of them after a restart, whether it was stored or not.
#[derive(Default)]
pub(super) struct ReservedIds {
    /// Last reserved id.
    pub(super) last: AtomicU64,
    /// Whether a reservation is being stored.
    pub(super) is_pending: AtomicBool,
}

/// Number of ids reserved at a time.
pub(super) const RESERVED_IDS: u64 = 4_096;

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

    pub(super) fn first(&self) -> &Partition {
        &self.partitions[0]
    }

    pub(super) fn at(&self, number: PartitionNumber) -> &Partition {
        &self.partitions[usize::from(number.0)]
    }

    /// Partition of a message.
    pub(super) fn of(&self, id: MessageId) -> &Partition {
        self.at(self.assignment.of(id))
    }

    /// Runs a request on all partitions concurrently.
    pub(super) async fn of_all<'a, T, F: Future<Output = Result<T, StoreError>>>(
        &'a self,
        read: impl FnMut(&'a Partition) -> F,
    ) -> Result<Vec<T>, StoreError> {
        try_join_all(self.partitions.iter().map(read)).await
    }

    /// The same, with partition numbers.
    pub(super) async fn of_all_numbered<'a, T, F: Future<Output = Result<T, StoreError>>>(
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
    pub(super) async fn home_of(&self, exchange: &Name, port: &Name) -> Result<PartitionNumber, StoreError> {
        self.home_with(exchange, port, std::slice::from_ref(port)).await
    }

    /// Home partition shared with other ports. A port that has a home keeps it.
    pub(super) async fn home_with(
        &self,
        exchange: &Name,
        port: &Name,
        others: &[Name],
    ) -> Result<PartitionNumber, StoreError> {
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

    pub(super) fn by_partition(&self, ids: Vec<MessageId>) -> BTreeMap<PartitionNumber, Vec<MessageId>> {
        let mut by_partition: BTreeMap<_, Vec<MessageId>> = BTreeMap::new();
        ids.into_iter().for_each(|id| by_partition.entry(self.assignment.of(id)).or_default().push(id));
        by_partition
    }
}
