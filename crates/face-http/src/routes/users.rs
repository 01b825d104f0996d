use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use tocsin_service::users::NewPassword;
use tocsin_store::records::Precondition;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::session::client;
use crate::{
    app::App,
    problems::Failure,
    rate_limits::Peer,
    request::{Authorized, Condition, JsonBody, PageParameters, Parameters, Segments},
    responses::{Failures, json, located, segment, tagged},
    wire::{
        List,
        users::{NewPasswordBody, NewUserBody, UserBody, UserChangeBody},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(read, change, remove))
        .routes(routes!(set_password))
}

/// Users of the console, in the order of their names.
#[utoipa::path(get, path = "/v1/users", tag = "users", params(PageParameters), responses((status = 200, body = List<UserBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<PageParameters>,
) -> Result<Response, Failure> {
    let limit = asked.limit()?;
    let mut users = app.service.users(&caller, asked.after.as_deref(), limit + 1)?;
    let has_more = users.len() > limit;
    users.truncate(limit);
    let next = users.last().filter(|_| has_more).map(|user| user.name.clone());
    let items: Vec<UserBody> = users.iter().map(|user| UserBody::from(&**user)).collect();
    Ok(json(StatusCode::OK, &List { items, next }))
}

/// Creates a user of the console. A caller cannot give roles beyond its own scopes.
#[utoipa::path(post, path = "/v1/users", tag = "users", request_body(content = NewUserBody, example = json!({"name": "ada", "display_name": "Ada Lovelace", "roles": ["operator"]})), responses((status = 201, body = UserBody), Failures))]
async fn create(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(new): JsonBody<NewUserBody>,
) -> Result<Response, Failure> {
    let user = app.service.create_user(&caller, new.into()).await?;
    let path = format!("/v1/users/{}", segment(&user.name));
    Ok(located(tagged(StatusCode::CREATED, user.revision, &UserBody::from(&*user)), path))
}

/// One user. Its tag is its revision. Users read themselves without a scope.
#[utoipa::path(get, path = "/v1/users/{name}", tag = "users", params(("name" = String, Path)), responses((status = 200, body = UserBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let user = app.service.user(&caller, &name)?;
    Ok(tagged(StatusCode::OK, user.revision, &UserBody::from(&*user)))
}

/// Changes members of a user. New roles apply to its sessions at once; the sessions of a disabled user end. Users change
/// their own display name, language and time zone without a scope. The last enabled administrator stays (409
/// `last_admin_user`).
#[utoipa::path(patch, path = "/v1/users/{name}", tag = "users", params(("name" = String, Path), ("If-Match" = Option<String>, Header)), request_body(content = UserChangeBody, example = json!({"roles": ["reader"], "disabled": false})), responses((status = 200, body = UserBody), Failures))]
async fn change(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    headers: HeaderMap,
    JsonBody(change): JsonBody<UserChangeBody>,
) -> Result<Response, Failure> {
    let present = async { app.service.user(&caller, &name).map(|user| user.revision) };
    let expect = Condition::revision(&headers, present).await?.map_or(Precondition::Any, Precondition::Revision);
    let user = app.service.change_user(&caller, &name, change.into(), expect).await?;
    Ok(tagged(StatusCode::OK, user.revision, &UserBody::from(&*user)))
}

/// Removes a user with its sessions. The last enabled administrator stays (409 `last_admin_user`).
#[utoipa::path(delete, path = "/v1/users/{name}", tag = "users", params(("name" = String, Path)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    app.service.remove_user(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Sets the password of a user and ends its other sessions. Users give their present password to set their own.
#[utoipa::path(post, path = "/v1/users/{name}/password", tag = "users", params(("name" = String, Path)), request_body = NewPasswordBody, responses((status = 204), Failures))]
async fn set_password(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    JsonBody(new): JsonBody<NewPasswordBody>,
) -> Result<Response, Failure> {
    let new = NewPassword { password: new.password, present: new.current_password };
    app.service.set_password(&caller, &name, new, &client(peer, &headers)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
