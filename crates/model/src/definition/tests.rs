mod attributes;
mod chronicles;
mod collections;
mod consent;
mod differences;
mod files;
mod functions;
mod hostile;
mod lifecycle;
mod schedules;
mod secrets;
mod text;
mod classes;
mod rules;

use expect_test::{Expect, expect};

use super::*;
use differences::differences;

/// A definition that uses everything.
const QUAKES: &str = r#"# An application that uses everything.
application: quakes
description: Notifies people about earthquakes near them.
events:
  quake:
    description: An earthquake, as the USGS reports it.
    fields:
      magnitude: { type: number, required: true, description: Moment magnitude }
      place: string
      latitude: number
      longitude: number
      at: timestamp
subscriptions:
  nearby:
    fields:
      magnitude: { type: number, default: 4.5 }
      radius_km: number
      latitude: { type: number, required: true }
      longitude: { type: number, required: true }
notifications:
  quake_alert:
    fields: { magnitude: number, place: string, distance_km: number }
    batch_size: 500
    expires_after: 24h
    content:
      engine: jinja
      templates:
        base: { subject: "M {{ magnitude }}", text: "Quake: {{ place }}", html: "<p>{{ place }}</p>", json: "{}" }
        de: { subject: Beben }
        de-AT/email: { text: Servus }
        hook: { json: "{}" }
rules:
  near_me:
    on: quake
    subscription: nearby
    when: event.magnitude >= sub.magnitude
    notify: quake_alert
    with: { distance_km: "distance_km(event.latitude, event.longitude, sub.latitude, sub.longitude)" }
channels:
  email:
    protocol: smtp
    options:
      host: "${SMTP_HOST:-127.0.0.1}"
      port: ${SMTP_PORT:-25}
      password: "${SMTP_PASSWORD}"
      note: "5 $$ and $ and $x"
    retry: { delays: [1m, PT5M], jitter: 20% }
    concurrency: 4
    lease: 1m
  hook: { protocol: http, retry: [] }
sources:
  feed: { kind: http, events: [quake] }
retention: { finished: 30d }
"#;

fn environment(name: &str) -> Option<String> {
    match name {
        "SMTP_PASSWORD" => Some("secret".to_owned()),
        "SMTP_PORT" => Some("2525".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

fn problems(text: &str) -> String {
    match read(text, &environment) {
        Ok(_) => "fine".to_owned(),
        Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

#[track_caller]
fn check(text: &str, expected: Expect) {
    expected.assert_eq(&problems(text));
}

/// The definition above with one piece of it replaced.
#[track_caller]
fn check_with(piece: &str, replacement: &str, expected: Expect) {
    assert_eq!(QUAKES.matches(piece).count(), 1, "`{piece}` is in the definition once");
    check(&QUAKES.replace(piece, replacement), expected);
}

#[test]
fn a_definition_becomes_an_application() {
    let application = read(QUAKES, &environment).expect("a definition");
    expect![[r#"
        {
            Name(
                "email",
            ): Channel {
                protocol: Name(
                    "smtp",
                ),
                options: {
                    "host": String("127.0.0.1"),
                    "port": Number(2525),
                    "password": String("secret"),
                    "note": String("5 $ and $ and $x"),
                },
                retry: RetrySchedule {
                    delays: [
                        60s,
                        300s,
                    ],
                    jitter_percent: 20,
                },
                concurrency: 4,
                flow: Flow {
                    per_destination: 20,
                    pace: Auto,
                    rate: None,
                    rate_per_destination: None,
                    failures_before_pause: 20,
                },
                lease: 60s,
                disable_after: None,
                endpoint_event: None,
                log: DeliveryLog {
                    status: true,
                    attempts: false,
                    text: false,
                    failures: FailureLog {
                        after: 20,
                        every: 900s,
                    },
                },
            },
            Name(
                "hook",
            ): Channel {
                protocol: Name(
                    "http",
                ),
                options: {},
                retry: RetrySchedule {
                    delays: [],
                    jitter_percent: 10,
                },
                concurrency: 10,
                flow: Flow {
                    per_destination: 20,
                    pace: Auto,
                    rate: None,
                    rate_per_destination: None,
                    failures_before_pause: 20,
                },
                lease: 300s,
                disable_after: None,
                endpoint_event: None,
                log: DeliveryLog {
                    status: true,
                    attempts: false,
                    text: false,
                    failures: FailureLog {
                        after: 20,
                        every: 900s,
                    },
                },
            },
        }
    "#]]
    .assert_debug_eq(&application.channels);
    expect![[r#"
        {
          "name": "quakes",
          "description": "Notifies people about earthquakes near them.",
          "events": {
            "quake": {
              "fields": [
                {
                  "name": "magnitude",
                  "type": "number",
                  "required": true,
                  "default": null,
                  "description": "Moment magnitude"
                },
                {
                  "name": "place",
                  "type": "string",
                  "required": false,
                  "default": null
                },
                {
                  "name": "latitude",
                  "type": "number",
                  "required": false,
                  "default": null
                },
                {
                  "name": "longitude",
                  "type": "number",
                  "required": false,
                  "default": null
                },
                {
                  "name": "at",
                  "type": "timestamp",
                  "required": false,
                  "default": null
                }
              ],
              "description": "An earthquake, as the USGS reports it."
            }
          },
          "subscriptions": {
            "nearby": {
              "fields": [
                {
                  "name": "magnitude",
                  "type": "number",
                  "required": false,
                  "default": 4.5
                },
                {
                  "name": "radius_km",
                  "type": "number",
                  "required": false,
                  "default": null
                },
                {
                  "name": "latitude",
                  "type": "number",
                  "required": true,
                  "default": null
                },
                {
                  "name": "longitude",
                  "type": "number",
                  "required": true,
                  "default": null
                }
              ],
              "description": null,
              "filter": [],
              "schedule": "forbidden"
            }
          },
          "notifications": {
            "quake_alert": {
              "fields": [
                {
                  "name": "magnitude",
                  "type": "number",
                  "required": false,
                  "default": null
                },
                {
                  "name": "place",
                  "type": "string",
                  "required": false,
                  "default": null
                },
                {
                  "name": "distance_km",
                  "type": "number",
                  "required": false,
                  "default": null
                }
              ],
              "description": null,
              "batch_size": 500,
              "expires_after": {
                "secs": 86400,
                "nanos": 0
              },
              "content": {
                "engine": "jinja",
                "templates": {
                  "": {
                    "subject": "M {{ magnitude }}",
                    "text": "Quake: {{ place }}",
                    "html": "<p>{{ place }}</p>",
                    "json": "{}",
                    "sms": null
                  },
                  "de": {
                    "subject": "Beben",
                    "text": null,
                    "html": null,
                    "json": null,
                    "sms": null
                  },
                  "de-AT/email": {
                    "subject": null,
                    "text": "Servus",
                    "html": null,
                    "json": null,
                    "sms": null
                  },
                  "hook": {
                    "subject": null,
                    "text": null,
                    "html": null,
                    "json": "{}",
                    "sms": null
                  }
                }
              }
            }
          },
          "rules": {
            "near_me": {
              "on": "quake",
              "subscription": "nearby",
              "audience": null,
              "when": "event.magnitude >= sub.magnitude",
              "sql": null,
              "notify": "quake_alert",
              "with": {
                "distance_km": "distance_km(event.latitude, event.longitude, sub.latitude, sub.longitude)"
              },
              "description": null,
              "enabled": true,
              "timeout": {
                "secs": 10,
                "nanos": 0
              },
              "stop_after": 10,
              "schedule": null
            }
          },
          "channels": {
            "email": {
              "protocol": "smtp",
              "retry": {
                "delays": [
                  {
                    "secs": 60,
                    "nanos": 0
                  },
                  {
                    "secs": 300,
                    "nanos": 0
                  }
                ],
                "jitter_percent": 20
              },
              "concurrency": 4,
              "lease": {
                "secs": 60,
                "nanos": 0
              }
            },
            "hook": {
              "protocol": "http",
              "retry": {
                "delays": [],
                "jitter_percent": 10
              },
              "concurrency": 10,
              "lease": {
                "secs": 300,
                "nanos": 0
              }
            }
          },
          "sources": {
            "feed": {
              "kind": "http",
              "events": [
                "quake"
              ]
            }
          },
          "retention": {
            "finished": {
              "secs": 2592000,
              "nanos": 0
            },
            "idempotency": {
              "secs": 172800,
              "nanos": 0
            }
          },
          "limits": {
            "subscriptions": 100000000,
            "distinct_filters": 10000000,
            "unindexed_filters": 1000,
            "notifications_per_event": 100000000,
            "delayed_notifications": 1000000,
            "throttle": null,
            "skip_older_than": null,
            "schedule_interval": {
              "secs": 60,
              "nanos": 0
            }
          }
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&application).expect("JSON"));
}

#[test]
fn the_least_definition_is_a_name() {
    check("application: a", expect!["fine"]);
    let application = read("application: a", &environment).expect("a definition");
    assert!(application.may_submit(&crate::application::api_source(), &"quake".parse().expect("a name")));
}

#[test]
fn all_problems_come_at_once_in_the_order_of_the_text() {
    check(
        "application: 1a
events:
  quake: { fields: { size: numbr } }
subscriptions:
  near: { field: {} }
rules:
  r: { on: quak, subscription: nea, notify: alert, when: 1 }
channels:
  email: { protocol: smtp, options: { host: \"${HOST}\" }, retry: 5m }
retention: { finished: forever }
",
        expect![[r#"
            1:14: application: `1a` is not a name; a name is a letter, then up to 63 letters, digits, `_` or `-`
            3:28: events.quake.fields.size: `numbr` is not known here; did you mean `number`?
            5:11: subscriptions.near.field: is not known here; did you mean `fields`?
            7:12: rules.r.on: names the event class `quak`, which does not exist; did you mean `quake`?
            7:32: rules.r.subscription: names the subscription class `nea`, which does not exist; did you mean `near`?
            7:45: rules.r.notify: names the notification class `alert`, which does not exist; there are no notifications
            7:58: rules.r.when: should be text, not an integer; put it in quotes if it is meant to be text
            9:45: channels.email.options.host: needs the environment variable `HOST`, which is not set; set it, or give a default: `${HOST:-...}`
            9:65: channels.email.retry: should be a list or a mapping, not text
            10:24: retention.finished: `forever` is not a duration; give a number and its unit, such as `90s`, `1h30m` or `7d`"#]],
    );
    let many: String = (0..300).map(|at| format!("wrong{at}: 1\n")).collect();
    let found = read(&format!("application: a\n{many}"), &environment).expect_err("problems");
    assert_eq!(found.len(), PROBLEMS_MAX + 1);
    expect!["has 100 more problems"].assert_eq(&found[PROBLEMS_MAX].to_string());
}

#[test]
fn many_unknown_keys_and_oversized_sections_are_checked_in_linear_time() {
    let problems = |count: usize| {
        let text: String = (0..count).map(|at| format!("event{at}: 1\n")).collect();
        read_partially(&text, &environment, Vec::new()).problems
    };
    let found = problems(PROBLEMS_MAX + 50);
    let hints = found.iter().filter(|problem| problem.code == Code::UnknownMember && problem.hint.is_some()).count();
    assert_eq!((found.len(), hints), (PROBLEMS_MAX + 51, PROBLEMS_MAX), "words beyond the shown ones are not compared");

    let fields = |count: usize| {
        let fields: String = (0..count).map(|at| format!("      f{at}: integer\n")).collect();
        let text = format!("application: a\nevents:\n  e:\n    fields:\n{fields}");
        read_partially(&text, &environment, Vec::new())
    };
    let is_too_many = |found: &PartialApplication| found.problems.iter().any(|problem| problem.code == Code::TooMany);
    assert!(fields(256).problems.is_empty());
    let (some, many) = (fields(257), fields(40_000));
    assert!(is_too_many(&some) && some.application.is_some());
    assert!(is_too_many(&many) && many.application.is_none(), "nothing is compared with 40,000 fields");
}

#[test]
fn the_committed_schemas_are_up_to_date() {
    for (name, schema) in [("application", json_schema()), ("exchange", exchange_json_schema())] {
        let path = format!("{}/../../docs/reference/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
        let schema = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
        if std::env::var_os("UPDATE").is_some_and(|update| update == "1") {
            std::fs::write(&path, &schema).expect("the schema can be written");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == schema, "{path} differs from the committed one; run this test with UPDATE=1");
    }
}
