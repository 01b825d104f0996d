//! Latency percentiles: lock-free histograms with logarithmic buckets.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tocsin_model::duration_buckets::{STEPS, bucket_of, upper_end};

/// Longer durations than about twelve days count as that.
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
        let bucket = usize::from(bucket_of(micros)).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(count, Ordering::Relaxed);
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
            found.map_or(Duration::ZERO, |bucket| Duration::from_micros(upper_end(bucket as u16)))
        };
        if count == 0 {
            return Percentiles::default();
        }
        Percentiles { count, p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1.0) }
    }
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
