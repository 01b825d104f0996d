//! Metrics of requests.

use std::{collections::HashMap, time::Instant};

use axum::http::{Method, StatusCode};
use parking_lot::RwLock;

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
    pub(crate) fn request(&self, route: &str, method: &Method, status: StatusCode, started: Instant) {
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
