//! How much of each resource a profile asks for: each operation's rate, times what one costs, role by role.

use std::collections::BTreeMap;

use tocsin_model::problem::{Problem, closest};

use crate::{
    profile::{Events, Profile},
    vectors::{Operation, Resource, Vectors},
};

/// An operation as a profile asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Where the profile asks: `events.quotes`.
    pub source: String,
    /// Which.
    pub operation: String,
    /// In a second, at factor 1 of the day.
    pub rate: f64,
    /// Bytes of one.
    pub bytes: f64,
    /// How many come together.
    pub batch: f64,
    /// The channel by which it leaves.
    pub channel: Option<String>,
    /// Whether the day leaves it as it is.
    pub steady: bool,
    /// Whether the profile says it in so many words; else it follows from an event.
    pub named: bool,
}

impl Demand {
    /// In a second, at a factor of the day.
    pub fn at(&self, factor: f64) -> f64 {
        if self.steady { self.rate } else { self.rate * factor }
    }
}

/// Something in a second, of which a part does not follow the day.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Flow {
    /// At any time.
    pub steady: f64,
    /// At factor 1 of the day.
    pub varying: f64,
}

impl Flow {
    /// In a second, at a factor of the day.
    pub fn at(self, factor: f64) -> f64 {
        self.steady + self.varying * factor
    }

    /// Adds what a demand brings.
    pub fn add(&mut self, demand: &Demand, each: f64) {
        let part = if demand.steady { &mut self.steady } else { &mut self.varying };
        *part += demand.rate * each;
    }
}

/// The operations that a profile asks for, in the order of the flow.
pub fn demands(profile: &Profile) -> Vec<Demand> {
    let mut demands = Vec::new();
    for (name, events) in &profile.events {
        of_events(name, events, profile, &mut demands);
    }
    for (name, population) in &profile.populations {
        let each = population.users * population.operations_per_visit / population.visit.as_secs_f64();
        demands.extend(population.shares.iter().map(|(operation, share)| Demand {
            source: format!("populations.{name}"),
            operation: operation.clone(),
            rate: each * share.share,
            bytes: share.bytes,
            batch: 1.0,
            channel: None,
            steady: population.steady,
            named: true,
        }));
    }
    demands.extend(profile.operations.iter().map(|(name, load)| Demand {
        source: format!("operations.{name}"),
        operation: load.operation.clone(),
        rate: load.rate,
        bytes: load.bytes,
        batch: load.batch,
        channel: load.channel.clone(),
        steady: load.steady,
        named: true,
    }));
    demands
}

/// Accepted one by one, matched one by one; each match is noted, each message formatted and delivered.
fn of_events(name: &str, events: &Events, profile: &Profile, demands: &mut Vec<Demand>) {
    let demand = |operation: &str, rate: f64, bytes: f64, batch: f64, channel: Option<&String>| Demand {
        source: format!("events.{name}"),
        operation: operation.to_owned(),
        rate,
        bytes,
        batch: batch.max(1.0),
        channel: channel.cloned(),
        steady: events.steady,
        named: false,
    };
    let notifications = events.rate * events.matches;
    let together = events.batch * events.matches;
    let messages = notifications / events.digest / events.recipients;
    demands.push(demand("accept", events.rate, events.bytes, events.batch, None));
    demands.push(demand("match", events.rate, events.bytes, events.batch, None));
    demands.push(demand("notify", notifications, events.bytes, together, None));
    let formatted: f64 = events.channels.values().sum();
    demands.push(demand("format", messages * formatted, events.notification_bytes, 1.0, None));
    for (channel, share) in &events.channels {
        let operation = profile.channels.get(channel).map_or("", |channel| channel.operation.as_str());
        let batch = together * share / events.digest / events.recipients;
        demands.push(demand(operation, messages * share, events.notification_bytes, batch, Some(channel)));
    }
}

/// What each role uses of each resource in a second.
pub type Uses = BTreeMap<(String, Resource), Flow>;

/// Multiplies demands with their costs. What the vectors do not know is told in `notes`, unless the profile asks for it
/// in so many words and nothing else bounds it.
///
/// # Errors
/// An operation that the profile names is unknown to the vectors.
pub fn uses(
    profile: &Profile,
    vectors: &Vectors,
    demands: &[Demand],
    notes: &mut Vec<String>,
) -> Result<Uses, Vec<Problem>> {
    let (mut uses, mut problems) = (Uses::new(), Vec::new());
    for demand in demands {
        let Some(operation) = vectors.operation(&demand.operation) else {
            match unknown(profile, vectors, demand) {
                Some(problem) => problems.push(problem),
                None => notes.push(format!(
                    "the vectors say nothing of `{}`: what it costs in {} is not counted",
                    demand.operation, demand.source
                )),
            }
            continue;
        };
        notes.extend(beyond_range(demand, operation));
        for (role, cost) in &operation.roles {
            for resource in Resource::ALL {
                let each = cost.of(resource, demand.bytes, demand.batch);
                if each > 0.0 {
                    uses.entry((role.clone(), resource)).or_default().add(demand, each);
                }
            }
        }
    }
    if problems.is_empty() { Ok(uses) } else { Err(problems) }
}

fn unknown(profile: &Profile, vectors: &Vectors, demand: &Demand) -> Option<Problem> {
    let channel = demand.channel.as_ref().and_then(|name| profile.channels.get(name));
    let bounded = channel.is_some_and(|channel| channel.rate_max().is_some());
    if bounded || (!demand.named && demand.channel.is_none()) {
        return None;
    }
    let known = || vectors.operations.keys().map(String::as_str);
    let hint = match closest(&demand.operation, known()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("they know {}", known().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")),
    };
    let message = format!("asks for `{}`, of which the vectors `{}` say nothing", demand.operation, vectors.name);
    Some(Problem::at(&demand.source, message).hint(hint))
}

fn beyond_range(demand: &Demand, operation: &Operation) -> Vec<String> {
    let outside = |what: &str, value: f64, range: Option<(f64, f64)>| {
        let (least, most) = range?;
        (value < least || value > most).then(|| {
            format!(
                "{}: `{}` was measured with {what} from {least} to {most}, and here it has {value}",
                demand.source, demand.operation
            )
        })
    };
    [outside("bytes", demand.bytes, operation.bytes), outside("batches", demand.batch, operation.batch)]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::{plan, read_profile, read_vectors};

    const VECTORS: &str = "vectors: v\nmachine: { cores: 2 }\noperations:\n  directory.modify_replace:\n    roles: \
                           { directory: { processor_us: { item: 100 } } }\nstored: { subscriptions: { memory_bytes: 50 } }\n";

    fn planned(asked: &str) -> Result<Vec<String>, String> {
        let profile = format!(
            "profile: a\noperations: {{ changes: {{ operation: {asked}, rate: {{ count: 1000, per: 1s }} }} }}\nstored: {{ subscription: 1 }}\n"
        );
        let profile = read_profile(&profile).expect("a profile");
        let plan = plan(&profile, &read_vectors(VECTORS).expect("vectors"));
        plan.map(|plan| plan.notes).map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_the_vectors_do_not_know_is_told() {
        let notes = planned("directory.modify").expect("it is one of the two kinds");
        assert!(notes.iter().any(|note| note.ends_with("did you mean `subscriptions`?")), "{notes:?}");
        let problem = planned("directory.modify_ad").expect_err("unknown");
        assert!(problem.contains("asks for `directory.modify_ad`"), "{problem}");
    }
}
