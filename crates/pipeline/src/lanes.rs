//! Who goes before whom: notifications of event classes in ordered mode, lane by lane.
//!
//! A lane is a subscription and a key: its notifications leave one after the other, in the order of their events, the next
//! only when what became of the one before is recorded. Other lanes go on. What is open is known here, in memory, and
//! learned from the journal: at the start, and again whenever a work item of a later batch is about to leave.

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

/// Batches asked for at a time.
const PAGE: usize = 256;

/// Whose turn comes after whose: a subscription, and a key of an event class.
pub(crate) type Lane = (SubscriptionId, Arc<[u8]>);

/// The open notifications of an application whose events are ordered.
pub(crate) struct Lanes {
    state: Mutex<State>,
    /// No open notification of a batch up to this one is missing.
    known: tokio::sync::Mutex<NotificationBatchId>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    lanes: HashMap<Lane, BTreeMap<(EventId, NotificationId), Standing>>,
    of: HashMap<NotificationId, (Lane, EventId)>,
}

/// How an open notification stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is due, and not sent yet.
    Waits,
    /// It was sent, and its answer is not recorded yet.
    Sent,
    /// It is tried from this time on.
    Later(Timestamp),
}

/// What a notification has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nobody is before it.
    Now,
    /// The first of its lane stands so.
    After(Standing),
}

impl Default for Lanes {
    fn default() -> Self {
        let known = tokio::sync::Mutex::new(NotificationBatchId(0));
        Lanes { state: Mutex::default(), known, changes: watch::Sender::new(0) }
    }
}

impl Lanes {
    /// Tells of every change from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes in everything open that may be before an item, and the item, which is about to be sent.
    pub async fn learn(&self, flow: &Flow, application: &Name, item: &Loaded) -> Result<(), StoreError> {
        let mut known = self.known.lock().await;
        let through = item.batch.id;
        while *known < through {
            let page = flow.journal.open_batches(application, *known, PAGE).await?;
            let is_last = page.len() < PAGE;
            for (id, head) in page {
                let compiled = flow.versions.get(&head.application, head.version).await?;
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
        for work in flow.journal.open_work(id).await? {
            match Loaded::read(flow, &work).await {
                Ok(loaded) => self.join(&loaded, Some(work.due_at)),
                Err(Unreadable::ForNow(error)) => return Err(error),
                // It is suspended when its turn comes, and holds nobody up.
                Err(Unreadable::ForGood(_)) => {}
            }
        }
        Ok(())
    }

    /// Those of an item that are known already stay as they stand, unless the item is at hand: then they wait.
    fn join(&self, item: &Loaded, due_at: Option<Timestamp>) {
        let mut state = self.state.lock();
        for ordinal in &item.ordinals {
            let (id, event) = (item.id(*ordinal), item.event_of[*ordinal as usize]);
            let (lane, _) = state.of.entry(id).or_insert_with(|| (item.lane(*ordinal), event)).clone();
            let lane = state.lanes.entry(lane).or_default();
            match due_at {
                Some(due_at) => drop(lane.entry((event, id)).or_insert(Standing::Later(due_at))),
                None => drop(lane.insert((event, id), Standing::Waits)),
            }
        }
    }

    /// Whether it is a notification's turn. One that is unknown goes at once.
    pub fn turn(&self, id: NotificationId) -> Turn {
        let state = self.state.lock();
        let lane = state.of.get(&id).and_then(|(lane, _)| state.lanes.get(lane));
        match lane.and_then(BTreeMap::first_key_value) {
            Some(((_, first), standing)) if *first != id => Turn::After(*standing),
            _ => Turn::Now,
        }
    }

    /// They were handed over.
    pub fn sent(&self, ids: impl IntoIterator<Item = NotificationId>) {
        self.stand(ids.into_iter().map(|id| (id, Some(Standing::Sent))));
    }

    /// They were not, after all.
    pub fn unsent(&self, ids: impl IntoIterator<Item = NotificationId>) {
        self.stand(ids.into_iter().map(|id| (id, Some(Standing::Waits))));
    }

    /// A work item of a batch goes back: none of it is on its way any more.
    pub fn returned(&self, batch: NotificationBatchId) {
        let of_batch: Vec<NotificationId> =
            self.state.lock().of.keys().filter(|id| id.batch == batch).copied().collect();
        self.unsent(of_batch);
    }

    /// What became of some is recorded: how they stand, or that they hold up nobody any more.
    pub fn settle(&self, settled: impl IntoIterator<Item = (NotificationId, Option<Standing>)>) {
        self.stand(settled);
    }

    fn stand(&self, standings: impl IntoIterator<Item = (NotificationId, Option<Standing>)>) {
        let mut state = self.state.lock();
        if state.of.is_empty() {
            return;
        }
        let mut changed = false;
        for (id, standing) in standings {
            let State { lanes, of } = &mut *state;
            let Some((lane, event)) = of.get(&id).cloned() else { continue };
            changed = true;
            let Some(open) = lanes.get_mut(&lane) else { continue };
            match standing {
                Some(standing) => drop(open.insert((event, id), standing)),
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
