//! The daily load curve.

use crate::profile::Day;

/// Seconds of a day.
pub const SECONDS: f64 = 86_400.0;

impl Day {
    /// The load factor at a second of the day. Of overlapping peaks, the later one in the profile wins.
    pub fn at(&self, second: f64) -> f64 {
        let covers = |at: f64, lasts: f64| (at..at + lasts).contains(&second);
        let peak = self.peaks.iter().rev().find(|peak| covers(peak.at, peak.lasts.as_secs_f64()));
        peak.map_or_else(|| self.curve[(second / 3_600.0) as usize % 24], |peak| peak.times)
    }

    /// The exact mean factor between two seconds of the day.
    pub fn between(&self, from: f64, to: f64) -> f64 {
        let mut edges = self.edges(from, to);
        edges.push(to);
        let mut begin = from;
        let sum: f64 = edges
            .into_iter()
            .map(|end| {
                let part = self.at((begin + end) / 2.0) * (end - begin);
                begin = end;
                part
            })
            .sum();
        sum / (to - from)
    }

    /// The mean factor of the day.
    pub fn mean(&self) -> f64 {
        self.between(0.0, SECONDS)
    }

    /// The highest factor of the day.
    pub fn max(&self) -> f64 {
        let begins = std::iter::once(0.0).chain(self.edges(0.0, SECONDS));
        begins.map(|begin| self.at(begin)).fold(0.0, f64::max)
    }

    /// The times strictly between two seconds at which the factor may change, in order.
    fn edges(&self, from: f64, to: f64) -> Vec<f64> {
        let hours = (1..24).map(|hour| f64::from(hour) * 3_600.0);
        let peaks = self.peaks.iter().flat_map(|peak| [peak.at, peak.at + peak.lasts.as_secs_f64()]);
        let mut edges: Vec<f64> = hours.chain(peaks).filter(|edge| *edge > from && *edge < to).collect();
        edges.sort_by(f64::total_cmp);
        edges
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::profile::Peak;

    #[test]
    fn a_peak_replaces_the_curve() {
        let mut day = Day::default();
        day.curve[10] = 2.0;
        day.peaks.push(Peak { at: 9.5 * 3_600.0, lasts: Duration::from_secs(3_600), times: 4.0 });
        let check = |hour: f64, expected: f64| assert_eq!(day.at(hour * 3_600.0), expected, "at {hour}");
        check(9.0, 1.0);
        check(9.5, 4.0);
        check(10.25, 4.0);
        check(10.5, 2.0);
        check(11.0, 1.0);
        assert_eq!((day.mean() * 24.0, day.max()), (1.0 * 22.5 + 4.0 + 2.0 * 0.5, 4.0));
        assert_eq!(day.between(9.0 * 3_600.0, 10.0 * 3_600.0), 2.5);
    }
}
