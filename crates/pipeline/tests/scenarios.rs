//! End-to-end scenarios on an in-memory platform with simulated time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use expect_test::expect;
use tocsin_model::{id::NotificationId, receipt::Outcome};
use tocsin_pipeline::PipelineOptions;
use tocsin_store::journal::{ActivityLog, FiringFilter, NotificationLog, OpenWork, RuleStore};
use tocsin_testkit::{CrashPoint, Scenario, check};

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
async fn subscribers_are_notified_in_their_language() {
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

/// A device may name a channel that its application lacks; this is detected at the first notification only.
#[tokio::test(start_paused = true)]
async fn b16_a_notification_for_a_channel_that_is_missing_is_suspended() {
    check(
        QUAKES,
        r#"08:00 subscriber alice pager=4711
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:30 event quake {"magnitude": 6.1, "place": "Kobe"}
           08:31 suspensions
           08:31 resume
           08:32 suspensions
           08:33 crash
           08:34 resume
           08:35 suspensions
           09:00 report"#,
        expect![[r#"
            08:30:00 email bob@example.org n-2-0: Kobe 6.1 (from 5.0) -> delivered
            08:31:00 suspended [0] on pager: the application has no channel `pager`
            08:31:00 Resume 1
            08:32:00 suspended [0] on pager: the application has no channel `pager`
            08:33:00 crash
            08:34:00 Resume 1
            08:35:00 suspended [0] on pager: the application has no channel `pager`
            09:00:00 events 1 notifications 2 open 0 suspended 1"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_snoozed_subscription_resumes_automatically() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:05 snooze alice 90
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:20 crash
           09:33 event quake {"magnitude": 6, "place": "Lima"}
           09:37 event quake {"magnitude": 6, "place": "Rome"}"#,
        expect![[r#"
            08:20:00 crash
            09:37:00 email alice@example.org n-1-0: Rome 6.0 (from 5.0) -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_audience_is_evaluated_at_the_time_of_the_event() {
    let definition = QUAKES.replace("notify: alert,", "notify: alert, audience: vip,");
    check(
        &definition,
        r#"08:00 subscriber alice email=alice@example.org @tier=gold
           08:00 subscriber bob email=bob@example.org @tier=silver
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:05 event quake {"magnitude": 6, "place": "Bern"}
           08:10 segment vip (tier=gold)
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:20 subscriber bob email=bob@example.org @tier=Gold
           08:20 event quake {"magnitude": 6, "place": "Lima"}
           08:30 segment vip (&(tier=gold)(locale=de*))
           08:30 event quake {"magnitude": 6, "place": "Rome"}
           08:40 subscriber alice email=alice@example.org @tier=gold locale=de-AT
           08:40 crash
           08:40 event quake {"magnitude": 6, "place": "Oslo"}
           08:50 subscriber alice email=alice@example.org locale=de-AT
           08:50 event quake {"magnitude": 6, "place": "Cork"}"#,
        expect![[r#"
            08:10:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> delivered
            08:20:00 email alice@example.org n-2-0: Lima 6.0 (from 5.0) -> delivered
            08:20:00 email bob@example.org n-2-1: Lima 6.0 (from 5.0) -> delivered
            08:40:00 crash
            08:40:00 email alice@example.org n-3-0: Beben Oslo 6.0 -> delivered"#]],
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
async fn an_expired_notification_is_not_sent() {
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
async fn a_refused_recipient_does_not_delay_others() {
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
async fn after_a_crash_only_unrecorded_notifications_are_sent_again_under_the_same_id() {
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

#[tokio::test(start_paused = true)]
async fn a_notification_unsent_at_a_drain_is_no_attempt() {
    check(
        &QUAKES.replace("delays: [1m, 5m, 1h]", "delays: []"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 alice@example.org waits
           08:00 bob@example.org ponders 10
           08:30:00 event quake {"magnitude": 6, "place": "Kobe"}
           08:30:05 drain
           08:30:20 alice@example.org delivers
           08:31 drain
           09:00 report"#,
        expect![[r#"
            08:30:00 email bob@example.org n-1-1: Kobe 6.0 (from 5.0) -> delivered
            08:30:10 drained: true
            08:31:00 drained: true
            08:31:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> delivered
            09:00:00 events 1 notifications 2 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn work_that_waits_for_its_turn_keeps_its_lease() {
    let definition = QUAKES.replace("email: {", "email: { lease: 1m,");
    let options = PipelineOptions { in_flight_per_channel: 1, ..PipelineOptions::default() };
    let seen = Scenario::with(&[&definition], options)
        .await
        .run(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscribe alice nearby
               08:00 alice@example.org ponders 250
               08:30:00 event quake {"magnitude": 6, "place": "Kobe"}
               08:30:01 event quake {"magnitude": 6, "place": "Lima"}
               09:00 report"#,
        )
        .await;
    expect![[r#"
        08:30:00 email alice@example.org n-1-0: Kobe 6.0 (from 5.0) -> delivered
        08:34:10 email alice@example.org n-2-0: Lima 6.0 (from 5.0) -> delivered
        09:00:00 events 2 notifications 2 open 0 suspended 0"#]]
    .assert_eq(&seen);
}

#[tokio::test(start_paused = true)]
async fn while_a_channel_is_down_one_item_finds_out_and_the_others_keep_their_attempts() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 email is down
           08:30:00 event quake {"magnitude": 6, "place": "one"}
           08:30:01 event quake {"magnitude": 6, "place": "two"}
           08:30:02 event quake {"magnitude": 6, "place": "three"}
           08:30:20 email is up
           09:00 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: one 6.0 (from 5.0) -> no connection
            08:30:16 email alice@example.org n-2-0: two 6.0 (from 5.0) -> no connection
            08:30:20 email alice@example.org n-3-0: three 6.0 (from 5.0) -> delivered
            08:31:15 email alice@example.org n-1-0: one 6.0 (from 5.0) -> delivered
            08:31:31 email alice@example.org n-2-0: two 6.0 (from 5.0) -> delivered
            09:00:00 events 3 notifications 3 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_work_item_is_suspended_without_delaying_others() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 alice@example.org defers
           08:00 bob@example.org defers
           08:30 event quake {"magnitude": 6, "place": "one"}
           08:30:30 damage nb-1
           08:30:30 alice@example.org delivers
           08:30:30 bob@example.org delivers
           08:40 damage alice
           08:40 event quake {"magnitude": 6, "place": "two"}
           08:50 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: one 6.0 (from 5.0) -> deferred
            08:30:00 email bob@example.org n-1-1: one 6.0 (from 5.0) -> deferred
            08:40:00 email bob@example.org n-2-1: two 6.0 (from 5.0) -> delivered
            08:50:00 events 2 notifications 4 open 0 suspended 3"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_three_times_is_suspended_without_delaying_others() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:20 alice@example.org panics
           08:30 event quake {"magnitude": 6, "place": "one"}
           08:31 subscribe bob nearby
           08:31 alice@example.org delivers
           08:31 event quake {"magnitude": 6, "place": "two"}
           08:32 alice@example.org panics
           09:30 report"#,
        expect![[r#"
            08:31:00 email alice@example.org n-2-0: two 6.0 (from 5.0) -> delivered
            08:31:00 email bob@example.org n-2-1: two 6.0 (from 5.0) -> delivered
            09:30:00 events 2 notifications 3 open 0 suspended 1"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_gone_is_not_tried_again() {
    check(
        QUAKES,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 alice@example.org gone
           08:30 event quake {"magnitude": 6, "place": "one"}
           08:40 event quake {"magnitude": 6, "place": "two"}
           08:45 subscriber alice email=alice@example.net
           08:50 event quake {"magnitude": 6, "place": "three"}
           08:55 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: one 6.0 (from 5.0) -> gone
            08:30:00 email bob@example.org n-1-1: one 6.0 (from 5.0) -> delivered
            08:40:00 email bob@example.org n-3-0: two 6.0 (from 5.0) -> delivered
            08:50:00 email bob@example.org n-4-0: three 6.0 (from 5.0) -> delivered
            08:50:00 email alice@example.net n-4-1: three 6.0 (from 5.0) -> delivered
            08:55:00 events 3 notifications 6 open 0 suspended 1"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn slow_one_poison_recipient_among_10000_is_suspended_alone() {
    let mut scenario = Scenario::new(&[QUAKES]).await;
    let mut script = String::new();
    for number in 0..10_000 {
        script.push_str(&format!(
            "08:00 subscriber s{number} email=s{number}@example.org\n08:00 subscribe s{number} nearby\n"
        ));
    }
    script.push_str("08:10 damage s1234\n08:30 event quake {\"magnitude\": 6, \"place\": \"Kobe\"}\n08:31 report");
    let seen = scenario.run(&script).await;
    let delivered = seen.lines().filter(|line| line.ends_with("-> delivered")).count();
    assert_eq!(delivered, 9_999);
    assert!(!seen.contains(" s1234@"), "it cannot be read");
    assert!(
        seen.ends_with("08:31:00 events 1 notifications 10000 open 0 suspended 1"),
        "{}",
        seen.lines().last().unwrap()
    );
}

/// A crash at any write may repeat a delivery in this scenario, under the same id, and must change nothing else.
const STORY: &str = r#"
    08:00 subscriber alice email=alice@example.org
    08:00 subscriber bob email=bob@example.org
    08:00 subscriber carol web=https://carol.example
    08:00 subscriber dave
    08:00 subscribe alice nearby
    08:00 subscribe bob nearby
    08:00 subscribe carol nearby
    08:00 subscribe dave nearby
    08:00 alice@example.org defers
    08:00 bob@example.org ponders 20
    08:30:00 event quake {"magnitude": 6, "place": "one"} {"magnitude": 7, "place": "two"}
    08:30:10 event quake {"magnitude": 5, "place": "three"}
    08:35 alice@example.org delivers
    08:40 event quake {"magnitude": 9, "place": "four"}"#;

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_loses_nothing_and_no_receipt_lies() {
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        let mut writes = 0;
        loop {
            let mut scenario = Scenario::new(&[QUAKES]).await;
            scenario.crash_at(writes + 1, moment);
            let seen = scenario.run_and_wait(STORY, Duration::from_secs(4 * 3600)).await;
            if !scenario.has_crashed() {
                break;
            }
            writes += 1;
            matches_the_journal(&scenario, &seen, &format!("{moment:?} write {writes}\n{seen}")).await;
        }
        assert!(writes >= 12, "the story has many writes, but the process died at {writes} only");
    }
}

/// Compares a run of the scenario with the journal that it left.
async fn matches_the_journal(scenario: &Scenario, seen: &str, context: &str) {
    let mut ids: BTreeMap<(String, String), BTreeSet<NotificationId>> = BTreeMap::new();
    let mut delivered: BTreeMap<NotificationId, usize> = BTreeMap::new();
    for line in seen.lines().filter(|line| line.contains(" -> ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let id: NotificationId = words[3].trim_end_matches(':').parse().expect("an id");
        ids.entry((words[2].to_owned(), words[4].to_owned())).or_default().insert(id);
        *delivered.entry(id).or_default() += usize::from(line.ends_with("-> delivered"));
    }
    for address in ["alice@example.org", "bob@example.org", "https://carol.example"] {
        for place in ["one", "two", "three", "four"] {
            let ids = ids.get(&(address.to_owned(), place.to_owned())).unwrap_or_else(|| panic!("lost: {context}"));
            assert_eq!(ids.len(), 1, "{address} {place} came under several ids: {context}");
            assert!(ids.iter().all(|id| delivered[id] > 0), "{address} {place} was never delivered: {context}");
        }
    }
    let journal = scenario.journal();
    let backlog = journal.backlog();
    assert_eq!((backlog.event_batches, backlog.notifications, backlog.work_items), (0, 0, 0), "{context}");
    assert_eq!((backlog.suspended, journal.totals().notifications), (4, 16), "{context}");
    for (batch, _, _) in journal.notification_batches(None, 100).await.expect("the journal answers") {
        let mut closed: BTreeMap<u32, usize> = BTreeMap::new();
        for attempt in journal.attempts(batch).await.expect("the journal answers") {
            let id = NotificationId { batch, ordinal: attempt.ordinal };
            *closed.entry(attempt.ordinal).or_default() += usize::from(attempt.outcome.closes());
            assert!(attempt.outcome != Outcome::Delivered || delivered[&id] > 0, "{id} has a receipt only: {context}");
        }
        assert!(closed.values().all(|count| *count == 1), "closed twice or never: {context}");
    }
}

const SHOP: &str = r#"
application: shop
events:
  trade: { fields: { symbol: string, price: number, size: integer } }
subscriptions:
  watch: { fields: { symbol: string, least: { type: number, default: 0 } } }
notifications:
  summary:
    fields: { symbol: string, turnover: number, trades: integer, least: number }
    content: { templates: { base: { subject: "{{ symbol }}: {{ trades }} trades, {{ turnover }} (from {{ least }})" } } }
rules:
  turnover:
    on: trade
    subscription: watch
    notify: summary
    with: { least: sub.least }
    sql: |
      SELECT max(e._event) AS _event, w._subscription, sum(e.price * e.size) AS turnover, count(*) AS trades
      FROM events e JOIN watch w ON w.symbol = e.symbol
      GROUP BY w._subscription HAVING sum(e.price * e.size) >= w.least
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: { delays: [1m, 5m, 1h], jitter: 0% } }
  web: { protocol: http, retry: [] }
"#;

#[tokio::test(start_paused = true)]
async fn a_query_matches_a_batch_as_a_whole_and_sees_each_change() {
    check(
        SHOP,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob web=https://bob.example/hook
           08:00 subscribe alice watch {"symbol": "AB"}
           08:00 subscribe alice watch {"symbol": "AB", "least": 1000}
           08:00 subscribe bob watch {"symbol": "CD"}
           08:30 event trade {"symbol": "AB", "price": 10, "size": 2} {"symbol": "CD", "price": 1, "size": 1} {"symbol": "AB", "price": 5, "size": 1}
           08:40 disable alice
           08:41 event trade {"symbol": "AB", "price": 10, "size": 2}
           08:42 enable alice
           08:43 event trade {"symbol": "AB", "price": 10, "size": 200}
           08:44 crash
           08:45 event trade {"symbol": "CD", "price": 3, "size": 1}
           09:00 report"#,
        expect![[r#"
            08:30:00 email alice@example.org n-1-0: AB: 2 trades, 25.0 (from 0.0) -> delivered
            08:30:00 web https://bob.example/hook n-2-0: CD: 1 trades, 1.0 (from 0.0) -> delivered
            08:43:00 email alice@example.org n-3-0: AB: 1 trades, 2000.0 (from 0.0) -> delivered
            08:43:00 email alice@example.org n-3-1: AB: 1 trades, 2000.0 (from 1000.0) -> delivered
            08:44:00 crash
            08:45:00 web https://bob.example/hook n-4-0: CD: 1 trades, 3.0 (from 0.0) -> delivered
            09:00:00 events 6 notifications 5 open 0 suspended 0"#]],
    )
    .await;
}

/// A predicate and an equivalent query must make the same notifications, whatever changes between the batches.
#[tokio::test(start_paused = true)]
async fn a_query_and_a_predicate_agree_on_every_shard() {
    const RULES: &str = r#"
  by_predicate:
    on: trade
    subscription: watch
    notify: alert
    when: event.symbol == sub.symbol && event.price >= sub.least
    with: { by: "'predicate'" }
  by_query:
    on: trade
    subscription: watch
    notify: alert
    sql: |
      SELECT _event, _subscription, 'query' AS by
      FROM events e JOIN watch w ON w.symbol = e.symbol AND w.least <= e.price
"#;
    const ALERT: &str = r#"
  alert:
    fields: { by: string, symbol: string, price: number }
    content: { templates: { base: { subject: "{{ by }} {{ symbol }} {{ price }}" } } }
"#;
    let definition = SHOP
        .replace("\nrules:\n", &format!("\nrules:{RULES}"))
        .replace("\nnotifications:\n", &format!("\nnotifications:{ALERT}"))
        .replace("    notify: summary\n", "    notify: summary\n    enabled: false\n");
    let seed = std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TOCSIN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut script: Vec<String> =
        (0..6).map(|who| format!("08:00 subscriber p{who} email=p{who}@example.org")).collect();
    for minute in 0..120 {
        let time = format!("{:02}:{:02}", 9 + minute / 60, minute % 60);
        let who = random.u8(..6);
        let symbols = ["AB", "CD", "EF"];
        let symbol = symbols[random.usize(..3)];
        let act = match random.u8(..12) {
            0..=3 => format!(r#"subscribe p{who} watch {{"symbol": "{symbol}", "least": {}}}"#, random.u8(..9)),
            4 => format!("unsubscribe p{who}"),
            5 => format!("disable p{who}"),
            6 => format!("enable p{who}"),
            7 if random.u8(..4) == 0 => "crash".to_owned(),
            _ => {
                let events = (0..=random.u8(..3)).map(|_| {
                    let symbol = symbols[random.usize(..3)];
                    format!(r#"{{"symbol": "{symbol}", "price": {}}}"#, random.u8(..9))
                });
                format!("event trade {}", events.collect::<Vec<_>>().join(" "))
            }
        };
        script.push(format!("{time} {act}"));
    }
    let options = PipelineOptions { match_shards: 4, ..PipelineOptions::default() };
    let transcript = Scenario::with(&[&definition], options).await.run(&script.join("\n")).await;
    let sent_by = |by: &str| {
        let lines = transcript.lines().filter(|line| line.contains(&format!(": {by} ")));
        let mut sent: Vec<String> = lines
            .map(|line| {
                let words: Vec<&str> = line.split_whitespace().filter(|word| !word.starts_with("n-")).collect();
                words.join(" ").replace(by, "")
            })
            .collect();
        sent.sort();
        sent
    };
    assert_eq!(sent_by("predicate"), sent_by("query"), "{transcript}");
    assert!(!sent_by("query").is_empty(), "{transcript}");
}

#[tokio::test(start_paused = true)]
async fn a_query_that_fails_harms_no_other_rule_and_is_listed() {
    let broken = SHOP.replace("count(*) AS trades", "count(*) AS trades, json(e.symbol) AS symbol").replace(
        "rules:\n",
        "rules:\n  plain: { on: trade, subscription: watch, when: event.symbol == sub.symbol, notify: summary }\n",
    );
    let mut scenario = Scenario::new(&[&broken]).await;
    let transcript = scenario
        .run(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscribe alice watch {"symbol": "AB"}
               08:30 event trade {"symbol": "AB", "price": 10, "size": 2}
               09:00 report"#,
        )
        .await;
    expect![[r#"
        08:30:00 email alice@example.org n-1-0: AB: trades, (from ) -> delivered
        09:00:00 events 1 notifications 1 open 0 suspended 0"#]]
    .assert_eq(&transcript);
    let firings = scenario.journal().firings(&FiringFilter::default(), 0, 10).await.expect("firings");
    let listed: Vec<String> = firings
        .iter()
        .map(|firing| format!("{} {} {} {}", firing.rule, firing.first, firing.status.name(), firing.reason))
        .collect();
    expect![[r#"
        [
            "turnover eb-1 failed malformed JSON",
        ]
    "#]]
    .assert_debug_eq(&listed);
}

#[tokio::test(start_paused = true)]
async fn the_meters_example_sums_up_and_skips_absent_subscribers() {
    let query = serde_json::to_string(include_str!("../../../examples/meters/over-budget.sql")).expect("JSON");
    let definition = include_str!("../../../examples/meters/application.yaml");
    let definition = definition.replace("{file: over-budget.sql}", &query);
    check(
        &definition,
        r#"08:00 subscriber ann email=ann@example.org
           08:00 subscriber ben email=ben@example.org
           08:00 subscribe ann budget {"building": "north", "kwh": 10}
           08:00 subscribe ben budget {"building": "north", "kwh": 20}
           09:00 event reading {"building": "north", "meter": "n1", "kwh": 5} {"building": "north", "meter": "n2", "kwh": 7.5} {"building": "south", "meter": "s1", "kwh": 99}
           10:00 event reading {"building": "north", "meter": "n1", "kwh": 15} {"building": "north", "meter": "n2", "kwh": 8}
           10:30 subscribe ann away {"building": "north"}
           11:00 event reading {"building": "north", "meter": "n1", "kwh": 30}
           12:00 report"#,
        expect![[r#"
            09:00:00 email ann@example.org n-1-0: north used 12.5 kWh of 10.0 -> delivered
            10:00:00 email ann@example.org n-2-0: north used 23.0 kWh of 10.0 -> delivered
            10:00:00 email ben@example.org n-2-1: north used 23.0 kWh of 20.0 -> delivered
            11:00:00 email ben@example.org n-3-0: north used 30.0 kWh of 20.0 -> delivered
            12:00:00 events 6 notifications 4 open 0 suspended 0"#]],
    )
    .await;
}
