//! SQLite backend of the records port: `records.db`.
//!
//! Every write is one job of the file's writer thread. It opens a `RecordsTransaction` with the id counters, row counts
//! and the end of the change log, changes rows, and stores the counters. Caches and watchers are updated after the
//! commit. Reads use the reader connections.

// Rows, in a transaction
mod schema;
mod encryption; // encryption of secrets at rest
mod entry_log; // the change log of entries
mod transaction; // a transaction, and the change log
mod images; // images of records for the audit log
mod api_keys;
mod capacity_profiles; // saved capacity profiles
mod users; // users of the console and their sessions
mod endpoints;
mod suppressions;
mod feedback; // feedback to sent messages
mod classes; // numbers of subscription classes
mod subscriber_rows; // rows of subscribers and their devices, as read
mod lifecycle; // outbox of lifecycle events
mod notifybc_rows; // documents of NotifyBC, kept with changes of their subscriptions
mod consent_rows; // rows of consents and of their evidence
mod schedule_rows; // rows of schedules, kept with their subscriptions
mod subscriptions;
mod applications;
mod matching;
mod schedules;
mod segments;
mod recipients;

// A change of a subscriber updates the entries that name it, and a change of an entry updates subscribers: these three
// files use each other.
mod entry_changes; // index keys, credentials and placements of entries
mod subscribers;
mod entries;

mod consents; // consent of subscriptions
mod notifybc_documents; // documents of NotifyBC, with their native rows
mod erasure; // erasure of a person
mod merges;
mod prepared; // prepared changes

// The file
mod recipient_cache;
mod waiting_queue; // changes that wait for the writer
mod published_state; // state published after each commit
mod group_commit; // group commit of prepared changes
mod database; // opened, and changed in transactions
mod facets; // the facets of the port

#[cfg(test)]
mod tests;

pub use database::{RecordsOptions, SqliteRecords};
pub(super) use schema::MIGRATIONS;
