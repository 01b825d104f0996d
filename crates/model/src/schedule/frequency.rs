//! Frequency of a schedule, for limits.

use std::time::Duration;

use super::{
    Occurrence, Schedule,
    rule::{Frequency, Rule},
};
use crate::time::Timestamp;

/// Most occurrences that are compared.
const LOOKS_MAX: usize = 1_000;
/// Compared time span from the first occurrence on.
const SPAN: Duration = Duration::from_secs(400 * 86_400);

impl Schedule {
    /// The first two successive occurrences that are closer than `least`, among the first 1,000 and within 400 days of the first
    /// one. `None`: there are none. A rule without lists of hours, minutes and seconds costs no look at its occurrences.
    pub fn closer_than(&self, least: Duration) -> Option<(Occurrence, Occurrence)> {
        let rule_interval = self.rule.as_deref().map_or(Duration::MAX, interval_at_least);
        if self.dates.is_empty() && rule_interval >= least {
            return None;
        }
        let mut before: Option<Occurrence> = None;
        let mut end = None;
        for occurrence in self.occurrences_from(Timestamp(i64::MIN)).take(LOOKS_MAX) {
            let end = *end.get_or_insert(occurrence.at + SPAN);
            match before {
                Some(before) if occurrence.at.since(before.at) < least => return Some((before, occurrence)),
                _ if occurrence.at > end => return None,
                _ => before = Some(occurrence),
            }
        }
        None
    }
}

/// A lower bound of the interval between two occurrences of a rule; zero if only its occurrences show it.
fn interval_at_least(rule: &Rule) -> Duration {
    let several = |numbers: u64| numbers.count_ones() > 1;
    let (seconds, several_within) = match rule.frequency {
        Frequency::Secondly => (1, false),
        Frequency::Minutely => (60, several(rule.seconds)),
        Frequency::Hourly => (3_600, several(rule.seconds) || several(rule.minutes)),
        // A day has 23 hours when clocks are put forward.
        Frequency::Daily | Frequency::Weekly | Frequency::Monthly | Frequency::Yearly => {
            let several_within = several(rule.seconds) || several(rule.minutes) || several(rule.hours);
            return if several_within { Duration::ZERO } else { Duration::from_secs(23 * 3_600) };
        }
    };
    if several_within { Duration::ZERO } else { Duration::from_secs(seconds * u64::from(rule.interval)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closer(rule: &str, least: u64) -> Option<Duration> {
        let schedule = Schedule::new("2027-01-04T08:00:00", "Europe/Vienna", Some(rule)).expect("a schedule");
        let (one, other) = schedule.closer_than(Duration::from_secs(least))?;
        Some(other.at.since(one.at))
    }

    #[test]
    fn b39_rules_that_are_due_too_often_are_found() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (rule, found) in [
            ("FREQ=SECONDLY", seconds(1)),
            ("FREQ=SECONDLY;INTERVAL=59", seconds(59)),
            ("FREQ=SECONDLY;INTERVAL=60", None),
            ("FREQ=MINUTELY", None),
            ("FREQ=MINUTELY;BYSECOND=0,30", seconds(30)),
            ("FREQ=HOURLY;BYMINUTE=0,1;BYSECOND=0", None),
            ("FREQ=HOURLY;BYMINUTE=0;BYSECOND=0,1", seconds(1)),
            ("FREQ=DAILY;BYHOUR=8,9", None),
            ("FREQ=DAILY;BYHOUR=8;BYMINUTE=0,1;BYSECOND=58,0", seconds(58)),
            ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=8;BYMINUTE=0;BYSECOND=0,5", seconds(5)),
            ("FREQ=WEEKLY", None),
        ] {
            assert_eq!(closer(rule, 60), found, "{rule}");
        }
        let dates = "DTSTART;TZID=UTC:20270104T080000\nRDATE;TZID=UTC:20270104T080010,20270105T080000";
        let dates = Schedule::parse(dates).expect("a schedule");
        assert!(dates.closer_than(Duration::from_secs(60)).is_some());
        assert!(dates.closer_than(Duration::from_secs(10)).is_none());
    }
}
