//! Simulation of the day in steps of one minute: load, backlogs, and end-to-end latencies.
//!
//! Load beyond the capacity of a station is modelled as a fluid, exact for loads that are constant within a minute.
//! Below capacity, waiting times of individual jobs are simulated once for each level of load.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::Serialize;

use super::{ChannelPlan, Station};
use crate::{
    day::SECONDS,
    demand::{DailyRate, Demand},
    profile::{Node, Profile, Roles},
    queue::{self, Job, Step, Times},
    vectors::{Resource, Vectors},
};

const STEP_SECONDS: f64 = 60.0;
/// Every n-th step is reported in the plan.
const REPORT_EVERY: usize = 5;
/// Jobs per simulation.
const JOBS: usize = 6_000;
/// Latency samples drawn per minute.
const DRAWS: usize = 48;
/// Number of simulated load levels; between them the next higher one is used.
const LEVELS: f64 = 20.0;
/// Above this level, the fluid model gives the waiting times.
const LEVEL_MAX: f64 = 0.95;
const SEED: u64 = 20_261_122;
/// The roles that process an event, in order.
const FLOW: [&str; 4] = ["accept", "match", "format", "deliver"];

/// The simulated day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DayPlan {
    /// The median latency over the day in seconds, on the path with the highest p95.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The latency goals.
    pub goals: Vec<Goal>,
    /// Paths without common nodes have separate latencies.
    pub paths: Vec<PathDay>,
    /// The backlogs of the stations.
    pub stations: Vec<StationDay>,
    /// Every fifth minute.
    pub minutes: Vec<Minute>,
}

/// A path: stations in sequence, and its latency.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathDay {
    /// `events`, or the roles.
    pub name: String,
    /// The median latency over the day, in seconds.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// A latency goal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Goal {
    /// The percentile: `p95`.
    pub name: String,
    /// The goal, in seconds.
    pub wanted: f64,
    /// The expected latency, in seconds.
    pub expected: f64,
    /// Whether the goal is met.
    pub met: bool,
}

/// The day of a station or channel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StationDay {
    /// The name of the station.
    pub name: String,
    /// The unit of its backlog.
    pub item: String,
    /// Peak load; above 1 a backlog builds up.
    pub load_peak: f64,
    /// The largest backlog.
    pub backlog_peak: f64,
    /// The time of the largest backlog, in seconds of the day.
    pub backlog_peak_at: f64,
    /// The waiting time at the largest backlog, in seconds.
    pub backlog_peak_seconds: f64,
    /// The time when the backlog is drained, in seconds of the day; `None` if there was none, or not before midnight.
    pub drained_at: Option<f64>,
    /// The backlog at midnight.
    pub left_at_midnight: f64,
}

/// A minute of the day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Minute {
    /// The time, in seconds of the day.
    pub at: f64,
    /// The load factor.
    pub factor: f64,
    /// The load of the busiest station; above 1 a backlog builds up.
    pub load: f64,
    /// The total backlog, in seconds of work.
    pub backlog_seconds: f64,
    /// The median latency of arrivals at this time in seconds, on the slowest path.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
}

/// A station of the simulation: nodes, limited by their bottleneck resource, or a channel.
struct ServiceStation {
    name: String,
    item: String,
    /// Load per second, as a fraction of its capacity.
    load: DailyRate,
    /// Items per second of work.
    items: f64,
    servers: usize,
    jobs: Vec<Job>,
    /// Whether it follows the previous station of its path.
    has_predecessor: bool,
}

/// The name of the event path.
const EVENTS: &str = "events";

fn name_of_channel(name: &str) -> String {
    format!("channel `{name}`")
}

fn is_channel(place: &str) -> bool {
    place.starts_with("channel `")
}

/// The stations that form paths: one path for all events, one for each other operation; the former includes [`EVENTS`].
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

/// `events`, the roles, or the channel if there are no roles.
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
    let model = DayModel { profile, vectors, demands, node, peak };
    let mut service_stations: Vec<ServiceStation> =
        stations.iter().filter_map(|station| model.of_station(station)).collect();
    service_stations.sort_by_key(|place| FLOW.iter().position(|role| *role == place.name).unwrap_or(FLOW.len()));
    service_stations.extend(channels.iter().filter_map(|channel| model.of_channel(channel)));
    let factors: Vec<f64> =
        (0..(SECONDS / STEP_SECONDS) as usize).map(|step| profile.day.between(begin(step), begin(step + 1))).collect();
    let mut steps: Vec<Vec<Step>> = vec![Vec::new(); service_stations.len()];
    let mut latencies = Vec::new();
    for path in paths(vectors, demands, profile.roles == Roles::Together) {
        let on_it: Vec<usize> =
            (0..service_stations.len()).filter(|at| path.contains(&service_stations[*at].name)).collect();
        flow_through(&on_it, &service_stations, &factors, peak, &mut steps);
        if !on_it.is_empty() {
            latencies.push(Latencies::of(name_of_path(&path), &on_it, &service_stations, &steps, &factors, peak));
        }
    }
    summarize_day(profile, &latencies, &service_stations, &steps, &factors)
}

fn begin(step: usize) -> f64 {
    step as f64 * STEP_SECONDS
}

/// Largest number of servers of a station that are simulated individually. Larger stations are simulated as this many
/// faster servers; with so many servers, random waiting is negligible.
const SERVERS_MAX: f64 = 100_000.0;

struct DayModel<'a> {
    profile: &'a Profile,
    vectors: &'a Vectors,
    demands: &'a [Demand],
    node: &'a Node,
    peak: f64,
}

impl DayModel<'_> {
    fn of_station(&self, station: &Station) -> Option<ServiceStation> {
        let scarce = station.uses.iter().find(|used| used.nodes_busy.is_some())?;
        let has = scarce.node_has? * station.nodes as f64;
        let together = station.name == "node";
        // Processors work in parallel; a disk or network serializes.
        let is_core = self.node.unit.as_deref().is_none_or(|unit| unit == "core");
        let servers = match scarce.resource {
            Resource::Processor if is_core => (has.min(SERVERS_MAX).floor() as usize).max(1),
            _ => (station.nodes as f64).min(SERVERS_MAX) as usize,
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
        let load = DailyRate { steady: scarce.flow.steady / has, varying: scarce.flow.varying / has };
        Some(ServiceStation {
            name: station.name.clone(),
            item: busiest.0.operation.clone(),
            items: busiest.0.at(self.peak) / load.at(self.peak),
            load,
            servers,
            jobs: costs.iter().map(job).collect(),
            has_predecessor: FLOW[1..].contains(&station.name.as_str()),
        })
    }

    fn of_channel(&self, channel: &ChannelPlan) -> Option<ServiceStation> {
        let most = channel.rate_max.filter(|_| channel.peak > 0.0)?;
        let described = &self.profile.channels[&channel.name];
        // Connections that wait for responses are parallel servers; a bare rate limit is a single server.
        let waiting = described.connections.zip(described.answer).filter(|_| described.rate.is_none());
        let (servers, service) = match waiting {
            Some((connections, answer)) => {
                let servers = connections.min(SERVERS_MAX).floor().max(1.0);
                (servers as usize, answer.as_secs_f64() * servers / connections.max(1.0))
            }
            None => (1, 1.0 / most),
        };
        Some(ServiceStation {
            name: name_of_channel(&channel.name),
            item: described.operation.clone(),
            load: DailyRate { steady: channel.flow.steady / most, varying: channel.flow.varying / most },
            items: most,
            servers,
            jobs: vec![Job { rate: channel.peak, service }],
            has_predecessor: true,
        })
    }
}

/// The steps of each station of a path. Output delayed by one station arrives later at the next.
fn flow_through(
    path: &[usize],
    service_stations: &[ServiceStation],
    factors: &[f64],
    peak: f64,
    all: &mut [Vec<Step>],
) {
    let mut before: Option<Vec<f64>> = None;
    for at in path {
        let place = &service_stations[*at];
        let most = place.load.at(peak).max(f64::MIN_POSITIVE);
        let own = factors.iter().map(|factor| place.load.at(*factor));
        let steps = match before.as_ref().filter(|_| place.has_predecessor) {
            Some(let_through) => queue::fluid(let_through.iter().map(|part| part * most), STEP_SECONDS),
            None => queue::fluid(own, STEP_SECONDS),
        };
        // Channels are parallel, after the last preceding station.
        if !is_channel(&place.name) {
            before = Some(steps.iter().map(|step| step.departed / most).collect());
        }
        all[*at] = steps;
    }
}

/// End-to-end latencies of a path for arrivals in each minute, drawn at random with a fixed seed.
struct Latencies {
    /// Samples of each step, sorted.
    of_steps: Vec<Times>,
    over_day: PathDay,
}

impl Latencies {
    fn of(
        name: String,
        path: &[usize],
        service_stations: &[ServiceStation],
        steps: &[Vec<Step>],
        factors: &[f64],
        peak: f64,
    ) -> Latencies {
        let mut chance = fastrand::Rng::with_seed(SEED);
        let mut known: BTreeMap<(usize, u32), Times> = BTreeMap::new();
        let mut weighted: Vec<(f64, f64)> = Vec::new();
        let mut of_steps = Vec::new();
        let has_steady = path.iter().any(|at| service_stations[*at].load.steady > 0.0);
        for (minute, factor) in factors.iter().enumerate() {
            let draws = (0..DRAWS).map(|_| {
                let mut stay = |at: usize| {
                    let step = &steps[at][minute];
                    let level = (step.arrived.min(LEVEL_MAX) * LEVELS).ceil().max(1.0) as u32;
                    let times = known
                        .entry((at, level))
                        .or_insert_with(|| response_times(&service_stations[at], f64::from(level), peak));
                    step.backlog + times.quantile(chance.f64())
                };
                // The slowest of the parallel channels, after all other stations.
                let (channels, nodes): (Vec<usize>, Vec<usize>) =
                    path.iter().partition(|at| is_channel(&service_stations[**at].name));
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

fn summarize_day(
    profile: &Profile,
    latencies: &[Latencies],
    service_stations: &[ServiceStation],
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
        stations: service_stations.iter().zip(steps).map(|(place, steps)| station_day(place, steps)).collect(),
        minutes: (0..factors.len()).step_by(REPORT_EVERY).map(minute).collect(),
        paths,
        p50,
        p95,
        p99,
    }
}

/// The job mix at its peak, scaled to this load level.
fn response_times(place: &ServiceStation, level: f64, peak: f64) -> Times {
    let scale = level / LEVELS / place.load.at(peak).max(f64::MIN_POSITIVE);
    let jobs: Vec<Job> = place.jobs.iter().map(|job| Job { rate: job.rate * scale, ..*job }).collect();
    queue::response_times(&jobs, place.servers, JOBS, SEED)
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

fn station_day(place: &ServiceStation, steps: &[Step]) -> StationDay {
    let (peak_at, peak) = steps
        .iter()
        .enumerate()
        .fold((0, 0.0), |(at, most), (step, now)| if now.backlog > most { (step, now.backlog) } else { (at, most) });
    // Smaller values are rounding errors.
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
