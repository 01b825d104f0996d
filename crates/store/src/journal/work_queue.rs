//! Claims of event batches and work items, and the commit of steps.

use std::time::Duration;

use async_trait::async_trait;
use tocsin_model::{
    delivery_policy::Priority,
    id::{EventBatchId, Name, NotificationBatchId, WorkItemId},
    time::Timestamp,
};

use super::OpenWork;
use crate::{
    error::StoreError,
    journal::{
        events::ClaimedEvents,
        step::Step,
        work::{Claim, Except, WorkItem},
    },
};

/// Queue of event batches to match and work items to deliver. A step claims its input and commits its result together
/// with the acknowledgement of the input.
///
/// A claim is a lease with a fencing token. It costs no write, and a restart voids it. After the lease another worker
/// can claim the item, so a step must be safe to run twice. A commit with an old token stores nothing
/// ([`StoreError::Fenced`]); concurrent commits share one fsync (group commit).
#[async_trait]
pub trait WorkQueue: OpenWork {
    /// Claims unmatched event batches in order of acceptance, each for one matcher until `now + lease`. Returns at
    /// most `batches` of them and not much more than `bytes` packed bytes, but at least one if any waits. Batches in
    /// `except` stay; their number does not affect the cost.
    async fn claim_events(&self, claim: ClaimEvents<'_>) -> Result<Vec<ClaimedEvents>, StoreError>;

    /// Claims up to `limit` due work items of a channel with priority `least` or higher, each for one worker. The
    /// longest due comes first, where [`Priority::aging`] is added to the due time.
    ///
    /// A worker that neither finishes nor extends an item within `lease` loses it to another, so a step must be safe
    /// to run twice.
    async fn claim_work(&self, claim: ClaimWork<'_>) -> Result<Vec<WorkItem>, StoreError>;

    /// Claims the due work items of a digest window that closes at `window`, oldest first: up to `notifications`
    /// notifications, at least one item if there is any.
    async fn claim_window(&self, claim: ClaimWindow<'_>) -> Result<Vec<WorkItem>, StoreError>;

    /// Extends a lease to `now + lease`.
    ///
    /// # Errors
    /// `Fenced`: the claim is lost.
    async fn extend(&self, claim: Claim<WorkItemId>, lease: Duration, now: Timestamp) -> Result<(), StoreError>;

    /// Releases a claimed work item without an attempt, due at once or at `due_at`.
    ///
    /// # Errors
    /// `Fenced`: the claim is lost.
    async fn release(&self, claim: Claim<WorkItemId>, due_at: Option<Timestamp>) -> Result<(), StoreError>;

    /// Releases a claimed event batch.
    ///
    /// # Errors
    /// `Fenced`: the claim is lost.
    async fn release_events(&self, claim: Claim<EventBatchId>) -> Result<(), StoreError>;

    /// Commits a step atomically. Returns the numbers of its new notification batches, in order.
    ///
    /// # Errors
    /// `Fenced`: one of its claims is lost; nothing was stored.
    async fn commit(&self, step: Step) -> Result<Vec<NotificationBatchId>, StoreError>;
}

/// Parameters of [`WorkQueue::claim_events`].
#[derive(Debug, Clone, Copy)]
pub struct ClaimEvents<'a> {
    /// Maximum number of batches.
    pub batches: usize,
    /// Packed bytes after which no further batch is added; a first batch is claimed whatever its size.
    pub bytes: usize,
    /// Batches that stay unclaimed. Their number does not affect the cost.
    pub except: &'a Except,
    /// Duration of the claims.
    pub lease: Duration,
    /// Current time.
    pub now: Timestamp,
}

/// Parameters of [`WorkQueue::claim_work`].
#[derive(Debug, Clone, Copy)]
pub struct ClaimWork<'a> {
    /// Application of the channel.
    pub application: &'a Name,
    /// Channel.
    pub channel: &'a Name,
    /// Lowest priority that is claimed.
    pub least: Priority,
    /// Maximum number of work items.
    pub limit: usize,
    /// Duration of the claims.
    pub lease: Duration,
    /// Current time.
    pub now: Timestamp,
}

/// Parameters of [`WorkQueue::claim_window`].
#[derive(Debug, Clone, Copy)]
pub struct ClaimWindow<'a> {
    /// Application of the channel.
    pub application: &'a Name,
    /// Channel.
    pub channel: &'a Name,
    /// End of the digest window.
    pub window: Timestamp,
    /// Maximum number of notifications; a first work item is claimed whatever its size.
    pub notifications: usize,
    /// Duration of the claims.
    pub lease: Duration,
    /// Current time.
    pub now: Timestamp,
}
