//! Subscribers and their devices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tocsin_model::{preferences::Preferences, subscriber::DeviceState, time::Timestamp, value::Value};
use tocsin_service::subscribers::{DeviceDraft, Document, Draft};
use utoipa::ToSchema;

/// Input of a subscriber. Properties that the platform adds (`created_at`, `updated_at`, `revision`) may be present,
/// as in an export, and are ignored.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SubscriberDraft)]
pub(crate) struct SubscriberDraft {
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
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    attributes: Option<BTreeMap<String, Value>>,
    /// Devices by name. If absent, stored devices are kept.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, DeviceDraftBody>>)]
    devices: Option<BTreeMap<String, DeviceDraftBody>>,
    /// Preferences: `quiet_hours`, such as `["22:00-07:00"]`, and `notifications`, by
    /// `<application>/<class>`, `<application>` or `*`, each with `enabled`, `channels` and `prefer`. When left out, what
    /// it said stays.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    preferences: Option<Preferences>,
    #[serde(default, rename = "created_at")]
    #[schema(ignore)]
    _created_at: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    #[schema(ignore)]
    _updated_at: serde::de::IgnoredAny,
    #[serde(default, rename = "revision")]
    #[schema(ignore)]
    _revision: serde::de::IgnoredAny,
    #[serde(default, rename = "warnings")]
    #[schema(ignore)]
    _warnings: serde::de::IgnoredAny,
}

/// Input of a device.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeviceDraft)]
pub(crate) struct DeviceDraftBody {
    /// Channel of an application through which the device is reached.
    channel: String,
    /// Address on the channel: a mailbox, a URL, ...
    address: String,
    /// `active`, `disabled`, `bounced`, `failed` or `pending`. If absent, a stored device with this channel and address
    /// keeps its state; any other is active. A pending one stays pending until its owner confirms.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    state: Option<DeviceState>,
}

/// A stored subscriber. A [`SubscriberDraft`] can parse it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Subscriber, description = "A stored subscriber. A [`Draft`] can parse it.")]
pub(crate) struct SubscriberBody {
    /// Its id.
    id: String,
    /// Whether the subscriber receives notifications.
    enabled: bool,
    /// BCP 47 language tag.
    locale: Option<String>,
    /// IANA time zone.
    time_zone: Option<String>,
    /// Attributes by name.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    attributes: BTreeMap<String, Value>,
    /// Devices by name.
    devices: BTreeMap<String, DeviceDraftBody>,
    /// Preferences: quiet hours, and settings by notification class.
    #[schema(value_type = serde_json::Value)]
    preferences: Preferences,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it or one of its devices last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// Grows with each change.
    revision: u64,
    /// Warnings about devices that cannot be reached, in the answer to a request that stored them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl From<SubscriberDraft> for Draft {
    fn from(draft: SubscriberDraft) -> Self {
        let devices = |devices: BTreeMap<String, DeviceDraftBody>| {
            devices.into_iter().map(|(name, device)| (name, device.into())).collect()
        };
        Draft {
            id: draft.id,
            enabled: draft.enabled,
            locale: draft.locale,
            time_zone: draft.time_zone,
            attributes: draft.attributes,
            devices: draft.devices.map(devices),
            preferences: draft.preferences,
        }
    }
}

impl From<DeviceDraftBody> for DeviceDraft {
    fn from(DeviceDraftBody { channel, address, state }: DeviceDraftBody) -> Self {
        DeviceDraft { channel, address, state }
    }
}

impl From<DeviceDraft> for DeviceDraftBody {
    fn from(DeviceDraft { channel, address, state }: DeviceDraft) -> Self {
        DeviceDraftBody { channel, address, state }
    }
}

impl From<Document> for SubscriberBody {
    fn from(found: Document) -> Self {
        SubscriberBody {
            id: found.id,
            enabled: found.enabled,
            locale: found.locale,
            time_zone: found.time_zone,
            attributes: found.attributes,
            devices: found.devices.into_iter().map(|(name, device)| (name, device.into())).collect(),
            preferences: found.preferences,
            created_at: found.created_at,
            updated_at: found.updated_at,
            revision: found.revision,
            warnings: found.warnings,
        }
    }
}
