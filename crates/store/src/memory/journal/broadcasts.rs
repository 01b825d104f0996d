//! Broadcasts of the in-memory journal.

use async_trait::async_trait;
use tocsin_model::{
    id::{BroadcastId, EventBatchId, Name, NotificationBatchId, SubscriptionId},
    time::Timestamp,
};

use super::{
    MemoryJournal,
    state::{State, StoredBroadcast},
};
use crate::{
    error::StoreError,
    journal::{
        Broadcast, BroadcastChange, BroadcastFilter, BroadcastState, BroadcastStep, BroadcastTotals, Broadcasts, HELD,
        NewBroadcast, NewEventBatch, NextPart, RequestedState, changed_state, no_broadcast,
    },
};

fn is_startable(broadcast: &Broadcast) -> bool {
    let is_active = matches!(broadcast.state, BroadcastState::Scheduled | BroadcastState::Running);
    is_active && !broadcast.is_queued && broadcast.matched_at.is_none()
}

impl State {
    /// Notification batches of a broadcast: their rule is named after it.
    fn batches_of(&self, id: BroadcastId) -> impl Iterator<Item = u64> {
        let rule = id.to_string();
        self.notification_batches.iter().filter(move |(_, batch)| batch.head.rule.as_str() == rule).map(|(id, _)| *id)
    }

    /// Due time of a retry: work is held only while its broadcast is paused.
    pub(super) fn due_at(&self, batch: NotificationBatchId, due_at: Timestamp, now: Timestamp) -> Timestamp {
        let rule = || self.notification_batches.get(&batch.0)?.head.rule.as_str().parse::<BroadcastId>().ok();
        let is_paused = |id: BroadcastId| {
            self.broadcasts.get(&id.0).is_some_and(|found| found.broadcast.state == BroadcastState::Paused)
        };
        if due_at != HELD || rule().is_some_and(is_paused) { due_at } else { now }
    }

    /// Records the progress of a step.
    pub(super) fn record_broadcast(&mut self, step: BroadcastStep) {
        let BroadcastStep { id, reached, examined, next, now } = step;
        let Some(StoredBroadcast { broadcast, .. }) = self.broadcasts.get_mut(&id.0) else { return };
        (broadcast.reached, broadcast.examined) = (reached, broadcast.examined + examined);
        broadcast.is_queued = next == NextPart::Continued;
        broadcast.matched_at = (next == NextPart::Matched).then_some(now);
        if let NextPart::Failed(reason) = next
            && broadcast.state != BroadcastState::Cancelled
        {
            (broadcast.state, broadcast.reason, broadcast.changed_at) = (BroadcastState::Failed, Some(reason), now);
        }
    }

    /// Adds a notification batch that is about to be deleted to the counts of its broadcast.
    pub(super) fn keep_broadcast_counts(&mut self, batch: u64) {
        let Some(found) = self.notification_batches.get(&batch) else { return };
        let Ok(id) = found.head.rule.as_str().parse::<BroadcastId>() else { return };
        let Some(StoredBroadcast { deleted, .. }) = self.broadcasts.get_mut(&id.0) else { return };
        deleted.recipients += u64::from(found.count);
        deleted.delivered += u64::from(found.progress.delivered);
        deleted.failed += u64::from(found.progress.failed);
    }

    /// Deletes broadcasts that were finished before a time and have no notification batches left.
    pub(super) fn prune_broadcasts(&mut self, before: Timestamp) {
        let is_finished = |found: &Broadcast| {
            let is_ended = matches!(found.state, BroadcastState::Cancelled | BroadcastState::Failed);
            let is_matched = found.matched_at.is_some_and(|at| at < before) && found.state != BroadcastState::Paused;
            !found.is_queued && (is_matched || is_ended && found.changed_at < before)
        };
        let ids: Vec<u64> = self
            .broadcasts
            .iter()
            .filter(|(id, found)| is_finished(&found.broadcast) && self.batches_of(BroadcastId(**id)).next().is_none())
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.broadcasts.remove(&id);
        }
    }

    /// Cancels the broadcasts of a removed application.
    pub(super) fn end_broadcasts(&mut self, application: &Name, reason: &str, now: Timestamp) {
        for StoredBroadcast { broadcast, .. } in self.broadcasts.values_mut() {
            let is_ended = matches!(broadcast.state, BroadcastState::Cancelled | BroadcastState::Failed);
            let is_open = broadcast.is_queued || broadcast.matched_at.is_none() && !is_ended;
            if broadcast.application == *application && is_open {
                (broadcast.state, broadcast.is_queued) = (BroadcastState::Cancelled, false);
                (broadcast.reason, broadcast.changed_at) = (Some(reason.to_owned()), now);
            }
        }
    }
}

#[async_trait]
impl Broadcasts for MemoryJournal {
    async fn put_broadcast(&self, new: NewBroadcast) -> Result<(Broadcast, bool), StoreError> {
        let mut state = self.state.lock();
        if let Some(known) = state.broadcasts.values().find(|known| known.key == new.key) {
            return Ok((known.broadcast.clone(), false));
        }
        state.last.broadcast += 1;
        let id = BroadcastId(state.last.broadcast);
        let broadcast = Broadcast {
            id,
            application: new.application,
            draft: new.draft,
            changed_by: new.by.clone(),
            by: new.by,
            created_at: new.created_at,
            starts_at: new.starts_at,
            state: BroadcastState::Scheduled,
            is_queued: false,
            version: None,
            started_at: None,
            reached: SubscriptionId(0),
            examined: 0,
            matched_at: None,
            changed_at: new.created_at,
            reason: None,
        };
        let stored =
            StoredBroadcast { key: new.key, broadcast: broadcast.clone(), deleted: BroadcastTotals::default() };
        state.broadcasts.insert(id.0, stored);
        Ok((broadcast, true))
    }

    async fn broadcast(&self, id: BroadcastId) -> Result<Option<Broadcast>, StoreError> {
        Ok(self.state.lock().broadcasts.get(&id.0).map(|found| found.broadcast.clone()))
    }

    async fn broadcasts(
        &self,
        filter: &BroadcastFilter,
        before: Option<BroadcastId>,
        limit: usize,
    ) -> Result<Vec<Broadcast>, StoreError> {
        let state = self.state.lock();
        let earlier = state.broadcasts.range(..before.map_or(u64::MAX, |before| before.0)).rev();
        let found = earlier.map(|(_, found)| found).filter(|StoredBroadcast { key, broadcast, .. }| {
            filter.application.as_ref().is_none_or(|application| *application == broadcast.application)
                && filter.state.is_none_or(|state| state == broadcast.state)
                && filter.key.as_ref().is_none_or(|requested| requested == key)
        });
        Ok(found.take(limit).map(|found| found.broadcast.clone()).collect())
    }

    async fn startable_broadcasts(&self, limit: usize) -> Result<Vec<Broadcast>, StoreError> {
        let state = self.state.lock();
        let found = state.broadcasts.values().map(|found| &found.broadcast);
        let mut found: Vec<Broadcast> = found.filter(|found| is_startable(found)).cloned().collect();
        found.sort_by_key(|found| (found.starts_at, found.id));
        found.truncate(limit);
        Ok(found)
    }

    async fn begin_broadcast(&self, id: BroadcastId, event: NewEventBatch) -> Result<Option<EventBatchId>, StoreError> {
        let mut state = self.state.lock();
        self.options.check(&state.backlog(), &event)?;
        let found = state.broadcasts.get_mut(&id.0).map(|found| &mut found.broadcast);
        let Some(broadcast) = found.filter(|found| is_startable(found)) else { return Ok(None) };
        (broadcast.state, broadcast.is_queued) = (BroadcastState::Running, true);
        broadcast.version.get_or_insert(event.version);
        broadcast.started_at.get_or_insert(event.accepted_at);
        let event = state.add_events(event);
        Self::wake(&self.events);
        Ok(Some(event))
    }

    async fn change_broadcast(&self, id: BroadcastId, change: BroadcastChange) -> Result<Broadcast, StoreError> {
        let BroadcastChange { to, by, reason, now } = change;
        let mut state = self.state.lock();
        let found = state.broadcasts.get_mut(&id.0).ok_or_else(|| no_broadcast(id))?;
        let Some(next) = changed_state(&found.broadcast, to) else { return Ok(found.broadcast.clone()) };
        (found.broadcast.state, found.broadcast.changed_at) = (next, now);
        (found.broadcast.changed_by, found.broadcast.reason) = (by, reason);
        let changed = found.broadcast.clone();
        let from = match to {
            RequestedState::Resumed => Some(HELD),
            RequestedState::Cancelled => Some(Timestamp(now.0 + 1)),
            RequestedState::Paused | RequestedState::Failed => None,
        };
        if let Some(from) = from {
            let batches: Vec<u64> = state.batches_of(id).collect();
            for item in state.work.values_mut() {
                if item.due_at >= from && batches.contains(&item.batch.0) {
                    item.due_at = now;
                    item.work_state.window = None;
                }
            }
            Self::wake(&self.work);
        }
        Ok(changed)
    }

    async fn broadcast_totals(&self, id: BroadcastId) -> Result<BroadcastTotals, StoreError> {
        let state = self.state.lock();
        let mut totals = state.broadcasts.get(&id.0).map(|found| found.deleted).unwrap_or_default();
        for batch in state.batches_of(id) {
            let found = &state.notification_batches[&batch];
            totals.recipients += u64::from(found.count);
            totals.open += u64::from(found.progress.open);
            totals.delivered += u64::from(found.progress.delivered);
            totals.failed += u64::from(found.progress.failed);
            let suspended = state.suspensions.values().filter(|suspension| suspension.batch.0 == batch);
            totals.suspended += suspended.map(|suspension| suspension.ordinals.len() as u64).sum::<u64>();
        }
        Ok(totals)
    }

    async fn broadcast_batches(
        &self,
        id: BroadcastId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<NotificationBatchId>, StoreError> {
        let state = self.state.lock();
        let later = state.batches_of(id).filter(|batch| *batch > after.0);
        Ok(later.take(limit).map(NotificationBatchId).collect())
    }
}
