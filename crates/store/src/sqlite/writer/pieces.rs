//! Syncing a file piece by piece, so that no commit waits long for the disk.
//!
//! What the follower copies is thousands of pages in all places of a file. Synced together they are all in the queue of the
//! disk at once, and each commit that comes meanwhile, of a few pages, waits for its turn behind them. Linux can write out a
//! part of a file and wait for that; between two parts commits have their turn.
#![allow(unsafe_code)]

use std::{fs::File, io};

/// Short enough to be written in about a commit's time if all of it is to be written.
#[cfg(target_os = "linux")]
const PIECE_BYTES: u64 = 256 << 10;
/// Pieces of a long file are longer: there is a system call for each, written or not.
#[cfg(target_os = "linux")]
const PIECES_MAX: u64 = 4_096;

/// Syncs the data of a file. Blocks.
///
/// # Errors
/// Those of the disk. As after an `fsync` that failed, nobody can say what has reached it.
pub(super) fn sync(file: &File) -> io::Result<()> {
    write_out(file)?;
    // Of what was written by now only the flush of the disk's own cache is left.
    file.sync_data()
}

/// Where the pieces of a file begin, and how many bytes each has; the last one may end behind the file.
#[cfg(target_os = "linux")]
fn pieces(file_bytes: u64) -> (impl Iterator<Item = u64>, u64) {
    let piece_bytes = file_bytes.div_ceil(PIECES_MAX).next_multiple_of(PIECE_BYTES).max(PIECE_BYTES);
    ((0..file_bytes.div_ceil(piece_bytes)).map(move |piece| piece * piece_bytes), piece_bytes)
}

/// Writes out what has changed, piece by piece, where the file can do that.
#[cfg(target_os = "linux")]
fn write_out(file: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let (places, bytes) = pieces(file.metadata()?.len());
    for place in places {
        // SAFETY: the file stays open for as long as it is borrowed. The call has no pointers; it changes neither the file
        // nor its position.
        let answer = unsafe {
            libc::sync_file_range(
                file.as_raw_fd(),
                place.cast_signed(),
                bytes.cast_signed(),
                libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER,
            )
        };
        if answer != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // A kernel or a file without pieces: the sync that follows does all.
                Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE | libc::EOPNOTSUPP | libc::EPERM) => Ok(()),
                // Told once only: the sync would claim that all is well.
                _ => Err(error),
            };
        }
    }
    Ok(())
}

/// Other systems have nothing like it.
#[cfg(not(target_os = "linux"))]
fn write_out(_: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_file_and_are_not_too_many() {
        for file_bytes in
            [0, 1, PIECE_BYTES, PIECE_BYTES + 1, PIECES_MAX * PIECE_BYTES, PIECES_MAX * PIECE_BYTES + 1, 1 << 46]
        {
            let (places, bytes) = pieces(file_bytes);
            let places: Vec<u64> = places.collect();
            assert!(places.len() as u64 <= PIECES_MAX, "{file_bytes} bytes in {} pieces", places.len());
            assert!(places.iter().zip(0..).all(|(place, before)| *place == before * bytes), "{file_bytes}: {places:?}");
            let end = places.last().map_or(0, |last| last + bytes);
            assert!(end >= file_bytes && end < file_bytes + bytes, "{file_bytes} bytes end at {end}");
        }
    }

    #[test]
    fn what_has_no_pieces_is_left_to_the_sync() {
        let (reader, _writer) = io::pipe().expect("a pipe");
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        write_out(&pipe).expect("no trouble of a disk");
    }
}
