//! All ports on SQLite, a file each: the default.
//!
//! Each file has one writer thread that commits in groups ([`writer`]), a few readers, and a checkpointer behind them.
//! The files know nothing of each other, so writes to the records never wait for the flow, nor do readers of an inbox.

pub mod journal; // the flow, in `journal.db`
pub mod records; // who and what, in `records.db`
pub mod inbox; // what is there to read, in `inbox.db`
pub mod collections; // rows that devices keep replicas of, in `sync.db`
pub mod spool; // what systems say to each other, in `spool.db`
pub mod tracking; // what people may look at of it, in `tracking.db`
pub mod backup; // all of them as of one moment, and the way back

pub use writer::failed;

mod writer; // one file: group commit, readers, checkpoints, the lock, the schema's version
