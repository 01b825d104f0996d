//! What was not delivered.

use tocsin_model::{
    id::{NotificationBatchId, NotificationId},
    receipt::Outcome,
};

use super::{Column, Question, Report, Table, notification_batches::last_attempts, table::column};
use crate::{Service, error::ServiceError};

/// Batches with failures that are looked through.
const BATCHES_MAX: usize = 1_000;

pub(super) const LIST: &[Column] = &[
    column("notification", "Its id."),
    column("application", "The application."),
    column("class", "The notification class."),
    column("rule", "The rule."),
    column("channel", "The channel of its batch."),
    column("subscription", "The subscription that it was for."),
    column("status", "`refused` or `expired`."),
    column("attempts", "How many there were."),
    column("failed_at", "When it failed for good."),
    column("reply", "The far side's words, or why it was not even asked."),
];

impl Service {
    pub(super) async fn failed_notifications(&self, asked: &Question) -> Result<Report, ServiceError> {
        let (from, to) = self.span(asked)?;
        let limit = asked.limit()?;
        let mut table = Table::new("notifications", LIST);
        let mut before = asked.before::<NotificationBatchId>()?;
        let mut next = None;
        let found = self.journal.failed_batches(before, BATCHES_MAX).await?;
        let is_whole = found.len() < BATCHES_MAX;
        let mut is_cut = false;
        for (id, head) in found {
            // A batch is told whole, so that the next answer begins with another.
            if table.rows.len() >= limit {
                is_cut = true;
                break;
            }
            before = Some(id);
            if !asked.wants_told(&head) {
                continue;
            }
            let attempts = self.journal.attempts(id).await?;
            let Some(stored) = self.journal.notification_batch(id).await? else { continue };
            let failed = last_attempts(&attempts)
                .into_values()
                .filter(|(_, attempt)| matches!(attempt.outcome, Outcome::Refused | Outcome::Expired))
                .filter(|(_, attempt)| (from..to).contains(&attempt.answered_at));
            for (count, attempt) in failed {
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
        if is_cut || !is_whole {
            next = before.map(|before| before.to_string());
        }
        Ok(Report { next, ..table.alone() })
    }
}
