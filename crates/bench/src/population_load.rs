//! Population load: the user populations of a capacity profile, simulated against a server.
//!
//! Each user thinks before each operation, for a random time with mean `visit / operations_per_visit`, and reconnects
//! after the operations of a visit. Users arrive evenly over the ramp; operations that start after it are measured. The
//! duration of an operation counts from the end of the thinking, so that a slow server cannot hide queueing.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tocsin_capacity::{
    profile::{Population, Profile},
    queue::Times,
};
use tokio::task::JoinSet;

use super::{
    context::Context,
    figure::{Figure, rounded},
    mixed_load::{MixedServer, Operation, User},
    precise_timer,
};
use crate::failure::{Failure, Outcome};

/// Maximum number of connections of all users: the default limit of a server.
const CONNECTIONS_MAX: usize = 10_000;
/// Smallest part of the offered rate that counts as reached; arrivals are random.
const REACHED: f64 = 0.9;
/// Number of expected operations below which that part can be missed by chance.
const COUNTED_MIN: f64 = 100.0;

/// Parameters of a population load.
#[derive(Debug, Clone, Copy)]
pub struct PopulationLoad {
    /// Total number of users, distributed as in the profile; `None`: the number of the profile.
    pub users: Option<usize>,
    /// Divisor of the think times.
    pub faster: f64,
    /// Duration over which users arrive.
    pub ramp: Duration,
    /// Duration of the measurement after the ramp.
    pub lasts: Duration,
    /// Number of directory entries.
    pub people: u64,
}

/// Population of simulated users.
#[derive(Debug, Clone, PartialEq)]
struct SimulatedPopulation {
    name: String,
    users: usize,
    /// Mean think time in seconds.
    think: f64,
    operations_per_visit: usize,
    /// Operations by profile name, with their shares.
    parts: Vec<(String, Operation, f64)>,
}

/// Result of one operation of a population.
#[derive(Debug, Clone, PartialEq)]
pub struct PopulationResult {
    /// Name of the population.
    pub population: String,
    /// Number of its users.
    pub users: usize,
    /// Operation, as named in the profile.
    pub operation: String,
    /// Operations per second, if every response came at once.
    pub offered: f64,
    /// Operations per second.
    pub reached: f64,
    /// Number of measured operations, if every response came at once.
    pub expected: f64,
    /// Latencies in milliseconds.
    pub times: Times,
}

impl PopulationResult {
    /// Whether the offered rate was reached.
    pub fn reached_rate(&self) -> bool {
        self.reached >= self.offered * REACHED || self.expected < COUNTED_MIN
    }

    /// Converts to a figure.
    pub fn figure(&self, play: &PopulationLoad) -> Figure {
        let ms = |fraction: f64| rounded(self.times.quantile(fraction), 3);
        let kept = if self.reached_rate() { "" } else { ", which was NOT REACHED" };
        Figure::new("operations/s", [self.reached].into_iter().collect())
            .with_condition(format!("{} users, thinking {} times as fast as in the profile", self.users, play.faster))
            .with_condition(format!("{}/s offered{kept}", rounded(self.offered, 4)))
            .with_condition(format!("p50 {} ms, p95 {} ms, p99 {} ms", ms(0.5), ms(0.95), ms(0.99)))
            .with_condition(format!("{} s after a ramp of {} s", play.lasts.as_secs_f64(), play.ramp.as_secs_f64()))
    }
}

/// Simulated populations of a profile.
///
/// # Errors
/// If a population has unknown operations or none, or the users need too many connections.
fn cast(profile: &Profile, play: &PopulationLoad) -> Outcome<Vec<SimulatedPopulation>> {
    let all: f64 = profile.populations.values().map(|population| population.users).sum();
    if profile.populations.is_empty() || all <= 0.0 {
        return Err(Failure::failed("the profile has no population"));
    }
    let scale = play.users.map_or(1.0, |users| users as f64 / all);
    let cast: Vec<SimulatedPopulation> = profile
        .populations
        .iter()
        .map(|(name, population)| simulated_population(name, population, scale, play.faster))
        .collect::<Outcome<_>>()?;
    let connections: usize = cast.iter().map(|cast| cast.users * cast.parts.len()).sum();
    if connections > CONNECTIONS_MAX {
        let why = format!("these users need {connections} connections; the maximum is {CONNECTIONS_MAX}");
        return Err(Failure::failed(why).detail("use fewer users with shorter think times: --users 1000 --faster 20"));
    }
    Ok(cast)
}

fn simulated_population(name: &str, population: &Population, scale: f64, faster: f64) -> Outcome<SimulatedPopulation> {
    let parts = population.shares.iter().map(|(operation, share)| {
        let kind = Operation::by_name(operation).ok_or_else(|| {
            let why = format!("populations.{name}.shares.{operation}: unknown operation");
            let known = "accept, directory.search, directory.modify, directory.add, directory.bind, exchange.roundtrip, sync.session";
            Failure::failed(why).detail(format!("expected one of {known}"))
        })?;
        Ok((operation.clone(), kind, share.share))
    });
    let operations = population.operations_per_visit;
    Ok(SimulatedPopulation {
        name: name.to_owned(),
        users: ((population.users * scale).round() as usize).max(1),
        think: population.visit.as_secs_f64() / operations.max(1e-9) / faster,
        operations_per_visit: (operations.round() as usize).max(1),
        parts: parts.collect::<Outcome<_>>()?,
    })
}

/// Runs the load: starts a server with entries, an exchange and devices, and simulates the users.
///
/// # Errors
/// If the profile cannot be simulated, or an operation fails.
pub async fn play(context: &Context, profile: &Profile, play: &PopulationLoad) -> Outcome<Vec<PopulationResult>> {
    let cast = cast(profile, play)?;
    let with_devices =
        cast.iter().filter(|cast| cast.parts.iter().any(|(_, operation, _)| *operation == Operation::Session));
    let devices = with_devices.map(|cast| cast.users).sum();
    let mut mixed = MixedServer::start(context, play.people, devices).await?;
    let mut users = Vec::new();
    for cast in cast {
        let operations: Vec<Operation> = cast.parts.iter().map(|(_, operation, _)| *operation).collect();
        users.push((mixed.users(&operations, cast.users).await?, Arc::new(cast)));
    }
    let all: usize = users.iter().map(|(users, _)| users.len()).sum();
    context.log(format_args!(
        "   {all} users arrive within {} s and are measured for {} s",
        play.ramp.as_secs_f64(),
        play.lasts.as_secs_f64()
    ));
    let time = (play.ramp + play.lasts).as_secs_f64();
    context.progress.begin(&format!("{all} users, {} s in all", rounded(time, 3)), 1, 1);
    let begun = Instant::now();
    let watched = (begun + play.ramp, begun + play.ramp + play.lasts);
    let mut visiting = JoinSet::new();
    let mut number = 0;
    for (users, cast) in &mut users {
        for user in std::mem::take(users) {
            let comes = begun + play.ramp.mul_f64(f64::from(number) / all as f64);
            number += 1;
            let cast = cast.clone();
            visiting.spawn(async move { (cast.name.clone(), run_user(user, &cast, comes, watched).await) });
        }
    }
    let mut took: BTreeMap<(String, usize), Vec<f64>> = BTreeMap::new();
    while let Some(ended) = visiting.join_next().await {
        let (name, seen) = ended.map_err(|error| Failure::failed("a user task panicked").because(&error))?;
        for (part, milliseconds) in seen? {
            took.entry((name.clone(), part)).or_default().push(milliseconds);
        }
    }
    Ok(users.iter().flat_map(|(_, cast)| played(cast, &mut took, play.lasts)).collect())
}

fn played(
    cast: &SimulatedPopulation,
    took: &mut BTreeMap<(String, usize), Vec<f64>>,
    lasts: Duration,
) -> Vec<PopulationResult> {
    let shares: f64 = cast.parts.iter().map(|(_, _, share)| share).sum();
    let mut played = Vec::new();
    for (part, (operation, _, share)) in cast.parts.iter().enumerate() {
        let times = took.remove(&(cast.name.clone(), part)).unwrap_or_default();
        let offered = cast.users as f64 / cast.think * share / shares;
        played.push(PopulationResult {
            population: cast.name.clone(),
            users: cast.users,
            operation: operation.clone(),
            offered,
            reached: times.len() as f64 / lasts.as_secs_f64(),
            expected: offered * lasts.as_secs_f64(),
            times: times.into_iter().collect(),
        });
    }
    played
}

/// Runs one user. Returns each measured operation with its milliseconds.
async fn run_user(
    mut user: User,
    cast: &SimulatedPopulation,
    comes: Instant,
    (from, to): (Instant, Instant),
) -> Outcome<Vec<(usize, f64)>> {
    let shares: Vec<f64> = cast.parts.iter().map(|(_, _, share)| *share).collect();
    let (mut seen, mut left) = (Vec::new(), cast.operations_per_visit);
    let mut free = comes;
    loop {
        let due = free + Duration::from_secs_f64(user.think(cast.think));
        if due >= to {
            return Ok(seen);
        }
        precise_timer::until(due).await;
        let part = user.once(&shares).await?;
        free = Instant::now();
        if due >= from {
            seen.push((part, due.elapsed().as_secs_f64() * 1e3));
        }
        left -= 1;
        if left == 0 {
            user.reconnect().await?;
            (free, left) = (Instant::now(), cast.operations_per_visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use tocsin_capacity::read_profile;

    use super::*;

    const PROFILE: &str = "profile: shop\npopulations:\n  people:\n    users: 20000\n    operations_per_visit: 10\n    visit: 20m\n    \
                           shares: { directory.search: 75, directory.modify: 12, directory.add: 3, directory.bind: 10 }\n";

    fn slowly() -> PopulationLoad {
        PopulationLoad {
            users: Some(200),
            faster: 60.0,
            ramp: Duration::ZERO,
            lasts: Duration::from_secs(1),
            people: 500,
        }
    }

    #[test]
    fn a_profile_becomes_simulated_populations() {
        let profile = read_profile(PROFILE).expect("a profile");
        let cast = |play: &PopulationLoad| cast(&profile, play).map_err(|failure| failure.message);
        let people = cast(&slowly()).expect("it can be simulated").remove(0);
        assert_eq!((people.users, people.think, people.operations_per_visit), (200, 2.0, 10));
        let shares: Vec<(&str, f64)> = people.parts.iter().map(|(name, _, share)| (name.as_str(), *share)).collect();
        assert!(shares.contains(&("directory.search", 0.75)), "{shares:?}");
        let why = cast(&PopulationLoad { users: None, ..slowly() }).expect_err("too many");
        assert_eq!(why, "these users need 80000 connections; the maximum is 10000");
        let odd = PROFILE.replace("directory.bind", "directory.dance");
        let profile = read_profile(&odd).expect("a profile of operations that vectors may know");
        let why = super::cast(&profile, &slowly()).expect_err("unknown").message;
        assert_eq!(why, "populations.people.shares.directory.dance: unknown operation");
    }

    #[test]
    fn a_missed_rate_is_reported() {
        let profile = read_profile(PROFILE).expect("a profile");
        let people = cast(&profile, &slowly()).expect("it can be simulated").remove(0);
        let search = people.parts.iter().position(|(name, ..)| name == "directory.search").expect("a part");
        let conditions = |count: usize| {
            let mut took = BTreeMap::from([(("people".to_owned(), search), vec![2.0; count])]);
            let played = played(&people, &mut took, Duration::from_secs(2)).remove(search);
            assert_eq!((played.offered, played.reached), (75.0, count as f64 / 2.0));
            played.figure(&slowly()).line("users.people.directory.search").conditions
        };
        assert!(conditions(150).contains("75/s offered, p50 2 ms"), "{}", conditions(150));
        for few in [120, 50, 0] {
            assert!(conditions(few).contains("75/s offered, which was NOT REACHED"), "{}", conditions(few));
        }
    }
}
