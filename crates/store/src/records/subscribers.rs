//! Subscribers and recipients.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tocsin_model::{
    id::{Name, SubscriberId, SubscriberNumber, SubscriptionId},
    ldap::{Entry, LdapFilter},
    mailbox,
    preferences::Preferences,
    subscriber::{Device, DeviceState, Profile, Subscriber},
    time::Timestamp,
    value::Value,
};

use crate::error::StoreError;

/// Complete subscriber to store, such as a line of an import.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSubscriber {
    /// Id; an existing subscriber is replaced.
    pub id: SubscriberId,
    /// See [`Subscriber`](tocsin_model::subscriber::Subscriber).
    pub profile: Profile,
    /// All devices; `None` keeps the present ones.
    pub devices: Option<Vec<(Name, Device)>>,
    /// Notification preferences; `None` keeps the present ones.
    pub preferences: Option<Preferences>,
    /// State that is kept if the subscriber exists.
    pub kept: KeptState,
}

/// State of a stored subscriber that a write keeps, since its creator does not give it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KeptState {
    /// Whether the subscriber stays enabled or disabled.
    pub enabled: bool,
    /// Devices that keep their state, unless they get another channel or address.
    pub devices: BTreeSet<Name>,
}

impl KeptState {
    /// Takes the kept state from the stored subscriber.
    pub(crate) fn apply(
        &self,
        profile: &mut Profile,
        devices: Option<&mut BTreeMap<Name, Device>>,
        stored: &Subscriber,
    ) {
        if self.enabled {
            profile.enabled = stored.profile.enabled;
        }
        for (name, device) in devices.into_iter().flatten().filter(|(name, _)| self.devices.contains(*name)) {
            keep_state(device, stored.devices.get(name));
        }
    }
}

/// Gives a device the state of the stored one, if that has the same address.
pub(crate) fn keep_state(device: &mut Device, stored: Option<&Device>) {
    if let Some(stored) = stored.filter(|stored| is_same_address(stored, device)) {
        device.state = stored.state;
    }
}

/// Whether two devices have the same channel and address, in any spelling of a mailbox.
pub fn is_same_address(one: &Device, other: &Device) -> bool {
    one.channel == other.channel && mailbox::is_same(&one.address, &other.address)
}

/// Filter of subscribers; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubscriberFilter {
    /// Prefix of the id.
    pub id_prefix: Option<String>,
    /// Address of one of its devices.
    pub address: Option<String>,
    /// Locale.
    pub locale: Option<String>,
    /// Whether it is enabled.
    pub enabled: Option<bool>,
    /// Attribute, by name, that equals this text or is a list with it.
    pub attribute: Option<(String, String)>,
}

/// Recipient of a notification: everything that formatting and delivery need. Dereferences to its subscriber.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipient {
    /// Subscription.
    pub subscription: SubscriptionId,
    /// Properties of the subscription.
    pub interest: Arc<RecipientSubscription>,
    /// Subscriber, shared between recipients.
    pub person: Arc<RecipientSubscriber>,
}

/// Subscription as needed for delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct RecipientSubscription {
    /// Subscription class.
    pub class: Name,
    /// Number of the subscriber.
    pub subscriber: SubscriberNumber,
    /// Device that receives the notifications, if the subscription names one.
    pub device: Option<Name>,
    /// Whether the subscription is enabled.
    pub enabled: bool,
    /// Values of its fields, as stored.
    pub values: Box<str>,
    /// Number of the open request, while its consent is pending.
    pub consent_request: Option<u64>,
}

/// Subscriber as needed for delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct RecipientSubscriber {
    /// See [`Subscriber`](tocsin_model::subscriber::Subscriber).
    pub id: SubscriberId,
    /// Number of the subscriber.
    pub number: SubscriberNumber,
    /// Profile of the subscriber.
    pub profile: Profile,
    /// Notification preferences and quiet hours.
    pub preferences: Preferences,
    /// Devices in any state.
    pub devices: Devices,
}

/// Devices by name, as a sorted array: there are few.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Devices(Box<[(Name, Device)]>);

impl Recipient {
    /// Default device for delivery, if usable: the device named by the subscription, or else the first active one by
    /// name.
    pub fn device(&self) -> Option<(&Name, &Device)> {
        self.device_in(&[DeviceState::Active])
    }

    /// The same among the devices in some states.
    pub fn device_in(&self, states: &[DeviceState]) -> Option<(&Name, &Device)> {
        let named = self.interest.device.as_ref();
        let mut devices = self.devices.iter();
        devices.find(|(name, device)| states.contains(&device.state) && named.is_none_or(|named| named == *name))
    }
}

impl std::ops::Deref for Recipient {
    type Target = RecipientSubscriber;

    fn deref(&self) -> &RecipientSubscriber {
        &self.person
    }
}

impl Devices {
    /// Devices by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Device)> {
        self.0.iter().map(|(name, device)| (name, device))
    }

    /// Device by name.
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

    /// Panics if there is no device of this name.
    fn index(&self, name: &Name) -> &Device {
        self.get(name).expect("a device of this name")
    }
}

pub(crate) fn no_subscriber(id: &SubscriberId) -> StoreError {
    StoreError::Missing(format!("subscriber `{id}`"))
}

pub(crate) fn no_device(id: &SubscriberId, name: &Name) -> StoreError {
    StoreError::Missing(format!("device `{name}` of subscriber `{id}`"))
}

/// Channels of the active devices, if the subscriber is enabled. These decide its place in the match index.
pub(crate) fn reach(profile: &Profile, devices: &BTreeMap<Name, Device>) -> Option<BTreeMap<Name, Name>> {
    profile.enabled.then(|| {
        let active = devices.iter().filter(|(_, device)| device.state == DeviceState::Active);
        active.map(|(name, device)| (name.clone(), device.channel.clone())).collect()
    })
}

/// Subscriber as segments and rules see it at a sequence of the change log.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ProfileImage {
    /// Id.
    pub id: SubscriberId,
    /// Creation time.
    pub created_at: Timestamp,
    /// Profile. Whether it was enabled is not part of the image: the index holds enabled subscribers only.
    pub profile: Profile,
}

/// Undo record of a profile change: the former values.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProfileStep {
    enabled: bool,
    /// Former locale, if it changed; it may have been unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    locale: Option<[Option<String>; 1]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_zone: Option<[Option<String>; 1]>,
    /// Former values of changed attributes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    had: BTreeMap<String, Value>,
    /// Attributes that did not exist before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lacked: Vec<String>,
}

impl ProfileStep {
    /// Undo record for a change of attributes only.
    pub(crate) fn to_attributes(enabled: bool, before: &BTreeMap<String, Option<Value>>) -> ProfileStep {
        let had = before.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
        let lacked = before.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| name.clone());
        ProfileStep { enabled, locale: None, time_zone: None, had: had.collect(), lacked: lacked.collect() }
    }

    /// Undo record from the present to the former profile.
    pub(crate) fn back(now: &Profile, before: &Profile) -> ProfileStep {
        let changed = |(name, value): &(&String, &Value)| now.attributes.get(*name) != Some(*value);
        let had = before.attributes.iter().filter(changed).map(|(name, value)| (name.clone(), value.clone()));
        let lacked = now.attributes.keys().filter(|name| !before.attributes.contains_key(*name));
        ProfileStep {
            enabled: before.enabled,
            locale: (now.locale != before.locale).then(|| [before.locale.clone()]),
            time_zone: (now.time_zone != before.time_zone).then(|| [before.time_zone.clone()]),
            had: had.collect(),
            lacked: lacked.cloned().collect(),
        }
    }
}

impl ProfileImage {
    pub(crate) fn of(subscriber: &Subscriber) -> ProfileImage {
        ProfileImage {
            id: subscriber.id.clone(),
            created_at: subscriber.created_at,
            profile: subscriber.profile.clone(),
        }
    }

    /// Image of an erased person.
    pub(crate) fn erased(id: SubscriberId) -> ProfileImage {
        let profile = Profile { enabled: false, ..Profile::default() };
        ProfileImage { id, created_at: Timestamp(0), profile }
    }

    /// Undoes a change.
    pub(crate) fn undo(&mut self, step: ProfileStep) {
        let ProfileStep { enabled, locale, time_zone, had, lacked } = step;
        self.profile.enabled = enabled;
        if let Some([locale]) = locale {
            self.profile.locale = locale;
        }
        if let Some([time_zone]) = time_zone {
            self.profile.time_zone = time_zone;
        }
        self.profile.attributes.extend(had);
        lacked.iter().for_each(|name| drop(self.profile.attributes.remove(name)));
    }

    /// Bit set of the filters that match, given the channels that can reach the subscriber; `None` if it was
    /// disabled.
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

/// Whether an attribute equals a text, or is a list with it.
pub(crate) fn has_attribute(attributes: &BTreeMap<String, Value>, name: &str, text: &str) -> bool {
    let is_text = |value: &Value| matches!(value, Value::Text(found) if found.as_ref() == text);
    match attributes.get(name) {
        Some(Value::List(items)) => items.iter().any(is_text),
        Some(value) => is_text(value),
        None => false,
    }
}
