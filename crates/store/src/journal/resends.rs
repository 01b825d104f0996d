//! Requests to send again what had failed: kept with how far they have come, so that each batch is dealt with once.

use tocsin_model::{id::NotificationBatchId, time::Timestamp};

/// A request that asks to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewResend {
    /// Makes a repeated request the same request.
    pub key: String,
    /// What is to be sent again, in the words of whoever carries it out. The journal does not read it.
    pub request: String,
    /// Who asks.
    pub by: String,
    /// When.
    pub asked_at: Timestamp,
}

/// A request, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resend {
    /// Its number, in the order of the requests.
    pub id: u64,
    /// See [`NewResend`].
    pub request: String,
    /// See [`NewResend`].
    pub by: String,
    /// See [`NewResend`].
    pub asked_at: Timestamp,
    /// All notification batches up to this one are dealt with.
    pub reached: NotificationBatchId,
    /// The newest notification batch when it was asked: later ones are not meant.
    pub last: NotificationBatchId,
    /// Notifications that were sent again so far.
    pub notifications: u64,
    /// When it was carried out.
    pub done_at: Option<Timestamp>,
}

/// How far a request comes with a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resent {
    /// The request.
    pub id: u64,
    /// Where it stood. If it stands elsewhere, the step is fenced.
    pub from: NotificationBatchId,
    /// Where it stands then.
    pub reached: NotificationBatchId,
    /// When it was carried out, if this is the end.
    pub done_at: Option<Timestamp>,
    /// Closed notifications that are open again, by batch, ascending; what is due of them is among the step's retries, and a
    /// closing attempt of the same step closes them again.
    pub reopened: Vec<Reopened>,
    /// Suspended notifications that are due at once, by batch, ascending. Those that are not suspended any more are left
    /// alone.
    pub resumed: Vec<(NotificationBatchId, Vec<u32>)>,
    /// The present.
    pub now: Timestamp,
}

/// Closed notifications of a batch that are open again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reopened {
    /// The batch.
    pub batch: NotificationBatchId,
    /// Their places in it, ascending.
    pub ordinals: Vec<u32>,
    /// How many of them were refused or too late; the others had been ended.
    pub failed: u32,
}

impl Resent {
    /// How many notifications it opens again.
    pub(crate) fn reopens(&self) -> u64 {
        self.reopened.iter().map(|reopened| reopened.ordinals.len() as u64).sum()
    }
}
