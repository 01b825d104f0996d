//! What is measured here, in one list. The reference page is generated from it.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts and sums, by bucket or quantile.
    Histogram,
}

/// A metric, described.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name, with its unit.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels, with commas between.
    pub labels: &'static str,
    /// What it tells.
    pub help: &'static str,
}

/// The metrics of the HTTP face.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "http_requests_total",
        kind: Kind::Counter,
        labels: "route, method, status",
        help: "Requests answered. The route is its template, such as `/v1/subscribers/{id}`, or `none`.",
    },
    Metric {
        name: "http_request_duration_seconds",
        kind: Kind::Histogram,
        labels: "route, method",
        help: "From the head of a request to the head of its answer.",
    },
    Metric { name: "http_connections", kind: Kind::Gauge, labels: "", help: "Connections that are open." },
    Metric {
        name: "http_connections_refused_total",
        kind: Kind::Counter,
        labels: "",
        help: "Connections that were told 503 because too many were open.",
    },
];

/// Tells an installed recorder what the metrics of a list mean.
pub fn describe(metrics: &[Metric]) {
    for metric in metrics {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Kind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
        }
    }
}

/// A section of the reference page.
pub fn reference(metrics: &[Metric]) -> String {
    let mut out = String::from("| metric | kind | labels | what it tells |\n|---|---|---|---|\n");
    for Metric { name, kind, labels, help } in metrics {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        out.push_str(&format!("| `{name}` | {kind} | {labels} | {help} |\n"));
    }
    out
}
