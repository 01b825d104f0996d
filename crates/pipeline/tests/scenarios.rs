//! Stories of the whole flow, on a platform in memory with simulated time.

use expect_test::expect;
use tocsin_testkit::{Scenario, check};

const QUAKES: &str = r#"
application: quakes
events:
  quake: { fields: { magnitude: number, place: string } }
subscriptions:
  nearby: { fields: { magnitude: { type: number, default: 5 } } }
notifications:
  alert:
    fields: { magnitude: number, place: string, wanted: number }
    expires_after: 6h
    content:
      templates:
        base: { subject: "{{ place }} {{ magnitude }} (from {{ wanted }})" }
        de: { subject: "Beben {{ place }} {{ magnitude }}" }
rules:
  strong: { on: quake, subscription: nearby, when: event.magnitude >= sub.magnitude, notify: alert, with: { wanted: sub.magnitude } }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: { delays: [1m, 5m, 1h], jitter: 0% } }
  web: { protocol: http, retry: [] }
"#;

#[tokio::test(start_paused = true)]
async fn those_who_care_are_told_in_their_language() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org locale=de-AT
           08:00 subscriber carol email=carol@example.org
           08:00 subscribe alice nearby {"magnitude": 6}
           08:00 subscribe bob nearby
           08:00 subscribe carol nearby {"magnitude": 8}
           08:30 event quake {"magnitude": 6.1, "place": "Kobe"} {"magnitude": 5.2, "place": "Lima"} {"place": "nowhere"}
           09:00 report"#,
        expect![[r#"
            08:30:00 email bob@example.org n-1-0: Beben Kobe 6.1 -> delivered
            08:30:00 email alice@example.org n-1-1: Kobe 6.1 (from 6.0) -> delivered
            08:30:00 email bob@example.org n-1-2: Beben Lima 5.2 -> delivered
            09:00:00 events 3 notifications 3 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_retry_counts_from_the_attempt_before_and_the_last_suspends() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 alice@example.org defers
           08:30 event quake {"magnitude": 6, "place": "Kobe"}
           11:00 report
           11:00 alice@example.org delivers
           11:30 resume
           12:00 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> deferred
            08:31:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> deferred
            08:36:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> deferred
            09:36:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> deferred
            11:00:00 events 1 notifications 1 open 0 suspended 1
            11:30:00 Resume 1
            11:30:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> delivered
            12:00:00 events 1 notifications 1 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_far_side_may_ask_for_more_time() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 alice@example.org defers 600
           08:30 event quake {"magnitude": 6, "place": "Kobe"}
           08:35 alice@example.org delivers"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> deferred
            08:40:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_late_is_not_sent() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 alice@example.org defers 28800
           08:30 event quake {"magnitude": 6, "place": "Kobe"}
           09:00 alice@example.org delivers
           +1d00:00 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> deferred
            +1d 00:00:00 events 1 notifications 1 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_who_is_refused_does_not_hold_up_the_others() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscriber carol web=https://carol.example
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 subscribe carol nearby
           08:00 alice@example.org refuses
           08:00 https://carol.example defers
           08:30 event quake {"magnitude": 6, "place": "Kobe"}
           09:00 report
           09:00 end
           09:01 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> refused
            08:30:00 email bob@example.org n-1-1: Kobe 6.0 (from 5.0) -> delivered
            08:30:00 web https://carol.example n-2-0: Kobe 6.0 (from 5.0) -> deferred
            09:00:00 events 1 notifications 3 open 0 suspended 1
            09:00:00 End 1
            09:01:00 events 1 notifications 3 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_sends_again_only_what_was_not_recorded_and_under_the_same_id() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 bob@example.org ponders 30
           08:30:00 event quake {"magnitude": 6, "place": "Kobe"}
           08:30:10 crash
           09:00 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> delivered
            08:30:00 email bob@example.org n-1-1: Kobe 6.0 (from 5.0) -> delivered
            08:30:10 crash
            08:30:10 email bob@example.org n-1-1: Kobe 6.0 (from 5.0) -> delivered
            09:00:00 events 1 notifications 2 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_survives_a_crash() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 alice@example.org defers
           08:00 bob@example.org ponders 30
           08:30:00 event quake {"magnitude": 6, "place": "Kobe"}
           08:30:10 crash
           08:30:20 alice@example.org delivers
           09:00 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> deferred
            08:30:00 email bob@example.org n-1-1: Kobe 6.0 (from 5.0) -> delivered
            08:30:10 crash
            08:30:10 email bob@example.org n-1-1: Kobe 6.0 (from 5.0) -> delivered
            08:31:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> delivered
            09:00:00 events 1 notifications 2 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_repeats_nothing() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 alice@example.org ponders 20
           08:30:00 event quake {"magnitude": 6, "place": "Kobe"}
           08:30:10 drain
           09:00 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> delivered
            08:30:20 drained: true
            09:00:00 events 1 notifications 1 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn changes_of_subscribers_and_subscriptions_take_effect_at_once() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:30 event quake {"magnitude": 6, "place": "one"}
           08:40 disable alice
           08:41 event quake {"magnitude": 6, "place": "two"}
           08:50 enable alice
           08:51 event quake {"magnitude": 6, "place": "three"}
           08:52 unsubscribe alice
           08:53 event quake {"magnitude": 6, "place": "four"}
           08:54 subscriber bob email=bob@example.org
           08:55 resume
           09:00 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-2-0: one 6.0 (from 5.0) -> delivered
            08:51:00 email alice@example.org n-5-0: three 6.0 (from 5.0) -> delivered
            08:55:00 Resume 4
            08:55:00 email bob@example.org n-1-0: one 6.0 (from 5.0) -> delivered
            08:55:00 email bob@example.org n-3-0: two 6.0 (from 5.0) -> delivered
            08:55:00 email bob@example.org n-4-0: three 6.0 (from 5.0) -> delivered
            08:55:00 email bob@example.org n-6-0: four 6.0 (from 5.0) -> delivered
            09:00:00 events 4 notifications 6 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_update_finishes_the_old_and_begins_the_new() {
    let mut scenario = Scenario::new(&[
        QUAKES,
        &QUAKES
            .replace("{{ place }} {{ magnitude }} (from", "NEW {{ place }} {{ magnitude }} (from")
            .replace(
                "place: string } }\nsubscriptions",
                "place: string, depth: { type: number, default: 3 } } }\nsubscriptions",
            )
            .replace("  web: { protocol: http, retry: [] }\n", ""),
    ])
    .await;
    let seen = scenario
        .run(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscriber bob web=https://bob.example
               08:00 subscribe alice nearby
               08:00 subscribe bob nearby
               08:00 alice@example.org defers
               08:30 event quake {"magnitude": 6, "place": "one"}
               08:30:30 apply
               08:30:40 alice@example.org delivers
               08:40 event quake {"magnitude": 6, "place": "two", "depth": 4}
               09:00 report"#,
        )
        .await;
    expect![[r#"
        08:30:00 email alice@example.org n-1-0: one 6.0 (from 5.0) -> deferred
        08:30:00 web https://bob.example n-2-0: one 6.0 (from 5.0) -> delivered
        08:31:00 email alice@example.org n-1-0: one 6.0 (from 5.0) -> delivered
        08:40:00 email alice@example.org n-3-0: NEW two 6.0 (from 5.0) -> delivered
        09:00:00 events 2 notifications 4 open 0 suspended 1"#]]
    .assert_eq(&seen);
}
