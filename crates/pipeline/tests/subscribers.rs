//! Rules that use subscriber attributes and audiences: at events, by a schedule and in SQL.

use std::time::Duration;

use expect_test::expect;
use tocsin_testkit::{Scenario, check};

const OUTAGES: &str = r#"
application: outages
events:
  outage: { fields: { region: string, minutes: number } }
attributes:
  region: string
  patience: { type: number, default: 30 }
subscriptions:
  news: { fields: { least: { type: number, default: 0 } } }
notifications:
  alert:
    fields: { region: string, minutes: number, patience: number }
    content: { templates: { base: { subject: "{{ region }} {{ minutes }} ({{ patience }})" } } }
rules:
  down:
    on: outage
    subscription: news
    when: event.region == subscriber.attributes.region && event.minutes >= subscriber.attributes.patience
    notify: alert
    with: { patience: subscriber.attributes.patience }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: [] }
"#;

#[tokio::test(start_paused = true)]
async fn filters_follow_the_attributes_of_their_subscribers() {
    let definition = OUTAGES.replace("default: 0 } } }", "default: 0 } }, filter: cel }").replace(
        "event.region == subscriber.attributes.region && event.minutes >= subscriber.attributes.patience",
        "event.minutes >= sub.least",
    );
    check(
        &definition,
        r#"08:00 subscriber alice email=alice@example.org @region=Vienna
           08:00 subscriber bob email=bob@example.org @region=Graz
           08:00 subscribe alice news {} if event.region == subscriber.attributes.region
           08:00 subscribe bob news {} if event.region == subscriber.attributes.region && event.minutes > subscriber.attributes.patience
           08:05 event outage {"region": "Vienna", "minutes": 10} {"region": "Graz", "minutes": 20} {"region": "Graz", "minutes": 40}
           08:10 subscriber alice email=alice@example.org @region=Graz
           08:10 event outage {"region": "Vienna", "minutes": 11} {"region": "Graz", "minutes": 21}
           08:20 crash
           08:20 event outage {"region": "Graz", "minutes": 22}
           08:30 subscriber alice email=alice@example.org
           08:30 event outage {"region": "Graz", "minutes": 50}"#,
        expect![[r#"
            08:05:00 email alice@example.org n-1-0: Vienna 10.0 (30.0) -> delivered
            08:05:00 email bob@example.org n-1-1: Graz 40.0 (30.0) -> delivered
            08:10:00 email alice@example.org n-2-0: Graz 21.0 (30.0) -> delivered
            08:20:00 crash
            08:20:00 email alice@example.org n-3-0: Graz 22.0 (30.0) -> delivered
            08:30:00 email bob@example.org n-4-0: Graz 50.0 (30.0) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_attribute_counts_as_it_is_when_the_event_comes() {
    check(
        OUTAGES,
        r#"08:00 subscriber alice email=alice@example.org @region=Vienna
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice news
           08:00 subscribe bob news
           08:05 event outage {"region": "Vienna", "minutes": 29} {"region": "Vienna", "minutes": 31}
           08:10 subscriber bob email=bob@example.org @region=Graz
           08:10 event outage {"region": "Vienna", "minutes": 40} {"region": "Graz", "minutes": 41}
           08:20 subscriber alice email=alice@example.org @region=Graz @patience=long
           08:20 crash
           08:20 event outage {"region": "Vienna", "minutes": 50} {"region": "Graz", "minutes": 51}
           08:30 subscriber bob email=bob@example.org
           08:30 event outage {"region": "Graz", "minutes": 60}"#,
        expect![[r#"
            08:05:00 email alice@example.org n-1-0: Vienna 31.0 (30.0) -> delivered
            08:10:00 email alice@example.org n-2-0: Vienna 40.0 (30.0) -> delivered
            08:10:00 email bob@example.org n-2-1: Graz 41.0 (30.0) -> delivered
            08:20:00 crash
            08:20:00 email alice@example.org n-3-0: Graz 51.0 (30.0) -> delivered
            08:20:00 email bob@example.org n-3-1: Graz 51.0 (30.0) -> delivered
            08:30:00 email alice@example.org n-4-0: Graz 60.0 (30.0) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_rule_uses_the_audience_at_the_time_of_the_run() {
    let definition = OUTAGES.replace("notify: alert\n", "notify: alert\n    audience: vip\n    every: 1h\n");
    check(
        &definition,
        r#"00:01 segment vip (tier=gold)
           00:01 subscriber alice email=alice@example.org @region=Graz @tier=gold
           00:01 subscriber bob email=bob@example.org @region=Graz @tier=silver
           00:01 subscribe alice news
           00:01 subscribe bob news
           00:30 event outage {"region": "Graz", "minutes": 31} {"region": "Vienna", "minutes": 32}
           01:10 event outage {"region": "Graz", "minutes": 33}
           01:20 subscriber bob email=bob@example.org @region=Graz @tier=gold
           01:20 subscriber alice email=alice@example.org @region=Vienna @tier=gold
           02:10 segment vip (tier=none)
           02:10 event outage {"region": "Graz", "minutes": 34}
           03:10 report"#,
        expect![[r#"
            01:00:00 email alice@example.org n-1-0: Graz 31.0 (30.0) -> delivered
            02:00:00 email bob@example.org n-2-0: Graz 33.0 (30.0) -> delivered
            03:10:00 events 7 notifications 2 open 0 suspended 0"#]],
    )
    .await;
}

/// A query, which sees all subscribers, with an audience and a state of its own.
const QUERIED: &str = "
    sql: |
      SELECT e._event, n._subscription, rank() OVER (PARTITION BY e._event ORDER BY n._subscription) AS patience
      FROM events e JOIN news n ON n.least <= e.minutes
    audience: vip
    cooldown: 1h
    per: event.region
";

#[tokio::test(start_paused = true)]
async fn a_query_sees_all_subscribers_and_notifies_its_audience_once() {
    let when = OUTAGES.split_once("    when:").expect("a predicate").0;
    let rest = OUTAGES.split_once("with: { patience: subscriber.attributes.patience }").expect("its fields").1;
    let definition = format!("{when}    notify: alert{QUERIED}{rest}");
    check(
        &definition,
        r#"08:00 segment vip (tier=gold)
           08:00 subscriber alice email=alice@example.org @tier=silver
           08:00 subscriber bob email=bob@example.org @tier=gold
           08:00 subscribe alice news
           08:00 subscribe bob news
           08:05 event outage {"region": "Graz", "minutes": 1} {"region": "Graz", "minutes": 2} {"region": "Linz", "minutes": 3}
           08:30 subscriber alice email=alice@example.org @tier=gold
           08:30 event outage {"region": "Graz", "minutes": 4}
           08:40 crash
           09:04 event outage {"region": "Graz", "minutes": 5}
           09:05 event outage {"region": "Graz", "minutes": 6}
           09:06 segment vip (tier=none)
           09:40 event outage {"region": "Graz", "minutes": 7}"#,
        expect![[r#"
            08:05:00 email bob@example.org n-1-0: Graz 1.0 (2.0) -> delivered
            08:05:00 email bob@example.org n-1-1: Linz 3.0 (2.0) -> delivered
            08:30:00 email alice@example.org n-2-0: Graz 4.0 (1.0) -> delivered
            08:40:00 crash
            09:05:00 email bob@example.org n-3-0: Graz 6.0 (2.0) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_query_reads_attributes_as_they_are_when_the_event_comes() {
    let when = OUTAGES.split_once("    when:").expect("a predicate").0;
    let rest = OUTAGES.split_once("with: { patience: subscriber.attributes.patience }").expect("its fields").1;
    let query = r#"
    sql: |
      SELECT e._event, n._subscription, n."subscriber-attributes-patience" AS patience
      FROM events e JOIN news n ON n."subscriber-attributes-region" = e.region
      WHERE e.minutes >= n."subscriber-attributes-patience"
"#;
    check(
        &format!("{when}    notify: alert{query}{rest}"),
        r#"08:00 subscriber alice email=alice@example.org @region=Vienna
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice news
           08:00 subscribe bob news
           08:05 event outage {"region": "Vienna", "minutes": 29} {"region": "Vienna", "minutes": 31}
           08:10 subscriber bob email=bob@example.org @region=Graz
           08:10 event outage {"region": "Vienna", "minutes": 40} {"region": "Graz", "minutes": 41}
           08:20 subscriber alice email=alice@example.org @region=Graz
           08:20 crash
           08:20 event outage {"region": "Vienna", "minutes": 50} {"region": "Graz", "minutes": 51}"#,
        expect![[r#"
            08:05:00 email alice@example.org n-1-0: Vienna 31.0 (30.0) -> delivered
            08:10:00 email alice@example.org n-2-0: Vienna 40.0 (30.0) -> delivered
            08:10:00 email bob@example.org n-2-1: Graz 41.0 (30.0) -> delivered
            08:20:00 crash
            08:20:00 email alice@example.org n-3-0: Graz 51.0 (30.0) -> delivered
            08:20:00 email bob@example.org n-3-1: Graz 51.0 (30.0) -> delivered"#]],
    )
    .await;
}

/// A query that fails once is a missed firing and can be fired again; its state then changes as usual.
#[tokio::test(start_paused = true)]
async fn a_query_with_state_that_failed_is_fired_again() {
    let when = OUTAGES.split_once("    when:").expect("a predicate").0;
    let rest = OUTAGES.split_once("with: { patience: subscriber.attributes.patience }").expect("its fields").1;
    // Invalid JSON fails the whole firing.
    let query = "
    sql: |
      SELECT e._event, n._subscription FROM events e, news n
      WHERE e.minutes >= n.least AND json_extract(CASE WHEN e.minutes > 90 THEN 'no JSON' ELSE '1' END, '$') = 1
    changed: event.region
    cooldown: 10m
";
    let definition = format!("{when}    notify: alert{query}{rest}");
    let script = r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice news
           08:05 event outage {"region": "Graz", "minutes": 1}
           08:20 event outage {"region": "Linz", "minutes": 2} {"region": "Linz", "minutes": 99}
           08:21 firings
           08:30 event outage {"region": "Graz", "minutes": 3}
           08:40 event outage {"region": "Linz", "minutes": 4}
           08:45 event outage {"region": "Graz", "minutes": 5}
           08:50 event outage {"region": "Graz", "minutes": 6}"#;
    let mut scenario = Scenario::new(&[&definition]).await;
    let said = scenario.run_and_wait(script, Duration::from_secs(600)).await;
    expect![[r#"
        08:05:00 email alice@example.org n-1-0: Graz 1.0 () -> delivered
        08:21:00 down failed eb-2..eb-2 (1): malformed JSON
        08:40:00 email alice@example.org n-2-0: Linz 4.0 () -> delivered
        08:50:00 email alice@example.org n-3-0: Graz 6.0 () -> delivered"#]]
    .assert_eq(&said);
}

/// An application update removes a field that a filter names: the subscription becomes unusable. It is in no index
/// and in no query until an update restores the field.
#[tokio::test(start_paused = true)]
async fn a_subscription_whose_filter_no_longer_compiles_is_seen_by_no_rule() {
    let filtered = OUTAGES.replace("subscriptions:\n  news: {", "subscriptions:\n  news: { filter: cel,");
    let (head, tail) = filtered.split_once("rules:\n").expect("rules");
    let counted = "rules:
  counted:
    on: outage
    subscription: news
    notify: alert
    sql: |
      SELECT e._event, n._subscription, count(*) OVER (PARTITION BY e._event) AS patience
      FROM events e JOIN news n ON n.least <= e.minutes
";
    let definition = format!("{head}{counted}{tail}");
    let without =
        definition.replace("{ region: string, minutes: number } }\nattributes", "{ minutes: number } }\nattributes");
    let without = without.replace("event.region == subscriber.attributes.region && ", "");
    let without = without.replace("with: { patience", "with: { region: \"'?'\", patience");
    assert_ne!(definition, without);
    let mut scenario = Scenario::new(&[&definition, &without, &definition]).await;
    let script = r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice news {} if event.region == 'Graz'
           08:00 subscribe bob news
           08:05 event outage {"region": "Graz", "minutes": 1}
           08:10 apply
           08:15 event outage {"minutes": 2}
           08:16 crash
           08:17 event outage {"minutes": 3}
           08:18 report
           08:20 apply
           08:25 event outage {"region": "Graz", "minutes": 4}"#;
    let said = scenario.run_and_wait(script, Duration::from_secs(60)).await;
    expect![[r#"
        08:05:00 email alice@example.org n-1-0: Graz 1.0 (2.0) -> delivered
        08:05:00 email bob@example.org n-1-1: Graz 1.0 (2.0) -> delivered
        08:15:00 email bob@example.org n-2-0: 2.0 (1.0) -> delivered
        08:16:00 crash
        08:17:00 email bob@example.org n-3-0: 3.0 (1.0) -> delivered
        08:18:00 events 3 notifications 4 open 0 suspended 0
        08:25:00 email alice@example.org n-4-0: Graz 4.0 (2.0) -> delivered
        08:25:00 email bob@example.org n-4-1: Graz 4.0 (2.0) -> delivered"#]]
    .assert_eq(&said);
}
