//! Expands a rule into wall-clock times. Finds the first candidate from any time on, and the n-th from the start,
//! without iterating from the start. Does not use zones.
//!
//! A rule repeats in periods: years, weeks, single seconds. Periods are numbered, so the period of a time is found by
//! arithmetic. Within a period, candidates are days (or for the short frequencies the one hour, minute or second)
//! times times of day. That product is never expanded; its n-th element is computed. Work is bounded by the days from
//! the given time to the year 9999. The worst case is a rule that never occurs: about three million steps of some
//! nanoseconds.

use super::{
    calendar::{DAY, Day, LOCAL_MAX, Local, date_of, day_of, month_length, week_year_of, week_year_start, weekday},
    rule::{Frequency, Rule, Signed, YearDays},
};

/// Maximum steps of a search. Each step inspects one period, day or unit of time. No rule needs so many:
/// this guards against bugs, not against rules.
pub(super) const STEPS_MAX: u64 = 8_000_000;

/// Occurrences that are counted one by one; larger counts go period by period.
const COUNT_ONE_BY_ONE: u64 = 1_000;

/// Times of day as a product of hours, minutes and seconds.
#[derive(Debug, Clone, Copy)]
struct Times {
    hours: u64,
    minutes: u64,
    seconds: u64,
}

impl Times {
    fn len(self) -> usize {
        (self.hours.count_ones() * self.minutes.count_ones() * self.seconds.count_ones()) as usize
    }

    /// Number of times before this second of the day.
    fn rank(self, second: i64) -> usize {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let below = |set: u64, bit: i64| (set & ((1 << bit) - 1)).count_ones();
        let has = |set: u64, bit: i64| set >> bit & 1 == 1;
        let mut rank = below(self.hours, hour) * self.minutes.count_ones() * self.seconds.count_ones();
        if has(self.hours, hour) {
            rank += below(self.minutes, minute) * self.seconds.count_ones();
            if has(self.minutes, minute) {
                rank += below(self.seconds, second);
            }
        }
        rank as usize
    }

    /// The time with this many before it, as a second of the day.
    fn nth(self, index: usize) -> i64 {
        let (minutes, seconds) = (self.minutes.count_ones() as usize, self.seconds.count_ones() as usize);
        nth_bit(self.hours, index / (minutes * seconds)) * 3_600
            + nth_bit(self.minutes, index / seconds % minutes) * 60
            + nth_bit(self.seconds, index % seconds)
    }
}

fn nth_bit(mut set: u64, index: usize) -> i64 {
    for _ in 0..index {
        set &= set - 1;
    }
    i64::from(set.trailing_zeros())
}

const ALL_HOURS: u64 = (1 << 24) - 1;
const ALL_SIXTY: u64 = (1 << 60) - 1;

/// A rule completed from its start, and the buffers of a search.
pub(super) struct Expansion<'r> {
    frequency: Frequency,
    interval: i64,
    start: Local,
    end: Local,
    week_start: u32,
    months: u64,
    month_days: Signed,
    year_days: Option<&'r YearDays>,
    week_numbers: Signed,
    weekdays: u8,
    ordinals: Option<&'r [Signed; 7]>,
    ordinals_in_month: bool,
    positions: &'r [i16],
    /// For days and longer all times of day; for hours and less the units of the day.
    times: Times,
    /// Times within one hour, minute or second.
    unit_times: Times,
    /// Seconds of the period for hours and less, else of a day.
    unit: i64,
    /// The number of the first period; all others are whole intervals after it.
    base: i64,

    /// In the current period: starts of its days, or of its unit.
    bases: Vec<i64>,
    /// The period whose days `bases` holds.
    filled: Option<i64>,
    /// Indexes selected by `BYSETPOS`, ascending, for periods of `selected_of` candidates.
    selected: Vec<usize>,
    selected_of: usize,
    /// For hours and less: the number of matching units of a day, by the phase of the interval at its midnight.
    phases: Vec<u32>,
    /// Steps taken since the last search began.
    pub(super) steps: u64,
}

impl<'r> Expansion<'r> {
    /// Candidates from `start` to `end`, both included. For a `whole_day` start the parts that name times are ignored.
    pub(super) fn new(rule: &'r Rule, start: Local, end: Local, whole_day: bool) -> Self {
        use Frequency::{Daily, Hourly, Minutely, Monthly, Secondly, Weekly, Yearly};
        let frequency = rule.frequency;
        let start_day = start.div_euclid(DAY);
        let second = start.rem_euclid(DAY);
        let (_, month, day) = date_of(start_day);

        // Absent parts of the rule come from the start.
        let (mut months, mut month_days, mut weekdays) = (rule.months, rule.month_days, rule.weekdays);
        let days_named = rule.names_weekdays() || rule.year_days.is_some() || !rule.week_numbers.is_empty();
        match frequency {
            Yearly if days_named => {
                let weeks_only = !rule.names_weekdays() && rule.year_days.is_none() && month_days.is_empty();
                if weeks_only {
                    weekdays = 1 << weekday(start_day);
                }
            }
            Yearly => {
                if months == 0 {
                    months = 1 << month;
                }
                if month_days.is_empty() {
                    month_days = Signed::single(day);
                }
            }
            Monthly if !days_named && month_days.is_empty() => month_days = Signed::single(day),
            Weekly if !rule.names_weekdays() => weekdays = 1 << weekday(start_day),
            _ => {}
        }
        let part = |given: u64, from_start: i64| if given == 0 || whole_day { 1 << from_start } else { given };
        let given_or_all = |given: u64, all: u64| if given == 0 { all } else { given };
        let seconds = part(rule.seconds, second % 60);
        let minutes = part(rule.minutes, second / 60 % 60);
        let hours = part(rule.hours, second / 3_600);
        let (times, unit_times, unit) = match frequency {
            Secondly => (
                Times {
                    hours: given_or_all(rule.hours, ALL_HOURS),
                    minutes: given_or_all(rule.minutes, ALL_SIXTY),
                    seconds: given_or_all(rule.seconds, ALL_SIXTY),
                },
                Times { hours: 1, minutes: 1, seconds: 1 },
                1,
            ),
            Minutely => (
                Times {
                    hours: given_or_all(rule.hours, ALL_HOURS),
                    minutes: given_or_all(rule.minutes, ALL_SIXTY),
                    seconds: 1,
                },
                Times { hours: 1, minutes: 1, seconds },
                60,
            ),
            Hourly => (
                Times { hours: given_or_all(rule.hours, ALL_HOURS), minutes: 1, seconds: 1 },
                Times { hours: 1, minutes, seconds },
                3_600,
            ),
            Daily | Weekly | Monthly | Yearly => {
                (Times { hours, minutes, seconds }, Times { hours, minutes, seconds }, DAY)
            }
        };
        let mut expansion = Expansion {
            frequency,
            interval: i64::from(rule.interval),
            start,
            end: end.min(LOCAL_MAX),
            week_start: rule.week_start,
            months,
            month_days,
            year_days: rule.year_days.as_deref(),
            week_numbers: rule.week_numbers,
            weekdays,
            ordinals: rule.ordinals.as_deref(),
            ordinals_in_month: frequency == Monthly || rule.months != 0,
            positions: &rule.positions,
            times,
            unit_times,
            unit,
            base: 0,
            bases: Vec::new(),
            filled: None,
            selected: Vec::new(),
            selected_of: usize::MAX,
            phases: Vec::new(),
            steps: 0,
        };
        expansion.base = expansion.first_period();
        expansion
    }

    /// Limits the search to `end`.
    pub(super) fn end_by(&mut self, end: Local) {
        self.end = self.end.min(end);
    }

    /// The first candidate at or after `from`.
    pub(super) fn next(&mut self, from: Local) -> Option<Local> {
        self.steps = 0;
        let from = from.max(self.start);
        let found = if self.unit < DAY { self.next_in_units(from) } else { self.next_in_periods(from) };
        found.filter(|local| *local <= self.end)
    }

    /// The `count`th candidate from the start, where 1 is the first; `None` if there are fewer.
    pub(super) fn nth(&mut self, count: u64) -> Option<Local> {
        if count <= COUNT_ONE_BY_ONE {
            let mut last = None;
            for _ in 0..count {
                last = Some(self.next(last.map_or(self.start, |last| last + 1))?);
            }
            return last;
        }
        self.steps = 0;
        let found = if self.unit < DAY { self.nth_in_units(count) } else { self.nth_in_periods(count) };
        found.filter(|local| *local <= self.end)
    }

    fn step(&mut self) -> Option<()> {
        self.steps += 1;
        (self.steps <= STEPS_MAX).then_some(())
    }

    // Periods: days, weeks, months and years.

    fn first_period(&self) -> i64 {
        if self.unit < DAY {
            return self.start.div_euclid(self.unit);
        }
        let mut day = self.start.div_euclid(DAY);
        if self.frequency == Frequency::Yearly && !self.week_numbers.is_empty() && self.weekdays != 0 {
            // Intervals count from the week year of the first day, from the start on, that is one of the weekdays.
            while self.weekdays >> weekday(day) & 1 == 0 {
                day += 1;
            }
        }
        self.period_of(day)
    }

    fn period_of(&self, day: Day) -> i64 {
        match self.frequency {
            Frequency::Yearly if !self.week_numbers.is_empty() => week_year_of(day, self.week_start),
            Frequency::Yearly => date_of(day).0,
            Frequency::Monthly => {
                let (year, month, _) = date_of(day);
                year * 12 + i64::from(month) - 1
            }
            Frequency::Weekly => (day + 3 - i64::from(self.week_start)).div_euclid(7),
            _ => day,
        }
    }

    fn period_start(&self, period: i64) -> Day {
        match self.frequency {
            Frequency::Yearly if !self.week_numbers.is_empty() => week_year_start(period, self.week_start),
            Frequency::Yearly => day_of(period, 1, 1),
            Frequency::Monthly => day_of(period.div_euclid(12), period.rem_euclid(12) as u32 + 1, 1),
            Frequency::Weekly => period * 7 - 3 + i64::from(self.week_start),
            _ => period,
        }
    }

    /// The first period from `period` on that is whole intervals after the first one.
    fn align(&self, period: i64) -> i64 {
        period.max(self.base) + (self.base - period.max(self.base)).rem_euclid(self.interval)
    }

    fn next_in_periods(&mut self, from: Local) -> Option<Local> {
        let mut period = self.align(self.period_of(from.div_euclid(DAY)));
        loop {
            self.step()?;
            let start = self.period_start(period);
            if start * DAY > self.end {
                return None;
            }
            if let Some(later) = self.month_after(start) {
                period = self.align(self.period_of(later));
                continue;
            }
            self.fill(period, start)?;
            if let Some(found) = self.first_from(from) {
                return Some(found);
            }
            period += self.interval;
        }
    }

    /// For days and months in a month that `BYMONTH` leaves out: the first day of the next one it names.
    fn month_after(&self, day: Day) -> Option<Day> {
        if self.months == 0 || matches!(self.frequency, Frequency::Yearly | Frequency::Weekly) {
            return None;
        }
        let (mut year, mut month, _) = date_of(day);
        if self.months >> month & 1 == 1 {
            return None;
        }
        while self.months >> month & 1 == 0 {
            (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
        }
        Some(day_of(year, month, 1))
    }

    /// Fills `bases` with the days of a period.
    fn fill(&mut self, period: i64, start: Day) -> Option<()> {
        if self.filled == Some(period) {
            return Some(());
        }
        self.bases.clear();
        match self.frequency {
            Frequency::Yearly if !self.week_numbers.is_empty() => {
                let weeks = ((self.period_start(period + 1) - start) / 7) as u32;
                for week in 1..=weeks {
                    self.step()?;
                    if self.week_numbers.contains(week, weeks) {
                        let first = start + i64::from(week - 1) * 7;
                        self.fill_days(first, first + 7)?;
                    }
                }
            }
            Frequency::Yearly => {
                for month in 1..=12 {
                    if self.months == 0 || self.months >> month & 1 == 1 {
                        let first = day_of(period, month, 1);
                        self.fill_days(first, first + i64::from(month_length(period, month)))?;
                    }
                }
            }
            Frequency::Monthly => {
                let (year, month, _) = date_of(start);
                self.fill_days(start, start + i64::from(month_length(year, month)))?;
            }
            Frequency::Weekly => self.fill_days(start, start + 7)?,
            _ => self.fill_days(start, start + 1)?,
        }
        self.filled = Some(period);
        Some(())
    }

    fn fill_days(&mut self, first: Day, end: Day) -> Option<()> {
        for day in first..end {
            self.step()?;
            if self.day_counts(day) {
                self.bases.push(day * DAY);
            }
        }
        Some(())
    }

    /// Whether a day satisfies every part about days; week numbers are left to `fill`.
    fn day_counts(&self, day: Day) -> bool {
        if self.weekdays != 0 && self.ordinals.is_none() && self.weekdays >> weekday(day) & 1 == 0 {
            return false;
        }
        let (year, month, month_day) = date_of(day);
        if self.months != 0 && self.months >> month & 1 == 0 {
            return false;
        }
        if !self.month_days.is_empty() && !self.month_days.contains(month_day, month_length(year, month)) {
            return false;
        }
        if let Some(year_days) = self.year_days {
            let first = day_of(year, 1, 1);
            if !year_days.contains((day - first) as u32 + 1, (day_of(year + 1, 1, 1) - first) as u32) {
                return false;
            }
        }
        let Some(ordinals) = self.ordinals else { return true };
        let weekday = weekday(day);
        if self.weekdays >> weekday & 1 == 1 {
            return true;
        }
        let (place, length) = if self.ordinals_in_month {
            (month_day - 1, month_length(year, month))
        } else {
            let first = day_of(year, 1, 1);
            ((day - first) as u32, (day_of(year + 1, 1, 1) - first) as u32)
        };
        let (before, after) = (place / 7, (length - 1 - place) / 7);
        ordinals[weekday as usize].contains(before + 1, before + 1 + after)
    }

    // The candidates of the current period: its bases times its times of day, in order.

    fn len(&self) -> usize {
        self.bases.len() * self.unit_times.len()
    }

    fn value(&self, index: usize) -> Local {
        self.bases[index / self.unit_times.len()] + self.unit_times.nth(index % self.unit_times.len())
    }

    /// Number of candidates before `from`.
    fn rank(&self, from: Local) -> usize {
        let index = self.bases.partition_point(|base| base + self.unit <= from);
        let within = match self.bases.get(index) {
            Some(base) if *base < from => self.unit_times.rank(from - base),
            _ => 0,
        };
        index * self.unit_times.len() + within
    }

    /// Applies `BYSETPOS` to a period of this many candidates.
    fn select(&mut self, len: usize) {
        if self.selected_of == len {
            return;
        }
        self.selected.clear();
        for position in self.positions {
            let distance = usize::from(position.unsigned_abs());
            if distance <= len {
                self.selected.push(if *position > 0 { distance - 1 } else { len - distance });
            }
        }
        self.selected.sort_unstable();
        self.selected.dedup();
        self.selected_of = len;
    }

    fn first_from(&mut self, from: Local) -> Option<Local> {
        let len = self.len();
        let rank = self.rank(from);
        if self.positions.is_empty() {
            return (rank < len).then(|| self.value(rank));
        }
        self.select(len);
        let index = self.selected.partition_point(|selected| *selected < rank);
        self.selected.get(index).map(|selected| self.value(*selected))
    }

    /// The `count`th candidate of the current period from `from` on, or their number.
    fn nth_from(&mut self, from: Local, count: u64) -> Result<Local, u64> {
        let len = self.len();
        let rank = self.rank(from);
        if self.positions.is_empty() {
            let there = (len - rank) as u64;
            return if count <= there { Ok(self.value(rank + count as usize - 1)) } else { Err(there) };
        }
        self.select(len);
        let index = self.selected.partition_point(|selected| *selected < rank);
        let there = (self.selected.len() - index) as u64;
        if count <= there { Ok(self.value(self.selected[index + count as usize - 1])) } else { Err(there) }
    }

    fn nth_in_periods(&mut self, mut count: u64) -> Option<Local> {
        let mut period = self.base;
        loop {
            self.step()?;
            let start = self.period_start(period);
            if start * DAY > self.end {
                return None;
            }
            if let Some(later) = self.month_after(start) {
                period = self.align(self.period_of(later));
                continue;
            }
            self.fill(period, start)?;
            match self.nth_from(self.start, count) {
                Ok(found) => return Some(found),
                Err(there) => count -= there,
            }
            period += self.interval;
        }
    }

    // Units: hours, minutes and seconds, numbered through since 1970.

    fn units_per_day(&self) -> i64 {
        DAY / self.unit
    }

    fn next_in_units(&mut self, from: Local) -> Option<Local> {
        let mut unit = self.align(from.div_euclid(self.unit));
        let per_day = self.units_per_day();
        let first_day = unit.div_euclid(per_day);
        loop {
            self.step()?;
            if unit * self.unit > self.end {
                return None;
            }
            let day = unit.div_euclid(per_day);
            if !self.day_counts(day) {
                unit = self.align(self.month_after(day).unwrap_or(day + 1) * per_day);
                continue;
            }
            // After a day without a candidate, search by days only if the interval meets one of their times at all.
            if day > first_day + 1 && self.interval <= per_day && self.units_on(day) == 0 {
                unit = self.align((day + 1) * per_day);
                continue;
            }
            let second = (unit - day * per_day) * self.unit;
            let rank = self.times.rank(second);
            if rank >= self.times.len() {
                unit = self.align((day + 1) * per_day);
                continue;
            }
            let counting = day * per_day + self.times.nth(rank) / self.unit;
            if counting > unit {
                unit = self.align(counting);
                continue;
            }
            self.bases.clear();
            self.bases.push(unit * self.unit);
            if let Some(found) = self.first_from(from) {
                return Some(found);
            }
            if self.candidates_per_unit() == 0 {
                return None;
            }
            unit += self.interval;
        }
    }

    /// Number of candidates of each unit; the same for all of them.
    fn candidates_per_unit(&mut self) -> u64 {
        if self.positions.is_empty() {
            return self.unit_times.len() as u64;
        }
        self.select(self.unit_times.len());
        self.selected.len() as u64
    }

    /// Number of matching units of a day, for intervals up to a day. Times of day fall into classes by the phase of
    /// the interval, so that one pass over a day answers for all days.
    fn units_on(&mut self, day: Day) -> u32 {
        let per_day = self.units_per_day();
        if self.phases.is_empty() {
            self.phases = vec![0; self.interval as usize];
            for index in 0..self.times.len() {
                let unit = self.times.nth(index) / self.unit;
                self.phases[(unit % self.interval) as usize] += 1;
            }
            self.steps += self.times.len() as u64;
        }
        self.phases[(self.base - day * per_day).rem_euclid(self.interval) as usize]
    }

    fn nth_in_units(&mut self, mut count: u64) -> Option<Local> {
        let per_unit = self.candidates_per_unit();
        if per_unit == 0 {
            return None;
        }
        let per_day = self.units_per_day();
        let mut day = self.start.div_euclid(DAY);
        let mut first = true;
        loop {
            self.step()?;
            if day * DAY > self.end {
                return None;
            }
            if !self.day_counts(day) {
                day = self.month_after(day).unwrap_or(day + 1);
                first = false;
                continue;
            }
            // Whole days are counted at once; the first, the last, and those of intervals beyond a day unit by unit.
            let there = if self.interval <= per_day { u64::from(self.units_on(day)) * per_unit } else { 0 };
            if !first && self.interval <= per_day && there < count {
                count -= there;
                day += 1;
                continue;
            }
            let mut unit = self.align(day * per_day);
            while unit < (day + 1) * per_day {
                self.step()?;
                let second = (unit - day * per_day) * self.unit;
                let rank = self.times.rank(second);
                if rank < self.times.len() && self.times.nth(rank) == second {
                    self.bases.clear();
                    self.bases.push(unit * self.unit);
                    match self.nth_from(self.start, count) {
                        Ok(found) => return Some(found),
                        Err(there) => count -= there,
                    }
                }
                unit += self.interval;
            }
            day = if self.interval <= per_day { day + 1 } else { unit.div_euclid(per_day) };
            first = false;
        }
    }
}
