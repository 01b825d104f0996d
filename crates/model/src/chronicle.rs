//! Chronicles: per-key aggregates of an event class (last value, minimum, maximum, count, sum), over all time or a
//! window.

use std::{fmt, time::Duration};

use jiff::{
    SignedDuration,
    civil::{Date, Time, Weekday},
    tz::TimeZone,
};
use serde::Serialize;

use crate::{id::Name, time::Timestamp};

/// Most characters of a chronicle's name, so that names derived from it are valid.
pub const NAME_CHARS_MAX: usize = 40;
/// Most chronicles of an event class.
pub const CHRONICLES_MAX: usize = 16;
/// Most fields of a key.
pub const KEY_FIELDS_MAX: usize = 8;
/// Number of slices of a sliding window.
pub const SLIDES: i64 = 60;

/// A table over the events of a class, with one entry for each key. Expressions are in CEL over `event`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chronicle {
    /// A description for readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Fields of the key. Empty: there is one entry for all events.
    pub by: Vec<Name>,
    /// The aggregated value. Without one it only counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// A predicate that selects the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Event time. Default: the time of acceptance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// The time window.
    pub window: Window,
    /// A reset predicate: an event that satisfies it starts the entry anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
    /// Most keys. The key with the oldest last event is evicted.
    pub keys: u32,
}

/// Time window of a chronicle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// Since its first event.
    Always,
    /// Sliding window of this length, moved in [`SLIDES`] slices, so up to a sixtieth longer.
    Sliding(Duration),
    /// Tumbling window: since the beginning of the hour, day, week or month.
    Calendar(Calendar),
}

/// Calendar periods in a time zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Calendar {
    /// The period.
    pub every: Period,
    /// The IANA name of a time zone.
    pub time_zone: String,
    /// The wall-clock time at which days begin, in minutes after midnight.
    pub starts: u16,
}

/// A calendar period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    /// From the full hour on the clock.
    Hour,
    /// From its start.
    Day,
    /// From Monday.
    Week,
    /// From the first.
    Month,
}

impl Period {
    /// Finds a period by its name in the definition language.
    pub fn named(name: &str) -> Option<Period> {
        Some(match name {
            "hour" => Period::Hour,
            "day" => Period::Day,
            "week" => Period::Week,
            "month" => Period::Month,
            _ => return None,
        })
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let every = match self.every {
            Period::Hour => "hour",
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
        };
        write!(f, "every {every}")?;
        if self.starts > 0 {
            write!(f, " from {:02}:{:02}", self.starts / 60, self.starts % 60)?;
        }
        write!(f, " in {}", self.time_zone)
    }
}

impl Calendar {
    /// The time zone; `None` if the time zone database does not know it.
    pub fn zone(&self) -> Option<TimeZone> {
        TimeZone::get(&self.time_zone).ok().filter(|zone| zone.iana_name().is_some())
    }

    /// Start of the period that contains an instant, in the zone of [`Calendar::zone`]. Every instant is in exactly
    /// one period.
    ///
    /// If clocks are put forward over the start of a day, it begins with the first time after the gap (RFC 5545); if
    /// they are put back over it, with the first of both. A repeated hour of the clock is two periods.
    pub fn begin(&self, zone: &TimeZone, at: Timestamp) -> Timestamp {
        let Some(local) = at.in_zone(zone) else { return Timestamp(i64::MIN) };
        if self.every == Period::Hour {
            let past = i64::from(local.minute()) * 60 + i64::from(local.second());
            let past = past * 1_000_000 + i64::from(local.subsec_nanosecond()) / 1_000;
            return Timestamp(at.0 - past);
        }
        let starts = Time::constant((self.starts / 60) as i8, (self.starts % 60) as i8, 0, 0);
        let begins = |date: Date| {
            let zoned = zone.to_ambiguous_timestamp(date.to_datetime(starts)).compatible().ok()?;
            Some(Timestamp(zoned.as_microsecond()))
        };
        let first = |date: Date| match self.every {
            Period::Hour | Period::Day => Some(date),
            Period::Week => {
                let since = i64::from(date.weekday().since(Weekday::Monday));
                date.checked_sub(SignedDuration::from_hours(24 * since)).ok()
            }
            Period::Month => Some(date.first_of_month()),
        };
        // The local day, or an adjacent one if the start is not midnight or the clock jumps.
        let day = local.date();
        let candidates = [
            day.tomorrow().ok(),
            Some(day),
            day.yesterday().ok(),
            day.yesterday().ok().and_then(|day| day.yesterday().ok()),
        ];
        let begun = candidates.into_iter().flatten().filter_map(|day| begins(first(day)?)).filter(|begin| *begin <= at);
        begun.max().unwrap_or(Timestamp(i64::MIN))
    }
}

/// An aggregate of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Statistic {
    /// The newest value.
    Last,
    /// The value before it.
    Previous,
    /// The oldest value.
    First,
    /// The lowest value.
    Low,
    /// The highest value.
    High,
    /// Number of events counted.
    Count,
    /// The sum of the values.
    Sum,
    /// Their mean.
    Mean,
    /// The time of the newest event.
    LastAt,
}

impl Statistic {
    /// Each of them.
    pub const ALL: [Statistic; 9] = [
        Statistic::Last,
        Statistic::Previous,
        Statistic::First,
        Statistic::Low,
        Statistic::High,
        Statistic::Count,
        Statistic::Sum,
        Statistic::Mean,
        Statistic::LastAt,
    ];

    /// Its name in expressions.
    pub fn name(self) -> &'static str {
        match self {
            Statistic::Last => "last",
            Statistic::Previous => "previous",
            Statistic::First => "first",
            Statistic::Low => "low",
            Statistic::High => "high",
            Statistic::Count => "count",
            Statistic::Sum => "sum",
            Statistic::Mean => "mean",
            Statistic::LastAt => "last_at",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The begin of the period that holds an instant.
    fn check(every: Period, starts: u16, zone: &str, at: &str, expected: &str) {
        let calendar = Calendar { every, time_zone: zone.to_owned(), starts };
        let zone = calendar.zone().expect("a zone");
        let begin = calendar.begin(&zone, at.parse().expect("a time"));
        assert_eq!(begin.to_string(), expected, "{calendar} at {at}");
        assert_eq!(calendar.begin(&zone, begin), begin, "a period holds its begin");
        assert_ne!(calendar.begin(&zone, Timestamp(begin.0 - 1)), begin, "what is before it is not in it");
    }

    #[test]
    fn days_begin_at_midnight_of_the_zone() {
        check(Period::Day, 0, "UTC", "2027-03-14T23:59:59.999999Z", "2027-03-14T00:00:00Z");
        check(Period::Day, 0, "America/New_York", "2027-01-10T04:59:59Z", "2027-01-09T05:00:00Z");
        check(Period::Day, 0, "Pacific/Kiritimati", "2027-01-10T10:00:00Z", "2027-01-10T10:00:00Z");
    }

    #[test]
    fn days_are_shorter_and_longer_where_clocks_change() {
        // 23 hours, then 25.
        check(Period::Day, 0, "America/New_York", "2027-03-15T03:59:59Z", "2027-03-14T05:00:00Z");
        check(Period::Day, 0, "America/New_York", "2027-03-15T04:00:00Z", "2027-03-15T04:00:00Z");
        check(Period::Day, 0, "America/New_York", "2027-11-08T04:59:59Z", "2027-11-07T04:00:00Z");
        check(Period::Day, 0, "America/New_York", "2027-11-08T05:00:00Z", "2027-11-08T05:00:00Z");
    }

    #[test]
    fn a_start_in_the_gap_shifts_and_one_in_the_fold_is_the_first() {
        // 02:30 does not exist on 14 March 2027 in New York: the day begins at 03:30.
        check(Period::Day, 150, "America/New_York", "2027-03-14T07:29:59Z", "2027-03-13T07:30:00Z");
        check(Period::Day, 150, "America/New_York", "2027-03-14T07:30:00Z", "2027-03-14T07:30:00Z");
        // 01:30 comes twice on 7 November.
        check(Period::Day, 90, "America/New_York", "2027-11-07T05:29:59Z", "2027-11-06T05:30:00Z");
        check(Period::Day, 90, "America/New_York", "2027-11-07T06:29:59Z", "2027-11-07T05:30:00Z");
        // Midnight does not exist in Santiago on 5 September 2027.
        check(Period::Day, 0, "America/Santiago", "2027-09-05T04:00:00Z", "2027-09-05T04:00:00Z");
    }

    #[test]
    fn a_day_that_a_country_skips_is_no_period() {
        // Samoa had no 30 December 2011.
        check(Period::Day, 0, "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z");
        check(Period::Day, 0, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z");
    }

    #[test]
    fn weeks_months_and_hours_begin_where_people_say() {
        check(Period::Week, 0, "Europe/Vienna", "2027-03-28T21:59:59Z", "2027-03-21T23:00:00Z");
        check(Period::Week, 0, "Europe/Vienna", "2027-03-28T22:00:00Z", "2027-03-28T22:00:00Z");
        check(Period::Week, 540, "UTC", "2027-03-22T08:59:00Z", "2027-03-15T09:00:00Z");
        check(Period::Month, 0, "Asia/Kolkata", "2027-02-28T18:29:59Z", "2027-01-31T18:30:00Z");
        check(Period::Month, 540, "UTC", "2027-03-01T08:59:00Z", "2027-02-01T09:00:00Z");
        check(Period::Hour, 0, "Asia/Kolkata", "2027-02-28T18:29:59.5Z", "2027-02-28T17:30:00Z");
        // The hour from 01:00 that comes twice is two.
        check(Period::Hour, 0, "America/New_York", "2027-11-07T05:59:59Z", "2027-11-07T05:00:00Z");
        check(Period::Hour, 0, "America/New_York", "2027-11-07T06:10:00Z", "2027-11-07T06:00:00Z");
    }
}
