//! Answers in gzip, for clients that accept it (RFC 9110, 12.5.3).
//!
//! Compressed answers have sizes that depend on their content. Where a browser sends its credential with requests of other
//! pages, an attacker reads secrets from these sizes (BREACH). No browser sends a credential of ours by itself: there are no cookies, and keys
//! stand in a header field that other pages cannot set. So nothing secret is compressed with what an attacker chose.

use axum::{body::Body, extract::Request, response::Response};
use tower::{Layer, ServiceExt};
use tower_http::{
    CompressionLevel,
    compression::{
        CompressionLayer, Predicate,
        predicate::{NotForContentType, SizeAbove},
    },
};

/// Answers of fewer bytes are sent as they are: packing them saves no packet.
const BYTES_MIN: u64 = 1_024;

/// Passes a request on, and compresses its answer if the client accepts that. Answers with an entity tag are sent as they
/// are, since a tag names one representation (RFC 9110, 8.8.3.3); so are streams of events and what is packed already.
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
