//! Firings that did not happen. A firing is one rule meeting one event batch: all of its notifications are made, or none.
//! One that failed or was skipped is listed until it is fired again or dismissed.

use tocsin_model::{
    id::{EventBatchId, Name},
    time::Timestamp,
};

/// Why a firing did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FiringStatus {
    /// The rule was tried and failed.
    Failed,
    /// The rule was not tried: it is stopped, or the events were too old.
    Skipped,
}

impl FiringStatus {
    /// As it is written: `failed`, `skipped`.
    pub const fn name(self) -> &'static str {
        match self {
            FiringStatus::Failed => "failed",
            FiringStatus::Skipped => "skipped",
        }
    }
}

/// A firing that did not happen, as a step records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFiring {
    /// The rule's application.
    pub application: Name,
    /// The rule.
    pub rule: Name,
    /// The event batch.
    pub batch: EventBatchId,
    /// What happened instead.
    pub status: FiringStatus,
    /// Why, in words.
    pub reason: String,
    /// The first batch of an unbroken run of skipped firings of the rule; those of a run are listed as one. `None`: it is
    /// listed alone.
    pub run: Option<EventBatchId>,
    /// When.
    pub at: Timestamp,
}

/// Firings that did not happen, as they are listed: one, or a run without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// Their number, by which they are fired again or dismissed.
    pub id: u64,
    /// The rule's application.
    pub application: Name,
    /// The rule.
    pub rule: Name,
    /// What happened instead.
    pub status: FiringStatus,
    /// Why, in words.
    pub reason: String,
    /// The first event batch.
    pub first: EventBatchId,
    /// The last. All batches between them that are of the application and of the event class of the rule belong to it.
    pub last: EventBatchId,
    /// How many batches.
    pub batches: u64,
    /// When the first was missed.
    pub since: Timestamp,
}

/// A firing that happens after all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refired {
    /// The number under which it is listed.
    pub id: u64,
    /// The batch that is fired again with this step, or that turned out to be gone. Those before it are done as well.
    pub batch: EventBatchId,
}

/// Which firings: all that meet every given condition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FiringFilter {
    /// Only this one.
    pub id: Option<u64>,
    /// Only of this application.
    pub application: Option<Name>,
    /// Only of this rule.
    pub rule: Option<Name>,
    /// Only those that failed, or only those that were skipped.
    pub status: Option<FiringStatus>,
}

impl FiringFilter {
    pub(crate) fn meets(&self, firing: &Firing) -> bool {
        self.id.is_none_or(|id| firing.id == id)
            && self.application.as_ref().is_none_or(|application| firing.application == *application)
            && self.rule.as_ref().is_none_or(|rule| firing.rule == *rule)
            && self.status.is_none_or(|status| firing.status == status)
    }
}

/// A rule that does not fire until somebody lets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleStop {
    /// The rule's application.
    pub application: Name,
    /// The rule.
    pub rule: Name,
    /// Who stopped it: a caller's name, or `tocsin` itself.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}
