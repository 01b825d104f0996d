//! Cost of an operation: its usage at several sizes and batches, and the line per resource that is fitted to it.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tocsin_capacity::{
    fit::{Fit, Sample, fit, knee},
    vectors::Linear,
};

use crate::{context::Context, failure::Outcome, figure::rounded, resource_usage::ResourceUsage, server::Server};

/// CPU usage below which a server counts as idle, in CPUs.
const IDLE_CPU_MAX: f64 = 0.05;
/// Maximum time until the server is idle, for example while it builds indexes.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(120);

/// Operation with its measurements.
pub(super) struct OperationCost {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) role: &'static str,
    pub(super) points: Vec<CostSample>,
    /// Request rates and the CPU microseconds per item at each.
    pub(super) steps: Vec<(f64, f64)>,
    /// Selects the terms of the fitted line that belong to this operation; the rest is counted in another one.
    pub(super) own: fn(Linear) -> Linear,
}

/// Resource usage of items of one size and batch.
pub(super) struct CostSample {
    pub(super) bytes: f64,
    pub(super) batch: f64,
    pub(super) items: f64,
    pub(super) used: ResourceUsage,
    /// Wire bytes per item.
    pub(super) wire_each: f64,
}

/// Server whose resource usage is observed.
pub(super) struct ObservedServer {
    pid: u32,
    folder: PathBuf,
    /// Idle usage per second.
    idle: ResourceUsage,
}

impl ObservedServer {
    /// Waits until the server is idle and measures its idle usage, so that start-up work is not taken for it.
    pub(super) async fn begin(context: &Context, server: &Server) -> ObservedServer {
        let started = Instant::now();
        while ObservedServer::used_in(server, Duration::from_millis(500)).await.processor > IDLE_CPU_MAX {
            if started.elapsed() > IDLE_WAIT_MAX {
                context.log("   the server does not become idle: its background work counts as idle usage");
                break;
            }
        }
        let idle = ObservedServer::used_in(server, Duration::from_secs(context.size(5, 1))).await;
        ObservedServer { pid: server.pid(), folder: server.folder.clone(), idle }
    }

    /// Usage per second of the server during this time.
    async fn used_in(server: &Server, time: Duration) -> ResourceUsage {
        let before = ResourceUsage::by(server.pid(), &server.folder);
        tokio::time::sleep(time).await;
        let used = ResourceUsage::by(server.pid(), &server.folder).since(
            &before,
            &ResourceUsage::default(),
            time.as_secs_f64(),
        );
        used.per_second(time.as_secs_f64())
    }

    /// Usage of the server during this work.
    pub(super) async fn during<T>(&self, work: impl Future<Output = Outcome<T>>) -> Outcome<(T, ResourceUsage)> {
        let (before, started) = (ResourceUsage::by(self.pid, &self.folder), Instant::now());
        let done = work.await?;
        let seconds = started.elapsed().as_secs_f64();
        Ok((done, ResourceUsage::by(self.pid, &self.folder).since(&before, &self.idle, seconds)))
    }
}

impl OperationCost {
    /// Creates an operation that owns all its cost terms, without a search for the knee.
    pub(super) fn new(
        name: impl Into<String>,
        about: impl Into<String>,
        role: &'static str,
        points: Vec<CostSample>,
    ) -> OperationCost {
        OperationCost { name: name.into(), about: about.into(), role, points, steps: Vec::new(), own: |cost| cost }
    }

    /// Fits a line to a resource, of which `each` returns the usage per item.
    fn line(&self, each: impl Fn(&CostSample) -> f64) -> Fit {
        let samples: Vec<Sample> = self
            .points
            .iter()
            .map(|point| Sample { bytes: point.bytes, batch: point.batch, each: each(point) })
            .collect();
        let found = fit(&samples);
        Fit { cost: (self.own)(found.cost), ..found }
    }

    fn processor(&self) -> Fit {
        self.line(|point| point.used.processor * 1e6 / point.items.max(1.0))
    }

    pub(super) fn json(&self) -> Value {
        let mut cost = Map::new();
        let mut put = |name: &str, line: Fit| {
            let parts = parts(line.cost);
            if !parts.is_empty() {
                cost.insert(name.to_owned(), Value::Object(parts));
            }
        };
        put("processor_us", self.processor());
        put("disk_bytes", self.line(|point| point.used.disk_bytes / point.items.max(1.0)));
        if self.points.iter().all(|point| point.used.syncs.is_some()) {
            put("syncs", self.line(|point| point.used.syncs.unwrap_or_default() / point.items.max(1.0)));
        }
        put("wire_bytes", self.line(|point| point.wire_each));
        let range = |value: fn(&CostSample) -> f64| {
            let values = || self.points.iter().map(value);
            json!([values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max)])
        };
        let mut operation = json!({
            "about": self.about,
            "roles": { self.role: cost },
            "bytes": range(|point| point.bytes),
            "batch": range(|point| point.batch),
        });
        if let Some(knee) = knee(&self.steps) {
            operation["knee_per_second"] = rounded(knee, 4);
        }
        operation
    }

    /// Summary for the progress log.
    pub(super) fn summary(&self) -> String {
        let (processor, wire) = (self.processor(), self.line(|point| point.wire_each));
        let knee = match (knee(&self.steps), self.steps.is_empty()) {
            (Some(rate), _) => format!("knee at {rate:.0}/s"),
            (None, false) => "no knee found".to_owned(),
            (None, true) => "knee not searched".to_owned(),
        };
        let term = |name: &str, line: &Fit| {
            format!("{name} {}, error at most {:.0} %", Value::Object(parts(line.cost)), line.error * 100.0)
        };
        format!("{}: {}; {}; {knee}", self.name, term("processor_us", &processor), term("wire_bytes", &wire))
    }
}

/// Nonzero terms of a line.
fn parts(cost: Linear) -> Map<String, Value> {
    let parts = [("batch", cost.batch), ("item", cost.item), ("kilobyte", cost.kilobyte)];
    parts.into_iter().filter(|(_, part)| *part > 0.0).map(|(name, part)| (name.to_owned(), rounded(part, 4))).collect()
}
