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
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => f.write_str(if self.0 < 0 { "the beginning of time" } else { "never" }),
        }
    }
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
        assert_eq!("2026-11-21T09:30:00+14:00".parse::<Timestamp>().expect("an offset").to_string(), "2026-11-20T19:30:00Z");
        assert!("yesterday".parse::<Timestamp>().is_err());
    }

    #[test]
    fn a_very_long_delay_means_never() {
        assert_eq!(Timestamp(1) + Duration::MAX, Timestamp(i64::MAX));
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
    }
}
