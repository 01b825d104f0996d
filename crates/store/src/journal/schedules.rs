//! Progress of rule schedules, and pages of the events that a scheduled run reads.

use tocsin_model::{
    event::EventBatch,
    id::{ChangeSequence, EventBatchId, Name},
    time::Timestamp,
};

/// Progress of one schedule of a rule. Subscriptions with the same schedule share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRun {
    /// Application of the rule.
    pub application: Name,
    /// Rule.
    pub rule: Name,
    /// The schedule: the canonical text of a [`Schedule`](tocsin_model::schedule::Schedule).
    pub schedule: Box<str>,
    /// Last due time processed; the next run is at a later one.
    pub due_at: Timestamp,
    /// Event batch of the last due time; the events of the next run begin after it.
    pub after: EventBatchId,
    /// Change sequence seen by the last run. Subscriptions changed later are new to the next run.
    pub seen: ChangeSequence,
    /// Number of missed runs that were not made up for, since the schedule is known.
    pub skipped: u64,
    /// Due time of the last of them.
    pub skipped_at: Option<Timestamp>,
}

/// Key of a schedule within an application: rule and schedule text.
pub type ScheduleKey = (Name, Box<str>);

/// Page of events between two positions of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventPage {
    /// Event batches, in order of acceptance.
    pub batches: Vec<EventBatch>,
    /// Event batches that are too damaged to read, in order.
    pub damaged: Vec<EventBatchId>,
    /// Batch after which the next page begins; `None` at the end.
    pub next: Option<EventBatchId>,
}
