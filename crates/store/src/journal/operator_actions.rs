//! Operator commands: suspensions, resends, switches, removal of an application.

use std::sync::Arc;

use async_trait::async_trait;
use tocsin_model::{id::Name, time::Timestamp};

use super::{Component, NewResend, Resend, Switch};
use crate::{
    bounded_scan::ScanPage,
    error::StoreError,
    journal::suspensions::{EndedWork, Resolution, StoredSuspension, SuspensionFilter},
};

/// Operator commands on the flow: suspensions, resend requests, switches, failed event batches and removed
/// applications.
///
/// A command is durable when the call returns. A command on many items takes several commits, none of which is large;
/// after a crash in between, the same command completes the rest.
#[async_trait]
pub trait OperatorActions: Send + Sync + 'static {
    /// Finds up to `limit` suspensions, oldest first, from after the number `after`, and reads at most
    /// [`SCANNED_ROWS_MAX`] rows.
    ///
    /// [`SCANNED_ROWS_MAX`]: crate::bounded_scan::SCANNED_ROWS_MAX
    async fn scan_suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<ScanPage<StoredSuspension, u64>, StoreError>;

    /// Suspensions, oldest first, from after the number `after`, without a bound on the rows read.
    async fn suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredSuspension>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let looked = self.scan_suspensions(filter, after, limit - found.len()).await?;
            found.extend(looked.items);
            let Some(next) = looked.next else { break };
            after = next;
        }
        Ok(found)
    }

    /// Resumes or ends suspensions. Ended notifications get a closing attempt with outcome `Ended`. Returns the
    /// number of notifications affected.
    async fn resolve(
        &self,
        filter: &SuspensionFilter,
        resolution: Resolution,
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// Sets or removes an operator's edit of a suspension: the content to send in place of the original once it is
    /// resumed. With `ordinals`, these notifications are split off as a suspension of their own if there are others.
    /// Returns the number of the edited suspension; `None` if it does not exist or has none of the ordinals.
    async fn edit_suspension(
        &self,
        id: u64,
        ordinals: Option<&[u32]>,
        edit: Option<Arc<str>>,
    ) -> Result<Option<u64>, StoreError>;

    /// Stores a request to send failed notifications again. A request whose key is known is not stored twice. Returns
    /// the stored request and whether it is new. Steps carry it out ([`Step::resent`](super::Step::resent));
    /// [`Maintenance::prune`](super::Maintenance::prune) deletes it afterwards.
    async fn begin_resend(&self, new: NewResend) -> Result<(Resend, bool), StoreError>;

    /// Resend requests, all or only unfinished, oldest first, from after the number `after`.
    async fn resends(&self, unfinished: bool, after: u64, limit: usize) -> Result<Vec<Resend>, StoreError>;

    /// Returns failed event batches of an application to matching. Returns their number.
    async fn rematch(&self, application: &Name) -> Result<u64, StoreError>;

    /// Ends the open work of a removed application, claimed or not. Each open or suspended notification gets a closing
    /// attempt with outcome `Ended`; event batches that wait or failed are closed without notifications. A file is
    /// written in several commits: the call can be repeated after a crash.
    async fn end_application(&self, application: &Name, now: Timestamp) -> Result<EndedWork, StoreError>;

    /// Pauses or disables a component, or changes its switch.
    async fn set_switch(&self, switch: Switch) -> Result<(), StoreError>;

    /// Removes a switch. Returns whether the component was paused or disabled.
    async fn remove_switch(&self, component: &Component) -> Result<bool, StoreError>;

    /// All switches, by the text of their component.
    async fn switches(&self) -> Result<Vec<Switch>, StoreError>;
}
