//! Schema and access rules of the directory.

use std::sync::Arc;

use axum::{http::StatusCode, response::Response};
use tocsin_service::Scope;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::client::DirectoryClient;
use crate::{
    app::App,
    problems::Failure,
    request::JsonBody,
    responses::{Failures, json},
    wire::directory::{AccessBody, AccessQuestionBody, SchemaBody},
};

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(schema)).routes(routes!(access))
}

/// The schema: attribute types and object classes.
#[utoipa::path(get, path = "/v1/directory/schema", tag = "directory", responses((status = 200, body = SchemaBody), Failures))]
async fn schema(client: DirectoryClient) -> Result<Response, Failure> {
    let DirectoryClient { directory, .. } = client.reading()?;
    Ok(json(StatusCode::OK, &SchemaBody::of(directory.suffix(), &directory.schema())))
}

/// Explains access over LDAP: what an identity may read and write on an entry, and which rule decides. Whether the
/// identity may bind has no influence.
#[utoipa::path(post, path = "/v1/directory/access", tag = "directory", request_body = AccessQuestionBody, responses((status = 200, body = AccessBody), Failures))]
async fn access(client: DirectoryClient, JsonBody(asked): JsonBody<AccessQuestionBody>) -> Result<Response, Failure> {
    client.caller.needs_everywhere(Scope::SubscribersRead)?;
    let directory = &client.directory;
    let requester = asked.requester.as_deref().filter(|dn| !dn.is_empty());
    let found = directory.explain_access(requester, &asked.entry, &asked.attributes).await;
    let found = found.map_err(|error| Failure::of_directory("entry", error))?;
    let rules = directory.access().texts().map(str::to_owned).collect();
    Ok(json(StatusCode::OK, &AccessBody::of(found, rules)))
}
