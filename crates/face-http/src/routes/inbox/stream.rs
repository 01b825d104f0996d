//! Inbox feed as server-sent events. A client that reconnects sends the id of its last event and gets what it missed. A
//! client that is too slow is disconnected, and reconnects the same way.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;
use tocsin_model::problem::{Code, Problem};
use tocsin_service::{
    CredentialEnd, ServiceError,
    inbox::{FeedEvent, Follower, InboxCaller, Intent},
};
use tocsin_store::inbox::FeedChange;
use tokio::{sync::mpsc, time::Instant};
use utoipa::IntoParams;

use super::open;
use crate::{
    app::App,
    credential::EndsItself,
    problems::Failure,
    request::{InboxAccess, Parameters, Segments},
    responses::Failures,
    wire::inbox::ItemBody,
};

/// Maximum queued frames per reader. Unread changes stay in the store, so a slow reader costs two frames.
const FRAMES: usize = 1;
/// Maximum duration of a stream; then the client reconnects and is authorized again.
const LASTS: Duration = Duration::from_secs(3_600);
/// Reconnection delay of an `EventSource`, in milliseconds.
const COME_BACK_MILLIS: u32 = 2_000;

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
    let given = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?").to_owned());
    let after = match given.or(asked.last_event_id).filter(|text| !text.is_empty()) {
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
    let (frames, waiting) = mpsc::channel(FRAMES);
    tokio::spawn(async move {
        let open = metrics::gauge!("tocsin_inbox_streams");
        open.increment(1.0);
        let end = send_changes(&app, &visitor, follower, locale.as_deref(), &frames).await;
        if let Some(end) = end {
            // A reader whose frames are all unread sees only the end of the connection.
            let _ = frames.try_send(end.frame());
        }
        open.decrement(1.0);
        drop(seat);
    });
    let frames = futures_util::stream::unfold(waiting, async |mut waiting: mpsc::Receiver<Bytes>| {
        waiting.recv().await.map(|frame| (Ok::<_, Infallible>(frame), waiting))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // Disables buffering in proxies.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((StatusCode::OK, Extension(EndsItself), headers, Body::from_stream(frames)).into_response())
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// The key or token is no longer valid.
    Credential(CredentialEnd),
    /// The subscriber was removed.
    Removed,
    /// The stream was open for [`LASTS`].
    Time,
    /// The server stops.
    Stopping,
    /// The store does not answer.
    Unavailable,
}

impl StreamEnd {
    /// The reason as a word, and for people.
    fn reason(self) -> (&'static str, &'static str) {
        match self {
            StreamEnd::Credential(end) => match end {
                CredentialEnd::Revoked => (end.word(), "the key was revoked"),
                CredentialEnd::Expired => (end.word(), "the key or token has expired"),
                CredentialEnd::Changed => (end.word(), "the rights of the key were changed"),
            },
            StreamEnd::Removed => ("removed", "the subscriber was removed"),
            StreamEnd::Time => ("time", "a stream is open for an hour; come back"),
            StreamEnd::Stopping => ("stopping", "the server stops; come back"),
            StreamEnd::Unavailable => ("unavailable", "the store does not answer; come back"),
        }
    }

    /// The last event. It has no id, so a client resumes after the last change that it received.
    fn frame(self) -> Bytes {
        let (reason, detail) = self.reason();
        format!("event: end\ndata: {}\n\n", json!({ "reason": reason, "detail": detail })).into()
    }
}

/// Sends changes until there is a reason to end; `None`: the reader disconnected or is too slow.
async fn send_changes(
    app: &App,
    visitor: &InboxCaller,
    mut follower: Follower,
    locale: Option<&str>,
    frames: &mpsc::Sender<Bytes>,
) -> Option<StreamEnd> {
    let mut ended = pin!(app.service.inbox_credential_ended(visitor));
    let end = Instant::now() + LASTS;
    let mut frame = format!("retry: {COME_BACK_MILLIS}\n\n");
    loop {
        let sent = tokio::select! {
            biased;
            end = ended.as_mut() => return Some(StreamEnd::Credential(end)),
            sent = frames.send_timeout(Bytes::from(std::mem::take(&mut frame)), app.write_timeout) => sent,
        };
        match sent {
            Ok(()) => {}
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                metrics::counter!("tocsin_inbox_streams_dropped_total").increment(1);
                return None;
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => return None,
        }
        tokio::select! {
            biased;
            end = ended.as_mut() => return Some(StreamEnd::Credential(end)),
            updates = follower.next() => match updates {
                Ok(updates) => updates.iter().for_each(|update| write(&mut frame, update, locale)),
                Err(ServiceError::Missing(_)) => return Some(StreamEnd::Removed),
                Err(error) => {
                    tracing::warn!(%error, "a stream of a feed ends");
                    return Some(StreamEnd::Unavailable);
                }
            },
            () = tokio::time::sleep(app.heartbeat) => frame.push_str(":\n\n"),
            () = frames.closed() => return None,
            () = app.stopping.cancelled() => return Some(StreamEnd::Stopping),
            () = tokio::time::sleep_until(end) => return Some(StreamEnd::Time),
        }
    }
}

/// Appends an event. JSON has no line ends between its tokens here, so that each is one line.
fn write(frame: &mut String, update: &FeedEvent, locale: Option<&str>) {
    let (place, event, data) = match update {
        FeedEvent::Change(place, FeedChange::New(item)) => (place, "new", json!(ItemBody::new(item, locale))),
        FeedEvent::Change(place, FeedChange::Changed(item)) => (place, "changed", json!(ItemBody::new(item, locale))),
        FeedEvent::Change(place, FeedChange::Removed(id)) => (place, "deleted", json!({ "id": id })),
        FeedEvent::Unread(place, unread) => (place, "unread", json!({ "unread": unread })),
        FeedEvent::Reset(place) => (place, "reset", json!({})),
    };
    frame.push_str(&format!("id: {place}\nevent: {event}\ndata: {data}\n\n"));
}
