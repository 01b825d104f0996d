//! The hash function of the index structures.

/// A keyed hash, since subscribers choose the hashed values; hashing an id or a short key takes a few cycles.
pub type Hasher = foldhash::fast::RandomState;
