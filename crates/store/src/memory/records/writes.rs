//! Writes of the in-memory records.

use tocsin_model::notifybc::SubscriptionState;

use super::*;
use crate::entries::LoginNames;

impl RecordsState {
    /// Stores a suppression. Returns whether it changed.
    pub(super) fn put_suppression(&mut self, new: &Suppression) -> bool {
        self.suppressions.insert(new.target.to_string(), new.clone()).as_ref() != Some(new)
    }

    pub(super) fn remove_suppressions(&mut self, is_selected: impl Fn(&Suppression) -> bool, limit: usize) -> usize {
        let selected = self.suppressions.values().filter(|found| is_selected(found)).take(limit);
        let targets: Vec<Target> = selected.map(|found| found.target.clone()).collect();
        targets.iter().for_each(|target| drop(self.suppressions.remove(&target.to_string())));
        self.log_suppressions(&targets);
        targets.len()
    }

    pub(super) fn subscriber_of(&self, subscription: &Subscription) -> &Subscriber {
        &self.subscribers[&subscription.subscriber]
    }

    pub(super) fn put_subscriber(
        &mut self,
        new: NewSubscriber,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError> {
        let old = self.subscribers.get(&new.id).cloned();
        expect.check(old.as_ref().map(|old| old.revision), || format!("subscriber `{}`", new.id))?;
        let mut devices = new.devices.map(BTreeMap::from_iter);
        let Some(old) = old else {
            let number = SubscriberNumber(self.last_subscriber + 1);
            let names = match self.directory.is_placed(number) {
                false => LoginNames::Id(&new.id),
                true => LoginNames::Attributes { before: None, now: &new.profile.attributes },
            };
            self.check_login(None, names)?;
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
            self.record_person(None, Some(&made), now);
            return Ok(made);
        };
        if self.directory.is_placed(old.number) {
            let (before, now) = (Some(&old.profile.attributes), &new.profile.attributes);
            self.check_login(Some(old.number.into()), LoginNames::Attributes { before, now })?;
        }
        let mut profile = new.profile;
        new.kept.apply(&mut profile, devices.as_mut(), &old);
        let devices = devices.unwrap_or_else(|| old.devices.clone());
        let preferences = new.preferences.unwrap_or_else(|| old.preferences.clone());
        Ok(self.replace_subscriber(old, profile, devices, preferences, now))
    }

    pub(super) fn replace_subscriber(
        &mut self,
        old: Subscriber,
        profile: Profile,
        devices: BTreeMap<Name, Device>,
        preferences: Preferences,
        now: Timestamp,
    ) -> Subscriber {
        let mut devices = devices;
        for (name, is_new) in moved_devices(&old.devices, &devices) {
            if self.address_changed(old.number, (&name, &devices[&name].clone()), is_new, now)
                && let Some(device) = devices.get_mut(&name)
            {
                device.state = DeviceState::Pending;
            }
        }
        if old.profile == profile && old.devices == devices && old.preferences == preferences {
            return old;
        }
        self.touched.push(old.number);
        self.follow_addresses(old.number, &old.devices, &devices, now);
        let before = reach(&old.profile, &old.devices);
        let reach_changed = before != reach(&profile, &devices);
        // The enabled flag is part of the reach, not of the profile image.
        if (Profile { enabled: profile.enabled, ..old.profile.clone() }) != profile {
            self.log_profile(&old);
        }
        let zone_changed = old.profile.time_zone != profile.time_zone;
        if profile.enabled && !old.profile.enabled {
            self.subscribers_enabled_at.insert(old.number, now);
        }
        let revision = old.revision + 1;
        let new = Subscriber { profile, devices, preferences, updated_at: now, revision, ..old.clone() };
        self.subscribers.insert(new.id.clone(), new.clone());
        self.directory.changed(Some(&old), Some(&new));
        self.record_person(Some(&old), Some(&new), now);
        if zone_changed {
            for id in self.owned.get(&new.number).cloned().unwrap_or_default() {
                self.follow_schedule(id, false, now);
            }
        }
        let is_scheduled = |id| self.subscriptions[id].terms.schedule.is_some();
        let rescheduled = zone_changed && self.owned.get(&new.number).into_iter().flatten().any(is_scheduled);
        if reach_changed || rescheduled {
            self.log_change(1, ChangeKind::Subscriber(new.number), BeforeImage::Reach(before));
        }
        new
    }

    pub(super) fn remove_subscriber(
        &mut self,
        id: &SubscriberId,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let old = self.subscribers.get(id).map(|old| (old.number, old.revision));
        expect.check(old.map(|(_, revision)| revision), || format!("subscriber `{id}`"))?;
        let (number, _) = old.ok_or_else(|| no_subscriber(id))?;
        self.touched.push(number);
        let before = self.subscribers.get(id).and_then(|old| reach(&old.profile, &old.devices));
        let ids: Vec<_> = self.owned.get(&number).into_iter().flatten().copied().collect();
        self.forget_lifecycle(number);
        let origin = ChangeOrigin { way: ChangeWay::SubscriberRemoved, ..self.origin.clone() };
        for id in &ids {
            if self.subscriptions.get(id).is_some_and(Subscription::is_active_or_snoozed) {
                self.record_lifecycle_by(LifecycleChange::Ended, *id, None, &origin, now);
            }
        }
        self.remove_subscriptions(&ids, now);
        let is_its =
            |found: &Suppression| matches!(&found.target, Target::Device { subscriber, .. } if subscriber == id);
        self.remove_suppressions(is_its, usize::MAX);
        self.remove_feedback_of(id);
        let mut entry = None;
        if let Some(old) = self.subscribers.get(id).cloned() {
            entry = Some(self.entry_of(&old));
            self.log_profile(&old);
            self.directory.changed(Some(&old), None);
            self.record_person(Some(&old), None, now);
        }
        self.erase_evidence(number, now);
        self.owned.remove(&number);
        self.subscribers_enabled_at.remove(&number);
        self.subscribers.remove(id);
        self.log_change(1, ChangeKind::Subscriber(number), BeforeImage::Reach(before));
        match entry {
            Some(entry) => self.update_references(&entry, None),
            None => Ok(()),
        }
    }

    pub(super) fn merge_subscribers(
        &mut self,
        from: &SubscriberId,
        into: &SubscriberId,
        now: Timestamp,
    ) -> Result<Result<Merge, MergeRefusal>, StoreError> {
        let source = self.subscribers.get(from).cloned().ok_or_else(|| no_subscriber(from))?;
        let account = self.subscribers.get(into).cloned().ok_or_else(|| no_subscriber(into))?;
        if from == into {
            return Ok(Err(MergeRefusal::Itself));
        }
        if let Err(refused) = self.directory.may_merge(source.number, account.number) {
            return Ok(Err(refused));
        }
        let merged = MergedSubscriber::of(&source, &account);
        let (from_number, into_number) = (source.number, account.number);
        self.touched.push(into_number);
        let (profile, devices) = (merged.profile.clone(), merged.devices.clone());
        self.replace_subscriber(account, profile, devices, merged.preferences.clone(), now);
        let (moved, doubles) = self.move_subscriptions((from_number, into_number), into, &merged, now);
        self.move_suppressions((from, into), &merged);
        for endpoint in self.endpoints.values_mut().filter(|endpoint| endpoint.subscriber.as_ref() == Some(from)) {
            if let Some(new) = endpoint.device.as_ref().and_then(|device| merged.device(device)) {
                (endpoint.subscriber, endpoint.device) = (Some(into.clone()), Some(new.clone()));
            }
        }
        self.move_evidence(from_number, into_number);
        self.remove_subscriber(from, Precondition::Present, now)?;
        let report = merged.report(from.clone(), into.clone(), moved, doubles);
        let merge = Merge { from_number, into_number, at: now, report };
        self.merges.push((merge.clone(), false));
        self.prune_merges(now);
        Ok(Ok(merge))
    }

    fn prune_merges(&mut self, now: Timestamp) {
        let is_old = |(merge, is_finished): &&(Merge, bool)| *is_finished && merge.at < now - MERGES_KEPT;
        let mut old: Vec<_> =
            self.merges.iter().filter(is_old).map(|(merge, _)| (merge.at, merge.from_number)).collect();
        old.sort_unstable();
        old.truncate(EXPIRED_MERGES_MAX);
        self.merges.retain(|(merge, _)| !old.contains(&(merge.at, merge.from_number)));
    }

    fn move_subscriptions(
        &mut self,
        (from, into): (SubscriberNumber, SubscriberNumber),
        into_id: &SubscriberId,
        merged: &MergedSubscriber,
        now: Timestamp,
    ) -> (u64, u64) {
        let (owned, subscriptions) = (&self.owned, &self.subscriptions);
        let all = |number| owned.get(&number).into_iter().flatten().map(move |id| &subscriptions[id]);
        let device = |old: &Subscription| old.device.as_ref().map(|name| merged.device(name).unwrap_or(name).clone());
        let is_known = |old: &Subscription| {
            all(into).any(|known| {
                (&known.application, &known.class, &known.key) == (&old.application, &old.class, &old.key)
                    && (old.key.is_some()
                        || (&known.values, &known.terms, &known.device) == (&old.values, &old.terms, &device(old)))
            })
        };
        let (doubles, moved): (Vec<Subscription>, Vec<Subscription>) = all(from).cloned().partition(is_known);
        self.remove_subscriptions(&doubles.iter().map(|old| old.id).collect::<Vec<_>>(), now);
        // The move enables those of a disabled subscriber.
        let is_enabled = self.subscribers.values().any(|found| found.number == from && found.profile.enabled);
        let enabled_at = if is_enabled { self.subscribers_enabled_at.get(&from).copied() } else { Some(now) };
        for old in &moved {
            if let Some(latest) = enabled_at.max(self.enabled_at.get(&old.id).copied()) {
                self.enabled_at.insert(old.id, latest);
            }
            let new = Subscription {
                subscriber: into_id.clone(),
                subscriber_number: into,
                device: device(old),
                updated_at: now,
                revision: old.revision + 1,
                ..old.clone()
            };
            self.subscriptions.insert(old.id, new);
            self.owned.entry(from).or_default().remove(&old.id);
            self.owned.entry(into).or_default().insert(old.id);
            self.follow_schedule(old.id, false, now);
        }
        for run in runs(&moved, |old| old.id.0) {
            self.log_change(1, ChangeKind::Moved(run[0].id, run[run.len() - 1].id), BeforeImage::Nothing);
        }
        self.log_subscriptions(&moved);
        (moved.len() as u64, doubles.len() as u64)
    }

    fn move_suppressions(&mut self, (from, into): (&SubscriberId, &SubscriberId), merged: &MergedSubscriber) {
        let mut changed = Vec::new();
        for (old, new) in merged.moved.iter().chain(&merged.doubles) {
            let device = |subscriber: &SubscriberId, device: &Name| Target::Device {
                subscriber: subscriber.clone(),
                device: device.clone(),
            };
            let target = device(into, new);
            let found = self.suppressions.get(&device(from, old).to_string()).filter(|known| known.in_force);
            let Some(known) = found.cloned() else { continue };
            if self.suppressions.get(&target.to_string()).is_none_or(|there| !there.in_force)
                && self.put_suppression(&Suppression { target: target.clone(), ..known })
            {
                changed.push(target);
            }
        }
        self.log_suppressions(&changed);
    }

    /// Replaces the devices of a subscriber by the result of `change`.
    pub(super) fn change_devices(
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

    pub(super) fn put_subscriptions(
        &mut self,
        new: Vec<NewSubscription>,
        now: Timestamp,
    ) -> Vec<Written<SubscriptionId>> {
        let mut written: Vec<_> = new.iter().map(|line| Err(no_subscriber(&line.subscriber))).collect();
        let number = |line: &NewSubscription| self.subscribers.get(&line.subscriber).map(|found| found.number);
        let mut order: Vec<_> =
            new.into_iter().enumerate().filter_map(|(position, line)| Some((position, number(&line)?, line))).collect();
        // Must stay a stable sort: of two items with one key, the later one wins.
        order.sort_by_key(|(_, number, _)| *number);
        let first_new = self.last_subscription + 1;
        let mut changed = BTreeMap::new();
        for (position, number, line) in order {
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
                    if let Some(before) = self.recorded_change(id, line.change(), now) {
                        // If a subscription is replaced twice, the first before-image counts.
                        changed.entry(id).or_insert(before);
                    }
                    id
                }
                None => {
                    let id = self.add_subscription(line, number, now);
                    self.document_subscription_made(id, now);
                    id
                }
            };
            written[position] = Ok(id);
        }
        if self.last_subscription >= first_new {
            let made = ChangeKind::Subscriptions(SubscriptionId(first_new), SubscriptionId(self.last_subscription));
            self.log_change(1, made, BeforeImage::Nothing);
        }
        self.log_subscriptions(&changed.into_values().collect::<Vec<_>>());
        written
    }

    pub(super) fn add_subscription(
        &mut self,
        new: NewSubscription,
        number: SubscriberNumber,
        now: Timestamp,
    ) -> SubscriptionId {
        self.last_subscription += 1;
        let id = SubscriptionId(self.last_subscription);
        let (enabled, terms) = effective_state(new.enabled, &new.terms, None, now);
        let (added, last) = self.added.entry((new.application.clone(), new.class.clone())).or_insert((0, now));
        (*added, *last) = (*added + 1, now.max(*last));
        let made = Subscription {
            id,
            application: new.application,
            class: new.class,
            subscriber: new.subscriber,
            subscriber_number: number,
            key: new.key,
            device: new.device,
            enabled,
            values: new.values,
            terms,
            consent: None,
            created_at: now,
            updated_at: now,
            revision: 1,
        };
        let is_active = made.is_active_or_snoozed();
        self.subscriptions.insert(id, made);
        self.owned.entry(number).or_default().insert(id);
        self.follow_schedule(id, false, now);
        self.record_lifecycle(LifecycleChange::Requested, id, None, now);
        if is_active {
            self.record_lifecycle(LifecycleChange::Confirmed, id, None, now);
        }
        id
    }

    /// Like `change_subscription`, and records it for lifecycle events.
    pub(super) fn recorded_change(
        &mut self,
        id: SubscriptionId,
        new: SubscriptionChange,
        now: Timestamp,
    ) -> Option<Subscription> {
        let before = self.change_subscription(id, new, now)?;
        let is_active = self.subscriptions.get(&id).is_some_and(Subscription::is_active_or_snoozed);
        let change = match (before.is_active_or_snoozed(), is_active) {
            (true, false) => Some(LifecycleChange::Ended),
            (_, true) => Some(LifecycleChange::Changed),
            (false, false) => None,
        };
        if let Some(change) = change {
            self.record_lifecycle(change, id, Some(&before.values), now);
        }
        Some(before)
    }

    /// Updates the schedule of a subscription.
    pub(super) fn follow_schedule(&mut self, id: SubscriptionId, resumed: bool, now: Timestamp) {
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

    /// Returns the before-image if anything changed.
    pub(super) fn change_subscription(
        &mut self,
        id: SubscriptionId,
        new: SubscriptionChange,
        now: Timestamp,
    ) -> Option<Subscription> {
        let found = self.subscriptions.get_mut(&id)?;
        let SubscriptionChange { device, enabled, values, terms } = new;
        let stored =
            StoredState { enabled: found.enabled, snoozed_until: found.terms.snoozed_until, consent: found.consent };
        let (enabled, terms) = effective_state(enabled, &terms, Some(stored), now);
        if found.device == device && found.enabled == enabled && found.values == values && found.terms == terms {
            return None;
        }
        let before = found.clone();
        let resumed = enabled && !found.enabled;
        let rescheduled = found.terms.schedule != terms.schedule;
        (found.device, found.enabled, found.values, found.terms) = (device, enabled, values, terms);
        found.updated_at = now;
        found.revision += 1;
        if resumed {
            self.enabled_at.insert(id, now);
        }
        let is_switched = before.is_active_or_snoozed() != found.is_active_or_snoozed();
        if rescheduled || resumed {
            self.follow_schedule(id, resumed, now);
        }
        if is_switched {
            self.follow_subscription(id, now);
        }
        Some(before)
    }

    pub(super) fn remove_subscriptions(&mut self, ids: &[SubscriptionId], now: Timestamp) {
        let gone: Vec<Subscription> = ids.iter().filter_map(|id| self.subscriptions.remove(id)).collect();
        for gone in &gone {
            self.owned.entry(gone.subscriber_number).or_default().remove(&gone.id);
            self.scheduled.remove(&gone.id);
            self.enabled_at.remove(&gone.id);
            self.consents.remove(&gone.id);
            self.follow_state(gone.id, SubscriptionState::Deleted, now);
        }
        self.log_subscriptions(&gone);
    }

    pub(super) fn expect_subscription(&self, id: SubscriptionId, expect: Precondition) -> Result<(), StoreError> {
        let found = self.subscriptions.get(&id).map(|found| found.revision);
        expect.check(found, || format!("subscription `{id}`"))?;
        found.map(|_| ()).ok_or_else(|| no_subscription(id))
    }

    pub(super) fn recipient(&self, id: SubscriptionId) -> Option<Recipient> {
        self.recipient_of(self.subscriptions.get(&id)?.clone())
    }

    /// The recipient of a removed subscription, by its last before-image.
    pub(super) fn former_recipient(&self, id: SubscriptionId) -> Option<Recipient> {
        if self.subscriptions.contains_key(&id) {
            return None;
        }
        let last = self.images(ChangeSequence(0)).filter(|image| image.id == id).last()?.clone();
        self.recipient_of(Subscription { enabled: false, ..last })
    }

    fn recipient_of(&self, subscription: Subscription) -> Option<Recipient> {
        let id = subscription.id;
        let subscriber = self.subscribers.values().find(|found| found.number == subscription.subscriber_number)?;
        let person = RecipientSubscriber {
            id: subscriber.id.clone(),
            number: subscription.subscriber_number,
            profile: subscriber.profile.clone(),
            preferences: subscriber.preferences.clone(),
            devices: subscriber.devices.clone().into_iter().collect(),
        };
        let consent_request = self.open_request(id);
        let Subscription { class, subscriber_number: subscriber, device, enabled, values, .. } = subscription;
        let interest = RecipientSubscription { class, subscriber, device, enabled, values, consent_request };
        Some(Recipient { subscription: id, interest: Arc::new(interest), person: Arc::new(person) })
    }
}
