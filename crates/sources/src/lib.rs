//! Sources: event ingestion with exactly-once checkpoints.
//!
//! A [`source::OpenSource`] is a running source of some kind. Its host asks for the next [`source::SourceBatch`],
//! stores the batch **in one commit** with its marks (checkpoints), and then confirms it. The marks are the whole state
//! of a source: opened with the marks of its last stored batch, it continues exactly after that batch, whatever crashed
//! in between.
//!
//! Every kind is a folder of the same shape: `options` (the options of an operator), and a loop that waits, reads and,
//! after acceptance, acknowledges to the server. Parsers without I/O are in `items` and `mapping`, shared by all kinds.
//! This crate has no access to the journal; time comes from a clock. A file uses only files above it.

pub mod source; // the interface of all kinds: batches with checkpoints
pub mod rejected; // files of rejected items
pub mod supervise; // supervisor: runs a source, holds it, restarts it with back-off
pub mod description; // a row of the table of kinds, with all its columns

mod items; // parsers of items: lines, JSON, CSV, XML
mod xsd; // paths and types from an XML Schema
mod mapping; // maps items to rows of the event class
mod batch_builder; // builds batches of events or messages
mod due; // poll times: interval or schedule
mod seen_items; // change detection and de-duplication of page items
mod fetch; // conditional HTTP requests within bounds
mod page; // the polling loop of `poll` and `feed`
mod sql; // SQL databases

pub mod directory; // files dropped into a folder
pub mod poll; // pages with items, polled
pub mod feed; // RSS, Atom and JSON Feed, polled
pub mod query; // SQL query with a high-water mark
pub mod outbox; // SQL outbox table, emptied
pub mod nats; // NATS JetStream streams
pub mod kafka; // Kafka topics
pub mod mqtt; // MQTT topics
pub mod mail; // SMTP and LMTP server for incoming mail
pub mod process; // JSON lines from a program

pub mod kind; // table of kinds: checks options, opens sources
pub mod sample; // test of a mapping on a sample
mod reference; // generates the reference page of source options

#[doc(hidden)]
pub mod fuzzing; // entry points for fuzz targets

#[cfg(test)]
mod testing; // test harness shared by all kinds
#[cfg(test)]
mod page_server; // a server of one page, for the tests of the kinds that poll
#[cfg(test)]
mod conformance; // the promises of a source, for the tests of every kind

pub use description::{KindDescription, SourceResource};
pub use kind::{check, check_location, kinds, not_allowed, open, source_secrets};
pub use reference::reference_page;
pub use source::{
    Context, Folders, Listeners, Message, OpenSource, RejectedItem, SourceBatch, SourceError, SourceOutput,
    SourceSettings,
};
pub use supervise::SourceState;
