//! Remembers: records (who and what), the journal (what happened and what is to do) and the inbox (what is there to read).
//!
//! Four ports, of which the records are two, each with one conformance suite that every backend runs; and the spool of
//! exchanges, which has one backend. SQL appears only here.

pub mod journal; // the port of the flow: event batches, notification batches, work items, receipts
pub mod records; // the port of the system of record: applications, subscribers, subscriptions, keys
pub mod entries; // the port of the directory: the records as a tree
pub mod inbox; // the port of the feeds that subscribers read
pub mod collections; // what is kept of the rows that devices have replicas of

pub mod spool; // what exchanges keep: messages, their legs, what became of them
pub mod tracking; // what is kept of them for people to look at: bodies on the way, properties to find them by

pub mod queries; // rules in SQL: typed tables, and the engine that runs queries over them

pub mod memory; // all ports in memory, for tests and trials
pub mod sqlite; // all ports on SQLite, a file each: the default

pub mod keyring; // keys that seal what is secret before it is stored
pub mod look; // pages of lists that look at a bounded number of rows
pub mod error; // what a caller can do about trouble
