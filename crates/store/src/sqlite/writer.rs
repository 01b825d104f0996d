//! One SQLite file: a writer thread with group commit, reader threads, and a checkpointer thread.
//!
//! Group commit: callers share one fsync. The writer takes one job, then all others that are already queued, and
//! commits them together. It never waits for more jobs; the next group gathers during the fsync. A job is
//! acknowledged only after its commit.
//!
//! A failed job is rolled back alone. Retryable jobs need no savepoint, which would copy every page that they change:
//! if one of them fails, the transaction is rolled back and all jobs run again, with savepoints. The first job of a
//! transaction needs none either. In a savepoint, the end of each statement takes time in proportion to the pages that
//! the job has changed (`memjrnlTruncate` of SQLite), so a large job would take quadratic time.
//!
//! The checkpointer copies the write-ahead log (WAL) into the file and syncs it in chunks. Only the rest, when the
//! WAL is long enough to restart, is done by the writer, because nothing may be appended meanwhile.
//!
//! Errors are classified by what can be done about them. A full disk fails the group with `Full`, and the writer
//! continues, since space may be freed. After any other I/O error it is unknown what has reached the disk (a repeated
//! `fsync` may return success for pages that were dropped), so the writer acknowledges nothing until a restart.

mod options; // options and bounds of a file
mod errors; // errors of SQLite as store errors
mod file; // opens a file: lock, creation, schema version
mod free_space; // free disk space, checked before writes
mod free_pages; // overwrites pages that are free
mod wal_check; // detects damage of the WAL, as opposed to a torn end
mod chunked_sync; // file sync in chunks, so that commits can pass
mod scheduling; // low wake-up latency of the writer thread
mod jobs; // jobs of the writer
mod checkpoints; // WAL checkpoints
mod group_commit; // the writer thread

#[cfg(test)]
mod tests;

use std::{
    fs::{File, OpenOptions},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Sender, TrySendError, bounded};
use parking_lot::Mutex;
use rusqlite::{Connection, config::DbConfig, hooks::Wal};
use tocsin_model::folder;
use tokio::sync::oneshot;

use crate::{
    audit::{self, ChangeContext},
    error::StoreError,
    sqlite::{
        audit as audit_rows,
        writer::{
            checkpoints::{CHECKPOINT_REST_BYTES, Checkpointer, WalState},
            errors::{FAILED, FileHealth, panicked},
            file::{CHANGED_KIB_MAX, cannot_open, connect, create, examine, lock, migrate, record_creation},
            group_commit::Writer,
            jobs::{CommitError, Job, ReadJob, Undo, WriteJob, once},
            options::WAITING_READS_MAX,
        },
    },
};

pub(crate) use checkpoints::truncate_wal;
pub use errors::failed;
pub(crate) use errors::store_error;
pub(crate) use file::with_suffix;
pub(crate) use free_space::FreeSpace;
pub(crate) use jobs::AfterCommit;
pub(crate) use options::{Erases, LOG_STEP_BYTES, Options, WAITING_WRITES_MAX};

/// Open file. Dropping it waits for the accepted writes.
pub(crate) struct Database {
    path: PathBuf,
    /// Whether it has an audit log.
    is_audited: bool,
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
        writer.pragma_update(None, "secure_delete", options.erases.pragma()).map_err(store_error)?;
        writer.pragma_update(None, "cache_spill", -CHANGED_KIB_MAX).map_err(store_error)?;
        examine(&writer, path)?;
        migrate(&mut writer, path, options.migrations)?;
        let is_audited = audit_rows::is_there(&writer)?;
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
        Ok(Database {
            path: path.to_owned(),
            is_audited,
            writes: Some(writes),
            reads: Some(reads),
            threads,
            health,
            last,
            _file: file,
            _lock: lock,
        })
    }

    /// Overwrites all pages that are free now, some per commit, through the table `fill` of the file. After a crash the
    /// call is repeated.
    ///
    /// # Errors
    /// As [`Database::write`].
    pub(crate) async fn overwrite_free_pages(&self) -> Result<(), StoreError> {
        // Others free pages meanwhile; those hold nothing that was to be overwritten.
        let mut left = self.read(free_pages::count).await? + free_pages::PAGES_PER_COMMIT;
        while left > 0 && self.write(|connection, _| free_pages::fill(connection)).await? {
            left = left.saturating_sub(free_pages::PAGES_PER_COMMIT);
        }
        while self.write(|connection, _| free_pages::release(connection)).await? {}
        Ok(())
    }

    /// Copies the WAL into the file and truncates it.
    ///
    /// # Errors
    /// `Unavailable` if a read or a backup uses the WAL for longer than the timeout of a connection.
    pub(crate) async fn truncate_log(&self) -> Result<(), StoreError> {
        let path = self.path.clone();
        let done = tokio::task::spawn_blocking(move || checkpoints::truncate_wal(&path)).await;
        done.map_err(|_| StoreError::unavailable("the checkpoint panicked"))?
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
    /// or its failure, or at once if the job is not accepted. Its changes can be those of several callers, so it writes
    /// their audit entries itself.
    pub(crate) fn write_retryable_then<T: Send + 'static>(
        &self,
        job: impl Fn(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
        answer: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) {
        self.submit(Undo::Transaction, None, job, answer);
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
        self.submit(Undo::Savepoint, self.context(), once(job), move |result| {
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
        self.submit(undo, self.context(), work, move |result| {
            // A caller that stopped waiting has its write stored nevertheless.
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(self.health.error()))
    }

    /// Context of the running operation, if this file has an audit log.
    fn context(&self) -> Option<Arc<ChangeContext>> {
        audit::current().filter(|_| self.is_audited)
    }

    /// Submits a job to the writer, which answers it; a rejected job is answered here.
    fn submit<T: Send + 'static>(
        &self,
        undo: Undo,
        context: Option<Arc<ChangeContext>>,
        work: impl FnMut(&Connection, &mut AfterCommit) -> Result<T, StoreError> + Send + 'static,
        answer: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) {
        let job: Box<dyn WriteJob> =
            Box::new(Job { work, undo, context, after: AfterCommit::default(), result: None, answer });
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

fn spawn(role: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    std::thread::Builder::new().name(format!("store-{role}")).spawn(run).map_err(StoreError::unavailable)
}
