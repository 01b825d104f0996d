//! Instants, to the microsecond. The clock itself lives above; here time is a value.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

/// An instant: microseconds since 1970-01-01T00:00:00Z, without leap seconds. Text form: RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

/// The text is not an RFC 3339 date and time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a date and time of RFC 3339, such as `2026-11-21T09:30:00Z`")]
pub struct TimestampError(pub String);

impl Timestamp {
    /// The instant this many milliseconds after 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Timestamp(millis.saturating_mul(1_000))
    }

    /// Whole milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// The time from `earlier` to this instant; zero if that lies later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
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
        // It stands in every record and request, so years of four digits are written without a calendar library.
        const YEARS: std::ops::Range<i64> = -62_135_596_800_000_000..253_402_207_200_000_000;
        if YEARS.contains(&self.0) {
            return write_time(self.0, f);
        }
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => f.write_str(if self.0 < 0 { "the beginning of time" } else { "never" }),
        }
    }
}

/// Writes an instant of the years 1 to 9999.
fn write_time(micros: i64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const DAY: i64 = 86_400_000_000;
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
    // Zeros at the end say nothing, nor does the point alone.
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

impl FromStr for Timestamp {
    type Err = TimestampError;
    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let time: jiff::Timestamp = text.parse().map_err(|_| TimestampError(text.to_owned()))?;
        Ok(Timestamp(time.as_microsecond()))
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
    fn every_day_has_its_date() {
        for days in -719_162..2_932_896 {
            let (year, month, day) = date(days);
            let theirs = jiff::Timestamp::from_second(days * 86_400).expect("a day");
            let theirs = jiff::tz::Offset::UTC.to_datetime(theirs).date();
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
