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
    mailbox,
    preferences::Preferences,
    segment::Segment,
    subscriber::{Device, Profile, Subscriber},
    subscription::Subscription,
    suppression::{Policy, Report, Suppression, Target},
    time::Timestamp,
};
use tokio::sync::watch;

mod shelf; // what writing does
mod feed; // what changed, and what there was before
mod entries; // the directory

use crate::{
    error::StoreError,
    inbox::{Bell, Listener},
    look::Looked,
    records::{
        ApiKey, ApplicationVersion, Change, Changed, EndpointKey, Expect, FEED_KEPT, FailingEndpoint, FollowedSchedule,
        IndexedSubscription, Interest, MERGES_FORGOTTEN_AT_ONCE, MERGES_KEPT, Merge, NewSegment, NewSubscriber,
        NewSubscription, NotMerged, Person, ProfileImage, REMOVED_AT_ONCE, Recipient, RecordCounts, Records,
        ScheduledSubscription, SubscriberFilter, SubscriptionChange, SubscriptionCounts, SubscriptionFilter,
        SuppressionFilter, Survey, SurveyBounds, TARGETS_TOLD, United, Written, due_schedule, has_attribute,
        new_installation, new_secret, no_application, no_changes_after, no_device, no_segment, no_subscriber,
        no_subscription, no_suppression, reach, read_filter, runs, since_change, snooze, trim_to,
    },
};

/// The records in memory.
pub struct MemoryRecords {
    installation: String,
    secret: [u8; 32],
    shelf: Mutex<Shelf>,
    newest: watch::Sender<ChangeSequence>,
    newest_key: watch::Sender<ChangeSequence>,
    bell: Arc<Bell>,
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
    /// How many subscriptions of each class were ever added, and when the last.
    added: BTreeMap<(Name, Name), (u64, Timestamp)>,
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
    /// With whether their feeds have gone over.
    merges: Vec<(Merge, bool)>,
    /// Subscribers that this change concerns.
    touched: Vec<SubscriberNumber>,
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
            newest_key: watch::Sender::new(ChangeSequence(0)),
            bell: Arc::default(),
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
        self.bell.ring(std::mem::take(&mut shelf.touched));
        let change = ChangeSequence(shelf.change);
        self.newest.send_if_modified(|newest| std::mem::replace(newest, change) != change);
        result
    }
}
fn meets_subscriber(filter: &SubscriberFilter, found: &Subscriber) -> bool {
    let prefix = filter.id_prefix.as_deref().unwrap_or_default();
    found.id.as_str().starts_with(prefix)
        && filter
            .address
            .as_ref()
            .is_none_or(|address| found.devices.values().any(|device| mailbox::is_same(&device.address, address)))
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

    async fn look_for_subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<Looked<Subscriber, SubscriberId>, StoreError> {
        let shelf = self.shelf.lock();
        let later = shelf.subscribers.values().filter(|found| after.is_none_or(|after| found.id > *after));
        let found =
            later.filter(|found| meets_subscriber(filter, found)).take(limit.saturating_add(1)).cloned().collect();
        Ok(Looked::cut(found, limit, None, |found: &Subscriber| found.id.clone()))
    }

    async fn remove_subscriber(&self, id: &SubscriberId, expect: Expect, _now: Timestamp) -> Result<(), StoreError> {
        self.change(|shelf| shelf.remove_subscriber(id, expect))
    }

    async fn merge_subscribers(
        &self,
        from: &SubscriberId,
        into: &SubscriberId,
        now: Timestamp,
    ) -> Result<Result<Merge, NotMerged>, StoreError> {
        self.change(|shelf| shelf.merge_subscribers(from, into, now))
    }

    async fn merge_of(&self, from: &SubscriberId) -> Result<Option<Merge>, StoreError> {
        let shelf = self.shelf.lock();
        let of_it = shelf.merges.iter().filter(|(merge, _)| merge.report.from == *from);
        Ok(of_it.map(|(merge, _)| merge.clone()).max_by_key(|merge| merge.from_number))
    }

    async fn unfinished_merges(&self) -> Result<Vec<Merge>, StoreError> {
        let shelf = self.shelf.lock();
        let mut open: Vec<Merge> =
            shelf.merges.iter().filter(|(_, finished)| !finished).map(|(merge, _)| merge.clone()).collect();
        open.sort_by_key(|merge| merge.from_number);
        Ok(open)
    }

    async fn finish_merge(&self, from: SubscriberNumber) -> Result<(), StoreError> {
        let mut shelf = self.shelf.lock();
        let of_it = shelf.merges.iter_mut().filter(|(merge, _)| merge.from_number == from);
        of_it.for_each(|(_, finished)| *finished = true);
        Ok(())
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

    async fn wake_subscriptions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.change(|shelf| {
            let sleeps = |found: &&Subscription| found.terms.snoozed_until.is_some_and(|until| until <= now);
            let due: Vec<Subscription> = shelf.subscriptions.values().filter(sleeps).take(limit).cloned().collect();
            let woken = due.into_iter().filter_map(|found| {
                let Subscription { id, device, values, terms, .. } = found;
                shelf.change_subscription(id, SubscriptionChange { device, enabled: true, values, terms }, now)
            });
            let woken: Vec<Subscription> = woken.collect();
            shelf.tell_changed(&woken);
            Ok(woken.len())
        })
    }

    async fn subscription(&self, id: SubscriptionId) -> Result<Option<Subscription>, StoreError> {
        Ok(self.shelf.lock().subscriptions.get(&id).cloned())
    }

    async fn look_for_subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Looked<Subscription, SubscriptionId>, StoreError> {
        let shelf = self.shelf.lock();
        let later = shelf.subscriptions.range(after_subscription(after)).map(|(_, found)| found);
        let found =
            later.filter(|found| meets_subscription(filter, found)).take(limit.saturating_add(1)).cloned().collect();
        Ok(Looked::cut(found, limit, None, |found: &Subscription| found.id))
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

    async fn look_for_suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<Looked<Suppression, Target>, StoreError> {
        let Some(prefix) = filter.prefix() else { return Ok(Looked { items: Vec::new(), next: None }) };
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
        let found = later.filter(meets).take(limit.saturating_add(1)).map(|(_, found)| found.clone()).collect();
        Ok(Looked::cut(found, limit, None, |found: &Suppression| found.target.clone()))
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

    fn listen(&self, subscriber: SubscriberNumber) -> Listener {
        self.bell.listen(subscriber)
    }

    fn newest_change(&self) -> watch::Receiver<ChangeSequence> {
        self.newest.subscribe()
    }

    fn newest_key_change(&self) -> watch::Receiver<ChangeSequence> {
        self.newest_key.subscribe()
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
        })?;
        self.newest_key.send_replace(*self.newest.borrow());
        Ok(())
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
        })?;
        self.newest_key.send_replace(*self.newest.borrow());
        Ok(())
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
        let mut counts: BTreeMap<&(Name, Name), SubscriptionCounts> = BTreeMap::new();
        for (class, (added, last)) in &shelf.added {
            let none = SubscriptionCounts {
                application: class.0.clone(),
                class: class.1.clone(),
                enabled: 0,
                disabled: 0,
                added: *added,
                last_added_at: Some(*last),
            };
            counts.insert(class, none);
        }
        for found in shelf.subscriptions.values() {
            let counts = counts.get_mut(&(found.application.clone(), found.class.clone())).expect("it was added");
            *if found.enabled { &mut counts.enabled } else { &mut counts.disabled } += 1;
        }
        Ok(counts.into_values().collect())
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        Ok(Duration::ZERO)
    }
}
