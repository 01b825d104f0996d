//! 1. A submission becomes an event batch.

use tocsin_model::{event::PackedEvents, id::Name, time::Timestamp};
use tocsin_store::{error::StoreError, journal::Idempotency};

/// Events of one class that ask to be accepted together, already packed by the running version of their class.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The application.
    pub application: Name,
    /// The version that packed them.
    pub version: u32,
    /// Their class.
    pub class: Name,
    /// Who submits them.
    pub source: Name,
    /// When the first byte was read.
    pub received_at: Timestamp,
    /// The events.
    pub events: PackedEvents,
    /// Makes a repeated submission the same submission.
    pub idempotency: Option<Idempotency>,
}

/// Why a submission was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The application does not run.
    #[error("the application `{0}` does not run")]
    NoApplication(Name),
    /// There is no room; try again later.
    #[error("{0}")]
    Full(String),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}
