//! What matching remembers between batches, as the journal keeps it: pages of bytes, written whole.

use bytes::Bytes;

/// One page of what matching remembers. Only the one who wrote it knows what is in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatePage {
    /// Whose memory it is, as the path in the definition: `rules.limit`.
    pub name: Box<str>,
    /// Which page of it.
    pub number: u64,
    /// What it holds. Empty: there is no such page any more.
    pub body: Bytes,
}
