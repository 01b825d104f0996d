//! Detects damage of a write-ahead log (WAL), as opposed to a torn end.
//!
//! SQLite reads a WAL up to the first frame with a wrong checksum, and takes the rest for the torn end of a power
//! failure. A frame that was damaged later would hide all commits after it in the same way. But every commit is
//! synced before the next one is written, so only the last one can be torn: if a complete commit follows the wrong
//! frame, the WAL is damaged. The checksum of each frame covers all frames before it, so frames after a damaged one
//! can be checked from its stored checksum.
//!
//! Format: <https://www.sqlite.org/fileformat2.html#walformat>.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufReader, Read},
    path::Path,
};

use crate::error::StoreError;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// The checksums use words in the byte order of the machine that created the WAL; the last bit of the magic number identifies it.
const MAGIC: u32 = 0x377f_0682;

/// Refuses a WAL with complete commits after one that cannot be read. Reads the whole WAL; blocks.
///
/// # Errors
/// `Damaged`, with advice; `Unavailable` if the WAL cannot be read.
pub(super) fn check(database: &Path) -> Result<(), StoreError> {
    let path = super::file::with_suffix(database, "-wal");
    let file = match OpenOptions::new().read(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(super::file::cannot_open(&path, error)),
    };
    match find_damage(file).map_err(|error| super::file::cannot_open(&path, error))? {
        None => Ok(()),
        Some(Damage { at, commits }) => Err(StoreError::Damaged(format!(
            "`{path}` is damaged at byte {at}, so SQLite would leave out at least {commits} later commits that were \
             acknowledged. Copy the data folder, then restore a backup; or give these commits up: \
             `truncate -s {at} {path}`",
            path = path.display()
        ))),
    }
}

/// Position of the damage, and the number of complete commits after it.
#[derive(Debug, PartialEq, Eq)]
struct Damage {
    at: u64,
    commits: u64,
}

type Sums = (u32, u32);

fn find_damage(file: File) -> io::Result<Option<Damage>> {
    let log_bytes = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; HEADER_BYTES];
    if log_bytes < HEADER_BYTES as u64 {
        return Ok(None);
    }
    reader.read_exact(&mut header)?;
    // The header was never synced.
    if header == [0; HEADER_BYTES] {
        return Ok(None);
    }
    let is_big_endian = header[3] & 1 == 1;
    let page_bytes = word(&header, 8) as usize;
    let sums = add(&header[..24], (0, 0), is_big_endian);
    let is_valid = word(&header, 0) & !1 == MAGIC
        && sums == (word(&header, 24), word(&header, 28))
        && page_bytes.is_power_of_two()
        && (512..=65_536).contains(&page_bytes);
    if !is_valid {
        // A disk writes sectors atomically, so a header is never torn.
        return Ok(Some(Damage { at: 0, commits: 1 }));
    }
    let salts = header[16..24].to_vec();
    let mut frame = vec![0; FRAME_HEADER_BYTES + page_bytes];
    let mut expected = sums;
    // Position of the first wrong frame; whether a commit ended after it; number of complete commits after that.
    let (mut first_wrong, mut is_after_commit, mut commits) = (None, false, 0);
    let (mut at, mut is_whole) = (HEADER_BYTES as u64, true);
    while at + frame.len() as u64 <= log_bytes {
        reader.read_exact(&mut frame)?;
        let (head, page) = frame.split_at(FRAME_HEADER_BYTES);
        let is_of_this_log = head[8..16] == salts && word(head, 0) != 0;
        let sums = add(page, add(&head[..8], expected, is_big_endian), is_big_endian);
        let stored = (word(head, 16), word(head, 20));
        let is_commit = word(head, 4) != 0;
        let fits = is_of_this_log && sums == stored;
        if first_wrong.is_none() && !fits {
            first_wrong = Some(at);
        }
        if first_wrong.is_some() {
            if !is_of_this_log && first_wrong != Some(at) {
                // Leftover of an earlier WAL.
                break;
            }
            is_whole &= fits;
            if is_commit && is_of_this_log {
                if is_after_commit && is_whole {
                    commits += 1;
                }
                (is_after_commit, is_whole) = (true, true);
            }
        }
        expected = stored;
        at += frame.len() as u64;
    }
    Ok(first_wrong.filter(|_| commits > 0).map(|at| Damage { at, commits }))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn add(bytes: &[u8], (mut first, mut second): Sums, is_big_endian: bool) -> Sums {
    let read = |bytes: &[u8]| {
        let bytes = bytes.try_into().expect("four bytes");
        if is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    for pair in bytes.chunks_exact(8) {
        first = first.wrapping_add(read(&pair[..4])).wrapping_add(second);
        second = second.wrapping_add(read(&pair[4..])).wrapping_add(first);
    }
    (first, second)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rusqlite::Connection;

    use super::*;

    /// Database with a WAL of some commits of several pages each, and the size of the WAL after each commit.
    fn logged(folder: &Path, commits: usize) -> (PathBuf, Vec<u64>) {
        let path = folder.join("some.db");
        let connection = Connection::open(&path).expect("a database");
        connection
            .execute_batch("PRAGMA page_size = 1024; PRAGMA journal_mode = WAL; CREATE TABLE notes (text)")
            .expect("made");
        let log = folder.join("some.db-wal");
        let mut ends = Vec::new();
        for number in 0..commits {
            connection.execute("INSERT INTO notes VALUES (?1)", ["x".repeat(number % 5 * 900)]).expect("stored");
            ends.push(std::fs::metadata(&log).expect("a log").len());
        }
        let copy = folder.join("copy.db");
        std::fs::copy(&path, &copy).expect("copied");
        std::fs::copy(&log, folder.join("copy.db-wal")).expect("copied");
        (copy, ends)
    }

    fn count(path: &Path) -> i64 {
        let read = |connection: Connection| connection.query_row("SELECT count(*) FROM notes", (), |row| row.get(0));
        read(Connection::open(path).expect("a database")).expect("a count")
    }

    #[test]
    fn a7_a_flipped_bit_of_the_wal_is_distinguished_from_a_torn_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, ends) = logged(folder.path(), 20);
        check(&path).expect("whole");
        let log = folder.path().join("copy.db-wal");
        let whole = std::fs::read(&log).expect("a log");
        let last = ends[ends.len() - 2];
        for (step, at) in (0..whole.len()).step_by(97).enumerate() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (step % 8);
            std::fs::write(&log, &damaged).expect("written");
            let found = check(&path);
            // The last commit looks torn, and so does the one before it if its end is damaged.
            let is_certain = (at as u64) < ends[ends.len() - 3];
            match found {
                Err(StoreError::Damaged(why)) => {
                    assert!(why.contains("truncate -s") && (at as u64) < last, "{at}: {why}")
                }
                Ok(()) => assert!(!is_certain, "a flip at {at} of {} is not seen", whole.len()),
                other => panic!("{other:?}"),
            }
        }
        // A torn end, at any position, is the normal result of a power failure.
        for length in (0..whole.len()).step_by(211) {
            std::fs::write(&log, &whole[..length]).expect("written");
            check(&path).expect("a torn end");
        }
        let mut torn = whole.clone();
        torn[usize::try_from(last).expect("small")..].fill(0);
        std::fs::write(&log, &torn).expect("written");
        check(&path).expect("a last commit that did not reach the disk");
        assert_eq!(count(&path), 19);
    }

    #[test]
    fn a7_leftovers_of_an_earlier_wal_are_no_damage() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("some.db");
        let connection = Connection::open(&path).expect("a database");
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE notes (text)").expect("made");
        let write = |times: usize| {
            for _ in 0..times {
                connection.execute("INSERT INTO notes VALUES ('x')", ()).expect("stored");
            }
        };
        for round in [40, 7, 23, 1] {
            write(round);
            check(&path).expect("undamaged, before and after the WAL restarts");
            connection.query_row("PRAGMA wal_checkpoint(RESTART)", (), |_| Ok(())).expect("copied");
        }
        write(3);
        check(&path).expect("whole");
    }
}
