//! The capacity plan: nodes, pools, disk, the bottlenecks in order, and the day.

mod simulation; // simulates the day, minute by minute

use std::collections::BTreeMap;

use serde::Serialize;
use tocsin_model::problem::{Problem, closest};

use crate::{
    demand::{DailyRate, Demand, RoleUsage, demands, uses},
    profile::{Node, Profile, Roles},
    vectors::{Resource, Vectors},
};

pub use simulation::{DayPlan, Goal, Minute, PathDay, StationDay};

/// The capacity plan of a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The profile.
    pub profile: String,
    /// The vectors.
    pub vectors: String,
    /// The assignment of roles to nodes.
    pub roles: Roles,
    /// The resources of a node.
    pub node: Node,
    /// The target utilisation at the busiest time.
    pub utilisation: f64,
    /// The number of nodes, over all roles.
    pub nodes: u64,
    /// The operations and their rates.
    pub operations: Vec<OperationPlan>,
    /// The stations: the nodes, or those of each role.
    pub stations: Vec<Station>,
    /// The usage of each role alone, to evaluate separate nodes.
    pub each_role: Vec<Station>,
    /// The delivery channels.
    pub channels: Vec<ChannelPlan>,
    /// Memory usage.
    pub memory: Memory,
    /// Disk usage.
    pub disk: Disk,
    /// The bottlenecks, most critical first.
    pub bottlenecks: Vec<Bottleneck>,
    /// The number of users that these nodes support, if there are populations.
    pub users: Option<Users>,
    /// The simulated day.
    pub day: DayPlan,
    /// Assumptions and limitations of the plan.
    pub notes: Vec<String>,
}

/// The rate of an operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationPlan {
    /// The path in the profile.
    pub source: String,
    /// The operation.
    pub operation: String,
    /// Mean rate per second over the day.
    pub mean: f64,
    /// Rate per second at the busiest time.
    pub peak: f64,
    /// Total per day.
    pub day: f64,
}

/// Nodes with the same roles.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Station {
    /// `node`, or the role.
    pub name: String,
    /// The number of nodes needed to stay within the target utilisation.
    pub nodes_needed: u64,
    /// The number of nodes: that of the profile, or the needed number.
    pub nodes: u64,
    /// Resource usage of the nodes, scarcest resource first.
    pub uses: Vec<ResourceUse>,
    /// The bottlenecks of these nodes, as far as the resources of a node are known.
    pub bottlenecks: Vec<Bottleneck>,
}

/// The usage of a resource.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceUse {
    /// The resource.
    pub resource: Resource,
    /// Mean per second over the day.
    pub mean: f64,
    /// Per second at the busiest time.
    pub peak: f64,
    /// The capacity of a node, if known.
    pub node_has: Option<f64>,
    /// The number of nodes that it fully occupies at the busiest time.
    pub nodes_busy: Option<f64>,
    /// The role with the highest usage.
    pub mostly: String,
    #[serde(skip)]
    pub(crate) flow: DailyRate,
}

/// A channel and its capacity, for all nodes together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChannelPlan {
    /// The name of the channel.
    pub name: String,
    /// Messages per second at the busiest time.
    pub peak: f64,
    /// Highest rate per second.
    pub rate_max: Option<f64>,
    /// Utilisation of that rate.
    pub utilisation: Option<f64>,
    /// Connections needed at the busiest time for the target utilisation, from the response time.
    pub connections_needed: Option<u64>,
    /// The configured number of connections.
    pub connections: Option<f64>,
    #[serde(skip)]
    pub(crate) flow: DailyRate,
}

/// Memory usage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// Megabytes of an idle node.
    pub base_mb: f64,
    /// Megabytes of stored objects, on all nodes together.
    pub stored_mb: f64,
    /// The number of nodes needed for it, if the memory of a node is known.
    pub nodes_needed: Option<u64>,
}

/// Disk usage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disk {
    /// Megabytes written per day.
    pub written_mb_per_day: f64,
    /// Megabytes of stored objects.
    pub stored_mb: f64,
    /// Megabytes at the end of the retention time, if everything written is kept so long.
    pub kept_mb: f64,
}

/// A bottleneck.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bottleneck {
    /// `processor of the nodes`, `channel mail`; within one station, the resource.
    pub what: String,
    /// Utilisation at the busiest time.
    pub utilisation: f64,
    /// The factor by which the whole load can grow until the target utilisation.
    pub grows_by: f64,
}

/// Users, present and possible.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Users {
    /// The number in the profile.
    pub asked: f64,
    /// The number per node, if other loads grow proportionally.
    pub each_node: f64,
    /// The number on all nodes.
    pub at_most: f64,
}

/// Computes the plan of a profile with these costs.
///
/// # Errors
/// The profile uses operations that the vectors do not contain. Paths are those of the profile.
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

/// The utilisation of the first bottleneck at the busiest time with the nodes of another plan, without the day. Node
/// numbers in the profile take precedence.
///
/// # Errors
/// As [`plan`].
pub fn bottleneck_utilisation(profile: &Profile, vectors: &Vectors, nodes: &Nodes) -> Result<f64, Vec<Problem>> {
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

/// The number of nodes per station.
pub type Nodes = BTreeMap<String, f64>;

impl Plan {
    /// The number of nodes per station.
    pub fn station_nodes(&self) -> Nodes {
        nodes_of(&self.stations)
    }
}

impl Station {
    /// The bottlenecks with a number of nodes and a target utilisation.
    fn bottlenecks_for(&self, nodes: f64, wanted: f64) -> Vec<Bottleneck> {
        let bottleneck = |used: &ResourceUse| {
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

/// The resources of a node: from the profile, else from the machine of the vectors.
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
        .filter(|(.., sum)| (sum - 1.0).abs() > crate::schema::SHARE_SLACK)
        .map(|(path, what, sum)| format!("{path}: the shares are {:.4} % {what}; the rest is not counted", sum * 100.0))
        .collect()
}

struct Planner<'a> {
    profile: &'a Profile,
    vectors: &'a Vectors,
    demands: &'a [Demand],
    node: Node,
    /// The highest day factor.
    peak: f64,
    /// The mean day factor.
    mean: f64,
}

impl Planner<'_> {
    fn plan(&self, uses: &RoleUsage, mut notes: Vec<String>) -> Plan {
        let memory = self.memory();
        let mut stations = self.stations(uses, self.profile.roles == Roles::Apart);
        self.add_nodes_for_memory(&mut stations, &memory);
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
    fn stations(&self, uses: &RoleUsage, apart: bool) -> Vec<Station> {
        let mut flows: BTreeMap<&str, BTreeMap<Resource, (DailyRate, &str, f64)>> = BTreeMap::new();
        for ((role, resource), flow) in uses {
            let station = flows.entry(if apart { role } else { "node" }).or_default();
            let (sum, mostly, most) = station.entry(*resource).or_insert((DailyRate::default(), role, 0.0));
            sum.steady += flow.steady;
            sum.varying += flow.varying;
            if flow.at(self.peak) > *most {
                (*mostly, *most) = (role, flow.at(self.peak));
            }
        }
        flows.into_iter().map(|(name, flows)| self.station(name, flows)).collect()
    }

    fn station(&self, name: &str, flows: BTreeMap<Resource, (DailyRate, &str, f64)>) -> Station {
        let mut uses: Vec<ResourceUse> = flows
            .into_iter()
            .map(|(resource, (flow, mostly, _))| {
                let node_has = resource.of_node(&self.node);
                let (mean, peak) = (flow.at(self.mean), flow.at(self.peak));
                let nodes_busy = node_has.map(|has| peak / has);
                ResourceUse { resource, mean, peak, node_has, nodes_busy, mostly: mostly.to_owned(), flow }
            })
            .collect();
        uses.sort_by(|left, right| right.nodes_busy.unwrap_or(-1.0).total_cmp(&left.nodes_busy.unwrap_or(-1.0)));
        let busy = uses.first().and_then(|used| used.nodes_busy).unwrap_or_default();
        let nodes_needed = whole(busy / self.profile.utilisation);
        let mut station = Station { name: name.to_owned(), nodes_needed, nodes: 0, uses, bottlenecks: Vec::new() };
        self.assign_nodes(&mut station);
        station
    }

    /// Assigns the nodes of the profile, or the needed number.
    fn assign_nodes(&self, station: &mut Station) {
        station.nodes = self.profile.nodes.map_or(station.nodes_needed, |nodes| nodes as u64);
        station.bottlenecks = station.bottlenecks_for(station.nodes as f64, self.profile.utilisation);
    }

    /// Stored objects are spread over all nodes. If their memory needs more nodes, the largest station gets them.
    fn add_nodes_for_memory(&self, stations: &mut [Station], memory: &Memory) {
        let there: u64 = stations.iter().map(|station| station.nodes_needed).sum();
        let missing = memory.nodes_needed.unwrap_or_default().saturating_sub(there);
        if let Some(station) = stations.iter_mut().max_by_key(|station| station.nodes_needed) {
            station.nodes_needed += missing;
            self.assign_nodes(station);
        }
    }

    fn channels(&self) -> Vec<ChannelPlan> {
        let plan = |(name, channel): (&String, &crate::profile::Channel)| {
            let mut flow = DailyRate::default();
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

    /// The numbers of stored objects, including those of populations.
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

    /// Stored objects that the vectors do not contain.
    fn unknown_stored(&self) -> Vec<String> {
        let known = &self.vectors.stored;
        let note = |name: &str| {
            let meant = closest(name, known.keys().map(String::as_str));
            let hint = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
            format!("the vectors do not contain stored `{name}`: its memory and disk are not counted{hint}")
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

    fn disk(&self, uses: &RoleUsage) -> Disk {
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
            let of_station = station.bottlenecks_for(nodes[&station.name], wanted).into_iter();
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

    /// Notes on rates beyond the measured range.
    fn beyond_knees(&self, stations: &[Station]) -> Vec<String> {
        let nodes = stations.iter().map(|station| station.nodes).min().unwrap_or(1).max(1) as f64;
        let beyond = |demand: &Demand| {
            let knee = self.vectors.operation(&demand.operation)?.knee?;
            let each = demand.at(self.peak) / nodes;
            (each > knee).then(|| {
                format!(
                    "{}: a node would process {each:.0} `{}` per second, but the cost was only measured up to {knee:.0}",
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
            .map(|word| format!("the {word} capacity of a node is unknown and not a limit; set it under `node`"))
            .collect()
    }
}

/// Most nodes of a station, so that their sum can be counted; as many as a profile may name.
const NODES_MAX: f64 = 1e15;

/// At least one, rounded up; values slightly above an integer are rounding errors.
fn whole(nodes: f64) -> u64 {
    ((nodes - 1e-9).ceil().min(NODES_MAX) as u64).max(1)
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
    fn the_largest_numbers_are_planned_in_bounded_time_and_memory() {
        let most = PROFILE
            .replace("count: 1000,", "count: 1000000000000000,")
            .replace("users: 1000,", "users: 1000000000000000,");
        for nodes in ["", "nodes: 1000000000000000\n"] {
            let plan = planned(&format!("{most}{nodes}"), VECTORS);
            assert!(plan.nodes > 1_000_000, "{}", plan.nodes);
        }
        let profile = read_profile(PROFILE).expect("a profile");
        let refused = crate::what_if::parse_sweep(&profile, "events.quotes.rate=1e300x").expect_err("too large");
        assert!(refused.to_string().contains("`1e300x`"), "{refused}");
    }

    #[test]
    fn paths_without_common_nodes_have_separate_latencies() {
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
    fn each_role_lists_its_bottlenecks_in_order() {
        let vectors = VECTORS
            .replace("machine: { cores: 4 }", "machine: { cores: 4, disk_mb_per_second: 10, syncs_per_second: 1000 }")
            .replace("{ item: 500 }", "{ item: 500 }, syncs: { item: 0.1 }, disk_bytes: { item: 4000 }");
        let plan = planned(PROFILE, &vectors);
        let bottlenecks_of = |name: &str| {
            let station = plan.stations.iter().find(|station| station.name == name).expect("a role");
            let bottlenecks_of = |own: &Bottleneck| format!("{} {:.3} {:.3}", own.what, own.utilisation, own.grows_by);
            station.bottlenecks.iter().map(bottlenecks_of).collect::<Vec<_>>()
        };
        // 1,000 events: 4 MB, 100 syncs and half a processor a second.
        assert_eq!(bottlenecks_of("accept"), ["disk 0.400 1.750", "processor 0.125 5.600", "syncs 0.100 7.000"]);
        assert_eq!(bottlenecks_of("directory"), ["processor 0.500 1.400"]);
        let whole: Vec<&str> = plan.bottlenecks.iter().map(|found| found.what.as_str()).collect();
        assert!(whole.contains(&"disk of `accept`"), "{whole:?}");
    }

    #[test]
    fn disk_bandwidth_can_be_the_first_bottleneck() {
        // 70 of 100 MB per second, 35 of 1,000 syncs, 1.2 of 8 processors.
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
        // Older vectors do not contain it.
        let before = planned(profile, &vectors.replace("disk_mb_per_second: 100, ", ""));
        assert_eq!(before.bottlenecks[0].what, "processor of the nodes");
        assert!(before.notes.iter().any(|note| note.contains("the disk capacity of a node")), "{:?}", before.notes);
    }

    #[test]
    fn stored_objects_need_nodes_in_both_role_assignments() {
        let much = PROFILE.replace("10000000", "100000000");
        for profile in [much.clone(), much.replace("apart", "together")] {
            let plan = planned(&profile, VECTORS);
            assert_eq!((plan.nodes, plan.memory.nodes_needed), (15, Some(15)), "10,000 MB, 700 on each");
        }
        assert_eq!(planned(PROFILE, VECTORS).nodes, 3);
    }

    #[test]
    fn sensitivity_is_highest_for_the_first_bottleneck() {
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
