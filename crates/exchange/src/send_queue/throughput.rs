//! Measured throughput of a send port, and its backlog.

use std::time::Duration;

use tocsin_model::application::Rate;

/// Failures in a row after which a receiver counts as unavailable; its durations are ignored then.
const FAILURES_OF_UNAVAILABLE: u32 = 16;
/// Weight of one leg in the moving averages.
const WEIGHT: f64 = 1.0 / 32.0;

/// Measured throughput of a port, and its backlog.
#[derive(Clone, Default)]
pub(super) struct ThroughputEstimate {
    /// Approximate number of due legs that are not in progress; corrected now and then by a count in the spool.
    pub waiting: u64,
    /// Legs that were added or started since the start.
    pub moves: u64,
    /// Moving averages: seconds per attempt, and concurrent attempts.
    took: Option<f64>,
    busy: f64,
    failures: u32,
    /// Whether the expected wait exceeded its limit and has not fallen below the relief threshold.
    pub is_crowded: bool,
}

impl ThroughputEstimate {
    /// Notes an attempt.
    pub fn note(&mut self, took: Duration, busy: u32, failed: bool) {
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        let (took, busy) = (took.as_secs_f64(), f64::from(busy));
        self.took = Some(match self.took {
            Some(mean) => {
                self.busy += (busy - self.busy) * WEIGHT;
                mean + (took - mean) * WEIGHT
            }
            None => {
                self.busy = busy;
                took
            }
        });
    }

    /// Expected legs per second, if known.
    pub fn per_second(&self, rate: Option<&Rate>) -> Option<f64> {
        let by_rate = rate.map(|rate| f64::from(rate.messages) / rate.per.as_secs_f64().max(1.0));
        if self.failures >= FAILURES_OF_UNAVAILABLE || by_rate == Some(0.0) {
            return None;
        }
        let by_pace = self.took.map(|took| self.busy / took.max(1e-6));
        by_pace.into_iter().chain(by_rate).reduce(f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected throughput (legs per second) of a port, given duration, concurrency and recent failures.
    fn check(took_ms: u64, busy: u32, failed: u32, rate: Option<&str>, expected: Option<f64>) {
        let mut throughput = ThroughputEstimate::default();
        (0..200).for_each(|_| throughput.note(Duration::from_millis(took_ms), busy, false));
        (0..failed).for_each(|_| throughput.note(Duration::from_millis(took_ms), busy, true));
        let rate = rate.map(|text| text.parse::<Rate>().expect("a rate"));
        let found = throughput.per_second(rate.as_ref());
        assert_eq!(found.map(f64::round), expected, "{took_ms} ms, {busy} at a time, {failed} failed, {rate:?}");
    }

    #[test]
    fn throughput_is_known_unless_the_receiver_is_unavailable() {
        check(100, 32, 0, None, Some(320.0));
        check(15_000, 30, 0, None, Some(2.0));
        check(100, 32, 15, None, Some(320.0));
        check(15_000, 32, 16, None, None);
        check(100, 32, 0, Some("7/s"), Some(7.0));
        check(100, 1, 0, Some("600/m"), Some(10.0));
        check(100, 32, 0, Some("0"), None);
        assert_eq!(ThroughputEstimate::default().per_second(None), None, "nothing has left yet");
    }
}
