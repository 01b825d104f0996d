//! Accepted messages of a stream, as ranges of their sequences.

use serde::{Deserialize, Serialize};

/// Accepted sequences of a stream. A recreated stream restarts at 1, so it is identified by its creation time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct AcceptedSequences {
    stream: String,
    /// First and last of each range, sorted, without overlap.
    ranges: Vec<(u64, u64)>,
}

impl AcceptedSequences {
    /// Keeps the state of the stream created at a time; that of another stream is discarded.
    pub fn of(self, stream: &str) -> AcceptedSequences {
        if self.stream == stream { self } else { AcceptedSequences { stream: stream.to_owned(), ranges: Vec::new() } }
    }

    pub fn contains(&self, sequence: u64) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&sequence))
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

    /// Removes sequences up to this one, which the server will not redeliver.
    pub fn remove_up_to(&mut self, floor: u64) {
        self.ranges.retain(|(_, last)| *last > floor);
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
        taken.add(20, 21);
        taken.remove_up_to(12);
        assert_eq!(taken.ranges, [(20, 21)]);
        assert!(taken.clone().of("a").contains(20) && !taken.of("b").contains(20));
    }
}
