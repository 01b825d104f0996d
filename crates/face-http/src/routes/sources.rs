use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use tocsin_model::id::Name;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Segments, id},
    responses::{Failures, json},
    wire::{List, sources::SourceStatusBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Lists the sources of an application that the server runs, by name, with their state and counters. One page.
#[utoipa::path(get, path = "/v1/applications/{application}/sources", tag = "operations", params(("application" = String, Path)), responses((status = 200, body = List<SourceStatusBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.sources(&caller, &id::<Name>(&name)?).await?;
    let items = found.into_iter().map(SourceStatusBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}
