//! Segments, their previews and memberships.

use serde::{Deserialize, Serialize};
use tocsin_model::time::Timestamp;
use tocsin_service::segments::{Ask, Document, Draft, Membership, Part, Preview};
use utoipa::ToSchema;

use super::subscribers::SubscriberBody;

/// Input of a segment. Properties that the platform adds may be present and are ignored.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SegmentDraft)]
pub(crate) struct SegmentDraft {
    /// Its name: a letter, then up to 63 letters, digits, `_` or `-`; not `preview`.
    #[serde(default)]
    name: Option<String>,
    /// Description.
    #[serde(default)]
    description: Option<String>,
    /// A filter of LDAP (RFC 4515) over the subscriber's attributes, such as `(&(region=Vienna)(age>=18))`.
    filter: String,
    #[serde(default, rename = "canonical")]
    #[schema(ignore)]
    _canonical: serde::de::IgnoredAny,
    #[serde(default, rename = "created_at")]
    #[schema(ignore)]
    _created_at: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    #[schema(ignore)]
    _updated_at: serde::de::IgnoredAny,
    #[serde(default, rename = "revision")]
    #[schema(ignore)]
    _revision: serde::de::IgnoredAny,
}

/// A stored segment. A [`SegmentDraft`] can parse it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Segment, description = "A stored segment. A [`Draft`] can parse it.")]
pub(crate) struct SegmentBody {
    /// Its name.
    name: String,
    /// Description.
    description: Option<String>,
    /// Filter, as written.
    filter: String,
    /// The filter in normal form: equal filters have equal normal forms.
    canonical: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// Grows with each change.
    revision: u64,
}

/// Input of a segment preview.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SegmentPreviewRequest)]
pub(crate) struct SegmentPreviewDraft {
    /// A filter, as a segment has it.
    filter: String,
    /// Number of members to return; 0 to 100, default 10.
    #[serde(default)]
    sample: Option<usize>,
    /// Cursor of the previous preview, to continue counting.
    #[serde(default)]
    after: Option<String>,
}

/// Number of matching subscribers, and some of them.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = SegmentPreview)]
pub(crate) struct SegmentPreviewBody {
    /// The filter in normal form.
    canonical: String,
    /// Number of matches among the subscribers examined.
    members: u64,
    /// Number of subscribers examined: at most 1,000,000 per request. Those excluded by a condition on the id do not
    /// count.
    looked_at: u64,
    /// Total number of subscribers.
    subscribers: u64,
    /// Cursor to continue counting, as `after`; absent if all were examined.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// First members, in the order of their ids.
    sample: Vec<SubscriberBody>,
}

/// Membership of a subscriber in a segment, with the reason.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = SegmentMembership)]
pub(crate) struct SegmentMembershipBody {
    /// Whether the subscriber is a member: only if the filter is true.
    member: bool,
    /// `true`, `false` or `undefined`.
    truth: String,
    /// Result of each part of the filter; all parts must be true.
    parts: Vec<SegmentPartBody>,
}

/// Result of one part of a filter for a subscriber.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = SegmentPart)]
pub(crate) struct SegmentPartBody {
    /// The part.
    filter: String,
    /// `true`, `false` or `undefined`.
    truth: String,
}

impl From<SegmentDraft> for Draft {
    fn from(draft: SegmentDraft) -> Self {
        Draft { name: draft.name, description: draft.description, filter: draft.filter }
    }
}

impl From<Document> for SegmentBody {
    fn from(found: Document) -> Self {
        SegmentBody {
            name: found.name,
            description: found.description,
            filter: found.filter,
            canonical: found.canonical,
            created_at: found.created_at,
            updated_at: found.updated_at,
            revision: found.revision,
        }
    }
}

impl From<SegmentPreviewDraft> for Ask {
    fn from(draft: SegmentPreviewDraft) -> Self {
        Ask { filter: draft.filter, sample: draft.sample, after: draft.after }
    }
}

impl From<Preview> for SegmentPreviewBody {
    fn from(found: Preview) -> Self {
        SegmentPreviewBody {
            canonical: found.canonical,
            members: found.members,
            looked_at: found.looked_at,
            subscribers: found.subscribers,
            next: found.next,
            sample: found.sample.into_iter().map(SubscriberBody::from).collect(),
        }
    }
}

impl From<Membership> for SegmentMembershipBody {
    fn from(found: Membership) -> Self {
        let part = |Part { filter, truth }| SegmentPartBody { filter, truth };
        SegmentMembershipBody {
            member: found.member,
            truth: found.truth,
            parts: found.parts.into_iter().map(part).collect(),
        }
    }
}
