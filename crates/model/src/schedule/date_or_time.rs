//! A date, a wall-clock time or an instant, and its text in a schedule.

use std::fmt;

use jiff::civil;

use crate::schedule::calendar::{DAY, Day, Local, civil_of, local_of};

/// A date, a time on the schedule's wall clock, or an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DateOrTime {
    Day(Day),
    Local(Local),
    /// Seconds since 1970 in UTC.
    Utc(i64),
}

impl fmt::Display for DateOrTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, zulu) = match *self {
            DateOrTime::Day(day) => return f.write_str(&civil_of(day * DAY).strftime("%Y%m%d").to_string()),
            DateOrTime::Local(local) => (local, ""),
            DateOrTime::Utc(second) => (second, "Z"),
        };
        write!(f, "{}{zulu}", civil_of(local).strftime("%Y%m%dT%H%M%S"))
    }
}

/// Parses `20270314` or `20270314T023000`, either with `Z` or with the separators of ISO 8601. The second 60 is read
/// as 59, as the RFC requires without leap seconds.
pub(super) fn moment(text: &str) -> Result<DateOrTime, String> {
    let wrong = || format!("`{text}` is not a date or a date and time");
    if !text.is_ascii() {
        return Err(wrong());
    }
    let (body, zulu) = match text.strip_suffix(['Z', 'z']) {
        Some(body) => (body, true),
        None => (text, false),
    };
    let (date, time) = match body.find(['T', 't', ' ']) {
        Some(place) => (&body[..place], Some(&body[place + 1..])),
        None => (body, None),
    };
    let digits = |text: &str, sign: char| -> Option<String> {
        let plain: String = text.split(sign).collect();
        plain.bytes().all(|byte| byte.is_ascii_digit()).then_some(plain)
    };
    let number = |text: &str| text.parse::<i16>().ok();
    let date = digits(date, '-').filter(|date| date.len() == 8).ok_or_else(wrong)?;
    let (year, month, day) = (number(&date[..4]), number(&date[4..6]), number(&date[6..]));
    let date = match (year, month, day) {
        (Some(year), Some(month), Some(day)) if year > 0 => civil::Date::new(year, month as i8, day as i8).ok(),
        _ => None,
    };
    let date = date.ok_or_else(|| format!("`{text}` is not a date of the years 1 to 9999"))?;
    let Some(time) = time else {
        if zulu {
            return Err(wrong());
        }
        return Ok(DateOrTime::Day(local_of(date.to_datetime(civil::Time::midnight())).div_euclid(DAY)));
    };
    let time = digits(time, ':').filter(|time| matches!(time.len(), 4 | 6)).ok_or_else(wrong)?;
    let part = |range: std::ops::Range<usize>| time.get(range).and_then(number).unwrap_or(0) as i8;
    let (hour, minute, second) = (part(0..2), part(2..4), part(4..6));
    let time = civil::Time::new(hour, minute, if second == 60 { 59 } else { second }, 0)
        .map_err(|_| format!("`{text}` has no time from 00:00:00 to 23:59:59"))?;
    let local = local_of(date.to_datetime(time));
    Ok(if zulu { DateOrTime::Utc(local) } else { DateOrTime::Local(local) })
}
