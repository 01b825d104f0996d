//! Errors of SQLite as store errors, and those after which a file accepts no more writes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use parking_lot::Mutex;
use rusqlite::ErrorCode;

use crate::error::StoreError;

/// Files that acknowledge nothing any more, with the reason.
pub(crate) static FAILED: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

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
pub(crate) struct FileHealth {
    pub(super) path: PathBuf,
    pub(super) failure: OnceLock<String>,
}

impl FileHealth {
    pub(crate) fn of(path: &Path) -> FileHealth {
        FileHealth { path: path.to_owned(), failure: OnceLock::new() }
    }

    pub(crate) fn fail(&self, why: String) {
        tracing::error!(path = %self.path.display(), why, "the store stops acknowledging until a restart");
        FAILED.lock().entry(self.path.clone()).or_insert_with(|| why.clone());
        let _ = self.failure.set(why);
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.failure.get().map_or(Ok(()), |why| Err(StoreError::unavailable(why.clone())))
    }

    /// Reason why a write was not accepted or answered.
    pub(crate) fn reason(&self) -> String {
        self.failure.get().cloned().unwrap_or_else(|| "the store has been closed".to_owned())
    }

    pub(crate) fn error(&self) -> StoreError {
        StoreError::unavailable(self.reason())
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
pub(crate) fn fatal_reason(error: &StoreError) -> Option<String> {
    let StoreError::Unavailable(source) = error else { return None };
    match source.downcast_ref::<rusqlite::Error>()? {
        error @ rusqlite::Error::SqliteFailure(cause, _) if cause.code == ErrorCode::SystemIoFailure => {
            Some(format!("an I/O error: {error}"))
        }
        _ => None,
    }
}

pub(crate) fn panicked(panic: &Box<dyn std::any::Any + Send>) -> StoreError {
    let why = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    tracing::error!(why, "a job of the store panicked");
    StoreError::unavailable(format!("a job of the store panicked: {why}"))
}

pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
