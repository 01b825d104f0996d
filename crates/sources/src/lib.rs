//! Sources: event ingestion with exactly-once checkpoints.
//!
//! A [`source::OpenSource`] is a running source of some kind. Its host asks for the next [`source::SourceBatch`],
//! stores the batch **in one commit** with its marks (checkpoints), and then confirms it. The marks are the whole state
//! of a source: opened with the marks of its last stored batch, it continues exactly after that batch, whatever crashed
//! in between.
//!
//! Every kind is a folder of the same shape: `options` (the options of an operator), and a loop that waits, reads and,
//! after acceptance, acknowledges to the server. Parsers without I/O are in `items` and `mapping`, shared by all kinds.
//! This crate has no access to the journal; time comes from a clock.

pub mod source; // the interface of all kinds: batches with checkpoints
pub mod supervise; // supervisor: runs a source, holds it, restarts it with back-off
pub mod kind; // the registry of kinds: option checks, opening

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

mod batch_builder; // builds batches of events or messages
mod items; // parsers of items: lines, JSON, CSV, XML
mod sql; // SQL databases
mod page; // the polling loop of `poll` and `feed`
mod fetch; // conditional HTTP requests within bounds
mod seen_items; // change detection and de-duplication of page items
mod due; // poll times: interval or schedule
mod mapping; // maps items to rows of the event class
mod reference; // generates the reference page of source options

#[doc(hidden)]
pub mod fuzzing; // entry points for fuzz targets

#[cfg(test)]
mod testing; // test harness shared by all kinds

pub use kind::{KindDescription, check, check_location, kinds, not_allowed, open};
pub use reference::reference_page;
pub use source::{
    Context, Folders, Listeners, Message, OpenSource, RejectedItem, SourceBatch, SourceError, SourceOutput,
    SourceSettings,
};
pub use supervise::SourceState;
