//! Trouble of a store, as far as a caller can do something about it.

/// Anything, as the source of an error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Something of this name or key exists already.
    #[error("{0} already exists")]
    Taken(String),
    /// There is no such thing (any more).
    #[error("{0} does not exist")]
    Missing(String),
    /// It has changed since the revision that the caller saw.
    #[error("{0} has changed in the meantime")]
    Changed(String),
    /// The claim is not the caller's any more: its lease ran out and another has it, or it was finished.
    #[error("the claim on {0} has been lost")]
    Fenced(String),
    /// There is no room, on the disk or below a configured bound; nothing was stored. Try again later.
    #[error("there is no room: {0}")]
    Full(String),
    /// The store does not answer, or has failed in a way that only a restart mends. Nothing was acknowledged.
    #[error("the store is not available: {0}")]
    Unavailable(#[source] BoxError),
    /// What was read is not what was written.
    #[error("stored data is damaged: {0}")]
    Damaged(String),
}

impl StoreError {
    /// Wraps a failure of the backend.
    pub fn unavailable(error: impl Into<BoxError>) -> Self {
        StoreError::Unavailable(error.into())
    }
}

impl From<tocsin_model::field::Damaged> for StoreError {
    fn from(error: tocsin_model::field::Damaged) -> Self {
        StoreError::Damaged(error.to_string())
    }
}
