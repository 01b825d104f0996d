//! Segments, and how many belong to them.

use tocsin_model::{
    id::{Name, SubscriberId},
    ldap::LdapFilter,
    segment::Segment,
    subscriber::Subscriber,
    time::Timestamp,
};

use crate::error::StoreError;

/// A segment that asks to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSegment {
    /// Its name; an existing one is replaced.
    pub name: Name,
    /// See [`Segment`](tocsin_model::segment::Segment).
    pub description: Option<String>,
    /// See [`Segment`](tocsin_model::segment::Segment). It was read as a filter before.
    pub filter: Box<str>,
}

impl NewSegment {
    /// What is stored where there was none.
    pub(crate) fn first(self, now: Timestamp) -> Segment {
        let NewSegment { name, description, filter } = self;
        Segment { name, description, filter, created_at: now, updated_at: now, revision: 1 }
    }

    /// What is stored over an old one.
    pub(crate) fn over(self, old: &Segment, now: Timestamp) -> Segment {
        Segment { created_at: old.created_at, revision: old.revision + 1, ..self.first(now) }
    }
}

/// How far a survey goes: to the first of these bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SurveyBounds {
    /// Most subscribers that it looks at; at least one.
    pub looks: u64,
    /// Most members that it counts; at least one.
    pub members: u64,
    /// How many of the members it gives whole.
    pub kept: usize,
}

impl SurveyBounds {
    pub(crate) fn are_reached(&self, survey: &Survey) -> bool {
        survey.looked_at >= self.looks || survey.members >= self.members
    }
}

/// Some of the subscribers, in the order of their ids, held against a filter.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Survey {
    /// How many of them meet it.
    pub members: u64,
    /// The first of those.
    pub found: Vec<Subscriber>,
    /// How many were looked at. Those of whom the filter's conditions on the id tell are passed over.
    pub looked_at: u64,
    /// The last one looked at, if a bound was reached; the survey goes on after it.
    pub reached: Option<SubscriberId>,
}

pub(crate) fn no_segment(name: &Name) -> StoreError {
    StoreError::Missing(format!("segment `{name}`"))
}

/// Reads the filter of a segment. It was read before it was stored; if it cannot be read any more, nobody meets it.
pub(crate) fn read_filter(segment: &Name, text: &str) -> Option<LdapFilter> {
    LdapFilter::parse(text)
        .inspect_err(|problems| tracing::error!(%segment, ?problems, "the filter of a segment cannot be read"))
        .ok()
}
