//! Segments: saved filters over subscribers.

use async_trait::async_trait;
use tocsin_model::{
    id::{Name, SubscriberId},
    ldap::LdapFilter,
    segment::Segment,
    time::Timestamp,
};

use super::{NewSegment, SegmentScan, SegmentScanBounds};
use crate::{error::StoreError, records::writes::Precondition};

/// Segments: saved filters over subscribers.
///
/// A write is durable when the call returns and is logged in the same commit. Lists are in the order of names. Members
/// are not stored: counting them reads subscribers, up to the given bounds.
#[async_trait]
pub trait SegmentStore: Send + Sync + 'static {
    /// Stores a segment.
    async fn put_segment(&self, new: NewSegment, expect: Precondition, now: Timestamp) -> Result<Segment, StoreError>;

    /// Segment by name.
    async fn segment(&self, name: &Name) -> Result<Option<Segment>, StoreError>;

    /// Up to `limit` segments by name, after `after`.
    async fn segments(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Segment>, StoreError>;

    /// Removes a segment.
    async fn remove_segment(&self, name: &Name, expect: Precondition, now: Timestamp) -> Result<(), StoreError>;

    /// Finds subscribers that satisfy a filter, after `after`, up to the bounds. The cost grows with the rows read.
    async fn scan_matching(
        &self,
        filter: &LdapFilter,
        after: Option<&SubscriberId>,
        bounds: SegmentScanBounds,
    ) -> Result<SegmentScan, StoreError>;
}
