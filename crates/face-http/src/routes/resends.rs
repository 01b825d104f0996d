use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use serde::Deserialize;
use tocsin_model::id::StoredNumber;
use tocsin_service::{ServiceError, page};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, Segments, idempotency_key},
    responses::{Failures, json, located},
    wire::{
        List,
        resends::{ResendBody, ResendDraft, ResendPreviewBody},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list, send)).routes(routes!(preview)).routes(routes!(read))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default)]
    after: Option<u64>,
}

/// Requests to send again what had failed, oldest first. They are forgotten with the batches of their time.
#[utoipa::path(get, path = "/v1/resends", tag = "operations", params(ListParameters), responses((status = 200, body = List<ResendBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ListParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let found = app.service.resends(&caller, asked.after, limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(ResendBody::from))))
}

/// Sends failed notifications again, under the same ids or as new ones. The request is durable when the response is
/// sent, and runs in the background. A repeated `Idempotency-Key` returns the progress.
#[utoipa::path(post, path = "/v1/resends", tag = "operations", params(("Idempotency-Key" = Option<String>, Header)), request_body(content = ResendDraft, example = json!({"subscriber": "alice", "device": "hook", "since": "2026-11-20T00:00:00Z"})), responses((status = 200, body = ResendBody), (status = 202, body = ResendBody), Failures))]
async fn send(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    headers: HeaderMap,
    JsonBody(asked): JsonBody<ResendDraft>,
) -> Result<Response, Failure> {
    let key = idempotency_key(&headers)?;
    let (stored, is_new) = app.service.resend(&caller, asked.into(), key).await?;
    let status = if is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
    let path = format!("/v1/resends/{}", stored.id);
    Ok(located(json(status, &ResendBody::from(stored)), path))
}

/// Counts what would be sent again. Changes nothing.
#[utoipa::path(post, path = "/v1/resends/preview", tag = "operations", request_body(content = ResendDraft, example = json!({"application": "quakes", "reason": "503"})), responses((status = 200, body = ResendPreviewBody), Failures))]
async fn preview(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<ResendDraft>,
) -> Result<Response, Failure> {
    let preview = app.service.preview_resend(&caller, asked.into()).await?;
    Ok(json(StatusCode::OK, &ResendPreviewBody::from(preview)))
}

/// One request to send again, and how far it has come.
#[utoipa::path(get, path = "/v1/resends/{id}", tag = "operations", params(("id" = u64, Path)), responses((status = 200, body = ResendBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
) -> Result<Response, Failure> {
    let missing = |_| ServiceError::Missing(format!("the request `{number}` to send again"));
    let StoredNumber(id) = number.parse().map_err(missing)?;
    Ok(json(StatusCode::OK, &ResendBody::from(app.service.find_resend(&caller, id).await?)))
}
