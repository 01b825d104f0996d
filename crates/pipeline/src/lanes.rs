//! Lanes of ordered delivery: per-key ordering of notifications whose event class is in ordered mode.
//!
//! A lane is a subscription and a key. Its notifications leave one at a time in the order of their events; the next
//! one leaves only when the result of the one before is recorded. Lanes do not wait for each other. Open
//! notifications are held in memory and read from the journal: at the start, and whenever a work item of a later
//! batch is about to leave.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tocsin_model::{
    id::{EventId, Name, NotificationBatchId, NotificationId, SubscriptionId},
    time::Timestamp,
};
use tocsin_store::error::StoreError;
use tokio::sync::watch;

use crate::{
    Flow,
    load_work::{Loaded, Unreadable},
};

/// Batches read at a time.
const PAGE: usize = 256;

/// Key of a lane: a subscription, and a key of an event class.
pub(crate) type LaneKey = (SubscriptionId, Arc<[u8]>);

/// Open notifications of an application whose events are ordered.
pub(crate) struct Lanes {
    state: Mutex<State>,
    /// All open notifications of batches up to this one are known.
    known: tokio::sync::Mutex<NotificationBatchId>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    lanes: HashMap<LaneKey, BTreeMap<(EventId, NotificationId), LaneStatus>>,
    of: HashMap<NotificationId, (LaneKey, EventId)>,
}

/// Status of an open notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneStatus {
    /// Due, and not sent yet.
    Waits,
    /// Sent; its answer is not recorded yet.
    Sent,
    /// Retried from this time on.
    Later(Timestamp),
}

/// Whether a notification may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// First of its lane.
    Now,
    /// Waits for the first of its lane, which has this status.
    After(LaneStatus),
}

impl Default for Lanes {
    fn default() -> Self {
        let known = tokio::sync::Mutex::new(NotificationBatchId(0));
        Lanes { state: Mutex::default(), known, changes: watch::Sender::new(0) }
    }
}

impl Lanes {
    /// Subscribes to changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Reads all open notifications that may precede an item, and the item itself, which is about to be sent.
    pub async fn learn(&self, flow: &Flow, application: &Name, item: &Loaded) -> Result<(), StoreError> {
        let mut known = self.known.lock().await;
        let through = item.batch.id;
        while *known < through {
            let page = flow.work_queue.open_batches(application, *known, PAGE).await?;
            let is_last = page.len() < PAGE;
            for (id, head) in page {
                let compiled = flow.version_of(&head).await?.map(|(compiled, _)| compiled);
                let class = compiled.as_ref().and_then(|compiled| compiled.event_class(&head.event_class));
                if class.is_some_and(|class| class.ordered.is_some()) {
                    self.learn_batch(flow, id).await?;
                }
                *known = id;
            }
            if is_last {
                *known = through.max(*known);
            }
        }
        drop(known);
        self.join(item, None);
        Ok(())
    }

    async fn learn_batch(&self, flow: &Flow, id: NotificationBatchId) -> Result<(), StoreError> {
        for work in flow.work_queue.open_work(id).await? {
            match Loaded::read(flow, &work).await {
                Ok(loaded) => self.join(&loaded, Some(work.due_at)),
                Err(Unreadable::Temporary(error)) => return Err(error),
                // Suspended when it is reached; it blocks no lane.
                Err(Unreadable::Permanent(_)) => {}
            }
        }
        Ok(())
    }

    /// Adds the notifications of an item. Known ones keep their status, unless the item is about to be sent: then
    /// they wait.
    fn join(&self, item: &Loaded, due_at: Option<Timestamp>) {
        let mut state = self.state.lock();
        for ordinal in &item.ordinals {
            let (id, event) = (item.id(*ordinal), item.event_of[*ordinal as usize]);
            let (lane, _) = state.of.entry(id).or_insert_with(|| (item.lane(*ordinal), event)).clone();
            let lane = state.lanes.entry(lane).or_default();
            match due_at {
                Some(due_at) => drop(lane.entry((event, id)).or_insert(LaneStatus::Later(due_at))),
                None => drop(lane.insert((event, id), LaneStatus::Waits)),
            }
        }
    }

    /// Whether a notification may leave. An unknown one may.
    pub fn turn(&self, id: NotificationId) -> Turn {
        let state = self.state.lock();
        let lane = state.of.get(&id).and_then(|(lane, _)| state.lanes.get(lane));
        match lane.and_then(BTreeMap::first_key_value) {
            Some(((_, first), status)) if *first != id => Turn::After(*status),
            _ => Turn::Now,
        }
    }

    /// Marks notifications as handed over.
    pub fn sent(&self, ids: impl IntoIterator<Item = NotificationId>) {
        self.set_status(ids.into_iter().map(|id| (id, Some(LaneStatus::Sent))));
    }

    /// Marks notifications as waiting again: their sender did not accept them.
    pub fn unsent(&self, ids: impl IntoIterator<Item = NotificationId>) {
        self.set_status(ids.into_iter().map(|id| (id, Some(LaneStatus::Waits))));
    }

    /// A work item of a batch was released: none of its notifications is in flight any more.
    pub fn returned(&self, batch: NotificationBatchId) {
        let of_batch: Vec<NotificationId> =
            self.state.lock().of.keys().filter(|id| id.batch == batch).copied().collect();
        self.unsent(of_batch);
    }

    /// Applies recorded results: a new status, or removal from the lane.
    pub fn apply_results(&self, settled: impl IntoIterator<Item = (NotificationId, Option<LaneStatus>)>) {
        self.set_status(settled);
    }

    fn set_status(&self, statuses: impl IntoIterator<Item = (NotificationId, Option<LaneStatus>)>) {
        let mut state = self.state.lock();
        if state.of.is_empty() {
            return;
        }
        let mut changed = false;
        for (id, status) in statuses {
            let State { lanes, of } = &mut *state;
            let Some((lane, event)) = of.get(&id).cloned() else { continue };
            changed = true;
            let Some(open) = lanes.get_mut(&lane) else { continue };
            match status {
                Some(status) => drop(open.insert((event, id), status)),
                None => {
                    open.remove(&(event, id));
                    if open.is_empty() {
                        lanes.remove(&lane);
                    }
                    of.remove(&id);
                }
            }
        }
        drop(state);
        if changed {
            self.changes.send_modify(|count| *count += 1);
        }
    }
}
