//! Grafana dashboard and Prometheus alert rules, generated from the metrics table: every metric is on the dashboard,
//! and rules only use known metrics.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tocsin_face_http::metrics::{self as face, Kind, Metric};

use crate::metrics::STEPS;

/// Panels per row of the dashboard's 24 columns.
const PANELS_BESIDE: usize = 3;

/// Rows of the dashboard: title and metrics.
fn rows() -> [(&'static str, &'static [Metric]); 3] {
    [("Pipeline", STEPS), ("Backlog and stores", face::GAUGES), ("HTTP", face::METRICS)]
}

/// Dashboard in Grafana's import format.
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
             "query": "label_values(tocsin_platform_ready, instance)", "includeAll": true, "multi": true, "refresh": 2},
        ]},
        "panels": panels,
    });
    let mut text = serde_json::to_string_pretty(&dashboard).expect("a dashboard is serializable");
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

/// Queries of a panel, with their legends.
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

/// Alert: name, duration, severity, expression, advice.
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
        expr: "tocsin_platform_ready == 0",
        advice: "A match index is not built. `tocsin status` and `/readyz` show which.",
    },
    Alert {
        name: "TocsinEventsWait",
        holds: "5m",
        severity: "critical",
        expr: "tocsin_backlog_oldest_event_seconds > 60",
        advice: "Events are not matched fast enough. `tocsin attention` shows the cause.",
    },
    Alert {
        name: "TocsinEventsRefused",
        holds: "1m",
        severity: "critical",
        expr: "rate(tocsin_accept_refused_total[5m]) > 0",
        advice: "Submissions are refused: the disk is full, a limit is reached, or acceptance is switched off.",
    },
    Alert {
        name: "TocsinBatchesFailed",
        holds: "0m",
        severity: "critical",
        expr: "tocsin_backlog_failed_batches > 0",
        advice: "Matching of event batches failed. `tocsin report event-batch-list --status failed` shows the reasons.",
    },
    Alert {
        name: "TocsinNotificationsSuspended",
        holds: "0m",
        severity: "warning",
        expr: "tocsin_backlog_suspended_notifications > 0",
        advice: "Notifications are suspended. `tocsin suspended list` shows the reasons.",
    },
    Alert {
        name: "TocsinRulesStopped",
        holds: "0m",
        severity: "critical",
        expr: "tocsin_match_stopped_rules > 0",
        advice: "Rules are stopped. Correct them, run `tocsin rule resume`, then `tocsin firings refire`.",
    },
    Alert {
        name: "TocsinFiringsMissed",
        holds: "0m",
        severity: "warning",
        expr: "increase(tocsin_match_missed_firings_total[15m]) > 0",
        advice: "Rules did not run for event batches. `tocsin firings list` shows them.",
    },
    Alert {
        name: "TocsinDestinationsPaused",
        holds: "15m",
        severity: "warning",
        expr: "sum by (application, channel) (tocsin_deliver_destinations{state=\"paused\"}) > 0",
        advice: "Destinations are paused after failures. `tocsin destinations` shows their responses.",
    },
    Alert {
        name: "TocsinDestinationsStalled",
        holds: "1m",
        severity: "critical",
        expr: "sum by (application, channel) (tocsin_deliver_destinations{state=\"stalled\"}) > 0",
        advice: "Messages wait for destinations that are open but receive none. `tocsin destinations` lists them.",
    },
    Alert {
        name: "TocsinMailHeldBack",
        holds: "1h",
        severity: "warning",
        expr: "sum by (application, channel, provider) (tocsin_deliver_providers_held_back) > 0",
        advice: "A mailbox provider has held mail back for an hour. `tocsin attention` shows its reply.",
    },
    Alert {
        name: "TocsinManyRefused",
        holds: "10m",
        severity: "warning",
        expr: "sum(rate(tocsin_deliver_outcomes_total{outcome=\"refused\"}[10m])) > 0.1 * sum(rate(tocsin_deliver_outcomes_total[10m]))",
        advice: "More than a tenth of the notifications are refused. `tocsin report failed-notifications` shows the receivers' responses.",
    },
    Alert {
        name: "TocsinMailBlocked",
        holds: "0m",
        severity: "warning",
        expr: "sum(increase(tocsin_feedback_reports_total{class=\"blocked\"}[1d])) > 10",
        advice: "Mail servers refuse the sender. `tocsin feedback list --class blocked` shows their texts.",
    },
    Alert {
        name: "TocsinIndexBehind",
        holds: "5m",
        severity: "warning",
        expr: "tocsin_match_index_changes_behind > 10000",
        advice: "The match index falls behind the changes of the records. `tocsin attention` shows the cause.",
    },
    Alert {
        name: "TocsinSwitchedOff",
        holds: "1h",
        severity: "warning",
        expr: "tocsin_pipeline_switched_off > 0",
        advice: "A component has been switched off for an hour. `tocsin switch list` shows by whom and why.",
    },
    Alert {
        name: "TocsinRetentionStands",
        holds: "0m",
        severity: "warning",
        expr: "time() - tocsin_upkeep_retention_ended_timestamp_seconds > 172800",
        advice: "No expired data was deleted for two days. Check `pipeline.retention_hours` and the log.",
    },
];

/// Alert rules in Prometheus format.
pub fn alerts() -> String {
    let mut text =
        "# Generated from the code by `make docs`; do not edit.\ngroups:\n  - name: tocsin\n    rules:\n".to_owned();
    for Alert { name, holds, severity, expr, advice } in ALERTS {
        let quote = |text: &str| serde_json::to_string(text).expect("a string is serializable");
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
    fn the_committed_dashboard_and_rules_are_up_to_date() {
        compare_reference("grafana.json", &dashboard());
        compare_reference("alerts.yml", &alerts());
    }

    #[test]
    fn rules_use_only_known_metrics() {
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
