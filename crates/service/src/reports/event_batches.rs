//! Reports on event batches and their notification batches.

use tocsin_model::{
    event::EventBatch,
    id::{EventBatchId, EventId, NotificationBatchId},
    notification::NotificationHead,
    problem::Code,
    time::Timestamp,
};
use tocsin_store::journal::EventBatchState;

use super::{
    Cell, Column, Report, ReportRequest, Table,
    request::is_or_any,
    table::column,
    walk::{PAGE, ReportCursor, RowSelection, walk},
};
use crate::{Service, error::ServiceError};

/// Tolerance when searching the log by time, since clocks may go back a little.
const CLOCK_LEEWAY: std::time::Duration = std::time::Duration::from_secs(2);

pub(super) const LIST: &[Column] = &[
    column("event_batch", "Id of the event batch."),
    column("application", "The application."),
    column("class", "The event class."),
    column("source", "The source that submitted the batch."),
    column("version", "Version of the application that packed the batch."),
    column("status", "`accepted`, `matched` or `failed`."),
    column("events", "Number of events."),
    column("collection_started_at", "Time at which the first byte was read."),
    column("collection_ended_at", "Time of acceptance."),
    column("collection_ms", "Time from the first byte to the acceptance."),
    column("matched_at", "Time at which the batch was matched."),
    column("generation_ms", "Time from the acceptance to the match."),
    column("reason", "Reason for which the batch was set aside."),
];

pub(super) const EVENTS: &[Column] = &[column("event", "Id of the event."), column("fields", "Fields of the event.")];

impl Service {
    pub(super) async fn event_batch_list(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let (from, to) = request.span()?;
        let limit = request.limit()?;
        if request.status.as_deref().is_some_and(|status| !["accepted", "matched", "failed"].contains(&status)) {
            return Err(ServiceError::invalid(
                Code::UnknownValue,
                "status",
                "is none of `accepted`, `matched` and `failed`",
            ));
        }
        let before = match request.before::<EventBatchId>()? {
            Some(before) => Some(before),
            None => self.first_after(to).await?,
        };
        let selects = |(batch, state): &(EventBatch, EventBatchState)| {
            let is_selected = batch.accepted_at < to && request.wants(batch, state);
            (batch.id, RowSelection::of(batch.accepted_at < from, is_selected))
        };
        let found = walk(before, limit, |before| self.event_heads(before), selects).await?;
        let mut table = Table::new("event_batches", LIST);
        for (batch, state) in &found.items {
            table.push(row(batch, state));
        }
        Ok(Report { next: found.next, ..table.alone() })
    }

    /// A page of event batches without their events.
    pub(super) async fn event_heads(
        &self,
        before: Option<EventBatchId>,
    ) -> Result<Vec<(EventBatch, EventBatchState)>, ServiceError> {
        Ok(self.event_log.event_batches(before, PAGE).await?)
    }

    pub(super) async fn event_batch_details(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let id: EventBatchId = request.thing("the id of an event batch, such as `eb-12`")?;
        let limit = request.limit()?;
        let (batch, state) = self.find_event_batch(id).await?;
        let mut itself = Table::new("event_batch", LIST);
        itself.push(row(&batch, &state));
        let ReportCursor(after, first) = request.before()?.unwrap_or(ReportCursor(Some(0), Some(0)));
        let (heads, after) = match after {
            Some(after) => self.batches_of(id, NotificationBatchId(after), limit).await?,
            None => (Vec::new(), None),
        };
        let batches = self.batch_rows(&heads).await?;
        let mut events = Table::new("events", EVENTS);
        let mut more = None;
        if let Some(first) = first {
            let first = u32::try_from(first).unwrap_or(u32::MAX);
            let (found, next) = self.named_events(&batch, first, limit).await?;
            for (ordinal, fields) in (first..).zip(found) {
                let id = EventId { batch: id, ordinal };
                events.push([id.to_string().into(), Cell::Fields(fields)]);
            }
            more = next.map(u64::from);
        }
        Ok(Report {
            tables: vec![itself, batches, events],
            next: ReportCursor(after, more).next(),
            ..Report::default()
        })
    }

    /// Up to `limit` notification batches with events of a batch, and the last of them if there are more.
    async fn batches_of(
        &self,
        id: EventBatchId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<(Vec<(NotificationBatchId, NotificationHead, u32)>, Option<u64>), ServiceError> {
        let mut heads = self.notification_log.notification_batches_of(id, after, limit + 1).await?;
        let is_whole = heads.len() <= limit;
        heads.truncate(limit);
        let last = heads.last().map(|(id, ..)| id.0);
        Ok((heads, last.filter(|_| !is_whole)))
    }

    /// Cursor before which all batches accepted before a time are listed; `None`: all.
    pub(super) async fn first_after(&self, time: Timestamp) -> Result<Option<EventBatchId>, ServiceError> {
        if time >= self.clock.now() {
            return Ok(None);
        }
        let place = self.event_log.position_at(time + CLOCK_LEEWAY).await?;
        Ok(Some(EventBatchId(place.0.saturating_add(1))))
    }
}

impl ReportRequest {
    fn wants(&self, batch: &EventBatch, state: &EventBatchState) -> bool {
        self.means(&batch.application, Some(&batch.class))
            && is_or_any(&self.source, &batch.source)
            && self.status.as_ref().is_none_or(|requested| requested == state.word())
    }
}

pub(super) fn row(batch: &EventBatch, state: &EventBatchState) -> [Cell; 13] {
    let matched_at = if let EventBatchState::Matched(at) = state { Some(*at) } else { None };
    let reason = if let EventBatchState::Failed(reason) = state { Some(reason.clone()) } else { None };
    [
        batch.id.to_string().into(),
        (&batch.application).into(),
        (&batch.class).into(),
        (&batch.source).into(),
        batch.version.into(),
        state.word().into(),
        batch.events.count().into(),
        batch.received_at.into(),
        batch.accepted_at.into(),
        batch.accepted_at.since(batch.received_at).into(),
        matched_at.into(),
        matched_at.map(|at| at.since(batch.accepted_at)).into(),
        reason.into(),
    ]
}
