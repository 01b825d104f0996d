//! Segments, and counting their members.

use tocsin_model::{
    id::{Name, SubscriberId},
    ldap::LdapFilter,
    segment::Segment,
    subscriber::Subscriber,
    time::Timestamp,
};

use crate::error::StoreError;

/// Segment to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSegment {
    /// Name; an existing segment is replaced.
    pub name: Name,
    /// See [`Segment`](tocsin_model::segment::Segment).
    pub description: Option<String>,
    /// See [`Segment`](tocsin_model::segment::Segment). The caller has validated it as a filter.
    pub filter: Box<str>,
}

impl NewSegment {
    /// Segment with its first revision.
    pub(crate) fn first(self, now: Timestamp) -> Segment {
        let NewSegment { name, description, filter } = self;
        Segment { name, description, filter, created_at: now, updated_at: now, revision: 1 }
    }

    /// Segment that replaces an old one.
    pub(crate) fn over(self, old: &Segment, now: Timestamp) -> Segment {
        Segment { created_at: old.created_at, revision: old.revision + 1, ..self.first(now) }
    }
}

/// Bounds of a scan; it stops at the first one reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentScanBounds {
    /// Maximum number of subscribers to read, at least one.
    pub looks: u64,
    /// Maximum number of members to count, at least one.
    pub members: u64,
    /// Maximum number of members to return.
    pub kept: usize,
}

impl SegmentScanBounds {
    pub(crate) fn are_reached(&self, scan: &SegmentScan) -> bool {
        scan.looked_at >= self.looks || scan.members >= self.members
    }
}

/// Result of a scan: some of the subscribers, by id, tested against a filter.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SegmentScan {
    /// Number of members found.
    pub members: u64,
    /// First members.
    pub found: Vec<Subscriber>,
    /// Number of subscribers read. Those excluded by conditions on the id are skipped.
    pub looked_at: u64,
    /// Last subscriber read if a bound was reached; the scan continues after it.
    pub reached: Option<SubscriberId>,
}

pub(crate) fn no_segment(name: &Name) -> StoreError {
    StoreError::Missing(format!("segment `{name}`"))
}

/// Parses the filter of a segment. It was validated before it was stored; if it no longer parses, the segment is
/// empty.
pub(crate) fn read_filter(segment: &Name, text: &str) -> Option<LdapFilter> {
    LdapFilter::parse(text)
        .inspect_err(|problems| tracing::error!(%segment, ?problems, "invalid filter of a segment; the segment is treated as empty"))
        .ok()
}
