//! Scenarios of endpoints that fail for days.

use expect_test::{Expect, expect};
use tocsin_testkit::check;

const QUAKES: &str = r#"
application: quakes
events:
  quake: { fields: { place: string } }
subscriptions:
  any: {}
notifications:
  alert:
    fields: { place: string }
    content: { templates: { base: { subject: "{{ place }}" } } }
rules:
  every: { on: quake, subscription: any, notify: alert }
channels:
  hook: { protocol: http, disable_after: 4d, retry: { delays: [12h, 12h, 12h], jitter: 0% } }
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: { delays: [12h, 12h, 12h], jitter: 0% } }
"#;

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_fails_for_days_is_switched_off_over_restarts() {
    check(
        QUAKES,
        r#"08:00 subscriber ann hook=https://ann.example/
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe ann any
           08:00 subscribe bob any
           08:00 https://ann.example/ defers
           08:00 bob@example.org defers
           08:10 event quake {"place": "Kobe"}
           08:20 endpoints
           +1d09:00 event quake {"place": "Lima"}
           +1d09:01 crash
           +2d08:00 endpoints
           +2d09:00 event quake {"place": "Rome"}
           +2d09:01 endpoints
           +2d09:02 crash
           +3d09:00 event quake {"place": "Oslo"}
           +4d09:00 event quake {"place": "Bern"}
           +4d09:01 endpoints
           +4d09:02 event quake {"place": "Wien"}
           +4d10:00 revive ann hook
           +4d10:01 https://ann.example/ delivers
           +4d10:02 event quake {"place": "Graz"}
           +4d10:03 endpoints
           +4d10:04 report"#,
        expect![[r#"
            08:10:00 email bob@example.org n-2-0: Kobe -> deferred
            08:10:00 hook https://ann.example/ n-1-0: Kobe -> deferred
            08:20:00 https://ann.example/ fails since 08:10:00, warned false, disabled false
            20:10:00 email bob@example.org n-2-0: Kobe -> deferred
            20:10:00 hook https://ann.example/ n-1-0: Kobe -> deferred
            +1d 08:10:00 email bob@example.org n-2-0: Kobe -> deferred
            +1d 08:10:00 hook https://ann.example/ n-1-0: Kobe -> deferred
            +1d 09:00:00 email bob@example.org n-4-0: Lima -> deferred
            +1d 09:00:00 hook https://ann.example/ n-3-0: Lima -> deferred
            +1d 09:01:00 crash
            +1d 20:10:00 email bob@example.org n-2-0: Kobe -> deferred
            +1d 20:10:00 hook https://ann.example/ n-1-0: Kobe -> deferred
            +1d 21:00:00 email bob@example.org n-4-0: Lima -> deferred
            +1d 21:00:00 hook https://ann.example/ n-3-0: Lima -> deferred
            +2d 08:00:00 https://ann.example/ fails since 08:10:00, warned false, disabled false
            +2d 09:00:00 email bob@example.org n-4-0: Lima -> deferred
            +2d 09:00:00 email bob@example.org n-6-0: Rome -> deferred
            +2d 09:00:00 hook https://ann.example/ n-3-0: Lima -> deferred
            +2d 09:00:00 hook https://ann.example/ n-5-0: Rome -> deferred
            +2d 09:01:00 https://ann.example/ fails since 08:10:00, warned true, disabled false
            +2d 09:02:00 crash
            +2d 21:00:00 email bob@example.org n-4-0: Lima -> deferred
            +2d 21:00:00 email bob@example.org n-6-0: Rome -> deferred
            +2d 21:00:00 hook https://ann.example/ n-3-0: Lima -> deferred
            +2d 21:00:00 hook https://ann.example/ n-5-0: Rome -> deferred
            +3d 09:00:00 email bob@example.org n-6-0: Rome -> deferred
            +3d 09:00:00 email bob@example.org n-8-0: Oslo -> deferred
            +3d 09:00:00 hook https://ann.example/ n-5-0: Rome -> deferred
            +3d 09:00:00 hook https://ann.example/ n-7-0: Oslo -> deferred
            +3d 21:00:00 email bob@example.org n-6-0: Rome -> deferred
            +3d 21:00:00 email bob@example.org n-8-0: Oslo -> deferred
            +3d 21:00:00 hook https://ann.example/ n-5-0: Rome -> deferred
            +3d 21:00:00 hook https://ann.example/ n-7-0: Oslo -> deferred
            +4d 09:00:00 email bob@example.org n-8-0: Oslo -> deferred
            +4d 09:00:00 email bob@example.org n-10-0: Bern -> deferred
            +4d 09:00:00 hook https://ann.example/ n-7-0: Oslo -> deferred
            +4d 09:00:00 hook https://ann.example/ n-9-0: Bern -> deferred
            +4d 09:01:00 https://ann.example/ fails since 08:10:00, warned true, disabled true
            +4d 09:02:00 email bob@example.org n-12-0: Wien -> deferred
            +4d 10:02:00 email bob@example.org n-14-0: Graz -> deferred
            +4d 10:02:00 hook https://ann.example/ n-13-0: Graz -> delivered
            +4d 10:04:00 events 7 notifications 14 open 6 suspended 7
            +4d 21:00:00 email bob@example.org n-8-0: Oslo -> deferred
            +4d 21:00:00 email bob@example.org n-10-0: Bern -> deferred
            +4d 21:00:00 hook https://ann.example/ n-7-0: Oslo -> delivered
            +4d 21:00:00 hook https://ann.example/ n-9-0: Bern -> delivered
            +4d 21:02:00 email bob@example.org n-12-0: Wien -> deferred
            +4d 22:02:00 email bob@example.org n-14-0: Graz -> deferred
            +5d 09:00:00 email bob@example.org n-10-0: Bern -> deferred
            +5d 09:02:00 email bob@example.org n-12-0: Wien -> deferred
            +5d 10:02:00 email bob@example.org n-14-0: Graz -> deferred
            +5d 21:00:00 email bob@example.org n-10-0: Bern -> deferred
            +5d 21:02:00 email bob@example.org n-12-0: Wien -> deferred
            +5d 22:02:00 email bob@example.org n-14-0: Graz -> deferred"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_success_or_a_long_silence_resets_the_clock() {
    check(
        QUAKES,
        r#"08:00 subscriber ann hook=https://ann.example/
           08:00 subscribe ann any
           08:00 https://ann.example/ refuses
           08:10 event quake {"place": "Kobe"}
           +1d08:10 event quake {"place": "Lima"}
           +2d08:10 https://ann.example/ delivers
           +2d08:11 event quake {"place": "Rome"}
           +2d08:12 endpoints
           +2d08:13 https://ann.example/ refuses
           +2d08:14 event quake {"place": "Oslo"}
           +5d08:10 event quake {"place": "Bern"}
           +6d08:20 event quake {"place": "Wien"}
           +6d08:21 endpoints"#,
        expect![[r#"
            08:10:00 hook https://ann.example/ n-1-0: Kobe -> refused
            +1d 08:10:00 hook https://ann.example/ n-2-0: Lima -> refused
            +2d 08:11:00 hook https://ann.example/ n-3-0: Rome -> delivered
            +2d 08:14:00 hook https://ann.example/ n-4-0: Oslo -> refused
            +5d 08:10:00 hook https://ann.example/ n-5-0: Bern -> refused
            +6d 08:20:00 hook https://ann.example/ n-6-0: Wien -> refused
            +6d 08:21:00 https://ann.example/ fails since +5d 08:10:00, warned false, disabled false"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_switched_on_again_has_as_long_as_any_other() {
    check(
        QUAKES,
        r#"08:00 subscriber ann hook=https://ann.example/
           08:00 subscribe ann any
           08:00 https://ann.example/ refuses
           08:10 event quake {"place": "Kobe"}
           +1d08:10 event quake {"place": "Lima"}
           +2d08:10 event quake {"place": "Rome"}
           +3d08:10 event quake {"place": "Oslo"}
           +4d08:10 event quake {"place": "Bern"}
           +4d08:11 endpoints
           +4d09:00 revive ann hook
           +4d09:01 event quake {"place": "Wien"}
           +4d09:02 endpoints
           +5d09:00 event quake {"place": "Graz"}
           +5d09:01 endpoints"#,
        expect![[r#"
            08:10:00 hook https://ann.example/ n-1-0: Kobe -> refused
            +1d 08:10:00 hook https://ann.example/ n-2-0: Lima -> refused
            +2d 08:10:00 hook https://ann.example/ n-3-0: Rome -> refused
            +3d 08:10:00 hook https://ann.example/ n-4-0: Oslo -> refused
            +4d 08:10:00 hook https://ann.example/ n-5-0: Bern -> refused
            +4d 08:11:00 https://ann.example/ fails since 08:10:00, warned true, disabled true
            +4d 09:01:00 hook https://ann.example/ n-6-0: Wien -> refused
            +4d 09:02:00 https://ann.example/ fails since +4d 09:01:00, warned false, disabled false
            +5d 09:00:00 hook https://ann.example/ n-7-0: Graz -> refused
            +5d 09:01:00 https://ann.example/ fails since +4d 09:01:00, warned false, disabled false"#]],
    )
    .await;
}

const WITH_EVENTS: &str = r#"
application: quakes
events:
  quake: { fields: { place: string } }
  trouble:
    fields:
      owner: { type: string, required: true }
      endpoint: string
      via: string
      disabled: boolean
      since: timestamp
      until: timestamp
      failures: integer
      reason: string
      hint: { type: string, default: "See the log." }
subscriptions:
  any: {}
  operators: {}
notifications:
  alert:
    fields: { place: string }
    content: { templates: { base: { subject: "{{ place }}" } } }
  switched:
    fields: { owner: string, endpoint: string, via: string, disabled: boolean, since: timestamp, until: timestamp, failures: integer, reason: string, hint: string }
    content:
      templates:
        base:
          subject: >-
            {{ owner }}'s {{ endpoint }} via {{ via }}, {{ failures }} failures since {{ since }}, until {{ until }}, off: {{ disabled }}, {{ reason }}. {{ hint }}
rules:
  every: { on: quake, subscription: any, notify: alert }
  failing: { on: trouble, subscription: operators, notify: switched }
channels:
  hook: { protocol: http, disable_after: 4d, endpoint_event: trouble, retry: [] }
  email: { protocol: smtp, options: { host: localhost, from: t@example.org } }
"#;

/// Runs a scenario of Ann's endpoint, which fails from the first day on, and of an operator who receives the endpoint
/// events.
async fn check_endpoint_events(story: &str, expected: Expect) {
    let before = r#"08:00 subscriber ann hook=https://ann.example/
           08:00 subscriber ops email=ops@example.org
           08:00 subscribe ann any
           08:00 subscribe ops operators
           08:00 https://ann.example/ refuses
           08:10 event quake {"place": "Kobe"}
           +1d09:00 event quake {"place": "Lima"}"#;
    check(WITH_EVENTS, &format!("{before}\n{story}"), expected).await;
}

#[tokio::test(start_paused = true)]
async fn failing_endpoints_raise_events() {
    check_endpoint_events(
        r#"+2d09:00 event quake {"place": "Rome"}
           +2d09:01 crash
           +3d09:00 event quake {"place": "Oslo"}
           +4d09:00 event quake {"place": "Bern"}
           +4d09:01 crash
           +4d09:02 event quake {"place": "Wien"}"#,
        expect![[r#"
            08:10:00 hook https://ann.example/ n-1-0: Kobe -> refused
            +1d 09:00:00 hook https://ann.example/ n-2-0: Lima -> refused
            +2d 09:00:00 email ops@example.org n-4-0: ann's hook via hook, 3 failures since 2026-03-01T08:10:00Z, until 2026-03-05T08:10:00Z, off: False, never. See the log. -> delivered
            +2d 09:00:00 hook https://ann.example/ n-3-0: Rome -> refused
            +2d 09:01:00 crash
            +3d 09:00:00 hook https://ann.example/ n-5-0: Oslo -> refused
            +4d 09:00:00 email ops@example.org n-7-0: ann's hook via hook, 5 failures since 2026-03-01T08:10:00Z, until 2026-03-05T08:10:00Z, off: True, never. See the log. -> delivered
            +4d 09:00:00 hook https://ann.example/ n-6-0: Bern -> refused
            +4d 09:01:00 crash"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_event_that_is_not_accepted_is_repeated_at_the_next_failure() {
    check_endpoint_events(
        r#"+2d08:50 switch off event-class:quakes/trouble disabled
           +2d09:00 event quake {"place": "Rome"}
           +2d09:01 endpoints
           +2d09:02 switch on event-class:quakes/trouble
           +2d09:03 event quake {"place": "Bonn"}
           +2d09:04 endpoints
           +3d09:00 event quake {"place": "Oslo"}
           +4d08:50 switch off event-class:quakes/trouble disabled
           +4d09:00 event quake {"place": "Bern"}
           +4d09:01 endpoints
           +4d09:02 switch on event-class:quakes/trouble
           +4d09:03 event quake {"place": "Wien"}
           +4d09:04 endpoints
           +4d09:05 event quake {"place": "Graz"}"#,
        expect![[r#"
            08:10:00 hook https://ann.example/ n-1-0: Kobe -> refused
            +1d 09:00:00 hook https://ann.example/ n-2-0: Lima -> refused
            +2d 09:00:00 hook https://ann.example/ n-3-0: Rome -> refused
            +2d 09:01:00 https://ann.example/ fails since 08:10:00, warned false, disabled false
            +2d 09:03:00 email ops@example.org n-5-0: ann's hook via hook, 4 failures since 2026-03-01T08:10:00Z, until 2026-03-05T08:10:00Z, off: False, never. See the log. -> delivered
            +2d 09:03:00 hook https://ann.example/ n-4-0: Bonn -> refused
            +2d 09:04:00 https://ann.example/ fails since 08:10:00, warned true, disabled false
            +3d 09:00:00 hook https://ann.example/ n-6-0: Oslo -> refused
            +4d 09:00:00 hook https://ann.example/ n-7-0: Bern -> refused
            +4d 09:01:00 https://ann.example/ fails since 08:10:00, warned true, disabled false
            +4d 09:03:00 email ops@example.org n-9-0: ann's hook via hook, 7 failures since 2026-03-01T08:10:00Z, until 2026-03-05T08:10:00Z, off: True, never. See the log. -> delivered
            +4d 09:03:00 hook https://ann.example/ n-8-0: Wien -> refused
            +4d 09:04:00 https://ann.example/ fails since 08:10:00, warned true, disabled true"#]],
    )
    .await;
}
