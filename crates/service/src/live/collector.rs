//! Counters of the last collection of live summaries.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::id::Name;
use tokio::time::Instant;

use super::topics::Topic;

/// Heads of new batches read for the states of applications.
const HEADS_MAX: usize = 1_000;

/// Batches of each application: their number since the first follower, and the newest one.
#[derive(Default)]
pub(crate) struct BatchCounts {
    /// Total at the last reading.
    pub total: Option<u64>,
    pub by_application: BTreeMap<Name, (u64, String)>,
}

/// Collects summaries. Remembers the counters of its last run.
#[derive(Default)]
pub(crate) struct Collector {
    pub event_batches: BatchCounts,
    pub notification_batches: BatchCounts,
    read_at: [Option<Instant>; Topic::ALL.len()],
}

impl Collector {
    /// Whether a topic was not read for some time.
    pub fn is_due(&mut self, topic: Topic, every: Duration) -> bool {
        let now = Instant::now();
        let read_at = &mut self.read_at[topic as usize];
        let is_due = read_at.is_none_or(|read_at| now.duration_since(read_at) >= every);
        if is_due {
            *read_at = Some(now);
        }
        is_due
    }
}

impl BatchCounts {
    /// Number of heads to read for a total; `None`: there are no new ones.
    pub fn heads_to_read(&self, total: u64) -> Option<usize> {
        match self.total {
            None => Some(HEADS_MAX),
            Some(last) if last == total => None,
            Some(last) => Some(usize::try_from(total.saturating_sub(last)).map_or(HEADS_MAX, |new| new.min(HEADS_MAX))),
        }
    }
}
