//! Free disk space, checked before writes.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::error::StoreError;

/// Validity of a free-space check: much less than the reserve is written in this time.
const FREE_SPACE_CACHED_FOR: Duration = Duration::from_millis(10);

/// Disk-space guard: refuses intake while the disk is nearly full, so that accepted work can always be finished.
#[derive(Debug, Clone)]
pub(crate) struct FreeSpace {
    /// Folder on the file system.
    pub(super) folder: PathBuf,
    /// Bytes to keep free.
    pub(super) reserve_bytes: u64,
    /// Time of the last successful check.
    pub(super) last_success: Arc<Mutex<Option<Instant>>>,
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
