//! Feedback to sent messages: the log of reports, and which of them count.

use async_trait::async_trait;
use tocsin_model::{
    feedback::{Class, FeedbackEntry},
    id::{NotificationBatchId, SubscriberId, SubscriberNumber},
    subscriber::Subscriber,
    suppression::{Suppression, Target},
    time::Timestamp,
};

use super::ChangeLog;
use crate::{bounded_scan::ScanPage, error::StoreError};

/// Most entries of a target that its state has, the newest.
pub const STATE_ENTRIES_MAX: usize = 200;

/// Most merges in a row that a number is followed through.
pub(crate) const MERGES_FOLLOWED_MAX: usize = 16;

/// Feedback of a target.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedbackState {
    /// The newest entries, oldest first, up to [`STATE_ENTRIES_MAX`].
    pub entries: Vec<FeedbackEntry>,
    /// Suppression of the target, even if expired.
    pub suppression: Option<Suppression>,
}

/// Change of the feedback of a target.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedbackChange {
    /// The target.
    pub target: Target,
    /// The state that the change was computed from.
    pub before: FeedbackState,
    /// New entries. An entry whose class and key exist is ignored.
    pub added: Vec<FeedbackEntry>,
    /// Classes and keys of the entries that no longer count.
    pub cleared: Vec<(Class, String)>,
    /// The new suppression, unless the existing one [outranks](Suppression::outranks) it.
    pub suppression: Option<Suppression>,
}

/// Filter of entries; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FeedbackFilter {
    /// The target.
    pub target: Option<Target>,
    /// The class.
    pub class: Option<Class>,
    /// The notification batch.
    pub batch: Option<NotificationBatchId>,
}

/// Feedback to sent messages.
///
/// A write is durable when the call returns. Entries are not part of the change log; the suppressions that follow from
/// them are, in the same commit.
#[async_trait]
pub trait FeedbackStore: ChangeLog {
    /// State of each target, in order.
    async fn feedback_states(&self, targets: &[Target]) -> Result<Vec<FeedbackState>, StoreError>;

    /// Stores changes in one commit, if the state of each target is still the one before (compare-and-set).
    ///
    /// # Errors
    /// `Changed`: read the states again, and compute the changes from them. Nothing was stored.
    async fn change_feedback(&self, changes: Vec<FeedbackChange>) -> Result<(), StoreError>;

    /// Up to `limit` entries with their numbers, newest first, below the number `before`.
    async fn scan_feedback(
        &self,
        filter: &FeedbackFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<ScanPage<(u64, FeedbackEntry), u64>, StoreError>;

    /// Targets of which an entry of the stage [`Session`](tocsin_model::feedback::Stage::Session) counts.
    async fn counted_in_sessions(&self) -> Result<Vec<Target>, StoreError>;

    /// A subscriber by number, with devices; or the account that a merge moved it into.
    async fn subscriber_by_number(&self, number: SubscriberNumber) -> Result<Option<Subscriber>, StoreError>;

    /// Deletes the entries of a target.
    async fn forget_feedback(&self, target: &Target) -> Result<(), StoreError>;

    /// Deletes up to `limit` entries past their retention. Returns their number; less than `limit` means that no more
    /// are past it.
    async fn prune_feedback(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;
}

/// The prefix of the targets of a subscriber's devices.
pub(crate) fn device_prefix(id: &SubscriberId) -> String {
    format!("device/{id}/")
}
