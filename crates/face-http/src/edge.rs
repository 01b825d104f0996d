//! Middleware of every request: request id, security headers, metrics, and a response even after a panic. Then the
//! origin check and authentication.

use std::{
    collections::HashMap,
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
use parking_lot::RwLock;
use ring::rand::{SecureRandom, SystemRandom};

use crate::{State, conditions, idempotency, origins::origins, problems::Failure, scim};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Content security policy: no external resources, no inline scripts, no framing.
const POLICY: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

pub(crate) async fn edge(state: State, request: Request, next: Next) -> Response<Body> {
    let started = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let known = KnownEtags::of(&request);
    let id = request.headers().get(REQUEST_ID).filter(|id| is_fair(id)).cloned().unwrap_or_else(fresh_id);
    let is_scim = scim::is_here(request.uri().path());
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
    if response.status() == StatusCode::OK && response.headers().get(header::ETAG).is_some_and(|tag| known.has(tag)) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(header::CONTENT_TYPE);
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    state.measures.request(route, &method, response.status(), started);
    response
}

/// Entity tags that the caller has cached, by `If-None-Match` (RFC 9110, 13.1.2). They apply to reads only; changes
/// have their own conditions.
struct KnownEtags(Vec<HeaderValue>);

impl KnownEtags {
    fn of(request: &Request) -> KnownEtags {
        match *request.method() {
            Method::GET | Method::HEAD => {
                KnownEtags(request.headers().get_all(header::IF_NONE_MATCH).iter().cloned().collect())
            }
            _ => KnownEtags(Vec::new()),
        }
    }

    fn has(&self, tag: &HeaderValue) -> bool {
        self.0.iter().any(|value| conditions::names(value.as_bytes(), tag.as_bytes()))
    }
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

/// Metric handles, cached by route, so that a request needs a look-up but no registration. Labels are bounded: routes
/// are templates, methods and statuses come from fixed sets.
#[derive(Default)]
pub(crate) struct Measures {
    known: RwLock<HashMap<String, Vec<Measure>>>,
}

struct Measure {
    method: Method,
    status: StatusCode,
    requests: metrics::Counter,
    duration: metrics::Histogram,
}

impl Measure {
    fn new(route: &str, method: &Method, status: StatusCode) -> Measure {
        let (route, word, code) = (route.to_owned(), method_word(method), status.as_u16().to_string());
        Measure {
            method: method.clone(),
            status,
            duration: metrics::histogram!("tocsin_http_request_duration_seconds", "route" => route.clone(), "method" => word),
            requests: metrics::counter!("tocsin_http_requests_total", "route" => route, "method" => word, "status" => code),
        }
    }

    fn count(&self, started: Instant) {
        self.requests.increment(1);
        self.duration.record(started.elapsed().as_secs_f64());
    }
}

impl Measures {
    fn request(&self, route: &str, method: &Method, status: StatusCode, started: Instant) {
        let is_this = |measure: &&Measure| measure.status == status && measure.method == *method;
        if let Some(measure) = self.known.read().get(route).and_then(|of_route| of_route.iter().find(is_this)) {
            return measure.count(started);
        }
        let measure = Measure::new(route, method, status);
        measure.count(started);
        // Unknown methods share one label, and their handles are not cached.
        if method_word(method) != "other" {
            self.known.write().entry(route.to_owned()).or_default().push(measure);
        }
    }
}

fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
