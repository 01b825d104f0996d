//! A dashboard for Grafana and alert rules for Prometheus, made from the descriptions of the metrics: what is described is
//! on the dashboard, and no rule asks for what is not.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tocsin_face_http::metrics::{self as face, Kind, Metric};

use crate::metrics::STEPS;

/// Panels beside each other, of the 24 columns of a dashboard.
const PANELS_BESIDE: usize = 3;

/// The rows of the dashboard: a title, and what is on it.
fn rows() -> [(&'static str, &'static [Metric]); 3] {
    [
        ("The steps of the flow", STEPS),
        ("What waits and what is stored", face::GAUGES),
        ("The HTTP face", face::METRICS),
    ]
}

/// The dashboard, as Grafana imports it.
pub fn dashboard() -> String {
    let (mut panels, mut id, mut y) = (Vec::new(), 0, 0);
    for (title, metrics) in rows() {
        id += 1;
        panels.push(json!({"id": id, "type": "row", "title": title, "collapsed": false, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}}));
        y += 1;
        for (at, metric) in metrics.iter().enumerate() {
            id += 1;
            let x = (at % PANELS_BESIDE) * 24 / PANELS_BESIDE;
            panels.push(panel(metric, id, x, y + at / PANELS_BESIDE * 7));
        }
        y += metrics.len().div_ceil(PANELS_BESIDE) * 7;
    }
    let dashboard = json!({
        "title": "Tocsin",
        "uid": "tocsin",
        "schemaVersion": 39,
        "editable": true,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
            {"name": "instance", "type": "query", "label": "Server", "datasource": {"type": "prometheus", "uid": "$datasource"},
             "query": "label_values(platform_ready, instance)", "includeAll": true, "multi": true, "refresh": 2},
        ]},
        "panels": panels,
    });
    let mut text = serde_json::to_string_pretty(&dashboard).expect("a dashboard is JSON");
    text.push('\n');
    text
}

fn panel(metric: &Metric, id: usize, x: usize, y: usize) -> Value {
    let unit = if metric.name.contains("seconds") {
        "s"
    } else if metric.name.contains("bytes") {
        "bytes"
    } else {
        "short"
    };
    let targets: Vec<Value> = queries(metric)
        .into_iter()
        .enumerate()
        .map(|(at, (expr, legend))| json!({"refId": char::from(b'A' + at as u8).to_string(), "expr": expr, "legendFormat": legend}))
        .collect();
    json!({
        "id": id,
        "type": "timeseries",
        "title": metric.name,
        "description": metric.help,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": {"h": 7, "w": 24 / PANELS_BESIDE, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": targets,
    })
}

/// What a panel asks, and how its lines are called.
fn queries(metric: &Metric) -> Vec<(String, String)> {
    let (name, labels) = (metric.name, metric.labels);
    let by = if labels.is_empty() { String::new() } else { format!(" by ({labels})") };
    let legend: Vec<String> =
        labels.split(", ").filter(|label| !label.is_empty()).map(|label| format!("{{{{{label}}}}}")).collect();
    let legend = legend.join(" ");
    let of = "{instance=~\"$instance\"}";
    match metric.kind {
        Kind::Counter => vec![(format!("sum{by} (rate({name}{of}[$__rate_interval]))"), legend)],
        Kind::Gauge => vec![(format!("sum{by} ({name}{of})"), legend)],
        Kind::Histogram => [0.5, 0.95, 0.99]
            .map(|quantile| {
                let expr =
                    format!("histogram_quantile({quantile}, sum by (le) (rate({name}_bucket{of}[$__rate_interval])))");
                (expr, format!("{quantile}"))
            })
            .to_vec(),
    }
}

/// An alert: its name, for how long it must hold, how urgent it is, what it asks, and what to do.
struct Alert {
    name: &'static str,
    holds: &'static str,
    severity: &'static str,
    expr: &'static str,
    advice: &'static str,
}

const ALERTS: &[Alert] = &[
    Alert {
        name: "TocsinNotReady",
        holds: "5m",
        severity: "critical",
        expr: "platform_ready == 0",
        advice: "A match index is not built. `tocsin status` and `/readyz` say which.",
    },
    Alert {
        name: "TocsinEventsWait",
        holds: "5m",
        severity: "critical",
        expr: "backlog_oldest_event_seconds > 60",
        advice: "Events are not picked up fast enough. `tocsin digest` tells the cause.",
    },
    Alert {
        name: "TocsinEventsRefused",
        holds: "1m",
        severity: "critical",
        expr: "rate(accept_refused_total[5m]) > 0",
        advice: "Submissions are refused: the disk is full, a bound is reached, or acceptance is switched off.",
    },
    Alert {
        name: "TocsinBatchesFailed",
        holds: "0m",
        severity: "critical",
        expr: "backlog_failed_batches > 0",
        advice: "Event batches are set aside. `tocsin report event-batch-list --status failed` says why.",
    },
    Alert {
        name: "TocsinNotificationsSuspended",
        holds: "0m",
        severity: "warning",
        expr: "backlog_suspended_notifications > 0",
        advice: "Notifications wait for an operator. `tocsin suspended list` says why.",
    },
    Alert {
        name: "TocsinRulesStopped",
        holds: "0m",
        severity: "critical",
        expr: "match_stopped_rules > 0",
        advice: "Rules do not fire. Mend them, `tocsin rule resume`, then `tocsin firings refire`.",
    },
    Alert {
        name: "TocsinFiringsMissed",
        holds: "0m",
        severity: "warning",
        expr: "increase(match_firings_missed_total[15m]) > 0",
        advice: "Rules did not fire for event batches. `tocsin firings list` shows them.",
    },
    Alert {
        name: "TocsinDestinationsPaused",
        holds: "15m",
        severity: "warning",
        expr: "sum by (application, channel) (deliver_destinations{state=\"paused\"}) > 0",
        advice: "Destinations are let be after failures. `tocsin destinations` says what they answer.",
    },
    Alert {
        name: "TocsinDestinationsStalled",
        holds: "1m",
        severity: "critical",
        expr: "sum by (application, channel) (deliver_destinations{state=\"stalled\"}) > 0",
        advice: "Messages wait for destinations that are open and get none. `tocsin destinations` lists them.",
    },
    Alert {
        name: "TocsinManyRefused",
        holds: "10m",
        severity: "warning",
        expr: "sum(rate(deliver_outcomes_total{outcome=\"refused\"}[10m])) > 0.1 * sum(rate(deliver_outcomes_total[10m]))",
        advice: "More than a tenth is refused. `tocsin report failed-notifications` has the words of the far side.",
    },
    Alert {
        name: "TocsinIndexBehind",
        holds: "5m",
        severity: "warning",
        expr: "match_index_changes_behind > 10000",
        advice: "The match index does not follow the changes of the records fast enough. `tocsin digest` tells more.",
    },
    Alert {
        name: "TocsinSwitchedOff",
        holds: "1h",
        severity: "warning",
        expr: "pipeline_switched_off > 0",
        advice: "Something has been switched off for an hour. `tocsin switch list` says by whom and why.",
    },
    Alert {
        name: "TocsinRetentionStands",
        holds: "0m",
        severity: "warning",
        expr: "time() - upkeep_retention_ended_timestamp_seconds > 172800",
        advice: "Nothing was removed for two days. Look at `pipeline.retention_hours` and at the log.",
    },
];

/// The alert rules, as Prometheus reads them.
pub fn alerts() -> String {
    let mut text =
        "# Generated from the code by `make docs`; do not edit.\ngroups:\n  - name: tocsin\n    rules:\n".to_owned();
    for Alert { name, holds, severity, expr, advice } in ALERTS {
        let quote = |text: &str| serde_json::to_string(text).expect("text is JSON");
        let _ = write!(
            text,
            "      - alert: {name}\n        expr: {}\n        for: {holds}\n        labels: {{ severity: {severity} }}\n        annotations:\n          description: {}\n",
            quote(expr),
            quote(advice)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cli::compare_reference;

    #[test]
    fn the_committed_dashboard_and_rules_are_the_generated_ones() {
        compare_reference("grafana.json", &dashboard());
        compare_reference("alerts.yml", &alerts());
    }

    #[test]
    fn rules_ask_only_for_what_is_described() {
        let known: BTreeSet<&str> = rows().iter().flat_map(|(_, metrics)| *metrics).map(|metric| metric.name).collect();
        for alert in ALERTS {
            let words = alert.expr.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let asked: Vec<&str> = words.filter(|word| word.contains('_')).collect();
            assert!(!asked.is_empty(), "{}", alert.name);
            let unknown: Vec<&&str> = asked.iter().filter(|word| !known.contains(**word)).collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", alert.name);
        }
    }

    #[test]
    fn every_metric_has_a_panel() {
        let dashboard: Value = serde_json::from_str(&dashboard()).expect("JSON");
        let titles: BTreeSet<&str> = dashboard["panels"]
            .as_array()
            .expect("panels")
            .iter()
            .filter_map(|panel| panel["title"].as_str())
            .collect();
        for metric in rows().iter().flat_map(|(_, metrics)| *metrics) {
            assert!(titles.contains(metric.name), "{}", metric.name);
        }
    }
}
