//! Store errors, by what the caller can do about them.

/// Boxed source of an error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Error of a store operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An item with this name or key exists already.
    #[error("{0} already exists")]
    Taken(String),
    /// No item with this name or key exists.
    #[error("{0} does not exist")]
    Missing(String),
    /// Optimistic concurrency failure: the item's revision is no longer the one that the caller read.
    #[error("{0} has changed in the meantime")]
    Changed(String),
    /// The fencing token is outdated: the lease expired and another worker claimed the item, or the item was
    /// finished.
    #[error("the claim on {0} has been lost")]
    Fenced(String),
    /// The disk or a configured limit is full; nothing was stored. Try again later.
    #[error("there is no room: {0}")]
    Full(String),
    /// The store does not respond, or failed so that only a restart helps. Nothing was acknowledged.
    #[error("the store is not available: {0}")]
    Unavailable(#[source] BoxError),
    /// Data read from the store is not what was written: a checksum or format check failed.
    #[error("stored data is damaged: {0}")]
    Damaged(String),
}

impl StoreError {
    /// Wraps an error of the backend.
    pub fn unavailable(error: impl Into<BoxError>) -> Self {
        StoreError::Unavailable(error.into())
    }
}

impl From<tocsin_model::field::Damaged> for StoreError {
    fn from(error: tocsin_model::field::Damaged) -> Self {
        StoreError::Damaged(error.to_string())
    }
}
