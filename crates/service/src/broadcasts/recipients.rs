//! Results of a broadcast by recipient: pages with filters, and lines.

use std::collections::HashSet;

use bytes::Bytes;
use serde::Serialize;
use tocsin_model::{
    id::{BroadcastId, Name, NotificationBatchId, NotificationId, SubscriberId, SubscriptionId},
    problem::{Code, Problem},
    receipt::{Attempt, Outcome},
    time::Timestamp,
};
use tocsin_store::{error::StoreError, records::SubscriptionFilter};

use crate::{
    Service,
    error::ServiceError,
    exports::{ExportStream, csv_line, json_line, pages},
    imports::Format,
    keys::{Caller, Scope},
    page::{Page, cursor, key_of},
};

/// Notification batches read at a time.
const BATCHES: usize = 16;
/// Notifications examined per request; the next one continues.
const EXAMINED_MAX: usize = 50_000;
/// Maximum number of a subscriber's subscriptions examined.
const SUBSCRIPTIONS_MAX: usize = 10_000;
/// Recipients per piece of an export.
const EXPORTED: usize = 1_000;

/// Filter of recipients; all given conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct RecipientFilter {
    /// `waiting`, `delivered`, `refused`, `expired`, `suspended` or `ended`.
    pub outcome: Option<String>,
    /// First channel.
    pub channel: Option<Name>,
    /// Subscriber.
    pub subscriber: Option<SubscriberId>,
}

/// Result of a broadcast for one recipient.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecipientResult {
    /// The notification.
    pub notification: NotificationId,
    /// Subscriber; `None` if the subscription was removed.
    pub subscriber: Option<SubscriberId>,
    /// Subscription.
    pub subscription: SubscriptionId,
    /// First channel.
    pub channel: Name,
    /// `waiting`, `delivered`, `refused`, `expired`, `suspended` or `ended`.
    pub outcome: &'static str,
    /// Number of attempts.
    pub attempts: u32,
    /// Reply to the last attempt.
    pub reply: Option<String>,
    /// Time of the last attempt's answer.
    pub answered_at: Option<Timestamp>,
}

const WAITING: &str = "waiting";

fn word_of(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        None | Some(Outcome::Deferred) => WAITING,
        Some(outcome) => outcome.word(),
    }
}

/// A filter with the data resolved from the records.
struct Search {
    outcome: Option<&'static str>,
    channel: Option<Name>,
    subscriptions: Option<HashSet<SubscriptionId>>,
}

impl Service {
    /// Lists the results of a broadcast by recipient, in the order of their notifications. A request examines at most
    /// 50,000 notifications, so a page may be short. Results are kept as long as their notification batches.
    ///
    /// # Errors
    /// The scopes `broadcasts:read` and `subscribers:read` are missing; the broadcast does not exist; the outcome is
    /// unknown.
    pub async fn broadcast_recipients(
        &self,
        caller: &Caller,
        id: BroadcastId,
        filter: &RecipientFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<RecipientResult>, ServiceError> {
        caller.needs(Scope::BroadcastsRead)?;
        caller.needs(Scope::SubscribersRead)?;
        self.stored_broadcast(caller, id).await?;
        let search = self.recipient_search(filter).await?;
        let after: Option<NotificationId> = key_of(after)?;
        let (items, next) = self.find_recipients(id, &search, after, limit).await?;
        Ok(Page { items, next: next.map(|next| cursor(&next.to_string())) })
    }

    /// The results of a broadcast by recipient, as lines. An error within the stream ends it.
    ///
    /// # Errors
    /// As [`Service::broadcast_recipients`].
    pub async fn export_broadcast_recipients(
        self: &std::sync::Arc<Self>,
        caller: &Caller,
        id: BroadcastId,
        filter: &RecipientFilter,
        format: Format,
    ) -> Result<ExportStream, ServiceError> {
        caller.needs(Scope::BroadcastsRead)?;
        caller.needs(Scope::SubscribersRead)?;
        self.stored_broadcast(caller, id).await?;
        let search = std::sync::Arc::new(self.recipient_search(filter).await?);
        let header = (format == Format::Csv).then(|| COLUMNS.map(str::to_owned).to_vec());
        let service = self.clone();
        let next = move |after: Option<NotificationId>| {
            let (service, search) = (service.clone(), search.clone());
            async move {
                let (found, next) = service.find_recipients(id, &search, after, EXPORTED).await?;
                let mut out = Vec::with_capacity(found.len() * 128);
                for result in found {
                    match format {
                        Format::Ndjson => json_line(&result, &mut out),
                        Format::Csv => csv_line(cells(result), &mut out),
                    }
                }
                Ok((Bytes::from(out), next))
            }
        };
        Ok(pages(header, next))
    }

    async fn recipient_search(&self, filter: &RecipientFilter) -> Result<Search, ServiceError> {
        let outcome = match filter.outcome.as_deref() {
            None => None,
            Some(word) => {
                let known = Outcome::ALL.map(|outcome| word_of(Some(outcome)));
                let found = known.into_iter().find(|known| *known == word);
                Some(found.ok_or_else(|| {
                    let problem = Problem::new(Code::UnknownValue, "outcome", format!("`{word}` is no outcome"));
                    let problem = problem.param("value", word.to_owned());
                    problem.hint("give waiting, delivered, refused, expired, suspended or ended")
                })?)
            }
        };
        let subscriptions = match &filter.subscriber {
            None => None,
            Some(subscriber) => {
                let filter =
                    SubscriptionFilter { subscriber: Some(subscriber.clone()), ..SubscriptionFilter::default() };
                let found = self.subscription_store.subscriptions(&filter, None, SUBSCRIPTIONS_MAX).await?;
                Some(found.into_iter().map(|found| found.id).collect())
            }
        };
        Ok(Search { outcome, channel: filter.channel.clone(), subscriptions })
    }

    /// Results after a notification, and the last one examined if more follow.
    async fn find_recipients(
        &self,
        id: BroadcastId,
        search: &Search,
        after: Option<NotificationId>,
        limit: usize,
    ) -> Result<(Vec<RecipientResult>, Option<NotificationId>), ServiceError> {
        let mut found: Vec<RecipientResult> = Vec::new();
        let mut examined = 0;
        // The batch of the cursor is read again, from the next ordinal on.
        let mut reached = after.map_or(NotificationBatchId(0), |after| NotificationBatchId(after.batch.0 - 1));
        loop {
            let batches = self.broadcasts.broadcast_batches(id, reached, BATCHES).await?;
            let is_last = batches.len() < BATCHES;
            for batch in batches {
                reached = batch;
                let first = after.filter(|after| after.batch == batch).map_or(0, |after| after.ordinal + 1);
                let stored = match self.notification_log.notification_batch(batch).await {
                    Ok(Some(stored)) => stored,
                    Ok(None) | Err(StoreError::Damaged(_)) => continue,
                    Err(error) => return Err(error.into()),
                };
                if search.channel.as_ref().is_some_and(|channel| *channel != stored.head.channel) {
                    continue;
                }
                let mut last: Vec<Option<Attempt>> = vec![None; stored.notifications.count()];
                let mut counts: Vec<u32> = vec![0; last.len()];
                for attempt in self.notification_log.attempts(batch).await? {
                    let at = attempt.ordinal as usize;
                    if at < last.len() {
                        counts[at] += 1;
                        last[at] = Some(attempt);
                    }
                }
                let room = limit - found.len();
                let mut page = Vec::new();
                let mut next = None;
                let all = stored.notifications.subscriptions.iter().zip(last).zip(counts).enumerate();
                for (at, ((subscription, attempt), attempts)) in all.skip(first as usize) {
                    let outcome = word_of(attempt.as_ref().map(|attempt| attempt.outcome));
                    examined += 1;
                    let is_selected = search.outcome.is_none_or(|selected| selected == outcome)
                        && search.subscriptions.as_ref().is_none_or(|selected| selected.contains(subscription));
                    if !is_selected {
                        continue;
                    }
                    let notification = NotificationId { batch, ordinal: at as u32 };
                    page.push(RecipientResult {
                        notification,
                        subscriber: None,
                        subscription: *subscription,
                        channel: stored.head.channel.clone(),
                        outcome,
                        attempts,
                        reply: attempt.as_ref().map(|attempt| attempt.reply.clone()).filter(|reply| !reply.is_empty()),
                        answered_at: attempt.map(|attempt| attempt.answered_at),
                    });
                    if page.len() == room {
                        next = Some(notification);
                        break;
                    }
                }
                let ids: Vec<SubscriptionId> = page.iter().map(|result| result.subscription).collect();
                let recipients = self.recipient_store.recipients(&ids).await?;
                for (result, recipient) in page.iter_mut().zip(recipients) {
                    result.subscriber = recipient.map(|recipient| recipient.id.clone());
                }
                found.append(&mut page);
                if next.is_some() {
                    return Ok((found, next));
                }
                if examined >= EXAMINED_MAX {
                    let last = (stored.notifications.count() as u32).saturating_sub(1);
                    return Ok((found, Some(NotificationId { batch, ordinal: last })));
                }
            }
            if is_last {
                return Ok((found, None));
            }
        }
    }
}

const COLUMNS: [&str; 8] =
    ["notification", "subscriber", "subscription", "channel", "outcome", "attempts", "reply", "answered_at"];

fn cells(result: RecipientResult) -> Vec<String> {
    vec![
        result.notification.to_string(),
        result.subscriber.map(|id| id.to_string()).unwrap_or_default(),
        result.subscription.to_string(),
        result.channel.to_string(),
        result.outcome.to_owned(),
        result.attempts.to_string(),
        result.reply.unwrap_or_default(),
        result.answered_at.map(|at| at.to_string()).unwrap_or_default(),
    ]
}
