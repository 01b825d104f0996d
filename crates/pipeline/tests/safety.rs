//! Scenarios of rules that fail, are stopped or run too late, and of applications beyond their limits: missed firings
//! are listed, and can be fired again.

use std::time::Duration;

use expect_test::expect;
use tocsin_pipeline::PipelineOptions;
use tocsin_testkit::{Scenario, check};

/// `long` takes too many steps for any list of 60 items, and matches shorter ones.
const NOTES: &str = r#"
application: notes
events:
  note: { fields: { number: integer, items: list } }
subscriptions:
  above: { fields: { number: { type: integer, default: 0 } } }
notifications:
  alert: { fields: { number: integer, who: string }, content: { templates: { base: { subject: "{{ who }} {{ number }}" } } } }
rules:
  long: { on: note, subscription: above, notify: alert, with: { who: "'long'" }, stop_after: 2, when: "event.items.all(a, event.items.all(b, event.items.all(c, a + b + c > 0))) && event.number > sub.number" }
  plain: { on: note, subscription: above, notify: alert, with: { who: "'plain'" }, when: event.number > sub.number }
channels:
  log: { protocol: file, options: { path: log } }
"#;

fn items(count: usize) -> String {
    format!("[{}]", vec!["1"; count].join(","))
}

#[tokio::test(start_paused = true)]
async fn a_slow_query_is_listed_with_its_plan() {
    let query = "  every: { on: note, subscription: above, notify: alert, with: { who: \"'every'\" }, sql: \"SELECT n._event, a._subscription FROM events n JOIN above a ON a.number = n.number\" }\n";
    let definition = NOTES.replace("  plain:", &format!("{query}  plain:"));
    // From no time at all on; what the index takes is only known from a millisecond on.
    let options = PipelineOptions { slow_rule_ms: 0, ..PipelineOptions::default() };
    let mut scenario = Scenario::with(&[&definition], options).await;
    scenario.run("08:00 event note {\"number\": 1, \"items\": [1]} {\"number\": 2, \"items\": [1]}").await;
    let name = |text: &str| text.parse().expect("a name");
    let slow = scenario.pipeline().slow_firings(Some(&name("notes")), Some(&name("every")), 10);
    assert_eq!(slow.len(), 1, "{slow:?}");
    let found = &slow[0];
    assert_eq!((found.batch.0, found.events, found.version, found.timeout.as_secs()), (1, 2, 1, 10));
    expect![[r#"
        SCAN n
        SEARCH a USING COVERING INDEX above:number (number=?)"#]]
    .assert_eq(&found.plan.join("\n"));
    assert!(scenario.pipeline().slow_firings(Some(&name("other")), None, 10).is_empty());
}

/// A slow predicate is listed with its index branches.
#[tokio::test(start_paused = true)]
async fn a_slow_predicate_is_listed_with_its_index_branches() {
    let options = PipelineOptions { slow_rule_ms: 0, ..PipelineOptions::default() };
    let mut scenario = Scenario::with(&[NOTES], options).await;
    // Evaluated as far as the steps go, for each of so many events.
    let event = format!(" {{\"number\": 1, \"items\": {}}}", items(60));
    let story =
        format!("08:00 subscriber alice log=alice\n08:00 subscribe alice above\n08:01 event note{}", event.repeat(20));
    scenario.run(&story).await;
    let slow = scenario.pipeline().slow_firings(None, None, 10);
    let long = slow.iter().find(|firing| firing.rule.as_str() == "long").unwrap_or_else(|| panic!("{slow:?}"));
    assert!(long.plan.iter().any(|way| way.contains("event.number > sub.number")), "{long:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_fails_leaves_the_others_alone_and_is_stopped() {
    let script = r#"08:00 subscriber alice log=alice
           08:00 subscribe alice above
           08:01 event note {"number": 1, "items": [1]} {"number": 2, "items": MANY}
           08:02 event note {"number": 3, "items": [1]}
           08:03 event note {"number": 4, "items": MANY}
           08:04 event note {"number": 5, "items": MANY}
           08:05 event note {"number": 6, "items": [1]}
           08:06 firings
           08:07 let long
           08:08 event note {"number": 7, "items": [1]}
           08:09 refire
           08:10 firings
           08:11 dismiss
           08:12 firings
           08:13 report"#;
    check(
        NOTES,
        &script.replace("MANY", &items(60)),
        expect![[r#"
        08:01:00 log alice n-1-0: plain 1 -> delivered
        08:01:00 log alice n-1-1: plain 2 -> delivered
        08:02:00 log alice n-2-0: long 3 -> delivered
        08:02:00 log alice n-3-0: plain 3 -> delivered
        08:03:00 log alice n-4-0: plain 4 -> delivered
        08:04:00 log alice n-5-0: plain 5 -> delivered
        08:05:00 log alice n-6-0: plain 6 -> delivered
        08:06:00 long failed eb-1..eb-1 (1): the expression takes too many steps (event e-1-1)
        08:06:00 long failed eb-3..eb-3 (1): the expression takes too many steps (event e-3-0)
        08:06:00 long failed eb-4..eb-4 (1): the expression takes too many steps (event e-4-0)
        08:06:00 long skipped eb-5..eb-5 (1): it is stopped: it failed 2 times in a row
        08:06:00 long stopped by tocsin: it failed 2 times in a row
        08:07:00 long was stopped: true
        08:08:00 log alice n-7-0: long 7 -> delivered
        08:08:00 log alice n-8-0: plain 7 -> delivered
        08:09:00 long it failed again for eb-1: the expression takes too many steps (event e-1-1)
        08:09:00 long it failed again for eb-3: the expression takes too many steps (event e-3-0)
        08:09:00 long it failed again for eb-4: the expression takes too many steps (event e-4-0)
        08:09:00 log alice n-9-0: long 6 -> delivered
        08:09:00 long fired for 1 batches
        08:10:00 long failed eb-1..eb-1 (1): the expression takes too many steps (event e-1-1)
        08:10:00 long failed eb-3..eb-3 (1): the expression takes too many steps (event e-3-0)
        08:10:00 long failed eb-4..eb-4 (1): the expression takes too many steps (event e-4-0)
        08:11:00 dismissed 3
        08:13:00 events 7 notifications 10 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn missed_firings_of_a_stopped_rule_are_one_entry_and_can_be_fired() {
    let script = r#"08:00 subscriber alice log=alice
           08:00 subscribe alice above
           08:01 stop plain
           08:02 event note {"number": 1, "items": [0]}
           08:03 event note {"number": 2, "items": [0]}
           08:04 crash
           08:05 event note {"number": 3, "items": [0]}
           08:06 firings
           08:07 refire
           08:08 firings
           08:09 let plain
           08:10 event note {"number": 4, "items": [0]}
           08:11 let plain"#;
    check(
        NOTES,
        script,
        expect![[r#"
        08:04:00 crash
        08:06:00 plain skipped eb-1..eb-2 (2): it is stopped: maintenance
        08:06:00 plain skipped eb-3..eb-3 (1): it is stopped: maintenance
        08:06:00 plain stopped by op: maintenance
        08:07:00 log alice n-1-0: plain 1 -> delivered
        08:07:00 log alice n-2-0: plain 2 -> delivered
        08:07:00 plain fired for 2 batches
        08:07:00 log alice n-3-0: plain 3 -> delivered
        08:07:00 plain fired for 1 batches
        08:08:00 plain stopped by op: maintenance
        08:09:00 plain was stopped: true
        08:10:00 log alice n-4-0: plain 4 -> delivered
        08:11:00 plain was stopped: false"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn old_events_are_skipped_and_listed() {
    let limits = "limits: { throttle: { notifications: 1, per: 1h }, skip_older_than: 10m }\nrules:";
    let script = r#"08:00 subscriber alice log=alice
           08:00 subscribe alice above
           08:01 event note {"number": 1, "items": [0]} {"number": 2, "items": [0]}
           08:02 event note {"number": 3, "items": [0]}
           08:03 event note {"number": 4, "items": [0]}
           09:20 firings
           09:21 event note {"number": 5, "items": [0]}"#;
    check(
        &NOTES.replace("rules:", limits),
        script,
        expect![[r#"
        08:01:00 log alice n-1-0: plain 1 -> delivered
        08:01:00 log alice n-1-1: plain 2 -> delivered
        09:20:00 long skipped eb-2..eb-3 (2): the events waited longer than 600s
        09:20:00 plain skipped eb-2..eb-3 (2): the events waited longer than 600s
        09:21:00 log alice n-2-0: plain 5 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_application_that_makes_too_much_waits_and_loses_nothing() {
    let limits = "limits: { throttle: { notifications: 2, per: 10m }, notifications_per_event: 3 }\nrules:";
    let script = r#"08:00 subscriber alice log=alice
           08:00 subscriber bob log=bob
           08:00 subscribe alice above
           08:00 subscribe bob above
           08:01 event note {"number": 1, "items": [0]}
           08:02 event note {"number": 2, "items": [1]}
           08:03 event note {"number": 3, "items": [0]}
           08:04 report
           09:00 report"#;
    check(
        &NOTES.replace("rules:", limits),
        script,
        expect![[r#"
        08:01:00 log alice n-1-0: plain 1 -> delivered
        08:01:00 log bob n-1-1: plain 1 -> delivered
        08:02:00 log alice n-2-0: long 2 -> delivered
        08:02:00 log bob n-2-1: long 2 -> delivered
        08:02:00 log alice n-3-0: plain 2 -> delivered
        08:04:00 events 3 notifications 6 open 0 suspended 1
        08:21:00 log alice n-5-0: plain 3 -> delivered
        08:21:00 log bob n-5-1: plain 3 -> delivered
        09:00:00 events 3 notifications 8 open 0 suspended 1"#]],
    )
    .await;
}

/// Events that wait together are matched as fast as the throttle allows, not all in one quantum.
#[tokio::test(start_paused = true)]
async fn b13_a_throttle_holds_events_that_wait_together() {
    let limits = "limits: { throttle: { notifications: 2, per: 10m } }\nrules:";
    let script = r#"08:00 subscriber alice log=alice
           08:00 subscribe alice above
           08:00 switch off role:match paused
           08:01 event note {"number": 1, "items": [0]}
           08:01 event note {"number": 2, "items": [0]}
           08:01 event note {"number": 3, "items": [0]}
           08:01 event note {"number": 4, "items": [0]}
           08:01 event note {"number": 5, "items": [0]}
           08:10 switch on role:match
           09:00 report"#;
    check(
        &NOTES.replace("rules:", limits),
        script,
        expect![[r#"
        08:10:00 log alice n-1-0: plain 1 -> delivered
        08:10:00 log alice n-2-0: plain 2 -> delivered
        08:10:00 log alice n-3-0: plain 3 -> delivered
        08:15:00 log alice n-4-0: plain 4 -> delivered
        08:20:00 log alice n-5-0: plain 5 -> delivered
        09:00:00 events 5 notifications 5 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_status_says_until_when_a_throttle_holds() {
    let limits = "limits: { throttle: { notifications: 2, per: 10m } }\nrules:";
    let mut scenario = Scenario::new(&[&NOTES.replace("rules:", limits)]).await;
    let held = |scenario: &Scenario| scenario.pipeline().status()[0].1.throttled_until.map(|until| until.to_string());
    let script = r#"08:00 subscriber alice log=alice
           08:00 subscribe alice above
           08:01 event note {"number": 1, "items": [0]} {"number": 2, "items": [0]} {"number": 3, "items": [0]}
           08:02 event note {"number": 4, "items": [0]}"#;
    scenario.run_and_wait(script, Duration::from_secs(60)).await;
    let until = held(&scenario).expect("it waits");
    assert!(until.starts_with("2026-03-01T08:06:00"), "{until}");
    scenario.run_and_wait("08:30 report", Duration::from_secs(1)).await;
    assert_eq!(held(&scenario), None);
}

/// Other classes go on, and runs of schedules as well that do not meet what waits.
#[tokio::test(start_paused = true)]
async fn b13_a_throttle_of_a_class_holds_its_events_alone() {
    let definition = r#"
application: notes
events:
  note: { fields: { number: integer }, throttle: { notifications: 2, per: 10m } }
  alarm: { fields: { number: integer } }
subscriptions: { everybody: {} }
notifications: { alert: { fields: { number: integer }, content: { templates: { base: { subject: "{{ number }}" } } } } }
rules:
  notes: { on: note, subscription: everybody, notify: alert }
  alarms: { on: alarm, subscription: everybody, notify: alert }
channels: { log: { protocol: file, options: { path: log } } }
"#;
    let mut scenario = Scenario::new(&[definition]).await;
    let script = r#"08:00 subscriber alice log=alice
           08:00 subscribe alice everybody
           08:00 switch off role:match paused
           08:01 event note {"number": 1}
           08:01 event note {"number": 2}
           08:01 event note {"number": 3}
           08:01 event note {"number": 4}
           08:01 event note {"number": 5}
           08:01 event alarm {"number": 100}
           08:10 switch on role:match
           08:11 event alarm {"number": 101}"#;
    scenario.run_and_wait(script, Duration::from_secs(0)).await;
    let waits = scenario.pipeline().status()[0].1.clone();
    assert_eq!((waits.throttled_until, waits.throttled_classes.len()), (None, 1), "{waits:?}");
    let until = waits.throttled_classes[&"note".parse::<tocsin_model::id::Name>().expect("a name")].to_string();
    assert!(until.starts_with("2026-03-01T08:15:00"), "{until}");
    let rest = scenario.run_and_wait("09:00 report", Duration::from_secs(1)).await;
    expect![[r#"
        08:10:00 log alice n-1-0: 100 -> delivered
        08:10:00 log alice n-2-0: 1 -> delivered
        08:10:00 log alice n-3-0: 2 -> delivered
        08:10:00 log alice n-4-0: 3 -> delivered
        08:11:00 log alice n-5-0: 101 -> delivered
        08:15:00 log alice n-6-0: 4 -> delivered
        08:20:00 log alice n-7-0: 5 -> delivered
        09:00:00 events 7 notifications 7 open 0 suspended 0"#]]
    .assert_eq(&rest);
}

/// A rule that has failed too often is stopped within the batches that are matched together, whether it is answered by the
/// index or by a query.
#[tokio::test(start_paused = true)]
async fn b7_a_rule_is_stopped_within_a_quantum() {
    let query = "  queried: { on: note, subscription: above, notify: alert, stop_after: 3, with: { who: \"'queried'\" }, sql: \"SELECT n._event, a._subscription, abs(-9223372036854775807 - n.number) AS number FROM events n, above a\" }\n";
    let definition = NOTES.replace("  plain:", &format!("{query}  plain:"));
    let mut script =
        "08:00 subscriber alice log=alice\n08:00 subscribe alice above\n08:00 switch off role:match paused\n"
            .to_owned();
    for _ in 0..8 {
        script.push_str(&format!("08:01 event note {{\"number\": 1, \"items\": {}}}\n", items(60)));
    }
    script.push_str("08:10 switch on role:match\n08:11 firings\n08:12 report");
    check(
        &definition,
        &script,
        expect![[r#"
        08:10:00 log alice n-1-0: plain 1 -> delivered
        08:10:00 log alice n-1-1: plain 1 -> delivered
        08:10:00 log alice n-1-2: plain 1 -> delivered
        08:10:00 log alice n-1-3: plain 1 -> delivered
        08:10:00 log alice n-1-4: plain 1 -> delivered
        08:10:00 log alice n-1-5: plain 1 -> delivered
        08:10:00 log alice n-1-6: plain 1 -> delivered
        08:10:00 log alice n-1-7: plain 1 -> delivered
        08:11:00 queried failed eb-1..eb-1 (1): integer overflow
        08:11:00 queried failed eb-2..eb-2 (1): integer overflow
        08:11:00 queried failed eb-3..eb-3 (1): integer overflow
        08:11:00 queried skipped eb-4..eb-8 (5): it is stopped: it failed 3 times in a row
        08:11:00 long failed eb-1..eb-1 (1): the expression takes too many steps (event e-1-0)
        08:11:00 long failed eb-2..eb-2 (1): the expression takes too many steps (event e-2-0)
        08:11:00 long skipped eb-3..eb-8 (6): it is stopped: it failed 2 times in a row
        08:11:00 long stopped by tocsin: it failed 2 times in a row
        08:11:00 queried stopped by tocsin: it failed 3 times in a row
        08:12:00 events 8 notifications 8 open 0 suspended 0"#]],
    )
    .await;
}
