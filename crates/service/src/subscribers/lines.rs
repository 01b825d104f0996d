//! Lines of exports and imports of subscribers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::Name,
    preferences::Preferences,
    subscriber::{Device, DeviceState, Subscriber},
    time::Timestamp,
    value::Value,
};

use super::drafts::Draft;

/// A line of an import. What an export adds is ignored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubscriberLine {
    /// Its id: 1 to 255 characters without control characters or `/`.
    #[serde(default)]
    id: Option<String>,
    /// Whether the subscriber receives notifications. If absent, the stored state is kept; a new one is enabled.
    #[serde(default)]
    enabled: Option<bool>,
    /// BCP 47 language tag, such as `de-AT`.
    #[serde(default)]
    locale: Option<String>,
    /// IANA time zone, such as `Europe/Vienna`.
    #[serde(default)]
    time_zone: Option<String>,
    /// Any JSON values by name.
    #[serde(default)]
    attributes: Option<BTreeMap<String, Value>>,
    /// Devices by name. If absent, stored devices are kept.
    #[serde(default)]
    devices: Option<BTreeMap<String, DeviceDraft>>,
    /// Preferences: `quiet_hours`, such as `["22:00-07:00"]`, and `notifications`, by
    /// `<application>/<class>`, `<application>` or `*`, each with `enabled`, `channels` and `prefer`. When left out, what
    /// it said stays.
    #[serde(default)]
    preferences: Option<Preferences>,
    #[serde(default, rename = "created_at")]
    _created_at: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    _updated_at: serde::de::IgnoredAny,
    /// Marks a line of an export.
    #[serde(default)]
    revision: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "warnings")]
    _warnings: serde::de::IgnoredAny,
}

impl SubscriberLine {
    /// Whether an export wrote it.
    pub(crate) fn is_exported(&self) -> bool {
        self.revision.is_some()
    }
}

impl From<SubscriberLine> for Draft {
    fn from(line: SubscriberLine) -> Self {
        Draft {
            id: line.id,
            enabled: line.enabled,
            locale: line.locale,
            time_zone: line.time_zone,
            attributes: line.attributes,
            devices: line.devices,
            preferences: line.preferences,
        }
    }
}

/// Input of a device.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceDraft {
    /// Channel of an application through which the device is reached.
    pub channel: String,
    /// Address on the channel: a mailbox, a URL, ...
    pub address: String,
    /// `active`, `disabled`, `bounced`, `failed` or `pending`. If absent, a stored device with this channel and address
    /// keeps its state; any other is active. A pending one stays pending until its owner confirms.
    #[serde(default)]
    pub state: Option<DeviceState>,
}

/// A stored subscriber, as a line of an export shows it. A [`SubscriberLine`] can parse it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document {
    /// Its id.
    pub id: String,
    /// Whether the subscriber receives notifications.
    pub enabled: bool,
    /// BCP 47 language tag.
    pub locale: Option<String>,
    /// IANA time zone.
    pub time_zone: Option<String>,
    /// Attributes by name.
    pub attributes: BTreeMap<String, Value>,
    /// Devices by name.
    pub devices: BTreeMap<String, DeviceDraft>,
    /// Preferences: quiet hours, and settings by notification class.
    pub preferences: Preferences,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it or one of its devices last changed.
    pub updated_at: Timestamp,
    /// Grows with each change.
    pub revision: u64,
    /// Warnings about devices that cannot be reached, in the answer to a request that stored them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl From<Subscriber> for Document {
    fn from(subscriber: Subscriber) -> Self {
        let device = |(name, device): (Name, Device)| {
            let Device { channel, address, state } = device;
            (name.to_string(), DeviceDraft { channel: channel.to_string(), address, state: Some(state) })
        };
        Document {
            id: subscriber.id.to_string(),
            enabled: subscriber.profile.enabled,
            locale: subscriber.profile.locale,
            time_zone: subscriber.profile.time_zone,
            attributes: subscriber.profile.attributes,
            devices: subscriber.devices.into_iter().map(device).collect(),
            preferences: subscriber.preferences,
            created_at: subscriber.created_at,
            updated_at: subscriber.updated_at,
            revision: subscriber.revision,
            warnings: Vec::new(),
        }
    }
}
