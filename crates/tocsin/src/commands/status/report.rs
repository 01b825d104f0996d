//! Server status: the response of `GET /v1/status` as types.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tocsin_model::plural::plural;

use crate::{
    failure::{Failure, Outcome},
    terminal::{counted, printable, size, thousands},
};

/// Response of `GET /v1/status`. Missing members are zero, so that a newer command can query an older server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Version of the server.
    pub version: String,
    /// Start time of the server.
    pub started_at: String,
    /// Whether the server accepts all requests.
    pub ready: bool,
    /// Applications.
    pub applications: Vec<ApplicationReport>,
    /// Records by kind.
    pub counts: BTreeMap<String, u64>,
    /// Backlog.
    pub backlog: Backlog,
    /// Totals since the journal was created.
    pub totals: Totals,
    /// Components that are switched off.
    pub switches: Vec<SwitchReport>,
    /// Throttled exchange messages.
    pub throttled: Vec<ThrottledReport>,
    /// Worker groups of the exchanges.
    pub workers: Vec<WorkersReport>,
    /// Partitions of the spool.
    pub partitions: Vec<PartitionReport>,
    /// Receive locations.
    pub locations: Vec<LocationReport>,
    /// Latencies by step.
    pub latencies: BTreeMap<String, Latency>,
    /// Saturation of the node.
    pub saturation: SaturationReport,
}

/// Saturation of the node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SaturationReport {
    /// Limited resources, fullest first.
    pub resources: Vec<ResourceReport>,
    /// Roles, least headroom first.
    pub roles: Vec<RoleReport>,
}

/// Limited resource.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ResourceReport {
    /// Name of the resource.
    pub resource: String,
    /// Used share.
    pub used: f64,
    /// Predicted seconds until the resource is full.
    pub full_in_seconds: Option<f64>,
}

/// Role of the node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RoleReport {
    /// Name of the role.
    pub role: String,
    /// Factor by which its load may grow.
    pub headroom: Option<f64>,
    /// Resource that limits the growth.
    pub first: Option<String>,
}

/// Worker group of exchanges.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct WorkersReport {
    /// Name of the group.
    pub group: String,
    /// Messages in progress.
    pub busy: u64,
    /// Messages that wait for a worker.
    pub waiting: u64,
    /// Current maximum number of workers.
    pub most: u64,
}

/// Partition of the spool.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PartitionReport {
    /// Number of the partition.
    pub partition: u64,
    /// Open messages.
    pub open: u64,
    /// Bytes of its database and write-ahead log.
    pub bytes: u64,
}

/// Receive location.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LocationReport {
    /// Exchange.
    pub exchange: String,
    /// Receive port.
    pub port: String,
    /// Name of the location.
    pub location: String,
    /// State.
    pub state: String,
    /// Reason of the state.
    pub reason: Option<String>,
}

/// Component that is switched off.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SwitchReport {
    /// Name of the component.
    pub component: String,
    /// State.
    pub state: String,
    /// Whether work that began before is still in progress.
    pub pending: bool,
    /// Reason.
    pub reason: String,
}

/// Throttled messages.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ThrottledReport {
    /// Exchange.
    pub exchange: String,
    /// Direction: intake or sending.
    pub side: String,
    /// Port that causes the throttling.
    pub port: String,
    /// Reason.
    pub reason: String,
    /// Description of the reason.
    pub detail: String,
}

/// Application.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ApplicationReport {
    /// Name.
    pub name: String,
    /// Running version.
    pub version: u32,
    /// Subscriptions in the match index.
    pub indexed: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Subscriptions that the running version cannot match.
    pub unusable: u64,
    /// Whether the index is up to date.
    pub ready: bool,
    /// End of the current throttling of its events.
    pub throttled_until: Option<String>,
    /// End of the current throttling, by event class.
    pub throttled_classes: BTreeMap<String, String>,
}

/// Backlog.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Backlog {
    /// Event batches to match.
    pub event_batches: u64,
    /// Events to match.
    pub events: u64,
    /// Event batches whose matching failed.
    pub failed_batches: u64,
    /// Notifications to send.
    pub notifications: u64,
    /// Work items.
    pub work_items: u64,
    /// Suspended notifications.
    pub suspended: u64,
    /// Suspended exchange messages.
    pub suspended_messages: MessageCount,
}

/// Number of messages; `None`: the spool is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct MessageCount(pub Option<u64>);

impl Default for MessageCount {
    fn default() -> Self {
        MessageCount(Some(0))
    }
}

/// Totals.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Accepted event batches.
    pub event_batches: u64,
    /// Accepted events.
    pub events: u64,
    /// Created notification batches.
    pub notification_batches: u64,
    /// Created notifications.
    pub notifications: u64,
    /// Delivery attempts by outcome.
    #[serde(deserialize_with = "by_outcome")]
    pub attempts: BTreeMap<String, u64>,
}

/// Latency percentiles of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Median.
    pub p50_ms: Option<f64>,
    /// 95th percentile.
    pub p95_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// Number of measurements.
    pub count: u64,
}

/// Deserializes an object, or a list in the order of the outcomes.
fn by_outcome<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, u64>, D::Error> {
    use tocsin_model::receipt::Outcome;
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    Ok(match Value::deserialize(deserializer)? {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), count(value))).collect(),
        Value::Array(items) => {
            Outcome::ALL.iter().zip(&items).map(|(outcome, value)| (outcome.word().to_owned(), count(value))).collect()
        }
        _ => BTreeMap::new(),
    })
}

impl Report {
    /// Parses the response.
    ///
    /// # Errors
    /// If it is not a status.
    pub fn read(answer: Value) -> Outcome<Self> {
        serde_json::from_value(answer)
            .map_err(|error| Failure::failed("the response is not a status; is this a Tocsin server?").because(&error))
    }

    /// Number of attempts with this outcome.
    pub fn attempts(&self, outcome: &str) -> u64 {
        self.totals.attempts.get(outcome).copied().unwrap_or_default()
    }

    /// Whether there is no work in progress or queued.
    pub fn is_idle(&self) -> bool {
        self.backlog.events == 0 && self.backlog.event_batches == 0 && self.backlog.notifications == 0
    }

    /// Formats the status as plain text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "Tocsin {}, {}, since {}",
            printable(&self.version),
            if self.ready { "ready" } else { "not ready" },
            printable(&self.started_at)
        )];
        let counts: Vec<String> =
            self.counts.iter().map(|(name, count)| counted(*count, &record(name, 1), &record(name, 2))).collect();
        lines.push(format!("records   {}", counts.join(", ")));
        let backlog = &self.backlog;
        lines.push(format!(
            "waiting   {} to match, {} to send, {} suspended, {}",
            counted(backlog.events, "event", "events"),
            counted(backlog.notifications, "notification", "notifications"),
            thousands(backlog.suspended),
            counted(backlog.failed_batches, "failed batch", "failed batches")
        ));
        lines.push(format!(
            "so far    {}, {}, {} delivered, {} refused",
            counted(self.totals.events, "event", "events"),
            counted(self.totals.notifications, "notification", "notifications"),
            thousands(self.attempts("delivered")),
            thousands(self.attempts("refused"))
        ));
        if backlog.suspended > 0 {
            let count = counted(backlog.suspended, "notification waits", "notifications wait");
            lines.push(format!("suspended {count} for an operator; `tocsin suspended list` lists the reasons"));
        }
        match backlog.suspended_messages.0 {
            Some(0) => {}
            Some(count) => {
                let count = counted(count, "exchange message waits", "exchange messages wait");
                lines.push(format!(
                    "suspended {count} for an operator; `tocsin messages list --state suspended` lists the reasons"
                ));
            }
            None => lines.push("suspended exchange messages: not counted, the spool is unavailable".to_owned()),
        }
        for (step, latency) in &self.latencies {
            lines.push(latency_line(step, latency));
        }
        lines.extend(self.saturation.lines());
        for application in &self.applications {
            lines.push(format!(
                "runs      {} version {}: {} indexed in {}{}",
                printable(&application.name),
                application.version,
                counted(application.indexed, "subscription", "subscriptions"),
                size(application.index_bytes),
                if application.ready { "" } else { ", catching up" }
            ));
            if let Some(until) = &application.throttled_until {
                lines.push(format!("          throttled until {}", printable(until)));
            }
            for (class, until) in &application.throttled_classes {
                lines.push(format!("          events of `{}` throttled until {}", printable(class), printable(until)));
            }
            if application.unusable > 0 {
                lines.push(format!(
                    "          {} more cannot be matched; `tocsin rule unusable {}` shows the reasons",
                    thousands(application.unusable),
                    printable(&application.name)
                ));
            }
        }
        for SwitchReport { component, state, pending, reason } in &self.switches {
            let pending = if *pending { ", pending" } else { "" };
            lines.push(format!("{:<9} {}{pending}: {}", printable(state), printable(component), printable(reason)));
        }
        for ThrottledReport { exchange, side, port, reason, detail } in &self.throttled {
            let at = if port.is_empty() { String::new() } else { format!(" at {}", printable(port)) };
            let (exchange, side) = (printable(exchange), printable(side));
            lines.push(format!("throttled {exchange}, {side}{at}, {}: {}", printable(reason), printable(detail)));
        }
        for WorkersReport { group, busy, waiting, most } in &self.workers {
            if *waiting > 0 {
                let group = printable(group);
                let waits = counted(*waiting, "message waits", "messages wait");
                lines.push(format!("workers   {group}: {busy} of {most} busy, {waits}"));
            }
        }
        // A single empty partition carries no information.
        if self.partitions.len() > 1 || self.partitions.iter().any(|partition| partition.open > 0) {
            for PartitionReport { partition, open, bytes } in &self.partitions {
                let open = counted(*open, "open message", "open messages");
                lines.push(format!("spool     partition {partition}: {open}, {}", size(*bytes)));
            }
        }
        for LocationReport { exchange, port, location, state, reason } in &self.locations {
            if state != "running" {
                let [exchange, port, location] = [exchange, port, location].map(|name| printable(name));
                let reason = reason.as_deref().map(|reason| format!(": {}", printable(reason))).unwrap_or_default();
                lines.push(format!("{:<9} {exchange}, {port} from {location}{reason}", state.replace('_', " ")));
            }
        }
        if self.applications.is_empty() {
            lines.push("runs      no application; `tocsin apply FILE` adds one".to_owned());
        }
        lines
    }
}

impl SaturationReport {
    /// Formats `used      41 % of the processor, full in 3.2 h; 3 % of the disk`, and a line per active role.
    fn lines(&self) -> Vec<String> {
        let resource = |found: &ResourceReport| {
            let full = found.full_in_seconds.map(|seconds| format!(", full in {:.1} h", seconds / 3_600.0));
            format!("{:.0} % of the {}{}", found.used * 100.0, printable(&found.resource), full.unwrap_or_default())
        };
        let used: Vec<String> = self.resources.iter().map(resource).collect();
        let used = (!used.is_empty()).then(|| format!("used      {}", used.join("; ")));
        let role = |found: &RoleReport| {
            let (headroom, first) = (found.headroom?, found.first.as_deref()?);
            Some(format!("room      {}: {headroom:.1} times, limited by {}", printable(&found.role), printable(first)))
        };
        used.into_iter().chain(self.roles.iter().filter_map(role)).collect()
    }
}

/// The member of `counts` in words: `inbox_items` as `inbox item` or `inbox items`.
fn record(name: &str, count: u64) -> String {
    let words = printable(name).replace('_', " ");
    plural(count, words.strip_suffix('s').unwrap_or(&words), &words).to_owned()
}

/// Formats `latency   end to end: p50 1.2 ms, p95 3.4 ms, p99 9.9 ms of 12,345`.
fn latency_line(step: &str, latency: &Latency) -> String {
    let show = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1} ms"));
    format!(
        "latency   {}: p50 {}, p95 {}, p99 {} of {}",
        printable(step).replace('_', " "),
        show(latency.p50_ms),
        show(latency.p95_ms),
        show(latency.p99_ms),
        thousands(latency.count)
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_agree_and_suspended_work_names_the_next_command() {
        let lines = |count: u64| {
            let report = Report::read(json!({
                "counts": {"inbox_items": count},
                "backlog": {"events": count, "notifications": count, "suspended": count, "suspended_messages": count,
                    "failed_batches": count},
            }));
            report.expect("a status").lines()[1..6].join("\n")
        };
        expect![[r#"
            records   1 inbox item
            waiting   1 event to match, 1 notification to send, 1 suspended, 1 failed batch
            so far    0 events, 0 notifications, 0 delivered, 0 refused
            suspended 1 notification waits for an operator; `tocsin suspended list` lists the reasons
            suspended 1 exchange message waits for an operator; `tocsin messages list --state suspended` lists the reasons"#]]
        .assert_eq(&lines(1));
        expect![[r#"
            records   2 inbox items
            waiting   2 events to match, 2 notifications to send, 2 suspended, 2 failed batches
            so far    0 events, 0 notifications, 0 delivered, 0 refused
            suspended 2 notifications wait for an operator; `tocsin suspended list` lists the reasons
            suspended 2 exchange messages wait for an operator; `tocsin messages list --state suspended` lists the reasons"#]]
        .assert_eq(&lines(2));
    }

    #[test]
    fn messages_that_are_not_counted_are_no_zero() {
        let lines = |backlog: serde_json::Value| Report::read(json!({ "backlog": backlog })).expect("a status").lines();
        let shown = lines(json!({ "suspended_messages": null })).join("\n");
        assert!(shown.contains("suspended exchange messages: not counted, the spool is unavailable"), "{shown}");
        assert!(!lines(json!({})).join("\n").contains("exchange messages"));
    }

    #[test]
    fn a_status_is_formatted_as_plain_text() {
        let report = Report::read(json!({
            "version": "0.1.0", "started_at": "2026-11-21T09:30:00Z", "ready": true,
            "applications": [{"name": "quakes", "version": 2, "indexed": 10000, "index_bytes": 480000, "unusable": 3, "ready": true, "throttled_until": "2026-11-21T10:00:00Z", "throttled_classes": {"quake": "2026-11-21T10:01:00Z"}}],
            "counts": {"subscribers": 10000, "devices": 10000, "subscriptions": 10000},
            "backlog": {"events": 3, "event_batches": 1, "notifications": 12345, "suspended": 0, "oldest_event": null},
            "totals": {"events": 1707, "notifications": 40000, "attempts": [39000, 5, 1, 0, 0, 0]},
            "throttled": [{"exchange": "orders", "side": "publishing", "port": "b", "reason": "rate_imbalance", "detail": "40 messages wait"}],
            "locations": [
                {"exchange": "orders", "port": "in", "location": "drop", "state": "running"},
                {"exchange": "orders", "port": "in", "location": "bus", "state": "waiting", "reason": "disk: 1 MiB is free"},
            ],
            "workers": [
                {"group": "receive", "busy": 8, "waiting": 1200, "most": 8}, {"group": "send", "busy": 1, "waiting": 0, "most": 5},
            ],
            "partitions": [{"partition": 0, "open": 1500, "bytes": 480000}, {"partition": 1, "open": 0, "bytes": 120000}],
            "switches": [{"component": "role:match", "state": "paused", "pending": true, "reason": "moving"}],
            "latencies": {"end_to_end": {"p50_ms": 1.25, "p95_ms": 3.5, "p99_ms": null, "count": 39000}},
            "saturation": {"seconds": 60.0, "has_vectors": true,
                "resources": [
                    {"resource": "processor", "used": 0.413, "headroom": 2.4, "full_in_seconds": 11520.0},
                    {"resource": "disk", "used": 0.03},
                ],
                "roles": [
                    {"role": "deliver", "headroom": 2.53, "first": "processor", "processor": 0.3},
                    {"role": "sync", "processor": 0.0},
                ],
            }
        }))
        .expect("a status");
        assert!(!report.is_idle());
        expect![[r#"
            Tocsin 0.1.0, ready, since 2026-11-21T09:30:00Z
            records   10,000 devices, 10,000 subscribers, 10,000 subscriptions
            waiting   3 events to match, 12,345 notifications to send, 0 suspended, 0 failed batches
            so far    1,707 events, 40,000 notifications, 39,000 delivered, 1 refused
            latency   end to end: p50 1.2 ms, p95 3.5 ms, p99 - of 39,000
            used      41 % of the processor, full in 3.2 h; 3 % of the disk
            room      deliver: 2.5 times, limited by processor
            runs      quakes version 2: 10,000 subscriptions indexed in 468.8 KiB
                      throttled until 2026-11-21T10:00:00Z
                      events of `quake` throttled until 2026-11-21T10:01:00Z
                      3 more cannot be matched; `tocsin rule unusable quakes` shows the reasons
            paused    role:match, pending: moving
            throttled orders, publishing at b, rate_imbalance: 40 messages wait
            workers   receive: 8 of 8 busy, 1,200 messages wait
            spool     partition 0: 1,500 open messages, 468.8 KiB
            spool     partition 1: 0 open messages, 117.2 KiB
            waiting   orders, in from bus: disk: 1 MiB is free"#]]
        .assert_eq(&report.lines().join("\n"));
        assert!(Report::read(json!({})).expect("an older server").is_idle());
        let spool = |open: u64| {
            let report = json!({"partitions": [{"partition": 0, "open": open, "bytes": 1}]});
            Report::read(report).expect("a status").lines().iter().filter(|line| line.starts_with("spool")).count()
        };
        assert_eq!((spool(0), spool(1)), (0, 1), "a single partition is shown only while it has open messages");
    }
}
