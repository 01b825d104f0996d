//! Reports on notification batches: made, waiting, delivered.

use std::collections::BTreeMap;

use tocsin_model::{
    id::{Name, NotificationBatchId, NotificationId},
    notification::NotificationHead,
    problem::Code,
    receipt::{Attempt, Outcome},
    time::Timestamp,
};
use tocsin_store::journal::{Progress, SuspensionFilter};

use super::{
    Cell, Column, Report, ReportRequest, Table,
    request::{SCANNED_MAX, is_or_any},
    table::column,
    walk::{PAGE, RowSelection, walk},
};
use crate::{Service, error::ServiceError};

pub(super) const LIST: &[Column] = &[
    column("notification_batch", "Id of the notification batch."),
    column("application", "The application."),
    column("class", "The notification class."),
    column("rule", "The rule that fired."),
    column("event_class", "The event class."),
    column("channel", "The channel of the notification batch."),
    column("notifications", "Number of notifications."),
    column("status", "`open` or `closed`."),
    column("generation_started_at", "Time at which its oldest event was accepted."),
    column("generation_ended_at", "Time of creation."),
    column("generation_ms", "Time from the acceptance of the oldest event to the creation."),
    column("expires_at", "Expiry; later, nothing is sent."),
    column("first_sent_at", "Time of the first attempt."),
    column("wait_ms", "Time from the creation to the first attempt."),
    column("last_answered_at", "Time of the last response."),
    column("delivery_ms", "Time from the first attempt to the last response, if the batch is closed."),
    column("closed_at", "Time at which the last notification was closed."),
    column("attempts", "Number of attempts."),
    column("delivered", "Number of notifications delivered."),
    column("failed", "Number of notifications that were rejected or expired."),
    column("open", "Number of notifications without a final outcome."),
];

pub(super) const CHANNELS: &[Column] = &[
    column("channel", "The channel."),
    column("last_distribution_at", "Time of the last attempt."),
    column("not_attempted", "Number of notifications without an attempt."),
    column("delivered", "Number of notifications delivered."),
    column("failed", "Number of notifications that were rejected or expired."),
    column("deferred", "Number of notifications that wait for a retry."),
    column("suspended", "Number of notifications suspended for an operator."),
];

pub(super) const NOTIFICATIONS: &[Column] = &[
    column("notification", "Id of the notification."),
    column("subscription", "The subscription of the notification."),
    column("event", "Id of the event."),
    column("status", "Outcome of the last attempt, or `waiting`."),
    column("attempts", "Number of attempts."),
    column("last_sent_at", "Time of the last attempt."),
    column("last_answered_at", "Time of the last response."),
    column("delivery_ms", "Response time of the receiver."),
    column("reply", "Reply of the receiver."),
];

type Head = (NotificationBatchId, NotificationHead, u32);

impl Service {
    pub(super) async fn notification_batch_list(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let (from, to) = request.span()?;
        let limit = request.limit()?;
        let is_selected = of_status(request.status.as_deref())?;
        // Progress is read for listed batches, and for all if the filter depends on it.
        let page = async |before| {
            let heads: Vec<Head> = self.notification_log.notification_batches(before, PAGE).await?;
            let ids: Vec<NotificationBatchId> = heads.iter().map(|(id, ..)| *id).collect();
            let progress = match request.status {
                Some(_) => self.notification_log.progress(&ids).await?,
                None => vec![None; ids.len()],
            };
            Ok(heads.into_iter().zip(progress).collect())
        };
        let selects = |((id, head, _), progress): &(Head, Option<Progress>)| {
            let is_of_status = request.status.is_none() || progress.as_ref().is_some_and(is_selected);
            let is_selected = head.matched_at < to && is_of_status && request.wants_batch(head);
            // Ids follow the order of creation, except that commits may overtake each other a little.
            (*id, RowSelection::of(head.matched_at < from, is_selected))
        };
        let found = walk(request.before()?, limit, page, selects).await?;
        let heads: Vec<Head> = found.items.into_iter().map(|(head, _)| head).collect();
        Ok(Report { next: found.next, ..self.batch_rows(&heads).await?.alone() })
    }

    /// Builds a table of batches with their progress.
    pub(super) async fn batch_rows(&self, heads: &[Head]) -> Result<Table, ServiceError> {
        let ids: Vec<NotificationBatchId> = heads.iter().map(|(id, ..)| *id).collect();
        let progress = self.notification_log.progress(&ids).await?;
        let mut table = Table::new("notification_batches", LIST);
        for ((id, head, count), progress) in heads.iter().zip(progress) {
            table.push(row(*id, head, *count, &progress.unwrap_or_default()));
        }
        Ok(table)
    }

    pub(super) async fn notification_batch_details(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let id: NotificationBatchId = request.thing("the id of a notification batch, such as `nb-3`")?;
        let limit = request.limit()?;
        let stored = self.find_notification_batch(id).await?;
        let count = stored.notifications.count() as u32;
        let mut itself = self.batch_rows(&[(id, stored.head.clone(), count)]).await?;
        itself.name = "notification_batch";
        let attempts = self.notification_log.attempts(id).await?;
        let last = last_attempts(&attempts);
        let channels = self.channels_of(id, &stored.head.channel, count, &last).await?;
        let mut notifications = Table::new("notifications", NOTIFICATIONS);
        let each = stored.notifications.subscriptions.iter().zip(stored.notifications.event_of_each());
        let first = request.before::<u32>()?.unwrap_or(0);
        for (ordinal, (subscription, event)) in (0..).zip(each).skip(first as usize).take(limit) {
            let tried = last.get(&ordinal);
            notifications.push([
                NotificationId { batch: id, ordinal }.to_string().into(),
                subscription.to_string().into(),
                event.to_string().into(),
                tried.map_or("waiting", |(_, attempt)| attempt.outcome.word()).into(),
                tried.map_or(0, |(count, _)| *count).into(),
                tried.map(|(_, attempt)| attempt.sent_at).into(),
                tried.map(|(_, attempt)| attempt.answered_at).into(),
                tried.map(|(_, attempt)| attempt.answered_at.since(attempt.sent_at)).into(),
                tried.map(|(_, attempt)| attempt.reply.clone()).into(),
            ]);
        }
        let shown = first.saturating_add(notifications.rows.len() as u32);
        let next = (shown < count && shown > first).then(|| shown.to_string());
        Ok(Report { tables: vec![itself, channels, notifications], next, ..Report::default() })
    }

    /// Channels of the notifications of a batch: a waiting one belongs to the channel of its work item or suspension,
    /// any other to the channel of the batch.
    async fn channels_of(
        &self,
        id: NotificationBatchId,
        own: &Name,
        count: u32,
        last: &BTreeMap<u32, (u64, &Attempt)>,
    ) -> Result<Table, ServiceError> {
        let mut of_each: Vec<&Name> = vec![own; count as usize];
        let filter = SuspensionFilter { batch: Some(id), ..SuspensionFilter::default() };
        let suspended = self.operator_actions.suspensions(&filter, 0, SCANNED_MAX).await?;
        for stored in &suspended {
            for ordinal in &stored.suspension.ordinals {
                if let Some(channel) = of_each.get_mut(*ordinal as usize) {
                    *channel = &stored.suspension.channel;
                }
            }
        }
        let mut channels: BTreeMap<&Name, ([u64; 5], Option<Timestamp>)> = BTreeMap::new();
        for (ordinal, channel) in (0..).zip(of_each) {
            let (counts, sent_at) = channels.entry(channel).or_default();
            let tried = last.get(&ordinal).map(|(_, attempt)| *attempt);
            let at = match tried.map(|attempt| attempt.outcome) {
                None => 0,
                Some(Outcome::Delivered) => 1,
                Some(Outcome::Refused | Outcome::Expired | Outcome::Ended) => 2,
                Some(Outcome::Deferred) => 3,
                Some(Outcome::Suspended) => 4,
            };
            counts[at] += 1;
            *sent_at = (*sent_at).max(tried.map(|attempt| attempt.sent_at));
        }
        let mut table = Table::new("channels", CHANNELS);
        for (channel, (counts, sent_at)) in channels {
            let [untried, delivered, failed, deferred, suspended] = counts.map(Cell::Count);
            table.push([channel.into(), sent_at.into(), untried, delivered, failed, deferred, suspended]);
        }
        Ok(table)
    }
}

impl ReportRequest {
    pub(super) fn wants_batch(&self, head: &NotificationHead) -> bool {
        self.means(&head.application, Some(&head.class))
            && is_or_any(&self.rule, &head.rule)
            && is_or_any(&self.channel, &head.channel)
    }
}

/// Newest attempt of each notification, by ordinal, and the number of attempts.
pub(super) fn last_attempts(attempts: &[Attempt]) -> BTreeMap<u32, (u64, &Attempt)> {
    let mut last = BTreeMap::new();
    for attempt in attempts {
        let found = last.entry(attempt.ordinal).or_insert((0, attempt));
        *found = (found.0 + 1, attempt);
    }
    last
}

fn of_status(status: Option<&str>) -> Result<fn(&Progress) -> bool, ServiceError> {
    match status {
        None => Ok(|_| true),
        Some("open") => Ok(|progress| progress.closed_at.is_none()),
        Some("closed") => Ok(|progress| progress.closed_at.is_some()),
        Some(_) => Err(ServiceError::invalid(Code::UnknownValue, "status", "is neither `open` nor `closed`")),
    }
}

fn row(id: NotificationBatchId, head: &NotificationHead, count: u32, progress: &Progress) -> [Cell; 21] {
    let delivery = progress.first_sent_at.zip(progress.last_answered_at).filter(|_| progress.closed_at.is_some());
    [
        id.to_string().into(),
        (&head.application).into(),
        (&head.class).into(),
        (&head.rule).into(),
        (&head.event_class).into(),
        (&head.channel).into(),
        count.into(),
        if progress.closed_at.is_some() { "closed" } else { "open" }.into(),
        head.accepted_at.into(),
        head.matched_at.into(),
        head.matched_at.since(head.accepted_at).into(),
        head.expires_at.into(),
        progress.first_sent_at.into(),
        progress.first_sent_at.map(|first| first.since(head.matched_at)).into(),
        progress.last_answered_at.into(),
        delivery.map(|(first, last)| last.since(first)).into(),
        progress.closed_at.into(),
        progress.attempts.into(),
        progress.delivered.into(),
        progress.failed.into(),
        progress.open.into(),
    ]
}
