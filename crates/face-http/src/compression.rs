//! Response compression by gzip, for clients that accept it (RFC 9110, 12.5.3).
//!
//! The size of a compressed response depends on its content. Where a browser sends credentials automatically, an
//! attacker can derive secrets from these sizes (BREACH). This server has no such credentials: it sets no cookies, and
//! other pages cannot set the header with the key. So no secret is compressed together with text of an attacker.

use axum::{body::Body, extract::Request, response::Response};
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

/// Compresses the response if the client accepts gzip. Responses with an entity tag are not compressed, since a tag
/// names one representation (RFC 9110, 8.8.3.3); nor are event streams and encoded bodies.
pub(crate) async fn answer(router: axum::Router, request: Request) -> Response {
    if !request.headers().contains_key(axum::http::header::ACCEPT_ENCODING) {
        return router.oneshot(request).await.unwrap_or_else(|never| match never {});
    }
    let untagged = |_, _, headers: &axum::http::HeaderMap, _: &axum::http::Extensions| {
        !headers.contains_key(axum::http::header::ETAG)
    };
    let worth = SizeAbove::new(BYTES_MIN)
        .and(NotForContentType::new("text/event-stream"))
        .and(NotForContentType::IMAGES)
        .and(untagged);
    let layer = CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(worth);
    let answer = layer.layer(router).oneshot(request).await.unwrap_or_else(|never| match never {});
    answer.map(Body::new)
}
