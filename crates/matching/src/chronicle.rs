//! Chronicles: per-key aggregates over the events of a class, as in SQL Server Notification Services. Rules read them
//! as event columns: the value before the event and the value after it.
//!
//! Events are applied one by one in the order of their acceptance. The time is that of the batch or of the event, never
//! a wall clock, so the same batches give the same values. Values are computed once, before any shard matches; a shard
//! indexes them like any other event field.
//!
//! The changes of a quantum (one run of the matcher) are committed as pages together with its matches. Until that
//! commit is confirmed, they can be undone.

pub mod store; // the chronicles of an application: applies events, undoes, restores
pub mod tables; // chronicle entries as rows of SQL tables
pub mod view; // chronicle entries for display

mod entry; // the aggregate of one key
mod aggregate_table; // the entries of one chronicle and their journal pages
