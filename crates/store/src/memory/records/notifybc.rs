//! Documents of NotifyBC records, with their native rows.

use tocsin_model::{
    consent::{ConsentChange, ConsentState},
    notifybc::{APPLICATION, CLASS, Collection, DEVICE, SUBSCRIBER, SubscriptionState, name, subscriber_id},
    subscription::SubscriptionParams,
};

use super::*;
use crate::{
    bounded_scan::SCANNED_ROWS_MAX,
    records::{
        DocumentScan, DocumentVersion, KeyFilter, NativeSubscription, NotifybcStore, PAGE_BODIES_BYTES_MAX,
        PutDocument, StoredDocument, document_noun, origin, recorded_act, with_address,
    },
};

/// Documents by collection and id.
pub(super) type Documents = BTreeMap<(Collection, String), StoredDocument>;

impl RecordsState {
    /// Stores the state of a subscription in its document.
    pub(super) fn follow_state(&mut self, id: SubscriptionId, state: SubscriptionState, now: Timestamp) {
        let is_its =
            |found: &&mut StoredDocument| found.number == Some(id) && found.keys.state.as_deref() != Some(state.word());
        for found in self.documents.values_mut().filter(is_its) {
            found.keys.state = Some(state.word().to_owned());
            (found.updated_at, found.revision) = (now, found.revision + 1);
        }
    }

    /// Stores the state of an existing subscription in its document.
    pub(super) fn follow_subscription(&mut self, id: SubscriptionId, now: Timestamp) {
        let Some(found) = self.subscriptions.get(&id) else { return };
        let state = match found.consent {
            _ if found.is_active_or_snoozed() => SubscriptionState::Confirmed,
            Some(ConsentState::Pending) => SubscriptionState::Unconfirmed,
            _ => SubscriptionState::Deleted,
        };
        self.follow_state(id, state, now);
    }

    /// Assigns a new subscription to the document of its key, whose former subscription was removed.
    pub(super) fn document_subscription_made(&mut self, id: SubscriptionId, now: Timestamp) {
        let Some(made) = self.subscriptions.get(&id) else { return };
        let is_documented = (made.application.as_str(), made.class.as_str()) == (APPLICATION, CLASS);
        let Some(key) = made.key.clone().filter(|_| is_documented) else { return };
        let is_active = made.is_active_or_snoozed();
        if let Some(document) = self.documents.get_mut(&(Collection::Subscription, key)) {
            let state = if is_active { SubscriptionState::Confirmed } else { SubscriptionState::Deleted };
            document.keys.state = Some(state.word().to_owned());
            (document.number, document.updated_at) = (Some(id), now);
            document.revision += 1;
        }
    }

    /// Stores new addresses of devices in the documents of the subscriptions that name them.
    pub(super) fn follow_addresses(
        &mut self,
        subscriber: SubscriberNumber,
        before: &BTreeMap<Name, Device>,
        devices: &BTreeMap<Name, Device>,
        now: Timestamp,
    ) {
        let has_moved =
            |name: &Name, device: &Device| before.get(name).is_some_and(|old| old.address != device.address);
        for (name, device) in devices.iter().filter(|(name, device)| has_moved(name, device)) {
            let owned: Vec<SubscriptionId> = self.owned.get(&subscriber).into_iter().flatten().copied().collect();
            let names = |id: &SubscriptionId| self.subscriptions[id].device.as_ref() == Some(name);
            let named: Vec<Option<SubscriptionId>> = owned.into_iter().filter(names).map(Some).collect();
            for found in
                self.documents.values_mut().filter(|found| found.number.is_some() && named.contains(&found.number))
            {
                let Ok(body) = with_address(&found.body, &device.address) else { continue };
                (found.body, found.keys.address) = (body, Some(device.address.to_lowercase()));
                (found.updated_at, found.revision) = (now, found.revision + 1);
            }
        }
    }

    /// Deletes the documents of an erased person. Must be called before the subscriber is removed.
    pub(super) fn erase_documents(&mut self, person: &Subscriber, addresses: &[String]) {
        let owned = self.owned.get(&person.number).cloned().unwrap_or_default();
        let record = person.id.as_str().strip_prefix(SUBSCRIBER);
        let addresses: Vec<String> = addresses.iter().map(|address| address.to_lowercase()).collect();
        self.documents.retain(|(collection, id), found| {
            let is_its = found.number.is_some_and(|number| owned.contains(&number))
                || (*collection == Collection::Subscription && record == Some(id))
                || found.keys.address.as_ref().is_some_and(|address| addresses.contains(address));
            !is_its
        });
    }

    fn put_document(&mut self, new: PutDocument, now: Timestamp) -> Result<Written<DocumentVersion>, StoreError> {
        let PutDocument { collection, id, body, keys, expect, native, created_at, updated_at } = new;
        let keys = keys.normalized();
        self.origin = ChangeOrigin::default();
        let place = (collection, id.clone());
        let old = self.documents.get(&place).map(|old| (old.revision, old.number));
        if let Err(refused) = expect.check(old.map(|(revision, _)| revision), || document_noun(collection, &id)) {
            return Ok(Err(refused));
        }
        if let Some(unique) = &keys.unique {
            let is_held = |((of, other), found): (&(Collection, String), &StoredDocument)| {
                *of == collection && *other != id && found.keys.unique.as_ref() == Some(unique)
            };
            if self.documents.iter().any(is_held) {
                return Ok(Err(StoreError::Taken(document_noun(collection, unique))));
            }
        }
        let known = old.and_then(|(_, number)| number);
        let number = match native {
            Some(native) => match self.put_native(&id, native, known, now) {
                Ok(number) => Some(number),
                Err(refused @ (StoreError::Taken(_) | StoreError::Unavailable(_))) => return Ok(Err(refused)),
                Err(error) => return Err(error),
            },
            None => {
                if let Some(known) = known {
                    self.remove_native(&id, known, now)?;
                }
                None
            }
        };
        let revision = old.map_or(1, |(revision, _)| revision + 1);
        self.documents.insert(place, StoredDocument { id, body, keys, revision, created_at, updated_at, number });
        Ok(Ok(DocumentVersion { revision, number }))
    }

    fn put_native(
        &mut self,
        id: &str,
        native: NativeSubscription,
        known: Option<SubscriptionId>,
        now: Timestamp,
    ) -> Result<SubscriptionId, StoreError> {
        self.origin = origin(&native.evidence);
        let owner = subscriber_id(id).map_err(StoreError::unavailable)?;
        let same_key = |found: &&Subscription| {
            (found.application.as_str(), found.class.as_str(), found.key.as_deref()) == (APPLICATION, CLASS, Some(id))
                && found.subscriber == owner
        };
        let present = known.and_then(|known| self.subscriptions.get(&known));
        let present = present.or_else(|| self.subscriptions.values().find(same_key)).cloned();
        if let Some(present) = present {
            return self.change_native(present, native, now);
        }
        let device = Device { channel: native.channel, address: native.address, state: DeviceState::Active };
        let mut consent = Consent::new(native.state, now);
        set_consent_state(&mut consent, native.state, &device);
        let subscriber = NewSubscriber {
            kept: Default::default(),
            id: owner.clone(),
            profile: Profile::default(),
            devices: Some(vec![(name(DEVICE), device)]),
            preferences: None,
        };
        let subscriber = self.put_subscriber(subscriber, Precondition::Any, now)?.number;
        let line = NewSubscription {
            application: name(APPLICATION),
            class: name(CLASS),
            subscriber: owner,
            key: Some(id.to_owned()),
            device: Some(name(DEVICE)),
            enabled: Some(native.enabled && native.state.permits()),
            values: native.values,
            terms: SubscriptionParams { filter: native.filter, ..SubscriptionParams::default() },
        };
        let class = (line.application.clone(), line.class.clone());
        if !self.classes.contains(&class) {
            self.classes.push(class);
        }
        let number = self.add_subscription(line, subscriber, now);
        if let Some(made) = self.subscriptions.get_mut(&number) {
            made.consent = Some(native.state);
        }
        self.made_documents.push(number);
        self.consents.insert(number, consent);
        self.consent_changed(
            &ConsentChange {
                subscription: number,
                before: None,
                after: Some(native.state),
                act: recorded_act(native.state),
                is_new: true,
                evidence: native.evidence,
            },
            now,
        );
        Ok(number)
    }

    /// Logs the subscriptions that the documents of one call made, as one change.
    fn log_made(&mut self) {
        let made = std::mem::take(&mut self.made_documents);
        if let (Some(first), Some(last)) = (made.first(), made.last()) {
            self.log_change(1, ChangeKind::Subscriptions(*first, *last), BeforeImage::Nothing);
        }
    }

    fn change_native(
        &mut self,
        present: Subscription,
        native: NativeSubscription,
        now: Timestamp,
    ) -> Result<SubscriptionId, StoreError> {
        self.log_made();
        let NativeSubscription { channel, address, values, filter, state, enabled, evidence } = native;
        let (id, owner) = (present.id, present.subscriber.clone());
        let device_name = present.device.clone().unwrap_or_else(|| name(DEVICE));
        let device = Device { channel, address, state: DeviceState::Active };
        let mut consent = self.consents.get(&id).cloned().unwrap_or_else(|| Consent::new(state, now));
        set_consent_state(&mut consent, state, &device);
        self.consents.insert(id, consent);
        let held = self.subscriber_of(&present).devices.get(&device_name);
        if held.is_none_or(|held| (&held.channel, &held.address) != (&device.channel, &device.address)) {
            self.change_devices(&owner, now, |devices| {
                devices.insert(device_name.clone(), device);
                Ok(())
            })?;
        }
        let is_same = present.consent == Some(state);
        let enabled = enabled && state.permits();
        let terms = SubscriptionParams { filter, ..present.terms.clone() };
        let change =
            SubscriptionChange { device: Some(device_name), enabled: is_same.then_some(enabled), values, terms };
        let before = self.recorded_change(id, change, now);
        self.log_subscriptions(before.as_slice());
        if !is_same {
            self.set_consent(id, state, enabled, now);
            let (before, after, act) = (present.consent, Some(state), recorded_act(state));
            let change = ConsentChange { subscription: id, before, after, act, is_new: false, evidence };
            self.consent_changed(&change, now);
        }
        Ok(id)
    }

    fn remove_native(&mut self, id: &str, number: SubscriptionId, now: Timestamp) -> Result<(), StoreError> {
        self.log_made();
        if self.subscriptions.get(&number).is_some_and(Subscription::is_active_or_snoozed) {
            self.record_lifecycle(LifecycleChange::Ended, number, None, now);
        }
        if self.subscriptions.contains_key(&number) {
            self.remove_subscriptions(&[number], now);
        }
        let Ok(owner) = subscriber_id(id) else { return Ok(()) };
        let subscriber = self.subscribers.get(&owner).map(|found| found.number);
        let is_free = |number| self.owned.get(number).is_none_or(BTreeSet::is_empty);
        match subscriber.as_ref().filter(|number| is_free(number)) {
            Some(_) => self.remove_subscriber(&owner, Precondition::Any, now),
            None => Ok(()),
        }
    }
}

fn set_consent_state(consent: &mut Consent, state: ConsentState, device: &Device) {
    consent.address = Some((device.channel.clone(), device.address.clone()));
    match state {
        ConsentState::Pending => (consent.state, consent.was_confirmed) = (state, false),
        ConsentState::Confirmed | ConsentState::Withdrawn => consent.record(state),
    }
}

#[async_trait]
impl NotifybcStore for MemoryRecords {
    async fn put_documents(
        &self,
        puts: Vec<PutDocument>,
        now: Timestamp,
    ) -> Result<Vec<Written<DocumentVersion>>, StoreError> {
        self.change(|state| {
            let written = puts.into_iter().map(|new| state.put_document(new, now)).collect();
            state.log_made();
            written
        })
    }

    async fn document(&self, collection: Collection, id: &str) -> Result<Option<StoredDocument>, StoreError> {
        Ok(self.state.lock().documents.get(&(collection, id.to_owned())).cloned())
    }

    async fn documents_of(
        &self,
        collection: Collection,
        ids: &[String],
    ) -> Result<Vec<Option<StoredDocument>>, StoreError> {
        let state = self.state.lock();
        Ok(ids.iter().map(|id| state.documents.get(&(collection, id.clone())).cloned()).collect())
    }

    async fn document_ids(&self, numbers: &[SubscriptionId]) -> Result<Vec<Option<String>>, StoreError> {
        let state = self.state.lock();
        let id = |number: &SubscriptionId| {
            state.documents.values().find(|found| found.number == Some(*number)).map(|found| found.id.clone())
        };
        Ok(numbers.iter().map(id).collect())
    }

    async fn document_by_unique(
        &self,
        collection: Collection,
        unique: &str,
    ) -> Result<Option<StoredDocument>, StoreError> {
        let state = self.state.lock();
        let mut of_collection = state.documents.iter().filter(|((of, _), _)| *of == collection);
        let found = of_collection.find(|(_, found)| found.keys.unique.as_deref() == Some(unique));
        Ok(found.map(|(_, found)| found.clone()))
    }

    async fn scan_documents(&self, scan: DocumentScan) -> Result<ScanPage<StoredDocument, String>, StoreError> {
        let DocumentScan { collection, filter, after, limit } = scan;
        let state = self.state.lock();
        let after = after.unwrap_or_default();
        let of_collection = state.documents.range((collection, String::new())..);
        let later = of_collection.take_while(|((of, _), _)| *of == collection).filter(|((_, id), _)| *id > after);
        let (mut page, mut scanned, mut bytes, mut reached) = (Vec::new(), 0, 0, None);
        for ((_, id), found) in later.filter(|((_, id), found)| filter.permits(id, &found.keys)) {
            (scanned, bytes) = (scanned + 1, bytes + found.body.len());
            page.push(found.clone());
            if page.len() > limit || scanned >= SCANNED_ROWS_MAX || bytes >= PAGE_BODIES_BYTES_MAX {
                reached = Some(id.clone());
                break;
            }
        }
        Ok(ScanPage::cut(page, limit, reached, |found: &StoredDocument| found.id.clone()))
    }

    async fn count_documents(&self, collection: Collection, filter: &KeyFilter) -> Result<u64, StoreError> {
        let state = self.state.lock();
        let of_collection = state.documents.iter().filter(|((of, _), _)| *of == collection);
        Ok(of_collection.filter(|((_, id), found)| filter.permits(id, &found.keys)).count() as u64)
    }

    async fn confirmed_services(&self) -> Result<Vec<String>, StoreError> {
        let state = self.state.lock();
        let is_confirmed = |((of, _), found): &(&(Collection, String), &StoredDocument)| {
            *of == Collection::Subscription && found.keys.state.as_deref() == Some("confirmed")
        };
        let services = state.documents.iter().filter(is_confirmed).filter_map(|(_, found)| found.keys.service.clone());
        Ok(services.collect::<BTreeSet<_>>().into_iter().collect())
    }

    async fn remove_documents(
        &self,
        collection: Collection,
        ids: Vec<String>,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        self.change(|state| {
            let mut removed = 0;
            for id in ids {
                let Some(old) = state.documents.remove(&(collection, id.clone())) else { continue };
                if let Some(number) = old.number {
                    state.remove_native(&id, number, now)?;
                }
                removed += 1;
            }
            Ok(removed)
        })
    }
}
