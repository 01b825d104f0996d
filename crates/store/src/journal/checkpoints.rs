//! Checkpoints of sources.

use async_trait::async_trait;
use tocsin_model::id::Name;

use super::{Mark, SourceKey};
use crate::error::StoreError;

/// Checkpoints of sources, by part. Events and their checkpoints are usually one commit
/// ([`EventLog::accept`](super::EventLog::accept)); this facet stores those without events.
///
/// A checkpoint replaces the earlier one of the same part and is durable when the call returns. One read is one page.
#[async_trait]
pub trait Checkpoints: Send + Sync + 'static {
    /// Stores checkpoints of a source without events.
    async fn record_marks(&self, source: &SourceKey, marks: Vec<Mark>) -> Result<(), StoreError>;

    /// Checkpoints of a source, by part, from after the part `after`, up to `limit`.
    async fn marks(&self, source: &SourceKey, after: Option<&str>, limit: usize) -> Result<Vec<Mark>, StoreError>;

    /// Deletes the checkpoints of all sources of an application.
    async fn delete_marks(&self, application: &Name) -> Result<(), StoreError>;
}
