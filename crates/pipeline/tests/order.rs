//! Scenarios of ordered mode: notifications of one key arrive in the order of its events, across failures and
//! crashes; other keys continue.

use std::{collections::BTreeMap, time::Duration};

use expect_test::expect;
use tocsin_testkit::{CrashPoint, Scenario, check};

const ORDERS: &str = r#"
application: orders
events:
  status:
    fields: { order: string, state: string }
    ordered: { by: order }
subscriptions:
  watch: { fields: { order: string } }
notifications:
  news:
    fields: { order: string, state: string }
    content: { templates: { base: { subject: "{{ order }} {{ state }}" } } }
rules:
  news:
    on: status
    subscription: watch
    notify: news
channels:
  email: { protocol: smtp, retry: { delays: [10m, 10m, 10m], jitter: 0% }, options: { host: localhost, from: t@example.org } }
"#;

#[tokio::test(start_paused = true)]
async fn notifications_behind_a_retry_wait_and_other_keys_continue() {
    check(
        ORDERS,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice watch {}
           08:00 subscribe bob watch {}
           08:00 alice@example.org defers
           09:00 event status {"order": "A", "state": "new"} {"order": "A", "state": "paid"}
           09:01 alice@example.org delivers
           09:02 event status {"order": "A", "state": "sent"} {"order": "B", "state": "new"}"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: A new -> deferred
            09:00:00 email bob@example.org n-1-1: A new -> delivered
            09:00:00 email bob@example.org n-1-3: A paid -> delivered
            09:02:00 email bob@example.org n-2-1: A sent -> delivered
            09:02:00 email alice@example.org n-2-2: B new -> delivered
            09:02:00 email bob@example.org n-2-3: B new -> delivered
            09:10:00 email alice@example.org n-1-0: A new -> delivered
            09:10:00 email alice@example.org n-1-2: A paid -> delivered
            09:10:00 email alice@example.org n-2-0: A sent -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_the_order() {
    check(
        ORDERS,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice watch {}
           08:00 alice@example.org defers
           09:00 event status {"order": "A", "state": "new"}
           09:01 alice@example.org delivers
           09:02 crash
           09:03 event status {"order": "A", "state": "paid"} {"order": "B", "state": "new"}
           09:04 drain
           09:05 event status {"order": "A", "state": "sent"}"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: A new -> deferred
            09:02:00 crash
            09:03:00 email alice@example.org n-2-1: B new -> delivered
            09:04:00 drained: true
            09:10:00 email alice@example.org n-1-0: A new -> delivered
            09:10:00 email alice@example.org n-2-0: A paid -> delivered
            09:10:00 email alice@example.org n-3-0: A sent -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_suspended_or_refused_notification_does_not_block_its_lane() {
    check(
        &ORDERS.replace("[10m, 10m, 10m]", "[10m]"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice watch {}
           08:00 alice@example.org defers
           09:00 event status {"order": "A", "state": "new"} {"order": "A", "state": "paid"}
           09:15 alice@example.org refuses
           09:30 alice@example.org delivers
           09:40 event status {"order": "A", "state": "sent"}
           10:00 resume"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: A new -> deferred
            09:10:00 email alice@example.org n-1-0: A new -> deferred
            09:10:00 email alice@example.org n-1-1: A paid -> deferred
            09:20:00 email alice@example.org n-1-1: A paid -> refused
            09:40:00 email alice@example.org n-2-0: A sent -> delivered
            10:00:00 Resume 1
            10:00:00 email alice@example.org n-1-0: A new -> delivered"#]],
    )
    .await;
}

const STORY: &str = r#"
    08:00 subscriber alice email=alice@example.org
    08:00 subscribe alice watch {}
    08:00 alice@example.org defers
    09:00 event status {"order": "A", "state": "1"} {"order": "B", "state": "1"} {"order": "A", "state": "2"}
    09:05 alice@example.org delivers
    09:06 event status {"order": "A", "state": "3"} {"order": "B", "state": "2"}"#;

/// The order holds whenever the process dies.
#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_keeps_the_order() {
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        let mut writes = 0;
        loop {
            let mut scenario = Scenario::new(&[ORDERS]).await;
            scenario.crash_at(writes + 1, moment);
            let seen = scenario.run_and_wait(STORY, Duration::from_secs(7_200)).await;
            let mut sent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for line in seen.lines().filter(|line| line.contains("-> delivered")) {
                let words: Vec<&str> = line.split_whitespace().collect();
                let states = sent.entry(words[4]).or_default();
                if states.last() != Some(&words[5]) {
                    states.push(words[5]);
                }
            }
            let expected = BTreeMap::from([("A", vec!["1", "2", "3"]), ("B", vec!["1", "2"])]);
            assert_eq!(sent, expected, "{moment:?} write {writes}\n{seen}");
            if !scenario.has_crashed() {
                break;
            }
            writes += 1;
        }
        assert!(writes >= 10, "the story has many writes, but the process died at {writes} only");
    }
}
