//! Bodies of feedback: the log of reports, and the results of a mail.

use serde::Serialize;
use tocsin_model::{feedback::FeedbackEntry, id::NotificationId, suppression::Target, time::Timestamp};
use tocsin_service::feedback::{Effect, FeedbackResult};
use utoipa::ToSchema;

/// A report about a sent message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Feedback)]
pub(crate) struct FeedbackBody {
    /// `unknown`, `delivered`, `out_of_office`, `challenge`, `blocked`, `soft`, `hard`, `unsubscribe` or `complaint`.
    class: &'static str,
    /// The address, device or channel, as `address/<protocol>/<address>` or `device/<subscriber>/<device>`.
    target: String,
    /// Time of the report.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// `session`: the reply of the server that was sent to; `report`: a report after a server had accepted the message.
    stage: &'static str,
    /// Whether it counts toward the threshold of its class.
    counts: bool,
    /// The effect at that time, such as `counted 2 of 5` or `suppressed`.
    effect: String,
    /// `mail`, `session`, the name of a provider, or the id of a key.
    origin: String,
    /// Text of the server or provider.
    detail: String,
    /// The enhanced status code (RFC 3463), or a provider's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// The notification, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    notification: Option<NotificationId>,
    /// The subscriber, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    subscriber: Option<String>,
    /// The device, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
}

impl From<FeedbackEntry> for FeedbackBody {
    fn from(entry: FeedbackEntry) -> Self {
        FeedbackBody {
            class: entry.class.word(),
            target: entry.target.to_string(),
            at: entry.at,
            stage: entry.stage.word(),
            counts: entry.counts,
            effect: entry.effect,
            origin: entry.origin,
            detail: entry.detail,
            status: entry.status,
            notification: entry.notification,
            subscriber: entry.device.as_ref().map(|(subscriber, _)| subscriber.to_string()),
            device: entry.device.as_ref().map(|(_, device)| device.to_string()),
        }
    }
}

/// Effect of a mail on one target.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = FeedbackResult)]
pub(crate) struct FeedbackResultBody {
    /// The class, as in the log.
    class: &'static str,
    /// `unknown_target`, `not_counted`, `repeated`, `counted`, `suppressed`, `cleared` or `unsubscribed`.
    effect: &'static str,
    /// The address or device, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// For `counted`: reports within the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    /// For `counted`: the number of reports that suppresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
}

impl From<FeedbackResult> for FeedbackResultBody {
    fn from(result: FeedbackResult) -> Self {
        let (count, limit) = match result.effect {
            Effect::Counted { count, limit } => (Some(count), Some(limit)),
            _ => (None, None),
        };
        let (class, effect) = (result.class.word(), result.effect.word());
        FeedbackResultBody { class, effect, target: result.target.as_ref().map(Target::to_string), count, limit }
    }
}

/// Results of a mail.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FeedbackMailResults {
    /// One for each target; none if the mail is no feedback.
    pub(crate) items: Vec<FeedbackResultBody>,
}
