//! Live summaries of the platform as server-sent events.

use std::sync::Arc;

use axum::{extract::State, http::HeaderMap, response::Response};
use serde::Deserialize;
use serde_json::json;
use tocsin_model::id::Name;
use tocsin_service::{
    ServiceError,
    live::{LiveEvent, LiveFollower},
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::event_stream::{EventSource, StreamMetrics, last_event_id, respond, write_event};
use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters},
    responses::Failures,
};

const METRICS: StreamMetrics = StreamMetrics {
    open: || metrics::gauge!("tocsin_live_streams"),
    dropped: || metrics::counter!("tocsin_live_streams_dropped_total"),
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(stream))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamParameters {
    /// Topics, separated by commas: `status`, `attention`, `batches`, `notifications`, `suspensions`, `firings`,
    /// `messages`, `sync`, `audit`; default: all that the caller may read.
    #[serde(default)]
    topics: Option<String>,
    /// Filter of `batches` and `notifications` by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Same as the header `Last-Event-ID`, which takes precedence.
    #[serde(default)]
    last_event_id: Option<String>,
}

/// Streams summaries as server-sent events. The name of an event is its topic, its data the present state of the topic.
/// A new stream begins with all states; later, a topic is sent when it has changed, at most once a second. With
/// `Last-Event-ID` the stream continues after that event; if the server was restarted since then, it begins with `reset`.
/// Lines that begin with `:` are heartbeats. The last event is `end`, without an id, with a `reason`: `revoked`,
/// `expired` or `changed` for the credential, `time`, `stopping`.
#[utoipa::path(get, path = "/v1/stream", tag = "operations", params(("Last-Event-ID" = Option<String>, Header), StreamParameters), responses((status = 200, body = String, content_type = "text/event-stream"), Failures))]
async fn stream(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    headers: HeaderMap,
    Parameters(asked): Parameters<StreamParameters>,
) -> Result<Response, Failure> {
    let StreamParameters { topics, application, last_event_id: parameter } = asked;
    let after = last_event_id(&headers, parameter);
    let follower = app.service.follow_live(&caller, topics.as_deref(), application, after.as_deref())?;
    let service = app.service.clone();
    let ended = async move { service.key_ended(&caller).await };
    Ok(respond(app, LiveEvents(follower), ended, METRICS, ()))
}

struct LiveEvents(LiveFollower);

impl EventSource for LiveEvents {
    async fn next(&mut self, frame: &mut String) -> Result<(), ServiceError> {
        for event in self.0.next().await {
            match event {
                LiveEvent::Reset { id } => write_event(frame, id, "reset", &json!({})),
                LiveEvent::State { id, topic, data } => write_event(frame, id, topic.word(), &data),
            }
        }
        Ok(())
    }
}
