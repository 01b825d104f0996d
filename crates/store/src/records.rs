//! Port of the system of record: applications, subscribers, segments, subscriptions, suppressions, API keys, and the
//! log of their changes.

mod changes; // the change log
mod subscribers; // subscribers and recipients
mod subscriptions; // subscriptions
mod segments; // saved filters over subscribers
mod suppressions; // suppressions and failing endpoints
mod merges; // merges of two subscribers into one
mod installation; // identity and secret of the installation

use std::{ops::RangeInclusive, sync::Arc};

use async_trait::async_trait;
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    ldap::LdapFilter,
    segment::Segment,
    subscriber::{Device, Subscriber},
    subscription::Subscription,
    suppression::{Policy, Report, Suppression, Target},
    time::Timestamp,
};

use crate::{bounded_scan::ScanPage, error::StoreError, inbox::Listener};

pub use changes::*;
pub(crate) use installation::*;
pub use merges::*;
pub use segments::*;
pub use subscribers::*;
pub use subscriptions::*;
pub use suppressions::*;

/// Maximum number of subscriptions that one transaction of a removal deletes.
pub(crate) const REMOVED_SUBSCRIPTIONS_MAX: usize = 1_000;

/// One version of an application's definition.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplicationVersion {
    /// Application.
    pub name: Name,
    /// Version number, from 1.
    pub version: u32,
    /// YAML text as applied, with environment variables unresolved.
    pub text: String,
    /// Caller that applied it.
    pub author: String,
    /// Time of the change.
    pub applied_at: Timestamp,
}

/// Precondition of a write (optimistic concurrency), like `If-Match` and `If-None-Match` in HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// No condition.
    Any,
    /// The item does not exist; otherwise `Taken`.
    Absent,
    /// The item exists; otherwise `Missing`.
    Present,
    /// The item has this revision; otherwise `Changed`, or `Missing` if it does not exist.
    Revision(u64),
}

/// API key as stored: a hash, never the key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Public part of the key, by which it is listed and removed.
    pub id: String,
    /// SHA-256 of the whole key.
    pub hash: [u8; 32],
    /// Purpose of the key.
    pub description: String,
    /// Granted scopes, as `area:right`.
    pub scopes: Vec<String>,
    /// Resources that the key is limited to, as `kind:name`; empty: unlimited.
    pub resources: Vec<String>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Expiry.
    pub expires_at: Option<Timestamp>,
}

/// Row counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordCounts {
    /// Subscribers.
    pub subscribers: u64,
    /// Devices.
    pub devices: u64,
    /// Subscriptions.
    pub subscriptions: u64,
}

/// Result of one item of a bulk write.
pub type Written<T> = Result<T, StoreError>;

/// Port of the system of record. A write is durable when its call returns; concurrent writes share one fsync (group
/// commit). Every change is logged in the change log in the same commit. Writing an unchanged value is a no-op: the
/// revision does not increase and nothing is logged.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// Random identity of this installation, created once; part of message ids.
    fn installation(&self) -> &str;
    /// Random secret of this installation, created once. Signing keys of tokens are derived from it. Never shown.
    fn secret(&self) -> &[u8; 32];

    // Applications

    /// Stores the next version of an application's definition. Returns its number.
    async fn put_application(&self, name: &Name, text: &str, author: &str, now: Timestamp) -> Result<u32, StoreError>;
    /// Current version of every application, by name.
    async fn applications(&self) -> Result<Vec<ApplicationVersion>, StoreError>;
    /// One version of an application, or the current one.
    async fn application(&self, name: &Name, version: Option<u32>) -> Result<Option<ApplicationVersion>, StoreError>;
    /// All versions of an application, newest first.
    async fn application_history(&self, name: &Name) -> Result<Vec<ApplicationVersion>, StoreError>;
    /// Removes an application and its subscriptions, in several commits; the application itself goes with the last
    /// one. The history stays. After a crash in between, the application still exists and can be removed again.
    async fn remove_application(&self, name: &Name, now: Timestamp) -> Result<(), StoreError>;

    // Subscribers and devices

    /// Stores a subscriber; its devices are replaced if given.
    async fn put_subscriber(
        &self,
        new: NewSubscriber,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError>;
    /// Stores many subscribers in one commit. Each succeeds or fails on its own.
    async fn put_subscribers(
        &self,
        new: Vec<NewSubscriber>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriberNumber>>, StoreError>;
    /// Subscriber by id.
    async fn subscriber(&self, id: &SubscriberId) -> Result<Option<Subscriber>, StoreError>;
    /// Finds up to `limit` subscribers by id, after `after`, and reads at most
    /// [`SCANNED_ROWS_MAX`](crate::bounded_scan::SCANNED_ROWS_MAX) rows.
    async fn scan_subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<ScanPage<Subscriber, SubscriberId>, StoreError>;
    /// Up to `limit` subscribers by id, after `after`, without a bound on the rows read.
    async fn subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<Vec<Subscriber>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after.cloned());
        while found.len() < limit {
            let page = self.scan_subscribers(filter, after.as_ref(), limit - found.len()).await?;
            found.extend(page.items);
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        Ok(found)
    }
    /// Removes a subscriber with its devices, their suppressions, and its subscriptions. Suppressions of its
    /// addresses stay.
    async fn remove_subscriber(
        &self,
        id: &SubscriberId,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<(), StoreError>;
    /// Merges subscriber `from` into `into` in one commit and removes `from`. Subscriptions keep their numbers;
    /// devices and their suppressions get the names of the account. Where both have a value, that of `into` stays.
    /// The merge is recorded. Moved subscriptions are also logged as [`ChangeKind::Moved`].
    ///
    /// # Errors
    /// `Missing`: one of the two does not exist.
    async fn merge_subscribers(
        &self,
        from: &SubscriberId,
        into: &SubscriberId,
        now: Timestamp,
    ) -> Result<Result<Merge, MergeRefusal>, StoreError>;
    /// Last merge of a subscriber with this id.
    async fn merge_of(&self, from: &SubscriberId) -> Result<Option<Merge>, StoreError>;
    /// Merges whose inbox feeds may not have been moved yet, oldest first.
    async fn unfinished_merges(&self) -> Result<Vec<Merge>, StoreError>;
    /// Marks the inbox feed of a merged subscriber as moved.
    async fn finish_merge(&self, from: SubscriberNumber) -> Result<(), StoreError>;
    /// Stores a device. Returns the updated subscriber.
    async fn put_device(
        &self,
        id: &SubscriberId,
        name: &Name,
        device: Device,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError>;
    /// Removes a device. Returns the updated subscriber.
    async fn remove_device(&self, id: &SubscriberId, name: &Name, now: Timestamp) -> Result<Subscriber, StoreError>;

    // Segments

    /// Stores a segment.
    async fn put_segment(&self, new: NewSegment, expect: Precondition, now: Timestamp) -> Result<Segment, StoreError>;
    /// Segment by name.
    async fn segment(&self, name: &Name) -> Result<Option<Segment>, StoreError>;
    /// Up to `limit` segments by name, after `after`.
    async fn segments(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Segment>, StoreError>;
    /// Removes a segment.
    async fn remove_segment(&self, name: &Name, expect: Precondition, now: Timestamp) -> Result<(), StoreError>;
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
    /// Finds subscribers that satisfy a filter, after `after`, up to the bounds. The cost grows with the rows read.
    async fn scan_matching(
        &self,
        filter: &LdapFilter,
        after: Option<&SubscriberId>,
        bounds: SegmentScanBounds,
    ) -> Result<SegmentScan, StoreError>;

    // Subscriptions

    /// Stores a new subscription, or replaces the one with the same key.
    async fn put_subscription(&self, new: NewSubscription, now: Timestamp) -> Result<Subscription, StoreError>;
    /// Stores many subscriptions in one commit. Each succeeds or fails on its own (`Missing` subscriber).
    async fn put_subscriptions(
        &self,
        new: Vec<NewSubscription>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriptionId>>, StoreError>;
    /// Replaces the mutable fields of a subscription.
    async fn update_subscription(
        &self,
        id: SubscriptionId,
        change: SubscriptionChange,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<Subscription, StoreError>;
    /// Enables up to `limit` subscriptions whose snooze ended by `now`. Each is logged as a change. Returns their
    /// number.
    async fn wake_subscriptions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;
    /// Subscription by number.
    async fn subscription(&self, id: SubscriptionId) -> Result<Option<Subscription>, StoreError>;
    /// Finds up to `limit` subscriptions by number, after `after`, and reads at most
    /// [`SCANNED_ROWS_MAX`](crate::bounded_scan::SCANNED_ROWS_MAX) rows.
    async fn scan_subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<ScanPage<Subscription, SubscriptionId>, StoreError>;
    /// Up to `limit` subscriptions by number, after `after`, without a bound on the rows read.
    async fn subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<Subscription>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let page = self.scan_subscriptions(filter, after, limit - found.len()).await?;
            found.extend(page.items);
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        Ok(found)
    }
    /// Removes a subscription.
    async fn remove_subscription(
        &self,
        id: SubscriptionId,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    // Suppressions

    /// Stores suppressions in one commit, each replacing the one of the same target. Of two for one target, the later
    /// wins.
    async fn put_suppressions(&self, new: Vec<Suppression>) -> Result<(), StoreError>;
    /// Applies reports in order, each by the policy, in one commit. Returns the resulting suppression of each target.
    async fn report_suppressions(
        &self,
        reports: Vec<Report>,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<Vec<Suppression>, StoreError>;
    /// Suppression of a target, even if expired.
    async fn suppression(&self, target: &Target) -> Result<Option<Suppression>, StoreError>;
    /// Finds up to `limit` suppressions by the text of their target, after `after`, and reads at most
    /// [`SCANNED_ROWS_MAX`](crate::bounded_scan::SCANNED_ROWS_MAX) rows.
    async fn scan_suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<ScanPage<Suppression, Target>, StoreError>;
    /// Up to `limit` suppressions by the text of their target, after `after`, without a bound on the rows read.
    async fn suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<Vec<Suppression>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after.cloned());
        while found.len() < limit {
            let page = self.scan_suppressions(filter, after.as_ref(), limit - found.len()).await?;
            found.extend(page.items);
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        Ok(found)
    }
    /// Removes the suppression of a target.
    async fn remove_suppression(&self, target: &Target) -> Result<(), StoreError>;
    /// Deletes up to `limit` expired suppressions. Returns their number; less than `limit` means that no more are
    /// expired.
    async fn prune_suppressions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;
    /// Newest logged change of a suppression. Cheap: it is read before each delivery attempt.
    fn newest_suppression(&self) -> ChangeSequence;
    /// Changes of suppressions after `after`, oldest first, up to `limit`; other changes are skipped at no cost.
    ///
    /// # Errors
    /// `Missing`, as [`Records::changes`].
    async fn suppression_changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<RecordChange>, StoreError>;

    // Failing endpoints: delivery state, not part of the change log

    /// Stores the state of failing endpoints.
    async fn put_failing_endpoints(&self, endpoints: Vec<FailingEndpoint>) -> Result<(), StoreError>;
    /// Removes failing endpoints; unknown ones are ignored.
    async fn remove_failing_endpoints(&self, endpoints: Vec<EndpointKey>) -> Result<(), StoreError>;
    /// Up to `limit` failing endpoints by key, after `after`.
    async fn failing_endpoints(
        &self,
        after: Option<&EndpointKey>,
        limit: usize,
    ) -> Result<Vec<FailingEndpoint>, StoreError>;

    // For matching and delivery

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
    /// Numbers of all subscriptions that these subscribers have had at a sequence of the change log or later, enabled or
    /// not, ascending.
    ///
    /// # Errors
    /// `Missing` if the changes after `at` are no longer logged.
    async fn subscriptions_of(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<SubscriptionId>, StoreError>;
    /// Recipients of subscriptions, in the order asked; `None` for a subscription that no longer exists.
    async fn recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError>;

    // Schedules

    /// Schedules of an application's subscriptions, by number, after the number `after`, up to `limit`. Some may have
    /// no subscription left.
    async fn schedules(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<FollowedSchedule>, StoreError>;
    /// Enabled subscriptions of a class with a schedule, with numbers after `after`, up to `limit`. Fewer than
    /// `limit` means the end.
    async fn scheduled_subscriptions(
        &self,
        application: &Name,
        class: &Name,
        schedule: &str,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<ScheduledSubscription>, StoreError>;
    /// Schedule of a subscription, with its time zone, and when the subscription joined it.
    async fn schedule_of(&self, id: SubscriptionId) -> Result<Option<(Box<str>, Timestamp)>, StoreError>;
    /// Removes a schedule that no subscription has, enabled or not. Returns whether it was removed; its return is
    /// logged as a change.
    async fn delete_schedule(&self, application: &Name, class: &Name, schedule: &str) -> Result<bool, StoreError>;

    // The change feed

    /// Changes after `after`, oldest first, up to `limit`. The log keeps at least the last [`CHANGES_KEPT`]
    /// sequences.
    ///
    /// # Errors
    /// `Missing` if the changes after `after` are no longer logged: the reader must reload everything and continue
    /// from [`Records::newest_change`].
    async fn changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<RecordChange>, StoreError>;
    /// Newest change; the receiver wakes on newer ones. A change is visible here before the call that made it
    /// returns.
    fn newest_change(&self) -> tokio::sync::watch::Receiver<ChangeSequence>;
    /// The same for changes of API keys only; zero until there is one.
    fn newest_key_change(&self) -> tokio::sync::watch::Receiver<ChangeSequence>;
    /// Subscribes to changes of a subscriber or its devices. The listener wakes before the call that made the change
    /// returns. Changes of its subscriptions appear in the change log only.
    fn listen(&self, subscriber: SubscriberNumber) -> Listener;
    /// Asks the log to keep all changes after a sequence until the process ends; replaces the previous request. The
    /// log then keeps at most [`CHANGES_KEPT_FACTOR_MAX`] times as many sequences as without.
    fn keep_changes_after(&self, place: ChangeSequence);

    // API keys

    /// Stores an API key.
    async fn put_api_key(&self, key: ApiKey) -> Result<(), StoreError>;
    /// All API keys, oldest first.
    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError>;
    /// Ids and descriptions of removed API keys, by id. They are kept, because stored objects name keys as authors.
    async fn removed_api_keys(&self) -> Result<Vec<(String, String)>, StoreError>;
    /// Removes an API key; `Missing` if there is none.
    async fn remove_api_key(&self, id: &str) -> Result<(), StoreError>;

    /// Row counts. Cheap: reads counters.
    fn counts(&self) -> RecordCounts;
    /// Number of subscriptions by application and class; classes that never had any may be missing. Cheap: reads
    /// counters.
    async fn subscription_counts(&self) -> Result<Vec<SubscriptionCounts>, StoreError>;
    /// Writes and syncs a few bytes and returns the time it took.
    async fn probe(&self) -> Result<std::time::Duration, StoreError>;
}

impl Precondition {
    /// Checks the precondition against the revision found.
    pub(crate) fn check(self, found: Option<u64>, what: impl FnOnce() -> String) -> Result<(), StoreError> {
        match (self, found) {
            (Precondition::Absent, Some(_)) => Err(StoreError::Taken(what())),
            (Precondition::Present | Precondition::Revision(_), None) => Err(StoreError::Missing(what())),
            (Precondition::Revision(expected), Some(found)) if expected != found => Err(StoreError::Changed(what())),
            _ => Ok(()),
        }
    }
}

pub(crate) fn no_application(name: &Name) -> StoreError {
    StoreError::Missing(format!("application `{name}`"))
}

#[cfg(test)]
mod conformance;
