//! Inbox broadcasts: inbox items for all subscribers, or for a segment.

use std::sync::Arc;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tocsin_model::id::Name;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Segments, id},
    responses::{Failures, created, json},
    wire::{
        List,
        inbox::{InboxBroadcastBody, NewInboxBroadcastBody},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(read, put, withdraw))
}

/// Lists the visible broadcasts, newest first.
#[utoipa::path(get, path = "/v1/applications/{application}/broadcasts", tag = "inbox", params(("application" = String, Path)), responses((status = 200, body = List<InboxBroadcastBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(application): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.inbox_broadcasts(&caller, &id(&application)?).await?;
    let items = found.into_iter().map(InboxBroadcastBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// One broadcast.
#[utoipa::path(get, path = "/v1/applications/{application}/broadcasts/{name}", tag = "inbox", params(("application" = String, Path), ("name" = String, Path)), responses((status = 200, body = InboxBroadcastBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, name)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    let found = app.service.inbox_broadcast(&caller, &id::<Name>(&application)?, &id::<Name>(&name)?).await?;
    Ok(json(StatusCode::OK, &InboxBroadcastBody::from(found)))
}

/// Stores a broadcast. Its audience sees it at once. It is stored once, whatever the size of the audience. A repetition
/// with the same name changes its content, and keeps who has read it.
#[utoipa::path(put, path = "/v1/applications/{application}/broadcasts/{name}", tag = "inbox", params(("application" = String, Path), ("name" = String, Path)), request_body = NewInboxBroadcastBody, responses((status = 200, body = InboxBroadcastBody), (status = 201, body = InboxBroadcastBody), Failures))]
async fn put(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, name)): Segments<(String, String)>,
    JsonBody(asked): JsonBody<NewInboxBroadcastBody>,
) -> Result<Response, Failure> {
    let (application, name) = (id::<Name>(&application)?, id::<Name>(&name)?);
    let (stored, is_new) = app.service.put_inbox_broadcast(&caller, &application, &name, asked.into()).await?;
    Ok(json(created(is_new), &InboxBroadcastBody::from(stored)))
}

/// Deletes a broadcast.
#[utoipa::path(delete, path = "/v1/applications/{application}/broadcasts/{name}", tag = "inbox", params(("application" = String, Path), ("name" = String, Path)), responses((status = 204), Failures))]
async fn withdraw(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, name)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    app.service.withdraw_inbox_broadcast(&caller, &id::<Name>(&application)?, &id::<Name>(&name)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
