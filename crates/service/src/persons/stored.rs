//! Data of a person in the journal: events that name it, and its notifications.

use serde_json::{Value as Json, json};
use tocsin_model::id::{EventBatchId, EventId, NotificationBatchId, NotificationId};
use tocsin_store::journal::{DelayedFilter, ErasedPerson, Erasure, PersonNames};

use crate::{Service, error::ServiceError};

/// Batches read at a time.
const BATCHES: usize = 100;
/// Delayed notifications read at a time.
const DELAYED: usize = 1_000;

impl Service {
    /// Events that name a person, oldest first.
    pub(super) async fn events_naming(&self, person: &ErasedPerson) -> Result<Vec<Json>, ServiceError> {
        let newest = self.event_log.event_batches(None, 1).await?;
        let Some(last_event) = newest.first().map(|(batch, _)| batch.id) else { return Ok(Vec::new()) };
        let mut scan = Erasure {
            person: Some(person.clone()),
            number: person.number,
            asked_at: self.clock.now(),
            last_event,
            events: EventBatchId(0),
            notifications: NotificationBatchId(0),
        };
        let mut events = Vec::new();
        while scan.events < last_event {
            let (found, examined) = self.erasures.event_batches_naming(&scan, BATCHES).await?;
            for id in found {
                self.add_events(&mut events, id, &person.names).await?;
            }
            scan.events = examined;
        }
        Ok(events)
    }

    async fn add_events(
        &self,
        events: &mut Vec<Json>,
        id: EventBatchId,
        names: &PersonNames,
    ) -> Result<(), ServiceError> {
        let Some((batch, _)) = self.event_log.event_batch(id).await? else { return Ok(()) };
        let Ok(fields) = self.fields_of(&batch).await else { return Ok(()) };
        for ordinal in 0..batch.events.count() {
            let Ok(row) = batch.events.row(&fields, ordinal) else { break };
            if row.iter().any(|value| names.is_in_value(value)) {
                let values = fields.iter().zip(&row).map(|(field, value)| (field.name.to_string(), json!(value)));
                events.push(json!({
                    "id": EventId { batch: id, ordinal }.to_string(), "application": batch.application,
                    "class": batch.class, "source": batch.source, "accepted_at": batch.accepted_at,
                    "values": values.collect::<serde_json::Map<_, _>>(),
                }));
            }
        }
        Ok(())
    }

    /// Notifications to a person, oldest first, with their attempts.
    pub(super) async fn notifications_to(&self, person: &ErasedPerson) -> Result<Vec<Json>, ServiceError> {
        let mut notifications = Vec::new();
        let mut after = NotificationBatchId(0);
        loop {
            let page = self.notification_log.notification_batches_after(after, BATCHES).await?;
            let Some((last, _, _)) = page.last() else { return Ok(notifications) };
            after = *last;
            for (batch, _, _) in page {
                let Some(stored) = self.notification_log.notification_batch(batch).await? else { continue };
                for (ordinal, subscription) in (0u32..).zip(&stored.notifications.subscriptions) {
                    if person.subscriptions.binary_search(subscription).is_ok() {
                        notifications.push(self.notification_json(NotificationId { batch, ordinal }).await?);
                    }
                }
            }
        }
    }

    async fn notification_json(&self, id: NotificationId) -> Result<Json, ServiceError> {
        let found = self.find_notification(id).await?;
        let attempts = found.attempts.iter().map(|attempt| {
            json!({
                "number": attempt.number, "outcome": attempt.outcome, "sent_at": attempt.sent_at,
                "answered_at": attempt.answered_at, "reply": attempt.reply,
            })
        });
        Ok(json!({
            "id": id.to_string(), "application": found.head.application, "class": found.head.class,
            "rule": found.head.rule, "channel": found.head.channel, "matched_at": found.head.matched_at,
            "subscription": found.subscription, "event": found.event_id.to_string(),
            "values": found.fields.iter().map(|(name, value)| (name.clone(), json!(value)))
                .collect::<serde_json::Map<_, _>>(),
            "attempts": attempts.collect::<Vec<_>>(),
        }))
    }

    /// Delayed notifications to a person that wait.
    pub(super) async fn delayed_to(&self, person: &ErasedPerson) -> Result<Vec<Json>, ServiceError> {
        let mut all = Vec::new();
        for subscription in &person.subscriptions {
            let filter = DelayedFilter { subscription: Some(*subscription), ..DelayedFilter::default() };
            let mut after = 0;
            loop {
                let page = self.delays.delayed(&filter, after, DELAYED).await?;
                let is_last = page.len() < DELAYED;
                for delayed in page {
                    after = delayed.id;
                    all.push(json!({
                        "application": delayed.application, "rule": delayed.rule, "due_at": delayed.due_at,
                        "subscription": delayed.subscription, "event": delayed.event.to_string(), "key": delayed.key,
                    }));
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(all)
    }
}
