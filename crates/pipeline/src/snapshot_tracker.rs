//! Tracks the snapshot sequences of submissions in progress.
//!
//! Every submission gets the newest change sequence as its snapshot. Its events see all changes acknowledged before
//! it arrives and none made after its answer. The tracker holds the sequence until the batch is in the journal, so
//! that the index does not advance past a batch in progress.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tocsin_model::id::ChangeSequence;
use tocsin_store::records::ChangeLog;
use tokio::sync::watch;

/// Snapshot sequences of submissions in progress.
pub(crate) struct SnapshotTracker {
    newest: watch::Receiver<ChangeSequence>,
    /// Number of submissions by sequence.
    in_progress: Mutex<BTreeMap<ChangeSequence, usize>>,
}

impl SnapshotTracker {
    pub fn new(records: &dyn ChangeLog) -> SnapshotTracker {
        SnapshotTracker { newest: records.newest_change(), in_progress: Mutex::default() }
    }

    /// The newest change sequence.
    pub fn newest(&self) -> ChangeSequence {
        *self.newest.borrow()
    }

    /// Assigns the newest change sequence to a submission.
    pub fn stamp(&self) -> SnapshotGuard<'_> {
        let mut in_progress = self.in_progress.lock();
        let place = self.newest();
        *in_progress.entry(place).or_default() += 1;
        SnapshotGuard { tracker: self, place }
    }

    /// A lower bound of the snapshot sequences of all batches that are not yet in the journal.
    pub fn lower_bound(&self) -> ChangeSequence {
        let in_progress = self.in_progress.lock();
        in_progress.keys().next().copied().unwrap_or_else(|| self.newest())
    }
}

/// The snapshot sequence of one submission, held until the guard is dropped.
pub(crate) struct SnapshotGuard<'a> {
    tracker: &'a SnapshotTracker,
    pub place: ChangeSequence,
}

impl Drop for SnapshotGuard<'_> {
    fn drop(&mut self) {
        let mut in_progress = self.tracker.in_progress.lock();
        if let Some(count) = in_progress.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                in_progress.remove(&self.place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tocsin_store::{
        memory::records::MemoryRecords,
        records::{ApplicationStore, NewApplicationVersion},
    };

    #[tokio::test]
    async fn the_oldest_submission_on_its_way_holds_the_place() {
        let records = MemoryRecords::new().expect("random numbers");
        let tracker = SnapshotTracker::new(&records);
        let name = "quakes".parse().expect("a name");
        let change = async || {
            records
                .put_application(NewApplicationVersion {
                    name: &name,
                    text: "text",
                    author: "ann",
                    now: Default::default(),
                })
                .await
                .expect("stored")
        };
        change().await;
        let (first, second) = (tracker.stamp(), tracker.stamp());
        change().await;
        let third = tracker.stamp();
        assert_eq!((first.place.0, second.place.0, third.place.0), (1, 1, 2));
        change().await;
        drop(first);
        assert_eq!((tracker.lower_bound().0, tracker.newest().0), (1, 3));
        drop(second);
        assert_eq!(tracker.lower_bound().0, 2);
        drop(third);
        assert_eq!(tracker.lower_bound().0, 3);
    }
}
