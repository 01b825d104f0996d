//! Lines of exports and imports of suppressions.

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::NotificationId,
    suppression::{Suppression, Target},
    time::Timestamp,
};

use super::Draft;

/// A line of an import. What an export adds is ignored.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SuppressionLine {
    /// The protocol whose channels use the address, such as `smtp`.
    #[serde(default)]
    protocol: Option<String>,
    /// The application of the channel.
    #[serde(default)]
    application: Option<String>,
    /// The channel whose message was answered with a keyword.
    #[serde(default)]
    channel: Option<String>,
    /// The address. For a device: it holds only as long as the device has this one.
    #[serde(default)]
    address: Option<String>,
    /// The subscriber whose device it is.
    #[serde(default)]
    subscriber: Option<String>,
    /// The device.
    #[serde(default)]
    device: Option<String>,
    /// `manual` (the default), `hard_bounce`, `soft_bounce`, `unsubscribed` or `complaint`.
    #[serde(default)]
    cause: Option<String>,
    /// Reporter, such as the name of a provider; default: the id of the key.
    #[serde(default)]
    origin: Option<String>,
    /// Reason in the reporter's words.
    #[serde(default)]
    detail: Option<String>,
    /// Start; default: now.
    #[serde(default)]
    since: Option<Timestamp>,
    /// End; default: until it is lifted.
    #[serde(default)]
    expires_at: Option<Timestamp>,
    #[serde(default, rename = "in_force")]
    _in_force: serde::de::IgnoredAny,
    #[serde(default, rename = "bounces")]
    _bounces: serde::de::IgnoredAny,
    #[serde(default, rename = "notification")]
    _notification: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    _updated_at: serde::de::IgnoredAny,
}

impl From<SuppressionLine> for Draft {
    fn from(line: SuppressionLine) -> Self {
        Draft {
            protocol: line.protocol,
            application: line.application,
            channel: line.channel,
            address: line.address,
            subscriber: line.subscriber,
            device: line.device,
            cause: line.cause,
            origin: line.origin,
            detail: line.detail,
            since: line.since,
            expires_at: line.expires_at,
        }
    }
}

/// A stored suppression, as a line of an export shows it. A [`SuppressionLine`] can parse it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document {
    /// The protocol of the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The application of the channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application: Option<String>,
    /// The channel on which the address is suppressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Canonical address. For a device: the suppression holds only while the device has this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The subscriber whose device it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriber: Option<String>,
    /// The device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// `soft_bounce`, `manual`, `hard_bounce`, `unsubscribed` or `complaint`.
    pub cause: &'static str,
    /// Whether nothing is sent there; soft bounces below the limit are only counted.
    pub in_force: bool,
    /// Reporter: the id of a key, or a protocol.
    pub origin: String,
    /// Description of the key, if the reporter is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_name: Option<String>,
    /// Reason in the reporter's words.
    pub detail: String,
    /// Notification that caused it, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notification: Option<NotificationId>,
    /// Soft bounces that count.
    pub bounces: usize,
    /// Start.
    pub since: Timestamp,
    /// Time of the last report.
    pub updated_at: Timestamp,
    /// End; absent: until it is lifted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl From<Suppression> for Document {
    fn from(found: Suppression) -> Self {
        let mut document = Document {
            protocol: None,
            application: None,
            channel: None,
            address: None,
            subscriber: None,
            device: None,
            cause: found.cause.word(),
            in_force: found.in_force,
            origin: found.origin,
            origin_name: None,
            detail: found.detail,
            notification: found.notification,
            bounces: found.bounces.len(),
            since: found.since,
            updated_at: found.updated_at,
            expires_at: found.expires_at,
        };
        match found.target {
            Target::Address { protocol, address } => {
                document.protocol = Some(protocol.to_string());
                document.address = Some(address);
            }
            Target::Channel { application, channel, address } => {
                document.application = Some(application.to_string());
                document.channel = Some(channel.to_string());
                document.address = Some(address);
            }
            Target::Device { subscriber, device } => {
                document.subscriber = Some(subscriber.to_string());
                document.device = Some(device.to_string());
                document.address = found.address;
            }
        }
        document
    }
}
