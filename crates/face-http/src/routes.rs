//! The routes: one file for each area, each route with its documentation.

mod applications;
mod chronicles;
mod drain;
mod events;
mod broadcasts;
mod firings;
mod inbox;
mod keys;
mod operations;
mod pages;
mod preview;
mod reports;
mod resends;
mod push_keys;
mod replicas;
mod rows;
mod rules;
mod destinations;
pub(crate) mod directory;
mod endpoints;
pub(crate) mod exchanges;
mod messages;
mod schedules;
mod sources;
mod segments;
mod subscribers;
mod sync;
mod subscriptions;
mod suppressions;
pub(crate) mod switches;
mod tracked;
mod transfer;
mod unsubscribe;

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use utoipa_axum::router::OpenApiRouter;

use crate::{App, edge, problems::Failure, scim};

/// All documented routes.
pub(crate) fn documented() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(crate::openapi::base())
        .merge(applications::routes())
        .merge(rules::routes())
        .merge(preview::routes())
        .merge(firings::routes())
        .merge(events::routes())
        .merge(subscribers::routes())
        .merge(segments::routes())
        .merge(subscriptions::routes())
        .merge(suppressions::routes())
        .merge(destinations::routes())
        .merge(endpoints::routes())
        .merge(schedules::routes())
        .merge(sources::routes())
        .merge(chronicles::routes())
        .merge(transfer::routes())
        .merge(directory::routes())
        .merge(operations::routes())
        .merge(reports::routes())
        .merge(switches::routes())
        .merge(drain::routes())
        .merge(exchanges::routes())
        .merge(messages::routes())
        .merge(tracked::routes())
        .merge(resends::routes())
        .merge(keys::routes())
        .merge(inbox::routes())
        .merge(broadcasts::routes())
        .merge(rows::routes())
        .merge(replicas::routes())
        .merge(sync::routes())
        .merge(push_keys::routes())
        .merge(unsubscribe::routes())
        .merge(crate::scim::routes())
        .merge(pages::routes())
}

/// Everything that is served.
pub(crate) fn router(app: Arc<App>) -> Router {
    let (router, _) = documented().split_for_parts();
    router
        .merge(pages::files())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        // A single layer, since each layer costs every request a copy of the service.
        .layer(axum::middleware::from_fn_with_state(app.clone(), edge::edge))
        .with_state(app)
}

async fn no_route(uri: Uri) -> Response {
    if scim::is_scim_path(uri.path()) {
        scim::no_route(uri.path())
    } else {
        Failure::no_route(uri.path()).into_response()
    }
}

async fn no_method(uri: Uri) -> Response {
    if scim::is_scim_path(uri.path()) { scim::no_method() } else { Failure::method_not_allowed().into_response() }
}

/// A JSON answer.
fn json(status: StatusCode, body: &impl serde::Serialize) -> Response {
    let bytes = serde_json::to_vec(body).expect("what is answered is always JSON");
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], bytes).into_response()
}

/// A JSON response with the revision as its entity tag.
fn tagged(status: StatusCode, revision: u64, body: &impl serde::Serialize) -> Response {
    let mut response = json(status, body);
    response.headers_mut().insert(header::ETAG, etag(revision));
    response
}

fn etag(revision: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{revision}\"")).expect("a quoted number is a header value")
}

/// Adds the `Location` of a created resource.
fn located(mut response: Response, path: String) -> Response {
    if let Ok(path) = HeaderValue::try_from(path) {
        response.headers_mut().insert(header::LOCATION, path);
    }
    response
}

/// Writes one segment of a path.
fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The status of what is stored now, whether it was there or not.
fn created(is_new: bool) -> StatusCode {
    if is_new { StatusCode::CREATED } else { StatusCode::OK }
}

/// Responses common to all routes.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code)]
pub(crate) enum Failures {
    /// A problem of RFC 9457; its type says what to do.
    #[response(status = "default", content_type = "application/problem+json")]
    Problem(#[to_schema] crate::problems::ProblemBody),
}
