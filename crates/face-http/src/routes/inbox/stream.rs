//! Inbox feed as server-sent events. A client that reconnects sends the id of its last event and gets what it missed. A
//! client that is too slow is disconnected, and reconnects the same way.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, http::HeaderMap, response::Response};
use serde::Deserialize;
use serde_json::json;
use tocsin_model::problem::{Code, Problem};
use tocsin_service::{
    ServiceError,
    inbox::{FeedEvent, Follower, Intent},
};
use tocsin_store::inbox::FeedChange;
use utoipa::IntoParams;

use super::open;
use crate::{
    app::App,
    problems::Failure,
    request::{InboxAccess, Parameters, Segments},
    responses::Failures,
    routes::event_stream::{EventSource, StreamMetrics, last_event_id, respond, write_event},
    wire::inbox::ItemBody,
};

const METRICS: StreamMetrics = StreamMetrics {
    open: || metrics::gauge!("tocsin_inbox_streams"),
    dropped: || metrics::counter!("tocsin_inbox_streams_dropped_total"),
};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StreamParameters {
    /// Same as the header `Last-Event-ID`, which takes precedence.
    #[serde(default)]
    last_event_id: Option<String>,
    /// An inbox token, as an `EventSource` can set no header.
    #[serde(default, rename = "token")]
    #[param(rename = "token")]
    _token: Option<String>,
}

/// Streams the changes of a feed as server-sent events: `new` and `changed` with the item, `deleted` with its id,
/// `unread` with the count, and `reset` when missed changes are not known any more: then read the feed again. Each
/// event has an id; with the header `Last-Event-ID` the stream continues after that event. Lines that begin with `:`
/// are heartbeats. The last event is `end`, without an id, with a `reason`: `revoked`, `expired` or `changed` for the
/// key or token, `removed` for the subscriber, `time`, `stopping`, `unavailable`. It is sent as soon as the key becomes
/// invalid.
#[utoipa::path(get, path = "/v1/subscribers/{id}/inbox/stream", tag = "inbox", params(("id" = String, Path), ("Last-Event-ID" = Option<String>, Header), StreamParameters), responses((status = 200, body = String, content_type = "text/event-stream"), Failures))]
pub(super) async fn stream(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments(subscriber): Segments<String>,
    headers: HeaderMap,
    Parameters(asked): Parameters<StreamParameters>,
) -> Result<Response, Failure> {
    let feed = open(&app, &visiting, &subscriber, Intent::Read).await?;
    let after = match last_event_id(&headers, asked.last_event_id) {
        Some(text) => Some(text.parse().map_err(|_| {
            ServiceError::from(
                Problem::new(
                    Code::InvalidFormat,
                    "Last-Event-ID",
                    format!("`{text}` is not the id of an event of this stream"),
                )
                .param("format", "event_id")
                .param("value", text.to_string()),
            )
        })?),
        None => None,
    };
    let seat = app.streams.clone().try_acquire_owned().map_err(|_| ServiceError::TooMany {
        reason: "too many streams are open".to_owned(),
        retry_after: Duration::from_secs(30),
    })?;
    let InboxAccess(visitor) = visiting;
    let locale = feed.locale().map(str::to_owned);
    let follower = app.service.follow_feed(feed, after)?;
    let service = app.service.clone();
    let ended = async move { service.inbox_credential_ended(&visitor).await };
    Ok(respond(app, FeedEvents { follower, locale }, ended, METRICS, seat))
}

/// The changes of a feed.
struct FeedEvents {
    follower: Follower,
    locale: Option<String>,
}

impl EventSource for FeedEvents {
    async fn next(&mut self, frame: &mut String) -> Result<(), ServiceError> {
        let updates = self.follower.next().await?;
        updates.iter().for_each(|update| write(frame, update, self.locale.as_deref()));
        Ok(())
    }
}

/// Appends an event.
fn write(frame: &mut String, update: &FeedEvent, locale: Option<&str>) {
    let (place, event, data) = match update {
        FeedEvent::Change(place, FeedChange::New(item)) => (place, "new", json!(ItemBody::new(item, locale))),
        FeedEvent::Change(place, FeedChange::Changed(item)) => (place, "changed", json!(ItemBody::new(item, locale))),
        FeedEvent::Change(place, FeedChange::Removed(id)) => (place, "deleted", json!({ "id": id })),
        FeedEvent::Unread(place, unread) => (place, "unread", json!({ "unread": unread })),
        FeedEvent::Reset(place) => (place, "reset", json!({})),
    };
    write_event(frame, place, event, &data);
}
