//! Trace of a thing: all steps in order, from acceptance to the receiver's answer.

use std::{collections::BTreeMap, time::Duration};

mod messages; // what systems said to each other

use tocsin_model::{
    event::EventBatch,
    feedback::FeedbackEntry,
    id::{EventBatchId, EventId, MessageId, NotificationBatchId, NotificationId, SubscriberId, SubscriptionId},
    plural::plural,
    receipt::{Attempt, Outcome},
    time::Timestamp,
    trace_context::TraceContext,
};
use tocsin_store::{
    journal::{Delayed, DelayedFilter, EventBatchState, StoredNotificationBatch},
    records::SubscriptionFilter,
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    operations::counted,
};

/// Maximum number of notification batches looked through for one trace.
pub const BATCHES_MAX: usize = 200;
/// Maximum number of points on a timeline.
pub const POINTS_MAX: usize = 2_000;
/// Maximum number of delayed notifications of an event batch or subscription on a timeline.
const DELAYED_MAX: usize = 500;
/// Maximum number of a subscriber's subscriptions searched.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// A traceable thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// One event.
    Event(EventId),
    /// The events of one submission.
    EventBatch(EventBatchId),
    /// One notification.
    Notification(NotificationId),
    /// The notifications of one rule firing.
    NotificationBatch(NotificationBatchId),
    /// A message of an exchange.
    Message(MessageId),
    /// A subscriber.
    Subscriber(SubscriberId),
}

impl Subject {
    /// Parses an id; a text that matches no other form is a subscriber id.
    ///
    /// # Errors
    /// It is not even a valid subscriber id.
    pub fn read(id: &str) -> Result<Subject, ServiceError> {
        if let Ok(id) = id.parse() {
            return Ok(Subject::Event(id));
        }
        if let Ok(id) = id.parse() {
            return Ok(Subject::EventBatch(id));
        }
        if let Ok(id) = id.parse() {
            return Ok(Subject::Notification(id));
        }
        if let Ok(id) = id.parse() {
            return Ok(Subject::NotificationBatch(id));
        }
        if let Ok(id) = id.parse() {
            return Ok(Subject::Message(id));
        }
        Ok(Subject::Subscriber(id.parse()?))
    }

    /// Kind, as words.
    pub fn kind(&self) -> &'static str {
        match self {
            Subject::Event(_) => "event",
            Subject::EventBatch(_) => "event batch",
            Subject::Notification(_) => "notification",
            Subject::NotificationBatch(_) => "notification batch",
            Subject::Message(_) => "message",
            Subject::Subscriber(_) => "subscriber",
        }
    }
}

/// A step of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// Time.
    pub at: Timestamp,
    /// Kind: `created`, `accepted`, `matched`, `formatted`, `sent`, the name of an outcome, ...
    pub what: &'static str,
    /// Target.
    pub id: String,
    /// Description; the receiver's reply where there is one.
    pub text: String,
}

/// Durations of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latencies {
    /// From acceptance to the match.
    pub generation: Option<Duration>,
    /// From the match to the first hand-over.
    pub wait: Option<Duration>,
    /// From the first hand-over to the last delivery.
    pub delivery: Option<Duration>,
}

/// A timeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The traced thing.
    pub subject: Subject,
    /// Steps, in order of time.
    pub timeline: Vec<Point>,
    /// Number of notifications by outcome of their last attempt; `waiting` for those without.
    pub notifications: BTreeMap<&'static str, u64>,
    /// Durations; none for a subscriber.
    pub latencies: Latencies,
    /// W3C trace context of its event; of a batch, those of all its events.
    pub context: Option<TraceContext>,
    /// Whether the trace is truncated.
    pub truncated: bool,
}

impl Service {
    /// Builds the trace of a thing. Examines at most [`BATCHES_MAX`] notification batches.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the object does not exist (any more).
    pub async fn trace(&self, caller: &Caller, subject: Subject) -> Result<Trace, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let mut trace = TraceBuilder::default();
        match &subject {
            Subject::EventBatch(id) => {
                let (batch, state) = self.find_event_batch(*id).await?;
                trace.accepted(&batch, None);
                trace.state(&batch, &state);
                self.add_batches(&mut trace, *id, |_| true, false).await?;
                self.add_delayed(&mut trace, *id, |_| true).await?;
            }
            Subject::Event(id) => {
                let (batch, state) = self.find_event_batch(id.batch).await?;
                if id.ordinal >= batch.events.count() {
                    return Err(ServiceError::Missing(format!("the event {id}")));
                }
                trace.accepted(&batch, Some(*id));
                trace.state(&batch, &state);
                let requested = *id;
                self.add_batches(&mut trace, id.batch, move |event| event == requested, true).await?;
                self.add_delayed(&mut trace, id.batch, move |event| event == requested).await?;
            }
            Subject::NotificationBatch(id) => {
                let stored = self.find_notification_batch(*id).await?;
                let from = stored.notifications.events.first().map(|run| run.event.batch);
                if let Some(from) = from
                    && let Some((batch, _)) = self.event_log.event_batch(from).await?
                {
                    trace.accepted(&batch, None);
                }
                let attempts = self.notification_log.attempts(*id).await?;
                trace.batch(&stored, &attempts);
                self.add_feedback(&mut trace, *id, None).await?;
                self.add_open_work(&mut trace, *id, None).await?;
            }
            Subject::Notification(id) => {
                let notification = self.find_notification(*id).await?;
                if let Some((batch, _)) = self.event_log.event_batch(notification.event_id.batch).await? {
                    trace.accepted(&batch, Some(notification.event_id));
                }
                let head = &notification.head;
                let text = format!(
                    "rule `{}` for {}, through channel `{}`",
                    head.rule, notification.subscription, head.channel
                );
                trace.point(head.matched_at, "matched", id, text);
                trace.matched = Some(head.matched_at);
                for attempt in &notification.attempts {
                    trace.attempt(*id, attempt);
                }
                trace.outcome(notification.outcome, 1);
                self.add_feedback(&mut trace, id.batch, Some(id.ordinal)).await?;
                self.add_open_work(&mut trace, id.batch, Some(id.ordinal)).await?;
            }
            Subject::Message(id) => self.add_message(&mut trace, *id).await?,
            Subject::Subscriber(id) => self.add_subscriber(&mut trace, id).await?,
        }
        Ok(trace.finish(subject))
    }

    /// Adds the notification batches of an event batch: each as a whole, or its notifications of wanted events.
    async fn add_batches(
        &self,
        trace: &mut TraceBuilder,
        of: EventBatchId,
        requested: impl Fn(EventId) -> bool,
        each: bool,
    ) -> Result<(), ServiceError> {
        let batches =
            self.notification_log.notification_batches_of(of, NotificationBatchId(0), BATCHES_MAX + 1).await?;
        trace.truncated |= batches.len() > BATCHES_MAX;
        for (id, ..) in batches.into_iter().take(BATCHES_MAX) {
            let Some(stored) = self.notification_log.notification_batch(id).await? else { continue };
            let attempts = self.notification_log.attempts(id).await?;
            if each {
                let places = stored.notifications.event_of_each().enumerate().filter(|(_, event)| requested(*event));
                trace.notifications(&stored, &attempts, places.map(|(at, _)| at as u32).collect());
            } else {
                trace.batch(&stored, &attempts);
            }
        }
        Ok(())
    }

    /// Adds the delayed notifications that wait for events of a batch, at their due times.
    async fn add_delayed(
        &self,
        trace: &mut TraceBuilder,
        of: EventBatchId,
        requested: impl Fn(EventId) -> bool,
    ) -> Result<(), ServiceError> {
        let filter = DelayedFilter { event_batch: Some(of), ..DelayedFilter::default() };
        let found = self.delays.delayed(&filter, 0, DELAYED_MAX + 1).await?;
        trace.truncated |= found.len() > DELAYED_MAX;
        for delayed in found.into_iter().take(DELAYED_MAX).filter(|found| requested(found.event)) {
            self.add_waiting(trace, &delayed);
        }
        Ok(())
    }

    fn add_waiting(&self, trace: &mut TraceBuilder, delayed: &Delayed) {
        let Delayed { id, application, rule, event, subscription, due_at, key, run } = delayed;
        let running = self.pipeline.application(application);
        let rule_of = running.as_ref().and_then(|running| running.application.rules.get(rule));
        let cancels = rule_of.and_then(|rule| rule.delay.as_ref()).map(|delay| &delay.cancel_on);
        let cancels: Vec<String> = cancels.into_iter().flatten().map(|(class, _)| format!("`{class}`")).collect();
        let unless = match (run, cancels.as_slice()) {
            (Some(run), _) => format!(", and is due in {run}"),
            (None, []) => String::new(),
            (None, classes) => format!(" unless cancelled by {}", classes.join(" or ")),
        };
        let key = key.as_ref().map_or(String::new(), |key| format!(" with the key {key}"));
        let text = format!("rule `{rule}` delays the notification of {event} for {subscription}{unless}{key}");
        trace.point(*due_at, "due", format!("delayed {id}"), text);
    }

    /// Adds the due times of a batch's open work, and its suspensions.
    async fn add_open_work(
        &self,
        trace: &mut TraceBuilder,
        id: NotificationBatchId,
        ordinal: Option<u32>,
    ) -> Result<(), ServiceError> {
        let concerns = |ordinals: &Vec<u32>| ordinal.is_none_or(|ordinal| ordinals.binary_search(&ordinal).is_ok());
        for item in self.open_work.open_work(id).await? {
            if item.ordinals.as_ref().is_none_or(concerns) {
                let text = format!("due for attempt {}", item.attempts + 1);
                trace.point(item.due_at, "due", item.claim.id, text);
            }
        }
        let filter = tocsin_store::journal::SuspensionFilter { batch: Some(id), ..Default::default() };
        for stored in self.operator_actions.suspensions(&filter, 0, 100).await? {
            if concerns(&stored.suspension.ordinals) {
                let text =
                    format!("{} wait for an operator: {}", stored.suspension.ordinals.len(), stored.suspension.reason);
                trace.point(stored.suspension.since, "suspended", stored.id, text);
            }
        }
        Ok(())
    }

    /// Adds the bounces, complaints and other feedback to sent messages.
    async fn add_feedback(
        &self,
        trace: &mut TraceBuilder,
        id: NotificationBatchId,
        ordinal: Option<u32>,
    ) -> Result<(), ServiceError> {
        for entry in self.feedback_of(id, ordinal).await? {
            let FeedbackEntry { class, effect, origin, detail, .. } = &entry;
            let whose = entry.device.as_ref();
            let whose = whose.map(|(id, device)| format!(" of device `{device}` of {id}")).unwrap_or_default();
            let text = format!("{}{whose} by {origin}, {effect}: {detail}", class.word());
            let subject = entry.notification.map_or_else(|| id.to_string(), |id| id.to_string());
            trace.point(entry.at, "feedback", subject, text);
        }
        Ok(())
    }

    /// Adds a subscriber, its subscriptions, and its notifications in the newest batches.
    async fn add_subscriber(&self, trace: &mut TraceBuilder, id: &SubscriberId) -> Result<(), ServiceError> {
        let subscriber = self.find_subscriber(id).await?;
        trace.point(subscriber.created_at, "created", id, String::new());
        if subscriber.updated_at != subscriber.created_at {
            trace.point(subscriber.updated_at, "changed", id, format!("revision {}", subscriber.revision));
        }
        let filter = SubscriptionFilter { subscriber: Some(id.clone()), ..SubscriptionFilter::default() };
        let subscriptions = self.subscription_store.subscriptions(&filter, None, SUBSCRIPTIONS_MAX).await?;
        trace.truncated |= subscriptions.len() == SUBSCRIPTIONS_MAX;
        for subscription in subscriptions.iter().take(100) {
            let text = format!("to `{}` of `{}`", subscription.class, subscription.application);
            trace.point(subscription.created_at, "subscribed", subscription.id, text);
        }
        for subscription in subscriptions.iter().take(100) {
            let filter = DelayedFilter { subscription: Some(subscription.id), ..DelayedFilter::default() };
            for delayed in self.delays.delayed(&filter, 0, DELAYED_MAX).await? {
                self.add_waiting(trace, &delayed);
            }
        }
        let numbers: std::collections::HashSet<SubscriptionId> = subscriptions.iter().map(|found| found.id).collect();
        let newest = self.notification_log.notification_batches(None, BATCHES_MAX).await?;
        trace.truncated |= newest.len() == BATCHES_MAX;
        for (id, _, _) in newest {
            let Some(stored) = self.notification_log.notification_batch(id).await? else { continue };
            let places: Vec<u32> = (0..)
                .zip(&stored.notifications.subscriptions)
                .filter(|(_, subscription)| numbers.contains(subscription))
                .map(|(at, _)| at)
                .collect();
            if !places.is_empty() {
                let attempts = self.notification_log.attempts(id).await?;
                trace.notifications(&stored, &attempts, places);
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct TraceBuilder {
    points: Vec<Point>,
    notifications: BTreeMap<&'static str, u64>,
    truncated: bool,
    accepted: Option<Timestamp>,
    matched: Option<Timestamp>,
    first_sent: Option<Timestamp>,
    last_delivered: Option<Timestamp>,
    context: Option<TraceContext>,
}

impl TraceBuilder {
    fn point(&mut self, at: Timestamp, what: &'static str, id: impl ToString, text: String) {
        if self.points.len() < POINTS_MAX {
            self.points.push(Point { at, what, id: id.to_string(), text });
        } else {
            self.truncated = true;
        }
    }

    fn accepted(&mut self, batch: &EventBatch, event: Option<EventId>) {
        let place = match event {
            Some(event) => format!("event {} of {}", event.ordinal + 1, batch.events.count()),
            None => {
                let count = batch.events.count();
                format!("{count} {}", plural(u64::from(count), "event", "events"))
            }
        };
        let text =
            format!("{place} of class `{}` of `{}` from source `{}`", batch.class, batch.application, batch.source);
        self.point(batch.received_at, "received", batch.id, text);
        self.point(batch.accepted_at, "accepted", batch.id, format!("packed by version {}", batch.version));
        self.accepted = Some(batch.accepted_at);
        let traces = batch.events.traces();
        self.context = match event {
            Some(event) => traces.find(event.ordinal).map(|(_, context)| context.clone()),
            None => traces.iter().map(|(_, context)| context.clone()).next().filter(|_| traces.iter().count() == 1),
        };
    }

    fn state(&mut self, batch: &EventBatch, state: &EventBatchState) {
        match state {
            EventBatchState::Accepted => {}
            EventBatchState::Matched(at) => {
                self.point(*at, "matched", batch.id, String::new());
                self.matched = Some(*at);
            }
            EventBatchState::Failed(reason) => self.point(batch.accepted_at, "failed", batch.id, reason.clone()),
        }
    }

    fn batch(&mut self, stored: &StoredNotificationBatch, attempts: &[Attempt]) {
        let head = &stored.head;
        let count = stored.notifications.count();
        let noun = plural(count as u64, "notification", "notifications");
        let text = format!("rule `{}`: {count} {noun} through channel `{}`", head.rule, head.channel);
        self.point(head.matched_at, "batched", stored.id, text);
        self.matched.get_or_insert(head.matched_at);
        let found = counted(stored, attempts);
        for (outcome, count) in Outcome::ALL.into_iter().zip(found.outcomes) {
            self.outcome(Some(outcome), u64::from(count));
        }
        self.outcome(None, u64::from(found.untried));
        if let Some(first) = attempts.iter().filter(|attempt| attempt.was_sent()).min_by_key(|attempt| attempt.sent_at)
        {
            self.point(first.sent_at, "first sent", stored.id, format!("attempt {}", first.number));
        }
        if let Some(last) = attempts.iter().max_by_key(|attempt| attempt.answered_at) {
            let text = format!("{} delivered of {count}", found.outcomes[Outcome::Delivered as usize]);
            self.point(last.answered_at, "last answered", stored.id, text);
        }
        for attempt in attempts {
            self.times(attempt);
        }
    }

    fn notifications(&mut self, stored: &StoredNotificationBatch, attempts: &[Attempt], ordinals: Vec<u32>) {
        let mut by_ordinal: BTreeMap<u32, Vec<&Attempt>> =
            ordinals.into_iter().map(|ordinal| (ordinal, Vec::new())).collect();
        for attempt in attempts {
            if let Some(list) = by_ordinal.get_mut(&attempt.ordinal) {
                list.push(attempt);
            }
        }
        for (ordinal, attempts) in by_ordinal {
            let id = NotificationId { batch: stored.id, ordinal };
            let subscription = stored.notifications.subscriptions.get(ordinal as usize);
            let to = subscription.map(|subscription| format!(" for {subscription}")).unwrap_or_default();
            let text = format!("rule `{}`{to}, through channel `{}`", stored.head.rule, stored.head.channel);
            self.point(stored.head.matched_at, "matched", id, text);
            self.matched.get_or_insert(stored.head.matched_at);
            self.outcome(attempts.last().map(|attempt| attempt.outcome), 1);
            for attempt in attempts {
                self.attempt(id, attempt);
            }
        }
    }

    fn attempt(&mut self, id: NotificationId, attempt: &Attempt) {
        if attempt.was_sent() {
            self.point(attempt.formatted_at, "formatted", id, format!("for attempt {}", attempt.number));
            self.point(attempt.sent_at, "sent", id, format!("attempt {}", attempt.number));
        }
        self.point(attempt.answered_at, attempt.outcome.word(), id, attempt.reply.clone());
        self.times(attempt);
    }

    fn times(&mut self, attempt: &Attempt) {
        if attempt.was_sent() {
            self.first_sent = Some(self.first_sent.map_or(attempt.sent_at, |first| first.min(attempt.sent_at)));
        }
        if attempt.outcome == Outcome::Delivered {
            let at = attempt.answered_at;
            self.last_delivered = Some(self.last_delivered.map_or(at, |last| last.max(at)));
        }
    }

    fn outcome(&mut self, outcome: Option<Outcome>, count: u64) {
        if count > 0 {
            *self.notifications.entry(outcome.map_or("waiting", Outcome::word)).or_default() += count;
        }
    }

    fn finish(mut self, subject: Subject) -> Trace {
        // Stable sort: steps with equal times stay in the order of the flow.
        self.points.sort_by_key(|point| point.at);
        let between = |from: Option<Timestamp>, to: Option<Timestamp>| Some(to?.since(from?));
        let latencies = match &subject {
            // Its notifications are of different events.
            Subject::Subscriber(_) => Latencies::default(),
            _ => Latencies {
                generation: between(self.accepted, self.matched),
                wait: between(self.matched, self.first_sent),
                delivery: between(self.first_sent, self.last_delivered),
            },
        };
        Trace {
            subject,
            timeline: self.points,
            notifications: self.notifications,
            latencies,
            context: self.context,
            truncated: self.truncated,
        }
    }
}
