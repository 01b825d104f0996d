//! Text of a schedule: five content lines of RFC 5545.
//!
//! ```text
//! DTSTART;TZID=America/New_York:20270314T023000
//! RRULE:FREQ=DAILY;COUNT=10
//! RDATE:20270401T120000
//! EXDATE:20270316T023000
//! X-TOCSIN-GAP:SKIP
//! ```

use std::fmt;

use jiff::tz::TimeZone;

use super::{
    DATES_MAX, FoldPolicy, GapPolicy, Schedule, TEXT_BYTES_MAX,
    calendar::DAY,
    rule::{self, Frequency, Rule},
};
use crate::{
    problem::{Code, Problem, closest},
    schedule::date_or_time::{DateOrTime, moment},
};

/// One content line, unfolded.
struct Line<'t> {
    number: u32,
    name: String,
    zone: Option<&'t str>,
    value: &'t str,
}

/// Unfolds lines (RFC 5545 section 3.1): a line that begins with a blank continues the previous one.
fn unfold(text: &str) -> Vec<(u32, String)> {
    let mut lines: Vec<(u32, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        match line.strip_prefix([' ', '\t']) {
            Some(rest) if !lines.is_empty() => {
                if let Some((_, earlier)) = lines.last_mut() {
                    earlier.push_str(rest);
                }
            }
            _ => lines.push((index as u32 + 1, line.trim().to_owned())),
        }
    }
    lines.retain(|(_, line)| !line.is_empty());
    lines
}

fn read_line(number: u32, line: &str) -> Result<Line<'_>, Problem> {
    let problem =
        |message: String, hint: &str| Problem::syntax("icalendar", "", message).hint(hint).position(number, 1);
    let Some((head, value)) = line.split_once(':') else {
        return Err(problem(
            "the line is not of the form NAME:VALUE".to_owned(),
            "such as RRULE:FREQ=DAILY or DTSTART;TZID=Europe/Vienna:20270101T080000",
        ));
    };
    let mut head = head.split(';');
    let name = head.next().unwrap_or_default().trim().to_ascii_uppercase();
    let mut zone = None;
    for parameter in head {
        let (key, content) = parameter.split_once('=').unwrap_or((parameter, ""));
        let content = content.trim_matches('"');
        match key.trim().to_ascii_uppercase().as_str() {
            "TZID" => zone = Some(content),
            "VALUE" if content.eq_ignore_ascii_case("DATE") || content.eq_ignore_ascii_case("DATE-TIME") => {}
            "VALUE" => {
                return Err(problem(format!("{name} of type {content} is not supported"), "use DATE or DATE-TIME"));
            }
            key if key.starts_with("X-") => {}
            key => return Err(problem(format!("{name} has no parameter `{key}`"), "TZID and VALUE are known")),
        }
    }
    Ok(Line { number, name, zone, value: value.trim() })
}

/// Parses a whole schedule; reports every problem at once.
pub(super) fn parse(text: &str) -> Result<Schedule, Vec<Problem>> {
    parse_into(Builder::default(), text)
}

/// The same for a text whose start may have no zone.
pub(super) fn parse_floating(text: &str) -> Result<Schedule, Vec<Problem>> {
    parse_into(Builder { may_float: true, ..Builder::default() }, text)
}

fn parse_into(mut builder: Builder, text: &str) -> Result<Schedule, Vec<Problem>> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(vec![
            Problem::new(Code::TooLong, "", format!("a schedule has at most {TEXT_BYTES_MAX} bytes of text"))
                .param("limit", TEXT_BYTES_MAX)
                .param("unit", "bytes"),
        ]);
    }
    let unfolded = unfold(text);
    let mut problems = Vec::new();
    let mut lines = Vec::new();
    for (number, line) in &unfolded {
        match read_line(*number, line) {
            Ok(line) => lines.push(line),
            Err(problem) => problems.push(problem),
        }
    }
    // The start first, because the other lines are read in its zone.
    lines.sort_by_key(|line| line.name != "DTSTART");
    for line in &lines {
        let before = problems.len();
        builder.take(line, &mut problems);
        for problem in &mut problems[before..] {
            problem.line = Some(line.number);
        }
    }
    builder.finish(problems)
}

/// State of the parser.
#[derive(Default)]
pub(super) struct Builder {
    start: Option<DateOrTime>,
    zone: Option<TimeZone>,
    may_float: bool,
    floating: bool,
    rule: Option<Rule>,
    dates: Vec<DateOrTime>,
    exceptions: Vec<DateOrTime>,
    gap: GapPolicy,
    fold: FoldPolicy,
}

impl Builder {
    fn take(&mut self, line: &Line<'_>, problems: &mut Vec<Problem>) {
        match line.name.as_str() {
            "DTSTART" if self.start.is_some() => {
                problems.push(Problem::new(Code::Duplicate, "DTSTART", "DTSTART is given twice"))
            }
            "DTSTART" => self.start(line.value, line.zone, problems),
            "RRULE" if self.rule.is_some() => problems.push(
                Problem::new(Code::Duplicate, "RRULE", "a schedule has one RRULE")
                    .hint("make a second schedule, or add dates by RDATE"),
            ),
            "RRULE" => self.rule(line.value, problems),
            "RDATE" => self.list("RDATE", line.value, line.zone, problems),
            "EXDATE" => self.list("EXDATE", line.value, line.zone, problems),
            "X-TOCSIN-GAP" => match line.value.to_ascii_uppercase().as_str() {
                "SHIFT-FORWARD" => self.gap = GapPolicy::ShiftForward,
                "SKIP" => self.gap = GapPolicy::Skip,
                _ => problems.push(
                    Problem::new(Code::UnknownValue, "X-TOCSIN-GAP", format!("`{}` is not a gap policy", line.value))
                        .hint("SHIFT-FORWARD or SKIP"),
                ),
            },
            "X-TOCSIN-FOLD" => match line.value.to_ascii_uppercase().as_str() {
                "FIRST" => self.fold = FoldPolicy::First,
                "BOTH" => self.fold = FoldPolicy::Both,
                _ => problems.push(
                    Problem::new(Code::UnknownValue, "X-TOCSIN-FOLD", format!("`{}` is not a fold policy", line.value))
                        .hint("FIRST or BOTH"),
                ),
            },
            "EXRULE" => problems.push(
                Problem::new(Code::Unsupported, "EXRULE", "EXRULE is not supported: RFC 5545 has abolished it")
                    .hint("list the exceptions by EXDATE, or narrow the RRULE"),
            ),
            other => {
                let known = ["DTSTART", "RRULE", "RDATE", "EXDATE", "X-TOCSIN-GAP", "X-TOCSIN-FOLD"];
                let hint = match closest(other, known) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => "a schedule has DTSTART, RRULE, RDATE and EXDATE".to_owned(),
                };
                problems.push(
                    Problem::new(Code::UnknownMember, "", format!("`{other}` is not a property of a schedule"))
                        .param("value", other.to_string())
                        .hint(hint),
                );
            }
        }
    }

    /// Parses the start, in the given zone, or without one for an instant of UTC.
    pub(super) fn start(&mut self, text: &str, zone: Option<&str>, problems: &mut Vec<Problem>) {
        let start = match moment(text) {
            Ok(start) => start,
            Err(message) => {
                let hint = "such as 20270101T080000 or 2027-01-01T08:00";
                return problems.push(Problem::syntax("icalendar", "DTSTART", message).hint(hint));
            }
        };
        let name = match (zone, start) {
            (Some(zone), _) => zone,
            (None, DateOrTime::Utc(_)) => "UTC",
            (None, _) if self.may_float => {
                self.floating = true;
                "UTC"
            }
            (None, _) => {
                return problems.push(
                    Problem::new(Code::Required, "DTSTART", "the start has no time zone")
                        .hint("such as DTSTART;TZID=Europe/Vienna:20270101T080000, or UTC with a Z at its end"),
                );
            }
        };
        match TimeZone::get(name).ok().filter(|zone| zone.iana_name().is_some()) {
            Some(zone) => self.zone = Some(zone),
            None => {
                return problems
                    .push(Problem::unknown_time_zone("TZID", name).hint("give an IANA name, such as `Europe/Vienna`"));
            }
        }
        self.start = match start {
            DateOrTime::Utc(second) if self.zone.as_ref().and_then(TimeZone::iana_name) == Some("UTC") => {
                Some(DateOrTime::Local(second))
            }
            DateOrTime::Utc(_) => {
                return problems.push(
                    Problem::new(
                        Code::ConflictingMembers,
                        "DTSTART",
                        format!("the start is in UTC and in {name} at once"),
                    )
                    .hint("leave out the Z, or the zone"),
                );
            }
            start => Some(start),
        };
    }

    pub(super) fn rule(&mut self, text: &str, problems: &mut Vec<Problem>) {
        let bare = text.get(..6).filter(|head| head.eq_ignore_ascii_case("RRULE:")).map_or(text, |_| &text[6..]);
        self.rule = Rule::parse(bare, problems);
    }

    /// Parses dates separated by commas, in the zone of the start or in UTC.
    pub(super) fn list(&mut self, name: &str, text: &str, zone: Option<&str>, problems: &mut Vec<Problem>) {
        if let (Some(zone), Some(own)) = (zone, self.zone.as_ref().and_then(TimeZone::iana_name))
            && !zone.eq_ignore_ascii_case(own)
        {
            return problems.push(
                Problem::new(Code::Mismatch, name, format!("{name} is in {zone}, the start in {own}"))
                    .hint("give it in the zone of the start, or in UTC with a Z at its end"),
            );
        }
        for text in text.split(',').map(str::trim) {
            let moment = match moment(text) {
                Ok(moment) => moment,
                Err(message) => {
                    problems.push(Problem::syntax("icalendar", name, message).hint("such as 20270101T080000"));
                    continue;
                }
            };
            let whole_day = matches!(self.start, Some(DateOrTime::Day(_)));
            match (name, moment) {
                ("RDATE", DateOrTime::Day(_)) if !whole_day => problems.push(
                    Problem::new(Code::Mismatch, name, format!("`{text}` is a date, but the start has a time"))
                        .param("value", text.to_string())
                        .hint(format!("such as {text}T080000")),
                ),
                (_, DateOrTime::Local(_) | DateOrTime::Utc(_)) if whole_day => problems.push(
                    Problem::new(Code::Mismatch, name, format!("`{text}` has a time, but the start is a date"))
                        .param("value", text.to_string())
                        .hint("leave the time out"),
                ),
                ("RDATE", moment) => self.dates.push(moment),
                (_, moment) => self.exceptions.push(moment),
            }
        }
    }

    /// The schedule, if there are no problems.
    pub(super) fn finish(mut self, mut problems: Vec<Problem>) -> Result<Schedule, Vec<Problem>> {
        let whole_day = matches!(self.start, Some(DateOrTime::Day(_)));
        let start = match self.start {
            Some(DateOrTime::Day(day)) => Some(day * DAY),
            Some(DateOrTime::Local(local)) => Some(local),
            _ => None,
        };
        if start.is_none() && problems.is_empty() {
            problems.push(
                Problem::new(Code::Required, "DTSTART", "the start is missing")
                    .hint("such as DTSTART;TZID=Europe/Vienna:20270101T080000"),
            );
        }
        if let (Some(rule), Some(_)) = (&self.rule, start) {
            rule::check_until(rule, whole_day, &mut problems);
            if whole_day && rule.frequency < Frequency::Daily {
                problems.push(
                    Problem::new(
                        Code::ConflictingMembers,
                        "RRULE.FREQ",
                        "the start is a date, so it cannot recur within a day",
                    )
                    .hint("give the start a time, or use FREQ=DAILY"),
                );
            }
        }
        for (name, list) in [("RDATE", &mut self.dates), ("EXDATE", &mut self.exceptions)] {
            list.sort_unstable();
            list.dedup();
            if list.len() > DATES_MAX {
                problems.push(
                    Problem::new(Code::TooMany, name, format!("{name} has more than {DATES_MAX} dates"))
                        .param("limit", DATES_MAX),
                );
            }
        }
        let (Some(start), Some(zone), true) = (start, self.zone, problems.is_empty()) else { return Err(problems) };
        let mut schedule = Schedule {
            start,
            whole_day,
            floating: self.floating,
            zone,
            rule: self.rule.map(Box::new),
            last: None,
            dates: self.dates,
            exceptions: self.exceptions,
            gap: self.gap,
            fold: self.fold,
        };
        schedule.count().map_err(|problem| vec![problem])?;
        Ok(schedule)
    }
}

impl fmt::Display for Schedule {
    /// The lines that [`Schedule::parse`] reads, in canonical form, not folded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.whole_day, self.zone()) {
            (true, _) if self.floating => {
                write!(f, "DTSTART;VALUE=DATE:{}", DateOrTime::Day(self.start.div_euclid(DAY)))?
            }
            (false, _) if self.floating => write!(f, "DTSTART:{}", DateOrTime::Local(self.start))?,
            (true, zone) => {
                write!(f, "DTSTART;VALUE=DATE;TZID={zone}:{}", DateOrTime::Day(self.start.div_euclid(DAY)))?
            }
            (false, "UTC") => write!(f, "DTSTART:{}", DateOrTime::Utc(self.start))?,
            (false, zone) => write!(f, "DTSTART;TZID={zone}:{}", DateOrTime::Local(self.start))?,
        }
        if let Some(rule) = &self.rule {
            write!(f, "\nRRULE:{rule}")?;
        }
        for (name, list) in [("RDATE", &self.dates), ("EXDATE", &self.exceptions)] {
            let mut separator = format!("\n{name}:");
            for moment in list {
                write!(f, "{separator}{moment}")?;
                ",".clone_into(&mut separator);
            }
        }
        if self.gap == GapPolicy::Skip {
            f.write_str("\nX-TOCSIN-GAP:SKIP")?;
        }
        if self.fold == FoldPolicy::Both {
            f.write_str("\nX-TOCSIN-FOLD:BOTH")?;
        }
        Ok(())
    }
}
