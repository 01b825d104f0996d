//! Accepted messages of a stream, as ranges of their sequences.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Accepted sequences of a stream. A recreated stream restarts at 1, so it is identified by its creation time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct AcceptedSequences {
    stream: String,
    /// First and last of each range, sorted, without overlap.
    ranges: Vec<(u64, u64)>,
    /// Sequences of messages that cannot be received, until the server counts them as acknowledged.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    unreadable: BTreeSet<u64>,
}

impl AcceptedSequences {
    /// Keeps the state of the stream created at a time; that of another stream is discarded.
    pub fn of(self, stream: &str) -> AcceptedSequences {
        if self.stream == stream {
            self
        } else {
            AcceptedSequences { stream: stream.to_owned(), ..AcceptedSequences::default() }
        }
    }

    pub fn contains(&self, sequence: u64) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&sequence))
    }

    /// The first sequence from this one on that is not accepted.
    pub fn first_missing(&self, sequence: u64) -> u64 {
        let within = self.ranges.iter().find(|(first, last)| (*first..=*last).contains(&sequence));
        within.map_or(sequence, |(_, last)| last + 1)
    }

    /// Adds the sequences from `first` to `last`.
    pub fn add(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        self.ranges.retain(|(from, to)| {
            // An adjacent or overlapping range is merged.
            let apart = *to < first.saturating_sub(1) || *from > last.saturating_add(1);
            if !apart {
                (first, last) = (first.min(*from), last.max(*to));
            }
            apart
        });
        let at = self.ranges.partition_point(|(from, _)| *from < first);
        self.ranges.insert(at, (first, last));
    }

    /// Adds the sequence of a message that cannot be received.
    pub fn add_unreadable(&mut self, sequence: u64) {
        self.add(sequence, sequence);
        self.unreadable.insert(sequence);
    }

    /// Accepted messages that cannot be received, which the server may redeliver.
    pub fn unreadable(&self) -> impl Iterator<Item = u64> {
        self.unreadable.iter().copied()
    }

    /// Removes sequences up to this one, which the server will not redeliver.
    pub fn remove_up_to(&mut self, floor: u64) {
        self.ranges.retain(|(_, last)| *last > floor);
        self.unreadable.retain(|sequence| *sequence > floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut taken = AcceptedSequences::default().of("a");
        for (first, last) in [(5, 7), (1, 2), (10, 12), (3, 3)] {
            taken.add(first, last);
        }
        assert_eq!(taken.ranges, [(1, 3), (5, 7), (10, 12)]);
        taken.add(4, 11);
        assert_eq!(taken.ranges, [(1, 12)]);
        assert!(taken.contains(12) && !taken.contains(13));
        assert_eq!([taken.first_missing(1), taken.first_missing(12), taken.first_missing(20)], [13, 13, 20]);
        taken.add(20, 21);
        taken.remove_up_to(12);
        assert_eq!(taken.ranges, [(20, 21)]);
        taken.add_unreadable(23);
        taken.add_unreadable(25);
        taken.remove_up_to(23);
        assert_eq!((taken.unreadable().collect::<Vec<_>>(), taken.contains(25)), (vec![25], true));
        assert!(taken.clone().of("a").contains(25) && !taken.of("b").contains(25));
    }
}
