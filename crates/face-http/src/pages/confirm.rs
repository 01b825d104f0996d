//! The confirmation page of a request for consent. The link is the permission; only the button of the page confirms,
//! since mail scanners follow links.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use minijinja::context;
use tocsin_service::consent::Confirming;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::layout::Page;
use crate::{app::App, problems::Failure, rate_limits::Peer, request::Segments, responses::Failures};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(show, submit))
}

/// Page that asks for the confirmation of a subscription. Changes nothing.
#[utoipa::path(get, path = "/confirm/{token}", tag = "pages", security(()), params(("token" = String, Path, description = "From the confirmation message")), responses((status = 200, body = String, content_type = "text/html"), (status = 404, body = String, content_type = "text/html", description = "No link of ours"), Failures))]
async fn show(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Segments(token): Segments<String>,
) -> Result<Response, Failure> {
    match app.service.confirming(&token).await {
        Ok(confirming) => Ok(page(&app, &headers, &confirming)),
        Err(error) => Ok(Page::of(&app, &headers, None).failed(error)),
    }
}

/// Confirms the subscription. Idempotent; the body is ignored, since the token is in the address.
#[utoipa::path(post, path = "/confirm/{token}", tag = "pages", security(()), params(("token" = String, Path, description = "From the confirmation message")), responses((status = 200, body = String, content_type = "text/html"), (status = 404, body = String, content_type = "text/html", description = "No link of ours"), Failures))]
async fn submit(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    peer: Option<axum::Extension<Peer>>,
    Segments(token): Segments<String>,
) -> Result<Response, Failure> {
    let mut confirming = match app.service.confirming(&token).await {
        Ok(confirming) => confirming,
        Err(error) => return Ok(Page::of(&app, &headers, None).failed(error)),
    };
    if let Err(wait) = app.pages.count_change(&token) {
        return Ok(Page::of(&app, &headers, Some(&confirming.application)).too_many(wait));
    }
    let remote = peer.map(|axum::Extension(Peer(address))| address.to_string());
    let failed = |error| Page::of(&app, &headers, Some(&confirming.application)).failed(error);
    let is_confirmed = match app.service.confirm_by_link(&confirming, remote).await {
        Ok(is_confirmed) => is_confirmed,
        Err(error) => return Ok(failed(error)),
    };
    confirming.is_open = false;
    confirming.is_confirmed = is_confirmed;
    Ok(page(&app, &headers, &confirming))
}

fn page(app: &App, headers: &HeaderMap, confirming: &Confirming) -> Response {
    let page = Page::of(app, headers, Some(&confirming.application));
    let (title, description) = page.titles(&confirming.texts, &confirming.title, None);
    let state = match confirming {
        Confirming { is_confirmed: true, .. } => "confirmed",
        Confirming { is_open: true, .. } => "open",
        _ => "void",
    };
    let variables = context! {
        state,
        class => title,
        description,
        application => confirming.application_title.clone(),
        lines => confirming.text.as_ref().map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()),
    };
    page.response(StatusCode::OK, "confirm.html", variables)
}
