//! Middleware of every request: request id, security headers, metrics, and a response even after a panic. Then the
//! origin check and authentication.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::{HeaderName, HeaderValue, Method, Response, StatusCode, header},
    middleware::Next,
    response::IntoResponse,
};
use futures_util::FutureExt;
use ring::rand::{SecureRandom, SystemRandom};

use crate::{app::State, audit::RequestId, conditions, idempotency, origins::origins, problems::Failure, scim};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Content security policy: no external resources, no inline scripts, no framing.
const POLICY: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

pub(crate) async fn edge(state: State, mut request: Request, next: Next) -> Response<Body> {
    let started = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let conditions = ReadConditions::of(&request);
    let id = request.headers().get(REQUEST_ID).filter(|id| is_fair(id)).cloned().unwrap_or_else(fresh_id);
    request.extensions_mut().insert(RequestId(id.clone()));
    let is_scim = scim::is_scim_path(request.uri().path());
    let failed = |failure: Failure| if is_scim { scim::failed(failure) } else { failure.into_response() };
    let path = route.as_ref().map(MatchedPath::as_str);
    let refused = idempotency::refuse(&request, path).or_else(|| conditions::refuse(&request, path));
    let handled = async {
        match refused {
            Some(failure) => failed(failure),
            None => origins(state.clone(), request, next).await,
        }
    };
    let mut response = match AssertUnwindSafe(handled).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            let route = route.as_ref().map_or("none", MatchedPath::as_str);
            tracing::error!(route, request = ?id, "a request broke its handler");
            Failure::internal().into_response()
        }
    };
    match conditions.result(&response) {
        ReadResult::Met => {}
        ReadResult::Failed => {
            let unmet = failed(Failure::precondition("its tag is none of those in `If-Match`"));
            response = with_shared_headers(unmet, &response);
        }
        ReadResult::NotModified => {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.body_mut() = Body::empty();
            // RFC 9110, 15.4.5: ETag, Location and caching fields are kept; representation metadata is removed.
            for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::CONTENT_ENCODING] {
                response.headers_mut().remove(name);
            }
        }
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    state.measures.request(route, &method, response.status(), started);
    response
}

/// Conditions of a read, by `If-Match` and `If-None-Match` (RFC 9110, 13.1). Changes have their own conditions. No
/// response has a modification date, so `If-Modified-Since` and `If-Unmodified-Since` are ignored (13.1.3, 13.1.4).
#[derive(Default)]
struct ReadConditions {
    matching: Vec<HeaderValue>,
    none_matching: Vec<HeaderValue>,
}

/// Result of the conditions of a read.
#[derive(Debug, PartialEq)]
enum ReadResult {
    /// The response is sent.
    Met,
    /// `If-Match` names another state: 412.
    Failed,
    /// The client has this state: 304.
    NotModified,
}

impl ReadConditions {
    fn of(request: &Request) -> ReadConditions {
        let given = |name| request.headers().get_all(name).iter().cloned().collect();
        match *request.method() {
            Method::GET | Method::HEAD => {
                ReadConditions { matching: given(header::IF_MATCH), none_matching: given(header::IF_NONE_MATCH) }
            }
            _ => ReadConditions::default(),
        }
    }

    /// Evaluates the conditions in the order of RFC 9110, 13.2.2. Only a successful response is subject to them
    /// (13.2.1).
    fn result(&self, response: &Response<Body>) -> ReadResult {
        if response.status() != StatusCode::OK {
            return ReadResult::Met;
        }
        let tag = response.headers().get(header::ETAG).map_or(&b""[..], HeaderValue::as_bytes);
        let any = |lists: &[HeaderValue], names: fn(&[u8], &[u8]) -> bool| {
            lists.iter().any(|list| names(list.as_bytes(), tag))
        };
        if !self.matching.is_empty() && !any(&self.matching, conditions::is_same) {
            return ReadResult::Failed;
        }
        let is_known = !tag.is_empty() && any(&self.none_matching, conditions::names);
        if is_known { ReadResult::NotModified } else { ReadResult::Met }
    }
}

/// A failure in place of a response, with the headers by which browsers and caches assign it to an origin.
fn with_shared_headers(mut failure: Response<Body>, response: &Response<Body>) -> Response<Body> {
    let shared = [header::ACCESS_CONTROL_ALLOW_ORIGIN, header::ACCESS_CONTROL_EXPOSE_HEADERS, header::VARY];
    for name in shared {
        for value in response.headers().get_all(&name) {
            failure.headers_mut().append(name.clone(), value.clone());
        }
    }
    failure
}

/// A received request id is kept if it is safe to log.
fn is_fair(id: &HeaderValue) -> bool {
    let id = id.as_bytes();
    (1..=128).contains(&id.len()) && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte))
}

fn fresh_id() -> HeaderValue {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    static PROCESS: LazyLock<u32> = LazyLock::new(|| {
        let mut random = [0; 4];
        // Without randomness, ids repeat after restarts, which is harmless.
        let _ = SystemRandom::new().fill(&mut random);
        u32::from_le_bytes(random)
    });
    let id = format!("{:08x}-{:x}", *PROCESS, COUNT.fetch_add(1, Ordering::Relaxed));
    HeaderValue::try_from(id).expect("hexadecimal digits are a header value")
}
