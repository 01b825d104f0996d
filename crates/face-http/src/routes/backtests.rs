use std::sync::Arc;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tocsin_model::id::Name;
use tocsin_service::ServiceError;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Segments, id},
    responses::{Failures, json},
    wire::{
        List,
        backtests::{BacktestBody, BacktestDraftBody},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(backtests))
        .routes(routes!(backtest))
        .routes(routes!(remove))
}

/// Starts a backtest: the notifications of a rule with another condition, or of another version, over stored events,
/// compared with a baseline. One backtest runs at a time, beside the pipeline; ten can wait. Sends nothing.
#[utoipa::path(post, path = "/v1/applications/{application}/backtests", tag = "applications", params(("application" = String, Path)), request_body = BacktestDraftBody, responses((status = 202, body = BacktestBody), Failures))]
async fn start(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    JsonBody(draft): JsonBody<BacktestDraftBody>,
) -> Result<Response, Failure> {
    let started = app.service.start_backtest(&caller, &id::<Name>(&name)?, draft.into()).await?;
    Ok(json(StatusCode::ACCEPTED, &BacktestBody::from(started)))
}

/// The backtests of an application, newest first. The newest 20 of the server are kept until it restarts.
#[utoipa::path(get, path = "/v1/applications/{application}/backtests", tag = "applications", params(("application" = String, Path)), responses((status = 200, body = List<BacktestBody>), Failures))]
async fn backtests(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.backtests(&caller, &id::<Name>(&name)?)?;
    let items = found.into_iter().map(BacktestBody::summary).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// A backtest with its progress and result.
#[utoipa::path(get, path = "/v1/applications/{application}/backtests/{backtest}", tag = "applications", params(("application" = String, Path), ("backtest" = String, Path)), responses((status = 200, body = BacktestBody), Failures))]
async fn backtest(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((name, number)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    let found = app.service.backtest(&caller, &id::<Name>(&name)?, backtest_number(&number)?)?;
    Ok(json(StatusCode::OK, &BacktestBody::from(found)))
}

/// Cancels a backtest if it runs or waits, and removes it.
#[utoipa::path(delete, path = "/v1/applications/{application}/backtests/{backtest}", tag = "applications", params(("application" = String, Path), ("backtest" = String, Path)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((name, number)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    app.service.remove_backtest(&caller, &id::<Name>(&name)?, backtest_number(&number)?)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn backtest_number(text: &str) -> Result<u64, Failure> {
    let number = text.strip_prefix("bt-").and_then(|number| number.parse().ok());
    number.ok_or_else(|| ServiceError::Missing(format!("the backtest `{text}`")).into())
}
