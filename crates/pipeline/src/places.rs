//! Where submissions stand among the changes of the records.
//!
//! Every submission is stamped with the newest change there is when it comes: a change that was acknowledged before is
//! seen by its events, one that is made after its answer is not. Until it is in the journal its place is held here, so
//! that the index does not run ahead of a batch that is still on its way.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tocsin_model::id::ChangeSequence;
use tocsin_store::records::Records;
use tokio::sync::watch;

/// The places of submissions that are on their way.
pub(crate) struct Places {
    newest: watch::Receiver<ChangeSequence>,
    /// How many there are at each place.
    underway: Mutex<BTreeMap<ChangeSequence, usize>>,
}

impl Places {
    pub fn new(records: &dyn Records) -> Places {
        Places { newest: records.newest_change(), underway: Mutex::default() }
    }

    /// The newest change.
    pub fn newest(&self) -> ChangeSequence {
        *self.newest.borrow()
    }

    /// Stamps a submission with the newest change.
    pub fn stamp(&self) -> Stamp<'_> {
        let mut underway = self.underway.lock();
        let place = self.newest();
        *underway.entry(place).or_default() += 1;
        Stamp { places: self, place }
    }

    /// A place that every batch sees at least which is not in the journal yet.
    pub fn settled(&self) -> ChangeSequence {
        let underway = self.underway.lock();
        underway.keys().next().copied().unwrap_or_else(|| self.newest())
    }
}

/// The place of one submission, held until it is dropped.
pub(crate) struct Stamp<'a> {
    places: &'a Places,
    pub place: ChangeSequence,
}

impl Drop for Stamp<'_> {
    fn drop(&mut self) {
        let mut underway = self.places.underway.lock();
        if let Some(count) = underway.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                underway.remove(&self.place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tocsin_store::memory::records::MemoryRecords;

    #[tokio::test]
    async fn the_oldest_submission_on_its_way_holds_the_place() {
        let records = MemoryRecords::new().expect("random numbers");
        let places = Places::new(&records);
        let name = "quakes".parse().expect("a name");
        let change = async || records.put_application(&name, "text", "ann", Default::default()).await.expect("stored");
        change().await;
        let (first, second) = (places.stamp(), places.stamp());
        change().await;
        let third = places.stamp();
        assert_eq!((first.place.0, second.place.0, third.place.0), (1, 1, 2));
        change().await;
        drop(first);
        assert_eq!((places.settled().0, places.newest().0), (1, 3));
        drop(second);
        assert_eq!(places.settled().0, 2);
        drop(third);
        assert_eq!(places.settled().0, 3);
    }
}
