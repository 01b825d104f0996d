//! Scenarios of failed notifications that are sent again.

use std::time::Duration;

use expect_test::expect;
use tocsin_testkit::{CrashPoint, Scenario, check};

const QUAKES: &str = r#"
application: quakes
events:
  quake: { fields: { place: string } }
subscriptions:
  any: {}
notifications:
  alert:
    fields: { place: string }
    expires_after: 2h
    content: { templates: { base: { subject: "{{ place }}" } } }
rules:
  every: { on: quake, subscription: any, notify: alert }
channels:
  hook: { protocol: http, retry: [] }
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: [] }
"#;

const PEOPLE: &str = "08:00 subscriber ann hook=https://ann.example/
           08:00 subscriber bob email=bob@example.org
           08:00 subscriber eve email=eve@example.org
           08:00 subscribe ann any
           08:00 subscribe bob any
           08:00 subscribe eve any
           08:00 https://ann.example/ refuses
           08:00 bob@example.org defers
           08:10 event quake {\"place\": \"Kobe\"}
           08:20 event quake {\"place\": \"Lima\"}
           08:30 https://ann.example/ delivers
           08:30 bob@example.org delivers";

#[tokio::test(start_paused = true)]
async fn refused_and_suspended_notifications_are_sent_again_under_their_ids() {
    check(
        QUAKES,
        &format!(
            r#"{PEOPLE}
           08:31 report
           08:40 resend {{"subscriber": "ann", "since": "2026-03-01T08:15:00Z"}}
           08:41 resend {{"channel": "email"}}
           08:42 resend {{"application": "quakes"}}
           08:43 resend {{"application": "quakes"}}
           08:44 report"#
        ),
        expect![[r#"
            08:10:00 email bob@example.org n-2-0: Kobe -> deferred
            08:10:00 email eve@example.org n-2-1: Kobe -> delivered
            08:10:00 hook https://ann.example/ n-1-0: Kobe -> refused
            08:20:00 email bob@example.org n-4-0: Lima -> deferred
            08:20:00 email eve@example.org n-4-1: Lima -> delivered
            08:20:00 hook https://ann.example/ n-3-0: Lima -> refused
            08:31:00 events 2 notifications 6 open 0 suspended 2
            08:40:00 request 1 sends 1 again
            08:40:00 hook https://ann.example/ n-3-0: Lima -> delivered
            08:41:00 request 2 sends 2 again
            08:41:00 email bob@example.org n-2-0: Kobe -> delivered
            08:41:00 email bob@example.org n-4-0: Lima -> delivered
            08:42:00 request 3 sends 1 again
            08:42:00 hook https://ann.example/ n-1-0: Kobe -> delivered
            08:43:00 request 4 sends 0 again
            08:44:00 events 2 notifications 6 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_notification_or_all_of_a_reason_are_sent_again() {
    check(
        QUAKES,
        &format!(
            r#"{PEOPLE}
           08:40 resend {{"notification": "n-2-0"}}
           08:41 resend {{"notification": "n-9-0"}}
           08:42 resend {{"reason": "NEVER"}}
           08:43 resend {{"reason": "nothing"}}
           08:44 resend {{"outcomes": ["suspended"], "until": "2026-03-01T08:15:00Z"}}
           08:45 report"#
        ),
        expect![[r#"
            08:10:00 email bob@example.org n-2-0: Kobe -> deferred
            08:10:00 email eve@example.org n-2-1: Kobe -> delivered
            08:10:00 hook https://ann.example/ n-1-0: Kobe -> refused
            08:20:00 email bob@example.org n-4-0: Lima -> deferred
            08:20:00 email eve@example.org n-4-1: Lima -> delivered
            08:20:00 hook https://ann.example/ n-3-0: Lima -> refused
            08:40:00 request 1 sends 1 again
            08:40:00 email bob@example.org n-2-0: Kobe -> delivered
            08:41:00 request 2 sends 0 again
            08:42:00 request 3 sends 2 again
            08:42:00 hook https://ann.example/ n-1-0: Kobe -> delivered
            08:42:00 hook https://ann.example/ n-3-0: Lima -> delivered
            08:43:00 request 4 sends 0 again
            08:44:00 request 5 sends 0 again
            08:45:00 events 2 notifications 6 open 0 suspended 1"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn as_new_has_an_id_and_a_time_of_its_own() {
    check(
        QUAKES,
        &format!(
            r#"{PEOPLE}
           12:00 resend {{"outcomes": ["refused"]}}
           12:01 resend {{"outcomes": ["refused", "expired"], "as_new": true}}
           12:02 resend {{"outcomes": ["refused", "expired"], "as_new": true}}
           12:03 report"#
        ),
        expect![[r#"
            08:10:00 email bob@example.org n-2-0: Kobe -> deferred
            08:10:00 email eve@example.org n-2-1: Kobe -> delivered
            08:10:00 hook https://ann.example/ n-1-0: Kobe -> refused
            08:20:00 email bob@example.org n-4-0: Lima -> deferred
            08:20:00 email eve@example.org n-4-1: Lima -> delivered
            08:20:00 hook https://ann.example/ n-3-0: Lima -> refused
            12:00:00 request 1 sends 2 again
            12:01:00 request 2 sends 2 again
            12:01:00 hook https://ann.example/ n-5-0: Kobe -> delivered
            12:01:00 hook https://ann.example/ n-6-0: Lima -> delivered
            12:02:00 request 3 sends 0 again
            12:03:00 events 2 notifications 8 open 0 suspended 2"#]],
    )
    .await;
}

/// The process dies at each journal write during a resend: all notifications are sent, and repetitions have the same
/// id.
#[tokio::test(start_paused = true)]
async fn slow_it_is_carried_out_over_a_crash_at_any_write() {
    let script = format!(
        r#"{PEOPLE}
           08:40 resend {{"application": "quakes"}}
           09:00 report"#
    );
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        for write in 1.. {
            let mut scenario = Scenario::new(&[QUAKES]).await;
            scenario.crash_at(write, moment);
            let seen = scenario.run_and_wait(&script, Duration::from_secs(60)).await;
            let last = seen.lines().rfind(|line| line.contains("events")).expect("a report");
            assert!(last.ends_with("notifications 6 open 0 suspended 0"), "{moment:?} {write}:\n{seen}");
            assert_eq!(scenario.messages(), 6, "{moment:?} {write}:\n{seen}");
            if !scenario.has_crashed() {
                break;
            }
        }
    }
}

/// The channel is removed by a new version, and its worker ends with the process.
#[tokio::test(start_paused = true)]
async fn b16_a_resend_to_a_missing_channel_is_suspended() {
    let without = QUAKES.replace("  hook: { protocol: http, retry: [] }\n", "");
    assert_ne!(without, QUAKES);
    let mut scenario = Scenario::new(&[QUAKES, &without]).await;
    let script = format!(
        r#"{PEOPLE}
           08:35 apply
           08:36 crash
           08:40 resend {{"notification": "n-1-0"}}
           08:41 suspensions
           08:42 resend {{"notification": "n-3-0", "as_new": true}}
           08:43 suspensions
           08:44 report"#
    );
    let transcript = scenario.run(&script).await;
    let transcript: Vec<&str> = transcript.lines().filter(|line| *line >= "08:36").collect();
    expect![[r#"
        08:36:00 crash
        08:40:00 request 1 sends 1 again
        08:41:00 suspended [0] on email: the only attempt failed: not now
        08:41:00 suspended [0] on email: the only attempt failed: not now
        08:41:00 suspended [0] on hook: the application has no channel `hook`
        08:42:00 request 2 sends 1 again
        08:43:00 suspended [0] on email: the only attempt failed: not now
        08:43:00 suspended [0] on email: the only attempt failed: not now
        08:43:00 suspended [0] on hook: the application has no channel `hook`
        08:43:00 suspended [0] on hook: the application has no channel `hook`
        08:44:00 events 2 notifications 7 open 0 suspended 4"#]]
    .assert_eq(&transcript.join("\n"));
}
