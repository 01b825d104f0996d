//! Report on notifications that were not delivered.

use tocsin_model::{
    id::{NotificationBatchId, NotificationId},
    receipt::Outcome,
};

use super::{
    Column, Report, ReportRequest, Table, notification_batches::last_attempts, table::column, walk::ReportCursor,
};
use crate::{Service, error::ServiceError};

/// Maximum number of batches with failures that are examined.
const BATCHES_MAX: usize = 1_000;

pub(super) const LIST: &[Column] = &[
    column("notification", "Id of the notification."),
    column("application", "The application."),
    column("class", "The notification class."),
    column("rule", "The rule."),
    column("channel", "The channel of the notification batch."),
    column("subscription", "The subscription of the notification."),
    column("status", "`refused` or `expired`."),
    column("attempts", "Number of attempts."),
    column("failed_at", "Time of the permanent failure."),
    column("reply", "Reply of the receiver, or the reason for which it was not contacted."),
];

impl Service {
    pub(super) async fn failed_notifications(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let (from, to) = request.span()?;
        let limit = request.limit()?;
        let mut table = Table::new("notifications", LIST);
        // The batch in which the previous page ended, and the next index in it.
        let (begun, first) = match request.before::<ReportCursor>()? {
            Some(ReportCursor(batch, first)) => (batch, first.unwrap_or(0)),
            None => (None, 0),
        };
        let before = begun.map(|batch| NotificationBatchId(batch + 1));
        let found = self.notification_log.failed_batches(before, BATCHES_MAX).await?;
        let last = found.last().filter(|_| found.len() == BATCHES_MAX).map(|(id, _)| *id);
        // After the last examined batch, if there may be more.
        let mut next = last.and_then(|last| ReportCursor(Some(last.0.saturating_sub(1)), Some(0)).next());
        'batches: for (id, head) in found {
            let first = if Some(id.0) == begun { first } else { 0 };
            if !request.wants_batch(&head) {
                continue;
            }
            let attempts = self.notification_log.attempts(id).await?;
            let Some(stored) = self.notification_log.notification_batch(id).await? else { continue };
            let failed = last_attempts(&attempts)
                .into_values()
                .filter(|(_, attempt)| matches!(attempt.outcome, Outcome::Refused | Outcome::Expired))
                .filter(|(_, attempt)| (from..to).contains(&attempt.answered_at));
            for (count, attempt) in failed.filter(|(_, attempt)| u64::from(attempt.ordinal) >= first) {
                if table.rows.len() == limit {
                    next = ReportCursor(Some(id.0), Some(attempt.ordinal.into())).next();
                    break 'batches;
                }
                let subscription = stored.notifications.subscriptions.get(attempt.ordinal as usize);
                table.push([
                    NotificationId { batch: id, ordinal: attempt.ordinal }.to_string().into(),
                    (&head.application).into(),
                    (&head.class).into(),
                    (&head.rule).into(),
                    (&head.channel).into(),
                    subscription.map(ToString::to_string).into(),
                    attempt.outcome.word().into(),
                    count.into(),
                    attempt.answered_at.into(),
                    attempt.reply.as_str().into(),
                ]);
            }
        }
        Ok(Report { next, ..table.alone() })
    }
}
