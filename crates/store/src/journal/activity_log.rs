//! Statistics of the flow, for reports. Read-only.

use std::ops::Deref;

use async_trait::async_trait;
use tocsin_model::{id::Name, time::Timestamp};

use super::{ActivityRow, Quantum, Window};
use crate::{error::StoreError, journal::activity::Totals};

/// Read access to statistics: activity by minute, quanta of the matcher, and totals.
///
/// The counters are written by the commits that they count, so they are exact after a crash. Cost grows with the
/// minutes or quanta read; [`totals`](ActivityLog::totals) costs no I/O.
#[async_trait]
pub trait ActivityLog: Send + Sync + 'static {
    /// Activity in a window, by stream and part, of one application or of all. Empty parts are left out.
    async fn activity(&self, window: &Window, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError>;

    /// Newest minute of each stream.
    async fn latest_activity(&self, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError>;

    /// Quanta that ended from `from` on and before `to`, newest first, with numbers below `before`.
    async fn quanta(&self, query: QuantumQuery) -> Result<Vec<Quantum>, StoreError>;

    /// Quantum by number, if it was not pruned.
    async fn quantum(&self, id: u64) -> Result<Option<Quantum>, StoreError>;

    /// Totals since the creation of the journal. Cheap: reads counters.
    fn totals(&self) -> Totals;
}

/// Implementation for pointers: a decorator of the journal passes these reads through by [`Deref`].
#[async_trait]
impl<P> ActivityLog for P
where
    P: Deref + Send + Sync + 'static,
    P::Target: ActivityLog,
{
    async fn activity(&self, window: &Window, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError> {
        (**self).activity(window, application).await
    }

    async fn latest_activity(&self, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError> {
        (**self).latest_activity(application).await
    }

    async fn quanta(&self, query: QuantumQuery) -> Result<Vec<Quantum>, StoreError> {
        (**self).quanta(query).await
    }

    async fn quantum(&self, id: u64) -> Result<Option<Quantum>, StoreError> {
        (**self).quantum(id).await
    }

    fn totals(&self) -> Totals {
        (**self).totals()
    }
}

/// Parameters of [`ActivityLog::quanta`].
#[derive(Debug, Clone, Copy)]
pub struct QuantumQuery {
    /// Earliest end of a quantum.
    pub from: Timestamp,
    /// Time before which the quanta ended.
    pub to: Timestamp,
    /// Number before which the page begins; `None` begins with the newest.
    pub before: Option<u64>,
    /// Maximum number of quanta.
    pub limit: usize,
}
