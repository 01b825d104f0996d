//! Scenarios of chronicles (per-key aggregates) and rules that read them: crashes do not change the notifications.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use expect_test::expect;
use tocsin_pipeline::PipelineOptions;
use tocsin_store::journal::RuleStore;
use tocsin_testkit::{CrashPoint, Scenario, check};

const PRICES: &str = r#"
application: prices
events:
  price:
    fields: { symbol: string, price: number }
    chronicles:
CHRONICLES
subscriptions:
  watch: { fields: { symbol: string, percent: number } }
notifications:
  alert:
    fields: { symbol: string, price: number, high: number }
    content: { templates: { base: { subject: "{{ symbol }} {{ price }} (was {{ high }})" } } }
rules:
  high:
    on: price
    subscription: watch
    notify: alert
    when: event.symbol == sub.symbol && event.price > chronicle.day.high.before
    with: { high: chronicle.day.high.before }
RULES
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org } }
"#;

const DAY: &str = "      day: { by: symbol, of: event.price, window: { every: day, time_zone: America/New_York } }";

fn prices(chronicles: &str, rules: &str) -> String {
    PRICES.replace("CHRONICLES", chronicles).replace("RULES", rules)
}

#[tokio::test(start_paused = true)]
async fn filters_of_subscribers_read_chronicles() {
    // No rule reads the count.
    let definition = prices(DAY, "")
        .replace("percent: number } }", "percent: number }, filter: cel }")
        .replace(" && event.price > chronicle.day.high.before\n", "\n");
    check(
        &definition,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice watch {"symbol": "A"} if event.price > chronicle.day.high.before * 1.1
           08:00 subscribe bob watch {"symbol": "A"} if chronicle.day.count.after == 3
           09:00 event price {"symbol": "A", "price": 10} {"symbol": "A", "price": 10.5}
           09:10 event price {"symbol": "A", "price": 12}
           11:00 crash
           12:00 event price {"symbol": "A", "price": 13.1} {"symbol": "A", "price": 15}"#,
        expect![[r#"
            09:10:00 email alice@example.org n-1-0: A 12.0 (was 10.5) -> delivered
            09:10:00 email bob@example.org n-1-1: A 12.0 (was 10.5) -> delivered
            11:00:00 crash
            12:00:00 email alice@example.org n-2-0: A 15.0 (was 13.1) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_query_reads_chronicles() {
    let rules = r#"  sql_high:
    on: price
    subscription: watch
    notify: alert
    sql: |
      SELECT e._event, w._subscription, e."chronicle-day-high-before" AS high
      FROM events e JOIN watch w ON w.symbol = e.symbol
      WHERE e.price > e."chronicle-day-high-before" * 1.1 AND e."chronicle-day-count-after" < 6
"#;
    let definition = prices(DAY, rules);
    let (before, after) = definition.split_once("  high:\n").expect("a rule");
    let definition = format!("{before}{}", &after[after.find("  sql_high:").expect("the other")..]);
    check(
        &definition,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice watch {"symbol": "A"}
           09:00 event price {"symbol": "A", "price": 10} {"symbol": "A", "price": 10.5} {"symbol": "B", "price": 100}
           09:10 event price {"symbol": "A", "price": 12}
           11:00 crash
           12:00 event price {"symbol": "A", "price": 13.1} {"symbol": "A", "price": 15} {"symbol": "A", "price": 20}"#,
        expect![[r#"
            09:10:00 email alice@example.org n-1-0: A 12.0 (was 10.5) -> delivered
            11:00:00 crash
            12:00:00 email alice@example.org n-2-0: A 15.0 (was 13.1) -> delivered"#]],
    )
    .await;
}

const VALUES: &str = r#"
application: prices
events:
  price:
    fields: { symbol: string, price: number }
    chronicles:
      last: { by: symbol, of: event.price }
      lately: { by: symbol, of: event.price, window: 10m }
  bell: { fields: { name: string } }
subscriptions:
  holding: { fields: { symbol: string, units: number } }
notifications:
  worth:
    fields: { name: string, value: number, trades: integer }
    content: { templates: { base: { subject: "{{ name }}: {{ value }} after {{ trades }} trades" } } }
rules:
  worth:
    on: bell
    subscription: holding
    notify: worth
    sql: |
      SELECT e._event, h._subscription, h.units * p._last AS value, coalesce(l._count, 0) AS trades
      FROM events e JOIN holding h JOIN "price.last" p ON p.symbol = h.symbol
      LEFT JOIN "price.lately" l ON l.symbol = h.symbol
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org } }
"#;

#[tokio::test(start_paused = true)]
async fn a_query_of_another_class_joins_with_the_aggregate_at_its_position() {
    check(
        VALUES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice holding {"symbol": "A", "units": 2}
           08:00 subscribe alice holding {"symbol": "B", "units": 3}
           09:00 event price {"symbol": "A", "price": 10}
           09:00 event bell {"name": "one"}
           09:00 event price {"symbol": "A", "price": 11} {"symbol": "B", "price": 5}
           09:00 event bell {"name": "two"}
           09:05 crash
           09:08 event price {"symbol": "B", "price": 6}
           09:08 event bell {"name": "three"}
           09:15 event bell {"name": "four"}
           09:30 event bell {"name": "five"}
           09:31 event price {"symbol": "A", "price": 12}
           09:31 event bell {"name": "six"}"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: one: 20.0 after 1 trades -> delivered
            09:00:00 email alice@example.org n-1-1: two: 22.0 after 2 trades -> delivered
            09:00:00 email alice@example.org n-1-2: two: 15.0 after 1 trades -> delivered
            09:05:00 crash
            09:08:00 email alice@example.org n-2-0: three: 22.0 after 2 trades -> delivered
            09:08:00 email alice@example.org n-2-1: three: 18.0 after 2 trades -> delivered
            09:15:00 email alice@example.org n-3-0: four: 22.0 after 0 trades -> delivered
            09:15:00 email alice@example.org n-3-1: four: 18.0 after 1 trades -> delivered
            09:30:00 email alice@example.org n-4-0: five: 22.0 after 0 trades -> delivered
            09:30:00 email alice@example.org n-4-1: five: 18.0 after 0 trades -> delivered
            09:31:00 email alice@example.org n-5-0: six: 24.0 after 1 trades -> delivered
            09:31:00 email alice@example.org n-5-1: six: 18.0 after 0 trades -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_does_not_change_the_join_of_a_query() {
    const STORY: &str = r#"
        08:00:00 subscriber alice email=alice@example.org
        08:00:00 subscribe alice holding {"symbol": "A", "units": 1}
        09:00:00 event price {"symbol": "A", "price": 10}
        09:00:00 event bell {"name": "one"}
        09:10:00 event price {"symbol": "A", "price": 11}
        09:10:00 event bell {"name": "two"}
        09:30:00 event bell {"name": "three"}"#;
    let expected = ["one: 10.0 after 1", "two: 11.0 after 2", "three: 11.0 after 0"].map(str::to_owned);
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        let mut writes = 0;
        loop {
            let mut scenario = Scenario::new(&[VALUES]).await;
            scenario.crash_at(writes + 1, moment);
            let seen = scenario.run_and_wait(STORY, Duration::from_secs(3600)).await;
            let sent = |line: &str| line.split_whitespace().skip(4).take(4).collect::<Vec<_>>().join(" ");
            let sent: BTreeSet<String> = seen.lines().filter(|line| line.contains("-> delivered")).map(sent).collect();
            assert_eq!(sent, BTreeSet::from(expected.clone()), "{moment:?} write {writes}\n{seen}");
            if !scenario.has_crashed() {
                break;
            }
            writes += 1;
        }
        assert!(writes >= 8, "the story has many writes, but the process died at {writes} only");
    }
}

/// Random prices and bells with crashes: the query joins with the aggregate of all events before.
#[tokio::test(start_paused = true)]
async fn the_join_of_a_query_equals_the_aggregate_of_all_earlier_events() {
    let environment = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = environment("SEED").unwrap_or(20_270_105);
    for case in 0..environment("CASES").unwrap_or(3) {
        let seed = seed.wrapping_add(case);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut script = String::from(
            "08:00 subscriber alice email=alice@example.org
             08:00 subscribe alice holding {\"symbol\": \"A\", \"units\": 2}
             08:00 subscribe alice holding {\"symbol\": \"B\", \"units\": 3}\n",
        );
        let mut prices: Vec<(u32, &str, u32)> = Vec::new();
        let (mut minute, mut expected) = (9 * 60, Vec::new());
        for step in 0..25 {
            minute += [0, 0, 1, 4, 11][random.usize(0..5)];
            let line = match random.u8(0..10) {
                0..=4 => {
                    let some =
                        (0..random.usize(1..4)).map(|_| (minute, ["A", "B"][random.usize(0..2)], random.u32(1..9)));
                    let some: Vec<_> = some.collect();
                    let events =
                        some.iter().map(|(_, symbol, price)| format!(r#" {{"symbol": "{symbol}", "price": {price}}}"#));
                    let line = format!("event price{}", events.collect::<String>());
                    prices.extend(some);
                    line
                }
                5..=8 => {
                    for (symbol, units) in [("A", 2), ("B", 3)] {
                        let of = || prices.iter().filter(|(_, of, _)| *of == symbol);
                        let lately = of().filter(|(at, ..)| at + 10 >= minute).count();
                        let last = of().next_back().map(|(_, _, price)| f64::from(units * price));
                        expected.extend(last.map(|value| format!("bell{step}: {value:?} after {lately} trades")));
                    }
                    format!(r#"event bell {{"name": "bell{step}"}}"#)
                }
                _ => "crash".to_owned(),
            };
            script.push_str(&format!("{:02}:{:02} {line}\n", minute / 60, minute % 60));
        }
        let options = PipelineOptions { match_shards: [1, 4][random.usize(0..2)], ..PipelineOptions::default() };
        let seen = Scenario::with(&[VALUES], options).await.run_and_wait(&script, Duration::from_secs(3600)).await;
        let sent =
            seen.lines().filter_map(|line| line.strip_suffix(" -> delivered")?.split_once(": ")?.1.to_owned().into());
        let mut sent: Vec<String> = sent.collect();
        sent.sort();
        expected.sort();
        assert_eq!(sent, expected, "SEED={seed}\n{script}\n{seen}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_new_high_of_the_day_makes_a_notification() {
    check(
        &prices(DAY, ""),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice watch {"symbol": "A"}
           09:00 event price {"symbol": "A", "price": 10} {"symbol": "A", "price": 9} {"symbol": "A", "price": 11}
           09:30 event price {"symbol": "B", "price": 50}
           10:00 event price {"symbol": "A", "price": 11}
           11:00 crash
           12:00 event price {"symbol": "A", "price": 12} {"symbol": "A", "price": 13}
           +1d03:00 event price {"symbol": "A", "price": 12.5}
           +1d08:00 event price {"symbol": "A", "price": 5} {"symbol": "A", "price": 6}"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: A 11.0 (was 10.0) -> delivered
            11:00:00 crash
            12:00:00 email alice@example.org n-2-0: A 12.0 (was 11.0) -> delivered
            12:00:00 email alice@example.org n-2-1: A 13.0 (was 12.0) -> delivered
            +1d 08:00:00 email alice@example.org n-3-0: A 6.0 (was 5.0) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn changes_by_a_percentage_and_repetitions_are_rules_of_one_line() {
    let chronicles = format!(
        "{DAY}\n      each: {{ by: symbol, of: event.price }}\n      same: {{ by: [symbol, price], window: 10m }}"
    );
    let rules = "  high: { enabled: false, on: price, subscription: watch, notify: alert }
  moved:
    on: price
    subscription: watch
    notify: alert
    when: >-
      event.symbol == sub.symbol && chronicle.same.count.before == 0
      && math.abs(event.price / chronicle.each.last.before - 1.0) * 100.0 >= sub.percent
    with: { high: chronicle.each.last.before }";
    let definition = prices(&chronicles, rules);
    // The rule of the other test case is removed.
    let start = definition.find("  high:\n").expect("the rule");
    let end = definition.find("  high: {").expect("its switch");
    let definition = format!("{}{}", &definition[..start], &definition[end..]);
    check(
        &definition,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice watch {"symbol": "A", "percent": 5}
           08:00 subscribe bob watch {"symbol": "A", "percent": 20}
           09:00 event price {"symbol": "A", "price": 100}
           09:01 event price {"symbol": "A", "price": 104} {"symbol": "A", "price": 110}
           09:02 event price {"symbol": "A", "price": 104} {"symbol": "A", "price": 110}
           09:30 event price {"symbol": "A", "price": 55}"#,
        expect![[r#"
            09:01:00 email alice@example.org n-1-0: A 110.0 (was 104.0) -> delivered
            09:30:00 email alice@example.org n-2-0: A 55.0 (was 110.0) -> delivered
            09:30:00 email bob@example.org n-2-1: A 55.0 (was 110.0) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_rule_reads_the_aggregates_of_the_time_of_each_event() {
    let rules = "    every: 1h";
    check(
        &prices(DAY, rules),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice watch {"symbol": "A"}
           08:10 event price {"symbol": "A", "price": 10}
           08:20 event price {"symbol": "A", "price": 12}
           08:30 crash
           08:40 event price {"symbol": "A", "price": 11}
           09:00 event price {"symbol": "A", "price": 14}
           10:30 event price {"symbol": "A", "price": 1}"#,
        expect![[r#"
            08:30:00 crash
            09:00:00 email alice@example.org n-1-0: A 12.0 (was 10.0) -> delivered
            09:00:00 email alice@example.org n-1-1: A 14.0 (was 12.0) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn rule_state_may_depend_on_chronicles() {
    let state =
        "    per: event.symbol\n    rearm: event.symbol == sub.symbol && event.price < chronicle.day.low.before";
    check(
        &prices(DAY, state),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice watch {"symbol": "A"}
           09:00 event price {"symbol": "A", "price": 10} {"symbol": "A", "price": 11} {"symbol": "A", "price": 12}
           10:00 event price {"symbol": "A", "price": 9}
           11:00 event price {"symbol": "A", "price": 13} {"symbol": "A", "price": 14}"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: A 11.0 (was 10.0) -> delivered
            11:00:00 email alice@example.org n-2-0: A 13.0 (was 12.0) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_new_version_keeps_the_chronicles_whose_definition_is_unchanged() {
    let week = DAY.replace("every: day", "every: week");
    let more = DAY.replace("by: symbol", "keys: 7, by: symbol");
    let none = PRICES
        .replace("    chronicles:\nCHRONICLES\n", "")
        .replace("RULES", "")
        .replace(" && event.price > chronicle.day.high.before", "")
        .replace("{ high: chronicle.day.high.before }", "{ high: event.price }");
    let mut scenario = Scenario::new(&[&prices(DAY, ""), &prices(&more, ""), &prices(&week, ""), &none]).await;
    let seen = scenario
        .run(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscribe alice watch {"symbol": "A"}
               09:00 event price {"symbol": "A", "price": 10}
               10:00 apply
               10:30 event price {"symbol": "A", "price": 11}
               11:00 apply
               11:30 event price {"symbol": "A", "price": 20} {"symbol": "A", "price": 21}
               12:00 apply
               12:30 event price {"symbol": "A", "price": 1}"#,
        )
        .await;
    expect![[r#"
        10:30:00 email alice@example.org n-1-0: A 11.0 (was 10.0) -> delivered
        11:30:00 email alice@example.org n-2-0: A 21.0 (was 20.0) -> delivered
        12:30:00 email alice@example.org n-3-0: A 1.0 (was 1.0) -> delivered"#]]
    .assert_eq(&seen);
    // State that no shard holds any more is removed from the journal.
    let application = "prices".parse().expect("a name");
    assert_eq!(scenario.journal().state_pages(&application, None, 9).await.expect("read"), []);
}

const STORY: &str = r#"
    08:00 subscriber alice email=alice@example.org
    08:00 subscribe alice watch {"symbol": "A"}
    09:00:00 event price {"symbol": "A", "price": 10} {"symbol": "A", "price": 11}
    09:00:01 event price {"symbol": "A", "price": 12}
    09:00:02 event price {"symbol": "A", "price": 12}
    09:10:00 event price {"symbol": "A", "price": 11} {"symbol": "A", "price": 13}
    09:30:00 event price {"symbol": "A", "price": 13} {"symbol": "A", "price": 14}"#;

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_does_not_change_the_notifications() {
    let expected = BTreeSet::from(["A 11.0 10.0)", "A 12.0 11.0)", "A 13.0 12.0)", "A 14.0 13.0)"].map(str::to_owned));
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        let mut writes = 0;
        loop {
            let mut scenario = Scenario::new(&[&prices(DAY, "")]).await;
            scenario.crash_at(writes + 1, moment);
            let seen = scenario.run_and_wait(STORY, Duration::from_secs(3600)).await;
            let mut sent: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
            for line in seen.lines().filter(|line| line.contains("-> delivered")) {
                let words: Vec<&str> = line.split_whitespace().collect();
                sent.entry(format!("{} {} {}", words[4], words[5], words[7])).or_default().insert(words[3]);
            }
            let context = format!("{moment:?} write {writes}\n{seen}");
            assert_eq!(sent.keys().cloned().collect::<BTreeSet<_>>(), expected, "{context}");
            assert!(sent.values().all(|ids| ids.len() == 1), "sent under several ids: {context}");
            if !scenario.has_crashed() {
                break;
            }
            writes += 1;
        }
        assert!(writes >= 10, "the story has many writes, but the process died at {writes} only");
    }
}

/// The example of the README.
#[tokio::test(start_paused = true)]
async fn the_example_notifies_of_highs_and_jumps() {
    let definition = include_str!("../../../examples/ticker/application.yaml").replace("${SMTP_PORT:-2525}", "2525");
    let trades: Vec<&str> = include_str!("../../../examples/ticker/samples/trades.ndjson").lines().collect();
    let script = format!(
        r#"15:00 subscriber ann email=ann@example.org
           15:00 subscriber ben email=ben@example.org
           15:00 subscriber cid email=cid@example.org
           15:00 subscribe ann watch {{"symbol": "TOC"}}
           15:00 subscribe ben watch {{"symbol": "TOC", "volume": 100}}
           15:00 subscribe cid jump {{"symbol": "TOC", "percent": 10}}
           15:30 event trade {}"#,
        trades.join(" ")
    );
    check(
        &definition,
        &script,
        expect![[r#"
            15:30:00 email cid@example.org n-1-0: TOC jumped from 10.50 to 12.00 -> delivered
            15:30:00 email ann@example.org n-2-0: TOC 10.50: a new high of the day (was 10.00) -> delivered
            15:30:00 email ben@example.org n-2-2: TOC 12.00: a new high of the day (was 10.50) -> delivered
            15:30:00 email ann@example.org n-2-1: TOC 12.00: a new high of the day (was 10.50) -> delivered"#]],
    )
    .await;
}
