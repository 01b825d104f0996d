//! Schedules that an operator moves: a run now, or the next run skipped. The schedule task does both, so they are in
//! order with due times.

use std::sync::Arc;

use tocsin_model::{
    application::due_fields,
    event::EventPacker,
    id::{EventBatchId, Name},
    time::Timestamp,
};
use tocsin_store::{
    audit::ChangeContext,
    error::StoreError,
    journal::{ScheduleKey, ScheduleRun},
};
use tokio::sync::oneshot;

use super::{Clock, run::Due};
use crate::Flow;

/// Action of an operator on a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleAction {
    /// Run it now: over the events since its last run. The next run is the next due time after now.
    Run,
    /// Skip its next run. The events of that run are part of the run after it.
    Skip,
}

/// A schedule after an operator moved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedSchedule {
    /// Time of the run, or due time of the skipped one.
    pub due_at: Timestamp,
    /// Event batch of the run.
    pub batch: Option<EventBatchId>,
    /// Next due time; `None`: the schedule has ended.
    pub next: Option<Timestamp>,
}

/// Reason for which a schedule was not moved.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleMoveError {
    /// No rule follows this schedule.
    #[error("no rule follows this schedule")]
    Unknown,
    /// The rule is stopped.
    #[error("the rule is stopped; resume it first")]
    Stopped,
    /// The schedule has no further run.
    #[error("the schedule has no further run")]
    Ended,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A command of an operator to the schedule task.
pub(crate) struct ScheduleMove {
    pub application: Name,
    pub key: ScheduleKey,
    pub action: ScheduleAction,
    /// Audit context of the request.
    pub context: Option<Arc<ChangeContext>>,
    pub done: oneshot::Sender<Result<MovedSchedule, ScheduleMoveError>>,
}

impl Clock {
    /// Runs a schedule now, or skips its next run.
    pub(super) async fn move_schedule(
        &mut self,
        flow: &Flow,
        key: &ScheduleKey,
        action: ScheduleAction,
    ) -> Result<MovedSchedule, ScheduleMoveError> {
        self.take_in(flow, flow.clock.now()).await?;
        // Due times that have passed come first.
        self.fire(flow).await?;
        let Some(followed) = self.schedules.get(key) else { return Err(ScheduleMoveError::Unknown) };
        let (run, schedule) = (followed.run.clone(), followed.schedule.clone());
        let moved = match action {
            ScheduleAction::Run => self.run_now(flow, key, run).await?,
            ScheduleAction::Skip => self.skip_next(flow, key, run).await?,
        };
        self.due.retain(|(_, other)| other != key);
        let progress = self.schedules.get(key).map_or(moved.due_at, |followed| followed.run.due_at);
        let next = schedule.next_after(progress).map(|next| next.at);
        self.due.extend(next.map(|next| (next, key.clone())));
        Ok(MovedSchedule { next, ..moved })
    }

    async fn run_now(
        &mut self,
        flow: &Flow,
        key: &ScheduleKey,
        run: ScheduleRun,
    ) -> Result<MovedSchedule, ScheduleMoveError> {
        let stops = flow.rule_store.rule_stops().await?;
        if stops.iter().any(|stop| (&stop.application, &stop.rule) == (self.application(), &key.0)) {
            return Err(ScheduleMoveError::Stopped);
        }
        let now = flow.clock.now();
        let snapshot_sequence = *flow.change_log.newest_change().borrow();
        let due = Due::new(key, now, run.due_at.min(now), 0).continuing(&run, snapshot_sequence);
        let mut packer = EventPacker::new(due_fields());
        packer.push(&due.row());
        let batch = self.due_batch(packer, snapshot_sequence, now);
        // A skipped due time in the future stays skipped.
        let progress = ScheduleRun { due_at: run.due_at.max(now), seen: snapshot_sequence, ..run };
        self.record(flow, Some(batch), vec![progress]).await?;
        let batch = self.schedules.get(key).map(|followed| followed.run.after);
        tracing::info!(application = %self.application(), rule = %key.0, "a schedule was run by hand");
        Ok(MovedSchedule { due_at: now, batch, next: None })
    }

    async fn skip_next(
        &mut self,
        flow: &Flow,
        key: &ScheduleKey,
        run: ScheduleRun,
    ) -> Result<MovedSchedule, ScheduleMoveError> {
        let next = self.schedules.get(key).and_then(|followed| followed.schedule.next_after(run.due_at));
        let due_at = next.ok_or(ScheduleMoveError::Ended)?.at;
        let now = flow.clock.now();
        let progress = ScheduleRun { due_at, skipped: run.skipped + 1, skipped_at: Some(now), ..run };
        self.record(flow, None, vec![progress]).await?;
        tracing::info!(application = %self.application(), rule = %key.0, %due_at, "a run was skipped by hand");
        Ok(MovedSchedule { due_at, batch: None, next: None })
    }
}
