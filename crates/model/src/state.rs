//! State of matching between batches, as stored in the journal: pages of bytes, written whole.

use bytes::Bytes;

/// A page of state. Its body is opaque to all but its writer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatePage {
    /// Its owner, as the path in the definition: `rules.limit`.
    pub name: Box<str>,
    /// Number of the page.
    pub number: u64,
    /// Its bytes. Empty: the page is deleted.
    pub body: Bytes,
}
