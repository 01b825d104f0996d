//! One SQLite file: a writer that commits in groups, readers beside it, and a checkpointer behind it.
//!
//! Callers share one fsync: the writer takes one job, then whatever else already waits, and commits all of it at once.
//! It never waits for company; the fsync of one group is the time in which the next one gathers. An answer is sent
//! only after its commit.
//!
//! A job that fails is undone alone. Those that can run again need no savepoint for that, which would copy every page that
//! they change: if one of them fails, the transaction is rolled back and all of it runs again, with savepoints.
//!
//! The log is copied into the file behind the writer, and the file is synced there, too, piece by piece. Only what is left
//! at the end, when the log is long enough to begin anew, is done by the writer itself, for nobody may append meanwhile.
//!
//! Trouble is told apart by what can be done about it. A full disk fails the group with `Full`, and the writer goes on,
//! for there may be room later. After any other I/O error nobody can say what has reached the disk (a repeated `fsync`
//! may claim success for pages that were dropped), so the writer acknowledges nothing any more until a restart.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{File, OpenOptions, TryLockError},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, config::DbConfig, hooks::Wal};
use tocsin_model::folder;
use tokio::sync::oneshot;

use crate::error::StoreError;

mod log_check; // damage of the log, as opposed to its torn end
mod pieces; // a sync that lets commits pass
mod turn; // how soon the writer goes on when the disk is done

/// Writes that may wait; the next one gets `Full`.
pub(crate) const WAITING_WRITES_MAX: usize = 8_192;
/// Jobs of one commit, beside the first.
const COMPANY_MAX: usize = 1_024;
/// Reads that may wait; the next one gets `Full`.
const WAITING_READS_MAX: usize = 8_192;
/// Most files' steps behind the writer: short, so that no commit waits long for the disk.
pub(crate) const LOG_STEP_BYTES: u64 = 8 << 20;
/// So many bytes of log are few enough for the writer to copy them itself: everybody waits meanwhile.
const CHECKPOINT_REST_BYTES: u64 = 1 << 20;
/// How often a file that is locked is tried again, and after which pause.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// So long what is free on the disk is taken to stay so: much less than the reserve is written meanwhile.
const FREE_FOR: Duration = Duration::from_millis(10);
/// What a transaction changed stays in memory up to so many KiB, beyond the page cache, too; behind that it goes into the log
/// before the commit, and once more whenever it changes again.
const CHANGED_KIB_MAX: i64 = 64 << 10;
/// A file of up to so many bytes is examined when it is opened, in less than a second.
const EXAMINED_BYTES_MAX: u64 = 64 << 20;
/// Prepared statements kept by each connection.
const STATEMENTS_MAX: usize = 128;

/// How a file is opened.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Bytes of a page of a new file: a power of two from 512 to 65,536. An existing file keeps its own.
    pub page_bytes: u32,
    /// When the log has grown to this size and little of it is left to copy, the writer itself completes the checkpoint
    /// between two commits, so that the log starts again from its beginning. At twice the size it does so in any case.
    pub log_bytes_max: u64,
    /// The checkpointer follows the writer in steps of about this many bytes of log. A page that is written several times
    /// within a step is copied once.
    pub log_step_bytes: u64,
    /// Page cache of the writer, in KiB. It grows as it is used.
    pub writer_cache_kib: u32,
    /// Page cache of each reader, in KiB.
    pub reader_cache_kib: u32,
    /// Threads that read.
    pub readers: usize,
    /// Whether a commit is on the disk when it is acknowledged. Without that a power cut may take the last ones, and the
    /// file is whole nevertheless.
    pub synced: bool,
    /// The schema, as steps that only go forward: the file's `user_version` is how many of them it has had.
    pub migrations: &'static [&'static str],
}

/// An open file. Dropping it waits for the writes that were taken on.
pub(crate) struct Database {
    writes: Option<Sender<Box<dyn WriteJob>>>,
    reads: Option<Sender<ReadJob>>,
    threads: Vec<JoinHandle<()>>,
    health: Arc<Health>,
    /// The connection that is closed last. SQLite then copies the log into the file, syncs that and removes the log. After a
    /// failed sync it must not: the next sync may return 0 for pages that were dropped, and only the log has them.
    last: Option<Mutex<Connection>>,
    /// The file itself, to sync it. Closed behind all connections: that would take SQLite's locks away.
    _file: Arc<File>,
    /// Held for as long as the file is open: a second process is refused.
    _lock: File,
}

/// What a job wants done once its commit is durable, such as waking those who wait. Dropped if the commit fails.
#[derive(Default)]
pub(crate) struct AfterCommit(Vec<Box<dyn FnOnce() + Send>>);

impl AfterCommit {
    /// Adds something to do. It runs on the writer's thread, before the job is answered, so it must be quick.
    pub(crate) fn run(&mut self, act: impl FnOnce() + Send + 'static) {
        self.0.push(Box::new(act));
    }

    /// Does it, or drops it, and with it what the job held. Before the job is answered: its caller may want that at once.
    fn end(self, is_stored: bool) {
        if is_stored {
            self.0.into_iter().for_each(|act| act());
        }
    }
}

type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// A write that waits for its turn, runs, and hears what became of its commit.
trait WriteJob: Send {
    /// Whether it may run again after what it did was undone.
    fn runs_again(&self) -> bool;

    /// Runs it. With `care`, what it did is undone if it fails; without, that is left to whoever runs it.
    fn run(&mut self, connection: &Connection, care: bool) -> Ran;

    /// Tells its caller the result if its commit is durable, otherwise the reason why it is not.
    fn answer(self: Box<Self>, committed: Result<(), &Fault>);
}

/// How a job ran.
enum Ran {
    Well,
    /// It failed, or panicked.
    Badly,
    /// The trouble is one after which nothing can be trusted.
    Fatally(String),
}

/// How what a job did is undone if it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undo {
    /// Back to a savepoint.
    Savepoint,
    /// It is one statement, which SQLite undoes.
    Itself,
    /// With the whole transaction, which runs again then.
    All,
}

struct Job<W, T, A> {
    work: W,
    undo: Undo,
    after: AfterCommit,
    result: Option<Result<T, StoreError>>,
    answer: A,
}

impl<W, T, A> WriteJob for Job<W, T, A>
where
    W: FnMut(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send,
    T: Send,
    A: FnOnce(Result<T, StoreError>) + Send,
{
    fn runs_again(&self) -> bool {
        self.undo == Undo::All
    }

    fn run(&mut self, connection: &Connection, care: bool) -> Ran {
        let in_savepoint = match self.undo {
            Undo::Savepoint => true,
            Undo::Itself => false,
            Undo::All => care,
        };
        self.after = AfterCommit::default();
        let result = run_job(connection, in_savepoint, || (self.work)(connection, &mut self.after));
        let ran = match &result {
            Ok(_) => Ran::Well,
            Err(error) => fatal_reason(error).map_or(Ran::Badly, Ran::Fatally),
        };
        self.result = Some(result);
        ran
    }

    fn answer(self: Box<Self>, committed: Result<(), &Fault>) {
        let Job { work, after, result, answer, .. } = *self;
        // What it was to store may be its caller's alone again.
        drop(work);
        let stored = match (committed, result) {
            (Ok(()), Some(result)) => result,
            (Err(_), Some(Err(error))) => Err(error),
            (Err(fault), _) => Err(fault.to_error()),
            (Ok(()), None) => unreachable!("only what ran is committed"),
        };
        after.end(stored.is_ok());
        answer(stored);
    }
}

/// Why a commit failed.
enum Fault {
    Full(String),
    Failed(String),
}

impl Fault {
    fn to_error(&self) -> StoreError {
        match self {
            Fault::Full(why) => StoreError::Full(why.clone()),
            Fault::Failed(why) => StoreError::unavailable(why.clone()),
        }
    }
}

/// Files that acknowledge nothing any more, with the reason.
static FAILED: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

/// The open files of a data folder that acknowledge nothing until they are opened again, each with the reason. Costs no I/O.
pub fn failed(folder: &Path) -> Vec<String> {
    let is_there = |path: &Path| path.parent() == Some(folder);
    let shown = |(path, why): (&PathBuf, &String)| {
        format!("`{}` stores nothing until a restart: {why}", path.file_name().unwrap_or_default().display())
    };
    FAILED.lock().iter().filter(|(path, _)| is_there(path)).map(shown).collect()
}

/// Set once, when nothing can be acknowledged any more.
struct Health {
    path: PathBuf,
    failure: OnceLock<String>,
}

impl Health {
    fn of(path: &Path) -> Health {
        Health { path: path.to_owned(), failure: OnceLock::new() }
    }

    fn fail(&self, why: String) {
        tracing::error!(path = %self.path.display(), why, "the store stops acknowledging until a restart");
        FAILED.lock().entry(self.path.clone()).or_insert_with(|| why.clone());
        let _ = self.failure.set(why);
    }

    fn check(&self) -> Result<(), StoreError> {
        self.failure.get().map_or(Ok(()), |why| Err(StoreError::unavailable(why.clone())))
    }

    /// Why a write could not be taken on or answered.
    fn reason(&self) -> String {
        self.failure.get().cloned().unwrap_or_else(|| "the store has been closed".to_owned())
    }

    fn error(&self) -> StoreError {
        StoreError::unavailable(self.reason())
    }
}

impl Database {
    /// Opens or makes a file and brings its schema up to date. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process has it open, if it was written by a newer version, or if it cannot be opened;
    /// `Damaged` if it is no database, or if its log is damaged.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Database, StoreError> {
        if let Some(folder) = path.parent() {
            folder::make(folder, 0o777).map_err(|error| cannot_open(folder, error))?;
        }
        let lock = lock(path)?;
        if options.synced {
            log_check::check(path)?;
        }
        let mut writer = connect(path, options, options.writer_cache_kib)?;
        let synchronous = if options.synced { "FULL" } else { "NORMAL" };
        writer.pragma_update(None, "synchronous", synchronous).map_err(store_error)?;
        writer.pragma_update(None, "cache_spill", -CHANGED_KIB_MAX).map_err(store_error)?;
        examine(&writer, path)?;
        migrate(&mut writer, path, options.migrations)?;
        // Checkpoints are run here, not inside a commit, where somebody would wait for them.
        writer.pragma_update(None, "wal_autocheckpoint", 0).map_err(store_error)?;
        // As long as the log may ever be: what is cut off when it begins anew is to be made again soon, and a commit that makes
        // a file longer writes the inode, too.
        let log_bytes_kept = options.log_bytes_max.saturating_mul(2).cast_signed();
        writer.pragma_update(None, "journal_size_limit", log_bytes_kept).map_err(store_error)?;
        let page_bytes: u32 = writer.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(store_error)?;
        let page_bytes = u64::from(page_bytes);

        let health = Arc::new(Health::of(path));
        let mut threads = Vec::new();

        let (nudge, nudged) = bounded(1);
        let checkpointer = connect(path, options, 64)?;
        checkpointer.pragma_update(None, "synchronous", "FULL").map_err(store_error)?;
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| cannot_open(path, error))?;
        let (file, log) = (Arc::new(file), Arc::new(Log::default()));
        threads.push(spawn("checkpointer", {
            let follower =
                Follower { connection: checkpointer, file: file.clone(), log: log.clone(), health: health.clone() };
            move || follower.run(&nudged)
        })?);

        writer
            .wal_hook(Some({
                let log = log.clone();
                move |_: &mut Wal, pages| {
                    log.pages.store(u64::try_from(pages).unwrap_or(0), Ordering::Relaxed);
                    Ok(())
                }
            }))
            .map_err(store_error)?;
        let (writes, taken) = bounded(WAITING_WRITES_MAX);
        let writer = Writer {
            connection: writer,
            health: health.clone(),
            log,
            log_pages_max: options.log_bytes_max / page_bytes,
            step_pages: options.log_step_bytes / page_bytes,
            rest_pages: CHECKPOINT_REST_BYTES / page_bytes,
            nudge,
            nudged_at: 0,
        };
        threads.push(spawn("writer", move || writer.run(&taken))?);

        let (reads, asked) = bounded::<ReadJob>(WAITING_READS_MAX);
        for _ in 0..options.readers.max(1) {
            let reader = connect(path, options, options.reader_cache_kib)?;
            reader.pragma_update(None, "query_only", true).map_err(store_error)?;
            let asked = asked.clone();
            threads.push(spawn("reader", move || {
                while let Ok(job) = asked.recv() {
                    job(&reader);
                }
            })?);
        }
        let last = Some(Mutex::new(connect(path, options, 64)?));
        Ok(Database { writes: Some(writes), reads: Some(reads), threads, health, last, _file: file, _lock: lock })
    }

    /// Runs a job that changes several things, all or none of them: what it did is undone if it fails or panics.
    ///
    /// # Errors
    /// The job's own; `Full` if there is no room or too many writes wait; `Unavailable` if the commit failed otherwise.
    /// In each case nothing was stored.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit_and_wait(Undo::Savepoint, once(job)).await
    }

    /// As [`Database::write`], for a job that hardly ever fails and may run again after what it did was undone. It costs
    /// less: what it changes is not copied first.
    pub(crate) async fn write_again<T: Send + 'static>(
        &self,
        job: impl Fn(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit_and_wait(Undo::All, job).await
    }

    /// As [`Database::write_again`], for a caller that does not wait: `answer` is called on the writer's thread, after the
    /// commit or when it has failed; or, if the job is not taken on, at once.
    pub(crate) fn write_again_then<T: Send + 'static>(
        &self,
        job: impl Fn(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
        answer: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) {
        self.submit(Undo::All, job, answer);
    }

    /// Runs a job of one statement, which SQLite itself undoes if it fails. The job must not fail after it.
    ///
    /// # Errors
    /// As [`Database::write`].
    pub(crate) async fn write_one<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit_and_wait(Undo::Itself, once(job)).await
    }

    /// As [`Database::write`], for the time before there are tasks: it blocks its thread.
    pub(crate) fn write_blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = bounded(1);
        self.submit(Undo::Savepoint, once(job), move |result| {
            let _ = answer.send(result);
        });
        answered.recv().unwrap_or_else(|_| Err(self.health.error()))
    }

    async fn submit_and_wait<T: Send + 'static>(
        &self,
        undo: Undo,
        work: impl FnMut(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.submit(undo, work, move |result| {
            // A caller that stopped waiting has its write nevertheless.
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(self.health.error()))
    }

    /// Hands a job to the writer, which answers it; one that it does not take on is answered here.
    fn submit<T: Send + 'static>(
        &self,
        undo: Undo,
        work: impl FnMut(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
        answer: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) {
        let job: Box<dyn WriteJob> = Box::new(Job { work, undo, after: AfterCommit::default(), result: None, answer });
        let writes = self.writes.as_ref().expect("open until dropped");
        let refused = match self.health.check() {
            Ok(()) => writes.try_send(job),
            Err(_) => Err(TrySendError::Disconnected(job)),
        };
        let (job, fault) = match refused {
            Ok(()) => return,
            Err(TrySendError::Full(job)) => (job, Fault::Full(format!("{WAITING_WRITES_MAX} writes wait already"))),
            Err(TrySendError::Disconnected(job)) => (job, Fault::Failed(self.health.reason())),
        };
        job.answer(Err(&fault));
    }

    /// Runs a read on one of the readers' threads. It sees every write that was acknowledged before the call.
    ///
    /// # Errors
    /// The job's own; `Full` if too many reads wait.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: ReadJob = Box::new(move |connection| {
            let result = catch_unwind(AssertUnwindSafe(|| {
                // One transaction, so that a read of several statements sees one state.
                let snapshot = connection.unchecked_transaction().map_err(store_error)?;
                let result = job(connection);
                drop(snapshot);
                result
            }));
            let _ = answer.send(result.unwrap_or_else(|panic| Err(panicked(&panic))));
        });
        match self.reads.as_ref().expect("open until dropped").try_send(job) {
            Ok(()) => answered.await.unwrap_or_else(|_| Err(self.health.error())),
            Err(TrySendError::Full(_)) => Err(StoreError::Full(format!("{WAITING_READS_MAX} reads wait already"))),
            Err(TrySendError::Disconnected(_)) => Err(self.health.error()),
        }
    }

    /// Writes and syncs a few bytes through the writer; says how long that took, waiting included.
    ///
    /// # Errors
    /// As [`Database::write`].
    pub(crate) async fn probe(&self) -> Result<Duration, StoreError> {
        let start = Instant::now();
        self.write_one(|connection, _| {
            connection
                .prepare_cached(
                    "INSERT INTO probe (one, count) VALUES (1, 1) ON CONFLICT DO UPDATE SET count = count + 1",
                )
                .and_then(|mut statement| statement.execute(()))
                .map_err(store_error)
        })
        .await?;
        Ok(start.elapsed())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Without senders the writer ends after the jobs that wait; the checkpointer ends with the writer.
        drop(self.writes.take());
        drop(self.reads.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let Some(last) = self.last.take() else { return };
        let last = last.into_inner();
        FAILED.lock().remove(&self.health.path);
        if self.health.check().is_err()
            && let Err(error) = last.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        {
            tracing::error!(%error, "cannot keep the log of a database whose sync failed; it is left open");
            std::mem::forget(last);
        }
    }
}

/// Refuses intake while the disk is nearly full, so that there is always room to finish what was taken in.
#[derive(Debug, Clone)]
pub(crate) struct FreeSpace {
    /// A folder of the file system.
    folder: PathBuf,
    /// Bytes that must be free.
    reserve_bytes: u64,
    /// When they were last.
    were_free: Arc<Mutex<Option<Instant>>>,
}

impl FreeSpace {
    /// Watches the file system of a file. A reserve of 0 switches the guard off.
    pub(crate) fn beside(path: &Path, reserve_bytes: u64) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        FreeSpace { folder: folder.to_owned(), reserve_bytes, were_free: Arc::default() }
    }

    /// Asks the file system; of what was free, again a hundredth of a second later.
    ///
    /// # Errors
    /// `Full` if less than the reserve is free.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let now = Instant::now();
        let is_new = |at: Instant| now.duration_since(at) < FREE_FOR;
        if self.reserve_bytes == 0 || self.were_free.lock().is_some_and(is_new) {
            return Ok(());
        }
        let system = rustix::fs::statvfs(&self.folder).map_err(StoreError::unavailable)?;
        let free_bytes = system.f_bavail.saturating_mul(system.f_frsize);
        if free_bytes < self.reserve_bytes {
            return Err(StoreError::Full(format!(
                "{free_bytes} bytes are free on the disk, {} are kept in reserve",
                self.reserve_bytes
            )));
        }
        *self.were_free.lock() = Some(now);
        Ok(())
    }
}

/// What a caller can do about an error of SQLite.
pub(crate) fn store_error(error: rusqlite::Error) -> StoreError {
    // The shared-memory index of the log cannot grow: SQLite reports an I/O error, but the disk is full.
    const SHARED_MEMORY_SIZE: i32 = rusqlite::ffi::SQLITE_IOERR_SHMSIZE;
    match &error {
        rusqlite::Error::SqliteFailure(cause, _) => match (cause.code, cause.extended_code) {
            (ErrorCode::DiskFull, _) | (_, SHARED_MEMORY_SIZE) => StoreError::Full("the disk is full".to_owned()),
            (ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase, _) => StoreError::Damaged(error.to_string()),
            _ => StoreError::unavailable(error),
        },
        // A number above `i64::MAX` names nothing that is stored; the faces refuse it, and this is behind them.
        rusqlite::Error::ToSqlConversionFailure(_) => StoreError::Missing("a thing of that number".to_owned()),
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..) => StoreError::Damaged(error.to_string()),
        _ => StoreError::unavailable(error),
    }
}

/// Why nothing may be acknowledged after this error, if it is such a one.
fn fatal_reason(error: &StoreError) -> Option<String> {
    let StoreError::Unavailable(source) = error else { return None };
    match source.downcast_ref::<rusqlite::Error>()? {
        error @ rusqlite::Error::SqliteFailure(cause, _) if cause.code == ErrorCode::SystemIoFailure => {
            Some(format!("an I/O error: {error}"))
        }
        _ => None,
    }
}

/// A job that runs once, where others may run again.
fn once<T>(
    job: impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError>,
) -> impl FnMut(&Connection, &mut AfterCommit) -> Result<T, StoreError> {
    let mut job = Some(job);
    move |connection, after| job.take().expect("it runs once")(connection, after)
}

fn run_job<T>(
    connection: &Connection,
    in_savepoint: bool,
    job: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let statement = |sql: &str| run_statement(connection, sql).map_err(store_error);
    if in_savepoint {
        statement("SAVEPOINT job")?;
    }
    let result = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|panic| Err(panicked(&panic)));
    // After some errors SQLite has rolled back the whole transaction by itself, savepoints and all.
    if in_savepoint && !connection.is_autocommit() {
        if result.is_err() {
            statement("ROLLBACK TO job")?;
        }
        statement("RELEASE job")?;
    }
    result
}

fn run_statement(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute(()).map(drop)
}

fn panicked(panic: &Box<dyn std::any::Any + Send>) -> StoreError {
    let why = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    tracing::error!(why, "a job of the store panicked");
    StoreError::unavailable(format!("a job of the store panicked: {why}"))
}

/// The write-ahead log, as the writer and its follower see it.
#[derive(Default)]
struct Log {
    /// Pages in it after the last commit.
    pages: AtomicU64,
    /// So many of them were in the file, and durable there, when the follower looked last.
    copied: AtomicU64,
}

struct Writer {
    connection: Connection,
    health: Arc<Health>,
    log: Arc<Log>,
    log_pages_max: u64,
    step_pages: u64,
    rest_pages: u64,
    nudge: Sender<()>,
    /// Pages in the log when the checkpointer was nudged last.
    nudged_at: u64,
}

type Group = VecDeque<Box<dyn WriteJob>>;

impl Writer {
    fn run(mut self, jobs: &Receiver<Box<dyn WriteJob>>) {
        turn::ask_for_short_slices();
        let mut group = Group::new();
        while let Ok(first) = jobs.recv() {
            group.push_back(first);
            group.extend(jobs.try_iter().take(COMPANY_MAX));
            while !group.is_empty() {
                self.commit(&mut group);
                if self.health.check().is_err() {
                    // Unanswered jobs are dropped, and their callers read the reason. The channel would keep those that came
                    // before the reason was known, and theirs would wait for ever.
                    drop((self, group));
                    jobs.iter().for_each(drop);
                    return;
                }
            }
            self.keep_log_short();
        }
    }

    /// Runs a group in one transaction and answers each job after the commit. What is left in the group afterwards did
    /// not run and wants a transaction of its own.
    fn commit(&self, group: &mut Group) {
        if let Err(error) = self.begin() {
            return self.refuse(group, error);
        }
        let mut done = Vec::with_capacity(group.len());
        // For as long as all that ran may run again.
        let mut care = false;
        while let Some(mut job) = group.pop_front() {
            care |= !job.runs_again();
            let ran = job.run(&self.connection, care);
            done.push(job);
            match ran {
                Ran::Fatally(why) => {
                    self.health.fail(why);
                    break;
                }
                Ran::Badly if !care => {
                    care = true;
                    done.drain(..).rev().for_each(|job| group.push_front(job));
                    if let Err(error) = self.begin_anew() {
                        return self.refuse(group, error);
                    }
                }
                // After some errors SQLite rolls back the whole transaction by itself.
                _ if self.connection.is_autocommit() => break,
                _ => {}
            }
        }
        let committed = if self.health.check().is_err() {
            Err(Fault::Failed(self.health.reason()))
        } else if self.connection.is_autocommit() {
            Err(Fault::Full("another write of the same commit found no room".to_owned()))
        } else {
            run_statement(&self.connection, "COMMIT").map_err(|error| self.fault(error))
        };
        if committed.is_err() && !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        if let Err(Fault::Full(_)) = committed {
            // With the log copied into the file, it starts again in the room that it has already.
            self.checkpoint();
        }
        for job in done {
            job.answer(committed.as_ref().copied());
        }
    }

    fn begin(&self) -> rusqlite::Result<()> {
        run_statement(&self.connection, "BEGIN IMMEDIATE")
    }

    /// Undoes all that ran.
    fn begin_anew(&self) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        self.begin()
    }

    /// There is no transaction for these.
    fn refuse(&self, group: &mut Group, error: rusqlite::Error) {
        let fault = self.fault(error);
        for job in group.drain(..) {
            job.answer(Err(&fault));
        }
    }

    fn checkpoint(&self) {
        if let Err(StoreError::Unavailable(error)) = checkpoint(&self.connection) {
            self.health.fail(format!("a checkpoint failed: {error}"));
        }
    }

    /// What a failed BEGIN or COMMIT means.
    fn fault(&self, error: rusqlite::Error) -> Fault {
        let busy = is_busy(&error);
        match store_error(error) {
            StoreError::Full(why) => Fault::Full(why),
            error => {
                if !busy {
                    self.health.fail(format!("a commit failed: {error}"));
                }
                Fault::Failed(error.to_string())
            }
        }
    }

    /// Lets the checkpointer follow in steps; does the rest itself when the log is long enough to start again, which it
    /// can only do while nobody appends.
    fn keep_log_short(&mut self) {
        let pages = self.log.pages.load(Ordering::Relaxed);
        if pages < self.nudged_at {
            self.nudged_at = 0;
        }
        let is_long = pages >= self.log_pages_max;
        // A log that has begun anew is shorter than what was copied of the one before.
        let copied = Some(self.log.copied.load(Ordering::Relaxed)).filter(|copied| *copied <= pages).unwrap_or(0);
        if is_long && (pages - copied <= self.rest_pages || pages >= 2 * self.log_pages_max) {
            self.checkpoint();
        } else if (is_long || pages - self.nudged_at >= self.step_pages) && self.nudge.try_send(()).is_ok() {
            self.nudged_at = pages;
        }
    }
}

/// Copies what it can from the log into the file without making anybody wait. Gives how many pages of the log are copied; if
/// another checkpoint is under way, it is left to that one.
fn checkpoint(connection: &Connection) -> Result<Option<u64>, StoreError> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, bool>(0)?, row.get::<_, i64>(2)?));
    match connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), read) {
        Ok((is_busy, copied)) => Ok(u64::try_from(copied).ok().filter(|_| !is_busy)),
        Err(error) if is_busy(&error) => Ok(None),
        Err(error) => Err(store_error(error)),
    }
}

/// Copies all of a log into its file and cuts it to nothing, so that no file has what was overwritten. Blocks, and is for the
/// time before anybody reads or writes.
///
/// # Errors
/// `Unavailable` if something of the log stays.
pub(crate) fn empty_log(path: &Path) -> Result<(), StoreError> {
    let connection = Connection::open(path).map_err(store_error)?;
    connection.busy_timeout(Duration::from_secs(10)).map_err(store_error)?;
    match connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0)).map_err(store_error)? {
        false => Ok(()),
        true => Err(StoreError::unavailable(format!("the log of `{}` is in use", path.display()))),
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Copies the log behind the writer until that ends.
struct Follower {
    connection: Connection,
    file: Arc<File>,
    log: Arc<Log>,
    health: Arc<Health>,
}

impl Follower {
    fn run(&self, nudged: &Receiver<()>) {
        while nudged.recv().is_ok() {
            match checkpoint(&self.connection) {
                // SQLite syncs the file when the last page is copied, which is the writer's part. All that is synced here it
                // need not wait for then.
                Ok(Some(copied)) => match pieces::sync(&self.file) {
                    Ok(()) => self.log.copied.store(copied, Ordering::Relaxed),
                    Err(error) => return self.health.fail(format!("a checkpoint failed: {error}")),
                },
                // A full disk is no trouble here: the log keeps what could not be copied.
                Ok(None) | Err(StoreError::Full(_) | StoreError::Damaged(_)) => {}
                Err(error) => return self.health.fail(format!("a checkpoint failed: {error}")),
            }
        }
    }
}

/// Refuses a file that another process has open. The operating system frees the lock when its holder ends, however.
fn lock(path: &Path) -> Result<File, StoreError> {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(|error| cannot_open(&lock_path, error))?;
    let mut locked = file.try_lock();
    // A program that this process is just starting has a copy of a lock that was let go, until it runs.
    for _ in 0..LOCK_TRIES {
        if !matches!(locked, Err(TryLockError::WouldBlock)) {
            break;
        }
        std::thread::sleep(LOCK_PAUSE);
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::unavailable(format!(
            "another process works with `{}`; stop it, or choose another folder",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(cannot_open(&lock_path, error)),
    }
}

fn cannot_open(path: &Path, error: std::io::Error) -> StoreError {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return StoreError::Full(format!("cannot open `{}`: {error}", path.display()));
    }
    StoreError::unavailable(format!("cannot open `{}`: {error}", path.display()))
}

fn connect(path: &Path, options: &Options, cache_kib: u32) -> Result<Connection, StoreError> {
    let connection = Connection::open(path).map_err(store_error)?;
    let set = |name: &str, value: i64| connection.pragma_update(None, name, value).map_err(store_error);
    connection.busy_timeout(Duration::from_secs(10)).map_err(store_error)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // Without this, most statements with a parameter would be compiled again each time that they are used, in case that a
    // value suits another plan better. Ours have one plan.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(store_error)?;
    // Only the first connection of a new file decides, before the log is switched on.
    set("page_size", i64::from(options.page_bytes))?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(store_error)?;
    if mode != "wal" {
        return Err(StoreError::unavailable(format!(
            "the file system of `{}` does not allow a write-ahead log (SQLite answers `{mode}`)",
            path.display()
        )));
    }
    set("cache_size", -i64::from(cache_kib))?;
    set("temp_store", 2)?;
    set("trusted_schema", 0)?;
    Ok(connection)
}

/// Looks through a small file for damage of its structure, by which rows may be left out without an error. A large one is
/// examined with each backup, for it takes too long at a start.
fn examine(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let bytes = std::fs::metadata(path).map_err(|error| cannot_open(path, error))?.len();
    if bytes > EXAMINED_BYTES_MAX {
        return Ok(());
    }
    let found: String = connection.query_row("PRAGMA quick_check(1)", (), |row| row.get(0)).map_err(store_error)?;
    match &*found {
        "ok" => Ok(()),
        found => Err(StoreError::Damaged(format!("`{}` is damaged: {found}", path.display()))),
    }
}

/// Brings the schema up to date, one step a transaction.
fn migrate(connection: &mut Connection, path: &Path, migrations: &[&str]) -> Result<(), StoreError> {
    let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(store_error)?;
    let version = version as usize;
    if version > migrations.len() {
        return Err(StoreError::unavailable(format!(
            "`{}` was written by a newer version of Tocsin (its schema is {version}, this one knows {}); use that version, \
             or restore a backup made before it",
            path.display(),
            migrations.len()
        )));
    }
    for (done, migration) in migrations.iter().enumerate().skip(version) {
        let transaction = connection.transaction().map_err(store_error)?;
        transaction
            .execute_batch("CREATE TABLE IF NOT EXISTS probe (one INTEGER PRIMARY KEY, count INTEGER NOT NULL) STRICT")
            .and_then(|()| transaction.execute_batch(migration))
            .and_then(|()| transaction.pragma_update(None, "user_version", i64::try_from(done + 1).unwrap_or(i64::MAX)))
            .and_then(|()| transaction.commit())
            .map_err(store_error)?;
        tracing::info!(file = %path.display(), schema = done + 1, "the schema went a step forward");
    }
    Ok(())
}

fn spawn(role: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    std::thread::Builder::new().name(format!("store-{role}")).spawn(run).map_err(StoreError::unavailable)
}

#[cfg(test)]
mod tests;
