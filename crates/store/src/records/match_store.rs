//! Records as of a sequence of the change log, for matching.

use std::{ops::RangeInclusive, sync::Arc};

use async_trait::async_trait;
use tocsin_model::id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId};

use super::{ChangeLog, IndexedSubscription, ProfileImage};
use crate::error::StoreError;

/// Records as of a sequence of the change log (snapshot isolation), for the match index and for filters over
/// subscribers.
///
/// A sequence that is still logged gives the same result on every read. The cost grows with the rows asked for and with
/// the changes after the sequence.
#[async_trait]
pub trait MatchStore: ChangeLog {
    /// Enabled subscriptions of an application with numbers after `after`, up to `limit`, for building the match
    /// index; each with its resolved channel. Fewer than `limit` means the end.
    async fn indexed_subscriptions(
        &self,
        application: &Name,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<IndexedSubscription>, StoreError>;

    /// The same for subscriptions in some ranges of numbers, at a past sequence of the change log (snapshot); a later
    /// sequence means the present. The index uses it to apply or undo changes.
    ///
    /// # Errors
    /// `Missing` if the changes after `at` are no longer logged.
    async fn indexed_at(
        &self,
        application: &Name,
        ranges: &[RangeInclusive<SubscriptionId>],
        at: ChangeSequence,
    ) -> Result<Vec<IndexedSubscription>, StoreError>;

    /// Numbers of all subscriptions that these subscribers have had at a sequence of the change log or later, enabled
    /// or not, ascending.
    ///
    /// # Errors
    /// `Missing` if the changes after `at` are no longer logged.
    async fn subscriptions_of(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<SubscriptionId>, StoreError>;

    /// Memberships of subscribers in up to 64 segments at a past sequence of the change log (snapshot); a later
    /// sequence means the present. Returns one bit per segment and subscriber, the first segment in the lowest bit.
    /// Segments that did not exist have no members.
    ///
    /// # Errors
    /// `Missing` if the changes after `at` are no longer logged.
    async fn memberships(
        &self,
        segments: &[Name],
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<u64>, StoreError>;

    /// Profiles of subscribers at a past sequence of the change log (snapshot); a later sequence means the present.
    /// `None` for a subscriber that did not exist. Repeated subscribers in a row are read once.
    ///
    /// # Errors
    /// `Missing` if the changes after `at` are no longer logged.
    async fn profiles(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<Option<Arc<ProfileImage>>>, StoreError>;
}
