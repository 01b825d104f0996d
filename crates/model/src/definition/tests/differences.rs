//! Effects of an apply.

use expect_test::{Expect, expect};

use super::{QUAKES, environment};
use crate::definition::{Difference, DifferenceKind, difference, read};

pub(super) fn differences(piece: &str, replacement: &str) -> String {
    assert_eq!(QUAKES.matches(piece).count(), 1, "`{piece}` is in the definition once");
    let old = read(QUAKES, &environment).expect("a definition");
    let new =
        read(&QUAKES.replace(piece, replacement), &environment).unwrap_or_else(|problems| panic!("{problems:#?}"));
    shown(&difference(&old, &new))
}

fn shown(found: &[Difference]) -> String {
    let shown = |found: &Difference| {
        let drops = found.drops.as_ref().map(|path| format!(" [drops {path}]")).unwrap_or_default();
        format!("{:?} {}: {}{drops}", found.kind, found.path, found.sentence).to_lowercase()
    };
    found.iter().map(shown).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_difference_lists_every_change() {
    let check = |piece: &str, replacement: &str, expected: Expect| expected.assert_eq(&differences(piece, replacement));
    check("# An application that uses everything.\n", "", expect![]);
    check("Notifies people about", "Warns of", expect!["changed description: the description changes"]);
    check(
        "      radius_km: number\n",
        "",
        expect![
            "removed subscriptions.nearby.radius_km: the field `radius_km` is removed, and its value in every subscription with it [drops subscriptions.nearby.radius_km]"
        ],
    );
    check(
        "radius_km: number",
        "radius_km: string",
        expect![
            "changed subscriptions.nearby.radius_km: the field `radius_km` is of type string (was number); its values in existing subscriptions are lost [drops subscriptions.nearby.radius_km]"
        ],
    );
    check(
        "radius_km: number",
        "radius_km: { type: number, required: true, default: 5, description: x }",
        expect![
            "changed subscriptions.nearby.radius_km: the field `radius_km` becomes required, has the default 5.0 (was null), has another description"
        ],
    );
    check(
        "radius_km: number",
        "radius_km: number\n      note: string\n      size: { type: integer, default: 1 }",
        expect![[r#"
        added subscriptions.nearby.note: the field `note` is added
        added subscriptions.nearby.size: the field `size` is added; existing subscriptions take its default"#]],
    );
    check("      at: timestamp\n", "", expect!["removed events.quake.at: the field `at` is removed"]);
    check(
        "  nearby:\n    fields:",
        "  nearby: { fields: { magnitude: number } }\n  faraway:\n    fields:",
        expect![[r#"
        added subscriptions.faraway: the subscription class `faraway` is added
        changed subscriptions.nearby.magnitude: the field `magnitude` has the default null (was 4.5)
        removed subscriptions.nearby.radius_km: the field `radius_km` is removed, and its value in every subscription with it [drops subscriptions.nearby.radius_km]
        removed subscriptions.nearby.latitude: the field `latitude` is removed, and its value in every subscription with it [drops subscriptions.nearby.latitude]
        removed subscriptions.nearby.longitude: the field `longitude` is removed, and its value in every subscription with it [drops subscriptions.nearby.longitude]"#]],
    );
    check(
        "batch_size: 500\n    expires_after: 24h",
        "batch_size: 501",
        expect![[r#"
        changed notifications.quake_alert.batch_size: a batch holds up to 501 notifications (was 500)
        changed notifications.quake_alert.expires_after: expiry is never (was 1d)"#]],
    );
    check(
        "{ subject: Beben }",
        "{ subject: Erdbeben, text: x }\n        fr: { text: x }",
        expect![[r#"
        changed notifications.quake_alert.content.templates.de.subject: the subject of template `de` changes
        changed notifications.quake_alert.content.templates.de.text: the text of template `de` changes
        added notifications.quake_alert.content.templates.fr: the template `fr` is added"#]],
    );
    check(
        "        de-AT/email: { text: Servus }\n",
        "",
        expect![
            "removed notifications.quake_alert.content.templates.de-at/email: the template `de-at/email` is removed"
        ],
    );
    check(
        "when: event.magnitude >= sub.magnitude",
        "when: event.magnitude > sub.magnitude\n    enabled: false",
        expect![[r#"
        changed rules.near_me.when: the predicate changes
        changed rules.near_me.enabled: the rule is disabled"#]],
    );
    check(
        "${SMTP_PASSWORD}",
        "hunter2",
        expect!["changed channels.email.options.password: the option `password` changes"],
    );
    check(
        "retry: { delays: [1m, PT5M], jitter: 20% }\n    concurrency: 4\n    lease: 1m",
        "retry: []",
        expect![[r#"
        changed channels.email.retry: retries after nothing (was 1m, 5m ± 20%)
        changed channels.email.concurrency: at most 10 at the same time (was 4)
        changed channels.email.lease: a lease is 5m (was 1m)"#]],
    );
    check(
        "lease: 1m",
        "lease: 1m\n    flow: { per_destination: 3, rate: { messages: 30, per: 1m }, failures_before_pause: 0 }",
        expect![[r#"
        changed channels.email.flow: at most 3 to one destination, rate 30 in 1m, rate to one destination any, no pause (was at most 20 to one destination, rate any, rate to one destination any, a pause after 20 failures)"#]],
    );
    check(
        "events: [quake]",
        "events: []",
        expect!["changed sources.feed.events: may submit all classes (was `quake`)"],
    );
    check(
        "{ finished: 30d }",
        "{ finished: 1d12h }",
        expect!["changed retention: finished work is kept for 1d12h (was 30d), answers for 2d (was 2d)"],
    );

    let old = read(QUAKES, &environment).expect("a definition");
    let new = read("application: quakes", &environment).expect("a definition");
    let drops: Vec<String> = difference(&old, &new).into_iter().filter_map(|found| found.drops).collect();
    assert_eq!(drops, ["events.quake", "subscriptions.nearby"]);
    assert!(difference(&new, &old).iter().all(|found| found.kind != DifferenceKind::Removed && found.drops.is_none()));
}

#[test]
fn a_difference_lists_changes_of_rule_state() {
    let piece = "when: event.magnitude >= sub.magnitude";
    assert_eq!(QUAKES.matches(piece).count(), 1, "`{piece}` is in the definition once");
    let with = |state: &str| read(&QUAKES.replace(piece, &format!("{piece}\n    {state}")), &environment);
    let old = with("cooldown: 1h\n    changed: event.place").expect("a definition");
    let new = with("cooldown: 90m\n    rearm: event.magnitude < 1\n    per: event.place").expect("a definition");
    let said: Vec<String> =
        difference(&old, &new).iter().map(|found| format!("{}: {}", found.path, found.sentence)).collect();
    expect![[r#"
        rules.near_me.cooldown: the cooldown is 1h30m (was 1h)
        rules.near_me.rearm: a match notifies once until it is re-armed
        rules.near_me.changed: the change condition changes
        rules.near_me.per: the state key changes, and the rule's state is lost"#]]
    .assert_eq(&said.join("\n"));
}

#[test]
fn a_difference_lists_changes_of_endpoint_events() {
    let of = |channel: &str| {
        let text = format!(
            "application: a\nevents: {{ trouble: {{ fields: {{ endpoint: string }} }} }}\nchannels: {{ hook: {{ protocol: http{channel} }} }}"
        );
        read(&text, &|_| None).expect("a definition")
    };
    let effects = |old: &str, new: &str| shown(&difference(&of(old), &of(new)));
    let endpoint_event = ", endpoint_event: trouble";
    expect!["changed channels.hook.endpoint_event: events of `trouble` report failing endpoints"]
        .assert_eq(&effects("", endpoint_event));
    expect!["changed channels.hook.endpoint_event: no event reports failing endpoints"]
        .assert_eq(&effects(endpoint_event, ""));
    assert_eq!(effects(endpoint_event, endpoint_event), "");
}
