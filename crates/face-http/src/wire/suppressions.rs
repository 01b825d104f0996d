//! Suppressions, and reports of bounces and complaints.

use serde::{Deserialize, Serialize};
use tocsin_model::{id::NotificationId, time::Timestamp};
use tocsin_service::suppressions::{Document, Draft, ReportDraft};
use utoipa::ToSchema;

/// Input of a suppression: of an address, with `protocol` and `address`, or of a device, with `subscriber` and
/// `device`. What the platform adds may stand there, as in an export, and is ignored.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SuppressionDraft)]
pub(crate) struct SuppressionDraft {
    /// The protocol whose channels use the address, such as `smtp`.
    #[serde(default)]
    protocol: Option<String>,
    /// The application of the channel, with `channel`.
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
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// End; default: until it is lifted.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    #[serde(default, rename = "in_force")]
    #[schema(ignore)]
    _in_force: serde::de::IgnoredAny,
    #[serde(default, rename = "bounces")]
    #[schema(ignore)]
    _bounces: serde::de::IgnoredAny,
    #[serde(default, rename = "notification")]
    #[schema(ignore)]
    _notification: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    #[schema(ignore)]
    _updated_at: serde::de::IgnoredAny,
}

/// A stored suppression. A [`SuppressionDraft`] can parse it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Suppression, description = "A stored suppression. A [`Draft`] can parse it.")]
pub(crate) struct SuppressionBody {
    /// The protocol of the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    /// The application of the channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<String>,
    /// The channel on which the address is suppressed, since its owner replied with a keyword.
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<String>,
    /// Canonical address. For a device: the suppression holds only while the device has this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// The subscriber whose device it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    subscriber: Option<String>,
    /// The device.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// `soft_bounce`, `manual`, `hard_bounce`, `unsubscribed` or `complaint`.
    cause: &'static str,
    /// Whether nothing is sent there; soft bounces below the limit are only counted.
    in_force: bool,
    /// Reporter: the id of a key, or a protocol.
    origin: String,
    /// Description of the key, if the reporter is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin_name: Option<String>,
    /// Reason in the reporter's words.
    detail: String,
    /// Notification that caused it, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    notification: Option<NotificationId>,
    /// Soft bounces that count.
    bounces: usize,
    /// Start.
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
    /// Time of the last report.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// End; absent: until it is lifted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

/// A report of a bounce or complaint: of an address (`protocol` and `address`), of a device (`subscriber` and
/// `device`), or of a notification: the address of its recipient.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SuppressionReport)]
pub(crate) struct SuppressionReportDraft {
    /// `bounce`, `complaint` or `unsubscribe`.
    kind: String,
    /// For a bounce: whether it is permanent; default: by `status`.
    #[serde(default)]
    permanent: Option<bool>,
    /// For a bounce: its enhanced status code (RFC 3463), such as `5.1.1`.
    #[serde(default)]
    status: Option<String>,
    /// The notification, such as `n-3-41`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    notification: Option<String>,
    /// The protocol of the address, such as `smtp`; with a notification that several channels tried, the protocol of
    /// the reporting one.
    #[serde(default)]
    protocol: Option<String>,
    /// The address.
    #[serde(default)]
    address: Option<String>,
    /// The subscriber whose device it is.
    #[serde(default)]
    subscriber: Option<String>,
    /// The device.
    #[serde(default)]
    device: Option<String>,
    /// Whether to suppress only that device at its present address, and not the address everywhere.
    #[serde(default)]
    only_device: bool,
    /// Reporter, such as the name of a provider; default: the id of the key.
    #[serde(default)]
    origin: Option<String>,
    /// Reason in the reporter's words.
    #[serde(default)]
    detail: Option<String>,
}

impl From<SuppressionDraft> for Draft {
    fn from(draft: SuppressionDraft) -> Self {
        Draft {
            protocol: draft.protocol,
            application: draft.application,
            channel: draft.channel,
            address: draft.address,
            subscriber: draft.subscriber,
            device: draft.device,
            cause: draft.cause,
            origin: draft.origin,
            detail: draft.detail,
            since: draft.since,
            expires_at: draft.expires_at,
        }
    }
}

impl From<Document> for SuppressionBody {
    fn from(found: Document) -> Self {
        SuppressionBody {
            protocol: found.protocol,
            application: found.application,
            channel: found.channel,
            address: found.address,
            subscriber: found.subscriber,
            device: found.device,
            cause: found.cause,
            in_force: found.in_force,
            origin: found.origin,
            origin_name: found.origin_name,
            detail: found.detail,
            notification: found.notification,
            bounces: found.bounces,
            since: found.since,
            updated_at: found.updated_at,
            expires_at: found.expires_at,
        }
    }
}

impl From<SuppressionReportDraft> for ReportDraft {
    fn from(draft: SuppressionReportDraft) -> Self {
        ReportDraft {
            kind: draft.kind,
            permanent: draft.permanent,
            status: draft.status,
            notification: draft.notification,
            protocol: draft.protocol,
            address: draft.address,
            subscriber: draft.subscriber,
            device: draft.device,
            only_device: draft.only_device,
            origin: draft.origin,
            detail: draft.detail,
        }
    }
}
