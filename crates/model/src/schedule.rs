//! When something recurs: a start, a time zone and a rule of RFC 5545; pure, time is an argument.
//!
//! A schedule speaks of wall-clock time: *every weekday at 08:00 in Vienna*. It is stored as its text, and instants are
//! computed anew from the zone database at each question, so that a country that moves its clocks moves the schedule.
//! No question walks there from the start: a rule is a century of work away from its thousandth year, or none at all.
//!
//! **Gaps and folds.** Where clocks are put forward, some wall-clock times do not exist; where they are put back, some
//! exist twice. RFC 5545 says two things of the former: a time that is *given* (section 3.3.5) is read with the offset
//! before the gap, so that 02:30 becomes 03:30; an instance that a *rule* generates (section 3.3.10) must be ignored and
//! not counted. [`GapPolicy`] chooses for the rule; the default is the first, since a daily report should come daily.
//! `RDATE`, and a start without a rule, are given times under either policy. A time that exists twice means the first
//! by the RFC; [`FoldPolicy`] can ask for both. If two wall-clock times fall on one instant, it is one occurrence.
//!
//! **Where the RFC leaves room**, this is what happens:
//! - the start is an occurrence only if the rule says so too (the RFC leaves it undefined otherwise);
//! - `YEARLY;BYMONTHDAY=29` without any other part for days means the month of the start;
//! - `YEARLY;BYWEEKNO=1` without any other part for days means the weekday of the start. The periods of such a rule,
//!   for `INTERVAL` and `BYSETPOS`, are the years to which the weeks belong, from that of the first day on or after the
//!   start that is one of the rule's weekdays;
//! - second 60 is read as 59; `BYHOUR`, `BYMINUTE` and `BYSECOND` are ignored if the start is a date, and its
//!   occurrences are at midnight in its zone;
//! - `EXDATE` with a date excludes the whole day, even where the start has a time;
//! - parts that do not go together by the RFC, and `RSCALE` and `SKIP` of RFC 7529, are refused.

mod text; // parses and formats the text of a schedule
mod rule; // RRULE, part by part
mod expand; // expands a rule into wall-clock times
mod occur; // converts wall-clock times into instants of a zone
mod missed; // due and missed occurrences
mod frequency; // frequency of occurrences
mod date_or_time; // a date, a wall-clock time or an instant
mod calendar; // day numbers

use std::{str::FromStr, time::Duration};

use jiff::{civil::DateTime, tz::TimeZone};
use serde::{Deserialize, Serialize};

use self::{calendar::Local, expand::Expansion, rule::Rule};
use crate::{
    problem::{Code, Problem},
    schedule::date_or_time::DateOrTime,
    time::Timestamp,
};

pub use self::{
    missed::{CATCH_UP_MAX, Due, MISSED_COUNTED_MAX, MissedPolicy},
    occur::Occurrences,
    rule::{COUNT_MAX, INTERVAL_MAX},
};

/// Longest text of a schedule in bytes.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Most dates in `RDATE`, and in `EXDATE`.
pub const DATES_MAX: usize = 1_024;

/// Policy for occurrences whose wall-clock time does not exist on their day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GapPolicy {
    /// Uses the offset before the gap, so that it occurs later on the clock by the length of the gap: 02:30 becomes
    /// 03:30 (RFC 5545 section 3.3.5).
    #[default]
    ShiftForward,
    /// Drops it, and a `COUNT` does not count it (RFC 5545 section 3.3.10).
    Skip,
}

/// Policy for occurrences whose wall-clock time exists twice on their day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FoldPolicy {
    /// It occurs the first time. Rules of hours and less pause in the repeated hour.
    #[default]
    First,
    /// It occurs both times; a `COUNT` counts it once.
    Both,
}

/// Conversion of a wall-clock time into an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reading {
    /// Clocks show the time then, for the first time or the only one.
    Plain,
    /// The time does not exist on that day; the instant is later on the clock by the length of the gap.
    Shifted,
    /// Clocks show the time for the second time.
    Repeated,
}

/// An occurrence: a time at which a schedule is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrence {
    /// The instant, on a whole second.
    pub at: Timestamp,
    /// The wall-clock time of the rule.
    pub local: DateTime,
    /// The conversion between the two.
    pub reading: Reading,
}

/// A recurring schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    start: Local,
    whole_day: bool,
    /// Whether its text names no zone; it is read in UTC until [`Schedule::in_zone`] gives it one.
    floating: bool,
    /// The zone as known when the text was parsed; queries look it up again by its name.
    zone: TimeZone,
    rule: Option<Box<Rule>>,
    /// The last candidate that `COUNT` allows, in wall-clock time. It depends on the rule alone, not on a zone;
    /// `None` without a count, or if it is beyond the end of time.
    last: Option<Local>,
    /// Ascending, like the exceptions.
    dates: Vec<DateOrTime>,
    exceptions: Vec<DateOrTime>,
    gap: GapPolicy,
    fold: FoldPolicy,
}

impl Schedule {
    /// Reads content lines of RFC 5545: `DTSTART`, and optionally `RRULE`, `RDATE`, `EXDATE`, `X-TOCSIN-GAP` and
    /// `X-TOCSIN-FOLD`, in upper or lower case, folded or not. The start needs a zone, by `TZID` or `Z`.
    ///
    /// # Errors
    /// Everything that is wrong, each with its line, its part and what would be right.
    pub fn parse(text: &str) -> Result<Schedule, Vec<Problem>> {
        text::parse(text)
    }

    /// Makes a schedule from fields: a start such as `2027-03-14T02:30`, `20270314T023000` or `2027-03-14`, the IANA
    /// name of a zone, and a rule such as `FREQ=DAILY`, with or without `RRULE:` before it.
    ///
    /// # Errors
    /// Everything that is wrong, each with its part and what would be right.
    pub fn new(start: &str, zone: &str, rule: Option<&str>) -> Result<Schedule, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut builder = text::Builder::default();
        if rule.is_some_and(|rule| rule.len() > TEXT_BYTES_MAX) {
            return Err(vec![
                Problem::new(Code::TooLong, "RRULE", format!("a schedule has at most {TEXT_BYTES_MAX} bytes of text"))
                    .param("limit", TEXT_BYTES_MAX)
                    .param("unit", "bytes"),
            ]);
        }
        builder.start(start, Some(zone), &mut problems);
        if let Some(rule) = rule {
            builder.rule(rule, &mut problems);
        }
        builder.finish(problems)
    }

    /// Like [`Schedule::parse`] for a text without a zone: [`Schedule::in_zone`] sets the zone of its user. Until
    /// then it is read in UTC.
    ///
    /// # Errors
    /// As for [`Schedule::parse`].
    pub fn parse_floating(text: &str) -> Result<Schedule, Vec<Problem>> {
        text::parse_floating(text)
    }

    /// Like [`Schedule::new`] without a zone, as [`Schedule::parse_floating`].
    ///
    /// # Errors
    /// As for [`Schedule::new`].
    pub fn floating(start: &str, rule: Option<&str>) -> Result<Schedule, Vec<Problem>> {
        let start = format!("DTSTART:{start}");
        match rule.map(|rule| rule.get(6..).filter(|_| rule[..6].eq_ignore_ascii_case("RRULE:")).unwrap_or(rule)) {
            Some(rule) => Schedule::parse_floating(&format!("{start}\nRRULE:{rule}")),
            None => Schedule::parse_floating(&start),
        }
    }

    /// A schedule with a fixed interval, counted from 1970 in UTC; in whole seconds, at least one.
    pub fn every(interval: Duration) -> Schedule {
        let seconds = interval.as_secs().clamp(1, u64::from(INTERVAL_MAX));
        let units = [(86_400, "DAILY"), (3_600, "HOURLY"), (60, "MINUTELY"), (1, "SECONDLY")];
        let (unit, frequency) = units.into_iter().find(|(unit, _)| seconds % unit == 0).unwrap_or((1, "SECONDLY"));
        let rule = format!("FREQ={frequency};INTERVAL={}", seconds / unit);
        Schedule::new("1970-01-01T00:00:00", "UTC", Some(&rule)).expect("the rule of an interval is well-formed")
    }

    /// The same schedule in a zone, if it was floating; else unchanged. `None`: the zone is unknown.
    pub fn in_zone(&self, zone: &str) -> Option<Schedule> {
        if !self.floating {
            return Some(self.clone());
        }
        let zone = TimeZone::get(zone).ok().filter(|zone| zone.iana_name().is_some())?;
        Some(Schedule { zone, floating: false, ..self.clone() })
    }

    /// Policy for times that do not exist.
    pub fn gap_policy(&self) -> GapPolicy {
        self.gap
    }

    /// Policy for times that exist twice.
    pub fn fold_policy(&self) -> FoldPolicy {
        self.fold
    }

    /// Whether it is floating: its zone is not set.
    pub fn is_floating(&self) -> bool {
        self.floating
    }

    /// The same schedule under another policy for gaps.
    ///
    /// # Errors
    /// The rule has a count, and almost all of its occurrences fall into gaps: under [`GapPolicy::Skip`], counting them
    /// would not terminate.
    pub fn with_gap_policy(mut self, gap: GapPolicy) -> Result<Schedule, Problem> {
        self.gap = gap;
        self.check_countable()?;
        Ok(self)
    }

    /// The same schedule under another policy for folds.
    pub fn with_fold_policy(mut self, fold: FoldPolicy) -> Schedule {
        self.fold = fold;
        self
    }

    /// The wall-clock time of its start.
    pub fn start(&self) -> DateTime {
        calendar::civil_of(self.start)
    }

    /// The IANA name of its zone.
    pub fn zone(&self) -> &str {
        self.zone.iana_name().expect("only zones with a name are taken")
    }

    /// Its rule in canonical form, such as `FREQ=WEEKLY;BYDAY=MO,FR`.
    pub fn rule(&self) -> Option<String> {
        self.rule.as_ref().map(|rule| rule.to_string())
    }

    /// The first occurrence strictly after an instant; `None` if there is none up to the year 9999.
    ///
    /// Costs about a microsecond for a rule with near occurrences. A rule that never occurs again takes time bounded
    /// by the days up to the year 9999: tens of milliseconds. The end of a count was computed at parsing. Only under
    /// [`GapPolicy::Skip`] are gaps since the start inspected.
    pub fn next_after(&self, instant: Timestamp) -> Option<Occurrence> {
        self.occurrences_after(instant).next()
    }

    /// The occurrences at or after `from` and before `to`, ascending, at most `limit` of them.
    pub fn occurrences_between(&self, from: Timestamp, to: Timestamp, limit: usize) -> Vec<Occurrence> {
        self.occurrences_from(from).before(to).take(limit).collect()
    }

    /// The local time in its zone at an instant, to the second.
    pub fn clock_at(&self, instant: Timestamp) -> Option<DateTime> {
        let instant = jiff::Timestamp::from_second(instant.0.div_euclid(1_000_000)).ok()?;
        Some(self.zone_now().to_datetime(instant))
    }

    /// The first `count` occurrences at or after `from`, for display.
    pub fn preview(&self, from: Timestamp, count: usize) -> Vec<Occurrence> {
        self.occurrences_from(from).take(count).collect()
    }

    /// The occurrences at or after an instant, one by one, strictly ascending.
    pub fn occurrences_from(&self, instant: Timestamp) -> Occurrences<'_> {
        self.occurrences_in(self.zone_now(), instant.0.div_euclid(1_000_000) + i64::from(instant.0 % 1_000_000 != 0))
    }

    /// The occurrences after an instant, one by one, strictly ascending.
    fn occurrences_after(&self, instant: Timestamp) -> Occurrences<'_> {
        self.occurrences_in(self.zone_now(), instant.0.div_euclid(1_000_000) + 1)
    }

    /// The occurrences at or after a second of UTC, by these clocks.
    fn occurrences_in(&self, zone: TimeZone, from: i64) -> Occurrences<'_> {
        Occurrences::new(self, zone, from)
    }

    /// The zone in the current database. A name that was removed from it keeps its last meaning.
    fn zone_now(&self) -> TimeZone {
        TimeZone::get(self.zone()).unwrap_or_else(|_| self.zone.clone())
    }

    /// Computes the end of `COUNT`, once at parsing.
    fn count(&mut self) -> Result<(), Problem> {
        if let Some(rule) = &self.rule
            && let rule::End::Count(count) = rule.end
        {
            let mut expansion = Expansion::new(rule, self.start, calendar::LOCAL_MAX, self.whole_day);
            self.last = expansion.nth(u64::from(count));
        }
        self.check_countable()
    }

    fn check_countable(&self) -> Result<(), Problem> {
        match self.last_in(&self.zone) {
            Some(_) => Ok(()),
            None => Err(Problem::new(
                Code::TooComplex,
                "RRULE.COUNT",
                "too many occurrences fall into gaps of the clock to be counted",
            )
            .hint("end the rule by UNTIL, or let occurrences in gaps be shifted forward")),
        }
    }
}

impl FromStr for Schedule {
    type Err = Problem;
    /// Like [`Schedule::parse`], with the first problem only.
    fn from_str(text: &str) -> Result<Self, Problem> {
        Schedule::parse(text).map_err(|mut problems| problems.swap_remove(0))
    }
}

impl Serialize for Schedule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
