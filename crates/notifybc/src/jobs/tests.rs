//! Statements of section 9.1 of the specification.

use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::*;
use crate::configuration::Configuration;

fn time(text: &str) -> Timestamp {
    parse_date(text).expect("a date")
}

#[track_caller]
fn next(spec: &str, after: &str, expected: &str) {
    let times: Crontab = spec.parse().unwrap_or_else(|error| panic!("{error}"));
    let next = times.next_after(time(after), &TimeZone::UTC).map(|time| time.to_string());
    assert_eq!(next.as_deref(), Some(expected), "{spec} after {after}");
}

#[test]
fn s9_1_time_specifications() {
    next("0 0 1 * * *", "2026-11-29T08:00:00Z", "2026-11-30T01:00:00Z");
    next("0 0 1 * * *", "2026-11-29T00:59:59Z", "2026-11-29T01:00:00Z");
    next("0 * * * * *", "2026-11-29T08:00:00Z", "2026-11-29T08:01:00Z");
    next("* * * * *", "2026-11-29T08:00:30Z", "2026-11-29T08:01:00Z");
    next("0 */2 * * * *", "2026-11-29T08:01:30Z", "2026-11-29T08:02:00Z");
    next("*/10 * * * * *", "2026-11-29T23:59:55Z", "2026-11-30T00:00:00Z");
    next("30 5-7,9 * * * *", "2026-11-29T08:07:30Z", "2026-11-29T08:09:30Z");
    next("0 0 29 2 *", "2026-11-29T00:00:00Z", "2028-02-29T00:00:00Z");
    next("0 9 * * mon-fri", "2026-11-27T09:00:00Z", "2026-11-30T09:00:00Z");
    next("0 0 * * 7", "2026-11-28T00:00:00Z", "2026-11-29T00:00:00Z");
    next("0 0 13 * 5", "2026-11-08T00:00:00Z", "2026-11-13T00:00:00Z");
    next("0 0 13 * 5", "2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z");
    next("@daily", "2026-11-29T08:00:00Z", "2026-11-30T00:00:00Z");
    next("0 0 1 JAN *", "2026-11-29T08:00:00Z", "2027-01-01T00:00:00Z");
    next("5/20 * * * *", "2026-11-29T08:26:00Z", "2026-11-29T08:45:00Z");
    for bad in [
        "",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "a * * * *",
        "*/0 * * * *",
        "5-1 * * * *",
        "* * * * * * *",
    ] {
        assert!(bad.parse::<Crontab>().is_err(), "{bad}");
    }
    let never: Crontab = "0 0 30 2 *".parse().expect("it is valid");
    assert_eq!(never.next_after(time("2026-11-29"), &TimeZone::UTC), None);
}

#[test]
fn times_are_of_the_wall_clock() {
    let zone = TimeZone::get("America/Vancouver").expect("a zone");
    let times: Crontab = "0 30 2 * * *".parse().expect("it is valid");
    // Clocks are put forward at 02:00 on 2026-03-08; 02:30 does not exist and is read as 03:30.
    let next = times.next_after(time("2026-03-08T00:00:00-08:00"), &zone).map(|time| time.to_string());
    assert_eq!(next.as_deref(), Some("2026-03-08T10:30:00Z"));
    let next = times.next_after(time("2026-03-08T10:30:00Z"), &zone).map(|time| time.to_string());
    assert_eq!(next.as_deref(), Some("2026-03-09T09:30:00Z"));
}

#[test]
fn s9_1_purged_records() {
    let retention = Configuration::default().cron.retention;
    let now = time("2026-11-29T08:00:00Z");
    let check = |collection: Collection, record: Value, expected: bool| {
        let record = record.as_object().expect("an object");
        assert_eq!(is_purged(collection, record, &retention, now), expected, "{record:?}");
    };
    let (old, recent) = ("2026-10-01T00:00:00.000Z", "2026-11-20T00:00:00.000Z");
    for (state, expected) in [("sent", true), ("error", true), ("new", false), ("sending", false)] {
        check(Collection::Notification, json!({"channel": "email", "state": state, "created": old}), expected);
    }
    check(Collection::Notification, json!({"channel": "email", "state": "sent", "created": recent}), false);
    check(Collection::Notification, json!({"channel": "inApp", "state": "new", "created": old}), false);
    check(Collection::Notification, json!({"channel": "inApp", "state": "new", "validTill": old}), true);
    check(Collection::Notification, json!({"channel": "inApp", "state": "deleted", "created": recent}), true);
    check(Collection::Subscription, json!({"state": "unconfirmed", "updated": old}), true);
    check(Collection::Subscription, json!({"state": "deleted", "updated": recent}), false);
    check(Collection::Subscription, json!({"state": "confirmed", "updated": old}), false);
    check(Collection::Bounce, json!({"state": "deleted", "updated": old}), true);
    check(Collection::Bounce, json!({"state": "active", "updated": old}), false);
    check(Collection::AccessToken, json!({"created": old, "ttl": 60}), true);
    check(Collection::AccessToken, json!({"created": old, "ttl": 86_400 * 40}), false);
    check(Collection::AccessToken, json!({"created": old}), false);
    check(Collection::Configuration, json!({"created": old, "updated": old}), false);
}

#[test]
fn s9_1_stale_broadcasts() {
    let now = time("2026-11-29T08:00:00Z");
    let stale = |more: Value| {
        let mut record =
            json!({"state": "sending", "channel": "email", "isBroadcast": true, "updated": "2026-11-29T07:49:00.000Z"});
        crate::configuration::merge(&mut record, &more);
        is_stale(record.as_object().expect("an object"), now)
    };
    assert!(stale(json!({})));
    for more in
        [json!({"updated": "2026-11-29T07:51:00.000Z"}), json!({"state": "sent"}), json!({"isBroadcast": false})]
    {
        assert!(!stale(more.clone()), "{more}");
    }
}
