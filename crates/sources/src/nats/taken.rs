//! Which messages of a stream are accepted, as ranges of their sequences.

use serde::{Deserialize, Serialize};

/// Sequences that are accepted. A stream that was made anew counts from 1 again, so it is told by when it was made.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Taken {
    stream: String,
    /// First and last of each range, in order, without overlap.
    ranges: Vec<(u64, u64)>,
}

impl Taken {
    /// Of a stream that was made then; what is known of another is forgotten.
    pub fn of(self, stream: &str) -> Taken {
        if self.stream == stream { self } else { Taken { stream: stream.to_owned(), ranges: Vec::new() } }
    }

    pub fn contains(&self, sequence: u64) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&sequence))
    }

    /// Adds the sequences from `first` to `last`.
    pub fn add(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        self.ranges.retain(|(from, to)| {
            // One that touches it becomes part of it.
            let apart = *to < first.saturating_sub(1) || *from > last.saturating_add(1);
            if !apart {
                (first, last) = (first.min(*from), last.max(*to));
            }
            apart
        });
        let at = self.ranges.partition_point(|(from, _)| *from < first);
        self.ranges.insert(at, (first, last));
    }

    /// Forgets what the server will not give again: all up to this sequence is acknowledged.
    pub fn forget_to(&mut self, floor: u64) {
        self.ranges.retain(|(_, last)| *last > floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_together() {
        let mut taken = Taken::default().of("a");
        for (first, last) in [(5, 7), (1, 2), (10, 12), (3, 3)] {
            taken.add(first, last);
        }
        assert_eq!(taken.ranges, [(1, 3), (5, 7), (10, 12)]);
        taken.add(4, 11);
        assert_eq!(taken.ranges, [(1, 12)]);
        assert!(taken.contains(12) && !taken.contains(13));
        taken.add(20, 21);
        taken.forget_to(12);
        assert_eq!(taken.ranges, [(20, 21)]);
        assert!(taken.clone().of("a").contains(20) && !taken.of("b").contains(20));
    }
}
