//! The records in memory. Plain maps behind one lock; what it does is what every backend has to do.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    ldap::{Entry, LdapFilter},
    preferences::Preferences,
    segment::Segment,
    subscriber::{Device, Profile, Subscriber},
    subscription::Subscription,
    suppression::{Policy, Report, Suppression, Target},
    time::Timestamp,
};
use tokio::sync::watch;

mod entries; // the directory

use crate::{
    error::StoreError,
    records::{
        ApiKey, ApplicationVersion, Change, Changed, EndpointKey, Expect, FEED_KEPT, FailingEndpoint, FollowedSchedule,
        IndexedSubscription, NewSegment, NewSubscriber, NewSubscription, Person, ProfileImage, REMOVED_AT_ONCE,
        Recipient, RecordCounts, Records, ScheduledSubscription, SubscriberFilter, SubscriptionChange,
        SubscriptionCounts, SubscriptionFilter, SuppressionFilter, Survey, SurveyBounds, TARGETS_TOLD, Written,
        due_schedule, has_attribute, new_installation, new_secret, no_application, no_changes_after, no_device,
        no_segment, no_subscriber, no_subscription, no_suppression, reach, read_filter, runs, since_change, trim_to,
    },
};

/// The records in memory.
pub struct MemoryRecords {
    installation: String,
    secret: [u8; 32],
    shelf: Mutex<Shelf>,
    newest: watch::Sender<ChangeSequence>,
}

#[derive(Default)]
struct Shelf {
    /// All versions, oldest first, and whether there is a current one.
    applications: BTreeMap<Name, (Vec<ApplicationVersion>, bool)>,
    subscribers: BTreeMap<SubscriberId, Subscriber>,
    segments: BTreeMap<Name, Segment>,
    /// By the texts of their targets.
    suppressions: BTreeMap<String, Suppression>,
    newest_suppression: u64,
    endpoints: BTreeMap<EndpointKey, FailingEndpoint>,
    subscriptions: BTreeMap<SubscriptionId, Subscription>,
    owned: BTreeMap<SubscriberNumber, BTreeSet<SubscriptionId>>,
    /// By application, class and text, with their numbers and the times when they were made.
    schedules: BTreeMap<ScheduleKey, (u64, Timestamp)>,
    last_schedule: u64,
    scheduled: BTreeMap<SubscriptionId, Follower>,
    /// In the order of their first subscriptions.
    classes: Vec<(Name, Name)>,
    api_keys: BTreeMap<(Timestamp, String), ApiKey>,
    feed: VecDeque<(Change, Before)>,
    feed_kept: u64,
    /// Changes after this place are still needed.
    feed_needed: u64,
    change: u64,
    trimmed: u64,
    last_subscriber: u64,
    last_subscription: u64,
    damaged: BTreeSet<SubscriptionId>,
    directory: entries::Directory,
}

/// What a subscription follows, since when events are its, and by which change it came there.
type Follower = (ScheduleKey, Timestamp, ChangeSequence);
type ScheduleKey = (Name, Name, Box<str>);

/// What there was before a change.
enum Before {
    Nothing,
    Subscriptions(Vec<Subscription>),
    /// The channels of the subscriber's active devices by name, if it was enabled.
    Reach(Option<BTreeMap<Name, Name>>),
    Profile(ProfileImage),
    /// The filter of the segment, if there was one.
    Filter(Option<Box<str>>),
}

impl MemoryRecords {
    /// Empty records.
    ///
    /// # Errors
    /// `Unavailable` if the system has no random numbers.
    pub fn new() -> Result<Self, StoreError> {
        Self::with_feed_kept(FEED_KEPT)
    }

    /// Empty records that keep so many places of the change feed at least.
    ///
    /// # Errors
    /// As [`MemoryRecords::new`].
    pub fn with_feed_kept(feed_kept: u64) -> Result<Self, StoreError> {
        Ok(MemoryRecords {
            installation: new_installation()?,
            secret: new_secret()?,
            shelf: Mutex::new(Shelf { feed_kept, feed_needed: u64::MAX, ..Shelf::default() }),
            newest: watch::Sender::new(ChangeSequence(0)),
        })
    }

    /// Makes the recipient of a subscription unreadable, as a worn disk does. For tests of what is left then.
    pub fn damage(&self, id: SubscriptionId) {
        self.shelf.lock().damaged.insert(id);
    }

    fn change<T>(&self, job: impl FnOnce(&mut Shelf) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut shelf = self.shelf.lock();
        let result = job(&mut shelf);
        shelf.trim();
        shelf.directory.tell();
        let change = ChangeSequence(shelf.change);
        self.newest.send_if_modified(|newest| std::mem::replace(newest, change) != change);
        result
    }
}

impl Shelf {
    fn tell(&mut self, places: u64, what: Changed, before: Before) {
        self.change += places;
        self.feed.push_back((Change { sequence: ChangeSequence(self.change), what }, before));
    }

    fn tell_suppressions(&mut self, targets: &[Target]) {
        for told in targets.chunks(TARGETS_TOLD) {
            self.tell(1, Changed::Suppressions(told.to_vec()), Before::Nothing);
            self.newest_suppression = self.change;
        }
    }

    /// Gives whether it says anything new.
    fn put_suppression(&mut self, new: &Suppression) -> bool {
        self.suppressions.insert(new.target.to_string(), new.clone()).as_ref() != Some(new)
    }

    fn remove_suppressions(&mut self, is_meant: impl Fn(&Suppression) -> bool, limit: usize) -> usize {
        let meant = self.suppressions.values().filter(|found| is_meant(found)).take(limit);
        let targets: Vec<Target> = meant.map(|found| found.target.clone()).collect();
        targets.iter().for_each(|target| drop(self.suppressions.remove(&target.to_string())));
        self.tell_suppressions(&targets);
        targets.len()
    }

    fn tell_profile(&mut self, before: &Subscriber) {
        self.tell(1, Changed::Profile(before.number), Before::Profile(ProfileImage::of(before)));
    }

    /// The filter of a segment as it was at a place.
    fn filter_at(&self, segment: &Name, at: ChangeSequence) -> Option<LdapFilter> {
        let changed = self.changes_after(at).find_map(|(change, before)| match (&change.what, before) {
            (Changed::Segment(name), Before::Filter(filter)) if name == segment => Some(filter.clone()),
            _ => None,
        });
        let text = changed.unwrap_or_else(|| self.segments.get(segment).map(|found| found.filter.clone()))?;
        read_filter(segment, &text)
    }

    fn memberships_at(&self, number: SubscriberNumber, filters: &[Option<LdapFilter>], at: ChangeSequence) -> u64 {
        let Some(image) = self.profile_at(number, at) else { return 0 };
        let present = self.subscribers.values().find(|found| found.number == number);
        let reach = self.reach_of(number, present, at);
        image.memberships(filters, reach.as_ref().map(|reach| reach.values().collect()))
    }

    fn profile_at(&self, number: SubscriberNumber, at: ChangeSequence) -> Option<ProfileImage> {
        let changed = self.changes_after(at).find_map(|(change, before)| match before {
            Before::Profile(image) if change.what == Changed::Profile(number) => Some(image.clone()),
            _ => None,
        });
        let present = || self.subscribers.values().find(|found| found.number == number);
        changed.or_else(|| present().map(ProfileImage::of))
    }

    /// Tells of changed or removed subscriptions, ascending, each of which takes up a place.
    fn tell_changed(&mut self, before: &[Subscription]) {
        for run in runs(before, |subscription| subscription.id.0) {
            let what = Changed::Subscriptions(run[0].id, run[run.len() - 1].id);
            self.tell(run.len() as u64, what, Before::Subscriptions(run.to_vec()));
        }
    }

    fn trim(&mut self) {
        if let Some(end) = trim_to(self.change, self.trimmed, self.feed_kept, self.feed_needed) {
            self.feed.retain(|(change, _)| change.sequence.0 > end);
            self.trimmed = end;
        }
    }

    fn check_kept(&self, after: ChangeSequence) -> Result<(), StoreError> {
        if after.0 < self.trimmed { Err(no_changes_after(after)) } else { Ok(()) }
    }

    /// The changes after a place, oldest first.
    fn changes_after(&self, at: ChangeSequence) -> impl Iterator<Item = &(Change, Before)> {
        self.feed.range(self.feed.partition_point(|(change, _)| change.sequence <= at)..)
    }

    /// The images from after a place, oldest first.
    fn images(&self, at: ChangeSequence) -> impl Iterator<Item = &Subscription> {
        self.changes_after(at).flat_map(|(_, before)| match before {
            Before::Subscriptions(images) => images.as_slice(),
            _ => &[],
        })
    }

    /// A subscription as it was at a place; numbers only grow, so what was made later is beyond `last`.
    fn subscription_at(&self, id: SubscriptionId, last: SubscriptionId, at: ChangeSequence) -> Option<&Subscription> {
        let image = self.images(at).find(|image| image.id == id);
        image.or_else(|| self.subscriptions.get(&id)).filter(|_| id <= last)
    }

    /// The last number that was given out by a place.
    fn last_at(&self, at: ChangeSequence) -> SubscriptionId {
        let made = self.changes_after(at).find_map(|(change, before)| match (&change.what, before) {
            (Changed::Subscriptions(first, _), Before::Nothing) => Some(first.0 - 1),
            _ => None,
        });
        SubscriptionId(made.unwrap_or(self.last_subscription))
    }

    /// The channels of a subscriber's active devices by name, if it was enabled then.
    fn reach_of(
        &self,
        number: SubscriberNumber,
        present: Option<&Subscriber>,
        at: ChangeSequence,
    ) -> Option<BTreeMap<Name, Name>> {
        let changed = self.changes_after(at).find_map(|(change, before)| match before {
            Before::Reach(reach) if change.what == Changed::Subscriber(number) => Some(reach),
            _ => None,
        });
        changed.cloned().unwrap_or_else(|| present.and_then(|found| reach(&found.profile, &found.devices)))
    }

    fn indexed_at(&self, found: &Subscription, at: ChangeSequence) -> Option<IndexedSubscription> {
        let number = found.subscriber_number;
        let present = self.subscribers.get(&found.subscriber).filter(|found| found.number == number);
        let reach = self.reach_of(number, present, at).filter(|_| found.enabled)?;
        let channel = match &found.device {
            Some(device) => reach.get(device),
            None => reach.values().next(),
        };
        Some(IndexedSubscription {
            id: found.id,
            subscriber: found.subscriber_number,
            class: found.class.clone(),
            values: found.values.clone(),
            terms: found.terms.clone(),
            created_at: found.created_at,
            channel: channel.cloned(),
        })
    }

    fn subscriber_of(&self, subscription: &Subscription) -> &Subscriber {
        &self.subscribers[&subscription.subscriber]
    }

    fn put_subscriber(&mut self, new: NewSubscriber, expect: Expect, now: Timestamp) -> Result<Subscriber, StoreError> {
        let old = self.subscribers.get(&new.id).cloned();
        expect.check(old.as_ref().map(|old| old.revision), || format!("subscriber `{}`", new.id))?;
        let devices = new.devices.map(BTreeMap::from_iter);
        let Some(old) = old else {
            self.last_subscriber += 1;
            let made = Subscriber {
                number: SubscriberNumber(self.last_subscriber),
                id: new.id,
                profile: new.profile,
                devices: devices.unwrap_or_default(),
                preferences: new.preferences.unwrap_or_default(),
                created_at: now,
                updated_at: now,
                revision: 1,
            };
            self.subscribers.insert(made.id.clone(), made.clone());
            self.directory.changed(None, Some(&made));
            return Ok(made);
        };
        let devices = devices.unwrap_or_else(|| old.devices.clone());
        let preferences = new.preferences.unwrap_or_else(|| old.preferences.clone());
        Ok(self.replace_subscriber(old, new.profile, devices, preferences, now))
    }

    fn replace_subscriber(
        &mut self,
        old: Subscriber,
        profile: Profile,
        devices: BTreeMap<Name, Device>,
        preferences: Preferences,
        now: Timestamp,
    ) -> Subscriber {
        if old.profile == profile && old.devices == devices && old.preferences == preferences {
            return old;
        }
        let before = reach(&old.profile, &old.devices);
        let reach_changed = before != reach(&profile, &devices);
        // Whether it is enabled is a matter of its reach.
        if (Profile { enabled: profile.enabled, ..old.profile.clone() }) != profile {
            self.tell_profile(&old);
        }
        let zone_changed = old.profile.time_zone != profile.time_zone;
        let revision = old.revision + 1;
        let new = Subscriber { profile, devices, preferences, updated_at: now, revision, ..old.clone() };
        self.subscribers.insert(new.id.clone(), new.clone());
        self.directory.changed(Some(&old), Some(&new));
        if zone_changed {
            for id in self.owned.get(&new.number).cloned().unwrap_or_default() {
                self.follow_schedule(id, false, now);
            }
        }
        let is_scheduled = |id| self.subscriptions[id].terms.schedule.is_some();
        let rescheduled = zone_changed && self.owned.get(&new.number).into_iter().flatten().any(is_scheduled);
        if reach_changed || rescheduled {
            self.tell(1, Changed::Subscriber(new.number), Before::Reach(before));
        }
        new
    }

    fn remove_subscriber(&mut self, id: &SubscriberId, expect: Expect) -> Result<(), StoreError> {
        let old = self.subscribers.get(id).map(|old| (old.number, old.revision));
        expect.check(old.map(|(_, revision)| revision), || format!("subscriber `{id}`"))?;
        let (number, _) = old.ok_or_else(|| no_subscriber(id))?;
        let before = self.subscribers.get(id).and_then(|old| reach(&old.profile, &old.devices));
        let ids: Vec<_> = self.owned.get(&number).into_iter().flatten().copied().collect();
        self.remove_subscriptions(&ids);
        let is_its =
            |found: &Suppression| matches!(&found.target, Target::Device { subscriber, .. } if subscriber == id);
        self.remove_suppressions(is_its, usize::MAX);
        if let Some(old) = self.subscribers.get(id).cloned() {
            self.tell_profile(&old);
            self.directory.changed(Some(&old), None);
        }
        self.owned.remove(&number);
        self.subscribers.remove(id);
        self.tell(1, Changed::Subscriber(number), Before::Reach(before));
        Ok(())
    }

    /// Replaces the devices of a subscriber by what `change` makes of them.
    fn change_devices(
        &mut self,
        id: &SubscriberId,
        now: Timestamp,
        change: impl FnOnce(&mut BTreeMap<Name, Device>) -> Result<(), StoreError>,
    ) -> Result<Subscriber, StoreError> {
        let old = self.subscribers.get(id).cloned().ok_or_else(|| no_subscriber(id))?;
        let mut devices = old.devices.clone();
        change(&mut devices)?;
        let (profile, preferences) = (old.profile.clone(), old.preferences.clone());
        Ok(self.replace_subscriber(old, profile, devices, preferences, now))
    }

    fn put_subscriptions(&mut self, new: Vec<NewSubscription>, now: Timestamp) -> Vec<Written<SubscriptionId>> {
        let mut written: Vec<_> = new.iter().map(|line| Err(no_subscriber(&line.subscriber))).collect();
        let number = |line: &NewSubscription| self.subscribers.get(&line.subscriber).map(|found| found.number);
        let mut order: Vec<_> =
            new.into_iter().enumerate().filter_map(|(place, line)| Some((place, number(&line)?, line))).collect();
        // Must stay a stable sort: of two lines with one key the later one wins.
        order.sort_by_key(|(_, number, _)| *number);
        let first_new = self.last_subscription + 1;
        let mut changed = BTreeMap::new();
        for (place, number, line) in order {
            let class = (line.application.clone(), line.class.clone());
            if !self.classes.contains(&class) {
                self.classes.push(class);
            }
            let same_key = self.owned.entry(number).or_default().iter().copied().find(|id| {
                let other = &self.subscriptions[id];
                line.key.is_some()
                    && (&other.application, &other.class, &other.key) == (&line.application, &line.class, &line.key)
            });
            let id = match same_key {
                Some(id) => {
                    if let Some(before) = self.change_subscription(id, line.change(), now) {
                        // Of one that is replaced twice, the first image is the one from before.
                        changed.entry(id).or_insert(before);
                    }
                    id
                }
                None => self.make_subscription(line, number, now),
            };
            written[place] = Ok(id);
        }
        if self.last_subscription >= first_new {
            let made = Changed::Subscriptions(SubscriptionId(first_new), SubscriptionId(self.last_subscription));
            self.tell(1, made, Before::Nothing);
        }
        self.tell_changed(&changed.into_values().collect::<Vec<_>>());
        written
    }

    fn make_subscription(&mut self, new: NewSubscription, number: SubscriberNumber, now: Timestamp) -> SubscriptionId {
        self.last_subscription += 1;
        let id = SubscriptionId(self.last_subscription);
        let made = Subscription {
            id,
            application: new.application,
            class: new.class,
            subscriber: new.subscriber,
            subscriber_number: number,
            key: new.key,
            device: new.device,
            enabled: new.enabled,
            values: new.values,
            terms: new.terms,
            created_at: now,
            updated_at: now,
            revision: 1,
        };
        self.subscriptions.insert(id, made);
        self.owned.entry(number).or_default().insert(id);
        self.follow_schedule(id, false, now);
        id
    }

    /// Makes a subscription follow its schedule, or none any more.
    fn follow_schedule(&mut self, id: SubscriptionId, resumed: bool, now: Timestamp) {
        let Some(found) = self.subscriptions.get(&id) else { return };
        let zone = self.subscriber_of(found).profile.time_zone.as_deref();
        let Some(text) = found.terms.schedule.as_deref().and_then(|text| due_schedule(text, zone)) else {
            self.scheduled.remove(&id);
            return;
        };
        let key = (found.application.clone(), found.class.clone(), text);
        let since = match self.scheduled.get(&id) {
            Some((before, ..)) if *before == key && !resumed => return,
            Some(((_, _, before), since, _)) if !resumed => since_change(before, *since, now),
            _ => now,
        };
        self.scheduled.insert(id, (key.clone(), since, ChangeSequence(self.change + 1)));
        if !self.schedules.contains_key(&key) {
            self.last_schedule += 1;
            self.schedules.insert(key, (self.last_schedule, now));
        }
    }

    /// Gives the subscription from before, if anything differed.
    fn change_subscription(
        &mut self,
        id: SubscriptionId,
        new: SubscriptionChange,
        now: Timestamp,
    ) -> Option<Subscription> {
        let found = self.subscriptions.get_mut(&id)?;
        let SubscriptionChange { device, enabled, values, terms } = new;
        if found.device == device && found.enabled == enabled && found.values == values && found.terms == terms {
            return None;
        }
        let before = found.clone();
        let resumed = enabled && !found.enabled;
        let rescheduled = found.terms.schedule != terms.schedule;
        (found.device, found.enabled, found.values, found.terms) = (device, enabled, values, terms);
        found.updated_at = now;
        found.revision += 1;
        if rescheduled || resumed {
            self.follow_schedule(id, resumed, now);
        }
        Some(before)
    }

    fn remove_subscriptions(&mut self, ids: &[SubscriptionId]) {
        let gone: Vec<Subscription> = ids.iter().filter_map(|id| self.subscriptions.remove(id)).collect();
        for gone in &gone {
            self.owned.entry(gone.subscriber_number).or_default().remove(&gone.id);
            self.scheduled.remove(&gone.id);
        }
        self.tell_changed(&gone);
    }

    fn expect_subscription(&self, id: SubscriptionId, expect: Expect) -> Result<(), StoreError> {
        let found = self.subscriptions.get(&id).map(|found| found.revision);
        expect.check(found, || format!("subscription `{id}`"))?;
        found.map(|_| ()).ok_or_else(|| no_subscription(id))
    }

    fn recipient(&self, id: SubscriptionId) -> Option<Recipient> {
        let subscription = self.subscriptions.get(&id)?.clone();
        let subscriber = self.subscriber_of(&subscription);
        let person = Person {
            id: subscriber.id.clone(),
            profile: subscriber.profile.clone(),
            preferences: subscriber.preferences.clone(),
            devices: subscriber.devices.clone().into_iter().collect(),
        };
        Some(Recipient { subscription, person: Arc::new(person) })
    }
}

fn meets_subscriber(filter: &SubscriberFilter, found: &Subscriber) -> bool {
    let prefix = filter.id_prefix.as_deref().unwrap_or_default();
    found.id.as_str().starts_with(prefix)
        && filter.address.as_ref().is_none_or(|address| found.devices.values().any(|device| device.address == *address))
        && filter.locale.as_ref().is_none_or(|locale| found.profile.locale.as_ref() == Some(locale))
        && filter.enabled.is_none_or(|enabled| found.profile.enabled == enabled)
        && filter.attribute.as_ref().is_none_or(|(name, text)| has_attribute(&found.profile.attributes, name, text))
}

fn meets_subscription(filter: &SubscriptionFilter, found: &Subscription) -> bool {
    filter.application.as_ref().is_none_or(|application| found.application == *application)
        && filter.class.as_ref().is_none_or(|class| found.class == *class)
        && filter.subscriber.as_ref().is_none_or(|subscriber| found.subscriber == *subscriber)
        && filter.key.as_ref().is_none_or(|key| found.key.as_ref() == Some(key))
        && filter.enabled.is_none_or(|enabled| found.enabled == enabled)
}

fn after_subscription(
    after: Option<SubscriptionId>,
) -> (std::ops::Bound<SubscriptionId>, std::ops::Bound<SubscriptionId>) {
    (after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded), std::ops::Bound::Unbounded)
}

#[async_trait]
impl Records for MemoryRecords {
    fn installation(&self) -> &str {
        &self.installation
    }

    fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    async fn put_application(&self, name: &Name, text: &str, author: &str, now: Timestamp) -> Result<u32, StoreError> {
        self.change(|shelf| {
            let (versions, current) = shelf.applications.entry(name.clone()).or_default();
            let version = u32::try_from(versions.len() + 1).unwrap_or(u32::MAX);
            versions.push(ApplicationVersion {
                name: name.clone(),
                version,
                text: text.to_owned(),
                author: author.to_owned(),
                applied_at: now,
            });
            *current = true;
            shelf.tell(1, Changed::Application(name.clone()), Before::Nothing);
            Ok(version)
        })
    }

    async fn applications(&self) -> Result<Vec<ApplicationVersion>, StoreError> {
        let shelf = self.shelf.lock();
        let current = shelf.applications.values().filter(|(_, current)| *current);
        Ok(current.filter_map(|(versions, _)| versions.last().cloned()).collect())
    }

    async fn application(&self, name: &Name, version: Option<u32>) -> Result<Option<ApplicationVersion>, StoreError> {
        let shelf = self.shelf.lock();
        let Some((versions, current)) = shelf.applications.get(name) else { return Ok(None) };
        Ok(match version {
            Some(version) => versions.iter().find(|found| found.version == version).cloned(),
            None => versions.last().filter(|_| *current).cloned(),
        })
    }

    async fn application_history(&self, name: &Name) -> Result<Vec<ApplicationVersion>, StoreError> {
        let shelf = self.shelf.lock();
        Ok(shelf.applications.get(name).into_iter().flat_map(|(versions, _)| versions.iter().rev().cloned()).collect())
    }

    async fn remove_application(&self, name: &Name, _now: Timestamp) -> Result<(), StoreError> {
        self.change(|shelf| {
            if !shelf.applications.get(name).is_some_and(|(_, current)| *current) {
                return Err(no_application(name));
            }
            let classes: Vec<_> = shelf.classes.iter().filter(|(of, _)| of == name).cloned().collect();
            for (application, class) in classes {
                let of_class = shelf.subscriptions.values().filter(|found| found.application == application);
                let ids: Vec<_> = of_class.filter(|found| found.class == class).map(|found| found.id).collect();
                for step in ids.chunks(REMOVED_AT_ONCE) {
                    shelf.remove_subscriptions(step);
                }
            }
            if let Some((_, current)) = shelf.applications.get_mut(name) {
                *current = false;
            }
            shelf.tell(1, Changed::Application(name.clone()), Before::Nothing);
            Ok(())
        })
    }

    async fn put_subscriber(
        &self,
        new: NewSubscriber,
        expect: Expect,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError> {
        self.change(|shelf| shelf.put_subscriber(new, expect, now))
    }

    async fn put_subscribers(
        &self,
        new: Vec<NewSubscriber>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriberNumber>>, StoreError> {
        self.change(|shelf| {
            let mut written: Vec<_> = new.iter().map(|_| Ok(SubscriberNumber(0))).collect();
            let mut new: Vec<_> = new.into_iter().enumerate().collect();
            // Must stay a stable sort: of two lines for one subscriber the later one wins.
            new.sort_by(|(_, one), (_, other)| one.id.cmp(&other.id));
            for (place, new) in new {
                written[place] = shelf.put_subscriber(new, Expect::Any, now).map(|stored| stored.number);
            }
            Ok(written)
        })
    }

    async fn subscriber(&self, id: &SubscriberId) -> Result<Option<Subscriber>, StoreError> {
        Ok(self.shelf.lock().subscribers.get(id).cloned())
    }

    async fn subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<Vec<Subscriber>, StoreError> {
        let shelf = self.shelf.lock();
        let later = shelf.subscribers.values().filter(|found| after.is_none_or(|after| found.id > *after));
        Ok(later.filter(|found| meets_subscriber(filter, found)).take(limit).cloned().collect())
    }

    async fn remove_subscriber(&self, id: &SubscriberId, expect: Expect, _now: Timestamp) -> Result<(), StoreError> {
        self.change(|shelf| shelf.remove_subscriber(id, expect))
    }

    async fn put_device(
        &self,
        id: &SubscriberId,
        name: &Name,
        device: Device,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError> {
        self.change(|shelf| {
            shelf.change_devices(id, now, |devices| {
                devices.insert(name.clone(), device);
                Ok(())
            })
        })
    }

    async fn remove_device(&self, id: &SubscriberId, name: &Name, now: Timestamp) -> Result<Subscriber, StoreError> {
        self.change(|shelf| {
            shelf.change_devices(id, now, |devices| devices.remove(name).map(|_| ()).ok_or_else(|| no_device(id, name)))
        })
    }

    async fn put_segment(&self, new: NewSegment, expect: Expect, now: Timestamp) -> Result<Segment, StoreError> {
        self.change(|shelf| {
            let old = shelf.segments.get(&new.name).cloned();
            expect.check(old.as_ref().map(|old| old.revision), || format!("segment `{}`", new.name))?;
            let before = old.as_ref().map(|old| old.filter.clone());
            let stored = match old {
                Some(old) if old.description == new.description && old.filter == new.filter => return Ok(old),
                Some(old) => new.over(&old, now),
                None => new.first(now),
            };
            shelf.segments.insert(stored.name.clone(), stored.clone());
            shelf.tell(1, Changed::Segment(stored.name.clone()), Before::Filter(before));
            Ok(stored)
        })
    }

    async fn segment(&self, name: &Name) -> Result<Option<Segment>, StoreError> {
        Ok(self.shelf.lock().segments.get(name).cloned())
    }

    async fn segments(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Segment>, StoreError> {
        let shelf = self.shelf.lock();
        let later = shelf.segments.values().filter(|found| after.is_none_or(|after| found.name > *after));
        Ok(later.take(limit).cloned().collect())
    }

    async fn remove_segment(&self, name: &Name, expect: Expect, _now: Timestamp) -> Result<(), StoreError> {
        self.change(|shelf| {
            let old = shelf.segments.get(name).map(|old| old.revision);
            expect.check(old, || format!("segment `{name}`"))?;
            let old = shelf.segments.remove(name).ok_or_else(|| no_segment(name))?;
            shelf.tell(1, Changed::Segment(name.clone()), Before::Filter(Some(old.filter)));
            Ok(())
        })
    }

    async fn memberships(
        &self,
        segments: &[Name],
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<u64>, StoreError> {
        let shelf = self.shelf.lock();
        shelf.check_kept(at)?;
        let filters: Vec<_> = segments.iter().map(|segment| shelf.filter_at(segment, at)).collect();
        Ok(subscribers.iter().map(|number| shelf.memberships_at(*number, &filters, at)).collect())
    }

    async fn profiles(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<Option<Arc<ProfileImage>>>, StoreError> {
        let shelf = self.shelf.lock();
        shelf.check_kept(at)?;
        Ok(subscribers.iter().map(|number| shelf.profile_at(*number, at).map(Arc::new)).collect())
    }

    async fn survey(
        &self,
        filter: &LdapFilter,
        after: Option<&SubscriberId>,
        bounds: SurveyBounds,
    ) -> Result<Survey, StoreError> {
        let shelf = self.shelf.lock();
        let ids = filter.ids();
        let mut survey = Survey::default();
        let later = shelf.subscribers.values().filter(|found| after.is_none_or(|after| found.id > *after));
        for found in later.filter(|found| std::ops::RangeBounds::<str>::contains(&ids, found.id.as_str())) {
            survey.looked_at += 1;
            if filter.matches(&Entry::from(found)) {
                survey.members += 1;
                if survey.found.len() < bounds.kept {
                    survey.found.push(found.clone());
                }
            }
            if bounds.are_reached(&survey) {
                survey.reached = Some(found.id.clone());
                break;
            }
        }
        Ok(survey)
    }

    async fn put_subscription(&self, new: NewSubscription, now: Timestamp) -> Result<Subscription, StoreError> {
        self.change(|shelf| {
            let id = shelf.put_subscriptions(vec![new], now).into_iter().next().expect("one line has one answer")?;
            shelf.subscriptions.get(&id).cloned().ok_or_else(|| no_subscription(id))
        })
    }

    async fn put_subscriptions(
        &self,
        new: Vec<NewSubscription>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriptionId>>, StoreError> {
        self.change(|shelf| Ok(shelf.put_subscriptions(new, now)))
    }

    async fn update_subscription(
        &self,
        id: SubscriptionId,
        change: SubscriptionChange,
        expect: Expect,
        now: Timestamp,
    ) -> Result<Subscription, StoreError> {
        self.change(|shelf| {
            shelf.expect_subscription(id, expect)?;
            let before = shelf.change_subscription(id, change, now);
            shelf.tell_changed(before.as_slice());
            shelf.subscriptions.get(&id).cloned().ok_or_else(|| no_subscription(id))
        })
    }

    async fn subscription(&self, id: SubscriptionId) -> Result<Option<Subscription>, StoreError> {
        Ok(self.shelf.lock().subscriptions.get(&id).cloned())
    }

    async fn subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<Subscription>, StoreError> {
        let shelf = self.shelf.lock();
        let later = shelf.subscriptions.range(after_subscription(after)).map(|(_, found)| found);
        Ok(later.filter(|found| meets_subscription(filter, found)).take(limit).cloned().collect())
    }

    async fn remove_subscription(&self, id: SubscriptionId, expect: Expect, _now: Timestamp) -> Result<(), StoreError> {
        self.change(|shelf| {
            shelf.expect_subscription(id, expect)?;
            shelf.remove_subscriptions(&[id]);
            Ok(())
        })
    }

    async fn put_suppressions(&self, new: Vec<Suppression>) -> Result<(), StoreError> {
        self.change(|shelf| {
            let changed = new.into_iter().filter(|new| shelf.put_suppression(new)).map(|new| new.target);
            let changed: Vec<Target> = changed.collect();
            shelf.tell_suppressions(&changed);
            Ok(())
        })
    }

    async fn report_suppressions(
        &self,
        reports: Vec<Report>,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<Vec<Suppression>, StoreError> {
        self.change(|shelf| {
            let (mut known, mut changed) = (Vec::with_capacity(reports.len()), Vec::new());
            for report in reports {
                let before = shelf.suppressions.get(&report.target.to_string()).cloned();
                let after = policy.take(before, report, now);
                if shelf.put_suppression(&after) {
                    changed.push(after.target.clone());
                }
                known.push(after);
            }
            shelf.tell_suppressions(&changed);
            Ok(known)
        })
    }

    async fn suppression(&self, target: &Target) -> Result<Option<Suppression>, StoreError> {
        Ok(self.shelf.lock().suppressions.get(&target.to_string()).cloned())
    }

    async fn suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<Vec<Suppression>, StoreError> {
        let Some(prefix) = filter.prefix() else { return Ok(Vec::new()) };
        let after = after.map(Target::to_string).unwrap_or_default();
        let wanted = filter.contains.as_ref().map(|text| text.to_ascii_lowercase());
        let contains = |target: &str| {
            let whose = target.split_once('/').map_or(target, |(_, whose)| whose).to_ascii_lowercase();
            wanted.as_ref().is_none_or(|wanted| whose.contains(wanted))
        };
        let meets = |(target, found): &(&String, &Suppression)| {
            target.starts_with(&prefix)
                && found.stands(filter.now)
                && filter.cause.is_none_or(|cause| found.cause == cause)
                && filter.in_force.is_none_or(|force| found.in_force == force)
                && contains(target)
        };
        let shelf = self.shelf.lock();
        let later = shelf.suppressions.iter().filter(|(target, _)| **target > after);
        Ok(later.filter(meets).take(limit).map(|(_, found)| found.clone()).collect())
    }

    async fn remove_suppression(&self, target: &Target) -> Result<(), StoreError> {
        self.change(|shelf| match shelf.remove_suppressions(|found| found.target == *target, 1) {
            0 => Err(no_suppression(target)),
            _ => Ok(()),
        })
    }

    async fn prune_suppressions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.change(|shelf| Ok(shelf.remove_suppressions(|found| !found.stands(now), limit)))
    }

    fn newest_suppression(&self) -> ChangeSequence {
        ChangeSequence(self.shelf.lock().newest_suppression)
    }

    async fn suppression_changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<Change>, StoreError> {
        let shelf = self.shelf.lock();
        shelf.check_kept(after)?;
        let told = shelf.changes_after(after).map(|(change, _)| change);
        Ok(told.filter(|change| matches!(change.what, Changed::Suppressions(_))).take(limit).cloned().collect())
    }

    async fn keep_endpoints(&self, endpoints: Vec<FailingEndpoint>) -> Result<(), StoreError> {
        self.change(|shelf| {
            shelf.endpoints.extend(endpoints.into_iter().map(|endpoint| (endpoint.key.clone(), endpoint)));
            Ok(())
        })
    }

    async fn forget_endpoints(&self, endpoints: Vec<EndpointKey>) -> Result<(), StoreError> {
        self.change(|shelf| {
            endpoints.iter().for_each(|key| drop(shelf.endpoints.remove(key)));
            Ok(())
        })
    }

    async fn failing_endpoints(
        &self,
        after: Option<&EndpointKey>,
        limit: usize,
    ) -> Result<Vec<FailingEndpoint>, StoreError> {
        let shelf = self.shelf.lock();
        let later = shelf.endpoints.values().filter(|found| after.is_none_or(|after| found.key > *after));
        Ok(later.take(limit).cloned().collect())
    }

    async fn indexed_subscriptions(
        &self,
        application: &Name,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<IndexedSubscription>, StoreError> {
        let shelf = self.shelf.lock();
        let now = ChangeSequence(shelf.change);
        let later = shelf.subscriptions.range(after_subscription(after)).map(|(_, found)| found);
        let of_application = later.filter(|found| found.application == *application);
        Ok(of_application.filter_map(|found| shelf.indexed_at(found, now)).take(limit).collect())
    }

    async fn indexed_at(
        &self,
        application: &Name,
        ranges: &[RangeInclusive<SubscriptionId>],
        at: ChangeSequence,
    ) -> Result<Vec<IndexedSubscription>, StoreError> {
        let shelf = self.shelf.lock();
        shelf.check_kept(at)?;
        let last = shelf.last_at(at);
        let there_then = |range: &RangeInclusive<SubscriptionId>| {
            let range = range.start().0..=range.end().min(&last).0;
            range.filter_map(|id| shelf.subscription_at(SubscriptionId(id), last, at)).collect::<Vec<_>>()
        };
        let found = ranges.iter().flat_map(there_then).filter(|found| found.application == *application);
        Ok(found.filter_map(|found| shelf.indexed_at(found, at)).collect())
    }

    async fn subscriptions_of(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<SubscriptionId>, StoreError> {
        let shelf = self.shelf.lock();
        shelf.check_kept(at)?;
        let present = subscribers.iter().filter_map(|number| shelf.owned.get(number)).flatten().copied();
        let images = shelf.images(at).filter(|image| subscribers.contains(&image.subscriber_number));
        let all: BTreeSet<SubscriptionId> = present.chain(images.map(|image| image.id)).collect();
        Ok(all.into_iter().collect())
    }

    async fn recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError> {
        let shelf = self.shelf.lock();
        if let Some(id) = subscriptions.iter().find(|id| shelf.damaged.contains(*id)) {
            return Err(StoreError::Damaged(format!("subscription {id}")));
        }
        Ok(subscriptions.iter().map(|id| shelf.recipient(*id)).collect())
    }

    async fn schedules(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<FollowedSchedule>, StoreError> {
        let shelf = self.shelf.lock();
        let of_application = shelf.schedules.iter().filter(|((of, ..), _)| of == application);
        let followed = |((_, class, schedule), (number, made_at)): (&ScheduleKey, &(u64, Timestamp))| {
            FollowedSchedule { number: *number, class: class.clone(), schedule: schedule.clone(), made_at: *made_at }
        };
        let mut later: Vec<_> = of_application.map(followed).filter(|followed| followed.number > after).collect();
        later.sort_unstable_by_key(|followed| followed.number);
        later.truncate(limit);
        Ok(later)
    }

    async fn scheduled_subscriptions(
        &self,
        application: &Name,
        class: &Name,
        schedule: &str,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<ScheduledSubscription>, StoreError> {
        let shelf = self.shelf.lock();
        let now = ChangeSequence(shelf.change);
        let key: ScheduleKey = (application.clone(), class.clone(), schedule.into());
        let later = shelf.scheduled.range(after_subscription(after)).filter(|(_, (follows, ..))| *follows == key);
        let member = |(id, (_, since, joined)): (&SubscriptionId, &Follower)| {
            let subscription = shelf.indexed_at(shelf.subscriptions.get(id)?, now)?;
            Some(ScheduledSubscription { subscription, since: *since, joined: *joined })
        };
        Ok(later.filter_map(member).take(limit).collect())
    }

    async fn schedule_of(&self, id: SubscriptionId) -> Result<Option<(Box<str>, Timestamp)>, StoreError> {
        let shelf = self.shelf.lock();
        Ok(shelf.scheduled.get(&id).map(|((_, _, schedule), since, _)| (schedule.clone(), *since)))
    }

    async fn forget_schedule(&self, application: &Name, class: &Name, schedule: &str) -> Result<bool, StoreError> {
        self.change(|shelf| {
            let key: ScheduleKey = (application.clone(), class.clone(), schedule.into());
            let followed = shelf.scheduled.values().any(|(follows, ..)| *follows == key);
            if !followed {
                shelf.schedules.remove(&key);
            }
            Ok(!followed)
        })
    }

    async fn changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<Change>, StoreError> {
        let shelf = self.shelf.lock();
        shelf.check_kept(after)?;
        Ok(shelf.changes_after(after).map(|(change, _)| change).take(limit).cloned().collect())
    }

    fn newest_change(&self) -> watch::Receiver<ChangeSequence> {
        self.newest.subscribe()
    }

    fn keep_changes_after(&self, place: ChangeSequence) {
        self.shelf.lock().feed_needed = place.0;
    }

    async fn put_api_key(&self, key: ApiKey) -> Result<(), StoreError> {
        self.change(|shelf| {
            if shelf.api_keys.values().any(|other| other.id == key.id) {
                return Err(StoreError::Taken(format!("API key `{}`", key.id)));
            }
            shelf.api_keys.insert((key.created_at, key.id.clone()), key);
            shelf.tell(1, Changed::ApiKey, Before::Nothing);
            Ok(())
        })
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        Ok(self.shelf.lock().api_keys.values().cloned().collect())
    }

    async fn remove_api_key(&self, id: &str) -> Result<(), StoreError> {
        self.change(|shelf| {
            let before = shelf.api_keys.len();
            shelf.api_keys.retain(|_, key| key.id != id);
            if shelf.api_keys.len() == before {
                return Err(StoreError::Missing(format!("API key `{id}`")));
            }
            shelf.tell(1, Changed::ApiKey, Before::Nothing);
            Ok(())
        })
    }

    fn counts(&self) -> RecordCounts {
        let shelf = self.shelf.lock();
        RecordCounts {
            subscribers: shelf.subscribers.len() as u64,
            devices: shelf.subscribers.values().map(|found| found.devices.len() as u64).sum(),
            subscriptions: shelf.subscriptions.len() as u64,
        }
    }

    async fn subscription_counts(&self) -> Result<Vec<SubscriptionCounts>, StoreError> {
        let shelf = self.shelf.lock();
        let mut counts: BTreeMap<(Name, Name), SubscriptionCounts> = BTreeMap::new();
        for found in shelf.subscriptions.values() {
            let (application, class) = (found.application.clone(), found.class.clone());
            let none = SubscriptionCounts {
                application: application.clone(),
                class: class.clone(),
                enabled: 0,
                disabled: 0,
                last_added_at: None,
            };
            let counts = counts.entry((application, class)).or_insert(none);
            *if found.enabled { &mut counts.enabled } else { &mut counts.disabled } += 1;
            counts.last_added_at = counts.last_added_at.max(Some(found.created_at));
        }
        Ok(counts.into_values().collect())
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        Ok(Duration::ZERO)
    }
}
