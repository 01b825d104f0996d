//! Rules in SQL: queries over an event batch, the subscriptions and the chronicles as typed tables.
//!
//! A [`QuerySet`] contains the checked queries of one version of an application; [`QueryTables`] contains the tables
//! that they read and runs them. The tables follow the changes of the records like the match index: if both get the
//! same changes in the same order, queries read what the index reads; if chronicle values are stored after each
//! batch, queries read them. The tables are in a separate database, in memory up to the cache size and in a temporary
//! file beyond, and are initially empty. Every backend uses the same engine, so a query gives the same results
//! everywhere.
//!
//! Queries are untrusted. The connection that runs them reads only its tables, calls only deterministic functions,
//! and stops at a deadline and at size limits (`guard`).

mod functions; // functions that SQLite lacks or that depend on the current time
mod guard; // connection for untrusted statements
mod plan; // indexes and table scans of a query
mod schema; // the tables
mod texts; // text functions with bounded time
mod wildcards; // LIKE and GLOB
mod values; // conversion between model values and SQL
mod query_set; // the prepared queries of an application
mod tables; // applies changes, loads batches, returns matches

#[cfg(test)]
mod tests;

pub use functions::HostFunction;
pub use query_set::QuerySet;
pub use schema::StateTable;
pub use tables::{ExtraColumns, MATCH_BYTES_MAX, MATCHES_MAX, QueryFiring, QueryMatch, QueryTables};
