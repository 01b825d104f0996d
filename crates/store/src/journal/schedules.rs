//! Progress of rule schedules, and pages of the events that a scheduled run reads.

use async_trait::async_trait;
use tocsin_model::{
    id::{ChangeSequence, EventBatchId, Name},
    time::Timestamp,
};

use crate::{error::StoreError, journal::events::NewEventBatch};

/// Progress of rule schedules. One task of the pipeline writes it; reports read it.
///
/// The due event batch and the progress of its schedules are one commit: after a crash a due time is neither lost nor
/// accepted twice. Lists are in the order of rule and schedule.
#[async_trait]
pub trait Schedules: Send + Sync + 'static {
    /// Stores the progress of schedules. With `due`, that event batch is accepted in the same commit, and the next
    /// runs of these schedules begin after it: their `after` is set to it. Returns its number.
    ///
    /// # Errors
    /// `Full`, as in [`EventLog::accept`](super::EventLog::accept); nothing was stored. Without `due`, no limit is
    /// checked.
    async fn record_runs(
        &self,
        due: Option<NewEventBatch>,
        runs: Vec<ScheduleRun>,
    ) -> Result<Option<EventBatchId>, StoreError>;

    /// Progress of an application's schedules, by rule and schedule, from after `after`.
    async fn schedule_runs(
        &self,
        application: &Name,
        after: Option<&ScheduleKey>,
        limit: usize,
    ) -> Result<Vec<ScheduleRun>, StoreError>;

    /// Progress of one schedule, if known.
    async fn schedule_run(&self, application: &Name, schedule: &ScheduleKey)
    -> Result<Option<ScheduleRun>, StoreError>;

    /// Deletes the progress of a schedule that has no subscriptions any more.
    async fn delete_schedule(&self, application: &Name, schedule: &ScheduleKey) -> Result<(), StoreError>;
}

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
