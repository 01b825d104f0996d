//! Published test vectors, an independent oracle, and edge cases.

mod oracle; // brute-force oracle: iterates over all times and asks every part of the rule

use std::time::Duration;

use jiff::civil::DateTime;

use super::*;
use crate::schedule::date_or_time::{DateOrTime, moment};

const LIBICAL: &str = include_str!("../../../../testdata/rrule/libical.json");
const DATEUTIL: &str = include_str!("../../../../testdata/rrule/dateutil.tsv");

fn schedule(start: &str, zone: &str, rule: &str) -> Schedule {
    Schedule::new(start, zone, Some(rule)).unwrap_or_else(|problems| panic!("{rule}: {problems:?}"))
}

fn at(text: &str) -> Timestamp {
    text.parse().expect("a timestamp")
}

/// The first occurrences from the start on, as instants.
fn first(schedule: &Schedule, count: usize) -> Vec<String> {
    schedule.preview(Timestamp(i64::MIN), count).iter().map(|occurrence| occurrence.at.to_string()).collect()
}

/// Asserts the first occurrences of a rule, and that there are no more if fewer than ten are given.
#[track_caller]
fn check(schedule: &Schedule, expected: &[&str]) {
    assert_eq!(first(schedule, if expected.len() < 10 { 10 } else { expected.len() }), expected, "{schedule}");
}

/// Compares the problems of a text, each as `path: message`.
#[track_caller]
fn check_problems(result: Result<Schedule, Vec<Problem>>, expected: &[&str]) {
    let problems = result.expect_err("should be refused");
    let shown: Vec<String> = problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
    assert_eq!(shown, expected);
    assert!(problems.iter().all(|problem| problem.hint.is_some()), "{problems:?}");
}

#[test]
fn all_vectors_of_libical() {
    let vectors: Vec<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(LIBICAL).expect("a JSON array");
    assert_eq!(vectors.len(), 146);
    for vector in vectors {
        let field = |name: &str| vector.get(name).map(|value| value.as_str().expect("a string").trim().to_owned());
        let (rule, start) = (field("RRULE").expect("a rule"), field("DTSTART").expect("a start"));
        let schedule = schedule(&start, "UTC", &rule);
        let mut expected = field("INSTANCES").expect("instances");
        if expected.starts_with("***") {
            // The one exception: libical does not implement BYMONTHDAY with BYWEEKNO. These follow from the calendar:
            // the years whose 30 December is in the first week of the next year.
            assert_eq!(rule, "FREQ=YEARLY;BYMONTH=12;BYMONTHDAY=30;BYWEEKNO=1;UNTIL=20320101");
            "20241230,20251230,20301230,20311230".clone_into(&mut expected);
        }
        let written =
            |local: DateTime| local.strftime(if start.contains('T') { "%Y%m%dT%H%M%S" } else { "%Y%m%d" }).to_string();
        let expected: Vec<String> = expected.split(',').map(|instance| instance.trim().replace('Z', "")).collect();
        let found: Vec<String> = schedule
            .preview(Timestamp(i64::MIN), expected.len() + 3)
            .iter()
            .map(|occurrence| written(occurrence.local))
            .collect();
        assert_eq!(found, expected, "{rule} from {start}");

        // From every instance the next one is found without the ones before.
        for (index, instance) in schedule.preview(Timestamp(i64::MIN), expected.len()).iter().enumerate() {
            let next = schedule.next_after(instance.at).map(|next| written(next.local));
            assert_eq!(next.as_ref(), expected.get(index + 1), "{rule} after {instance:?}");
        }
        if let Some(from) = field("START-AT") {
            let Ok(DateOrTime::Local(local)) = moment(&from) else { panic!("{from} is a time") };
            let rest: Vec<String> = schedule
                .preview(Timestamp(local * 1_000_000), expected.len())
                .iter()
                .map(|occurrence| written(occurrence.local))
                .collect();
            let later: Vec<String> = expected.into_iter().filter(|instance| *instance >= from).collect();
            assert_eq!(rest, later, "{rule} from {from}");
        }
    }
}

#[test]
fn the_table_of_dateutil() {
    let mut cases = 0;
    for line in DATEUTIL.lines().filter(|line| !line.starts_with('#')) {
        let [zone, start, rule, over, instants] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("five columns: {line}")
        };
        let expected: Vec<i64> =
            instants.split(',').filter(|text| !text.is_empty()).map(|text| text.parse().expect("seconds")).collect();
        let mut found: Vec<i64> = schedule(start, zone, rule)
            .preview(Timestamp(i64::MIN), expected.len() + 1)
            .iter()
            .map(|occurrence| occurrence.at.0 / 1_000_000)
            .collect();
        if over == "more" {
            found.truncate(expected.len());
        }
        assert_eq!(found, expected, "{line}");
        cases += 1;
    }
    assert_eq!(cases, 2_000);
}

#[test]
fn a_time_in_a_gap_is_shifted_or_skipped() {
    let daily = schedule("2027-03-13T02:30", "America/New_York", "FREQ=DAILY;COUNT=3");
    check(&daily, &["2027-03-13T07:30:00Z", "2027-03-14T07:30:00Z", "2027-03-15T06:30:00Z"]);
    let shifted = daily.preview(Timestamp(0), 2)[1];
    assert_eq!((shifted.local.to_string().as_str(), shifted.reading), ("2027-03-14T02:30:00", Reading::Shifted));

    let skipped = daily.with_gap_policy(GapPolicy::Skip).expect("countable");
    check(&skipped, &["2027-03-13T07:30:00Z", "2027-03-15T06:30:00Z", "2027-03-16T06:30:00Z"]);

    // Given times are read by section 3.3.5 under either policy.
    let given = Schedule::parse(
        "DTSTART;TZID=America/New_York:20270313T023000\nRDATE:20270314T023000\nX-TOCSIN-GAP:SKIP\nX-TOCSIN-FOLD:BOTH",
    )
    .expect("a schedule");
    check(&given, &["2027-03-13T07:30:00Z", "2027-03-14T07:30:00Z"]);

    // Half an hour on Lord Howe: 02:15 becomes 02:45, and hourly occurrences stay in order.
    let lord_howe = schedule("2027-10-02T02:15", "Australia/Lord_Howe", "FREQ=DAILY;COUNT=3");
    check(&lord_howe, &["2027-10-01T15:45:00Z", "2027-10-02T15:45:00Z", "2027-10-03T15:15:00Z"]);
    let quarters = schedule("2027-10-03T01:30", "Australia/Lord_Howe", "FREQ=MINUTELY;INTERVAL=15;COUNT=7");
    check(
        &quarters,
        // 01:30, 01:45, then 02:00 and 02:30 at one instant, 02:15 and 02:45 at another, and 03:00.
        &[
            "2027-10-02T15:00:00Z",
            "2027-10-02T15:15:00Z",
            "2027-10-02T15:30:00Z",
            "2027-10-02T15:45:00Z",
            "2027-10-02T16:00:00Z",
        ],
    );

    // Apia had no 30 December 2011: an occurrence on it happens at the same time a day later.
    let apia = schedule("2011-12-29T09:00", "Pacific/Apia", "FREQ=DAILY;COUNT=4");
    check(&apia, &["2011-12-29T19:00:00Z", "2011-12-30T19:00:00Z", "2011-12-31T19:00:00Z"]);
    let friday = schedule("2011-12-23T09:00", "Pacific/Apia", "FREQ=WEEKLY;BYDAY=FR;COUNT=3");
    check(&friday, &["2011-12-23T19:00:00Z", "2011-12-30T19:00:00Z", "2012-01-05T19:00:00Z"]);
    let friday = friday.with_gap_policy(GapPolicy::Skip).expect("countable");
    check(&friday, &["2011-12-23T19:00:00Z", "2012-01-05T19:00:00Z", "2012-01-12T19:00:00Z"]);

    // Midnight does not exist when summer begins in Cairo: a whole day begins at one o'clock.
    let cairo = schedule("2024-04-25", "Africa/Cairo", "FREQ=DAILY;COUNT=3");
    check(&cairo, &["2024-04-24T22:00:00Z", "2024-04-25T22:00:00Z", "2024-04-26T21:00:00Z"]);
}

#[test]
fn a_time_in_a_fold_happens_once_or_twice() {
    let daily = schedule("2027-11-06T01:30", "America/New_York", "FREQ=DAILY;COUNT=3");
    check(&daily, &["2027-11-06T05:30:00Z", "2027-11-07T05:30:00Z", "2027-11-08T06:30:00Z"]);
    let both = daily.with_fold_policy(FoldPolicy::Both);
    check(&both, &["2027-11-06T05:30:00Z", "2027-11-07T05:30:00Z", "2027-11-07T06:30:00Z", "2027-11-08T06:30:00Z"]);
    assert_eq!(both.preview(at("2027-11-07T06:00:00Z"), 1)[0].reading, Reading::Repeated);

    let hourly = schedule("2027-11-07T00:00", "America/New_York", "FREQ=HOURLY;COUNT=4");
    check(&hourly, &["2027-11-07T04:00:00Z", "2027-11-07T05:00:00Z", "2027-11-07T07:00:00Z", "2027-11-07T08:00:00Z"]);
    check(
        &hourly.with_fold_policy(FoldPolicy::Both),
        &[
            "2027-11-07T04:00:00Z",
            "2027-11-07T05:00:00Z",
            "2027-11-07T06:00:00Z",
            "2027-11-07T07:00:00Z",
            "2027-11-07T08:00:00Z",
        ],
    );
}

#[test]
fn historic_zones() {
    // Vienna's local mean time was 1:05:21 ahead of UTC until 1 April 1893.
    let vienna = schedule("1893-03-31T08:00", "Europe/Vienna", "FREQ=DAILY;COUNT=2");
    check(&vienna, &["1893-03-31T06:54:39Z", "1893-04-01T07:00:00Z"]);
    // Manila crossed the date line: after 31 December 1844 came 1 January 1845 in the new reckoning only.
    let manila = schedule("1844-12-30T12:00", "Asia/Manila", "FREQ=DAILY;COUNT=3");
    let found = first(&manila, 5);
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
    // Double summer time in London, 1941 to 1947.
    let london = schedule("1941-05-03T12:00", "Europe/London", "FREQ=DAILY;COUNT=2");
    check(&london, &["1941-05-03T11:00:00Z", "1941-05-04T10:00:00Z"]);
    // The first and the last day of the calendar.
    check(
        &schedule("0001-01-01T00:00", "UTC", "FREQ=YEARLY;COUNT=2"),
        &["0001-01-01T00:00:00Z", "0002-01-01T00:00:00Z"],
    );
    check(&schedule("9998-12-29T12:00", "UTC", "FREQ=YEARLY"), &["9998-12-29T12:00:00Z", "9999-12-29T12:00:00Z"]);
    for zone in ["Pacific/Kiritimati", "Etc/GMT+12", "Etc/GMT-14"] {
        assert!(first(&schedule("9999-12-31T23:59:59", zone, "FREQ=SECONDLY"), 3).len() <= 1);
        assert_eq!(first(&schedule("0001-01-01T00:00:00", zone, "FREQ=SECONDLY"), 3).len(), 3);
    }
}

#[test]
fn leap_days_and_leap_seconds() {
    check(
        &schedule("2024-02-29T12:00", "UTC", "FREQ=YEARLY;COUNT=3"),
        &["2024-02-29T12:00:00Z", "2028-02-29T12:00:00Z", "2032-02-29T12:00:00Z"],
    );
    check(&schedule("2024-01-01T12:00:60", "UTC", "FREQ=DAILY;BYSECOND=60;COUNT=1"), &["2024-01-01T12:00:59Z"]);
}

#[test]
fn dates_and_exceptions() {
    let text = "DTSTART;TZID=Europe/Vienna:20270104T080000\n\
                RRULE:FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR;COUNT=5\n\
                RDATE:20270109T100000,20270105T080000,20270102T070000Z\n\
                EXDATE;VALUE=DATE:20270106\n\
                EXDATE:20270107T080000,20270108T070000Z";
    let schedule = Schedule::parse(text).expect("a schedule");
    check(&schedule, &["2027-01-02T07:00:00Z", "2027-01-04T07:00:00Z", "2027-01-05T07:00:00Z", "2027-01-09T09:00:00Z"]);
    // By either name of the instant a shifted time can be excluded.
    for name in ["20270314T023000", "20270314T033000", "20270314T073000Z", "20270314"] {
        let text = format!("DTSTART;TZID=America/New_York:20270313T023000\nRRULE:FREQ=DAILY;COUNT=3\nEXDATE:{name}");
        check(&Schedule::parse(&text).expect("a schedule"), &["2027-03-13T07:30:00Z", "2027-03-15T06:30:00Z"]);
    }
}

#[test]
fn text_and_back() {
    let text = "dtstart;tzid=europe/vienna:20270104T080000\r\nrrule:wkst=su;freq=monthly;byday=-1fr,mo,2tu;\r\n \
                bysetpos=2,-1,2;bymonthday=-3,1;interval=2;until=20301231t225959z;\r\nexdate:20270201T080000\r\n\
                x-tocsin-gap:skip\r\nx-tocsin-fold:both\r\n";
    let canonical = "DTSTART;TZID=Europe/Vienna:20270104T080000\n\
        RRULE:FREQ=MONTHLY;INTERVAL=2;UNTIL=20301231T225959Z;BYDAY=MO,2TU,-1FR;BYMONTHDAY=1,-3;BYSETPOS=-1,2;WKST=SU\n\
        EXDATE:20270201T080000\n\
        X-TOCSIN-GAP:SKIP\n\
        X-TOCSIN-FOLD:BOTH";
    let schedule = Schedule::parse(text).expect("a schedule");
    assert_eq!(schedule.to_string(), canonical);
    assert_eq!(Schedule::parse(canonical).expect("a schedule"), schedule);
    let json = serde_json::to_string(&schedule).expect("a string");
    assert_eq!(serde_json::from_str::<Schedule>(&json).expect("a schedule"), schedule);
    for text in [
        "DTSTART:20270104T080000Z",
        "DTSTART;VALUE=DATE;TZID=UTC:20270104\nRRULE:FREQ=WEEKLY;COUNT=3",
        "DTSTART:20270104T080000Z\nRRULE:FREQ=YEARLY;BYSECOND=0,59;BYDAY=-53SU;BYYEARDAY=1,366,-366;BYWEEKNO=1",
    ] {
        let parsed = Schedule::parse(text);
        match parsed {
            Ok(parsed) => assert_eq!(parsed.to_string(), text),
            Err(problems) => assert_eq!(problems[0].path, "RRULE.BYDAY", "{problems:?}"),
        }
    }
    assert_eq!(
        Schedule::new("2027-01-04 08:00", "UTC", Some("RRULE:FREQ=DAILY")).expect("one").rule().as_deref(),
        Some("FREQ=DAILY")
    );
}

#[test]
fn what_is_wrong_is_said() {
    let with_rule = |rule: &str| Schedule::new("2027-01-01T08:00", "Europe/Vienna", Some(rule));
    check_problems(with_rule("FREQ=DALY"), &["RRULE.FREQ: `DALY` is not a frequency"]);
    check_problems(with_rule("INTERVAL=2"), &["RRULE: FREQ is missing"]);
    check_problems(
        with_rule("FREQ=DAILY;BYHOUR=8,24;BYDAY=1MO;BYMONHT=1;COUNT=2;UNTIL=20280101T000000Z;COUNT=3"),
        &[
            "RRULE: COUNT is given twice",
            "RRULE.BYHOUR: `24` is not a whole number from 0 to 23",
            "RRULE: `BYMONHT` is not a part of a rule",
            "RRULE.UNTIL: a rule ends by COUNT or by UNTIL, not by both",
            "RRULE.BYDAY: weekdays with a number need FREQ=MONTHLY or FREQ=YEARLY",
        ],
    );
    check_problems(
        with_rule("RSCALE=GREGORIAN;FREQ=MONTHLY;SKIP=BACKWARD"),
        &[
            "RRULE.RSCALE: RSCALE of RFC 7529 is not supported: rules follow the Gregorian calendar and skip dates it does not have",
            "RRULE.SKIP: SKIP of RFC 7529 is not supported: rules follow the Gregorian calendar and skip dates it does not have",
        ],
    );
    check_problems(
        with_rule("FREQ=WEEKLY;BYMONTHDAY=0,32;BYWEEKNO=3;BYSETPOS=367;INTERVAL=0"),
        &[
            "RRULE.BYMONTHDAY: `0` is not a whole number from 1 to 31 or from -31 to -1",
            "RRULE.BYMONTHDAY: `32` is not a whole number from 1 to 31 or from -31 to -1",
            "RRULE.BYSETPOS: `367` is not a whole number from 1 to 366 or from -366 to -1",
            "RRULE.INTERVAL: `0` is not a whole number from 1 to 1000000000",
            "RRULE.BYWEEKNO: BYWEEKNO needs FREQ=YEARLY",
        ],
    );
    check_problems(with_rule("FREQ=DAILY;UNTIL=20280101"), &["RRULE.UNTIL: UNTIL is a date, but the start has a time"]);
    check_problems(
        with_rule("FREQ=DAILY;BYSETPOS=1"),
        &["RRULE.BYSETPOS: BYSETPOS selects from another BY part, and there is none"],
    );
    check_problems(
        Schedule::new("2027-02-29", "UTC", None),
        &["DTSTART: `2027-02-29` is not a date of the years 1 to 9999"],
    );
    check_problems(
        Schedule::new("2027-01-01T08:00", "Mars/Olympus", None),
        &["TZID: `Mars/Olympus` is not a time zone"],
    );
    check_problems(
        Schedule::new("2027-01-01", "UTC", Some("FREQ=HOURLY")),
        &["RRULE.FREQ: the start is a date, so it cannot recur within a day"],
    );
    check_problems(Schedule::parse("DTSTART:20270101T080000"), &["DTSTART: the start has no time zone"]);
    check_problems(Schedule::parse("RULE:FREQ=DAILY"), &[": `RULE` is not a property of a schedule"]);
    check_problems(Schedule::parse(""), &["DTSTART: the start is missing"]);
    let problems =
        Schedule::parse("DTSTART:20270101T080000Z\n\nRRULE:FREQ=DAILY;\n BYHOUR=x").expect_err("x is no hour");
    assert_eq!((problems.len(), problems[0].line), (1, Some(3)));
    // Non-ASCII bytes, where slices could split a character.
    for text in
        ["DTSTART:２０２７0101T080000Z", "RRULE:ÄÖÜßé", "é", ":", ";", "=", "DTSTART;=:", "RRULE:BYDAY=é;FREQ=DAILY"]
    {
        assert!(Schedule::parse(text).is_err(), "{text}");
        assert!(Schedule::new(text, text, Some(text)).is_err(), "{text}");
    }
    assert!(Schedule::parse(&"DTSTART:20270101T080000Z\n".repeat(5_000)).is_err());
}

/// Exhausting rules: each is answered or refused within a bounded number of steps. A step takes some nanoseconds, so
/// four million of them stay within a tenth of a second.
#[test]
fn bombs_answer_within_bounded_steps() {
    const BOUND: u64 = 4_000_000;
    for (start, rule, expected) in [
        ("2027-01-01T00:00", "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", None),
        ("2027-01-01T00:00", "FREQ=MONTHLY;BYMONTHDAY=31;BYMONTH=2", None),
        ("2027-01-01T00:00", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", None),
        ("2027-01-01T00:00", "FREQ=DAILY;BYMONTH=2,4;BYMONTHDAY=31", None),
        (
            "2027-01-01T00:00",
            "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=23;BYMINUTE=59;BYSECOND=58",
            Some("2028-02-29T23:59:58Z"),
        ),
        ("2027-01-01T00:00", "FREQ=SECONDLY;INTERVAL=2;BYSECOND=1,3,5,7,9,11", None),
        (
            "2027-01-01T00:00",
            "FREQ=SECONDLY;INTERVAL=86399;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO;BYHOUR=3;BYMINUTE=7;BYSECOND=11",
            None,
        ),
        (
            "2027-01-01T00:00",
            "FREQ=SECONDLY;INTERVAL=999983;BYMONTH=2;BYMONTHDAY=29;BYHOUR=3;BYMINUTE=0;BYSECOND=0",
            None,
        ),
        (
            "2027-01-01T00:00",
            "FREQ=SECONDLY;INTERVAL=293;BYHOUR=4,9,17;BYMINUTE=1,2,3,5,8,13;BYSECOND=3;BYYEARDAY=366;BYDAY=TU",
            Some("2368-12-31T09:08:03Z"),
        ),
        ("2027-01-01T00:00", "FREQ=MINUTELY;INTERVAL=1439;BYHOUR=3;BYMINUTE=1;BYYEARDAY=-366", None),
        ("2027-01-01T04:00", "FREQ=HOURLY;INTERVAL=24;BYHOUR=5", None),
        ("2027-01-01T00:00", "FREQ=SECONDLY;BYSETPOS=2;BYSECOND=1,2", None),
        ("2027-01-01T00:00", "FREQ=HOURLY;BYMINUTE=1,2;BYSETPOS=366", None),
        ("2027-01-01T00:00", "FREQ=YEARLY;BYWEEKNO=53;BYYEARDAY=100", None),
        ("2027-01-01T00:00", "FREQ=YEARLY;BYDAY=53SU;BYMONTH=1", None),
        ("2027-01-01T00:00", "FREQ=YEARLY;INTERVAL=1000000000;BYMONTH=7", Some("2027-07-01T00:00:00Z")),
        ("2027-01-01T00:00", "FREQ=SECONDLY;INTERVAL=1000000000;BYMONTH=7", Some("2280-07-05T14:13:20Z")),
        ("2027-01-01T00:00", "FREQ=SECONDLY;COUNT=1000000000", Some("2027-01-02T00:00:01Z")),
        ("2027-01-01T00:00", "FREQ=SECONDLY;INTERVAL=7;BYSECOND=3,4;COUNT=1000000000", Some("2027-01-02T00:01:04Z")),
        ("2027-01-01T00:00", "FREQ=DAILY;COUNT=1000000000", Some("2027-01-03T00:00:00Z")),
        (
            "2027-01-01T00:00",
            "FREQ=YEARLY;BYHOUR=0,1;BYMINUTE=0,1;BYDAY=MO,TU,WE;COUNT=1000000000",
            Some("2027-01-04T00:00:00Z"),
        ),
        ("2027-01-01T00:00", "FREQ=SECONDLY;UNTIL=99991231T235959Z", Some("2027-01-02T00:00:01Z")),
        ("0001-01-01T00:00", "FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=30;UNTIL=99991231T235959Z", None),
    ] {
        for zone in ["UTC", "America/New_York"] {
            let schedule = schedule(start, zone, rule);
            let mut occurrences = schedule.occurrences_after(at("2027-01-02T00:00:00Z"));
            let found = occurrences.next();
            assert!(occurrences.steps <= BOUND, "{rule}: {} steps", occurrences.steps);
            if zone == "UTC" {
                assert_eq!(found.map(|found| found.at.to_string()).as_deref(), expected, "{rule}");
            }
        }
    }
    // A count is found by arithmetic: the last second of a thousand million, 31 years on.
    let counted = schedule("2027-01-01T00:00", "UTC", "FREQ=SECONDLY;COUNT=1000000000");
    assert_eq!(counted.last.map(|last| calendar::civil_of(last).to_string()).as_deref(), Some("2058-09-09T01:46:39"));
    assert_eq!(counted.next_after(at("2058-09-09T01:46:38Z")).expect("the last").at, at("2058-09-09T01:46:39Z"));
    assert_eq!(counted.next_after(at("2058-09-09T01:46:39Z")), None);
    // All of them fall into gaps: under the skipping policy there is none, or counting them is refused.
    let gaps_only = |count: u32| {
        let days = "BYMONTH=3;BYMONTHDAY=8,9,10,11,12,13,14;BYDAY=SU;BYHOUR=2";
        schedule("2027-01-01T00:00", "America/New_York", &format!("FREQ=SECONDLY;{days};COUNT={count}"))
            .with_gap_policy(GapPolicy::Skip)
    };
    assert_eq!(gaps_only(1_000_000_000).expect("over before its count").next_after(at("2027-01-02T00:00:00Z")), None);
    assert_eq!(gaps_only(10_000_000).expect_err("too long to count").path, "RRULE.COUNT");
    check_problems(
        Schedule::new("2027-01-01", "UTC", Some("FREQ=DAILY;COUNT=1000000001")),
        &["RRULE.COUNT: `1000000001` is not a whole number from 1 to 1000000000"],
    );
    // Excluded whole days are skipped without iterating over their times.
    let excluded: Vec<String> =
        (0..1_000).map(|day| DateOrTime::Day(calendar::day_of(2027, 1, 1) + day).to_string()).collect();
    let text = format!("DTSTART:20270101T000000Z\nRRULE:FREQ=SECONDLY\nEXDATE;VALUE=DATE:{}", excluded.join(","));
    let schedule = Schedule::parse(&text).expect("a schedule");
    let mut occurrences = schedule.occurrences_from(Timestamp(0));
    assert_eq!(occurrences.next().expect("one").at, at("2029-09-27T00:00:00Z"));
    assert!(occurrences.steps < 10_000);
}

#[test]
fn the_hundredth_year_costs_no_more_than_the_first() {
    for rule in [
        "FREQ=DAILY",
        "FREQ=DAILY;INTERVAL=3;COUNT=1000000",
        "FREQ=SECONDLY;INTERVAL=17",
        "FREQ=WEEKLY;BYDAY=MO,FR",
        "FREQ=MONTHLY;BYDAY=-1FR",
    ] {
        let schedule = schedule("1927-01-01T08:00", "Europe/Vienna", rule);
        let mut occurrences = schedule.occurrences_after(at("2027-06-01T00:00:00Z"));
        assert!(occurrences.next().is_some());
        assert!(occurrences.steps < 200, "{rule}: {} steps", occurrences.steps);
    }
}

#[test]
fn missed_runs_follow_the_policy() {
    let minutely = schedule("2027-01-01T00:00", "Europe/Vienna", "FREQ=MINUTELY");
    let (last, now) = (at("2027-05-01T12:00:00Z"), at("2027-05-04T12:00:30Z"));
    let due = |policy| {
        let due = minutely.due(Some(last), now, policy);
        assert_eq!((due.next, due.skipped_at_least), (Some(at("2027-05-04T12:01:00Z")), false));
        (due.runs.iter().map(|run| run.at.to_string()).collect::<Vec<_>>(), due.skipped)
    };
    assert_eq!(due(MissedPolicy::Once), (vec!["2027-05-04T12:00:00Z".to_owned()], 4_319));
    assert_eq!(
        due(MissedPolicy::All { limit: 2 }),
        (vec!["2027-05-04T11:59:00Z".to_owned(), "2027-05-04T12:00:00Z".to_owned()], 4_318)
    );
    assert_eq!(due(MissedPolicy::Skip { grace: Duration::from_secs(60) }).1, 4_319);
    assert_eq!(due(MissedPolicy::Skip { grace: Duration::from_secs(29) }), (vec![], 4_320));

    // On time: one run, nothing skipped, under each policy. At once again: nothing.
    let now = at("2027-05-01T12:01:00Z");
    for policy in [MissedPolicy::Once, MissedPolicy::All { limit: 5 }, MissedPolicy::Skip { grace: Duration::ZERO }] {
        let due = minutely.due(Some(last), now, policy);
        assert_eq!((due.runs.len(), due.skipped), (1, 0));
        assert_eq!(minutely.due(Some(now), now, policy).runs, vec![]);
    }
    // A clock put back runs nothing twice.
    let back = minutely.due(Some(last), at("2027-05-01T11:00:00Z"), MissedPolicy::Once);
    assert_eq!((back.runs.len(), back.skipped, back.next), (0, 0, Some(at("2027-05-01T12:01:00Z"))));
    // A clock put forward by ten years: one run, counting stops, and the newest are still the newest.
    let secondly = schedule("2027-01-01T00:00", "Europe/Vienna", "FREQ=SECONDLY;BYHOUR=3");
    let ahead = secondly.due(Some(last), at("2037-05-01T12:00:00Z"), MissedPolicy::All { limit: 3 });
    assert_eq!(
        ahead.runs.iter().map(|run| run.at.to_string()).collect::<Vec<_>>(),
        ["2037-05-01T01:59:57Z", "2037-05-01T01:59:58Z", "2037-05-01T01:59:59Z"]
    );
    assert_eq!((ahead.skipped, ahead.skipped_at_least), (MISSED_COUNTED_MAX - 3, true));
    assert_eq!(ahead.next, Some(at("2037-05-02T01:00:00Z")));
    // The schedule has ended.
    let ended = schedule("2027-01-01T00:00", "UTC", "FREQ=DAILY;COUNT=2").due(None, now, MissedPolicy::Once);
    assert_eq!((ended.runs.len(), ended.skipped, ended.next), (1, 1, None));
}

/// The zone database changes: the same text gives new instants, because nothing is cached from the old one.
#[test]
fn a_change_of_the_zone_moves_the_schedule() {
    let schedule = schedule("2027-01-01T08:00", "Europe/Vienna", "FREQ=DAILY;COUNT=1000");
    let in_july = |zone: &str| {
        let zone = TimeZone::posix(zone).expect("a POSIX zone");
        let from = at("2027-07-01T00:00:00Z").0 / 1_000_000;
        schedule.occurrences_in(zone, from).next().expect("one").at.to_string()
    };
    assert_eq!(in_july("CET-1CEST,M3.5.0,M10.5.0/3"), "2027-07-01T06:00:00Z");
    assert_eq!(in_july("CET-1"), "2027-07-01T07:00:00Z");
}

#[test]
fn a_schedule_may_leave_its_zone_open() {
    for text in ["DTSTART:20270104T080000\nRRULE:FREQ=DAILY", "DTSTART;VALUE=DATE:20270104\nRRULE:FREQ=WEEKLY"] {
        let floating = Schedule::parse_floating(text).expect("it needs no zone");
        assert!(floating.is_floating());
        assert_eq!(floating.to_string(), text);
        assert!(Schedule::parse(text).is_err(), "elsewhere it needs one");
    }
    let floating = Schedule::floating("2027-01-04T08:00", Some("RRULE:FREQ=DAILY")).expect("well-formed");
    let at = |zone| floating.in_zone(zone).expect("a zone").next_after(Timestamp(0)).expect("it comes").at.to_string();
    assert_eq!(
        (at("Europe/Vienna"), at("UTC")),
        ("2027-01-04T07:00:00Z".to_owned(), "2027-01-04T08:00:00Z".to_owned())
    );
    assert!(floating.in_zone("Middle/Earth").is_none());
    let fixed = Schedule::parse_floating("DTSTART;TZID=Europe/Vienna:20270104T080000").expect("well-formed");
    assert_eq!(fixed.in_zone("Asia/Tokyo"), Some(fixed.clone()));
    let found = Schedule::floating("soon", None).expect_err("not a time");
    assert!(found[0].message.contains("is not a date"), "{found:?}");
}

#[test]
fn an_interval_counts_from_1970() {
    let next = |seconds, after: &str| {
        let schedule = Schedule::every(Duration::from_secs(seconds));
        let next = schedule.next_after(after.parse().expect("a time")).expect("it comes").at.to_string();
        (schedule.rule().expect("it has one"), next)
    };
    let quarter = ("FREQ=MINUTELY;INTERVAL=15".to_owned(), "2027-01-04T08:15:00Z".to_owned());
    assert_eq!(next(900, "2027-01-04T08:00:01Z"), quarter);
    assert_eq!(next(86_400, "2027-01-04T08:00:01Z"), ("FREQ=DAILY".to_owned(), "2027-01-05T00:00:00Z".to_owned()));
    assert_eq!(
        next(7, "1970-01-01T00:00:01Z"),
        ("FREQ=SECONDLY;INTERVAL=7".to_owned(), "1970-01-01T00:00:07Z".to_owned())
    );
}
