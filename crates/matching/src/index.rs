//! The structures that answer an event: one [`groups::Groups`] for each branch of a rule, one [`numbers::KeyBook`] for
//! the branches that ask events for the same, one [`table::Table`] for each subscription class. No locks: a shard has one
//! owner.

/// Keyed, since subscribers choose what is hashed; an id and a short key take a few cycles.
pub type Hasher = foldhash::fast::RandomState;

pub mod chunks; // entries of one group: all, sorted by one key, or as ranges with a low and a high end
pub mod columns; // sorted keys and their slots, in eight bytes an entry where they fit
pub mod groups; // groups by the values that equality tests ask for
pub mod ids; // ids of subscriptions by slot
pub mod key; // ordered values as integers that keep their order
pub mod numbers; // those values numbered, so that an event is looked up once
pub mod table; // the subscriptions of one class: ids, channels, parameters, in columns by slot
