//! The index agrees with testing every rule against every subscription one by one: random rules, subscriptions,
//! changes and events. A failure prints the seed; `TOCSIN_SEED` repeats it, `TOCSIN_CASES` tries more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fastrand::Rng;
use tocsin_matching::{
    cut::NotificationCutter,
    datum::Trouble,
    oracle::{self, Witness},
    rule::{RuleNumber, RuleSet},
    shard::{MatchSink, Run, Shard, Subject},
};
use tocsin_model::{
    application::{
        Application, ContentTemplates, EventClass, NotificationClass, Rule, SubscriptionClass, TemplateEngine,
    },
    event::{EventBatch, EventPacker},
    field::{Field, FieldType, Fields, Row},
    filter::{Dialect, Filter},
    id::{EventBatchId, EventId, Name, SubscriptionId},
    time::Timestamp,
    value::Value,
};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn fields(list: &[(&str, FieldType)]) -> Fields {
    let field = |(text, kind): &(&str, FieldType)| Field {
        name: name(text),
        kind: *kind,
        required: false,
        default: Value::Null,
        description: None,
    };
    Fields::new(list.iter().map(field).collect())
}

fn event_fields() -> Fields {
    use FieldType::*;
    fields(&[
        ("s", String),
        ("t", String),
        ("i", Integer),
        ("n", Number),
        ("at", Timestamp),
        ("b", Boolean),
        ("tags", List),
        ("lat", Number),
        ("lon", Number),
    ])
}

fn subscription_fields() -> Fields {
    use FieldType::*;
    fields(&[
        ("s", String),
        ("t", String),
        ("i", Integer),
        ("j", Integer),
        ("n", Number),
        ("m", Number),
        ("at", Timestamp),
        ("until", Timestamp),
        ("b", Boolean),
        ("tags", List),
        ("lat", Number),
        ("lon", Number),
        ("radius", Number),
    ])
}

fn application(rules: &[(String, &str)]) -> Application {
    let classes = [name("near"), name("far")];
    let class =
        |filter: Vec<Dialect>| SubscriptionClass { fields: subscription_fields(), filter, ..Default::default() };
    let notification = NotificationClass {
        fields: fields(&[("s", FieldType::String), ("gap", FieldType::Number), ("their", FieldType::Integer)]),
        description: None,
        batch_size: 7,
        expires_after: None,
        conduct: Default::default(),
        content: ContentTemplates { engine: TemplateEngine::Jinja, templates: BTreeMap::new() },
    };
    let rules = rules.iter().enumerate().map(|(at, (when, class))| {
        let with = [("gap", "event.n - sub.n"), ("their", "sub.i")];
        let rule = Rule {
            when: (!when.is_empty()).then(|| when.clone()),
            with: with.into_iter().map(|(field, source)| (name(field), source.to_owned())).collect(),
            ..Rule::new(name("thing"), name(class), name("told"))
        };
        (name(&format!("r{at}")), rule)
    });
    Application {
        events: [(name("thing"), EventClass { fields: event_fields(), description: None })].into(),
        subscriptions: classes.into_iter().zip([class(vec![Dialect::Cel]), class(Vec::new())]).collect(),
        notifications: [(name("told"), notification)].into(),
        functions: BTreeMap::new(),
        rules: rules.collect(),
        ..Application::new(name("app"))
    }
}

const INTEGERS: [i64; 12] = [
    0,
    1,
    2,
    3,
    -1,
    -7,
    9_007_199_254_740_992,
    9_007_199_254_740_993,
    -9_007_199_254_740_993,
    i64::MAX,
    i64::MIN,
    i64::MAX - 1,
];
const NUMBERS: [f64; 12] = [
    0.0,
    -0.0,
    1.0,
    1.5,
    2.0,
    2.5,
    -7.0,
    9_007_199_254_740_992.0,
    9_223_372_036_854_775_808.0,
    -9_223_372_036_854_775_808.0,
    1e300,
    -0.25,
];

fn random_value(random: &mut Rng, field: &Field) -> Value {
    if random.u8(0..10) == 0 {
        return Value::Null;
    }
    let text = |random: &mut Rng| Value::from(["", "a", "b", "A", "ab", "é"][random.usize(0..6)]);
    match field.kind {
        FieldType::Boolean => Value::Boolean(random.bool()),
        FieldType::Integer => {
            Value::Integer(if random.bool() { random.i64(-3..4) } else { INTEGERS[random.usize(0..12)] })
        }
        FieldType::Number => match field.name.as_str() {
            "lat" => Value::Number(random.f64() * 182.0 - 91.0),
            "lon" => Value::Number(random.f64() * 400.0 - 200.0),
            "radius" => Value::Number(random.f64() * 12_000.0),
            _ if random.bool() => Value::Number(f64::from(random.i32(-6..7)) / 2.0),
            _ => Value::Number(NUMBERS[random.usize(0..12)]),
        },
        FieldType::String => text(random),
        FieldType::Timestamp => Value::Timestamp(Timestamp(random.i64(-3..4) * 1_000_000)),
        FieldType::List => {
            let item = |random: &mut Rng| match random.u8(0..4) {
                0 => Value::Integer(random.i64(-1..3)),
                1 => Value::Number(f64::from(random.i32(-2..5)) / 2.0),
                2 => Value::Null,
                _ => text(random),
            };
            Value::List((0..random.usize(0..4)).map(|_| item(random)).collect())
        }
        FieldType::Map => Value::Null,
    }
}

fn random_row(random: &mut Rng, fields: &Fields) -> Row {
    fields.iter().map(|field| random_value(random, field)).collect()
}

fn pick<'a>(random: &mut Rng, choices: &[&'a str]) -> &'a str {
    choices[random.usize(0..choices.len())]
}

fn random_atom(random: &mut Rng) -> String {
    let order = ["<", "<=", ">", ">="];
    let any = ["<", "<=", ">", ">=", "==", "!="];
    match random.u8(0..22) {
        0 | 1 => format!("event.{0} == sub.{0}", pick(random, &["s", "t"])),
        2 => format!("sub.{} == event.{}", pick(random, &["i", "j", "n", "m"]), pick(random, &["i", "n"])),
        3 => "event.b == sub.b".to_owned(),
        4 | 5 => {
            let (left, right) = (pick(random, &["i", "n"]), pick(random, &["i", "j", "n", "m"]));
            format!("event.{left} {} sub.{right}", pick(random, &order))
        }
        6 | 7 => {
            let (left, right) = (pick(random, &["i", "j", "n", "m"]), pick(random, &["i", "n"]));
            format!("sub.{left} {} event.{right}", pick(random, &order))
        }
        8 => format!(
            "sub.at {} event.at && event.at {} sub.until",
            pick(random, &["<", "<="]),
            pick(random, &["<", "<="])
        ),
        9 => {
            let (event, low, high) = (pick(random, &["i", "n"]), pick(random, &["i", "n"]), pick(random, &["j", "m"]));
            format!("sub.{low} <= event.{event} && event.{event} < sub.{high}")
        }
        10 => format!("event.{} {} {}", pick(random, &["i", "n"]), pick(random, &any), random.i32(-2..3)),
        11 => format!("sub.{} {} {}", pick(random, &["i", "n"]), pick(random, &any), pick(random, &["0", "1.5", "2"])),
        12 => format!("sub.s == '{}'", pick(random, &["a", "b", "ab"])),
        13 => pick(random, &["has(event.s)", "!has(sub.n)", "has(sub.tags)", "event.n == null", "sub.s != null"])
            .to_owned(),
        14 => pick(
            random,
            &["event.s in sub.tags", "event.n in sub.tags", "sub.s in event.tags", "event.t in ['a', 'b']"],
        )
        .to_owned(),
        15 => format!("event.s.contains_ci(sub.{})", pick(random, &["s", "t"])),
        16 => format!("distance_km(event.lat, event.lon, sub.lat, sub.lon) {} sub.radius", pick(random, &order)),
        17 => "5000 >= distance_km(event.lat, event.lon, sub.lat, sub.lon)".to_owned(),
        18 => format!("event.i + sub.i {} event.n", pick(random, &order)),
        19 => "sub.tags.exists(tag, tag == event.s || tag > 1)".to_owned(),
        20 => format!("event.n {} sub.n * 2.0 + sub.m", pick(random, &order)),
        _ => format!("(sub.b ? sub.i : sub.n) {} event.n", pick(random, &any)),
    }
}

fn random_predicate(random: &mut Rng, depth: u32) -> String {
    match random.u8(0..if depth == 0 { 4 } else { 10 }) {
        0..=3 => random_atom(random),
        4..=6 => {
            let parts: Vec<String> = (0..random.usize(2..4)).map(|_| random_predicate(random, depth - 1)).collect();
            format!("({})", parts.join(" && "))
        }
        7 | 8 => {
            let parts: Vec<String> = (0..random.usize(2..4)).map(|_| random_predicate(random, depth - 1)).collect();
            format!("({})", parts.join(" || "))
        }
        _ => format!("!({})", random_predicate(random, depth - 1)),
    }
}

/// A test of the event alone, as subscribers' filters make them.
fn random_filter_atom(random: &mut Rng) -> String {
    let any = ["<", "<=", ">", ">=", "==", "!="];
    let text = ["a", "b", "A", "ab", ""];
    match random.u8(0..11) {
        0 | 1 => format!("event.{} == '{}'", pick(random, &["s", "t"]), pick(random, &text)),
        2 => format!("event.{} {} {}", pick(random, &["i", "n"]), pick(random, &any), random.i32(-2..3)),
        3 => format!("event.n {} {}", pick(random, &any), pick(random, &["0.5", "1.5", "9007199254740993"])),
        4 => format!(
            "event.s.{}('{}')",
            pick(random, &["startsWith", "endsWith", "contains", "contains_ci"]),
            pick(random, &text)
        ),
        5 => format!("event.t in ['{}', '{}']", pick(random, &text), pick(random, &text)),
        6 => format!("'{}' in event.tags", pick(random, &text)),
        7 => pick(random, &["has(event.s)", "!has(event.n)", "event.b", "event.t != null"]).to_owned(),
        8 => format!("event.{} > {} && event.{} <= {}", "i", random.i32(-3..2), "i", random.i32(0..4)),
        9 => format!("event.s.matches('{}')", pick(random, &["^a", "b$", "a.*b", "[ab]+", "(a|é)"])),
        _ => pick(
            random,
            &["event.i + 1 > 2", "event.n * 2.0 < event.lat", "event.tags.exists(t, t == 'a')", "1 / event.i > 0"],
        )
        .to_owned(),
    }
}

fn random_filter(random: &mut Rng, depth: u32) -> String {
    let several =
        |random: &mut Rng| (0..random.usize(2..4)).map(|_| random_filter(random, depth - 1)).collect::<Vec<String>>();
    match random.u8(0..if depth == 0 { 4 } else { 10 }) {
        0..=3 => random_filter_atom(random),
        4..=6 => format!("({})", several(random).join(" && ")),
        7 | 8 => format!("({})", several(random).join(" || ")),
        _ => format!("!({})", random_filter(random, depth - 1)),
    }
}

#[derive(Default)]
struct Found {
    pairs: BTreeSet<(u32, RuleNumber, SubscriptionId)>,
    twice: usize,
}

impl MatchSink for Found {
    fn run(&mut self, run: Run<'_>) {
        for slot in run.slots {
            let fresh = self.pairs.insert((run.event_ordinal, run.rule, run.id(*slot)));
            self.twice += usize::from(!fresh);
        }
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, trouble: Trouble) {
        panic!("{trouble}");
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, trouble: Trouble, _: u32) {
        panic!("{trouble}");
    }
}

fn batch(rows: &[Row]) -> EventBatch {
    let mut packer = EventPacker::new(event_fields());
    rows.iter().for_each(|row| packer.push(row));
    EventBatch {
        id: EventBatchId(1),
        application: name("app"),
        version: 1,
        class: name("thing"),
        source: name("api"),
        received_at: Timestamp(0),
        accepted_at: Timestamp(0),
        sees: None,
        events: packer.finish(),
    }
}

fn case(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let rules: Vec<(String, &str)> = (0..random.usize(1..5))
        .map(|_| {
            let depth = random.u32(0..4);
            let when = if random.u8(0..30) == 0 { String::new() } else { random_predicate(&mut random, depth) };
            (when, if random.u8(0..4) == 0 { "far" } else { "near" })
        })
        .collect();
    let set = match RuleSet::compile(&application(&rules)) {
        Ok(set) => Arc::new(set),
        Err(problems) => panic!("seed {seed}: {problems:?}"),
    };
    let mut shard = Shard::new(Arc::clone(&set));
    let mut witnesses: BTreeMap<SubscriptionId, Witness> = BTreeMap::new();
    let channels = [name("mail"), name("web")];
    let filters: Vec<Filter> = (0..random.usize(1..40))
        .map(|_| {
            let depth = random.u32(0..3);
            Filter::new(Dialect::Cel, random_filter(&mut random, depth))
        })
        .collect();
    for round in 0..6 {
        for _ in 0..random.usize(0..120) {
            let id = SubscriptionId(random.u64(0..150));
            if random.u8(0..3) == 0 {
                shard.remove(id);
                witnesses.remove(&id);
            } else {
                let class = if random.u8(0..4) == 0 { name("far") } else { name("near") };
                let values = subscription_fields().to_json(&random_row(&mut random, &subscription_fields()));
                let channel = channels.get(random.usize(0..3));
                let filter =
                    (class == name("near") && random.u8(0..3) > 0).then(|| &filters[random.usize(0..filters.len())]);
                shard.put(Subject { id, class: &class, values: &values, channel, filter }).expect("a subscription");
                witnesses.insert(id, Witness::read(&set, id, &class, &values, filter).expect("a subscription"));
            }
        }
        let rows: Vec<Row> = (0..random.usize(1..12)).map(|_| random_row(&mut random, &event_fields())).collect();
        let mut expected = BTreeSet::new();
        for (ordinal, row) in rows.iter().enumerate() {
            for witness in witnesses.values() {
                for rule in oracle::matches(&set, &name("thing"), row, witness) {
                    expected.insert((ordinal as u32, rule, witness.id));
                }
            }
        }
        let mut found = Found::default();
        let batch = batch(&rows);
        shard.match_batch(&batch, &event_fields(), &mut found).expect("a batch");
        assert_eq!(shard.len(), witnesses.len(), "seed {seed}");
        assert_eq!(found.twice, 0, "seed {seed}, round {round}: matched twice by {rules:?}");
        if found.pairs != expected {
            let wrong = found.pairs.symmetric_difference(&expected).next().expect("a difference");
            let (ordinal, rule, id) = wrong;
            panic!(
                "seed {seed}, round {round}: rule {:?}\nevent {:?}\nsubscription {:?}\nindex {} oracle {}",
                rules[rule.0 as usize],
                rows[*ordinal as usize],
                witnesses.get(id),
                found.pairs.contains(wrong),
                expected.contains(wrong)
            );
        }
        let mut cutter = NotificationCutter::new();
        shard.match_batch(&batch, &event_fields(), &mut cutter).expect("a batch");
        let (batches, _) = cutter.finish(&set);
        let mut cut = BTreeSet::new();
        for batch in &batches {
            let notifications = &batch.notifications;
            assert!((1..=7).contains(&notifications.count()), "seed {seed}");
            for (at, event) in notifications.event_of_each().enumerate() {
                let id = notifications.subscriptions[at];
                assert!(cut.insert((event.ordinal, batch.rule, id)), "seed {seed}: cut twice");
                let (row, witness) = (&rows[event.ordinal as usize], &witnesses[&id]);
                let captured: BTreeMap<&str, Value> = notifications
                    .captured
                    .iter()
                    .map(|(name, column)| (name.as_str(), column.value(at).expect("a value for each")))
                    .collect();
                assert_eq!(captured["their"], witness.row[2], "seed {seed}");
                let gap = match (&row[3], &witness.row[4]) {
                    (Value::Number(event), Value::Number(their)) => Value::from(event - their),
                    _ => Value::Null,
                };
                assert_eq!(captured["gap"], gap, "seed {seed}");
            }
        }
        assert_eq!(cut, expected, "seed {seed}: the cutter lost or made notifications");
    }
}

#[test]
fn the_index_agrees_with_the_oracle() {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("TOCSIN_SEED") {
        return case(seed);
    }
    for seed in 0..number("TOCSIN_CASES").unwrap_or(60) {
        case(seed);
    }
}
