//! Samples of counters of the last hour, in memory.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tocsin_model::time::Timestamp;
use tocsin_store::journal::{Backlog, Totals};

/// Interval of the samples.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Number of samples that are kept: an hour, and one before it.
const SAMPLES_MAX: usize = 361;
/// Most time between the samples of an increase. A longer gap has no value.
const GAP_MAX: Duration = Duration::from_secs(60);

/// Counters at one time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub at: Timestamp,
    pub backlog: Backlog,
    pub totals: Totals,
    /// Least headroom of a role or resource, as a factor.
    pub headroom: Option<f64>,
    /// Utilisation of the busiest resource.
    pub busiest: Option<f64>,
}

/// Ring of samples, oldest first.
#[derive(Debug, Default)]
pub(crate) struct SampleRing(Mutex<VecDeque<Sample>>);

impl SampleRing {
    /// Adds a sample. If the clock went back, later samples are dropped.
    pub fn record(&self, sample: Sample) {
        let mut samples = self.0.lock();
        while samples.back().is_some_and(|last| last.at >= sample.at) {
            samples.pop_back();
        }
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// Mean of a gauge over the samples after `from` and up to `to`; `None` without any.
    pub fn mean(&self, from: Timestamp, to: Timestamp, gauge: fn(&Sample) -> Option<f64>) -> Option<f64> {
        let samples = self.0.lock();
        let start = samples.partition_point(|sample| sample.at <= from);
        let values = samples.range(start..).take_while(|sample| sample.at <= to).filter_map(gauge);
        let (mut sum, mut count) = (0.0, 0u32);
        for value in values {
            sum += value;
            count += 1;
        }
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Increase of a total between the last samples up to `from` and up to `to`; `None` without both.
    pub fn increase(&self, from: Timestamp, to: Timestamp, total: fn(&Totals) -> u64) -> Option<f64> {
        let samples = self.0.lock();
        let before = samples.partition_point(|sample| sample.at <= from).checked_sub(1)?;
        let last = samples.partition_point(|sample| sample.at <= to).checked_sub(1)?;
        let (before, last) = (samples.get(before)?, samples.get(last)?);
        let is_close = from.since(before.at) <= GAP_MAX && last.at > from;
        is_close.then(|| total(&last.totals).saturating_sub(total(&before.totals)) as f64)
    }
}

const _: () = assert!(SAMPLES_MAX as u64 == 3_600 / SAMPLE_EVERY.as_secs() + 1);

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: i64, events: u64, waiting: u64) -> Sample {
        let backlog = Backlog { events: waiting, ..Backlog::default() };
        let totals = Totals { events, ..Totals::default() };
        Sample { at: at(seconds), backlog, totals, headroom: None, busiest: None }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    #[test]
    fn values_are_of_the_samples_in_an_interval() {
        let ring = SampleRing::default();
        for (seconds, events, waiting) in [(0, 5, 2), (10, 9, 4), (20, 9, 0), (90, 30, 7)] {
            ring.record(sample(seconds, events, waiting));
        }
        let increase = |from, to| ring.increase(at(from), at(to), |totals| totals.events);
        assert_eq!(increase(0, 10), Some(4.0));
        assert_eq!(increase(10, 20), Some(0.0));
        assert_eq!(increase(-10, 0), None, "there is no sample before it");
        assert_eq!(increase(30, 40), None, "there is no sample in it");
        assert_eq!(increase(80, 90), Some(21.0), "since the last sample");
        assert_eq!(increase(85, 95), None, "the last sample before it is too old");
        let mean = |from, to| ring.mean(at(from), at(to), |found| Some(found.backlog.events as f64));
        assert_eq!(mean(0, 20), Some(2.0));
        assert_eq!(mean(20, 80), None);
    }

    #[test]
    fn the_ring_is_bounded_and_follows_the_clock() {
        let ring = SampleRing::default();
        for second in 0..1_000 {
            ring.record(sample(second * 10, second as u64, 1));
        }
        assert_eq!(ring.0.lock().len(), SAMPLES_MAX);
        ring.record(sample(9_000, 7, 1));
        assert_eq!(ring.0.lock().back().map(|last| last.at), Some(at(9_000)));
    }
}
