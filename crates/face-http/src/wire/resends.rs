//! Requests to send failed notifications again.

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{Name, NotificationId, SubscriberId},
    time::Timestamp,
};
use tocsin_service::resends::{Document, Draft, Preview};
use utoipa::ToSchema;

/// Selection of failed notifications; all conditions must hold. Delivered notifications and those in flight are never
/// selected.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResendDraft)]
pub(crate) struct ResendDraft {
    /// Outcomes: `refused`, `suspended`, `expired`, `ended`. Default: `refused` and `suspended`; with `as_new`:
    /// `refused` and `expired`.
    #[serde(default)]
    outcomes: Option<Vec<String>>,
    /// Only this notification, such as `n-3-41`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    notification: Option<NotificationId>,
    /// Only what failed at this time or later.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Only what failed before this time.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// Restricts to this application.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    application: Option<Name>,
    /// Restricts to this channel.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    channel: Option<Name>,
    /// Restricts to this notification class.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    class: Option<Name>,
    /// Only for this subscriber.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    subscriber: Option<SubscriberId>,
    /// Only for this device of the subscriber: its channel, unless the subscription names another device.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    device: Option<Name>,
    /// Only failures whose reason contains this text.
    #[serde(default)]
    reason: Option<String>,
    /// Whether to send new notifications, with new ids and time to live.
    #[serde(default)]
    as_new: bool,
    /// Confirms that a selection without conditions is intended.
    #[serde(default)]
    all: bool,
    /// For a preview: `next` of the previous one, to continue counting.
    #[serde(default)]
    after: Option<String>,
}

/// Number of selected notifications.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResendPreview)]
pub(crate) struct ResendPreviewBody {
    /// Number in the batches examined.
    notifications: u64,
    /// Number of notification batches examined; at most 10,000 per request.
    batches: u64,
    /// Cursor to continue counting, as `after`; absent if all were examined.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A request to send again, and its progress.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Resend)]
pub(crate) struct ResendBody {
    /// Its number.
    id: u64,
    /// Selection.
    #[schema(value_type = serde_json::Value)]
    request: serde_json::Value,
    /// Id of the key that made the request.
    by: String,
    /// Description of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_name: Option<String>,
    /// Time of the request.
    #[schema(value_type = String, format = DateTime)]
    asked_at: Timestamp,
    /// Number of notifications sent again so far.
    notifications: u64,
    /// Last notification batch processed.
    reached: String,
    /// Last notification batch of the request.
    last: String,
    /// Time of completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    done_at: Option<Timestamp>,
}

impl From<ResendDraft> for Draft {
    fn from(draft: ResendDraft) -> Self {
        Draft {
            outcomes: draft.outcomes,
            notification: draft.notification,
            since: draft.since,
            until: draft.until,
            application: draft.application,
            channel: draft.channel,
            class: draft.class,
            subscriber: draft.subscriber,
            device: draft.device,
            reason: draft.reason,
            as_new: draft.as_new,
            all: draft.all,
            after: draft.after,
        }
    }
}

impl From<Preview> for ResendPreviewBody {
    fn from(found: Preview) -> Self {
        ResendPreviewBody { notifications: found.notifications, batches: found.batches, next: found.next }
    }
}

impl From<Document> for ResendBody {
    fn from(found: Document) -> Self {
        ResendBody {
            id: found.id,
            request: found.request,
            by: found.by,
            by_name: found.by_name,
            asked_at: found.asked_at,
            notifications: found.notifications,
            reached: found.reached,
            last: found.last,
            done_at: found.done_at,
        }
    }
}
