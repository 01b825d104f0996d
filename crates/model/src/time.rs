//! Timestamps with microseconds. Time is a value here; other crates read the clock.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

/// An instant: microseconds since 1970-01-01T00:00:00Z, without leap seconds. Text form: RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

/// A text that is not a timestamp.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimestampError {
    /// It has another form, or a part of it does not exist, such as the month 13.
    #[error("`{0}` is not a date and time of RFC 3339, such as `2026-11-21T09:30:00Z`")]
    Syntax(String),
    /// It is of RFC 3339, but its instant in UTC lies outside of the years 0 to 9999.
    #[error("`{0}` lies outside of the years 0000 to 9999 in UTC")]
    Range(String),
}

/// The years 0 to 9999 in UTC: the range of RFC 3339.
const YEARS: std::ops::Range<i64> = -62_167_219_200_000_000..253_402_300_800_000_000;
const DAY: i64 = 86_400_000_000;

impl Timestamp {
    /// The instant this many milliseconds after 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Timestamp(millis.saturating_mul(1_000))
    }

    /// Whether it has a text in RFC 3339: it lies in the years 0 to 9999.
    pub fn has_text(self) -> bool {
        YEARS.contains(&self.0)
    }

    /// Whole milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// The time since `earlier`; zero if that lies later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Local date and time in a zone, for all years of four digits. The calendar library's instants end 26 hours
    /// before the year 10000 and begin in BC; beyond them the zone's last offset is used. `None` if the local year
    /// has more than four digits.
    pub fn in_zone(self, zone: &jiff::tz::TimeZone) -> Option<jiff::civil::DateTime> {
        let in_library = jiff::Timestamp::from_microsecond(self.0);
        let nearest = in_library.unwrap_or(if self.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX });
        let micros = self.0.checked_add(i64::from(zone.to_offset(nearest).seconds()) * 1_000_000)?;
        let (days, micros) = (micros.div_euclid(DAY), micros.rem_euclid(DAY));
        let (year, month, day) = date(days);
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        let date = jiff::civil::Date::new(year.try_into().ok()?, month as i8, day as i8).ok()?;
        let (hour, minute, second) = ((seconds / 3_600) as i8, (seconds / 60 % 60) as i8, (seconds % 60) as i8);
        Some(date.to_datetime(jiff::civil::Time::new(hour, minute, second, micros as i32 * 1_000).ok()?))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Timestamp;
    /// Saturates at the end of time, so that a very long delay means never.
    fn add(self, delay: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Timestamp;
    fn sub(self, delay: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl From<std::time::SystemTime> for Timestamp {
    fn from(time: std::time::SystemTime) -> Self {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Timestamp(0) + after,
            Err(before) => Timestamp(0) - before.duration(),
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Hot path: it is part of every record and request, so years of four digits are formatted without a calendar
        // library.
        if YEARS.contains(&self.0) {
            return write_time(self.0, f);
        }
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => f.write_str(if self.0 < 0 { "the beginning of time" } else { "never" }),
        }
    }
}

/// Formats an instant of the years 0 to 9999.
fn write_time(micros: i64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (year, month, day) = date(micros.div_euclid(DAY));
    let micros = micros.rem_euclid(DAY);
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    let mut put = |at: usize, digits: usize, mut number: i64| {
        for place in text[at..at + digits].iter_mut().rev() {
            *place = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    put(0, 4, year);
    put(5, 2, month);
    put(8, 2, day);
    put(11, 2, seconds / 3_600);
    put(14, 2, seconds / 60 % 60);
    put(17, 2, seconds % 60);
    put(20, 6, fraction);
    let mut end = text.len() - 1;
    // Trailing zeros are dropped, and so is a final point.
    while matches!(text[end - 1], b'0' | b'.') && end > 19 {
        end -= 1;
    }
    text[end] = b'Z';
    f.write_str(std::str::from_utf8(&text[..=end]).expect("it is ASCII"))
}

/// Year, month and day of a day counted from 1970-01-01, by eras of 400 years that begin in March
/// (<https://howardhinnant.github.io/date_algorithms.html#civil_from_days>).
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_from_march + 2) / 5 + 1;
    let month = if months_from_march < 10 { months_from_march + 3 } else { months_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The day of a date, counted from 1970-01-01: the inverse of [`date`].
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The instant of a date and time of RFC 3339, in microseconds since 1970; finer digits are cut off. A leap second is the
/// second before it. The outer option is empty where the text has another form.
fn read_rfc3339(text: &str) -> Option<Option<i64>> {
    let bytes = text.as_bytes();
    let digits = |at: usize, count: usize| -> Option<i64> {
        bytes
            .get(at..at + count)?
            .iter()
            .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')))
    };
    let sign = |at: usize, requested: &[u8]| bytes.get(at).filter(|byte| requested.contains(byte)).copied();
    let (year, month, day) = (digits(0, 4)?, digits(5, 2)?, digits(8, 2)?);
    let (hour, minute, second) = (digits(11, 2)?, digits(14, 2)?, digits(17, 2)?);
    for (at, requested) in [(4, b"-".as_slice()), (7, b"-"), (10, b"Tt "), (13, b":"), (16, b":")] {
        sign(at, requested)?;
    }
    let (mut at, mut micros) = (19, 0);
    if sign(at, b".").is_some() {
        let length = bytes[20..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let finest = bytes[20..20 + length].iter().copied().chain(std::iter::repeat(b'0')).take(6);
        micros = finest.fold(0, |number, byte| number * 10 + i64::from(byte - b'0'));
        at += 1 + length;
        if length == 0 {
            return None;
        }
    }
    let (offset, is_offset) = match sign(at, b"Zz+-")? {
        b'Z' | b'z' => (0, bytes.len() == at + 1),
        direction => {
            let (hours, minutes) = (digits(at + 1, 2)?, digits(at + 4, 2)?);
            sign(at + 3, b":")?;
            let minutes = if hours <= 23 && minutes <= 59 { hours * 60 + minutes } else { return Some(None) };
            (if direction == b'-' { -minutes } else { minutes }, bytes.len() == at + 6)
        }
    };
    if !is_offset {
        return None;
    }
    let leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        2 => 28 + i64::from(leap_year),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    let minutes = days_of(year, month, day) * 1_440 + hour * 60 + minute - offset;
    // A leap second ends a day in UTC (RFC 3339, appendix D).
    let is_second = second <= 59 || second == 60 && minutes.rem_euclid(1_440) == 1_439;
    if !(1..=days_of_month).contains(&day) || hour > 23 || minute > 59 || !is_second {
        return Some(None);
    }
    Some(Some((minutes * 60 + second.min(59)) * 1_000_000 + micros))
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    /// Parses a date and time of RFC 3339, and further forms of ISO 8601, such as `20261121T0930+01`.
    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let micros = match read_rfc3339(text) {
            Some(micros) => micros,
            None => text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_microsecond),
        };
        let micros = micros.ok_or_else(|| TimestampError::Syntax(text.to_owned()))?;
        if YEARS.contains(&micros) { Ok(Timestamp(micros)) } else { Err(TimestampError::Range(text.to_owned())) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in ["1970-01-01T00:00:00Z", "2026-11-21T09:30:00.123456Z", "0001-01-01T00:00:00Z"] {
            let time: Timestamp = text.parse().expect("a timestamp");
            assert_eq!(time.to_string(), text);
        }
        assert_eq!(
            "2026-11-21T09:30:00+14:00".parse::<Timestamp>().expect("an offset").to_string(),
            "2026-11-20T19:30:00Z"
        );
        assert!("yesterday".parse::<Timestamp>().is_err());
    }

    proptest::proptest! {
        #[test]
        fn a_calendar_library_writes_the_same(micros in -62_135_596_800_000_000i64..253_402_207_200_000_000, cut in 0u32..=6) {
            let micros = micros - micros % 10i64.pow(cut);
            let theirs = jiff::Timestamp::from_microsecond(micros).expect("a year of four digits");
            proptest::prop_assert_eq!(Timestamp(micros).to_string(), theirs.to_string());
        }
    }

    #[test]
    fn b29_the_whole_range_of_rfc_3339_is_read_and_written() {
        let check = |text: &str, expected: &str| {
            let read = text.parse::<Timestamp>().map_or_else(|error| error.to_string(), |time| time.to_string());
            assert_eq!(read, expected, "{text}");
        };
        check("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z");
        check("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999Z");
        check("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z");
        check("0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z");
        check("0000-02-29T00:00:00Z", "0000-02-29T00:00:00Z");
        check("2026-11-21t09:30:00z", "2026-11-21T09:30:00Z");
        check("2026-11-21 09:30:00Z", "2026-11-21T09:30:00Z");
        check("2026-11-21T09:30:00+23:59", "2026-11-20T09:31:00Z");
        check("2026-11-21T09:30:00-23:59", "2026-11-22T09:29:00Z");
        check("2026-11-21T09:30:00-00:00", "2026-11-21T09:30:00Z");
        check("2026-11-21T09:30:00.1Z", "2026-11-21T09:30:00.1Z");
        check("2026-11-21T09:30:00.123456789012345678901234567890Z", "2026-11-21T09:30:00.123456Z");
        check("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.5Z");
        check("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z");
        check("1990-12-31T15:59:60-08:00", "1990-12-31T23:59:59Z");
        check("2017-01-01T00:59:60.25+01:00", "2016-12-31T23:59:59.25Z");
        check("9999-12-31T23:59:60Z", "9999-12-31T23:59:59Z");
        check("2000-02-29T12:00:00Z", "2000-02-29T12:00:00Z");
        // Further forms of ISO 8601.
        check("2026-11-21T09:30Z", "2026-11-21T09:30:00Z");
        check("20261121T093000Z", "2026-11-21T09:30:00Z");
        check("9999-12-31T23:59:59-01:00", "`9999-12-31T23:59:59-01:00` lies outside of the years 0000 to 9999 in UTC");
        check("0000-01-01T00:00:00+00:01", "`0000-01-01T00:00:00+00:01` lies outside of the years 0000 to 9999 in UTC");
        for wrong in [
            "",
            "2026-11-21",
            "2026-11-21T09:30:00",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "1900-02-29T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-11-00T00:00:00Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T09:60:00Z",
            "2026-11-21T09:30:61Z",
            "2026-11-21T09:30:60Z",
            "2026-11-21T23:58:60Z",
            "2026-11-21T09:30:00.Z",
            "2026-11-21T09:30:00+24:00",
            "2026-11-21T09:30:00+01:60",
            "10000-01-01T00:00:00Z",
            "-2026-11-21T09:30:00Z",
            "2026-11-21T09:30:00Zx",
            "２０２６-11-21T09:30:00Z",
        ] {
            check(wrong, &format!("`{wrong}` is not a date and time of RFC 3339, such as `2026-11-21T09:30:00Z`"));
        }
    }

    #[test]
    fn b29_local_times_reach_the_last_day() {
        let local = |text: &str, zone: &str| {
            let zone = jiff::tz::TimeZone::get(zone).expect("a zone");
            text.parse::<Timestamp>().expect("an instant").in_zone(&zone).map(|local| local.to_string())
        };
        assert_eq!(local("9999-12-31T23:59:59.5Z", "UTC").as_deref(), Some("9999-12-31T23:59:59.5"));
        assert_eq!(local("9999-12-31T23:30:00Z", "America/New_York").as_deref(), Some("9999-12-31T18:30:00"));
        assert_eq!(local("9999-12-31T23:30:00Z", "Asia/Tokyo"), None);
        assert_eq!(local("2026-07-01T00:00:00Z", "Europe/Vienna").as_deref(), Some("2026-07-01T02:00:00"));
        assert_eq!(local("0001-01-01T00:00:00Z", "UTC").as_deref(), Some("0001-01-01T00:00:00"));
    }

    #[test]
    fn every_day_has_its_date() {
        for days in -719_162..2_932_896 {
            let (year, month, day) = date(days);
            let theirs = jiff::Timestamp::from_second(days * 86_400).expect("a day");
            let theirs = jiff::tz::Offset::UTC.to_datetime(theirs).date();
            assert_eq!(days_of(year, month, day), days);
            assert_eq!(
                (year, month, day),
                (theirs.year().into(), theirs.month().into(), theirs.day().into()),
                "{days}"
            );
        }
    }

    #[test]
    fn a_very_long_delay_means_never() {
        assert_eq!(Timestamp(1) + Duration::MAX, Timestamp(i64::MAX));
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
    }
}
