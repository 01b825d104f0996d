//! Consent of subscriptions, with its evidence.

use tocsin_model::{
    consent::{
        ADDRESS_SUBSCRIBER, Confirmation, ConsentAct, ConsentChange, ConsentMethod, ConsentRequest, ConsentState,
        Evidence, InitialConsent, Requested,
    },
    suppression::bound,
};

use super::*;
use crate::records::{
    ConfirmConsent, ConsentStore, EvidenceOf, NewConsented, address_of, confirmed_device, is_of_other_address,
    lifecycle_change, moved_evidence, origin, recorded_act,
};

impl RecordsState {
    /// Number of the open request of a pending subscription.
    pub(super) fn open_request(&self, id: SubscriptionId) -> Option<u64> {
        let consent = self.consents.get(&id)?;
        (consent.state == ConsentState::Pending).then_some(consent.request)
    }

    /// Stores the evidence of a change. Every change of a subscription's consent passes through here.
    pub(super) fn consent_changed(&mut self, change: &ConsentChange, now: Timestamp) {
        let Some(subscription) = self.subscriptions.get(&change.subscription) else { return };
        let Evidence { way, by, address, text, version, remote, proof, at } = change.evidence.clone();
        let (channel, address, address_hash) = match address {
            Some(to) => (Some(to.channel), Some(to.address), Some(to.hash)),
            None => (None, None, None),
        };
        self.last_evidence += 1;
        let number = self.last_evidence;
        let record = EvidenceRecord {
            number,
            subscriber: None,
            subscription: change.subscription,
            application: subscription.application.clone(),
            class: subscription.class.clone(),
            act: change.act,
            at: at.unwrap_or(now),
            way,
            by,
            channel,
            address,
            address_hash,
            text,
            version,
            remote,
            proof,
            erased_at: None,
        };
        self.evidence.insert(number, (subscription.subscriber_number, record));
        if let Some(of) = lifecycle_change(change) {
            let by = ChangeOrigin { quiet: self.origin.quiet, ..origin(&change.evidence) };
            self.record_lifecycle_by(of, change.subscription, None, &by, now);
        }
    }

    /// Stores the state of a subscription's consent, and whether it is enabled.
    pub(super) fn set_consent(&mut self, id: SubscriptionId, state: ConsentState, enabled: bool, now: Timestamp) {
        let Some(before) = self.subscriptions.get(&id).filter(|found| found.consent != Some(state)).cloned() else {
            return;
        };
        if let Some(found) = self.subscriptions.get_mut(&id) {
            (found.consent, found.updated_at) = (Some(state), now);
            found.revision += 1;
        }
        if self.switch_subscription(id, enabled, now).is_some() {
            self.log_subscriptions(&[before]);
        }
        self.follow_subscription(id, now);
    }

    fn switch_subscription(&mut self, id: SubscriptionId, enabled: bool, now: Timestamp) -> Option<Subscription> {
        let Subscription { device, values, terms, .. } = self.subscriptions.get(&id)?.clone();
        self.change_subscription(id, SubscriptionChange { device, enabled: Some(enabled), values, terms }, now)
    }

    fn apply_consent(
        &mut self,
        before: &Subscription,
        consent: Consent,
        act: ConsentAct,
        evidence: Evidence,
        now: Timestamp,
    ) {
        let (subscription, state) = (before.id, consent.state);
        self.consents.insert(subscription, consent);
        self.set_consent(subscription, state, state.permits(), now);
        let is_new = before.revision == 1 && before.consent.is_none() && before.created_at == now;
        let change = ConsentChange { subscription, before: before.consent, after: Some(state), act, is_new, evidence };
        self.consent_changed(&change, now);
    }

    fn put_consented(&mut self, new: NewConsented, now: Timestamp) -> Written<(SubscriptionId, Requested)> {
        self.origin = new.origin();
        let NewConsented { subscription: line, consent: initial, keeps_confirmed, quiet: _ } = new;
        let same = |found: &&Subscription| {
            line.key.is_some()
                && (&found.subscriber, &found.application, &found.class, &found.key)
                    == (&line.subscriber, &line.application, &line.class, &line.key)
        };
        let stored = self.subscriptions.values().find(same).cloned();
        let is_confirmed = stored.as_ref().is_some_and(|stored| stored.consent.is_some_and(ConsentState::permits));
        if let Some(stored) = stored.as_ref().filter(|_| is_confirmed && keeps_confirmed) {
            return Ok((stored.id, Requested::AlreadyConfirmed));
        }
        if let (Some(stored), InitialConsent::Requested(request)) = (&stored, &initial)
            && let Some(mut consent) = self.consents.get(&stored.id).cloned()
            && let soon @ Requested::TooSoon(_) = consent.request(request, None, now)
        {
            // What its open link confirms must not change without another message.
            return Ok((stored.id, soon));
        }
        let becomes_confirmed = match &initial {
            InitialConsent::Recorded(state, _) => state.permits(),
            InitialConsent::Requested(_) => is_confirmed,
        };
        let enabled = if becomes_confirmed { line.enabled } else { Some(false) };
        let written = self.put_subscriptions(vec![NewSubscription { enabled, ..line }], now);
        let id = written.into_iter().next().expect("one line has one answer")?;
        self.device_changed(id, now);
        let present = self.subscriptions.get(&id).cloned().ok_or_else(|| no_subscription(id))?;
        let is_new = stored.is_none();
        let repeats = stored.is_some_and(|stored| {
            (&stored.values, &stored.terms, &stored.device) == (&present.values, &present.terms, &present.device)
        });
        match initial {
            InitialConsent::Requested(_) if is_confirmed => match present.consent {
                Some(ConsentState::Pending) => Ok((id, Requested::Started)),
                _ => Ok((id, Requested::AlreadyConfirmed)),
            },
            InitialConsent::Requested(request) => {
                let repeats = repeats && request.repeats;
                Ok((id, self.request_of(&present, ConsentRequest { repeats, ..request }, now)))
            }
            InitialConsent::Recorded(state, evidence) => {
                let known = self.consents.get(&id).cloned();
                if known.as_ref().is_none_or(|known| known.state != state) {
                    let mut consent = known.unwrap_or_else(|| Consent::new(state, now));
                    consent.record(state);
                    self.consents.insert(id, consent);
                    self.set_consent(id, state, state.permits() && enabled.unwrap_or(true), now);
                    let act = recorded_act(state);
                    let (before, after) = (present.consent, Some(state));
                    let change = ConsentChange { subscription: id, before, after, act, is_new, evidence };
                    self.consent_changed(&change, now);
                }
                Ok((id, Requested::AlreadyConfirmed))
            }
        }
    }

    fn request_of(&mut self, present: &Subscription, request: ConsentRequest, now: Timestamp) -> Requested {
        let address = address_of(self.subscriber_of(present), present.device.as_ref());
        let (consent, requested) = match self.consents.get(&present.id).cloned() {
            Some(mut consent) => {
                let requested = consent.request(&request, address, now);
                (consent, requested)
            }
            None => (Consent::requested(&request, address, now), Requested::Started),
        };
        let act = match requested {
            Requested::Started => ConsentAct::Requested,
            Requested::Resent => ConsentAct::Resent,
            Requested::TooSoon(_) | Requested::AlreadyConfirmed => return requested,
        };
        self.apply_consent(present, consent, act, request.evidence, now);
        requested
    }

    fn confirm(&mut self, confirm: ConfirmConsent) -> Result<Confirmation, StoreError> {
        let ConfirmConsent { id, proof, attempts_max, evidence, now } = confirm;
        let (Some(present), Some(mut consent)) =
            (self.subscriptions.get(&id).cloned(), self.consents.get(&id).cloned())
        else {
            return Ok(Confirmation::Void);
        };
        let subscriber = self.subscriber_of(&present).clone();
        let address = address_of(&subscriber, present.device.as_ref());
        let confirmation = consent.confirm(proof, attempts_max, address.as_ref(), now);
        match confirmation {
            Confirmation::Confirmed => {}
            Confirmation::WrongCode => {
                self.consents.insert(id, consent);
                return Ok(confirmation);
            }
            Confirmation::AlreadyConfirmed | Confirmation::Exhausted | Confirmation::Void => return Ok(confirmation),
        }
        let device = confirmed_device(&subscriber, present.device.as_ref(), consent.address.as_ref());
        if let Some((name, device)) = device {
            self.change_devices(&subscriber.id, now, |devices| {
                devices.insert(name, device);
                Ok(())
            })?;
        }
        self.apply_consent(&present, consent, ConsentAct::Confirmed, evidence, now);
        Ok(confirmation)
    }

    /// Withdraws or restores the consent of a subscription, or switches one without consent.
    fn end_or_restore(&mut self, id: SubscriptionId, act: ConsentAct, evidence: Evidence, now: Timestamp) -> bool {
        let restores = act == ConsentAct::Restored;
        let Some(present) = self.subscriptions.get(&id).cloned() else { return false };
        match self.consents.get(&id).cloned() {
            Some(mut consent) => {
                let address = address_of(self.subscriber_of(&present), present.device.as_ref());
                let act = match restores {
                    true => consent.restore(address.as_ref(), now),
                    false => consent.withdraw().then_some(act),
                };
                if let Some(act) = act {
                    self.apply_consent(&present, consent, act, evidence, now);
                }
                act.is_some()
            }
            None if present.is_active_or_snoozed() == restores => false,
            None => {
                let before = self.switch_subscription(id, restores, now);
                self.log_subscriptions(before.as_slice());
                let change =
                    ConsentChange { subscription: id, before: None, after: None, act, is_new: false, evidence };
                self.consent_changed(&change, now);
                true
            }
        }
    }

    fn expire(&mut self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let due =
            |(id, consent): (&SubscriptionId, &Consent)| Some((consent.expires_at.filter(|end| *end <= now)?, *id));
        let mut expired: Vec<_> = self.consents.iter().filter_map(due).collect();
        expired.sort_unstable();
        expired.truncate(limit);
        for (_, id) in &expired {
            let Some(present) = self.subscriptions.get(id).cloned() else { continue };
            let evidence = Evidence::new(ConsentMethod::Expiry, "tocsin");
            let (before, act) = (present.consent, ConsentAct::Expired);
            self.consent_changed(
                &ConsentChange { subscription: *id, before, after: None, act, is_new: false, evidence },
                now,
            );
            self.remove_subscriptions(&[*id], now);
            let is_last = self.owned.get(&present.subscriber_number).is_none_or(BTreeSet::is_empty);
            if is_last && present.subscriber.as_str().starts_with(ADDRESS_SUBSCRIBER) {
                self.remove_subscriber(&present.subscriber, Precondition::Any, now)?;
            }
        }
        Ok(expired.len())
    }

    /// Requests the consent of confirmed subscriptions anew whose device has another address. `is_new`: there was no
    /// device of this name. Returns whether there are subscriptions whose consent is not for this address.
    pub(super) fn address_changed(
        &mut self,
        subscriber: SubscriberNumber,
        (name, device): (&Name, &Device),
        is_new: bool,
        now: Timestamp,
    ) -> bool {
        let owned = self.owned.get(&subscriber).into_iter().flatten();
        let names = |id: &&SubscriptionId| {
            let found = &self.subscriptions[*id];
            let is_other = self.consents.get(*id).is_some_and(|consent| is_of_other_address(consent, device, is_new));
            let is_given = found.consent.is_some_and(|state| state != ConsentState::Withdrawn);
            found.device.as_ref() == Some(name) && is_given && is_other
        };
        let found: Vec<SubscriptionId> = owned.filter(names).copied().collect();
        for id in &found {
            self.request_anew(*id, (device.channel.clone(), device.address.clone()), now);
        }
        !found.is_empty()
    }

    /// Requests a confirmed consent anew if the subscription names a device with another address now.
    pub(super) fn device_changed(&mut self, id: SubscriptionId, now: Timestamp) {
        let (Some(found), Some(consent)) = (self.subscriptions.get(&id), self.consents.get(&id)) else { return };
        let Some(device) = found.device.as_ref().and_then(|name| self.subscriber_of(found).devices.get(name)) else {
            return;
        };
        if is_of_other_address(consent, device, true) {
            self.request_anew(id, (device.channel.clone(), device.address.clone()), now);
        }
    }

    fn request_anew(&mut self, id: SubscriptionId, address: (Name, String), now: Timestamp) {
        let Some(mut consent) = self.consents.get(&id).cloned() else { return };
        let Some(before) = self.subscriptions.get(&id).map(|found| found.consent) else { return };
        if consent.moved(address, now) {
            let after = consent.state;
            self.consents.insert(id, consent);
            self.set_consent(id, after, false, now);
            let (after, act, evidence) = (Some(after), ConsentAct::Requested, moved_evidence());
            let change = ConsentChange { subscription: id, before, after, act, is_new: false, evidence };
            self.consent_changed(&change, now);
        }
    }

    /// Removes a subscriber, and the suppressions, feedback and endpoints of its addresses. The change log is in
    /// memory, and keeps its before-images for a time.
    fn erase_subscriber(&mut self, id: &SubscriberId, now: Timestamp) -> Result<(), StoreError> {
        let person = self.subscribers.get(id).cloned().ok_or_else(|| no_subscriber(id))?;
        let others = |address: &str| {
            let mut others = self.subscribers.values().filter(|found| found.number != person.number);
            others.any(|found| found.devices.values().any(|device| mailbox::is_same(&device.address, address)))
        };
        let mut addresses = Vec::new();
        for device in person.devices.values().filter(|device| !others(&device.address)) {
            addresses.extend([device.address.trim().to_owned(), bound(&device.address)]);
        }
        let is_of = |target: &Target| {
            let text = target.to_string();
            !matches!(target, Target::Device { .. })
                && addresses.iter().any(|address| text.ends_with(&format!("/{address}")))
        };
        self.remove_suppressions(|found| is_of(&found.target), usize::MAX);
        let is_its = |entry: &FeedbackEntry| entry.device.as_ref().is_some_and(|(owner, _)| owner == id);
        self.feedback.retain(|_, entry| !is_of(&entry.target) && !is_its(entry));
        self.endpoints
            .retain(|_, found| found.subscriber.as_ref() != Some(id) && !addresses.contains(&found.key.address));
        self.merges.retain(|(merge, is_finished)| {
            !is_finished || (merge.from_number != person.number && merge.into_number != person.number)
        });
        self.erase_documents(&person, &addresses);
        self.remove_subscriber(id, Precondition::Present, now)?;
        self.forget_lifecycle(person.number);
        Ok(())
    }

    pub(super) fn move_evidence(&mut self, from: SubscriberNumber, into: SubscriberNumber) {
        self.evidence.values_mut().filter(|(owner, _)| *owner == from).for_each(|(owner, _)| *owner = into);
    }

    /// Removes what names a person from its evidence. The hash of each address stays.
    pub(super) fn erase_evidence(&mut self, subscriber: SubscriberNumber, now: Timestamp) {
        for (owner, record) in self.evidence.values_mut().filter(|(owner, _)| *owner == subscriber) {
            *owner = SubscriberNumber(0);
            (record.address, record.remote, record.proof) = (None, None, None);
            record.erased_at = Some(now);
        }
    }
}

#[async_trait]
impl ConsentStore for MemoryRecords {
    async fn put_consented(
        &self,
        new: Vec<NewConsented>,
        now: Timestamp,
    ) -> Result<Vec<Written<(SubscriptionId, Requested)>>, StoreError> {
        self.change(|state| Ok(new.into_iter().map(|line| state.put_consented(line, now)).collect()))
    }

    async fn consent(&self, id: SubscriptionId) -> Result<Option<Consent>, StoreError> {
        Ok(self.state.lock().consents.get(&id).cloned())
    }

    async fn request_consent(
        &self,
        id: SubscriptionId,
        request: ConsentRequest,
        now: Timestamp,
    ) -> Result<Requested, StoreError> {
        self.change(|state| {
            let present = state.subscriptions.get(&id).cloned().ok_or_else(|| no_subscription(id))?;
            Ok(state.request_of(&present, request, now))
        })
    }

    async fn confirm_consent(&self, confirm: ConfirmConsent) -> Result<Confirmation, StoreError> {
        self.change(|state| state.confirm(confirm))
    }

    async fn withdraw_consent(
        &self,
        id: SubscriptionId,
        evidence: Evidence,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.change(|state| Ok(state.end_or_restore(id, ConsentAct::Withdrawn, evidence, now)))
    }

    async fn restore_consent(
        &self,
        id: SubscriptionId,
        evidence: Evidence,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.change(|state| Ok(state.end_or_restore(id, ConsentAct::Restored, evidence, now)))
    }

    async fn expire_consents(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.change(|state| state.expire(now, limit))
    }

    async fn evidence(
        &self,
        of: &EvidenceOf,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EvidenceRecord>, StoreError> {
        let state = self.state.lock();
        let owner = match of {
            EvidenceOf::Subscriber(id) => match state.subscribers.get(id) {
                Some(found) => Some(found.number),
                None => return Ok(Vec::new()),
            },
            EvidenceOf::Subscription(_) => None,
        };
        let selected = |(number, record): &&(SubscriberNumber, EvidenceRecord)| match of {
            EvidenceOf::Subscription(id) => record.subscription == *id,
            EvidenceOf::Subscriber(_) => Some(*number) == owner,
        };
        let shown = |(number, record): &(SubscriberNumber, EvidenceRecord)| {
            let subscriber = state.subscribers.values().find(|found| found.number == *number);
            EvidenceRecord { subscriber: subscriber.map(|found| found.id.clone()), ..record.clone() }
        };
        let later = state.evidence.range(after.unwrap_or(0) + 1..).map(|(_, found)| found);
        Ok(later.filter(selected).take(limit).map(shown).collect())
    }

    async fn erase_subscriber(&self, id: &SubscriberId, now: Timestamp) -> Result<(), StoreError> {
        self.change(|state| state.erase_subscriber(id, now))
    }

    async fn truncate_log(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn former_subscriptions(&self, subscriber: SubscriberNumber) -> Result<Vec<SubscriptionId>, StoreError> {
        let state = self.state.lock();
        let images = state.images(ChangeSequence(0)).filter(|image| image.subscriber_number == subscriber);
        let all: std::collections::BTreeSet<SubscriptionId> = images.map(|image| image.id).collect();
        Ok(all.into_iter().collect())
    }

    async fn prune_evidence(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.change(|state| {
            let due = |(number, (_, record)): (&u64, &(SubscriberNumber, EvidenceRecord))| {
                Some((record.erased_at.filter(|at| *at <= before)?, *number))
            };
            let mut found: Vec<_> = state.evidence.iter().filter_map(due).collect();
            found.sort_unstable();
            found.truncate(limit);
            found.iter().for_each(|(_, number)| drop(state.evidence.remove(number)));
            Ok(found.len())
        })
    }
}
