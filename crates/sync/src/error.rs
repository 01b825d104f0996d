//! Errors of sync requests.

use std::time::Duration;

use tocsin_model::{
    id::Name,
    problem::{Code, CredentialError, Problem},
};
use tocsin_store::error::StoreError;

/// A limit of concurrent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncLimit {
    /// Requests that wait for a pool.
    Pool,
    /// Devices that wait for changes.
    Watchers,
    /// Requests of one session.
    Session,
}

/// Error of a sync request.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The token is unknown or expired.
    #[error("{1}")]
    Unauthenticated(CredentialError, &'static str),
    /// The token is not for this.
    #[error("{0}")]
    Forbidden(String),
    /// The request is invalid.
    #[error("problems found: {}", .0.len())]
    Invalid(Vec<Problem>),
    /// It does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// It changed since the version that the caller read.
    #[error("{0} was changed by another request; read it again and repeat the change")]
    Changed(String),
    /// The changes since the cursor are unknown, or no longer visible to this device: begin without a cursor, after
    /// sending edits.
    #[error("{0}")]
    Expired(String),
    /// Too many concurrent requests.
    #[error("{reason}")]
    Busy {
        /// The kind of limit.
        limit: SyncLimit,
        /// The exhausted limit.
        reason: String,
        /// Time after which to retry, with jitter.
        retry_after: Duration,
        /// Number of requests ahead in the queue.
        position: usize,
    },
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl SyncError {
    /// Creates an error with one problem at a path.
    pub fn invalid(code: Code, path: impl Into<String>, message: impl Into<String>) -> SyncError {
        Problem::new(code, path, message).into()
    }
}

impl From<Problem> for SyncError {
    fn from(problem: Problem) -> Self {
        SyncError::Invalid(vec![problem])
    }
}

impl From<StoreError> for SyncError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Missing(what) => SyncError::Missing(what),
            StoreError::Changed(what) => SyncError::Changed(what),
            error => SyncError::Store(error),
        }
    }
}

pub(crate) fn no_collection(application: &Name, name: &str) -> SyncError {
    SyncError::Missing(format!("the collection `{name}` of `{application}`"))
}
