//! Change log of the records: its entries and its retention.

use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId},
    suppression::Target,
};

use crate::error::StoreError;

/// Minimum number of sequences that the change log keeps. Older ones are removed in small steps by later writes.
pub const CHANGES_KEPT: u64 = 1_000_000;
/// Factor by which the log may exceed [`CHANGES_KEPT`] for readers that need it
/// ([`ChangeLog::keep_changes_after`](super::ChangeLog::keep_changes_after)).
pub const CHANGES_KEPT_FACTOR_MAX: u64 = 10;
/// Minimum and maximum number of sequences removed per trim.
pub(super) const TRIMMED_CHANGES_MIN: u64 = 1_000;
const TRIMMED_CHANGES_MAX: u64 = 20_000;

/// Change of the records, in commit order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordChange {
    /// Sequence in the change log. Sequences increase, with gaps: a change of many items takes as many sequences.
    pub sequence: ChangeSequence,
    /// The changed item. The log says which item changed, not how: readers load the present state, which is at least as
    /// new.
    pub what: ChangeKind,
}

/// Kind of a change, with the changed items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    /// An application has a new version or was removed.
    Application(Name),
    /// A subscriber or one of its devices changed in a way that can affect its subscriptions, or was removed.
    ///
    /// Relevant are: whether it is enabled, its active devices with their channels, and, for subscriptions with
    /// schedules, its time zone.
    Subscriber(SubscriberNumber),
    /// Subscriptions with numbers from the first to the last were created, changed or removed.
    Subscriptions(SubscriptionId, SubscriptionId),
    /// Subscriptions with numbers from the first to the last moved to another subscriber. Also logged as
    /// [`ChangeKind::Subscriptions`].
    Moved(SubscriptionId, SubscriptionId),
    /// An API key was created or removed.
    ApiKey,
    /// A segment was created, changed or removed.
    Segment(Name),
    /// A property of a subscriber that segments may use changed, other than [`ChangeKind::Subscriber`]; or it was
    /// removed. Logged only while segments exist.
    Profile(SubscriberNumber),
    /// Suppressions of these targets changed or were lifted.
    Suppressions(Vec<Target>),
}

/// New start of the log, if a trim is due. At least `kept` sequences stay, and those after `needed` within the
/// maximum. Each trim is small, so that no single commit pays for all.
pub(crate) fn trim_to(change: u64, trimmed: u64, kept: u64, needed: u64) -> Option<u64> {
    let requested = change.saturating_sub(kept).min(needed);
    let must = change.saturating_sub(kept.saturating_mul(CHANGES_KEPT_FACTOR_MAX));
    let end = requested.max(must).min(trimmed + TRIMMED_CHANGES_MAX);
    (end >= trimmed + TRIMMED_CHANGES_MIN).then_some(end)
}

/// Error for a reader that is too far behind.
pub(crate) fn no_changes_after(after: ChangeSequence) -> StoreError {
    StoreError::Missing(format!("the record of changes after {}", after.0))
}

/// Splits ascending numbers into runs without gaps; each run is logged as one change.
pub(crate) fn runs<T>(items: &[T], number: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    items.chunk_by(move |before, next| number(before) + 1 == number(next))
}
