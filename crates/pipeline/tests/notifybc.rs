//! Scenarios of the application `notifybc`: lists of recipients, the end of a broadcast, direct messages.

use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use tocsin_model::{content::Content, delivery_policy::Priority, id::BroadcastId, receipt::Disposition};
use tocsin_pipeline::{DirectError, DirectMessage, PipelineOptions};
use tocsin_store::journal::{BroadcastChange, BroadcastState, RequestedState};
use tocsin_testkit::{Scenario, check};

const NOTIFYBC: &str = r#"
application: notifybc
events:
  push: { fields: { service: string, data: map, without: map, only: map } }
subscriptions:
  service_subscription: { fields: { id: string, service: string, data: map }, filter: notifybc }
notifications:
  message: { content: { engine: notifybc, templates: { base: { subject: "{title}, {name} {subscription_id}" } } } }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: [1s, 2s] }
"#;

const SUBSCRIBERS: &str = r#"
    08:00 subscriber ann email=ann@example.org
    08:00 subscriber bob email=bob@example.org
    08:00 subscriber eve email=eve@example.org
    08:00 subscribe ann service_subscription {"id": "1", "service": "a", "data": {"name": "Ann"}}
    08:00 subscribe bob service_subscription {"id": "2", "service": "a", "data": {"name": "Bob"}}
    08:00 subscribe eve service_subscription {"id": "3", "service": "a", "data": {"name": "Eve"}}"#;

fn script(rest: &str) -> String {
    let base = r#""per": "subscription", "event_class": "push", "class": "message""#;
    format!("{SUBSCRIBERS}\n{}", rest.replace("BASE", base))
}

#[tokio::test(start_paused = true)]
async fn s7_5_recipients_with_a_result_are_left_out_and_given_candidates_kept() {
    let data = r#""data": {"service": "a", "data": {"title": "T"}"#;
    let script = script(
        r#"08:10 broadcast {BASE, DATA}, "when": "sub.service == 'a'"}
        08:11 broadcast {BASE, DATA, "without": {"2": true}}, "when": "!(sub.id in event.without)"}
        08:12 broadcast {BASE, DATA, "only": {"2": true, "3": true}}, "when": "sub.id in event.only"}"#,
    );
    check(
        NOTIFYBC,
        &script.replace("DATA", data),
        expect![[r#"
            08:10:00 bc-1 counts 3 of 3
            08:10:00 email ann@example.org n-1-0: T, Ann 1 -> delivered
            08:10:00 email bob@example.org n-1-1: T, Bob 2 -> delivered
            08:10:00 email eve@example.org n-1-2: T, Eve 3 -> delivered
            08:11:00 bc-2 counts 2 of 3
            08:11:00 email ann@example.org n-2-0: T, Ann 1 -> delivered
            08:11:00 email eve@example.org n-2-1: T, Eve 3 -> delivered
            08:12:00 bc-3 counts 2 of 3
            08:12:00 email bob@example.org n-3-0: T, Bob 2 -> delivered
            08:12:00 email eve@example.org n-3-1: T, Eve 3 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn s7_5_the_end_of_a_broadcast_is_awaited() {
    let mut scenario = Scenario::with(&[NOTIFYBC], PipelineOptions::default()).await;
    scenario.run_and_wait(&script("08:05 bob@example.org defers"), Duration::ZERO).await;
    let pipeline = scenario.pipeline().clone();
    let waiting = tokio::spawn(async move { pipeline.ended_broadcast(BroadcastId(1)).await });
    let broadcast = r#"08:10 broadcast {BASE, "data": {"service": "a"}}"#;
    let base = r#""per": "subscription", "event_class": "push", "class": "message""#;
    // The wait begins before the broadcast exists, so it returns nothing.
    assert_eq!(waiting.await.expect("it ends").expect("the store answers"), None);
    scenario.run_and_wait(&broadcast.replace("BASE", base), Duration::ZERO).await;
    let ended = scenario.pipeline().ended_broadcast(BroadcastId(1)).await.expect("the store answers");
    let (ended, totals) = ended.expect("it exists");
    // A notification whose attempts are exhausted is suspended, which ends it as well.
    assert_eq!((ended.state, totals.delivered, totals.suspended, totals.open), (BroadcastState::Running, 2, 1, 1));
    let (by, reason, now) = ("test".to_owned(), None, ended.changed_at);
    let change = BroadcastChange { to: RequestedState::Cancelled, by, reason, now };
    scenario.pipeline().change_broadcast(BroadcastId(1), change).await.expect("it is cancelled");
    let ended = scenario.pipeline().ended_broadcast(BroadcastId(1)).await.expect("the store answers");
    assert_eq!(ended.expect("it exists").0.state, BroadcastState::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_direct_message_has_its_answer() {
    let mut scenario = Scenario::with(&[NOTIFYBC], PipelineOptions::default()).await;
    scenario.run_and_wait("08:05 bob@example.org refuses", Duration::ZERO).await;
    let message = |channel: &str, address: &str| DirectMessage {
        application: "notifybc".parse().expect("a name"),
        channel: channel.parse().expect("a name"),
        address: address.to_owned(),
        subscriber: "notifybc-1".parse().expect("an id"),
        device: None,
        content: Content { subject: Some("Confirm".to_owned()), ..Content::default() },
        class: "message".parse().expect("a name"),
        fields: json!({}).as_object().expect("an object").clone(),
        event: None,
        priority: Priority::Urgent,
        id_prefix: "direct",
        timeout: Duration::from_secs(60),
    };
    let pipeline = scenario.pipeline();
    let answer = pipeline.send_direct(message("email", "ann@example.org")).await.expect("an answer");
    assert!(matches!(answer.disposition, Disposition::Delivered { .. }), "{answer:?}");
    let answer = pipeline.send_direct(message("email", "bob@example.org")).await.expect("an answer");
    assert!(matches!(answer.disposition, Disposition::Refused { .. }), "{answer:?}");
    let error = pipeline.send_direct(message("fax", "1")).await.expect_err("no channel");
    assert!(matches!(error, DirectError::Channel(_)), "{error}");
}
