//! Scenarios of the delivery policy: digests, send hours and preferences.

use std::time::Duration;

use expect_test::expect;
use tocsin_pipeline::PipelineOptions;
use tocsin_store::journal::ActivityLog;
use tocsin_testkit::{CrashPoint, Scenario, check};

/// Quakes, with options of the notification class.
fn quakes(delivery_policy: &str) -> String {
    let subject = if delivery_policy.contains("digest") {
        "{% for quake in digest.items %}{{ quake.place }} {{ quake.magnitude }}, {% endfor %}{{ digest.count }} in all\
         {% if digest.more %}, and {{ digest.more }} more{% endif %}"
    } else {
        "{{ place }} {{ magnitude }}"
    };
    format!(
        r#"
application: quakes
events:
  quake: {{ fields: {{ magnitude: number, place: string, region: string }} }}
subscriptions:
  nearby: {{ fields: {{ magnitude: {{ type: number, default: 5 }} }} }}
notifications:
  alert:
    fields: {{ magnitude: number, place: string, region: string }}
    {delivery_policy}
    content: {{ templates: {{ base: {{ subject: "{subject}" }} }} }}
rules:
  strong: {{ on: quake, subscription: nearby, when: event.magnitude >= sub.magnitude, notify: alert }}
channels:
  email: {{ protocol: smtp, options: {{ host: localhost, from: t@example.org }}, retry: {{ delays: [1m, 5m, 1h], jitter: 0% }} }}
  sms: {{ protocol: http, retry: [] }}
"#
    )
}

#[tokio::test(start_paused = true)]
async fn quiet_hours_hold_notifications_until_they_end() {
    check(
        &quakes(""),
        r#"08:00 subscriber alice email=alice@example.org zone=Europe/Vienna
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 alice prefers {"quiet_hours": ["22:00-07:00", "06:30-08:30 sa,su"]}
           20:59 event quake {"magnitude": 6, "place": "Kobe"}
           21:30 event quake {"magnitude": 6, "place": "Lima"}
           23:00 crash
           23:30 event quake {"magnitude": 6, "place": "Rome"}
           +1d05:59 report"#,
        expect![[r#"
            20:59:00 email alice@example.org n-1-0: Kobe 6.0 -> delivered
            20:59:00 email bob@example.org n-1-1: Kobe 6.0 -> delivered
            21:30:00 email bob@example.org n-2-1: Lima 6.0 -> delivered
            23:00:00 crash
            23:30:00 email bob@example.org n-3-1: Rome 6.0 -> delivered
            +1d 05:59:00 events 3 notifications 6 open 2 suspended 0
            +1d 06:00:00 email alice@example.org n-2-0: Lima 6.0 -> delivered
            +1d 06:00:00 email alice@example.org n-3-0: Rome 6.0 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_notification_that_expires_in_quiet_hours_is_not_sent() {
    check(
        &quakes("expires_after: 2h"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 alice prefers {"quiet_hours": ["10:00-12:30"]}
           10:20 event quake {"magnitude": 6, "place": "Kobe"}
           10:40 event quake {"magnitude": 6, "place": "Lima"}
           13:00 report"#,
        expect![[r#"
            12:30:00 email alice@example.org n-2-0: Lima 6.0 -> delivered
            13:00:00 events 2 notifications 2 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_for_the_end_of_quiet_hours_and_is_no_attempt_more() {
    check(
        &quakes(""),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 alice prefers {"quiet_hours": ["10:00-12:00"]}
           08:00 alice@example.org defers
           09:59:30 event quake {"magnitude": 6, "place": "Kobe"}
           15:00 report"#,
        expect![[r#"
            09:59:30 email alice@example.org n-1-0: Kobe 6.0 -> deferred
            12:00:00 email alice@example.org n-1-0: Kobe 6.0 -> deferred
            12:05:00 email alice@example.org n-1-0: Kobe 6.0 -> deferred
            13:05:00 email alice@example.org n-1-0: Kobe 6.0 -> deferred
            15:00:00 events 1 notifications 1 open 0 suspended 1"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn critical_notifications_ignore_quiet_hours_and_preferences() {
    check(
        &quakes("critical: true"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 alice prefers {"quiet_hours": ["10:00-12:00"], "notifications": {"quakes": {"enabled": false, "channels": {"email": false}}}}
           10:20 event quake {"magnitude": 6, "place": "Kobe"}"#,
        expect!["10:20:00 email alice@example.org n-1-0: Kobe 6.0 -> delivered"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn send_hours_are_by_the_subscribers_clock() {
    check(
        &quakes("send_hours: 09:00-18:00 mo-fr"),
        r#"08:00 subscriber alice email=alice@example.org zone=Asia/Tokyo
           08:00 subscriber bob email=bob@example.org zone=America/New_York
           08:00 subscriber carol email=carol@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 subscribe carol nearby
           08:00 carol prefers {"quiet_hours": ["09:00-17:30"]}
           08:10 event quake {"magnitude": 6, "place": "Kobe"}"#,
        expect![[r#"
            +1d 00:00:00 email alice@example.org n-1-0: Kobe 6.0 -> delivered
            +1d 14:00:00 email bob@example.org n-1-1: Kobe 6.0 -> delivered
            +1d 17:30:00 email carol@example.org n-1-2: Kobe 6.0 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn subscribers_choose_notification_classes_and_channels() {
    check(
        &quakes(""),
        r#"08:00 subscriber alice email=alice@example.org sms=+431
           08:00 subscriber bob email=bob@example.org sms=+432
           08:00 subscriber carol email=carol@example.org
           08:00 subscriber dan email=dan@example.org sms=+434
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 subscribe carol nearby
           08:00 subscribe dan nearby
           08:00 alice prefers {"notifications": {"quakes/alert": {"prefer": ["pigeon", "sms"]}}}
           08:00 bob prefers {"notifications": {"*": {"channels": {"email": false}}}}
           08:00 carol prefers {"notifications": {"*": {"channels": {"email": false}}}}
           08:00 dan prefers {"notifications": {"*": {"prefer": ["sms"]}, "quakes/alert": {"enabled": false}}}
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:20 report"#,
        expect![[r#"
            08:10:00 sms +431 n-1-0: Kobe 6.0 -> delivered
            08:10:00 sms +432 n-1-1: Kobe 6.0 -> delivered
            08:20:00 events 1 notifications 4 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_notification_without_a_permitted_hour_is_suspended() {
    check(
        &quakes("send_hours: 09:00-10:00"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 alice prefers {"quiet_hours": ["08:00-11:00"]}
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:20 report"#,
        expect!["08:20:00 events 1 notifications 1 open 0 suspended 1"],
    )
    .await;
}

const THREE: &str = r#"{"magnitude": 6, "place": "Kobe", "region": "asia"} {"magnitude": 7, "place": "Lima", "region": "america"} {"magnitude": 5, "place": "Sendai", "region": "asia"}"#;

#[tokio::test(start_paused = true)]
async fn notifications_of_one_batch_make_one_digest() {
    check(
        &quakes("digest: {}"),
        &format!(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscriber bob email=bob@example.org
               08:00 subscribe alice nearby
               08:00 subscribe bob nearby {{"magnitude": 6.5}}
               08:10 event quake {THREE}
               08:20 report"#
        ),
        expect![[r#"
            08:10:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, Sendai 5.0, 3 in all -> delivered
            08:10:00 email bob@example.org n-1-2: Lima 7.0, 1 in all -> delivered
            08:20:00 events 3 notifications 4 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn grouping_fields_devices_and_locales_keep_digests_apart() {
    check(
        &quakes("digest: { by: [region], items_max: 1 }"),
        &format!(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscriber bob email=bob@example.org
               08:00 subscribe alice nearby
               08:00 subscribe bob nearby
               08:10 event quake {THREE}"#
        ),
        expect![[r#"
            08:10:00 email alice@example.org n-1-0: Kobe 6.0, 2 in all, and 1 more -> delivered
            08:10:00 email bob@example.org n-1-1: Kobe 6.0, 2 in all, and 1 more -> delivered
            08:10:00 email alice@example.org n-1-2: Lima 7.0, 1 in all -> delivered
            08:10:00 email bob@example.org n-1-3: Lima 7.0, 1 in all -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn zeros_of_both_signs_are_one_group() {
    check(
        &quakes("digest: { by: [magnitude] }"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby {"magnitude": -1}
           08:10 event quake {"magnitude": 0.0, "place": "Kobe"} {"magnitude": -0.0, "place": "Lima"}"#,
        expect!["08:10:00 email alice@example.org n-1-0: Kobe 0.0, Lima -0.0, 2 in all -> delivered"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_digest_that_is_deferred_stays_together_over_a_crash() {
    check(
        &quakes("digest: {}"),
        &format!(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscribe alice nearby
               08:00 alice@example.org defers
               08:10 event quake {THREE}
               08:12 crash
               08:12 alice@example.org delivers
               08:20 report
               08:30 alice@example.org ponders 60
               08:40 event quake {THREE}
               08:40:30 crash
               08:50 report
               09:00 alice@example.org refuses
               09:00 event quake {THREE}
               09:10 report"#
        ),
        expect![[r#"
            08:10:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, Sendai 5.0, 3 in all -> deferred
            08:11:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, Sendai 5.0, 3 in all -> deferred
            08:12:00 crash
            08:16:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, Sendai 5.0, 3 in all -> delivered
            08:20:00 events 3 notifications 3 open 0 suspended 0
            08:40:00 email alice@example.org n-2-0: Kobe 6.0, Lima 7.0, Sendai 5.0, 3 in all -> delivered
            08:40:30 crash
            08:40:30 email alice@example.org n-2-0: Kobe 6.0, Lima 7.0, Sendai 5.0, 3 in all -> delivered
            08:50:00 events 6 notifications 6 open 0 suspended 0
            09:00:00 email alice@example.org n-3-0: Kobe 6.0, Lima 7.0, Sendai 5.0, 3 in all -> refused
            09:10:00 events 9 notifications 9 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_digest_waits_for_the_end_of_quiet_hours() {
    let mut scenario = Scenario::new(&[&quakes("digest: {}")]).await;
    let seen = scenario
        .run(&format!(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscribe alice nearby
               08:00 alice prefers {{"quiet_hours": ["08:00-09:00"]}}
               08:10 event quake {THREE}
               08:10 drain"#
        ))
        .await;
    expect![[r#"
        08:10:00 drained: true
        09:00:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, Sendai 5.0, 3 in all -> delivered"#]]
    .assert_eq(&seen);
}

#[tokio::test(start_paused = true)]
async fn a_window_opens_with_the_first_and_closes_over_a_crash() {
    check(
        &quakes("digest: { window: 10m }"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby {"magnitude": 7}
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:15 event quake {"magnitude": 7, "place": "Lima"}
           08:16 crash
           08:17 event quake {"magnitude": 8, "place": "Rome"}
           08:19 report
           08:23 event quake {"magnitude": 6, "place": "Oslo"}
           08:40 report"#,
        expect![[r#"
            08:16:00 crash
            08:19:00 events 3 notifications 5 open 5 suspended 0
            08:20:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, Rome 8.0, 3 in all -> delivered
            08:25:00 email bob@example.org n-2-1: Lima 7.0, Rome 8.0, 2 in all -> delivered
            08:33:00 email alice@example.org n-4-0: Oslo 6.0, 1 in all -> delivered
            08:40:00 events 4 notifications 6 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn hourly_and_daily_digests_go_by_the_subscribers_clock() {
    for window in ["hourly", "daily 08:00"] {
        let mut scenario = Scenario::new(&[&quakes(&format!("digest: {{ window: {window}, items_max: 2 }}"))]).await;
        let seen = scenario
            .run(
                r#"06:00 subscriber alice email=alice@example.org zone=Asia/Kolkata
                   06:00 subscriber bob email=bob@example.org zone=Europe/Vienna
                   06:00 subscribe alice nearby
                   06:00 subscribe bob nearby
                   06:10 event quake {"magnitude": 6, "place": "Kobe"}
                   06:20 event quake {"magnitude": 7, "place": "Lima"}
                   06:29:59 event quake {"magnitude": 8, "place": "Rome"}
                   06:45 event quake {"magnitude": 6, "place": "Oslo"}"#,
            )
            .await;
        match window {
            "hourly" => expect![[r#"
                06:30:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, 3 in all, and 1 more -> delivered
                07:00:00 email bob@example.org n-1-1: Kobe 6.0, Lima 7.0, 4 in all, and 2 more -> delivered
                07:30:00 email alice@example.org n-4-0: Oslo 6.0, 1 in all -> delivered"#]]
            .assert_eq(&seen),
            _ => expect![[r#"
                07:00:00 email bob@example.org n-1-1: Kobe 6.0, Lima 7.0, 4 in all, and 2 more -> delivered
                +1d 02:30:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, 4 in all, and 2 more -> delivered"#]]
            .assert_eq(&seen),
        }
    }
}

/// More batches than are claimed at a time.
#[tokio::test(start_paused = true)]
async fn a_window_of_many_batches_is_one_digest() {
    let mut script = "08:00 subscriber alice email=alice@example.org\n08:00 subscribe alice nearby\n".to_owned();
    for second in 0..200 {
        let (minute, second) = (10 + second / 60, second % 60);
        script.push_str(&format!("08:{minute}:{second:02} event quake {{\"magnitude\": 6, \"place\": \"Kobe\"}}\n"));
    }
    check(
        &quakes("digest: { window: hourly, items_max: 1 }"),
        &script,
        expect!["09:00:00 email alice@example.org n-1-0: Kobe 6.0, 200 in all, and 199 more -> delivered"],
    )
    .await;
}

/// The process dies at each journal write while digests are collected and sent: a digest may be repeated, but under
/// one id.
#[tokio::test(start_paused = true)]
async fn slow_a_digest_has_one_id_over_a_crash_at_any_write() {
    for window in ["batch", "hourly"] {
        let definition = quakes(&format!("digest: {{ window: {window} }}"));
        let script = format!(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscriber bob email=bob@example.org
               08:00 subscribe alice nearby
               08:00 subscribe bob nearby {{"magnitude": 6}}
               08:00 alice@example.org defers
               08:10 event quake {THREE}
               08:20 event quake {THREE}
               09:00:30 alice@example.org delivers
               09:50 report"#
        );
        for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
            for write in 1.. {
                let mut scenario = Scenario::new(&[&definition]).await;
                scenario.crash_at(write, moment);
                let seen = scenario.run_and_wait(&script, Duration::from_secs(60)).await;
                let last = seen.lines().last().expect("a report");
                assert!(last.ends_with("notifications 10 open 0 suspended 0"), "{window} {moment:?} {write}:\n{seen}");
                let messages = if window == "batch" { 4 } else { 2 };
                assert_eq!(scenario.messages(), messages, "{window} {moment:?} {write}:\n{seen}");
                if !scenario.has_crashed() {
                    break;
                }
            }
        }
    }
}

/// The example of what a digest in quiet hours looks like.
#[tokio::test(start_paused = true)]
async fn quiet_hours_hold_a_digest_until_morning() {
    check(
        &quakes("digest: { window: hourly }"),
        r#"22:10 subscriber alice email=alice@example.org
           22:10 subscribe alice nearby
           22:10 alice prefers {"quiet_hours": ["22:00-07:00"]}
           22:30 event quake {"magnitude": 6.1, "place": "Kobe"}
           23:15 event quake {"magnitude": 5.2, "place": "Lima"}"#,
        expect!["+1d 07:00:00 email alice@example.org n-1-0: Kobe 6.1, Lima 5.2, 2 in all -> delivered"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_digest_of_a_window_is_tried_again_as_it_was() {
    check(
        &quakes("digest: { window: hourly }"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 alice@example.org defers
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:20 event quake {"magnitude": 7, "place": "Lima"}
           09:00:30 event quake {"magnitude": 8, "place": "Rome"}
           09:02 alice@example.org delivers
           09:03 crash
           11:00 report"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, 2 in all -> deferred
            09:00:00 email bob@example.org n-1-1: Kobe 6.0, Lima 7.0, 2 in all -> delivered
            09:01:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, 2 in all -> deferred
            09:03:00 crash
            09:06:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, 2 in all -> delivered
            10:00:00 email alice@example.org n-3-0: Rome 8.0, 1 in all -> delivered
            10:00:00 email bob@example.org n-3-1: Rome 8.0, 1 in all -> delivered
            11:00:00 events 3 notifications 6 open 0 suspended 0"#]],
    )
    .await;
}

/// Wherever the process dies, each notification is delivered once or repeated under the same id, and none is lost.
#[tokio::test(start_paused = true)]
async fn a_death_at_any_write_loses_nothing_of_a_window() {
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        for write in 1..40 {
            let mut scenario = Scenario::new(&[&quakes("digest: { window: 10m }")]).await;
            scenario.crash_at(write, moment);
            let seen = scenario
                .run_and_wait(
                    r#"08:00 subscriber alice email=alice@example.org
                       08:00 subscribe alice nearby
                       08:10 event quake {"magnitude": 6, "place": "Kobe"}
                       08:15 event quake {"magnitude": 7, "place": "Lima"}
                       08:40 report"#,
                    Duration::from_secs(60),
                )
                .await;
            assert!(seen.contains("events 2 notifications 2 open 0 suspended 0"), "{write} {moment:?}: {seen}");
            let sent: std::collections::BTreeSet<&str> =
                seen.lines().filter_map(|line| line.split_once(" n-")).map(|(_, sent)| sent).collect();
            assert_eq!(
                sent.into_iter().collect::<Vec<_>>(),
                ["1-0: Kobe 6.0, Lima 7.0, 2 in all -> delivered"],
                "{write} {moment:?}: {seen}"
            );
            if !scenario.has_crashed() {
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_channel_falls_back_to_the_next() {
    check(
        &quakes("fallback: [{ channel: sms, after: 30m }]"),
        r#"08:00 subscriber alice email=alice@example.org sms=+431
           08:00 subscriber bob email=bob@example.org sms=+432
           08:00 subscriber carol email=carol@example.org
           08:00 subscriber dan sms=+434
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 subscribe carol nearby
           08:00 subscribe dan nearby
           08:00 alice@example.org refuses
           08:00 bob@example.org defers
           08:00 carol@example.org refuses
           08:00 +434 refuses
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:20 crash
           09:00 report"#,
        expect![[r#"
            08:10:00 email alice@example.org n-1-0: Kobe 6.0 -> refused
            08:10:00 email bob@example.org n-1-1: Kobe 6.0 -> deferred
            08:10:00 email carol@example.org n-1-2: Kobe 6.0 -> refused
            08:10:00 sms +434 n-2-0: Kobe 6.0 -> refused
            08:10:00 sms +431 n-1-0: Kobe 6.0 -> delivered
            08:11:00 email bob@example.org n-1-1: Kobe 6.0 -> deferred
            08:16:00 email bob@example.org n-1-1: Kobe 6.0 -> deferred
            08:20:00 crash
            08:40:00 sms +432 n-1-1: Kobe 6.0 -> delivered
            09:00:00 events 1 notifications 4 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_rests_does_not_stop_the_time_of_its_channel() {
    check(
        &quakes("fallback: [{ channel: sms, after: 30m }]"),
        r#"08:00 subscriber alice email=alice@example.org sms=+431
           08:00 subscriber bob email=bob@example.org sms=+432
           08:00 subscribe alice nearby
           08:00 subscribe bob nearby
           08:00 bob prefers {"quiet_hours": ["08:00-09:00"]}
           08:00 alice@example.org rests 420
           08:00 bob@example.org rests 420
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:15 crash
           10:00 report"#,
        expect![[r#"
            08:15:00 crash
            08:40:00 sms +431 n-1-0: Kobe 6.0 -> delivered
            09:30:00 sms +432 n-1-1: Kobe 6.0 -> delivered
            10:00:00 events 1 notifications 2 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_preferred_channel_of_the_chain_falls_back_to_those_behind_it() {
    check(
        &quakes("fallback: [{ channel: sms }]"),
        r#"08:00 subscriber alice email=alice@example.org sms=+431
           08:00 subscribe alice nearby
           08:00 alice prefers {"notifications": {"*": {"prefer": ["sms"]}}}
           08:00 +431 refuses
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           09:00 report"#,
        expect![[r#"
            08:10:00 sms +431 n-1-0: Kobe 6.0 -> refused
            09:00:00 events 1 notifications 1 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_fails_at_its_end_is_suspended_there() {
    check(
        &quakes("fallback: [{ channel: sms }]"),
        r#"08:00 subscriber alice email=alice@example.org sms=+431
           08:00 subscribe alice nearby
           08:00 alice@example.org defers
           08:00 +431 defers
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           10:00 suspensions
           10:00 +431 delivers
           10:10 resume
           10:20 report"#,
        expect![[r#"
            08:10:00 email alice@example.org n-1-0: Kobe 6.0 -> deferred
            08:11:00 email alice@example.org n-1-0: Kobe 6.0 -> deferred
            08:16:00 email alice@example.org n-1-0: Kobe 6.0 -> deferred
            09:16:00 email alice@example.org n-1-0: Kobe 6.0 -> deferred
            09:16:00 sms +431 n-1-0: Kobe 6.0 -> deferred
            10:00:00 suspended [0] on sms: the only attempt failed: not now
            10:10:00 Resume 1
            10:10:00 sms +431 n-1-0: Kobe 6.0 -> delivered
            10:20:00 events 1 notifications 1 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_edit_replaces_the_failed_notification() {
    let definition = quakes("").replace("{{ place }} {{ magnitude }}", "{{ place }} {{ 10 / magnitude }}");
    check(
        &definition,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby {"magnitude": 0}
           08:10 event quake {"magnitude": 0, "place": "Kobe"} {"magnitude": 5, "place": "Lima"}
           08:20 suspensions
           08:20 edit 1 {"fields": {"magnitude": 2}}
           08:20 resume
           08:30 event quake {"magnitude": 0, "place": "Rome"}
           08:40 edit 2 {"content": {"subject": "there was a quake"}, "address": "bob@example.org"}
           08:40 resume
           08:50 report"#,
        expect![[r#"
            08:10:00 email alice@example.org n-1-1: Lima 2.0 -> delivered
            08:20:00 suspended [0] on email: template `base`, subject, line 1: invalid operation: unable to calculate 10 / 0.0
            08:20:00 edited Some(1)
            08:20:00 Resume 1
            08:20:00 email alice@example.org n-1-0: Kobe 5.0 -> delivered
            08:40:00 edited Some(2)
            08:40:00 Resume 1
            08:40:00 email bob@example.org n-2-0: there was a quake -> delivered
            08:50:00 events 3 notifications 3 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_edited_notification_is_sent_alone_outside_of_digests() {
    check(
        &quakes("digest: {}"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:00 alice@example.org defers
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:20 event quake {"magnitude": 6, "place": "Lima"}
           10:30 alice@example.org delivers
           10:30 suspensions
           10:40 edit 1 {"content": {"subject": "there was a quake"}}
           10:40 resume"#,
        expect![[r#"
            08:10:00 email alice@example.org n-1-0: Kobe 6.0, 1 in all -> deferred
            08:11:00 email alice@example.org n-1-0: Kobe 6.0, 1 in all -> deferred
            08:16:00 email alice@example.org n-1-0: Kobe 6.0, 1 in all -> deferred
            08:20:00 email alice@example.org n-2-0: Lima 6.0, 1 in all -> deferred
            08:21:00 email alice@example.org n-2-0: Lima 6.0, 1 in all -> deferred
            08:26:00 email alice@example.org n-2-0: Lima 6.0, 1 in all -> deferred
            09:16:00 email alice@example.org n-1-0: Kobe 6.0, 1 in all -> deferred
            09:26:00 email alice@example.org n-2-0: Lima 6.0, 1 in all -> deferred
            10:30:00 suspended [0] on email: all 4 attempts failed, the last with: not now
            10:30:00 suspended [0] on email: all 4 attempts failed, the last with: not now
            10:40:00 edited Some(1)
            10:40:00 Resume 2
            10:40:00 email alice@example.org n-2-0: Lima 6.0, 1 in all -> delivered
            10:40:00 email alice@example.org n-1-0: there was a quake -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn recipients_of_the_same_content_get_one_message() {
    let mut scenario = Scenario::new(&[&quakes("multicast: { recipient_limit: 3 }")]).await;
    let mut script = String::new();
    for who in ["ann", "ben", "cat", "dan", "eve"] {
        script += &format!("08:00 subscriber {who} email={who}@example.org\n08:00 subscribe {who} nearby\n");
    }
    script += "08:00 subscriber fay email=fay@example.org locale=de\n08:00 subscribe fay nearby\n";
    script += "08:00 ben@example.org defers\n";
    script += r#"08:10 event quake {"magnitude": 6, "place": "Kobe"} {"magnitude": 7, "place": "Lima"}"#;
    script += "\n08:10:30 ben@example.org delivers";
    let seen = scenario.run(&script).await;
    assert_eq!(seen.lines().filter(|line| line.ends_with("delivered")).count(), 12, "{seen}");
    // For each event: three and two, and one in German.
    assert_eq!(scenario.messages(), 6, "{seen}");
}

#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_multicast_applies_to_each_notification() {
    check(
        &quakes("multicast: { recipient_limit: 3 }"),
        r#"08:00 subscriber ann email=ann@example.org
           08:00 subscribe ann nearby
           08:00 subscriber ben email=ben@example.org
           08:00 subscribe ben nearby
           08:00 subscriber cat email=cat@example.org
           08:00 subscribe cat nearby
           08:00 ann@example.org defers
           08:00 ben@example.org defers
           08:00 cat@example.org defers
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:10:30 ann@example.org delivers
           08:10:30 ben@example.org refuses
           08:10:30 cat@example.org delivers
           08:20 event quake {"magnitude": 7, "place": "Lima"}
           08:30 report"#,
        expect![[r#"
            08:10:00 email ann@example.org n-1-0: Kobe 6.0 -> deferred
            08:10:00 email ben@example.org n-1-1: Kobe 6.0 -> deferred
            08:10:00 email cat@example.org n-1-2: Kobe 6.0 -> deferred
            08:11:00 email ann@example.org n-1-0: Kobe 6.0 -> delivered
            08:11:00 email ben@example.org n-1-1: Kobe 6.0 -> refused
            08:11:00 email cat@example.org n-1-2: Kobe 6.0 -> delivered
            08:20:00 email ann@example.org n-2-0: Lima 7.0 -> delivered
            08:20:00 email ben@example.org n-2-1: Lima 7.0 -> refused
            08:20:00 email cat@example.org n-2-2: Lima 7.0 -> delivered
            08:30:00 events 2 notifications 6 open 0 suspended 0"#]],
    )
    .await;
}

#[test]
fn a_multicast_template_cannot_use_the_subscriber() {
    let definition = quakes("multicast: {}").replace("{{ place }}", "{{ subscriber.id }} {{ notification.rule }}");
    let Err(problems) = tocsin_pipeline::compile_text(&definition, 1, &|_| None) else { panic!("it is compiled") };
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert!(shown[0].contains("reads `subscriber.id`, but one message goes to several subscribers"), "{shown:?}");
    assert!(tocsin_pipeline::compile_text(&quakes("multicast: {}"), 1, &|_| None).is_ok());
}

const NEWS: &str = r#"
application: town
events: { news: { fields: { title: string } }, alarm: { fields: { title: string } } }
subscriptions: { reader: {}, guard: {} }
notifications:
  news: { fields: { title: string }, priority: low, content: { templates: { base: { subject: "{{ title }}" } } } }
  alarm: { fields: { title: string }, priority: urgent, content: { templates: { base: { subject: "{{ title }}" } } } }
rules:
  news: { on: news, subscription: reader, notify: news }
  alarm: { on: alarm, subscription: guard, notify: alarm }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org } }
"#;

/// The receiver takes an hour per message, and four may be in flight: the fifth news item waits for that hour.
#[tokio::test(start_paused = true)]
async fn urgent_work_does_not_wait_for_work_begun_before_it() {
    let options = PipelineOptions { in_flight_per_channel: 4, ..PipelineOptions::default() };
    let mut scenario = Scenario::with(&[NEWS], options).await;
    let seen = scenario
        .run(
            r#"08:00 subscriber rita email=rita@example.org
               08:00 subscriber gus email=gus@example.org
               08:00 subscribe rita reader
               08:00 subscribe gus guard
               08:00 rita@example.org ponders 3600
               08:10 event news {"title": "one"} {"title": "two"}
               08:11 event news {"title": "three"} {"title": "four"}
               08:12 event news {"title": "five"}
               08:20 event alarm {"title": "fire"}"#,
        )
        .await;
    expect![[r#"
        08:10:00 email rita@example.org n-1-0: one -> delivered
        08:10:00 email rita@example.org n-1-1: two -> delivered
        08:11:00 email rita@example.org n-2-0: three -> delivered
        08:11:00 email rita@example.org n-2-1: four -> delivered
        08:20:00 email gus@example.org n-4-0: fire -> delivered
        09:10:00 email rita@example.org n-3-0: five -> delivered"#]]
    .assert_eq(&seen);
}

/// The given number of subscribers, each with a subscription.
fn with_subscribers(count: usize, terms: &str, then: &str) -> String {
    let mut script = String::new();
    for number in 0..count {
        script.push_str(&format!("01:00 subscriber s{number} email=s{number}@example.org\n"));
        script.push_str(&format!("01:00 subscribe s{number} nearby {{}}{terms}\n"));
    }
    script + then
}

const TWENTY: usize = 20;
const A_QUAKE: &str = r#"{"magnitude": 6, "place": "Kobe"}"#;

/// Twenty events as one batch.
fn at_once() -> String {
    format!("02:00 event quake {}\n", [A_QUAKE; TWENTY].join(" "))
}

/// Twenty events as one batch each.
fn one_by_one() -> String {
    (0..TWENTY).map(|minute| format!("02:{minute:02} event quake {A_QUAKE}\n")).collect()
}

/// Numbers of messages and of notifications of a script.
async fn messages_of(definition: &str, options: PipelineOptions, script: &str) -> (usize, u64) {
    let options = PipelineOptions { upkeep_seconds: 900, ..options };
    let mut scenario = Scenario::with(&[definition], options).await;
    let seen = scenario.run_and_wait(script, Duration::from_secs(2 * 86_400)).await;
    assert!(seen.lines().all(|line| line.ends_with("delivered")), "{seen}");
    (scenario.messages(), scenario.journal().totals().notifications)
}

/// Batches of 250, and 100 subscribers with 20 notifications each: cut by the order of events, each would get eight messages.
#[tokio::test(start_paused = true)]
async fn b6_an_event_batch_is_one_digest_for_each_subscriber() {
    for match_shards in [1, 3] {
        let options = PipelineOptions { match_shards, ..PipelineOptions::default() };
        let script = with_subscribers(100, "", &at_once());
        let made = messages_of(&quakes("digest: {}\n    batch_size: 250"), options, &script).await;
        assert_eq!(made, (100, 2_000), "{match_shards} shards");
    }
}

#[tokio::test(start_paused = true)]
async fn b6_a_window_over_many_batches_is_one_digest_for_each_subscriber() {
    for events in [at_once(), one_by_one()] {
        let script = with_subscribers(100, "", &events);
        let delivery_policy = "digest: { window: daily 08:00 }\n    batch_size: 250";
        assert_eq!(messages_of(&quakes(delivery_policy), PipelineOptions::default(), &script).await, (100, 2_000));
    }
}

/// Holds too if a run makes more notifications than a step may have: a step then covers fewer subscribers.
#[tokio::test(start_paused = true)]
async fn b6_a_daily_run_is_one_digest_for_each_subscriber() {
    let definition = quakes("digest: {}\n    batch_size: 250")
        .replace("default: 5 } } }", "default: 5 } }, schedule: required }")
        .replace("notify: alert }", "notify: alert, schedule: subscription }");
    for events in [at_once(), one_by_one()] {
        for run_notifications in [500_000, 300, 1] {
            let options = PipelineOptions { run_notifications, ..PipelineOptions::default() };
            let script = with_subscribers(100, " at DTSTART:20260301T080000|RRULE:FREQ=DAILY", &events);
            let made = messages_of(&definition, options, &script).await;
            assert_eq!(made, (100, 2_000), "{run_notifications} at most in a step");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b6_an_event_is_as_few_multicasts_as_its_recipients_need() {
    for match_shards in [1, 3] {
        let options = PipelineOptions { match_shards, ..PipelineOptions::default() };
        let script = with_subscribers(100, "", &at_once());
        let delivery_policy = "multicast: { recipient_limit: 50 }\n    batch_size: 130";
        // Two of 50 for each event; in batches of 130 every second event would be in two.
        assert_eq!(messages_of(&quakes(delivery_policy), options, &script).await, (40, 2_000), "{match_shards} shards");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_and_critical_ones_only_hold_back_all_but_critical_notifications() {
    let script = r#"08:00 subscriber alice email=alice@example.org
       08:00 subscribe alice nearby
       08:00 alice prefers {"paused_until": "2026-03-01T10:00:00Z"}
       09:00 event quake {"magnitude": 6, "place": "Kobe"}
       10:00 event quake {"magnitude": 6, "place": "Lima"}
       11:00 alice prefers {"only_critical": true, "notifications": {"quakes/alert": {"enabled": true}}}
       11:30 event quake {"magnitude": 6, "place": "Rome"}
       12:00 alice prefers {}
       12:30 event quake {"magnitude": 6, "place": "Oslo"}
       13:00 report"#;
    check(
        &quakes(""),
        script,
        expect![[r#"
            10:00:00 email alice@example.org n-2-0: Lima 6.0 -> delivered
            12:30:00 email alice@example.org n-4-0: Oslo 6.0 -> delivered
            13:00:00 events 4 notifications 4 open 0 suspended 0"#]],
    )
    .await;
    check(
        &quakes("critical: true"),
        script,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: Kobe 6.0 -> delivered
            10:00:00 email alice@example.org n-2-0: Lima 6.0 -> delivered
            11:30:00 email alice@example.org n-3-0: Rome 6.0 -> delivered
            12:30:00 email alice@example.org n-4-0: Oslo 6.0 -> delivered
            13:00:00 events 4 notifications 4 open 0 suspended 0"#]],
    )
    .await;
}

/// A digest window of a subscriber replaces that of the class, also over a crash.
#[tokio::test(start_paused = true)]
async fn a_subscriber_may_prefer_a_daily_digest() {
    for window in ["batch", "10m", "hourly"] {
        check(
            &quakes(&format!("digest: {{ window: {window} }}")),
            r#"08:00 subscriber alice email=alice@example.org zone=Europe/Vienna
               08:00 subscribe alice nearby
               08:30 alice prefers {"notifications": {"quakes": {"digest": "daily 18:00"}}}
               09:10 event quake {"magnitude": 6, "place": "Kobe"}
               10:00 crash
               11:20 event quake {"magnitude": 7, "place": "Lima"}
               16:00 report
               18:30 report"#,
            expect![[r#"
                10:00:00 crash
                16:00:00 events 2 notifications 2 open 2 suspended 0
                17:00:00 email alice@example.org n-1-0: Kobe 6.0, Lima 7.0, 2 in all -> delivered
                18:30:00 events 2 notifications 2 open 0 suspended 0"#]],
        )
        .await;
    }
}

/// A subscription that ends while its notification waits ends the notification, also in a digest.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_window_or_a_retry_is_not_sent_after_the_end_of_its_subscription() {
    check(
        &quakes("digest: { window: 10m }"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:15 unsubscribe alice
           08:30 report"#,
        expect!["08:30:00 events 1 notifications 1 open 0 suspended 0"],
    )
    .await;
    check(
        &quakes(""),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice nearby
           08:10 alice@example.org defers
           08:10 event quake {"magnitude": 6, "place": "Kobe"}
           08:10:30 unsubscribe alice
           08:30 report"#,
        expect![[r#"
            08:10:00 email alice@example.org n-1-0: Kobe 6.0 -> deferred
            08:30:00 events 1 notifications 1 open 0 suspended 0"#]],
    )
    .await;
}
