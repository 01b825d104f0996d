//! Events in, from where they happen: how a source gives batches, and what it must remember so that none comes twice.
//!
//! A [`source::OpenSource`] is a running instance of a kind. Whoever runs it asks for the next
//! [`source::Portion`], has its events accepted **in one commit** with its marks, and then says so. The marks are all
//! that a source knows of its past: one that is opened with the marks of its last accepted portion goes on exactly behind
//! it, whatever died in between.
//!
//! Every kind is a folder of the same shape: `options` (what an operator may set), and the loop that waits, reads and,
//! after acceptance, tells the far side. What reads texts apart from I/O is `items` and `mapping`, which all kinds share.
//! This room knows no journal; time comes from a clock.

pub mod source; // what every kind promises: portions with marks
pub mod supervise; // a source runs: it rests while it is held, and is opened again after trouble
pub mod kind; // which kinds there are; options are checked, sources opened

pub mod directory; // files that are dropped into a folder
pub mod poll; // pages with items, fetched again and again
pub mod feed; // RSS and Atom
pub mod query; // a query with a high-water mark
pub mod outbox; // a table that is emptied
pub mod nats; // a stream of NATS JetStream
pub mod kafka; // topics of Kafka
pub mod mqtt; // topics of an MQTT broker
pub mod mail; // mail that comes in by SMTP or LMTP
pub mod process; // lines of JSON from a program

mod tray; // what was taken becomes events, or messages as they are
mod items; // texts become items, one after the other: lines, JSON, CSV, XML
mod sql; // databases that are asked
mod page; // the loop of kinds that fetch pages
mod fetch; // conditional requests within bounds
mod known; // which items were told before
mod due; // when to ask
mod mapping; // an item becomes a row of the event class
mod reference; // the page that explains every option

#[doc(hidden)]
pub mod fuzzing; // parsers for fuzz targets

#[cfg(test)]
mod testing; // what the tests of all kinds share

pub use kind::{KindDescription, check, check_location, closed, kinds, open};
pub use reference::reference_page;
pub use source::{Context, Folders, Gives, Listeners, Message, OpenSource, Portion, Refusal, Setting, Trouble};
pub use supervise::SourceState;
