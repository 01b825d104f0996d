//! Watches how far this process is from its bounds: what it counts, times what one of it was measured to cost
//! (`tocsin bench vectors`).

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use tocsin_capacity::{
    Vectors, read_vectors,
    saturation::{Bounds, Done, Look, Saturation, Watch},
    vectors::Resource,
};
use tocsin_pipeline::Pipeline;
use tokio_util::sync::CancellationToken;

use crate::{
    bench::probe::Used,
    configuration::Capacity,
    failure::{Failure, Outcome},
};

/// How often is looked.
const EVERY: Duration = Duration::from_secs(10);

/// A watch with the vectors that are configured, if any are.
///
/// # Errors
/// The vectors cannot be read.
pub fn watch(options: &Capacity) -> Outcome<Arc<Mutex<Watch>>> {
    let vectors = match options.vectors.as_os_str().is_empty() {
        true => None,
        false => Some(vectors(options)?),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bounds: Bounds = [(Resource::Processor, cores as f64)].into();
    Ok(Arc::new(Mutex::new(Watch::new(vectors, bounds))))
}

fn vectors(options: &Capacity) -> Outcome<Vectors> {
    let text = fs::read_to_string(&options.vectors)
        .map_err(|error| Failure::file("read `capacity.vectors`", &options.vectors, &error))?;
    read_vectors(&text).map_err(|problems| {
        let what = "mend capacity.vectors: these are no vectors as `tocsin bench vectors` writes them";
        problems.iter().fold(Failure::usage(what), |failure, problem| failure.detail(problem.to_string()))
    })
}

/// Looks now and then, and sets the gauges, until it is stopped. `counted`: the recorder of this process, if it has one.
pub fn start(
    watch: Arc<Mutex<Watch>>,
    counted: Option<PrometheusHandle>,
    pipeline: Arc<Pipeline>,
    folder: PathBuf,
    stopping: CancellationToken,
) {
    let beginning = Instant::now();
    // What was done means nothing where nobody knows what it costs.
    let counted = counted.filter(|_| watch.lock().state().has_vectors);
    tokio::spawn(stopping.run_until_cancelled_owned(async move {
        let mut tick = tokio::time::interval(EVERY);
        loop {
            tick.tick().await;
            let look = Look {
                at: beginning.elapsed().as_secs_f64(),
                done: counted.as_ref().map(|counted| counts(counted, &pipeline)).unwrap_or_default(),
                used: used(&Used::by(std::process::id(), &folder)),
            };
            let state = {
                let mut watch = watch.lock();
                watch.note(look);
                watch.state()
            };
            set_gauges(&state);
        }
    }));
}

/// What was done since the start of the process.
fn counts(counted: &PrometheusHandle, pipeline: &Pipeline) -> BTreeMap<String, Done> {
    let protocols = pipeline.channel_protocols();
    done(&counted.render(), &|application, channel| {
        let meant = protocols.iter().find(|(of, name, _)| {
            name.as_str() == channel && application.is_none_or(|application| of.as_str() == application)
        });
        meant.map(|(_, _, protocol)| protocol.to_string())
    })
}

/// What the process has used of each resource, where the system tells. Flushes of the disk are those of all processes.
fn used(found: &Used) -> BTreeMap<Resource, f64> {
    let told = [
        (Resource::Processor, Some(found.processor)),
        (Resource::Disk, Some(found.disk_bytes)),
        (Resource::Syncs, found.syncs),
    ];
    told.into_iter().filter_map(|(resource, used)| Some((resource, used.filter(|used| *used > 0.0)?))).collect()
}

fn set_gauges(state: &Saturation) {
    for found in &state.resources {
        let resource = found.resource.word();
        metrics::gauge!("saturation_used_ratio", "resource" => resource).set(found.used);
        // Where no end is in sight, Prometheus has a word for it.
        let seconds = found.full_in_seconds.unwrap_or(f64::INFINITY);
        metrics::gauge!("saturation_full_in_seconds", "resource" => resource).set(seconds);
    }
    for found in &state.roles {
        let headroom = found.headroom.unwrap_or(f64::INFINITY);
        metrics::gauge!("saturation_headroom", "role" => found.role.clone()).set(headroom);
    }
}

/// What was done of the operations that vectors know, as the counters tell it. `protocol`: that of a channel.
fn done(text: &str, protocol: &dyn Fn(Option<&str>, &str) -> Option<String>) -> BTreeMap<String, Done> {
    let mut done: BTreeMap<String, Done> = BTreeMap::new();
    let mut add = |operation: &str, items: f64, batches: f64| {
        let known = done.entry(operation.to_owned()).or_default();
        known.items += items;
        known.batches += batches;
    };
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels, value)) = sample(line) else { continue };
        let label = |wanted: &str| labels.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        match name {
            "accept_events_total" => add("accept", value, 0.0),
            "accept_batches_total" => add("accept", 0.0, value),
            "deliver_attempts_total" => {
                if let Some(protocol) = label("channel").and_then(|channel| protocol(label("application"), channel)) {
                    add(&format!("deliver.{protocol}"), value, 0.0);
                }
            }
            "ldap_operations_total" => match label("operation") {
                Some("search") => add("directory.search", value, 0.0),
                Some("modify") => add("directory.modify_replace", value, 0.0),
                Some("add") => add("directory.add", value, 0.0),
                Some("bind") => add("directory.bind", value, 0.0),
                _ => {}
            },
            "exchange_received_total" => add("exchange.roundtrip", value, 0.0),
            "sync_sessions_total" => add("sync.session", value, 0.0),
            _ => {}
        }
    }
    done
}

/// Labels of a counter: names and values.
type Labels<'a> = Vec<(&'a str, &'a str)>;

/// Name, labels and value of a line of the text format of Prometheus; `None` for what is none. Values of labels are as they
/// stand there: those that are looked at hold no character that is escaped.
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
        let text = "# TYPE accept_events_total counter\n\
            accept_events_total 1000\n\
            accept_batches_total 10\n\
            deliver_attempts_total{application=\"shop\",channel=\"hook\",outcome=\"delivered\"} 5\n\
            deliver_attempts_total{channel=\"hook\",outcome=\"refused\"} 2\n\
            deliver_attempts_total{channel=\"gone\",outcome=\"refused\"} 2\n\
            ldap_operations_total{operation=\"search\",result=\"success\"} 7\n\
            ldap_operations_total{operation=\"search\",result=\"busy\"} 1\n\
            ldap_operations_total{operation=\"unbind\",result=\"success\"} 9\n\
            exchange_received_total{exchange=\"orders\",port=\"in\",result=\"new\"} 3\n\
            half a line{\n";
        let protocol = |application: Option<&str>, channel: &str| {
            (channel == "hook" && application.is_none_or(|application| application == "shop"))
                .then(|| "http".to_owned())
        };
        let done = done(text, &protocol);
        let of = |items, batches| Done { items, batches };
        let expected = [
            ("accept", of(1_000.0, 10.0)),
            ("deliver.http", of(7.0, 0.0)),
            ("directory.search", of(8.0, 0.0)),
            ("exchange.roundtrip", of(3.0, 0.0)),
        ];
        assert_eq!(done, expected.map(|(name, done)| (name.to_owned(), done)).into());
    }

    #[test]
    fn what_is_configured_is_read_or_told() {
        assert!(!watch(&Capacity::default()).expect("nothing is configured").lock().state().has_vectors);
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str, text: &str| {
            let vectors = folder.path().join(name);
            fs::write(&vectors, text).expect("written");
            Capacity { vectors }
        };
        let good = at("good.json", r#"{"vectors": "test", "machine": {"cores": 2}, "operations": {}}"#);
        assert!(watch(&good).expect("vectors").lock().state().has_vectors);
        let bad = watch(&at("bad.json", r#"{"vectors": 7}"#)).expect_err("no vectors");
        assert!(bad.message.contains("tocsin bench vectors"), "{}", bad.message);
        let gone = watch(&Capacity { vectors: folder.path().join("gone.json") }).expect_err("there is none");
        assert!(gone.message.contains("capacity.vectors"), "{}", gone.message);
    }
}
