//! Suspensions and the actions of operators on them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;
use tocsin_model::id::Name;
use tocsin_model::reason_code::ReasonCode;
use tocsin_model::time::Timestamp;
use tocsin_service::operations;
use tocsin_service::suspensions::{SuspensionGroup, SuspensionGroups};
use tocsin_store::journal::StoredSuspension;
use tocsin_store::journal::SuspensionFilter;
use utoipa::ToSchema;

use super::{NotificationBody, reasons::parameters};

/// Notifications of one batch that wait for an operator.
#[derive(Serialize, ToSchema)]
pub(crate) struct SuspensionBody {
    id: u64,
    batch: String,
    application: String,
    channel: String,
    notifications: usize,
    /// Number of attempts of each.
    attempts: u32,
    reason: String,
    /// Code of the reason; see `docs/reference/errors.md`.
    code: &'static str,
    /// Parameters of the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<&'static str, String>,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
    /// Whether the notifications were edited.
    edited: bool,
}

impl From<StoredSuspension> for SuspensionBody {
    fn from(stored: StoredSuspension) -> Self {
        let suspension = stored.suspension;
        SuspensionBody {
            id: stored.id,
            batch: suspension.batch.to_string(),
            application: suspension.application.to_string(),
            channel: suspension.channel.to_string(),
            notifications: suspension.ordinals.len(),
            attempts: suspension.attempts,
            code: ReasonCode::of(&suspension.reason).0.word(),
            parameters: parameters(&suspension.reason),
            reason: suspension.reason,
            since: suspension.since,
            edited: suspension.work_state.edit.is_some(),
        }
    }
}

/// A suspension with its first notifications.
#[derive(Serialize, ToSchema)]
pub(crate) struct SuspendedBody {
    #[serde(flatten)]
    suspension: SuspensionBody,
    /// Replacement for the original: `fields`, `content`, `address`.
    #[schema(value_type = Option<serde_json::Value>)]
    edit: Option<serde_json::Value>,
    /// The first twenty.
    shown: Vec<SuspendedNotification>,
}

/// A suspended notification, with the content that a resumption would send now.
#[derive(Serialize, ToSchema)]
pub(crate) struct SuspendedNotification {
    notification: NotificationBody,
    /// The device that it would go to.
    device: Option<String>,
    channel: Option<String>,
    address: Option<String>,
    subject: Option<String>,
    text: Option<String>,
    html: Option<String>,
    json: Option<String>,
    /// Why it could not be sent now.
    problem: Option<String>,
}

impl From<tocsin_service::suspensions::Suspended> for SuspendedBody {
    fn from(suspended: tocsin_service::suspensions::Suspended) -> Self {
        let edit = suspended.stored.suspension.work_state.edit.as_deref();
        let edit = edit.and_then(|edit| serde_json::from_str(edit).ok());
        let shown = |(notification, preview): (operations::Notification, Result<_, String>)| {
            let (preview, problem) = match preview {
                Ok(preview) => (Some(preview), None),
                Err(problem) => (None, Some(problem)),
            };
            let (place, content) = preview
                .map(|preview: tocsin_service::suspensions::Preview| {
                    ((preview.device.to_string(), preview.channel.to_string(), preview.address), preview.content)
                })
                .unzip();
            let content = content.unwrap_or_default();
            let (device, channel, address) = match place {
                Some((device, channel, address)) => (Some(device), Some(channel), Some(address)),
                None => (None, None, None),
            };
            SuspendedNotification {
                notification: notification.into(),
                device,
                channel,
                address,
                subject: content.subject,
                text: content.text,
                html: content.html,
                json: content.json,
                problem,
            }
        };
        let notifications = suspended.notifications.into_iter().map(shown).collect();
        SuspendedBody { suspension: suspended.stored.into(), edit, shown: notifications }
    }
}

/// Edit of suspended notifications.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditBody {
    /// Only these notifications of the suspension; they become a suspension of their own.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) notifications: Option<Vec<tocsin_model::id::NotificationId>>,
    /// `fields` of the notification by name, the parts of the `content` (`subject`, `text`, `html`, `json`) in place of
    /// what the templates make, and the `address` in place of the device's. Null takes an edit away.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) edit: Option<tocsin_model::edit::Edit>,
}

/// The suspension with the edit.
#[derive(Serialize, ToSchema)]
pub(crate) struct EditedBody {
    pub(crate) id: u64,
    /// Number of notifications with the edit.
    pub(crate) notifications: usize,
    /// Whether nothing was changed, as requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dry_run: bool,
}

/// Selects the suspensions that match every given condition. Without any condition `all` must be true.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilterBody {
    #[serde(default)]
    id: Option<u64>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    application: Option<Name>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    channel: Option<Name>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    batch: Option<tocsin_model::id::NotificationBatchId>,
    /// Filter by notification class.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    class: Option<Name>,
    /// Filter by text that the reason contains.
    #[serde(default)]
    reason: Option<String>,
    /// Filter by time of suspension: before this time.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    before: Option<Timestamp>,
    #[serde(default)]
    pub(crate) all: bool,
}

impl FilterBody {
    pub(crate) fn filter(self) -> SuspensionFilter {
        let FilterBody { id, application, channel, batch, class, reason, before, .. } = self;
        SuspensionFilter { id, application, channel, batch, class, reason, before }
    }
}

/// Number of changed notifications.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResolvedBody {
    pub(crate) notifications: u64,
    /// Whether nothing was changed, as requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dry_run: bool,
}

/// Groups of suspensions.
#[derive(Serialize, ToSchema)]
#[schema(as = SuspensionGroups)]
pub(crate) struct SuspensionGroupsBody {
    /// At most 1,000, those with the most notifications first.
    items: Vec<SuspensionGroupBody>,
    /// Whether all suspensions are counted and all groups are listed. At most 100,000 suspensions are counted.
    exact: bool,
}

/// Suspensions with equal members.
#[derive(Serialize, ToSchema)]
#[schema(as = SuspensionGroup)]
pub(crate) struct SuspensionGroupBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Code of the reason; see `docs/reference/errors.md`.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    suspensions: u64,
    notifications: u64,
    /// Start of the oldest one.
    #[schema(value_type = String, format = DateTime)]
    since_first: Timestamp,
    /// Start of the newest one.
    #[schema(value_type = String, format = DateTime)]
    since_last: Timestamp,
}

impl From<SuspensionGroups> for SuspensionGroupsBody {
    fn from(found: SuspensionGroups) -> Self {
        let group = |group: SuspensionGroup| SuspensionGroupBody {
            application: group.application.map(|name| name.to_string()),
            channel: group.channel.map(|name| name.to_string()),
            code: group.reason.as_deref().map(|reason| ReasonCode::of(reason).0.word()),
            reason: group.reason,
            suspensions: group.suspensions,
            notifications: group.notifications,
            since_first: group.first,
            since_last: group.last,
        };
        SuspensionGroupsBody { items: found.groups.into_iter().map(group).collect(), exact: found.exact }
    }
}
