//! Chronicles agree with a computation from the full log of events, whatever the batches, restarts and undone attempts
//! in between.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    sync::Arc,
    time::Duration,
};

use tocsin_matching::{
    chronicle::{store::ChronicleStore, tables::EntryChange},
    rule::RuleSet,
    sql::QueriesRead,
};
use tocsin_model::{
    application::{Application, Rule},
    chronicle::{Calendar, Chronicle, Period, SLIDES, Window},
    definition,
    event::{EventBatch, EventPacker},
    field::Row,
    id::{EventBatchId, Name},
    state::StatePage,
    time::Timestamp,
    value::Value,
};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn read(text: &str) -> Application {
    definition::read(text, &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"))
}

const TICKS: &str = "
application: ticks
events:
  tick:
    fields: { symbol: string, venue: string, price: number, units: integer, at: timestamp, open: boolean, data: map }
    chronicles:
CHRONICLES
subscriptions:
  watch: { fields: { symbol: string } }
notifications:
  alert: { content: { templates: { base: { text: t } } } }
rules:
RULES
channels: {}
";

/// Every value of these chronicles, as expressions of a rule that reads them all.
fn rules_over(chronicles: &[&str], statistics: &[&str]) -> String {
    let mut all = Vec::new();
    for chronicle in chronicles {
        for statistic in statistics {
            for moment in ["before", "after"] {
                all.push(format!("has(chronicle.{chronicle}.{statistic}.{moment})"));
            }
        }
    }
    format!("  each: {{ on: tick, subscription: watch, notify: alert, when: '{}' }}", all.join(" || "))
}

fn ticks(chronicles: &str, rules: &str) -> Application {
    read(&TICKS.replace("CHRONICLES", chronicles).replace("RULES", rules))
}

/// Checks the values that rules read, as they spell them, event by event.
fn check(chronicles: &str, statistics: &[&str], events: &[(&str, &str)], expected: &str) {
    let application = ticks(&format!("      it: {chronicles}"), &rules_over(&["it"], statistics));
    let rules = Arc::new(RuleSet::compile(&application).unwrap_or_else(|problems| panic!("{problems:?}")));
    let mut store = ChronicleStore::new(rules.clone());
    let fields = application.events[&name("tick")].fields.clone();
    let mut seen = String::new();
    for (at, event) in events {
        let row = fields.row_from_json(event.as_bytes()).expect("a row");
        let mut rows = vec![rules.bare_row(&name("tick"), row)];
        store.take(&name("tick"), &mut rows, at.parse().expect("a time"));
        let values: Vec<String> = statistics
            .iter()
            .flat_map(|statistic| {
                // Rows have the columns in the order of all statistics.
                let before = STATISTICS.iter().take_while(|other| *other != statistic);
                let at = fields.len() + 2 * before.filter(|other| statistics.contains(other)).count();
                [&rows[0][at], &rows[0][at + 1]].map(|value| serde_json::to_string(value).expect("JSON"))
            })
            .collect();
        writeln!(seen, "{}", values.join(" ")).expect("a string takes it");
    }
    for ((_, _), incidents) in store.take_incidents() {
        let reasons: Vec<String> =
            incidents.not_taken.iter().map(|(reason, count)| format!("{} {count}", reason.name())).collect();
        let reasons = if reasons.is_empty() { vec!["none".to_owned()] } else { reasons };
        writeln!(seen, "evicted {}, not taken: {}", incidents.evicted, reasons.join(", ")).expect("a string takes it");
    }
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(seen.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn an_event_reads_the_values_before_and_after_it() {
    check(
        "{ by: symbol, of: event.price }",
        &["last", "previous", "first", "low", "high", "count", "sum", "mean"],
        &[
            ("2027-01-04T10:00:00Z", r#"{"symbol": "A", "price": 10}"#),
            ("2027-01-04T10:00:01Z", r#"{"symbol": "B", "price": 5}"#),
            ("2027-01-04T10:00:02Z", r#"{"symbol": "A", "price": 13}"#),
            ("2027-01-04T10:00:03Z", r#"{"symbol": "A"}"#),
            ("2027-01-04T10:00:04Z", r#"{"symbol": "A", "price": 7}"#),
        ],
        "null 10.0 null null null 10.0 null 10.0 null 10.0 0 1 null 10.0 null 10.0
         null 5.0 null null null 5.0 null 5.0 null 5.0 0 1 null 5.0 null 5.0
         10.0 13.0 null 10.0 10.0 10.0 10.0 10.0 10.0 13.0 1 2 10.0 23.0 10.0 11.5
         13.0 13.0 10.0 10.0 10.0 10.0 10.0 10.0 13.0 13.0 2 2 23.0 23.0 11.5 11.5
         13.0 7.0 10.0 13.0 10.0 10.0 10.0 7.0 13.0 13.0 2 3 23.0 30.0 11.5 10.0",
    );
}

#[test]
fn a_day_starts_at_midnight_of_its_time_zone() {
    check(
        "{ of: event.units, window: { every: day, time_zone: America/New_York } }",
        &["high", "sum"],
        &[
            ("2027-03-14T04:59:00Z", r#"{"units": 4}"#),
            // Sunday has 23 hours.
            ("2027-03-14T05:00:00Z", r#"{"units": 1}"#),
            ("2027-03-15T03:59:59Z", r#"{"units": 2}"#),
            ("2027-03-15T04:00:00Z", r#"{"units": 3}"#),
        ],
        "null 4 null 4
         null 1 null 1
         1 2 1 3
         null 3 null 3",
    );
}

#[test]
fn a_sliding_window_drops_older_events() {
    check(
        "{ by: symbol, of: event.price, window: 1h }",
        &["count", "low", "first", "last"],
        &[
            ("2027-01-04T10:00:30Z", r#"{"symbol": "A", "price": 1}"#),
            ("2027-01-04T10:30:00Z", r#"{"symbol": "A", "price": 2}"#),
            ("2027-01-04T11:00:30Z", r#"{"symbol": "A", "price": 3}"#),
            ("2027-01-04T11:01:30Z", r#"{"symbol": "A", "price": 4}"#),
            ("2027-01-04T13:00:00Z", r#"{"symbol": "A", "price": 5}"#),
        ],
        "0 1 null 1.0 null 1.0 null 1.0
         1 2 1.0 1.0 1.0 1.0 1.0 2.0
         2 3 1.0 1.0 1.0 1.0 2.0 3.0
         2 3 2.0 2.0 2.0 2.0 3.0 4.0
         0 1 null 5.0 null 5.0 null 5.0",
    );
}

#[test]
fn events_can_have_their_own_time_and_late_ones_are_counted() {
    check(
        "{ of: event.price, time: event.at, window: { every: hour } }",
        &["last", "first", "count", "last_at"],
        &[
            ("2027-01-04T12:00:00Z", r#"{"price": 1, "at": "2027-01-04T10:20:00Z"}"#),
            ("2027-01-04T12:00:00Z", r#"{"price": 2, "at": "2027-01-04T10:10:00Z"}"#),
            ("2027-01-04T12:00:00Z", r#"{"price": 3, "at": "2027-01-04T09:59:00Z"}"#),
            // A time in the future counts as now. So does an event without a time of its own.
            ("2027-01-04T12:00:00Z", r#"{"price": 4, "at": "2028-01-01T00:00:00Z"}"#),
            ("2027-01-04T12:30:00Z", r#"{"price": 5}"#),
        ],
        r#"null 1.0 null 1.0 0 1 null "2027-01-04T10:20:00Z"
         1.0 1.0 1.0 2.0 1 2 "2027-01-04T10:20:00Z" "2027-01-04T10:20:00Z"
         1.0 1.0 2.0 2.0 2 2 "2027-01-04T10:20:00Z" "2027-01-04T10:20:00Z"
         null 4.0 null 4.0 0 1 null "2027-01-04T12:00:00Z"
         4.0 5.0 4.0 4.0 1 2 "2027-01-04T12:00:00Z" "2027-01-04T12:30:00Z"
         evicted 0, not taken: late 1"#,
    );
}

#[test]
fn resets_start_anew_and_failures_are_counted() {
    check(
        "{ by: [symbol, venue], of: event.price / double(event.units), when: 'event.symbol != \"X\"', reset: event.open == true }",
        &["count", "high"],
        &[
            ("2027-01-04T10:00:00Z", r#"{"symbol": "A", "price": 6, "units": 2}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "A", "price": 6}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "A", "price": 6, "units": 0}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "X", "price": 6, "units": 1}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "A", "venue": "V", "price": 6, "units": 1}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "A", "price": 8, "units": 8, "open": true}"#),
        ],
        "0 1 null 3.0
         1 1 3.0 3.0
         1 1 3.0 3.0
         0 0 null null
         0 1 null 6.0
         0 1 null 1.0
         evicted 0, not taken: failed 2",
    );
}

#[test]
fn zeros_of_both_signs_are_one_key() {
    let application = ticks("      it: { by: price }", &rules_over(&["it"], &["count"]));
    let rules = RuleSet::compile(&application).unwrap_or_else(|problems| panic!("{problems:?}"));
    let key =
        |price: f64| rules.chronicle_key(&name("tick"), &name("it"), [("price".to_owned(), Value::Number(price))]);
    assert_eq!(key(-0.0).expect("a key"), key(0.0).expect("a key"));
    assert_ne!(key(1.0).expect("a key"), key(0.0).expect("a key"));
}

#[test]
fn the_least_recently_used_key_is_evicted() {
    check(
        "{ by: symbol, keys: 2 }",
        &["count"],
        &[
            ("2027-01-04T10:00:00Z", r#"{"symbol": "A"}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "B"}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "A"}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "C"}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "A"}"#),
            ("2027-01-04T10:00:00Z", r#"{}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "C"}"#),
        ],
        "0 1
         0 1
         1 2
         0 1
         2 3
         0 1
         0 1
         evicted 3, not taken: none",
    );
}

#[test]
fn integers_keep_their_digits_and_texts_are_ordered() {
    check(
        "{ of: event.units }",
        &["sum", "mean", "high"],
        &[
            ("2027-01-04T10:00:00Z", r#"{"units": 9223372036854775807}"#),
            ("2027-01-04T10:00:00Z", r#"{"units": 1}"#),
            ("2027-01-04T10:00:00Z", r#"{"units": -2}"#),
        ],
        "null 9223372036854775807 null 9.223372036854776e+18 null 9223372036854775807
         9223372036854775807 null 9.223372036854776e+18 4.611686018427388e+18 9223372036854775807 9223372036854775807
         null 9223372036854775806 4.611686018427388e+18 3.0744573456182584e+18 9223372036854775807 9223372036854775807",
    );
    check(
        "{ of: event.symbol }",
        &["low", "high"],
        &[
            ("2027-01-04T10:00:00Z", r#"{"symbol": "b"}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "a"}"#),
            ("2027-01-04T10:00:00Z", r#"{"symbol": "é"}"#),
        ],
        r#"null "b" null "b"
         "b" "a" "b" "b"
         "a" "a" "b" "é""#,
    );
}

/// The problems, as text.
fn problems(chronicles: &str, rule: &str) -> String {
    let rules = format!("  each: {{ on: tick, subscription: watch, notify: alert, when: '{rule}' }}");
    let application = ticks(&format!("      it: {chronicles}"), &rules);
    let problems = RuleSet::compile(&application).map(|_| Vec::new()).unwrap_or_else(|problems| problems);
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn invalid_declarations_and_paths_have_a_hint() {
    let fine = "{ by: symbol, of: event.price }";
    expect_test::expect![[r#"
        1:1: events.tick.chronicles.it.of: the event class has no field `prce`; did you mean `price`?
        1:1: events.tick.chronicles.it.when: the expression gives a number, not a boolean; compare it with something
        1:1: events.tick.chronicles.it.time: the expression gives a string, not a timestamp; name a field of type timestamp, or convert it by `timestamp(...)`
        1:1: events.tick.chronicles.it.reset: `sub` names a group, not a value"#]]
    .assert_eq(&problems("{ of: event.prce, when: event.price, time: event.symbol, reset: sub }", "true"));
    expect_test::expect!["1:1: events.tick.chronicles.it.of: the expression gives a map; a chronicle follows a boolean, an integer, a number, a string or a timestamp; convert it, such as by `double(...)`, `int(...)` or `string(...)`"]
    .assert_eq(&problems("{ of: event.data }", "true"));
    let wrong = |path: &str| problems(fine, &format!("event.price > {path}"));
    expect_test::expect!["1:15: rules.each.when: the event class has no chronicle `day`; its chronicles are it"]
        .assert_eq(&wrong("chronicle.day.high.before"));
    expect_test::expect!["1:15: rules.each.when: the chronicle `it` gives no `hihg`; did you mean `high`?"]
        .assert_eq(&wrong("chronicle.it.hihg.before"));
    expect_test::expect![
        "1:15: rules.each.when: the path does not say `before` or `after`; write `chronicle.it.high.before` or `.after`"
    ]
    .assert_eq(&wrong("chronicle.it.high"));
    expect_test::expect![
        "1:15: rules.each.when: `now` is neither `before` nor `after`; write `chronicle.it.high.before` or `.after`"
    ]
    .assert_eq(&wrong("chronicle.it.high.now"));
    expect_test::expect![
        "1:15: rules.each.when: `chronicle.it` names a group, not a value; name what it gives, such as `chronicle.it.count.before`: count, first, high, last, last_at, low, mean, previous, sum"
    ]
    .assert_eq(&wrong("chronicle.it"));
    expect_test::expect!["1:1: rules.each.when: the chronicle `it` gives no `sum`; it gives count, last_at"]
        .assert_eq(&problems("{ by: symbol }", "chronicle.it.sum.after > 1.0"));
}

#[test]
fn comparing_a_subscriber_limit_with_a_high_uses_the_index() {
    let chronicles = "      day: { by: symbol, of: event.price, window: { every: day } }";
    let rules = "  high: { on: tick, subscription: watch, notify: alert, when: 'event.symbol == sub.symbol && event.price > chronicle.day.high.before && chronicle.day.count.after >= sub.least' }";
    let text = TICKS.replace("CHRONICLES", chronicles).replace("RULES", rules);
    let application = read(&text.replace("{ symbol: string } }", "{ symbol: string, least: integer } }"));
    let rules = RuleSet::compile(&application).expect("it compiles");
    expect_test::expect![
        "high: only if event.price > chronicle.day.high.before; looks up event.symbol == sub.symbol; takes the slice chronicle.day.count.after >= sub.least"
    ]
    .assert_eq(&rules.explain()[0].to_string());
}

/// An event in the log.
struct LoggedEvent {
    key: String,
    /// The fields of the key.
    fields: Row,
    at: i64,
    value: Option<Value>,
    reset: bool,
    taken: bool,
}

fn part(window: &Window, at: i64) -> i64 {
    match window {
        Window::Always => 0,
        Window::Sliding(window) => at.div_euclid(i64::try_from(window.as_micros()).expect("short") / SLIDES),
        Window::Calendar(calendar) => calendar.begin(&calendar.zone().expect("a zone"), Timestamp(at)).0,
    }
}

/// Whether a part is in the window at another.
fn counts(window: &Window, part: i64, present: i64) -> bool {
    match window {
        Window::Sliding(_) => part >= present - SLIDES,
        _ => part >= present,
    }
}

const STATISTICS: [&str; 9] = ["last", "previous", "first", "low", "high", "count", "sum", "mean", "last_at"];

/// The values of all statistics over some events of a key, computed naively.
fn naive(window: &Window, events: &[&LoggedEvent], at: i64, integer: bool) -> Vec<Value> {
    let newest = events.iter().map(|event| event.at).max();
    let present = part(window, at).max(newest.map_or(i64::MIN, |newest| part(window, newest)));
    let live: Vec<&&LoggedEvent> =
        events.iter().filter(|event| counts(window, part(window, event.at), present)).collect();
    let mut by_time = live.clone();
    by_time.sort_by_key(|event| event.at);
    let value = |event: Option<&&&LoggedEvent>| event.and_then(|event| event.value.clone()).unwrap_or_default();
    let number = |value: &Value| match value {
        Value::Integer(value) => *value as f64,
        Value::Number(value) => *value,
        _ => 0.0,
    };
    let mut ordered: Vec<Value> = live.iter().filter_map(|event| event.value.clone()).collect();
    // Numbers are integral here, so that the order of additions does not matter.
    let sum: f64 = ordered.iter().map(number).sum();
    ordered.sort_by(|left, right| number(left).total_cmp(&number(right)));
    let of_sum = match (ordered.is_empty(), integer) {
        (true, _) => Value::Null,
        (_, true) => Value::Integer(sum as i64),
        (_, false) => Value::Number(sum),
    };
    let first = by_time.first().map(|event| event.at);
    vec![
        value(by_time.last()),
        value(by_time.len().checked_sub(2).and_then(|at| by_time.get(at))),
        // The first by acceptance of those at the earliest time.
        value(live.iter().find(|event| Some(event.at) == first)),
        ordered.first().cloned().unwrap_or_default(),
        ordered.last().cloned().unwrap_or_default(),
        Value::Integer(live.len() as i64),
        of_sum,
        if ordered.is_empty() { Value::Null } else { Value::Number(sum / ordered.len() as f64) },
        by_time.last().map_or(Value::Null, |event| Value::Timestamp(Timestamp(event.at))),
    ]
}

fn some_window(random: &mut fastrand::Rng) -> Window {
    let zones = ["UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"];
    match random.u8(0..6) {
        0 => Window::Always,
        1 | 2 => Window::Sliding(Duration::from_secs([60, 600, 3_600, 86_400][random.usize(0..4)])),
        _ => {
            let every = [Period::Hour, Period::Day, Period::Week, Period::Month][random.usize(0..4)];
            let starts = if every == Period::Hour { 0 } else { random.u16(0..4) * 45 };
            Window::Calendar(Calendar { every, time_zone: zones[random.usize(0..4)].to_owned(), starts })
        }
    }
}

/// Random chronicles over random events, in random batches with restarts and undone attempts, compared with a
/// computation from the log.
#[test]
fn chronicles_agree_with_the_full_log() {
    let environment = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = environment("SEED").unwrap_or(20_270_104);
    for case in 0..environment("CASES").unwrap_or(60) {
        one_case(seed.wrapping_add(case));
    }
}

fn one_case(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let integer = random.bool();
    let some = |random: &mut fastrand::Rng, text: &str| random.bool().then(|| text.to_owned());
    let chronicle = Chronicle {
        description: None,
        by: [vec![], vec![name("symbol")], vec![name("symbol"), name("units")]][random.usize(0..3)].clone(),
        of: Some(
            if integer { "event.data.v > 0.0 ? 1 + int(event.data.v) : 0" } else { "double(event.data.v)" }.to_owned(),
        )
        .filter(|_| random.u8(0..5) > 0),
        when: some(&mut random, "event.venue != \"no\""),
        time: some(&mut random, "event.at"),
        window: some_window(&mut random),
        reset: some(&mut random, "event.open"),
        keys: 1_000,
    };
    let of = chronicle.of.is_some();
    let statistics: Vec<&str> =
        STATISTICS.into_iter().filter(|name| of || ["count", "last_at"].contains(name)).collect();
    let mut application = ticks("      it: {}", &rules_over(&["it"], &["count"]));
    let rule = application.rules.values_mut().next().expect("a rule");
    let reads: Vec<String> = statistics
        .iter()
        .flat_map(|statistic| ["before", "after"].map(|moment| format!("has(chronicle.it.{statistic}.{moment})")))
        .collect();
    *rule = Rule { when: Some(reads.join(" || ")), ..rule.clone() };
    application.events.get_mut(&name("tick")).expect("the class").chronicles = [(name("it"), chronicle.clone())].into();
    let read = QueriesRead { tables: [(name("tick"), name("it"))].into(), ..QueriesRead::default() };
    let rules = RuleSet::compile_with_queries(&application, &|_| None, &read);
    let rules = Arc::new(rules.unwrap_or_else(|problems| panic!("seed {seed}: {problems:?}")));
    let fields = application.events[&name("tick")].fields.clone();

    let mut journal: BTreeMap<(Box<str>, u64), StatePage> = BTreeMap::new();
    let mut store = ChronicleStore::new(rules.clone());
    let mut log: Vec<LoggedEvent> = Vec::new();
    let mut table: BTreeMap<Key, Row> = BTreeMap::new();
    // Around the end of summer time.
    let mut now: i64 = "2027-11-05T00:00:00Z".parse::<Timestamp>().expect("a time").0;
    for commit in 0..random.usize(1..40) {
        now += [0, 1_000_000, 70_000_000, 4_000_000_000, 90_000_000_000][random.usize(0..5)];
        let rows: Vec<Row> = (0..random.usize(1..6))
            .map(|_| {
                let own = now - [0, 1_000_000, 30_000_000, 1_800_000_000, 7_200_000_000][random.usize(0..5)];
                let value = [Value::Number(random.i32(-5..20).into()), Value::Null, Value::from("none")];
                let value = value[if random.u8(0..8) > 0 { 0 } else { random.usize(0..3) }].clone();
                let row = vec![
                    [Value::from("A"), Value::from("B"), Value::Null][random.usize(0..3)].clone(),
                    [Value::from("yes"), Value::from("no"), Value::Null][random.usize(0..3)].clone(),
                    Value::Null,
                    Value::Integer(random.i64(0..2)),
                    if random.u8(0..6) > 0 { Value::Timestamp(Timestamp(own)) } else { Value::Null },
                    Value::Boolean(random.u8(0..12) == 0),
                    Value::Map([("v".into(), value)].into()),
                ];
                rules.bare_row(&name("tick"), row)
            })
            .collect();
        if random.u8(0..6) == 0 {
            // An attempt that is undone.
            store.begin();
            store.take(&name("tick"), &mut rows.clone(), Timestamp(now));
            publish(&mut store, now, &mut table);
            store.undo();
        }
        store.begin();
        let mut found = rows.clone();
        let packed = store.take(&name("tick"), &mut found, Timestamp(now));
        for (at, row) in rows.iter().enumerate() {
            let expected = expected(&chronicle, &mut log, row, now, integer);
            let given: Vec<Value> = found[at][fields.len()..].to_vec();
            let shown: Vec<&str> = statistics.iter().flat_map(|one| [*one, *one]).collect();
            let expected: Vec<Value> = expected
                .into_iter()
                .zip(STATISTICS)
                .filter(|(_, statistic)| statistics.contains(statistic))
                .flat_map(|((before, after), _)| [before, after])
                .collect();
            assert_eq!(given, expected, "SEED={seed}, commit {commit}, event {at}: {shown:?} of {chronicle:#?}");
        }
        publish(&mut store, now, &mut table);
        assert_eq!(
            table.values().map(|row| format!("{row:?}")).collect::<BTreeSet<_>>(),
            expected_table(&chronicle, &log, &statistics, now, integer),
            "SEED={seed}, commit {commit}: {chronicle:#?}"
        );
        // The packed columns equal the computed ones.
        let mut packer = EventPacker::new(fields.clone());
        rows.iter().for_each(|row| packer.push(&row[..fields.len()]));
        let batch = EventBatch {
            id: EventBatchId(1),
            application: name("ticks"),
            version: 1,
            class: name("tick"),
            source: name("api"),
            received_at: Timestamp(now),
            accepted_at: Timestamp(now),
            snapshot_sequence: None,
            events: packer.finish(),
            chronicled: packed,
        };
        assert_eq!(rules.rows(&batch, &fields).expect("whole"), found, "SEED={seed}");
        for page in store.take_changes() {
            let key = (page.name.clone(), page.number);
            if page.body.is_empty() {
                journal.remove(&key)
            } else {
                journal.insert(key, page)
            };
        }
        if random.u8(0..5) == 0 {
            store = ChronicleStore::new(rules.clone());
            assert_eq!(store.restore(journal.values().cloned()), 0, "SEED={seed}");
        }
    }
}

type Key = Arc<[u8]>;

/// Maintains a table from the published changes.
fn publish(store: &mut ChronicleStore, now: i64, table: &mut BTreeMap<Key, Row>) {
    store.publish_tables(Timestamp(now), &mut |change| match change {
        EntryChange::Clear => table.clear(),
        EntryChange::Entry { key, row: Some(row), .. } => drop(table.insert(key, row)),
        EntryChange::Entry { key, row: None, .. } => drop(table.remove(&key)),
    });
}

/// The expected rows of the table: for each key with an event in the window, its fields and statistics.
fn expected_table(
    chronicle: &Chronicle,
    log: &[LoggedEvent],
    statistics: &[&str],
    now: i64,
    integer: bool,
) -> BTreeSet<String> {
    let keys: BTreeMap<&str, &Row> = log.iter().map(|seen| (seen.key.as_str(), &seen.fields)).collect();
    let row = |(key, fields): (&str, &Row)| {
        let events: Vec<&LoggedEvent> = of_key(log, key).into_iter().map(|at| &log[at]).collect();
        let said = naive(&chronicle.window, &events, now, integer);
        let is_there = said[5] != Value::Integer(0);
        let said = said.into_iter().zip(STATISTICS).filter(|(_, statistic)| statistics.contains(statistic));
        let row: Row = fields.iter().cloned().chain(said.map(|(value, _)| value)).collect();
        is_there.then(|| format!("{row:?}"))
    };
    keys.into_iter().filter_map(row).collect()
}

/// The indexes in the log of a key's events since its last reset.
fn of_key(log: &[LoggedEvent], key: &str) -> Vec<usize> {
    let begin = log.iter().rposition(|seen| seen.key == key && seen.reset).unwrap_or(0);
    (begin..log.len()).filter(|at| log[*at].key == key && log[*at].taken).collect()
}

/// The expected value of each statistic before and after an event, which is appended to the log.
fn expected(
    chronicle: &Chronicle,
    log: &mut Vec<LoggedEvent>,
    row: &Row,
    now: i64,
    integer: bool,
) -> Vec<(Value, Value)> {
    let key = if chronicle.by.len() == 2 { format!("{:?} {:?}", row[0], row[3]) } else { format!("{:?}", row[0]) };
    let key = if chronicle.by.is_empty() { String::new() } else { key };
    let Value::Map(data) = &row[6] else { panic!("a map") };
    let value = match (&chronicle.of, &data[0].1) {
        (None, _) => Ok(None),
        (_, Value::Number(value)) if integer => {
            Ok(Some(Value::Integer(if *value > 0.0 { 1 + *value as i64 } else { 0 })))
        }
        (_, Value::Number(value)) => Ok(Some(Value::Number(*value))),
        (_, other) => Err(other),
    };
    let mine = |log: &[LoggedEvent]| of_key(log, &key);
    let fields: Row = [&row[0], &row[3]].into_iter().take(chronicle.by.len()).cloned().collect();
    let (own, newest) = match (&chronicle.time, &row[4]) {
        (None, _) => (now, mine(log).iter().map(|at| log[*at].at).max()),
        (_, Value::Timestamp(own)) => (own.0.min(now), None),
        _ => (now, None),
    };
    let at = newest.map_or(own, |newest| newest.max(own));
    if chronicle.reset.is_some() && row[5] == Value::Boolean(true) {
        log.push(LoggedEvent { key: key.clone(), fields: fields.clone(), at, value: None, reset: true, taken: false });
    }
    let of = |log: &[LoggedEvent]| {
        let events: Vec<&LoggedEvent> = mine(log).into_iter().map(|at| &log[at]).collect();
        naive(&chronicle.window, &events, at, integer)
    };
    let before = of(log);
    let newest = mine(log).iter().map(|at| log[*at].at).max().unwrap_or(i64::MIN);
    let present =
        part(&chronicle.window, at).max(if newest == i64::MIN { newest } else { part(&chronicle.window, newest) });
    let is_late = !counts(&chronicle.window, part(&chronicle.window, at), present);
    let wanted = chronicle.when.is_none() || row[1] != Value::from("no");
    if let (Ok(value), true, false) = (value, wanted, is_late) {
        log.push(LoggedEvent { key: key.clone(), fields, at, value, reset: false, taken: true });
    }
    before.into_iter().zip(of(log)).collect()
}

/// Pages of a chronicle with another definition are not read, and are removed.
#[test]
fn another_definition_starts_anew() {
    let of = |declaration: &str| {
        let application = ticks(&format!("      it: {declaration}"), &rules_over(&["it"], &["count"]));
        Arc::new(RuleSet::compile(&application).expect("it compiles"))
    };
    let (old, same, other) = (of("{ by: symbol, keys: 5 }"), of("{ by: symbol, keys: 9 }"), of("{ by: venue }"));
    let mut store = ChronicleStore::new(old.clone());
    store.begin();
    let row = vec![Value::from("A"), Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null];
    store.take(&name("tick"), &mut [old.bare_row(&name("tick"), row)], Timestamp(0));
    let pages = store.take_changes();
    assert_eq!(pages.len(), 1);
    let mut again = ChronicleStore::new(same);
    assert_eq!((again.restore(pages.clone()), again.keys()), (0, 1));
    assert!(again.take_changes().is_empty());
    let mut anew = ChronicleStore::new(other);
    assert_eq!((anew.restore(pages.clone()), anew.keys()), (0, 0));
    let gone: BTreeSet<(Box<str>, u64, bool)> =
        anew.take_changes().into_iter().map(|page| (page.name, page.number, page.body.is_empty())).collect();
    assert_eq!(gone, BTreeSet::from([("chronicles.tick.it".into(), 1, true)]));
    let damaged: Vec<StatePage> =
        pages.into_iter().map(|page| StatePage { body: page.body.slice(..page.body.len() - 1), ..page }).collect();
    assert_eq!(again.restore(damaged), 1);
}
