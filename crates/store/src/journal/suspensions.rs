//! Suspended work, and how operators resolve it.

use tocsin_model::{
    id::{Name, NotificationBatchId},
    time::Timestamp,
};

use crate::journal::WorkState;

/// Suspended notifications of one batch: they wait for an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Suspension {
    /// Notification batch.
    pub batch: NotificationBatchId,
    /// Application.
    pub application: Name,
    /// Channel.
    pub channel: Name,
    /// Ordinals, ascending, not empty.
    pub ordinals: Vec<u32>,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Reason of the suspension.
    pub reason: String,
    /// Time of the suspension.
    pub since: Timestamp,
    /// Scheduling state, restored on resume.
    pub work_state: WorkState,
}

/// Suspension with the number by which an operator resumes or ends it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSuspension {
    /// Suspension number.
    pub id: u64,
    /// Suspended notifications and the reason.
    pub suspension: Suspension,
}

/// Operator's decision about suspensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Make them due again, with a fresh retry schedule.
    Resume,
    /// Close them without sending.
    End,
}

/// Filter of suspensions; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SuspensionFilter {
    /// Suspension number.
    pub id: Option<u64>,
    /// Application.
    pub application: Option<Name>,
    /// Channel.
    pub channel: Option<Name>,
    /// Notification batch.
    pub batch: Option<NotificationBatchId>,
    /// Notification class.
    pub class: Option<Name>,
    /// Text that the reason contains, ignoring ASCII case.
    pub reason: Option<String>,
    /// Suspended before this time.
    pub before: Option<Timestamp>,
}

/// Splits notifications off a suspension; `suspension` keeps the others.
///
/// Returns `None` if it has none of `ordinals`, `Some(None)` if it has no others.
pub(crate) fn split_suspension(suspension: &mut Suspension, ordinals: &[u32]) -> Option<Option<Suspension>> {
    let (meant, others): (Vec<u32>, Vec<u32>) =
        suspension.ordinals.iter().copied().partition(|ordinal| ordinals.contains(ordinal));
    match (meant.is_empty(), others.is_empty()) {
        (true, _) => None,
        (_, true) => Some(None),
        _ => {
            suspension.ordinals = others;
            Some(Some(Suspension { ordinals: meant, ..suspension.clone() }))
        }
    }
}

/// Reply of the closing attempts that an operator's decision makes.
pub(crate) const ENDED_BY_OPERATOR: &str = "ended by an operator";
/// Reply of the closing attempts that the removal of an application makes.
pub(crate) const APPLICATION_REMOVED: &str = "the application was removed";

/// Work that the removal of an application ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndedWork {
    /// Notifications that got a closing attempt.
    pub notifications: u64,
    /// Event batches that were closed without notifications.
    pub event_batches: u64,
}
