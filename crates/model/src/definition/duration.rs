//! Durations in definitions.

use std::{fmt::Write, time::Duration};

use jiff::{Span, SpanRelativeTo};

/// Parses `90s`, `1h30m`, `7d`, `2w` or ISO 8601 (`PT1H30M`, `P7D`). A day has 24 hours. Months and years are refused
/// because their length varies, and so is a number without its unit.
///
/// # Errors
/// A message that continues a sentence about the value.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let span: Span = text.trim().parse().map_err(|_| "is not a duration")?;
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err("has months or years, whose length varies");
    }
    let exact = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| "is not a duration")?;
    Duration::try_from(exact).map_err(|_| "is negative")
}

/// Formats a duration in the form that [`parse_duration`] reads: `1d12h`, `1h30m`, `250ms`. Exact to the nanosecond.
pub fn write_duration(duration: Duration) -> String {
    let mut text = String::new();
    let mut seconds = duration.as_secs();
    for (unit, length) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
        if seconds >= length {
            let _ = write!(text, "{}{unit}", seconds / length);
            seconds %= length;
        }
    }
    let mut nanos = duration.subsec_nanos();
    for (unit, length) in [("ms", 1_000_000), ("us", 1_000), ("ns", 1)] {
        if nanos >= length {
            let _ = write!(text, "{}{unit}", nanos / length);
            nanos %= length;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_write_durations_in_many_ways() {
        let seconds = |text| parse_duration(text).map(|duration| duration.as_secs_f64());
        for (text, expected) in [
            ("90s", 90.0),
            ("1h30m", 5_400.0),
            ("1h 30m", 5_400.0),
            ("7d", 604_800.0),
            ("2w", 1_209_600.0),
            ("250ms", 0.25),
            ("PT1H30M", 5_400.0),
            ("P7D", 604_800.0),
            ("0s", 0.0),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for wrong in ["", "90", "soon", "1.5.5s", "-5s", "5s ago", "1y", "2 months", "P1M", "99999999999999d", "1h30"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn formatted_durations_parse_back(seconds in 0u64..1_000_000_000, nanos in 0u32..1_000_000_000) {
            let duration = Duration::new(seconds, nanos);
            prop_assert_eq!(parse_duration(&write_duration(duration)), Ok(duration));
        }
    }
}
