//! Resend requests of operators. The stored progress makes each notification batch processed exactly once.

use tocsin_model::{id::NotificationBatchId, time::Timestamp};

/// Resend request to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewResend {
    /// Idempotency key.
    pub key: String,
    /// Notifications to send again, encoded by the caller. The journal does not interpret it.
    pub request: String,
    /// Caller that made the request.
    pub by: String,
    /// Time of the request.
    pub asked_at: Timestamp,
}

/// Resend request with its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resend {
    /// Request number, in order of the requests.
    pub id: u64,
    /// See [`NewResend`].
    pub request: String,
    /// See [`NewResend`].
    pub by: String,
    /// See [`NewResend`].
    pub asked_at: Timestamp,
    /// All notification batches up to this one are processed.
    pub reached: NotificationBatchId,
    /// Newest notification batch at the time of the request; later batches are not included.
    pub last: NotificationBatchId,
    /// Number of notifications sent again so far.
    pub notifications: u64,
    /// Completion time.
    pub done_at: Option<Timestamp>,
}

/// Progress of a resend request, recorded by a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResendProgress {
    /// Request number.
    pub id: u64,
    /// Expected progress before the step (compare-and-set). If it differs, the step is fenced.
    pub from: NotificationBatchId,
    /// Progress after the step.
    pub reached: NotificationBatchId,
    /// Completion time, if the request is complete.
    pub done_at: Option<Timestamp>,
    /// Closed notifications that are reopened, by batch, ascending. Due ones are among the step's retries; a closing
    /// attempt of the same step closes them again.
    pub reopened: Vec<ReopenedNotifications>,
    /// Suspended notifications that become due at once, by batch, ascending. Those no longer suspended are skipped.
    pub resumed: Vec<(NotificationBatchId, Vec<u32>)>,
    /// Current time.
    pub now: Timestamp,
}

/// Reopened notifications of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReopenedNotifications {
    /// Notification batch.
    pub batch: NotificationBatchId,
    /// Ordinals, ascending.
    pub ordinals: Vec<u32>,
    /// Number of them that were refused or expired; the others were ended by an operator.
    pub failed: u32,
}

impl ResendProgress {
    /// Number of notifications that it reopens.
    pub(crate) fn reopens(&self) -> u64 {
        self.reopened.iter().map(|reopened| reopened.ordinals.len() as u64).sum()
    }
}
