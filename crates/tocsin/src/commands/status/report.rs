//! What the server says of itself, as numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::{
    failure::{Failure, Outcome},
    terminal::{printable, size, thousands},
};

/// The answer to `GET /v1/status`. What is missing is zero, so that a newer command can ask an older server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The server's version.
    pub version: String,
    /// When it started.
    pub started_at: String,
    /// Whether it takes everything.
    pub ready: bool,
    /// Its applications.
    pub applications: Vec<ApplicationReport>,
    /// Records by kind.
    pub counts: BTreeMap<String, u64>,
    /// What waits.
    pub backlog: Backlog,
    /// What has happened since the journal was made.
    pub totals: Totals,
    /// Everything that is switched off.
    pub switches: Vec<SwitchReport>,
    /// What slows messages of exchanges down.
    pub throttled: Vec<ThrottledReport>,
    /// The worker groups of exchanges.
    pub workers: Vec<WorkersReport>,
    /// The partitions of the spool.
    pub partitions: Vec<PartitionReport>,
    /// Where receive ports take messages from.
    pub locations: Vec<LocationReport>,
    /// By step.
    pub latencies: BTreeMap<String, Latency>,
    /// How far the node is from its bounds.
    pub saturation: SaturationReport,
}

/// How far the node is from its bounds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SaturationReport {
    /// What may run out, the fullest first.
    pub resources: Vec<ResourceReport>,
    /// Who uses it, the one with the least headroom first.
    pub roles: Vec<RoleReport>,
}

/// A resource.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ResourceReport {
    /// Which.
    pub resource: String,
    /// The share that is used.
    pub used: f64,
    /// In how many seconds it is full.
    pub full_in_seconds: Option<f64>,
}

/// A role.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RoleReport {
    /// Which.
    pub role: String,
    /// How many times its load may be.
    pub headroom: Option<f64>,
    /// What gives out first.
    pub first: Option<String>,
}

/// A worker group of exchanges.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct WorkersReport {
    /// Which.
    pub group: String,
    /// Messages that are worked on.
    pub busy: u64,
    /// Messages that wait for a worker.
    pub waiting: u64,
    /// How many workers there may be now.
    pub most: u64,
}

/// A partition of the spool.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PartitionReport {
    /// Its number.
    pub partition: u64,
    /// Messages in it that are not ended.
    pub open: u64,
    /// Bytes of its file and its log.
    pub bytes: u64,
}

/// A location of a receive port.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LocationReport {
    /// The exchange.
    pub exchange: String,
    /// The receive port.
    pub port: String,
    /// Its name.
    pub location: String,
    /// How it does.
    pub state: String,
    /// What is in the way.
    pub reason: Option<String>,
}

/// Something that is switched off.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SwitchReport {
    /// What.
    pub component: String,
    /// How.
    pub state: String,
    /// Whether something begun before is still under way.
    pub pending: bool,
    /// Why.
    pub reason: String,
}

/// Messages that are slowed down.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ThrottledReport {
    /// Of which exchange.
    pub exchange: String,
    /// Where they come in, or where they leave.
    pub side: String,
    /// For the sake of which port.
    pub port: String,
    /// Why.
    pub reason: String,
    /// In words.
    pub detail: String,
}

/// One application.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ApplicationReport {
    /// Its name.
    pub name: String,
    /// The version that runs.
    pub version: u32,
    /// Subscriptions in the match index.
    pub indexed: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Subscriptions that its version cannot match.
    pub unusable: u64,
    /// Whether the index has caught up.
    pub ready: bool,
    /// Until when its events wait for its throttle.
    pub throttled_until: Option<String>,
    /// Until when events of a class wait for a throttle of the class.
    pub throttled_classes: BTreeMap<String, String>,
}

/// What waits.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Backlog {
    /// Event batches to match.
    pub event_batches: u64,
    /// Events to match.
    pub events: u64,
    /// Event batches that could not be matched.
    pub failed_batches: u64,
    /// Notifications to send.
    pub notifications: u64,
    /// Work items.
    pub work_items: u64,
    /// Notifications that wait for an operator.
    pub suspended: u64,
}

/// What has happened.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Event batches accepted.
    pub event_batches: u64,
    /// Events accepted.
    pub events: u64,
    /// Notification batches made.
    pub notification_batches: u64,
    /// Notifications made.
    pub notifications: u64,
    /// Attempts by outcome.
    #[serde(deserialize_with = "by_outcome")]
    pub attempts: BTreeMap<String, u64>,
}

/// Percentiles of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Half were faster.
    pub p50_ms: Option<f64>,
    /// 95 of 100 were faster.
    pub p95_ms: Option<f64>,
    /// 99 of 100 were faster.
    pub p99_ms: Option<f64>,
    /// How many were measured.
    pub count: u64,
}

/// An object, or a list in the order of the outcomes.
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
    /// Reads the answer.
    ///
    /// # Errors
    /// It is not a status.
    pub fn read(answer: Value) -> Outcome<Self> {
        serde_json::from_value(answer)
            .map_err(|error| Failure::failed("the answer is not a status; is this a Tocsin server?").because(&error))
    }

    /// Attempts with this outcome.
    pub fn attempts(&self, outcome: &str) -> u64 {
        self.totals.attempts.get(outcome).copied().unwrap_or_default()
    }

    /// Whether nothing is on its way.
    pub fn is_idle(&self) -> bool {
        self.backlog.events == 0 && self.backlog.event_batches == 0 && self.backlog.notifications == 0
    }

    /// Plain text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "Tocsin {}, {}, since {}",
            printable(&self.version),
            if self.ready { "ready" } else { "not ready" },
            printable(&self.started_at)
        )];
        let counts: Vec<String> =
            self.counts.iter().map(|(name, count)| format!("{} {}", thousands(*count), printable(name))).collect();
        lines.push(format!("records   {}", counts.join(", ")));
        let backlog = &self.backlog;
        lines.push(format!(
            "waiting   {} events to match, {} notifications to send, {} suspended, {} failed batches",
            thousands(backlog.events),
            thousands(backlog.notifications),
            thousands(backlog.suspended),
            thousands(backlog.failed_batches)
        ));
        lines.push(format!(
            "so far    {} events, {} notifications, {} delivered, {} refused",
            thousands(self.totals.events),
            thousands(self.totals.notifications),
            thousands(self.attempts("delivered")),
            thousands(self.attempts("refused"))
        ));
        for (step, latency) in &self.latencies {
            lines.push(latency_line(step, latency));
        }
        lines.extend(self.saturation.lines());
        for application in &self.applications {
            lines.push(format!(
                "runs      {} version {}: {} subscriptions indexed in {}{}",
                printable(&application.name),
                application.version,
                thousands(application.indexed),
                size(application.index_bytes),
                if application.ready { "" } else { ", catching up" }
            ));
            if let Some(until) = &application.throttled_until {
                lines.push(format!("          its throttle lets events wait until {}", printable(until)));
            }
            for (class, until) in &application.throttled_classes {
                lines.push(format!("          events of `{}` wait until {}", printable(class), printable(until)));
            }
            if application.unusable > 0 {
                lines.push(format!(
                    "          {} more cannot be matched; `tocsin rule unusable {}` says why",
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
                lines.push(format!("workers   {group}: {busy} of {most} are busy, {} wait", thousands(*waiting)));
            }
        }
        // One in which nothing waits has nothing to tell that others have not.
        if self.partitions.len() > 1 || self.partitions.iter().any(|partition| partition.open > 0) {
            for PartitionReport { partition, open, bytes } in &self.partitions {
                let open = thousands(*open);
                lines.push(format!("spool     partition {partition}: {open} messages are open, {}", size(*bytes)));
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
            lines.push("runs      no application yet; `tocsin apply FILE` adds one".to_owned());
        }
        lines
    }
}

impl SaturationReport {
    /// `used      41 % of the processor, full in 3.2 h; 3 % of the disk`, and a line for each role that does anything.
    fn lines(&self) -> Vec<String> {
        let resource = |found: &ResourceReport| {
            let full = found.full_in_seconds.map(|seconds| format!(", full in {:.1} h", seconds / 3_600.0));
            format!("{:.0} % of the {}{}", found.used * 100.0, printable(&found.resource), full.unwrap_or_default())
        };
        let used: Vec<String> = self.resources.iter().map(resource).collect();
        let used = (!used.is_empty()).then(|| format!("used      {}", used.join("; ")));
        let role = |found: &RoleReport| {
            let (headroom, first) = (found.headroom?, found.first.as_deref()?);
            Some(format!(
                "room      {}: {headroom:.1} times, then {} gives out",
                printable(&found.role),
                printable(first)
            ))
        };
        used.into_iter().chain(self.roles.iter().filter_map(role)).collect()
    }
}

/// `latency   end to end: p50 1.2 ms, p95 3.4 ms, p99 9.9 ms of 12,345`
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
    fn a_status_reads_like_a_report() {
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
            room      deliver: 2.5 times, then processor gives out
            runs      quakes version 2: 10,000 subscriptions indexed in 468.8 KiB
                      its throttle lets events wait until 2026-11-21T10:00:00Z
                      events of `quake` wait until 2026-11-21T10:01:00Z
                      3 more cannot be matched; `tocsin rule unusable quakes` says why
            paused    role:match, pending: moving
            throttled orders, publishing at b, rate_imbalance: 40 messages wait
            workers   receive: 8 of 8 are busy, 1,200 wait
            spool     partition 0: 1,500 messages are open, 468.8 KiB
            spool     partition 1: 0 messages are open, 117.2 KiB
            waiting   orders, in from bus: disk: 1 MiB is free"#]]
        .assert_eq(&report.lines().join("\n"));
        assert!(Report::read(json!({})).expect("an older server").is_idle());
        let spool = |open: u64| {
            let report = json!({"partitions": [{"partition": 0, "open": open, "bytes": 1}]});
            Report::read(report).expect("a status").lines().iter().filter(|line| line.starts_with("spool")).count()
        };
        assert_eq!((spool(0), spool(1)), (0, 1), "one partition is told of while something waits in it");
    }
}
