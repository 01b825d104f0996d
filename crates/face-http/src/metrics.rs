//! What is measured here, in one list. The reference page is generated from it.

use tocsin_exchange::{groups::GroupLoad, locations::LocationStatus};
use tocsin_service::status::{DestinationState, SourceState, Status};

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
        name: "http_write_timeouts_total",
        kind: Kind::Counter,
        labels: "",
        help: "Connections closed because their clients read nothing of an answer.",
    },
    Metric {
        name: "http_connections_refused_total",
        kind: Kind::Counter,
        labels: "",
        help: "Connections that were told 503 because too many were open.",
    },
    Metric {
        name: "http_ambiguous_requests_total",
        kind: Kind::Counter,
        labels: "",
        help: "Requests refused because intermediaries may read their framing otherwise (RFC 9112): attempts to smuggle a request.",
    },
    Metric {
        name: "http_rate_limited_total",
        kind: Kind::Counter,
        labels: "by",
        help: "Requests answered 429 because a `key` or token, or an `address` without a good key, sent too many.",
    },
    Metric {
        name: "scim_changes_total",
        kind: Kind::Counter,
        labels: "change, outcome",
        help: "Changes by SCIM: create, replace, patch, delete or bulk; done, refused or failed.",
    },
    Metric { name: "inbox_streams", kind: Kind::Gauge, labels: "", help: "Streams of feeds that are open." },
    Metric {
        name: "inbox_streams_dropped_total",
        kind: Kind::Counter,
        labels: "",
        help: "Streams of feeds that were ended because their reader was too slow.",
    },
];

/// What waits and what is stored: read from the service whenever the page is asked for.
pub const GAUGES: &[Metric] = &[
    gauge("backlog_event_batches", "Event batches that wait to be matched."),
    gauge("backlog_events", "Events in them."),
    gauge("backlog_event_bytes", "Packed bytes of them."),
    gauge("backlog_oldest_event_seconds", "Since when the oldest of them waits; 0 if none does."),
    gauge("backlog_failed_batches", "Event batches set aside because matching failed."),
    gauge("backlog_work_items", "Work items that are due, claimed or wait for their retry."),
    gauge("backlog_notifications", "Notifications in them."),
    gauge("backlog_suspended_notifications", "Notifications that wait for an operator."),
    gauge("records_subscribers", "Subscribers that are stored."),
    gauge("records_devices", "Devices of them."),
    gauge("records_subscriptions", "Subscriptions that are stored."),
    gauge("inbox_items", "Items that the feeds of all subscribers hold."),
    gauge("inbox_contents", "Texts that are kept for them and for broadcasts; what many are told is one."),
    Metric {
        name: "match_indexed_subscriptions",
        kind: Kind::Gauge,
        labels: "application",
        help: "Subscriptions in the match index.",
    },
    Metric {
        name: "match_unusable_subscriptions",
        kind: Kind::Gauge,
        labels: "application",
        help: "Subscriptions that the running version cannot match; `tocsin rule unusable` lists them.",
    },
    Metric {
        name: "match_filters",
        kind: Kind::Gauge,
        labels: "application",
        help: "Distinct filters of subscriptions; one that several shards have counts on each.",
    },
    Metric {
        name: "match_unindexed_filters",
        kind: Kind::Gauge,
        labels: "application",
        help: "Those of them that are looked at for every event.",
    },
    Metric {
        name: "match_filter_groups",
        kind: Kind::Gauge,
        labels: "application",
        help: "Places in the index in which their alternatives are filed.",
    },
    Metric { name: "match_index_bytes", kind: Kind::Gauge, labels: "application", help: "Memory of the match index." },
    Metric { name: "match_index_shards", kind: Kind::Gauge, labels: "application", help: "Shards of the match index." },
    Metric {
        name: "match_index_changes_behind",
        kind: Kind::Gauge,
        labels: "application",
        help: "Changes of the records that the match index has not followed yet.",
    },
    Metric {
        name: "deliver_destinations",
        kind: Kind::Gauge,
        labels: "application, channel, state",
        help: "Destinations that are known, by state: open, trial, paused, stalled; see `tocsin destinations`.",
    },
    Metric {
        name: "source_state",
        kind: Kind::Gauge,
        labels: "application, source, state",
        help: "1 for the state that a source is in: starting, running, waiting, held, backing_off, failed; see `tocsin sources`.",
    },
    gauge("platform_ready", "1 if every match index is built, 0 otherwise."),
];

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels: "", help }
}

/// Sets the gauges. Costs no look at any store.
pub(crate) fn measure(status: &Status) {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a double; what it counts is far below 2^53")]
    fn set(name: &'static str, value: u64) {
        metrics::gauge!(name).set(value as f64);
    }
    let Status { backlog, counts, .. } = status;
    set("backlog_event_batches", backlog.event_batches);
    set("backlog_events", backlog.events);
    set("backlog_event_bytes", backlog.event_bytes);
    let oldest = backlog.oldest_event.map_or(0.0, |at| status.now.since(at).as_secs_f64());
    metrics::gauge!("backlog_oldest_event_seconds").set(oldest);
    set("backlog_failed_batches", backlog.failed_batches);
    set("backlog_work_items", backlog.work_items);
    set("backlog_notifications", backlog.notifications);
    set("backlog_suspended_notifications", backlog.suspended);
    set("records_subscribers", counts.subscribers);
    set("records_devices", counts.devices);
    set("records_subscriptions", counts.subscriptions);
    set("inbox_items", status.inbox.items);
    set("inbox_contents", status.inbox.contents);
    set("platform_ready", status.ready.into());
    for (name, application) in &status.applications {
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let set = |metric: &'static str, value: u64| {
            metrics::gauge!(metric, "application" => name.to_string()).set(value as f64);
        };
        set("match_indexed_subscriptions", application.indexed);
        set("match_unusable_subscriptions", application.unusable);
        set("match_filters", application.filters);
        set("match_unindexed_filters", application.scanned_filters);
        set("match_filter_groups", application.filter_groups);
        set("match_index_bytes", application.index_bytes);
        set("match_index_shards", application.shards);
        set("match_index_changes_behind", application.changes_behind);
    }
    for (application, channel, counts) in &status.destinations {
        for (state, count) in DestinationState::ALL.into_iter().zip(counts) {
            let gauge = metrics::gauge!(
                "deliver_destinations",
                "application" => application.to_string(), "channel" => channel.to_string(), "state" => state.word()
            );
            #[expect(clippy::cast_precision_loss, reason = "as above")]
            gauge.set(*count as f64);
        }
    }
    for GroupLoad { group, busy, waiting, most } in &status.workers {
        for (state, count) in [("busy", busy), ("waiting", waiting), ("most", most)] {
            let gauge = metrics::gauge!("exchange_workers", "group" => group.word(), "state" => state);
            #[expect(clippy::cast_precision_loss, reason = "as above")]
            gauge.set(*count as f64);
        }
    }
    for LocationStatus { key, health, .. } in &status.locations {
        for state in SourceState::ALL {
            let labels = [
                ("exchange", key.exchange.to_string()),
                ("port", key.port.to_string()),
                ("location", key.location.to_string()),
                ("state", state.word().to_owned()),
            ];
            metrics::gauge!("exchange_location_state", &labels).set(if health.state == state { 1.0 } else { 0.0 });
        }
    }
    for (application, source) in &status.sources {
        for state in SourceState::ALL {
            let gauge = metrics::gauge!(
                "source_state",
                "application" => application.to_string(), "source" => source.source.to_string(), "state" => state.word()
            );
            gauge.set(if source.state == state.word() { 1.0 } else { 0.0 });
        }
    }
}

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
