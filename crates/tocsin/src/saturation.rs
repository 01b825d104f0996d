//! Saturation of this process: operation counters times the measured cost per operation (`tocsin bench vectors`),
//! compared with the limits of the machine.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use tocsin_capacity::{
    Vectors, read_vectors,
    saturation::{NodeCapacity, OperationCount, Saturation, SaturationMonitor, UsageSample},
    vectors::Resource,
};
use tocsin_pipeline::Pipeline;
use tokio_util::sync::CancellationToken;

use tocsin_command_line::resource_usage::ResourceUsage;

use crate::{
    configuration::Capacity,
    failure::{Failure, Outcome, read_text_file},
};

/// Sampling interval.
const EVERY: Duration = Duration::from_secs(10);

/// Creates a watch with the configured cost vectors, if any.
///
/// # Errors
/// If the vectors cannot be read.
pub fn watch(options: &Capacity) -> Outcome<Arc<Mutex<SaturationMonitor>>> {
    let vectors = match options.vectors.as_os_str().is_empty() {
        true => None,
        false => Some(vectors(options)?),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bounds: NodeCapacity = [(Resource::Processor, cores as f64)].into();
    Ok(Arc::new(Mutex::new(SaturationMonitor::new(vectors, bounds))))
}

fn vectors(options: &Capacity) -> Outcome<Vectors> {
    let text = read_text_file("read `capacity.vectors`", &options.vectors)?;
    read_vectors(&text).map_err(|problems| {
        let what = "capacity.vectors: the file does not contain vectors as written by `tocsin bench vectors`";
        problems.iter().fold(Failure::usage(what), |failure, problem| failure.detail(problem.to_string()))
    })
}

/// Samples at intervals and sets the gauges, until stopped. `counted`: the metrics recorder of this process, if it has
/// one.
pub fn start(
    watch: Arc<Mutex<SaturationMonitor>>,
    counted: Option<PrometheusHandle>,
    pipeline: Arc<Pipeline>,
    folder: PathBuf,
    stopping: CancellationToken,
) {
    let beginning = Instant::now();
    // Without vectors the counters cannot be converted to costs.
    let counted = counted.filter(|_| watch.lock().state().has_vectors);
    tokio::spawn(stopping.run_until_cancelled_owned(async move {
        let mut tick = tokio::time::interval(EVERY);
        loop {
            tick.tick().await;
            let sample = UsageSample {
                at: beginning.elapsed().as_secs_f64(),
                done: counted.as_ref().map(|counted| counts(counted, &pipeline)).unwrap_or_default(),
                used: used(&ResourceUsage::by(std::process::id(), &folder)),
            };
            let state = {
                let mut watch = watch.lock();
                watch.record(sample);
                watch.state()
            };
            set_gauges(&state);
        }
    }));
}

/// Operations since the start of the process.
fn counts(counted: &PrometheusHandle, pipeline: &Pipeline) -> BTreeMap<String, OperationCount> {
    let protocols = pipeline.channel_protocols();
    done(&counted.render(), &|application, channel| {
        let meant = protocols.iter().find(|(of, name, _)| {
            name.as_str() == channel && application.is_none_or(|application| of.as_str() == application)
        });
        meant.map(|(_, _, protocol)| protocol.to_string())
    })
}

/// Used amount of each resource, where the system provides it. Disk flushes are those of all processes.
fn used(found: &ResourceUsage) -> BTreeMap<Resource, f64> {
    let amounts = [
        (Resource::Processor, Some(found.processor)),
        (Resource::Disk, Some(found.disk_bytes)),
        (Resource::Syncs, found.syncs),
    ];
    amounts.into_iter().filter_map(|(resource, used)| Some((resource, used.filter(|used| *used > 0.0)?))).collect()
}

fn set_gauges(state: &Saturation) {
    for found in &state.resources {
        let resource = found.resource.word();
        metrics::gauge!("tocsin_saturation_used_ratio", "resource" => resource).set(found.used);
        // Prometheus represents "never" as +Inf.
        let seconds = found.full_in_seconds.unwrap_or(f64::INFINITY);
        metrics::gauge!("tocsin_saturation_full_in_seconds", "resource" => resource).set(seconds);
    }
    for found in &state.roles {
        let headroom = found.headroom.unwrap_or(f64::INFINITY);
        metrics::gauge!("tocsin_saturation_headroom", "role" => found.role.clone()).set(headroom);
    }
}

/// Operations known to the vectors, from the counters. `protocol`: protocol of a channel.
fn done(text: &str, protocol: &dyn Fn(Option<&str>, &str) -> Option<String>) -> BTreeMap<String, OperationCount> {
    let mut done: BTreeMap<String, OperationCount> = BTreeMap::new();
    let mut add = |operation: &str, items: f64, batches: f64| {
        let known = done.entry(operation.to_owned()).or_default();
        known.items += items;
        known.batches += batches;
    };
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels, value)) = sample(line) else { continue };
        let label = |requested: &str| labels.iter().find(|(name, _)| *name == requested).map(|(_, value)| *value);
        match name {
            "tocsin_accept_events_total" => add("accept", value, 0.0),
            "tocsin_accept_batches_total" => add("accept", 0.0, value),
            "tocsin_deliver_attempts_total" => {
                if let Some(protocol) = label("channel").and_then(|channel| protocol(label("application"), channel)) {
                    add(&format!("deliver.{protocol}"), value, 0.0);
                }
            }
            "tocsin_ldap_operations_total" => match label("operation") {
                Some("search") => add("directory.search", value, 0.0),
                Some("modify") => add("directory.modify_replace", value, 0.0),
                Some("add") => add("directory.add", value, 0.0),
                Some("bind") => add("directory.bind", value, 0.0),
                _ => {}
            },
            "tocsin_exchange_received_total" => add("exchange.roundtrip", value, 0.0),
            "tocsin_sync_sessions_total" => add("sync.session", value, 0.0),
            _ => {}
        }
    }
    done
}

/// Labels of a counter: names and values.
type Labels<'a> = Vec<(&'a str, &'a str)>;

/// Parses a line of the Prometheus text format into name, labels and value; `None` for other lines. Label values are
/// not unescaped: those used here contain no escapes.
fn sample(line: &str) -> Option<(&str, Labels<'_>, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, labels)) = series.split_once('{') else { return Some((series, Vec::new(), value)) };
    let mut found = Vec::new();
    let mut rest = labels.strip_suffix('}')?;
    while !rest.is_empty() {
        let (label, behind) = rest.split_once("=\"")?;
        let (value, behind) = behind.split_once('"')?;
        found.push((label, value));
        rest = behind.strip_prefix(',').unwrap_or(behind);
    }
    Some((name, found, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_operations() {
        let text = "# TYPE tocsin_accept_events_total counter\n\
            tocsin_accept_events_total 1000\n\
            tocsin_accept_batches_total 10\n\
            tocsin_deliver_attempts_total{application=\"shop\",channel=\"hook\",outcome=\"delivered\"} 5\n\
            tocsin_deliver_attempts_total{channel=\"hook\",outcome=\"refused\"} 2\n\
            tocsin_deliver_attempts_total{channel=\"gone\",outcome=\"refused\"} 2\n\
            tocsin_ldap_operations_total{operation=\"search\",result=\"success\"} 7\n\
            tocsin_ldap_operations_total{operation=\"search\",result=\"busy\"} 1\n\
            tocsin_ldap_operations_total{operation=\"unbind\",result=\"success\"} 9\n\
            tocsin_exchange_received_total{exchange=\"orders\",port=\"in\",result=\"new\"} 3\n\
            half a line{\n";
        let protocol = |application: Option<&str>, channel: &str| {
            (channel == "hook" && application.is_none_or(|application| application == "shop"))
                .then(|| "http".to_owned())
        };
        let done = done(text, &protocol);
        let of = |items, batches| OperationCount { items, batches };
        let expected = [
            ("accept", of(1_000.0, 10.0)),
            ("deliver.http", of(7.0, 0.0)),
            ("directory.search", of(8.0, 0.0)),
            ("exchange.roundtrip", of(3.0, 0.0)),
        ];
        assert_eq!(done, expected.map(|(name, done)| (name.to_owned(), done)).into());
    }

    #[test]
    fn configured_vectors_are_read_or_refused() {
        assert!(!watch(&Capacity::default()).expect("without vectors").lock().state().has_vectors);
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str, text: &str| {
            let vectors = folder.path().join(name);
            std::fs::write(&vectors, text).expect("written");
            Capacity { vectors }
        };
        let good = at("good.json", r#"{"vectors": "test", "machine": {"cores": 2}, "operations": {}}"#);
        assert!(watch(&good).expect("vectors").lock().state().has_vectors);
        let bad = watch(&at("bad.json", r#"{"vectors": 7}"#)).expect_err("no vectors");
        assert!(bad.message.contains("tocsin bench vectors"), "{}", bad.message);
        let gone = watch(&Capacity { vectors: folder.path().join("gone.json") }).expect_err("the file is missing");
        assert!(gone.message.contains("capacity.vectors"), "{}", gone.message);
    }
}
