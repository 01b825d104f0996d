//! The consumed offset of each partition, stored in marks.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use tocsin_model::{mark::Mark, problem::Problem};

use crate::source::read_mark;

/// A partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Partition {
    pub topic: Arc<str>,
    pub number: i32,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

impl Partition {
    fn read(text: &str) -> Option<Partition> {
        let (topic, number) = text.rsplit_once('/')?;
        Some(Partition { topic: topic.into(), number: number.parse().ok()? })
    }
}

/// The consumed offset of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartitionOffset {
    /// The id of the topic: a recreated topic of the same name has another id, and counts from 0.
    pub topic: String,
    /// The offset of the next message.
    pub next: i64,
    /// The leader epoch of the previous message; -1 if there is none. It detects messages lost in a leader change.
    pub epoch: i32,
}

impl PartitionOffset {
    /// As a mark.
    pub fn mark(&self, part: &Partition) -> Mark {
        Mark::set(part.to_string(), serde_json::to_vec(self).expect("it is JSON"))
    }

    /// Parses a mark.
    ///
    /// # Errors
    /// The mark cannot be parsed.
    pub fn read(mark: &Mark) -> Option<Result<(Partition, PartitionOffset), Vec<Problem>>> {
        let part = Partition::read(&mark.part)?;
        Some(read_mark(mark)?.map(|place| (part, place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_a_round_trip() {
        let part = Partition { topic: "quakes.eu".into(), number: 12 };
        let place = PartitionOffset { topic: "x".into(), next: 1 << 40, epoch: 3 };
        assert_eq!(PartitionOffset::read(&place.mark(&part)), Some(Ok((part, place))));
    }
}
