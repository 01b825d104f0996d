//! Operations of callers on broadcasts: create, count, change.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tocsin_model::{
    broadcast::BroadcastDraft,
    id::{BroadcastId, EventBatchId, Name, NotificationBatchId, SubscriptionId},
    notification::NotificationHead,
    problem::Problem,
};
use tocsin_store::{
    error::StoreError,
    journal::{
        Broadcast, BroadcastChange, BroadcastState, BroadcastTotals, NewBroadcast, RequestedState, Resolution,
        SuspensionFilter,
    },
};
use tokio::time::Instant;

use super::{audience::Audience, signals::Hold, versions::CompiledBroadcast};
use crate::{Compiled, Pipeline, match_events::unassigned_channel};

/// Notification batches whose suspensions are ended at a time.
const BATCHES: usize = 100;

/// Longest pause between two readings of the totals of a broadcast that advances.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Part of an audience, counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AudienceCount {
    /// Number of subscriptions examined.
    pub examined: u64,
    /// Number of recipients by the channel of their device. Recipients without a device are under `unassigned`.
    pub recipients: BTreeMap<Name, u64>,
    /// Number of subscriptions whose filter does not fit the data; they do not match.
    pub unusable: u64,
    /// First recipients, by subscription and channel.
    pub sample: Vec<(SubscriptionId, Name)>,
    /// Last subscription examined, if more follow.
    pub reached: Option<SubscriptionId>,
}

impl Pipeline {
    /// Compiles a draft under a version of its application.
    ///
    /// # Errors
    /// Every problem, with its path in the draft.
    pub fn compile_broadcast(
        &self,
        draft: BroadcastDraft,
        of: &Compiled,
    ) -> Result<Arc<CompiledBroadcast>, Vec<Problem>> {
        CompiledBroadcast::new(draft, of, BroadcastId(0)).map(Arc::new)
    }

    /// Returns the version under which notifications are formatted, and their broadcast if they have one.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn version_of(
        &self,
        head: &NotificationHead,
    ) -> Result<Option<(Arc<Compiled>, Option<Arc<CompiledBroadcast>>)>, StoreError> {
        self.flow.version_of(head).await
    }

    /// Counts the recipients that a broadcast would have now, among up to about `limit` subscriptions after `after`.
    /// The inner error says why it cannot be matched.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn count_audience(
        &self,
        broadcast: &CompiledBroadcast,
        after: SubscriptionId,
        limit: u64,
        sample: usize,
    ) -> Result<Result<AudienceCount, String>, StoreError> {
        let until = self.flow.clock.now();
        let audience = Audience { flow: &self.flow, broadcast, until, events: EventBatchId(0) };
        let (mut count, mut reached, mut looked_at) = (AudienceCount::default(), after, 0);
        while looked_at < limit {
            let room = usize::try_from(limit - looked_at).unwrap_or(usize::MAX);
            let examined = match audience.next(reached, room).await? {
                Ok(examined) => examined,
                Err(reason) => return Ok(Err(reason)),
            };
            reached = examined.reached;
            looked_at += examined.read;
            count.examined += examined.examined;
            count.unusable += examined.unusable;
            for cut in examined.cut {
                let channel = cut.channel.unwrap_or_else(unassigned_channel);
                let free = sample.saturating_sub(count.sample.len());
                count.sample.extend(cut.notifications.subscriptions.iter().take(free).map(|id| (*id, channel.clone())));
                *count.recipients.entry(channel).or_default() += cut.notifications.count() as u64;
            }
            if examined.is_last {
                return Ok(Ok(count));
            }
            tokio::task::yield_now().await;
        }
        count.reached = Some(reached);
        Ok(Ok(count))
    }

    /// Stores a broadcast unless its key exists. It is durable when this returns, and begins at its start time. Returns
    /// the broadcast, and whether it is new.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn put_broadcast(&self, new: NewBroadcast) -> Result<(Broadcast, bool), StoreError> {
        let stored = self.flow.broadcast_store.put_broadcast(new).await?;
        self.flow.broadcasts_changed.notify_one();
        Ok(stored)
    }

    /// Pauses, resumes or cancels a broadcast. When this returns, no further message of a paused or cancelled broadcast
    /// is begun; attempts in progress are finished. Returns the broadcast; see
    /// [`change_broadcast`](tocsin_store::journal::Broadcasts::change_broadcast).
    ///
    /// # Errors
    /// `Missing`, or the store is unavailable.
    pub async fn change_broadcast(&self, id: BroadcastId, change: BroadcastChange) -> Result<Broadcast, StoreError> {
        let (flow, to) = (&self.flow, change.to);
        let _one_at_a_time = flow.changing_broadcasts.lock().await;
        if to == RequestedState::Resumed {
            // Work that is read from now on is not held again.
            let present = flow.broadcast_store.broadcast(id).await?;
            if present.is_some_and(|present| present.state == BroadcastState::Paused) {
                flow.broadcasts.set(id, Hold::None);
            }
        }
        let changed = flow.broadcast_store.change_broadcast(id, change).await?;
        match changed.state {
            BroadcastState::Paused => flow.broadcasts.set(id, Hold::Paused),
            BroadcastState::Cancelled => flow.broadcasts.set(id, Hold::Cancelled),
            _ => flow.broadcasts.set(id, Hold::None),
        }
        flow.broadcasts_changed.notify_one();
        flow.broadcast_advanced();
        if changed.state == BroadcastState::Cancelled {
            self.end_suspensions_of(id).await?;
        }
        Ok(changed)
    }

    /// Waits until a broadcast ends: each notification is delivered, failed, suspended or ended, or the broadcast is
    /// cancelled or failed. A paused one does not end. Returns it with its totals; `None` if it does not exist (any
    /// more).
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn ended_broadcast(&self, id: BroadcastId) -> Result<Option<(Broadcast, BroadcastTotals)>, StoreError> {
        let mut advanced = self.flow.broadcasts_advanced.subscribe();
        loop {
            advanced.borrow_and_update();
            let started = Instant::now();
            let Some(broadcast) = self.flow.broadcast_store.broadcast(id).await? else { return Ok(None) };
            let totals = self.flow.broadcast_store.broadcast_totals(id).await?;
            let is_ended = match broadcast.state {
                BroadcastState::Cancelled | BroadcastState::Failed => true,
                BroadcastState::Running => broadcast.matched_at.is_some() && totals.open == totals.suspended,
                BroadcastState::Scheduled | BroadcastState::Paused => false,
            };
            if is_ended {
                return Ok(Some((broadcast, totals)));
            }
            // The sums of a large broadcast cost time: they are read a quarter of the time at most.
            tokio::time::sleep((started.elapsed() * 3).min(PAUSE_MAX)).await;
            // The sender lives as long as the flow.
            let _ = advanced.changed().await;
        }
    }

    /// Ends the suspended notifications of a cancelled broadcast. A repeated cancellation completes it after a crash.
    async fn end_suspensions_of(&self, id: BroadcastId) -> Result<(), StoreError> {
        let (flow, mut after) = (&self.flow, NotificationBatchId(0));
        while flow.broadcast_store.broadcast_totals(id).await?.suspended > 0 {
            let batches = flow.broadcast_store.broadcast_batches(id, after, BATCHES).await?;
            let Some(last) = batches.last() else { break };
            after = *last;
            for batch in batches {
                let filter = SuspensionFilter { batch: Some(batch), ..SuspensionFilter::default() };
                flow.operator_actions.resolve(&filter, Resolution::End, flow.clock.now()).await?;
            }
        }
        Ok(())
    }
}
