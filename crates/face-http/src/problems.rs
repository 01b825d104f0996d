//! Maps errors to problem details (RFC 9457), in one place. The response contains the remedy; the log contains the
//! cause.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use serde::Serialize;
use tocsin_model::problem::{CredentialError, Problem, first_of};
use tocsin_service::ServiceError;
use tocsin_sync::SyncError;
use utoipa::ToSchema;

/// The kinds of problems: `type`, title, status and page.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) slug: &'static str,
    pub(crate) title: &'static str,
    pub(crate) status: StatusCode,
    pub(crate) help: &'static str,
}

macro_rules! kinds {
    ($($name:ident $slug:literal $status:ident $title:literal $help:literal;)*) => {
        $(const $name: &Kind = &Kind { slug: $slug, title: $title, status: StatusCode::$status, help: $help };)*
        /// All kinds, for their pages.
        pub(crate) const KINDS: &[&Kind] = &[$($name),*];
    };
}

kinds! {
    MALFORMED "malformed" BAD_REQUEST "The request cannot be read"
        "The body, an address or a parameter does not have the form it should. If known, `problems` has the line and column.";
    UNAUTHENTICATED "unauthenticated" UNAUTHORIZED "A good key is needed"
        "Send `Authorization: Bearer tocsin_...` with a key that exists, has not been removed and has not expired. A request that was waiting when its key ended may have done its work: look before you repeat it.";
    FORBIDDEN "forbidden" FORBIDDEN "The key may not do this"
        "The key is valid but lacks the scope named in `scope`. Create a key with this scope, or ask an administrator.";
    NOT_FOUND "not-found" NOT_FOUND "There is no such thing"
        "Nothing is at this address: it never was, or it has been removed.";
    METHOD_NOT_ALLOWED "method-not-allowed" METHOD_NOT_ALLOWED "The method is not for this address"
        "The header `Allow` names the methods that are.";
    TIMEOUT "timeout" REQUEST_TIMEOUT "The request took too long"
        "The body paused for too long. Send it again, without a pause.";
    TAKEN "exists" CONFLICT "It exists already"
        "Something of this name exists. Change it, or choose another name.";
    IN_USE "in-use" CONFLICT "Something else needs it"
        "`detail` says what. Change that first, then try again.";
    WOULD_DROP "would-drop-data" CONFLICT "Applying this would drop data"
        "Each of `drops` is stored and would be lost from sight. Keep it in the definition, or allow it by its name: `?allow_drop=a.b,c.d`.";
    LAST_ADMIN "last-admin-key" CONFLICT "It is the last admin key"
        "Without a key of the scope `admin` no further keys could be created. Create another one first, then remove this one.";
    KEY_REUSED "idempotency-key-reused" CONFLICT "The idempotency key came before with other content"
        "A key stands for one content. Send the same content again, or choose a new key.";
    OUTDATED "outdated" GONE "It is too old"
        "The cursor or the session says less than the device needs by now. Begin a session anew; edits that were not sent are sent first.";
    CHANGED "changed" PRECONDITION_FAILED "It has changed in the meantime"
        "`If-Match` named a revision that is not the present one, or `If-None-Match: *` met something. Read it again.";
    TOO_LARGE "too-large" PAYLOAD_TOO_LARGE "The body is too large"
        "`bytes_max` says how much fits. Many things at once go by the streaming imports and application/x-ndjson.";
    UNSUPPORTED "unsupported-media-type" UNSUPPORTED_MEDIA_TYPE "The body's media type is not known here"
        "`supported` names those that are. Set `Content-Type`.";
    INVALID "invalid" UNPROCESSABLE_ENTITY "The content is not valid"
        "The body is well-formed but invalid: `problems` lists each error with its path and the expected value.";
    TOO_MANY "too-many" TOO_MANY_REQUESTS "Too much at once"
        "A bound is reached. Nothing was stored. Try again after the time that `Retry-After` names.";
    NOT_ANSWERED "not-answered" BAD_GATEWAY "There is no reply now"
        "The request is stored, but no receiver answered it: `detail` has the reason. It is suspended, or was cancelled by an operator. Repeat it with the same `Idempotency-Key`, or look at `reply`.";
    EXPIRED "not-answered-in-time" GATEWAY_TIMEOUT "No reply in time"
        "The timeout of the receive port has passed. A later reply is stored, but not returned.";
    INTERNAL "internal" INTERNAL_SERVER_ERROR "Something broke"
        "This is a fault of the platform. The log knows more, by the request's `X-Request-Id`.";
    BUSY "busy" SERVICE_UNAVAILABLE "There is no room just now"
        "The disk or a bound is full. Nothing was stored. Try again after the time that `Retry-After` names.";
    UNAVAILABLE "unavailable" SERVICE_UNAVAILABLE "Not possible at the moment"
        "A part of the platform does not answer. Nothing was acknowledged. Try again after the time that `Retry-After` names.";
}

/// A code of problem documents: one case of a kind.
#[derive(Debug)]
pub(crate) struct DocumentCode {
    pub(crate) word: &'static str,
    pub(crate) kind: &'static Kind,
    pub(crate) meaning: &'static str,
}

macro_rules! document_codes {
    ($($name:ident $word:literal $kind:ident $meaning:literal;)*) => {
        $(pub(crate) const $name: &DocumentCode = &DocumentCode { word: $word, kind: $kind, meaning: $meaning };)*
        /// All codes of problem documents.
        pub(crate) const DOCUMENT_CODES: &[&DocumentCode] = &[$($name),*];
    };
}

document_codes! {
    MALFORMED_REQUEST "malformed_request" MALFORMED "The request line or the header `Host` is not valid.";
    MALFORMED_PATH "malformed_path" MALFORMED "A segment of the path does not have its form, such as an id.";
    MALFORMED_QUERY "malformed_query" MALFORMED "The query has an unknown parameter, or a value of the wrong type.";
    MALFORMED_HEADER "malformed_header" MALFORMED "A header field does not have its form.";
    UNSUPPORTED_HEADER "unsupported_header" MALFORMED "The route does not evaluate this header field.";
    MALFORMED_BODY "malformed_body" MALFORMED "The body is not valid in its media type; `problems` has the position.";
    INCOMPLETE_BODY "incomplete_body" MALFORMED "The connection ended before the end of the body.";
    CONFIRMATION_REQUIRED "confirmation_required" MALFORMED "The operation needs the parameter `confirm`.";
    CREDENTIALS_REQUIRED "credentials_required" UNAUTHENTICATED "The request has no key or token.";
    CREDENTIALS_MALFORMED "credentials_malformed" UNAUTHENTICATED "The header `Authorization` does not have its form.";
    CREDENTIALS_UNKNOWN "credentials_unknown" UNAUTHENTICATED "The key or token does not exist.";
    CREDENTIALS_EXPIRED "credentials_expired" UNAUTHENTICATED "The key or token has expired.";
    CREDENTIALS_REVOKED "credentials_revoked" UNAUTHENTICATED "The key or token was revoked.";
    CREDENTIALS_CHANGED "credentials_changed" UNAUTHENTICATED
        "The scopes of the key were changed during the request; send it again.";
    INSUFFICIENT_SCOPE "insufficient_scope" FORBIDDEN "The key lacks the scope in `scope`.";
    OUTSIDE_RESOURCES "outside_resources" FORBIDDEN "The key is limited to other resources.";
    DEVICE_NOT_PERMITTED "device_not_permitted" FORBIDDEN "The token of the device does not permit this.";
    NOT_FOUND_CODE "not_found" NOT_FOUND "The object does not exist, or is outside of the resources of the key.";
    ROUTE_NOT_FOUND "route_not_found" NOT_FOUND "There is no route with this path.";
    METHOD_NOT_ALLOWED_CODE "method_not_allowed" METHOD_NOT_ALLOWED "The route does not support the method.";
    REQUEST_TIMEOUT "request_timeout" TIMEOUT "The body arrived too slowly.";
    ALREADY_EXISTS "already_exists" TAKEN "An object of this name exists.";
    IN_USE_CODE "in_use" IN_USE "Another object refers to this one.";
    WOULD_DROP_DATA "would_drop_data" WOULD_DROP "The definition would drop stored data; `drops` lists the paths.";
    LAST_ADMIN_KEY "last_admin_key" LAST_ADMIN "The key is the last one with the scope `admin`.";
    IDEMPOTENCY_KEY_REUSED "idempotency_key_reused" KEY_REUSED "The idempotency key was used for other content.";
    OUTDATED_CODE "outdated" OUTDATED "The cursor or session is too old.";
    PRECONDITION_FAILED "precondition_failed" CHANGED "`If-Match` or `If-None-Match` does not hold.";
    REVISION_CONFLICT "revision_conflict" CHANGED "The object was changed by another request in the meantime.";
    BODY_TOO_LARGE "body_too_large" TOO_LARGE "The body is larger than `bytes_max`.";
    UNSUPPORTED_MEDIA_TYPE "unsupported_media_type" UNSUPPORTED
        "The route does not support the media type of the body.";
    UNSUPPORTED_CONTENT_ENCODING "unsupported_content_encoding" UNSUPPORTED
        "The route does not support the content coding of the body.";
    INVALID_CONTENT "invalid_content" INVALID "The content is not valid; each of `problems` has a code.";
    RATE_LIMITED "rate_limited" TOO_MANY "The key or the address sends more requests per second than allowed.";
    CONCURRENCY_LIMITED "concurrency_limited" TOO_MANY "Too many requests of this kind run at the same time.";
    NOT_ANSWERED_CODE "not_answered" NOT_ANSWERED "No receiver answered the message.";
    NOT_ANSWERED_IN_TIME "not_answered_in_time" EXPIRED "No receiver answered within the timeout of the receive port.";
    INTERNAL_CODE "internal" INTERNAL "The server failed.";
    CAPACITY_EXCEEDED "capacity_exceeded" BUSY "A queue, the disk or another limit of the server is full.";
    PORT_THROTTLED "port_throttled" BUSY "The receive port accepts no message now; `reason` has the cause.";
    SYNC_POOL_FULL "sync_pool_full" BUSY
        "Too many devices synchronize at the same time; `position` is the place in the queue.";
    TOO_MANY_CONNECTIONS "too_many_connections" BUSY "Too many connections are open.";
    UNAVAILABLE_CODE "unavailable" UNAVAILABLE "A part of the server does not answer.";
}

/// Problem details (RFC 9457).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// The kind, as an address of a page that explains it.
    #[serde(rename = "type")]
    kind: String,
    /// Machine-readable code, which never changes its meaning.
    #[schema(value_type = crate::error_codes::ProblemCode)]
    code: &'static str,
    /// The kind in words.
    title: &'static str,
    /// The status code.
    status: u16,
    /// Explanation of this occurrence.
    detail: String,
    /// The errors of the content.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<crate::wire::ProblemItem>>)]
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
        Failure::new(UNSUPPORTED_MEDIA_TYPE, detail).with("supported", supported)
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

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        let detail = error.to_string();
        match error {
            ServiceError::Unauthenticated(cause, _) => Failure::new(code_of(cause), detail)
                .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tocsin\"")),
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
            ServiceError::BrokenStream(source) => match crate::request::body_failure(&*source) {
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
            SyncError::Busy { retry_after, position, .. } => {
                Failure::new(SYNC_POOL_FULL, detail).retry_after(retry_after).with("position", position)
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
