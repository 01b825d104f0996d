//! Syncs a file in chunks, so that no commit waits long for the disk.
//!
//! A checkpoint writes thousands of pages all over the file. If they are synced at once, they fill the queue of the
//! disk, and each small commit waits behind them. Linux can write out a part of a file and wait for it; commits are
//! served between two parts.
#![allow(unsafe_code)]

use std::{fs::File, io};

/// Small enough to be written in about the time of a commit if all of it is dirty.
#[cfg(target_os = "linux")]
const CHUNK_BYTES: u64 = 256 << 10;
/// Long files have longer chunks: there is a system call for each, dirty or not.
#[cfg(target_os = "linux")]
const CHUNKS_MAX: u64 = 4_096;

/// Syncs the data of a file. Blocks.
///
/// # Errors
/// Errors of the disk. As after a failed `fsync`, it is unknown what has reached the disk.
pub(super) fn sync(file: &File) -> io::Result<()> {
    write_out(file)?;
    // After this, only the flush of the disk's own cache is left.
    file.sync_data()
}

/// Offsets of a file's chunks, and their size; the last one can extend beyond the file.
#[cfg(target_os = "linux")]
fn chunks(file_bytes: u64) -> (impl Iterator<Item = u64>, u64) {
    let chunk_bytes = file_bytes.div_ceil(CHUNKS_MAX).next_multiple_of(CHUNK_BYTES).max(CHUNK_BYTES);
    ((0..file_bytes.div_ceil(chunk_bytes)).map(move |chunk| chunk * chunk_bytes), chunk_bytes)
}

/// Writes out dirty pages in chunks, where the file supports it.
#[cfg(target_os = "linux")]
fn write_out(file: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let (offsets, bytes) = chunks(file.metadata()?.len());
    for offset in offsets {
        // SAFETY: the file stays open for as long as it is borrowed. The call has no pointers; it changes neither the
        // file nor its position.
        let answer = unsafe {
            libc::sync_file_range(
                file.as_raw_fd(),
                offset.cast_signed(),
                bytes.cast_signed(),
                libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER,
            )
        };
        if answer != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // A kernel or file without range sync: the full sync that follows does everything.
                Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE | libc::EOPNOTSUPP | libc::EPERM) => Ok(()),
                // Reported only once by the kernel: the full sync would return success.
                _ => Err(error),
            };
        }
    }
    Ok(())
}

/// Other systems have no range sync.
#[cfg(not(target_os = "linux"))]
fn write_out(_: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_file_and_are_not_too_many() {
        for file_bytes in
            [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, CHUNKS_MAX * CHUNK_BYTES, CHUNKS_MAX * CHUNK_BYTES + 1, 1 << 46]
        {
            let (offsets, bytes) = chunks(file_bytes);
            let offsets: Vec<u64> = offsets.collect();
            assert!(offsets.len() as u64 <= CHUNKS_MAX, "{file_bytes} bytes in {} chunks", offsets.len());
            assert!(
                offsets.iter().zip(0..).all(|(offset, before)| *offset == before * bytes),
                "{file_bytes}: {offsets:?}"
            );
            let end = offsets.last().map_or(0, |last| last + bytes);
            assert!(end >= file_bytes && end < file_bytes + bytes, "{file_bytes} bytes end at {end}");
        }
    }

    #[test]
    fn a_file_without_range_sync_is_left_to_the_full_sync() {
        let (reader, _writer) = io::pipe().expect("a pipe");
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        write_out(&pipe).expect("no trouble of a disk");
    }
}
