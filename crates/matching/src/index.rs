//! The index structures: one [`groups::Groups`] for each branch of a rule, one [`key_table::KeyTable`] for the branches
//! with the same event key, one [`table::Table`] for each subscription class. No locks: a shard has one owner.

pub mod hasher; // the hash function
pub mod chunks; // the entries of one group: unsorted, sorted by key, or ranges with two ends
pub mod columns; // sorted keys and their slots, eight bytes an entry where they fit
pub mod groups; // groups of entries by the values of the equality tests
pub mod ids; // subscription ids by slot
pub mod key; // order-preserving 64-bit integer keys
pub mod key_table; // key interning, so that several branches share one lookup per event
pub mod table; // the subscriptions of one class: ids, channels, parameters, in columns by slot
