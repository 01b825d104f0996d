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
    request::{Authorized, JsonBody, Parameters, Segments, id},
    responses::{Failures, json},
    wire::{
        List,
        sources::{RejectedItemBody, SampleBody, SampleRequestBody, SourceStatusBody},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(rejected)).routes(routes!(test))
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

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RejectedParameters {
    /// Maximum number of items, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
}

/// The newest rejected items of a source with their reasons, newest first. They are kept in two files of at most 16 MiB; an
/// item is cut after 4 KiB.
#[utoipa::path(get, path = "/v1/applications/{application}/sources/{source}/rejected", tag = "operations", params(("application" = String, Path), ("source" = String, Path), RejectedParameters), responses((status = 200, body = List<RejectedItemBody>), Failures))]
async fn rejected(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, source)): Segments<(String, String)>,
    Parameters(asked): Parameters<RejectedParameters>,
) -> Result<Response, Failure> {
    let (application, source, limit) = (id::<Name>(&application)?, id::<Name>(&source)?, page::limit(asked.limit)?);
    let found = app.service.rejected_items(&caller, &application, &source, limit).await?;
    let items = found.into_iter().map(RejectedItemBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// Tests the mapping of a source on a sample: reads it as the source would, and maps its first 100 items to the event
/// class. Kinds that read messages, such as `mqtt`, take one message in each line. Stores nothing.
#[utoipa::path(post, path = "/v1/applications/{application}/sources/test", tag = "operations", params(("application" = String, Path)), request_body = SampleRequestBody, responses((status = 200, body = SampleBody), Failures))]
async fn test(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(application): Segments<String>,
    JsonBody(asked): JsonBody<SampleRequestBody>,
) -> Result<Response, Failure> {
    let application = id::<Name>(&application)?;
    let (names, sample) = app.service.test_source(&caller, &application, asked.into()).await?;
    Ok(json(StatusCode::OK, &SampleBody::of(&names, sample)))
}
