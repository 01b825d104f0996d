//! Schemas and parsers of profiles and vectors.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    definition::{
        document::{self, Entry, Node as YamlNode},
        in_order, parse_duration,
        shape::{self, Keys, Shape, number, optional, required},
    },
    problem::{Code, Problem, closest},
};

use crate::{
    profile::{Channel, Day, Events, FORMAT, Goals, Load, Node, Peak, Population, Profile, Roles, Share},
    vectors::{Cost, Linear, Operation, Stored, Vectors},
};

const DAY: u64 = 86_400;
/// Most entries of each kind: the sensitivity analysis plans once per assumption.
const ENTRIES_MAX: usize = 200;
/// Deviation of a sum of shares from 100 % that is tolerated.
pub(crate) const SHARE_SLACK: f64 = 0.001;

const fn count(least: f64) -> Shape {
    Shape::Number { least, most: 1e15 }
}

static COUNT: Shape = count(0.0);
static AT_LEAST_ONE: Shape = count(1.0);
static POSITIVE: Shape = count(1e-9);
static PERCENT: Shape = Shape::Number { least: 0.0, most: 100.0 };
static LENGTH: Shape = Shape::Duration { least: Duration::from_millis(1), most: Duration::from_secs(10 * 365 * DAY) };
static ANSWER: Shape = Shape::Duration { least: Duration::from_micros(1), most: Duration::from_secs(DAY) };

static PROFILE: Shape = Shape::Object(&[
    required("profile", &Shape::Name, "The name of the profile."),
    optional("description", &Shape::Text, "Description."),
    optional(
        "roles",
        &Shape::Choice(&["together", "apart"]),
        "Whether all roles share the nodes, or each role has its own nodes; default `together`.",
    ),
    optional(
        "nodes",
        &AT_LEAST_ONE,
        "Number of nodes to evaluate, per role if roles are apart; default the required number.",
    ),
    optional("node", &NODE, "Resources of a node; default the machine of the vectors."),
    optional("target", &TARGET, "Target utilisation and latency goals."),
    optional("populations", &POPULATIONS, "Populations: users who arrive, perform some operations and leave."),
    optional("events", &EVENTS, "Event streams and their notifications."),
    optional("operations", &OPERATIONS, "Operations at a given rate: messages, sync sessions, searches."),
    optional("channels", &CHANNELS, "Delivery channels and the capacity of their servers."),
    optional("stored", &STORED_COUNTS, "Number of stored objects, by their names in the vectors."),
    optional("keep", &LENGTH, "Retention time of history on disk; default 7d."),
    optional("day", &DAY_SHAPE, "Distribution of the load over the day; default constant."),
]);
static NODE: Shape = Shape::Object(&[
    optional("unit", &Shape::Text, "Unit of `cores`; default `core`."),
    optional("cores", &POSITIVE, "Processors."),
    optional("memory_mb", &POSITIVE, "Megabytes of memory."),
    optional("disk_mb_per_second", &POSITIVE, "Disk bandwidth for sequential synced writes, in megabytes per second."),
    optional("syncs_per_second", &POSITIVE, "Syncs, or disk transactions, per second."),
    optional("wire_mb_per_second", &POSITIVE, "Network bandwidth, in megabytes per second."),
]);
static TARGET: Shape = Shape::Object(&[
    optional(
        "utilisation",
        &Shape::Number { least: 1.0, most: 100.0 },
        "Target utilisation of a resource at the busiest time, in percent; default 70.",
    ),
    optional("p50", &LENGTH, "Limit of the median latency."),
    optional("p95", &LENGTH, "Limit of the 95th percentile latency."),
    optional("p99", &LENGTH, "Limit of the 99th percentile latency."),
]);
static POPULATIONS: Shape = Shape::Entries { keys: Keys::Names, of: &POPULATION, most: ENTRIES_MAX };
static POPULATION: Shape = Shape::Object(&[
    required("users", &COUNT, "Number of concurrent users."),
    required("operations_per_visit", &COUNT, "Operations per visit."),
    required("visit", &LENGTH, "Duration of a visit."),
    required("shares", &SHARES, "Shares of the operations in percent, by name."),
    optional("stored_each", &STORED_COUNTS, "Stored objects per user, such as subscriptions."),
    optional("steady", &Shape::Boolean, "Whether the rate is constant over the day; default false."),
]);
static SHARES: Shape = Shape::Entries { keys: Keys::Free, of: &SHARE, most: ENTRIES_MAX };
static SHARE: Shape = Shape::Either(&[&PERCENT, &SHARE_OBJECT]);
static SHARE_OBJECT: Shape = Shape::Object(&[
    required("percent", &PERCENT, "The share."),
    optional("bytes", &COUNT, "Bytes of one operation; default 0."),
]);
static RATE: Shape =
    Shape::Object(&[required("count", &COUNT, "Number."), required("per", &LENGTH, "Time span of the number.")]);
static EVENTS: Shape = Shape::Entries { keys: Keys::Names, of: &EVENT, most: ENTRIES_MAX };
static EVENT: Shape = Shape::Object(&[
    required("rate", &RATE, "Event rate, at a day factor of 1."),
    optional("batch", &AT_LEAST_ONE, "Events per batch; default 1."),
    optional("bytes", &COUNT, "Bytes of an event; default 250."),
    optional("matches", &COUNT, "Notifications per event; default 1."),
    optional("notification_bytes", &COUNT, "Bytes of a formatted notification; default 500."),
    optional("format", &Shape::Text, "Formatting operation, such as `format.xslt`; default `format`."),
    optional("digest", &AT_LEAST_ONE, "Notifications per message; default 1."),
    optional("recipients", &AT_LEAST_ONE, "Recipients per formatted message; default 1."),
    optional("channels", &CHANNEL_SHARES, "Share of the notifications per channel, in percent."),
    optional("steady", &Shape::Boolean, "Whether the rate is constant over the day; default false."),
]);
static CHANNEL_SHARES: Shape = Shape::Entries { keys: Keys::Names, of: &PERCENT, most: ENTRIES_MAX };
static OPERATIONS: Shape = Shape::Entries { keys: Keys::Names, of: &LOAD, most: ENTRIES_MAX };
static LOAD: Shape = Shape::Object(&[
    required("operation", &Shape::Text, "Operation, by its name in the vectors."),
    required("rate", &RATE, "Rate, at a day factor of 1."),
    optional("bytes", &COUNT, "Bytes of one operation; default 0."),
    optional("batch", &AT_LEAST_ONE, "Items per batch; default 1."),
    optional("channel", &Shape::Name, "Channel, or pool."),
    optional("steady", &Shape::Boolean, "Whether the rate is constant over the day; default false."),
]);
static CHANNELS: Shape = Shape::Entries { keys: Keys::Names, of: &CHANNEL, most: ENTRIES_MAX };
static CHANNEL: Shape = Shape::Object(&[
    optional("operation", &Shape::Text, "Delivery operation, such as `deliver.smtp`; default `deliver.` and its name."),
    optional("connections", &AT_LEAST_ONE, "Most concurrent connections, of all nodes together."),
    optional("answer", &ANSWER, "Response time of the server."),
    optional("rate", &RATE, "Highest rate that the server accepts."),
]);
static STORED_COUNTS: Shape = Shape::Entries { keys: Keys::Free, of: &COUNT, most: ENTRIES_MAX };
static DAY_SHAPE: Shape = Shape::Object(&[
    optional("curve", &CURVE, "24 factors, one per hour from midnight; default 1."),
    optional("peaks", &PEAKS, "Times with another factor."),
]);
static CURVE: Shape = Shape::List { of: &COUNT, most: 24 };
static PEAKS: Shape = Shape::List { of: &PEAK, most: 100 };
static PEAK: Shape = Shape::Object(&[
    required("at", &Shape::Text, "Start, such as `09:00`."),
    required("lasts", &LENGTH, "Duration; cut off at midnight."),
    required("times", &COUNT, "Factor during the peak, instead of the curve's."),
]);

static VECTORS: Shape = Shape::Object(&[
    required("vectors", &Shape::Text, "The name of the measurement."),
    optional("version", &Shape::Text, "Version of the measured software."),
    optional("measured", &Shape::Text, "How and when it was measured."),
    required("machine", &NODE, "Machine on which it was measured."),
    optional("base_memory_mb", &COUNT, "Memory of an idle node, in megabytes; default 0."),
    required("operations", &OPERATION_COSTS, "Costs of operations."),
    optional("stored", &STORED, "Sizes of stored objects."),
]);
static OPERATION_COSTS: Shape = Shape::Entries { keys: Keys::Free, of: &OPERATION_COST, most: 1_000 };
static OPERATION_COST: Shape = Shape::Object(&[
    optional("about", &Shape::Text, "Description of the operation."),
    required("roles", &ROLE_COSTS, "Costs per role."),
    optional("bytes", &RANGE, "Smallest and largest measured size, in bytes."),
    optional("batch", &RANGE, "Smallest and largest measured batch."),
    optional(
        "knee_per_second",
        &POSITIVE,
        "Highest rate per second of the machine before the cost per operation rose.",
    ),
]);
static RANGE: Shape = Shape::List { of: &COUNT, most: 2 };
static ROLE_COSTS: Shape = Shape::Entries { keys: Keys::Names, of: &ROLE_COST, most: 20 };
static ROLE_COST: Shape = Shape::Object(&[
    optional("processor_us", &LINEAR, "Processor time in microseconds."),
    optional("disk_bytes", &LINEAR, "Bytes written."),
    optional("syncs", &LINEAR, "Syncs."),
    optional("wire_bytes", &LINEAR, "Bytes on the network."),
]);
static LINEAR: Shape = Shape::Object(&[
    optional("batch", &COUNT, "Cost per batch."),
    optional("item", &COUNT, "For each."),
    optional("kilobyte", &COUNT, "Cost per 1,000 bytes of an item."),
]);
static STORED: Shape = Shape::Entries { keys: Keys::Free, of: &STORED_COST, most: 1_000 };
static STORED_COST: Shape = Shape::Object(&[
    optional("memory_bytes", &COUNT, "Bytes of memory."),
    optional("disk_bytes", &COUNT, "Bytes of disk."),
]);

/// The JSON Schema of profiles (draft 2020-12), for editors.
pub fn profile_json_schema() -> serde_json::Value {
    shape::json_schema(&PROFILE, "Profile", "The expected load of a Tocsin installation.")
}

/// The JSON Schema of vectors.
pub fn vectors_json_schema() -> serde_json::Value {
    shape::json_schema(&VECTORS, "Vectors", "Measured costs of operations, per resource.")
}

/// Parses and checks a profile.
///
/// # Errors
/// Every problem, with line, column, path and hint.
pub fn read_profile(text: &str) -> Result<Profile, Vec<Problem>> {
    read(text, &PROFILE, "profile", |root, problems| Reader { problems }.profile(root))
}

/// Parses and checks vectors, as YAML or JSON.
///
/// # Errors
/// As [`read_profile`].
pub fn read_vectors(text: &str) -> Result<Vectors, Vec<Problem>> {
    read(text, &VECTORS, "vectors", |root, problems| Reader { problems }.vectors(root))
}

fn read<T>(
    text: &str,
    shape: &Shape,
    first: &str,
    build: impl FnOnce(&YamlNode, &mut Vec<Problem>) -> T,
) -> Result<T, Vec<Problem>> {
    if text.trim().is_empty() {
        return Err(vec![Problem::new(Code::Empty, "", "is empty").hint(format!("begin with `{first}: <name>`"))]);
    }
    let mut problems = Vec::new();
    let built = document::parse(text, &mut problems).map(|root| {
        shape::check(shape, &root, &mut problems);
        build(&root, &mut problems)
    });
    match built {
        Some(value) if problems.is_empty() => Ok(value),
        _ => Err(in_order(problems)),
    }
}

/// Builds values from checked nodes; the result is discarded if a check failed.
struct Reader<'a> {
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn profile(&mut self, root: &YamlNode) -> Profile {
        let target = root.get("target");
        let goal = |key| target.and_then(|target| length(target, key));
        let profile = Profile {
            name: text(root, "profile").unwrap_or_default(),
            description: text(root, "description"),
            roles: if text(root, "roles").as_deref() == Some("apart") { Roles::Apart } else { Roles::Together },
            nodes: amount(root, "nodes"),
            node: root.get("node").map(node).unwrap_or_default(),
            utilisation: target.and_then(|target| amount(target, "utilisation")).unwrap_or(70.0) / 100.0,
            goals: Goals { p50: goal("p50"), p95: goal("p95"), p99: goal("p99") },
            populations: section(root, "populations", |_, node| self.population(node)),
            events: section(root, "events", |_, node| events(node)),
            operations: section(root, "operations", |_, node| load(node)),
            channels: section(root, "channels", channel),
            stored: counts(root, "stored"),
            keep: length(root, "keep").unwrap_or(Duration::from_secs(7 * DAY)),
            day: root.get("day").map(|node| self.day(node)).unwrap_or_default(),
        };
        self.check_not_empty(root, &profile);
        self.check_channels(root, &profile);
        profile
    }

    fn check_not_empty(&mut self, root: &YamlNode, profile: &Profile) {
        if profile.populations.is_empty() && profile.events.is_empty() && profile.operations.is_empty() {
            let problem = root.problem(Code::Empty, "", "has no load");
            self.problems.push(problem.hint("give `populations`, `events` or `operations`"));
        }
    }

    fn check_channels(&mut self, root: &YamlNode, profile: &Profile) {
        let known = || profile.channels.keys().map(String::as_str);
        let mut check = |name: &str, path: String, entry: &Entry| {
            if profile.channels.contains_key(name) {
                return;
            }
            let hint = match closest(name, known()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "describe it under `channels`".to_owned(),
            };
            let problem =
                Problem::new(Code::UnknownReference, path, format!("names the channel `{name}`, which does not exist"))
                    .param("value", name.to_string())
                    .param("kind", "channel")
                    .hint(hint);
            self.problems.push(problem.position(entry.line, entry.column));
        };
        for event in entries(root, "events") {
            for share in entries(&event.value, "channels") {
                check(&share.key, format!("events.{}.channels.{}", event.key, share.key), share);
            }
        }
        for load in entries(root, "operations") {
            if let Some((name, entry)) = text(&load.value, "channel").zip(load.value.entry("channel")) {
                check(&name, format!("operations.{}.channel", load.key), entry);
            }
        }
    }

    fn population(&mut self, node: &YamlNode) -> Population {
        Population {
            users: amount(node, "users").unwrap_or_default(),
            operations_per_visit: amount(node, "operations_per_visit").unwrap_or_default(),
            visit: length(node, "visit").unwrap_or(Duration::from_secs(1)),
            shares: section(node, "shares", |_, node| Share {
                share: number(node).or_else(|| amount(node, "percent")).unwrap_or_default() / 100.0,
                bytes: amount(node, "bytes").unwrap_or_default(),
            }),
            stored_each: counts(node, "stored_each"),
            steady: is_steady(node),
        }
    }

    fn day(&mut self, node: &YamlNode) -> Day {
        let mut day = Day::default();
        if let Some(curve) = node.get("curve") {
            let factors: Vec<f64> = items(curve).iter().filter_map(number).collect();
            match <[f64; 24]>::try_from(factors) {
                Ok(curve) => day.curve = curve,
                Err(factors) => self.problems.push(
                    curve
                        .problem(Code::WrongType, "day.curve", format!("has {} factors", factors.len()))
                        .hint("give 24, one for each hour from midnight"),
                ),
            }
        }
        for (at, peak) in node.get("peaks").map_or(&[][..], items).iter().enumerate() {
            let Some(begin) = peak.get("at") else { continue };
            match begin.text().and_then(seconds_of_day) {
                Some(seconds) => day.peaks.push(Peak {
                    at: seconds,
                    lasts: length(peak, "lasts").unwrap_or_default(),
                    times: amount(peak, "times").unwrap_or_default(),
                }),
                None => self.problems.push(
                    begin
                        .problem(Code::InvalidFormat, &format!("day.peaks[{at}].at"), "is not a time of the day")
                        .param("format", "time_of_day")
                        .hint("give hours and minutes, such as `\"09:00\"`"),
                ),
            }
        }
        day
    }

    fn vectors(&mut self, root: &YamlNode) -> Vectors {
        Vectors {
            name: text(root, "vectors").unwrap_or_default(),
            version: text(root, "version"),
            measured: text(root, "measured"),
            machine: root.get("machine").map(node).unwrap_or_default(),
            base_memory_mb: amount(root, "base_memory_mb").unwrap_or_default(),
            operations: section(root, "operations", |name, node| self.operation(name, node)),
            stored: section(root, "stored", |_, node| Stored {
                memory_bytes: amount(node, "memory_bytes").unwrap_or_default(),
                disk_bytes: amount(node, "disk_bytes").unwrap_or_default(),
            }),
        }
    }

    fn operation(&mut self, name: &str, node: &YamlNode) -> Operation {
        Operation {
            about: text(node, "about"),
            roles: section(node, "roles", |_, node| Cost {
                processor: linear(node, "processor_us"),
                disk: linear(node, "disk_bytes"),
                syncs: linear(node, "syncs"),
                wire: linear(node, "wire_bytes"),
            }),
            bytes: self.range(node, name, "bytes"),
            batch: self.range(node, name, "batch"),
            knee: amount(node, "knee_per_second"),
        }
    }

    fn range(&mut self, node: &YamlNode, name: &str, key: &str) -> Option<(f64, f64)> {
        let range = node.get(key)?;
        let bounds: Vec<f64> = items(range).iter().filter_map(number).collect();
        match bounds[..] {
            [least, most] if least <= most => Some((least, most)),
            _ => {
                let problem = range.problem(Code::WrongType, &format!("operations.{name}.{key}"), "is not a range");
                self.problems.push(problem.hint("give the least and the most: `[25, 2000]`"));
                None
            }
        }
    }
}

fn node(node: &YamlNode) -> Node {
    Node {
        unit: text(node, "unit"),
        cores: amount(node, "cores"),
        memory_mb: amount(node, "memory_mb"),
        disk_mb_per_second: amount(node, "disk_mb_per_second"),
        syncs_per_second: amount(node, "syncs_per_second"),
        wire_mb_per_second: amount(node, "wire_mb_per_second"),
    }
}

fn events(node: &YamlNode) -> Events {
    Events {
        rate: rate(node).unwrap_or_default(),
        batch: amount(node, "batch").unwrap_or(1.0),
        bytes: amount(node, "bytes").unwrap_or(250.0),
        matches: amount(node, "matches").unwrap_or(1.0),
        notification_bytes: amount(node, "notification_bytes").unwrap_or(500.0),
        format: text(node, "format").unwrap_or_else(|| FORMAT.to_owned()),
        digest: amount(node, "digest").unwrap_or(1.0),
        recipients: amount(node, "recipients").unwrap_or(1.0),
        channels: section(node, "channels", |_, node| number(node).unwrap_or_default() / 100.0),
        steady: is_steady(node),
    }
}

fn load(node: &YamlNode) -> Load {
    Load {
        operation: text(node, "operation").unwrap_or_default(),
        rate: rate(node).unwrap_or_default(),
        bytes: amount(node, "bytes").unwrap_or_default(),
        batch: amount(node, "batch").unwrap_or(1.0),
        channel: text(node, "channel"),
        steady: is_steady(node),
    }
}

fn channel(name: &str, node: &YamlNode) -> Channel {
    Channel {
        operation: text(node, "operation").unwrap_or_else(|| format!("deliver.{name}")),
        connections: amount(node, "connections"),
        answer: length(node, "answer"),
        rate: rate(node),
    }
}

fn linear(node: &YamlNode, key: &str) -> Linear {
    let part = |part| node.get(key).and_then(|node| amount(node, part)).unwrap_or_default();
    Linear { batch: part("batch"), item: part("item"), kilobyte: part("kilobyte") }
}

/// The rate per second.
fn rate(node: &YamlNode) -> Option<f64> {
    let rate = node.get("rate")?;
    Some(amount(rate, "count")? / length(rate, "per")?.as_secs_f64().max(1e-3))
}

fn section<T>(node: &YamlNode, key: &str, mut read: impl FnMut(&str, &YamlNode) -> T) -> BTreeMap<String, T> {
    entries(node, key).iter().map(|entry| (entry.key.clone(), read(&entry.key, &entry.value))).collect()
}

fn counts(node: &YamlNode, key: &str) -> BTreeMap<String, f64> {
    section(node, key, |_, node| number(node).unwrap_or_default())
}

fn entries<'a>(node: &'a YamlNode, key: &str) -> &'a [Entry] {
    node.get(key).map_or(&[], YamlNode::entries)
}

fn items(node: &YamlNode) -> &[YamlNode] {
    match &node.kind {
        document::Kind::List(items) => items,
        _ => &[],
    }
}

fn text(node: &YamlNode, key: &str) -> Option<String> {
    node.get(key)?.text().map(str::to_owned)
}

fn amount(node: &YamlNode, key: &str) -> Option<f64> {
    number(node.get(key)?)
}

fn length(node: &YamlNode, key: &str) -> Option<Duration> {
    parse_duration(node.get(key)?.text()?).ok()
}

fn is_steady(node: &YamlNode) -> bool {
    node.get("steady").is_some_and(|node| node.kind == document::Kind::Boolean(true))
}

/// `09:30` as seconds from midnight.
fn seconds_of_day(text: &str) -> Option<f64> {
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then(|| f64::from(hours * 3_600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(text: &str, expected: Expect) {
        let said = match read_profile(text) {
            Ok(profile) => format!("{} is fine", profile.name),
            Err(problems) => problems.iter().map(|problem| format!("{problem}\n")).collect(),
        };
        expected.assert_eq(&said);
    }

    #[test]
    fn problems_have_a_position_and_a_hint() {
        check(
            "",
            expect![[r#"
            is empty; begin with `profile: <name>`
        "#]],
        );
        check(
            "profile: a",
            expect![[r#"
            1:1: has no load; give `populations`, `events` or `operations`
        "#]],
        );
        check(
            "profile: a
target: { utilisation: 170, p95: soon }
events:
  quote:
    rate: { count: 10 }
    matchs: 4
    channels: { mial: 100 }
channels: { mail: { answer: 5 } }
day:
  curve: [1, 2, 3]
  peaks: [{ at: noon, lasts: 30m, times: 3 }]
",
            expect![[r#"
                2:24: target.utilisation: is 170; give 1 to 100
                2:34: target.p95: `soon` is not a duration; give a number and its unit, such as `90s`, `1h30m` or `7d`
                5:11: events.quote.rate.per: is missing; give a duration
                6:5: events.quote.matchs: is not known here; did you mean `matches`?
                7:17: events.quote.channels.mial: names the channel `mial`, which does not exist; did you mean `mail`?
                8:29: channels.mail.answer: should be a duration, not an integer; give the unit as well, such as `90s`, `1h30m` or `7d`
                10:10: day.curve: has 3 factors; give 24, one for each hour from midnight
                11:17: day.peaks[0].at: is not a time of the day; give hours and minutes, such as `"09:00"`
            "#]],
        );
        check(
            "profile: [",
            expect![[r#"
            2:1: profile[0]: is not YAML: while parsing a node, did not find expected node content
        "#]],
        );
    }

    #[test]
    fn vectors_are_yaml_or_json() {
        let json = r#"{"vectors": "v", "machine": {"cores": 2}, "operations": {"accept": {"roles": {"accept":
            {"processor_us": {"batch": 100, "item": 2, "kilobyte": 1}}}, "bytes": [25, 2000]}}}"#;
        let vectors = read_vectors(json).expect("vectors");
        let cost = &vectors.operations["accept"].roles["accept"];
        let micros = cost.of(crate::vectors::Resource::Processor, 500.0, 100.0) * 1e6;
        assert!((micros - 3.5).abs() < 1e-9, "{micros}");
        let problems = read_vectors("vectors: v\nmachine: {}\noperations: { a: { roles: {}, bytes: [5] } }\n");
        expect!["3:38: operations.a.bytes: is not a range; give the least and the most: `[25, 2000]`"]
            .assert_eq(&problems.expect_err("a range").iter().map(ToString::to_string).collect::<String>());
    }
}
