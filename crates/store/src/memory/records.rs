//! In-memory backend of the records port: plain maps behind one lock. Its behavior is the reference for other
//! backends.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{
    consent::{Consent, EvidenceRecord},
    feedback::FeedbackEntry,
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    ldap::{Entry, LdapFilter},
    lifecycle::{ChangeOrigin, ChangeWay, LifecycleChange},
    mailbox,
    preferences::Preferences,
    segment::Segment,
    subscriber::{Device, DeviceState, Profile, Subscriber},
    subscription::Subscription,
    suppression::{Suppression, Target},
    time::Timestamp,
};
use tokio::sync::watch;

mod writes; // writes of subscribers, subscriptions and suppressions
mod lifecycle; // outbox of lifecycle events
mod consents; // consent of subscriptions, with its evidence
mod change_log; // the change log, with before-images for snapshots
mod entries; // the directory's entries
mod notifybc; // documents of NotifyBC records
mod feedback; // feedback to sent messages
mod capacity_profiles; // saved capacity profiles
mod accounts; // state of users and sessions
mod users; // users of the console and their sessions

use crate::{
    bounded_scan::ScanPage,
    error::StoreError,
    inbox::{Listener, ListenerRegistry},
    records::{
        ApiKey, ApiKeyStore, ApiKeyUse, ApplicationStore, ApplicationVersion, CHANGES_KEPT, CapacityProfile,
        ChangeKind, ChangeLog, EXPIRED_MERGES_MAX, EndpointKey, FailingEndpoint, FollowedSchedule, IndexedSubscription,
        Installation, LOGGED_TARGETS_MAX, MERGES_KEPT, MatchStore, Merge, MergeRefusal, MergedSubscriber,
        NewApplicationVersion, NewSegment, NewSubscriber, NewSubscription, Precondition, ProfileImage, PutDevice,
        REMOVED_API_KEYS_MAX, REMOVED_SUBSCRIPTIONS_MAX, Recipient, RecipientChange, RecipientStore,
        RecipientSubscriber, RecipientSubscription, RecipientWatcher, RecordChange, RecordCounts, RemoveSubscription,
        ScheduleMembers, ScheduleStore, ScheduledSubscription, SegmentScan, SegmentScanBounds, SegmentStore,
        StoredState, SubscriberFilter, SubscriberStore, SubscriptionChange, SubscriptionCounts, SubscriptionFilter,
        SubscriptionStore, SuppressionFilter, SuppressionStore, UpdateSubscription, Written, due_schedule,
        effective_state, has_attribute, keep_state, moved_devices, new_installation, new_secret, no_application,
        no_changes_after, no_device, no_segment, no_subscriber, no_subscription, no_suppression, reach, read_filter,
        runs, since_change, trim_to,
    },
};

/// In-memory records.
pub struct MemoryRecords {
    installation: String,
    secret: [u8; 32],
    state: Mutex<RecordsState>,
    newest: watch::Sender<ChangeSequence>,
    newest_key: watch::Sender<ChangeSequence>,
    listeners: Arc<ListenerRegistry>,
}

#[derive(Default)]
struct RecordsState {
    /// All versions, oldest first, and whether the application exists.
    applications: BTreeMap<Name, (Vec<ApplicationVersion>, bool)>,
    subscribers: BTreeMap<SubscriberId, Subscriber>,
    segments: BTreeMap<Name, Segment>,
    /// By the text of the target.
    suppressions: BTreeMap<String, Suppression>,
    newest_suppression: u64,
    /// By number.
    feedback: BTreeMap<u64, FeedbackEntry>,
    endpoints: BTreeMap<EndpointKey, FailingEndpoint>,
    subscriptions: BTreeMap<SubscriptionId, Subscription>,
    owned: BTreeMap<SubscriberNumber, BTreeSet<SubscriptionId>>,
    consents: BTreeMap<SubscriptionId, Consent>,
    documents: notifybc::Documents,
    /// Subscriptions made by the documents of the current write, which are not logged yet.
    made_documents: Vec<SubscriptionId>,
    /// By number, with the number of the subscriber.
    evidence: BTreeMap<u64, (SubscriberNumber, EvidenceRecord)>,
    last_evidence: u64,
    /// By application, class and text, with number and creation time.
    schedules: BTreeMap<ScheduleKey, (u64, Timestamp)>,
    last_schedule: u64,
    scheduled: BTreeMap<SubscriptionId, ScheduleMembership>,
    /// Latest time at which a disabled subscription was enabled.
    enabled_at: BTreeMap<SubscriptionId, Timestamp>,
    /// Latest time at which a disabled subscriber was enabled.
    subscribers_enabled_at: BTreeMap<SubscriberNumber, Timestamp>,
    /// In order of the first subscription.
    classes: Vec<(Name, Name)>,
    /// Number of subscriptions ever added to each class, and the time of the last addition.
    added: BTreeMap<(Name, Name), (u64, Timestamp)>,
    api_keys: BTreeMap<(Timestamp, String), ApiKey>,
    /// In the order of their removal: ids and descriptions.
    removed_api_keys: VecDeque<(String, String)>,
    accounts: accounts::Accounts,
    capacity_profiles: BTreeMap<Name, CapacityProfile>,
    api_key_uses: BTreeMap<String, ApiKeyUse>,
    feed: VecDeque<(RecordChange, BeforeImage)>,
    changes_kept: u64,
    /// Changes after this sequence are still needed.
    changes_needed: u64,
    change: u64,
    trimmed: u64,
    last_subscriber: u64,
    last_subscription: u64,
    damaged: BTreeSet<SubscriptionId>,
    /// With whether the inbox feed was moved.
    merges: Vec<(Merge, bool)>,
    /// Subscribers changed by the current write.
    touched: Vec<SubscriberNumber>,
    /// Other changes of recipients by the current write, for the hook of delivery.
    recipients: RecipientChange,
    recipient_watcher: Option<Arc<dyn RecipientWatcher>>,
    directory: entries::Directory,
    /// Origin of the current write, for its lifecycle events.
    origin: ChangeOrigin,
    outbox: lifecycle::Outbox,
}

/// Schedule of a subscription, the start of its events, and the change by which it joined.
type ScheduleMembership = (ScheduleKey, Timestamp, ChangeSequence);
type ScheduleKey = (Name, Name, Box<str>);

/// Before-image of a change.
enum BeforeImage {
    Nothing,
    Subscriptions(Vec<Subscription>),
    /// Channels of the subscriber's active devices by name, if it was enabled.
    Reach(Option<BTreeMap<Name, Name>>),
    Profile(ProfileImage),
    /// Filter of the segment, if it existed.
    Filter(Option<Box<str>>),
}

impl MemoryRecords {
    /// Creates empty records.
    ///
    /// # Errors
    /// `Unavailable` if the system's random number generator failed.
    pub fn new() -> Result<Self, StoreError> {
        Self::with_changes_kept(CHANGES_KEPT)
    }

    /// Creates empty records that keep at least `changes_kept` sequences of the change log.
    ///
    /// # Errors
    /// As [`MemoryRecords::new`].
    pub fn with_changes_kept(changes_kept: u64) -> Result<Self, StoreError> {
        Ok(MemoryRecords {
            installation: new_installation()?,
            secret: new_secret()?,
            state: Mutex::new(RecordsState { changes_kept, changes_needed: u64::MAX, ..RecordsState::default() }),
            newest: watch::Sender::new(ChangeSequence(0)),
            newest_key: watch::Sender::new(ChangeSequence(0)),
            listeners: Arc::default(),
        })
    }

    /// Makes the recipient of a subscription unreadable, like a damaged disk. For tests.
    pub fn damage(&self, id: SubscriptionId) {
        self.state.lock().damaged.insert(id);
    }

    fn change<T>(&self, job: impl FnOnce(&mut RecordsState) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut state = self.state.lock();
        let result = job(&mut state);
        state.origin = ChangeOrigin::default();
        state.trim();
        state.directory.notify_watcher();
        let touched = std::mem::take(&mut state.touched);
        let mut recipients = std::mem::take(&mut state.recipients);
        recipients.subscribers.extend(&touched);
        if let Some(watcher) = state.recipient_watcher.as_ref().filter(|_| !recipients.is_empty()) {
            watcher.recipients_changed(&recipients);
        }
        self.listeners.notify(touched);
        let change = ChangeSequence(state.change);
        self.newest.send_if_modified(|newest| std::mem::replace(newest, change) != change);
        result
    }
}
fn matches_subscriber(filter: &SubscriberFilter, found: &Subscriber) -> bool {
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

fn matches_subscription(filter: &SubscriptionFilter, found: &Subscription) -> bool {
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
impl Installation for MemoryRecords {
    fn installation(&self) -> &str {
        &self.installation
    }

    fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    fn counts(&self) -> RecordCounts {
        let state = self.state.lock();
        RecordCounts {
            subscribers: state.subscribers.len() as u64,
            devices: state.subscribers.values().map(|found| found.devices.len() as u64).sum(),
            subscriptions: state.subscriptions.len() as u64,
        }
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        Ok(Duration::ZERO)
    }
}

#[async_trait]
impl ApplicationStore for MemoryRecords {
    async fn put_application(&self, new: NewApplicationVersion<'_>) -> Result<u32, StoreError> {
        let NewApplicationVersion { name, text, author, now } = new;
        self.change(|state| {
            let (versions, current) = state.applications.entry(name.clone()).or_default();
            let version = u32::try_from(versions.len() + 1).unwrap_or(u32::MAX);
            versions.push(ApplicationVersion {
                name: name.clone(),
                version,
                text: text.to_owned(),
                author: author.to_owned(),
                applied_at: now,
            });
            *current = true;
            state.log_change(1, ChangeKind::Application(name.clone()), BeforeImage::Nothing);
            Ok(version)
        })
    }

    async fn applications(&self) -> Result<Vec<ApplicationVersion>, StoreError> {
        let state = self.state.lock();
        let current = state.applications.values().filter(|(_, current)| *current);
        Ok(current.filter_map(|(versions, _)| versions.last().cloned()).collect())
    }

    async fn application(&self, name: &Name, version: Option<u32>) -> Result<Option<ApplicationVersion>, StoreError> {
        let state = self.state.lock();
        let Some((versions, current)) = state.applications.get(name) else { return Ok(None) };
        Ok(match version {
            Some(version) => versions.iter().find(|found| found.version == version).cloned(),
            None => versions.last().filter(|_| *current).cloned(),
        })
    }

    async fn application_history(&self, name: &Name) -> Result<Vec<ApplicationVersion>, StoreError> {
        let state = self.state.lock();
        Ok(state.applications.get(name).into_iter().flat_map(|(versions, _)| versions.iter().rev().cloned()).collect())
    }

    async fn remove_application(&self, name: &Name, now: Timestamp) -> Result<(), StoreError> {
        self.change(|state| {
            if !state.applications.get(name).is_some_and(|(_, current)| *current) {
                return Err(no_application(name));
            }
            let classes: Vec<_> = state.classes.iter().filter(|(of, _)| of == name).cloned().collect();
            for (application, class) in classes {
                let of_class = state.subscriptions.values().filter(|found| found.application == application);
                let ids: Vec<_> = of_class.filter(|found| found.class == class).map(|found| found.id).collect();
                for step in ids.chunks(REMOVED_SUBSCRIPTIONS_MAX) {
                    state.remove_subscriptions(step, now);
                }
            }
            if let Some((_, current)) = state.applications.get_mut(name) {
                *current = false;
            }
            state.log_change(1, ChangeKind::Application(name.clone()), BeforeImage::Nothing);
            Ok(())
        })
    }
}

#[async_trait]
impl SubscriberStore for MemoryRecords {
    async fn put_subscriber(
        &self,
        new: NewSubscriber,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError> {
        self.change(|state| state.put_subscriber(new, expect, now))
    }

    async fn put_subscribers(
        &self,
        new: Vec<NewSubscriber>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriberNumber>>, StoreError> {
        self.change(|state| {
            let mut written: Vec<_> = new.iter().map(|_| Ok(SubscriberNumber(0))).collect();
            let mut new: Vec<_> = new.into_iter().enumerate().collect();
            // Must stay a stable sort: of two items for one subscriber, the later one wins.
            new.sort_by(|(_, one), (_, other)| one.id.cmp(&other.id));
            for (position, new) in new {
                written[position] = state.put_subscriber(new, Precondition::Any, now).map(|stored| stored.number);
            }
            Ok(written)
        })
    }

    async fn subscriber(&self, id: &SubscriberId) -> Result<Option<Subscriber>, StoreError> {
        Ok(self.state.lock().subscribers.get(id).cloned())
    }

    async fn subscriber_numbered(&self, number: SubscriberNumber) -> Result<Option<Subscriber>, StoreError> {
        Ok(self.state.lock().subscribers.values().find(|found| found.number == number).cloned())
    }

    async fn has_subscriber(&self, number: SubscriberNumber) -> Result<bool, StoreError> {
        Ok(self.state.lock().subscribers.values().any(|found| found.number == number))
    }

    async fn scan_subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<ScanPage<Subscriber, SubscriberId>, StoreError> {
        let state = self.state.lock();
        let later = state.subscribers.values().filter(|found| after.is_none_or(|after| found.id > *after));
        let found =
            later.filter(|found| matches_subscriber(filter, found)).take(limit.saturating_add(1)).cloned().collect();
        Ok(ScanPage::cut(found, limit, None, |found: &Subscriber| found.id.clone()))
    }

    async fn remove_subscriber(
        &self,
        id: &SubscriberId,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.change(|state| state.remove_subscriber(id, expect, now))
    }

    async fn merge_subscribers(
        &self,
        from: &SubscriberId,
        into: &SubscriberId,
        now: Timestamp,
    ) -> Result<Result<Merge, MergeRefusal>, StoreError> {
        self.change(|state| state.merge_subscribers(from, into, now))
    }

    async fn merge_of(&self, from: &SubscriberId) -> Result<Option<Merge>, StoreError> {
        let state = self.state.lock();
        let of_it = state.merges.iter().filter(|(merge, _)| merge.report.from == *from);
        Ok(of_it.map(|(merge, _)| merge.clone()).max_by_key(|merge| merge.from_number))
    }

    async fn unfinished_merges(&self) -> Result<Vec<Merge>, StoreError> {
        let state = self.state.lock();
        let mut open: Vec<Merge> =
            state.merges.iter().filter(|(_, finished)| !finished).map(|(merge, _)| merge.clone()).collect();
        open.sort_by_key(|merge| merge.from_number);
        Ok(open)
    }

    async fn finish_merge(&self, from: SubscriberNumber) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let of_it = state.merges.iter_mut().filter(|(merge, _)| merge.from_number == from);
        of_it.for_each(|(_, finished)| *finished = true);
        Ok(())
    }

    async fn put_device(&self, put: PutDevice<'_>) -> Result<Subscriber, StoreError> {
        let PutDevice { id, name, mut device, keeps_state, now } = put;
        self.change(|state| {
            state.change_devices(id, now, |devices| {
                if keeps_state {
                    keep_state(&mut device, devices.get(name));
                }
                devices.insert(name.clone(), device);
                Ok(())
            })
        })
    }

    async fn remove_device(&self, id: &SubscriberId, name: &Name, now: Timestamp) -> Result<Subscriber, StoreError> {
        self.change(|state| {
            state.change_devices(id, now, |devices| devices.remove(name).map(|_| ()).ok_or_else(|| no_device(id, name)))
        })
    }
}

#[async_trait]
impl SegmentStore for MemoryRecords {
    async fn put_segment(&self, new: NewSegment, expect: Precondition, now: Timestamp) -> Result<Segment, StoreError> {
        self.change(|state| {
            let old = state.segments.get(&new.name).cloned();
            expect.check(old.as_ref().map(|old| old.revision), || format!("segment `{}`", new.name))?;
            let before = old.as_ref().map(|old| old.filter.clone());
            let stored = match old {
                Some(old) if old.description == new.description && old.filter == new.filter => return Ok(old),
                Some(old) => new.over(&old, now),
                None => new.first(now),
            };
            state.segments.insert(stored.name.clone(), stored.clone());
            state.log_change(1, ChangeKind::Segment(stored.name.clone()), BeforeImage::Filter(before));
            Ok(stored)
        })
    }

    async fn segment(&self, name: &Name) -> Result<Option<Segment>, StoreError> {
        Ok(self.state.lock().segments.get(name).cloned())
    }

    async fn segments(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Segment>, StoreError> {
        let state = self.state.lock();
        let later = state.segments.values().filter(|found| after.is_none_or(|after| found.name > *after));
        Ok(later.take(limit).cloned().collect())
    }

    async fn remove_segment(&self, name: &Name, expect: Precondition, _now: Timestamp) -> Result<(), StoreError> {
        self.change(|state| {
            let old = state.segments.get(name).map(|old| old.revision);
            expect.check(old, || format!("segment `{name}`"))?;
            let old = state.segments.remove(name).ok_or_else(|| no_segment(name))?;
            state.log_change(1, ChangeKind::Segment(name.clone()), BeforeImage::Filter(Some(old.filter)));
            Ok(())
        })
    }

    async fn scan_matching(
        &self,
        filter: &LdapFilter,
        after: Option<&SubscriberId>,
        bounds: SegmentScanBounds,
    ) -> Result<SegmentScan, StoreError> {
        let state = self.state.lock();
        let ids = filter.ids();
        let mut scan = SegmentScan::default();
        let later = state.subscribers.values().filter(|found| after.is_none_or(|after| found.id > *after));
        for found in later.filter(|found| std::ops::RangeBounds::<str>::contains(&ids, found.id.as_str())) {
            scan.looked_at += 1;
            if filter.matches(&Entry::from(found)) {
                scan.members += 1;
                if scan.found.len() < bounds.kept {
                    scan.found.push(found.clone());
                }
            }
            if bounds.are_reached(&scan) {
                scan.reached = Some(found.id.clone());
                break;
            }
        }
        Ok(scan)
    }
}

#[async_trait]
impl SubscriptionStore for MemoryRecords {
    async fn put_subscription_as(
        &self,
        new: NewSubscription,
        origin: ChangeOrigin,
        now: Timestamp,
    ) -> Result<Subscription, StoreError> {
        self.change(|state| {
            state.origin = origin;
            let id = state.put_subscriptions(vec![new], now).into_iter().next().expect("one line has one answer")?;
            state.subscriptions.get(&id).cloned().ok_or_else(|| no_subscription(id))
        })
    }

    async fn put_subscriptions_as(
        &self,
        new: Vec<NewSubscription>,
        origin: ChangeOrigin,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriptionId>>, StoreError> {
        self.change(|state| {
            state.origin = origin;
            Ok(state.put_subscriptions(new, now))
        })
    }

    async fn update_subscription_as(
        &self,
        update: UpdateSubscription,
        origin: ChangeOrigin,
    ) -> Result<Subscription, StoreError> {
        let UpdateSubscription { id, change, expect, now } = update;
        self.change(|state| {
            state.origin = origin;
            state.expect_subscription(id, expect)?;
            let before = state.recorded_change(id, change, now);
            state.log_subscriptions(before.as_slice());
            state.device_changed(id, now);
            state.subscriptions.get(&id).cloned().ok_or_else(|| no_subscription(id))
        })
    }

    async fn wake_subscriptions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.change(|state| {
            let sleeps = |found: &&Subscription| found.terms.snoozed_until.is_some_and(|until| until <= now);
            let due: Vec<Subscription> = state.subscriptions.values().filter(sleeps).take(limit).cloned().collect();
            let woken = due.into_iter().filter_map(|found| {
                let Subscription { id, device, values, terms, .. } = found;
                state.change_subscription(id, SubscriptionChange { device, enabled: Some(true), values, terms }, now)
            });
            let woken: Vec<Subscription> = woken.collect();
            state.log_subscriptions(&woken);
            Ok(woken.len())
        })
    }

    async fn subscription(&self, id: SubscriptionId) -> Result<Option<Subscription>, StoreError> {
        Ok(self.state.lock().subscriptions.get(&id).cloned())
    }

    async fn scan_subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<ScanPage<Subscription, SubscriptionId>, StoreError> {
        let state = self.state.lock();
        let later = state.subscriptions.range(after_subscription(after)).map(|(_, found)| found);
        let found =
            later.filter(|found| matches_subscription(filter, found)).take(limit.saturating_add(1)).cloned().collect();
        Ok(ScanPage::cut(found, limit, None, |found: &Subscription| found.id))
    }

    async fn remove_subscription_as(
        &self,
        removal: RemoveSubscription,
        origin: ChangeOrigin,
    ) -> Result<(), StoreError> {
        let RemoveSubscription { id, expect, now } = removal;
        self.change(|state| {
            state.origin = origin;
            state.expect_subscription(id, expect)?;
            if state.subscriptions.get(&id).is_some_and(Subscription::is_active_or_snoozed) {
                state.record_lifecycle(LifecycleChange::Ended, id, None, now);
            }
            state.remove_subscriptions(&[id], now);
            Ok(())
        })
    }

    async fn subscription_counts(&self) -> Result<Vec<SubscriptionCounts>, StoreError> {
        let state = self.state.lock();
        let mut counts: BTreeMap<&(Name, Name), SubscriptionCounts> = BTreeMap::new();
        for (class, (added, last)) in &state.added {
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
        for found in state.subscriptions.values() {
            let counts = counts.get_mut(&(found.application.clone(), found.class.clone())).expect("it was added");
            *if found.enabled { &mut counts.enabled } else { &mut counts.disabled } += 1;
        }
        Ok(counts.into_values().collect())
    }
}

#[async_trait]
impl SuppressionStore for MemoryRecords {
    async fn put_suppressions(&self, new: Vec<Suppression>) -> Result<(), StoreError> {
        self.change(|state| {
            let mut changed = Vec::new();
            for new in new {
                let held = state.suppressions.get(&new.target.to_string());
                if !held.is_some_and(|held| held.outranks(&new)) && state.put_suppression(&new) {
                    changed.push(new.target);
                }
            }
            state.log_suppressions(&changed);
            Ok(())
        })
    }

    async fn suppression(&self, target: &Target) -> Result<Option<Suppression>, StoreError> {
        Ok(self.state.lock().suppressions.get(&target.to_string()).cloned())
    }

    async fn scan_suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<ScanPage<Suppression, Target>, StoreError> {
        let Some(prefix) = filter.prefix() else { return Ok(ScanPage { items: Vec::new(), next: None }) };
        let after = after.map(Target::to_string).unwrap_or_default();
        let requested = filter.contains.as_ref().map(|text| text.to_ascii_lowercase());
        let contains = |target: &str| {
            let whose = target.split_once('/').map_or(target, |(_, whose)| whose).to_ascii_lowercase();
            requested.as_ref().is_none_or(|requested| whose.contains(requested))
        };
        let is_match = |(target, found): &(&String, &Suppression)| {
            target.starts_with(&prefix)
                && found.is_active(filter.now)
                && filter.cause.is_none_or(|cause| found.cause == cause)
                && filter.in_force.is_none_or(|force| found.in_force == force)
                && contains(target)
        };
        let state = self.state.lock();
        let later = state.suppressions.iter().filter(|(target, _)| **target > after);
        let found = later.filter(is_match).take(limit.saturating_add(1)).map(|(_, found)| found.clone()).collect();
        Ok(ScanPage::cut(found, limit, None, |found: &Suppression| found.target.clone()))
    }

    async fn remove_suppression(&self, target: &Target) -> Result<(), StoreError> {
        self.change(|state| match state.lift_suppression(target) {
            0 => Err(no_suppression(target)),
            _ => Ok(()),
        })
    }

    async fn prune_suppressions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.change(|state| Ok(state.remove_suppressions(|found| !found.is_active(now), limit)))
    }

    fn newest_suppression(&self) -> ChangeSequence {
        ChangeSequence(self.state.lock().newest_suppression)
    }

    async fn suppression_changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<RecordChange>, StoreError> {
        let state = self.state.lock();
        state.check_kept(after)?;
        let logged = state.changes_after(after).map(|(change, _)| change);
        Ok(logged.filter(|change| matches!(change.what, ChangeKind::Suppressions(_))).take(limit).cloned().collect())
    }
}

#[async_trait]
impl RecipientStore for MemoryRecords {
    async fn recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError> {
        let state = self.state.lock();
        if let Some(id) = subscriptions.iter().find(|id| state.damaged.contains(*id)) {
            return Err(StoreError::Damaged(format!("subscription {id}")));
        }
        Ok(subscriptions.iter().map(|id| state.recipient(*id)).collect())
    }

    async fn former_recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError> {
        let state = self.state.lock();
        Ok(subscriptions.iter().map(|id| state.former_recipient(*id)).collect())
    }

    async fn put_failing_endpoints(&self, endpoints: Vec<FailingEndpoint>) -> Result<(), StoreError> {
        self.change(|state| {
            state.endpoints.extend(endpoints.into_iter().map(|endpoint| (endpoint.key.clone(), endpoint)));
            Ok(())
        })
    }

    async fn remove_failing_endpoints(&self, endpoints: Vec<EndpointKey>) -> Result<(), StoreError> {
        self.change(|state| {
            endpoints.iter().for_each(|key| drop(state.endpoints.remove(key)));
            Ok(())
        })
    }

    async fn failing_endpoints(
        &self,
        after: Option<&EndpointKey>,
        limit: usize,
    ) -> Result<Vec<FailingEndpoint>, StoreError> {
        let state = self.state.lock();
        let later = state.endpoints.values().filter(|found| after.is_none_or(|after| found.key > *after));
        Ok(later.take(limit).cloned().collect())
    }

    fn watch_recipients(&self, watcher: Arc<dyn RecipientWatcher>) {
        self.state.lock().recipient_watcher = Some(watcher);
    }
}

#[async_trait]
impl ChangeLog for MemoryRecords {
    async fn changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<RecordChange>, StoreError> {
        let state = self.state.lock();
        state.check_kept(after)?;
        Ok(state.changes_after(after).map(|(change, _)| change).take(limit).cloned().collect())
    }

    fn newest_change(&self) -> watch::Receiver<ChangeSequence> {
        self.newest.subscribe()
    }

    fn keep_changes_after(&self, place: ChangeSequence) {
        self.state.lock().changes_needed = place.0;
    }

    fn listen(&self, subscriber: SubscriberNumber) -> Listener {
        self.listeners.listen(subscriber)
    }
}

#[async_trait]
impl MatchStore for MemoryRecords {
    async fn indexed_subscriptions(
        &self,
        application: &Name,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<IndexedSubscription>, StoreError> {
        let state = self.state.lock();
        let later = state.subscriptions.range(after_subscription(after)).map(|(_, found)| found);
        let of_application = later.filter(|found| found.application == *application);
        Ok(of_application.filter_map(|found| state.indexed(found)).take(limit).collect())
    }

    async fn indexed_at(
        &self,
        application: &Name,
        ranges: &[RangeInclusive<SubscriptionId>],
        at: ChangeSequence,
    ) -> Result<Vec<IndexedSubscription>, StoreError> {
        let state = self.state.lock();
        state.check_kept(at)?;
        let last = state.last_at(at);
        let there_then = |range: &RangeInclusive<SubscriptionId>| {
            let range = range.start().0..=range.end().min(&last).0;
            range.filter_map(|id| state.subscription_at(SubscriptionId(id), last, at)).collect::<Vec<_>>()
        };
        let found = ranges.iter().flat_map(there_then).filter(|found| found.application == *application);
        Ok(found.filter_map(|found| state.indexed_at(found, at)).collect())
    }

    async fn subscriptions_of(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<SubscriptionId>, StoreError> {
        let state = self.state.lock();
        state.check_kept(at)?;
        let present = subscribers.iter().filter_map(|number| state.owned.get(number)).flatten().copied();
        let images = state.images(at).filter(|image| subscribers.contains(&image.subscriber_number));
        let all: BTreeSet<SubscriptionId> = present.chain(images.map(|image| image.id)).collect();
        Ok(all.into_iter().collect())
    }

    async fn memberships(
        &self,
        segments: &[Name],
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<u64>, StoreError> {
        let state = self.state.lock();
        state.check_kept(at)?;
        let filters: Vec<_> = segments.iter().map(|segment| state.filter_at(segment, at)).collect();
        Ok(subscribers.iter().map(|number| state.memberships_at(*number, &filters, at)).collect())
    }

    async fn profiles(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<Option<Arc<ProfileImage>>>, StoreError> {
        let state = self.state.lock();
        state.check_kept(at)?;
        Ok(subscribers.iter().map(|number| state.profile_at(*number, at).map(Arc::new)).collect())
    }
}

#[async_trait]
impl ScheduleStore for MemoryRecords {
    async fn schedules(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<FollowedSchedule>, StoreError> {
        let state = self.state.lock();
        let of_application = state.schedules.iter().filter(|((of, ..), _)| of == application);
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
        members: ScheduleMembers<'_>,
    ) -> Result<Vec<ScheduledSubscription>, StoreError> {
        let ScheduleMembers { application, class, schedule, after, limit } = members;
        let state = self.state.lock();
        let key: ScheduleKey = (application.clone(), class.clone(), schedule.into());
        let later = state.scheduled.range(after_subscription(after)).filter(|(_, (follows, ..))| *follows == key);
        let member = |(id, (_, since, joined)): (&SubscriptionId, &ScheduleMembership)| {
            let subscription = state.indexed(state.subscriptions.get(id)?)?;
            Some(ScheduledSubscription { subscription, since: *since, joined: *joined })
        };
        Ok(later.filter_map(member).take(limit).collect())
    }

    async fn schedule_of(&self, id: SubscriptionId) -> Result<Option<(Box<str>, Timestamp)>, StoreError> {
        let state = self.state.lock();
        Ok(state.scheduled.get(&id).map(|((_, _, schedule), since, _)| (schedule.clone(), *since)))
    }

    async fn delete_schedule(&self, application: &Name, class: &Name, schedule: &str) -> Result<bool, StoreError> {
        self.change(|state| {
            let key: ScheduleKey = (application.clone(), class.clone(), schedule.into());
            let followed = state.scheduled.values().any(|(follows, ..)| *follows == key);
            if !followed {
                state.schedules.remove(&key);
            }
            Ok(!followed)
        })
    }
}

#[async_trait]
impl ApiKeyStore for MemoryRecords {
    async fn put_api_key(&self, key: ApiKey) -> Result<(), StoreError> {
        self.change(|state| {
            if state.api_keys.values().any(|other| other.id == key.id) {
                return Err(StoreError::Taken(format!("API key `{}`", key.id)));
            }
            state.api_keys.insert((key.created_at, key.id.clone()), key);
            state.log_change(1, ChangeKind::ApiKey, BeforeImage::Nothing);
            Ok(())
        })?;
        self.newest_key.send_replace(*self.newest.borrow());
        Ok(())
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        Ok(self.state.lock().api_keys.values().cloned().collect())
    }

    async fn removed_api_keys(&self) -> Result<Vec<(String, String)>, StoreError> {
        let mut removed: Vec<_> = self.state.lock().removed_api_keys.iter().cloned().collect();
        removed.sort();
        Ok(removed)
    }

    async fn remove_api_key(&self, id: &str) -> Result<(), StoreError> {
        self.change(|state| {
            let place = state.api_keys.iter().find(|(_, key)| key.id == id).map(|(place, _)| place.clone());
            let Some(removed) = place.and_then(|place| state.api_keys.remove(&place)) else {
                return Err(StoreError::Missing(format!("API key `{id}`")));
            };
            state.api_key_uses.remove(&removed.id);
            state.removed_api_keys.retain(|(id, _)| *id != removed.id);
            state.removed_api_keys.push_back((removed.id, removed.description));
            if state.removed_api_keys.len() > REMOVED_API_KEYS_MAX {
                state.removed_api_keys.pop_front();
            }
            state.log_change(1, ChangeKind::ApiKey, BeforeImage::Nothing);
            Ok(())
        })?;
        self.newest_key.send_replace(*self.newest.borrow());
        Ok(())
    }

    async fn put_api_key_uses(&self, uses: Vec<ApiKeyUse>) -> Result<(), StoreError> {
        self.change(|state| {
            for one in uses {
                if state.api_keys.values().any(|key| key.id == one.id) {
                    state.api_key_uses.insert(one.id.clone(), one);
                }
            }
            Ok(())
        })
    }

    async fn api_key_uses(&self) -> Result<Vec<ApiKeyUse>, StoreError> {
        Ok(self.state.lock().api_key_uses.values().cloned().collect())
    }

    async fn set_api_key_expiry(&self, id: &str, expires_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.change(|state| {
            let found = state.api_keys.values_mut().find(|key| key.id == id);
            found.ok_or_else(|| StoreError::Missing(format!("API key `{id}`")))?.expires_at = expires_at;
            state.log_change(1, ChangeKind::ApiKey, BeforeImage::Nothing);
            Ok(())
        })?;
        self.newest_key.send_replace(*self.newest.borrow());
        Ok(())
    }

    fn newest_key_change(&self) -> watch::Receiver<ChangeSequence> {
        self.newest_key.subscribe()
    }
}
