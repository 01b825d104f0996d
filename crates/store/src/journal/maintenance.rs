//! Retention and the health check.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use tocsin_model::{id::Name, time::Timestamp};

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

/// Retention cutoffs: items finished before these times are deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cutoffs {
    /// Default cutoff.
    pub before: Timestamp,
    /// Cutoffs of event batches, by application and class.
    pub events: BTreeMap<(Name, Name), Timestamp>,
    /// Cutoffs of notification batches, by application and class.
    pub notifications: BTreeMap<(Name, Name), Timestamp>,
    /// Cutoff of the per-minute activity counters.
    pub activity: Timestamp,
}

impl Cutoffs {
    /// The same cutoff for everything.
    pub fn all(before: Timestamp) -> Cutoffs {
        Cutoffs { before, events: BTreeMap::new(), notifications: BTreeMap::new(), activity: before }
    }

    pub(crate) fn of_events(&self, application: Name, class: Name) -> Timestamp {
        self.events.get(&(application, class)).copied().unwrap_or(self.before)
    }

    pub(crate) fn of_notifications(&self, application: Name, class: Name) -> Timestamp {
        self.notifications.get(&(application, class)).copied().unwrap_or(self.before)
    }
}
