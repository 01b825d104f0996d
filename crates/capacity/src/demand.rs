//! Resource demand of a profile: the rate of each operation, times its cost, per role.

use std::collections::BTreeMap;

use tocsin_model::problem::{Code, Problem, closest};

use crate::{
    profile::{Events, FORMAT, Profile},
    vectors::{Operation, Resource, Vectors},
};

/// The demand for one operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// The path in the profile: `events.quotes`.
    pub source: String,
    /// The operation.
    pub operation: String,
    /// Rate per second, at a day factor of 1.
    pub rate: f64,
    /// Bytes of one operation.
    pub bytes: f64,
    /// Items per batch.
    pub batch: f64,
    /// The channel, for deliveries.
    pub channel: Option<String>,
    /// Whether the rate does not follow the daily curve.
    pub steady: bool,
    /// Whether the profile names the operation explicitly.
    pub named: bool,
    /// Whether it is a step in the processing of an event.
    pub of_event: bool,
}

impl Demand {
    /// The rate per second, at a day factor.
    pub fn at(&self, factor: f64) -> f64 {
        if self.steady { self.rate } else { self.rate * factor }
    }
}

/// A rate per second with a constant part and a part that follows the daily profile.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DailyRate {
    /// The constant part.
    pub steady: f64,
    /// The varying part, at a day factor of 1.
    pub varying: f64,
}

impl DailyRate {
    /// The rate per second, at a day factor.
    pub fn at(self, factor: f64) -> f64 {
        self.steady + self.varying * factor
    }

    /// Adds a demand, with `each` per operation.
    pub fn add(&mut self, demand: &Demand, each: f64) {
        let part = if demand.steady { &mut self.steady } else { &mut self.varying };
        *part += demand.rate * each;
    }
}

/// The operations of a profile, in the order of the processing flow.
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
            of_event: false,
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
        of_event: false,
    }));
    demands
}

/// The operations for events: each event is accepted and matched; each match is recorded; each message is formatted and
/// delivered. The cost of a delivery includes the first notification of its message; a digest has further ones.
fn of_events(name: &str, events: &Events, profile: &Profile, demands: &mut Vec<Demand>) {
    let demand = |operation: &str, rate: f64, bytes: f64, batch: f64| Demand {
        source: format!("events.{name}"),
        operation: operation.to_owned(),
        rate,
        bytes,
        batch: batch.max(1.0),
        channel: None,
        steady: events.steady,
        named: false,
        of_event: true,
    };
    let notifications = events.rate * events.matches;
    let together = events.batch * events.matches;
    let messages = notifications / events.digest / events.recipients;
    let message_bytes = events.notification_bytes * events.digest;
    demands.push(demand("accept", events.rate, events.bytes, events.batch));
    demands.push(demand("match", events.rate, events.bytes, events.batch));
    demands.push(demand("notify", notifications, events.bytes, together));
    let formatted: f64 = events.channels.values().sum();
    let format = demand(&events.format, messages * formatted, message_bytes, 1.0);
    demands.push(Demand { named: events.format != FORMAT, ..format });
    if events.digest > 1.0 {
        let further = messages * formatted * (events.digest - 1.0);
        demands.push(demand("deliver.digest", further, events.notification_bytes, events.digest));
    }
    for (channel, share) in &events.channels {
        let operation = profile.channels.get(channel).map_or("", |channel| channel.operation.as_str());
        let batch = together * share / events.digest / events.recipients;
        let deliver = demand(operation, messages * share, message_bytes, batch);
        demands.push(Demand { channel: Some(channel.clone()), named: true, ..deliver });
    }
}

/// The usage of each resource by each role, per second.
pub type RoleUsage = BTreeMap<(String, Resource), DailyRate>;

/// Multiplies demands by their costs. Unknown operations are reported in `notes`, unless the profile names them
/// explicitly and nothing else limits them.
///
/// # Errors
/// The vectors do not contain an operation that the profile names.
pub fn uses(
    profile: &Profile,
    vectors: &Vectors,
    demands: &[Demand],
    notes: &mut Vec<String>,
) -> Result<RoleUsage, Vec<Problem>> {
    let (mut uses, mut problems) = (RoleUsage::new(), Vec::new());
    for demand in demands {
        let Some(operation) = vectors.operation(&demand.operation) else {
            match unknown(profile, vectors, demand) {
                Some(problem) => problems.push(problem),
                None => notes.push(format!(
                    "the vectors do not contain `{}`: its cost in {} is not counted",
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
    if bounded || !demand.named {
        return None;
    }
    let known = || vectors.operations.keys().map(String::as_str);
    let hint = match closest(&demand.operation, known()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("they know {}", known().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")),
    };
    let message = format!("uses `{}`, which the vectors `{}` do not contain", demand.operation, vectors.name);
    Some(
        Problem::new(Code::UnknownReference, &demand.source, message)
            .param("kind", "operation")
            .param("value", demand.operation.as_str())
            .hint(hint),
    )
}

fn beyond_range(demand: &Demand, operation: &Operation) -> Vec<String> {
    let outside = |what: &str, value: f64, range: Option<(f64, f64)>| {
        let (least, most) = range?;
        (value < least || value > most).then(|| {
            format!(
                "{}: `{}` was measured with {what} from {least} to {most}, but here it has {value}",
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
    use super::demands;
    use crate::{Vectors, plan, read_profile, read_vectors};

    const VECTORS: &str = "vectors: v\nmachine: { cores: 2 }\noperations:\n  directory.modify_replace:\n    roles: \
                           { directory: { processor_us: { item: 100 } } }\nstored: { subscriptions: { memory_bytes: 50 } }\n";

    fn planned(operations_of: &str) -> Result<Vec<String>, String> {
        let profile = format!(
            "profile: a\noperations: {{ changes: {{ operation: {operations_of}, rate: {{ count: 1000, per: 1s }} }} }}\nstored: {{ subscription: 1 }}\n"
        );
        let profile = read_profile(&profile).expect("a profile");
        let plan = plan(&profile, &read_vectors(VECTORS).expect("vectors"));
        plan.map(|plan| plan.notes).map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    /// The operations for events, with rate per second and bytes.
    fn operations_of(events: &str) -> Vec<(String, f64, f64)> {
        let profile = format!(
            "profile: a\nevents: {{ news: {{ rate: {{ count: 10, per: 1s }}, matches: 20, notification_bytes: 300, channels: {{ mail: 50 }}, {events} }} }}\nchannels: {{ mail: {{ connections: 1 }} }}\n"
        );
        let found = demands(&read_profile(&profile).expect("a profile")).into_iter();
        found.map(|demand| (demand.operation, demand.rate, demand.bytes)).collect()
    }

    #[test]
    fn a_digest_is_a_longer_message_and_further_notifications() {
        let of = |name: &str, rate, bytes| (name.to_owned(), rate, bytes);
        let alone = operations_of("digest: 1");
        assert_eq!(alone[3..], [of("format", 100.0, 300.0), of("deliver.mail", 100.0, 300.0)]);
        let digests = operations_of("digest: 5");
        let expected =
            [of("format", 20.0, 1_500.0), of("deliver.digest", 80.0, 300.0), of("deliver.mail", 20.0, 1_500.0)];
        assert_eq!(digests[3..], expected);
        assert_eq!(alone[2], digests[2], "as many are noted");
    }

    #[test]
    fn a_profile_names_its_formatter_and_mail_is_smtp() {
        let vectors = |more: &str| {
            let text = format!(
                "vectors: v\nmachine: {{ cores: 1 }}\noperations:\n  deliver.smtp: {{ roles: {{ deliver: {{ processor_us: {{ item: 100 }} }} }} }}\n  format.xslt: {{ roles: {{ deliver: {{ processor_us: {{ item: 30 }} }} }} }}\n{more}"
            );
            read_vectors(&text).expect("vectors")
        };
        let planned = |format: &str, vectors: &Vectors| {
            let profile = format!(
                "profile: a\nevents: {{ news: {{ rate: {{ count: 1000, per: 1s }}, channels: {{ mail: 100 }}, format: {format} }} }}\nchannels: {{ mail: {{}} }}\n"
            );
            plan(&read_profile(&profile).expect("a profile"), vectors)
        };
        let busy = |format: &str, vectors: &Vectors| {
            let plan = planned(format, vectors).unwrap_or_else(|problems| panic!("{problems:?}"));
            (plan.stations[0].uses[0].peak * 1e3).round()
        };
        assert_eq!((busy("format", &vectors("")), busy("format.xslt", &vectors(""))), (100.0, 130.0));
        let own = "  deliver.mail: { roles: { deliver: { processor_us: { item: 200 } } } }\n";
        assert_eq!(busy("format", &vectors(own)), 200.0);
        let problems = planned("format.xlst", &vectors("")).expect_err("unknown");
        assert!(problems[0].to_string().contains("did you mean `format.xslt`?"), "{problems:?}");
    }

    #[test]
    fn unknown_operations_are_reported() {
        let notes = planned("directory.modify").expect("it is one of the two kinds");
        assert!(notes.iter().any(|note| note.ends_with("did you mean `subscriptions`?")), "{notes:?}");
        let problem = planned("directory.modify_ad").expect_err("unknown");
        assert!(problem.contains("uses `directory.modify_ad`"), "{problem}");
    }
}
