//! Time specifications: five fields of crontab(5) with an optional first field of seconds.

use std::str::FromStr;

use jiff::{ToSpan, civil, tz::TimeZone};
use tocsin_model::time::Timestamp;

/// Most days that are searched for an occurrence: a leap day on a certain weekday comes within 40 years.
const DAYS_MAX: usize = 366 * 41;
/// Most bytes of a specification.
const BYTES_MAX: usize = 1_000;

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A parsed time specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crontab {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether days and weekdays are both restricted. Then a day of either counts.
    is_either: bool,
}

/// A text that is not a time specification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a time specification: five or six fields, such as `0 */2 * * * *`")]
pub struct CrontabError(pub String);

impl FromStr for Crontab {
    type Err = CrontabError;

    fn from_str(text: &str) -> Result<Crontab, CrontabError> {
        let failed = || CrontabError(text.chars().take(100).collect());
        if text.len() > BYTES_MAX {
            return Err(failed());
        }
        let spelled = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            "@minutely" => "* * * * *",
            "@secondly" => "* * * * * *",
            other => other,
        };
        let mut fields: Vec<&str> = spelled.split_whitespace().collect();
        if fields.len() == 5 {
            fields.insert(0, "0");
        }
        let [seconds, minutes, hours, days, months, weekdays] = fields[..] else { return Err(failed()) };
        let set = |field, least, most, names| set(field, least, most, names).ok_or_else(failed);
        let is_open = |field: &str| field.starts_with(['*', '?']);
        let weekday_set = set(weekdays, 0, 7, &WEEKDAYS)?;
        Ok(Crontab {
            seconds: set(seconds, 0, 59, &[])?,
            minutes: set(minutes, 0, 59, &[])?,
            hours: set(hours, 0, 23, &[])?,
            days: set(days, 1, 31, &[])?,
            months: set(months, 1, 12, &MONTHS)?,
            // Sunday is 0 and 7.
            weekdays: weekday_set | weekday_set >> 7,
            is_either: !is_open(days) && !is_open(weekdays),
        })
    }
}

/// The bits of a field: a list of values and ranges, each with an optional step.
fn set(field: &str, least: u32, most: u32, names: &[&str]) -> Option<u64> {
    let value = |text: &str| {
        let lower = text.to_lowercase();
        match names.iter().position(|name| *name == lower) {
            Some(position) => Some(position as u32 + u32::from(names.len() == 12)),
            None => text.parse::<u32>().ok(),
        }
    };
    let mut bits = 0;
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<u32>().ok().filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let (start, end) = match range {
            "*" | "?" => (least, most),
            range => match range.split_once('-') {
                Some((start, end)) => (value(start)?, value(end)?),
                // A start with a step goes on to the end.
                None if part.contains('/') => (value(range)?, most),
                None => (value(range)?, value(range)?),
            },
        };
        if start < least || end > most || start > end {
            return None;
        }
        (start..=end).step_by(step as usize).for_each(|value| bits |= 1 << value);
    }
    Some(bits)
}

fn has(bits: u64, value: i8) -> bool {
    bits >> value & 1 == 1
}

impl Crontab {
    /// The first occurrence after an instant, by the wall clock of a zone. `None`: there is none.
    pub fn next_after(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let local = now.in_zone(zone)?;
        let mut date = local.date();
        let mut time = Some(local.time());
        for _ in 0..DAYS_MAX {
            if self.has_day(date) {
                let mut after = time;
                while let Some(next) = self.time_after(after) {
                    let zoned = date.to_datetime(next).to_zoned(zone.clone()).ok()?;
                    let instant = Timestamp(zoned.timestamp().as_microsecond());
                    // Clocks that are put back repeat times that were before `now`.
                    if instant > now {
                        return Some(instant);
                    }
                    after = Some(next);
                }
            }
            date = date.checked_add(1.day()).ok()?;
            time = None;
        }
        None
    }

    fn has_day(&self, date: civil::Date) -> bool {
        let by_day = has(self.days, date.day());
        let by_weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        let is_day = if self.is_either { by_day || by_weekday } else { by_day && by_weekday };
        has(self.months, date.month()) && is_day
    }

    /// The first time of a day, or the first after another.
    fn time_after(&self, after: Option<civil::Time>) -> Option<civil::Time> {
        let (hour, minute, second) = match after {
            None => (0, 0, 0),
            Some(time) => {
                let next =
                    i32::from(time.hour()) * 3_600 + i32::from(time.minute()) * 60 + i32::from(time.second()) + 1;
                (next / 3_600, next / 60 % 60, next % 60)
            }
        };
        let first = |bits: u64, from: i32| (from..60).find(|value| bits >> value & 1 == 1);
        let second_least = first(self.seconds, 0)?;
        let minute_least = first(self.minutes, 0)?;
        let time =
            |hour: i32, minute: i32, second: i32| civil::Time::new(hour as i8, minute as i8, second as i8, 0).ok();
        if hour < 24 && self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = first(self.seconds, second)
            {
                return time(hour, minute, second);
            }
            if let Some(minute) = first(self.minutes, minute + 1) {
                return time(hour, minute, second_least);
            }
        }
        let hour = first(self.hours, hour + 1)?;
        time(hour, minute_least, second_least)
    }
}
