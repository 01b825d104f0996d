//! The partitions of the spool: files of the same shape, each with its own writer and fsyncs. No commit touches two.
//!
//! The first is `spool.db`, with all that is known beside messages: definitions, states, rates, and how messages are spread.
//! Their number is changed by opening the spool with another. What is there stays where it is; a partition goes when
//! nothing is in it any more.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Instant,
};

use rusqlite::{Connection, Row};
use tocsin_model::id::Name;

use super::{
    MIGRATIONS, Open, SpoolOptions, reading, sealed,
    spread::{Beginning, PARTITIONS_MAX, Spread},
};
use crate::{
    error::StoreError,
    spool::PartitionNumber,
    sqlite::{
        records::{execute, query_all, query_one},
        writer::{AfterCommit, Database, LOG_STEP_BYTES, Options, empty_log},
    },
};

/// The files of partitions by their number.
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
/// Their numbers as labels.
const LABELS: [&str; PARTITIONS_MAX as usize] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];

/// Memory of the writers' caches, of all partitions together. After a commit that has spread rows over other pages SQLite looks
/// through the whole of it.
const WRITER_CACHES_KIB: u32 = 16 << 10;
/// The same of each reader, of all partitions together.
const READER_CACHES_KIB: u32 = 16 << 10;

/// One file.
pub(super) struct Partition {
    database: Database,
    /// What is open in it.
    pub open: Arc<Open>,
    path: PathBuf,
    label: &'static str,
    /// How long writes take.
    seconds: OnceLock<metrics::Histogram>,
}

impl Partition {
    fn open(folder: &Path, number: u8, options: &SpoolOptions) -> Result<Partition, StoreError> {
        let path = folder.join(FILES[usize::from(number)]);
        let count = u32::from(options.partitions.max(1));
        let options = Options {
            // A commit of one message touches six pages, whatever is on them.
            page_bytes: 4_096,
            log_bytes_max: 64 << 20,
            log_step_bytes: LOG_STEP_BYTES,
            writer_cache_kib: WRITER_CACHES_KIB / count,
            reader_cache_kib: READER_CACHES_KIB / count,
            readers: options.readers,
            synced: true,
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

    /// As [`Database::write_again`].
    pub async fn write_again<T: Send + 'static>(
        &self,
        job: impl Fn(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let written = self.database.write_again(job).await;
        self.seconds().record(begun.elapsed());
        written
    }

    /// As [`Database::write_again_then`].
    pub fn write_again_then<T: Send + 'static>(
        &self,
        job: impl Fn(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
        answer: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) {
        let (begun, seconds) = (Instant::now(), self.seconds().clone());
        self.database.write_again_then(job, move |written| {
            seconds.record(begun.elapsed());
            answer(written);
        });
    }

    fn seconds(&self) -> &metrics::Histogram {
        let label = self.label;
        self.seconds.get_or_init(|| metrics::histogram!("exchange_store_seconds", "partition" => label))
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

    /// Its number, as metrics have it.
    pub fn label(&self) -> &'static str {
        self.label
    }

    /// Bytes of its file and its log.
    pub fn bytes(&self) -> u64 {
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
        length(&self.path) + length(&beside(&self.path, "-wal"))
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// How messages are spread, as the first file says it.
#[derive(Clone, Copy)]
struct Layout {
    partitions: u8,
    dense: u64,
    /// The highest id of partitions that are gone.
    last: u64,
}

/// Opens all partitions of a folder, after their number was changed if it is another. Blocks.
pub(super) fn open(folder: &Path, options: &SpoolOptions) -> Result<(Vec<Partition>, Spread), StoreError> {
    let wanted = options.partitions;
    if !(1..=PARTITIONS_MAX).contains(&wanted) {
        return Err(StoreError::unavailable(format!("a spool has 1 to {PARTITIONS_MAX} partitions, not {wanted}")));
    }
    let first = Partition::open(folder, 0, options)?;
    let keys = options.keys.clone();
    let (layout, homes) = first.database.write_blocking(move |connection, _| {
        sealed::definitions(connection, &keys)?;
        Ok((read_layout(connection)?, read_homes(connection)?))
    })?;
    if options.keys.seals() {
        empty_log(&first.path)?;
    }
    let known = layout.map_or(1, |layout| layout.partitions);
    let there = |number: &u8| folder.join(FILES[usize::from(*number)]).exists();
    if let Some(gone) = (1..known).find(|number| !there(number)) {
        return Err(StoreError::Damaged(format!(
            "{} is not there, which has a part of the messages: restore the data folder from a backup",
            folder.join(FILES[usize::from(gone)]).display()
        )));
    }
    let left = (wanted..PARTITIONS_MAX).filter(|number| *number > 0 && there(number));
    let left = left.map(|number| Left::open(folder, number, options)).collect::<Result<Vec<_>, _>>()?;
    check_empty(&left, wanted)?;
    let mut partitions = vec![first];
    for number in 1..wanted {
        partitions.push(Partition::open(folder, number, options)?);
    }
    let mut last = layout.map_or(0, |layout| layout.last);
    let mut oldest = None::<u64>;
    for partition in &partitions {
        let (ever, least, open) = partition.database.write_blocking(|connection, _| {
            let least = query_one(connection, "SELECT min(id) FROM messages", (), |row| row.get::<_, Option<u64>>(0))?;
            Ok((reading::last_id(connection)?, least.flatten(), reading::open(connection)?))
        })?;
        last = last.max(ever);
        oldest = oldest.into_iter().chain(least).min();
        *partition.open.0.lock() = open.into_iter().collect();
    }
    last = left.iter().map(|left| left.last).fold(last, u64::max);
    let change = Change { known, wanted, layout, last, oldest, homes, left: left.iter().map(Left::legacy).collect() };
    let (dense, before, homes, exchanges) =
        partitions[0].database.write_blocking(move |connection, _| change.store(connection))?;
    for left in left {
        left.remove()?;
    }
    for partition in &partitions {
        let exchanges = exchanges.clone();
        partition.database.write_blocking(move |connection, _| forget_marks(connection, &exchanges))?;
    }
    Ok((partitions, Spread::new(Beginning { count: wanted, dense, last, before, homes })))
}

fn read_layout(connection: &Connection) -> Result<Option<Layout>, StoreError> {
    let read = |row: &Row<'_>| Ok(Layout { partitions: row.get(0)?, dense: row.get(1)?, last: row.get(2)? });
    query_one(connection, "SELECT partitions, dense, last FROM layout", (), read)
}

fn read_homes(connection: &Connection) -> Result<BTreeMap<(Name, Name), PartitionNumber>, StoreError> {
    let read = |row: &Row<'_>| Ok(((reading::parsed(row, 0)?, reading::parsed(row, 1)?), PartitionNumber(row.get(2)?)));
    Ok(query_all(connection, "SELECT exchange, port, partition FROM homes", (), read)?.into_iter().collect())
}

/// Locations whose exchange was removed when the process ended forget how far they have come.
fn forget_marks(connection: &Connection, exchanges: &BTreeSet<String>) -> Result<(), StoreError> {
    let sql = "SELECT DISTINCT exchange FROM location_marks";
    for exchange in query_all(connection, sql, (), |row| row.get::<_, String>(0))? {
        if !exchanges.contains(&exchange) {
            execute(connection, "DELETE FROM location_marks WHERE exchange = ?1", [exchange])?;
        }
    }
    Ok(())
}

/// How far a location has come: exchange, port, location, part and value.
type Mark = (String, String, String, String, Vec<u8>);

/// A partition that there is to be no more.
struct Left {
    number: u8,
    database: Database,
    path: PathBuf,
    messages: u64,
    open: u64,
    last: u64,
    marks: Vec<Mark>,
}

impl Left {
    fn open(folder: &Path, number: u8, options: &SpoolOptions) -> Result<Left, StoreError> {
        let Partition { database, path, .. } = Partition::open(folder, number, options)?;
        let (messages, open, last, marks) = database.write_blocking(|connection, _| {
            let messages = query_one(connection, "SELECT count(*) FROM messages", (), |row| row.get(0))?;
            let open = "SELECT count(*) FROM messages WHERE ended_at IS NULL";
            let open = query_one(connection, open, (), |row| row.get(0))?;
            let marks = "SELECT exchange, port, location, part, value FROM location_marks";
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?));
            let marks = query_all(connection, marks, (), read)?;
            Ok((messages.unwrap_or(0), open.unwrap_or(0), reading::last_id(connection)?, marks))
        })?;
        Ok(Left { number, database, path, messages, open, last, marks })
    }

    fn legacy(&self) -> (PartitionNumber, Vec<Mark>) {
        (PartitionNumber(self.number), self.marks.clone())
    }

    fn remove(self) -> Result<(), StoreError> {
        let Left { database, path, .. } = self;
        drop(database);
        for path in [path.clone(), beside(&path, "-wal"), beside(&path, "-shm")] {
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

fn check_empty(left: &[Left], wanted: u8) -> Result<(), StoreError> {
    let Some(full) = left.iter().rev().find(|left| left.messages > 0) else { return Ok(()) };
    Err(StoreError::unavailable(format!(
        "the spool cannot have {wanted} partitions yet: {} has {} messages, {} of them open; start with {} partitions or more, \
         let what is open finish or end it, and wait until the `retention` of the exchanges is over",
        full.path.display(),
        full.messages,
        full.open,
        full.number + 1
    )))
}

/// What the first file is to say from now on.
struct Change {
    known: u8,
    wanted: u8,
    layout: Option<Layout>,
    /// The highest id that any message ever had.
    last: u64,
    /// The lowest that any has.
    oldest: Option<u64>,
    homes: BTreeMap<(Name, Name), PartitionNumber>,
    left: Vec<(PartitionNumber, Vec<Mark>)>,
}

/// What of it is needed to spread messages: the last dense id, former numbers of partitions, homes; and which exchanges
/// there are.
type Changed = (Option<u64>, Vec<u8>, BTreeMap<(Name, Name), PartitionNumber>, BTreeSet<String>);

impl Change {
    fn store(mut self, connection: &Connection) -> Result<Changed, StoreError> {
        for (number, marks) in std::mem::take(&mut self.left) {
            self.move_in(connection, number, &marks)?;
        }
        let dense = match self.layout {
            None if self.wanted == 1 => None,
            None => Some(self.last),
            Some(layout) => Some(layout.dense),
        };
        if let Some(dense) = dense {
            let sql = "INSERT INTO layout VALUES (1, ?1, ?2, ?3) ON CONFLICT DO UPDATE SET partitions = ?1, last = ?3";
            execute(connection, sql, (self.wanted, dense, self.last))?;
        }
        if self.known != self.wanted {
            execute(connection, "INSERT OR REPLACE INTO layouts_before VALUES (?1, ?2)", (self.known, self.last))?;
        }
        // Nothing is left from then.
        let oldest = self.oldest.unwrap_or(i64::MAX.cast_unsigned());
        execute(connection, "DELETE FROM layouts_before WHERE last < ?1", [oldest])?;
        let before = query_all(connection, "SELECT partitions FROM layouts_before", (), |row| row.get(0))?;
        let exchanges = query_all(connection, "SELECT DISTINCT name FROM exchanges", (), |row| row.get(0))?;
        Ok((dense, before, self.homes, exchanges.into_iter().collect()))
    }

    /// Takes over from a partition that goes how far its locations have come.
    fn move_in(&mut self, connection: &Connection, number: PartitionNumber, marks: &[Mark]) -> Result<(), StoreError> {
        // Those of other homes were left behind when they moved here before.
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
