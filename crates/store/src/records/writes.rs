//! Preconditions and results of writes.

use crate::error::StoreError;

/// Precondition of a write (optimistic concurrency), like `If-Match` and `If-None-Match` in HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// No condition.
    Any,
    /// The item does not exist; otherwise `Taken`.
    Absent,
    /// The item exists; otherwise `Missing`.
    Present,
    /// The item has this revision; otherwise `Changed`, or `Missing` if it does not exist.
    Revision(u64),
}

impl Precondition {
    /// Checks the precondition against the revision found.
    pub(crate) fn check(self, found: Option<u64>, what: impl FnOnce() -> String) -> Result<(), StoreError> {
        match (self, found) {
            (Precondition::Absent, Some(_)) => Err(StoreError::Taken(what())),
            (Precondition::Present | Precondition::Revision(_), None) => Err(StoreError::Missing(what())),
            (Precondition::Revision(expected), Some(found)) if expected != found => Err(StoreError::Changed(what())),
            _ => Ok(()),
        }
    }
}

/// Result of one item of a bulk write.
pub type Written<T> = Result<T, StoreError>;
