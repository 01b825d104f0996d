//! Public pages: health, metrics, the API description, and HTML pages.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::{Failure, KINDS},
    responses::{Failures, json},
    status_page,
    wire::ReadyBody,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(livez)).routes(routes!(readyz)).routes(routes!(metrics))
}

/// Pages and files, which are no part of the API.
pub(crate) fn files() -> Router<Arc<App>> {
    Router::new()
        .route("/status", get(status))
        .route("/style.css", get(async || ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], status_page::STYLE)))
        .route("/favicon.svg", get(async || ([(header::CONTENT_TYPE, "image/svg+xml")], status_page::ICON)))
        .route("/openapi.json", get(openapi_json))
        .route("/explorer", get(async || Redirect::permanent("/explorer/")))
        .route("/explorer/", get(async || explorer("")))
        .route("/explorer/{file}", get(async |Path(file): Path<String>| explorer(&file)))
        .route("/problems/{slug}", get(async |Path(slug): Path<String>| problem_page(&slug)))
}

/// Whether the process answers.
#[utoipa::path(get, path = "/livez", tag = "health", security(()), responses((status = 200, description = "It does")))]
async fn livez() -> &'static str {
    "ok\n"
}

/// Whether the platform can serve: every match index is built, the disk answers, there is room on it.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses((status = 200, body = ReadyBody), (status = 503, body = ReadyBody)))]
async fn readyz(State(app): State<Arc<App>>) -> Response {
    let reasons = app.service.ready().await;
    let ready = reasons.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = json(status, &ReadyBody { ready, reasons, warnings: app.service.readiness_warnings() });
    if !ready {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health", security(()), responses((status = 200, body = String, content_type = "text/plain"), Failures))]
async fn metrics(State(app): State<Arc<App>>) -> Response {
    match &app.metrics {
        Some(handle) => {
            crate::metrics::measure(&app.service.totals());
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], handle.render()).into_response()
        }
        None => Failure::no_route("/metrics").into_response(),
    }
}

/// The status page, unless the configuration closes it.
async fn status(State(app): State<Arc<App>>) -> Response {
    match app.public_status {
        true => html(status_page::render(&app.service.totals())),
        false => Failure::no_route("/status").into_response(),
    }
}

async fn openapi_json(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], (app.openapi)()).into_response()
}

fn html(page: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, page).into_response()
}

fn explorer(file: &str) -> Response {
    match explorer_file(file) {
        Some((kind, text)) => ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response(),
        None => Failure::no_route(&format!("/explorer/{file}")).into_response(),
    }
}

fn problem_page(slug: &str) -> Response {
    match KINDS.iter().find(|kind| kind.slug == slug) {
        Some(kind) => html(status_page::problem(kind)),
        None => Failure::no_route(&format!("/problems/{slug}")).into_response(),
    }
}

/// A file of the explorer by its name, with its media type.
fn explorer_file(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        "" => ("text/html; charset=utf-8", include_str!("../../assets/explorer.html")),
        "explorer.css" => ("text/css; charset=utf-8", include_str!("../../assets/explorer.css")),
        "explorer.js" => ("text/javascript; charset=utf-8", include_str!("../../assets/explorer.js")),
        _ => return None,
    })
}
