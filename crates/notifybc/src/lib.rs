//! The semantics of NotifyBC's REST interface: records, queries, configuration, identity, mail merge and workflow.
//!
//! Pure: no I/O, no clock. Times and random numbers are arguments. The crate knows no store and no HTTP library; its
//! functions take values and return decisions, which the service and the face apply:
//!
//! 1. [`record`] has the collections, their schemas and the views of users.
//! 2. [`query`] parses `filter` and `where`, evaluates them over documents and yields conditions for an index.
//! 3. [`configuration`] reads a NotifyBC configuration document.
//! 4. [`identity`] decides the identity of a request, and its permissions.
//! 5. [`merge`] is the mail merge; [`codes`] are confirmation and unsubscription codes.
//! 6. [`subscriptions`], [`notifications`], [`bounces`], [`jobs`] and [`rss`] are the workflow.
//! 7. [`dump`] reads the collections of a MongoDB dump.
//!
//! Names, keys and quoted texts are part of the interface. They equal those of NotifyBC 6.4.1.

pub mod record; // collections, ids, schemas, views
pub mod query; // the query language and its evaluation
pub mod configuration; // static and dynamic configuration
pub mod identity; // who sends a request, and what it permits
pub mod merge; // mail merge
pub mod codes; // random codes and their comparison
pub mod subscriptions; // subscription workflow
pub mod notifications; // notification rules
pub mod bounces; // inbound mail addresses and the count of bounces
pub mod jobs; // conditions and times of the scheduled jobs
pub mod rss; // items of feeds and their history
pub mod bson; // documents of a mongodump file
pub mod extended_json; // documents of a mongoexport file
pub mod dump; // collections of a dump
