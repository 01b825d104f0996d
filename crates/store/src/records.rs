//! The port of the system of record: applications, subscribers, segments, subscriptions, keys, and the feed of their
//! changes.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc};

use async_trait::async_trait;
use tocsin_model::{
    hexadecimal::digits_of,
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    ldap::{Entry, LdapFilter},
    preferences::Preferences,
    schedule::{MissedPolicy, Schedule},
    segment::Segment,
    subscriber::{Device, DeviceState, Profile, Subscriber},
    subscription::{Subscription, Terms},
    suppression::{Cause, Policy, Report, Suppression, Target},
    time::Timestamp,
    value::Value,
};

use crate::error::StoreError;

/// Places that the change feed keeps at least. Older ones are removed a few at a time by later writes.
pub const FEED_KEPT: u64 = 1_000_000;
/// For whoever still needs them the feed keeps so many times more places ([`Records::keep_changes_after`]).
pub const FEED_KEPT_LONGER: u64 = 10;
/// Places that are removed from the feed at a time, at least and at most.
const FEED_TRIMMED_AT_ONCE: u64 = 1_000;
const FEED_TRIMMED_AT_ONCE_MAX: u64 = 20_000;
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

/// A subscription that asks to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSubscription {
    /// See [`Subscription`].
    pub application: Name,
    /// See [`Subscription`].
    pub class: Name,
    /// See [`Subscription`].
    pub subscriber: SubscriberId,
    /// With a key, an existing subscription of the same subscriber, class and key is replaced.
    pub key: Option<String>,
    /// See [`Subscription`].
    pub device: Option<Name>,
    /// See [`Subscription`].
    pub enabled: bool,
    /// See [`Subscription`].
    pub values: Box<str>,
    /// See [`Subscription`].
    pub terms: Terms,
}

/// What of a subscription can be replaced.
#[derive(Debug, Clone, PartialEq)]
pub struct SubscriptionChange {
    /// See [`Subscription`].
    pub device: Option<Name>,
    /// Whether it is to be matched, from the time on until which it is snoozed.
    pub enabled: bool,
    /// See [`Subscription`].
    pub values: Box<str>,
    /// See [`Subscription`].
    pub terms: Terms,
}

/// Puts to sleep who wants to be enabled from a later time on, and forgets of all others that they wanted to sleep.
pub(crate) fn snooze(enabled: &mut bool, terms: &mut Terms, now: Timestamp) {
    terms.snoozed_until = terms.snoozed_until.filter(|until| *enabled && *until > now);
    *enabled &= terms.snoozed_until.is_none();
}

impl NewSubscription {
    /// What replaces a subscription of its key.
    pub(crate) fn change(&self) -> SubscriptionChange {
        SubscriptionChange {
            device: self.device.clone(),
            enabled: self.enabled,
            values: self.values.clone(),
            terms: self.terms.clone(),
        }
    }
}

/// A whole subscriber that asks to be stored: what an import line says.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSubscriber {
    /// Its id; an existing one is replaced.
    pub id: SubscriberId,
    /// See [`Subscriber`].
    pub profile: Profile,
    /// All its devices; `None` leaves those that it has.
    pub devices: Option<Vec<(Name, Device)>>,
    /// What it wants to be told; `None` leaves what it said.
    pub preferences: Option<Preferences>,
}

/// A segment that asks to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSegment {
    /// Its name; an existing one is replaced.
    pub name: Name,
    /// See [`Segment`].
    pub description: Option<String>,
    /// See [`Segment`]. It was read as a filter before.
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

/// What is wanted of a list of subscribers or subscriptions; conditions are joined by and.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubscriberFilter {
    /// The id begins with this.
    pub id_prefix: Option<String>,
    /// A device has this address.
    pub address: Option<String>,
    /// The locale is this.
    pub locale: Option<String>,
    /// Whether it is enabled.
    pub enabled: Option<bool>,
    /// An attribute (by name) equals this text, or contains it if it is a list.
    pub attribute: Option<(String, String)>,
}

/// What is wanted of a list of subscriptions; conditions are joined by and.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubscriptionFilter {
    /// Only of this application.
    pub application: Option<Name>,
    /// Only of this class.
    pub class: Option<Name>,
    /// Only of this subscriber.
    pub subscriber: Option<SubscriberId>,
    /// Only with this key.
    pub key: Option<String>,
    /// Only enabled or disabled ones.
    pub enabled: Option<bool>,
}

/// The endpoint of a device, as the flow knows it. In the order of these three they are listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    /// The application that sends to it.
    pub application: Name,
    /// By this channel.
    pub channel: Name,
    /// Where.
    pub address: String,
}

/// An endpoint that has only failed of late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailingEndpoint {
    /// Which.
    pub key: EndpointKey,
    /// Whose device it is, once that is known.
    pub subscriber: Option<SubscriberId>,
    /// The device.
    pub device: Option<Name>,
    /// Since when it has only failed.
    pub since: Timestamp,
    /// The last failure.
    pub last: Timestamp,
    /// How often it has failed.
    pub failures: u64,
    /// What it said last.
    pub reason: String,
    /// When it was told that it will be switched off.
    pub warned_at: Option<Timestamp>,
    /// When its device was switched off.
    pub disabled_at: Option<Timestamp>,
}

/// What is wanted of a list of suppressions; conditions are joined by and.
#[derive(Debug, Clone, PartialEq)]
pub struct SuppressionFilter {
    /// Only addresses of this protocol.
    pub protocol: Option<Name>,
    /// Only devices of this subscriber.
    pub subscriber: Option<SubscriberId>,
    /// Only those of this cause.
    pub cause: Option<Cause>,
    /// Only those that are in force, or that are only counted.
    pub in_force: Option<bool>,
    /// Only those whose address, or whose subscriber's id, contains this text; letters of ASCII in either case.
    pub contains: Option<String>,
    /// Those that are over by then are left out.
    pub now: Timestamp,
}

impl SuppressionFilter {
    /// All that stand at a time.
    pub fn all(now: Timestamp) -> Self {
        SuppressionFilter { protocol: None, subscriber: None, cause: None, in_force: None, contains: None, now }
    }

    /// The text with which the targets begin that can meet it.
    pub(crate) fn prefix(&self) -> Option<String> {
        match (&self.protocol, &self.subscriber) {
            (Some(_), Some(_)) => None,
            (Some(protocol), None) => Some(format!("address/{protocol}/")),
            (None, Some(subscriber)) => Some(format!("device/{subscriber}/")),
            (None, None) => Some(String::new()),
        }
    }
}

/// Targets that one entry of the feed tells of, at most.
pub(crate) const TARGETS_TOLD: usize = 1_000;

pub(crate) fn no_suppression(target: &Target) -> StoreError {
    let what = match target {
        Target::Address { protocol, address } => format!("a suppression of the {protocol} address `{address}`"),
        Target::Device { subscriber, device } => {
            format!("a suppression of the device `{device}` of subscriber `{subscriber}`")
        }
    };
    StoreError::Missing(what)
}

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

/// A subscription as the match index wants it: only those that may fire.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexedSubscription {
    /// Its number.
    pub id: SubscriptionId,
    /// Whose it is; a subscription never changes its subscriber.
    pub subscriber: SubscriberNumber,
    /// Its class.
    pub class: Name,
    /// Its parameters, as JSON.
    pub values: Box<str>,
    /// Its own filter and schedule.
    pub terms: Terms,
    /// When it was made.
    pub created_at: Timestamp,
    /// The channel of the device that is told: the subscription's own device, else the subscriber's first active one by
    /// name. `None` if there is none that is active.
    pub channel: Option<Name>,
}

/// A schedule that subscriptions of a class follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedSchedule {
    /// Its number. Later ones have higher numbers, and none is used twice.
    pub number: u64,
    /// The class.
    pub class: Name,
    /// The canonical text of a [`Schedule`], with a zone: that of the subscriber where the subscription names none.
    pub schedule: Box<str>,
    /// When the first of them came to it.
    pub made_at: Timestamp,
}

/// A subscription that follows a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledSubscription {
    /// The subscription.
    pub subscription: IndexedSubscription,
    /// Since when it follows it. Events that were accepted before are not its: it did not exist, was disabled, or was told
    /// of them when its schedule before was due.
    pub since: Timestamp,
    /// The change by which it came to this schedule.
    pub joined: ChangeSequence,
}

/// Whom a notification goes to: everything that formatting and sending need to know. What is its subscriber's reads like
/// its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipient {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// What it says.
    pub interest: Arc<Interest>,
    /// Its subscriber, whom other recipients may share.
    pub person: Arc<Person>,
}

/// A subscription as delivery sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Interest {
    /// Its class.
    pub class: Name,
    /// Whose it is.
    pub subscriber: SubscriberNumber,
    /// The device that is told, if it names one.
    pub device: Option<Name>,
    /// Whether anything is sent for it.
    pub enabled: bool,
    /// The values of its fields, as they are stored.
    pub values: Box<str>,
}

/// A subscriber as delivery sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Person {
    /// See [`Subscriber`].
    pub id: SubscriberId,
    /// The subscriber's number.
    pub number: SubscriberNumber,
    /// The subscriber's profile.
    pub profile: Profile,
    /// What the subscriber wants to be told, and when not.
    pub preferences: Preferences,
    /// Its devices, whatever their state.
    pub devices: Devices,
}

/// Devices by name. There are few, so they lie side by side.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Devices(Box<[(Name, Device)]>);

impl Recipient {
    /// The device that is told if nothing else is wanted, if it may be used: the subscription's own, else the first by name
    /// that is active.
    pub fn device(&self) -> Option<(&Name, &Device)> {
        let named = self.interest.device.as_ref();
        let mut devices = self.devices.iter();
        devices.find(|(name, device)| device.state == DeviceState::Active && named.is_none_or(|named| named == *name))
    }
}

impl std::ops::Deref for Recipient {
    type Target = Person;

    fn deref(&self) -> &Person {
        &self.person
    }
}

impl Devices {
    /// In the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Device)> {
        self.0.iter().map(|(name, device)| (name, device))
    }

    /// The device of a name.
    pub fn get(&self, name: &Name) -> Option<&Device> {
        self.iter().find(|(known, _)| *known == name).map(|(_, device)| device)
    }
}

impl FromIterator<(Name, Device)> for Devices {
    fn from_iter<I: IntoIterator<Item = (Name, Device)>>(devices: I) -> Self {
        let mut devices: Vec<_> = devices.into_iter().collect();
        devices.sort_by(|(one, _), (other, _)| one.cmp(other));
        Devices(devices.into())
    }
}

impl std::ops::Index<&Name> for Devices {
    type Output = Device;

    /// Panics if there is none of this name.
    fn index(&self, name: &Name) -> &Device {
        self.get(name).expect("a device of this name")
    }
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

/// How many subscriptions a class has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionCounts {
    /// The application.
    pub application: Name,
    /// The class.
    pub class: Name,
    /// Those that are enabled.
    pub enabled: u64,
    /// Those that are not.
    pub disabled: u64,
    /// When one was added last, as far as is known: that of one which is gone may be forgotten.
    pub last_added_at: Option<Timestamp>,
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
    /// Up to `limit` in the order of their ids, after `after`.
    async fn subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<Vec<Subscriber>, StoreError>;
    /// Removes a subscriber with its devices, their suppressions, and its subscriptions. Suppressions of its addresses stay.
    async fn remove_subscriber(&self, id: &SubscriberId, expect: Expect, now: Timestamp) -> Result<(), StoreError>;
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
    /// Up to `limit` in the order of their numbers, after `after`.
    async fn subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<Subscription>, StoreError>;
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
    /// Up to `limit` in the order of the texts of their targets, after `after`.
    async fn suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<Vec<Suppression>, StoreError>;
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

// What every backend shares: the rules that are not about storage.

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

pub(crate) fn no_subscriber(id: &SubscriberId) -> StoreError {
    StoreError::Missing(format!("subscriber `{id}`"))
}

pub(crate) fn no_subscription(id: SubscriptionId) -> StoreError {
    StoreError::Missing(format!("subscription `{id}`"))
}

pub(crate) fn no_device(id: &SubscriberId, name: &Name) -> StoreError {
    StoreError::Missing(format!("device `{name}` of subscriber `{id}`"))
}

pub(crate) fn no_segment(name: &Name) -> StoreError {
    StoreError::Missing(format!("segment `{name}`"))
}

pub(crate) fn no_application(name: &Name) -> StoreError {
    StoreError::Missing(format!("application `{name}`"))
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

/// An identity that no other installation has: 96 random bits in hexadecimal.
pub(crate) fn new_installation() -> Result<String, StoreError> {
    Ok(digits_of(&random::<12>()?))
}

/// A secret that nobody can guess.
pub(crate) fn new_secret() -> Result<[u8; 32], StoreError> {
    random()
}

fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| StoreError::unavailable("the system has no random numbers"))?;
    Ok(bytes)
}

/// What of a subscriber decides about its place in the match index: the channels of its active devices, if it is enabled.
pub(crate) fn reach(profile: &Profile, devices: &BTreeMap<Name, Device>) -> Option<BTreeMap<Name, Name>> {
    profile.enabled.then(|| {
        let active = devices.iter().filter(|(_, device)| device.state == DeviceState::Active);
        active.map(|(name, device)| (name.clone(), device.channel.clone())).collect()
    })
}

/// A subscriber as segments and rules saw it at a place of the change feed.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ProfileImage {
    /// Its id.
    pub id: SubscriberId,
    /// When it was made.
    pub created_at: Timestamp,
    /// What its creator said of it. Whether it was enabled is not told here: the index knows only those who are.
    pub profile: Profile,
}

impl ProfileImage {
    pub(crate) fn of(subscriber: &Subscriber) -> ProfileImage {
        ProfileImage {
            id: subscriber.id.clone(),
            created_at: subscriber.created_at,
            profile: subscriber.profile.clone(),
        }
    }

    /// A bit for each filter that it meets, with the channels by which it could be told; `None` if it was disabled.
    pub(crate) fn memberships(&self, filters: &[Option<LdapFilter>], reach: Option<Vec<&Name>>) -> u64 {
        let profile = Profile { enabled: reach.is_some(), ..self.profile.clone() };
        let channels = reach.unwrap_or_default();
        let entry = Entry { id: &self.id, profile: &profile, channels, created_at: self.created_at };
        let bit = |(at, filter): (usize, &Option<LdapFilter>)| {
            u64::from(filter.as_ref().is_some_and(|filter| filter.matches(&entry))) << at
        };
        filters.iter().take(64).enumerate().map(bit).sum()
    }
}

/// Reads the filter of a segment. It was read before it was stored; if it cannot be read any more, nobody meets it.
pub(crate) fn read_filter(segment: &Name, text: &str) -> Option<LdapFilter> {
    LdapFilter::parse(text)
        .inspect_err(|problems| tracing::error!(%segment, ?problems, "the filter of a segment cannot be read"))
        .ok()
}

/// The schedule that decides when a subscription is due: its own, in the zone of its subscriber where it names none, or
/// in UTC where neither does. `None`: it cannot be read, and nothing is ever due.
pub(crate) fn due_schedule(text: &str, zone: Option<&str>) -> Option<Box<str>> {
    let schedule = Schedule::parse_floating(text).ok()?;
    let schedule = schedule.in_zone(zone.unwrap_or("UTC")).or_else(|| schedule.in_zone("UTC"))?;
    Some(schedule.to_string().into())
}

/// From when events are a subscription's that followed another schedule until now: from when that was last due.
pub(crate) fn since_change(before: &str, since: Timestamp, now: Timestamp) -> Timestamp {
    let Ok(before) = Schedule::parse(before) else { return since };
    before.due(Some(since), now, MissedPolicy::Once).runs.last().map_or(since, |run| run.at)
}

/// Whether an attribute equals a text, or contains it if it is a list.
pub(crate) fn has_attribute(attributes: &BTreeMap<String, Value>, name: &str, text: &str) -> bool {
    let is_text = |value: &Value| matches!(value, Value::Text(found) if found.as_ref() == text);
    match attributes.get(name) {
        Some(Value::List(items)) => items.iter().any(is_text),
        Some(value) => is_text(value),
        None => false,
    }
}

/// Cuts ascending numbers into runs without gaps: the feed tells of each run at once.
pub(crate) fn runs<T>(items: &[T], number: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    items.chunk_by(move |before, next| number(before) + 1 == number(next))
}

#[cfg(test)]
mod conformance;
