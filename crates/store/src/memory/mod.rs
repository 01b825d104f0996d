//! In-memory backend of all ports, for tests: simple enough to be evidently correct, and lost with the process.

pub mod journal; // the event flow
pub mod records; // the system of record
pub mod inbox; // in-app inbox feeds
