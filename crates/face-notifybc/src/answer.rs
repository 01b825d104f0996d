//! Answers, and errors as answers, in the form of NotifyBC.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderValue, Method, Response, StatusCode, header},
};
use serde::Serialize;
use serde_json::{Value, json};
use tocsin_notifybc::{query::QueryError, record::CastError, subscriptions::Answer};
use tocsin_service::notifybc::NotifybcError;

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// Pages have styles of their own, and send forms to this server only.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
);

/// A request that ends without its operation.
pub(crate) enum ErrorAnswer {
    /// The role has no permission.
    Forbidden,
    /// No endpoint has this method and path.
    NoRoute(Method, String),
    /// The body is not JSON, with the words of the parser.
    Syntax(String),
    /// The body is too long.
    TooLarge,
    /// The body has a content coding.
    Encoding(String),
    /// A limit of connections is reached.
    Busy,
    /// The limit of requests is reached; the next one is admitted after this time.
    TooFast(Duration),
    /// The operation is not available.
    NotImplemented,
    /// The operation failed.
    Failed(NotifybcError),
}

impl From<NotifybcError> for ErrorAnswer {
    fn from(error: NotifybcError) -> Self {
        ErrorAnswer::Failed(error)
    }
}

impl From<QueryError> for ErrorAnswer {
    fn from(error: QueryError) -> Self {
        ErrorAnswer::Failed(NotifybcError::Invalid(error.to_string()))
    }
}

impl From<CastError> for ErrorAnswer {
    fn from(error: CastError) -> Self {
        ErrorAnswer::Failed(NotifybcError::Invalid(error.to_string()))
    }
}

impl ErrorAnswer {
    pub(crate) fn answer(self) -> Response<Body> {
        // The rest of the body is not read, so the connection cannot be used again.
        let closes = matches!(self, ErrorAnswer::TooLarge | ErrorAnswer::Encoding(_));
        let retry_after = match &self {
            ErrorAnswer::TooFast(wait) => Some(wait.as_secs().saturating_add(1)),
            _ => None,
        };
        let (status, body) = match self {
            ErrorAnswer::Forbidden => {
                let body = json!({ "message": "Forbidden resource", "error": "Forbidden", "statusCode": 403 });
                (StatusCode::FORBIDDEN, body)
            }
            ErrorAnswer::NoRoute(method, path) => {
                let message = format!("Cannot {method} {path}");
                (StatusCode::NOT_FOUND, json!({ "message": message, "error": "Not Found", "statusCode": 404 }))
            }
            ErrorAnswer::Syntax(message) => {
                (StatusCode::BAD_REQUEST, json!({ "message": message, "error": "Bad Request", "statusCode": 400 }))
            }
            ErrorAnswer::TooLarge => failure(StatusCode::PAYLOAD_TOO_LARGE, Some("request entity too large")),
            ErrorAnswer::Encoding(name) => {
                failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some(&format!("unsupported content encoding \"{name}\"")))
            }
            ErrorAnswer::Busy => failure(StatusCode::SERVICE_UNAVAILABLE, Some("too many connections are open")),
            ErrorAnswer::TooFast(_) => failure(StatusCode::TOO_MANY_REQUESTS, Some("Too Many Requests")),
            ErrorAnswer::NotImplemented => failure(StatusCode::NOT_IMPLEMENTED, Some("Not Implemented")),
            ErrorAnswer::Failed(error) => match error {
                NotifybcError::Invalid(message) => failure(StatusCode::BAD_REQUEST, Some(&message)),
                NotifybcError::Unauthorized(message) => failure(StatusCode::UNAUTHORIZED, Some(&message)),
                NotifybcError::Refused(message) => failure(StatusCode::FORBIDDEN, message.as_deref()),
                NotifybcError::Missing => failure(StatusCode::NOT_FOUND, None),
                NotifybcError::TooMany => failure(StatusCode::TOO_MANY_REQUESTS, Some("Too Many Requests")),
                NotifybcError::Internal(reason) => {
                    tracing::error!(reason, "a request of the NotifyBC interface failed");
                    failure(StatusCode::INTERNAL_SERVER_ERROR, Some("Internal server error"))
                }
            },
        };
        let mut answer = json_answer(status, &body);
        if closes {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(seconds) = retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }
}

fn failure(status: StatusCode, message: Option<&str>) -> (StatusCode, Value) {
    let mut body = json!({ "statusCode": status.as_u16() });
    if let Some(message) = message {
        body["message"] = Value::from(message);
    }
    (status, body)
}

/// A JSON answer.
pub(crate) fn json_answer(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(body) => with_body(status, JSON, body),
        Err(error) => ErrorAnswer::Failed(NotifybcError::Internal(error.to_string())).answer(),
    }
}

/// A JSON answer with status 200.
pub(crate) fn ok(value: &impl Serialize) -> Response<Body> {
    json_answer(StatusCode::OK, value)
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    answer
}

/// A page.
pub(crate) fn page(html: String) -> Response<Body> {
    let mut answer = with_body(StatusCode::OK, HTML, html.into_bytes());
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, POLICY);
    answer
}

/// A redirect with status 302.
pub(crate) fn redirect(url: &str) -> Response<Body> {
    match HeaderValue::from_str(url) {
        Ok(location) => {
            let mut answer = with_body(StatusCode::FOUND, TEXT, format!("Found. Redirecting to {url}").into_bytes());
            answer.headers_mut().insert(header::LOCATION, location);
            answer
        }
        Err(_) => ErrorAnswer::Failed(NotifybcError::Internal(format!("`{url}` is not a URL"))).answer(),
    }
}

/// An answer of the subscription workflow.
pub(crate) fn workflow(answer: Answer) -> Response<Body> {
    match answer {
        Answer::Text { status, text } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            with_body(status, TEXT, text.into_bytes())
        }
        Answer::Redirect(url) => redirect(&url),
        Answer::Refused => ErrorAnswer::Failed(NotifybcError::Refused(None)).answer(),
    }
}

fn with_body(status: StatusCode, kind: HeaderValue, body: Vec<u8>) -> Response<Body> {
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(refusal: ErrorAnswer, status: u16, body: &str) {
        let answer = refusal.answer();
        assert_eq!((answer.status().as_u16(), answer.headers()[header::CONTENT_TYPE].clone()), (status, JSON));
        let bytes = axum::body::to_bytes(answer.into_body(), 4096).await.expect("a body");
        assert_eq!(String::from_utf8_lossy(&bytes), body);
    }

    #[tokio::test]
    async fn s4_1_errors_have_the_form_of_notifybc() {
        check(ErrorAnswer::Forbidden, 403, r#"{"message":"Forbidden resource","error":"Forbidden","statusCode":403}"#)
            .await;
        let none = ErrorAnswer::NoRoute(Method::GET, "/api/nothing".to_owned());
        check(none, 404, r#"{"message":"Cannot GET /api/nothing","error":"Not Found","statusCode":404}"#).await;
        check(ErrorAnswer::TooLarge, 413, r#"{"statusCode":413,"message":"request entity too large"}"#).await;
        check(NotifybcError::Missing.into(), 404, r#"{"statusCode":404}"#).await;
        check(NotifybcError::Refused(None).into(), 403, r#"{"statusCode":403}"#).await;
        let user = NotifybcError::Refused(Some("invalid user".to_owned()));
        check(user.into(), 403, r#"{"statusCode":403,"message":"invalid user"}"#).await;
        let internal = NotifybcError::Internal("details".to_owned());
        check(internal.into(), 500, r#"{"statusCode":500,"message":"Internal server error"}"#).await;
    }
}
