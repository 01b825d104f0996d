//! Report on one subscription: its notifications, and when it is due next.

use std::time::Duration;

use tocsin_model::{
    id::{NotificationBatchId, NotificationId, SubscriptionId},
    schedule::Schedule,
};

use super::{Column, Report, ReportRequest, Table, table::column, walk::ReportCursor};
use crate::{Service, error::ServiceError, schedules};

/// Maximum number of notification batches examined per request.
const BATCHES_MAX: usize = 200;
/// Number of next runs listed.
const RUNS: usize = 10;

pub(super) const ITSELF: &[Column] = &[
    column("subscription", "Id of the subscription."),
    column("application", "The application."),
    column("class", "The subscription class."),
    column("subscriber", "The subscriber."),
    column("enabled", "Whether the subscription is enabled."),
    column("created_at", "Time of creation."),
    column("updated_at", "Time of the last change."),
    column("filter", "Filter of the subscription."),
    column("schedule", "Schedule of the subscription."),
    column("batches_looked_through", "Number of notification batches scanned for this response."),
];

pub(super) const NOTIFICATIONS: &[Column] = &[
    column("notification", "Id of the notification."),
    column("rule", "The rule that fired."),
    column("class", "The notification class."),
    column("channel", "The channel."),
    column("event", "Id of the event."),
    column("made_at", "Time of creation."),
    column("status", "Outcome of the last attempt, or `waiting`."),
    column("last_answered_at", "Time of the last response."),
];

pub(super) const NEXT: &[Column] = &[
    column("at", "Due time."),
    column("local", "Due time in the time zone of the schedule."),
    column("note", "Policy that moved the due time, if any."),
];

impl Service {
    pub(super) async fn subscription_report(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let id: SubscriptionId = request.thing("the id of a subscription, such as `s-15`")?;
        let limit = request.limit()?;
        let found = self.find_subscription(id).await?;
        // The batch in which the previous page ended, and the next index in it.
        let (begun, first) = match request.before::<ReportCursor>()? {
            Some(ReportCursor(batch, first)) => (batch, first.unwrap_or(0)),
            None => (None, 0),
        };
        let before = begun.map(|batch| NotificationBatchId(batch + 1));
        let newest = self.notification_log.notification_batches(before, BATCHES_MAX).await?;
        let last = newest.last().filter(|_| newest.len() == BATCHES_MAX).map(|(id, ..)| *id);
        let mut more = last.and_then(|last| ReportCursor(Some(last.0.saturating_sub(1)), Some(0)).next());
        let mut notifications = Table::new("notifications", NOTIFICATIONS);
        'batches: for (batch, head, _) in newest.iter().filter(|(_, head, _)| head.application == found.application) {
            let first = if Some(batch.0) == begun { first } else { 0 };
            let Some(stored) = self.notification_log.notification_batch(*batch).await? else { continue };
            let each = stored.notifications.subscriptions.iter().zip(stored.notifications.event_of_each());
            let mine: Vec<_> = (0..).zip(each).filter(|(_, (subscription, _))| **subscription == id).collect();
            let attempts = if mine.is_empty() { Vec::new() } else { self.notification_log.attempts(*batch).await? };
            for (ordinal, (_, event)) in mine.into_iter().filter(|(ordinal, _)| u64::from(*ordinal) >= first) {
                if notifications.rows.len() == limit {
                    more = ReportCursor(Some(batch.0), Some(ordinal.into())).next();
                    break 'batches;
                }
                let last = attempts.iter().rfind(|attempt| attempt.ordinal == ordinal);
                notifications.push([
                    NotificationId { batch: *batch, ordinal }.to_string().into(),
                    (&head.rule).into(),
                    (&head.class).into(),
                    (&head.channel).into(),
                    event.to_string().into(),
                    head.matched_at.into(),
                    last.map_or("waiting", |last| last.outcome.word()).into(),
                    last.map(|last| last.answered_at).into(),
                ]);
            }
        }
        let mut next = Table::new("next_runs", NEXT);
        let schedule = self.schedule_store.schedule_of(id).await?.map(|(text, _)| text);
        if let Some(schedule) = schedule.as_ref().and_then(|text| Schedule::parse(text).ok()) {
            for run in schedules::preview(&schedule, self.clock.now(), RUNS, Duration::ZERO).runs {
                next.push([run.at.into(), run.local.into(), run.note.into()]);
            }
        }
        let mut itself = Table::new("subscription", ITSELF);
        itself.push([
            id.to_string().into(),
            (&found.application).into(),
            (&found.class).into(),
            found.subscriber.to_string().into(),
            found.is_active_or_snoozed().into(),
            found.created_at.into(),
            found.updated_at.into(),
            found.terms.filter.as_ref().map(|filter| filter.text.to_string()).into(),
            schedule.map(String::from).into(),
            (newest.len() as u64).into(),
        ]);
        Ok(Report { tables: vec![itself, notifications, next], next: more, ..Report::default() })
    }
}
