use std::time::Duration;

use tokio::time::Instant;

const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Weight of a failure without any answer: it holds a session for the whole timeout.
const SILENCE_COUNTS: u32 = 4;

/// Circuit breaker of a destination. After consecutive failures it pauses the destination, longer each time; then one
/// message tests whether it works again.
#[derive(Debug, Clone)]
pub(crate) struct Breaker {
    /// Consecutive failures that open the circuit; 0: never.
    enough: u32,
    /// Consecutive failures, those without an answer weighted.
    failures: u32,
    /// Whether the last attempt timed out.
    silent: bool,
    /// Consecutive pauses.
    pauses: u32,
    until: Option<Instant>,
}

/// State of the circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// Closed circuit: as many messages as the concurrency limit allows.
    Open,
    /// Half-open: one message at a time.
    Trial,
    /// Open circuit: no messages before this time.
    Paused(Instant),
}

impl Breaker {
    pub fn new(enough: u32) -> Breaker {
        Breaker { enough, failures: 0, silent: false, pauses: 0, until: None }
    }

    pub fn state(&self, now: Instant) -> BreakerState {
        match self.until {
            None => BreakerState::Open,
            Some(until) if until > now => BreakerState::Paused(until),
            Some(_) => BreakerState::Trial,
        }
    }

    /// The end of the last pause; `None` without one since the last success.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Pauses since the last success.
    #[cfg(test)]
    pub fn pauses(&self) -> u32 {
        self.pauses
    }

    /// Whether the last attempt got no answer. Such an attempt holds a session for the whole timeout, so one at a
    /// time is enough.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// Consecutive failures, weighted.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Records an answer that shows the destination works. Returns whether that ended a half-open state.
    pub fn record_success(&mut self) -> bool {
        let ended = self.until.is_some();
        (self.failures, self.silent, self.pauses, self.until) = (0, false, 0, None);
        ended
    }

    /// Records a failure, with or without (`silent`) an answer. Returns the length of the pause if one begins.
    /// `jitter` is from 0 to 1.
    pub fn fail(&mut self, now: Instant, silent: bool, jitter: f64) -> Option<Duration> {
        self.failures = self.failures.saturating_add(if silent { SILENCE_COUNTS } else { 1 });
        self.silent = silent && self.enough > 0;
        match self.until {
            // Sent before the pause began.
            Some(until) if until > now => return None,
            // The half-open test.
            Some(_) => {}
            None if self.enough == 0 || self.failures < self.enough => return None,
            None => {}
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.pauses.min(10)).min(PAUSE_MAX);
        let pause = pause.mul_f64(0.9 + 0.2 * jitter.clamp(0.0, 1.0));
        self.pauses += 1;
        self.until = Some(now + pause);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_begin_a_pause_that_grows() {
        let (mut breaker, mut now) = (Breaker::new(3), Instant::now());
        assert_eq!(breaker.fail(now, false, 0.5), None);
        assert_eq!(breaker.fail(now, false, 0.5), None);
        assert!(!breaker.record_success(), "an answer resets the count");
        assert_eq!(breaker.fail(now, false, 0.5), None);
        assert_eq!(breaker.fail(now, false, 0.5), None);
        let mut pauses = Vec::new();
        let mut pause = breaker.fail(now, false, 0.5);
        for _ in 0..8 {
            let begun = pause.take().expect("a pause begins");
            pauses.push(begun.as_secs());
            assert_eq!(breaker.state(now), BreakerState::Paused(now + begun));
            assert_eq!(
                breaker.fail(now, true, 0.5),
                None,
                "a failure of an attempt that began before the pause changes nothing"
            );
            now += begun;
            assert_eq!(breaker.state(now), BreakerState::Trial);
            pause = breaker.fail(now, false, 0.5);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        now += Duration::from_secs(300);
        assert!(breaker.record_success(), "the trial ends");
        assert_eq!((breaker.state(now), breaker.failures()), (BreakerState::Open, 0));
    }

    #[test]
    fn silence_counts_fourfold_and_some_never_pause() {
        let (mut breaker, now) = (Breaker::new(20), Instant::now());
        assert!((0..4).all(|_| breaker.fail(now, true, 0.0).is_none()));
        assert_eq!(breaker.fail(now, true, 0.0), Some(Duration::from_millis(4500)));
        let mut never = Breaker::new(0);
        assert!((0..1000).all(|_| never.fail(now, true, 0.0).is_none()));
        assert_eq!(never.state(now), BreakerState::Open);
    }
}
