//! The port of the system of record: applications, subscribers, segments, subscriptions, keys, and the feed of their
//! changes.

mod changes; // the feed of changes
mod subscribers; // who is told, and how they are reached
mod subscriptions; // of what
mod segments; // some of them
mod suppressions; // where nothing is sent
mod merges; // two that become one
mod installation; // what no other has

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

use crate::{error::StoreError, inbox::Listener, look::Looked};

pub use changes::*;
pub(crate) use installation::*;
pub use merges::*;
pub use segments::*;
pub use subscribers::*;
pub use subscriptions::*;
pub use suppressions::*;

/// Subscriptions that one step of a removal takes.
pub(crate) const REMOVED_AT_ONCE: usize = 1_000;

/// One version of an application's definition.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplicationVersion {
    /// Its application.
    pub name: Name,
    /// From 1.
    pub version: u32,
    /// The YAML text as it was applied, environment variables unresolved.
    pub text: String,
    /// Who applied it.
    pub author: String,
    /// When.
    pub applied_at: Timestamp,
}

/// What the caller expects of the thing that it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Anything, or nothing yet.
    Any,
    /// Nothing yet: `Taken` otherwise.
    Absent,
    /// Something: `Missing` otherwise.
    Present,
    /// Exactly this revision: `Changed` otherwise, `Missing` if there is none.
    Revision(u64),
}

/// An API key as it is kept: a hash, never the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its public part, by which it is listed and removed.
    pub id: String,
    /// SHA-256 of the whole key.
    pub hash: [u8; 32],
    /// What it is for.
    pub description: String,
    /// What it may do, as `area:right` words.
    pub scopes: Vec<String>,
    /// The resources that it is limited to, as `kind:name` words; empty: it is unlimited.
    pub resources: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
}

/// How many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordCounts {
    /// Subscribers.
    pub subscribers: u64,
    /// Devices.
    pub devices: u64,
    /// Subscriptions.
    pub subscriptions: u64,
}

/// What became of one line of a bulk write.
pub type Written<T> = Result<T, StoreError>;

/// The system of record. A write is durable when its call returns; concurrent writes share one fsync. Every change
/// gets its number in the change feed in the same commit. Whoever stores what is there already changes nothing: no
/// revision grows, and the feed does not tell of it.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// An identity of this installation, made once, that goes into message ids.
    fn installation(&self) -> &str;
    /// A secret of this installation, made once, from which the keys are made that sign what comes back to it. Never shown.
    fn secret(&self) -> &[u8; 32];

    // Applications

    /// Stores the next version of an application's definition. Gives its number.
    async fn put_application(&self, name: &Name, text: &str, author: &str, now: Timestamp) -> Result<u32, StoreError>;
    /// The current version of every application, by name.
    async fn applications(&self) -> Result<Vec<ApplicationVersion>, StoreError>;
    /// One version, or the current one.
    async fn application(&self, name: &Name, version: Option<u32>) -> Result<Option<ApplicationVersion>, StoreError>;
    /// All versions, newest first.
    async fn application_history(&self, name: &Name) -> Result<Vec<ApplicationVersion>, StoreError>;
    /// Removes an application with its subscriptions, in small steps, and itself with the last of them. Its history
    /// stays. What a crash leaves behind is still an application, and can be removed again.
    async fn remove_application(&self, name: &Name, now: Timestamp) -> Result<(), StoreError>;

    // Subscribers and devices

    /// Stores a subscriber; its devices are replaced if given.
    async fn put_subscriber(
        &self,
        new: NewSubscriber,
        expect: Expect,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError>;
    /// Stores many in one commit, each alone: one that fails does not stop the others.
    async fn put_subscribers(
        &self,
        new: Vec<NewSubscriber>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriberNumber>>, StoreError>;
    /// One subscriber.
    async fn subscriber(&self, id: &SubscriberId) -> Result<Option<Subscriber>, StoreError>;
    /// Looks for up to `limit` in the order of their ids, after `after`, among at most [`LOOKS_MAX`](crate::look::LOOKS_MAX) rows.
    async fn look_for_subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<Looked<Subscriber, SubscriberId>, StoreError>;
    /// Up to `limit` in the order of their ids, after `after`, among all.
    async fn subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<Vec<Subscriber>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after.cloned());
        while found.len() < limit {
            let looked = self.look_for_subscribers(filter, after.as_ref(), limit - found.len()).await?;
            found.extend(looked.items);
            let Some(next) = looked.next else { break };
            after = Some(next);
        }
        Ok(found)
    }
    /// Removes a subscriber with its devices, their suppressions, and its subscriptions. Suppressions of its addresses stay.
    async fn remove_subscriber(&self, id: &SubscriberId, expect: Expect, now: Timestamp) -> Result<(), StoreError>;
    /// Makes one subscriber a part of another, in one commit, and forgets the first: its subscriptions keep their numbers,
    /// devices and what is known against them get the account's names, and of what both have the account's stays. What
    /// became of it is kept. The feed tells of each subscription that went over by [`Changed::Moved`] too.
    ///
    /// # Errors
    /// `Missing`: one of the two is not there.
    async fn merge_subscribers(
        &self,
        from: &SubscriberId,
        into: &SubscriberId,
        now: Timestamp,
    ) -> Result<Result<Merge, NotMerged>, StoreError>;
    /// The last merge of a subscriber of this id.
    async fn merge_of(&self, from: &SubscriberId) -> Result<Option<Merge>, StoreError>;
    /// Merges whose feeds may still lie where they lay, the oldest first.
    async fn unfinished_merges(&self) -> Result<Vec<Merge>, StoreError>;
    /// The feed of this one has gone over.
    async fn finish_merge(&self, from: SubscriberNumber) -> Result<(), StoreError>;
    /// Stores one device. Gives the subscriber as it is then.
    async fn put_device(
        &self,
        id: &SubscriberId,
        name: &Name,
        device: Device,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError>;
    /// Removes one device. Gives the subscriber as it is then.
    async fn remove_device(&self, id: &SubscriberId, name: &Name, now: Timestamp) -> Result<Subscriber, StoreError>;

    // Segments

    /// Stores a segment.
    async fn put_segment(&self, new: NewSegment, expect: Expect, now: Timestamp) -> Result<Segment, StoreError>;
    /// One segment.
    async fn segment(&self, name: &Name) -> Result<Option<Segment>, StoreError>;
    /// Up to `limit` in the order of their names, after `after`.
    async fn segments(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Segment>, StoreError>;
    /// Removes a segment.
    async fn remove_segment(&self, name: &Name, expect: Expect, now: Timestamp) -> Result<(), StoreError>;
    /// To which of up to 64 segments subscribers belonged at a place of the change feed that was the newest once; a later
    /// place is the present. For each subscriber a bit for each segment, the first the lowest. Nobody belongs to a segment
    /// that was not there.
    ///
    /// # Errors
    /// `Missing` if changes after `at` are not kept any more.
    async fn memberships(
        &self,
        segments: &[Name],
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<u64>, StoreError>;
    /// Subscribers as they were at a place of the change feed that was the newest once; a later place is the present.
    /// `None` for one that was not there. The same subscriber several times in a row costs once.
    ///
    /// # Errors
    /// `Missing` if changes after `at` are not kept any more.
    async fn profiles(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<Option<Arc<ProfileImage>>>, StoreError>;
    /// Looks for those who meet a filter, after `after`, up to a bound. Its cost grows with those looked at.
    async fn survey(
        &self,
        filter: &LdapFilter,
        after: Option<&SubscriberId>,
        bounds: SurveyBounds,
    ) -> Result<Survey, StoreError>;

    // Subscriptions

    /// Stores a new subscription, or replaces the one with its key.
    async fn put_subscription(&self, new: NewSubscription, now: Timestamp) -> Result<Subscription, StoreError>;
    /// Stores many in one commit, each alone: one that fails (`Missing` subscriber) does not stop the others.
    async fn put_subscriptions(
        &self,
        new: Vec<NewSubscription>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriptionId>>, StoreError>;
    /// Replaces what of a subscription can change.
    async fn update_subscription(
        &self,
        id: SubscriptionId,
        change: SubscriptionChange,
        expect: Expect,
        now: Timestamp,
    ) -> Result<Subscription, StoreError>;
    /// Enables up to `limit` of those that were snoozed until `now` or before, each by a change like any other. Gives how
    /// many.
    async fn wake_subscriptions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;
    /// One subscription.
    async fn subscription(&self, id: SubscriptionId) -> Result<Option<Subscription>, StoreError>;
    /// Looks for up to `limit` in the order of their numbers, after `after`, among at most [`LOOKS_MAX`](crate::look::LOOKS_MAX) rows.
    async fn look_for_subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Looked<Subscription, SubscriptionId>, StoreError>;
    /// Up to `limit` in the order of their numbers, after `after`, among all.
    async fn subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<Subscription>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let looked = self.look_for_subscriptions(filter, after, limit - found.len()).await?;
            found.extend(looked.items);
            let Some(next) = looked.next else { break };
            after = Some(next);
        }
        Ok(found)
    }
    /// Removes a subscription.
    async fn remove_subscription(&self, id: SubscriptionId, expect: Expect, now: Timestamp) -> Result<(), StoreError>;

    // Suppressions

    /// Stores suppressions as they are, in place of what was known of their targets, in one commit. Of two for one target
    /// the later wins.
    async fn put_suppressions(&self, new: Vec<Suppression>) -> Result<(), StoreError>;
    /// Takes reports in their order, each by the policy, in one commit. Gives what is known of each target after it.
    async fn report_suppressions(
        &self,
        reports: Vec<Report>,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<Vec<Suppression>, StoreError>;
    /// What is known of a target, even if it is over.
    async fn suppression(&self, target: &Target) -> Result<Option<Suppression>, StoreError>;
    /// Looks for up to `limit` in the order of the texts of their targets, after `after`, among at most [`LOOKS_MAX`](crate::look::LOOKS_MAX) rows.
    async fn look_for_suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<Looked<Suppression, Target>, StoreError>;
    /// Up to `limit` in the order of the texts of their targets, after `after`, among all.
    async fn suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<Vec<Suppression>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after.cloned());
        while found.len() < limit {
            let looked = self.look_for_suppressions(filter, after.as_ref(), limit - found.len()).await?;
            found.extend(looked.items);
            let Some(next) = looked.next else { break };
            after = Some(next);
        }
        Ok(found)
    }
    /// Forgets what is known of a target.
    async fn remove_suppression(&self, target: &Target) -> Result<(), StoreError>;
    /// Forgets up to `limit` of those that are over. Gives how many; less than `limit` means that there are no more.
    async fn prune_suppressions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;
    /// The newest change of a suppression that the feed keeps. Cheap: it is looked at before each attempt.
    fn newest_suppression(&self) -> ChangeSequence;
    /// The changes of suppressions after `after`, oldest first, up to `limit`; other changes cost nothing.
    ///
    /// # Errors
    /// `Missing`, as [`Records::changes`].
    async fn suppression_changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<Change>, StoreError>;

    // Failing endpoints: what the flow remembers of them. The feed tells nothing of it.

    /// Stores what is known of some, in place of what was.
    async fn keep_endpoints(&self, endpoints: Vec<FailingEndpoint>) -> Result<(), StoreError>;
    /// Forgets some; those that are not known are passed over.
    async fn forget_endpoints(&self, endpoints: Vec<EndpointKey>) -> Result<(), StoreError>;
    /// Up to `limit` in the order of their keys, after `after`.
    async fn failing_endpoints(
        &self,
        after: Option<&EndpointKey>,
        limit: usize,
    ) -> Result<Vec<FailingEndpoint>, StoreError>;

    // For matching and delivery

    /// The enabled subscriptions of an application with numbers after `after`, up to `limit`, for building an index;
    /// each with its channel resolved. A short answer means the end.
    async fn indexed_subscriptions(
        &self,
        application: &Name,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<IndexedSubscription>, StoreError>;
    /// The same for the numbers in some ranges, in order, as it was at a place of the change feed that was the newest
    /// once; a later place is the present. To follow changes, or to undo them.
    ///
    /// # Errors
    /// `Missing` if changes after `at` are not kept any more.
    async fn indexed_at(
        &self,
        application: &Name,
        ranges: &[RangeInclusive<SubscriptionId>],
        at: ChangeSequence,
    ) -> Result<Vec<IndexedSubscription>, StoreError>;
    /// The numbers of all subscriptions that these subscribers have or had at a place of the change feed or later,
    /// enabled or not, ascending.
    ///
    /// # Errors
    /// `Missing` if changes after `at` are not kept any more.
    async fn subscriptions_of(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<SubscriptionId>, StoreError>;
    /// Whom notifications go to, in the order asked; `None` for a subscription that is gone.
    async fn recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError>;

    // Schedules

    /// The schedules that subscriptions of an application follow, in the order of their numbers, after the number `after`,
    /// up to `limit`. Some may have no follower left.
    async fn schedules(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<FollowedSchedule>, StoreError>;
    /// The enabled subscriptions of a class that follow a schedule, with numbers after `after`, up to `limit`. A short
    /// answer means the end.
    async fn scheduled_subscriptions(
        &self,
        application: &Name,
        class: &Name,
        schedule: &str,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<ScheduledSubscription>, StoreError>;
    /// The schedule that a subscription follows, with its zone, and since when.
    async fn schedule_of(&self, id: SubscriptionId) -> Result<Option<(Box<str>, Timestamp)>, StoreError>;
    /// Forgets a schedule if nobody follows it, enabled or not. Gives whether it is gone: the feed tells when it is back.
    async fn forget_schedule(&self, application: &Name, class: &Name, schedule: &str) -> Result<bool, StoreError>;

    // The change feed

    /// Changes after `after`, oldest first, up to `limit`. The feed keeps at least the last [`FEED_KEPT`] places.
    ///
    /// # Errors
    /// `Missing` if changes after `after` are not kept any more: the follower reads everything anew, from
    /// [`Records::newest_change`] on.
    async fn changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<Change>, StoreError>;
    /// The newest change; the receiver wakes up when there is a newer one. It knows of a change before the call that
    /// made it returns.
    fn newest_change(&self) -> tokio::sync::watch::Receiver<ChangeSequence>;
    /// The same of changes of API keys alone; the beginning until there is one.
    fn newest_key_change(&self) -> tokio::sync::watch::Receiver<ChangeSequence>;
    /// From now on whoever holds the listener is woken by each change of a subscriber or its devices, before the call that
    /// made it returns. Changes of its subscriptions are told by the feed of changes alone.
    fn listen(&self, subscriber: SubscriberNumber) -> Listener;
    /// Asks the feed to keep all changes after a place, in place of the one asked before, until the process ends. It keeps
    /// [`FEED_KEPT_LONGER`] times as many places as without being asked, and no more.
    fn keep_changes_after(&self, place: ChangeSequence);

    // API keys

    /// Stores a key.
    async fn put_api_key(&self, key: ApiKey) -> Result<(), StoreError>;
    /// All keys, oldest first.
    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError>;
    /// Removes a key; `Missing` if there is none.
    async fn remove_api_key(&self, id: &str) -> Result<(), StoreError>;

    /// How many there are. Cheap.
    fn counts(&self) -> RecordCounts;
    /// How many subscriptions each class has, by application and class; those that never had any may be left out. Cheap.
    async fn subscription_counts(&self) -> Result<Vec<SubscriptionCounts>, StoreError>;
    /// Writes and syncs a few bytes; says how long that took.
    async fn probe(&self) -> Result<std::time::Duration, StoreError>;
}

impl Expect {
    /// Holds the expectation against the revision of what is there.
    pub(crate) fn check(self, found: Option<u64>, what: impl FnOnce() -> String) -> Result<(), StoreError> {
        match (self, found) {
            (Expect::Absent, Some(_)) => Err(StoreError::Taken(what())),
            (Expect::Present | Expect::Revision(_), None) => Err(StoreError::Missing(what())),
            (Expect::Revision(expected), Some(found)) if expected != found => Err(StoreError::Changed(what())),
            _ => Ok(()),
        }
    }
}

pub(crate) fn no_application(name: &Name) -> StoreError {
    StoreError::Missing(format!("application `{name}`"))
}

#[cfg(test)]
mod conformance;
