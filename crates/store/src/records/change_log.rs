//! Log of changes, which caches and indexes follow.

use async_trait::async_trait;
use tocsin_model::id::{ChangeSequence, SubscriberNumber};

use super::RecordChange;
use crate::{error::StoreError, inbox::Listener};

/// Log of all changes of the records, in commit order.
///
/// A change is logged in the commit that makes it, and is visible here before the call that made it returns. Sequences
/// increase, with gaps. A reader that repeats a page gets the same changes as long as they are logged. The newest
/// sequence costs no I/O; a page costs its rows.
#[async_trait]
pub trait ChangeLog: Send + Sync + 'static {
    /// Changes after `after`, oldest first, up to `limit`. The log keeps at least the last
    /// [`CHANGES_KEPT`](super::CHANGES_KEPT) sequences.
    ///
    /// # Errors
    /// `Missing` if the changes after `after` are no longer logged: the reader must reload everything and continue
    /// from [`ChangeLog::newest_change`].
    async fn changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<RecordChange>, StoreError>;

    /// Newest change; the receiver wakes on newer ones. A change is visible here before the call that made it
    /// returns.
    fn newest_change(&self) -> tokio::sync::watch::Receiver<ChangeSequence>;

    /// Asks the log to keep all changes after a sequence until the process ends; replaces the previous request. The log
    /// then keeps at most [`CHANGES_KEPT_FACTOR_MAX`](super::CHANGES_KEPT_FACTOR_MAX) times as many sequences as
    /// without.
    fn keep_changes_after(&self, place: ChangeSequence);

    /// Subscribes to changes of a subscriber or its devices. The listener wakes before the call that made the change
    /// returns. Changes of its subscriptions appear in the change log only.
    fn listen(&self, subscriber: SubscriberNumber) -> Listener;
}
