//! Erasure of a person.

use async_trait::async_trait;
use tocsin_model::{
    id::{EventBatchId, NotificationBatchId, SubscriberNumber},
    notification::Notifications,
    time::Timestamp,
};

use super::{MemoryJournal, state::is_free};
use crate::{
    error::StoreError,
    journal::{ErasedEvents, ErasedNotifications, ErasedPerson, Erasure, Erasures, EventBatchState},
};

#[async_trait]
impl Erasures for MemoryJournal {
    async fn begin_erasure(&self, person: ErasedPerson, now: Timestamp) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let (number, last_event) = (person.number, EventBatchId(state.last.event_batch));
        let erasure = Erasure {
            person: Some(person),
            number,
            asked_at: now,
            last_event,
            events: EventBatchId(0),
            notifications: NotificationBatchId(0),
        };
        state.erasures.insert(number, erasure);
        Ok(())
    }

    async fn erasures(&self) -> Result<Vec<Erasure>, StoreError> {
        Ok(self.state.lock().erasures.values().cloned().collect())
    }

    async fn event_batches_naming(
        &self,
        erasure: &Erasure,
        limit: usize,
    ) -> Result<(Vec<EventBatchId>, EventBatchId), StoreError> {
        let Some(person) = &erasure.person else { return Ok((Vec::new(), erasure.last_event)) };
        let state = self.state.lock();
        let range = erasure.events.0 + 1..=erasure.last_event.0.max(erasure.events.0);
        let mut found = Vec::new();
        for (id, events) in state.event_batches.range(range) {
            let batch = &events.batch;
            if person.names.may_be_in(batch.events.bytes()) || person.names.may_be_in(&batch.chronicled) {
                found.push(EventBatchId(*id));
            }
            if found.len() == limit {
                return Ok((found, EventBatchId(*id)));
            }
        }
        Ok((found, erasure.last_event))
    }

    async fn erase_events(
        &self,
        person: SubscriberNumber,
        events: Vec<ErasedEvents>,
        examined: EventBatchId,
    ) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        for erased in events {
            if let Some(stored) = state.event_batches.get_mut(&erased.batch.0) {
                (stored.batch.events, stored.batch.chronicled) = (erased.events, erased.chronicled);
            }
        }
        if let Some(erasure) = state.erasures.get_mut(&person) {
            erasure.events = erasure.events.max(examined);
        }
        Ok(())
    }

    async fn erase_notifications(&self, erasure: &Erasure, now: Timestamp) -> Result<ErasedNotifications, StoreError> {
        let Some(person) = &erasure.person else { return Ok(ErasedNotifications::All(erasure.notifications)) };
        let mut state = self.state.lock();
        let state = &mut *state;
        let is_waiting = state
            .event_batches
            .range(..=erasure.last_event.0)
            .any(|(id, events)| events.state == EventBatchState::Accepted || !is_free(&state.event_claims, *id, now));
        let subscriptions = person.subscription_set();
        let mut reached = NotificationBatchId(state.last.notification_batch);
        let mut is_busy = false;
        for (id, batch) in state.notification_batches.range_mut(erasure.notifications.0 + 1..) {
            let Ok(mut notifications) = Notifications::unpack(&batch.packed) else { continue };
            let (is_erased, ordinals) = person.erase_captured(&subscriptions, &mut notifications);
            if is_erased {
                batch.packed = notifications.pack().into();
            }
            person.erase_replies(&ordinals, &mut batch.attempts);
            let mut items = state.work.iter_mut().filter(|(_, item)| item.batch.0 == *id);
            let is_claimed = |item: u64| !is_free(&state.work_claims, item, now);
            if !ordinals.is_empty() && items.by_ref().any(|(item, _)| is_claimed(*item)) && !is_busy {
                (is_busy, reached) = (true, NotificationBatchId(*id - 1));
            }
            let edits = state.work.values_mut().filter(|item| item.batch.0 == *id).map(|item| {
                let own = item.ordinals.as_deref().is_some_and(|all| is_own(&ordinals, all));
                (own, &mut item.work_state.edit)
            });
            let suspended = state.suspensions.values_mut().filter(|suspended| suspended.batch.0 == *id);
            let suspended =
                suspended.map(|suspended| (is_own(&ordinals, &suspended.ordinals), &mut suspended.work_state.edit));
            for (own, edit) in edits.chain(suspended) {
                let erased = edit.as_deref().and_then(|edit| person.names.erased_json(edit));
                match (own, erased) {
                    (true, _) => *edit = None,
                    (false, Some(erased)) => *edit = Some(erased.into()),
                    (false, None) => {}
                }
            }
        }
        if let Some(erasure) = state.erasures.get_mut(&erasure.number) {
            erasure.notifications = erasure.notifications.max(reached);
        }
        Ok(match is_busy || is_waiting {
            true => ErasedNotifications::Waiting(reached),
            false => ErasedNotifications::All(reached),
        })
    }

    async fn erase_texts(&self, erasure: &Erasure, _: Timestamp) -> Result<(), StoreError> {
        let Some(ErasedPerson { names, subscriptions, .. }) = &erasure.person else { return Ok(()) };
        let mut state = self.state.lock();
        let erase = |text: &mut String| {
            if let Some(erased) = names.erased(text) {
                *text = erased;
            }
        };
        let erase_json = |text: &mut String| {
            if let Some(erased) = names.erased_json(text) {
                *text = erased;
            }
        };
        state.delayed.retain(|_, delayed| delayed.run.is_some() || !subscriptions.contains(&delayed.subscription));
        for delayed in state.delayed.values_mut() {
            if let Some(erased) = delayed.key.as_deref().and_then(|key| names.erased(key)) {
                delayed.key = Some(erased.into());
            }
        }
        for events in state.event_batches.values_mut() {
            if let EventBatchState::Failed(reason) = &mut events.state {
                erase(reason);
            }
        }
        state.suspensions.values_mut().for_each(|suspended| erase(&mut suspended.reason));
        state.firings.values_mut().for_each(|(firing, _)| erase(&mut firing.reason));
        for (key, resend) in state.resends.values_mut() {
            erase(key);
            erase_json(&mut resend.request);
        }
        for stored in state.broadcasts.values_mut() {
            erase(&mut stored.key);
            erase_json(&mut stored.broadcast.draft);
            stored.broadcast.reason.iter_mut().for_each(erase);
        }
        Ok(())
    }

    async fn finish_erasure(&self, person: SubscriberNumber) -> Result<(), StoreError> {
        self.state.lock().erasures.remove(&person);
        Ok(())
    }
}

/// Whether all of some ordinals are of the person.
fn is_own(own: &[u32], all: &[u32]) -> bool {
    all.iter().all(|ordinal| own.binary_search(ordinal).is_ok())
}
