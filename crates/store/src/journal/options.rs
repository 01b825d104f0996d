//! Options of the journal: bounds of the backlog.

use crate::{
    error::StoreError,
    journal::{events::NewEventBatch, work::Backlog},
};

/// Limits of a journal. When one is reached, [`EventLog::accept`](super::EventLog::accept) returns `Full` before it
/// stores anything. Steps still commit, so accepted work drains. Submissions that are already being stored when a limit
/// is reached still pass.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JournalOptions {
    /// Event batches that may wait to be matched. Default: 1,000,000.
    pub event_batches_waiting_max: u64,
    /// Packed bytes of events that may wait to be matched. Default: 1 GiB.
    pub event_bytes_waiting_max: u64,
    /// Notifications that may wait to be sent. Default: 10,000,000.
    pub notifications_waiting_max: u64,
    /// Bytes that stay free on the journal's file system for the steps that drain it. Default: 256 MiB; 0 disables
    /// the check. Backends without a file system ignore it.
    pub free_bytes_min: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        JournalOptions {
            event_batches_waiting_max: 1_000_000,
            event_bytes_waiting_max: 1 << 30,
            notifications_waiting_max: 10_000_000,
            free_bytes_min: 256 << 20,
        }
    }
}

impl JournalOptions {
    /// Checks whether a batch may be accepted on top of this backlog.
    pub(crate) fn check(&self, backlog: &Backlog, batch: &NewEventBatch) -> Result<(), StoreError> {
        let bytes = batch.events.bytes().len() as u64;
        if backlog.event_batches >= self.event_batches_waiting_max {
            return Err(StoreError::Full(format!("{} event batches wait to be matched", backlog.event_batches)));
        }
        // An empty backlog takes a batch of any size; otherwise a large batch could never be accepted.
        if backlog.event_bytes > 0 && backlog.event_bytes.saturating_add(bytes) > self.event_bytes_waiting_max {
            return Err(StoreError::Full(format!("{} bytes of events wait to be matched", backlog.event_bytes)));
        }
        if backlog.notifications >= self.notifications_waiting_max {
            return Err(StoreError::Full(format!("{} notifications wait to be sent", backlog.notifications)));
        }
        Ok(())
    }
}
