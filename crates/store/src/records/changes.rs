//! The feed of changes: what it says, and how long.

use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId},
    suppression::Target,
};

use crate::error::StoreError;

/// Places that the change feed keeps at least. Older ones are removed a few at a time by later writes.
pub const FEED_KEPT: u64 = 1_000_000;
/// For whoever still needs them the feed keeps so many times more places ([`Records::keep_changes_after`](super::Records::keep_changes_after)).
pub const FEED_KEPT_LONGER: u64 = 10;
/// Places that are removed from the feed at a time, at least and at most.
pub(super) const FEED_TRIMMED_AT_ONCE: u64 = 1_000;
const FEED_TRIMMED_AT_ONCE_MAX: u64 = 20_000;

/// A change of the records, in the order of its commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its place in the feed. Places rise, but not by one: a change of many takes up as many places.
    pub sequence: ChangeSequence,
    /// What changed. The feed says what, not how: the reader looks at the present state, which is at least as new.
    pub what: Changed,
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// An application has a new version, or is gone.
    Application(Name),
    /// A subscriber or one of its devices changed in a way that may matter to its subscriptions, or is gone.
    ///
    /// What matters is whether it is enabled, which of its devices are active on which channels, and for subscriptions with
    /// schedules its time zone.
    Subscriber(SubscriberNumber),
    /// Subscriptions with numbers from the first to the last were made, changed or removed.
    Subscriptions(SubscriptionId, SubscriptionId),
    /// Subscriptions with numbers from the first to the last have another subscriber. [`Changed::Subscriptions`] tells of them
    /// too.
    Moved(SubscriptionId, SubscriptionId),
    /// An API key was made or removed.
    ApiKey,
    /// A segment was made, changed or removed.
    Segment(Name),
    /// What segments ask of a subscriber changed, beside what [`Changed::Subscriber`] tells; or it is gone. Told while there
    /// are segments.
    Profile(SubscriberNumber),
    /// What is known against these targets changed, or was lifted.
    Suppressions(Vec<Target>),
}

/// Up to where the feed is trimmed, if that is worth the while: at least `kept` places stay, and those after `needed` as
/// long as that is not too long. A few at a time, so that no single commit pays for all.
pub(crate) fn trim_to(change: u64, trimmed: u64, kept: u64, needed: u64) -> Option<u64> {
    let wanted = change.saturating_sub(kept).min(needed);
    let must = change.saturating_sub(kept.saturating_mul(FEED_KEPT_LONGER));
    let end = wanted.max(must).min(trimmed + FEED_TRIMMED_AT_ONCE_MAX);
    (end >= trimmed + FEED_TRIMMED_AT_ONCE).then_some(end)
}

/// The answer to a follower that was away for too long.
pub(crate) fn no_changes_after(after: ChangeSequence) -> StoreError {
    StoreError::Missing(format!("the record of changes after {}", after.0))
}

/// Cuts ascending numbers into runs without gaps: the feed tells of each run at once.
pub(crate) fn runs<T>(items: &[T], number: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    items.chunk_by(move |before, next| number(before) + 1 == number(next))
}
