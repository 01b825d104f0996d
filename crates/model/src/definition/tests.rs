mod attributes;
mod chronicles;
mod differences;
mod files;
mod functions;
mod hostile;
mod schedules;

use expect_test::{Expect, expect};

use super::*;
use differences::differences;

/// A definition that uses everything.
const QUAKES: &str = r#"# An application that uses everything.
application: quakes
description: Tells people about earthquakes near them.
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
          "description": "Tells people about earthquakes near them.",
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
            "throttle": null,
            "skip_older_than": null
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
fn what_is_not_yaml_says_where() {
    check("", expect!["is empty; begin with `application: <name>`"]);
    check("# nothing\n", expect!["is empty; begin with `application: <name>`"]);
    check(
        "application: [a",
        expect!["2:1: application[1]: is not YAML: while parsing a flow sequence, expected ',' or ']'"],
    );
    check(
        "application: a\n  events: b: c\n",
        expect!["2:9: is not YAML: mapping values are not allowed in this context"],
    );
    check(
        "application: \"a",
        expect!["1:14: application: is not YAML: while scanning a quoted scalar, found unexpected end of stream"],
    );
    check("\tapplication: a", expect!["fine"]);
    check("application: a\n---\napplication: b", expect!["2:1: has a second document; one file holds one application"]);
    check("- a\n- b", expect!["1:1: should be a mapping, not a list"]);
    check("just text", expect!["1:1: should be a mapping, not text"]);
    check(
        &format!("application: a\ndescription: {}", "x".repeat(TEXT_BYTES_MAX)),
        expect!["is 1048604 bytes long; at most 1048576 are read"],
    );
    check(
        &format!("application: {}", "[".repeat(100)),
        expect![
            "1:45: application[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]: is nested too deeply; at most 32 levels are read"
        ],
    );
    check(&format!("application: {}", "\n- ".repeat(100)), expect!["2:3: application: should be a name, not a list"]);
}

#[test]
fn keys_come_once() {
    check_with(
        "    batch_size: 500\n",
        "    batch_size: 500\n    batch_size: 600\n",
        expect!["24:5: notifications.quake_alert.batch_size: is given twice; the first is in line 23"],
    );
    check_with(
        "      place: string\n",
        "      place: string\n      place: number\n",
        expect!["10:7: events.quake.fields.place: is given twice; the first is in line 9"],
    );
    check_with(
        "  hook: { protocol: http, retry: [] }",
        "  hook: { protocol: http, protocol: smtp }",
        expect!["50:27: channels.hook.protocol: is given twice; the first is in line 50"],
    );
}

#[test]
fn anchors_and_tags_are_refused() {
    check(
        "application: &a b\ndescription: *a",
        expect![[r#"
        1:17: application: has an anchor; leave `&...` out; aliases and anchors are not supported
        2:14: description: is an alias; write the value out; aliases and anchors are not supported"#]],
    );
    check(
        "application: !!int b\ndescription: !secret x",
        expect![[r#"
        1:20: application: has the tag `tag:yaml.org,2002:!int`; leave the tag out; quotes make text
        2:22: description: has the tag `!secret`; leave the tag out; quotes make text"#]],
    );
    check(
        "application: !!str 5a",
        expect!["1:20: application: `5a` is not a name; a name is a letter, then up to 63 letters, digits, `_` or `-`"],
    );
    check(
        "? [a]\n: b",
        expect![[r#"
            1:1: application: is missing; give a name
            1:3: has a list as a key; keys are text"#]],
    );
}

#[test]
fn unknown_keys_find_what_was_meant() {
    check_with("rules:", "rule:", expect!["32:1: rule: is not known here; did you mean `rules`?"]);
    check_with(
        "    batch_size: 500",
        "    batchsize: 500",
        expect!["23:5: notifications.quake_alert.batchsize: is not known here; did you mean `batch_size`?"],
    );
    check_with(
        "    lease: 1m",
        "    colour: red",
        expect![
            "49:5: channels.email.colour: is not known here; here you can give `protocol`, `options`, `retry`, `concurrency`, `flow`, `lease`, `disable_after`, `log` or `log_failures`"
        ],
    );
    check_with(
        "place: string\n",
        "place: text\n",
        expect![
            "9:14: events.quake.fields.place: `text` is not known here; give `boolean`, `integer`, `number`, `string`, `timestamp`, `list` or `map`"
        ],
    );
    check_with(
        "kind: http",
        "kind: kafka",
        expect!["52:17: sources.feed.kind: `kafka` is not known here; give `http`"],
    );
    check_with(
        "{ subject: Beben }",
        "{ subjekt: Beben }",
        expect![
            "29:15: notifications.quake_alert.content.templates.de.subjekt: is not known here; did you mean `subject`?"
        ],
    );
}

#[test]
fn types_are_checked() {
    check(
        "application: 5\ndescription: true\nevents: []\nrules: none\nretention: 7d",
        expect![[r#"
        1:14: application: should be a name, not an integer; put it in quotes if it is meant to be text
        2:14: description: should be text, not a boolean; put it in quotes if it is meant to be text
        3:9: events: should be a mapping, not a list
        4:8: rules: should be a mapping, not text
        5:12: retention: should be a mapping, not text"#]],
    );
    check_with(
        "batch_size: 500",
        "batch_size: \"500\"",
        expect![
            "23:17: notifications.quake_alert.batch_size: should be an integer, not text; write digits, without quotes"
        ],
    );
    check_with(
        "batch_size: 500",
        "batch_size: 0",
        expect!["23:17: notifications.quake_alert.batch_size: is 0; give 1 to 100000"],
    );
    check_with(
        "concurrency: 4",
        "concurrency: 4.5",
        expect!["48:18: channels.email.concurrency: should be an integer, not a number"],
    );
    check_with(
        "lease: 1m",
        "lease: 60",
        expect![
            "49:12: channels.email.lease: should be a duration, not an integer; give the unit as well, such as `90s`, `1h30m` or `7d`"
        ],
    );
    check_with(
        "expires_after: 24h",
        "expires_after: tomorrow",
        expect![
            "24:20: notifications.quake_alert.expires_after: `tomorrow` is not a duration; give a number and its unit, such as `90s`, `1h30m` or `7d`"
        ],
    );
    check_with(
        "expires_after: 24h",
        "expires_after: 1y",
        expect![
            "24:20: notifications.quake_alert.expires_after: `1y` has months or years, whose length varies; give a number and its unit, such as `90s`, `1h30m` or `7d`"
        ],
    );
    check_with(
        "expires_after: 24h",
        "expires_after: 0s",
        expect!["24:20: notifications.quake_alert.expires_after: is 0s; give 1s to 3650d"],
    );
    check_with(
        "delays: [1m, PT5M]",
        "delays: [1m, 5, -3s]",
        expect![[r#"
        47:27: channels.email.retry.delays[1]: should be a duration, not an integer; give the unit as well, such as `90s`, `1h30m` or `7d`
        47:30: channels.email.retry.delays[2]: `-3s` is negative; give a number and its unit, such as `90s`, `1h30m` or `7d`"#]],
    );
    check_with(
        "jitter: 20%",
        "jitter: 120%",
        expect!["47:42: channels.email.retry.jitter: is not a percentage; give `0%` to `100%`"],
    );
    check_with(
        "required: true, description",
        "required: yes, description",
        expect![
            "8:44: events.quake.fields.magnitude.required: should be `true` or `false`, not text; write `true` or `false`, without quotes"
        ],
    );
    check_with(
        "when: event.magnitude >= sub.magnitude",
        "when: true",
        expect!["36:11: rules.near_me.when: should be text, not a boolean; put it in quotes if it is meant to be text"],
    );
    check_with(
        "{ subject: Beben }",
        "Beben",
        expect!["29:13: notifications.quake_alert.content.templates.de: should be a mapping, not text"],
    );
    check_with(
        "lease: 1m",
        "lease: .inf",
        expect!["49:12: channels.email.lease: is not a finite number; put it in quotes if it is meant to be text"],
    );
}

#[test]
fn names_are_names() {
    check(
        "application: my app",
        expect![
            "1:14: application: `my app` is not a name; a name is a letter, then up to 63 letters, digits, `_` or `-`"
        ],
    );
    check_with(
        "near_me:",
        "near me:",
        expect!["33:3: rules.near me: is not a name; a name is a letter, then up to 63 letters, digits, `_` or `-`"],
    );
    check_with("near_me:", "event:", expect!["33:3: rules.event: is a reserved word; choose another name"]);
    check_with(
        "      place: string\n",
        "      the-place: string\n      place: string\n      in: string\n",
        expect![[r#"
        9:7: events.quake.fields.the-place: would read as a subtraction in expressions; call it `the_place`
        11:7: events.quake.fields.in: is a reserved word of expressions; choose another name"#]],
    );
    check_with(
        "place: string, distance_km",
        "place: string, event: string, distance_km",
        expect!["22:49: notifications.quake_alert.fields.event: has another meaning in templates; choose another name"],
    );
}

#[test]
fn names_mentioned_must_exist() {
    check_with(
        "    on: quake\n",
        "    on: quakes\n",
        expect!["34:9: rules.near_me.on: names the event class `quakes`, which does not exist; did you mean `quake`?"],
    );
    check_with(
        "    subscription: nearby",
        "    subscription: faraway",
        expect![
            "35:19: rules.near_me.subscription: names the subscription class `faraway`, which does not exist; give `nearby`"
        ],
    );
    check_with(
        "notify: quake_alert",
        "notify: quake_alarm",
        expect![
            "37:13: rules.near_me.notify: names the notification class `quake_alarm`, which does not exist; did you mean `quake_alert`?"
        ],
    );
    check_with(
        "events: [quake]",
        "events: [quake, storm]",
        expect!["52:39: sources.feed.events[1]: names the event class `storm`, which does not exist; give `quake`"],
    );
    check(
        "application: a\nrules: { r: { on: x, subscription: y, notify: z } }",
        expect![[r#"
        2:19: rules.r.on: names the event class `x`, which does not exist; there are no events
        2:36: rules.r.subscription: names the subscription class `y`, which does not exist; there are no subscriptions
        2:47: rules.r.notify: names the notification class `z`, which does not exist; there are no notifications"#]],
    );
}

#[test]
fn notifications_are_filled() {
    check_with(
        "with: { distance_km:",
        "with: { distance:",
        expect![
            "38:13: rules.near_me.with.distance: is not a field of the notification class; did you mean `distance_km`?"
        ],
    );
    check_with(
        "distance_km: number }",
        "distance_km: number, depth: { type: number, required: true } }",
        expect![[
            r#"38:5: rules.near_me.with.depth: is required by `quake_alert` and has no expression, and `quake` has no field of its name; say how it is computed: `depth: "..."`"#
        ]],
    );
    check_with(
        "distance_km: number }",
        "distance_km: number, at: string }",
        expect![[
            r#"38:5: rules.near_me.with.at: has no expression, and the event's field of its name is of type timestamp, not string; say how it is computed: `at: "..."`"#
        ]],
    );
    check_with(
        "distance_km: number }",
        "distance_km: number, depth: { type: number, required: true, default: 1 } }",
        expect!["fine"],
    );
}

#[test]
fn what_a_rule_remembers_is_checked() {
    let check_state = |state: &str, expected: Expect| {
        let text = "application: a
events: { e: { fields: { n: number } } }
subscriptions: { s: { fields: { n: number } } }
notifications: { t: { content: { templates: { base: { text: hello } } } } }
rules:
  r:
    on: e
    subscription: s
    notify: t
    STATE
"
        .replace("STATE", state);
        check(&text, expected);
    };
    check_state(
        "per: event.n",
        expect![
            "10:10: rules.r.per: says for what something is remembered, and nothing is; give `cooldown`, `rearm` or `changed` too, or leave it out"
        ],
    );
    check_state("cooldown: 0s", expect!["10:15: rules.r.cooldown: is 0s; give 1s to 3650d"]);
    check_state(
        "cooldown: daily",
        expect![
            "10:15: rules.r.cooldown: `daily` is not a duration; give a number and its unit, such as `90s`, `1h30m` or `7d`"
        ],
    );
    check_state(
        "every: 1h\n    cooldown: 2h",
        expect![
            "11:15: rules.r.cooldown: stands beside a schedule; the schedule says how often somebody is told; leave it out"
        ],
    );
}

#[test]
fn a_query_takes_the_place_of_a_predicate() {
    let when = "when: event.magnitude >= sub.magnitude";
    check_with(
        when,
        &format!("{when}\n    sql: SELECT 1"),
        expect!["37:5: rules.near_me.sql: is given beside `when`; keep one: a query says itself what matches"],
    );
    check_with(
        when,
        "sql: SELECT 1\n    every: 1h",
        expect![
            "36:5: rules.near_me.sql: is given to a rule with a schedule; a query is run over each event batch; write a scheduled rule with `when`"
        ],
    );
    check_with(when, "sql: 5", expect!["36:10: rules.near_me.sql: should be text or a mapping, not an integer"]);
    check_with(
        when,
        "sql: { file: near.sql }",
        expect![
            "36:10: rules.near_me.sql: is still in the file `near.sql`; apply with the command line tool, which puts the texts of files in"
        ],
    );
    // Which fields a query gives is not known here.
    check(
        &QUAKES
            .replace(when, "sql: SELECT 1")
            .replace("distance_km: number }", "distance_km: number, felt: { type: integer, required: true } }"),
        expect!["fine"],
    );
    assert_eq!(differences(when, "sql: SELECT 1").lines().count(), 2);
    let load = |file: &str| Ok(format!("-- {file}\nSELECT \"x\""));
    let text = QUAKES.replace(when, "sql: { file: near.sql }");
    let application = read(&inline_files(&text, &load).expect("files"), &environment).expect("a definition");
    assert_eq!(application.rules["near_me"].sql.as_deref(), Some("-- near.sql\nSELECT \"x\""));
    let rules_first = "rules: { r: { sql: { file: a } } }\nnotifications: { n: { content: { templates: { base: { text: { file: b } } } } } }";
    let inlined = inline_files(rules_first, &|file| Ok(file.to_owned())).expect("files");
    assert_eq!(inlined, rules_first.replace("{ file: a }", "\"a\"").replace("{ file: b }", "\"b\""));
}

#[test]
fn defaults_fit_their_type() {
    check_with(
        "default: 4.5",
        "default: high",
        expect!["16:43: subscriptions.nearby.fields.magnitude.default: should be a number, not a string"],
    );
    check_with(
        "radius_km: number",
        "radius_km: { type: integer, default: 1.5 }",
        expect![
            "17:44: subscriptions.nearby.fields.radius_km.default: should be an integer of 64 bits without fraction"
        ],
    );
    check_with(
        "radius_km: number",
        "note: { type: string, default: 5 }",
        expect![
            "17:38: subscriptions.nearby.fields.note.default: should be a string, not an integer; put it in quotes"
        ],
    );
    check_with("radius_km: number", "since: { type: timestamp, default: 2026-11-21T09:30:00Z }", expect!["fine"]);
    check_with("radius_km: number", "tags: { type: list, default: [a, { b: 1 }] }", expect!["fine"]);
    check_with(
        "radius_km: number",
        "radius_km: { required: true }",
        expect![
            "17:18: subscriptions.nearby.fields.radius_km.type: is missing; give `boolean`, `integer`, `number`, `string`, `timestamp`, `list` or `map`"
        ],
    );
}

#[test]
fn templates_have_a_place() {
    check_with(
        "        hook: { json: \"{}\" }",
        "        emial: { text: x }",
        expect![
            "31:9: notifications.quake_alert.content.templates.emial: is neither a language tag nor a channel; did you mean `email`?"
        ],
    );
    check_with(
        "        hook: { json: \"{}\" }",
        "        de_CH: { text: x }",
        expect![
            "31:9: notifications.quake_alert.content.templates.de_CH: is neither a language tag nor a channel; write `de-CH`"
        ],
    );
    check_with(
        "        hook: { json: \"{}\" }",
        "        DE: { text: x }",
        expect![
            "31:9: notifications.quake_alert.content.templates.DE: is given twice, in another spelling; keep one of them"
        ],
    );
    check_with(
        "de-AT/email:",
        "de-AT/mail:",
        expect![
            "30:9: notifications.quake_alert.content.templates.de-AT/mail: names the channel `mail`, which does not exist; did you mean `email`?"
        ],
    );
    check_with(
        "de-AT/email:",
        "austria/email:",
        expect![
            "30:9: notifications.quake_alert.content.templates.austria/email: `austria` is not a language tag; give BCP 47, such as `de` or `pt-BR`"
        ],
    );
    check_with(
        "de-AT/email:",
        "base/email:",
        expect![
            "30:9: notifications.quake_alert.content.templates.base/email: begins with `base`; leave it out: `email`"
        ],
    );
    check_with(
        "{ subject: Beben }",
        "{}",
        expect![
            "29:9: notifications.quake_alert.content.templates.de: has no parts; give `subject`, `text`, `html`, `json` or `sms`"
        ],
    );
    check_with(
        "{ text: Servus }",
        "{ text: { file: servus.txt } }",
        expect![
            "30:30: notifications.quake_alert.content.templates.de-AT/email.text: is still in the file `servus.txt`; apply with the command line tool, which puts the texts of files in"
        ],
    );
    check(
        "application: a\nnotifications: { n: { content: { templates: {} } }, m: { content: {} }, o: {} }",
        expect![[r#"
        2:45: notifications.n.content.templates: has no templates; give at least `base: { text: "..." }`
        2:67: notifications.m.content.templates: is missing; give a mapping
        2:76: notifications.o.content: is missing; give a mapping"#]],
    );
}

#[test]
fn variables_come_from_the_environment() {
    check_with(
        "${SMTP_PASSWORD}",
        "${SMTP_PASWORD}",
        expect![
            "45:17: channels.email.options.password: needs the environment variable `SMTP_PASWORD`, which is not set; set it, or give a default: `${SMTP_PASWORD:-...}`"
        ],
    );
    check_with(
        "${SMTP_PASSWORD}",
        "${SMTP_PASSWORD",
        expect!["45:17: channels.email.options.password: has `${` without `}`; write `$$` for a dollar sign"],
    );
    check_with(
        "${SMTP_PASSWORD}",
        "${SMTP PASSWORD}",
        expect![
            "45:17: channels.email.options.password: has `${SMTP PASSWORD}`, which is not the name of a variable; give `${NAME}` or `${NAME:-default}`; `$$` is a dollar sign"
        ],
    );
    check_with("${SMTP_PASSWORD}", "${EMPTY}${EMPTY:-x}", expect!["fine"]);
    check_with(
        "kind: http",
        "kind: \"${KIND}\"",
        expect![
            "52:17: sources.feed.kind: needs the environment variable `KIND`, which is not set; set it, or give a default: `${KIND:-...}`"
        ],
    );
    check_with("Tells people about", "Costs ${MONEY} to", expect!["fine"]);
    let bomb = "${BOMB}".repeat(100);
    let large = |_: &str| Some("x".repeat(1 << 16));
    let found = read(&QUAKES.replace("${SMTP_PASSWORD}", &bomb), &large).expect_err("a bomb");
    expect!["45:17: channels.email.options.password: grows too long with its variables; at most 4194304 bytes in all"]
        .assert_eq(&found[0].to_string());
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
fn the_schema_is_the_committed_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/application.schema.json");
    let schema = serde_json::to_string_pretty(&json_schema()).expect("JSON") + "\n";
    if std::env::var_os("UPDATE").is_some_and(|update| update == "1") {
        std::fs::write(path, &schema).expect("the schema can be written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(committed == schema, "the schema differs from the committed one; run this test with UPDATE=1");
}
