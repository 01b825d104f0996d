use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use tocsin_model::{
    definition::parse_duration,
    problem::{Code, Problem},
};
use tocsin_service::{Page, ServiceError, keys::NewKey, roles::ROLES};
use tocsin_store::records::ApiKey;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, Segments, WholeListParameters},
    responses::{Failures, json, located},
    wire::{KeyBody, KeyRotationBody, List, NewKeyBody, RoleBody, RotatedKeyBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list, make))
        .routes(routes!(remove))
        .routes(routes!(rotate))
        .routes(routes!(roles))
}

/// All keys, oldest first, without their secrets. A limited key sees the keys within its resources.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", params(WholeListParameters), responses((status = 200, body = List<KeyBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<WholeListParameters>,
) -> Result<Response, Failure> {
    let keys = app.service.api_keys(&caller).await?;
    let body = |key: ApiKey| {
        let used = app.service.key_use(&key.id);
        KeyBody::from(key).used(used)
    };
    let oldest_first = |key: &ApiKey| format!("{:020} {}", key.created_at.0, key.id);
    let page = Page::of_whole(keys, asked.after.as_deref(), asked.limit, oldest_first)?;
    Ok(json(StatusCode::OK, &List::from(page.map(body))))
}

/// Creates a key. It is returned only once. A caller cannot grant scopes, resources or a lifetime beyond those of its
/// own key.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = NewKeyBody, responses((status = 201, body = KeyBody), Failures))]
async fn make(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<NewKeyBody>,
) -> Result<Response, Failure> {
    let new = NewKey {
        description: asked.description,
        scopes: asked.scopes,
        roles: asked.roles,
        resources: app.normal_resources(asked.resources)?,
        expires_at: asked.expires_at,
    };
    let made = app.service.make_api_key(&caller, new).await?;
    let path = format!("/v1/keys/{}", made.kept.id);
    let mut response = located(json(StatusCode::CREATED, &KeyBody::from(made)), path);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Removes a key. It stops working at once. A caller removes its own key, and those with no right that it does not have. The
/// last one with the scope `admin` stays (409 `last-admin-key`).
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys", params(("id" = String, Path)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(key): Segments<String>,
) -> Result<Response, Failure> {
    app.service.remove_api_key(&caller, &key).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Replaces a key by a new one with the same description, scopes, resources and expiry, which is returned only once. The old
/// one stays valid for `overlap`.
#[utoipa::path(post, path = "/v1/keys/{id}/rotate", tag = "keys", params(("id" = String, Path)), request_body = KeyRotationBody, responses((status = 201, body = RotatedKeyBody), Failures))]
async fn rotate(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(key): Segments<String>,
    JsonBody(asked): JsonBody<KeyRotationBody>,
) -> Result<Response, Failure> {
    let overlap = match asked.overlap.as_deref() {
        None => Duration::from_secs(86_400),
        Some("0" | "0s") => Duration::ZERO,
        Some(text) => parse_duration(text).map_err(|why| {
            let problem = Problem::new(Code::InvalidFormat, "overlap", why).param("format", "duration");
            ServiceError::from(problem.hint("give a duration, such as `24h`"))
        })?,
    };
    let (made, replaced_expires_at) = app.service.rotate_api_key(&caller, &key, overlap).await?;
    let path = format!("/v1/keys/{}", made.kept.id);
    let body = RotatedKeyBody { key: made.into(), replaces: key, replaced_expires_at };
    let mut response = located(json(StatusCode::CREATED, &body), path);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The roles that a key can be made with: named sets of scopes.
#[utoipa::path(get, path = "/v1/roles", tag = "keys", responses((status = 200, body = List<RoleBody>), Failures))]
async fn roles(_caller: Authorized) -> Response {
    let items: Vec<RoleBody> = ROLES.iter().map(RoleBody::from).collect();
    json(StatusCode::OK, &List { items, next: None })
}
