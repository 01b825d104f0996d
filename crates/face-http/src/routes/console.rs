//! Web console: its embedded files with the security headers of the console, the redirect of `/`, and the script of the
//! web components.

use std::{io::Read, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, Response, header},
    response::{IntoResponse, Redirect},
    routing::get,
};
use tocsin_http_server::embedded::{Coding, EmbeddedFile, find};

use crate::{app::App, problems::Failure};

/// Content security policy of the console: scripts and styles from its own files only, and no text as HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; font-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'";
/// The files whose names contain a hash never change.
const IMMUTABLE: &str = "public, max-age=31536000, immutable";
const STRICT_TRANSPORT: &str = "max-age=31536000";
const INDEX: &str = "index.html";

pub(crate) fn files() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(root))
        .route("/embed/tocsin.js", get(web_components))
        .route("/console", get(async || Redirect::permanent("/console/")))
        .route("/console/", get(async |app: State<Arc<App>>, headers: HeaderMap| page(&app, "", &headers)))
        .route(
            "/console/{*path}",
            get(async |app: State<Arc<App>>, Path(path): Path<String>, headers: HeaderMap| page(&app, &path, &headers)),
        )
}

/// Redirects browsers to the console, or to the status page of a server without one.
async fn root(State(app): State<Arc<App>>, headers: HeaderMap) -> Response<Body> {
    let target = match (app.console.is_some(), app.public_status) {
        (true, _) => Some("/console/"),
        (false, true) => Some("/status"),
        (false, false) => None,
    };
    let mut response = match target {
        Some(target) if accepts_html(&headers) => Redirect::to(target).into_response(),
        _ => Failure::no_route("/").into_response(),
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// The script of the web components, which pages of any origin may load.
async fn web_components(State(app): State<Arc<App>>, headers: HeaderMap) -> Response<Body> {
    let Some(file) = app.web_components else { return Failure::no_route("/embed/tocsin.js").into_response() };
    let mut response = file_response(file, &headers);
    for (name, value) in [
        (HeaderName::from_static("cross-origin-resource-policy"), "cross-origin"),
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A file of the console, or its first page, which reads the path itself (history routing).
fn page(app: &App, path: &str, headers: &HeaderMap) -> Response<Body> {
    let Some(files) = app.console else { return Failure::no_route(&format!("/console/{path}")).into_response() };
    let file = find(files, path).or_else(|| is_view(path, headers).then(|| find(files, INDEX)).flatten());
    let mut response = match file {
        Some(file) => file_response(file, headers),
        None => Failure::no_route(&format!("/console/{path}")).into_response(),
    };
    let secured = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in secured {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if app.is_https {
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(STRICT_TRANSPORT));
    }
    response
}

/// Whether a path without a file is a view of the console: never a hashed file, and with an extension only if a browser
/// navigates there, since identifiers may contain dots.
fn is_view(path: &str, headers: &HeaderMap) -> bool {
    let has_extension = path.rsplit('/').next().is_some_and(|name| name.contains('.'));
    !path.starts_with("assets/") && (!has_extension || accepts_html(headers))
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.flat_map(|value| value.split(',')).any(|item| {
        let media_type = item.split(';').next().unwrap_or_default().trim();
        media_type.eq_ignore_ascii_case("text/html")
    })
}

fn file_response(file: &'static EmbeddedFile, headers: &HeaderMap) -> Response<Body> {
    let accepts = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let (coding, body) = encoded(file, Coding::accepted(accepts));
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.media_type));
    if let Some(token) = coding.token() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(token));
    }
    // A tag names one representation (RFC 9110, 8.8.3.3).
    let tag = match coding.token() {
        Some(token) => format!("\"{}-{token}\"", file.sha256),
        None => format!("\"{}\"", file.sha256),
    };
    headers.insert(header::ETAG, HeaderValue::try_from(tag).expect("hexadecimal digits are a header value"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    let caching = if file.is_immutable { IMMUTABLE } else { "no-cache" };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    response
}

/// The content in a coding, or in the one that it has. The identity of a compressed file is unpacked.
fn encoded(file: &'static EmbeddedFile, coding: Coding) -> (Coding, Bytes) {
    let stored = match coding {
        Coding::Brotli => file.brotli,
        Coding::Gzip => file.gzip,
        Coding::Identity => None,
    };
    if let Some(bytes) = stored {
        return (coding, Bytes::from_static(bytes));
    }
    let identity = match (file.identity, file.gzip) {
        (Some(bytes), _) => Bytes::from_static(bytes),
        (None, Some(packed)) => {
            let mut bytes = Vec::new();
            flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).expect("embedded files are complete");
            bytes.into()
        }
        (None, None) => Bytes::new(),
    };
    (Coding::Identity, identity)
}
