//! What schedules did, and will do.

use tocsin_model::{
    application::due_class,
    id::{EventBatchId, NotificationBatchId},
    value::Value,
};
use tocsin_store::journal::EventBatchState;

use super::{Column, LOOKED_THROUGH_MAX, Question, Report, Table, is_or_any, table::column};
use crate::{Service, error::ServiceError, keys::Caller, page::LIMIT_MAX};

/// Heads that are read at a time.
const HEADS: usize = 1_000;
/// Notification batches of a run that are looked at.
const BATCHES_MAX: usize = 1_000;

pub(super) const LIST: &[Column] = &[
    column("application", "The application."),
    column("rule", "The rule."),
    column("schedule", "The schedule, with its zone."),
    column("last_run_at", "Up to when its due times are dealt with."),
    column("next_run_at", "When it is due next."),
    column("stopped", "Whether the rule is stopped, so that it waits."),
    column("skipped", "Runs that were missed and not made up for."),
    column("skipped_at", "When runs were last skipped."),
    column("missed", "What becomes of missed runs."),
];

pub(super) const RUNS: &[Column] = &[
    column("event_batch", "The event batch by which it was due."),
    column("application", "The application."),
    column("rule", "The rule."),
    column("schedule", "The schedule."),
    column("due_at", "When it was due."),
    column("accepted_at", "When that was noticed."),
    column("late_ms", "How much later that is."),
    column("status", "`accepted`, `matched` or `failed`."),
    column("skipped", "Runs before it that were missed and not made up for."),
    column("notification_batches", "Notification batches that the runs of this event batch made."),
    column("notifications", "Notifications in them."),
];

impl Service {
    pub(super) async fn schedules_report(&self, caller: &Caller, asked: &Question) -> Result<Report, ServiceError> {
        let names: Vec<_> = self.pipeline.status().into_iter().map(|(name, _)| name).collect();
        if let Some(wanted) = asked.application.as_ref().filter(|wanted| !names.contains(wanted)) {
            return Err(ServiceError::no_application(wanted));
        }
        let mut table = Table::new("schedules", LIST);
        for application in names.iter().filter(|name| is_or_any(&asked.application, name)) {
            let found = self.schedules(caller, application, None, LIMIT_MAX).await?;
            for status in found.items.into_iter().filter(|status| is_or_any(&asked.rule, &status.rule)) {
                table.push([
                    application.into(),
                    (&status.rule).into(),
                    status.schedule.into(),
                    status.last_run.into(),
                    status.next_run.into(),
                    status.stopped.into(),
                    status.skipped.into(),
                    status.skipped_at.into(),
                    status.missed.into(),
                ]);
            }
        }
        Ok(table.alone())
    }

    pub(super) async fn scheduled_runs(&self, asked: &Question) -> Result<Report, ServiceError> {
        let (from, to) = self.span(asked)?;
        let limit = asked.limit()?;
        let mut table = Table::new("runs", RUNS);
        let mut before = match asked.before::<EventBatchId>()? {
            Some(before) => Some(before),
            None => self.first_after(to).await?,
        };
        let (mut looked_through, mut next) = (0, None);
        'pages: loop {
            let found = self.journal.event_batches(before, HEADS).await?;
            let is_last = found.len() < HEADS;
            for (batch, _) in found {
                if batch.accepted_at < from {
                    break 'pages;
                }
                if table.rows.len() >= limit || looked_through == LOOKED_THROUGH_MAX {
                    next = before.map(|before| before.to_string());
                    break 'pages;
                }
                looked_through += 1;
                before = Some(batch.id);
                let is_due = batch.class == due_class() && is_or_any(&asked.application, &batch.application);
                if is_due && batch.accepted_at < to {
                    self.tell_runs(batch.id, &mut table).await?;
                }
            }
            if is_last {
                break;
            }
        }
        Ok(Report { next, ..table.alone() })
    }

    /// The runs of one event batch: each of its events is a rule that was due.
    async fn tell_runs(&self, id: EventBatchId, table: &mut Table) -> Result<(), ServiceError> {
        let (batch, state) = self.find_event_batch(id).await?;
        let (runs, _) = self.named_events(&batch, 0, LIMIT_MAX).await?;
        let told = self.journal.notification_batches_of(id).await?;
        let mut notifications = 0;
        for told in told.iter().take(BATCHES_MAX) {
            let next = NotificationBatchId(told.0.saturating_add(1));
            let heads = self.journal.notification_batches(Some(next), 1).await?;
            notifications +=
                heads.iter().filter(|(id, ..)| id == told).map(|(_, _, count)| u64::from(*count)).sum::<u64>();
        }
        for fields in runs {
            let value = |name: &str| fields.iter().find(|(found, _)| found == name).map(|(_, value)| value);
            let text = |name: &str| match value(name) {
                Some(Value::Text(text)) => Some(text.to_string()),
                _ => None,
            };
            let due_at = match value("due_at") {
                Some(Value::Timestamp(at)) => Some(*at),
                _ => None,
            };
            let skipped = match value("skipped") {
                Some(Value::Integer(skipped)) => u64::try_from(*skipped).unwrap_or(0),
                _ => 0,
            };
            let status = match state {
                EventBatchState::Accepted => "accepted",
                EventBatchState::Matched(_) => "matched",
                EventBatchState::Failed(_) => "failed",
            };
            table.push([
                id.to_string().into(),
                (&batch.application).into(),
                text("rule").into(),
                text("schedule").into(),
                due_at.into(),
                batch.accepted_at.into(),
                due_at.map(|due_at| batch.accepted_at.since(due_at)).into(),
                status.into(),
                skipped.into(),
                (told.len() as u64).into(),
                notifications.into(),
            ]);
        }
        Ok(())
    }
}
