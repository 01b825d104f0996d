//! HTTP dates and the field `Retry-After` (RFC 9110, 5.6.7 and 10.2.3).

use std::time::Duration;

use jiff::{
    civil::DateTime,
    fmt::{rfc2822::DateTimeParser, strtime::BrokenDownTime},
    tz::TimeZone,
};

use crate::time::Timestamp;

/// Longest value that is parsed, in bytes.
const BYTES_MAX: usize = 128;
/// Most values of one field that are parsed.
const VALUES_MAX: usize = 8;

/// Parses a date in any of the three forms of RFC 9110, 5.6.7: `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94
/// 08:49:37 GMT` and `Sun Nov  6 08:49:37 1994`. Also accepts a zone as in mail (`+0100`), and a wrong weekday.
///
/// A year of two digits is the latest one that is at most 50 years after `now`.
pub fn parse(text: &str, now: Timestamp) -> Option<Timestamp> {
    let text = text.trim();
    if text.len() > BYTES_MAX || !text.is_ascii() {
        return None;
    }
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [first, rest @ ..] = words.as_slice() else { return None };
    let is_weekday = first.trim_end_matches(',').bytes().all(|byte| byte.is_ascii_alphabetic());
    let rest = if is_weekday { rest } else { &words[..] };
    let (rest, has_zone) = match rest {
        [rest @ .., zone] if ["GMT", "UTC", "UT", "Z"].iter().any(|known| known.eq_ignore_ascii_case(zone)) => {
            (rest, true)
        }
        rest => (rest, false),
    };
    let rest = rest.join(" ");
    let read = |format: &str| BrokenDownTime::parse(format, &rest).and_then(|time| time.to_datetime()).ok();
    let found = match has_zone {
        true => read("%d %b %Y %H:%M:%S").or_else(|| read_short_year(&rest, now)).or_else(|| read("%d-%b-%Y %H:%M:%S")),
        // The asctime form has no zone and is in UTC.
        false => read("%b %d %H:%M:%S %Y"),
    };
    match found {
        Some(found) => timestamp(found),
        None => {
            let without_weekday = if is_weekday { rest.as_str() } else { text };
            let read = DateTimeParser::new().parse_timestamp(without_weekday).ok()?;
            Some(Timestamp(read.as_microsecond()))
        }
    }
}

fn timestamp(found: DateTime) -> Option<Timestamp> {
    // The library's instants end before the year 9999 does.
    format!("{found}Z").parse().ok()
}

/// `06-Nov-94 08:49:37`.
fn read_short_year(text: &str, now: Timestamp) -> Option<DateTime> {
    let (date, time) = text.split_once(' ')?;
    let (day, year) = date.rsplit_once('-')?;
    let short: i16 = year.parse().ok().filter(|_| year.len() == 2 && year.bytes().all(|byte| byte.is_ascii_digit()))?;
    let now = jiff::Timestamp::from_microsecond(now.0).ok()?.to_zoned(TimeZone::UTC).datetime();
    let full = |year: i16| {
        BrokenDownTime::parse("%d-%b-%Y %H:%M:%S", format!("{day}-{year:04} {time}"))
            .and_then(|time| time.to_datetime())
            .ok()
    };
    let latest = now.checked_add(jiff::Span::new().years(50)).ok()?;
    let century = now.year() / 100 * 100;
    [century + 100, century, century - 100]
        .into_iter()
        .filter_map(|century| full(century + short))
        .find(|at| *at <= latest)
}

/// The duration in one value of `Retry-After`: seconds, or a date. A past date is a duration of zero.
fn retry_delay(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(value) {
        // An overflow means a very long time.
        return Some(value.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    // Some servers send fractions of a second, which RFC 9110 does not allow.
    if let Some((whole, part)) = value.split_once('.')
        && value.len() <= BYTES_MAX
        && is_number(whole)
        && is_number(part)
    {
        return Some(
            value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(Duration::MAX),
        );
    }
    parse(value, now).map(|at| at.since(now))
}

/// The duration in `Retry-After`, at most `most`. Of several values the longest counts; invalid ones are ignored (RFC
/// 9110, 5.5). `None`: no valid value.
pub fn retry_after<'a>(values: impl IntoIterator<Item = &'a str>, now: Timestamp, most: Duration) -> Option<Duration> {
    let read = |value: &'a str| {
        // A proxy may join several fields by commas. Dates have commas too.
        let parts = value.split(',').map(|part| retry_delay(part, now)).take(VALUES_MAX);
        retry_delay(value, now).or_else(|| parts.flatten().max())
    };
    values.into_iter().take(VALUES_MAX).filter_map(read).max().map(|retry_delay| retry_delay.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn dates_are_read_in_all_three_forms() {
        let now = at("2026-11-26T12:00:00Z");
        let check = |text: &str, expected: &str| assert_eq!(parse(text, now), Some(at(expected)), "{text}");
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun Nov 6 08:49:37 1994",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "sun, 06 nov 1994 08:49:37 gmt",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-1994 08:49:37 GMT",
            "Sun, 06-Nov-1994 08:49:37 UTC",
            " Sun, 06 Nov 1994 08:49:37 GMT\t",
            "Sun, 06 Nov 1994 09:49:37 +0100",
            "Sun, 06 Nov 1994 08:49:37 +0000",
        ] {
            check(text, "1994-11-06T08:49:37Z");
        }
        check("Friday, 06-Nov-76 08:49:37 GMT", "2076-11-06T08:49:37Z");
        check("Friday, 06-Dec-76 08:49:37 GMT", "1976-12-06T08:49:37Z");
        check("Thursday, 26-Nov-26 12:00:05 GMT", "2026-11-26T12:00:05Z");
        check("Thu, 29 Feb 2024 00:00:00 GMT", "2024-02-29T00:00:00Z");
        for text in
            ["", "soon", "Sun", "Sun, 31 Feb 2026 08:49:37 GMT", "2026-11-26T12:00:00Z", "Sun, 06 Nov 1994", "GMT", "é"]
        {
            assert_eq!(parse(text, now), None, "{text}");
        }
        assert_eq!(parse(&"9".repeat(1_000_000), now), None);
    }

    #[test]
    fn retry_after_is_read_and_capped() {
        let now = at("2026-11-26T12:00:00Z");
        let check = |values: &[&str], expected: Option<u64>| {
            let found = retry_after(values.iter().copied(), now, Duration::from_secs(3_600));
            assert_eq!(found, expected.map(Duration::from_millis), "{values:?}");
        };
        for text in [
            "5",
            " 5 ",
            "005",
            "5.0",
            "Thu, 26 Nov 2026 12:00:05 GMT",
            "Thursday, 26-Nov-26 12:00:05 GMT",
            "Thu Nov 26 12:00:05 2026",
        ] {
            check(&[text], Some(5_000));
        }
        check(&["0"], Some(0));
        check(&["1.5"], Some(1_500));
        check(&["Thu, 26 Nov 2020 12:00:05 GMT"], Some(0));
        check(&["99999999999999999999999999"], Some(3_600_000));
        check(&["18446744073709551615"], Some(3_600_000));
        check(&["Fri, 31 Dec 9999 23:59:59 GMT"], Some(3_600_000));
        check(&["7200"], Some(3_600_000));
        for text in ["", " ", "-5", "+5", "5s", "1e3", "NaN", "inf", "1.", ".5", "0x10", "soon"] {
            check(&[text], None);
        }
        check(&["1", "5", "x"], Some(5_000));
        check(&["1, 5"], Some(5_000));
        check(&["5, Thu, 26 Nov 2026 12:00:02 GMT"], Some(5_000));
        check(&[], None);
    }
}
