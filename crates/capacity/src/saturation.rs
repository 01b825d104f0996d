//! Saturation of a running node: measured usage, cost-model estimates per role, headroom, and the trend until a
//! resource is exhausted.
//!
//! The caller records a [`UsageSample`] periodically: totals that only grow. Rates are those of the last minute. This
//! module has no access to clocks or processes.

use std::collections::{BTreeMap, VecDeque};

use crate::vectors::{Operation, Resource, Vectors};

/// Time window of rates.
const RATE_WINDOW_SECONDS: f64 = 60.0;
/// Time window of the trend, with a point for each [`POINT_SECONDS`].
const TREND_SECONDS: f64 = 3_600.0;
const POINT_SECONDS: f64 = 60.0;
/// Fewest points for a trend.
const POINTS_MIN: usize = 10;
/// A slope is significant from this multiple of its standard error.
const SIGNIFICANCE: f64 = 3.0;
/// Longest reported time until exhaustion, in seconds: 30 days.
const FORESEEN_MAX: f64 = 30.0 * 86_400.0;
/// Most operations of a sample; further ones are dropped.
const OPERATIONS_MAX: usize = 256;

/// The total count of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OperationCount {
    /// The number of items.
    pub items: f64,
    /// Batches; 0 if not counted: then each item is a batch.
    pub batches: f64,
}

/// The totals of a node since its start.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UsageSample {
    /// The time, in seconds since a fixed point.
    pub at: f64,
    /// Completed operations, by their names in the vectors.
    pub done: BTreeMap<String, OperationCount>,
    /// Measured usage of resources by the process, where the system reports it: processor seconds, bytes, syncs.
    pub used: BTreeMap<Resource, f64>,
}

/// The capacity of a node for each resource, per second, where known.
pub type NodeCapacity = BTreeMap<Resource, f64>;

/// Computes the saturation of one node from samples.
#[derive(Debug)]
pub struct SaturationMonitor {
    vectors: Option<Vectors>,
    bounds: NodeCapacity,
    samples: VecDeque<UsageSample>,
    /// The trend: the time, and the utilisation of each resource, one point per minute.
    points: VecDeque<(f64, BTreeMap<Resource, f64>)>,
}

/// The saturation of a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Saturation {
    /// The time window of the rates, in seconds.
    pub seconds: f64,
    /// Whether costs are known, so that usage can be attributed to roles.
    pub has_vectors: bool,
    /// The resources, highest utilisation first.
    pub resources: Vec<ResourceState>,
    /// The roles, least headroom first.
    pub roles: Vec<RoleState>,
}

/// The utilisation of a resource.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceState {
    /// The resource.
    pub resource: Resource,
    /// The utilisation: measured, else estimated from the vectors.
    pub used: f64,
    /// The utilisation estimated from the vectors. A large difference to the measured one means that the vectors are
    /// from another machine.
    pub by_vectors: Option<f64>,
    /// The factor by which the whole load can grow until it is exhausted.
    pub headroom: Option<f64>,
    /// Seconds until it is exhausted, if the load keeps growing as in the last hour; `None` if it does not grow.
    pub full_in_seconds: Option<f64>,
}

/// The usage of a role.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleState {
    /// The role.
    pub role: String,
    /// The factor by which its load can grow, with that of other roles constant, until `first` is exhausted; `None` if
    /// it is idle.
    pub headroom: Option<f64>,
    /// Bottleneck: a resource, or an operation beyond the rate up to which its cost is known.
    pub first: Option<String>,
    /// Processor utilisation, from the vectors.
    pub processor: f64,
    /// Operations per second.
    pub per_second: BTreeMap<String, f64>,
}

/// The rate of an operation.
struct Rate<'a> {
    operation: &'a Operation,
    name: &'a str,
    items: f64,
    /// Mean batch size.
    batch: f64,
    bytes: f64,
}

impl SaturationMonitor {
    /// For a node with these costs and bounds. Missing bounds default to those of the measured machine.
    pub fn new(vectors: Option<Vectors>, mut bounds: NodeCapacity) -> SaturationMonitor {
        for resource in Resource::ALL {
            if let Some(bound) = vectors.as_ref().and_then(|vectors| resource.of_node(&vectors.machine)) {
                bounds.entry(resource).or_insert(bound);
            }
        }
        bounds.retain(|_, bound| *bound > 0.0);
        SaturationMonitor { vectors, bounds, samples: VecDeque::new(), points: VecDeque::new() }
    }

    /// The costs of this node, if they are known.
    pub fn vectors(&self) -> Option<&Vectors> {
        self.vectors.as_ref()
    }

    /// Records a sample. A sample with an earlier time or smaller totals is from a new process: history restarts.
    pub fn record(&mut self, mut sample: UsageSample) {
        while sample.done.len() > OPERATIONS_MAX {
            sample.done.pop_last();
        }
        let goes_back = |last: &UsageSample| {
            sample.at <= last.at
                || last.done.iter().any(|(name, done)| sample.done.get(name).is_some_and(|now| now.items < done.items))
                || last.used.iter().any(|(resource, used)| sample.used.get(resource).is_some_and(|now| now < used))
        };
        if self.samples.back().is_some_and(goes_back) {
            self.samples.clear();
            self.points.clear();
        }
        self.samples.push_back(sample);
        // The oldest sample kept is the last one before the window.
        let from = self.samples.back().map_or(0.0, |last| last.at) - RATE_WINDOW_SECONDS;
        while self.samples.get(1).is_some_and(|second| second.at <= from) {
            self.samples.pop_front();
        }
        self.point();
    }

    /// Adds a point to the trend, if it is due.
    fn point(&mut self) {
        let Some(at) = self.samples.back().map(|sample| sample.at) else { return };
        let spans = self.samples.front().is_some_and(|first| at - first.at >= POINT_SECONDS / 2.0);
        if !spans || self.points.back().is_some_and(|(last, _)| at - last < POINT_SECONDS) {
            return;
        }
        let used = self.state().resources.into_iter().map(|state| (state.resource, state.used)).collect();
        self.points.push_back((at, used));
        while self.points.front().is_some_and(|(first, _)| at - first > TREND_SECONDS) {
            self.points.pop_front();
        }
    }

    /// The present saturation; empty with fewer than two samples.
    pub fn state(&self) -> Saturation {
        let has_vectors = self.vectors.is_some();
        let nothing = Saturation { has_vectors, ..Saturation::default() };
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return nothing };
        let seconds = last.at - first.at;
        if seconds <= 0.0 {
            return nothing;
        }
        let rates = self.rates(first, last, seconds);
        let mut by_role: BTreeMap<&str, BTreeMap<Resource, f64>> = BTreeMap::new();
        for rate in &rates {
            for (role, cost) in &rate.operation.roles {
                let load = by_role.entry(role).or_default();
                for resource in Resource::ALL {
                    *load.entry(resource).or_default() += rate.items * cost.of(resource, rate.bytes, rate.batch);
                }
            }
        }
        let shares: BTreeMap<Resource, (f64, Option<f64>)> = self
            .bounds
            .iter()
            .filter_map(|(resource, bound)| {
                let seen =
                    last.used.get(resource).zip(first.used.get(resource)).map(|(now, then)| (now - then) / seconds);
                let computed =
                    has_vectors.then(|| by_role.values().filter_map(|load| load.get(resource)).sum::<f64>() / bound);
                let used = seen.map(|seen| seen / bound).or(computed)?;
                Some((*resource, (used, computed)))
            })
            .collect();
        let mut resources: Vec<ResourceState> = shares
            .iter()
            .map(|(resource, (used, by_vectors))| ResourceState {
                resource: *resource,
                used: *used,
                by_vectors: *by_vectors,
                headroom: (*used > 0.0).then(|| 1.0 / used),
                full_in_seconds: self.full_in(*resource, last.at),
            })
            .collect();
        resources.sort_by(|one, other| other.used.total_cmp(&one.used));
        let mut roles: Vec<RoleState> =
            by_role.iter().map(|(role, load)| self.role(role, load, &shares, &rates)).collect();
        roles.sort_by(|one, other| {
            let of = |state: &RoleState| state.headroom.unwrap_or(f64::INFINITY);
            of(one).total_cmp(&of(other)).then_with(|| one.role.cmp(&other.role))
        });
        Saturation { seconds, has_vectors, resources, roles }
    }

    fn rates(&self, first: &UsageSample, last: &UsageSample, seconds: f64) -> Vec<Rate<'_>> {
        let operations = self.vectors.iter().flat_map(|vectors| &vectors.operations);
        let rates = operations.filter_map(|(name, operation)| {
            let now = last.done.get(name)?;
            let then = first.done.get(name).copied().unwrap_or_default();
            let (items, batches) = (now.items - then.items, now.batches - then.batches);
            Some(Rate {
                operation,
                name,
                items: items / seconds,
                batch: if batches > 0.0 { items / batches } else { 1.0 },
                // Not counted, so the smallest measured size is assumed.
                bytes: operation.bytes.map_or(0.0, |(least, _)| least),
            })
        });
        rates.collect()
    }

    fn role(
        &self,
        role: &str,
        load: &BTreeMap<Resource, f64>,
        shares: &BTreeMap<Resource, (f64, Option<f64>)>,
        rates: &[Rate<'_>],
    ) -> RoleState {
        let mut bounds: Vec<(f64, String)> = Vec::new();
        for (resource, (used, _)) in shares {
            let own = load.get(resource).copied().unwrap_or_default() / self.bounds[resource];
            if own > 0.0 {
                // The usage of other roles stays constant, and so does unattributed usage.
                let others = (used - own).max(0.0);
                bounds.push((((1.0 - others) / own).max(0.0), resource.word().to_owned()));
            }
        }
        let mine = || rates.iter().filter(|rate| rate.operation.roles.contains_key(role) && rate.items > 0.0);
        for rate in mine() {
            if let Some(knee) = rate.operation.knee {
                bounds.push((knee / rate.items, rate.name.to_owned()));
            }
        }
        let least = bounds.into_iter().min_by(|one, other| one.0.total_cmp(&other.0));
        let processor = load.get(&Resource::Processor).copied().unwrap_or_default();
        RoleState {
            role: role.to_owned(),
            headroom: least.as_ref().map(|(headroom, _)| *headroom),
            first: least.map(|(_, first)| first),
            processor: self.bounds.get(&Resource::Processor).map_or(0.0, |bound| processor / bound),
            per_second: mine().map(|rate| (rate.name.to_owned(), rate.items)).collect(),
        }
    }

    /// Seconds until a resource is exhausted, by linear regression; `None` if growth is not significant, or the time is
    /// too long.
    fn full_in(&self, resource: Resource, now: f64) -> Option<f64> {
        let points: Vec<(f64, f64)> =
            self.points.iter().filter_map(|(at, used)| Some((*at - now, *used.get(&resource)?))).collect();
        let line = Line::through(&points)?;
        if line.slope <= 0.0 || line.slope < SIGNIFICANCE * line.slope_error {
            return None;
        }
        let seconds = ((1.0 - line.at_zero) / line.slope).max(0.0);
        (seconds <= FORESEEN_MAX).then_some(seconds)
    }
}

/// A regression line (least squares).
struct Line {
    slope: f64,
    /// The standard error of the slope.
    slope_error: f64,
    at_zero: f64,
}

impl Line {
    fn through(points: &[(f64, f64)]) -> Option<Line> {
        if points.len() < POINTS_MIN {
            return None;
        }
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        if spread <= 0.0 {
            return None;
        }
        let slope = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
        let at_zero = y - slope * x;
        let missed: f64 = points.iter().map(|point| (point.1 - at_zero - slope * point.0).powi(2)).sum();
        Some(Line { slope, slope_error: (missed / (count - 2.0) / spread).sqrt(), at_zero })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_vectors;

    /// An event costs 100 us in the role `accept` and a batch 1,000 us more; a search costs 50 us in `directory`,
    /// measured up to 5,000/s.
    const VECTORS: &str = r#"{"vectors": "test", "machine": {"cores": 2, "syncs_per_second": 1000}, "operations": {
        "accept": {"roles": {"accept": {"processor_us": {"batch": 1000, "item": 100}, "syncs": {"batch": 1}}}},
        "directory.search": {"roles": {"directory": {"processor_us": {"item": 50}}}, "knee_per_second": 5000}
    }}"#;

    fn watch(bounds: &[(Resource, f64)]) -> SaturationMonitor {
        let vectors = read_vectors(VECTORS).unwrap_or_else(|problems| panic!("{problems:?}"));
        SaturationMonitor::new(Some(vectors), bounds.iter().copied().collect())
    }

    fn sample(at: f64, done: &[(&str, f64, f64)], processor: Option<f64>) -> UsageSample {
        let done = done
            .iter()
            .map(|(name, items, batches)| ((*name).to_owned(), OperationCount { items: *items, batches: *batches }));
        let used = processor.map(|seconds| (Resource::Processor, seconds)).into_iter().collect();
        UsageSample { at, done: done.collect(), used }
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn rates_times_costs_give_utilisation_and_headroom() {
        let mut watch = watch(&[]);
        watch.record(sample(0.0, &[("accept", 0.0, 0.0), ("directory.search", 0.0, 0.0)], None));
        assert_eq!(watch.state().roles, []);
        // 1,000 events/s in batches of 10: 200 us each; 1,000 searches/s: 50 us each. Two cores.
        watch.record(sample(10.0, &[("accept", 10_000.0, 1_000.0), ("directory.search", 10_000.0, 0.0)], None));
        let state = watch.state();
        near(state.seconds, 10.0);
        let of = |resource| state.resources.iter().find(|state| state.resource == resource).expect("it is known");
        near(of(Resource::Processor).used, 0.125);
        near(of(Resource::Processor).headroom.expect("used"), 8.0);
        near(of(Resource::Syncs).used, 0.1);
        let [accept, directory] = &state.roles[..] else { panic!("{state:?}") };
        assert_eq!((accept.role.as_str(), directory.role.as_str()), ("directory", "accept"));
        // The measured range ends before the processor is exhausted.
        near(accept.headroom.expect("used"), 5.0);
        assert_eq!(accept.first.as_deref(), Some("directory.search"));
        near(accept.processor, 0.025);
        // (1 - 0.025) / 0.1 of the processor, 1 / 0.1 of the syncs.
        near(directory.headroom.expect("used"), 9.75);
        assert_eq!(directory.first.as_deref(), Some("processor"));
        near(directory.per_second["accept"], 1_000.0);
    }

    #[test]
    fn measured_usage_takes_precedence_over_estimates() {
        let mut watch = watch(&[(Resource::Processor, 4.0)]);
        watch.record(sample(0.0, &[("accept", 0.0, 0.0)], Some(5.0)));
        watch.record(sample(10.0, &[("accept", 10_000.0, 1_000.0)], Some(25.0)));
        let state = watch.state();
        let processor = state.resources.iter().find(|state| state.resource == Resource::Processor).expect("known");
        near(processor.used, 0.5);
        near(processor.by_vectors.expect("there are vectors"), 0.05);
        // 0.45 are unattributed, and stay constant.
        near(state.roles[0].headroom.expect("used"), 10.0);
    }

    #[test]
    fn without_vectors_there_are_resources_but_no_roles() {
        let mut watch = SaturationMonitor::new(None, [(Resource::Processor, 2.0)].into());
        watch.record(sample(0.0, &[("accept", 0.0, 0.0)], Some(0.0)));
        watch.record(sample(60.0, &[("accept", 5.0, 5.0)], Some(12.0)));
        let state = watch.state();
        assert_eq!((state.has_vectors, state.roles.len(), state.resources.len()), (false, 0, 1));
        near(state.resources[0].used, 0.1);
    }

    #[test]
    fn a_growing_load_has_a_time_until_exhaustion() {
        let mut watch = SaturationMonitor::new(None, [(Resource::Processor, 1.0)].into());
        let (mut used, mut at) = (0.0, 0.0);
        watch.record(sample(at, &[], Some(used)));
        // From 10 % by one percentage point a minute.
        for minute in 0..40 {
            for _ in 0..6 {
                at += 10.0;
                used += 10.0 * (0.10 + 0.01 * f64::from(minute));
                watch.record(sample(at, &[], Some(used)));
            }
        }
        let state = watch.state();
        let full = state.resources[0].full_in_seconds.expect("it grows");
        // 49 % now; 51 minutes are left.
        assert!((full - 51.0 * 60.0).abs() < 90.0, "{full}");
        // Another process restarts the history.
        watch.record(sample(at + 10.0, &[], Some(0.0)));
        assert_eq!(watch.state().resources, []);
    }

    #[test]
    fn a_fluctuating_load_has_no_trend() {
        let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(7_u64);
        println!("SEED={seed}");
        let mut chance = seed;
        let mut watch = SaturationMonitor::new(None, [(Resource::Processor, 1.0)].into());
        let mut used = 0.0;
        for step in 0..360 {
            // A Lehmer generator is random enough.
            chance = (chance.wrapping_mul(48_271) + 11) % 0x7fff_ffff;
            used += 10.0 * (0.3 + 0.2 * (chance as f64 / f64::from(0x7fff_ffff)));
            watch.record(sample(f64::from(step + 1) * 10.0, &[], Some(used)));
        }
        let full = watch.state().resources[0].full_in_seconds;
        assert!(full.is_none_or(|seconds| seconds > 6.0 * 3_600.0), "{full:?}");
    }
}
