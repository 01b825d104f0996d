use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_service::{Page, ServiceError, status::Switched, switches::CreatedBackup};
use tocsin_store::journal::{Component, SwitchState};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, WholeListParameters},
    responses::{Failures, json},
    wire::{List, maintenance::CopiedFileBody, switches::SwitchBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(switches))
        .routes(routes!(off))
        .routes(routes!(on))
        .routes(routes!(retention))
        .routes(routes!(back_up))
}

/// Everything that is switched off.
#[utoipa::path(get, path = "/v1/switches", tag = "operations", params(WholeListParameters), responses((status = 200, body = List<SwitchBody>), Failures))]
async fn switches(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<WholeListParameters>,
) -> Result<Response, Failure> {
    let found = app.service.switches(&caller)?;
    let component = |switched: &Switched| switched.switch.component.to_string();
    let page = Page::of_whole(found, asked.after.as_deref(), asked.limit, component)?;
    Ok(json(StatusCode::OK, &List::from(page.map(|switched| SwitchBody::from(switched).named(&app)))))
}

/// Turns a switch off. Work in progress finishes first; until then the switch is pending.
#[utoipa::path(post, path = "/v1/switches/off", tag = "operations", request_body = OffBody, responses((status = 204), Failures))]
async fn off(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(OffBody { component, state, reason }): JsonBody<OffBody>,
) -> Result<Response, Failure> {
    app.service.switch_off(&caller, read(&component)?, state, &reason).await?;
    Ok(axum::response::IntoResponse::into_response(StatusCode::NO_CONTENT))
}

/// Switches something on again.
#[utoipa::path(post, path = "/v1/switches/on", tag = "operations", request_body = OnBody, responses((status = 200, body = SwitchedOnBody), Failures))]
async fn on(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(OnBody { component }): JsonBody<OnBody>,
) -> Result<Response, Failure> {
    let was_off = app.service.switch_on(&caller, &read(&component)?).await?;
    Ok(json(StatusCode::OK, &SwitchedOnBody { was_off }))
}

fn read(component: &str) -> Result<Component, ServiceError> {
    component.parse().map_err(|error: tocsin_store::journal::ComponentError| {
        ServiceError::from(
            Problem::new(Code::InvalidFormat, "component", error.to_string()).param("format", "component"),
        )
    })
}

/// Deletes expired data now instead of at the next upkeep.
#[utoipa::path(post, path = "/v1/retention/run", tag = "operations", responses((status = 200, body = RemovedBody), Failures))]
async fn retention(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let batches = app.service.run_retention(&caller).await?;
    Ok(json(StatusCode::OK, &RemovedBody { batches }))
}

/// Takes a consistent backup of the data folder into its folder `backups`, while the server runs.
#[utoipa::path(post, path = "/v1/backups", tag = "operations", request_body = BackupBody, responses((status = 201, body = TakenBody), Failures))]
async fn back_up(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(BackupBody { name }): JsonBody<BackupBody>,
) -> Result<Response, Failure> {
    let taken = app.service.back_up(&caller, &name).await?;
    Ok(json(StatusCode::CREATED, &TakenBody::from(taken)))
}

/// A switch to turn off, with its options.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SwitchOff)]
struct OffBody {
    /// `role:accept`, `role:sources`, `role:match`, `role:deliver`, `application:NAME`, or `event-class:`, `source:` or
    /// `channel:` with `APPLICATION/NAME`.
    component: String,
    /// `paused` or `disabled`. Roles but `accept`, sources and channels can be paused, the role `accept` and event classes
    /// disabled, applications both.
    #[schema(value_type = String)]
    state: SwitchState,
    /// In words; at most 500 characters.
    #[serde(default)]
    reason: String,
}

/// A switch to turn on.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SwitchOn)]
struct OnBody {
    /// As in `SwitchOff`.
    component: String,
}

/// Whether it was off.
#[derive(Serialize, ToSchema)]
#[schema(as = SwitchedOn)]
struct SwitchedOnBody {
    was_off: bool,
}

/// Number of removed batches.
#[derive(Serialize, ToSchema)]
#[schema(as = Removed)]
struct RemovedBody {
    batches: u64,
}

/// A backup to take.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewBackup)]
struct BackupBody {
    /// Its name among the backups of the server.
    #[schema(value_type = String)]
    name: Name,
}

/// A backup that was taken.
#[derive(Serialize, ToSchema)]
#[schema(as = TakenBackup)]
struct TakenBody {
    /// Its path on the server.
    folder: String,
    #[schema(value_type = String, format = DateTime)]
    taken_at: Timestamp,
    files: Vec<CopiedFileBody>,
}

impl From<CreatedBackup> for TakenBody {
    fn from(CreatedBackup { folder, manifest }: CreatedBackup) -> Self {
        let files = manifest.files.into_iter().map(CopiedFileBody::from);
        TakenBody { folder, taken_at: manifest.taken_at, files: files.collect() }
    }
}
