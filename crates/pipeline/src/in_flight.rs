//! Work items of one channel in flight: which tracker an answer belongs to, whose leases are extended, and which have
//! results to commit.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tocsin_delivery::Ticket;
use tocsin_model::{
    application::{DeliveryLog, RetrySchedule},
    id::Name,
};
use tocsin_store::journal::WorkItem;
use tokio::sync::Notify;

use crate::{Flow, active_version::ActiveVersion, delivery_tracker::DeliveryTracker, suspects::InProgressGuard};

/// A notification of a work item in flight.
pub(crate) type TrackedNotification = (Arc<DeliveryTracker>, u32);

/// The work items of one channel in flight. Shared by its worker, its recorder and the trackers.
pub(crate) struct InFlight {
    pub flow: Arc<Flow>,
    pub active: Arc<ActiveVersion>,
    pub channel: Name,
    pub retry: RetrySchedule,
    pub log: DeliveryLog,
    open: Mutex<Open>,
    /// Items with results to commit. Each is at most once in it, so it is bounded by the items in flight.
    changed: Mutex<Vec<Arc<DeliveryTracker>>>,
    /// Number of results since the last commit.
    unrecorded: AtomicUsize,
    /// Set when the recorder has ended: nothing more is begun or sent.
    is_closed: AtomicBool,
    wake: Notify,
}

/// Correlation of tickets with what they stand for. A ticket is a number: it is copied for each recipient of a
/// multicast.
#[derive(Default)]
struct Open {
    last: u64,
    items: BTreeMap<u64, Arc<DeliveryTracker>>,
    /// Members of messages that stand for several notifications.
    digests: HashMap<u64, Vec<TrackedNotification>>,
}

impl InFlight {
    /// No items of this channel yet.
    pub fn new(
        flow: Arc<Flow>,
        active: Arc<ActiveVersion>,
        channel: Name,
        retry: RetrySchedule,
        log: DeliveryLog,
    ) -> Arc<Self> {
        let (open, changed, wake) = (Mutex::default(), Mutex::default(), Notify::new());
        let (unrecorded, is_closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(InFlight { flow, active, channel, retry, log, open, changed, unrecorded, is_closed, wake })
    }

    /// Begins an item that was claimed. The recorder extends its lease from now on. The guard marks the item as in
    /// progress until its results are recorded. `None`: the recorder has ended.
    pub fn begin(self: &Arc<Self>, item: WorkItem, guard: InProgressGuard) -> Option<Arc<DeliveryTracker>> {
        let mut open = self.open.lock();
        if self.is_closed() {
            return None;
        }
        open.last += 1;
        let tracker = Arc::new(DeliveryTracker::new(self.clone(), open.last, item, guard));
        let is_first = open.items.is_empty();
        let number = open.last;
        open.items.insert(number, tracker.clone());
        drop(open);
        if is_first {
            self.wake.notify_one();
        }
        Some(tracker)
    }

    /// Returns the ticket of a message that stands for several notifications, each of which gets its answer.
    pub fn join(&self, members: Vec<TrackedNotification>) -> Ticket {
        let mut open = self.open.lock();
        open.last += 1;
        let key = open.last;
        if !self.is_closed() {
            open.digests.insert(key, members);
        }
        Ticket { key, ordinal: 0 }
    }

    /// The item that a ticket belongs to; `None` if it is no longer in flight, or for a message that stands for several
    /// notifications.
    pub fn item(&self, ticket: Ticket) -> Option<Arc<DeliveryTracker>> {
        self.open.lock().items.get(&ticket.key).cloned()
    }

    /// Whether a ticket is that of a message that stands for several notifications.
    pub fn is_digest(&self, ticket: Ticket) -> bool {
        self.open.lock().digests.contains_key(&ticket.key)
    }

    /// Removes a ticket of several notifications, and returns these.
    pub fn take_digest(&self, ticket: Ticket) -> Option<Vec<TrackedNotification>> {
        self.open.lock().digests.remove(&ticket.key)
    }

    /// All items.
    pub fn items(&self) -> Vec<Arc<DeliveryTracker>> {
        self.open.lock().items.values().cloned().collect()
    }

    /// Whether no item is in flight.
    pub fn is_empty(&self) -> bool {
        self.open.lock().items.is_empty()
    }

    /// Removes an item. Later answers for it are ignored.
    pub fn remove(&self, number: u64) {
        self.open.lock().items.remove(&number);
    }

    /// Whether the recorder has ended: results would not be recorded.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Ends with the recorder: removes all items, and begins no more.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let (open, changed) = (mem::take(&mut *self.open.lock()), self.take_changed());
        // Only after the locks are released: what an item holds is freed here.
        drop((open, changed));
    }

    /// Counts results of an item, and queues it for the recorder if it is not queued yet. The recorder wakes for the
    /// first result, for permits to release, and for a whole chunk of results.
    pub fn add_results(&self, tracker: &Arc<DeliveryTracker>, results: usize, is_queued: bool, has_permits: bool) {
        let before = self.unrecorded.fetch_add(results, Ordering::AcqRel);
        let chunk = self.flow.options.receipts_chunk;
        if !is_queued {
            let mut changed = self.changed.lock();
            // The recorder takes nothing any more, and the item refers to this.
            if self.is_closed() {
                return;
            }
            changed.push(tracker.clone());
        }
        if !is_queued || has_permits || (before < chunk && before + results >= chunk) {
            self.wake.notify_one();
        }
    }

    /// Waits until an item has results, or the first item is begun.
    pub async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Takes the items that have results to commit.
    pub fn take_changed(&self) -> Vec<Arc<DeliveryTracker>> {
        mem::take(&mut *self.changed.lock())
    }

    /// Number of results since the last commit, which may have committed some of them already.
    pub fn unrecorded(&self) -> usize {
        self.unrecorded.load(Ordering::Acquire)
    }

    /// Counts results anew. Must precede the commit: then none is left out.
    pub fn reset_unrecorded(&self) {
        self.unrecorded.store(0, Ordering::Release);
    }
}
