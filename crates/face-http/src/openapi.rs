//! The description of the API in OpenAPI 3.1, made from the routes, and an explorer that needs no network.

use std::{borrow::Cow, sync::Arc, sync::LazyLock};

use axum::{body::Bytes, http::Method};
use utoipa::{
    Modify, OpenApi,
    openapi::{
        Content, Header, ObjectBuilder, Ref, RefOr, Type,
        path::Operation,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_swagger_ui::Config;

use crate::{needs, problems::KINDS, routes};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tocsin",
        description = "Who is to be told what: applications, subscribers, subscriptions, events, and what became of them.\n\nEvery error is a problem of RFC 9457, whose `type` is the address of a page that explains it.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    modifiers(&Keys),
    security(("key" = [])),
    tags(
        (name = "applications", description = "What a deployment does: definitions, versioned"),
        (name = "events", description = "What happened"),
        (name = "subscribers", description = "Whom to tell, and at which devices"),
        (name = "scim", description = "SCIM 2.0: the same subscribers, and groups, for provisioning clients. Errors have the form of RFC 7644"),
        (name = "segments", description = "Some of the subscribers, by a saved filter"),
        (name = "subscriptions", description = "What they care about"),
        (name = "suppressions", description = "Where nothing is sent: bounces, complaints, and what somebody said"),
        (name = "import and export", description = "Many of them, as streams of lines"),
        (name = "exchanges", description = "What systems say to each other: ports, messages, replies"),
        (name = "operations", description = "What became of it"),
        (name = "inbox", description = "What subscribers find when they look. Each route takes an API key, or an inbox token of the subscriber as `Bearer` or `?token=`"),
        (name = "sync", description = "Rows that devices keep replicas of. Sessions take the token of a device, all else an API key"),
        (name = "keys", description = "Who may do what"),
        (name = "health", description = "Whether it lives and serves; these need no key"),
    )
)]
struct Base;

struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key: `tocsin_<id>_<secret>`; the scopes of a requirement are those it needs"));
        components.add_security_scheme("key", SecurityScheme::Http(scheme.build()));
        for (name, about) in [
            ("inbox_token", "A token for the inbox of one subscriber"),
            ("device", "The token of a device that keeps a replica"),
        ] {
            let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about));
            components.add_security_scheme(name, SecurityScheme::Http(scheme.build()));
        }
    }
}

pub(crate) fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}

/// The description of the API, as pretty JSON: what `/openapi.json` serves and `docs/reference/openapi.json` holds.
pub fn document() -> String {
    let (_, mut document) = routes::documented().split_for_parts();
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
            needs::describe(&method, path, operation);
            if path.starts_with("/v1/") {
                name_failures(path, &method, operation);
            }
        }
    }
    let mut text = document.to_pretty_json().expect("a description is always JSON");
    text.push('\n');
    text
}

/// Writes the kinds of problems that an operation may answer beside its answers. They follow from its form.
fn name_failures(path: &str, method: &Method, operation: &mut Operation) {
    let mut slugs = vec!["malformed", "unauthenticated", "forbidden", "internal", "unavailable"];
    if path.contains('{') {
        slugs.push("not-found");
    }
    if operation.request_body.is_some() {
        slugs.extend(["timeout", "too-large", "unsupported-media-type", "too-many"]);
    }
    if operation.request_body.is_some() || operation.parameters.is_some() {
        slugs.push("invalid");
    }
    let is_revised = ["/v1/subscribers/", "/v1/segments/", "/v1/subscriptions/", "/v1/applications/{application}"];
    if *method != Method::GET && *method != Method::POST && is_revised.iter().any(|start| path.starts_with(start)) {
        slugs.push("changed");
    }
    if *method != Method::GET {
        slugs.push("busy");
    }
    if path.ends_with("/inbox/stream") {
        slugs.push("too-many");
    }
    match (method.as_str(), path) {
        ("PUT", "/v1/applications/{application}") => slugs.push("would-drop-data"),
        ("POST", "/v1/subscribers" | "/v1/segments") => slugs.push("exists"),
        ("GET", "/v1/segments/{name}/members" | "/v1/segments/{name}/preview") => slugs.push("too-many"),
        ("POST", path) if path.contains("/events") => slugs.push("idempotency-key-reused"),
        ("POST", "/v1/resends") => slugs.push("exists"),
        ("DELETE", "/v1/segments/{name}") => slugs.push("in-use"),
        ("DELETE", "/v1/keys/{id}") => slugs.push("last-admin-key"),
        _ => {}
    }
    let responses = &mut operation.responses.responses;
    let Some(RefOr::T(any)) = responses.get_mut("default") else { return };
    // The derived answer would spell the schema out every time.
    for content in any.content.values_mut() {
        *content = RefOr::T(Content::new(Some(Ref::from_schema_name("Problem"))));
    }
    let any = any.clone();
    for kind in KINDS.iter().filter(|kind| slugs.contains(&kind.slug)) {
        let told = format!("{} (`/problems/{}`)", kind.title, kind.slug);
        let status = kind.status.as_u16();
        match responses.get_mut(&status.to_string()) {
            Some(RefOr::T(same)) => same.description = format!("{}; or: {told}", same.description),
            _ => {
                let mut response = any.clone();
                response.description = told;
                if matches!(status, 429 | 503) {
                    let seconds = ObjectBuilder::new().schema_type(Type::Integer).build();
                    let mut header = Header::new(seconds);
                    header.description = Some("Seconds after which to try again".to_owned());
                    response.headers.insert("Retry-After".to_owned(), RefOr::T(header));
                }
                responses.insert(status.to_string(), RefOr::T(response));
            }
        }
    }
}

pub(crate) fn text() -> Bytes {
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| document().into());
    TEXT.clone()
}

/// The files of the explorer.
pub(crate) struct Explorer(Arc<Config<'static>>);

impl Explorer {
    pub(crate) fn new() -> Self {
        Explorer(Arc::new(Config::from("/openapi.json").try_it_out_enabled(true)))
    }

    /// A file by its name, with its media type.
    pub(crate) fn file(&self, name: &str) -> Option<(String, Bytes)> {
        let file = utoipa_swagger_ui::serve(name, self.0.clone()).ok()??;
        let bytes = match file.bytes {
            Cow::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Cow::Owned(bytes) => bytes.into(),
        };
        Some((file.content_type, bytes))
    }
}
