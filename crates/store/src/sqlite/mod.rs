//! SQLite backend of all ports, one file per port; the default.
//!
//! Each file has one writer thread that commits in groups ([`writer`]), several readers, and a WAL checkpointer. The
//! files are independent, so writes to the records never wait for the journal or for readers of an inbox.

mod writer; // one database file: group commit, readers, WAL checkpoints, lock, schema version
mod statements; // statements and values of rows
mod audit; // audit entries of a file

pub mod journal; // the event flow, in `journal.db`
pub mod records; // the system of record, in `records.db`
pub mod inbox; // in-app inbox feeds, in `inbox.db`
pub mod collections; // sync collections, in `sync.db`
pub mod spool; // messages of exchanges, in `spool.db`
pub mod tracking; // tracking of messages, in `tracking.db`
pub mod backup; // consistent backup of all files, and restore

pub use writer::failed;
