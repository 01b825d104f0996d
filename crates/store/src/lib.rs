//! Storage layer. Ports (traits) and their backends for everything Tocsin persists.
//!
//! Four ports: [`journal`] (event flow), [`records`] and [`entries`] (system of record, flat and as an LDAP tree) and
//! [`inbox`] (in-app feeds). Journal and records consist of facets, small traits by caller, such as
//! [`journal::WorkQueue`] and [`records::SubscriberStore`]; a caller asks for those it uses. Each port has a
//! conformance suite, by facet, that every backend runs. Sync collections, the message spool and message tracking exist
//! on SQLite only. SQL appears only in this crate.
//!
//! A module uses only modules above it in the list below. The files of a folder use each other in one direction too,
//! except for the subscribers and entries of the SQLite backend, and the records of the in-memory backend.

pub mod error; // store errors that a caller can handle
pub mod bounded_scan; // pages of filtered lists with a bound on the rows read
pub mod keyring; // encryption of secrets at rest
pub mod listeners; // wakes the tasks that follow a subscriber

pub mod journal; // port: event batches, notification batches, work items, receipts
pub mod records; // port: applications, subscribers, subscriptions, keys
pub mod entries; // port: the records as a directory tree (LDAP)
pub mod inbox; // port: in-app inbox feeds
pub mod audit; // audit log: entries in the commits of their changes
pub mod collections; // types of sync collections: rows that devices replicate

pub mod spool; // types of the message spool: messages, their legs and outcomes
pub mod tracking; // message tracking for operators: copies of bodies, searchable properties

pub mod queries; // rules in SQL: typed tables and the engine that evaluates the queries

pub mod memory; // in-memory backend of all ports, for tests
pub mod sqlite; // SQLite backend of all ports, one file per port; the default
