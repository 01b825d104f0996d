//! One SQLite file: a writer thread with group commit, reader threads, and a checkpointer thread.
//!
//! Group commit: callers share one fsync. The writer takes one job, then all others that are already queued, and
//! commits them together. It never waits for more jobs; the next group gathers during the fsync. A job is
//! acknowledged only after its commit.
//!
//! A failed job is rolled back alone. Retryable jobs need no savepoint, which would copy every page that they change:
//! if one of them fails, the transaction is rolled back and all jobs run again, with savepoints.
//!
//! The checkpointer copies the write-ahead log (WAL) into the file and syncs it in chunks. Only the rest, when the
//! WAL is long enough to restart, is done by the writer, because nothing may be appended meanwhile.
//!
//! Errors are classified by what can be done about them. A full disk fails the group with `Full`, and the writer
//! continues, since space may be freed. After any other I/O error it is unknown what has reached the disk (a repeated
//! `fsync` may return success for pages that were dropped), so the writer acknowledges nothing until a restart.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{File, OpenOptions, TryLockError},
    io::Write,
    os::unix::fs::OpenOptionsExt,
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

mod wal_check; // detects damage of the WAL, as opposed to a torn end
mod chunked_sync; // file sync in chunks, so that commits can pass
mod scheduling; // low wake-up latency of the writer thread

/// Maximum number of queued writes; further ones get `Full`.
pub(crate) const WAITING_WRITES_MAX: usize = 8_192;
/// Maximum number of jobs per commit, besides the first.
const GROUP_JOBS_MAX: usize = 1_024;
/// Maximum number of queued reads; further ones get `Full`.
const WAITING_READS_MAX: usize = 8_192;
/// Checkpoint step of most files: short, so that no commit waits long for the disk.
pub(crate) const LOG_STEP_BYTES: u64 = 8 << 20;
/// Rest of the WAL that the writer may checkpoint itself while all callers wait.
const CHECKPOINT_REST_BYTES: u64 = 1 << 20;
/// Attempts and pause for a file lock.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Validity of a free-space check: much less than the reserve is written in this time.
const FREE_SPACE_CACHED_FOR: Duration = Duration::from_millis(10);
/// Maximum size of a transaction's changed pages in memory, in KiB, also beyond the page cache. Further pages spill
/// into the WAL before the commit, and again whenever they change.
const CHANGED_KIB_MAX: i64 = 64 << 10;
/// Files up to this size are checked when they are opened, in less than a second.
const EXAMINED_BYTES_MAX: u64 = 64 << 20;
/// Prepared statements cached per connection.
const STATEMENTS_MAX: usize = 128;

/// Options of a file.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Page size of a new file, in bytes: a power of two from 512 to 65,536. An existing file keeps its own.
    pub page_bytes: u32,
    /// When the WAL has this size and little of it is left to copy, the writer completes the checkpoint between two
    /// commits, so that the WAL restarts at its beginning. At twice the size it does so in any case.
    pub log_bytes_max: u64,
    /// Checkpoint step, in bytes of WAL. A page written several times within a step is copied once.
    pub log_step_bytes: u64,
    /// Page cache of the writer, in KiB. Grows on demand.
    pub writer_cache_kib: u32,
    /// Page cache of each reader, in KiB.
    pub reader_cache_kib: u32,
    /// Number of reader threads.
    pub readers: usize,
    /// Whether commits are on the disk when they are acknowledged. Otherwise a power failure can lose the last ones,
    /// but leaves the file consistent.
    pub synced: bool,
    /// Schema as forward-only migrations: the file's `user_version` is the number applied.
    pub migrations: &'static [&'static str],
}

/// Open file. Dropping it waits for the accepted writes.
pub(crate) struct Database {
    writes: Option<Sender<Box<dyn WriteJob>>>,
    reads: Option<Sender<ReadJob>>,
    threads: Vec<JoinHandle<()>>,
    health: Arc<FileHealth>,
    /// Connection that is closed last. SQLite then checkpoints, syncs and removes the WAL. After a failed sync it
    /// must not: the next sync can return success for pages that were dropped, and only the WAL has them.
    last: Option<Mutex<Connection>>,
    /// The file itself, for syncing. Must be closed after all connections: closing it releases SQLite's locks.
    _file: Arc<File>,
    /// Lock held while the file is open: a second process is refused.
    _lock: File,
}

/// Actions to run after a durable commit, such as waking waiters. Dropped if the commit fails.
#[derive(Default)]
pub(crate) struct AfterCommit(Vec<Box<dyn FnOnce() + Send>>);

impl AfterCommit {
    /// Adds an action. It runs on the writer thread before the job is answered, so it must be quick.
    pub(crate) fn run(&mut self, act: impl FnOnce() + Send + 'static) {
        self.0.push(Box::new(act));
    }

    /// Runs or drops the actions, and with them what the job held. Before the job is answered: its caller may need
    /// that at once.
    fn end(self, is_stored: bool) {
        if is_stored {
            self.0.into_iter().for_each(|act| act());
        }
    }
}

type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// Queued write.
trait WriteJob: Send {
    /// Whether it can run again after a rollback.
    fn is_retryable(&self) -> bool;

    /// Runs the job. With `use_savepoint`, its changes are rolled back if it fails; otherwise the caller rolls back.
    fn run(&mut self, connection: &Connection, use_savepoint: bool) -> JobResult;

    /// Answers the caller: the result if the commit is durable, or else the error.
    fn answer(self: Box<Self>, committed: Result<(), &CommitError>);
}

/// Result of running a job.
enum JobResult {
    Succeeded,
    /// It returned an error or panicked.
    Failed,
    /// It hit an I/O error after which nothing can be acknowledged.
    Fatal(String),
}

/// Rollback of a failed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undo {
    /// To a savepoint.
    Savepoint,
    /// A single statement, which SQLite rolls back itself.
    Statement,
    /// The whole transaction, which then runs again.
    Transaction,
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
    fn is_retryable(&self) -> bool {
        self.undo == Undo::Transaction
    }

    fn run(&mut self, connection: &Connection, use_savepoint: bool) -> JobResult {
        let in_savepoint = match self.undo {
            Undo::Savepoint => true,
            Undo::Statement => false,
            Undo::Transaction => use_savepoint,
        };
        self.after = AfterCommit::default();
        let result = run_job(connection, in_savepoint, || (self.work)(connection, &mut self.after));
        let ran = match &result {
            Ok(_) => JobResult::Succeeded,
            Err(error) => fatal_reason(error).map_or(JobResult::Failed, JobResult::Fatal),
        };
        self.result = Some(result);
        ran
    }

    fn answer(self: Box<Self>, committed: Result<(), &CommitError>) {
        let Job { work, after, result, answer, .. } = *self;
        // The caller may need exclusive ownership of what the job held.
        drop(work);
        let stored = match (committed, result) {
            (Ok(()), Some(result)) => result,
            (Err(_), Some(Err(error))) => Err(error),
            (Err(commit_error), _) => Err(commit_error.to_error()),
            (Ok(()), None) => unreachable!("only what ran is committed"),
        };
        after.end(stored.is_ok());
        answer(stored);
    }
}

/// Reason of a failed commit.
enum CommitError {
    Full(String),
    Failed(String),
}

impl CommitError {
    fn to_error(&self) -> StoreError {
        match self {
            CommitError::Full(why) => StoreError::Full(why.clone()),
            CommitError::Failed(why) => StoreError::unavailable(why.clone()),
        }
    }
}

/// Files that acknowledge nothing any more, with the reason.
static FAILED: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

/// Open files of a data folder that have failed and acknowledge nothing until they are reopened, each with the
/// reason. No I/O.
pub fn failed(folder: &Path) -> Vec<String> {
    let is_there = |path: &Path| path.parent() == Some(folder);
    let shown = |(path, why): (&PathBuf, &String)| {
        format!("`{}` stores nothing until a restart: {why}", path.file_name().unwrap_or_default().display())
    };
    FAILED.lock().iter().filter(|(path, _)| is_there(path)).map(shown).collect()
}

/// Failure state of a file. Set once.
struct FileHealth {
    path: PathBuf,
    failure: OnceLock<String>,
}

impl FileHealth {
    fn of(path: &Path) -> FileHealth {
        FileHealth { path: path.to_owned(), failure: OnceLock::new() }
    }

    fn fail(&self, why: String) {
        tracing::error!(path = %self.path.display(), why, "the store stops acknowledging until a restart");
        FAILED.lock().entry(self.path.clone()).or_insert_with(|| why.clone());
        let _ = self.failure.set(why);
    }

    fn check(&self) -> Result<(), StoreError> {
        self.failure.get().map_or(Ok(()), |why| Err(StoreError::unavailable(why.clone())))
    }

    /// Reason why a write was not accepted or answered.
    fn reason(&self) -> String {
        self.failure.get().cloned().unwrap_or_else(|| "the store has been closed".to_owned())
    }

    fn error(&self) -> StoreError {
        StoreError::unavailable(self.reason())
    }
}

impl Database {
    /// Opens or creates a file and migrates its schema. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process has it open, a newer version wrote it, or it cannot be opened; `Damaged` if
    /// it is not a database, or if its WAL is damaged.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Database, StoreError> {
        if let Some(folder) = path.parent() {
            folder::make(folder, 0o777).map_err(|error| cannot_open(folder, error))?;
        }
        let lock = lock(path)?;
        create(path, &lock, options)?;
        if options.synced {
            wal_check::check(path)?;
        }
        let mut writer = connect(path, options, options.writer_cache_kib)?;
        let synchronous = if options.synced { "FULL" } else { "NORMAL" };
        writer.pragma_update(None, "synchronous", synchronous).map_err(store_error)?;
        writer.pragma_update(None, "cache_spill", -CHANGED_KIB_MAX).map_err(store_error)?;
        examine(&writer, path)?;
        migrate(&mut writer, path, options.migrations)?;
        record_creation(&lock).map_err(|error| cannot_open(path, error))?;
        // Checkpoints run in the checkpointer, not within a commit, where callers would wait.
        writer.pragma_update(None, "wal_autocheckpoint", 0).map_err(store_error)?;
        // The maximum length of the WAL: truncated space would soon be needed again, and a commit that extends a file
        // also writes the inode.
        let log_bytes_kept = options.log_bytes_max.saturating_mul(2).cast_signed();
        writer.pragma_update(None, "journal_size_limit", log_bytes_kept).map_err(store_error)?;
        let page_bytes: u32 = writer.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(store_error)?;
        let page_bytes = u64::from(page_bytes);

        let health = Arc::new(FileHealth::of(path));
        let mut threads = Vec::new();

        let (wake_up, woken) = bounded(1);
        let checkpointer = connect(path, options, 64)?;
        checkpointer.pragma_update(None, "synchronous", "FULL").map_err(store_error)?;
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| cannot_open(path, error))?;
        let (file, log) = (Arc::new(file), Arc::new(WalState::default()));
        threads.push(spawn("checkpointer", {
            let checkpointer =
                Checkpointer { connection: checkpointer, file: file.clone(), log: log.clone(), health: health.clone() };
            move || checkpointer.run(&woken)
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
            wake_up,
            woken_at: 0,
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

    /// Runs a job that makes several changes atomically: they are rolled back if it fails or panics.
    ///
    /// # Errors
    /// The job's own; `Full` if the disk is full or too many writes are queued; `Unavailable` if the commit failed
    /// otherwise. In each case nothing was stored.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit_and_wait(Undo::Savepoint, once(job)).await
    }

    /// Like [`Database::write`], for a job that rarely fails and can run again after a rollback. It is cheaper:
    /// changed pages are not copied to a savepoint.
    pub(crate) async fn write_retryable<T: Send + 'static>(
        &self,
        job: impl Fn(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit_and_wait(Undo::Transaction, job).await
    }

    /// Like [`Database::write_retryable`], with a callback: `answer` is called on the writer thread after the commit
    /// or its failure, or at once if the job is not accepted.
    pub(crate) fn write_retryable_then<T: Send + 'static>(
        &self,
        job: impl Fn(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
        answer: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) {
        self.submit(Undo::Transaction, job, answer);
    }

    /// Runs a job of one statement, which SQLite rolls back itself if it fails. The job must not fail after the
    /// statement.
    ///
    /// # Errors
    /// As [`Database::write`].
    pub(crate) async fn write_statement<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit_and_wait(Undo::Statement, once(job)).await
    }

    /// Like [`Database::write`], for use outside of async tasks: it blocks the thread.
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
            // A caller that stopped waiting has its write stored nevertheless.
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(self.health.error()))
    }

    /// Submits a job to the writer, which answers it; a rejected job is answered here.
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
        let (job, commit_error) = match refused {
            Ok(()) => return,
            Err(TrySendError::Full(job)) => {
                (job, CommitError::Full(format!("{WAITING_WRITES_MAX} writes are already waiting")))
            }
            Err(TrySendError::Disconnected(job)) => (job, CommitError::Failed(self.health.reason())),
        };
        job.answer(Err(&commit_error));
    }

    /// Runs a read on a reader thread. It sees every write acknowledged before the call.
    ///
    /// # Errors
    /// The job's own; `Full` if too many reads are queued.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: ReadJob = Box::new(move |connection| {
            let result = catch_unwind(AssertUnwindSafe(|| {
                // A transaction, so that several statements read one snapshot.
                let snapshot = connection.unchecked_transaction().map_err(store_error)?;
                let result = job(connection);
                drop(snapshot);
                result
            }));
            let _ = answer.send(result.unwrap_or_else(|panic| Err(panicked(&panic))));
        });
        match self.reads.as_ref().expect("open until dropped").try_send(job) {
            Ok(()) => answered.await.unwrap_or_else(|_| Err(self.health.error())),
            Err(TrySendError::Full(_)) => {
                Err(StoreError::Full(format!("{WAITING_READS_MAX} reads are already waiting")))
            }
            Err(TrySendError::Disconnected(_)) => Err(self.health.error()),
        }
    }

    /// Writes and syncs a few bytes through the writer; returns the time it took, including the queue.
    ///
    /// # Errors
    /// As [`Database::write`].
    pub(crate) async fn probe(&self) -> Result<Duration, StoreError> {
        let start = Instant::now();
        self.write_statement(|connection, _| {
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
        // Without senders, the writer ends after the queued jobs, and the checkpointer after the writer.
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
            tracing::error!(%error, "cannot keep the WAL of a database after a failed sync; the connection stays open");
            std::mem::forget(last);
        }
    }
}

/// Disk-space guard: refuses intake while the disk is nearly full, so that accepted work can always be finished.
#[derive(Debug, Clone)]
pub(crate) struct FreeSpace {
    /// Folder on the file system.
    folder: PathBuf,
    /// Bytes to keep free.
    reserve_bytes: u64,
    /// Time of the last successful check.
    last_success: Arc<Mutex<Option<Instant>>>,
}

impl FreeSpace {
    /// Watches the file system of a file. A reserve of 0 disables the check.
    pub(crate) fn of(path: &Path, reserve_bytes: u64) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        FreeSpace { folder: folder.to_owned(), reserve_bytes, last_success: Arc::default() }
    }

    /// Queries the file system; a successful check is cached for a hundredth of a second.
    ///
    /// # Errors
    /// `Full` if less than the reserve is free.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let now = Instant::now();
        let is_recent = |at: Instant| now.duration_since(at) < FREE_SPACE_CACHED_FOR;
        if self.reserve_bytes == 0 || self.last_success.lock().is_some_and(is_recent) {
            return Ok(());
        }
        let system = rustix::fs::statvfs(&self.folder).map_err(StoreError::unavailable)?;
        let free_bytes = system.f_bavail.saturating_mul(system.f_frsize);
        if free_bytes < self.reserve_bytes {
            return Err(StoreError::Full(format!(
                "the disk has {free_bytes} free bytes, fewer than the reserve of {}",
                self.reserve_bytes
            )));
        }
        *self.last_success.lock() = Some(now);
        Ok(())
    }
}

/// Maps an SQLite error to what a caller can do about it.
pub(crate) fn store_error(error: rusqlite::Error) -> StoreError {
    // SQLite reports an I/O error if the shared-memory index of the WAL cannot grow, but the disk is full.
    const SHARED_MEMORY_SIZE: i32 = rusqlite::ffi::SQLITE_IOERR_SHMSIZE;
    match &error {
        rusqlite::Error::SqliteFailure(cause, _) => match (cause.code, cause.extended_code) {
            (ErrorCode::DiskFull, _) | (_, SHARED_MEMORY_SIZE) => StoreError::Full("the disk is full".to_owned()),
            (ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase, _) => StoreError::Damaged(error.to_string()),
            _ => StoreError::unavailable(error),
        },
        // A number above `i64::MAX` cannot exist in the store. The API rejects it earlier.
        rusqlite::Error::ToSqlConversionFailure(_) => StoreError::Missing("an item with this number".to_owned()),
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..) => StoreError::Damaged(error.to_string()),
        _ => StoreError::unavailable(error),
    }
}

/// Reason why nothing can be acknowledged after this error, if it is fatal.
fn fatal_reason(error: &StoreError) -> Option<String> {
    let StoreError::Unavailable(source) = error else { return None };
    match source.downcast_ref::<rusqlite::Error>()? {
        error @ rusqlite::Error::SqliteFailure(cause, _) if cause.code == ErrorCode::SystemIoFailure => {
            Some(format!("an I/O error: {error}"))
        }
        _ => None,
    }
}

/// Wraps a job that runs once as one that is called once.
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
    // After some errors, SQLite has already rolled back the whole transaction, including savepoints.
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

/// State of the WAL, shared by the writer and the checkpointer.
#[derive(Default)]
struct WalState {
    /// Pages in the WAL after the last commit.
    pages: AtomicU64,
    /// Pages that were copied into the file and durable at the last checkpoint.
    copied: AtomicU64,
}

struct Writer {
    connection: Connection,
    health: Arc<FileHealth>,
    log: Arc<WalState>,
    log_pages_max: u64,
    step_pages: u64,
    rest_pages: u64,
    wake_up: Sender<()>,
    /// Pages in the WAL when the checkpointer was last woken.
    woken_at: u64,
}

type Group = VecDeque<Box<dyn WriteJob>>;

impl Writer {
    fn run(mut self, jobs: &Receiver<Box<dyn WriteJob>>) {
        scheduling::request_short_slices();
        let mut group = Group::new();
        while let Ok(first) = jobs.recv() {
            group.push_back(first);
            group.extend(jobs.try_iter().take(GROUP_JOBS_MAX));
            while !group.is_empty() {
                self.commit(&mut group);
                if self.health.check().is_err() {
                    // Unanswered jobs are dropped, and their callers get the reason. Jobs queued before the failure
                    // was known would otherwise wait forever in the channel.
                    drop((self, group));
                    jobs.iter().for_each(drop);
                    return;
                }
            }
            self.checkpoint_wal();
        }
    }

    /// Runs a group in one transaction and answers each job after the commit. Jobs left in the group did not run and
    /// need a transaction of their own.
    fn commit(&self, group: &mut Group) {
        if let Err(error) = self.begin() {
            return self.refuse(group, error);
        }
        let mut done = Vec::with_capacity(group.len());
        // Becomes true with the first job that cannot run again.
        let mut use_savepoint = false;
        while let Some(mut job) = group.pop_front() {
            use_savepoint |= !job.is_retryable();
            let ran = job.run(&self.connection, use_savepoint);
            done.push(job);
            match ran {
                JobResult::Fatal(why) => {
                    self.health.fail(why);
                    break;
                }
                JobResult::Failed if !use_savepoint => {
                    use_savepoint = true;
                    done.drain(..).rev().for_each(|job| group.push_front(job));
                    if let Err(error) = self.restart_transaction() {
                        return self.refuse(group, error);
                    }
                }
                // After some errors, SQLite has already rolled back the whole transaction.
                _ if self.connection.is_autocommit() => break,
                _ => {}
            }
        }
        let committed = if self.health.check().is_err() {
            Err(CommitError::Failed(self.health.reason()))
        } else if self.connection.is_autocommit() {
            Err(CommitError::Full("another write of the same commit filled the disk".to_owned()))
        } else {
            run_statement(&self.connection, "COMMIT").map_err(|error| self.commit_error(error))
        };
        if committed.is_err() && !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        if let Err(CommitError::Full(_)) = committed {
            // After a checkpoint, the WAL restarts within the space that it has.
            self.checkpoint();
        }
        for job in done {
            job.answer(committed.as_ref().copied());
        }
    }

    fn begin(&self) -> rusqlite::Result<()> {
        run_statement(&self.connection, "BEGIN IMMEDIATE")
    }

    /// Rolls back all jobs and begins again.
    fn restart_transaction(&self) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        self.begin()
    }

    /// Answers jobs for which no transaction could begin.
    fn refuse(&self, group: &mut Group, error: rusqlite::Error) {
        let commit_error = self.commit_error(error);
        for job in group.drain(..) {
            job.answer(Err(&commit_error));
        }
    }

    fn checkpoint(&self) {
        if let Err(StoreError::Unavailable(error)) = checkpoint(&self.connection) {
            self.health.fail(format!("a checkpoint failed: {error}"));
        }
    }

    /// Classifies a failed BEGIN or COMMIT.
    fn commit_error(&self, error: rusqlite::Error) -> CommitError {
        let busy = is_busy(&error);
        match store_error(error) {
            StoreError::Full(why) => CommitError::Full(why),
            error => {
                if !busy {
                    self.health.fail(format!("a commit failed: {error}"));
                }
                CommitError::Failed(error.to_string())
            }
        }
    }

    /// Wakes the checkpointer in steps; completes the checkpoint when the WAL is long enough to restart, which
    /// requires that nothing is appended meanwhile.
    fn checkpoint_wal(&mut self) {
        let pages = self.log.pages.load(Ordering::Relaxed);
        if pages < self.woken_at {
            self.woken_at = 0;
        }
        let is_long = pages >= self.log_pages_max;
        // A restarted WAL is shorter than what was copied of the former one.
        let copied = Some(self.log.copied.load(Ordering::Relaxed)).filter(|copied| *copied <= pages).unwrap_or(0);
        if is_long && (pages - copied <= self.rest_pages || pages >= 2 * self.log_pages_max) {
            self.checkpoint();
        } else if (is_long || pages - self.woken_at >= self.step_pages) && self.wake_up.try_send(()).is_ok() {
            self.woken_at = pages;
        }
    }
}

/// Copies as much of the WAL into the file as is possible without blocking anyone. Returns the number of copied
/// pages; `None` if another checkpoint is running.
fn checkpoint(connection: &Connection) -> Result<Option<u64>, StoreError> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, bool>(0)?, row.get::<_, i64>(2)?));
    match connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), read) {
        Ok((is_busy, copied)) => Ok(u64::try_from(copied).ok().filter(|_| !is_busy)),
        Err(error) if is_busy(&error) => Ok(None),
        Err(error) => Err(store_error(error)),
    }
}

/// Copies the whole WAL into its file and truncates it, so that no file keeps overwritten data. Blocks; for use
/// before anything reads or writes.
///
/// # Errors
/// `Unavailable` if part of the WAL is in use.
pub(crate) fn truncate_wal(path: &Path) -> Result<(), StoreError> {
    let connection = Connection::open(path).map_err(store_error)?;
    connection.busy_timeout(Duration::from_secs(10)).map_err(store_error)?;
    match connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0)).map_err(store_error)? {
        false => Ok(()),
        true => Err(StoreError::unavailable(format!("the WAL of `{}` is in use", path.display()))),
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Checkpointer thread: copies the WAL behind the writer until the writer ends.
struct Checkpointer {
    connection: Connection,
    file: Arc<File>,
    log: Arc<WalState>,
    health: Arc<FileHealth>,
}

impl Checkpointer {
    fn run(&self, woken: &Receiver<()>) {
        while woken.recv().is_ok() {
            match checkpoint(&self.connection) {
                // SQLite syncs the file only when the last page is copied, which the writer does. Pages synced here
                // need no waiting then.
                Ok(Some(copied)) => match chunked_sync::sync(&self.file) {
                    Ok(()) => self.log.copied.store(copied, Ordering::Relaxed),
                    Err(error) => return self.health.fail(format!("a checkpoint failed: {error}")),
                },
                // A full disk does no harm here: the WAL keeps what could not be copied.
                Ok(None) | Err(StoreError::Full(_) | StoreError::Damaged(_)) => {}
                Err(error) => return self.health.fail(format!("a checkpoint failed: {error}")),
            }
        }
    }
}

/// A path with an ending after its last extension, such as `journal.db-wal`.
pub(crate) fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Refuses a file that another process has open. The operating system releases the lock when its holder ends in any
/// way.
fn lock(path: &Path) -> Result<File, StoreError> {
    let lock_path = with_suffix(path, ".lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&lock_path)
        .map_err(|error| cannot_open(&lock_path, error))?;
    let mut locked = file.try_lock();
    // A child process being started inherits a copy of a released lock until it executes its program.
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
            "another process uses `{}`; stop it, or choose another folder",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(cannot_open(&lock_path, error)),
    }
}

/// Creates the file if it does not exist, for its owner alone; SQLite gives its logs the same rights. A file that existed
/// before and is missing or empty now is an error: a new database in its place would hide the loss.
fn create(path: &Path, lock: &File, options: &Options) -> Result<(), StoreError> {
    match std::fs::metadata(path) {
        Ok(data) if data.len() > 0 => return Ok(()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(cannot_open(path, error)),
        _ => {}
    }
    let existed = lock.metadata().map_err(|error| cannot_open(path, error))?.len() > 0;
    if existed && options.synced {
        return Err(StoreError::Damaged(format!(
            "`{path}` held data before, and is missing or empty now: restore the data folder from a backup; remove \
             `{path}.lock` to begin with an empty database",
            path = path.display()
        )));
    }
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| cannot_open(path, error))?;
    Ok(())
}

/// Notes in the lock file that the database exists.
fn record_creation(mut lock: &File) -> std::io::Result<()> {
    if lock.metadata()?.len() == 0 {
        lock.write_all(b"created\n")?;
    }
    Ok(())
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
    // Without this, SQLite would recompile most parameterized statements on each use, in case a value suits another
    // plan better. Ours have one plan.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(store_error)?;
    // Only the first connection of a new file sets the page size, before WAL mode is enabled.
    set("page_size", i64::from(options.page_bytes))?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(store_error)?;
    if mode != "wal" {
        return Err(StoreError::unavailable(format!(
            "the file system of `{}` does not allow a write-ahead log (SQLite reports `{mode}`)",
            path.display()
        )));
    }
    set("cache_size", -i64::from(cache_kib))?;
    set("temp_store", 2)?;
    set("trusted_schema", 0)?;
    Ok(connection)
}

/// Checks a small file for structural damage, which could hide rows without an error. A large file is checked by each
/// backup instead, since it would delay the start.
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

/// Applies pending migrations, each in a transaction.
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
    }
    match version {
        current if current == migrations.len() => {}
        0 => tracing::info!(file = %path.display(), schema = migrations.len(), "database created"),
        from => tracing::info!(file = %path.display(), from, to = migrations.len(), "database schema migrated"),
    }
    Ok(())
}

fn spawn(role: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    std::thread::Builder::new().name(format!("store-{role}")).spawn(run).map_err(StoreError::unavailable)
}

#[cfg(test)]
mod tests;
