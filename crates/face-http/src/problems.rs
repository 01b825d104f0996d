//! Maps errors to problem details (RFC 9457), in one place. The response contains the remedy; the log contains the
//! cause.

pub(crate) mod codes; // kinds and codes
mod directory; // errors of the directory

use std::{error::Error, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use serde::Serialize;
use tocsin_http_server::idle_body::BodyIdle;
use tocsin_model::problem::{CredentialError, Problem, first_of};
use tocsin_service::{ServiceError, error::CredentialMisuse};
use tocsin_sync::{SyncError, SyncLimit};
use utoipa::ToSchema;

pub(crate) use self::codes::*;
use crate::{
    body_errors::CredentialEnded,
    error_codes::{ProblemCode, ProblemItem},
};

/// Problem details (RFC 9457).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// The kind, as an address of a page that explains it.
    #[serde(rename = "type")]
    kind: String,
    /// Machine-readable code, which never changes its meaning.
    #[schema(value_type = ProblemCode)]
    code: &'static str,
    /// The kind in words.
    title: &'static str,
    /// The status code.
    status: u16,
    /// Explanation of this occurrence.
    detail: String,
    /// The errors of the content.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<ProblemItem>>)]
    problems: Vec<Problem>,
    /// More, depending on the kind.
    #[serde(flatten)]
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    more: serde_json::Map<String, serde_json::Value>,
}

/// An error response.
#[derive(Debug)]
pub(crate) struct Failure(Box<Parts>);

#[derive(Debug)]
struct Parts {
    body: ProblemBody,
    headers: HeaderMap,
}

impl Failure {
    pub(crate) fn new(code: &DocumentCode, detail: impl Into<String>) -> Failure {
        let kind = code.kind;
        let body = ProblemBody {
            kind: format!("/problems/{}", kind.slug),
            code: code.word,
            title: kind.title,
            status: kind.status.as_u16(),
            detail: detail.into(),
            problems: Vec::new(),
            more: serde_json::Map::new(),
        };
        Failure(Box::new(Parts { body, headers: HeaderMap::new() }))
    }

    fn problems(mut self, problems: Vec<Problem>) -> Failure {
        self.0.body.problems = first_of(problems);
        self
    }

    /// Adds a member.
    pub(crate) fn with(mut self, name: &str, value: impl Serialize) -> Failure {
        let value = serde_json::to_value(value).expect("what is added is JSON");
        self.0.body.more.insert(name.to_owned(), value);
        self
    }

    fn header(mut self, name: header::HeaderName, value: HeaderValue) -> Failure {
        self.0.headers.insert(name, value);
        self
    }

    /// Closes the connection after the answer, as the rest of the body is not read.
    pub(crate) fn closing(self) -> Failure {
        self.header(header::CONNECTION, HeaderValue::from_static("close"))
    }

    fn retry_after(self, delay: Duration) -> Failure {
        self.header(header::RETRY_AFTER, HeaderValue::from(delay.as_secs_f64().ceil().max(1.0) as u64))
    }

    /// The code.
    pub(crate) fn code(&self) -> &'static str {
        self.0.body.code
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.body.status).expect("kinds have good status codes")
    }

    /// The status, and all that is wrong in one line.
    pub(crate) fn summary(&self) -> (StatusCode, String) {
        let body = &self.0.body;
        let described = |problem: &Problem| match problem.path.as_str() {
            "" => format!("; {}", problem.message),
            path => format!("; {path}: {}", problem.message),
        };
        let more: String = body.problems.iter().map(described).collect();
        (self.status(), format!("{}{more}", body.detail))
    }

    /// The body, to stand within another.
    pub(crate) fn into_body(self) -> ProblemBody {
        self.0.body
    }

    pub(crate) fn no_route(path: &str) -> Failure {
        Failure::new(ROUTE_NOT_FOUND, format!("nothing is at `{path}`")).with("see", "/openapi.json")
    }

    pub(crate) fn method_not_allowed() -> Failure {
        Failure::new(METHOD_NOT_ALLOWED_CODE, "this address does not know the method")
    }

    pub(crate) fn precondition(detail: impl Into<String>) -> Failure {
        Failure::new(PRECONDITION_FAILED, detail)
    }

    pub(crate) fn too_large(bytes_max: usize) -> Failure {
        Failure::new(BODY_TOO_LARGE, format!("the body is larger than {bytes_max} bytes"))
            .with("bytes_max", bytes_max)
            .closing()
    }

    pub(crate) fn timeout(detail: impl Into<String>) -> Failure {
        Failure::new(REQUEST_TIMEOUT, detail).closing()
    }

    pub(crate) fn unsupported(given: &str, supported: &[&str]) -> Failure {
        let detail =
            if given.is_empty() { "no media type is given".to_owned() } else { format!("`{given}` is not known here") };
        Failure::new(UNSUPPORTED_MEDIA_TYPE, detail).with("supported", supported).closing()
    }

    /// A content coding that the route does not take (RFC 9110, 15.5.16).
    pub(crate) fn packed(coding: &str) -> Failure {
        Failure::new(
            UNSUPPORTED_CONTENT_ENCODING,
            format!("a body with `Content-Encoding: {coding}` is not taken here: send it unpacked"),
        )
        .with("supported", ["identity"])
        .closing()
    }

    pub(crate) fn no_body_room() -> Failure {
        Failure::new(CONCURRENCY_LIMITED, "too many large bodies are on their way").retry_after(Duration::from_secs(1))
    }

    pub(crate) fn no_connection() -> Failure {
        Failure::new(TOO_MANY_CONNECTIONS, "too many connections are open").retry_after(Duration::from_secs(1))
    }

    pub(crate) fn not_answered(why: impl Into<String>) -> Failure {
        Failure::new(NOT_ANSWERED_CODE, why)
    }

    pub(crate) fn expired() -> Failure {
        Failure::new(NOT_ANSWERED_IN_TIME, "no receiver replied within the timeout of the receive port")
    }

    pub(crate) fn internal() -> Failure {
        Failure::new(INTERNAL_CODE, "the request could not be finished")
    }
}

fn code_of(cause: CredentialError) -> &'static DocumentCode {
    match cause {
        CredentialError::Required => CREDENTIALS_REQUIRED,
        CredentialError::Malformed => CREDENTIALS_MALFORMED,
        CredentialError::Unknown => CREDENTIALS_UNKNOWN,
        CredentialError::Expired => CREDENTIALS_EXPIRED,
        CredentialError::Revoked => CREDENTIALS_REVOKED,
        CredentialError::Changed => CREDENTIALS_CHANGED,
    }
}

fn misuse_code(misuse: CredentialMisuse) -> &'static DocumentCode {
    match misuse {
        CredentialMisuse::Several => SEVERAL_CREDENTIALS,
        CredentialMisuse::CsrfToken => CSRF_TOKEN,
        CredentialMisuse::CrossOrigin => CROSS_ORIGIN,
        CredentialMisuse::InsecureTransport => INSECURE_TRANSPORT,
        CredentialMisuse::PasswordsDisabled => PASSWORDS_DISABLED,
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        let detail = error.to_string();
        match error {
            ServiceError::Unauthenticated(cause, _) => Failure::new(code_of(cause), detail)
                .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tocsin\"")),
            ServiceError::LoginFailed(_) => Failure::new(LOGIN_FAILED, detail)
                .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tocsin\"")),
            ServiceError::NoRole => Failure::new(NO_ROLE, detail),
            ServiceError::LoginLocked(wait) => Failure::new(LOGIN_LOCKED, detail).retry_after(wait),
            ServiceError::ReauthenticationRequired => Failure::new(REAUTHENTICATION_REQUIRED, detail),
            ServiceError::LastAdminUser(_) => Failure::new(LAST_ADMIN_USER, detail),
            ServiceError::Misused(misuse, _) => Failure::new(misuse_code(misuse), detail),
            ServiceError::Forbidden(scope) => Failure::new(INSUFFICIENT_SCOPE, detail).with("scope", scope.word()),
            ServiceError::Limited(_) => Failure::new(OUTSIDE_RESOURCES, detail),
            ServiceError::Malformed(problem) => Failure::new(MALFORMED_BODY, detail).problems(vec![problem]),
            ServiceError::Invalid(problems) => Failure::new(INVALID_CONTENT, detail).problems(problems),
            ServiceError::Missing(_) => Failure::new(NOT_FOUND_CODE, detail),
            ServiceError::Taken(_) => Failure::new(ALREADY_EXISTS, detail),
            ServiceError::InUse { .. } => Failure::new(IN_USE_CODE, detail),
            ServiceError::Changed(_) => Failure::new(REVISION_CONFLICT, detail),
            ServiceError::WouldDrop(drops) => {
                let paths: Vec<&String> = drops.iter().filter_map(|found| found.drops.as_ref()).collect();
                let sentences: Vec<&String> = drops.iter().map(|found| &found.sentence).collect();
                Failure::new(WOULD_DROP_DATA, detail).with("drops", paths).with("sentences", sentences)
            }
            ServiceError::LastAdmin(_) => Failure::new(LAST_ADMIN_KEY, detail),
            ServiceError::KeyReused(batch) => Failure::new(IDEMPOTENCY_KEY_REUSED, detail).with("batch", batch),
            ServiceError::MessageKeyReused(message) => {
                Failure::new(IDEMPOTENCY_KEY_REUSED, detail).with("message", message)
            }
            ServiceError::Throttled { code, retry_after, .. } => {
                Failure::new(PORT_THROTTLED, detail).with("reason", code).retry_after(retry_after)
            }
            ServiceError::Full { retry_after, .. } => Failure::new(CAPACITY_EXCEEDED, detail).retry_after(retry_after),
            ServiceError::RateLimited { retry_after, .. } => {
                Failure::new(RATE_LIMITED, detail).retry_after(retry_after)
            }
            ServiceError::TooMany { retry_after, .. } => {
                Failure::new(CONCURRENCY_LIMITED, detail).retry_after(retry_after)
            }
            ServiceError::BrokenStream(source) => match body_failure(&*source) {
                Some(failure) => failure,
                None => Failure::new(INCOMPLETE_BODY, "the body broke off"),
            },
            ServiceError::Unavailable(source) => {
                tracing::error!(error = %source, "a request could not be done");
                Failure::new(UNAVAILABLE_CODE, detail).retry_after(Duration::from_secs(5))
            }
        }
    }
}

/// The response for a body that broke off, if the client caused it.
pub(crate) fn body_failure(error: &(dyn Error + 'static)) -> Option<Failure> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(idle) = error.downcast_ref::<BodyIdle>() {
            return Some(Failure::timeout(idle.to_string()));
        }
        if let Some(ended) = error.downcast_ref::<CredentialEnded>() {
            return Some(Failure::from(ServiceError::from(ended.0)).closing());
        }
        next = error.source();
    }
    None
}

impl From<SyncError> for Failure {
    fn from(error: SyncError) -> Self {
        let detail = error.to_string();
        match error {
            SyncError::Unauthenticated(cause, why) => ServiceError::Unauthenticated(cause, why).into(),
            SyncError::Forbidden(_) => Failure::new(DEVICE_NOT_PERMITTED, detail),
            SyncError::Invalid(problems) => ServiceError::Invalid(problems).into(),
            SyncError::Missing(what) => ServiceError::Missing(what).into(),
            SyncError::Changed(what) => ServiceError::Changed(what).into(),
            SyncError::Expired(_) => Failure::new(OUTDATED_CODE, detail),
            SyncError::Busy { limit: SyncLimit::Session, retry_after, .. } => {
                Failure::new(SYNC_SESSION_BUSY, detail).retry_after(retry_after)
            }
            SyncError::Busy { limit, retry_after, position, .. } => {
                let code = if limit == SyncLimit::Pool { SYNC_POOL_FULL } else { SYNC_WATCHERS_FULL };
                Failure::new(code, detail).retry_after(retry_after).with("position", position)
            }
            SyncError::Store(error) => ServiceError::from(error).into(),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response<Body> {
        let Parts { body, headers } = *self.0;
        let status = StatusCode::from_u16(body.status).expect("kinds have good status codes");
        let json = serde_json::to_vec(&body).expect("a problem is always JSON");
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_of_sync_has_its_code() {
        let code = |limit| {
            let (reason, retry_after) = ("full".to_owned(), Duration::from_secs(1));
            let body = Failure::from(SyncError::Busy { limit, reason, retry_after, position: 3 }).0.body;
            (body.code, body.status, body.more.contains_key("position"))
        };
        assert_eq!(code(SyncLimit::Pool), ("sync_pool_full", 503, true));
        assert_eq!(code(SyncLimit::Watchers), ("sync_watchers_full", 503, true));
        assert_eq!(code(SyncLimit::Session), ("sync_session_busy", 503, false));
    }
}
