//! Backup of a data folder while it is in use, and its restore. A backup is a consistent snapshot.
//!
//! Each database has its own writer, so the backup opens a read transaction on one database after another, and then
//! copies them. The order makes the snapshot consistent: first the journal, then the inbox, the rows of devices and the
//! records. Items that the journal has delivered are in the inbox, which is pinned later. Changes that event batches
//! refer to are in the records, which are pinned last.
//!
//! A restore raises the next ids, so that none is assigned twice.
//!
//! Newer contents of later files are as after a crash. A delivery that the journal does not know is repeated with the same
//! id, and not stored twice; later changes of the records follow the batches. The spool does not refer to the others, so its
//! position in the order does not matter. Its partitions are independent, except for the first: it records the partition
//! of each port, and is pinned last of them.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use ring::digest;
use rusqlite::{Connection, OpenFlags, backup::Backup};
use serde::{Deserialize, Serialize};
use tocsin_model::{folder, time::Timestamp};

use super::{
    spool,
    writer::{store_error, with_suffix},
};
use crate::error::StoreError;

/// Databases of a data folder, in the order in which they are pinned.
pub const FILES: [&str; 4 + spool::FILES.len()] = {
    let mut files = [""; 4 + spool::FILES.len()];
    (files[0], files[1], files[2], files[3]) = ("journal.db", "inbox.db", "sync.db", "records.db");
    let mut number = 0;
    while number < spool::FILES.len() {
        files[files.len() - 1 - number] = spool::FILES[number];
        number += 1;
    }
    files
};
/// File name of a backup's manifest.
pub const MANIFEST: &str = "backup.json";
/// Marker file in a data folder that holds a partly restored backup.
pub const UNFINISHED: &str = "restore.unfinished";
/// Ids left out at a restore: more than a server assigns between a backup and its restore.
const IDS_SKIPPED: i64 = 1_000_000_000;
/// Numbers of devices left out at a restore. They have 31 bits, and a server has at most 100,000 devices.
const DEVICES_SKIPPED: i64 = 1_000_000;
/// Pages copied at a time.
const PAGES: i32 = 1_024;

/// Manifest of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the program that made it.
    pub version: String,
    /// Time of the backup.
    pub taken_at: Timestamp,
    /// Databases.
    pub files: Vec<CopiedFile>,
}

/// Database of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFile {
    /// File name.
    pub name: String,
    /// Schema version: the number of migrations applied.
    pub schema: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

/// Backs up a data folder, in use or not, into a new folder. Blocks. The WAL of each database grows by the writes
/// made meanwhile. The backup is checked before it is renamed to its final name, so a partial one is never taken for
/// complete. On the disk of the data folder `reserve_bytes` stay free; a failed backup leaves nothing behind.
///
/// # Errors
/// `Taken` if the target exists; `Damaged` if the copy is incomplete; `Full` if there is no room for it; `Unavailable`
/// if a file cannot be read or written.
pub fn back_up(
    folder: &Path,
    to: &Path,
    version: &str,
    now: Timestamp,
    reserve_bytes: u64,
) -> Result<Manifest, StoreError> {
    if to.exists() {
        return Err(StoreError::Taken(format!("{}", to.display())));
    }
    let part = with_suffix(to, ".part");
    folder::make(&part, 0o700).map_err(|error| cannot("make", &part, &error))?;
    let _lock = lock_and_empty(&part, to)?;
    let copied = copy_all(folder, &part, version, now, reserve_bytes);
    if copied.is_err() {
        // Its bytes could be those that the disk lacks.
        let _ = fs::remove_dir_all(&part);
    }
    let manifest = copied?;
    fs::rename(&part, to).map_err(|error| cannot("rename", &part, &error))?;
    if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync(parent).map_err(|error| cannot("sync", parent, &error))?;
    }
    Ok(manifest)
}

/// Whether a path is the data folder or inside it, where no backup belongs, except in its folder `backups`. A folder that
/// does not exist yet counts as inside if its nearest existing parent is.
pub fn is_in_data_folder(folder: &Path, path: &Path) -> bool {
    let (Ok(folder), Ok(path)) = (folder.canonicalize(), std::path::absolute(path)) else { return false };
    let existing = path.ancestors().find_map(|parent| Some((parent.canonicalize().ok()?, parent)));
    let Some((real, parent)) = existing else { return false };
    let whole = real.join(path.strip_prefix(parent).unwrap_or(Path::new("")));
    whole.strip_prefix(&folder).is_ok_and(|inner| {
        let mut parts = inner.components();
        let is_backup = parts.next() == Some(Component::Normal("backups".as_ref()))
            && inner.components().count() > 1
            && parts.all(|part| matches!(part, Component::Normal(_)));
        !is_backup
    })
}

/// Copies all databases into a folder, with their manifest.
fn copy_all(
    folder: &Path,
    part: &Path,
    version: &str,
    now: Timestamp,
    reserve_bytes: u64,
) -> Result<Manifest, StoreError> {
    let names: Vec<&str> = present_files(folder).collect();
    let pinned = names.iter().map(|name| pin(&folder.join(name))).collect::<Result<Vec<_>, _>>()?;
    check_room(folder, part, &pinned, reserve_bytes)?;
    let mut files = Vec::with_capacity(FILES.len());
    for (name, pinned) in names.iter().zip(&pinned) {
        copy(pinned, &part.join(name))?;
        let schema = schema_of(pinned)?;
        let (bytes, sha256) = hash_file(&part.join(name))?;
        files.push(CopiedFile { name: (*name).to_owned(), schema, bytes, sha256 });
    }
    drop(pinned);
    examine(part)?;
    let manifest = Manifest { version: version.to_owned(), taken_at: now, files };
    let text = serde_json::to_vec_pretty(&manifest).expect("a manifest is always JSON");
    let path = part.join(MANIFEST);
    fs::write(&path, text).and_then(|()| sync(&path)).map_err(|error| cannot("write", &path, &error))?;
    sync(part).map_err(|error| cannot("sync", part, &error))?;
    Ok(manifest)
}

/// Checks that the file system has room for the copies. On that of the data folder the reserve stays free, so that the
/// server can finish accepted work.
fn check_room(folder: &Path, part: &Path, pinned: &[Connection], reserve_bytes: u64) -> Result<(), StoreError> {
    let mut needed: u64 = 0;
    for database in pinned {
        let number = |pragma: &str| database.pragma_query_value(None, pragma, |row| row.get::<_, u64>(0));
        let bytes = number("page_count").and_then(|pages| Ok(pages.saturating_mul(number("page_size")?)));
        needed = needed.saturating_add(bytes.map_err(store_error)?);
    }
    let device =
        |path: &Path| fs::metadata(path).map(|found| found.dev()).map_err(|error| cannot("find", path, &error));
    let reserve = if device(folder)? == device(part)? { reserve_bytes } else { 0 };
    let system = rustix::fs::statvfs(part).map_err(StoreError::unavailable)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free < needed.saturating_add(reserve) {
        return Err(StoreError::Full(format!(
            "the backup has {needed} bytes, the disk has {free} free bytes, and {reserve} of them are reserved"
        )));
    }
    Ok(())
}

/// Empties the folder of a partial backup, possibly left behind by another run, and locks it against other runs.
fn lock_and_empty(part: &Path, to: &Path) -> Result<File, StoreError> {
    let folder = File::open(part).map_err(|error| cannot("open", part, &error))?;
    folder.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::Taken(format!("an unfinished backup into {}", to.display())),
        TryLockError::Error(error) => cannot("lock", part, &error),
    })?;
    for entry in fs::read_dir(part).map_err(|error| cannot("read", part, &error))? {
        let path = entry.map_err(|error| cannot("read", part, &error))?.path();
        fs::remove_file(&path).map_err(|error| cannot("remove", &path, &error))?;
    }
    Ok(folder)
}

/// Backup whose checksums were verified.
#[derive(Debug)]
pub struct VerifiedBackup {
    copy: PathBuf,
    /// Manifest.
    pub manifest: Manifest,
}

/// Reads the manifest of a backup and verifies the checksums. Blocks.
///
/// # Errors
/// `Missing` if it is not a backup; `Damaged` if a checksum differs; `Unavailable` if a newer version made it, or if
/// it cannot be read.
pub fn verify(copy: &Path) -> Result<VerifiedBackup, StoreError> {
    let path = copy.join(MANIFEST);
    let text = fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing(format!("the manifest {} of a backup", path.display())),
        _ => cannot("read", &path, &error),
    })?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| StoreError::Damaged(format!("{}: {error}", path.display())))?;
    for name in FILES {
        let Some(file) = manifest.files.iter().find(|file| file.name == name) else {
            if may_lack(name) {
                continue;
            }
            return Err(StoreError::Damaged(format!("{} does not name {name}", path.display())));
        };
        let known = known_schema(name);
        if file.schema as usize > known {
            return Err(StoreError::unavailable(format!(
                "{name} was written by a newer version of Tocsin (its schema is {}, this one knows {known}): version {} made \
                 the backup",
                file.schema, manifest.version
            )));
        }
        let (bytes, sha256) = hash_file(&copy.join(name))?;
        if (bytes, &sha256) != (file.bytes, &file.sha256) {
            return Err(StoreError::Damaged(format!("{} differs from what was backed up", copy.join(name).display())));
        }
    }
    examine(copy)?;
    Ok(VerifiedBackup { copy: copy.to_owned(), manifest })
}

impl VerifiedBackup {
    /// Restores the backup into an unused data folder without databases. Blocks. An interrupted restore leaves
    /// [`UNFINISHED`] and can be repeated.
    ///
    /// # Errors
    /// `Taken` if the folder has databases; `Full`; `Unavailable` if a file cannot be written.
    pub fn put(self, folder: &Path) -> Result<Manifest, StoreError> {
        let marker = folder.join(UNFINISHED);
        if let Some(name) = FILES.iter().find(|name| folder.join(name).exists() && !marker.exists()) {
            return Err(StoreError::Taken(format!("{}", folder.join(name).display())));
        }
        folder::make(folder, 0o700).map_err(|error| cannot("make", folder, &error))?;
        fs::write(&marker, "").and_then(|()| sync(&marker)).map_err(|error| cannot("write", &marker, &error))?;
        // Tracking data of the old folder belongs to other messages with the same ids.
        for ending in ["", "-wal", "-shm"] {
            remove(&folder.join(format!("tracking.db{ending}")))?;
        }
        // A lock file says that its database existed; the backup decides which do.
        for name in FILES {
            remove(&folder.join(format!("{name}.lock")))?;
        }
        // A file that the manifest does not name was not verified.
        let is_named = |name: &&str| self.manifest.files.iter().any(|file| file.name == *name);
        for name in FILES.into_iter().filter(is_named) {
            put_file(&self.copy, folder, name)?;
        }
        advance_ids(folder)?;
        sync(folder).map_err(|error| cannot("sync", folder, &error))?;
        fs::remove_file(&marker).and_then(|()| sync(folder)).map_err(|error| cannot("remove", &marker, &error))?;
        Ok(self.manifest)
    }
}

fn put_file(copy: &Path, folder: &Path, name: &str) -> Result<(), StoreError> {
    // The WAL of the former database does not belong to the restored one.
    // Nor does the rollback journal of an interrupted restore.
    for leftover in ["-wal", "-shm", "-journal"] {
        remove(&folder.join(format!("{name}{leftover}")))?;
    }
    let to = folder.join(name);
    let owner = fs::Permissions::from_mode(0o600);
    let written = fs::copy(copy.join(name), &to).and_then(|_| fs::set_permissions(&to, owner)).and_then(|()| sync(&to));
    written.map_err(|error| cannot("write", &to, &error))
}

/// Raises the next ids of everything that is known outside of the data folder by [`IDS_SKIPPED`], and the sequence of
/// the inbox. The former folder may have assigned the ids behind the backup:
///
/// - A receiver that knows the id of an event batch, notification batch or message would drop the new one as a
///   repetition.
/// - A signed link (unsubscribe, inbox) and a SCIM id name a subscription, a subscriber or an entry by its number, and
///   would be valid for another one.
/// - An operator that knows the id of a suspension, firing, resend, broadcast or conflict would act on another one.
///
/// Readers of the inbox and clients of LDAP content synchronization read everything anew.
fn advance_ids(folder: &Path) -> Result<(), StoreError> {
    let open = |name: &str| {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Connection::open_with_flags(folder.join(name), flags).map_err(store_error)
    };
    let sql = "UPDATE tally SET last_event_batch = last_event_batch + ?1,
        last_notification_batch = last_notification_batch + ?1, last_suspension = last_suspension + ?1";
    let journal = open("journal.db")?;
    journal.execute(sql, [IDS_SKIPPED]).map_err(store_error)?;
    for table in ["firings", "resends", "broadcasts"] {
        raise_sequence(&journal, table, IDS_SKIPPED)?;
    }
    let sql = "UPDATE books SET subscriber = subscriber + ?1, subscription = subscription + ?1";
    let records = open("records.db")?;
    records.execute(sql, [IDS_SKIPPED]).map_err(store_error)?;
    for table in ["entries", "schedules"] {
        raise_sequence(&records, table, IDS_SKIPPED)?;
    }
    cut_entry_changes(&records)?;
    if folder.join("sync.db").exists() {
        let sync = open("sync.db")?;
        raise_sequence(&sync, "devices", DEVICES_SKIPPED)?;
        raise_sequence(&sync, "conflicts", IDS_SKIPPED)?;
    }
    let inbox = "UPDATE books SET sequence = sequence + ?1, forgotten = sequence + ?1";
    open("inbox.db")?.execute(inbox, [IDS_SKIPPED]).map_err(store_error)?;
    let mut last = None;
    for name in spool::FILES.into_iter().filter(|name| folder.join(name).exists()) {
        let (partition, _) = last_message(&open(name)?)?;
        last = last.max(Some(partition));
    }
    let Some(last) = last else { return Ok(()) };
    let first = open(spool::FILES[0])?;
    let next = last + IDS_SKIPPED;
    let raised = match last_message(&first)? {
        (_, HighestId::InTable) => first.execute("INSERT OR REPLACE INTO taken_ids VALUES (1, ?1)", [next]),
        (_, HighestId::InSequence) => first
            .execute("DELETE FROM sqlite_sequence WHERE name = 'messages'", ())
            .and_then(|_| first.execute("INSERT INTO sqlite_sequence VALUES ('messages', ?1)", [next])),
    };
    raised.map(drop).map_err(store_error)
}

/// Raises the next number that SQLite assigns in a table. A backup of an earlier version may lack the table.
fn raise_sequence(connection: &Connection, table: &str, by: i64) -> Result<(), StoreError> {
    if !has_table(connection, table)? {
        return Ok(());
    }
    let sql = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?1";
    let last: i64 = connection.query_row(sql, [table], |row| row.get(0)).map_err(store_error)?;
    connection
        .execute("DELETE FROM sqlite_sequence WHERE name = ?1", [table])
        .and_then(|_| connection.execute("INSERT INTO sqlite_sequence VALUES (?1, ?2)", (table, last + by)))
        .map(drop)
        .map_err(store_error)
}

/// Begins the change log of entries anew, behind every position that the former folder can have given to a client.
fn cut_entry_changes(connection: &Connection) -> Result<(), StoreError> {
    if !has_table(connection, "entry_changes")? {
        return Ok(());
    }
    let sql = "INSERT INTO entry_changes (place, entry) SELECT coalesce(max(place), 0) + ?1, 0 FROM entry_changes";
    connection
        .execute(sql, [IDS_SKIPPED])
        .and_then(|_| {
            connection.execute("DELETE FROM entry_changes WHERE place < ?1", [connection.last_insert_rowid()])
        })
        .map(drop)
        .map_err(store_error)
}

fn has_table(connection: &Connection, table: &str) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    connection.query_row(sql, [table], |row| row.get(0)).map_err(store_error)
}

/// Tables of a spool file that store the highest message id it assigned, besides its messages.
enum HighestId {
    /// In the table `taken_ids`.
    InTable,
    /// In the sequence of SQLite: the file is from before that table.
    InSequence,
}

/// Highest message id that a file of the spool assigned.
fn last_message(connection: &Connection) -> Result<(i64, HighestId), StoreError> {
    let (kind, sql) = match has_table(connection, "taken_ids")? {
        true => (HighestId::InTable, "SELECT coalesce(max(last), 0) FROM taken_ids"),
        false => (HighestId::InSequence, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'"),
    };
    let assigned: i64 = connection.query_row(sql, (), |row| row.get(0)).map_err(store_error)?;
    let sql = "SELECT coalesce(max(id), 0) FROM messages";
    let stored: i64 = connection.query_row(sql, (), |row| row.get(0)).map_err(store_error)?;
    Ok((assigned.max(stored), kind))
}

/// Removes a file if it exists.
fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Databases present in a folder, of those that may be missing.
fn present_files(folder: &Path) -> impl Iterator<Item = &'static str> {
    FILES.into_iter().filter(|name| !may_lack(name) || folder.join(name).exists())
}

/// Whether a data folder can lack a database: folders from before exchanges and replicas, or with few partitions.
fn may_lack(name: &str) -> bool {
    name == "sync.db" || spool::FILES.contains(&name)
}

/// Schema version known to this program.
fn known_schema(name: &str) -> usize {
    match name {
        "journal.db" => super::journal::MIGRATIONS.len(),
        "inbox.db" => super::inbox::MIGRATIONS.len(),
        name if spool::FILES.contains(&name) => spool::MIGRATIONS.len(),
        "sync.db" => super::collections::MIGRATIONS.len(),
        _ => super::records::MIGRATIONS.len(),
    }
}

/// Opens a database and pins its present snapshot for the lifetime of the connection.
fn pin(path: &Path) -> Result<Connection, StoreError> {
    // Without `CREATE`: a missing database must not become an empty one.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)
        .map_err(|error| StoreError::unavailable(format!("cannot open `{}`: {error}", path.display())))?;
    connection.busy_timeout(Duration::from_secs(10)).map_err(store_error)?;
    connection.execute_batch("BEGIN").map_err(store_error)?;
    // A snapshot begins with the first read.
    connection.query_row("SELECT count(*) FROM sqlite_schema", (), |_| Ok(())).map_err(store_error)?;
    Ok(connection)
}

fn copy(pinned: &Connection, to: &Path) -> Result<(), StoreError> {
    // For its owner alone, wherever the backup is moved to.
    let created = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(to);
    created.map_err(|error| cannot("make", to, &error))?;
    let mut copy = Connection::open(to).map_err(store_error)?;
    {
        let backup = Backup::new(pinned, &mut copy).map_err(store_error)?;
        backup.run_to_completion(PAGES, Duration::ZERO, None).map_err(store_error)?;
    }
    // A single file without a WAL, so that it can be moved.
    copy.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(())).map_err(store_error)?;
    copy.close().map_err(|(_, error)| store_error(error))?;
    sync(to).map_err(|error| cannot("sync", to, &error))
}

/// Checks that each database is consistent, and that the records include all changes that the journal's batches see.
fn examine(folder: &Path) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |name: &str| Connection::open_with_flags(folder.join(name), flags).map_err(store_error);
    for name in present_files(folder) {
        let found: String =
            open(name)?.query_row("PRAGMA quick_check(1)", (), |row| row.get(0)).map_err(store_error)?;
        if found != "ok" {
            return Err(StoreError::Damaged(format!("{}: {found}", folder.join(name).display())));
        }
    }
    if let Some(gone) = missing_partition(folder)? {
        return Err(StoreError::Damaged(format!(
            "{} is missing; it holds a part of the messages",
            folder.join(gone).display()
        )));
    }
    let seen: u64 = open("journal.db")?
        .query_row("SELECT coalesce(max(sees), 0) FROM places", (), |row| row.get(0))
        .map_err(store_error)?;
    let known: u64 =
        open("records.db")?.query_row("SELECT change FROM books", (), |row| row.get(0)).map_err(store_error)?;
    if seen > known {
        return Err(StoreError::Damaged(format!(
            "the journal refers to change {seen} of the records, but these end at {known}: the files are not of one snapshot"
        )));
    }
    Ok(())
}

/// File of the spool that is missing in a data folder.
///
/// # Errors
/// The first file of the spool cannot be read.
pub fn missing_partition(folder: &Path) -> Result<Option<&'static str>, StoreError> {
    let first = folder.join(spool::FILES[0]);
    if !first.exists() {
        return Ok(None);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let partitions = partitions(&Connection::open_with_flags(first, flags).map_err(store_error)?)?;
    Ok(spool::FILES.into_iter().take(partitions).find(|name| !folder.join(name).exists()))
}

/// Number of files of the spool; a spool from before partitions has one.
fn partitions(first: &Connection) -> Result<usize, StoreError> {
    let query = "SELECT count(*) FROM sqlite_schema WHERE name = 'layout'";
    let query: u32 = first.query_row(query, (), |row| row.get(0)).map_err(store_error)?;
    if query == 0 {
        return Ok(1);
    }
    let sql = "SELECT coalesce(max(partitions), 1) FROM layout";
    first.query_row(sql, (), |row| row.get(0)).map_err(store_error)
}

fn schema_of(connection: &Connection) -> Result<u32, StoreError> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(store_error)
}

/// Size of a file, and its SHA-256.
fn hash_file(path: &Path) -> Result<(u64, String), StoreError> {
    let mut file = File::open(path).map_err(|error| cannot("read", path, &error))?;
    let (mut hash_file, mut bytes, mut buffer) = (digest::Context::new(&digest::SHA256), 0, vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut buffer).map_err(|error| cannot("read", path, &error))?;
        if read == 0 {
            break;
        }
        hash_file.update(&buffer[..read]);
        bytes += read as u64;
    }
    Ok((bytes, hex::encode(hash_file.finish().as_ref())))
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> StoreError {
    let text = format!("cannot {what} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull => StoreError::Full(text),
        _ => StoreError::unavailable(text),
    }
}
