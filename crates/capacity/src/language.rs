//! The words of profiles and vectors, as tables; texts become values, or every problem in them.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    definition::{
        document::{self, Entry, Node as YamlNode},
        in_order, parse_duration,
        shape::{self, Keys, Shape, number, optional, required},
    },
    problem::{Problem, closest},
};

use crate::{
    profile::{Channel, Day, Events, FORMAT, Goals, Load, Node, Peak, Population, Profile, Roles, Share},
    vectors::{Cost, Linear, Operation, Stored, Vectors},
};

const DAY: u64 = 86_400;
/// How many populations, channels and the like there may be: a plan looks at all of them for each assumption.
const ENTRIES_MAX: usize = 200;
/// Shares may miss the whole by this much before it is said.
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
    optional("description", &Shape::Text, "What it is about."),
    optional(
        "roles",
        &Shape::Choice(&["together", "apart"]),
        "Whether every node does everything, or each role has nodes of its own; `together` if not given.",
    ),
    optional(
        "nodes",
        &AT_LEAST_ONE,
        "Nodes to look at, of each role if they are apart; as many as are needed if not given.",
    ),
    optional("node", &NODE, "What a node has; the machine of the vectors if not given."),
    optional("target", &TARGET, "How full it may be, and how long things may take."),
    optional("populations", &POPULATIONS, "People who come, do something and leave."),
    optional("events", &EVENTS, "What happens, and whom it concerns."),
    optional("operations", &OPERATIONS, "Operations that just come at a rate: messages, sync sessions, searches."),
    optional("channels", &CHANNELS, "How notifications leave, and how fast the far side is."),
    optional("stored", &STORED_COUNTS, "How many of what is kept: the names are those of the vectors."),
    optional("keep", &LENGTH, "For how long what happened is kept on disk; 7d if not given."),
    optional("day", &DAY_SHAPE, "How the load is spread over a day; evenly if not given."),
]);
static NODE: Shape = Shape::Object(&[
    optional("unit", &Shape::Text, "What `cores` counts; `core` if not given."),
    optional("cores", &POSITIVE, "Processors."),
    optional("memory_mb", &POSITIVE, "Megabytes of memory."),
    optional(
        "disk_mb_per_second",
        &POSITIVE,
        "Megabytes that the disk writes and syncs in a second, one after the other.",
    ),
    optional("syncs_per_second", &POSITIVE, "Syncs, or transactions of the disk, in a second."),
    optional("wire_mb_per_second", &POSITIVE, "Megabytes that the network carries in a second."),
]);
static TARGET: Shape = Shape::Object(&[
    optional(
        "utilisation",
        &Shape::Number { least: 1.0, most: 100.0 },
        "Percent of a resource that may be in use at the busiest time; 70 if not given.",
    ),
    optional("p50", &LENGTH, "How long half of all may take at most."),
    optional("p95", &LENGTH, "How long 95 of 100 may take at most."),
    optional("p99", &LENGTH, "How long 99 of 100 may take at most."),
]);
static POPULATIONS: Shape = Shape::Entries { keys: Keys::Names, of: &POPULATION, most: ENTRIES_MAX };
static POPULATION: Shape = Shape::Object(&[
    required("users", &COUNT, "How many are there at the same time."),
    required("operations_per_visit", &COUNT, "What one does in a visit."),
    required("visit", &LENGTH, "How long a visit is."),
    required("shares", &SHARES, "Percent of the operations, by their names."),
    optional("stored_each", &STORED_COUNTS, "What is kept for each of them, such as subscriptions."),
    optional("steady", &Shape::Boolean, "Whether the day leaves them as they are; false if not given."),
]);
static SHARES: Shape = Shape::Entries { keys: Keys::Free, of: &SHARE, most: ENTRIES_MAX };
static SHARE: Shape = Shape::Either(&[&PERCENT, &SHARE_OBJECT]);
static SHARE_OBJECT: Shape = Shape::Object(&[
    required("percent", &PERCENT, "The share."),
    optional("bytes", &COUNT, "Bytes of one; 0 if not given."),
]);
static RATE: Shape =
    Shape::Object(&[required("count", &COUNT, "How many."), required("per", &LENGTH, "In which time.")]);
static EVENTS: Shape = Shape::Entries { keys: Keys::Names, of: &EVENT, most: ENTRIES_MAX };
static EVENT: Shape = Shape::Object(&[
    required("rate", &RATE, "How many happen, at factor 1 of the day."),
    optional("batch", &AT_LEAST_ONE, "How many come together; 1 if not given."),
    optional("bytes", &COUNT, "Bytes of one; 250 if not given."),
    optional("matches", &COUNT, "Notifications that one makes; 1 if not given."),
    optional("notification_bytes", &COUNT, "Bytes of a formatted notification; 500 if not given."),
    optional("format", &Shape::Text, "The operation that formats, such as `format.xslt`; `format` if not given."),
    optional("digest", &AT_LEAST_ONE, "Notifications that one message tells; 1 if not given."),
    optional("recipients", &AT_LEAST_ONE, "Recipients of a message that is made once; 1 if not given."),
    optional("channels", &CHANNEL_SHARES, "Percent of the notifications that leave by each channel."),
    optional("steady", &Shape::Boolean, "Whether the day leaves them as they are; false if not given."),
]);
static CHANNEL_SHARES: Shape = Shape::Entries { keys: Keys::Names, of: &PERCENT, most: ENTRIES_MAX };
static OPERATIONS: Shape = Shape::Entries { keys: Keys::Names, of: &LOAD, most: ENTRIES_MAX };
static LOAD: Shape = Shape::Object(&[
    required("operation", &Shape::Text, "Which: a name of the vectors."),
    required("rate", &RATE, "How many, at factor 1 of the day."),
    optional("bytes", &COUNT, "Bytes of one; 0 if not given."),
    optional("batch", &AT_LEAST_ONE, "How many come together; 1 if not given."),
    optional("channel", &Shape::Name, "The channel, or pool, through which they go."),
    optional("steady", &Shape::Boolean, "Whether the day leaves them as they are; false if not given."),
]);
static CHANNELS: Shape = Shape::Entries { keys: Keys::Names, of: &CHANNEL, most: ENTRIES_MAX };
static CHANNEL: Shape = Shape::Object(&[
    optional(
        "operation",
        &Shape::Text,
        "The operation of a delivery, such as `deliver.smtp`; `deliver.` and its name if not given.",
    ),
    optional("connections", &AT_LEAST_ONE, "Most at the same time, of all nodes together."),
    optional("answer", &ANSWER, "How long the far side takes for one."),
    optional("rate", &RATE, "Most that the far side takes."),
]);
static STORED_COUNTS: Shape = Shape::Entries { keys: Keys::Free, of: &COUNT, most: ENTRIES_MAX };
static DAY_SHAPE: Shape = Shape::Object(&[
    optional("curve", &CURVE, "24 factors, one for each hour from midnight; 1 for each if not given."),
    optional("peaks", &PEAKS, "Times at which the load is another."),
]);
static CURVE: Shape = Shape::List { of: &COUNT, most: 24 };
static PEAKS: Shape = Shape::List { of: &PEAK, most: 100 };
static PEAK: Shape = Shape::Object(&[
    required("at", &Shape::Text, "When it begins, such as `09:00`."),
    required("lasts", &LENGTH, "How long it lasts; what is beyond midnight is cut off."),
    required("times", &COUNT, "The factor in that time, in place of the curve's."),
]);

static VECTORS: Shape = Shape::Object(&[
    required("vectors", &Shape::Text, "The name of the measurement."),
    optional("version", &Shape::Text, "Of what was measured."),
    optional("measured", &Shape::Text, "How and when."),
    required("machine", &NODE, "On what it was measured."),
    optional("base_memory_mb", &COUNT, "Memory of a node that does nothing; 0 if not given."),
    required("operations", &OPERATION_COSTS, "What one operation costs."),
    optional("stored", &STORED, "What is kept for one thing."),
]);
static OPERATION_COSTS: Shape = Shape::Entries { keys: Keys::Free, of: &OPERATION_COST, most: 1_000 };
static OPERATION_COST: Shape = Shape::Object(&[
    optional("about", &Shape::Text, "What is done."),
    required("roles", &ROLE_COSTS, "What it costs each role that takes part."),
    optional("bytes", &RANGE, "The least and the most bytes of one that were measured."),
    optional("batch", &RANGE, "The least and the most that came together."),
    optional("knee_per_second", &POSITIVE, "How many a second the machine did before the cost of one rose."),
]);
static RANGE: Shape = Shape::List { of: &COUNT, most: 2 };
static ROLE_COSTS: Shape = Shape::Entries { keys: Keys::Names, of: &ROLE_COST, most: 20 };
static ROLE_COST: Shape = Shape::Object(&[
    optional("processor_us", &LINEAR, "Microseconds on a processor."),
    optional("disk_bytes", &LINEAR, "Bytes written."),
    optional("syncs", &LINEAR, "Syncs."),
    optional("wire_bytes", &LINEAR, "Bytes on the wire."),
]);
static LINEAR: Shape = Shape::Object(&[
    optional("batch", &COUNT, "For a batch, however many are in it."),
    optional("item", &COUNT, "For each."),
    optional("kilobyte", &COUNT, "For each 1,000 bytes of one."),
]);
static STORED: Shape = Shape::Entries { keys: Keys::Free, of: &STORED_COST, most: 1_000 };
static STORED_COST: Shape = Shape::Object(&[
    optional("memory_bytes", &COUNT, "Bytes of memory."),
    optional("disk_bytes", &COUNT, "Bytes of disk."),
]);

/// The JSON Schema of profiles (draft 2020-12), for editors.
pub fn profile_json_schema() -> serde_json::Value {
    shape::json_schema(
        &PROFILE,
        "Profile",
        "What is expected of an installation of Tocsin: who does how much of what, and when.",
    )
}

/// The JSON Schema of vectors.
pub fn vectors_json_schema() -> serde_json::Value {
    shape::json_schema(&VECTORS, "Vectors", "What one operation costs, resource by resource, as it was measured.")
}

/// Reads and checks a profile.
///
/// # Errors
/// Every problem, with line, column, path, what is wrong and what would be right.
pub fn read_profile(text: &str) -> Result<Profile, Vec<Problem>> {
    read(text, &PROFILE, "profile", |root, problems| Reader { problems }.profile(root))
}

/// Reads and checks vectors, as YAML or JSON.
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
        return Err(vec![Problem::at("", "is empty").hint(format!("begin with `{first}: <name>`"))]);
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

/// Makes values of nodes that were checked; where a check failed, what it makes is thrown away.
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
        self.must_ask_something(root, &profile);
        self.channels_must_exist(root, &profile);
        profile
    }

    fn must_ask_something(&mut self, root: &YamlNode, profile: &Profile) {
        if profile.populations.is_empty() && profile.events.is_empty() && profile.operations.is_empty() {
            let problem = root.problem("", "asks for nothing");
            self.problems.push(problem.hint("give `populations`, `events` or `operations`"));
        }
    }

    fn channels_must_exist(&mut self, root: &YamlNode, profile: &Profile) {
        let known = || profile.channels.keys().map(String::as_str);
        let mut check = |name: &str, path: String, entry: &Entry| {
            if profile.channels.contains_key(name) {
                return;
            }
            let hint = match closest(name, known()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "describe it under `channels`".to_owned(),
            };
            let problem = Problem::at(path, format!("names the channel `{name}`, which does not exist")).hint(hint);
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
                        .problem("day.curve", format!("has {} factors", factors.len()))
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
                        .problem(&format!("day.peaks[{at}].at"), "is not a time of the day")
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
                let problem = range.problem(&format!("operations.{name}.{key}"), "is not a range");
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

/// In a second.
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

/// `09:30` in seconds from midnight.
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
    fn what_is_wrong_is_said_with_its_place() {
        check(
            "",
            expect![[r#"
            is empty; begin with `profile: <name>`
        "#]],
        );
        check(
            "profile: a",
            expect![[r#"
            1:1: asks for nothing; give `populations`, `events` or `operations`
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
