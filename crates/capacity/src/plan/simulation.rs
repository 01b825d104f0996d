//! The day, minute by minute: what comes, what waits, and how long one takes from end to end.
//!
//! What is brought beyond what a station can do is a fluid, exact for loads that are even within a minute. Below that,
//! single jobs wait for each other by chance; how long is simulated once for each level of load.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::Serialize;

use super::{ChannelPlan, Station};
use crate::{
    day::SECONDS,
    demand::{Demand, Flow},
    profile::{Node, Profile, Roles},
    queue::{self, Job, Step, Times},
    vectors::{Resource, Vectors},
};

const STEP_SECONDS: f64 = 60.0;
/// Every so many steps stand in the plan.
const TOLD_EVERY: usize = 5;
/// Jobs of one simulation.
const JOBS: usize = 6_000;
/// Sums of stays that are drawn for one minute.
const DRAWS: usize = 48;
/// Levels of load that are simulated; between them the next higher counts.
const LEVELS: f64 = 20.0;
/// Above it the fluid tells how long things wait.
const LEVEL_MAX: f64 = 0.95;
const SEED: u64 = 20_261_122;
/// The roles through which an event goes, in order.
const FLOW: [&str; 4] = ["accept", "match", "format", "deliver"];

/// How the day goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DayPlan {
    /// Seconds that half of all take from end to end, over the day, on the path that is the slowest by its p95.
    pub p50: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// Whether that is as wanted.
    pub goals: Vec<Goal>,
    /// What shares no nodes has times of its own.
    pub paths: Vec<PathDay>,
    /// Where things wait.
    pub stations: Vec<StationDay>,
    /// Every fifth minute.
    pub minutes: Vec<Minute>,
}

/// Places that are gone through one after the other, and how long that takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathDay {
    /// `events`, or the roles.
    pub name: String,
    /// Seconds that half of all take from end to end, over the day.
    pub p50: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
}

/// A latency that is wanted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Goal {
    /// `p95`.
    pub name: String,
    /// Seconds at most.
    pub wanted: f64,
    /// Seconds that are expected.
    pub expected: f64,
    /// Whether that is no more.
    pub met: bool,
}

/// A station or channel over the day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StationDay {
    /// Its name.
    pub name: String,
    /// What its backlog counts.
    pub item: String,
    /// How busy it is at the busiest time; above 1 things wait.
    pub load_peak: f64,
    /// The most that waits.
    pub backlog_peak: f64,
    /// When, in seconds of the day.
    pub backlog_peak_at: f64,
    /// How long the last of it waits, in seconds.
    pub backlog_peak_seconds: f64,
    /// When nothing waits any more, in seconds of the day; `None` if nothing ever waited, or until after midnight.
    pub drained_at: Option<f64>,
    /// What still waits at midnight.
    pub left_at_midnight: f64,
}

/// A moment of the day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Minute {
    /// In seconds of the day.
    pub at: f64,
    /// The factor of the load.
    pub factor: f64,
    /// How busy the busiest station is; above 1 things wait.
    pub load: f64,
    /// What waits in all, in seconds of work.
    pub backlog_seconds: f64,
    /// Seconds from end to end of what comes now, on the slowest path.
    pub p50: f64,
    /// 95 of 100.
    pub p95: f64,
}

/// Something that does work: nodes, by their scarcest resource, or a channel.
struct Place {
    name: String,
    item: String,
    /// Its work in a second, as a fraction of what it can do.
    load: Flow,
    /// Items in a second of work.
    items: f64,
    servers: usize,
    jobs: Vec<Job>,
    /// Whether it is behind the one before it on its path.
    follows: bool,
}

/// The name of the path of events.
const EVENTS: &str = "events";

fn name_of_channel(name: &str) -> String {
    format!("channel `{name}`")
}

fn is_channel(place: &str) -> bool {
    place.starts_with("channel `")
}

/// The names of places that belong together: those of all events, and those of one operation each; with [`EVENTS`] for the
/// former.
fn paths(vectors: &Vectors, demands: &[Demand], together: bool) -> Vec<BTreeSet<String>> {
    let mut paths: Vec<BTreeSet<String>> = Vec::new();
    for demand in demands {
        let roles = vectors.operation(&demand.operation).into_iter().flat_map(|operation| operation.roles.keys());
        let mut path: BTreeSet<String> =
            roles.map(|role| if together { "node".to_owned() } else { role.clone() }).collect();
        path.extend(demand.channel.as_deref().map(name_of_channel));
        path.extend(demand.of_event.then(|| EVENTS.to_owned()));
        let (meeting, apart): (Vec<_>, Vec<_>) = paths.into_iter().partition(|other| !other.is_disjoint(&path));
        path.extend(meeting.into_iter().flatten());
        paths = apart;
        paths.push(path);
    }
    paths
}

/// `events`, the roles, or the channel if there is nothing else.
fn name_of_path(path: &BTreeSet<String>) -> String {
    if path.contains(EVENTS) {
        return EVENTS.to_owned();
    }
    let roles: Vec<&str> = path.iter().map(String::as_str).filter(|name| !is_channel(name)).collect();
    if roles.is_empty() { path.first().cloned().unwrap_or_default() } else { roles.join(" and ") }
}

/// Simulates the day.
pub(super) fn day(
    profile: &Profile,
    vectors: &Vectors,
    demands: &[Demand],
    node: &Node,
    stations: &[Station],
    channels: &[ChannelPlan],
) -> DayPlan {
    let peak = profile.day.max();
    let scene = Scene { profile, vectors, demands, node, peak };
    let mut places: Vec<Place> = stations.iter().filter_map(|station| scene.of_station(station)).collect();
    places.sort_by_key(|place| FLOW.iter().position(|role| *role == place.name).unwrap_or(FLOW.len()));
    places.extend(channels.iter().filter_map(|channel| scene.of_channel(channel)));
    let factors: Vec<f64> =
        (0..(SECONDS / STEP_SECONDS) as usize).map(|step| profile.day.between(begin(step), begin(step + 1))).collect();
    let mut steps: Vec<Vec<Step>> = vec![Vec::new(); places.len()];
    let mut latencies = Vec::new();
    for path in paths(vectors, demands, profile.roles == Roles::Together) {
        let on_it: Vec<usize> = (0..places.len()).filter(|at| path.contains(&places[*at].name)).collect();
        flow_through(&on_it, &places, &factors, peak, &mut steps);
        if !on_it.is_empty() {
            latencies.push(Latencies::of(name_of_path(&path), &on_it, &places, &steps, &factors, peak));
        }
    }
    tell_day(profile, &latencies, &places, &steps, &factors)
}

fn begin(step: usize) -> f64 {
    step as f64 * STEP_SECONDS
}

struct Scene<'a> {
    profile: &'a Profile,
    vectors: &'a Vectors,
    demands: &'a [Demand],
    node: &'a Node,
    peak: f64,
}

impl Scene<'_> {
    fn of_station(&self, station: &Station) -> Option<Place> {
        let scarce = station.uses.iter().find(|used| used.nodes_busy.is_some())?;
        let has = scarce.node_has? * station.nodes as f64;
        let together = station.name == "node";
        // Many processors work side by side; a disk or a wire does one thing after the other.
        let is_core = self.node.unit.as_deref().is_none_or(|unit| unit == "core");
        let servers = match scarce.resource {
            Resource::Processor if is_core => (has.floor() as usize).max(1),
            _ => station.nodes as usize,
        };
        let speed = has / servers as f64;
        let costs = self.demands.iter().filter_map(|demand| {
            let roles = &self.vectors.operation(&demand.operation)?.roles;
            let roles = roles.iter().filter(|(role, _)| together || **role == station.name);
            let each: f64 = roles.map(|(_, cost)| cost.of(scarce.resource, demand.bytes, demand.batch)).sum();
            (each > 0.0 && demand.rate > 0.0).then_some((demand, each))
        });
        let costs: Vec<(&Demand, f64)> = costs.collect();
        let busiest = costs.iter().max_by(|left, right| {
            let use_of = |(demand, each): &(&Demand, f64)| demand.at(self.peak) * each;
            use_of(left).total_cmp(&use_of(right))
        })?;
        let job = |(demand, each): &(&Demand, f64)| Job {
            rate: demand.at(self.peak) / demand.batch,
            service: each * demand.batch / speed,
        };
        let load = Flow { steady: scarce.flow.steady / has, varying: scarce.flow.varying / has };
        Some(Place {
            name: station.name.clone(),
            item: busiest.0.operation.clone(),
            items: busiest.0.at(self.peak) / load.at(self.peak),
            load,
            servers,
            jobs: costs.iter().map(job).collect(),
            follows: FLOW[1..].contains(&station.name.as_str()),
        })
    }

    fn of_channel(&self, channel: &ChannelPlan) -> Option<Place> {
        let most = channel.rate_max.filter(|_| channel.peak > 0.0)?;
        let described = &self.profile.channels[&channel.name];
        // Connections that wait for answers are servers; a bare rate is one that lets messages through one by one.
        let waiting = described.connections.zip(described.answer).filter(|_| described.rate.is_none());
        let (servers, service) = match waiting {
            Some((connections, answer)) => ((connections.floor() as usize).max(1), answer.as_secs_f64()),
            None => (1, 1.0 / most),
        };
        Some(Place {
            name: name_of_channel(&channel.name),
            item: described.operation.clone(),
            load: Flow { steady: channel.flow.steady / most, varying: channel.flow.varying / most },
            items: most,
            servers,
            jobs: vec![Job { rate: channel.peak, service }],
            follows: true,
        })
    }
}

/// What each place of a path does in each step. What a step of an event lets through late, the next gets late.
fn flow_through(path: &[usize], places: &[Place], factors: &[f64], peak: f64, all: &mut [Vec<Step>]) {
    let mut before: Option<Vec<f64>> = None;
    for at in path {
        let place = &places[*at];
        let most = place.load.at(peak).max(f64::MIN_POSITIVE);
        let own = factors.iter().map(|factor| place.load.at(*factor));
        let steps = match before.as_ref().filter(|_| place.follows) {
            Some(let_through) => queue::fluid(let_through.iter().map(|part| part * most), STEP_SECONDS),
            None => queue::fluid(own, STEP_SECONDS),
        };
        // Channels stand side by side, behind the last step before them.
        if !is_channel(&place.name) {
            before = Some(steps.iter().map(|step| step.departed / most).collect());
        }
        all[*at] = steps;
    }
}

/// How long what comes in each minute takes from end to end of a path, drawn at random with a fixed seed.
struct Latencies {
    /// Draws of each step, in order.
    of_steps: Vec<Times>,
    over_day: PathDay,
}

impl Latencies {
    fn of(
        name: String,
        path: &[usize],
        places: &[Place],
        steps: &[Vec<Step>],
        factors: &[f64],
        peak: f64,
    ) -> Latencies {
        let mut chance = fastrand::Rng::with_seed(SEED);
        let mut known: BTreeMap<(usize, u32), Times> = BTreeMap::new();
        let mut weighted: Vec<(f64, f64)> = Vec::new();
        let mut of_steps = Vec::new();
        let has_steady = path.iter().any(|at| places[*at].load.steady > 0.0);
        for (minute, factor) in factors.iter().enumerate() {
            let draws = (0..DRAWS).map(|_| {
                let mut stay = |at: usize| {
                    let step = &steps[at][minute];
                    let level = (step.arrived.min(LEVEL_MAX) * LEVELS).ceil().max(1.0) as u32;
                    let times = known.entry((at, level)).or_insert_with(|| stays(&places[at], f64::from(level), peak));
                    step.backlog + times.quantile(chance.f64())
                };
                // The slowest of the channels that stand side by side, behind all the others.
                let (channels, nodes): (Vec<usize>, Vec<usize>) =
                    path.iter().partition(|at| is_channel(&places[**at].name));
                let within: f64 = nodes.into_iter().map(&mut stay).sum();
                within + channels.into_iter().map(&mut stay).fold(0.0, f64::max)
            });
            let times: Times = draws.collect();
            let weight = if *factor > 0.0 { *factor } else { f64::from(u8::from(has_steady)) };
            weighted.extend((0..DRAWS).map(|draw| (times.quantile(draw as f64 / (DRAWS - 1) as f64), weight)));
            of_steps.push(times);
        }
        weighted.sort_by(|left, right| left.0.total_cmp(&right.0));
        let at = |fraction| weighted_quantile(&weighted, fraction);
        Latencies { of_steps, over_day: PathDay { name, p50: at(0.5), p95: at(0.95), p99: at(0.99) } }
    }
}

fn tell_day(
    profile: &Profile,
    latencies: &[Latencies],
    places: &[Place],
    steps: &[Vec<Step>],
    factors: &[f64],
) -> DayPlan {
    let slowest = |at: usize, fraction| {
        latencies.iter().map(|latencies| latencies.of_steps[at].quantile(fraction)).fold(0.0, f64::max)
    };
    let minute = |at: usize| Minute {
        at: begin(at),
        factor: factors[at],
        load: steps.iter().map(|steps| steps[at].arrived).fold(0.0, f64::max),
        backlog_seconds: steps.iter().map(|steps| steps[at].backlog).sum(),
        p50: slowest(at, 0.5),
        p95: slowest(at, 0.95),
    };
    let paths: Vec<PathDay> = latencies.iter().map(|latencies| latencies.over_day.clone()).collect();
    let worst = paths.iter().max_by(|left, right| left.p95.total_cmp(&right.p95));
    let (p50, p95, p99) = worst.map_or((0.0, 0.0, 0.0), |worst| (worst.p50, worst.p95, worst.p99));
    let goal = |name: &str, wanted: Option<Duration>, of: fn(&PathDay) -> f64| {
        let wanted = wanted?.as_secs_f64();
        let expected = paths.iter().map(of).fold(0.0, f64::max);
        Some(Goal { name: name.to_owned(), wanted, expected, met: expected <= wanted })
    };
    let goals = [
        goal("p50", profile.goals.p50, |path| path.p50),
        goal("p95", profile.goals.p95, |path| path.p95),
        goal("p99", profile.goals.p99, |path| path.p99),
    ];
    DayPlan {
        goals: goals.into_iter().flatten().collect(),
        stations: places.iter().zip(steps).map(|(place, steps)| station_day(place, steps)).collect(),
        minutes: (0..factors.len()).step_by(TOLD_EVERY).map(minute).collect(),
        paths,
        p50,
        p95,
        p99,
    }
}

/// The mix of jobs at its busiest, thinned or thickened to this level.
fn stays(place: &Place, level: f64, peak: f64) -> Times {
    let scale = level / LEVELS / place.load.at(peak).max(f64::MIN_POSITIVE);
    let jobs: Vec<Job> = place.jobs.iter().map(|job| Job { rate: job.rate * scale, ..*job }).collect();
    queue::stays(&jobs, place.servers, JOBS, SEED)
}

fn weighted_quantile(sorted: &[(f64, f64)], fraction: f64) -> f64 {
    let whole: f64 = sorted.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    for (time, weight) in sorted {
        below += weight;
        if below >= fraction * whole && *weight > 0.0 {
            return *time;
        }
    }
    0.0
}

fn station_day(place: &Place, steps: &[Step]) -> StationDay {
    let (peak_at, peak) = steps
        .iter()
        .enumerate()
        .fold((0, 0.0), |(at, most), (step, now)| if now.backlog > most { (step, now.backlog) } else { (at, most) });
    // Less than a millionth of a second is the arithmetic's.
    let empty = |step: &Step| step.backlog < 1e-6;
    let drained = steps[peak_at..].iter().position(empty).filter(|_| peak > 0.0);
    let end = |step: usize| begin(step + 1);
    StationDay {
        name: place.name.clone(),
        item: place.item.clone(),
        load_peak: steps.iter().map(|step| step.arrived).fold(0.0, f64::max),
        backlog_peak: peak * place.items,
        backlog_peak_at: if peak > 0.0 { end(peak_at) } else { 0.0 },
        backlog_peak_seconds: peak,
        drained_at: drained.map(|after| end(peak_at + after)),
        left_at_midnight: steps.last().map_or(0.0, |step| step.backlog) * place.items,
    }
}
