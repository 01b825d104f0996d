//! A step of the event flow: its results, and the input that it acknowledges.

use std::time::Duration;

use bytes::Bytes;
use tocsin_model::{
    id::{EventBatchId, Name, NotificationBatchId, WorkItemId},
    state::StatePage,
    time::Timestamp,
};

use crate::journal::{
    BroadcastStep, CancelDelayed, NewDelayed, NewFiring, RefiredBatch, ResendProgress, RuleStop,
    events::NewEventBatch,
    firings::FiringStatus,
    notifications::{NewNotificationBatch, ReceiptChunk, Retry},
    quanta::{NewQuantum, Quantum},
    suspensions::Suspension,
    work::Claim,
};

/// Step: the results and the acknowledgement of the input, stored atomically.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// Event batches matched by this step.
    pub matched: Vec<Claim<EventBatchId>>,
    /// Event batches that could not be matched, with the reason. They are set aside, listed and kept.
    pub failed: Vec<(Claim<EventBatchId>, String)>,
    /// Work items finished by this step. Each of their notifications needs a closing attempt, retry or suspension;
    /// one without is lost.
    pub finished: Vec<Claim<WorkItemId>>,
    /// Work items that stay claimed: the step is rejected if one of these claims is lost. Notifications with an
    /// attempt in this step numbered above the item's `attempts` are completed, whatever the outcome: the item is not
    /// claimed with them again.
    pub held: Vec<Claim<WorkItemId>>,
    /// New notification batches.
    pub batches: Vec<NewNotificationBatch>,
    /// Attempts.
    pub receipts: Vec<ReceiptChunk>,
    /// New work items for a later time.
    pub retries: Vec<Retry>,
    /// Notifications to suspend.
    pub suspensions: Vec<Suspension>,
    /// Rule firings that failed or were skipped for batches of this step.
    pub firings: Vec<NewFiring>,
    /// Listed firings that were repeated successfully, with the notification batches of this step.
    pub refired: Vec<RefiredBatch>,
    /// Rules stopped by this step.
    pub stops: Vec<RuleStop>,
    /// Pages of rule state, by application. Each replaces the stored page; an empty page deletes it.
    pub states: Vec<(Name, StatePage)>,
    /// Chronicle values that rules read while these event batches were matched. Stored with the batches, in
    /// [`EventBatch::chronicled`](tocsin_model::event::EventBatch::chronicled).
    pub chronicled: Vec<(EventBatchId, Bytes)>,
    /// Event batches that continue the work of this step, such as the rest of a long scheduled run. They are accepted
    /// regardless of the backlog limits; their idempotency key is ignored.
    pub continued: Vec<NewEventBatch>,
    /// Notifications of delayed rules, to be made when they are due. A repeated one is ignored.
    pub delayed: Vec<NewDelayed>,
    /// Events that cancel delayed notifications, those of this step included.
    pub cancelled: Vec<CancelDelayed>,
    /// Event batches of due times whose delayed notifications end with this step.
    pub released: Vec<EventBatchId>,
    /// Progress of a resend request.
    pub resent: Option<ResendProgress>,
    /// Progress of broadcasts. The notification batches of a broadcast are those whose rule has its id as name.
    pub broadcasts: Vec<BroadcastStep>,
    /// Statistics of the quantum that matched or set aside the event batches of this step.
    pub quantum: Option<NewQuantum>,
}

impl Step {
    /// Latest time known to the step: claim of the input, match of the batches, or last answer. It becomes the time
    /// at which inputs are marked as matched or closed.
    pub(crate) fn time(&self, claimed_at: Timestamp) -> Timestamp {
        let matched = self.batches.iter().map(|batch| batch.head.matched_at);
        let answered = self.receipts.iter().flat_map(|chunk| &*chunk.attempts).map(|attempt| attempt.answered_at);
        let resent = self.resent.iter().map(|resent| resent.now);
        matched.chain(answered).chain(resent).fold(claimed_at, Timestamp::max)
    }
}

/// Tolerance of [`EventLog::position_at`](super::EventLog::position_at) for clocks that go back.
pub(crate) const CLOCK_LEEWAY: Duration = Duration::from_secs(1);

impl Quantum {
    /// Quantum ended by a step; `None` if the step processed no event batches.
    pub(crate) fn of(id: u64, step: &Step, first_batch: Option<NotificationBatchId>) -> Option<Quantum> {
        let new = step.quantum.as_ref()?;
        let made: u64 = step.batches.iter().map(|batch| u64::from(batch.count)).sum();
        let missed = |status| step.firings.iter().filter(|firing| firing.status == status).count() as u64;
        Some(Quantum {
            id,
            started_at: new.started_at,
            ended_at: new.ended_at,
            first_accepted_at: new.batches.iter().map(|batch| batch.accepted_at).min()?,
            last_accepted_at: new.batches.iter().map(|batch| batch.accepted_at).max()?,
            first_events: new.batches.iter().map(|batch| batch.id).min()?,
            last_events: new.batches.iter().map(|batch| batch.id).max()?,
            event_batches: new.batches.len() as u64,
            events: new.batches.iter().map(|batch| u64::from(batch.events)).sum(),
            failed_batches: step.failed.len() as u64,
            event_notifications: made.saturating_sub(new.scheduled_notifications),
            scheduled_notifications: new.scheduled_notifications,
            first_batch: first_batch.filter(|_| !step.batches.is_empty()),
            notification_batches: step.batches.len() as u64,
            firings_failed: missed(FiringStatus::Failed),
            firings_skipped: missed(FiringStatus::Skipped),
        })
    }
}
