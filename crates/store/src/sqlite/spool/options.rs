//! Options of the spool.

use crate::keyring::Keyring;

/// Options of the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolOptions {
    /// With less free disk space than this, new messages are refused with `Full`; stored ones are still sent. 0
    /// disables the check.
    pub reserve_bytes: u64,
    /// Number of reader threads per partition.
    pub readers: usize,
    /// Number of partition files, from 1 to [`PARTITIONS_MAX`](super::PARTITIONS_MAX). A changed number takes effect
    /// when the spool is opened; it can only decrease once the partitions to be removed are empty.
    pub partitions: u8,
    /// Keys that seal definitions, which may contain passwords. Anything that is not sealed with the first key is
    /// resealed when the spool is opened.
    pub keys: Keyring,
}

impl Default for SpoolOptions {
    fn default() -> Self {
        SpoolOptions { reserve_bytes: 64 << 20, readers: 2, partitions: 1, keys: Keyring::default() }
    }
}
