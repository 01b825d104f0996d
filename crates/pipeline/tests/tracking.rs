//! Scenarios of work items in flight: each notification has exactly one disposition, whatever happens between the
//! dispatch of its item and the record of its receipt.

use std::time::Duration;

use expect_test::{Expect, expect};
use tocsin_pipeline::PipelineOptions;
use tocsin_testkit::Scenario;

/// Quakes, with options of the notification class; `sms` is the second channel of the chain.
fn quakes(delivery_policy: &str) -> String {
    let subject = match delivery_policy.contains("digest") {
        true => "{% for quake in digest.items %}{{ quake.place }}, {% endfor %}{{ digest.count }} in all",
        false => "{{ place }}",
    };
    format!(
        r#"
application: quakes
events:
  quake: {{ fields: {{ place: string }} }}
subscriptions:
  any: {{}}
notifications:
  alert:
    fields: {{ place: string }}
    {delivery_policy}
    content: {{ templates: {{ base: {{ subject: "{subject}" }} }} }}
rules:
  every: {{ on: quake, subscription: any, notify: alert }}
channels:
  email: {{ protocol: smtp, options: {{ host: localhost, from: t@example.org }}, lease: 2m, retry: {{ delays: [1m, 5m], jitter: 0% }} }}
  sms: {{ protocol: http, retry: [] }}
"#
    )
}

/// Runs a script after [`SUBSCRIBERS`], and checks the transcript. All retries come within the hour.
async fn check(definition: &str, script: &str, expected: Expect) {
    let mut scenario = Scenario::new(&[definition]).await;
    let script = format!("{SUBSCRIBERS}{script}");
    expected.assert_eq(&scenario.run_and_wait(&script, Duration::from_secs(3_600)).await);
}

const SUBSCRIBERS: &str = "
    08:00 subscriber alice email=alice@example.org
    08:00 subscriber bob email=bob@example.org
    08:00 subscriber carol email=carol@example.org
    08:00 subscribe alice any
    08:00 subscribe bob any
    08:00 subscribe carol any
";

#[tokio::test(start_paused = true)]
async fn an_answer_after_the_loss_of_the_lease_is_not_recorded() {
    let script = r#"
        08:00 alice@example.org ponders 30
        08:30:00 event quake {"place": "Kobe"}
        08:30:10 lose claims
        08:30:15 alice@example.org defers
        08:31 attempts
        08:31 alice@example.org delivers
        09:00 attempts
        09:00 report"#;
    check(
        &quakes(""),
        script,
        expect![[r#"
        08:30:00 email alice@example.org n-1-0: Kobe -> delivered
        08:30:00 email bob@example.org n-1-1: Kobe -> delivered
        08:30:00 email carol@example.org n-1-2: Kobe -> delivered
        08:30:10 email alice@example.org n-1-0: Kobe -> delivered
        08:31:00 n-1-0 attempt 1 08:30:40 delivered: ok
        08:31:00 n-1-1 attempt 1 08:30:00 delivered: ok
        08:31:00 n-1-2 attempt 1 08:30:00 delivered: ok
        09:00:00 n-1-0 attempt 1 08:30:40 delivered: ok
        09:00:00 n-1-1 attempt 1 08:30:00 delivered: ok
        09:00:00 n-1-2 attempt 1 08:30:00 delivered: ok
        09:00:00 events 1 notifications 3 open 0 suspended 0"#]],
    )
    .await;
}

/// The first dispatch panics in the middle: the answer that is outstanding then is lost, and the decision before it is
/// recorded. The item is sent again when its lease expires.
#[tokio::test(start_paused = true)]
async fn an_answer_after_a_panic_closes_nothing() {
    let script = r#"
        08:00 alice@example.org ponders 30
        08:00 carol@example.org panics
        08:30:00 switch off channel:quakes/email paused
        08:30:00 event quake {"place": "Kobe"}
        08:30:10 disable bob
        08:30:20 switch on channel:quakes/email
        08:31 attempts
        08:32 carol@example.org delivers
        09:00 attempts
        09:00 report"#;
    check(
        &quakes(""),
        script,
        expect![[r#"
        08:30:20 email alice@example.org n-1-0: Kobe -> delivered
        08:31:00 n-1-1 attempt 1 08:30:20 refused: the subscription was switched off
        08:32:20 email alice@example.org n-1-0: Kobe -> delivered
        08:32:20 email carol@example.org n-1-2: Kobe -> delivered
        09:00:00 n-1-0 attempt 1 08:32:50 delivered: ok
        09:00:00 n-1-1 attempt 1 08:30:20 refused: the subscription was switched off
        09:00:00 n-1-2 attempt 1 08:32:20 delivered: ok
        09:00:00 events 1 notifications 3 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_held_notification_has_no_attempt_until_its_destination_is_free() {
    let script = r#"
        08:00 alice@example.org rests 300
        08:00 bob@example.org defers
        08:30:00 event quake {"place": "Kobe"}
        08:31:30 attempts
        08:32 bob@example.org delivers
        08:32 lose claims
        08:33 alice@example.org delivers
        09:00 attempts
        09:00 report"#;
    check(
        &quakes(""),
        script,
        expect![[r#"
        08:30:00 email bob@example.org n-1-1: Kobe -> deferred
        08:30:00 email carol@example.org n-1-2: Kobe -> delivered
        08:31:00 email bob@example.org n-1-1: Kobe -> deferred
        08:31:30 n-1-1 attempt 1 08:30:00 deferred: not now
        08:31:30 n-1-1 attempt 2 08:31:00 deferred: not now
        08:31:30 n-1-2 attempt 1 08:30:00 delivered: ok
        08:35:00 email alice@example.org n-1-0: Kobe -> delivered
        08:36:00 email bob@example.org n-1-1: Kobe -> delivered
        09:00:00 n-1-0 attempt 1 08:35:00 delivered: ok
        09:00:00 n-1-1 attempt 1 08:30:00 deferred: not now
        09:00:00 n-1-1 attempt 2 08:31:00 deferred: not now
        09:00:00 n-1-1 attempt 3 08:36:00 delivered: ok
        09:00:00 n-1-2 attempt 1 08:30:00 delivered: ok
        09:00:00 events 1 notifications 3 open 0 suspended 0"#]],
    )
    .await;
}

/// An item that waits for its permit is released by a drain, and the next process sends it.
#[tokio::test(start_paused = true)]
async fn a_drain_records_outstanding_answers_and_releases_what_was_not_begun() {
    let script = r#"
        08:00 alice@example.org ponders 20
        08:00 bob@example.org waits
        08:00 carol@example.org rests 600
        08:30:00 event quake {"place": "Kobe"}
        08:30:01 event quake {"place": "Lima"}
        08:30:10 drain
        08:30:40 attempts
        08:31 bob@example.org delivers
        08:31 carol@example.org delivers
        08:32 drain
        09:00 attempts
        09:00 report"#;
    let options = PipelineOptions { in_flight_per_channel: 3, ..PipelineOptions::default() };
    let mut scenario = Scenario::with(&[&quakes("")], options).await;
    let seen = scenario.run_and_wait(&format!("{SUBSCRIBERS}{script}"), Duration::from_secs(3_600)).await;
    expect![[r#"
        08:30:00 email alice@example.org n-1-0: Kobe -> delivered
        08:30:20 drained: true
        08:30:40 n-1-0 attempt 1 08:30:20 delivered: ok
        08:32:00 drained: true
        08:32:00 email bob@example.org n-1-1: Kobe -> delivered
        08:32:00 email alice@example.org n-2-0: Lima -> delivered
        08:32:00 email bob@example.org n-2-1: Lima -> delivered
        08:32:00 email carol@example.org n-2-2: Lima -> delivered
        08:40:00 email carol@example.org n-1-2: Kobe -> delivered
        09:00:00 n-2-0 attempt 1 08:32:20 delivered: ok
        09:00:00 n-2-1 attempt 1 08:32:00 delivered: ok
        09:00:00 n-2-2 attempt 1 08:32:00 delivered: ok
        09:00:00 n-1-0 attempt 1 08:30:20 delivered: ok
        09:00:00 n-1-1 attempt 1 08:32:00 delivered: ok
        09:00:00 n-1-2 attempt 1 08:40:00 delivered: ok
        09:00:00 events 2 notifications 6 open 0 suspended 0"#]]
    .assert_eq(&seen);
}

/// One answer applies to all members, which are of two work items.
#[tokio::test(start_paused = true)]
async fn the_answer_to_a_digest_is_recorded_in_each_of_its_items() {
    let script = r#"
        08:30:00 event quake {"place": "Kobe"} {"place": "Lima"}
        08:31:00 event quake {"place": "Rome"}
        08:32:00 alice@example.org ponders 30
        08:32:00 bob@example.org refuses
        08:32:00 carol@example.org defers
        08:40:10 attempts
        08:40:20 lose claims
        08:40:25 carol@example.org delivers
        09:00 attempts
        09:00 report"#;
    check(
        &quakes("digest: { window: 10m }"),
        script,
        expect![[r#"
        08:40:00 email alice@example.org n-1-0: Kobe, Lima, Rome, 3 in all -> delivered
        08:40:00 email bob@example.org n-1-1: Kobe, Lima, Rome, 3 in all -> refused
        08:40:00 email carol@example.org n-1-2: Kobe, Lima, Rome, 3 in all -> deferred
        08:40:10 n-2-1 attempt 1 08:40:00 refused: never
        08:40:10 n-2-2 attempt 1 08:40:00 deferred: not now
        08:40:10 n-1-1 attempt 1 08:40:00 refused: never
        08:40:10 n-1-2 attempt 1 08:40:00 deferred: not now
        08:40:10 n-1-4 attempt 1 08:40:00 refused: never
        08:40:10 n-1-5 attempt 1 08:40:00 deferred: not now
        08:40:20 email alice@example.org n-1-0: Kobe, Lima, Rome, 3 in all -> delivered
        08:41:00 email carol@example.org n-1-2: Kobe, Lima, Rome, 3 in all -> delivered
        09:00:00 n-2-0 attempt 1 08:40:50 delivered: ok
        09:00:00 n-2-1 attempt 1 08:40:00 refused: never
        09:00:00 n-2-2 attempt 1 08:40:00 deferred: not now
        09:00:00 n-2-2 attempt 2 08:41:00 delivered: ok
        09:00:00 n-1-0 attempt 1 08:40:50 delivered: ok
        09:00:00 n-1-1 attempt 1 08:40:00 refused: never
        09:00:00 n-1-2 attempt 1 08:40:00 deferred: not now
        09:00:00 n-1-2 attempt 2 08:41:00 delivered: ok
        09:00:00 n-1-3 attempt 1 08:40:50 delivered: ok
        09:00:00 n-1-4 attempt 1 08:40:00 refused: never
        09:00:00 n-1-5 attempt 1 08:40:00 deferred: not now
        09:00:00 n-1-5 attempt 2 08:41:00 delivered: ok
        09:00:00 events 3 notifications 9 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_digest_waits_for_a_paused_destination_as_a_whole() {
    let script = r#"
        08:00 alice@example.org rests 60
        08:30:00 event quake {"place": "Kobe"} {"place": "Lima"}
        08:30:30 attempts
        08:30:30 alice@example.org delivers
        09:00 attempts
        09:00 report"#;
    check(
        &quakes("digest: {}"),
        script,
        expect![[r#"
        08:30:00 email bob@example.org n-1-1: Kobe, Lima, 2 in all -> delivered
        08:30:00 email carol@example.org n-1-2: Kobe, Lima, 2 in all -> delivered
        08:30:30 n-1-1 attempt 1 08:30:00 delivered: ok
        08:30:30 n-1-2 attempt 1 08:30:00 delivered: ok
        08:30:30 n-1-4 attempt 1 08:30:00 delivered: ok
        08:30:30 n-1-5 attempt 1 08:30:00 delivered: ok
        08:31:00 email alice@example.org n-1-0: Kobe, Lima, 2 in all -> delivered
        09:00:00 n-1-0 attempt 1 08:31:00 delivered: ok
        09:00:00 n-1-1 attempt 1 08:30:00 delivered: ok
        09:00:00 n-1-2 attempt 1 08:30:00 delivered: ok
        09:00:00 n-1-3 attempt 1 08:31:00 delivered: ok
        09:00:00 n-1-4 attempt 1 08:30:00 delivered: ok
        09:00:00 n-1-5 attempt 1 08:30:00 delivered: ok
        09:00:00 events 2 notifications 6 open 0 suspended 0"#]],
    )
    .await;
}

/// Answers that arrive while the store fails wait in their queue, and are recorded once it works.
#[tokio::test(start_paused = true)]
async fn answers_wait_for_a_store_that_fails() {
    let script = r#"
        08:00 alice@example.org ponders 10
        08:00 bob@example.org ponders 20
        08:00 carol@example.org ponders 60
        08:30:00 event quake {"place": "Kobe"}
        08:30:05 commits fail 200
        08:30:06 event quake {"place": "Lima"}
        08:31:30 attempts
        08:31:30 bob@example.org defers
        08:34 attempts
        08:34 bob@example.org delivers
        09:00 attempts
        09:00 report"#;
    check(
        &quakes(""),
        script,
        expect![[r#"
        08:30:00 email alice@example.org n-1-0: Kobe -> delivered
        08:30:00 email bob@example.org n-1-1: Kobe -> delivered
        08:30:00 email carol@example.org n-1-2: Kobe -> delivered
        08:33:25 email alice@example.org n-2-0: Lima -> delivered
        08:33:25 email bob@example.org n-2-1: Lima -> deferred
        08:33:25 email carol@example.org n-2-2: Lima -> delivered
        08:34:00 n-2-0 attempt 1 08:33:35 delivered: ok
        08:34:00 n-2-1 attempt 1 08:33:25 deferred: not now
        08:34:00 n-1-0 attempt 1 08:30:10 delivered: ok
        08:34:00 n-1-1 attempt 1 08:30:20 delivered: ok
        08:34:00 n-1-2 attempt 1 08:31:00 delivered: ok
        08:34:25 email bob@example.org n-2-1: Lima -> delivered
        09:00:00 n-2-0 attempt 1 08:33:35 delivered: ok
        09:00:00 n-2-1 attempt 1 08:33:25 deferred: not now
        09:00:00 n-2-1 attempt 2 08:34:25 delivered: ok
        09:00:00 n-2-2 attempt 1 08:34:25 delivered: ok
        09:00:00 n-1-0 attempt 1 08:30:10 delivered: ok
        09:00:00 n-1-1 attempt 1 08:30:20 delivered: ok
        09:00:00 n-1-2 attempt 1 08:31:00 delivered: ok
        09:00:00 events 2 notifications 6 open 0 suspended 0"#]],
    )
    .await;
}

/// Without a further channel the notification is refused; with one, that takes over.
#[tokio::test(start_paused = true)]
async fn a_suppression_is_an_attempt_that_was_not_sent() {
    let script = r#"
        08:00 subscriber alice email=alice@example.org sms=+431
        08:00 suppress smtp alice@example.org complaint
        08:00 suppress smtp bob@example.org complaint
        08:00 carol@example.org ponders 30
        08:30:00 event quake {"place": "Kobe"}
        08:30:10 attempts
        08:30:15 lose claims
        09:00 attempts
        09:00 report"#;
    check(
        &quakes(""),
        script,
        expect![[r#"
        08:30:00 email carol@example.org n-1-2: Kobe -> delivered
        08:30:10 n-1-0 attempt 1 08:30:00 refused: the address is suppressed: its owner complained
        08:30:10 n-1-1 attempt 1 08:30:00 refused: the address is suppressed: its owner complained
        08:30:15 email carol@example.org n-1-2: Kobe -> delivered
        09:00:00 n-1-0 attempt 1 08:30:00 refused: the address is suppressed: its owner complained
        09:00:00 n-1-1 attempt 1 08:30:00 refused: the address is suppressed: its owner complained
        09:00:00 n-1-2 attempt 1 08:30:45 delivered: ok
        09:00:00 events 1 notifications 3 open 0 suspended 0"#]],
    )
    .await;
    check(
        &quakes("fallback: [{ channel: sms }]"),
        script,
        expect![[r#"
        08:30:00 email carol@example.org n-1-2: Kobe -> delivered
        08:30:00 sms +431 n-1-0: Kobe -> delivered
        08:30:10 n-1-0 attempt 1 08:30:00 deferred: the address is suppressed: its owner complained; `sms` is tried next
        08:30:10 n-1-0 attempt 1 08:30:00 delivered: ok
        08:30:10 n-1-1 attempt 1 08:30:00 deferred: the address is suppressed: its owner complained; `sms` is tried next
        08:30:10 n-1-1 attempt 1 08:30:00 refused: the subscriber has no device that `sms` could reach
        08:30:15 email carol@example.org n-1-2: Kobe -> delivered
        09:00:00 n-1-0 attempt 1 08:30:00 deferred: the address is suppressed: its owner complained; `sms` is tried next
        09:00:00 n-1-0 attempt 1 08:30:00 delivered: ok
        09:00:00 n-1-1 attempt 1 08:30:00 deferred: the address is suppressed: its owner complained; `sms` is tried next
        09:00:00 n-1-1 attempt 1 08:30:00 refused: the subscriber has no device that `sms` could reach
        09:00:00 n-1-2 attempt 1 08:30:45 delivered: ok
        09:00:00 events 1 notifications 3 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_notification_that_expires_in_flight_is_closed_once() {
    let script = r#"
        08:00 alice@example.org expires
        08:00 bob@example.org ponders 120
        08:00 carol@example.org defers
        08:30:00 event quake {"place": "Kobe"}
        08:30:10 attempts
        09:00 attempts
        09:00 report"#;
    check(
        &quakes("expires_after: 1m"),
        script,
        expect![[r#"
        08:30:00 email alice@example.org n-1-0: Kobe -> expired
        08:30:00 email bob@example.org n-1-1: Kobe -> delivered
        08:30:00 email carol@example.org n-1-2: Kobe -> deferred
        08:30:10 n-1-0 attempt 1 08:30:00 expired: its time was over before it was sent
        08:30:10 n-1-2 attempt 1 08:30:00 deferred: not now
        09:00:00 n-1-0 attempt 1 08:30:00 expired: its time was over before it was sent
        09:00:00 n-1-1 attempt 1 08:32:00 delivered: ok
        09:00:00 n-1-2 attempt 1 08:30:00 deferred: not now
        09:00:00 n-1-2 attempt 2 08:31:00 expired: its time to live expired before it was sent
        09:00:00 events 1 notifications 3 open 0 suspended 0"#]],
    )
    .await;
}

/// Results that arrive together are one commit: of 300 notifications in three items, decisions and answers alike.
#[tokio::test(start_paused = true)]
async fn results_are_committed_in_groups() {
    let mut script = String::new();
    for number in 0..100 {
        script.push_str(&format!(
            "08:00 subscriber s{number} email=s{number}@example.org\n08:00 subscribe s{number} any\n"
        ));
        let answer = ["delivers", "ponders 5", "refuses", "defers", "rests 40"][number % 5];
        script.push_str(&format!("08:00 s{number}@example.org {answer}\n"));
    }
    script.push_str("08:10 suppress smtp s7@example.org complaint\n");
    for place in ["Kobe", "Lima", "Rome"] {
        script.push_str(&format!("08:30 event quake {{\"place\": \"{place}\"}}\n"));
    }
    for number in (4..100).step_by(5) {
        script.push_str(&format!("08:30:10 s{number}@example.org delivers\n"));
    }
    let mut scenario = Scenario::new(&[&quakes("")]).await;
    let seen = scenario.run_and_wait(&format!("{script}09:30 report"), Duration::ZERO).await;
    assert!(seen.ends_with("09:30:00 events 3 notifications 300 open 0 suspended 60"), "{seen}");
    expect!["6 commits"].assert_eq(&format!("{} commits", scenario.commits()));
}
