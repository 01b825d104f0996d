//! Consent of subscriptions, with its evidence.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tocsin_model::{
    consent::{
        Confirmation, Consent, ConsentAct, ConsentMethod, ConsentRequest, ConsentState, Evidence, EvidenceRecord,
        InitialConsent, Proof, Requested,
    },
    id::{Name, SubscriberId, SubscriberNumber, SubscriptionId},
    lifecycle::ChangeOrigin,
    subscriber::{Device, DeviceState, Subscriber},
    time::Timestamp,
};

use super::{NewSubscription, is_same_address, origin};
use crate::{error::StoreError, records::writes::Written};

/// Consent of subscriptions: its state decides whether they are matched, its evidence proves it.
///
/// A write is durable when the call returns. State, evidence and the logged change of the subscription are one commit.
/// A pending or withdrawn subscription is disabled, whatever is written to it otherwise.
#[async_trait]
pub trait ConsentStore: Send + Sync + 'static {
    /// Stores subscriptions with their initial consent in one commit, as
    /// [`put_subscriptions`](super::SubscriptionStore::put_subscriptions) does. A confirmed one that exists already
    /// stays confirmed.
    async fn put_consented(
        &self,
        new: Vec<NewConsented>,
        now: Timestamp,
    ) -> Result<Vec<Written<(SubscriptionId, Requested)>>, StoreError>;

    /// Consent of a subscription; `None` if it needs none, or does not exist.
    async fn consent(&self, id: SubscriptionId) -> Result<Option<Consent>, StoreError>;

    /// Requests the consent of a subscription, again or for the first time.
    ///
    /// # Errors
    /// `Missing`: there is no such subscription.
    async fn request_consent(
        &self,
        id: SubscriptionId,
        request: ConsentRequest,
        now: Timestamp,
    ) -> Result<Requested, StoreError>;

    /// Confirms the consent of a subscription. A device that the subscription names and that is pending becomes
    /// active. [`Confirmation::Void`] if there is no such subscription or request.
    async fn confirm_consent(&self, confirm: ConfirmConsent) -> Result<Confirmation, StoreError>;

    /// Withdraws the consent of a subscription and disables it. One that needs no consent is only disabled, with the
    /// evidence. Returns whether anything changed; a missing subscription is unchanged.
    async fn withdraw_consent(
        &self,
        id: SubscriptionId,
        evidence: Evidence,
        now: Timestamp,
    ) -> Result<bool, StoreError>;

    /// Undoes a withdrawal and enables the subscription; one that needs no consent is only enabled. One that was never
    /// confirmed for the present address is pending again, see [`Consent::restore`]. Returns whether anything changed.
    async fn restore_consent(&self, id: SubscriptionId, evidence: Evidence, now: Timestamp)
    -> Result<bool, StoreError>;

    /// Removes up to `limit` subscriptions whose request expired by `now`, and subscribers that were made for them and
    /// have no others. Returns the number of subscriptions.
    async fn expire_consents(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Up to `limit` evidences by number, after `after`.
    async fn evidence(
        &self,
        of: &EvidenceOf,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EvidenceRecord>, StoreError>;

    /// Erases a person: removes the subscriber as [`remove_subscriber`](super::SubscriberStore::remove_subscriber)
    /// does, with everything that names it in the change log, merges, feedback, and suppressions and endpoints of its
    /// addresses, unless other subscribers have them. Its evidence stays without the person. Old contents of the pages
    /// are overwritten, and the WAL is truncated before the call returns.
    ///
    /// # Errors
    /// `Missing`: there is no such subscriber. `Unavailable`: it is erased, but the WAL could not be truncated, since a
    /// backup or a long read was running; the call can be repeated.
    async fn erase_subscriber(&self, id: &SubscriberId, now: Timestamp) -> Result<(), StoreError>;

    /// Truncates the WAL, so that it holds nothing that was erased.
    ///
    /// # Errors
    /// `Unavailable`: a backup or a long read is running.
    async fn truncate_log(&self) -> Result<(), StoreError>;

    /// Removed subscriptions of a subscriber, as far as the change log knows them.
    async fn former_subscriptions(&self, subscriber: SubscriberNumber) -> Result<Vec<SubscriptionId>, StoreError>;

    /// Deletes up to `limit` evidences of persons that were erased by `before`. Returns their number.
    async fn prune_evidence(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError>;
}

/// Subscription with the consent that it begins with.
#[derive(Debug, Clone, PartialEq)]
pub struct NewConsented {
    /// The subscription.
    pub subscription: NewSubscription,
    /// Its consent.
    pub consent: InitialConsent,
    /// Whether a stored subscription of the same key that is confirmed stays as it is.
    pub keeps_confirmed: bool,
    /// Whether it makes no lifecycle events. A request with a code of its own makes none either.
    pub quiet: bool,
}

impl NewConsented {
    /// Origin of the change, for lifecycle events.
    pub(crate) fn origin(&self) -> ChangeOrigin {
        let (evidence, has_code) = match &self.consent {
            InitialConsent::Requested(request) => (&request.evidence, request.code.is_some()),
            InitialConsent::Recorded(_, evidence) => (evidence, false),
        };
        ChangeOrigin { quiet: self.quiet || has_code, ..origin(evidence) }
    }
}

/// Parameters of [`ConsentStore::confirm_consent`].
#[derive(Debug, Clone, PartialEq)]
pub struct ConfirmConsent {
    /// Subscription.
    pub id: SubscriptionId,
    /// Proof.
    pub proof: Proof,
    /// Wrong codes after which the request takes no more.
    pub attempts_max: u32,
    /// Evidence of the confirmation.
    pub evidence: Evidence,
    /// Current time.
    pub now: Timestamp,
}

/// Subject of a list of evidences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvidenceOf {
    /// A subscription, existing or removed.
    Subscription(SubscriptionId),
    /// A subscriber.
    Subscriber(SubscriberId),
}

/// Kind of the change by which a state known from elsewhere is stored.
pub(crate) fn recorded_act(state: ConsentState) -> ConsentAct {
    match state {
        ConsentState::Pending => ConsentAct::Requested,
        ConsentState::Confirmed => ConsentAct::Confirmed,
        ConsentState::Withdrawn => ConsentAct::Withdrawn,
    }
}

/// Address of the device that a subscription names.
pub(crate) fn address_of(subscriber: &Subscriber, device: Option<&Name>) -> Option<(Name, String)> {
    let device = subscriber.devices.get(device?)?;
    Some((device.channel.clone(), device.address.clone()))
}

/// Active devices that have another address than before, or no device of this name had one: with whether it is new.
pub(crate) fn moved_devices(before: &BTreeMap<Name, Device>, now: &BTreeMap<Name, Device>) -> Vec<(Name, bool)> {
    let moved = |(name, device): (&Name, &Device)| {
        let before = before.get(name);
        let is_moved = before.is_none_or(|before| !is_same_address(before, device));
        (is_moved && device.state == DeviceState::Active).then(|| (name.clone(), before.is_none()))
    };
    now.iter().filter_map(moved).collect()
}

/// Whether a consent is not for the address of this device. `is_new`: the subscription did not name the device before,
/// so a consent without an address says nothing about it.
pub(crate) fn is_of_other_address(consent: &Consent, device: &Device, is_new: bool) -> bool {
    match &consent.address {
        Some((channel, address)) => {
            let sent = Device { channel: channel.clone(), address: address.clone(), state: DeviceState::Active };
            !is_same_address(&sent, device)
        }
        None => !is_new,
    }
}

/// Evidence of a request that another address of a device causes.
pub(crate) fn moved_evidence() -> Evidence {
    Evidence::new(ConsentMethod::Api, "tocsin")
}

/// The device that a confirmation makes active: the named one, if it is pending and has the address of the request.
pub(crate) fn confirmed_device(
    subscriber: &Subscriber,
    device: Option<&Name>,
    address: Option<&(Name, String)>,
) -> Option<(Name, Device)> {
    let (name, found) = subscriber.devices.get_key_value(device?)?;
    let (channel, address) = address?;
    let sent = Device { channel: channel.clone(), address: address.clone(), state: DeviceState::Active };
    let is_pending = found.state == DeviceState::Pending && is_same_address(found, &sent);
    is_pending.then(|| (name.clone(), Device { state: DeviceState::Active, ..found.clone() }))
}
