//! The answer: nodes, pools, disk, the bottleneck and the next one, and how the day goes.

mod simulation; // the day, minute by minute

use std::collections::BTreeMap;

use serde::Serialize;
use tocsin_model::problem::{Problem, closest};

use crate::{
    demand::{Demand, Flow, Uses, demands, uses},
    profile::{Node, Profile, Roles},
    vectors::{Resource, Vectors},
};

pub use simulation::{DayPlan, Goal, Minute, PathDay, StationDay};

/// What a profile needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The profile.
    pub profile: String,
    /// The vectors.
    pub vectors: String,
    /// Whether each node does everything.
    pub roles: Roles,
    /// What a node has.
    pub node: Node,
    /// How much of a resource may be in use at the busiest time.
    pub utilisation: f64,
    /// Nodes, of all roles.
    pub nodes: u64,
    /// What is done how often.
    pub operations: Vec<OperationPlan>,
    /// Where work is done: the nodes, or those of each role.
    pub stations: Vec<Station>,
    /// What each role would use if it were alone on a node, for whoever thinks of setting it apart.
    pub each_role: Vec<Station>,
    /// How notifications leave.
    pub channels: Vec<ChannelPlan>,
    /// What is in memory.
    pub memory: Memory,
    /// What is on disk.
    pub disk: Disk,
    /// What gives out first, next, and so on.
    pub bottlenecks: Vec<Bottleneck>,
    /// How many users these nodes carry, if there are any.
    pub users: Option<Users>,
    /// How the day goes.
    pub day: DayPlan,
    /// What the reader should know before believing it.
    pub notes: Vec<String>,
}

/// An operation and how often it is done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationPlan {
    /// Where the profile asks for it.
    pub source: String,
    /// Which.
    pub operation: String,
    /// In a second, over the day.
    pub mean: f64,
    /// In a second, at the busiest time.
    pub peak: f64,
    /// In a day.
    pub day: f64,
}

/// Nodes that do the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Station {
    /// `node`, or the role.
    pub name: String,
    /// How many are needed so that nothing is fuller than wanted.
    pub nodes_needed: u64,
    /// How many there are: those of the profile, or as many as needed.
    pub nodes: u64,
    /// What they use, the scarcest first.
    pub uses: Vec<Use>,
    /// Which resource of these nodes gives out first, which next, and so on, as far as it is known what a node has.
    pub bottlenecks: Vec<Bottleneck>,
}

/// How much of a resource is used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Use {
    /// Of what.
    pub resource: Resource,
    /// In a second, over the day.
    pub mean: f64,
    /// In a second, at the busiest time.
    pub peak: f64,
    /// What a node has of it, if that is known.
    pub node_has: Option<f64>,
    /// Nodes that it would keep busy altogether at the busiest time.
    pub nodes_busy: Option<f64>,
    /// The role that uses most of it.
    pub mostly: String,
    #[serde(skip)]
    pub(crate) flow: Flow,
}

/// A channel and what it can take, from all nodes together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChannelPlan {
    /// Its name.
    pub name: String,
    /// Messages in a second, at the busiest time.
    pub peak: f64,
    /// Most that it takes in a second.
    pub rate_max: Option<f64>,
    /// Of that.
    pub utilisation: Option<f64>,
    /// Connections for the busiest time at the wanted utilisation, from how long the far side takes.
    pub connections_needed: Option<u64>,
    /// Connections that it may have.
    pub connections: Option<f64>,
    #[serde(skip)]
    pub(crate) flow: Flow,
}

/// What is in memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// Megabytes of a node that does nothing.
    pub base_mb: f64,
    /// Megabytes of what is kept, on all nodes together.
    pub stored_mb: f64,
    /// Nodes for it, if it is known what a node has.
    pub nodes_needed: Option<u64>,
}

/// What is on disk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disk {
    /// Megabytes written in a day.
    pub written_mb_per_day: f64,
    /// Megabytes of what is kept for good.
    pub stored_mb: f64,
    /// Megabytes in all at the end of the time for which things are kept, if all that was written stays so long.
    pub kept_mb: f64,
}

/// Something that gives out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bottleneck {
    /// `processor of the nodes`, `channel mail`; among the nodes of one station, the resource.
    pub what: String,
    /// How much of it is in use at the busiest time.
    pub utilisation: f64,
    /// By which factor the whole load may grow until it is as full as wanted.
    pub grows_by: f64,
}

/// How many users there are and could be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Users {
    /// Those of the profile.
    pub asked: f64,
    /// How many one node carries, if the other loads grow with them.
    pub each_node: f64,
    /// How many all nodes carry.
    pub at_most: f64,
}

/// Multiplies a profile with vectors.
///
/// # Errors
/// The profile asks for operations that the vectors do not know. Paths are those of the profile.
pub fn plan(profile: &Profile, vectors: &Vectors) -> Result<Plan, Vec<Problem>> {
    let mut notes = notes_on_shares(profile);
    let demands = demands(profile);
    let uses = uses(profile, vectors, &demands, &mut notes)?;
    let planner = Planner {
        profile,
        vectors,
        demands: &demands,
        node: node(profile, vectors),
        peak: profile.day.max(),
        mean: profile.day.mean(),
    };
    notes.extend(planner.unknown_stored());
    Ok(planner.plan(&uses, notes))
}

/// How full the first bottleneck is at the busiest time with the nodes of another plan, without the day. What the profile
/// itself says of nodes counts before that.
///
/// # Errors
/// As [`plan`].
pub fn pressure(profile: &Profile, vectors: &Vectors, nodes: &Nodes) -> Result<f64, Vec<Problem>> {
    let demands = demands(profile);
    let uses = uses(profile, vectors, &demands, &mut Vec::new())?;
    let (node, peak, mean) = (node(profile, vectors), profile.day.max(), profile.day.mean());
    let planner = Planner { profile, vectors, demands: &demands, node, peak, mean };
    let stations = planner.stations(&uses, profile.roles == Roles::Apart);
    let nodes = stations.iter().map(|station| {
        let count = profile.nodes.or_else(|| nodes.get(&station.name).copied()).unwrap_or(station.nodes as f64);
        (station.name.clone(), count)
    });
    let found = planner.bottlenecks(&stations, &nodes.collect(), &planner.channels(), &planner.memory());
    Ok(found.first().map_or(0.0, |first| first.utilisation))
}

/// How many nodes each station has.
pub type Nodes = BTreeMap<String, f64>;

impl Plan {
    /// The nodes of each station.
    pub fn station_nodes(&self) -> Nodes {
        nodes_of(&self.stations)
    }
}

impl Station {
    /// What of so many nodes gives out first, and so on, if as much of them may be in use as is wanted.
    fn gives_out(&self, nodes: f64, wanted: f64) -> Vec<Bottleneck> {
        let bottleneck = |used: &Use| {
            let utilisation = used.nodes_busy.filter(|busy| *busy > 0.0)? / nodes.max(f64::MIN_POSITIVE);
            Some(Bottleneck::new(used.resource.word().to_owned(), utilisation, wanted))
        };
        self.uses.iter().filter_map(bottleneck).collect()
    }
}

impl Bottleneck {
    fn new(what: String, utilisation: f64, wanted: f64) -> Bottleneck {
        Bottleneck { what, utilisation, grows_by: wanted / utilisation }
    }
}

fn nodes_of(stations: &[Station]) -> Nodes {
    stations.iter().map(|station| (station.name.clone(), station.nodes as f64)).collect()
}

/// What a node has: what the profile says, and else what the machine of the vectors had.
fn node(profile: &Profile, vectors: &Vectors) -> Node {
    let (asked, measured) = (&profile.node, &vectors.machine);
    Node {
        unit: asked.unit.clone().or_else(|| measured.unit.clone()),
        cores: asked.cores.or(measured.cores),
        memory_mb: asked.memory_mb.or(measured.memory_mb),
        disk_mb_per_second: asked.disk_mb_per_second.or(measured.disk_mb_per_second),
        syncs_per_second: asked.syncs_per_second.or(measured.syncs_per_second),
        wire_mb_per_second: asked.wire_mb_per_second.or(measured.wire_mb_per_second),
    }
}

fn notes_on_shares(profile: &Profile) -> Vec<String> {
    let of_populations = profile.populations.iter().map(|(name, population)| {
        let sum: f64 = population.shares.values().map(|share| share.share).sum();
        (format!("populations.{name}"), "of the operations", sum)
    });
    let of_events = profile
        .events
        .iter()
        .filter(|(_, events)| !events.channels.is_empty())
        .map(|(name, events)| (format!("events.{name}"), "of the notifications", events.channels.values().sum()));
    of_populations
        .chain(of_events)
        .filter(|(.., sum)| (sum - 1.0).abs() > crate::language::SHARE_SLACK)
        .map(|(path, what, sum)| {
            format!("{path}: the shares are {:.4} % {what}; what is left is not counted", sum * 100.0)
        })
        .collect()
}

struct Planner<'a> {
    profile: &'a Profile,
    vectors: &'a Vectors,
    demands: &'a [Demand],
    node: Node,
    /// The highest factor of the day.
    peak: f64,
    /// The mean factor of the day.
    mean: f64,
}

impl Planner<'_> {
    fn plan(&self, uses: &Uses, mut notes: Vec<String>) -> Plan {
        let memory = self.memory();
        let mut stations = self.stations(uses, self.profile.roles == Roles::Apart);
        self.make_room(&mut stations, &memory);
        let channels = self.channels();
        let bottlenecks = self.bottlenecks(&stations, &nodes_of(&stations), &channels, &memory);
        notes.extend(self.beyond_knees(&stations));
        notes.extend(self.unknown_resources(&stations));
        let nodes = stations.iter().map(|station| station.nodes).sum();
        let day = simulation::day(self.profile, self.vectors, self.demands, &self.node, &stations, &channels);
        Plan {
            profile: self.profile.name.clone(),
            vectors: self.vectors.name.clone(),
            roles: self.profile.roles,
            node: self.node.clone(),
            utilisation: self.profile.utilisation,
            nodes,
            operations: self.operations(),
            each_role: self.stations(uses, true),
            users: self.users(&bottlenecks, nodes),
            stations,
            channels,
            memory,
            disk: self.disk(uses),
            bottlenecks,
            day,
            notes,
        }
    }

    fn operations(&self) -> Vec<OperationPlan> {
        let plan = |demand: &Demand| OperationPlan {
            source: demand.source.clone(),
            operation: demand.operation.clone(),
            mean: demand.at(self.mean),
            peak: demand.at(self.peak),
            day: demand.at(self.mean) * crate::day::SECONDS,
        };
        self.demands.iter().map(plan).collect()
    }

    /// The nodes, or those of each role.
    fn stations(&self, uses: &Uses, apart: bool) -> Vec<Station> {
        let mut flows: BTreeMap<&str, BTreeMap<Resource, (Flow, &str, f64)>> = BTreeMap::new();
        for ((role, resource), flow) in uses {
            let station = flows.entry(if apart { role } else { "node" }).or_default();
            let (sum, mostly, most) = station.entry(*resource).or_insert((Flow::default(), role, 0.0));
            sum.steady += flow.steady;
            sum.varying += flow.varying;
            if flow.at(self.peak) > *most {
                (*mostly, *most) = (role, flow.at(self.peak));
            }
        }
        flows.into_iter().map(|(name, flows)| self.station(name, flows)).collect()
    }

    fn station(&self, name: &str, flows: BTreeMap<Resource, (Flow, &str, f64)>) -> Station {
        let mut uses: Vec<Use> = flows
            .into_iter()
            .map(|(resource, (flow, mostly, _))| {
                let node_has = resource.of_node(&self.node);
                let (mean, peak) = (flow.at(self.mean), flow.at(self.peak));
                let nodes_busy = node_has.map(|has| peak / has);
                Use { resource, mean, peak, node_has, nodes_busy, mostly: mostly.to_owned(), flow }
            })
            .collect();
        uses.sort_by(|left, right| right.nodes_busy.unwrap_or(-1.0).total_cmp(&left.nodes_busy.unwrap_or(-1.0)));
        let busy = uses.first().and_then(|used| used.nodes_busy).unwrap_or_default();
        let nodes_needed = whole(busy / self.profile.utilisation);
        let mut station = Station { name: name.to_owned(), nodes_needed, nodes: 0, uses, bottlenecks: Vec::new() };
        self.settle(&mut station);
        station
    }

    /// Gives it the nodes of the profile, or as many as are needed.
    fn settle(&self, station: &mut Station) {
        station.nodes = self.profile.nodes.map_or(station.nodes_needed, |nodes| nodes as u64);
        station.bottlenecks = station.gives_out(station.nodes as f64, self.profile.utilisation);
    }

    /// What is kept is on all nodes together. If it needs more of them, the largest station gets them.
    fn make_room(&self, stations: &mut [Station], memory: &Memory) {
        let there: u64 = stations.iter().map(|station| station.nodes_needed).sum();
        let missing = memory.nodes_needed.unwrap_or_default().saturating_sub(there);
        if let Some(station) = stations.iter_mut().max_by_key(|station| station.nodes_needed) {
            station.nodes_needed += missing;
            self.settle(station);
        }
    }

    fn channels(&self) -> Vec<ChannelPlan> {
        let plan = |(name, channel): (&String, &crate::profile::Channel)| {
            let mut flow = Flow::default();
            for demand in self.demands.iter().filter(|demand| demand.channel.as_ref() == Some(name)) {
                flow.add(demand, 1.0);
            }
            let (peak, rate_max) = (flow.at(self.peak), channel.rate_max());
            let waiting = channel.answer.map(|answer| peak * answer.as_secs_f64() / self.profile.utilisation);
            ChannelPlan {
                name: name.clone(),
                peak,
                rate_max,
                utilisation: rate_max.map(|most| peak / most),
                connections_needed: waiting.map(whole),
                connections: channel.connections,
                flow,
            }
        };
        self.profile.channels.iter().map(plan).collect()
    }

    /// What is kept, by its name, with that of the populations.
    fn stored(&self) -> BTreeMap<&str, f64> {
        let mut stored: BTreeMap<&str, f64> = BTreeMap::new();
        for (name, count) in &self.profile.stored {
            *stored.entry(name).or_default() += count;
        }
        for population in self.profile.populations.values() {
            for (name, each) in &population.stored_each {
                *stored.entry(name).or_default() += each * population.users;
            }
        }
        stored
    }

    /// What is kept and the vectors know nothing of.
    fn unknown_stored(&self) -> Vec<String> {
        let known = &self.vectors.stored;
        let note = |name: &str| {
            let meant = closest(name, known.keys().map(String::as_str));
            let hint = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
            format!("the vectors say nothing of stored `{name}`: its memory and disk are not counted{hint}")
        };
        self.stored().into_keys().filter(|name| !known.contains_key(*name)).map(note).collect()
    }

    fn stored_mb(&self, bytes: impl Fn(&crate::vectors::Stored) -> f64) -> f64 {
        let of = |(name, count): (&str, f64)| self.vectors.stored.get(name).map_or(0.0, |stored| bytes(stored) * count);
        self.stored().into_iter().map(of).sum::<f64>() / 1e6
    }

    fn memory(&self) -> Memory {
        let base_mb = self.vectors.base_memory_mb;
        let stored_mb = self.stored_mb(|stored| stored.memory_bytes);
        let room = self.node.memory_mb.map(|has| has * self.profile.utilisation - base_mb);
        Memory { base_mb, stored_mb, nodes_needed: room.filter(|room| *room > 0.0).map(|room| whole(stored_mb / room)) }
    }

    fn disk(&self, uses: &Uses) -> Disk {
        let written = uses.iter().filter(|((_, resource), _)| *resource == Resource::Disk);
        let written: f64 = written.map(|(_, flow)| flow.at(self.mean)).sum();
        let written_mb_per_day = written * crate::day::SECONDS / 1e6;
        let stored_mb = self.stored_mb(|stored| stored.disk_bytes);
        let days = self.profile.keep.as_secs_f64() / crate::day::SECONDS;
        Disk { written_mb_per_day, stored_mb, kept_mb: stored_mb + written_mb_per_day * days }
    }

    fn bottlenecks(
        &self,
        stations: &[Station],
        nodes: &Nodes,
        channels: &[ChannelPlan],
        memory: &Memory,
    ) -> Vec<Bottleneck> {
        let wanted = self.profile.utilisation;
        let mut found: Vec<Bottleneck> = Vec::new();
        for station in stations {
            let whose = if station.name == "node" { "the nodes".to_owned() } else { format!("`{}`", station.name) };
            let of_station = station.gives_out(nodes[&station.name], wanted).into_iter();
            found.extend(of_station.map(|own| Bottleneck { what: format!("{} of {whose}", own.what), ..own }));
        }
        for channel in channels {
            let Some(utilisation) = channel.utilisation.filter(|utilisation| *utilisation > 0.0) else { continue };
            found.push(Bottleneck::new(format!("channel `{}`", channel.name), utilisation, wanted));
        }
        let nodes: f64 = nodes.values().sum();
        if let Some(has) = self.node.memory_mb.filter(|_| memory.stored_mb > 0.0) {
            let utilisation = (memory.base_mb + memory.stored_mb / nodes.max(1.0)) / has;
            found.push(Bottleneck::new("memory of the nodes".to_owned(), utilisation, wanted));
        }
        found.sort_by(|left, right| right.utilisation.total_cmp(&left.utilisation));
        found
    }

    fn users(&self, bottlenecks: &[Bottleneck], nodes: u64) -> Option<Users> {
        let asked: f64 = self.profile.populations.values().map(|population| population.users).sum();
        let first = bottlenecks.first().filter(|_| asked > 0.0)?;
        let at_most = asked * first.grows_by;
        Some(Users { asked, each_node: at_most / nodes.max(1) as f64, at_most })
    }

    /// Rates at which the cost of one was no longer what it is below.
    fn beyond_knees(&self, stations: &[Station]) -> Vec<String> {
        let nodes = stations.iter().map(|station| station.nodes).min().unwrap_or(1).max(1) as f64;
        let beyond = |demand: &Demand| {
            let knee = self.vectors.operation(&demand.operation)?.knee?;
            let each = demand.at(self.peak) / nodes;
            (each > knee).then(|| {
                format!(
                    "{}: a node would do {each:.0} `{}` a second, and their cost was only measured up to {knee:.0}",
                    demand.source, demand.operation
                )
            })
        };
        self.demands.iter().filter_map(beyond).collect()
    }

    fn unknown_resources(&self, stations: &[Station]) -> Vec<String> {
        let mut unknown: Vec<&str> = stations
            .iter()
            .flat_map(|station| &station.uses)
            .filter(|used| used.node_has.is_none())
            .map(|used| used.resource.word())
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown
            .into_iter()
            .map(|word| format!("nobody says how much {word} a node has, so it bounds nothing; `node` can say it"))
            .collect()
    }
}

/// At least one, and as many as carry it; a hair above a whole number is the arithmetic's.
fn whole(nodes: f64) -> u64 {
    ((nodes - 1e-9).ceil() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{read_profile, read_vectors, what_if::sensitivities};

    const PROFILE: &str = "profile: a
roles: apart
target: { p95: 1s }
node: { cores: 4, memory_mb: 1000 }
events: { quotes: { rate: { count: 1000, per: 1s }, channels: { hook: 100 } } }
populations: { people: { users: 1000, operations_per_visit: 1, visit: 1s, shares: { directory.search: 100 } } }
channels: { hook: { operation: deliver.http, rate: { count: 5000, per: 1s } } }
stored: { subscriptions: 10000000 }
";
    const VECTORS: &str = "vectors: v
machine: { cores: 4 }
operations:
  accept: { roles: { accept: { processor_us: { item: 500 } } } }
  deliver.http: { roles: { deliver: { processor_us: { item: 1000 } } } }
  directory.search: { roles: { directory: { processor_us: { item: 2000 } } } }
stored: { subscriptions: { memory_bytes: 100 } }
";

    fn planned(profile: &str, vectors: &str) -> Plan {
        let (profile, vectors) = (read_profile(profile).expect("a profile"), read_vectors(vectors).expect("vectors"));
        plan(&profile, &vectors).expect("a plan")
    }

    fn path(plan: &Plan, name: &str) -> PathDay {
        let path = plan.day.paths.iter().find(|path| path.name == name);
        path.unwrap_or_else(|| panic!("no {name} in {:?}", plan.day.paths)).clone()
    }

    #[test]
    fn what_shares_no_nodes_has_times_of_its_own() {
        let (plan, busier) =
            (planned(PROFILE, VECTORS), planned(&PROFILE.replace("count: 1000", "count: 4000"), VECTORS));
        assert_eq!(plan.day.paths.len(), 2, "{:?}", plan.day.paths);
        assert_eq!(path(&plan, "directory"), path(&busier, "directory"));
        assert!(path(&plan, "events").p50 > 0.0015, "accept, deliver and the channel: {:?}", plan.day.paths);
        assert_eq!(plan.day.p95, f64::max(path(&plan, "directory").p95, path(&plan, "events").p95));
        let together = planned(&PROFILE.replace("apart", "together"), VECTORS);
        assert_eq!(together.day.paths.len(), 1, "{:?}", together.day.paths);
    }

    #[test]
    fn each_role_says_what_of_it_gives_out_first_and_next() {
        let vectors = VECTORS
            .replace("machine: { cores: 4 }", "machine: { cores: 4, disk_mb_per_second: 10, syncs_per_second: 1000 }")
            .replace("{ item: 500 }", "{ item: 500 }, syncs: { item: 0.1 }, disk_bytes: { item: 4000 }");
        let plan = planned(PROFILE, &vectors);
        let told = |name: &str| {
            let station = plan.stations.iter().find(|station| station.name == name).expect("a role");
            let told = |own: &Bottleneck| format!("{} {:.3} {:.3}", own.what, own.utilisation, own.grows_by);
            station.bottlenecks.iter().map(told).collect::<Vec<_>>()
        };
        // 1,000 events: 4 MB, 100 syncs and half a processor a second.
        assert_eq!(told("accept"), ["disk 0.400 1.750", "processor 0.125 5.600", "syncs 0.100 7.000"]);
        assert_eq!(told("directory"), ["processor 0.500 1.400"]);
        let whole: Vec<&str> = plan.bottlenecks.iter().map(|found| found.what.as_str()).collect();
        assert!(whole.contains(&"disk of `accept`"), "{whole:?}");
    }

    #[test]
    fn the_first_to_give_out_may_be_what_the_disk_writes_in_a_second() {
        // 70 of 100 MB in a second, 35 of 1,000 syncs, 1.2 of 8 processors.
        let profile =
            "profile: a\noperations: { rows: { operation: import, rate: { count: 35, per: 1s }, bytes: 2000000 } }\n";
        let vectors = "vectors: v
machine: { cores: 8, disk_mb_per_second: 100, syncs_per_second: 1000 }
operations:
  import: { roles: { sync: { processor_us: { item: 35000 }, disk_bytes: { kilobyte: 1000 }, syncs: { item: 1 } } } }
";
        let plan = planned(profile, vectors);
        assert_eq!((plan.nodes, plan.bottlenecks[0].what.as_str()), (1, "disk of the nodes"));
        assert!((plan.bottlenecks[0].utilisation - 0.7).abs() < 1e-9, "{:?}", plan.bottlenecks);
        let day = &plan.day.stations[0];
        assert!((day.load_peak - 0.7).abs() < 1e-9, "the disk is what the day waits for: {day:?}");
        let more = planned(&profile.replace("count: 35", "count: 36"), vectors);
        assert_eq!(more.nodes, 2, "{:?}", more.bottlenecks);
        // Files of before say nothing of it.
        let before = planned(profile, &vectors.replace("disk_mb_per_second: 100, ", ""));
        assert_eq!(before.bottlenecks[0].what, "processor of the nodes");
        assert!(before.notes.iter().any(|note| note.contains("how much disk a node has")), "{:?}", before.notes);
    }

    #[test]
    fn what_is_kept_needs_nodes_whether_roles_are_apart_or_not() {
        let much = PROFILE.replace("10000000", "100000000");
        for profile in [much.clone(), much.replace("apart", "together")] {
            let plan = planned(&profile, VECTORS);
            assert_eq!((plan.nodes, plan.memory.nodes_needed), (15, Some(15)), "10,000 MB, 700 on each");
        }
        assert_eq!(planned(PROFILE, VECTORS).nodes, 3);
    }

    #[test]
    fn what_matters_most_is_what_fills_the_first_bottleneck() {
        let most = |profile: &str| {
            let (profile, vectors) =
                (read_profile(profile).expect("a profile"), read_vectors(VECTORS).expect("vectors"));
            let found = sensitivities(&profile, &vectors).expect("assumptions");
            found.iter().map(|found| (found.name.clone(), (found.elasticity * 100.0).round())).collect::<Vec<_>>()
        };
        let kept = most(&PROFILE.replace("10000000", "25000000"));
        assert_eq!(kept[0], ("stored.subscriptions".to_owned(), 100.0), "{kept:?}");
        let sent = most(&PROFILE.replace("count: 5000", "count: 1100"));
        assert!(sent.contains(&("channels.hook.rate".to_owned(), -100.0)), "{sent:?}");
        assert!(!sent.iter().any(|(name, _)| name.contains("directory")), "{sent:?}");
    }
}
