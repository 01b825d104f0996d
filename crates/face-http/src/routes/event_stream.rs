//! Responses of server-sent events, for all streams. A client that is too slow is disconnected; it reconnects and
//! resumes after its last event.

use std::{convert::Infallible, future::Future, pin::pin, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tocsin_service::{CredentialEnd, ServiceError};
use tokio::{sync::mpsc, time::Instant};

use crate::{app::App, credential::EndsItself};

/// Maximum queued frames per reader. Unread changes stay with the source, so a slow reader costs two frames.
const FRAMES: usize = 1;
/// Maximum duration of a stream; then the client reconnects and is authorized again.
const LASTS: Duration = Duration::from_secs(3_600);
/// Reconnection delay of an `EventSource`, in milliseconds.
const COME_BACK_MILLIS: u32 = 2_000;

/// Source of the events of one stream.
pub(super) trait EventSource: Send + 'static {
    /// Waits for the next events and appends them to a frame. May be cancelled while it waits.
    ///
    /// # Errors
    /// `Missing`: the object of the stream was removed. Any other: the store is unavailable.
    fn next(&mut self, frame: &mut String) -> impl Future<Output = Result<(), ServiceError>> + Send;
}

/// Metrics of a kind of stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamMetrics {
    /// Gauge of open streams.
    pub(super) open: fn() -> metrics::Gauge,
    /// Counter of streams of slow readers.
    pub(super) dropped: fn() -> metrics::Counter,
}

/// Appends an event. JSON has no line ends between its tokens here, so that each is one line.
pub(super) fn write_event(frame: &mut String, id: impl std::fmt::Display, event: &str, data: &serde_json::Value) {
    frame.push_str(&format!("id: {id}\nevent: {event}\ndata: {data}\n\n"));
}

/// The id of the last event that a client has received: the header `Last-Event-ID`, or else the parameter.
pub(super) fn last_event_id(headers: &HeaderMap, parameter: Option<String>) -> Option<String> {
    let given = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?").to_owned());
    given.or(parameter).filter(|text| !text.is_empty())
}

/// Streams the events of a source until the credential ends. `seat` is held while the stream is open.
pub(super) fn respond(
    app: Arc<App>,
    source: impl EventSource,
    ended: impl Future<Output = CredentialEnd> + Send + 'static,
    metrics: StreamMetrics,
    seat: impl Send + 'static,
) -> Response {
    let (frames, waiting) = mpsc::channel(FRAMES);
    tokio::spawn(async move {
        let open = (metrics.open)();
        open.increment(1.0);
        let end = send_events(&app, source, ended, metrics, &frames).await;
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
    (StatusCode::OK, Extension(EndsItself), headers, Body::from_stream(frames)).into_response()
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// The key, token or session is no longer valid.
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

/// Sends events until there is a reason to end; `None`: the reader disconnected or is too slow.
async fn send_events(
    app: &App,
    mut source: impl EventSource,
    ended: impl Future<Output = CredentialEnd>,
    metrics: StreamMetrics,
    frames: &mpsc::Sender<Bytes>,
) -> Option<StreamEnd> {
    let mut ended = pin!(ended);
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
                (metrics.dropped)().increment(1);
                return None;
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => return None,
        }
        let (mut next, heartbeat) = (String::new(), tokio::time::sleep(app.heartbeat));
        tokio::select! {
            biased;
            end = ended.as_mut() => return Some(StreamEnd::Credential(end)),
            received = source.next(&mut next) => match received {
                Ok(()) => frame = next,
                Err(ServiceError::Missing(_)) => return Some(StreamEnd::Removed),
                Err(error) => {
                    tracing::warn!(%error, "a stream of events ends");
                    return Some(StreamEnd::Unavailable);
                }
            },
            () = heartbeat => frame.push_str(":\n\n"),
            () = frames.closed() => return None,
            () = app.stopping.cancelled() => return Some(StreamEnd::Stopping),
            () = tokio::time::sleep_until(end) => return Some(StreamEnd::Time),
        }
    }
}
