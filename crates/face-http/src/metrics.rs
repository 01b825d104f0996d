//! Metrics of this crate in one list, from which the reference page is generated.

use tocsin_exchange::{groups::GroupLoad, locations::LocationStatus};
use tocsin_service::status::{DestinationState, SourceState, Status};

/// Description of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Monotonic.
    Counter,
    /// A present value.
    Gauge,
    /// A distribution, by bucket or quantile.
    Histogram,
}

/// A metric, described.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name, with its unit.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// Its labels, with commas between.
    pub labels: &'static str,
    /// Help text.
    pub help: &'static str,
}

/// The metrics of the HTTP face.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "tocsin_console_logins_total",
        kind: Kind::Counter,
        labels: "way, outcome",
        help: "Logins of users of the console. The way is `password`, `link`, `setup` or `openid`; the outcome `succeeded`, `failed`, `locked` or `no_role`.",
    },
    Metric {
        name: "tocsin_console_sessions",
        kind: Kind::Gauge,
        labels: "",
        help: "Sessions of users of the console that have not ended, updated every minute.",
    },
    Metric {
        name: "tocsin_http_requests_total",
        kind: Kind::Counter,
        labels: "route, method, status",
        help: "Requests answered. The route is its template, such as `/v1/subscribers/{id}`, or `none`.",
    },
    Metric {
        name: "tocsin_http_request_duration_seconds",
        kind: Kind::Histogram,
        labels: "route, method",
        help: "Time from the head of a request to the head of its response.",
    },
    Metric { name: "tocsin_http_connections", kind: Kind::Gauge, labels: "", help: "Open connections." },
    Metric {
        name: "tocsin_http_write_timeouts_total",
        kind: Kind::Counter,
        labels: "",
        help: "Connections closed because the client does not read the response.",
    },
    Metric {
        name: "tocsin_http_connections_refused_total",
        kind: Kind::Counter,
        labels: "",
        help: "Connections answered with 503 at the connection limit.",
    },
    Metric {
        name: "tocsin_http_ambiguous_requests_total",
        kind: Kind::Counter,
        labels: "",
        help: "Requests refused because intermediaries may read their framing differently (RFC 9112): request smuggling.",
    },
    Metric {
        name: "tocsin_http_rate_limited_total",
        kind: Kind::Counter,
        labels: "by",
        help: "Requests answered with 429: rate limit of a `key` or token, or of an `address` without a valid key.",
    },
    Metric {
        name: "tocsin_scim_changes_total",
        kind: Kind::Counter,
        labels: "change, outcome",
        help: "SCIM changes: create, replace, patch, delete or bulk; done, refused or failed.",
    },
    Metric { name: "tocsin_live_streams", kind: Kind::Gauge, labels: "", help: "Open live streams of the console." },
    Metric {
        name: "tocsin_live_streams_dropped_total",
        kind: Kind::Counter,
        labels: "",
        help: "Live streams ended because the reader is too slow.",
    },
    Metric { name: "tocsin_inbox_streams", kind: Kind::Gauge, labels: "", help: "Open inbox streams." },
    Metric {
        name: "tocsin_inbox_streams_dropped_total",
        kind: Kind::Counter,
        labels: "",
        help: "Inbox streams ended because the reader is too slow.",
    },
];

/// Gauges of queues and stores, read from the service on each scrape.
pub const GAUGES: &[Metric] = &[
    gauge("tocsin_backlog_event_batches", "Event batches not yet matched."),
    gauge("tocsin_backlog_events", "Events not yet matched."),
    gauge("tocsin_backlog_event_bytes", "Packed size of the events not yet matched."),
    gauge("tocsin_backlog_oldest_event_seconds", "Age of the oldest event not yet matched; 0 if there is none."),
    gauge("tocsin_backlog_failed_batches", "Event batches suspended because matching failed."),
    gauge("tocsin_backlog_work_items", "Work items due, claimed or scheduled for a retry."),
    gauge("tocsin_backlog_notifications", "Notifications of work items due, claimed or scheduled for a retry."),
    gauge("tocsin_backlog_suspended_notifications", "Suspended notifications."),
    gauge("tocsin_records_subscribers", "Subscribers stored."),
    gauge("tocsin_records_devices", "Devices stored."),
    gauge("tocsin_records_subscriptions", "Subscriptions stored."),
    gauge("tocsin_inbox_items", "Items in the inbox feeds of all subscribers."),
    gauge("tocsin_inbox_contents", "Distinct contents stored for inbox items and broadcasts."),
    Metric {
        name: "tocsin_match_indexed_subscriptions",
        kind: Kind::Gauge,
        labels: "application",
        help: "Subscriptions in the match index.",
    },
    Metric {
        name: "tocsin_match_unusable_subscriptions",
        kind: Kind::Gauge,
        labels: "application",
        help: "Subscriptions that the running version cannot match. `tocsin rule unusable` lists them.",
    },
    Metric {
        name: "tocsin_match_filters",
        kind: Kind::Gauge,
        labels: "application",
        help: "Distinct filters of subscriptions, counted once for each shard.",
    },
    Metric {
        name: "tocsin_match_unindexed_filters",
        kind: Kind::Gauge,
        labels: "application",
        help: "Filters evaluated for every event because no index key covers them.",
    },
    Metric {
        name: "tocsin_match_filter_groups",
        kind: Kind::Gauge,
        labels: "application",
        help: "Index keys under which filter alternatives are stored.",
    },
    Metric {
        name: "tocsin_match_index_bytes",
        kind: Kind::Gauge,
        labels: "application",
        help: "Memory of the match index.",
    },
    Metric {
        name: "tocsin_match_index_shards",
        kind: Kind::Gauge,
        labels: "application",
        help: "Shards of the match index.",
    },
    Metric {
        name: "tocsin_match_index_changes_behind",
        kind: Kind::Gauge,
        labels: "application",
        help: "Changes of the records that the match index has not applied yet.",
    },
    Metric {
        name: "tocsin_deliver_destinations",
        kind: Kind::Gauge,
        labels: "application, channel, state",
        help: "Destinations by state: open, trial, paused or stalled. `tocsin destinations` shows them.",
    },
    Metric {
        name: "tocsin_source_state",
        kind: Kind::Gauge,
        labels: "application, source, state",
        help: "1 for the state of a source: starting, running, waiting, held, backing_off or failed; else 0. `tocsin sources` shows them.",
    },
    gauge("tocsin_platform_ready", "1 if every match index is built, else 0."),
];

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels: "", help }
}

/// Sets the gauges from cached values, without reading a store.
pub(crate) fn measure(status: &Status) {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a double; what it counts is far below 2^53")]
    fn set(name: &'static str, value: u64) {
        metrics::gauge!(name).set(value as f64);
    }
    let Status { backlog, counts, .. } = status;
    set("tocsin_backlog_event_batches", backlog.event_batches);
    set("tocsin_backlog_events", backlog.events);
    set("tocsin_backlog_event_bytes", backlog.event_bytes);
    let oldest = backlog.oldest_event.map_or(0.0, |at| status.now.since(at).as_secs_f64());
    metrics::gauge!("tocsin_backlog_oldest_event_seconds").set(oldest);
    set("tocsin_backlog_failed_batches", backlog.failed_batches);
    set("tocsin_backlog_work_items", backlog.work_items);
    set("tocsin_backlog_notifications", backlog.notifications);
    set("tocsin_backlog_suspended_notifications", backlog.suspended);
    set("tocsin_records_subscribers", counts.subscribers);
    set("tocsin_records_devices", counts.devices);
    set("tocsin_records_subscriptions", counts.subscriptions);
    set("tocsin_inbox_items", status.inbox.items);
    set("tocsin_inbox_contents", status.inbox.contents);
    set("tocsin_platform_ready", status.ready.into());
    for (name, application) in &status.applications {
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let set = |metric: &'static str, value: u64| {
            metrics::gauge!(metric, "application" => name.to_string()).set(value as f64);
        };
        set("tocsin_match_indexed_subscriptions", application.indexed);
        set("tocsin_match_unusable_subscriptions", application.unusable);
        set("tocsin_match_filters", application.filters);
        set("tocsin_match_unindexed_filters", application.scanned_filters);
        set("tocsin_match_filter_groups", application.filter_groups);
        set("tocsin_match_index_bytes", application.index_bytes);
        set("tocsin_match_index_shards", application.shards);
        set("tocsin_match_index_changes_behind", application.changes_behind);
    }
    for (application, channel, counts) in &status.destinations {
        for (state, count) in DestinationState::ALL.into_iter().zip(counts) {
            let gauge = metrics::gauge!(
                "tocsin_deliver_destinations",
                "application" => application.to_string(), "channel" => channel.to_string(), "state" => state.word()
            );
            #[expect(clippy::cast_precision_loss, reason = "as above")]
            gauge.set(*count as f64);
        }
    }
    for GroupLoad { group, busy, waiting, most } in &status.workers {
        for (state, count) in [("busy", busy), ("waiting", waiting), ("most", most)] {
            let gauge = metrics::gauge!("tocsin_exchange_workers", "group" => group.word(), "state" => state);
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
            metrics::gauge!("tocsin_exchange_location_state", &labels).set(if health.state == state {
                1.0
            } else {
                0.0
            });
        }
    }
    for (application, source) in &status.sources {
        for state in SourceState::ALL {
            let gauge = metrics::gauge!(
                "tocsin_source_state",
                "application" => application.to_string(), "source" => source.source.to_string(), "state" => state.word()
            );
            gauge.set(if source.state == state.word() { 1.0 } else { 0.0 });
        }
    }
}

/// Registers the descriptions of a list of metrics with the installed recorder.
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
    let mut out = String::from("| metric | kind | labels | description |\n|---|---|---|---|\n");
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
