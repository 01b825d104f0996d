//! Recurrence rules: `RRULE` of RFC 5545 section 3.3.10, parsed into bit sets and formatted in one canonical order.

use std::fmt::{self, Write as _};

use super::calendar::Local;
use crate::{
    problem::{Problem, closest},
    schedule::date_or_time::{DateOrTime, moment},
};

/// The most occurrences a rule may count.
pub const COUNT_MAX: u32 = 1_000_000_000;
/// The largest interval between periods.
pub const INTERVAL_MAX: u32 = 1_000_000_000;

/// The length of a rule's period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Frequency {
    Secondly,
    Minutely,
    Hourly,
    Daily,
    Weekly,
    Monthly,
    Yearly,
}

const FREQUENCIES: [(&str, Frequency); 7] = [
    ("SECONDLY", Frequency::Secondly),
    ("MINUTELY", Frequency::Minutely),
    ("HOURLY", Frequency::Hourly),
    ("DAILY", Frequency::Daily),
    ("WEEKLY", Frequency::Weekly),
    ("MONTHLY", Frequency::Monthly),
    ("YEARLY", Frequency::Yearly),
];

const WEEKDAYS: [&str; 7] = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"];

const PARTS: [&str; 14] = [
    "FREQ",
    "INTERVAL",
    "COUNT",
    "UNTIL",
    "BYSECOND",
    "BYMINUTE",
    "BYHOUR",
    "BYDAY",
    "BYMONTHDAY",
    "BYYEARDAY",
    "BYWEEKNO",
    "BYMONTH",
    "BYSETPOS",
    "WKST",
];

/// End of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Never,
    Count(u32),
    Until(DateOrTime),
}

/// Numbers counted from the start (1, 2, ...) and from the end (-1, -2, ...), as bits; up to 63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Signed {
    from_start: u64,
    from_end: u64,
}

impl Signed {
    pub(super) fn single(number: u32) -> Self {
        Signed { from_start: 1 << number, from_end: 0 }
    }

    fn insert(&mut self, number: i32) {
        let bit = 1 << number.unsigned_abs();
        if number < 0 {
            self.from_end |= bit;
        } else {
            self.from_start |= bit;
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.from_start | self.from_end == 0
    }

    /// Whether the set contains the `number`th of `of`.
    pub(super) fn contains(self, number: u32, of: u32) -> bool {
        self.from_start >> number & 1 == 1 || self.from_end >> (of + 1 - number) & 1 == 1
    }

    fn numbers(self) -> impl Iterator<Item = i32> {
        let bits = |set: u64| (1..64).filter(move |bit| set >> bit & 1 == 1);
        bits(self.from_start).chain(bits(self.from_end).map(|number| -number))
    }
}

/// Days of the year, from its start and from its end, as bits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct YearDays([[u64; 6]; 2]);

impl YearDays {
    fn insert(&mut self, number: i32) {
        let day = number.unsigned_abs() as usize;
        self.0[usize::from(number < 0)][day / 64] |= 1 << (day % 64);
    }

    pub(super) fn contains(&self, number: u32, of: u32) -> bool {
        let bit = |side: usize, day: u32| self.0[side][day as usize / 64] >> (day % 64) & 1 == 1;
        bit(0, number) || bit(1, of + 1 - number)
    }

    fn numbers(&self) -> impl Iterator<Item = i32> {
        let bits =
            |side: usize| (1..=366_i32).filter(move |day| self.0[side][*day as usize / 64] >> (day % 64) & 1 == 1);
        bits(0).chain(bits(1).map(|number| -number))
    }
}

/// A parsed rule. An empty set means that the part is absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) frequency: Frequency,
    pub(super) interval: u32,
    pub(super) end: End,
    /// Monday is 0.
    pub(super) week_start: u32,
    pub(super) seconds: u64,
    pub(super) minutes: u64,
    pub(super) hours: u64,
    /// Bit 1 is January.
    pub(super) months: u64,
    pub(super) month_days: Signed,
    pub(super) year_days: Option<Box<YearDays>>,
    pub(super) week_numbers: Signed,
    /// Weekdays without an ordinal; bit 0 is Monday.
    pub(super) weekdays: u8,
    /// Weekdays with ordinals, by weekday.
    pub(super) ordinals: Option<Box<[Signed; 7]>>,
    pub(super) positions: Vec<i16>,
}

impl Rule {
    pub(super) fn new(frequency: Frequency) -> Self {
        Rule {
            frequency,
            interval: 1,
            end: End::Never,
            week_start: 0,
            seconds: 0,
            minutes: 0,
            hours: 0,
            months: 0,
            month_days: Signed::default(),
            year_days: None,
            week_numbers: Signed::default(),
            weekdays: 0,
            ordinals: None,
            positions: Vec::new(),
        }
    }

    pub(super) fn names_weekdays(&self) -> bool {
        self.weekdays != 0 || self.ordinals.is_some()
    }

    /// Parses `FREQ=...;...`. Every problem is pushed to `problems`; `None` if the frequency is unknown.
    pub(super) fn parse(text: &str, problems: &mut Vec<Problem>) -> Option<Rule> {
        let mut reader = Reader { problems, part: "RRULE".to_owned() };
        let mut parts: Vec<(&str, &str)> = Vec::new();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name.trim(), value.trim()),
                None => {
                    reader.problem(format!("`{part}` is not of the form NAME=VALUE"), "such as FREQ=DAILY;BYHOUR=8");
                    continue;
                }
            };
            if parts.iter().any(|(earlier, _)| earlier.eq_ignore_ascii_case(name)) {
                reader.problem(
                    format!("{} is given twice", name.to_ascii_uppercase()),
                    "give each part once; several values are separated by commas",
                );
                continue;
            }
            parts.push((name, value));
        }
        let Some((_, frequency)) = parts.iter().find(|(name, _)| name.eq_ignore_ascii_case("FREQ")) else {
            reader.problem("FREQ is missing", "such as FREQ=DAILY, FREQ=WEEKLY or FREQ=MONTHLY");
            return None;
        };
        let upper = frequency.to_ascii_uppercase();
        let Some((_, frequency)) = FREQUENCIES.iter().find(|(name, _)| *name == upper) else {
            reader.at("FREQ");
            let hint = match closest(&upper, FREQUENCIES.iter().map(|(name, _)| *name)) {
                Some(meant) => format!("did you mean {meant}?"),
                None => "one of SECONDLY, MINUTELY, HOURLY, DAILY, WEEKLY, MONTHLY, YEARLY".to_owned(),
            };
            reader.problem(format!("`{frequency}` is not a frequency"), hint);
            return None;
        };
        let mut rule = Rule::new(*frequency);
        for (name, value) in parts {
            reader.read_part(&mut rule, &name.to_ascii_uppercase(), value);
        }
        reader.part = "RRULE".to_owned();
        reader.check_combination(&rule);
        Some(rule)
    }
}

/// Parses the parts of one rule and collects their problems.
struct Reader<'p> {
    problems: &'p mut Vec<Problem>,
    part: String,
}

impl Reader<'_> {
    fn at(&mut self, part: &str) {
        self.part = format!("RRULE.{part}");
    }

    fn problem(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        self.problems.push(Problem::syntax("icalendar", self.part.clone(), message).hint(hint));
    }

    fn read_part(&mut self, rule: &mut Rule, name: &str, value: &str) {
        self.at(name);
        match name {
            "FREQ" => {}
            "INTERVAL" => rule.interval = self.count(value, INTERVAL_MAX).unwrap_or(1),
            "COUNT" => {
                if let Some(count) = self.count(value, COUNT_MAX) {
                    self.set_end(rule, End::Count(count));
                }
            }
            "UNTIL" => match moment(value) {
                Ok(until) => self.set_end(rule, End::Until(until)),
                Err(message) => self.problem(message, "such as UNTIL=20271231T225959Z"),
            },
            "BYSECOND" => self.each(value, 0, 60, |second| rule.seconds |= 1 << second.min(59)),
            "BYMINUTE" => self.each(value, 0, 59, |minute| rule.minutes |= 1 << minute),
            "BYHOUR" => self.each(value, 0, 23, |hour| rule.hours |= 1 << hour),
            "BYMONTH" => self.each(value, 1, 12, |month| rule.months |= 1 << month),
            "BYMONTHDAY" => self.each(value, -31, 31, |day| rule.month_days.insert(day)),
            "BYWEEKNO" => self.each(value, -53, 53, |week| rule.week_numbers.insert(week)),
            "BYYEARDAY" => {
                let days = rule.year_days.get_or_insert_default();
                self.each(value, -366, 366, |day| days.insert(day));
            }
            "BYSETPOS" => {
                self.each(value, -366, 366, |position| rule.positions.push(position as i16));
                rule.positions.sort_unstable();
                rule.positions.dedup();
            }
            "BYDAY" => value.split(',').for_each(|day| self.weekday(rule, day.trim())),
            "WKST" => match WEEKDAYS.iter().position(|day| day.eq_ignore_ascii_case(value)) {
                Some(day) => rule.week_start = day as u32,
                None => self.problem(format!("`{value}` is not a weekday"), "one of MO, TU, WE, TH, FR, SA, SU"),
            },
            "RSCALE" | "SKIP" => self.problem(
                format!("{name} of RFC 7529 is not supported: rules follow the Gregorian calendar and skip dates it does not have"),
                "leave RSCALE and SKIP out; for the last day of each month write BYMONTHDAY=-1",
            ),
            other => {
                let hint = match closest(other, PARTS) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => format!("the parts of a rule are {}", PARTS.join(", ")),
                };
                self.part = "RRULE".to_owned();
                self.problem(format!("`{other}` is not a part of a rule"), hint);
            }
        }
    }

    fn set_end(&mut self, rule: &mut Rule, end: End) {
        if rule.end != End::Never {
            self.problem("a rule ends by COUNT or by UNTIL, not by both", "leave one of them out");
        }
        rule.end = end;
    }

    fn count(&mut self, value: &str, max: u32) -> Option<u32> {
        let number = value.parse::<u32>().ok().filter(|number| (1..=max).contains(number));
        if number.is_none() {
            self.problem(format!("`{value}` is not a whole number from 1 to {max}"), "digits only, such as 2");
        }
        number
    }

    /// Whole numbers from `least` to `most`, separated by commas; zero is invalid if `least` is negative.
    fn each(&mut self, value: &str, least: i32, most: i32, mut take: impl FnMut(i32)) {
        for text in value.split(',').map(str::trim) {
            match text.parse::<i32>() {
                Ok(number) if (least..=most).contains(&number) && (number != 0 || least == 0) => take(number),
                _ if least < 0 => self.problem(
                    format!("`{text}` is not a whole number from 1 to {most} or from {least} to -1"),
                    "numbers below zero count from the end: -1 is the last",
                ),
                _ => self.problem(
                    format!("`{text}` is not a whole number from {least} to {most}"),
                    "separate several numbers by commas",
                ),
            }
        }
    }

    fn weekday(&mut self, rule: &mut Rule, text: &str) {
        let (ordinal, name) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
        let weekday = WEEKDAYS.iter().position(|day| day.eq_ignore_ascii_case(name.trim()));
        let Some(weekday) = weekday else {
            return self
                .problem(format!("`{text}` is not a weekday"), "such as MO, FR, 1MO (the first) or -1FR (the last)");
        };
        if ordinal.is_empty() {
            rule.weekdays |= 1 << weekday;
            return;
        }
        match ordinal.parse::<i32>() {
            Ok(number) if (1..=53).contains(&number.abs()) => {
                rule.ordinals.get_or_insert_default()[weekday].insert(number);
            }
            _ => self.problem(
                format!("`{ordinal}` in `{text}` is not a whole number from 1 to 53 or from -53 to -1"),
                "such as 1MO (the first Monday) or -1FR (the last Friday)",
            ),
        }
    }

    /// Checks the combinations in the table of section 3.3.10.
    fn check_combination(&mut self, rule: &Rule) {
        use Frequency::{Daily, Monthly, Weekly, Yearly};
        let frequency = rule.frequency;
        if rule.ordinals.is_some() && !matches!(frequency, Monthly | Yearly) {
            self.at("BYDAY");
            self.problem("weekdays with a number need FREQ=MONTHLY or FREQ=YEARLY", "write MO, not 1MO");
        }
        if rule.ordinals.is_some() && !rule.week_numbers.is_empty() {
            self.at("BYDAY");
            self.problem("weekdays with a number do not go with BYWEEKNO", "write MO, not 1MO");
        }
        if !rule.month_days.is_empty() && frequency == Weekly {
            self.at("BYMONTHDAY");
            self.problem("BYMONTHDAY does not go with FREQ=WEEKLY", "use FREQ=MONTHLY, or FREQ=DAILY with BYDAY");
        }
        if rule.year_days.is_some() && matches!(frequency, Daily | Weekly | Monthly) {
            self.at("BYYEARDAY");
            self.problem("BYYEARDAY does not go with FREQ=DAILY, WEEKLY or MONTHLY", "use FREQ=YEARLY");
        }
        if !rule.week_numbers.is_empty() && frequency != Yearly {
            self.at("BYWEEKNO");
            self.problem("BYWEEKNO needs FREQ=YEARLY", "use FREQ=YEARLY with BYDAY and BYWEEKNO");
        }
        let other_part = rule.names_weekdays()
            || rule.seconds | rule.minutes | rule.hours | rule.months != 0
            || !rule.month_days.is_empty()
            || !rule.week_numbers.is_empty()
            || rule.year_days.is_some();
        if !rule.positions.is_empty() && !other_part {
            self.at("BYSETPOS");
            self.problem("BYSETPOS selects from another BY part, and there is none", "add BYDAY, say");
        }
    }
}

impl fmt::Display for Rule {
    /// Parts in the order of the RFC, numbers ascending, defaults left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) =
            FREQUENCIES.iter().find(|(_, known)| *known == self.frequency).expect("every frequency has a name");
        write!(f, "FREQ={name}")?;
        if self.interval != 1 {
            write!(f, ";INTERVAL={}", self.interval)?;
        }
        match self.end {
            End::Never => {}
            End::Count(count) => write!(f, ";COUNT={count}")?,
            End::Until(until) => write!(f, ";UNTIL={until}")?,
        }
        let bits = |set: u64| (0..64_i32).filter(move |bit| set >> bit & 1 == 1);
        write_part(f, "BYSECOND", bits(self.seconds))?;
        write_part(f, "BYMINUTE", bits(self.minutes))?;
        write_part(f, "BYHOUR", bits(self.hours))?;
        let mut days = String::new();
        for (index, day) in WEEKDAYS.iter().enumerate() {
            if self.weekdays >> index & 1 == 1 {
                write!(days, ",{day}")?;
            }
            for number in self.ordinals.iter().flat_map(|ordinals| ordinals[index].numbers()) {
                write!(days, ",{number}{day}")?;
            }
        }
        if !days.is_empty() {
            write!(f, ";BYDAY={}", &days[1..])?;
        }
        write_part(f, "BYMONTHDAY", self.month_days.numbers())?;
        write_part(f, "BYYEARDAY", self.year_days.iter().flat_map(|days| days.numbers()))?;
        write_part(f, "BYWEEKNO", self.week_numbers.numbers())?;
        write_part(f, "BYMONTH", bits(self.months))?;
        write_part(f, "BYSETPOS", self.positions.iter().map(|position| i32::from(*position)))?;
        if self.week_start != 0 {
            write!(f, ";WKST={}", WEEKDAYS[self.week_start as usize])?;
        }
        Ok(())
    }
}

fn write_part(f: &mut fmt::Formatter<'_>, name: &str, numbers: impl Iterator<Item = i32>) -> fmt::Result {
    let mut separator = format!(";{name}=");
    for number in numbers {
        write!(f, "{separator}{number}")?;
        ",".clone_into(&mut separator);
    }
    Ok(())
}

/// Checks that the end of a rule has the same type as its start, as the RFC requires.
pub(super) fn check_until(rule: &Rule, whole_day: bool, problems: &mut Vec<Problem>) {
    let End::Until(until) = rule.end else { return };
    let problem = match (whole_day, until) {
        (true, DateOrTime::Day(_)) | (false, DateOrTime::Local(_) | DateOrTime::Utc(_)) => return,
        (true, _) => Problem::syntax("icalendar", "RRULE.UNTIL", "UNTIL has a time, but the start is a date")
            .hint("leave the time out"),
        (false, DateOrTime::Day(day)) => {
            let end = DateOrTime::Local(day * super::calendar::DAY + super::calendar::DAY - 1);
            Problem::syntax("icalendar", "RRULE.UNTIL", "UNTIL is a date, but the start has a time")
                .hint(format!("to include that day write UNTIL={end}"))
        }
    };
    problems.push(problem);
}

/// The last wall-clock second that `UNTIL` can allow in any zone.
pub(super) fn until_local(rule: &Rule, offset_max: i64) -> Option<Local> {
    match rule.end {
        End::Until(DateOrTime::Local(local)) => Some(local),
        End::Until(DateOrTime::Day(day)) => Some(day * super::calendar::DAY),
        End::Until(DateOrTime::Utc(second)) => Some(second + offset_max),
        End::Never | End::Count(_) => None,
    }
}
