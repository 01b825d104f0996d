//! How far the schedules of rules have come, and the events that a run of one looks at.

use tocsin_model::{
    event::EventBatch,
    id::{ChangeSequence, EventBatchId, Name},
    time::Timestamp,
};

/// How far one schedule of a rule has come. Subscriptions with the same schedule share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRun {
    /// The rule's application.
    pub application: Name,
    /// The rule.
    pub rule: Name,
    /// The schedule: the canonical text of a [`Schedule`](tocsin_model::schedule::Schedule).
    pub schedule: Box<str>,
    /// Up to when its due times are dealt with; the next run is at one after it.
    pub due_at: Timestamp,
    /// The event batch after which the events of the next run begin: that of the last due time.
    pub after: EventBatchId,
    /// The last change of the records that the last run saw. Who came later is new to the next one.
    pub seen: ChangeSequence,
    /// Runs that were missed and not made up for, since the schedule is known.
    pub skipped: u64,
    /// When the last of those was due.
    pub skipped_at: Option<Timestamp>,
}

/// A run of one schedule of a rule, by its name: what tells it from the others of its application.
pub type ScheduleKey = (Name, Box<str>);

/// Some of the events between two places of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventPage {
    /// Event batches, in the order of their acceptance.
    pub batches: Vec<EventBatch>,
    /// Those that are too damaged to be read, in order.
    pub damaged: Vec<EventBatchId>,
    /// Where the next page begins: after this batch. `None`: there is no more.
    pub next: Option<EventBatchId>,
}
