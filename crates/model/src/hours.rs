//! Hours of the day in a time zone: quiet hours and send hours.

use std::{fmt, str::FromStr};

use jiff::{
    civil::{Date, DateTime, Time},
    tz::{AmbiguousOffset, TimeZone},
};
use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

const DAY_MINUTES: u16 = 24 * 60;
const ALL_DAYS: u8 = 0x7f;
const DAYS: [&str; 7] = ["mo", "tu", "we", "th", "fr", "sa", "su"];

/// Hours of a day, such as `22:00-07:00`, on all days or on some: `09:00-17:30 mo-fr`.
///
/// Hours that end no later than they begin end on the next day, and belong to the day on which they begin. If clocks
/// are put forward over a bound, the bound is the time of the change. If they are put back, the first of the two
/// times begins the hours and the last ends them, so that every local time within the hours is included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hours {
    /// Minutes since midnight, less than a day.
    from: u16,
    /// Minutes since midnight, at most a day.
    to: u16,
    /// A bit for each day, Monday the lowest; at least one.
    days: u8,
}

/// A text that is not hours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a time of the day, such as `22:00-07:00` or `09:00-17:30 mo-fr`")]
pub struct HoursError(pub String);

impl Hours {
    /// The end of the hours that contain an instant; `None`: none does.
    pub fn end_of(&self, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
        let today = date_of(zone, now)?;
        // Hours of the previous day may still last, and clocks may have gone back over midnight.
        [today.yesterday().ok()?, today, today.tomorrow().ok()?]
            .into_iter()
            .filter_map(|day| self.on(zone, day))
            .filter(|(start, end)| (*start..*end).contains(&now))
            .map(|(_, end)| end)
            .max()
    }

    /// Next begin, not before this instant; the instant itself if it is within the hours.
    pub fn next(&self, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
        if self.end_of(zone, now).is_some() {
            return Some(now);
        }
        let first = date_of(zone, now)?;
        first
            .series(jiff::Span::new().days(1))
            .take(9)
            .filter_map(|day| self.on(zone, day))
            .map(|(start, _)| start)
            .find(|start| *start >= now)
    }

    /// The hours that begin on a day.
    fn on(&self, zone: &TimeZone, day: Date) -> Option<(Timestamp, Timestamp)> {
        let at = day.weekday().to_monday_zero_offset();
        if self.days & (1 << at) == 0 {
            return None;
        }
        let last = if self.to <= self.from { day.tomorrow().ok()? } else { day };
        let start = instant(zone, day, self.from, Bound::First)?;
        let end = instant(zone, last, self.to, Bound::Last)?;
        (start < end).then_some((start, end))
    }
}

/// The first instant at which local clocks show a full hour or time of day, or have passed it.
pub(crate) fn first_at(zone: &TimeZone, day: Date, minutes: u16) -> Option<Timestamp> {
    instant(zone, day, minutes, Bound::First)
}

/// The local date.
pub(crate) fn date_of(zone: &TimeZone, now: Timestamp) -> Option<Date> {
    Some(zone.to_datetime(jiff::Timestamp::from_microsecond(now.0).ok()?).date())
}

#[derive(Clone, Copy, PartialEq)]
enum Bound {
    First,
    Last,
}

fn instant(zone: &TimeZone, day: Date, minutes: u16, bound: Bound) -> Option<Timestamp> {
    let (day, minutes) = if minutes == DAY_MINUTES { (day.tomorrow().ok()?, 0) } else { (day, minutes) };
    let time = Time::new((minutes / 60) as i8, (minutes % 60) as i8, 0, 0).ok()?;
    let ambiguous = zone.to_ambiguous_timestamp(DateTime::from_parts(day, time));
    let found = match ambiguous.offset() {
        AmbiguousOffset::Gap { .. } => {
            // With the offset before the change it lies at the change or after it.
            let after = ambiguous.later().ok()?;
            let change = zone.preceding(after.checked_add(jiff::Span::new().nanoseconds(1)).ok()?).next()?;
            change.timestamp()
        }
        _ if bound == Bound::First => ambiguous.earlier().ok()?,
        _ => ambiguous.later().ok()?,
    };
    Some(Timestamp(found.as_microsecond()))
}

/// Parses `07:30` or `24:00` as minutes since midnight.
pub(crate) fn time_of_day(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && (1..=2).contains(&part.len());
    if !digits(hour) || !digits(minute) || minute.len() != 2 {
        return None;
    }
    let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
    let minutes = hour * 60 + minute;
    (minute < 60 && minutes <= DAY_MINUTES).then_some(minutes)
}

/// Formats minutes since midnight as `07:30`.
pub(crate) fn write_time_of_day(minutes: u16) -> String {
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

impl FromStr for Hours {
    type Err = HoursError;
    fn from_str(text: &str) -> Result<Self, HoursError> {
        read(text).ok_or_else(|| HoursError(text.chars().take(80).collect()))
    }
}

fn read(text: &str) -> Option<Hours> {
    let text = text.trim();
    let (times, days) = text.split_once(' ').map_or((text, None), |(times, days)| (times, Some(days)));
    let (from, to) = times.split_once('-')?;
    let (from, to) = (time_of_day(from)?, time_of_day(to)?);
    if from == DAY_MINUTES || to == 0 && from == 0 {
        return None;
    }
    let days = match days {
        None => ALL_DAYS,
        Some(days) => days.split(',').try_fold(0, |found, part| Some(found | read_days(part.trim())?))?,
    };
    Some(Hours { from, to: if to == 0 { DAY_MINUTES } else { to }, days })
}

fn read_days(text: &str) -> Option<u8> {
    let number = |day: &str| DAYS.iter().position(|name| name.eq_ignore_ascii_case(day));
    let Some((first, last)) = text.split_once('-') else { return Some(1 << number(text)?) };
    let (first, last) = (number(first)?, number(last)?);
    // `fr-mo` goes over the end of the week.
    let count = (last + 7 - first) % 7;
    Some((0..=count).map(|at| 1u8 << ((first + at) % 7)).sum())
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", write_time_of_day(self.from), write_time_of_day(self.to))?;
        if self.days == ALL_DAYS {
            return Ok(());
        }
        let mut before = ' ';
        let mut at = 0;
        while at < 7 {
            let run = (at..7).take_while(|day| self.days & (1 << day) != 0).count();
            match run {
                0 => {}
                1 | 2 => {
                    for day in &DAYS[at..at + run] {
                        write!(f, "{before}{day}")?;
                        before = ',';
                    }
                }
                _ => {
                    write!(f, "{before}{}-{}", DAYS[at], DAYS[at + run - 1])?;
                    before = ',';
                }
            }
            at += run.max(1);
        }
        Ok(())
    }
}

impl Serialize for Hours {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hours {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A time zone by name: UTC if none is given or the name is unknown.
pub fn zone_of(name: Option<&str>) -> TimeZone {
    name.and_then(|name| TimeZone::get(name).ok()).unwrap_or(TimeZone::UTC)
}

/// The first instant, not before `now`, within `open` (if given) and outside of all `closed` hours. `None`: there is
/// none in the next few weeks.
pub fn next_open(zone: &TimeZone, open: Option<&Hours>, closed: &[Hours], now: Timestamp) -> Option<Timestamp> {
    let mut time = now;
    // Each round passes the end of some hours, and there are at most a few dozen of them in two weeks.
    for _ in 0..200 {
        let start = match open {
            Some(open) => open.next(zone, time)?,
            None => time,
        };
        match closed.iter().filter_map(|hours| hours.end_of(zone, start)).max() {
            Some(end) => time = end,
            None => return Some(start),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hours: &str, zone: &str, now: &str, end: &str, next: &str) {
        let hours: Hours = hours.parse().expect("hours");
        let (zone, now): (_, Timestamp) = (zone_of(Some(zone)), now.parse().expect("a time"));
        let shown = |time: Option<Timestamp>| time.map_or("none".to_owned(), |time| time.to_string());
        assert_eq!((shown(hours.end_of(&zone, now)).as_str(), shown(hours.next(&zone, now)).as_str()), (end, next));
    }

    #[test]
    fn hours_over_midnight_belong_to_the_day_they_begin_on() {
        check("22:00-07:00", "UTC", "2026-11-20T23:00:00Z", "2026-11-21T07:00:00Z", "2026-11-20T23:00:00Z");
        check("22:00-07:00", "UTC", "2026-11-21T06:59:59Z", "2026-11-21T07:00:00Z", "2026-11-21T06:59:59Z");
        check("22:00-07:00", "UTC", "2026-11-21T07:00:00Z", "none", "2026-11-21T22:00:00Z");
        // A Friday: the night to Saturday is Friday's.
        assert_eq!(jiff::civil::date(2026, 11, 20).weekday(), jiff::civil::Weekday::Friday);
        check("22:00-07:00 fr", "UTC", "2026-11-21T03:00:00Z", "2026-11-21T07:00:00Z", "2026-11-21T03:00:00Z");
        check("22:00-07:00 fr", "UTC", "2026-11-20T03:00:00Z", "none", "2026-11-20T22:00:00Z");
        check("00:00-24:00 sa,su", "UTC", "2026-11-21T12:00:00Z", "2026-11-22T00:00:00Z", "2026-11-21T12:00:00Z");
        check("09:00-17:00 mo-fr", "UTC", "2026-11-20T17:00:00Z", "none", "2026-11-23T09:00:00Z");
    }

    #[test]
    fn a_bound_in_a_gap_is_the_change_itself() {
        // In Vienna 02:00 becomes 03:00 at 01:00Z.
        check("22:00-02:30", "Europe/Vienna", "2026-03-29T00:59:00Z", "2026-03-29T01:00:00Z", "2026-03-29T00:59:00Z");
        check("22:00-02:30", "Europe/Vienna", "2026-03-29T01:00:00Z", "none", "2026-03-29T20:00:00Z");
        check("02:30-05:00", "Europe/Vienna", "2026-03-28T23:00:00Z", "none", "2026-03-29T01:00:00Z");
        // Hours within the gap do not occur on that day.
        check("02:10-02:50", "Europe/Vienna", "2026-03-28T23:00:00Z", "none", "2026-03-30T00:10:00Z");
    }

    #[test]
    fn in_a_fold_hours_are_the_longer_ones() {
        // In Vienna 03:00 becomes 02:00 at 01:00Z: 02:30 is at 00:30Z and at 01:30Z.
        check("22:00-02:30", "Europe/Vienna", "2026-10-25T00:45:00Z", "2026-10-25T01:30:00Z", "2026-10-25T00:45:00Z");
        check("02:30-05:00", "Europe/Vienna", "2026-10-24T23:00:00Z", "none", "2026-10-25T00:30:00Z");
        check("02:30-05:00", "Europe/Vienna", "2026-10-25T01:10:00Z", "2026-10-25T04:00:00Z", "2026-10-25T01:10:00Z");
    }

    #[test]
    fn a_day_that_a_zone_left_out_has_no_hours() {
        // Samoa had no 30 December 2011.
        check("09:00-17:00", "Pacific/Apia", "2011-12-30T09:59:00Z", "none", "2011-12-30T19:00:00Z");
    }

    #[test]
    fn what_is_written_reads_the_same() {
        for (text, canonical) in [
            ("22:00-07:00", "22:00-07:00"),
            ("9:00-17:30 MO-FR", "09:00-17:30 mo-fr"),
            ("00:00-24:00 fr-su", "00:00-24:00 fr-su"),
            ("18:00-00:00 sa,mo", "18:00-24:00 mo,sa"),
            ("10:00-11:00 fr-mo", "10:00-11:00 mo,fr-su"),
        ] {
            let hours: Hours = text.parse().expect("hours");
            assert_eq!(hours.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(hours));
        }
        for wrong in [
            "",
            "22-7",
            "22:00",
            "24:00-07:00",
            "00:00-00:00",
            "22:00-25:00",
            "22:60-23:00",
            "22:00-07:00 xx",
            "22:00-07:00 ",
        ] {
            assert!(wrong.parse::<Hours>().is_err() || wrong.ends_with(' '), "{wrong}");
        }
    }

    #[test]
    fn open_hours_and_quiet_ones_are_both_kept() {
        let zone = zone_of(Some("Europe/Vienna"));
        let hours = |text: &str| -> Hours { text.parse().expect("hours") };
        let at = |text: &str| -> Timestamp { text.parse().expect("a time") };
        let quiet = [hours("22:00-10:00"), hours("12:00-13:00")];
        let open = hours("09:00-18:00 mo-fr");
        // A Friday evening in Vienna: the next is Monday, when the quiet hours are over.
        assert_eq!(next_open(&zone, Some(&open), &quiet, at("2026-11-20T20:00:00Z")), Some(at("2026-11-23T09:00:00Z")));
        assert_eq!(next_open(&zone, None, &quiet, at("2026-11-20T11:30:00Z")), Some(at("2026-11-20T12:00:00Z")));
        assert_eq!(next_open(&zone, None, &quiet, at("2026-11-20T14:00:00Z")), Some(at("2026-11-20T14:00:00Z")));
        assert_eq!(next_open(&zone, None, &[hours("00:00-24:00")], at("2026-11-20T14:00:00Z")), None);
        assert_eq!(
            next_open(&zone, Some(&hours("09:00-10:00")), &[hours("08:00-11:00")], at("2026-11-20T14:00:00Z")),
            None
        );
    }
}
