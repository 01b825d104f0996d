//! The description of the API in OpenAPI 3.1, made from the routes, and an explorer that needs no network.

pub(crate) mod base; // title, tags, security schemes
mod shared; // shared components for repeated parts

use std::{collections::BTreeMap, sync::LazyLock};

use crate::{
    needs,
    problems::codes::{KINDS, Kind},
    routes,
};
use axum::{body::Bytes, http::Method};
use utoipa::openapi::{
    Content, Header, ObjectBuilder, Ref, RefOr, Response, Schema, Type,
    path::{Operation, Parameter, ParameterIn},
};

/// The description of the API, as pretty JSON: what `docs/reference/openapi.json` holds.
pub fn document() -> String {
    let mut text = serde_json::to_string_pretty(&described()).expect("a description is always JSON");
    text.push('\n');
    text
}

fn described() -> serde_json::Value {
    let mut document = serde_json::to_value(derived()).expect("a description is always JSON");
    shared::share(&mut document);
    document
}

fn derived() -> utoipa::openapi::OpenApi {
    let (_, mut document) = routes::documented().split_for_parts();
    let mut failures = BTreeMap::new();
    for (path, item) in &mut document.paths.paths {
        let methods = [
            (Method::GET, &mut item.get),
            (Method::POST, &mut item.post),
            (Method::PUT, &mut item.put),
            (Method::PATCH, &mut item.patch),
            (Method::DELETE, &mut item.delete),
        ];
        for (method, operation) in methods {
            let Some(operation) = operation else { continue };
            operation.operation_id = Some(operation_id(&method, path));
            operation.parameters.iter_mut().flatten().for_each(describe_segment);
            needs::describe(&method, path, operation);
            if path.starts_with("/v1/") {
                name_failures(path, &method, operation, &mut failures);
            }
        }
    }
    let components = document.components.get_or_insert_default();
    components.responses.extend(failures);
    // It is a part of other schemas, whose members it would forbid.
    if let Some(RefOr::T(Schema::Object(wording))) = components.schemas.get_mut("InboxWording") {
        wording.additional_properties = None;
    }
    document
}

/// Writes the form of a name into the description of a segment of a path.
fn describe_segment(parameter: &mut RefOr<Parameter>) {
    const NAMES: [&str; 10] =
        ["application", "channel", "chronicle", "class", "collection", "exchange", "name", "port", "protocol", "rule"];
    let RefOr::T(parameter) = parameter else { return };
    if let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema
        && parameter.parameter_in == ParameterIn::Path
        && NAMES.contains(&parameter.name.as_str())
    {
        schema.pattern = Some("^[A-Za-z][A-Za-z0-9_-]{0,63}$".to_owned());
    }
}

/// The id of an operation: its method and the words of its path, such as `get_subscribers_id`. It is unique.
fn operation_id(method: &Method, path: &str) -> String {
    let words =
        path.trim_start_matches("/v1").split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    format!("{}_{}", method.as_str().to_ascii_lowercase(), words.join("_"))
}

/// Addresses whose filters name an application, a class, a rule, a channel, an exchange or a port; an unknown one is not found.
const FILTERED: [&str; 20] = [
    "/v1/broadcasts",
    "/v1/delayed-notifications",
    "/v1/delayed-notifications/cancel",
    "/v1/endpoints",
    "/v1/events",
    "/v1/export/subscriptions",
    "/v1/firings",
    "/v1/firings/dismiss",
    "/v1/firings/refire",
    "/v1/messages",
    "/v1/messages/end",
    "/v1/messages/resume",
    "/v1/notifications",
    "/v1/resends",
    "/v1/resends/preview",
    "/v1/slow-firings",
    "/v1/subscriptions",
    "/v1/suspensions",
    "/v1/suspensions/end",
    "/v1/suspensions/resume",
];

/// Writes the kinds of problems that an operation may answer beside its answers. They follow from its form.
fn name_failures(
    path: &str,
    method: &Method,
    operation: &mut Operation,
    failures: &mut BTreeMap<String, RefOr<Response>>,
) {
    let mut slugs = vec!["malformed", "unauthenticated", "forbidden", "too-many", "internal", "unavailable"];
    if path.contains('{') {
        slugs.push("not-found");
    }
    if operation.request_body.is_some() {
        slugs.extend(["timeout", "too-large", "unsupported-media-type"]);
    }
    if operation.request_body.is_some() || operation.parameters.is_some() {
        slugs.push("invalid");
    }
    let is_revised = [
        "/v1/subscribers/",
        "/v1/segments/",
        "/v1/subscriptions/",
        "/v1/applications/{application}",
        "/v1/directory/entries/",
        "/v1/capacity/profiles/",
        "/v1/users/",
    ];
    let is_rename = path.ends_with("/rename");
    let is_change = *method != Method::GET && (*method != Method::POST || is_rename);
    if is_change && is_revised.iter().any(|start| path.starts_with(start)) {
        slugs.push("changed");
    }
    if *method != Method::GET {
        slugs.push("busy");
    }
    // A new subscription of an unknown application is an invalid body.
    let is_creation = *method == Method::POST && path == "/v1/subscriptions";
    let names_another = [
        "/v1/sync/history",
        "/v1/consent/key",
        "/v1/login-links",
        "/v1/session/oidc",
        "/v1/session/oidc/callback",
        "/v1/directory/",
    ];
    let is_found =
        names_another.iter().any(|start| path.starts_with(start)) || FILTERED.contains(&path) && !is_creation;
    if is_found && !slugs.contains(&"not-found") {
        slugs.push("not-found");
    }
    match (method.as_str(), path) {
        ("PUT", "/v1/applications/{application}") => slugs.push("would-drop-data"),
        ("POST", "/v1/subscribers" | "/v1/segments" | "/v1/users" | "/v1/setup") => slugs.push("exists"),
        ("PUT", "/v1/directory/entries/{dn}" | "/v1/capacity/profiles/{name}") => slugs.push("exists"),
        ("POST", "/v1/directory/entries/{dn}/rename") => slugs.push("exists"),
        ("DELETE", "/v1/directory/entries/{dn}") => slugs.push("in-use"),
        ("PATCH" | "DELETE", "/v1/users/{name}") => slugs.push("last-admin-user"),
        ("POST", path) if path.contains("/events") => slugs.push("idempotency-key-reused"),
        ("POST", "/v1/resends" | "/v1/broadcasts") => slugs.push("exists"),
        ("POST", "/v1/sync/devices") => slugs.push("not-found"),
        ("DELETE", "/v1/segments/{name}") => slugs.push("in-use"),
        ("DELETE", "/v1/keys/{id}") => slugs.push("last-admin-key"),
        _ => {}
    }
    let responses = &mut operation.responses.responses;
    let Some(RefOr::T(any)) = responses.remove("default") else { return };
    let mut by_status: BTreeMap<u16, Vec<&Kind>> = BTreeMap::new();
    for kind in KINDS.iter().filter(|kind| slugs.contains(&kind.slug)) {
        by_status.entry(kind.status.as_u16()).or_default().push(kind);
    }
    for (status, kinds) in by_status {
        let slugs: Vec<&str> = kinds.iter().map(|kind| kind.slug).collect();
        let name = slugs.join("-or-");
        let shared = failures.entry(name.clone()).or_insert_with(|| {
            let titles: Vec<_> =
                kinds.iter().map(|kind| format!("{} (`/problems/{}`)", kind.title, kind.slug)).collect();
            let mut response = any.clone();
            response.description = titles.join("; or: ");
            // The derived answer would spell the schema out.
            for content in response.content.values_mut() {
                *content = RefOr::T(Content::new(Some(Ref::from_schema_name("Problem"))));
            }
            if matches!(status, 429 | 503) {
                let seconds = ObjectBuilder::new().schema_type(Type::Integer).build();
                let mut header = Header::new(seconds);
                header.description = Some("Seconds after which to try again".to_owned());
                response.headers.insert("Retry-After".to_owned(), RefOr::T(header));
            }
            RefOr::T(response)
        });
        match responses.get_mut(&status.to_string()) {
            // A status that the route describes by itself.
            Some(RefOr::T(same)) => {
                let RefOr::T(shared) = shared else { continue };
                same.description = format!("{}; or: {}", same.description, shared.description);
            }
            _ => _ = responses.insert(status.to_string(), RefOr::Ref(Ref::from_response_name(name))),
        }
    }
}

/// The description as `/openapi.json` serves it, without spaces between its tokens.
pub(crate) fn text() -> Bytes {
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| described().to_string().into());
    TEXT.clone()
}
