//! Responses that routes share.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::problems::ProblemBody;

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: &impl serde::Serialize) -> Response {
    let bytes = serde_json::to_vec(body).expect("what is answered is always JSON");
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], bytes).into_response()
}

/// A JSON response with the revision as its entity tag.
pub(crate) fn tagged(status: StatusCode, revision: u64, body: &impl serde::Serialize) -> Response {
    let mut response = json(status, body);
    response.headers_mut().insert(header::ETAG, etag(revision));
    response
}

pub(crate) fn etag(revision: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{revision}\"")).expect("a quoted number is a header value")
}

/// Adds the `Location` of a created resource.
pub(crate) fn located(mut response: Response, path: String) -> Response {
    if let Ok(path) = HeaderValue::try_from(path) {
        response.headers_mut().insert(header::LOCATION, path);
    }
    response
}

/// Writes one segment of a path.
pub(crate) fn segment(text: &str) -> String {
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
pub(crate) fn created(is_new: bool) -> StatusCode {
    if is_new { StatusCode::CREATED } else { StatusCode::OK }
}

/// Responses common to all routes.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code)]
pub(crate) enum Failures {
    /// A problem of RFC 9457; its type says what to do.
    #[response(status = "default", content_type = "application/problem+json")]
    Problem(#[to_schema] ProblemBody),
}
