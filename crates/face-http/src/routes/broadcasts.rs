//! Broadcasts: messages of people to an audience.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use serde::Deserialize;
use tocsin_model::{
    id::{BroadcastId, Name, SubscriberId},
    problem::{Code, Problem},
};
use tocsin_service::{ServiceError, broadcasts::RecipientFilter, page};
use tocsin_store::journal::{BroadcastFilter, BroadcastState, RequestedState};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, Segments, id, idempotency_key},
    responses::{Failures, json, located},
    routes::{
        preview::{PreviewBody, TestSentBody},
        transfer::{export_format, exported_answer},
    },
    wire::{
        List,
        broadcasts::{
            BroadcastBody, BroadcastDraftBody, ChangeBody, CountBody, CountDraftBody, RecipientBody, TestDraftBody,
        },
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list, send))
        .routes(routes!(count))
        .routes(routes!(preview))
        .routes(routes!(test))
        .routes(routes!(read))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(cancel))
        .routes(routes!(recipients))
        .routes(routes!(export))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParameters {
    /// Only broadcasts of this application.
    #[param(value_type = Option<String>)]
    #[serde(default)]
    application: Option<Name>,
    /// Only broadcasts of this stored state: `scheduled`, `running` (`done` included), `paused`, `cancelled`, `failed`.
    #[serde(default)]
    state: Option<String>,
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default)]
    after: Option<String>,
}

/// Lists broadcasts with their progress, newest first. They are kept with the notification batches of their time.
#[utoipa::path(get, path = "/v1/broadcasts", tag = "broadcasts", params(ListParameters), responses((status = 200, body = List<BroadcastBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ListParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let state = asked.state.map(|word| {
        let known = BroadcastState::ALL.into_iter().find(|state| state.word() == word);
        known.ok_or_else(|| {
            let problem = Problem::new(Code::UnknownValue, "state", format!("`{word}` is no state"));
            let problem = problem.param("value", word);
            ServiceError::from(problem.hint("give scheduled, running, paused, cancelled or failed"))
        })
    });
    let filter = BroadcastFilter { application: asked.application, state: state.transpose()?, key: None };
    let found = app.service.broadcasts(&caller, &filter, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(BroadcastBody::from))))
}

/// Sends a broadcast, now or at `starts_at`. It is durable when the response is sent, and runs in the background, across
/// restarts. A repeated `Idempotency-Key` returns the progress.
#[utoipa::path(post, path = "/v1/broadcasts", tag = "broadcasts", params(("Idempotency-Key" = Option<String>, Header)), request_body(content = BroadcastDraftBody, example = json!({"application": "shop", "subscription": "news", "segment": "gold", "data": {"day": "Sunday"}, "content": {"templates": {"base": {"subject": "Closed on {{ day }}", "text": "Dear {{ subscriber.id }}, we are closed on {{ day }}."}}}})), responses((status = 200, body = BroadcastBody), (status = 202, body = BroadcastBody), Failures))]
async fn send(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    headers: HeaderMap,
    JsonBody(asked): JsonBody<BroadcastDraftBody>,
) -> Result<Response, Failure> {
    let key = idempotency_key(&headers)?;
    let (stored, is_new) = app.service.create_broadcast(&caller, asked.into(), key).await?;
    let status = if is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
    let path = format!("/v1/broadcasts/{}", stored.broadcast.id);
    Ok(located(json(status, &BroadcastBody::from(stored)), path))
}

/// Counts the recipients that a broadcast would have now, exactly. Stores and sends nothing. A request examines at most
/// 100,000 subscriptions; `next` continues.
#[utoipa::path(post, path = "/v1/broadcasts/count", tag = "broadcasts", request_body = CountDraftBody, responses((status = 200, body = CountBody), Failures))]
async fn count(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<CountDraftBody>,
) -> Result<Response, Failure> {
    let counted = app.service.count_broadcast(&caller, asked.into()).await?;
    Ok(json(StatusCode::OK, &CountBody::from(counted)))
}

/// Renders a broadcast for one recipient. Stores and sends nothing.
#[utoipa::path(post, path = "/v1/broadcasts/preview", tag = "broadcasts", request_body = TestDraftBody, responses((status = 200, body = PreviewBody), Failures))]
async fn preview(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<TestDraftBody>,
) -> Result<Response, Failure> {
    let shown = app.service.render_broadcast(&caller, asked.broadcast.into(), asked.to.into()).await?;
    Ok(json(StatusCode::OK, &PreviewBody::from(shown)))
}

/// Sends a broadcast to one recipient and waits for the receiver's answer. It is not stored and not retried.
#[utoipa::path(post, path = "/v1/broadcasts/test", tag = "broadcasts", request_body = TestDraftBody, responses((status = 200, body = TestSentBody), Failures))]
async fn test(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<TestDraftBody>,
) -> Result<Response, Failure> {
    let sent = app.service.test_broadcast(&caller, asked.broadcast.into(), asked.to.into()).await?;
    Ok(json(StatusCode::OK, &TestSentBody::from(sent)))
}

/// One broadcast with its progress.
#[utoipa::path(get, path = "/v1/broadcasts/{broadcast}", tag = "broadcasts", params(("broadcast" = String, Path)), responses((status = 200, body = BroadcastBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(broadcast): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.find_broadcast(&caller, id::<BroadcastId>(&broadcast)?).await?;
    Ok(json(StatusCode::OK, &BroadcastBody::from(found)))
}

/// Pauses a broadcast. When the response is sent, no further message of it is begun; attempts in progress are finished.
#[utoipa::path(post, path = "/v1/broadcasts/{broadcast}/pause", tag = "broadcasts", params(("broadcast" = String, Path)), request_body = ChangeBody, responses((status = 200, body = BroadcastBody), Failures))]
async fn pause(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(broadcast): Segments<String>,
    JsonBody(asked): JsonBody<ChangeBody>,
) -> Result<Response, Failure> {
    change(&app, &caller, &broadcast, RequestedState::Paused, asked).await
}

/// Lets a paused broadcast continue.
#[utoipa::path(post, path = "/v1/broadcasts/{broadcast}/resume", tag = "broadcasts", params(("broadcast" = String, Path)), request_body = ChangeBody, responses((status = 200, body = BroadcastBody), Failures))]
async fn resume(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(broadcast): Segments<String>,
    JsonBody(asked): JsonBody<ChangeBody>,
) -> Result<Response, Failure> {
    change(&app, &caller, &broadcast, RequestedState::Resumed, asked).await
}

/// Cancels a broadcast. When the response is sent, no further message of it is begun; attempts in progress are finished.
/// The notifications that were not sent are closed as `ended`.
#[utoipa::path(post, path = "/v1/broadcasts/{broadcast}/cancel", tag = "broadcasts", params(("broadcast" = String, Path)), request_body = ChangeBody, responses((status = 200, body = BroadcastBody), Failures))]
async fn cancel(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(broadcast): Segments<String>,
    JsonBody(asked): JsonBody<ChangeBody>,
) -> Result<Response, Failure> {
    change(&app, &caller, &broadcast, RequestedState::Cancelled, asked).await
}

async fn change(
    app: &App,
    caller: &tocsin_service::Caller,
    broadcast: &str,
    to: RequestedState,
    asked: ChangeBody,
) -> Result<Response, Failure> {
    let changed = app.service.change_broadcast(caller, id::<BroadcastId>(broadcast)?, to, asked.reason).await?;
    Ok(json(StatusCode::OK, &BroadcastBody::from(changed)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RecipientParameters {
    /// Only this outcome: `waiting`, `delivered`, `refused`, `expired`, `suspended` or `ended`.
    #[serde(default)]
    outcome: Option<String>,
    /// Only recipients whose first channel is this.
    #[param(value_type = Option<String>)]
    #[serde(default)]
    channel: Option<Name>,
    /// Only this subscriber.
    #[param(value_type = Option<String>)]
    #[serde(default)]
    subscriber: Option<SubscriberId>,
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default)]
    after: Option<String>,
}

/// Lists the results of a broadcast by recipient. A page may be short and still have a next one: a request examines at
/// most 50,000 notifications.
#[utoipa::path(get, path = "/v1/broadcasts/{broadcast}/recipients", tag = "broadcasts", params(("broadcast" = String, Path), RecipientParameters), responses((status = 200, body = List<RecipientBody>), Failures))]
async fn recipients(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(broadcast): Segments<String>,
    Parameters(asked): Parameters<RecipientParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let RecipientParameters { outcome, channel, subscriber, after, .. } = asked;
    let filter = RecipientFilter { outcome, channel, subscriber };
    let broadcast = id::<BroadcastId>(&broadcast)?;
    let found = app.service.broadcast_recipients(&caller, broadcast, &filter, after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(RecipientBody::from))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportParameters {
    /// `ndjson` or `csv`; default: by `Accept`.
    #[serde(default)]
    format: Option<String>,
    /// Only this outcome: `waiting`, `delivered`, `refused`, `expired`, `suspended` or `ended`.
    #[serde(default)]
    outcome: Option<String>,
    /// Only recipients whose first channel is this.
    #[param(value_type = Option<String>)]
    #[serde(default)]
    channel: Option<Name>,
    /// Only this subscriber.
    #[param(value_type = Option<String>)]
    #[serde(default)]
    subscriber: Option<SubscriberId>,
}

/// All results of a broadcast by recipient, as lines.
#[utoipa::path(get, path = "/v1/broadcasts/{broadcast}/recipients/export", tag = "broadcasts", params(("broadcast" = String, Path), ExportParameters), responses((status = 200, content((String = "application/x-ndjson"), (String = "text/csv"))), Failures))]
async fn export(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(broadcast): Segments<String>,
    Parameters(asked): Parameters<ExportParameters>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let format = export_format(asked.format.as_deref(), &headers)?;
    let ExportParameters { outcome, channel, subscriber, .. } = asked;
    let filter = RecipientFilter { outcome, channel, subscriber };
    let broadcast = id::<BroadcastId>(&broadcast)?;
    let stream = app.service.export_broadcast_recipients(&caller, broadcast, &filter, format).await?;
    Ok(exported_answer(stream, format, "recipients"))
}
