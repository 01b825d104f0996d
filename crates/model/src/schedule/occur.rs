//! Converts wall-clock times into instants: iterates over the stretches of constant offset of a zone, and applies the
//! gap and fold policies where clocks change.
//!
//! Within a stretch an instant and its wall-clock time differ by the offset, so candidates come in order. Its
//! beginning is special in two cases. After a *gap* (clocks were put forward) the skipped times are read with the
//! offset before and merged with the ordinary ones. In a *fold* (clocks were put back) wall clocks repeat times that
//! were shown already.

use jiff::tz::TimeZone;

use super::{
    FoldPolicy, GapPolicy, Occurrence, Reading, Schedule,
    calendar::{DAY, LOCAL_MAX, Local, civil_of},
    expand::Expansion,
    rule::{self, End},
};
use crate::{schedule::date_or_time::DateOrTime, time::Timestamp};

/// Largest offset from UTC; the limit of `jiff`, in seconds. Real zones stay within 16 hours.
pub(super) const OFFSET_MAX: i64 = 26 * 3_600;
/// Largest effect of a clock change, in seconds.
const CHANGE_MAX: i64 = 2 * OFFSET_MAX;
/// Most clock changes inspected for one occurrence, or to count a rule whose occurrences in gaps do not count.
const CHANGES_MAX: u32 = 100_000;
/// Most occurrences in gaps of a rule with a count.
const IN_GAPS_MAX: u32 = 1_000_000;

/// A stretch of constant offset, in seconds of UTC: `start..end`.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    start: i64,
    end: i64,
    offset: i64,
    /// The offset just before the start.
    offset_before: i64,
}

fn instant(second: i64) -> jiff::Timestamp {
    let (min, max) = (jiff::Timestamp::MIN.as_second(), jiff::Timestamp::MAX.as_second());
    jiff::Timestamp::from_second(second.clamp(min, max)).expect("clamped to the range")
}

fn offset_at(zone: &TimeZone, second: i64) -> i64 {
    i64::from(zone.to_offset(instant(second)).seconds())
}

fn stretch_at(zone: &TimeZone, second: i64) -> Stretch {
    let start = zone.preceding(instant(second.saturating_add(1))).next().map(|change| change.timestamp().as_second());
    let end = zone.following(instant(second)).next().map_or(i64::MAX, |change| change.timestamp().as_second());
    let offset = offset_at(zone, second);
    let offset_before = match start {
        Some(start) if second - start < CHANGE_MAX => offset_at(zone, start - 1),
        _ => offset,
    };
    Stretch { start: start.unwrap_or(i64::MIN), end, offset, offset_before }
}

/// Iterator over the occurrences of a schedule from an instant on, strictly ascending. Made by
/// [`Schedule::occurrences_from`].
pub struct Occurrences<'s> {
    schedule: &'s Schedule,
    zone: TimeZone,
    rule: Option<Expansion<'s>>,
    until: i64,
    /// The next second of UTC to inspect.
    cursor: i64,
    stretch: Option<Stretch>,
    /// The next occurrence of the rule, found but not returned yet.
    found: Option<Occurrence>,
    /// Occurrences that are not of the rule: `RDATE`, and the start if there is no rule. Descending.
    explicit: Vec<Occurrence>,
    pub(super) steps: u64,
}

impl<'s> Occurrences<'s> {
    /// Occurrences at or after this second of UTC.
    pub(super) fn new(schedule: &'s Schedule, zone: TimeZone, from: i64) -> Self {
        let end = schedule.last_in(&zone).unwrap_or(i64::MIN);
        let rule = schedule.rule.as_deref();
        let mut explicit: Vec<Occurrence> = schedule
            .dates
            .iter()
            .copied()
            .chain(rule.is_none().then_some(DateOrTime::Local(schedule.start)))
            .filter_map(|moment| resolve(&zone, moment))
            .filter(|occurrence| occurrence.at >= Timestamp(from.saturating_mul(1_000_000)))
            .collect();
        explicit.sort_unstable_by(|left, right| right.at.cmp(&left.at).then(right.reading.cmp(&left.reading)));
        let until = match rule.map(|rule| rule.end) {
            Some(End::Until(DateOrTime::Utc(second))) => second,
            _ => i64::MAX,
        };
        Occurrences {
            schedule,
            zone,
            rule: rule.map(|rule| Expansion::new(rule, schedule.start, end, schedule.whole_day)),
            until,
            cursor: from.max(schedule.start - OFFSET_MAX),
            stretch: None,
            found: None,
            explicit,
            steps: 0,
        }
    }

    /// Occurrences before an instant, so that a sparse rule is not searched beyond it.
    pub(super) fn before(mut self, end: Timestamp) -> impl Iterator<Item = Occurrence> {
        if let Some(rule) = &mut self.rule {
            rule.end_by((end.0.div_euclid(1_000_000) + 1).saturating_add(OFFSET_MAX));
        }
        self.take_while(move |occurrence| occurrence.at < end)
    }

    /// The rule's next occurrence from the cursor on; moves the cursor behind it.
    fn next_of_rule(&mut self) -> Option<Occurrence> {
        let expansion = self.rule.as_mut()?;
        for _ in 0..CHANGES_MAX {
            if self.cursor > jiff::Timestamp::MAX.as_second() {
                return None;
            }
            let stretch = match self.stretch {
                Some(stretch) if (stretch.start..stretch.end).contains(&self.cursor) => stretch,
                _ => *self.stretch.insert(stretch_at(&self.zone, self.cursor)),
            };
            let shift = stretch.offset - stretch.offset_before;
            let mut seek = |from: Local| {
                let found = expansion.next(from);
                self.steps += expansion.steps;
                found
            };
            // Just after a gap, the skipped times are merged with the others.
            let caught_up = stretch.start.saturating_add(shift).min(stretch.end);
            if shift > 0 && self.cursor < caught_up && self.schedule.gap == GapPolicy::ShiftForward {
                let plain = seek(self.cursor + stretch.offset).map(|local| (local - stretch.offset, 0, local));
                let shifted =
                    seek(self.cursor + stretch.offset_before).map(|local| (local - stretch.offset_before, 1, local));
                let Some((second, kind, local)) =
                    plain.into_iter().chain(shifted).filter(|(second, _, _)| *second < caught_up).min()
                else {
                    self.cursor = caught_up;
                    continue;
                };
                self.cursor = second + 1;
                let readings = [second + stretch.offset, second + stretch.offset_before];
                if self.schedule.excludes(second, readings) {
                    continue;
                }
                let reading = if kind == 0 { Reading::Plain } else { Reading::Shifted };
                return Some(occurrence(second, local, reading));
            }
            let repeated_until = stretch.start.saturating_sub(shift).min(stretch.end);
            let repeated = shift < 0 && self.cursor < repeated_until;
            if repeated && self.schedule.fold == FoldPolicy::First {
                self.cursor = repeated_until;
                continue;
            }
            let next = seek(self.cursor + stretch.offset).map(|local| (local - stretch.offset, local));
            match next {
                Some((second, local)) if second < stretch.end => {
                    self.cursor = second + 1;
                    // A whole-day exception excludes the whole day, so the search jumps over it.
                    if let Some(day_end) = self.schedule.day_excluded(local) {
                        self.cursor = (day_end - stretch.offset).min(stretch.end).max(self.cursor);
                        continue;
                    }
                    if self.schedule.excludes(second, [local, local]) {
                        continue;
                    }
                    let again = shift < 0 && second < repeated_until;
                    return Some(occurrence(second, local, if again { Reading::Repeated } else { Reading::Plain }));
                }
                // Only a nearby clock change can produce earlier times again.
                None if stretch.end > self.cursor.saturating_add(CHANGE_MAX) => return None,
                Some((_, local)) if stretch.end > self.cursor + CHANGE_MAX => {
                    self.cursor = stretch.end.max(local - CHANGE_MAX);
                }
                _ => self.cursor = stretch.end,
            }
        }
        None
    }
}

impl Iterator for Occurrences<'_> {
    type Item = Occurrence;

    fn next(&mut self) -> Option<Occurrence> {
        if self.found.is_none() {
            self.found = self.next_of_rule();
            if self.found.is_some_and(|found| found.at.0.div_euclid(1_000_000) > self.until) {
                (self.found, self.rule) = (None, None);
            }
        }
        loop {
            let explicit = self.explicit.last().copied();
            match (self.found, explicit) {
                (Some(found), Some(explicit)) if explicit.at == found.at => {
                    self.explicit.pop();
                }
                (found, Some(explicit)) if found.is_none_or(|found| explicit.at < found.at) => {
                    while self.explicit.last().is_some_and(|later| later.at == explicit.at) {
                        self.explicit.pop();
                    }
                    let second = explicit.at.0.div_euclid(1_000_000);
                    let reading = second + offset_at(&self.zone, second);
                    let nominal = super::calendar::local_of(explicit.local);
                    if self.schedule.day_excluded(nominal).is_none()
                        && !self.schedule.excludes(second, [reading, nominal])
                    {
                        return Some(explicit);
                    }
                }
                (found, _) => {
                    self.found = None;
                    return found;
                }
            }
        }
    }
}

fn occurrence(second: i64, local: Local, reading: Reading) -> Occurrence {
    Occurrence { at: Timestamp(second * 1_000_000), local: civil_of(local), reading }
}

/// The occurrence of an explicitly given time (RFC 5545 section 3.3.5): a time that exists twice means the first, one
/// that does not exist is read with the offset before the gap. `None` beyond the end of time.
pub(super) fn resolve(zone: &TimeZone, moment: DateOrTime) -> Option<Occurrence> {
    let local = match moment {
        DateOrTime::Utc(second) => {
            let local = second + offset_at(zone, second);
            return (local <= LOCAL_MAX).then(|| occurrence(second, local, Reading::Plain));
        }
        DateOrTime::Day(day) => day * DAY,
        DateOrTime::Local(local) => local,
    };
    let ambiguous = zone.to_ambiguous_timestamp(civil_of(local));
    let reading = if matches!(ambiguous.offset(), jiff::tz::AmbiguousOffset::Gap { .. }) {
        Reading::Shifted
    } else {
        Reading::Plain
    };
    let second = ambiguous.compatible().ok()?.as_second();
    Some(occurrence(second, local, reading))
}

impl Schedule {
    /// Whether an exception contains this instant, or one of its wall-clock times.
    fn excludes(&self, second: i64, readings: [Local; 2]) -> bool {
        let listed = |moment: DateOrTime| self.exceptions.binary_search(&moment).is_ok();
        !self.exceptions.is_empty()
            && (listed(DateOrTime::Utc(second))
                || readings
                    .iter()
                    .any(|local| listed(DateOrTime::Local(*local)) || listed(DateOrTime::Day(local.div_euclid(DAY)))))
    }

    /// The wall-clock second after a day that an exception excludes.
    fn day_excluded(&self, local: Local) -> Option<Local> {
        let day = local.div_euclid(DAY);
        (!self.exceptions.is_empty() && self.exceptions.binary_search(&DateOrTime::Day(day)).is_ok())
            .then_some((day + 1) * DAY)
    }

    /// The wall-clock second after which the rule has no occurrences; `None` if that takes too long to count.
    pub(super) fn last_in(&self, zone: &TimeZone) -> Option<Local> {
        let Some(rule) = &self.rule else { return Some(LOCAL_MAX) };
        let last = match (rule.end, self.last) {
            (End::Count(_), None) | (End::Never, _) => return Some(LOCAL_MAX),
            (End::Until(_), _) => return Some(rule::until_local(rule, OFFSET_MAX).unwrap_or(LOCAL_MAX)),
            (End::Count(_), Some(last)) if self.gap == GapPolicy::ShiftForward => return Some(last),
            (End::Count(_), Some(last)) => last,
        };
        // Occurrences in gaps do not count: for each of them the rule continues for one more.
        let mut last = last;
        let mut expansion = Expansion::new(rule, self.start, LOCAL_MAX, self.whole_day);
        let mut from = self.start - OFFSET_MAX;
        let mut offset = offset_at(zone, from);
        let mut in_gaps = 0;
        for _ in 0..CHANGES_MAX {
            let Some(change) = zone.following(instant(from)).next() else { return Some(last) };
            from = change.timestamp().as_second();
            let later = i64::from(change.offset().seconds());
            let gap = from + offset..from + later;
            offset = later;
            if gap.start.min(gap.end) > last.saturating_add(CHANGE_MAX) {
                return Some(last);
            }
            let mut missing = 0;
            let mut candidate = expansion.next(gap.start);
            while let Some(local) = candidate.filter(|local| gap.contains(local) && *local <= last) {
                missing += 1;
                candidate = expansion.next(local + 1);
            }
            while missing > 0 {
                in_gaps += 1;
                if in_gaps > IN_GAPS_MAX {
                    return None;
                }
                let Some(local) = expansion.next(last + 1) else { return Some(LOCAL_MAX) };
                last = local;
                missing -= u32::from(!gap.contains(&last));
            }
        }
        None
    }
}
