//! An independent oracle: it iterates from the start over every day, hour, minute or second of a window, checks each
//! part of the rule in the words of the RFC, and sorts the results.
//!
//! `TOCSIN_SEED` repeats a run, `TOCSIN_CASES` makes it longer.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{
    Span,
    civil::{Date, DateTime, date},
    tz::{AmbiguousOffset, TimeZone},
};

use super::super::*;

/// Deterministic pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn within(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % (high - low + 1) as u64) as i64
    }

    fn chance(&mut self, percent: i64) -> bool {
        self.within(1, 100) <= percent
    }

    fn pick<'t, T>(&mut self, list: &'t [T]) -> &'t T {
        &list[self.within(0, list.len() as i64 - 1) as usize]
    }

    fn numbers(&mut self, low: i64, high: i64, most: i64, signed: bool) -> Vec<i64> {
        let count = self.within(1, most);
        (0..count)
            .map(|_| {
                let number = self.within(low, high);
                if signed && self.chance(40) { -number } else { number }
            })
            .collect()
    }
}

const WEEKDAYS: [&str; 7] = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"];

/// A rule as lists of numbers, as written.
#[derive(Debug, Default, Clone)]
struct Parts {
    frequency: &'static str,
    interval: i64,
    count: Option<usize>,
    until: Option<DateTime>,
    by_month: Vec<i64>,
    by_week_number: Vec<i64>,
    by_year_day: Vec<i64>,
    by_month_day: Vec<i64>,
    /// Ordinal, or 0, and weekday from Monday.
    by_day: Vec<(i64, i64)>,
    by_hour: Vec<i64>,
    by_minute: Vec<i64>,
    by_second: Vec<i64>,
    by_position: Vec<i64>,
    week_start: i64,
}

impl Parts {
    fn random(random: &mut Random, start: DateTime) -> Parts {
        let frequency = *random.pick(&[
            "YEARLY", "YEARLY", "MONTHLY", "MONTHLY", "WEEKLY", "DAILY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY",
        ]);
        let sub_daily = matches!(frequency, "HOURLY" | "MINUTELY" | "SECONDLY");
        let mut parts = Parts { frequency, interval: 1, ..Parts::default() };
        if random.chance(40) {
            parts.interval = *random.pick(&[2, 3, 4, 5, 7, 11, 24, 25, 60, 61, 90]);
        }
        if random.chance(25) {
            parts.by_month = random.numbers(1, 12, 6, false);
        }
        if frequency == "YEARLY" && random.chance(25) {
            parts.by_week_number = random.numbers(1, 53, 4, true);
        }
        if (frequency == "YEARLY" || sub_daily) && random.chance(15) {
            parts.by_year_day = random.numbers(1, 366, if sub_daily { 200 } else { 8 }, true);
        }
        if frequency != "WEEKLY" && random.chance(25) {
            parts.by_month_day = random.numbers(1, 31, if sub_daily { 20 } else { 6 }, true);
        }
        if random.chance(35) {
            let ordinal_max = match frequency {
                "MONTHLY" => 5,
                "YEARLY" if !parts.by_week_number.is_empty() => 0,
                "YEARLY" if parts.by_month.is_empty() => 53,
                "YEARLY" => 5,
                _ => 0,
            };
            for _ in 0..random.within(1, 4) {
                let ordinal = if ordinal_max > 0 && random.chance(50) {
                    random.within(1, ordinal_max) * if random.chance(50) { -1 } else { 1 }
                } else {
                    0
                };
                parts.by_day.push((ordinal, random.within(0, 6)));
            }
        }
        let own = |list: &mut Vec<i64>, value: i8| {
            if sub_daily {
                list.push(i64::from(value));
            }
        };
        if random.chance(30) {
            parts.by_hour = random.numbers(0, 23, 4, false);
            own(&mut parts.by_hour, start.hour());
        }
        if random.chance(20) {
            parts.by_minute = random.numbers(0, 59, 4, false);
            own(&mut parts.by_minute, start.minute());
        }
        if random.chance(15) {
            parts.by_second = random.numbers(0, 59, 3, false);
            own(&mut parts.by_second, start.second());
        }
        let any_part = !(parts.by_month.is_empty()
            && parts.by_week_number.is_empty()
            && parts.by_year_day.is_empty()
            && parts.by_month_day.is_empty()
            && parts.by_day.is_empty()
            && parts.by_hour.is_empty()
            && parts.by_minute.is_empty()
            && parts.by_second.is_empty());
        if any_part && random.chance(25) {
            parts.by_position = random.numbers(1, 8, 3, true);
        }
        if random.chance(30) {
            parts.week_start = random.within(0, 6);
        }
        match random.within(0, 9) {
            0..3 => parts.count = Some(random.within(1, 60) as usize),
            3..5 => {
                let days = match frequency {
                    "SECONDLY" => 0,
                    "MINUTELY" => 2,
                    "HOURLY" => 40,
                    _ => 1_500,
                };
                parts.until = Some(start + Span::new().days(random.within(0, days)).minutes(random.within(0, 300)));
            }
            _ => {}
        }
        parts
    }

    fn text(&self) -> String {
        let mut text = format!("FREQ={}", self.frequency);
        let list = |name: &str, numbers: &[i64]| {
            let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
            if numbers.is_empty() { String::new() } else { format!(";{name}={}", numbers.join(",")) }
        };
        if self.interval != 1 {
            text += &format!(";INTERVAL={}", self.interval);
        }
        text += &list("BYMONTH", &self.by_month);
        text += &list("BYWEEKNO", &self.by_week_number);
        text += &list("BYYEARDAY", &self.by_year_day);
        text += &list("BYMONTHDAY", &self.by_month_day);
        if !self.by_day.is_empty() {
            let days: Vec<String> = self
                .by_day
                .iter()
                .map(|(ordinal, day)| {
                    let ordinal = if *ordinal == 0 { String::new() } else { ordinal.to_string() };
                    format!("{ordinal}{}", WEEKDAYS[*day as usize])
                })
                .collect();
            text += &format!(";BYDAY={}", days.join(","));
        }
        text += &list("BYHOUR", &self.by_hour);
        text += &list("BYMINUTE", &self.by_minute);
        text += &list("BYSECOND", &self.by_second);
        text += &list("BYSETPOS", &self.by_position);
        text += &format!(";WKST={}", WEEKDAYS[self.week_start as usize]);
        if let Some(count) = self.count {
            text += &format!(";COUNT={count}");
        }
        if let Some(until) = self.until {
            text += &format!(";UNTIL={}", until.strftime("%Y%m%dT%H%M%S"));
        }
        text
    }

    /// Completes absent parts from the start.
    fn completed(&self, start: DateTime) -> Parts {
        let mut parts = self.clone();
        let (month, day) = (i64::from(start.month()), i64::from(start.day()));
        let no_day = self.by_day.is_empty() && self.by_month_day.is_empty() && self.by_year_day.is_empty();
        match self.frequency {
            "YEARLY" if !self.by_week_number.is_empty() && no_day => parts.by_day = vec![(0, weekday_of(start.date()))],
            "YEARLY" if self.by_week_number.is_empty() && self.by_day.is_empty() && self.by_year_day.is_empty() => {
                if self.by_month.is_empty() {
                    parts.by_month = vec![month];
                }
                if self.by_month_day.is_empty() {
                    parts.by_month_day = vec![day];
                }
            }
            "MONTHLY" if no_day => parts.by_month_day = vec![day],
            "WEEKLY" if no_day => parts.by_day = vec![(0, weekday_of(start.date()))],
            _ => {}
        }
        if parts.by_hour.is_empty() && !matches!(self.frequency, "HOURLY" | "MINUTELY" | "SECONDLY") {
            parts.by_hour = vec![i64::from(start.hour())];
        }
        if parts.by_minute.is_empty() && !matches!(self.frequency, "MINUTELY" | "SECONDLY") {
            parts.by_minute = vec![i64::from(start.minute())];
        }
        if parts.by_second.is_empty() && self.frequency != "SECONDLY" {
            parts.by_second = vec![i64::from(start.second())];
        }
        parts
    }

    /// Whether a day satisfies all parts about days.
    fn day_fits(&self, day: Date, months_written: bool) -> bool {
        let in_month: i64 = day.days_in_month().into();
        let in_year: i64 = day.days_in_year().into();
        let (month_day, year_day) = (i64::from(day.day()), i64::from(day.day_of_year()));
        let named = |list: &[i64], number: i64, of: i64| {
            list.is_empty()
                || list
                    .iter()
                    .any(|requested| *requested == number || (*requested < 0 && of + 1 + *requested == number))
        };
        let week = || {
            let (year, number) = week_of(day, self.week_start);
            let (_, last) = week_of(date(year as i16, 12, 28), self.week_start);
            named(&self.by_week_number, number, last)
        };
        let by_day = || {
            self.by_day.is_empty()
                || self.by_day.iter().any(|(ordinal, weekday)| {
                    weekday_of(day) == *weekday
                        && (*ordinal == 0 || {
                            let whole_year = self.frequency == "YEARLY" && !months_written;
                            let (first, length) = if whole_year {
                                (day.first_of_year(), in_year)
                            } else {
                                (day.first_of_month(), in_month)
                            };
                            let first_same = (0..7)
                                .find(|offset| weekday_of(first + Span::new().days(*offset)) == *weekday)
                                .expect("a week has it");
                            let same: Vec<Date> = (first_same..length)
                                .step_by(7)
                                .map(|offset| first + Span::new().days(offset))
                                .collect();
                            let index = if *ordinal > 0 { ordinal - 1 } else { same.len() as i64 + ordinal };
                            usize::try_from(index).ok().and_then(|index| same.get(index)) == Some(&day)
                        })
                })
        };
        named(&self.by_month, day.month().into(), 12)
            && named(&self.by_month_day, month_day, in_month)
            && named(&self.by_year_day, year_day, in_year)
            && (self.by_week_number.is_empty() || week())
            && by_day()
    }

    /// All wall-clock times of the rule from the start to the end of the window.
    fn candidates(&self, start: DateTime, end: DateTime) -> Vec<DateTime> {
        let months_written = !self.by_month.is_empty();
        let parts = self.completed(start);
        let has = |list: &[i64], value: i8| list.is_empty() || list.contains(&i64::from(value));
        // The period of a time, as a number that grows by one from each to the next.
        let margin = Span::new().days(if parts.frequency == "YEARLY" { 400 } else { 40 });
        let begin = start.date() - margin;
        let days_of = |day: Date| i64::from(day.since(date(1, 1, 1)).expect("days").get_days());
        let period = |time: DateTime, days: i64| -> i64 {
            match parts.frequency {
                "YEARLY" if !parts.by_week_number.is_empty() => week_of(time.date(), parts.week_start).0,
                "YEARLY" => time.year().into(),
                "MONTHLY" => i64::from(time.year()) * 12 + i64::from(time.month()),
                "WEEKLY" => (days - parts.week_start) / 7,
                "DAILY" => days,
                "HOURLY" => days * 24 + i64::from(time.hour()),
                "MINUTELY" => days * 1_440 + i64::from(time.hour()) * 60 + i64::from(time.minute()),
                _ => {
                    days * 86_400
                        + i64::from(time.hour()) * 3_600
                        + i64::from(time.minute()) * 60
                        + i64::from(time.second())
                }
            }
        };
        let first_period = if parts.by_week_number.is_empty() || parts.by_day.is_empty() {
            period(start, days_of(start.date()))
        } else {
            let mut day = start.date();
            while parts.by_day.iter().all(|(_, weekday)| weekday_of(day) != *weekday) {
                day = day.tomorrow().expect("a later day");
            }
            period(day.to_datetime(start.time()), days_of(day))
        };
        let sub_daily = matches!(parts.frequency, "HOURLY" | "MINUTELY" | "SECONDLY");
        let mut periods: BTreeMap<i64, Vec<DateTime>> = BTreeMap::new();
        let mut day = if sub_daily { start.date() } else { begin };
        // Sets of whole periods are needed for positions, so walk on to the end of the last one.
        let last_day = if sub_daily { end.date() } else { end.date() + margin };
        while day <= last_day {
            let days = days_of(day);
            let skipped = period(day.to_datetime(start.time()), days) - first_period;
            let never = !sub_daily && (skipped < 0 || skipped % parts.interval != 0);
            if !never && parts.day_fits(day, months_written) {
                for hour in (0..24).filter(|hour| has(&parts.by_hour, *hour)) {
                    if sub_daily
                        && (day.at(hour, 59, 59, 0) < start.with().minute(0).second(0).build().expect("a time")
                            || day.at(hour, 0, 0, 0) > end)
                    {
                        continue;
                    }
                    for minute in (0..60).filter(|minute| has(&parts.by_minute, *minute)) {
                        for second in (0..60).filter(|second| has(&parts.by_second, *second)) {
                            let time = day.at(hour, minute, second, 0);
                            let number = period(time, days);
                            if number >= first_period && (number - first_period) % parts.interval == 0 {
                                periods.entry(number).or_default().push(time);
                            }
                        }
                    }
                }
            }
            day = day.tomorrow().expect("a later day");
        }
        let mut all = BTreeSet::new();
        for set in periods.values() {
            if parts.by_position.is_empty() {
                all.extend(set.iter().copied());
            }
            for position in &parts.by_position {
                let index = if *position > 0 { position - 1 } else { set.len() as i64 + position };
                all.extend(usize::try_from(index).ok().and_then(|index| set.get(index)));
            }
        }
        all.into_iter()
            .filter(|time| *time >= start && *time <= end)
            .filter(|time| parts.until.is_none_or(|until| *time <= until))
            .collect()
    }
}

fn weekday_of(day: Date) -> i64 {
    day.weekday().to_monday_zero_offset().into()
}

/// The year and number of a day's week: those of its fourth day, since a week belongs to the year with most of it.
fn week_of(day: Date, week_start: i64) -> (i64, i64) {
    let fourth = day + Span::new().days(3 - (weekday_of(day) - week_start).rem_euclid(7));
    (fourth.year().into(), (i64::from(fourth.day_of_year()) - 1) / 7 + 1)
}

/// Instants of wall-clock times under the policies, in seconds.
fn instants(
    times: &[DateTime],
    count: Option<usize>,
    zone: &TimeZone,
    gap: GapPolicy,
    fold: FoldPolicy,
) -> BTreeSet<i64> {
    let mut found = BTreeSet::new();
    let mut counted = 0;
    for time in times {
        if count == Some(counted) {
            break;
        }
        let ambiguous = zone.to_ambiguous_timestamp(*time);
        if matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. }) && gap == GapPolicy::Skip {
            continue;
        }
        counted += 1;
        found.insert(ambiguous.compatible().expect("within time").as_second());
        if matches!(ambiguous.offset(), AmbiguousOffset::Fold { .. }) && fold == FoldPolicy::Both {
            found.insert(ambiguous.later().expect("within time").as_second());
        }
    }
    found
}

fn random_start(random: &mut Random, zone: &TimeZone) -> DateTime {
    let any = jiff::Timestamp::from_second(random.within(-1_500_000_000, 2_200_000_000)).expect("within time");
    let near = if random.chance(60) { zone.following(any).next().map(|change| change.timestamp()) } else { None };
    let from = near.unwrap_or(any) + Span::new().minutes(15 * random.within(-300, 40)).seconds(random.within(0, 1) * 7);
    let start = zone.to_datetime(from).with().subsec_nanosecond(0).build().expect("a time");
    if random.chance(80) {
        start.with().minute(15 * (start.minute() / 15)).second(0).build().expect("a time")
    } else {
        start
    }
}

#[test]
fn random_rules_agree_with_brute_force() {
    let number =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seed, cases) = (number("TOCSIN_SEED", 20_261_121), number("TOCSIN_CASES", 2_000));
    println!("TOCSIN_SEED={seed} TOCSIN_CASES={cases}");
    let mut random = Random(seed);
    let zones: Vec<String> = jiff::tz::db().available().map(|name| name.as_str().to_owned()).collect();
    let notable = [
        "America/New_York",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Africa/Cairo",
        "Europe/Vienna",
        "America/St_Johns",
        "Africa/Casablanca",
        "UTC",
    ];
    let mut occurrences = 0;
    for case in 0..cases {
        let zone_name = if random.chance(50) { random.pick(&notable).to_string() } else { random.pick(&zones).clone() };
        let zone = TimeZone::get(&zone_name).expect("listed");
        let start = random_start(&mut random, &zone);
        let parts = Parts::random(&mut random, start);
        let window = match parts.frequency {
            "SECONDLY" => Span::new().hours(2),
            "MINUTELY" => Span::new().days(4),
            "HOURLY" => Span::new().days(90),
            "DAILY" => Span::new().days(700),
            _ => Span::new().days(1_600),
        };
        let gap = *random.pick(&[GapPolicy::ShiftForward, GapPolicy::ShiftForward, GapPolicy::Skip]);
        let fold = *random.pick(&[FoldPolicy::First, FoldPolicy::First, FoldPolicy::Both]);
        let label = format!("case {case}: {zone_name} {start} {} {gap:?} {fold:?}", parts.text());
        let schedule = Schedule::new(&start.to_string(), &zone_name, Some(&parts.text()))
            .unwrap_or_else(|problems| panic!("{label}: {problems:?}"))
            .with_gap_policy(gap)
            .unwrap_or_else(|problem| panic!("{label}: {problem}"))
            .with_fold_policy(fold);
        assert_eq!(Schedule::parse(&schedule.to_string()).as_ref(), Ok(&schedule), "{label}");

        let end = start + window;
        let expected = instants(&parts.candidates(start, end), parts.count, &zone, gap, fold);
        // Occurrences before the end in the zone furthest ahead do not depend on later ones.
        let local_end = zone.to_timestamp(end).expect("within time");
        let offset_max =
            [-48, 0, 48].map(|hours| zone.to_offset(local_end + Span::new().hours(hours)).seconds()).into_iter().max();
        let utc_end = TimeZone::UTC.to_timestamp(end).expect("within time").as_second();
        let horizon = utc_end - i64::from(offset_max.expect("three"));
        let expected: Vec<i64> = expected.into_iter().filter(|second| *second < horizon).take(150).collect();
        let second = |occurrence: &Occurrence| occurrence.at.0 / 1_000_000;
        let found: Vec<i64> = schedule
            .occurrences_between(Timestamp(i64::MIN), Timestamp(horizon * 1_000_000), 150)
            .iter()
            .map(second)
            .collect();
        assert_eq!(found, expected, "{label}");
        occurrences += found.len();

        // From any time the next one is the same, and they ascend.
        for _ in 0..6 {
            if expected.len() < 2 {
                break;
            }
            let index = random.within(0, expected.len() as i64 - 2) as usize;
            let from = random.within(expected[index], expected[index + 1] - 1);
            let next = schedule.next_after(Timestamp(from * 1_000_000 + random.within(0, 999_999)));
            assert_eq!(next.as_ref().map(second), Some(expected[index + 1]), "{label} after {from}");
        }
        let mut after = Timestamp(i64::MIN);
        for second in expected.iter().take(20) {
            let next = schedule.next_after(after).expect("as expected").at;
            assert_eq!(next, Timestamp(second * 1_000_000), "{label}");
            assert!(next > after);
            after = next;
        }
    }
    assert!(occurrences as u64 > cases * 10, "{occurrences} occurrences in {cases} cases are too few to mean anything");
}

/// Every clock change in every known zone, from 1850 to 2040: quarters of an hour around it convert as `jiff`
/// converts them.
#[test]
fn every_change_of_every_zone() {
    let mut changes = 0;
    let mut known = BTreeSet::new();
    for name in jiff::tz::db().available() {
        let zone = TimeZone::get(name.as_str()).expect("listed");
        if zone.iana_name().is_none() {
            continue;
        }
        let from = jiff::Timestamp::from_second(-3_786_912_000).expect("1850");
        let all: Vec<_> =
            zone.following(from).take_while(|change| change.timestamp().as_second() < 2_208_988_800).collect();
        // Many names are links to the same zone.
        if !known.insert(all.iter().map(|change| (change.timestamp(), change.offset())).collect::<Vec<_>>()) {
            continue;
        }
        let mut latest = i64::MIN;
        for change in all {
            // Each zone's recent rules repeat themselves, so one year in ten is enough.
            let second = change.timestamp().as_second();
            if second < latest + 86_400 || (second > 0 && second / 31_556_952 % 10 != 0) {
                continue;
            }
            latest = second;
            let around = zone.to_datetime(change.timestamp());
            let start = (around - Span::new().hours(14))
                .with()
                .minute(0)
                .second(0)
                .subsec_nanosecond(0)
                .build()
                .expect("a time");
            let times: Vec<DateTime> = (0..160).map(|quarter| start + Span::new().minutes(15 * quarter)).collect();
            for (gap, fold) in [(GapPolicy::ShiftForward, FoldPolicy::First), (GapPolicy::Skip, FoldPolicy::Both)] {
                let expected: Vec<i64> = instants(&times, None, &zone, gap, fold).into_iter().collect();
                let until = times.last().expect("some").strftime("%Y%m%dT%H%M%S");
                let rule = format!("FREQ=MINUTELY;INTERVAL=15;UNTIL={until}");
                let schedule = Schedule::new(&start.to_string(), name.as_str(), Some(&rule))
                    .expect("a schedule")
                    .with_gap_policy(gap)
                    .expect("no count")
                    .with_fold_policy(fold);
                let found: Vec<i64> =
                    schedule.preview(Timestamp(i64::MIN), 500).iter().map(|found| found.at.0 / 1_000_000).collect();
                assert_eq!(found, expected, "{} at {} {gap:?} {fold:?}", name.as_str(), change.timestamp());
            }
            changes += 1;
        }
    }
    assert!(changes > 2_000, "{changes}");
}
