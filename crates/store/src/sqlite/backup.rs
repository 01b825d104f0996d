//! A copy of a data folder as of one moment, taken while it is written, and the way back.
//!
//! The databases have a writer each, so the copy pins one after the other and copies what was pinned. The order makes
//! it one moment for all that matters: first the journal, then the inbox, the rows of devices and the records. What the journal says it
//! delivered into a feed is in the inbox that is pinned after it, and what its event batches see of the records is in the
//! records that are pinned last. What is newer there is as after a crash: a delivery that the journal does not know of is
//! repeated under its id and not stored twice, and changes of the records come after the batches. The spool refers to none
//! of them, so it is pinned wherever it stands; its partitions do not refer to each other, but for the first, which says
//! where messages of a port stay together, and is pinned last of them.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use ring::digest;
use rusqlite::{Connection, OpenFlags, backup::Backup};
use serde::{Deserialize, Serialize};
use tocsin_model::{folder, hexadecimal::digits_of, time::Timestamp};

use super::{spool, writer::store_error};
use crate::error::StoreError;

/// The databases of a data folder, in the order in which they are pinned.
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
/// What a copy says of itself.
pub const MANIFEST: &str = "backup.json";
/// While this is in a data folder, it holds the half of a restored copy.
pub const UNFINISHED: &str = "restore.unfinished";
/// Pages that are copied at a time.
const PAGES: i32 = 1_024;

/// What a copy says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the program that took it.
    pub version: String,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// The databases.
    pub files: Vec<CopiedFile>,
}

/// A database of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFile {
    /// Its name.
    pub name: String,
    /// Its schema: how many steps it has had.
    pub schema: u32,
    /// Its bytes.
    pub bytes: u64,
    /// Their SHA-256, in hexadecimal.
    pub sha256: String,
}

/// Copies a data folder, used by a server or not, into a new folder. Blocks. The log of each database grows by what is
/// written meanwhile. The copy is examined before it gets its name, so that half of one is never taken for whole.
///
/// # Errors
/// `Taken` if there is something of that name already; `Damaged` if what was copied is not whole; `Full`; `Unavailable` if
/// a file cannot be read or written.
pub fn back_up(folder: &Path, to: &Path, version: &str, now: Timestamp) -> Result<Manifest, StoreError> {
    if to.exists() {
        return Err(StoreError::Taken(format!("{}", to.display())));
    }
    let part = beside(to, ".part");
    folder::make(&part, 0o700).map_err(|error| cannot("make", &part, &error))?;
    let _alone = take_alone(&part, to)?;
    let names: Vec<&str> = there(folder).collect();
    let pinned = names.iter().map(|name| pin(&folder.join(name))).collect::<Result<Vec<_>, _>>()?;
    let mut files = Vec::with_capacity(FILES.len());
    for (name, pinned) in names.iter().zip(&pinned) {
        copy(pinned, &part.join(name))?;
        let schema = schema_of(pinned)?;
        let (bytes, sha256) = sum(&part.join(name))?;
        files.push(CopiedFile { name: (*name).to_owned(), schema, bytes, sha256 });
    }
    drop(pinned);
    examine(&part)?;
    let manifest = Manifest { version: version.to_owned(), taken_at: now, files };
    let text = serde_json::to_vec_pretty(&manifest).expect("a manifest is always JSON");
    let path = part.join(MANIFEST);
    fs::write(&path, text).and_then(|()| sync(&path)).map_err(|error| cannot("write", &path, &error))?;
    sync(&part).map_err(|error| cannot("sync", &part, &error))?;
    fs::rename(&part, to).map_err(|error| cannot("rename", &part, &error))?;
    if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync(parent).map_err(|error| cannot("sync", parent, &error))?;
    }
    Ok(manifest)
}

/// Empties the folder in which a copy is made, which another may have left behind, and keeps others out while this lives.
fn take_alone(part: &Path, to: &Path) -> Result<File, StoreError> {
    let folder = File::open(part).map_err(|error| cannot("open", part, &error))?;
    folder.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::Taken(format!("a backup into {}, which is being made,", to.display())),
        TryLockError::Error(error) => cannot("lock", part, &error),
    })?;
    for entry in fs::read_dir(part).map_err(|error| cannot("read", part, &error))? {
        let path = entry.map_err(|error| cannot("read", part, &error))?.path();
        fs::remove_file(&path).map_err(|error| cannot("remove", &path, &error))?;
    }
    Ok(folder)
}

/// A copy that is what was copied.
#[derive(Debug)]
pub struct Verified {
    copy: PathBuf,
    /// What it says of itself.
    pub manifest: Manifest,
}

/// Reads what a copy says of itself, and makes sure that it is what was copied. Blocks.
///
/// # Errors
/// `Missing` if it is no copy; `Damaged` if a byte of it is another; `Unavailable` if a newer version took it, or if it
/// cannot be read.
pub fn verify(copy: &Path) -> Result<Verified, StoreError> {
    let path = copy.join(MANIFEST);
    let text = fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing(format!("{}, which every backup has,", path.display())),
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
                "{name} was written by a newer version of Tocsin (its schema is {}, this one knows {known}): version {} took \
                 the backup",
                file.schema, manifest.version
            )));
        }
        let (bytes, sha256) = sum(&copy.join(name))?;
        if (bytes, &sha256) != (file.bytes, &file.sha256) {
            return Err(StoreError::Damaged(format!("{} is not what was backed up", copy.join(name).display())));
        }
    }
    examine(copy)?;
    Ok(Verified { copy: copy.to_owned(), manifest })
}

impl Verified {
    /// Puts the copy into a data folder that nobody uses. Blocks. What is there must be empty of databases. A restore that
    /// was cut off leaves [`UNFINISHED`], and is done again.
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
        // What was tracked here is of messages whose ids will be those of others.
        for ending in ["", "-wal", "-shm"] {
            remove(&folder.join(format!("tracking.db{ending}")))?;
        }
        for name in there(&self.copy) {
            put_file(&self.copy, folder, name)?;
        }
        sync(folder).map_err(|error| cannot("sync", folder, &error))?;
        fs::remove_file(&marker).and_then(|()| sync(folder)).map_err(|error| cannot("remove", &marker, &error))?;
        Ok(self.manifest)
    }
}

fn put_file(copy: &Path, folder: &Path, name: &str) -> Result<(), StoreError> {
    // The log of what was here before is none of the copy's.
    for leftover in ["-wal", "-shm"] {
        remove(&folder.join(format!("{name}{leftover}")))?;
    }
    let to = folder.join(name);
    fs::copy(copy.join(name), &to).and_then(|_| sync(&to)).map_err(|error| cannot("write", &to, &error))?;
    Ok(())
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot("remove", path, &error)),
        _ => Ok(()),
    }
}

/// The databases that a folder has, as far as it may lack any.
fn there(folder: &Path) -> impl Iterator<Item = &'static str> {
    FILES.into_iter().filter(|name| !may_lack(name) || folder.join(name).exists())
}

/// Whether a data folder may be without a database: one from before there were exchanges and replicas, or with few
/// partitions.
fn may_lack(name: &str) -> bool {
    name == "sync.db" || spool::FILES.contains(&name)
}

/// How many steps of its schema this version knows.
fn known_schema(name: &str) -> usize {
    match name {
        "journal.db" => super::journal::MIGRATIONS.len(),
        "inbox.db" => super::inbox::MIGRATIONS.len(),
        name if spool::FILES.contains(&name) => spool::MIGRATIONS.len(),
        "sync.db" => super::collections::MIGRATIONS.len(),
        _ => super::records::MIGRATIONS.len(),
    }
}

/// Opens a database and keeps its present state in view for as long as the connection lives.
fn pin(path: &Path) -> Result<Connection, StoreError> {
    // Without `CREATE`: a database that is not there is no empty one.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)
        .map_err(|error| StoreError::unavailable(format!("cannot open `{}`: {error}", path.display())))?;
    connection.busy_timeout(Duration::from_secs(10)).map_err(store_error)?;
    connection.execute_batch("BEGIN").map_err(store_error)?;
    // A transaction begins to see with its first read.
    connection.query_row("SELECT count(*) FROM sqlite_schema", (), |_| Ok(())).map_err(store_error)?;
    Ok(connection)
}

fn copy(pinned: &Connection, to: &Path) -> Result<(), StoreError> {
    let mut copy = Connection::open(to).map_err(store_error)?;
    {
        let backup = Backup::new(pinned, &mut copy).map_err(store_error)?;
        backup.run_to_completion(PAGES, Duration::ZERO, None).map_err(store_error)?;
    }
    // One file, without a log beside it, so that it can be carried.
    copy.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(())).map_err(store_error)?;
    copy.close().map_err(|(_, error)| store_error(error))?;
    sync(to).map_err(|error| cannot("sync", to, &error))
}

/// That each database is whole, and that the records have everything that the journal's batches see.
fn examine(folder: &Path) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |name: &str| Connection::open_with_flags(folder.join(name), flags).map_err(store_error);
    for name in there(folder) {
        let found: String =
            open(name)?.query_row("PRAGMA quick_check(1)", (), |row| row.get(0)).map_err(store_error)?;
        if found != "ok" {
            return Err(StoreError::Damaged(format!("{}: {found}", folder.join(name).display())));
        }
    }
    if let Some(gone) = missing_partition(folder)? {
        return Err(StoreError::Damaged(format!(
            "{} is not there, which has a part of the messages",
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
            "the journal sees the change {seen} of the records, which know {known}: they are not of one moment"
        )));
    }
    Ok(())
}

/// A file of the spool that ought to be in a data folder and is not.
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

/// How many files the spool has; one from before there were partitions does not say it.
fn partitions(first: &Connection) -> Result<usize, StoreError> {
    let says = "SELECT count(*) FROM sqlite_schema WHERE name = 'layout'";
    let says: u32 = first.query_row(says, (), |row| row.get(0)).map_err(store_error)?;
    if says == 0 {
        return Ok(1);
    }
    let sql = "SELECT coalesce(max(partitions), 1) FROM layout";
    first.query_row(sql, (), |row| row.get(0)).map_err(store_error)
}

fn schema_of(connection: &Connection) -> Result<u32, StoreError> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(store_error)
}

/// The bytes of a file, and their SHA-256.
fn sum(path: &Path) -> Result<(u64, String), StoreError> {
    let mut file = File::open(path).map_err(|error| cannot("read", path, &error))?;
    let (mut sum, mut bytes, mut buffer) = (digest::Context::new(&digest::SHA256), 0, vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut buffer).map_err(|error| cannot("read", path, &error))?;
        if read == 0 {
            break;
        }
        sum.update(&buffer[..read]);
        bytes += read as u64;
    }
    Ok((bytes, digits_of(sum.finish().as_ref())))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
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
