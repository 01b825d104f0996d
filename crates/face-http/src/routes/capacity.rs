//! Capacity plans, cost vectors, published examples, profiles derived from activity.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::{id::Name, time::Timestamp};
use tocsin_service::{Scope, capacity::PlanRequest};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Condition, JsonBody, Parameters, Segments, id},
    responses::{Failures, created, json, tagged},
    wire::{
        List,
        capacity::{
            NewProfileBody, PaperBody, PlanBody, PlanRequestBody, ProfileBody, RecordedProfileBody, VectorsBody, papers,
        },
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(plan))
        .routes(routes!(vectors))
        .routes(routes!(published))
        .routes(routes!(profile))
        .routes(routes!(profiles))
        .routes(routes!(saved, save, remove))
}

/// Computes a capacity plan from a load profile and measured costs. Two plans are computed at a time, for at most 20 s
/// each.
#[utoipa::path(post, path = "/v1/capacity/plan", tag = "capacity", request_body = PlanRequestBody, responses((status = 200, body = PlanBody), Failures))]
async fn plan(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<PlanRequestBody>,
) -> Result<Response, Failure> {
    let computed = app.service.plan_capacity(&caller, PlanRequest::try_from(asked)?).await?;
    Ok(json(StatusCode::OK, &PlanBody::from(computed)))
}

/// The configured costs of this machine.
#[utoipa::path(get, path = "/v1/capacity/vectors", tag = "capacity", responses((status = 200, body = VectorsBody), Failures))]
async fn vectors(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    Ok(json(StatusCode::OK, &VectorsBody::from(app.service.capacity_vectors(&caller)?)))
}

/// Published sizing examples, with their profiles and costs.
#[utoipa::path(get, path = "/v1/capacity/papers", tag = "capacity", responses((status = 200, body = List<PaperBody>), Failures))]
async fn published(Authorized(caller): Authorized) -> Result<Response, Failure> {
    caller.needs_everywhere(Scope::OperationsRead)?;
    Ok(json(StatusCode::OK, &List { items: papers(), next: None }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ProfileParameters {
    /// Start; default: seven days before the end. The profile begins with the first recorded activity.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// End; default: now. At most 92 days after the start.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// Name of the profile; default `recorded`.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    name: Option<Name>,
}

/// A load profile derived from recorded activity: mean rates by event class, shares by channel, the factor of each hour
/// of the day (UTC), the busiest hour.
#[utoipa::path(get, path = "/v1/capacity/profile", tag = "capacity", params(ProfileParameters), responses((status = 200, body = RecordedProfileBody), Failures))]
async fn profile(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ProfileParameters>,
) -> Result<Response, Failure> {
    let recorded = app.service.recorded_profile(&caller, asked.name.as_ref(), asked.from, asked.to).await?;
    Ok(json(StatusCode::OK, &RecordedProfileBody::from(recorded)))
}

/// Saved profiles, by name, without their texts.
#[utoipa::path(get, path = "/v1/capacity/profiles", tag = "capacity", responses((status = 200, body = List<ProfileBody>), Failures))]
async fn profiles(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let items = app.service.capacity_profiles(&caller).await?.into_iter().map(ProfileBody::listed).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// A saved profile. Its tag is its revision.
#[utoipa::path(get, path = "/v1/capacity/profiles/{name}", tag = "capacity", params(("name" = String, Path)), responses((status = 200, body = ProfileBody), Failures))]
async fn saved(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.capacity_profile(&caller, &id::<Name>(&name)?).await?;
    Ok(tagged(StatusCode::OK, found.revision, &ProfileBody::from(found)))
}

/// Checks a profile and saves it, whether there is one or not.
#[utoipa::path(put, path = "/v1/capacity/profiles/{name}", tag = "capacity", params(("name" = String, Path), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)), request_body = NewProfileBody, responses((status = 200, body = ProfileBody), (status = 201, body = ProfileBody), Failures))]
async fn save(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    headers: HeaderMap,
    JsonBody(asked): JsonBody<NewProfileBody>,
) -> Result<Response, Failure> {
    let name = id::<Name>(&name)?;
    let present = async || app.service.capacity_profile(&caller, &name).await.map(|found| found.revision);
    let condition = Condition::of(&headers, present()).await?;
    let put = condition.put(present()).await?;
    let stored = app.service.put_capacity_profile(&caller, &name, asked.profile, put).await;
    let (stored, is_new) = stored.map_err(|error| condition.unmet(error))?;
    Ok(tagged(created(is_new), stored.revision, &ProfileBody::from(stored)))
}

/// Removes a saved profile.
#[utoipa::path(delete, path = "/v1/capacity/profiles/{name}", tag = "capacity", params(("name" = String, Path), ("If-Match" = Option<String>, Header)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    request: Request,
) -> Result<Response, Failure> {
    let name = id::<Name>(&name)?;
    let present = async { app.service.capacity_profile(&caller, &name).await.map(|found| found.revision) };
    let revision = Condition::revision(request.headers(), present).await?;
    app.service.remove_capacity_profile(&caller, &name, revision).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
