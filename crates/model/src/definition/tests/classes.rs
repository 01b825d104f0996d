//! Classes, their fields, and references between them by name.

use super::*;

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
fn endpoint_events_fit_their_class() {
    let text = |fields: &str, more: &str| {
        format!(
            "application: a\nevents:\n  trouble:\n    fields: {{ {fields} }}\nchannels:\n  hook: {{ protocol: http, \
             endpoint_event: trouble }}\n{more}"
        )
    };
    check(&text("endpoint: { type: string, required: true }, until: timestamp, note: string", ""), expect!["fine"]);
    check(
        &text("since: string, place: { type: string, required: true }", ""),
        expect![[r#"
        4:15: events.trouble.fields.since: is string, and the field of endpoint events is timestamp; the channel `hook` reports endpoints by it; it may have `owner`, `endpoint`, `via`, `disabled`, `since`, `until`, `failures` or `reason`
        4:30: events.trouble.fields.place: is required, and endpoint events have no field of this name; the channel `hook` reports endpoints by it; it may have `owner`, `endpoint`, `via`, `disabled`, `since`, `until`, `failures` or `reason`"#]],
    );
    check(
        &text("endpoint: string", "sources: { endpoints: { kind: http, events: [trouble] } }"),
        expect!["sources.endpoints: is the source of endpoint events; choose another name"],
    );
    check(
        "application: a\nchannels: { hook: { protocol: http, endpoint_event: trouble } }",
        expect![
            "2:53: channels.hook.endpoint_event: names the event class `trouble`, which does not exist; there are no events"
        ],
    );
}
