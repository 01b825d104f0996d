//! Responses in the media type of SCIM.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::Value as Json;

/// An answer in the media type of SCIM.
pub(super) fn answer(status: StatusCode, body: &Json) -> Response {
    let kind = HeaderValue::from_static("application/scim+json");
    (status, [(header::CONTENT_TYPE, kind)], body.to_string()).into_response()
}
