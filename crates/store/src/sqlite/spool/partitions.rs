//! Partitions of the spool: files of the same schema, each with its own writer and fsyncs. No commit concerns two.
//!
//! The first is `spool.db`, which also holds everything besides messages: definitions, states, rates, and the
//! assignment of messages to partitions. The number changes when the spool is opened with another one. Existing
//! messages stay; a partition is removed once it is empty.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Instant,
};

use rusqlite::{Connection, Row};
use tocsin_model::id::Name;

use super::{
    MIGRATIONS, encryption,
    partition_assignment::{AssignmentState, PARTITIONS_MAX, PartitionAssignment},
    views,
};
use crate::{
    audit::AuditEntry,
    error::StoreError,
    spool::PartitionNumber,
    sqlite::{
        audit,
        spool::{columns, open_counts::OpenCounts, options::SpoolOptions},
        statements::{execute, query_all, query_one},
        writer::{AfterCommit, Database, Erases, LOG_STEP_BYTES, Options, truncate_wal, with_suffix},
    },
};

/// File names of partitions by number.
pub const FILES: [&str; PARTITIONS_MAX as usize] = [
    "spool.db",
    "spool-1.db",
    "spool-2.db",
    "spool-3.db",
    "spool-4.db",
    "spool-5.db",
    "spool-6.db",
    "spool-7.db",
    "spool-8.db",
    "spool-9.db",
    "spool-10.db",
    "spool-11.db",
    "spool-12.db",
    "spool-13.db",
    "spool-14.db",
    "spool-15.db",
];

/// Metric labels of partitions by number.
const LABELS: [&str; PARTITIONS_MAX as usize] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];

/// Page cache of all writers together. After a commit that moved rows between pages, SQLite scans the whole cache.
const WRITER_CACHES_KIB: u32 = 16 << 10;
/// Page cache of the readers, per reader and for all partitions together.
const READER_CACHES_KIB: u32 = 16 << 10;

/// One partition file.
pub(super) struct Partition {
    database: Database,
    /// Number of open messages per exchange.
    pub open: Arc<OpenCounts>,
    path: PathBuf,
    label: &'static str,
    /// Histogram of write durations.
    seconds: OnceLock<metrics::Histogram>,
}

impl Partition {
    fn open(folder: &Path, number: u8, options: &SpoolOptions) -> Result<Partition, StoreError> {
        let path = folder.join(FILES[usize::from(number)]);
        let count = u32::from(options.partitions.max(1));
        let options = Options {
            // A commit of one message touches six pages, regardless of their content.
            page_bytes: 4_096,
            log_bytes_max: 64 << 20,
            log_step_bytes: LOG_STEP_BYTES,
            writer_cache_kib: WRITER_CACHES_KIB / count,
            reader_cache_kib: READER_CACHES_KIB / count,
            readers: options.readers,
            synced: true,
            erases: Erases::No,
            migrations: MIGRATIONS,
        };
        let database = Database::open(&path, &options)?;
        Ok(Partition {
            database,
            open: Arc::default(),
            path,
            label: LABELS[usize::from(number)],
            seconds: OnceLock::new(),
        })
    }

    /// As [`Database::write`].
    pub async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let written = self.database.write(job).await;
        self.seconds().record(begun.elapsed());
        written
    }

    /// As [`Database::write_retryable`].
    pub async fn write_retryable<T: Send + 'static>(
        &self,
        job: impl Fn(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let written = self.database.write_retryable(job).await;
        self.seconds().record(begun.elapsed());
        written
    }

    /// As [`Database::write_retryable_then`].
    pub fn write_retryable_then<T: Send + 'static>(
        &self,
        job: impl Fn(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
        answer: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) {
        let (begun, seconds) = (Instant::now(), self.seconds().clone());
        self.database.write_retryable_then(job, move |written| {
            seconds.record(begun.elapsed());
            answer(written);
        });
    }

    fn seconds(&self) -> &metrics::Histogram {
        let label = self.label;
        self.seconds.get_or_init(|| metrics::histogram!("tocsin_exchange_store_duration_seconds", "partition" => label))
    }

    /// As [`Database::read`].
    pub async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.database.read(job).await
    }

    /// As [`Database::probe`].
    pub async fn probe(&self) -> Result<std::time::Duration, StoreError> {
        self.database.probe().await
    }

    /// Its file, for the trail of its audit log.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Metric label.
    pub fn label(&self) -> &'static str {
        self.label
    }

    /// Size of its file and WAL in bytes.
    pub fn bytes(&self) -> u64 {
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
        length(&self.path) + length(&with_suffix(&self.path, "-wal"))
    }
}

/// Layout of the partitions, as stored in the first file.
#[derive(Clone, Copy)]
struct Layout {
    partitions: u8,
    dense: u64,
    /// Highest message id of removed partitions.
    last: u64,
}

/// Opens all partitions of a folder, after a change of their number if requested. Blocks.
pub(super) fn open(folder: &Path, options: &SpoolOptions) -> Result<(Vec<Partition>, PartitionAssignment), StoreError> {
    let target = options.partitions;
    if !(1..=PARTITIONS_MAX).contains(&target) {
        return Err(StoreError::unavailable(format!("a spool has 1 to {PARTITIONS_MAX} partitions, not {target}")));
    }
    let first = Partition::open(folder, 0, options)?;
    let keys = options.keys.clone();
    let (layout, homes) = first.database.write_blocking(move |connection, _| {
        encryption::definitions(connection, &keys)?;
        Ok((read_layout(connection)?, read_homes(connection)?))
    })?;
    if options.keys.seals() {
        truncate_wal(&first.path)?;
    }
    let known = layout.map_or(1, |layout| layout.partitions);
    let exists = |number: &u8| folder.join(FILES[usize::from(*number)]).exists();
    if let Some(gone) = (1..known).find(|number| !exists(number)) {
        return Err(StoreError::Damaged(format!(
            "{} is missing; it holds a part of the messages: restore the data folder from a backup",
            folder.join(FILES[usize::from(gone)]).display()
        )));
    }
    let left = (target..PARTITIONS_MAX).filter(|number| *number > 0 && exists(number));
    let left = left.map(|number| RemovedPartition::open(folder, number, options)).collect::<Result<Vec<_>, _>>()?;
    check_empty(&left, target)?;
    let mut partitions = vec![first];
    for number in 1..target {
        partitions.push(Partition::open(folder, number, options)?);
    }
    let mut last = layout.map_or(0, |layout| layout.last);
    let mut oldest = None::<u64>;
    for partition in &partitions {
        let (ever, least, open) = partition.database.write_blocking(|connection, _| {
            let least = query_one(connection, "SELECT min(id) FROM messages", (), |row| row.get::<_, Option<u64>>(0))?;
            Ok((views::last_id(connection)?, least.flatten(), views::open(connection)?))
        })?;
        last = last.max(ever);
        oldest = oldest.into_iter().chain(least).min();
        *partition.open.0.lock() = open.into_iter().collect();
    }
    last = left.iter().map(|left| left.last).fold(last, u64::max);
    let change = LayoutChange {
        known,
        target,
        layout,
        last,
        oldest,
        homes,
        left: left.iter().map(RemovedPartition::checkpoints).collect(),
        audit: left.iter().flat_map(|left| left.audit.iter().cloned()).collect(),
    };
    let (dense, before, homes, exchanges) =
        partitions[0].database.write_blocking(move |connection, _| change.store(connection))?;
    for left in left {
        left.remove()?;
    }
    for partition in &partitions {
        let exchanges = exchanges.clone();
        partition.database.write_blocking(move |connection, _| remove_stale_checkpoints(connection, &exchanges))?;
    }
    Ok((partitions, PartitionAssignment::new(AssignmentState { count: target, dense, last, before, homes })))
}

fn read_layout(connection: &Connection) -> Result<Option<Layout>, StoreError> {
    let read = |row: &Row<'_>| Ok(Layout { partitions: row.get(0)?, dense: row.get(1)?, last: row.get(2)? });
    query_one(connection, "SELECT partitions, dense, last FROM layout", (), read)
}

fn read_homes(connection: &Connection) -> Result<BTreeMap<(Name, Name), PartitionNumber>, StoreError> {
    let read = |row: &Row<'_>| Ok(((columns::parsed(row, 0)?, columns::parsed(row, 1)?), PartitionNumber(row.get(2)?)));
    Ok(query_all(connection, "SELECT exchange, port, partition FROM homes", (), read)?.into_iter().collect())
}

/// Removes location checkpoints of exchanges that were removed when the process ended.
fn remove_stale_checkpoints(connection: &Connection, exchanges: &BTreeSet<String>) -> Result<(), StoreError> {
    let sql = "SELECT DISTINCT exchange FROM location_marks";
    for exchange in query_all(connection, sql, (), |row| row.get::<_, String>(0))? {
        if !exchanges.contains(&exchange) {
            execute(connection, "DELETE FROM location_marks WHERE exchange = ?1", [exchange])?;
        }
    }
    Ok(())
}

/// Checkpoint of a location: exchange, port, location, part and value.
type LocationCheckpoint = (String, String, String, String, Vec<u8>);

/// Partition to remove.
struct RemovedPartition {
    number: u8,
    database: Database,
    path: PathBuf,
    messages: u64,
    open: u64,
    last: u64,
    marks: Vec<LocationCheckpoint>,
    audit: Vec<AuditEntry>,
}

impl RemovedPartition {
    fn open(folder: &Path, number: u8, options: &SpoolOptions) -> Result<RemovedPartition, StoreError> {
        let Partition { database, path, .. } = Partition::open(folder, number, options)?;
        let (messages, open, last, marks, audit) = database.write_blocking(|connection, _| {
            let messages = query_one(connection, "SELECT count(*) FROM messages", (), |row| row.get(0))?;
            let open = "SELECT count(*) FROM messages WHERE ended_at IS NULL";
            let open = query_one(connection, open, (), |row| row.get(0))?;
            let marks = "SELECT exchange, port, location, part, value FROM location_marks";
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?));
            let marks = query_all(connection, marks, (), read)?;
            let audit = audit::all(connection)?;
            Ok((messages.unwrap_or(0), open.unwrap_or(0), views::last_id(connection)?, marks, audit))
        })?;
        Ok(RemovedPartition { number, database, path, messages, open, last, marks, audit })
    }

    fn checkpoints(&self) -> (PartitionNumber, Vec<LocationCheckpoint>) {
        (PartitionNumber(self.number), self.marks.clone())
    }

    fn remove(self) -> Result<(), StoreError> {
        let RemovedPartition { database, path, .. } = self;
        drop(database);
        for path in [path.clone(), with_suffix(&path, "-wal"), with_suffix(&path, "-shm"), with_suffix(&path, ".lock")]
        {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::unavailable(format!("cannot remove {}: {error}", path.display())));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn check_empty(left: &[RemovedPartition], target: u8) -> Result<(), StoreError> {
    let Some(full) = left.iter().rev().find(|left| left.messages > 0) else { return Ok(()) };
    Err(StoreError::unavailable(format!(
        "the spool cannot have {target} partitions yet: {} has {} messages, {} of them open; start with {} partitions or more, \
         let what is open finish or end it, and wait until the `retention` of the exchanges is over",
        full.path.display(),
        full.messages,
        full.open,
        full.number + 1
    )))
}

/// Change of the layout to store in the first file.
struct LayoutChange {
    known: u8,
    target: u8,
    layout: Option<Layout>,
    /// Highest message id ever assigned.
    last: u64,
    /// Lowest existing message id.
    oldest: Option<u64>,
    homes: BTreeMap<(Name, Name), PartitionNumber>,
    left: Vec<(PartitionNumber, Vec<LocationCheckpoint>)>,
    /// Audit entries of removed partitions.
    audit: Vec<AuditEntry>,
}

/// Result of a layout change: last dense id, former partition counts, home partitions, and names of the exchanges.
type AppliedLayout = (Option<u64>, Vec<u8>, BTreeMap<(Name, Name), PartitionNumber>, BTreeSet<String>);

impl LayoutChange {
    fn store(mut self, connection: &Connection) -> Result<AppliedLayout, StoreError> {
        for (number, marks) in std::mem::take(&mut self.left) {
            self.take_over(connection, number, &marks)?;
        }
        audit::take_over(connection, &self.audit)?;
        let dense = match self.layout {
            None if self.target == 1 => None,
            None => Some(self.last),
            Some(layout) => Some(layout.dense),
        };
        if let Some(dense) = dense {
            let sql = "INSERT INTO layout VALUES (1, ?1, ?2, ?3) ON CONFLICT DO UPDATE SET partitions = ?1, last = ?3";
            execute(connection, sql, (self.target, dense, self.last))?;
        }
        if self.known != self.target {
            execute(connection, "INSERT OR REPLACE INTO layouts_before VALUES (?1, ?2)", (self.known, self.last))?;
        }
        // No messages of that layout are left.
        let oldest = self.oldest.unwrap_or(i64::MAX.cast_unsigned());
        execute(connection, "DELETE FROM layouts_before WHERE last < ?1", [oldest])?;
        let before = query_all(connection, "SELECT partitions FROM layouts_before", (), |row| row.get(0))?;
        let exchanges = query_all(connection, "SELECT DISTINCT name FROM exchanges", (), |row| row.get(0))?;
        Ok((dense, before, self.homes, exchanges.into_iter().collect()))
    }

    /// Takes over the location checkpoints of a partition that is removed.
    fn take_over(
        &mut self,
        connection: &Connection,
        number: PartitionNumber,
        marks: &[LocationCheckpoint],
    ) -> Result<(), StoreError> {
        // Checkpoints of other homes were left behind when they moved here earlier.
        let homes: HashMap<(String, String), PartitionNumber> = self
            .homes
            .iter()
            .map(|((exchange, port), home)| ((exchange.to_string(), port.to_string()), *home))
            .collect();
        for (exchange, port, location, part, value) in marks {
            if homes.get(&(exchange.clone(), port.clone())) == Some(&number) {
                let sql = "INSERT OR REPLACE INTO location_marks VALUES (?1, ?2, ?3, ?4, ?5)";
                execute(connection, sql, (exchange, port, location, part, value))?;
            }
        }
        self.homes.values_mut().filter(|home| **home == number).for_each(|home| *home = PartitionNumber(0));
        execute(connection, "UPDATE homes SET partition = 0 WHERE partition = ?1", [number.0])?;
        Ok(())
    }
}
