//! Status of an application's index.

use tocsin_model::id::ChangeSequence;

use crate::shards::IndexReport;

/// Status of an application's index.
#[derive(Debug, Clone)]
pub(crate) struct IndexStatus {
    /// Version used for matching.
    pub version: u32,
    /// Figures of the index.
    pub report: IndexReport,
    /// All changes up to this one are in the index.
    pub place: ChangeSequence,
    /// Keys of its chronicles.
    pub chronicle_keys: usize,
}
