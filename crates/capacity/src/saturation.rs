//! How far a running node is from its bounds: what it does now, times what one of it was measured to cost, beside what the
//! node is seen to use; and when, if it goes on as it did, it will be full.
//!
//! Whoever watches notes a [`Look`] now and then: totals that only grow. Rates are those of the last minute. Nothing here
//! knows a clock or a process.

use std::collections::{BTreeMap, VecDeque};

use crate::vectors::{Operation, Resource, Vectors};

/// Rates are those of so many seconds.
const LATELY_SECONDS: f64 = 60.0;
/// The trend is that of so many seconds, a point for each of [`POINT_SECONDS`].
const TREND_SECONDS: f64 = 3_600.0;
const POINT_SECONDS: f64 = 60.0;
/// Fewer points are no trend.
const POINTS_MIN: usize = 10;
/// A slope that is less than so many times its error is none.
const SURE: f64 = 3.0;
/// What is further away is not told, in seconds: 30 days.
const FORESEEN_MAX: f64 = 30.0 * 86_400.0;
/// Operations of a look that are told apart; further ones are left out.
const OPERATIONS_MAX: usize = 256;

/// How much was done of an operation since the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Done {
    /// How many.
    pub items: f64,
    /// In how many batches; 0 where it is not counted: each is one.
    pub batches: f64,
}

/// What a node has done and used since its beginning.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Look {
    /// When, in seconds since some beginning.
    pub at: f64,
    /// What was done, by the names that the vectors have.
    pub done: BTreeMap<String, Done>,
    /// What the process used of a resource, where the system tells: seconds on processors, bytes, syncs.
    pub used: BTreeMap<Resource, f64>,
}

/// What a node has of each resource in a second, where it is known.
pub type Bounds = BTreeMap<Resource, f64>;

/// Watches one node.
#[derive(Debug)]
pub struct Watch {
    vectors: Option<Vectors>,
    bounds: Bounds,
    looks: VecDeque<Look>,
    /// When, and which share of each resource was used, a point a minute.
    points: VecDeque<(f64, BTreeMap<Resource, f64>)>,
}

/// How a node stands.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Saturation {
    /// Of how many seconds the rates are.
    pub seconds: f64,
    /// Whether costs are known, so that roles can be told apart.
    pub has_vectors: bool,
    /// What may run out, the fullest first.
    pub resources: Vec<ResourceState>,
    /// Who uses it, the one with the least headroom first.
    pub roles: Vec<RoleState>,
}

/// A resource of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceState {
    /// Which.
    pub resource: Resource,
    /// Which share of it is used: as it is seen, else by the vectors.
    pub used: f64,
    /// Which share of it is used by the vectors; far from what is seen, they are not those of this machine.
    pub by_vectors: Option<f64>,
    /// How many times the whole load may be until it runs out.
    pub headroom: Option<f64>,
    /// In how many seconds it runs out, if the load goes on to grow as it did in the last hour; none if it does not grow.
    pub full_in_seconds: Option<f64>,
}

/// A role of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleState {
    /// Which.
    pub role: String,
    /// How many times its load may be, if that of the others stays, until `first` gives out; none while it does nothing.
    pub headroom: Option<f64>,
    /// What gives out first: a resource, or an operation beyond the rate to which its cost is known.
    pub first: Option<String>,
    /// The share of the processors that it uses, by the vectors.
    pub processor: f64,
    /// What it does in a second, by operation.
    pub per_second: BTreeMap<String, f64>,
}

/// What is done of an operation in a second.
struct Rate<'a> {
    operation: &'a Operation,
    name: &'a str,
    items: f64,
    /// Means.
    batch: f64,
    bytes: f64,
}

impl Watch {
    /// Watches a node with these costs and bounds. Bounds that are not given are those of the machine that was measured.
    pub fn new(vectors: Option<Vectors>, mut bounds: Bounds) -> Watch {
        for resource in Resource::ALL {
            if let Some(bound) = vectors.as_ref().and_then(|vectors| resource.of_node(&vectors.machine)) {
                bounds.entry(resource).or_insert(bound);
            }
        }
        bounds.retain(|_, bound| *bound > 0.0);
        Watch { vectors, bounds, looks: VecDeque::new(), points: VecDeque::new() }
    }

    /// Notes a look. One that goes back in time or in what was done begins anew: it is of another process.
    pub fn note(&mut self, mut look: Look) {
        while look.done.len() > OPERATIONS_MAX {
            look.done.pop_last();
        }
        let goes_back = |last: &Look| {
            look.at <= last.at
                || last.done.iter().any(|(name, done)| look.done.get(name).is_some_and(|now| now.items < done.items))
                || last.used.iter().any(|(resource, used)| look.used.get(resource).is_some_and(|now| now < used))
        };
        if self.looks.back().is_some_and(goes_back) {
            self.looks.clear();
            self.points.clear();
        }
        self.looks.push_back(look);
        // The first that is kept is the last one before the span.
        let from = self.looks.back().map_or(0.0, |last| last.at) - LATELY_SECONDS;
        while self.looks.get(1).is_some_and(|second| second.at <= from) {
            self.looks.pop_front();
        }
        self.point();
    }

    /// Adds a point to the trend, if it is time for one.
    fn point(&mut self) {
        let Some(at) = self.looks.back().map(|look| look.at) else { return };
        let spans = self.looks.front().is_some_and(|first| at - first.at >= POINT_SECONDS / 2.0);
        if !spans || self.points.back().is_some_and(|(last, _)| at - last < POINT_SECONDS) {
            return;
        }
        let used = self.state().resources.into_iter().map(|state| (state.resource, state.used)).collect();
        self.points.push_back((at, used));
        while self.points.front().is_some_and(|(first, _)| at - first > TREND_SECONDS) {
            self.points.pop_front();
        }
    }

    /// How the node stands; empty before there are two looks.
    pub fn state(&self) -> Saturation {
        let has_vectors = self.vectors.is_some();
        let nothing = Saturation { has_vectors, ..Saturation::default() };
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else { return nothing };
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
                let told =
                    has_vectors.then(|| by_role.values().filter_map(|load| load.get(resource)).sum::<f64>() / bound);
                let used = seen.map(|seen| seen / bound).or(told)?;
                Some((*resource, (used, told)))
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

    fn rates(&self, first: &Look, last: &Look, seconds: f64) -> Vec<Rate<'_>> {
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
                // Nobody counts them, so they are as few as were measured.
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
                // What the others use stays, and what nobody accounts for too.
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

    /// In how many seconds a resource is full, by a straight line through its points (least squares); `None` if it does not
    /// surely grow, or if that is too far away to be told.
    fn full_in(&self, resource: Resource, now: f64) -> Option<f64> {
        let points: Vec<(f64, f64)> =
            self.points.iter().filter_map(|(at, used)| Some((*at - now, *used.get(&resource)?))).collect();
        let line = Line::through(&points)?;
        if line.slope <= 0.0 || line.slope < SURE * line.slope_error {
            return None;
        }
        let seconds = ((1.0 - line.at_zero) / line.slope).max(0.0);
        (seconds <= FORESEEN_MAX).then_some(seconds)
    }
}

/// A straight line by least squares.
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

    /// An event costs 100 us in the role `accept` and a batch 1,000 us more, a search 50 us in `directory`, which is known up
    /// to 5,000/s.
    const VECTORS: &str = r#"{"vectors": "test", "machine": {"cores": 2, "syncs_per_second": 1000}, "operations": {
        "accept": {"roles": {"accept": {"processor_us": {"batch": 1000, "item": 100}, "syncs": {"batch": 1}}}},
        "directory.search": {"roles": {"directory": {"processor_us": {"item": 50}}}, "knee_per_second": 5000}
    }}"#;

    fn watch(bounds: &[(Resource, f64)]) -> Watch {
        let vectors = read_vectors(VECTORS).unwrap_or_else(|problems| panic!("{problems:?}"));
        Watch::new(Some(vectors), bounds.iter().copied().collect())
    }

    fn look(at: f64, done: &[(&str, f64, f64)], processor: Option<f64>) -> Look {
        let done =
            done.iter().map(|(name, items, batches)| ((*name).to_owned(), Done { items: *items, batches: *batches }));
        let used = processor.map(|seconds| (Resource::Processor, seconds)).into_iter().collect();
        Look { at, done: done.collect(), used }
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn rates_times_costs_are_shares_and_what_is_left_is_headroom() {
        let mut watch = watch(&[]);
        watch.note(look(0.0, &[("accept", 0.0, 0.0), ("directory.search", 0.0, 0.0)], None));
        assert_eq!(watch.state().roles, []);
        // 1,000 events/s in batches of 10: 200 us each; 1,000 searches/s: 50 us each. Of two cores.
        watch.note(look(10.0, &[("accept", 10_000.0, 1_000.0), ("directory.search", 10_000.0, 0.0)], None));
        let state = watch.state();
        near(state.seconds, 10.0);
        let of = |resource| state.resources.iter().find(|state| state.resource == resource).expect("it is known");
        near(of(Resource::Processor).used, 0.125);
        near(of(Resource::Processor).headroom.expect("used"), 8.0);
        near(of(Resource::Syncs).used, 0.1);
        let [accept, directory] = &state.roles[..] else { panic!("{state:?}") };
        assert_eq!((accept.role.as_str(), directory.role.as_str()), ("directory", "accept"));
        // The knee comes before the processor.
        near(accept.headroom.expect("used"), 5.0);
        assert_eq!(accept.first.as_deref(), Some("directory.search"));
        near(accept.processor, 0.025);
        // (1 - 0.025) / 0.1 of the processor, 1 / 0.1 of the syncs.
        near(directory.headroom.expect("used"), 9.75);
        assert_eq!(directory.first.as_deref(), Some("processor"));
        near(directory.per_second["accept"], 1_000.0);
    }

    #[test]
    fn what_is_seen_counts_before_what_is_computed() {
        let mut watch = watch(&[(Resource::Processor, 4.0)]);
        watch.note(look(0.0, &[("accept", 0.0, 0.0)], Some(5.0)));
        watch.note(look(10.0, &[("accept", 10_000.0, 1_000.0)], Some(25.0)));
        let state = watch.state();
        let processor = state.resources.iter().find(|state| state.resource == Resource::Processor).expect("known");
        near(processor.used, 0.5);
        near(processor.by_vectors.expect("there are vectors"), 0.05);
        // 0.45 are nobody's, and stay.
        near(state.roles[0].headroom.expect("used"), 10.0);
    }

    #[test]
    fn without_vectors_there_are_resources_and_no_roles() {
        let mut watch = Watch::new(None, [(Resource::Processor, 2.0)].into());
        watch.note(look(0.0, &[("accept", 0.0, 0.0)], Some(0.0)));
        watch.note(look(60.0, &[("accept", 5.0, 5.0)], Some(12.0)));
        let state = watch.state();
        assert_eq!((state.has_vectors, state.roles.len(), state.resources.len()), (false, 0, 1));
        near(state.resources[0].used, 0.1);
    }

    #[test]
    fn a_load_that_grows_is_told_when_it_is_full() {
        let mut watch = Watch::new(None, [(Resource::Processor, 1.0)].into());
        let (mut used, mut at) = (0.0, 0.0);
        watch.note(look(at, &[], Some(used)));
        // From 10 % by one percent a minute.
        for minute in 0..40 {
            for _ in 0..6 {
                at += 10.0;
                used += 10.0 * (0.10 + 0.01 * f64::from(minute));
                watch.note(look(at, &[], Some(used)));
            }
        }
        let state = watch.state();
        let full = state.resources[0].full_in_seconds.expect("it grows");
        // 49 % now; 51 minutes are left.
        assert!((full - 51.0 * 60.0).abs() < 90.0, "{full}");
        // Another process begins anew.
        watch.note(look(at + 10.0, &[], Some(0.0)));
        assert_eq!(watch.state().resources, []);
    }

    #[test]
    fn a_load_that_only_sways_has_no_end() {
        let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(7_u64);
        println!("SEED={seed}");
        let mut chance = seed;
        let mut watch = Watch::new(None, [(Resource::Processor, 1.0)].into());
        let mut used = 0.0;
        for step in 0..360 {
            // A generator of Lehmer: chance enough here.
            chance = (chance.wrapping_mul(48_271) + 11) % 0x7fff_ffff;
            used += 10.0 * (0.3 + 0.2 * (chance as f64 / f64::from(0x7fff_ffff)));
            watch.note(look(f64::from(step + 1) * 10.0, &[], Some(used)));
        }
        let full = watch.state().resources[0].full_in_seconds;
        assert!(full.is_none_or(|seconds| seconds > 6.0 * 3_600.0), "{full:?}");
    }
}
