//! Audit log of each partition: operator actions on messages are in the file of their message.

use std::sync::Arc;

use async_trait::async_trait;
use tocsin_model::time::Timestamp;

use crate::{
    audit::{AuditEntry, AuditFilter, AuditPosition, AuditTrail, Image},
    bounded_scan::ScanPage,
    error::StoreError,
    journal::PersonNames,
    sqlite::{
        spool::{FILES, SqliteSpool},
        writer::Database,
    },
};

/// Trail of one partition.
struct PartitionTrail {
    spool: Arc<SqliteSpool>,
    number: usize,
}

impl PartitionTrail {
    fn database(&self) -> &Database {
        self.spool.partitions[self.number].database()
    }
}

impl SqliteSpool {
    /// Audit logs of the partitions.
    pub fn audit_trails(self: &Arc<Self>) -> Vec<Arc<dyn AuditTrail>> {
        let trail = |number| -> Arc<dyn AuditTrail> { Arc::new(PartitionTrail { spool: self.clone(), number }) };
        (0..self.partitions.len()).map(trail).collect()
    }
}

#[async_trait]
impl AuditTrail for PartitionTrail {
    fn trail(&self) -> &'static str {
        FILES[self.number].trim_end_matches(".db")
    }

    async fn entries(
        &self,
        filter: &AuditFilter,
        before: Option<AuditPosition>,
        limit: usize,
    ) -> Result<ScanPage<AuditEntry, AuditPosition>, StoreError> {
        self.database().audit_entries(filter, before, limit).await
    }

    async fn record(&self, image: Image) -> Result<(), StoreError> {
        self.database().record_audit(image).await
    }

    async fn prune_entries(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.database().prune_audit(before, limit).await
    }

    async fn erase_entries(&self, names: &PersonNames) -> Result<usize, StoreError> {
        self.database().erase_audit(names).await
    }
}
