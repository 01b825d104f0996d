use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use tocsin_service::{keys::NewKey, roles::ROLES};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Segments},
    responses::{Failures, json, located},
    wire::{KeyBody, List, NewKeyBody, RoleBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list, make)).routes(routes!(remove)).routes(routes!(roles))
}

/// All keys, oldest first, without their secrets. A limited key sees the keys within its resources.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", responses((status = 200, body = List<KeyBody>), Failures))]
async fn list(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let keys = app.service.api_keys(&caller).await?;
    Ok(json(StatusCode::OK, &List { items: keys.into_iter().map(KeyBody::from).collect(), next: None }))
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

/// The roles that a key can be made with: named sets of scopes.
#[utoipa::path(get, path = "/v1/roles", tag = "keys", responses((status = 200, body = List<RoleBody>), Failures))]
async fn roles(_caller: Authorized) -> Response {
    let items: Vec<RoleBody> = ROLES.iter().map(RoleBody::from).collect();
    json(StatusCode::OK, &List { items, next: None })
}
