//! Rule firings that failed or were skipped. A firing is the evaluation of one rule for one event batch: it creates
//! all of its notifications or none. A failed or skipped firing is listed until it is repeated or dismissed.

use tocsin_model::{
    id::{EventBatchId, Name},
    time::Timestamp,
};

/// Why a firing did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FiringStatus {
    /// The rule was evaluated and failed.
    Failed,
    /// The rule was not evaluated: it is stopped, or the events were too old.
    Skipped,
}

impl FiringStatus {
    /// Name as stored: `failed`, `skipped`.
    pub const fn name(self) -> &'static str {
        match self {
            FiringStatus::Failed => "failed",
            FiringStatus::Skipped => "skipped",
        }
    }
}

/// Failed or skipped firing, as recorded by a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFiring {
    /// Application of the rule.
    pub application: Name,
    /// Rule.
    pub rule: Name,
    /// Event batch.
    pub batch: EventBatchId,
    /// Failed or skipped.
    pub status: FiringStatus,
    /// Reason as text.
    pub reason: String,
    /// First batch of an unbroken run of skipped firings of the rule; the firings of a run are listed as one. `None`:
    /// listed on its own.
    pub run: Option<EventBatchId>,
    /// Time.
    pub at: Timestamp,
}

/// Listed entry: one failed or skipped firing, or a run without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// Number by which the entry is repeated or dismissed.
    pub id: u64,
    /// Application of the rule.
    pub application: Name,
    /// Rule.
    pub rule: Name,
    /// Failed or skipped.
    pub status: FiringStatus,
    /// Reason as text.
    pub reason: String,
    /// First event batch.
    pub first: EventBatchId,
    /// Last event batch. All batches in between of the same application and event class belong to the entry.
    pub last: EventBatchId,
    /// Number of batches.
    pub batches: u64,
    /// Time of the first failed or skipped firing.
    pub since: Timestamp,
}

/// Listed firing that was repeated successfully.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefiredBatch {
    /// Number of the listed entry.
    pub id: u64,
    /// Batch that is repeated by this step, or that no longer exists. Earlier batches of the entry are done as well.
    pub batch: EventBatchId,
}

/// Filter of firings; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FiringFilter {
    /// Entry number.
    pub id: Option<u64>,
    /// Application.
    pub application: Option<Name>,
    /// Rule.
    pub rule: Option<Name>,
    /// Status.
    pub status: Option<FiringStatus>,
}

impl FiringFilter {
    pub(crate) fn matches(&self, firing: &Firing) -> bool {
        self.id.is_none_or(|id| firing.id == id)
            && self.application.as_ref().is_none_or(|application| firing.application == *application)
            && self.rule.as_ref().is_none_or(|rule| firing.rule == *rule)
            && self.status.is_none_or(|status| firing.status == status)
    }
}

/// Rule stopped until an operator resumes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleStop {
    /// Application of the rule.
    pub application: Name,
    /// Rule.
    pub rule: Name,
    /// Name of the caller that stopped it; `tocsin` for the server.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// Time of the stop.
    pub since: Timestamp,
}
