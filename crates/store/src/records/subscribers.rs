//! Subscribers: what is put, asked for and given out.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_model::{
    id::{Name, SubscriberId, SubscriberNumber, SubscriptionId},
    ldap::{Entry, LdapFilter},
    preferences::Preferences,
    subscriber::{Device, DeviceState, Profile, Subscriber},
    time::Timestamp,
    value::Value,
};

use crate::error::StoreError;

/// A whole subscriber that asks to be stored: what an import line says.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSubscriber {
    /// Its id; an existing one is replaced.
    pub id: SubscriberId,
    /// See [`Subscriber`](tocsin_model::subscriber::Subscriber).
    pub profile: Profile,
    /// All its devices; `None` leaves those that it has.
    pub devices: Option<Vec<(Name, Device)>>,
    /// What it wants to be told; `None` leaves what it said.
    pub preferences: Option<Preferences>,
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
    /// See [`Subscriber`](tocsin_model::subscriber::Subscriber).
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

pub(crate) fn no_subscriber(id: &SubscriberId) -> StoreError {
    StoreError::Missing(format!("subscriber `{id}`"))
}

pub(crate) fn no_device(id: &SubscriberId, name: &Name) -> StoreError {
    StoreError::Missing(format!("device `{name}` of subscriber `{id}`"))
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

/// What a change took away from a profile: enough to go back over it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProfileStep {
    enabled: bool,
    /// What it was, if it changed; it may have been none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    locale: Option<[Option<String>; 1]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_zone: Option<[Option<String>; 1]>,
    /// Attributes that were different.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    had: BTreeMap<String, Value>,
    /// Attributes that were not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lacked: Vec<String>,
}

impl ProfileStep {
    /// Back to attributes that were otherwise, where nothing else changed.
    pub(crate) fn to_attributes(enabled: bool, before: &BTreeMap<String, Option<Value>>) -> ProfileStep {
        let had = before.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
        let lacked = before.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| name.clone());
        ProfileStep { enabled, locale: None, time_zone: None, had: had.collect(), lacked: lacked.collect() }
    }

    /// From what there is now to what there was.
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

    /// Goes back over a change.
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

/// Whether an attribute equals a text, or contains it if it is a list.
pub(crate) fn has_attribute(attributes: &BTreeMap<String, Value>, name: &str, text: &str) -> bool {
    let is_text = |value: &Value| matches!(value, Value::Text(found) if found.as_ref() == text);
    match attributes.get(name) {
        Some(Value::List(items)) => items.iter().any(is_text),
        Some(value) => is_text(value),
        None => false,
    }
}
