//! How far we are in each partition, as the marks say it.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use tocsin_model::{mark::Mark, problem::Problem};

use crate::source::read_mark;

/// A partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Part {
    pub topic: Arc<str>,
    pub number: i32,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

impl Part {
    fn read(text: &str) -> Option<Part> {
        let (topic, number) = text.rsplit_once('/')?;
        Some(Part { topic: topic.into(), number: number.parse().ok()? })
    }
}

/// How far we are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The id of the topic: one that was made anew under its name has another, and counts from 0.
    pub topic: String,
    /// The offset of the next message.
    pub next: i64,
    /// The epoch of the leader who wrote the message before it; -1 if there is none. What a new leader did not have is told
    /// by it.
    pub epoch: i32,
}

impl Place {
    /// As a mark.
    pub fn mark(&self, part: &Part) -> Mark {
        Mark::set(part.to_string(), serde_json::to_vec(self).expect("it is JSON"))
    }

    /// What a mark says.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(mark: &Mark) -> Option<Result<(Part, Place), Vec<Problem>>> {
        let part = Part::read(&mark.part)?;
        Some(read_mark(mark)?.map(|place| (part, place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back() {
        let part = Part { topic: "quakes.eu".into(), number: 12 };
        let place = Place { topic: "x".into(), next: 1 << 40, epoch: 3 };
        assert_eq!(Place::read(&place.mark(&part)), Some(Ok((part, place))));
    }
}
