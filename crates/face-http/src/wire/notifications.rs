//! Notification batches, notifications, attempts.

use std::collections::BTreeMap;

use serde::{Serialize, ser::SerializeMap};
use tocsin_model::notification::NotificationHead;
use tocsin_model::reason_code::ReasonCode;
use tocsin_model::receipt::Attempt;
use tocsin_model::receipt::Outcome;
use tocsin_model::time::Timestamp;
use tocsin_model::value::Value;
use tocsin_service::operations;
use tocsin_store::records::Recipient;
use utoipa::ToSchema;

use super::reasons::parameters;

/// Named values, in order.
#[derive(ToSchema)]
#[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
pub(crate) struct Named(pub(crate) Vec<(String, Value)>);

impl Serialize for Named {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// Common values of the notifications of a batch.
#[derive(Serialize, ToSchema)]
pub(crate) struct HeadBody {
    application: String,
    version: u32,
    rule: String,
    class: String,
    event_class: String,
    channel: String,
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    matched_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

impl From<NotificationHead> for HeadBody {
    fn from(head: NotificationHead) -> Self {
        HeadBody {
            application: head.application.to_string(),
            version: head.version,
            rule: head.rule.to_string(),
            class: head.class.to_string(),
            event_class: head.event_class.to_string(),
            channel: head.channel.to_string(),
            accepted_at: head.accepted_at,
            matched_at: head.matched_at,
            expires_at: head.expires_at,
        }
    }
}

/// A notification batch.
#[derive(Serialize, ToSchema)]
pub(crate) struct NotificationBatchBody {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) head: HeadBody,
    /// Number of notifications.
    pub(crate) notifications: u32,
    /// Number of notifications by outcome of their last attempt; `waiting` for those without an attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcomes: Option<BTreeMap<&'static str, u32>>,
}

impl From<operations::NotificationBatch> for NotificationBatchBody {
    fn from(batch: operations::NotificationBatch) -> Self {
        let mut outcomes: BTreeMap<&'static str, u32> = Outcome::ALL
            .iter()
            .map(|outcome| outcome.word())
            .zip(batch.outcomes)
            .filter(|(_, count)| *count > 0)
            .collect();
        if batch.untried > 0 {
            outcomes.insert("waiting", batch.untried);
        }
        NotificationBatchBody {
            id: batch.id.to_string(),
            head: batch.head.into(),
            notifications: batch.count,
            outcomes: Some(outcomes),
        }
    }
}

/// One attempt to deliver.
#[derive(Serialize, ToSchema)]
pub(crate) struct AttemptBody {
    number: u32,
    #[schema(value_type = String, format = DateTime)]
    formatted_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    sent_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    answered_at: Timestamp,
    /// `delivered`, `deferred`, `refused`, `expired`, `suspended` or `ended`.
    outcome: &'static str,
    /// The server's response, or why nothing was sent.
    reply: String,
    /// Code of the reason, unless it was delivered; see `docs/reference/errors.md`.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// Parameters of the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<&'static str, String>,
}

impl From<Attempt> for AttemptBody {
    fn from(attempt: Attempt) -> Self {
        AttemptBody {
            number: attempt.number,
            formatted_at: attempt.formatted_at,
            sent_at: attempt.sent_at,
            answered_at: attempt.answered_at,
            outcome: attempt.outcome.word(),
            code: (attempt.outcome != Outcome::Delivered).then(|| ReasonCode::of(&attempt.reply).0.word()),
            parameters: parameters(&attempt.reply),
            reply: attempt.reply,
        }
    }
}

/// Recipient of a notification.
#[derive(Serialize, ToSchema)]
pub(crate) struct RecipientBody {
    subscriber: String,
    locale: Option<String>,
    device: Option<String>,
    channel: Option<String>,
    address: Option<String>,
}

impl From<Recipient> for RecipientBody {
    fn from(recipient: Recipient) -> Self {
        let (device, channel, address) = match recipient.device() {
            Some((name, device)) => {
                (Some(name.to_string()), Some(device.channel.to_string()), Some(device.address.clone()))
            }
            None => (None, None, None),
        };
        let (subscriber, locale) = (recipient.id.to_string(), recipient.profile.locale.clone());
        RecipientBody { subscriber, locale, device, channel, address }
    }
}

/// A notification.
#[derive(Serialize, ToSchema)]
pub(crate) struct NotificationBody {
    id: String,
    #[serde(flatten)]
    head: HeadBody,
    subscription: String,
    event_id: String,
    /// The event of the notification.
    event: Option<Named>,
    /// Its fields, as its content shows them.
    fields: Named,
    recipient: Option<RecipientBody>,
    attempts: Vec<AttemptBody>,
    /// The last attempt's outcome; `waiting` before the first.
    state: &'static str,
}

impl From<operations::Notification> for NotificationBody {
    fn from(notification: operations::Notification) -> Self {
        NotificationBody {
            id: notification.id.to_string(),
            head: notification.head.into(),
            subscription: notification.subscription.to_string(),
            event_id: notification.event_id.to_string(),
            event: notification.event.map(Named),
            fields: Named(notification.fields),
            recipient: notification.recipient.map(RecipientBody::from),
            attempts: notification.attempts.into_iter().map(AttemptBody::from).collect(),
            state: notification.outcome.map_or("waiting", Outcome::word),
        }
    }
}
