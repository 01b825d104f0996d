//! The proleptic Gregorian calendar as day numbers, and wall-clock time as seconds: plain integers, so that a rule can
//! jump over centuries by arithmetic.

use jiff::civil::DateTime;

/// Days since 1970-01-01.
pub(super) type Day = i64;
/// Seconds since 1970-01-01T00:00:00 on a wall clock, whatever its zone.
pub(super) type Local = i64;

/// Seconds of a day on a wall clock.
pub(super) const DAY: i64 = 86_400;
/// The last second that four digits of a year can name: 9999-12-31T23:59:59.
pub(super) const LOCAL_MAX: Local = day_of(10_000, 1, 1) * DAY - 1;

/// The number of a date. `month` counts from 1.
pub(super) const fn day_of(year: i64, month: u32, day: u32) -> Day {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month as i64 + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day as i64 - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of month of a day.
pub(super) const fn date_of(day: Day) -> (i64, u32, u32) {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 } as u32;
    (year_of_era + era * 400 + if month <= 2 { 1 } else { 0 }, month, day)
}

/// Days of a month.
pub(super) const fn month_length(year: i64, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Monday is 0, Sunday 6.
pub(super) const fn weekday(day: Day) -> u32 {
    (day + 3).rem_euclid(7) as u32
}

/// The first day of the first week of a year, by ISO 8601: the first week with at least four days in it, where weeks
/// begin on `week_start`.
pub(super) const fn week_year_start(year: i64, week_start: u32) -> Day {
    let fourth = day_of(year, 1, 4);
    fourth - (weekday(fourth) as i64 - week_start as i64).rem_euclid(7)
}

/// The year to whose weeks a day belongs; for days about New Year it may be the one before or after.
pub(super) const fn week_year_of(day: Day, week_start: u32) -> i64 {
    let (year, _, _) = date_of(day);
    if day >= week_year_start(year + 1, week_start) {
        year + 1
    } else if day < week_year_start(year, week_start) {
        year - 1
    } else {
        year
    }
}

/// Wall-clock seconds of a civil date and time; a fraction of a second is cut off.
pub(super) fn local_of(time: DateTime) -> Local {
    day_of(i64::from(time.year()), time.month() as u32, time.day() as u32) * DAY
        + i64::from(time.hour()) * 3_600
        + i64::from(time.minute()) * 60
        + i64::from(time.second())
}

/// The civil date and time of wall-clock seconds within the years 1 to 9999.
pub(super) fn civil_of(local: Local) -> DateTime {
    let (year, month, day) = date_of(local.div_euclid(DAY));
    let second = local.rem_euclid(DAY);
    let part = |value: i64| i8::try_from(value).expect("hours, minutes and seconds are below 100");
    DateTime::new(
        i16::try_from(year).expect("four digits"),
        month as i8,
        day as i8,
        part(second / 3_600),
        part(second / 60 % 60),
        part(second % 60),
        0,
    )
    .expect("day numbers give dates that exist")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_numbers_agree_with_jiff() {
        let mut date = jiff::civil::date(1, 1, 1);
        let mut day = day_of(1, 1, 1);
        loop {
            assert_eq!(date_of(day), (i64::from(date.year()), date.month() as u32, date.day() as u32));
            assert_eq!(day_of(i64::from(date.year()), date.month() as u32, date.day() as u32), day);
            assert_eq!(weekday(day), date.weekday().to_monday_zero_offset() as u32);
            assert_eq!(month_length(i64::from(date.year()), date.month() as u32), date.days_in_month() as u32);
            assert_eq!(week_year_of(day, 0), i64::from(date.iso_week_date().year()), "{date}");
            let Ok(later) = date.checked_add(jiff::Span::new().days(11)) else { break };
            if later.year() > 9990 {
                break;
            }
            (date, day) = (later, day + 11);
        }
        assert_eq!(civil_of(LOCAL_MAX).to_string(), "9999-12-31T23:59:59");
        assert_eq!(local_of(civil_of(-1)), -1);
    }
}
