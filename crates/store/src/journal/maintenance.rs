//! Retention and the health check.

use std::time::Duration;

use async_trait::async_trait;
use tocsin_model::time::Timestamp;

use super::Cutoffs;
use crate::error::StoreError;

/// Retention and the health check, for background tasks and readiness.
///
/// Retention works in small commits, so the flow is not delayed; the caller repeats it until nothing is due.
#[async_trait]
pub trait Maintenance: Send + Sync + 'static {
    /// Deletes up to `limit` finished event batches and closed notification batches older than the cutoff of their
    /// class, with their receipts, class by class, oldest first. Also deletes idempotency keys expired at `now`, and
    /// quanta and activity counters older than their cutoffs. Open, suspended and failed work stays, and so does the
    /// newest minute of each stream. Returns the number of deleted batches; less than `limit` means that no more are
    /// due.
    async fn prune(&self, cutoffs: &Cutoffs, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Number of batches that [`Maintenance::prune`] would delete, counted up to `most`.
    async fn prunable(&self, cutoffs: &Cutoffs, most: usize) -> Result<usize, StoreError>;

    /// Writes and syncs a few bytes and returns the time it took, for `doctor` and readiness.
    async fn probe(&self) -> Result<Duration, StoreError>;
}
