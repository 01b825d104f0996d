//! Replicas against an in-process server: visibility, edits, and access control.

mod fixture;
mod built_in; // built-in collections
mod cells; // cells that their fields cannot hold
mod copies; // copied and restored files
mod conflicts; // conflicts between edits
mod convergence; // random edits, failing links and crashes
mod layout; // migration of older files
mod partitions; // visibility of rows
mod programs; // conflict resolver programs
mod raising; // events raised by changes
mod replacing; // REPLACE, upserts and triggers in the file
mod schemas; // rows that violate their schema
mod sessions; // upload and download
mod vectors; // test vectors for every client
mod watching; // long polling
