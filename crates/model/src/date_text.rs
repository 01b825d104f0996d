//! Parses dates and times of feeds, mails, pages and HTTP, in the forms of RFC 3339, ISO 8601, RFC 5322 and its
//! predecessors, RFC 9110, `asctime` and browsers.
//!
//! A time is definite only with its zone. A missing, unknown or ambiguous zone is an error and is never taken for
//! UTC.

use jiff::{
    SignedDuration,
    civil::{Date, DateTime, Time},
    tz::{Offset, TimeZone},
};

use crate::{time::Timestamp, windows_zones};

/// Longest text that is read.
const BYTES_MAX: usize = 200;

/// A text that is not a definite time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DateError {
    /// Not a known date format.
    #[error("`{0}` is not a date and time in a known form, such as `2026-11-21T09:30:00Z`")]
    NotADate(String),
    /// A date, or a date and a time, without a zone.
    #[error("`{0}` has no time zone")]
    NoZone(String),
    /// An unknown or ambiguous zone.
    #[error("`{0}` has the time zone `{1}`, which is not known or not certain")]
    UnknownZone(String, String),
}

/// Reads a time. A text without a zone is in `zone`, if one is given; a date alone is its midnight there.
///
/// # Errors
/// The text is no certain time.
pub fn parse(text: &str, zone: Option<&TimeZone>) -> Result<Timestamp, DateError> {
    let plain = text.trim();
    let wrong = || DateError::NotADate(plain.chars().take(BYTES_MAX).collect());
    if plain.is_empty() || plain.len() > BYTES_MAX {
        return Err(wrong());
    }
    let read = read(plain).ok_or_else(wrong)?;
    let Read { date, time, extra, zone: found } = read;
    let civil = date.to_datetime(time);
    let shown = || plain.to_owned();
    let zone = match found {
        Zone::Offset(offset) => TimeZone::fixed(offset),
        Zone::Named(zone) => zone,
        Zone::Unknown(name) => return Err(DateError::UnknownZone(shown(), name)),
        Zone::Missing => zone.cloned().ok_or_else(|| DateError::NoZone(shown()))?,
    };
    instant(civil, extra, &zone).ok_or_else(wrong)
}

fn instant(civil: DateTime, extra: SignedDuration, zone: &TimeZone) -> Option<Timestamp> {
    let civil = civil.checked_add(extra).ok()?;
    let time = zone.to_ambiguous_timestamp(civil).compatible().ok()?;
    Some(Timestamp(time.as_microsecond()))
}

struct Read {
    date: Date,
    time: Time,
    /// A day for the time 24:00.
    extra: SignedDuration,
    zone: Zone,
}

enum Zone {
    Missing,
    Offset(Offset),
    Named(TimeZone),
    Unknown(String),
}

fn read(text: &str) -> Option<Read> {
    // A typographic dash is a minus.
    let text = text.replace(['\u{2212}', '\u{2013}'], "-");
    iso(&text).or_else(|| words(&text))
}

// ISO 8601 and RFC 3339 ---------------------------------------------------------------------------------------------

fn iso(text: &str) -> Option<Read> {
    let (date, rest) = iso_date(text)?;
    let rest = match rest.strip_prefix(['T', 't', '_']) {
        Some(rest) => rest,
        None if rest.is_empty() => {
            let (time, extra) = (Time::midnight(), SignedDuration::ZERO);
            return Some(Read { date, time, extra, zone: Zone::Missing });
        }
        None => rest.strip_prefix(char::is_whitespace)?.trim_start(),
    };
    let end = rest.find(|c: char| !(c.is_ascii_digit() || matches!(c, ':' | '.' | ','))).unwrap_or(rest.len());
    let (clock, mut rest) = rest.split_at(end);
    let (mut time, mut extra) = clock_of(clock, true)?;
    let half = rest.trim_start();
    if half.get(..2).is_some_and(|half| half.eq_ignore_ascii_case("am") || half.eq_ignore_ascii_case("pm")) {
        (time, extra) = (twelve_hours(time, half[..1].eq_ignore_ascii_case("p"))?, SignedDuration::ZERO);
        rest = &half[2..];
    }
    Some(Read { date, time, extra, zone: zone_of(rest.trim()) })
}

fn iso_date(text: &str) -> Option<(Date, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i16>().ok();
    let small = |from: usize, to: usize| i8::try_from(number(from, to)?).ok();
    let is_separated = |at: usize, by: u8| text.as_bytes().get(at) == Some(&by);
    match digits {
        8 => Some((Date::new(number(0, 4)?, small(4, 6)?, small(6, 8)?).ok()?, &text[8..])),
        4 if is_separated(4, b'-') || is_separated(4, b'/') => {
            let by = text.as_bytes()[4];
            let inner = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
            let month = inner(5);
            // `2026-W47-6` and `2026-325`.
            if by == b'-' && text[5..].starts_with(['W', 'w']) {
                let end = text.find(['T', 't', ' ']).unwrap_or(text.len());
                let week: jiff::civil::ISOWeekDate = text[..end].to_ascii_uppercase().parse().ok()?;
                return Some((week.date(), &text[end..]));
            }
            if by == b'-' && month == 3 && inner(8) == 0 {
                let first = Date::new(number(0, 4)?, 1, 1).ok()?;
                return Some((first.with().day_of_year(number(5, 8)?).build().ok()?, &text[8..]));
            }
            if !(1..=2).contains(&month) {
                return None;
            }
            let after = 5 + month;
            if !is_separated(after, by) {
                // A month without a day.
                let is_end = text.len() == after && by == b'-' && month == 2;
                return is_end.then(|| Some((Date::new(number(0, 4)?, small(5, 7)?, 1).ok()?, ""))).flatten();
            }
            let day = inner(after + 1);
            if !(1..=2).contains(&day) {
                return None;
            }
            let end = after + 1 + day;
            let date = Date::new(number(0, 4)?, small(5, after)?, small(after + 1, end)?).ok()?;
            Some((date, &text[end..]))
        }
        4 if text.len() == 4 => Some((Date::new(number(0, 4)?, 1, 1).ok()?, "")),
        _ => None,
    }
}

/// `12:30:00.5`, `12:30`, and where `is_basic` also `123000` and `12`. 24:00 is midnight of the next day, and the second 60 that
/// of a leap second is the one before.
fn clock_of(text: &str, is_basic: bool) -> Option<(Time, SignedDuration)> {
    let (clock, fraction) = match text.find(['.', ',']) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    };
    if text.len() > clock.len() && (fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let parts: Vec<&str> = match clock.contains(':') {
        true => clock.split(':').collect(),
        false if is_basic && matches!(clock.len(), 2 | 4 | 6) => {
            (0..clock.len() / 2).map(|at| &clock[2 * at..2 * at + 2]).collect()
        }
        false => return None,
    };
    let number = |text: &&str| match text.len() {
        1 | 2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<i8>().ok(),
        _ => None,
    };
    let parts: Vec<i8> = parts.iter().map(number).collect::<Option<_>>()?;
    let (hour, minute, second) = match parts[..] {
        [hour] if is_basic => (hour, 0, 0),
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    // Nine digits are nanoseconds; what is beyond is cut off. A fraction is of the last part that is given.
    let nanos: i64 = format!("{:0<9}", &fraction[..fraction.len().min(9)]).parse().ok()?;
    if !fraction.is_empty() && parts.len() < 3 {
        return None;
    }
    if (hour, minute, second, nanos) == (24, 0, 0, 0) {
        return Some((Time::midnight(), SignedDuration::from_hours(24)));
    }
    let second = if second == 60 { 59 } else { second };
    let time = Time::new(hour, minute, second, i32::try_from(nanos).ok()?).ok()?;
    Some((time, SignedDuration::ZERO))
}

fn twelve_hours(time: Time, is_afternoon: bool) -> Option<Time> {
    let hour = match (time.hour(), is_afternoon) {
        (12, false) => 0,
        (12, true) => 12,
        (hour @ 1..=11, false) => hour,
        (hour @ 1..=11, true) => hour + 12,
        _ => return None,
    };
    time.with().hour(hour).build().ok()
}

// RFC 5322, RFC 850, asctime ----------------------------------------------------------------------------------------

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// Index of a name, whole or cut to at least three letters.
fn place_of(word: &str, names: &[&str]) -> Option<usize> {
    let word = word.trim_end_matches('.').to_ascii_lowercase();
    let is_whole = |name: &&str| word.len() >= 3 && name.starts_with(word.as_str());
    names.iter().position(is_whole)
}

/// The text without comments in parentheses, which may be nested.
fn without_comments(text: &str) -> Option<String> {
    let (mut plain, mut depth) = (String::new(), 0u32);
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => {
                depth = depth.checked_sub(1)?;
                plain.push(' ');
            }
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    (depth == 0).then_some(plain)
}

/// A date in words: day, month and year in an order that the month's name makes unambiguous.
fn words(text: &str) -> Option<Read> {
    let plain = without_comments(text)?;
    let (mut day, mut month, mut year, mut clock) = (None, None, None, None);
    let mut half = None;
    let mut zone: Vec<&str> = Vec::new();
    for token in plain.split([' ', '\t', '\n', '\r', ',']).filter(|token| !token.is_empty()) {
        // `15-Jun-22` of RFC 850.
        let dashed: Vec<&str> = token.split(['-', '/']).collect();
        if let [of_day, of_month, of_year] = dashed[..]
            && let Some(named) = place_of(of_month, &MONTHS)
            && month.is_none()
        {
            (day, month, year) = (Some(day_of(of_day)?), Some(named), Some(year_of(of_year)?));
            continue;
        }
        if zone.is_empty() && clock.is_none() && token.contains(':') && token.as_bytes()[0].is_ascii_digit() {
            let end = token.find(|c: char| !(c.is_ascii_digit() || matches!(c, ':' | '.'))).unwrap_or(token.len());
            clock = Some(clock_of(&token[..end], false)?);
            let rest = &token[end..];
            match rest.to_ascii_lowercase().as_str() {
                "" => {}
                "am" | "pm" => half = Some(rest),
                _ => zone.push(rest),
            }
            continue;
        }
        if zone.is_empty()
            && half.is_none()
            && matches!(token.to_ascii_lowercase().as_str(), "am" | "pm" | "a.m." | "p.m.")
        {
            half = Some(token);
            continue;
        }
        if month.is_none() && place_of(token, &MONTHS).is_some() {
            month = place_of(token, &MONTHS);
            continue;
        }
        if zone.is_empty() && place_of(token, &WEEKDAYS).is_some() {
            // A wrong weekday is ignored, as other readers do.
            continue;
        }
        if token.as_bytes()[0].is_ascii_digit() {
            match day_of(token) {
                Some(number) if day.is_none() => day = Some(number),
                _ if year.is_none() => year = Some(year_of(token)?),
                _ => return None,
            }
            continue;
        }
        if token.eq_ignore_ascii_case("at") && clock.is_none() {
            continue;
        }
        zone.push(token);
    }
    let date = Date::new(year?, i8::try_from(month? + 1).ok()?, day?).ok()?;
    let Some((mut time, mut extra)) = clock else {
        let (time, extra) = (Time::midnight(), SignedDuration::ZERO);
        return zone.is_empty().then_some(Read { date, time, extra, zone: Zone::Missing });
    };
    if let Some(half) = half {
        (time, extra) = (twelve_hours(time, half.starts_with(['p', 'P']))?, SignedDuration::ZERO);
    }
    Some(Read { date, time, extra, zone: zone_of(&zone.join(" ")) })
}

/// `5`, `05`, `5th`.
fn day_of(token: &str) -> Option<i8> {
    let lower = token.to_ascii_lowercase();
    let digits = ["st", "nd", "rd", "th", "."].iter().find_map(|ending| lower.strip_suffix(ending)).unwrap_or(&lower);
    match digits.len() {
        1 | 2 if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().ok().filter(|day| (1..=31).contains(day))
        }
        _ => None,
    }
}

/// Two digits mean 1950 to 2049; three digits are added to 1900 (RFC 5322, section 4.3).
fn year_of(token: &str) -> Option<i16> {
    let token = token.strip_prefix('\'').unwrap_or(token);
    if !token.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: i16 = token.parse().ok()?;
    match token.len() {
        2 if number < 50 => Some(2_000 + number),
        2 | 3 => Some(1_900 + number),
        4 => Some(number),
        _ => None,
    }
}

// Zones -------------------------------------------------------------------------------------------------------------

/// Unambiguous zone names in feeds and mails, in minutes from UTC: those of RFC 5322, and those that no other zone in
/// use shares. `IST` (three zones) and the military letters (used with both signs; RFC 5322, section 4.3) are
/// excluded.
static NAMES: &[(&str, i32)] = &[
    ("acdt", 630),
    ("acst", 570),
    ("adt", -180),
    ("aedt", 660),
    ("aest", 600),
    ("akdt", -480),
    ("akst", -540),
    ("art", -180),
    ("ast", -240),
    ("awst", 480),
    ("bot", -240),
    ("brst", -120),
    ("brt", -180),
    ("bst", 60),
    ("cat", 120),
    ("cdt", -300),
    ("cest", 120),
    ("cet", 60),
    ("chadt", 825),
    ("chast", 765),
    ("clst", -180),
    ("clt", -240),
    ("cot", -300),
    ("cst", -360),
    ("eat", 180),
    ("edt", -240),
    ("eest", 180),
    ("eet", 120),
    ("est", -300),
    ("fet", 180),
    ("get", 240),
    ("gmt", 0),
    ("hadt", -540),
    ("hast", -600),
    ("hkt", 480),
    ("hst", -600),
    ("ict", 420),
    ("idt", 180),
    ("irdt", 270),
    ("irst", 210),
    ("jst", 540),
    ("kst", 540),
    ("mdt", -360),
    ("mest", 120),
    ("mesz", 120),
    ("met", 60),
    ("mez", 60),
    ("mmt", 390),
    ("msd", 240),
    ("msk", 180),
    ("mst", -420),
    ("myt", 480),
    ("ndt", -150),
    ("npt", 345),
    ("nst", -210),
    ("nzdt", 780),
    ("nzst", 720),
    ("pdt", -420),
    ("pet", -300),
    ("pht", 480),
    ("pkt", 300),
    ("pst", -480),
    ("samt", 240),
    ("sast", 120),
    ("sgt", 480),
    ("sst", -660),
    ("trt", 180),
    ("ut", 0),
    ("utc", 0),
    ("uyt", -180),
    ("uzt", 300),
    ("vet", -240),
    ("wast", 120),
    ("wat", 60),
    ("west", 60),
    ("wet", 0),
    ("wib", 420),
    ("wit", 540),
    ("wita", 480),
    ("z", 0),
];

/// The offset of an unambiguous zone name.
fn named_offset(name: &str) -> Option<Offset> {
    let name = name.to_ascii_lowercase();
    let at = NAMES.binary_search_by(|(known, _)| (*known).cmp(name.as_str())).ok()?;
    Offset::from_seconds(NAMES[at].1 * 60).ok()
}

/// Parses the text after the time.
fn zone_of(text: &str) -> Zone {
    let text = text.trim().trim_matches(['[', ']']).trim();
    if text.is_empty() {
        return Zone::Missing;
    }
    let unknown = || Zone::Unknown(text.to_owned());
    if let Some(offset) = offset_of(text).or_else(|| named_offset(text)) {
        return Zone::Offset(offset);
    }
    // `GMT+0200`, `UTC +02:00`, `Z+1`: the offset counts, and the rest is a comment, as in `+0100 CET` and
    // `+01:00[Europe/Vienna]`.
    let base = text.get(..3).filter(|base| ["gmt", "utc"].contains(&base.to_ascii_lowercase().as_str()));
    let signed = base.map_or(text, |_| text[3..].trim_start());
    if signed.starts_with(['+', '-']) {
        let end = signed[1..].find(|c: char| !(c.is_ascii_digit() || c == ':')).map_or(signed.len(), |at| at + 1);
        let rest = signed[end..].trim_start();
        let is_comment = rest.is_empty() || rest.starts_with('[') || signed[end..].starts_with(char::is_whitespace);
        return match offset_of(&signed[..end]).filter(|_| is_comment) {
            Some(offset) => Zone::Offset(offset),
            None => unknown(),
        };
    }
    let database = |name: &str| match name.contains('/') {
        true => TimeZone::get(name).ok(),
        false => TimeZone::get(windows_zones::iana_name(name)?).ok(),
    };
    database(text).map_or_else(unknown, Zone::Named)
}

/// `+02:00`, `+0200`, `+02`, `+2`, `-0330`.
fn offset_of(text: &str) -> Option<Offset> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let (hours, minutes) = match rest.split_once(':') {
        Some((hours, minutes)) if minutes.len() == 2 => (hours, minutes),
        Some(_) => return None,
        None if rest.len() > 2 => rest.split_at_checked(rest.len() - 2)?,
        None => (rest, "0"),
    };
    let number = |text: &str| match text.len() {
        1 | 2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<i32>().ok(),
        _ => None,
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours <= 23 && minutes <= 59).then(|| Offset::from_seconds(sign * (hours * 3_600 + minutes * 60)).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        match parse(text, None) {
            Ok(time) => assert_eq!(time.to_string(), expected, "{text}"),
            Err(error) => panic!("{text}: {error}"),
        }
    }

    #[test]
    fn d_dates_of_the_common_forms_are_read() {
        for text in [
            "2022-06-15T10:30:00Z",
            "2022-06-15t10:30:00z",
            "2022-06-15T12:30:00+02:00",
            "2022-06-15T12:30:00+0200",
            "2022-06-15T12:30:00+02",
            "2022-06-15 12:30:00 +0200",
            "2022-06-15 10:30:00 UTC",
            "2022-06-15T12:30+02:00",
            "20220615T103000Z",
            "20220615T1030Z",
            "2022-06-15T10:30:00.000Z",
            "2022-06-15T10:30:00,0Z",
            "2022-W24-3T10:30:00Z",
            "2022-166T10:30:00Z",
            "2022-06-15T12:30:00+02:00[Europe/Vienna]",
            "2022-06-15T12:30:00 Europe/Vienna",
            "2022-6-15T10:30:00Z",
            "2022/06/15 10:30:00 GMT",
            "2022-06-15T12:30:00\u{2212}00:00".replace("12:", "10:").as_str(),
            "Wed, 15 Jun 2022 12:30:00 +0200",
            "Wed, 15 Jun 2022 10:30:00 GMT",
            "Wed, 15 Jun 2022 10:30:00 UT",
            "Wed, 15 Jun 2022 10:30:00 Z",
            "Wed, 15 Jun 2022 10:30:00 UTC",
            "Wed, 15 Jun 22 10:30:00 GMT",
            "15 Jun 2022 10:30:00 GMT",
            "Wed, 15 Jun 2022 10:30 GMT",
            "Mon, 15 Jun 2022 10:30:00 GMT",
            "Wednesday, 15 June 2022 10:30:00 GMT",
            "wed, 15 jun 2022 10:30:00 gmt",
            "Wed 15 Jun 2022 10:30:00 GMT",
            "Wed, 15 Jun 2022 12:30:00 GMT+2",
            "Wed, 15 Jun 2022 12:30:00 GMT+0200",
            "Wed, 15 Jun 2022 12:30:00 UTC+02:00",
            "Wed, 15 Jun 2022 12:30:00 +02:00",
            "Wed, 15 Jun 2022 12:30:00 +0200 (CEST)",
            "Wed, 15 Jun 2022 12:30:00 CEST",
            "Wed, 15 Jun 2022 06:30:00 EDT",
            "Wed, 15 Jun 2022 05:30:00 EST",
            "Wed, 15 Jun 2022 05:30:00 CDT",
            "Wed, 15 Jun 2022 03:30:00 PDT",
            "Wed, 15 Jun 2022 13:30:00 MSK",
            "Wed, 15 Jun 2022 19:30:00 JST",
            "Wed, 15 Jun 2022 20:30:00 AEST",
            "Wed, 15 Jun 2022 12:30:00 Europe/Vienna",
            "Wed, 15 Jun 2022 12:30:00 W. Europe Standard Time",
            "Wed, 15-Jun-22 10:30:00 GMT",
            "Wednesday, 15-Jun-22 10:30:00 GMT",
            "Wednesday, 15-Jun-2022 10:30:00 GMT",
            "Wed Jun 15 10:30:00 UTC 2022",
            "Wed Jun 15 2022 12:30:00 GMT+0200 (Central European Summer Time)",
            "June 15, 2022 10:30 AM UTC",
            "Jun 15th, 2022 6:30 AM EDT",
            "Wed, 15 Jun 2022 10:30:00 -0000",
            "Wed, 15 Jun 2022 10:30:00 +0000",
            "  Wed,  15  Jun  2022\n 10:30:00\tGMT ",
            "Wed, 15 Jun 2022 12:30:00+0200",
            "15 Jun 122 10:30:00 GMT",
            "Wed,15 Jun 2022 10:30:00 GMT",
            "Wed, 15 Jun 2022 10:30:00.000 GMT",
        ] {
            check(text, "2022-06-15T10:30:00Z");
        }
        check("Fri, 5 Mar 1999 08:05:00 GMT", "1999-03-05T08:05:00Z");
        check("Fri, 5 Mar 99 8:05 GMT", "1999-03-05T08:05:00Z");
        check("Tue, 01 Sept 2026 00:00:00 +0530", "2026-08-31T18:30:00Z");
        check("2022-06-15T10:30:00.123456789Z", "2022-06-15T10:30:00.123456Z");
        check("2022-06-15T24:00:00Z", "2022-06-16T00:00:00Z");
        check("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z");
        check("Sun Nov  6 08:49:37 GMT 1994", "1994-11-06T08:49:37Z");
        check("2022-01-15T12:30:00 Eastern Standard Time", "2022-01-15T17:30:00Z");
    }

    #[test]
    fn d_a_time_without_a_certain_zone_is_none() {
        let zone = |text: &str| match parse(text, None) {
            Err(DateError::UnknownZone(_, zone)) => zone,
            other => panic!("{text}: {other:?}"),
        };
        for name in
            ["QQT", "IST", "A", "J", "Q", "GMT+99", "+9999", "+1:5", "XYZ+2", "Mars/Olympus", "No Such Standard Time"]
        {
            assert_eq!(zone(&format!("Wed, 15 Jun 2022 12:30:00 {name}")), name);
            assert_eq!(zone(&format!("2022-06-15T12:30:00 {name}")), name);
        }
        for text in [
            "2022-06-15T12:30:00",
            "2022-06-15 12:30",
            "20220615T1230",
            "Wed, 15 Jun 2022 12:30:00",
            "2022-06-15",
            "15 June 2022",
            "Wed Jun 15 12:30:00 2022",
            "2022-06",
            "2022",
        ] {
            assert!(matches!(parse(text, None), Err(DateError::NoZone(_))), "{text}: {:?}", parse(text, None));
        }
        let vienna = TimeZone::get("Europe/Vienna").expect("a zone");
        let there = |text: &str| parse(text, Some(&vienna)).map(|time| time.to_string());
        assert_eq!(there("2022-06-15T12:30:00").as_deref(), Ok("2022-06-15T10:30:00Z"));
        assert_eq!(there("2022-06-15").as_deref(), Ok("2022-06-14T22:00:00Z"));
        assert!(there("Wed, 15 Jun 2022 12:30:00 QQT").is_err(), "a zone that is not known is not the given one");
    }

    #[test]
    fn d_a_text_that_is_no_date_is_none() {
        for text in [
            "",
            " ",
            "yesterday",
            "15",
            "Wed",
            "12:30",
            "2022-13-01T00:00:00Z",
            "2022-02-30T00:00:00Z",
            "32 Jun 2022 10:00 GMT",
            "06/15/2022 10:30 GMT",
            "Wed, 15 Jun 2022 25:30:00 GMT",
            "Wed, 15 Jun 2022 10:61:00 GMT",
            "15 Jun Jul 2022 10:00 GMT",
            "1655289000",
            "(15 Jun 2022",
            "15 Jun 2022 13:00 PM GMT",
            "2022-06-15T",
            "2022-06-15TX",
            &"9".repeat(10_000),
        ] {
            assert!(
                matches!(parse(text, None), Err(DateError::NotADate(_) | DateError::UnknownZone(..))),
                "{text}: {:?}",
                parse(text, None)
            );
        }
    }

    #[test]
    fn d_the_three_forms_of_http_are_read() {
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            let found = parse(text, Some(&TimeZone::UTC));
            assert_eq!(found.map(|time| time.to_string()).as_deref(), Ok("1994-11-06T08:49:37Z"), "{text}");
        }
    }

    #[test]
    fn names_are_sorted() {
        assert!(NAMES.is_sorted_by(|(a, _), (b, _)| a < b));
    }

    proptest::proptest! {
        #[test]
        fn d_no_text_makes_the_reader_panic(text in ".{0,60}") {
            let _ = parse(&text, None);
        }

        #[test]
        fn d_rfc_3339_is_read_as_the_library_reads_it(micros in -62_135_596_800_000_000i64..253_402_207_200_000_000) {
            let text = Timestamp(micros).to_string();
            proptest::prop_assert_eq!(parse(&text, None), Ok(Timestamp(micros)));
        }
    }
}
