//! Notifications of delayed rules that wait for their due time.

use async_trait::async_trait;
use tocsin_model::{
    id::{EventBatchId, EventId, Name, SubscriptionId},
    time::Timestamp,
};

use crate::{error::StoreError, journal::events::NewEventBatch};

/// Notifications of delayed rules that wait. Steps of the matcher add and cancel them; one task of the pipeline assigns
/// the due ones to an event batch, whose step ends them.
///
/// There is one for each rule, event and subscription. An event batch is retained while any waits for one of its
/// events. A look-up uses an index by due time, key or subscription.
#[async_trait]
pub trait Delays: Send + Sync + 'static {
    /// The earliest due time of an application, with its rule, of all rules but `except`. Notifications assigned to a
    /// due time are not counted.
    async fn next_delayed(&self, application: &Name, except: &[Name]) -> Result<Option<(Timestamp, Name)>, StoreError>;

    /// Accepts the event batch of a due time, and assigns to it up to `limit` notifications of the rule that are due,
    /// the earliest first, in one commit. `None` if none is due; then nothing was stored.
    ///
    /// # Errors
    /// `Full`, as in [`EventLog::accept`](super::EventLog::accept); nothing was stored.
    async fn assign_due(&self, due: DueDelays) -> Result<Option<EventBatchId>, StoreError>;

    /// Notifications assigned to an event batch, by number.
    async fn delayed_of(&self, run: EventBatchId) -> Result<Vec<Delayed>, StoreError>;

    /// Up to `limit` waiting notifications by number, after `after`.
    async fn delayed(&self, filter: &DelayedFilter, after: u64, limit: usize) -> Result<Vec<Delayed>, StoreError>;

    /// Removes up to `limit` waiting notifications that are not assigned to a due time. Returns their number.
    async fn cancel_delayed(&self, filter: &DelayedFilter, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Number of waiting notifications of an application. Cheap: reads a counter.
    async fn delayed_count(&self, application: &Name) -> Result<u64, StoreError>;
}

/// Parameters of [`Delays::assign_due`].
#[derive(Debug, Clone)]
pub struct DueDelays {
    /// Event batch of the due time.
    pub batch: NewEventBatch,
    /// Rule.
    pub rule: Name,
    /// Current time.
    pub now: Timestamp,
    /// Most notifications.
    pub limit: usize,
}

/// A notification to delay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDelayed {
    /// Application of the rule.
    pub application: Name,
    /// Rule.
    pub rule: Name,
    /// Event.
    pub event: EventId,
    /// Subscription.
    pub subscription: SubscriptionId,
    /// Due time.
    pub due_at: Timestamp,
    /// Correlation key.
    pub key: Option<Box<str>>,
}

/// A notification that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delayed {
    /// Its number. Numbers are not reused.
    pub id: u64,
    /// See [`NewDelayed`].
    pub application: Name,
    /// See [`NewDelayed`].
    pub rule: Name,
    /// See [`NewDelayed`].
    pub event: EventId,
    /// See [`NewDelayed`].
    pub subscription: SubscriptionId,
    /// See [`NewDelayed`].
    pub due_at: Timestamp,
    /// See [`NewDelayed`].
    pub key: Option<Box<str>>,
    /// Event batch of the due time, once it is due.
    pub run: Option<EventBatchId>,
}

/// An event that cancels notifications of a rule that began before it and are not due before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelDelayed {
    /// Application of the rule.
    pub application: Name,
    /// Rule.
    pub rule: Name,
    /// Cancelling event.
    pub by: EventId,
    /// Correlation with the notifications.
    pub correlation: Correlation,
}

/// Correlation of a cancelling event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Correlation {
    /// By their subscription.
    Subscription(SubscriptionId),
    /// By their key.
    Key(Box<str>),
}

impl CancelDelayed {
    /// Whether it cancels a notification. One that is due earlier in the log is not cancelled.
    pub fn cancels(&self, delayed: &Delayed) -> bool {
        let is_correlated = match &self.correlation {
            Correlation::Subscription(subscription) => delayed.subscription == *subscription,
            Correlation::Key(key) => delayed.key.as_ref() == Some(key),
        };
        is_correlated
            && (&delayed.application, &delayed.rule) == (&self.application, &self.rule)
            && delayed.event < self.by
            && delayed.run.is_none_or(|run| run > self.by.batch)
    }
}

/// Filter of waiting notifications; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DelayedFilter {
    /// Number.
    pub id: Option<u64>,
    /// Application.
    pub application: Option<Name>,
    /// Rule.
    pub rule: Option<Name>,
    /// Subscription.
    pub subscription: Option<SubscriptionId>,
    /// Event batch.
    pub event_batch: Option<EventBatchId>,
    /// Due before this time.
    pub due_before: Option<Timestamp>,
}

impl DelayedFilter {
    /// Whether a notification satisfies it.
    pub(crate) fn matches(&self, delayed: &Delayed) -> bool {
        self.id.is_none_or(|id| id == delayed.id)
            && self.application.as_ref().is_none_or(|application| *application == delayed.application)
            && self.rule.as_ref().is_none_or(|rule| *rule == delayed.rule)
            && self.subscription.is_none_or(|subscription| subscription == delayed.subscription)
            && self.event_batch.is_none_or(|batch| batch == delayed.event.batch)
            && self.due_before.is_none_or(|before| delayed.due_at < before)
    }
}
