//! The routes of SCIM. Errors of all of them have its own form.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, Query, Request},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde_json::{Value as Json, json};
use tocsin_directory::access::AuthzId;
use tocsin_service::{Caller, Scope, ServiceError};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    answer::answer,
    body,
    bulk::{self, Bulk},
    error::ScimError,
    list::{self, Asked, list_response},
    patch,
    schema::{RESOURCES, ResourceType, resource_type, schemas},
    service::{Change, ScimService, Tag, tag},
};
use crate::{
    app::App,
    problems::Failure,
    request::{self, Authorized, SINGLE_BYTES_MAX, Segments, parts},
};

/// Base path of SCIM.
const ROOT: &str = "/scim/v2";

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(configuration))
        .routes(routes!(resource_types))
        .routes(routes!(one_resource_type))
        .routes(routes!(all_schemas))
        .routes(routes!(one_schema))
        .routes(routes!(bulk))
        .routes(routes!(list, create))
        .routes(routes!(search_all))
        .routes(routes!(search))
        .routes(routes!(read, replace, change, remove))
}

/// Whether an address is one of SCIM.
pub(crate) fn is_scim_path(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(crate) fn no_route(path: &str) -> Response {
    ScimError::missing(format!("nothing is at `{path}`")).into_response()
}

/// The response to a missing or insufficient key.
pub(crate) fn refused(error: ServiceError) -> Response {
    ScimError::from(error).into_response()
}

/// The answer to a request that failed before its route.
pub(crate) fn failed(failure: Failure) -> Response {
    ScimError::from(failure).into_response()
}

pub(crate) fn no_method() -> Response {
    ScimError::new(StatusCode::METHOD_NOT_ALLOWED, "this address does not know the method").into_response()
}

/// An authenticated client, with the service for its request.
struct Client {
    caller: Caller,
    service: ScimService,
}

impl FromRequestParts<Arc<App>> for Client {
    type Rejection = ScimError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ScimError> {
        let Authorized(caller) = Authorized::from_request_parts(parts, app).await?;
        let missing = || ScimError::missing("there is no SCIM here; `ldap.scim = true` in the configuration opens it");
        let options = app.scim.as_ref().ok_or_else(missing)?;
        let address =
            options.public_url.clone().unwrap_or_else(|| tocsin_http_server::host::own_address(&parts.headers));
        let base = format!("{}{ROOT}", address.trim_end_matches('/'));
        let requester = AuthzId { manages: true, dn: format!("key {}", caller.key()), ..AuthzId::default() };
        Ok(Client { caller, service: ScimService { directory: options.directory.clone(), base, requester } })
    }
}

/// The parts of the path, read with errors of SCIM.
struct Path<T>(T);

impl<T: serde::de::DeserializeOwned + Send> FromRequestParts<Arc<App>> for Path<T> {
    type Rejection = ScimError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ScimError> {
        let Segments(segments) = Segments::from_request_parts(parts, app).await?;
        Ok(Path(segments))
    }
}

impl Client {
    /// The service, for a caller with read permission.
    fn reading(self) -> Result<ScimService, ScimError> {
        self.caller.needs(Scope::SubscribersRead)?;
        Ok(self.service)
    }

    /// The service, for a caller with write permission.
    fn writing(self) -> Result<ScimService, ScimError> {
        self.caller.needs(Scope::SubscribersWrite)?;
        Ok(self.service)
    }
}

type State = axum::extract::State<Arc<App>>;
type Answer = Result<Response, ScimError>;
type AskedQuery = Result<Query<Asked>, axum::extract::rejection::QueryRejection>;

fn asked(query: AskedQuery) -> Result<Asked, ScimError> {
    let Query(asked) = query.map_err(|rejection| {
        let text = rejection.body_text();
        let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
        ScimError::bad("invalidSyntax", format!("the query cannot be read: {text}"))
    })?;
    Ok(asked)
}

/// Refuses a filter where RFC 7644, 4, allows none: of what says which schemas and kinds of resources there are.
fn unfiltered(query: AskedQuery) -> Result<(), ScimError> {
    match asked(query)?.has_filter() {
        true => Err(ScimError::new(StatusCode::FORBIDDEN, "`filter` is not for this address: leave it out")),
        false => Ok(()),
    }
}

/// The body of a request.
async fn json_of(app: &App, request: Request) -> Result<(HeaderMap, Json), ScimError> {
    let (headers, body) = parts(request);
    let known = ["application/scim+json", "application/json"];
    let taken = request::json_body_of(app, &headers, body, &known).await?;
    let read = serde_json::from_slice(&taken.bytes);
    let body: Json = read.map_err(|error| ScimError::bad("invalidSyntax", format!("the body is no JSON: {error}")))?;
    if !body.is_object() {
        return Err(ScimError::bad("invalidSyntax", "the body is no JSON object"));
    }
    Ok((headers, body))
}

/// Reads a query from a body.
async fn asked_in(app: &App, request: Request) -> Result<Asked, ScimError> {
    let (_, body) = json_of(app, request).await?;
    serde_json::from_value(body).map_err(|error| ScimError::bad("invalidSyntax", format!("the body: {error}")))
}

/// The state that a change expects, by `If-Match` (RFC 9110, 13.1.1).
fn expected(headers: &HeaderMap) -> Result<Option<Tag>, ScimError> {
    let tag = |name| request::tags_of(headers, &name).map(|tags| Tag::read(&tags));
    match tag(header::IF_NONE_MATCH) {
        None => Ok(tag(header::IF_MATCH)),
        Some(Tag::Any) => Err(ScimError::new(StatusCode::PRECONDITION_FAILED, "the resource exists")),
        Some(_) => {
            Err(ScimError::bad("invalidValue", "`If-None-Match` of a change knows only `*`; `If-Match` takes tags"))
        }
    }
}

/// A resource with its tag, and where it is.
async fn shown(
    service: &ScimService,
    status: StatusCode,
    kind: &'static ResourceType,
    entry: &tocsin_directory::entry::Entry,
    asked: &Asked,
) -> Answer {
    let resource = service.selected(kind, entry, &asked.selection(kind)?).await?;
    let mut response = answer(status, &Json::Object(resource));
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::try_from(tag(entry)) {
        headers.insert(header::ETAG, tag);
    }
    if let Ok(location) = HeaderValue::try_from(service.location(kind, entry)) {
        let name = if status == StatusCode::CREATED { header::LOCATION } else { header::CONTENT_LOCATION };
        headers.insert(name, location);
    }
    Ok(response)
}

fn listed(resources: Vec<Json>) -> Response {
    answer(StatusCode::OK, &list_response(resources.len(), 1, resources))
}

fn measured(what: &'static str, done: Answer) -> Answer {
    let outcome = match &done {
        Ok(_) => "done",
        Err(error) if error.status.is_server_error() => "failed",
        Err(_) => "refused",
    };
    metrics::counter!("tocsin_scim_changes_total", "change" => what, "outcome" => outcome).increment(1);
    done
}

/// An error of SCIM: RFC 7644, 3.12.
#[derive(utoipa::ToSchema)]
#[allow(dead_code)]
#[schema(as = ScimError)]
struct ErrorBody {
    /// `urn:ietf:params:scim:api:messages:2.0:Error`.
    schemas: Vec<String>,
    /// The status, as text.
    status: String,
    /// The kind of the error, of a status of 400 or 409.
    #[schema(rename = "scimType")]
    scim_type: Option<String>,
    /// The fault, the value, and its remedy.
    detail: String,
}

/// Statuses of every route.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code)]
enum Refused {
    /// The request is malformed or names an unknown thing; `scimType` has the kind of error.
    #[response(status = 400, content_type = "application/scim+json")]
    Invalid(#[to_schema] ErrorBody),
    /// No key, or none that is valid.
    #[response(status = 401, content_type = "application/scim+json")]
    Unauthorized(#[to_schema] ErrorBody),
    /// The key lacks the scope.
    #[response(status = 403, content_type = "application/scim+json")]
    Forbidden(#[to_schema] ErrorBody),
    /// There is no such resource, or no SCIM in the configuration.
    #[response(status = 404, content_type = "application/scim+json")]
    Missing(#[to_schema] ErrorBody),
    /// Too many requests; `Retry-After` has the time of the next attempt.
    #[response(status = 429, content_type = "application/scim+json")]
    TooMany(#[to_schema] ErrorBody),
    /// An internal error.
    #[response(status = 500, content_type = "application/scim+json")]
    Internal(#[to_schema] ErrorBody),
    /// The store is unavailable or full; `Retry-After` has the time of the next attempt.
    #[response(status = 503, content_type = "application/scim+json")]
    Unavailable(#[to_schema] ErrorBody),
}

/// The status of kinds of resources that RFC 7644 has and this server has not.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code)]
enum Unsupported {
    /// There is no `Me`.
    #[response(status = 501, content_type = "application/scim+json")]
    NotImplemented(#[to_schema] ErrorBody),
}

/// Statuses of routes with a body.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code)]
enum BodyRefused {
    /// The body came too slowly.
    #[response(status = 408, content_type = "application/scim+json")]
    Timeout(#[to_schema] ErrorBody),
    /// The body is too long, or has too many operations.
    #[response(status = 413, content_type = "application/scim+json")]
    TooLarge(#[to_schema] ErrorBody),
    /// The body is not JSON by its media type.
    #[response(status = 415, content_type = "application/scim+json")]
    MediaType(#[to_schema] ErrorBody),
}

/// The status of a change that conflicts with another resource.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code)]
enum Conflict {
    /// Another resource has the name, or resources stand below this one.
    #[response(status = 409, content_type = "application/scim+json")]
    Taken(#[to_schema] ErrorBody),
}

/// The status of changes under a condition.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code)]
enum Outdated {
    /// The resource is not the one that `If-Match` names.
    #[response(status = 412, content_type = "application/scim+json")]
    Changed(#[to_schema] ErrorBody),
}

/// Returns the service provider configuration.
#[utoipa::path(get, path = "/scim/v2/ServiceProviderConfig", tag = "scim", responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused))]
async fn configuration(client: Client, query: AskedQuery) -> Answer {
    unfiltered(query)?;
    Ok(answer(StatusCode::OK, &service_provider_config(&client.service.base)))
}

/// The kinds of resources.
#[utoipa::path(get, path = "/scim/v2/ResourceTypes", tag = "scim", responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused))]
async fn resource_types(client: Client, query: AskedQuery) -> Answer {
    unfiltered(query)?;
    Ok(listed(RESOURCES.iter().map(|kind| kind.to_json(&client.service.base)).collect()))
}

/// One kind of resources.
#[utoipa::path(get, path = "/scim/v2/ResourceTypes/{name}", tag = "scim", params(("name" = String, Path)), responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused))]
async fn one_resource_type(client: Client, Path(name): Path<String>) -> Answer {
    let found = RESOURCES.iter().find(|kind| kind.name == name);
    let found = found.ok_or_else(|| ScimError::missing(format!("there is no kind of resources `{name}`")))?;
    Ok(answer(StatusCode::OK, &found.to_json(&client.service.base)))
}

/// Lists the schemas of resources.
#[utoipa::path(get, path = "/scim/v2/Schemas", tag = "scim", responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused))]
async fn all_schemas(client: Client, query: AskedQuery) -> Answer {
    unfiltered(query)?;
    Ok(listed(schemas(&client.service.base)))
}

/// One schema.
#[utoipa::path(get, path = "/scim/v2/Schemas/{id}", tag = "scim", params(("id" = String, Path)), responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused))]
async fn one_schema(client: Client, Path(id): Path<String>) -> Answer {
    let found = schemas(&client.service.base).into_iter().find(|schema| schema["id"] == id.as_str());
    found
        .map(|schema| answer(StatusCode::OK, &schema))
        .ok_or_else(|| ScimError::missing(format!("there is no schema `{id}`")))
}

/// Users or groups: filtered, sorted, a page of them. `attributes` or `excludedAttributes` say what of each is wanted.
#[utoipa::path(get, path = "/scim/v2/{resources}", tag = "scim", params(("resources" = String, Path, description = "`Users` or `Groups`"), ("filter" = Option<String>, Query), ("sortBy" = Option<String>, Query), ("sortOrder" = Option<String>, Query), ("startIndex" = Option<i64>, Query), ("count" = Option<i64>, Query), ("attributes" = Option<String>, Query), ("excludedAttributes" = Option<String>, Query)), responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused, Unsupported))]
async fn list(client: Client, Path(resources): Path<String>, query: AskedQuery) -> Answer {
    let kind = resource_type(&resources)?;
    Ok(answer(StatusCode::OK, &client.reading()?.list(kind, &asked(query)?).await?))
}

/// Users and groups at once. A resource has no value of an attribute of another kind.
#[utoipa::path(post, path = "/scim/v2/.search", tag = "scim", request_body(content = serde_json::Value, content_type = "application/scim+json"), responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused, BodyRefused))]
async fn search_all(axum::extract::State(app): State, client: Client, request: Request) -> Answer {
    Ok(answer(StatusCode::OK, &client.reading()?.list_all(&asked_in(&app, request).await?).await?))
}

/// The same, with what is asked for in the body.
#[utoipa::path(post, path = "/scim/v2/{resources}/.search", tag = "scim", params(("resources" = String, Path)), request_body(content = serde_json::Value, content_type = "application/scim+json"), responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused, Unsupported, BodyRefused))]
async fn search(
    axum::extract::State(app): State,
    client: Client,
    Path(resources): Path<String>,
    request: Request,
) -> Answer {
    let kind = resource_type(&resources)?;
    let asked = asked_in(&app, request).await?;
    Ok(answer(StatusCode::OK, &client.reading()?.list(kind, &asked).await?))
}

/// Makes a user or a group.
#[utoipa::path(post, path = "/scim/v2/{resources}", tag = "scim", params(("resources" = String, Path)), request_body(content = serde_json::Value, content_type = "application/scim+json"), responses((status = 201, content_type = "application/scim+json", body = serde_json::Value), Refused, Unsupported, BodyRefused, Conflict))]
async fn create(
    axum::extract::State(app): State,
    client: Client,
    Path(resources): Path<String>,
    query: AskedQuery,
    request: Request,
) -> Answer {
    let (kind, asked, service) = (resource_type(&resources)?, asked(query)?, client.writing()?);
    let (_, body) = json_of(&app, request).await?;
    let made = async {
        let entry = service.create(kind, &body).await?;
        shown(&service, StatusCode::CREATED, kind, &entry, &asked).await
    };
    measured("create", made.await)
}

/// A user or a group.
#[utoipa::path(get, path = "/scim/v2/{resources}/{id}", tag = "scim", params(("resources" = String, Path), ("id" = String, Path), ("attributes" = Option<String>, Query), ("excludedAttributes" = Option<String>, Query), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)), responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), (status = 304), Refused, Unsupported, Outdated))]
async fn read(client: Client, Path((resources, id)): Path<(String, String)>, query: AskedQuery) -> Answer {
    let (kind, asked, service) = (resource_type(&resources)?, asked(query)?, client.reading()?);
    let found = service.find(kind, &id).await?;
    shown(&service, StatusCode::OK, kind, &found.entry, &asked).await
}

/// Replaces a user or a group.
#[utoipa::path(put, path = "/scim/v2/{resources}/{id}", tag = "scim", params(("resources" = String, Path), ("id" = String, Path), ("If-Match" = Option<String>, Header)), request_body(content = serde_json::Value, content_type = "application/scim+json"), responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused, Unsupported, BodyRefused, Conflict, Outdated))]
async fn replace(
    axum::extract::State(app): State,
    client: Client,
    Path(of): Path<(String, String)>,
    query: AskedQuery,
    request: Request,
) -> Answer {
    let whole = |json: &Json, kind| Ok(Change::Whole(body::resource(json, kind)?));
    revise(&app, client, of, query, request, "replace", whole).await
}

/// Changes parts of a user or a group.
#[utoipa::path(patch, path = "/scim/v2/{resources}/{id}", tag = "scim", params(("resources" = String, Path), ("id" = String, Path), ("If-Match" = Option<String>, Header)), request_body(content = serde_json::Value, content_type = "application/scim+json"), responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused, Unsupported, BodyRefused, Conflict, Outdated))]
async fn change(
    axum::extract::State(app): State,
    client: Client,
    Path(of): Path<(String, String)>,
    query: AskedQuery,
    request: Request,
) -> Answer {
    let parts = |json: &Json, kind| Ok(Change::Parts(patch::read(json, kind)?));
    revise(&app, client, of, query, request, "patch", parts).await
}

/// Changes a resource to what is read of the body, if it is still the one that `If-Match` names.
async fn revise(
    app: &App,
    client: Client,
    (resources, id): (String, String),
    query: AskedQuery,
    request: Request,
    what: &'static str,
    read: impl FnOnce(&Json, &'static ResourceType) -> Result<Change, ScimError>,
) -> Answer {
    let (kind, asked, service) = (resource_type(&resources)?, asked(query)?, client.writing()?);
    let (headers, body) = json_of(app, request).await?;
    let changed = async {
        let entry = service.change(kind, &id, &read(&body, kind)?, expected(&headers)?.as_ref()).await?;
        shown(&service, StatusCode::OK, kind, &entry, &asked).await
    };
    measured(what, changed.await)
}

/// Removes a user, with its devices and subscriptions, or a group.
#[utoipa::path(delete, path = "/scim/v2/{resources}/{id}", tag = "scim", params(("resources" = String, Path), ("id" = String, Path), ("If-Match" = Option<String>, Header)), responses((status = 204), Refused, Unsupported, Conflict, Outdated))]
async fn remove(client: Client, Path((resources, id)): Path<(String, String)>, headers: HeaderMap) -> Answer {
    let (kind, service) = (resource_type(&resources)?, client.writing()?);
    let removed = async { service.remove(kind, &id, expected(&headers)?.as_ref()).await }.await;
    measured("delete", removed.map(|()| StatusCode::NO_CONTENT.into_response()))
}

/// Runs bulk operations, each in its own commit.
#[utoipa::path(post, path = "/scim/v2/Bulk", tag = "scim", request_body(content = serde_json::Value, content_type = "application/scim+json"), responses((status = 200, content_type = "application/scim+json", body = serde_json::Value), Refused, BodyRefused))]
async fn bulk(axum::extract::State(app): State, client: Client, request: Request) -> Answer {
    let service = client.writing()?;
    let (_, body) = json_of(&app, request).await?;
    let bulk: Bulk =
        serde_json::from_value(body).map_err(|error| ScimError::bad("invalidSyntax", format!("the body: {error}")))?;
    let done = service.bulk(bulk).await.map(|done| answer(StatusCode::OK, &done));
    measured("bulk", done)
}

/// The service provider configuration.
fn service_provider_config(base: &str) -> Json {
    let supported = json!({"supported": true});
    json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"],
        "patch": supported, "sort": supported, "etag": supported, "changePassword": supported,
        "bulk": {"supported": true, "maxOperations": bulk::OPERATIONS_MAX, "maxPayloadSize": SINGLE_BYTES_MAX},
        "filter": {"supported": true, "maxResults": list::PAGE_MAX},
        "authenticationSchemes": [{
            "type": "oauthbearertoken", "name": "API key", "primary": true,
            "description": "`Authorization: Bearer` and a key with the scope subscribers:read or subscribers:write",
        }],
        "meta": {"resourceType": "ServiceProviderConfig", "location": format!("{base}/ServiceProviderConfig")},
    })
}
