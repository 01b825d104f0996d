//! Reports on quanta: runs of the matcher.

use tocsin_model::{id::EventBatchId, problem::Code};
use tocsin_store::journal::{EventBatchState, FiringFilter, Quantum, QuantumQuery};

use super::{
    Cell, Column, Report, ReportRequest, Table,
    request::SCANNED_MAX,
    table::column,
    walk::{PAGE, RowSelection, walk},
};
use crate::{Service, error::ServiceError};

pub(super) const LIST: &[Column] = &[
    column("quantum", "Number of the quantum."),
    column("accepted_from", "Time at which its first event batch was accepted."),
    column("accepted_to", "Time at which its last event batch was accepted."),
    column(
        "status",
        "`succeeded`; `failed`: an event batch was set aside or a rule failed; `skipped`: a rule did not fire.",
    ),
    column("execution_started_at", "Start of the quantum."),
    column("execution_ended_at", "End of the quantum."),
    column("execution_ms", "Duration of the quantum."),
    column("event_batches", "Number of event batches."),
    column("events", "Number of events."),
    column("event_batches_failed", "Number of event batches that were set aside."),
    column("notification_batches", "Number of notification batches created."),
    column("event_notifications", "Number of notifications created for events."),
    column("scheduled_notifications", "Number of notifications created by schedules."),
    column("firings_failed", "Number of firings that failed."),
    column("firings_skipped", "Number of firings that were skipped."),
];

pub(super) const FIRINGS: &[Column] = &[
    column("firing", "Number of the missed firing, for `tocsin firings`."),
    column("application", "The application."),
    column("rule", "The rule."),
    column("status", "`failed` or `skipped`."),
    column("reason", "Reason."),
    column("first_event_batch", "First event batch for which the rule did not fire."),
    column("last_event_batch", "Last event batch for which the rule did not fire."),
];

impl Service {
    pub(super) async fn quantum_list(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let (from, to) = request.span()?;
        let limit = request.limit()?;
        let is_listed = status_filter(request.status.as_deref())?;
        let page = async |before| Ok(self.activity_log.quanta(QuantumQuery { from, to, before, limit: PAGE }).await?);
        let found =
            walk(request.before()?, limit, page, |quantum| (quantum.id, RowSelection::of(false, is_listed(quantum))))
                .await?;
        let mut table = Table::new("quanta", LIST);
        for quantum in &found.items {
            table.push(row(quantum));
        }
        Ok(Report { next: found.next, ..table.alone() })
    }

    pub(super) async fn quantum_details(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let id: u64 = request.thing("the number of a quantum")?;
        let quantum = self.activity_log.quantum(id).await?;
        let quantum = quantum.ok_or_else(|| ServiceError::Missing(format!("the quantum {id}")))?;
        let mut itself = Table::new("quantum", LIST);
        itself.push(row(&quantum));
        let event_batches = self.event_batches_of(&quantum).await?;
        let mut firings = Table::new("firings_missed", FIRINGS);
        if quantum.firings_failed + quantum.firings_skipped > 0 {
            let (first, last) = (quantum.first_events, quantum.last_events);
            let listed = self.rule_store.firings(&FiringFilter::default(), 0, SCANNED_MAX).await?;
            for missed in listed.iter().filter(|missed| missed.first <= last && missed.last >= first) {
                firings.push([
                    missed.id.into(),
                    (&missed.application).into(),
                    (&missed.rule).into(),
                    missed.status.name().into(),
                    missed.reason.as_str().into(),
                    missed.first.to_string().into(),
                    missed.last.to_string().into(),
                ]);
            }
        }
        let batches = self.notification_batches_of(&quantum).await?;
        Ok(Report { tables: vec![itself, event_batches, firings, batches], ..Report::default() })
    }

    /// Batches between the first and the last that were matched in this quantum: others waited, or were matched
    /// before.
    async fn event_batches_of(&self, quantum: &Quantum) -> Result<Table, ServiceError> {
        let mut table = Table::new("event_batches", super::event_batches::LIST);
        let count = (quantum.last_events.0 - quantum.first_events.0 + 1).min(SCANNED_MAX as u64) as usize;
        let found = self.event_log.event_batches(Some(EventBatchId(quantum.last_events.0 + 1)), count).await?;
        let of_quantum = |state: &EventBatchState| match state {
            EventBatchState::Matched(at) => *at >= quantum.started_at && *at <= quantum.ended_at,
            EventBatchState::Failed(_) => true,
            EventBatchState::Accepted => false,
        };
        for (batch, state) in
            found.iter().filter(|(batch, state)| batch.id >= quantum.first_events && of_quantum(state))
        {
            table.push(super::event_batches::row(batch, state));
        }
        Ok(table)
    }

    async fn notification_batches_of(&self, quantum: &Quantum) -> Result<Table, ServiceError> {
        let Some(first) = quantum.first_batch else {
            return Ok(Table::new("notification_batches", super::notification_batches::LIST));
        };
        let count = (quantum.notification_batches as usize).min(SCANNED_MAX);
        let before_first = tocsin_model::id::NotificationBatchId(first.0 - 1);
        let mut heads = self.notification_log.notification_batches_after(before_first, count).await?;
        heads.retain(|(id, _, _)| id.0 < first.0 + quantum.notification_batches);
        self.batch_rows(&heads).await
    }
}

fn row(quantum: &Quantum) -> [Cell; 15] {
    let status = match quantum {
        Quantum { failed_batches: 0, firings_failed: 0, firings_skipped: 0, .. } => "succeeded",
        Quantum { failed_batches: 0, firings_failed: 0, .. } => "skipped",
        _ => "failed",
    };
    [
        quantum.id.into(),
        quantum.first_accepted_at.into(),
        quantum.last_accepted_at.into(),
        status.into(),
        quantum.started_at.into(),
        quantum.ended_at.into(),
        quantum.ended_at.since(quantum.started_at).into(),
        quantum.event_batches.into(),
        quantum.events.into(),
        quantum.failed_batches.into(),
        quantum.notification_batches.into(),
        quantum.event_notifications.into(),
        quantum.scheduled_notifications.into(),
        quantum.firings_failed.into(),
        quantum.firings_skipped.into(),
    ]
}

fn status_filter(status: Option<&str>) -> Result<fn(&Quantum) -> bool, ServiceError> {
    match status {
        None => Ok(|_| true),
        Some("failed") => Ok(|quantum| quantum.failed_batches + quantum.firings_failed > 0),
        Some("skipped") => Ok(|quantum| quantum.firings_skipped > 0),
        Some(_) => Err(ServiceError::invalid(Code::UnknownValue, "status", "is neither `failed` nor `skipped`")),
    }
}
