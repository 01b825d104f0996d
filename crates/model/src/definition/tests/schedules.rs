//! Rules that are evaluated at due times.

use std::time::Duration;

use expect_test::expect;

use super::{check, problems};
use crate::{
    application::{Missed, Recurs, Rule, due_class, due_fields},
    definition::{difference, read},
};

/// A definition with one rule with these settings.
fn definition(rule: &str) -> String {
    format!(
        "application: stock
events: {{ quote: {{ fields: {{ price: number }} }} }}
subscriptions:
  limit: {{ fields: {{ price: number }}, schedule: optional }}
  plain: {{ fields: {{ price: number }} }}
notifications:
  crossed: {{ fields: {{ price: number }}, content: {{ templates: {{ base: {{ text: x }} }} }} }}
  report: {{ fields: {{ due_at: timestamp }}, content: {{ templates: {{ base: {{ text: x }} }} }} }}
rules:
  morning: {{ {rule} }}
"
    )
}

fn rule(text: &str) -> Rule {
    let application = read(&definition(text), &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(application.events[&due_class()].fields, due_fields());
    application.rules["morning"].clone()
}

#[test]
fn a_rule_has_due_times() {
    let own = rule("on: quote, subscription: limit, notify: crossed, schedule: subscription, missed: all");
    let schedule = own.schedule.expect("it has one");
    assert_eq!((schedule.recurs, schedule.missed, own.on.as_str()), (Recurs::Subscription, Missed::All, "quote"));

    let hourly = rule("subscription: plain, notify: report, every: 1h, skip_older_than: 10m");
    let schedule = hourly.schedule.expect("it has one");
    let Recurs::Fixed(recurs) = &schedule.recurs else { panic!("{schedule:?}") };
    assert_eq!(recurs.to_string(), "DTSTART:19700101T000000Z\nRRULE:FREQ=HOURLY");
    assert_eq!((schedule.missed, schedule.skip_older_than), (Missed::Once, Some(Duration::from_secs(600))));
    assert_eq!(hourly.on, due_class(), "without an event class its events are due times");

    let fields = "{ start: 2027-01-04T08:00, time_zone: Europe/Vienna, rule: FREQ=DAILY }";
    let text = r#""DTSTART;TZID=Europe/Vienna:20270104T080000\nRRULE:FREQ=DAILY""#;
    let of = |schedule: &str| rule(&format!("on: quote, subscription: plain, notify: crossed, schedule: {schedule}"));
    assert_eq!(of(fields).schedule, of(text).schedule);
}

#[test]
fn due_events_cannot_be_submitted() {
    let scheduled = definition("subscription: plain, notify: report, every: 1h");
    let unscheduled = definition("on: quote, subscription: plain, notify: crossed").replace("quote:", "due:");
    let unscheduled = unscheduled.replace("on: quote", "on: due");
    let sources = "sources: { desk: { kind: http, events: [due] } }\n";
    for (text, source, class, may) in [
        (scheduled.clone(), "api", "quote", true),
        (scheduled.clone(), "api", "due", false),
        // Without schedules the name is not reserved.
        (unscheduled.clone(), "api", "due", true),
        (format!("{unscheduled}{sources}"), "desk", "due", true),
    ] {
        let application = read(&text, &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"));
        let (source, class) = (source.parse().expect("a name"), class.parse().expect("a name"));
        assert_eq!(application.may_submit(&source, &class), may, "{source} {class}");
    }
}

#[test]
fn a_schedule_is_checked() {
    check(
        &definition("subscription: limit, notify: report"),
        expect![
            "10:12: rules.morning.on: is missing; name an event class; only a rule with `every` or `schedule` can do without"
        ],
    );
    let of = |said: &str| problems(&definition(&format!("on: quote, subscription: plain, notify: crossed, {said}")));
    expect!["10:73: rules.morning.schedule: follows the schedules of subscriptions, and `plain` takes none; give `subscriptions.plain` a `schedule: optional` or `required`"]
    .assert_eq(&of("schedule: subscription"));
    expect!["10:73: rules.morning.schedule: DTSTART: the start is missing; such as DTSTART;TZID=Europe/Vienna:20270101T080000"]
    .assert_eq(&of("schedule: 'RRULE:FREQ=DAILY'"));
    expect!["10:73: rules.morning.schedule: DTSTART: the start has no time zone; such as DTSTART;TZID=Europe/Vienna:20270101T080000, or UTC with a Z at its end"]
    .assert_eq(&of("schedule: 'DTSTART:20270101T080000'"));
    expect!["10:73: rules.morning.schedule: is never due: the rule has no occurrences; look for dates that do not exist, such as 30 February"]
    .assert_eq(&of("schedule: { start: 2027-01-01, time_zone: UTC, rule: FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30 }"));
    expect![
        "10:73: rules.morning.schedule: TZID: `Vienna` is not a time zone; give an IANA name, such as `Europe/Vienna`"
    ]
    .assert_eq(&of("schedule: { start: 2027-01-01, time_zone: Vienna }"));
    expect!["10:63: rules.morning.missed: has no effect: the rule has no schedule; give `every` or `schedule`, or leave it out"]
    .assert_eq(&of("missed: all"));
    expect!["10:84: rules.morning.schedule: is not allowed with `every`; keep one of them"]
        .assert_eq(&of("every: 1h, schedule: 'DTSTART:20270101T080000Z'"));
}

#[test]
fn the_class_of_due_times_is_taken() {
    let text = definition("subscription: plain, notify: report, every: 1d").replace("quote:", "due:");
    expect!["2:11: events.due: is the class of the due times of scheduled rules; choose another name"]
        .assert_eq(&problems(&text));
}

#[test]
fn b13_event_classes_and_schedules_have_throttles() {
    let text = definition("subscription: plain, notify: report, every: 1h");
    let text = text.replace("quote: { fields", "quote: { throttle: { notifications: 5, per: 2s }, fields")
        + "limits: { schedule_throttle: { notifications: 9, per: 1m } }\n";
    let application = read(&text, &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"));
    let throttle_of = |class: &str| {
        let throttle = application.throttle_of(&class.parse().expect("a name"))?;
        Some((throttle.notifications, throttle.per.as_secs()))
    };
    assert_eq!([throttle_of("quote"), throttle_of("due"), throttle_of("nothing")], [Some((5, 2)), Some((9, 60)), None]);
    let without =
        read(&text.replace("throttle: { notifications: 5, per: 2s }, ", ""), &|_| None).expect("a definition");
    let found: Vec<_> =
        difference(&without, &application).into_iter().map(|found| (found.path, found.sentence)).collect();
    assert_eq!(found, [("events.quote.throttle".to_owned(), "the throttle is 5 in 2s (was none)".to_owned())]);
    for (given, path) in [
        ("throttle: { notifications: 0, per: 2s }", "events.quote.throttle.notifications"),
        ("throttle: { notifications: 5 }", "events.quote.throttle.per"),
        ("throttle: { notifications: 5, per: 2d }", "events.quote.throttle.per"),
    ] {
        let wrong = text.replace("throttle: { notifications: 5, per: 2s }", given);
        let problems = read(&wrong, &|_| None).expect_err("it is refused");
        assert!(problems.iter().any(|problem| problem.path == path), "{given}: {problems:?}");
    }
}
