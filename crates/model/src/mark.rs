//! Checkpoints of event sources. A batch of events is accepted together with the source's checkpoint, so that a crash
//! neither loses nor repeats events.

use bytes::Bytes;

/// A checkpoint entry of a source: its offset in a file, or a seen item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The subject, such as the name of a file. A source has one mark for each.
    pub part: Box<str>,
    /// An opaque value of the source; `None` deletes the mark.
    pub value: Option<Bytes>,
}

impl Mark {
    /// Sets the value of a part.
    pub fn set(part: impl Into<Box<str>>, value: impl Into<Bytes>) -> Mark {
        Mark { part: part.into(), value: Some(value.into()) }
    }

    /// Deletes the mark of a part.
    pub fn delete(part: impl Into<Box<str>>) -> Mark {
        Mark { part: part.into(), value: None }
    }
}
