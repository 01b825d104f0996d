//! Searches of stored events and notifications, newest first. Each request examines a bounded number of batches and
//! reports its extent.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{Name, SubscriberId},
    receipt::Outcome,
    time::Timestamp,
};
use tocsin_service::{
    event_search::{EventQuery, FieldCounts, FoundEvent, FoundEvents},
    notification_search::{FoundNotification, NotificationQuery},
    page,
    scanned::{Period, Scanned},
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters},
    responses::{Failures, json},
    wire::{HeadBody, Named, RecipientBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(events)).routes(routes!(notifications))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventParameters {
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by event class.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    class: Option<Name>,
    /// Filter by source.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    source: Option<Name>,
    /// Filter by time of acceptance: this time or later.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Filter by time of acceptance: before this time.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// Condition in CEL over `event`, such as `event.magnitude > 5`; requires `application` and `class`.
    #[serde(default, rename = "where")]
    #[param(rename = "where")]
    condition: Option<String>,
    /// Field by whose values the events are counted instead of listed; requires `application` and `class`.
    #[serde(default)]
    count_by: Option<String>,
    /// Maximum number of events or values, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default)]
    after: Option<String>,
}

/// Searches events, newest first. A request reads at most 10,000 heads of batches and unpacks 1,000 batches, for at most
/// 2 seconds. If `next` is present, everything newer than `scanned_to` was searched.
#[utoipa::path(get, path = "/v1/events", tag = "operations", params(EventParameters), responses((status = 200, body = FoundEventsBody), Failures))]
async fn events(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<EventParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let EventParameters { application, class, source, from, to, condition, count_by, after, .. } = asked;
    let query = EventQuery { application, class, source, period: Period::new(from, to)?, condition, count_by };
    let found = app.service.search_events(&caller, query, after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &FoundEventsBody::from(found)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct NotificationParameters {
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by notification class.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    class: Option<Name>,
    /// Filter by rule.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    rule: Option<Name>,
    /// Filter by channel of the notification batch.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    channel: Option<Name>,
    /// Filter by subscriber.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    subscriber: Option<SubscriberId>,
    /// Filter by address of a device of the recipient.
    #[serde(default)]
    address: Option<String>,
    /// Filter by outcome of the last attempt, separated by commas: `waiting`, `delivered`, `deferred`, `refused`,
    /// `expired`, `suspended`, `ended`.
    #[serde(default)]
    outcome: Option<String>,
    /// Filter by text in the reply to the last attempt; ASCII letters in either case.
    #[serde(default)]
    reason: Option<String>,
    /// Filter by time of the match: this time or later.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Filter by time of the match: before this time.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default)]
    after: Option<String>,
}

/// Searches notifications, newest first. A request reads at most 10,000 heads of batches and unpacks 1,000 batches, for
/// at most 2 seconds. If `next` is present, everything newer than `scanned_to` was searched.
#[utoipa::path(get, path = "/v1/notifications", tag = "operations", params(NotificationParameters), responses((status = 200, body = FoundNotificationsBody), Failures))]
async fn notifications(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<NotificationParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let period = Period::new(asked.from, asked.to)?;
    let NotificationParameters {
        application, class, rule, channel, subscriber, address, outcome, reason, after, ..
    } = asked;
    let query = NotificationQuery { application, class, rule, channel, subscriber, address, outcome, reason, period };
    let found = app.service.search_notifications(&caller, &query, after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &FoundNotificationsBody::from(found)))
}

/// Extent of a search.
#[derive(Serialize, ToSchema)]
struct ScannedEventsBody {
    /// Number of event batches of which the head was read.
    batches: u64,
    /// Number of events examined.
    events: u64,
}

/// Extent of a search.
#[derive(Serialize, ToSchema)]
struct ScannedNotificationsBody {
    /// Number of notification batches of which the head was read.
    batches: u64,
    /// Number of notifications examined.
    notifications: u64,
}

/// Result of a search of events.
#[derive(Serialize, ToSchema)]
struct FoundEventsBody {
    items: Vec<FoundEventBody>,
    /// Give this as `after` to continue; absent if the whole period was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    scanned: ScannedEventsBody,
    /// Time down to which the search came, with `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    scanned_to: Option<Timestamp>,
    /// Number of events for which the condition exceeded its cost limit, or that are unreadable.
    #[serde(skip_serializing_if = "is_zero")]
    errors: u64,
    /// Counts by value, with `count_by`.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<FieldCountsBody>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// An event in a list.
#[derive(Serialize, ToSchema)]
struct FoundEventBody {
    id: String,
    batch: String,
    application: String,
    class: String,
    source: String,
    /// The version that packed it.
    version: u32,
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    /// State of its batch: `accepted`, `matched` or `failed`.
    state: &'static str,
    event: Named,
}

/// Number of events by the values of a field.
#[derive(Serialize, ToSchema)]
struct FieldCountsBody {
    field: String,
    /// Most frequent first.
    values: Vec<ValueCountBody>,
    /// Number of events with other values.
    other: u64,
}

/// Number of events with a value.
#[derive(Serialize, ToSchema)]
struct ValueCountBody {
    #[schema(value_type = serde_json::Value)]
    value: tocsin_model::value::Value,
    count: u64,
}

impl From<FoundEvents> for FoundEventsBody {
    fn from(FoundEvents { scanned, errors, counts }: FoundEvents) -> Self {
        let Scanned { items, next, scanned_to, batches, rows } = scanned;
        FoundEventsBody {
            items: items.into_iter().map(FoundEventBody::from).collect(),
            next,
            scanned: ScannedEventsBody { batches, events: rows },
            scanned_to,
            errors,
            counts: counts.map(FieldCountsBody::from),
        }
    }
}

impl From<FoundEvent> for FoundEventBody {
    fn from(found: FoundEvent) -> Self {
        FoundEventBody {
            id: found.id.to_string(),
            batch: found.id.batch.to_string(),
            application: found.application.to_string(),
            class: found.class.to_string(),
            source: found.source.to_string(),
            version: found.version,
            accepted_at: found.accepted_at,
            state: found.state.word(),
            event: Named(found.fields),
        }
    }
}

impl From<FieldCounts> for FieldCountsBody {
    fn from(counts: FieldCounts) -> Self {
        let values = counts.values.into_iter().map(|(value, count)| ValueCountBody { value, count }).collect();
        FieldCountsBody { field: counts.field, values, other: counts.other }
    }
}

/// Result of a search of notifications.
#[derive(Serialize, ToSchema)]
struct FoundNotificationsBody {
    items: Vec<FoundNotificationBody>,
    /// Give this as `after` to continue; absent if the whole period was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    scanned: ScannedNotificationsBody,
    /// Time down to which the search came, with `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    scanned_to: Option<Timestamp>,
}

/// A notification in a list.
#[derive(Serialize, ToSchema)]
struct FoundNotificationBody {
    id: String,
    #[serde(flatten)]
    head: HeadBody,
    subscription: String,
    event_id: String,
    /// The last attempt's outcome; `waiting` before the first.
    state: &'static str,
    /// Number of attempts.
    attempts: u32,
    /// Time of the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    last_sent_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    last_answered_at: Option<Timestamp>,
    /// The server's response to the last attempt, or why nothing was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<String>,
    /// The present recipient; null if the subscription was removed.
    recipient: Option<RecipientBody>,
}

impl From<Scanned<FoundNotification>> for FoundNotificationsBody {
    fn from(found: Scanned<FoundNotification>) -> Self {
        let Scanned { items, next, scanned_to, batches, rows } = found;
        FoundNotificationsBody {
            items: items.into_iter().map(FoundNotificationBody::from).collect(),
            next,
            scanned: ScannedNotificationsBody { batches, notifications: rows },
            scanned_to,
        }
    }
}

impl From<FoundNotification> for FoundNotificationBody {
    fn from(found: FoundNotification) -> Self {
        let last = found.last;
        FoundNotificationBody {
            id: found.id.to_string(),
            head: found.head.into(),
            subscription: found.subscription.to_string(),
            event_id: found.event.to_string(),
            state: last.as_ref().map_or("waiting", |attempt| Outcome::word(attempt.outcome)),
            attempts: found.attempts,
            last_sent_at: last.as_ref().map(|attempt| attempt.sent_at),
            last_answered_at: last.as_ref().map(|attempt| attempt.answered_at),
            reply: last.map(|attempt| attempt.reply),
            recipient: found.recipient.map(RecipientBody::from),
        }
    }
}
