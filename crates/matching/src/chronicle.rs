//! What is kept of the events of a class, key by key, and given to rules as columns beside the fields of each event: what
//! a chronicle said before the event, and what it says after it.
//!
//! Events are taken one by one in the order in which they were accepted, at the time of their batch or at their own, never
//! at that of a clock. So the same batches give the same values. They are computed once, before any shard matches; to a
//! shard they are fields of the event like others, and are indexed like them.
//!
//! What changes in a quantum is committed with its matches, as pages; until that commit is known to be stored it can be
//! undone.

pub(crate) mod compile; // declarations become expressions, and the columns that rules read
pub(crate) mod columns; // what they gave is packed and kept with the batch

pub mod book; // all entries of an application: events in, columns out; the way back
pub mod tables; // the same entries as rows of tables, for queries
pub mod view; // entries for people

mod entry; // one key: what its events come to
mod ledger; // the entries of one chronicle, and their pages
