//! Delayed rules: scripts on a simulated clock that begins at midnight of 2026-03-01 UTC.

use std::time::Duration;

use expect_test::expect;
use tocsin_store::journal::{Delays, OpenWork};
use tocsin_testkit::{CrashPoint, Scenario, check};

/// A reminder of unpaid orders two hours later, and at once a receipt of each order.
const SHOP: &str = r#"
application: shop
events:
  placed: { fields: { order: integer, customer: string } }
  paid: { fields: { id: integer } }
  cancelled: { fields: { order: integer } }
subscriptions: { orders: { fields: { customer: string, minimum: { type: integer, default: 0 } } } }
notifications:
  unpaid: { fields: { order: integer, customer: string }, content: { templates: { base: { subject: "order {{ order }} of {{ customer }} is not paid" } } } }
rules:
  reminder:
    on: placed
    subscription: orders
    when: event.customer == sub.customer && event.order >= sub.minimum
    notify: unpaid
    with: { customer: sub.customer }
    after: 2h
    key: event.order
    cancel_on: { paid: event.id, cancelled: event.order }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: [] }
"#;

const ALICE: &str = r#"
    07:00 subscriber alice email=alice@example.org
    07:00 subscribe alice orders {"customer": "alice"}
"#;

fn script(lines: &str) -> String {
    format!("{ALICE}{lines}")
}

#[tokio::test(start_paused = true)]
async fn a_delayed_notification_is_sent_when_due_unless_an_event_cancels_it() {
    check(
        SHOP,
        &script(
            r#"08:00 event placed {"order": 1, "customer": "alice"} {"order": 2, "customer": "alice"} {"order": 3, "customer": "bob"}
               08:30 event placed {"order": 4, "customer": "alice"}
               08:40 delayed
               09:00 event paid {"id": 2} {"id": 77}
               09:30 event cancelled {"order": 4}
               10:30 delayed
               10:31 report"#,
        ),
        expect![[r#"
            08:40:00 delayed 1: reminder s-1 e-1-0 key 1 due 10:00:00
            08:40:00 delayed 2: reminder s-1 e-1-1 key 2 due 10:00:00
            08:40:00 delayed 3: reminder s-1 e-2-0 key 4 due 10:30:00
            10:00:00 email alice@example.org n-1-0: order 1 of alice is not paid -> delivered
            10:31:00 events 8 notifications 1 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_due_rule_is_evaluated_with_the_subscription_as_it_is_then() {
    check(
        SHOP,
        &script(
            r#"07:00 subscriber bob email=bob@example.org
               07:00 subscribe bob orders {"customer": "alice"}
               07:00 subscriber carol email=carol@example.org
               07:00 subscribe carol orders {"customer": "alice"}
               07:00 subscriber dora email=dora@example.org
               07:00 subscribe dora orders {"customer": "alice"}
               08:00 event placed {"order": 5, "customer": "alice"}
               08:10 change alice {"customer": "alice", "minimum": 9}
               08:20 unsubscribe bob
               08:30 disable carol"#,
        ),
        expect!["10:00:00 email dora@example.org n-1-0: order 5 of alice is not paid -> delivered"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_and_an_outage_neither_lose_nor_repeat_a_delayed_notification() {
    check(
        SHOP,
        &script(
            r#"08:00 event placed {"order": 1, "customer": "alice"}
               08:01 crash
               09:30 down 90
               11:30 crash"#,
        ),
        expect![[r#"
            08:01:00 crash
            09:30:00 crash
            11:00:00 email alice@example.org n-1-0: order 1 of alice is not paid -> delivered
            11:30:00 crash"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_event_accepted_before_the_due_time_cancels_although_it_is_matched_after_an_outage() {
    // The due time passes while the server is down. Its event batch is accepted after the restart, behind the payment.
    check(
        SHOP,
        &script(
            r#"08:00 event placed {"order": 1, "customer": "alice"}
               09:59 event paid {"id": 1}
               09:59 down 5
               10:10 delayed"#,
        ),
        expect!["09:59:00 crash"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_delayed_notification_waits_for_the_end_of_quiet_hours() {
    check(
        SHOP,
        &script(
            r#"07:00 alice prefers {"quiet_hours": ["09:00-12:00"]}
               08:00 event placed {"order": 1, "customer": "alice"}"#,
        ),
        expect!["12:00:00 email alice@example.org n-1-0: order 1 of alice is not paid -> delivered"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_operator_cancels_a_delayed_notification() {
    check(
        SHOP,
        &script(
            r#"08:00 event placed {"order": 1, "customer": "alice"} {"order": 2, "customer": "alice"}
               08:30 cancel delayed 1
               08:30 cancel delayed 1"#,
        ),
        expect![[r#"
            08:30:00 cancelled 1
            08:30:00 cancelled 0
            10:00:00 email alice@example.org n-1-0: order 2 of alice is not paid -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn while_a_rule_is_stopped_its_delayed_notifications_wait() {
    check(
        SHOP,
        &script(
            r#"08:00 event placed {"order": 1, "customer": "alice"}
               09:00 stop reminder
               11:00 let reminder"#,
        ),
        expect![[r#"
            11:00:00 reminder was stopped: true
            11:00:00 email alice@example.org n-1-0: order 1 of alice is not paid -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_is_changed_or_removed_treats_what_waits_by_its_new_definition() {
    let later = SHOP.replace("after: 2h", "after: 5h").replace("is not paid", "still is not paid");
    let mut scenario = Scenario::new(&[SHOP, &later]).await;
    let transcript = scenario
        .run(&script(
            r#"08:00 event placed {"order": 1, "customer": "alice"}
               09:00 apply
               09:00 event placed {"order": 2, "customer": "alice"}"#,
        ))
        .await;
    expect![[r#"
        10:00:00 email alice@example.org n-1-0: order 1 of alice still is not paid -> delivered
        14:00:00 email alice@example.org n-2-0: order 2 of alice still is not paid -> delivered"#]]
    .assert_eq(&transcript);

    let rule = SHOP.find("rules:").expect("rules")..SHOP.find("channels:").expect("channels");
    let mut without = SHOP.to_owned();
    without.replace_range(rule, "");
    let mut scenario = Scenario::new(&[SHOP, &without]).await;
    let transcript = scenario
        .run(&script(
            r#"08:00 event placed {"order": 1, "customer": "alice"}
               09:00 apply
               09:30 delayed
               10:30 delayed"#,
        ))
        .await;
    expect!["09:30:00 delayed 1: reminder s-1 e-1-0 key 1 due 10:00:00"].assert_eq(&transcript);
}

#[tokio::test(start_paused = true)]
async fn beyond_the_limit_a_delayed_rule_fails_and_can_be_fired_again() {
    let limited = format!("{SHOP}limits: {{ delayed_notifications: 1 }}\n");
    check(
        &limited,
        &script(
            r#"08:00 event placed {"order": 1, "customer": "alice"}
               08:10 event placed {"order": 2, "customer": "alice"}
               08:20 firings
               10:30 refire
               10:40 firings"#,
        ),
        expect![[r#"
            08:20:00 reminder failed eb-2..eb-2 (1): 1 delayed notifications wait, and `limits.delayed_notifications` is 1
            10:00:00 email alice@example.org n-1-0: order 1 of alice is not paid -> delivered
            10:30:00 email alice@example.org n-2-0: order 2 of alice is not paid -> delivered
            10:30:00 reminder fired for 1 batches"#]],
    )
    .await;
}

/// A crash at each write, before and after it: each order has one reminder or is cancelled.
#[tokio::test(start_paused = true)]
async fn a_crash_at_each_write_neither_loses_nor_repeats() {
    let acts = script(
        r#"08:00 event placed {"order": 1, "customer": "alice"} {"order": 2, "customer": "alice"}
           08:10 event placed {"order": 3, "customer": "alice"}
           09:00 event paid {"id": 2}"#,
    );
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        for write in 1.. {
            let mut scenario = Scenario::new(&[SHOP]).await;
            scenario.crash_at(write, moment);
            let transcript = scenario.run_and_wait(&acts, Duration::from_secs(6 * 3_600)).await;
            // A repeated delivery carries the id of the first.
            let mut sent: Vec<&str> = transcript
                .lines()
                .filter(|line| line.contains("delivered"))
                .filter_map(|line| line.split_once(": ").map(|(_, text)| text))
                .collect();
            sent.sort_unstable();
            sent.dedup();
            assert_eq!(
                sent,
                ["order 1 of alice is not paid -> delivered", "order 3 of alice is not paid -> delivered"],
                "a crash at write {write}, {moment:?}:\n{transcript}"
            );
            assert_eq!(scenario.messages(), 2, "a crash at write {write}, {moment:?}:\n{transcript}");
            assert_eq!(scenario.journal().delayed_count(&"shop".parse().expect("a name")).await.expect("counted"), 0);
            if !scenario.has_crashed() {
                break;
            }
        }
    }
}

/// Random orders, payments, unsubscriptions and restarts, against a model of one line: a reminder is sent for each order
/// whose payment was not accepted before its due time, if the subscription exists then.
#[tokio::test(start_paused = true)]
async fn random_histories_agree_with_a_simple_model() {
    for seed in 0..16 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut acts: Vec<(u32, String)> = Vec::new();
        let mut placed: Vec<(u32, u32)> = Vec::new();
        let mut paid: Vec<(u32, u32)> = Vec::new();
        for order in 0..12 {
            let at = 480 + rng.u32(0..240);
            placed.push((order, at));
            acts.push((at, format!(r#"event placed {{"order": {order}, "customer": "alice"}}"#)));
            // Some payments come with the due time, some before the order or twice.
            for _ in 0..rng.u32(0..3) {
                let pays = (at + rng.u32(0..200)).saturating_sub(20);
                paid.push((order, pays));
                acts.push((pays, format!(r#"event paid {{"id": {order}}}"#)));
            }
        }
        for _ in 0..rng.u32(0..4) {
            acts.push((480 + rng.u32(0..400), if rng.bool() { "crash".to_owned() } else { "lose claims".to_owned() }));
        }
        let ends = rng.bool().then(|| 480 + rng.u32(0..400));
        acts.extend(ends.map(|ends| (ends, "unsubscribe alice".to_owned())));
        acts.sort_by_key(|(at, _)| *at);
        let position = |at: u32, what: &str| acts.iter().position(|act| act.0 == at && act.1 == what).expect("an act");
        let lines: Vec<String> =
            acts.iter().map(|(at, what)| format!("{:02}:{:02} {what}", at / 60, at % 60)).collect();
        let mut scenario = Scenario::new(&[SHOP]).await;
        let transcript = scenario.run_and_wait(&script(&lines.join("\n")), Duration::from_secs(6 * 3_600)).await;
        for (order, at) in &placed {
            let due = at + 120;
            let starts = position(*at, &format!(r#"event placed {{"order": {order}, "customer": "alice"}}"#));
            let exists = ends.is_none_or(|ends| position(ends, "unsubscribe alice") > starts);
            // An act of the minute of the due time may come before or after it.
            let is_paid = |before: u32| {
                paid.iter().any(|(of, pays)| {
                    of == order
                        && *pays < before
                        && position(*pays, &format!(r#"event paid {{"id": {order}}}"#)) > starts
                })
            };
            let text = format!("order {order} of alice is not paid");
            let sent = transcript.matches(&text).count();
            let is_gone = |before: u32| ends.is_some_and(|ends| ends < before);
            if !exists || is_paid(due) || is_gone(due) {
                assert_eq!(sent, 0, "seed {seed}, order {order}:\n{}\n{transcript}", lines.join("\n"));
            } else if !is_paid(due + 1) && !is_gone(due + 1) {
                assert_eq!(sent, 1, "seed {seed}, order {order}:\n{}\n{transcript}", lines.join("\n"));
            }
        }
        assert_eq!(scenario.journal().backlog().notifications, 0, "seed {seed}");
    }
}
