//! Suppressions of addresses and devices.

use async_trait::async_trait;
use tocsin_model::{
    id::ChangeSequence,
    suppression::{Suppression, Target},
    time::Timestamp,
};

use super::{ChangeLog, RecordChange, SuppressionFilter};
use crate::{bounded_scan::ScanPage, error::StoreError};

/// Suppressions: targets that receive nothing, each with its cause.
///
/// A write is durable when the call returns and is logged in the same commit. Lists are in the order of targets.
/// Delivery keeps a copy in memory and follows the changes:
/// [`newest_suppression`](SuppressionStore::newest_suppression) costs no I/O.
#[async_trait]
pub trait SuppressionStore: ChangeLog {
    /// Stores suppressions in one commit, each replacing the one of the same target unless that one
    /// [outranks](Suppression::outranks) it. Of two for one target, the later wins by the same rule.
    async fn put_suppressions(&self, new: Vec<Suppression>) -> Result<(), StoreError>;

    /// Suppression of a target, even if expired.
    async fn suppression(&self, target: &Target) -> Result<Option<Suppression>, StoreError>;

    /// Finds up to `limit` suppressions by the text of their target, after `after`, and reads at most
    /// [`SCANNED_ROWS_MAX`](crate::bounded_scan::SCANNED_ROWS_MAX) rows.
    async fn scan_suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<ScanPage<Suppression, Target>, StoreError>;

    /// Up to `limit` suppressions by the text of their target, after `after`, without a bound on the rows read.
    async fn suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<Vec<Suppression>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after.cloned());
        while found.len() < limit {
            let page = self.scan_suppressions(filter, after.as_ref(), limit - found.len()).await?;
            found.extend(page.items);
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        Ok(found)
    }

    /// Removes the suppression of a target.
    async fn remove_suppression(&self, target: &Target) -> Result<(), StoreError>;

    /// Deletes up to `limit` expired suppressions. Returns their number; less than `limit` means that no more are
    /// expired.
    async fn prune_suppressions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Newest logged change of a suppression. Cheap: it is read before each delivery attempt.
    fn newest_suppression(&self) -> ChangeSequence;

    /// Changes of suppressions after `after`, oldest first, up to `limit`; other changes are skipped at no cost.
    ///
    /// # Errors
    /// `Missing`, as [`ChangeLog::changes`](super::ChangeLog::changes).
    async fn suppression_changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<RecordChange>, StoreError>;
}
