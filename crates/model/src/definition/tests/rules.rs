//! Rules and their notifications.

use super::*;

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
fn rule_state_settings_are_checked() {
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
            "10:10: rules.r.per: has no effect: the rule has no state; give `cooldown`, `rearm` or `changed` too, or leave it out"
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
            "11:15: rules.r.cooldown: is not allowed with a schedule; the schedule decides how often notifications are sent; leave it out"
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
    // The fields of a query are not known here.
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
