//! Latency percentiles: lock-free histograms with logarithmic buckets.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Buckets per doubling: each is about 4 % wide, which is the error of a percentile.
const STEPS: u64 = 16;
const BUCKETS: usize = 40 * STEPS as usize;

/// A histogram of durations from a microsecond to about twelve days.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64; BUCKETS]>,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: Box::new([const { AtomicU64::new(0) }; BUCKETS]) }
    }
}

/// Percentiles of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Percentiles {
    /// Number of durations recorded.
    pub count: u64,
    /// Median.
    pub p50: Duration,
    /// 95th percentile.
    pub p95: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// Maximum.
    pub max: Duration,
}

impl Histogram {
    /// Records one duration.
    pub fn record(&self, duration: Duration) {
        self.record_many(duration, 1);
    }

    /// Records the same duration many times.
    pub fn record_many(&self, duration: Duration, count: u64) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(micros)].fetch_add(count, Ordering::Relaxed);
    }

    /// Percentiles of all recorded durations.
    pub fn percentiles(&self) -> Percentiles {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let at = |fraction: f64| {
            let rank = ((count as f64 * fraction).ceil() as u64).max(1);
            let mut seen = 0;
            let found = counts.iter().position(|bucket| {
                seen += bucket;
                seen >= rank
            });
            found.map_or(Duration::ZERO, |bucket| Duration::from_micros(upper_end(bucket)))
        };
        if count == 0 {
            return Percentiles::default();
        }
        Percentiles { count, p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1.0) }
    }
}

/// Values below STEPS have a bucket each; above, each doubling has STEPS buckets.
fn bucket_of(micros: u64) -> usize {
    if micros < STEPS {
        return micros as usize;
    }
    let doubling = u64::from(micros.ilog2()) - u64::from(STEPS.ilog2());
    let step = (micros >> doubling) - STEPS;
    (((doubling + 1) * STEPS + step) as usize).min(BUCKETS - 1)
}

fn upper_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let doubling = bucket / STEPS - 1;
    ((STEPS + bucket % STEPS + 1) << doubling) - 1
}

/// Latencies of the pipeline since the start of the process.
#[derive(Debug, Default)]
pub struct Latencies {
    /// From the first byte of a submission to its durable acceptance.
    pub accept: Histogram,
    /// From acceptance to the commit of its notification batches, per event batch.
    pub matching: Histogram,
    /// From the hand-over to the receiver's answer, per attempt.
    pub deliver: Histogram,
    /// From the acceptance of the event to the receiver's acknowledgement, per delivered notification.
    pub end_to_end: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        let mut last = 0;
        for micros in 0..200_000u64 {
            let bucket = bucket_of(micros);
            assert!(bucket == last || bucket == last + 1, "{micros}");
            assert!(upper_end(bucket) >= micros && upper_end(bucket) as f64 <= micros as f64 * 1.07 + 1.0, "{micros}");
            last = bucket;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_close() {
        let histogram = Histogram::default();
        for millis in 1..=1000 {
            histogram.record(Duration::from_millis(millis));
        }
        let found = histogram.percentiles();
        assert_eq!(found.count, 1000);
        for (found, expected) in [(found.p50, 500.0), (found.p95, 950.0), (found.p99, 990.0), (found.max, 1000.0)] {
            let ratio = found.as_secs_f64() * 1000.0 / expected;
            assert!((1.0..1.07).contains(&ratio), "{found:?} {expected}");
        }
        assert_eq!(Histogram::default().percentiles(), Percentiles::default());
    }
}
