//! The message spool on SQLite: `spool.db`, or several partition files with a part of the messages each.
//!
//! A message, its legs, its parts and its replies are in the same partition. So each commit concerns a single file,
//! and partitions are independent. There is no port trait: this is the only backend, and its public functions are the
//! interface for exchanges.

// Rows of one partition
mod schema;
mod options; // options of the spool
mod encryption; // encryption of definitions at rest
mod columns; // words and texts in columns
mod views; // read-only queries: messages, legs, lists
mod history; // history of attempts and operator actions
mod message_rows; // a message, its body, and its legs
mod replies; // ends a leg, and assigns its reply
mod groups; // groups of messages that are aggregated
mod intake; // storing of received messages
mod open_counts; // open messages per exchange
mod outcomes; // outcomes of legs, timeouts, retention
mod operator_actions; // resume, reroute, edit, end
mod orphaned_legs; // legs to send ports that no longer exist

// Partitions
mod partition_assignment; // partition of a message
mod partitions; // partition files, and changes of their number
mod due_legs; // due legs, in the order in which they leave
mod spool_files; // the spool over its partition files

// Operations
mod receive; // accepts messages
mod send; // due legs and their outcomes
mod read; // messages, their history, and lists of them
mod operate; // operator actions
mod definitions; // exchanges and the states of their ports
mod flow; // rate limits and throttling
mod aggregation; // groups of messages aggregated into one
mod locations; // messages received by locations, committed with their checkpoints
mod audit_trails; // audit log of each partition

#[cfg(test)]
mod tests;

pub use options::SpoolOptions;
pub use partition_assignment::PARTITIONS_MAX;
pub use partitions::FILES;
pub(super) use schema::MIGRATIONS;
pub use spool_files::SqliteSpool;
