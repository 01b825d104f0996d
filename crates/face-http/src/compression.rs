//! Response compression by zstd or gzip, for clients that accept it (RFC 9110, 12.5.3).
//!
//! The size of a compressed response depends on its content. Where a browser sends credentials automatically, an
//! attacker can derive secrets from these sizes (BREACH). It needs a secret and text of its own in one response, and
//! requests that its page starts. So responses with the CSRF token of a session are not compressed, nor are responses to
//! requests with a cookie that a page of another site started.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, header},
    response::Response,
};
use tower::{Layer, ServiceExt};
use tower_http::{
    CompressionLevel,
    compression::{
        CompressionLayer, Predicate,
        predicate::{NotForContentType, SizeAbove},
    },
};

/// Smaller responses are not compressed: it would save no packet.
const BYTES_MIN: u64 = 1_024;
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Addresses whose responses contain the CSRF token.
const SECRET: [&str; 2] = ["/v1/session", "/v1/setup"];

/// Compresses the response if the client accepts it. Responses with an entity tag are not compressed, since a tag
/// names one representation (RFC 9110, 8.8.3.3); nor are event streams and encoded bodies.
pub(crate) async fn answer(router: axum::Router, request: Request) -> Response {
    let accepts = request.headers().contains_key(header::ACCEPT_ENCODING);
    if !accepts || is_sensitive(request.uri().path(), request.headers()) {
        return router.oneshot(request).await.unwrap_or_else(|never| match never {});
    }
    let untagged = |_, _, headers: &HeaderMap, _: &axum::http::Extensions| !headers.contains_key(header::ETAG);
    let worth = SizeAbove::new(BYTES_MIN)
        .and(NotForContentType::new("text/event-stream"))
        .and(NotForContentType::IMAGES)
        .and(untagged);
    let layer = CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(worth);
    let answer = layer.layer(router).oneshot(request).await.unwrap_or_else(|never| match never {});
    answer.map(Body::new)
}

/// Whether the size of the compressed response could disclose a secret to another site.
fn is_sensitive(path: &str, headers: &HeaderMap) -> bool {
    let is_secret = SECRET
        .iter()
        .any(|secret| path.strip_prefix(secret).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    let has_cookie = headers.contains_key(header::COOKIE);
    let is_own = headers.get(SEC_FETCH_SITE).is_none_or(|site| site == "same-origin" || site == "none");
    is_secret || has_cookie && !is_own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breach_responses_with_secrets_and_requests_of_other_sites_are_not_compressed() {
        for (path, cookie, site, expected) in [
            ("/v1/session", false, None, true),
            ("/v1/session/reauthenticate", true, Some("same-origin"), true),
            ("/v1/setup", false, None, true),
            ("/v1/sessions", true, Some("same-origin"), false),
            ("/v1/subscribers", true, Some("same-origin"), false),
            ("/v1/subscribers", true, Some("none"), false),
            ("/v1/subscribers", true, None, false),
            ("/v1/subscribers", true, Some("same-site"), true),
            ("/v1/subscribers", true, Some("cross-site"), true),
            // A key is never sent by a browser automatically.
            ("/v1/subscribers", false, Some("cross-site"), false),
        ] {
            let mut headers = HeaderMap::new();
            if cookie {
                headers.insert(header::COOKIE, "tocsin=1".parse().expect("a value"));
            }
            if let Some(site) = site {
                headers.insert(SEC_FETCH_SITE, site.parse().expect("a value"));
            }
            assert_eq!(is_sensitive(path, &headers), expected, "{path} {cookie} {site:?}");
        }
    }
}
