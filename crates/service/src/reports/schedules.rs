//! Reports on past and next runs of schedules.

use tocsin_model::{
    application::{delay_source, due_class},
    event::EventBatch,
    id::{EventBatchId, NotificationBatchId},
    value::Value,
};
use tocsin_store::journal::EventBatchState;

use super::{
    Column, Report, ReportRequest, Table,
    request::is_or_any,
    table::column,
    walk::{PAGE, RowSelection, walk},
};
use crate::{Service, error::ServiceError, keys::Caller, page::LIMIT_MAX};

pub(super) const LIST: &[Column] = &[
    column("application", "The application."),
    column("rule", "The rule."),
    column("schedule", "The schedule, with its time zone."),
    column("last_run_at", "Time up to which all due times are processed."),
    column("next_run_at", "Next due time."),
    column("stopped", "Whether the rule is stopped; its runs wait."),
    column("skipped", "Number of missed runs that were skipped."),
    column("skipped_at", "Time at which runs were last skipped."),
    column("missed", "Policy for missed runs."),
];

pub(super) const RUNS: &[Column] = &[
    column("event_batch", "Id of the event batch with the due time."),
    column("application", "The application."),
    column("rule", "The rule."),
    column("schedule", "The schedule."),
    column("due_at", "Due time."),
    column("accepted_at", "Time at which the run was queued."),
    column("late_ms", "Time from `due_at` to `accepted_at`."),
    column("status", "`accepted`, `matched` or `failed`."),
    column("skipped", "Number of missed runs before this one that were skipped."),
    column("notification_batches", "Number of notification batches that the runs of this event batch created."),
    column("notifications", "Number of notifications in these batches."),
];

impl Service {
    pub(super) async fn schedules_report(
        &self,
        caller: &Caller,
        request: &ReportRequest,
    ) -> Result<Report, ServiceError> {
        let mut table = Table::new("schedules", LIST);
        for compiled in self.requested_applications(request)? {
            let application = &compiled.application.name;
            let mut cursor = None;
            loop {
                let found = self.schedules(caller, application, cursor.as_deref(), LIMIT_MAX).await?;
                for status in found.items.into_iter().filter(|status| is_or_any(&request.rule, &status.rule)) {
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
                let Some(next) = found.next else { break };
                cursor = Some(next);
            }
        }
        Ok(table.alone())
    }

    pub(super) async fn scheduled_runs(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let (from, to) = request.span()?;
        let limit = request.limit()?;
        let before = match request.before::<EventBatchId>()? {
            Some(before) => Some(before),
            None => self.first_after(to).await?,
        };
        let selects = |(batch, _): &(EventBatch, EventBatchState)| {
            // Due times of delayed rules are not runs of a schedule.
            let is_run = batch.class == due_class() && batch.source != delay_source();
            let is_due = is_run && is_or_any(&request.application, &batch.application);
            (batch.id, RowSelection::of(batch.accepted_at < from, is_due && batch.accepted_at < to))
        };
        let found = walk(before, limit, |before| self.event_heads(before), selects).await?;
        let mut table = Table::new("runs", RUNS);
        for (batch, _) in found.items {
            self.add_runs(batch.id, &mut table).await?;
        }
        Ok(Report { next: found.next, ..table.alone() })
    }

    /// The runs of one event batch: each of its events is a rule that was due.
    async fn add_runs(&self, id: EventBatchId, table: &mut Table) -> Result<(), ServiceError> {
        let (batch, state) = self.find_event_batch(id).await?;
        let (runs, _) = self.named_events(&batch, 0, LIMIT_MAX).await?;
        let (mut batches, mut notifications, mut after) = (0_u64, 0_u64, NotificationBatchId(0));
        loop {
            let page = self.notification_log.notification_batches_of(id, after, PAGE).await?;
            batches += page.len() as u64;
            notifications += page.iter().map(|(_, _, count)| u64::from(*count)).sum::<u64>();
            match page.last() {
                Some((last, ..)) if page.len() == PAGE => after = *last,
                _ => break,
            }
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
            table.push([
                id.to_string().into(),
                (&batch.application).into(),
                text("rule").into(),
                text("schedule").into(),
                due_at.into(),
                batch.accepted_at.into(),
                due_at.map(|due_at| batch.accepted_at.since(due_at)).into(),
                state.word().into(),
                skipped.into(),
                batches.into(),
                notifications.into(),
            ]);
        }
        Ok(())
    }
}
