//! Search of notifications by application, class, rule, channel, recipient, outcome, reason and time.
//!
//! A search reads heads of notification batches, newest first, and unpacks those that may contain a result. Delivery
//! progress excludes batches without a wanted outcome; refused and expired notifications are found by an index.

use std::collections::HashSet;

use tocsin_model::{
    id::{Name, NotificationBatchId, NotificationId, SubscriberId, SubscriptionId},
    notification::NotificationHead,
    problem::{Code, Problem},
    receipt::{Attempt, Outcome},
    time::Timestamp,
};
use tocsin_store::{
    journal::Progress,
    records::{Recipient, SubscriberFilter, SubscriptionFilter},
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
    page::{cursor, key_of},
    scanned::{LEEWAY, PAGE, Period, ScanBudget, Scanned},
};

/// Maximum number of subscribers with an address.
const SUBSCRIBERS_MAX: usize = 100;
/// Maximum number of subscriptions of the recipients.
const SUBSCRIPTIONS_MAX: usize = 100_000;
/// Most bytes of a text that a reason may contain.
const REASON_BYTES_MAX: usize = 256;
/// Word for notifications without an attempt.
const WAITING: &str = "waiting";

/// Selection of notifications; all conditions must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NotificationQuery {
    /// Application.
    pub application: Option<Name>,
    /// Notification class.
    pub class: Option<Name>,
    /// Rule.
    pub rule: Option<Name>,
    /// Channel of the batch.
    pub channel: Option<Name>,
    /// Subscriber that is the recipient.
    pub subscriber: Option<SubscriberId>,
    /// Address of a device of the recipient.
    pub address: Option<String>,
    /// Outcomes of the last attempt, or `waiting`, separated by commas.
    pub outcome: Option<String>,
    /// Text in the reply to the last attempt, ASCII letters in either case.
    pub reason: Option<String>,
    /// Time of the match.
    pub period: Period,
}

/// A notification in a list.
#[derive(Debug, Clone)]
pub struct FoundNotification {
    /// Its id.
    pub id: NotificationId,
    /// Head of its batch.
    pub head: NotificationHead,
    /// Its subscription.
    pub subscription: SubscriptionId,
    /// Its event.
    pub event: tocsin_model::id::EventId,
    /// Number of attempts.
    pub attempts: u32,
    /// The last attempt.
    pub last: Option<Attempt>,
    /// Its present recipient; `None` if the subscription was removed.
    pub recipient: Option<Recipient>,
}

/// Wanted states: the outcome of the last attempt, or none.
struct States {
    outcomes: Vec<Outcome>,
    waiting: bool,
}

impl States {
    fn read(text: &str) -> Result<States, ServiceError> {
        let mut states = States { outcomes: Vec::new(), waiting: false };
        for word in text.split(',').map(str::trim) {
            match Outcome::ALL.into_iter().find(|outcome| outcome.word() == word) {
                Some(outcome) => states.outcomes.push(outcome),
                None if word == WAITING => states.waiting = true,
                None => {
                    let words = Outcome::ALL.map(Outcome::word).join(", ");
                    let problem = Problem::new(Code::UnknownValue, "outcome", format!("`{word}` is not an outcome"))
                        .param("value", word.to_owned());
                    return Err(ServiceError::Invalid(vec![problem.hint(format!("use {WAITING}, {words}"))]));
                }
            }
        }
        Ok(states)
    }

    fn has(&self, outcome: Option<Outcome>) -> bool {
        outcome.map_or(self.waiting, |outcome| self.outcomes.contains(&outcome))
    }

    /// Whether an index finds all batches with such notifications.
    fn are_failures(&self) -> bool {
        !self.waiting && self.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Refused | Outcome::Expired))
    }

    /// Whether a batch with this progress may contain one.
    fn may_be_in(&self, progress: &Progress, count: u32) -> bool {
        let closed = progress.delivered + progress.failed;
        let is_possible = |outcome: &Outcome| match outcome {
            Outcome::Delivered => progress.delivered > 0,
            Outcome::Refused | Outcome::Expired => progress.failed > 0,
            Outcome::Deferred | Outcome::Suspended => progress.open > 0,
            Outcome::Ended => closed + progress.open < count,
        };
        self.waiting && progress.open > 0 || self.outcomes.iter().any(is_possible)
    }
}

/// A checked query.
struct NotificationSearch<'q> {
    query: &'q NotificationQuery,
    states: Option<States>,
    reason: Option<String>,
    /// Subscriptions of the recipients; `None`: any.
    subscriptions: Option<HashSet<SubscriptionId>>,
}

type Head = (NotificationBatchId, NotificationHead);

impl NotificationSearch<'_> {
    fn may_hold(&self, head: &NotificationHead) -> bool {
        let is_or_any = |wanted: &Option<Name>, found: &Name| wanted.as_ref().is_none_or(|wanted| wanted == found);
        let query = self.query;
        is_or_any(&query.application, &head.application)
            && is_or_any(&query.class, &head.class)
            && is_or_any(&query.rule, &head.rule)
            && is_or_any(&query.channel, &head.channel)
            && query.period.contains(head.matched_at)
    }

    fn uses_index(&self) -> bool {
        self.states.as_ref().is_some_and(States::are_failures)
    }

    fn includes(&self, subscription: SubscriptionId, last: Option<&Attempt>) -> bool {
        let contains =
            |reason: &String| last.is_some_and(|attempt| attempt.reply.to_ascii_lowercase().contains(reason.as_str()));
        self.subscriptions.as_ref().is_none_or(|wanted| wanted.contains(&subscription))
            && self.states.as_ref().is_none_or(|states| states.has(last.map(|attempt| attempt.outcome)))
            && self.reason.as_ref().is_none_or(contains)
    }
}

impl Service {
    /// Searches notifications, newest first, in a bounded number of batches.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; a limited key gives no application of its own; `Invalid` with every
    /// problem; the subscriber, application, class, rule or channel never existed; `TooMany` concurrent searches.
    pub async fn search_notifications(
        &self,
        caller: &Caller,
        query: &NotificationQuery,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Scanned<FoundNotification>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        caller.check_application(query.application.as_ref())?;
        let from: Option<NotificationId> = key_of(after)?;
        let search = self.notification_search(caller, query).await?;
        let _permit = self.search_permit()?;
        let found = self.scan_notifications(&search, from, limit).await?;
        if found.items.is_empty() && after.is_none() {
            let parts = [
                (Part::NotificationClass, query.class.as_ref()),
                (Part::Rule, query.rule.as_ref()),
                (Part::Channel, query.channel.as_ref()),
            ];
            self.check_known(query.application.as_ref(), &parts).await?;
        }
        self.with_recipients(found).await
    }

    async fn notification_search<'q>(
        &self,
        caller: &Caller,
        query: &'q NotificationQuery,
    ) -> Result<NotificationSearch<'q>, ServiceError> {
        let states = query.outcome.as_deref().map(States::read).transpose()?;
        if query.reason.as_ref().is_some_and(|reason| reason.is_empty() || reason.len() > REASON_BYTES_MAX) {
            let problem = Problem::new(Code::TooLong, "reason", format!("should have 1 to {REASON_BYTES_MAX} bytes"));
            return Err(problem.param("limit", REASON_BYTES_MAX).param("unit", "bytes").into());
        }
        let reason = query.reason.as_ref().map(|reason| reason.to_ascii_lowercase());
        let subscriptions = self.subscriptions_of_recipients(caller, query).await?;
        Ok(NotificationSearch { query, states, reason, subscriptions })
    }

    /// Subscriptions of the recipients that a query names; `None`: it names none.
    async fn subscriptions_of_recipients(
        &self,
        caller: &Caller,
        query: &NotificationQuery,
    ) -> Result<Option<HashSet<SubscriptionId>>, ServiceError> {
        let (subscriber, address) = (query.subscriber.as_ref(), query.address.as_ref());
        let mut subscribers = match (subscriber, address) {
            (None, None) => return Ok(None),
            (Some(id), _) => {
                let found = self.subscriber_store.subscriber(id).await?;
                // A subscriber belongs to no application: its existence is not for a limited key.
                if found.is_none() && !caller.is_limited() {
                    return Err(ServiceError::Missing(format!("the subscriber `{id}`")));
                }
                Vec::from_iter(found)
            }
            (None, Some(address)) => {
                let filter = SubscriberFilter { address: Some(address.clone()), ..SubscriberFilter::default() };
                self.subscriber_store.scan_subscribers(&filter, None, SUBSCRIBERS_MAX).await?.items
            }
        };
        let mut wanted = HashSet::new();
        for subscriber in subscribers.drain(..) {
            let filter = SubscriptionFilter {
                subscriber: Some(subscriber.id.clone()),
                application: query.application.clone(),
                ..SubscriptionFilter::default()
            };
            let found = self.subscription_store.subscriptions(&filter, None, SUBSCRIPTIONS_MAX).await?;
            let reaches = |device: &Option<Name>| {
                let mut devices = subscriber.devices.iter();
                address.is_none_or(|address| {
                    devices.any(|(name, found)| {
                        found.address == *address && device.as_ref().is_none_or(|device| device == name)
                    })
                })
            };
            wanted.extend(found.into_iter().filter(|found| reaches(&found.device)).map(|found| found.id));
        }
        Ok(Some(wanted))
    }

    /// Scans the notifications before `from`, or the newest.
    async fn scan_notifications(
        &self,
        search: &NotificationSearch<'_>,
        from: Option<NotificationId>,
        limit: usize,
    ) -> Result<Scanned<FoundNotification>, ServiceError> {
        let mut budget = ScanBudget::new();
        let mut items = Vec::new();
        let mut scanned_to = None;
        // Batches before this number are left, and of the partly examined batch the notifications before an ordinal.
        let mut before = match from {
            Some(NotificationId { batch, ordinal: 0 }) => Some(batch),
            Some(NotificationId { batch, .. }) => Some(NotificationBatchId(batch.0.saturating_add(1))),
            None => self.notification_batches_until(search.query.period.to).await?,
        };
        let stopped = |at: NotificationId, budget: ScanBudget, items, scanned_to| {
            let next = Some(cursor(&at.to_string()));
            Ok(Scanned { items, next, scanned_to, batches: budget.heads, rows: budget.rows })
        };
        loop {
            let (heads, is_last) = self.candidate_batches(search, before).await?;
            for (id, head, progress) in heads {
                let limit_of_batch = from.filter(|from| from.batch == id).map_or(u32::MAX, |from| from.ordinal);
                if search.query.period.is_over(head.matched_at) {
                    return Ok(Scanned::whole(items, &budget));
                }
                let untouched = NotificationId { batch: id, ordinal: limit_of_batch };
                if !budget.take_head() {
                    return stopped(untouched, budget, items, scanned_to);
                }
                let is_candidate = search.may_hold(&head) && progress.is_none_or(|is_possible| is_possible);
                if is_candidate {
                    if !budget.take_batch() {
                        return stopped(untouched, budget, items, scanned_to);
                    }
                    let rest = self.search_batch(search, (id, head.clone()), limit_of_batch, limit, &mut items).await?;
                    budget.rows += rest.examined;
                    let reached = rest.reached.or((items.len() == limit).then_some(0));
                    if let Some(ordinal) = reached {
                        return stopped(NotificationId { batch: id, ordinal }, budget, items, Some(head.matched_at));
                    }
                }
                before = Some(id);
                scanned_to = Some(head.matched_at);
            }
            if is_last {
                return Ok(Scanned::whole(items, &budget));
            }
        }
    }

    /// The next heads, each with whether its progress allows a result if the search depends on it.
    async fn candidate_batches(
        &self,
        search: &NotificationSearch<'_>,
        before: Option<NotificationBatchId>,
    ) -> Result<(Vec<(NotificationBatchId, NotificationHead, Option<bool>)>, bool), ServiceError> {
        if search.uses_index() {
            let heads = self.notification_log.failed_batches(before, PAGE).await?;
            let is_last = heads.len() < PAGE;
            return Ok((heads.into_iter().map(|(id, head)| (id, head, None)).collect(), is_last));
        }
        let heads = self.notification_log.notification_batches(before, PAGE).await?;
        let is_last = heads.len() < PAGE;
        let Some(states) = &search.states else {
            return Ok((heads.into_iter().map(|(id, head, _)| (id, head, None)).collect(), is_last));
        };
        let ids: Vec<NotificationBatchId> = heads.iter().map(|(id, ..)| *id).collect();
        let progress = self.notification_log.progress(&ids).await?;
        let judged = heads.into_iter().zip(progress).map(|((id, head, count), progress)| {
            (id, head, progress.map(|progress| states.may_be_in(&progress, count)))
        });
        Ok((judged.collect(), is_last))
    }

    /// Examines the notifications of a batch before an ordinal, last first.
    async fn search_batch(
        &self,
        search: &NotificationSearch<'_>,
        (id, head): Head,
        before: u32,
        limit: usize,
        items: &mut Vec<FoundNotification>,
    ) -> Result<ExaminedBatch, ServiceError> {
        let none = ExaminedBatch { examined: 0, reached: None };
        let Some(stored) = self.notification_log.notification_batch(id).await? else { return Ok(none) };
        let notifications = &stored.notifications;
        let count = notifications.count().min(before as usize);
        let is_wanted = |subscription: &SubscriptionId| {
            search.subscriptions.as_ref().is_none_or(|wanted| wanted.contains(subscription))
        };
        if !notifications.subscriptions[..count].iter().any(is_wanted) {
            return Ok(ExaminedBatch { examined: count as u64, reached: None });
        }
        let mut last: Vec<(u32, Option<Attempt>)> = vec![(0, None); notifications.count()];
        for attempt in self.notification_log.attempts(id).await? {
            if let Some(place) = last.get_mut(attempt.ordinal as usize) {
                *place = (place.0 + 1, Some(attempt));
            }
        }
        let events: Vec<_> = notifications.event_of_each().collect();
        for at in (0..count).rev() {
            let subscription = notifications.subscriptions[at];
            let (attempts, last) = &last[at];
            let Some(event) = events.get(at).filter(|_| search.includes(subscription, last.as_ref())) else { continue };
            if items.len() == limit {
                return Ok(ExaminedBatch { examined: (count - at) as u64, reached: Some(at as u32 + 1) });
            }
            items.push(FoundNotification {
                id: NotificationId { batch: id, ordinal: at as u32 },
                head: head.clone(),
                subscription,
                event: *event,
                attempts: *attempts,
                last: last.clone(),
                recipient: None,
            });
        }
        Ok(ExaminedBatch { examined: count as u64, reached: None })
    }

    /// Number before which all batches made before a time are; `None`: all. Binary search in the order of numbers.
    async fn notification_batches_until(&self, to: Timestamp) -> Result<Option<NotificationBatchId>, ServiceError> {
        if to > self.clock.now() {
            return Ok(None);
        }
        let Some((newest, ..)) = self.notification_log.notification_batches(None, 1).await?.pop() else {
            return Ok(None);
        };
        // Batches up to `early` are before the time; those after `late` are not.
        let (to, mut early, mut late) = (to + LEEWAY, 0, newest.0);
        while early < late {
            let middle = early + (late - early) / 2;
            let next = self.notification_log.notification_batches_after(NotificationBatchId(middle), 1).await?.pop();
            match next {
                Some((id, head, _)) if head.matched_at < to && id.0 <= late => early = id.0,
                _ => late = middle,
            }
        }
        Ok(Some(NotificationBatchId(early + 1)))
    }

    async fn with_recipients(
        &self,
        mut found: Scanned<FoundNotification>,
    ) -> Result<Scanned<FoundNotification>, ServiceError> {
        let subscriptions: Vec<SubscriptionId> = found.items.iter().map(|item| item.subscription).collect();
        let recipients = self.recipient_store.recipients(&subscriptions).await?;
        found.items.iter_mut().zip(recipients).for_each(|(item, recipient)| item.recipient = recipient);
        Ok(found)
    }
}

/// Part of a batch that was examined.
struct ExaminedBatch {
    examined: u64,
    /// Ordinal before which notifications are left, if the page is full.
    reached: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_excludes_batches_without_a_wanted_outcome() {
        let progress = Progress { open: 0, attempts: 5, delivered: 3, failed: 1, ..Progress::default() };
        let check = |text: &str, expected: bool| {
            let states = States::read(text).expect("outcomes");
            assert_eq!(states.may_be_in(&progress, 5), expected, "{text}");
        };
        check("delivered", true);
        check("refused", true);
        check("waiting,deferred, suspended", false);
        check("ended", true);
        assert!(States::read("expired,refused").expect("outcomes").are_failures());
        assert!(!States::read("refused,waiting").expect("outcomes").are_failures());
        assert!(States::read("sent").is_err());
    }
}
