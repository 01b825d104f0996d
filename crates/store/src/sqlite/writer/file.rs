//! Opens a database file: lock, creation, settings of a connection, schema version.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, config::DbConfig};
use rustix::fs::OpenOptionsExt;

use crate::{
    error::StoreError,
    sqlite::writer::{errors::store_error, options::Options},
};

/// Attempts and pause for a file lock.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Maximum size of a transaction's changed pages in memory, in KiB, also beyond the page cache. Further pages spill
/// into the WAL before the commit, and again whenever they change.
pub(crate) const CHANGED_KIB_MAX: i64 = 64 << 10;
/// Files up to this size are checked when they are opened, in less than a second.
const EXAMINED_BYTES_MAX: u64 = 64 << 20;
/// Prepared statements cached per connection.
const STATEMENTS_MAX: usize = 128;

/// A path with an ending after its last extension, such as `journal.db-wal`.
pub(crate) fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Refuses a file that another process has open. The operating system releases the lock when its holder ends in any
/// way.
pub(crate) fn lock(path: &Path) -> Result<File, StoreError> {
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
pub(crate) fn create(path: &Path, lock: &File, options: &Options) -> Result<(), StoreError> {
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
pub(crate) fn record_creation(mut lock: &File) -> std::io::Result<()> {
    if lock.metadata()?.len() == 0 {
        lock.write_all(b"created\n")?;
    }
    Ok(())
}

pub(crate) fn cannot_open(path: &Path, error: std::io::Error) -> StoreError {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return StoreError::Full(format!("cannot open `{}`: {error}", path.display()));
    }
    StoreError::unavailable(format!("cannot open `{}`: {error}", path.display()))
}

pub(crate) fn connect(path: &Path, options: &Options, cache_kib: u32) -> Result<Connection, StoreError> {
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
pub(crate) fn examine(connection: &Connection, path: &Path) -> Result<(), StoreError> {
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
pub(crate) fn migrate(connection: &mut Connection, path: &Path, migrations: &[&str]) -> Result<(), StoreError> {
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
