//! A feed as server-sent events. A reader that was away names the last event that it saw and is told what it missed; one that
//! is too slow is let go, and comes back the same way.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;
use tocsin_model::time::Timestamp;
use tocsin_service::{
    ServiceError,
    inbox::{Follower, Intent, Told},
};
use tocsin_store::inbox::FeedChange;
use tokio::{sync::mpsc, time::Instant};
use utoipa::IntoParams;

use super::open;
use crate::{
    App,
    problems::Failure,
    request::{Parameters, Segments, Visiting},
    routes::Failures,
    wire::inbox::ItemBody,
};

/// Frames that wait for a reader, at most.
const FRAMES: usize = 8;
/// A reader that takes nothing for so long is let go.
const PATIENCE: Duration = Duration::from_secs(30);
/// A stream ends after this time: its reader comes back, and shows again what it may.
const LASTS: Duration = Duration::from_secs(3_600);
/// What an `EventSource` waits before it comes back.
const COME_BACK_MILLIS: u32 = 2_000;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StreamParameters {
    /// As the header `Last-Event-ID`, which goes before it.
    #[serde(default)]
    last_event_id: Option<String>,
    /// An inbox token, as an `EventSource` can set no header.
    #[serde(default, rename = "token")]
    #[param(rename = "token")]
    _token: Option<String>,
}

/// What changes in a feed, as server-sent events: `new` and `changed` with the item, `deleted` with its id, `unread` with the
/// count, and `reset` when it is not known any more what was missed: then read the feed anew. Each has an id; with the header
/// `Last-Event-ID` the stream goes on behind that event. Lines that begin with `:` only show that it lives.
#[utoipa::path(get, path = "/v1/subscribers/{id}/inbox/stream", tag = "inbox", params(("id" = String, Path), ("Last-Event-ID" = Option<String>, Header), StreamParameters), responses((status = 200, body = String, content_type = "text/event-stream"), Failures))]
pub(super) async fn stream(
    State(app): State<Arc<App>>,
    visiting: Visiting,
    Segments(subscriber): Segments<String>,
    headers: HeaderMap,
    Parameters(asked): Parameters<StreamParameters>,
) -> Result<Response, Failure> {
    let feed = open(&app, &visiting, &subscriber, Intent::Read).await?;
    let given = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?").to_owned());
    let after = match given.or(asked.last_event_id).filter(|text| !text.is_empty()) {
        Some(text) => Some(text.parse().map_err(|_| {
            ServiceError::invalid("Last-Event-ID", format!("`{text}` is not the id of an event of this stream"))
        })?),
        None => None,
    };
    let seat = app.streams.clone().try_acquire_owned().map_err(|_| ServiceError::TooMany {
        reason: "too many streams are open".to_owned(),
        retry_after: Duration::from_secs(30),
    })?;
    let locale = feed.locale().map(str::to_owned);
    let leave = feed.expires_at;
    let follower = app.service.follow_feed(feed, after)?;
    let (frames, waiting) = mpsc::channel(FRAMES);
    tokio::spawn(async move {
        let open = metrics::gauge!("inbox_streams");
        open.increment(1.0);
        tell(&app, follower, locale.as_deref(), leave, &frames).await;
        open.decrement(1.0);
        drop(seat);
    });
    let frames = futures_util::stream::unfold(waiting, async |mut waiting: mpsc::Receiver<Bytes>| {
        waiting.recv().await.map(|frame| (Ok::<_, Infallible>(frame), waiting))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // Proxies would wait for more.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((StatusCode::OK, headers, Body::from_stream(frames)).into_response())
}

/// Tells what changes, until the reader is gone or too slow, its leave or the time of the stream is over, or the server ends.
async fn tell(
    app: &App,
    mut follower: Follower,
    locale: Option<&str>,
    leave: Option<Timestamp>,
    frames: &mpsc::Sender<Bytes>,
) {
    let left = leave.map_or(LASTS, |leave| leave.since(app.service.now()).min(LASTS));
    let end = Instant::now() + left;
    let mut frame = format!("retry: {COME_BACK_MILLIS}\n\n");
    loop {
        match frames.send_timeout(Bytes::from(std::mem::take(&mut frame)), PATIENCE).await {
            Ok(()) => {}
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                return metrics::counter!("inbox_streams_dropped_total").increment(1);
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => return,
        }
        tokio::select! {
            told = follower.next() => match told {
                Ok(told) => told.iter().for_each(|told| write(&mut frame, told, locale)),
                Err(ServiceError::Missing(_)) => return,
                Err(error) => return tracing::warn!(%error, "a stream of a feed ends"),
            },
            () = tokio::time::sleep(app.heartbeat) => frame.push_str(":\n\n"),
            () = frames.closed() => return,
            () = app.stopping.cancelled() => return,
            () = tokio::time::sleep_until(end) => return,
        }
    }
}

/// Appends an event. JSON has no line ends between its tokens here, so that each is one line.
fn write(frame: &mut String, told: &Told, locale: Option<&str>) {
    let (place, event, data) = match told {
        Told::Change(place, FeedChange::New(item)) => (place, "new", json!(ItemBody::new(item, locale))),
        Told::Change(place, FeedChange::Changed(item)) => (place, "changed", json!(ItemBody::new(item, locale))),
        Told::Change(place, FeedChange::Removed(id)) => (place, "deleted", json!({ "id": id })),
        Told::Unread(place, unread) => (place, "unread", json!({ "unread": unread })),
        Told::Reset(place) => (place, "reset", json!({})),
    };
    frame.push_str(&format!("id: {place}\nevent: {event}\ndata: {data}\n\n"));
}
