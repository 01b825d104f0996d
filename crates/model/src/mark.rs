//! How far sources have come, in their own words. A batch of events is accepted together with what its source remembers
//! of it, so that a crash neither loses events nor takes them twice.

use bytes::Bytes;

/// Something that a source remembers: how far it has come with a file, that it knows an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// What it is about, such as the name of a file. A source has one mark for each.
    pub part: Box<str>,
    /// What is remembered, in words that only the source reads; `None` forgets the part.
    pub value: Option<Bytes>,
}

impl Mark {
    /// Remembers this of a part.
    pub fn set(part: impl Into<Box<str>>, value: impl Into<Bytes>) -> Mark {
        Mark { part: part.into(), value: Some(value.into()) }
    }

    /// Forgets a part.
    pub fn forget(part: impl Into<Box<str>>) -> Mark {
        Mark { part: part.into(), value: None }
    }
}
