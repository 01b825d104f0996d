//! Cross-origin requests (CORS). Pages of configured origins may use the browser routes: feeds, keys for web push, and
//! sync sessions. They authenticate by a token, never by a cookie.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, Method, Response, StatusCode, header},
    middleware::Next,
};

use crate::{app::State, needs::needs};

/// Lifetime of a preflight response, in seconds.
const ASKED_AGAIN: &str = "600";

/// Whether a path is open to pages of other origins.
fn is_for_pages(path: &str) -> bool {
    let mut parts = path.trim_start_matches('/').split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("v1"), Some("subscribers"), Some(_), Some("inbox")) => true,
        (Some("v1"), Some("applications"), Some(_), Some("web-push")) => parts.next().is_none(),
        (Some("v1"), Some("sync"), Some("sessions"), _) => true,
        (Some("v1"), Some("sync"), Some("wait"), None) => true,
        _ => false,
    }
}

/// The origin of a page that may use this path.
fn allowed_origin(origins: &Arc<[String]>, request: &Request) -> Option<HeaderValue> {
    let origin = request.headers().get(header::ORIGIN)?;
    let is_named = origins.iter().any(|named| named.as_bytes() == origin.as_bytes());
    (is_named && is_for_pages(request.uri().path())).then(|| origin.clone())
}

/// Checks the origin, then the access requirement of the route.
pub(crate) async fn origins(state: State, request: Request, next: Next) -> Response<Body> {
    let varies = !state.origins.is_empty() && is_for_pages(request.uri().path());
    let Some(origin) = allowed_origin(&state.origins, &request) else {
        let mut response = needs(state, request, next).await;
        if varies {
            // A cache must not serve this response to other origins.
            response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
        }
        return response;
    };
    let asks =
        *request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        let fixed = HeaderValue::from_static;
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, fixed("GET, PUT, POST, DELETE"));
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            fixed("authorization, content-type, content-encoding, last-event-id"),
        );
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, fixed(ASKED_AGAIN));
        response
    } else {
        needs(state, request, next).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("retry-after, ratelimit, ratelimit-policy"),
    );
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_made_for_pages_is_open_to_them() {
        for open in [
            "/v1/subscribers/alice/inbox",
            "/v1/subscribers/alice/inbox/n-7-1/read",
            "/v1/subscribers/alice/inbox/stream",
            "/v1/applications/shop/web-push",
            "/v1/sync/sessions",
            "/v1/sync/sessions/9f/changes",
            "/v1/sync/wait",
        ] {
            assert!(is_for_pages(open), "{open}");
        }
        for closed in [
            "/v1/subscribers/alice",
            "/v1/subscribers/inbox",
            "/v1/applications/shop",
            "/v1/applications/shop/web-push/x",
            "/v1/keys",
            "/v1/sync/devices",
            "/v1/sync/wait/x",
            "/inbox",
            "/",
        ] {
            assert!(!is_for_pages(closed), "{closed}");
        }
    }
}
