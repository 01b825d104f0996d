//! WAL checkpoints: a thread that copies the WAL into the file when it has grown by a step.

use std::{
    fs::File,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::Receiver;
use rusqlite::Connection;

use crate::{
    error::StoreError,
    sqlite::writer::{
        chunked_sync,
        errors::{FileHealth, is_busy, store_error},
    },
};

/// Rest of the WAL that the writer may checkpoint itself while all callers wait.
pub(crate) const CHECKPOINT_REST_BYTES: u64 = 1 << 20;

/// State of the WAL, shared by the writer and the checkpointer.
#[derive(Default)]
pub(crate) struct WalState {
    /// Pages in the WAL after the last commit.
    pub(super) pages: AtomicU64,
    /// Pages that were copied into the file and durable at the last checkpoint.
    pub(super) copied: AtomicU64,
}

/// Copies as much of the WAL into the file as is possible without blocking anyone. Returns the number of copied
/// pages; `None` if another checkpoint is running.
pub(crate) fn checkpoint(connection: &Connection) -> Result<Option<u64>, StoreError> {
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

/// Checkpointer thread: copies the WAL behind the writer until the writer ends.
pub(crate) struct Checkpointer {
    pub(super) connection: Connection,
    pub(super) file: Arc<File>,
    pub(super) log: Arc<WalState>,
    pub(super) health: Arc<FileHealth>,
}

impl Checkpointer {
    pub(crate) fn run(&self, woken: &Receiver<()>) {
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
