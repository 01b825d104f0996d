//! Options and bounds of a database file.

/// Maximum number of queued writes; further ones get `Full`.
pub(crate) const WAITING_WRITES_MAX: usize = 8_192;
/// Maximum number of jobs per commit, besides the first.
pub(crate) const GROUP_JOBS_MAX: usize = 1_024;
/// Maximum number of queued reads; further ones get `Full`.
pub(crate) const WAITING_READS_MAX: usize = 8_192;
/// Checkpoint step of most files: short, so that no commit waits long for the disk.
pub(crate) const LOG_STEP_BYTES: u64 = 8 << 20;

/// Overwriting of deleted contents (`secure_delete` of SQLite).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Erases {
    /// They stay until their space is used again.
    No,
    /// Old contents in pages that are written anyway are overwritten at once. Pages that become free keep theirs, until
    /// [`Database::overwrite_free_pages`](super::Database::overwrite_free_pages).
    Cells,
    /// All are overwritten at once. Each freed page is written once more.
    Pages,
}

impl Erases {
    /// Value of the pragma.
    pub(super) fn pragma(self) -> &'static str {
        match self {
            Erases::No => "OFF",
            Erases::Cells => "FAST",
            Erases::Pages => "ON",
        }
    }
}

/// Options of a file.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Page size of a new file, in bytes: a power of two from 512 to 65,536. An existing file keeps its own.
    pub page_bytes: u32,
    /// When the WAL has this size and little of it is left to copy, the writer completes the checkpoint between two
    /// commits, so that the WAL restarts at its beginning. At twice the size it does so in any case.
    pub log_bytes_max: u64,
    /// Checkpoint step, in bytes of WAL. A page written several times within a step is copied once.
    pub log_step_bytes: u64,
    /// Page cache of the writer, in KiB. Grows on demand.
    pub writer_cache_kib: u32,
    /// Page cache of each reader, in KiB.
    pub reader_cache_kib: u32,
    /// Number of reader threads.
    pub readers: usize,
    /// Whether commits are on the disk when they are acknowledged. Otherwise a power failure can lose the last ones,
    /// but leaves the file consistent.
    pub synced: bool,
    /// Overwriting of deleted contents.
    pub erases: Erases,
    /// Schema as forward-only migrations: the file's `user_version` is the number applied.
    pub migrations: &'static [&'static str],
}
