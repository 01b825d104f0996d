//! Users who come, do something now and then, and leave: the populations of a capacity profile, played against a server.
//!
//! Each user thinks before each operation, for a random time around `visit / operations_per_visit`, and asks over new connections
//! after as many operations as a visit has. Users come evenly over the ramp; what begins after it counts. An operation takes from
//! the end of the thinking, so that a server that is slow is seen to be.

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
    crew::{Errand, User, World},
    figure::{Figure, rounded},
    on_time,
};
use crate::failure::{Failure, Outcome};

/// Most connections of all users together: what a server takes that was not told otherwise.
const CONNECTIONS_MAX: usize = 10_000;
/// Less than this part of what was meant to be asked is told; what comes at random is a little more or less.
const REACHED: f64 = 0.9;
/// Below so many, chance alone may miss that part.
const COUNTED_MIN: f64 = 100.0;

/// How a profile is played.
#[derive(Debug, Clone, Copy)]
pub struct Play {
    /// So many users in all, shared as in the profile; `None`: as many as it says.
    pub users: Option<usize>,
    /// Thinking takes a part of its time: one of so many.
    pub faster: f64,
    /// Over which time users come.
    pub ramp: Duration,
    /// How long they are watched after it.
    pub lasts: Duration,
    /// Entries of the directory.
    pub people: u64,
}

/// A population that can be played.
#[derive(Debug, Clone, PartialEq)]
struct Cast {
    name: String,
    users: usize,
    /// Mean seconds between two operations.
    think: f64,
    operations_per_visit: usize,
    /// Operations with their errands and shares.
    parts: Vec<(String, Errand, f64)>,
}

/// What came of an operation of a population.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// Whose.
    pub population: String,
    /// How many of them there are.
    pub users: usize,
    /// The operation, as the profile names it.
    pub operation: String,
    /// In a second, if every answer came at once.
    pub offered: f64,
    /// In a second.
    pub reached: f64,
    /// How many would be watched, if every answer came at once.
    pub expected: f64,
    /// Milliseconds that each took.
    pub times: Times,
}

impl Played {
    /// Whether as much was asked as was meant.
    pub fn kept_its_rate(&self) -> bool {
        self.reached >= self.offered * REACHED || self.expected < COUNTED_MIN
    }

    /// As a line of results.
    pub fn figure(&self, play: &Play) -> Figure {
        let ms = |fraction: f64| rounded(self.times.quantile(fraction), 3);
        let kept = if self.kept_its_rate() { "" } else { ", which was NOT REACHED" };
        Figure::new("operations/s", [self.reached].into_iter().collect())
            .under(format!("{} users, thinking {} times as fast as in the profile", self.users, play.faster))
            .under(format!("{}/s offered{kept}", rounded(self.offered, 4)))
            .under(format!("p50 {} ms, p95 {} ms, p99 {} ms", ms(0.5), ms(0.95), ms(0.99)))
            .under(format!("{} s after a ramp of {} s", play.lasts.as_secs_f64(), play.ramp.as_secs_f64()))
    }
}

/// Who plays.
///
/// # Errors
/// A population does what is not known here, or nothing; there would be too many connections.
fn cast(profile: &Profile, play: &Play) -> Outcome<Vec<Cast>> {
    let all: f64 = profile.populations.values().map(|population| population.users).sum();
    if profile.populations.is_empty() || all <= 0.0 {
        return Err(Failure::failed("the profile has no population to play"));
    }
    let scale = play.users.map_or(1.0, |users| users as f64 / all);
    let cast: Vec<Cast> = profile
        .populations
        .iter()
        .map(|(name, population)| cast_of(name, population, scale, play.faster))
        .collect::<Outcome<_>>()?;
    let connections: usize = cast.iter().map(|cast| cast.users * cast.parts.len()).sum();
    if connections > CONNECTIONS_MAX {
        let why = format!("these users would need {connections} connections, and {CONNECTIONS_MAX} are the most");
        return Err(Failure::failed(why).detail("play fewer of them that think less: --users 1000 --faster 20"));
    }
    Ok(cast)
}

fn cast_of(name: &str, population: &Population, scale: f64, faster: f64) -> Outcome<Cast> {
    let parts = population.shares.iter().map(|(operation, share)| {
        let errand = Errand::of_operation(operation).ok_or_else(|| {
            let why = format!("populations.{name}.shares.{operation}: this operation cannot be played");
            let known = "accept, directory.search, directory.modify, directory.add, directory.bind, exchange.roundtrip, sync.session";
            Failure::failed(why).detail(format!("those that can be are {known}"))
        })?;
        Ok((operation.clone(), errand, share.share))
    });
    let operations = population.operations_per_visit;
    Ok(Cast {
        name: name.to_owned(),
        users: ((population.users * scale).round() as usize).max(1),
        think: population.visit.as_secs_f64() / operations.max(1e-9) / faster,
        operations_per_visit: (operations.round() as usize).max(1),
        parts: parts.collect::<Outcome<_>>()?,
    })
}

/// Plays it: starts a server with entries, an exchange and devices, and has the users come.
///
/// # Errors
/// The profile cannot be played, or an operation failed.
pub async fn play(context: &Context, profile: &Profile, play: &Play) -> Outcome<Vec<Played>> {
    let cast = cast(profile, play)?;
    let with_devices = cast.iter().filter(|cast| cast.parts.iter().any(|(_, errand, _)| *errand == Errand::Session));
    let devices = with_devices.map(|cast| cast.users).sum();
    let mut world = World::start(context, play.people, devices).await?;
    let mut users = Vec::new();
    for cast in cast {
        let errands: Vec<Errand> = cast.parts.iter().map(|(_, errand, _)| *errand).collect();
        users.push((world.users(&errands, cast.users).await?, Arc::new(cast)));
    }
    let all: usize = users.iter().map(|(users, _)| users.len()).sum();
    context.tell(format_args!(
        "   {all} users come in {} s and are watched for {} s",
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
            visiting.spawn(async move { (cast.name.clone(), visits(user, &cast, comes, watched).await) });
        }
    }
    let mut took: BTreeMap<(String, usize), Vec<f64>> = BTreeMap::new();
    while let Some(ended) = visiting.join_next().await {
        let (name, seen) = ended.map_err(|error| Failure::failed("a user broke off").because(&error))?;
        for (part, milliseconds) in seen? {
            took.entry((name.clone(), part)).or_default().push(milliseconds);
        }
    }
    Ok(users.iter().flat_map(|(_, cast)| played(cast, &mut took, play.lasts)).collect())
}

fn played(cast: &Cast, took: &mut BTreeMap<(String, usize), Vec<f64>>, lasts: Duration) -> Vec<Played> {
    let shares: f64 = cast.parts.iter().map(|(_, _, share)| share).sum();
    let mut played = Vec::new();
    for (part, (operation, _, share)) in cast.parts.iter().enumerate() {
        let times = took.remove(&(cast.name.clone(), part)).unwrap_or_default();
        let offered = cast.users as f64 / cast.think * share / shares;
        played.push(Played {
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

/// What one user does. Gives each operation that began while users were watched, with its milliseconds.
async fn visits(
    mut user: User,
    cast: &Cast,
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
        on_time::until(due).await;
        let part = user.once(&shares).await?;
        free = Instant::now();
        if due >= from {
            seen.push((part, due.elapsed().as_secs_f64() * 1e3));
        }
        left -= 1;
        if left == 0 {
            user.come_again().await?;
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

    fn slowly() -> Play {
        Play { users: Some(200), faster: 60.0, ramp: Duration::ZERO, lasts: Duration::from_secs(1), people: 500 }
    }

    #[test]
    fn a_profile_says_who_plays_what() {
        let profile = read_profile(PROFILE).expect("a profile");
        let cast = |play: &Play| cast(&profile, play).map_err(|failure| failure.message);
        let people = cast(&slowly()).expect("it can be played").remove(0);
        assert_eq!((people.users, people.think, people.operations_per_visit), (200, 2.0, 10));
        let shares: Vec<(&str, f64)> = people.parts.iter().map(|(name, _, share)| (name.as_str(), *share)).collect();
        assert!(shares.contains(&("directory.search", 0.75)), "{shares:?}");
        let why = cast(&Play { users: None, ..slowly() }).expect_err("too many");
        assert_eq!(why, "these users would need 80000 connections, and 10000 are the most");
        let odd = PROFILE.replace("directory.bind", "directory.dance");
        let profile = read_profile(&odd).expect("a profile of operations that vectors may know");
        let why = super::cast(&profile, &slowly()).expect_err("unknown").message;
        assert_eq!(why, "populations.people.shares.directory.dance: this operation cannot be played");
    }

    #[test]
    fn what_was_not_reached_is_told() {
        let profile = read_profile(PROFILE).expect("a profile");
        let people = cast(&profile, &slowly()).expect("it can be played").remove(0);
        let search = people.parts.iter().position(|(name, ..)| name == "directory.search").expect("a part");
        let told = |count: usize| {
            let mut took = BTreeMap::from([(("people".to_owned(), search), vec![2.0; count])]);
            let played = played(&people, &mut took, Duration::from_secs(2)).remove(search);
            assert_eq!((played.offered, played.reached), (75.0, count as f64 / 2.0));
            played.figure(&slowly()).line("users.people.directory.search").conditions
        };
        assert!(told(150).contains("75/s offered, p50 2 ms"), "{}", told(150));
        for few in [120, 50, 0] {
            assert!(told(few).contains("75/s offered, which was NOT REACHED"), "{}", told(few));
        }
    }
}
