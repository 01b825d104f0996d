//! Work items: claims, counts and the backlog.

use std::collections::BTreeSet;

use tocsin_model::{
    id::{Name, NotificationBatchId, WorkItemId},
    time::Timestamp,
};

use crate::journal::WorkState;

/// Lease on an item. The fencing token increases with each claim of the same item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim<Id> {
    /// Claimed item.
    pub id: Id,
    /// Fencing token.
    pub token: u64,
}

/// Unit of delivery: the due notifications of one batch on one channel, all or some.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkItem {
    /// Lease on the item.
    pub claim: Claim<WorkItemId>,
    /// Notification batch.
    pub batch: NotificationBatchId,
    /// Ordinals of the notifications, ascending; `None` means all. Ordinals completed by an earlier holder are left
    /// out (see [`Step::held`](super::Step::held)). If all were, the list is empty and the item only needs to be
    /// closed.
    pub ordinals: Option<Vec<u32>>,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Due time.
    pub due_at: Timestamp,
    /// Scheduling state.
    pub work_state: WorkState,
}

/// Number of work items of all channels, by due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkCounts {
    /// Due work items, claimed or not.
    pub due: u64,
    /// Work items due in the future.
    pub later: u64,
    /// Earliest due time in the future.
    pub next: Option<Timestamp>,
}

/// Current backlog, as counters that are cheap to read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Event batches not yet matched.
    pub event_batches: u64,
    /// Events in them.
    pub events: u64,
    /// Packed bytes of them.
    pub event_bytes: u64,
    /// Event batches set aside because matching failed.
    pub failed_batches: u64,
    /// Notifications of open work items: due, claimed, or waiting for a retry.
    pub notifications: u64,
    /// Open work items.
    pub work_items: u64,
    /// Suspended notifications.
    pub suspended: u64,
    /// Acceptance time of the oldest unmatched event batch.
    pub oldest_event: Option<Timestamp>,
}

/// Wake-up signals: each receiver wakes when its number grows. The numbers have no other meaning.
#[derive(Debug, Clone)]
pub struct Arrivals {
    /// Grows when event batches arrive.
    pub events: tokio::sync::watch::Receiver<u64>,
    /// Grows when work becomes due or is released.
    pub work: tokio::sync::watch::Receiver<u64>,
}

/// Event batches excluded from claiming, such as those of paused applications.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Except {
    /// Excluded applications.
    pub applications: BTreeSet<Name>,
    /// Excluded event classes, each with its application.
    pub classes: BTreeSet<(Name, Name)>,
}

impl Except {
    /// Checks whether batches of a class are excluded.
    pub fn has(&self, application: &Name, class: &Name) -> bool {
        self.applications.contains(application)
            || !self.classes.is_empty() && self.classes.contains(&(application.clone(), class.clone()))
    }
}
