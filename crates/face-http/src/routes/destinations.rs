use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tocsin_model::id::Name;
use tocsin_service::page;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters, Segments, id},
    responses::{Failures, json},
    wire::{List, destinations::DestinationStatusBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParameters {
    /// Maximum number per channel, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
}

/// Lists the destinations of an application's channels with their health: failing ones first, then the busiest. One
/// page.
#[utoipa::path(get, path = "/v1/applications/{application}/destinations", tag = "operations", params(("application" = String, Path), ListParameters), responses((status = 200, body = List<DestinationStatusBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(asked): Parameters<ListParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let found = app.service.destinations(&caller, &id::<Name>(&name)?, limit).await?;
    let items = found.into_iter().map(DestinationStatusBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}
