//! Adaptive concurrency: finds the number of concurrent requests above which throughput no longer grows, up to a
//! maximum.
//!
//! Used for work whose throughput has a saturation point (knee): destinations of messages, and the pool that applies
//! edits of devices. It is pure state; time is an argument. Rate limits by key are in [`rate_limit`].

pub mod rate_limit; // rate limits by key

use std::time::Duration;

use tokio::time::Instant;

/// Initial limit of concurrent requests for an unknown destination.
const START: usize = 5;
/// After this time without requests the knowledge is discarded.
const IDLE_RESET: Duration = Duration::from_secs(60);
/// Minimum number of answers, and minimum duration, of a trial.
const TRIAL_ANSWERS: usize = 64;
const TRIAL_TIME: Duration = Duration::from_millis(40);
/// Below the first latency a higher limit needs no gain; above the second it needs the full gain.
const LATENCY_LOW: Duration = Duration::from_millis(3);
const LATENCY_HIGH: Duration = Duration::from_millis(15);
/// Relative gain required for a doubled limit, proportionally for smaller steps.
const GAIN_REQUIRED: f64 = 0.2;
/// Relative differences that are treated as noise: in trials, and in the short windows of the climb.
const NOISE: f64 = 0.03;
const CLIMB_NOISE: f64 = 0.12;
/// A relative change of the rate from which the destination is considered changed.
const CHANGED: f64 = 0.3;
/// A trial whose rate exceeds the expected maximum by this factor shows that the destination has changed. A smaller
/// difference can mean that the trial ended an overload.
const CHANGED_TRIAL: f64 = 2.0;
/// Maximum number of windows between two trials.
const HOLD_WINDOWS_MAX: u32 = 32;

/// A concurrency limiter that finds its limit by measuring throughput.
///
/// Above the knee a destination has no higher throughput, only higher latency. The throughput in a window with one
/// limit is compared with that of another limit: the limit first doubles, then trials with a quarter more or a fifth
/// less search for the knee, less often once it is found. Only windows in which the limit was fully used count.
/// Failures do not count as throughput, and a destination that asks for less gets half.
#[derive(Debug, Clone)]
pub struct AdaptiveConcurrency {
    limit: usize,
    most: usize,
    fixed: bool,
    mode: Mode,
    /// Number of windows before the next trial.
    hold_windows: u32,
    /// The best rate since the destination last changed.
    best: f64,
    window: Window,
    last: Option<Instant>,
    latency: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    /// Doubling, with the sample at the previous limit.
    Climb(Option<Sample>),
    /// Holding for a number of windows, with the usual sample.
    Hold(u32, Option<Sample>),
    /// Trial with a higher limit, with the sample before.
    Up(Sample),
    /// Trial with a lower limit, with the sample before.
    Down(Sample),
}

/// Measurement of a window.
#[derive(Debug, Clone, Copy)]
struct Sample {
    limit: usize,
    /// Successful answers per second.
    rate: f64,
    latency: Duration,
}

impl Sample {
    /// Maximum rate of the same destination at another limit, without a knee.
    fn rate_at_most(self, limit: usize) -> f64 {
        self.rate * (limit as f64 / self.limit.max(1) as f64).max(1.0)
    }
}

#[derive(Debug, Clone)]
struct Window {
    /// Number of answers to ignore: their requests were sent under the previous limit.
    skip: usize,
    since: Option<Instant>,
    answers: usize,
    good: usize,
    /// Answers that arrived while the limit was not fully used.
    unsaturated: usize,
    latencies: Duration,
}

impl Window {
    fn after(skip: usize) -> Window {
        Window { skip, since: None, answers: 0, good: 0, unsaturated: 0, latencies: Duration::ZERO }
    }
}

impl AdaptiveConcurrency {
    /// A limiter with a low initial limit, and a maximum.
    pub fn new(most: usize) -> AdaptiveConcurrency {
        let (most, limit) = (most.max(1), START.min(most.max(1)));
        let (mode, window) = (Mode::Climb(None), Window::after(0));
        AdaptiveConcurrency {
            limit,
            most,
            fixed: false,
            mode,
            hold_windows: 1,
            best: 0.0,
            window,
            last: None,
            latency: None,
        }
    }

    /// A limiter with a constant limit.
    pub fn fixed(most: usize) -> AdaptiveConcurrency {
        AdaptiveConcurrency { limit: most.max(1), fixed: true, ..AdaptiveConcurrency::new(most) }
    }

    /// The current limit.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Moving average of the latency.
    pub fn latency(&self) -> Option<Duration> {
        self.latency
    }

    /// Records the start of a request. After a long idle time the limit is at most the initial one.
    pub fn begin(&mut self, now: Instant) {
        if !self.fixed && self.last.is_some_and(|last| now.duration_since(last) >= IDLE_RESET) {
            let latency = self.latency;
            *self =
                AdaptiveConcurrency { limit: self.limit.min(START), latency, ..AdaptiveConcurrency::new(self.most) };
        }
        self.last = Some(now);
    }

    /// Records an answer. `full`: the limit was fully used.
    pub fn answered(&mut self, now: Instant, latency: Duration, good: bool, full: bool) {
        self.last = Some(now);
        self.latency = Some(self.latency.map_or(latency, |usual| (usual * 7 + latency) / 8));
        if self.fixed {
            return;
        }
        let window = &mut self.window;
        if window.skip > 0 {
            window.skip -= 1;
            return;
        }
        let Some(since) = window.since else {
            window.since = Some(now);
            return;
        };
        window.answers += 1;
        window.good += usize::from(good);
        window.unsaturated += usize::from(!full);
        window.latencies += latency;
        let (answers, time) = match self.mode {
            Mode::Climb(_) => (2 * self.limit, TRIAL_TIME / 4),
            _ => ((4 * self.limit).max(TRIAL_ANSWERS), TRIAL_TIME),
        };
        let span = now.duration_since(since);
        if window.answers < answers || span < time {
            return;
        }
        let sample = Sample {
            limit: self.limit,
            rate: window.good as f64 / span.as_secs_f64().max(1e-9),
            latency: window.latencies / window.answers as u32,
        };
        match window.unsaturated * 5 <= window.answers {
            true => self.evaluate(sample),
            false => self.window = Window::after(0),
        }
    }

    /// The destination asks for less, or does not answer: halves the limit, once for all requests that were sent
    /// together.
    pub fn slow_down(&mut self) {
        let cut = self.window.skip > 0 && matches!(self.mode, Mode::Hold(_, None));
        if !cut && !self.fixed {
            self.best = 0.0;
            self.hold_windows = 4;
            self.set_limit((self.limit / 2).max(1), Mode::Hold(4, None));
        }
    }

    fn evaluate(&mut self, sample: Sample) {
        self.best = self.best.max(sample.rate);
        match self.mode {
            Mode::Climb(before) => match before {
                Some(before) if !gains_enough(before, sample, CLIMB_NOISE) => {
                    self.set_limit(before.limit, Mode::Hold(1, None))
                }
                _ if self.limit >= self.most => self.set_limit(self.limit, Mode::Hold(1, Some(sample))),
                _ => self.set_limit((self.limit * 2).min(self.most), Mode::Climb(Some(sample))),
            },
            Mode::Hold(_, Some(usual)) if sample.rate > usual.rate * (1.0 + CHANGED) => {
                (self.best, self.hold_windows) = (sample.rate, 1);
                self.climb(sample);
            }
            Mode::Hold(_, Some(usual)) if sample.rate < usual.rate * (1.0 - CHANGED) => {
                (self.best, self.hold_windows) = (sample.rate, 1);
                self.try_less(sample);
            }
            Mode::Hold(0 | 1, _) => self.try_more(sample),
            Mode::Hold(windows, usual) => {
                let rate = usual.map_or(sample.rate, |usual| (usual.rate * 3.0 + sample.rate) / 4.0);
                self.set_mode(Mode::Hold(windows - 1, Some(Sample { rate, ..sample })));
            }
            // A much higher rate shows that the destination has changed; the trial says nothing about the knee.
            Mode::Up(before) | Mode::Down(before)
                if sample.rate > before.rate_at_most(sample.limit) * CHANGED_TRIAL =>
            {
                (self.best, self.hold_windows) = (sample.rate, 1);
                self.climb(sample);
            }
            Mode::Up(before) if gains_enough(before, sample, NOISE) => {
                self.hold_windows = 1;
                self.try_more(sample);
            }
            Mode::Up(before) => {
                self.set_limit(before.limit, Mode::Hold(1, Some(before)));
                self.try_less(before);
            }
            // A lower limit is kept if it does not reduce the rate, neither compared with the step before nor with
            // the best.
            Mode::Down(before) if sample.rate >= before.rate.max(self.best) * (1.0 - NOISE) => {
                self.hold_windows = 1;
                self.try_less(sample);
            }
            Mode::Down(before) => self.hold_at_knee(before),
        }
    }

    fn climb(&mut self, sample: Sample) {
        match self.limit < self.most {
            true => self.set_limit((self.limit * 2).min(self.most), Mode::Climb(Some(sample))),
            false => self.set_mode(Mode::Hold(self.hold_windows, Some(sample))),
        }
    }

    fn try_more(&mut self, sample: Sample) {
        let more = (self.limit + self.limit.div_ceil(4)).min(self.most);
        match more > self.limit {
            true => self.set_limit(more, Mode::Up(sample)),
            false => self.try_less(sample),
        }
    }

    fn try_less(&mut self, sample: Sample) {
        let less = self.limit - self.limit.div_ceil(5).min(self.limit - 1);
        match less < self.limit && sample.latency > LATENCY_LOW {
            true => self.set_limit(less, Mode::Down(sample)),
            false => self.hold_at_knee(sample),
        }
    }

    /// The knee is found: holds twice as long as the last time.
    fn hold_at_knee(&mut self, usual: Sample) {
        self.hold_windows = (self.hold_windows * 2).min(HOLD_WINDOWS_MAX);
        // The best rate may have been noise.
        self.best = self.best.min(usual.rate * (1.0 + NOISE));
        self.set_limit(usual.limit, Mode::Hold(self.hold_windows, Some(usual)));
    }

    fn set_mode(&mut self, mode: Mode) {
        (self.mode, self.window) = (mode, Window::after(0));
    }

    fn set_limit(&mut self, limit: usize, mode: Mode) {
        // Requests in progress were sent under the old limit.
        self.window = Window::after(if limit == self.limit { 0 } else { self.limit.max(limit) });
        (self.limit, self.mode) = (limit, mode);
    }
}

/// Whether the higher limit gained enough throughput. The required gain grows with the latency.
fn gains_enough(before: Sample, sample: Sample, noise: f64) -> bool {
    let weight = (sample.latency.as_secs_f64() - LATENCY_LOW.as_secs_f64())
        / (LATENCY_HIGH.as_secs_f64() - LATENCY_LOW.as_secs_f64());
    let step = sample.limit as f64 / before.limit.max(1) as f64 - 1.0;
    let required = (GAIN_REQUIRED * step + noise) * weight.clamp(0.0, 1.0) - noise;
    sample.rate >= before.rate * (1.0 + required)
}

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use super::*;

    /// A simulated destination with this number of workers and service time; above `saturation` concurrent requests all
    /// get slower.
    #[derive(Clone, Copy)]
    struct Destination {
        workers: usize,
        service: Duration,
        saturation: usize,
    }

    /// Simulates requests to a destination that changes over time; returns the number of answers and the final limit.
    /// Service times vary by a fifth.
    fn simulate(
        seed: u64,
        destination: impl Fn(Duration) -> Destination,
        time: Duration,
        fixed: Option<usize>,
    ) -> (usize, usize) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (start, mut pace) = (Instant::now(), AdaptiveConcurrency::new(64));
        let (mut now, mut answered) = (start, 0);
        // The time at which each worker is free; and for each request the times of its answer and its start.
        let mut workers: Vec<Instant> = vec![start; 64];
        let mut under_way: BinaryHeap<Reverse<(Instant, Instant)>> = BinaryHeap::new();
        while now < start + time {
            let limit = fixed.unwrap_or_else(|| pace.limit());
            while under_way.len() < limit {
                let destination = destination(now - start);
                let crowded =
                    under_way.len().saturating_sub(destination.saturation) as f64 / destination.saturation as f64;
                let service = destination.service.mul_f64((0.8 + 0.4 * random.f64()) * (1.0 + 2.0 * crowded));
                let worker = workers[..destination.workers].iter_mut().min().expect("a worker");
                *worker = (*worker).max(now) + service;
                under_way.push(Reverse((*worker, now)));
                pace.begin(now);
            }
            let full = under_way.len() >= pace.limit();
            let Reverse((at, sent)) = under_way.pop().expect("something is on its way");
            now = now.max(at);
            answered += 1;
            pace.answered(now, now - sent, true, full);
        }
        (answered, pace.limit())
    }

    /// The ratio of answers to those with the best constant limit, over some seeds.
    fn ratio(destination: impl Fn(Duration) -> Destination + Copy, time: Duration) -> f64 {
        let of = |fixed| (0..3).map(|seed| simulate(seed, destination, time, fixed).0).sum::<usize>();
        let best = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64].into_iter().map(|fixed| of(Some(fixed))).max();
        of(None) as f64 / best.expect("a sweep") as f64
    }

    const LONG: Duration = Duration::from_secs(40);

    fn steady(workers: usize, millis: f64, saturation: usize) -> Destination {
        Destination { workers, service: Duration::from_secs_f64(millis / 1000.0), saturation }
    }

    #[test]
    fn the_limit_grows_while_throughput_grows() {
        assert_eq!(AdaptiveConcurrency::new(64).limit(), 5);
        assert_eq!(AdaptiveConcurrency::new(3).limit(), 3);
        let destination = |_| steady(64, 50.0, 1000);
        assert_eq!(simulate(1, destination, LONG, None).1, 64, "as many as there are workers");
        let destination = |_| steady(8, 50.0, 1000);
        let limit = simulate(1, destination, LONG, None).1;
        assert!((8..=14).contains(&limit), "there are eight workers: {limit}");
    }

    #[test]
    fn throughput_is_close_to_that_of_the_best_constant_limit() {
        let found = [
            ("fast", ratio(|_| steady(2, 0.1, 1000), Duration::from_secs(1))),
            ("slow", ratio(|_| steady(12, 80.0, 1000), LONG)),
            ("slow and many", ratio(|_| steady(64, 80.0, 1000), LONG)),
            ("crowded", ratio(|_| steady(16, 20.0, 16), LONG)),
            (
                "changing",
                ratio(
                    |time| if time.as_secs() / 10 % 2 == 0 { steady(6, 40.0, 12) } else { steady(40, 10.0, 80) },
                    LONG,
                ),
            ),
            (
                "changing often",
                ratio(
                    |time| if time.as_secs() / 2 % 2 == 0 { steady(6, 40.0, 1000) } else { steady(40, 10.0, 1000) },
                    LONG,
                ),
            ),
        ];
        assert!(found.iter().all(|(_, ratio)| *ratio >= 0.95), "{found:?}");
    }

    #[test]
    fn slow_down_halves_the_limit_once() {
        let (mut pace, now) = (AdaptiveConcurrency { limit: 40, ..AdaptiveConcurrency::new(64) }, Instant::now());
        for _ in 0..20 {
            pace.slow_down();
        }
        assert_eq!(pace.limit(), 20, "requests that were sent together count once");
        for _ in 0..10 {
            for _ in 0..200 {
                pace.answered(now, Duration::from_millis(50), false, true);
            }
            pace.slow_down();
        }
        assert_eq!(pace.limit(), 1);
    }

    #[test]
    fn unused_limits_are_not_measured_and_idle_time_resets_the_limit() {
        let (mut pace, mut now) = (AdaptiveConcurrency::new(64), Instant::now());
        for _ in 0..1000 {
            now += Duration::from_millis(10);
            pace.answered(now, Duration::from_millis(5), true, false);
        }
        assert_eq!(pace.limit(), 5);
        for _ in 0..1000 {
            now += Duration::from_micros(100);
            pace.answered(now, Duration::from_millis(1), true, true);
        }
        assert!(pace.limit() > 5);
        pace.begin(now + Duration::from_secs(61));
        assert_eq!(pace.limit(), 5);
    }
}
