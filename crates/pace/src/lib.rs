//! How many at the same time: finds by itself where more do not help any more, and never goes beyond its bound.
//!
//! Used wherever work goes to something that has a knee: destinations of messages, the pool in which edits of devices meet the
//! rows. Pure state; time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// How many a destination gets at the same time before anything is known of it.
const START: usize = 5;
/// After this time without a message nothing is known any more.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// A trial looks at so many answers, and at least so long.
const TRIAL_ANSWERS: usize = 64;
const TRIAL_TIME: Duration = Duration::from_millis(40);
/// Up to the first of these latencies more at a time may as well be tried; from the second on more must pay.
const LATENCY_CHEAP: Duration = Duration::from_millis(3);
const LATENCY_DEAR: Duration = Duration::from_millis(15);
/// Twice as many must bring a fifth more, and so in proportion.
const WORTH: f64 = 0.2;
/// So much less may be luck, and so much in the short windows of the climb.
const NOISE: f64 = 0.03;
const CLIMB_NOISE: f64 = 0.12;
/// A rate that is off by this much means that the far side has changed.
const CHANGED: f64 = 0.3;
/// A trial that finds so many times more than it can account for has met another far side. Less may be a crowd that it
/// has ended.
const ANOTHER: f64 = 2.0;
/// Quiet windows between trials, at most.
const REST_MAX: u32 = 32;

/// How many messages a destination gets at the same time: as many as help.
///
/// Beyond its knee a far side answers no faster in all, and each one later. What it answers in a window at one limit is
/// compared with what it answered at another: the limit doubles at first, then trials a quarter up or a fifth down look
/// for the knee, and rarely once it is found. Only a window that used the limit throughout says anything. Failures
/// are no answers, and a far side that asks for less gets half.
#[derive(Debug, Clone)]
pub struct Pace {
    limit: usize,
    most: usize,
    fixed: bool,
    mode: Mode,
    /// Quiet windows before the next trial.
    rest: u32,
    /// The best rate since the far side last changed.
    best: f64,
    window: Window,
    last: Option<Instant>,
    latency: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    /// Doubling; what was seen at the limit before.
    Climb(Option<Sample>),
    /// At rest for so many windows; what is usual.
    Hold(u32, Option<Sample>),
    /// Trying more than this.
    Up(Sample),
    /// Trying less than this.
    Down(Sample),
}

/// What a window showed.
#[derive(Debug, Clone, Copy)]
struct Sample {
    limit: usize,
    /// Good answers a second.
    rate: f64,
    latency: Duration,
}

impl Sample {
    /// What the same far side would answer at another limit, if it had no knee.
    fn rate_at_most(self, limit: usize) -> f64 {
        self.rate * (limit as f64 / self.limit.max(1) as f64).max(1.0)
    }
}

#[derive(Debug, Clone)]
struct Window {
    /// Answers to messages that left under the limit before.
    skip: usize,
    since: Option<Instant>,
    answers: usize,
    good: usize,
    /// Answers that came while the limit was not used.
    slack: usize,
    latencies: Duration,
}

impl Window {
    fn after(skip: usize) -> Window {
        Window { skip, since: None, answers: 0, good: 0, slack: 0, latencies: Duration::ZERO }
    }
}

impl Pace {
    /// A few at first, and never more than `most`.
    pub fn new(most: usize) -> Pace {
        let (most, limit) = (most.max(1), START.min(most.max(1)));
        let (mode, window) = (Mode::Climb(None), Window::after(0));
        Pace { limit, most, fixed: false, mode, rest: 1, best: 0.0, window, last: None, latency: None }
    }

    /// Always as many as allowed.
    pub fn fixed(most: usize) -> Pace {
        Pace { limit: most.max(1), fixed: true, ..Pace::new(most) }
    }

    /// How many may be on their way.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// What an answer takes of late.
    pub fn latency(&self) -> Option<Duration> {
        self.latency
    }

    /// A message begins. After a long silence the limit is what it was at first, at most.
    pub fn begin(&mut self, now: Instant) {
        if !self.fixed && self.last.is_some_and(|last| now.duration_since(last) >= FORGOTTEN) {
            let latency = self.latency;
            *self = Pace { limit: self.limit.min(START), latency, ..Pace::new(self.most) };
        }
        self.last = Some(now);
    }

    /// An answer came. `full`: as many as allowed were on their way.
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
        window.slack += usize::from(!full);
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
        match window.slack * 5 <= window.answers {
            true => self.judge(sample),
            false => self.window = Window::after(0),
        }
    }

    /// The far side asks for less, or does not answer: half as many, once for all that were on their way together.
    pub fn slow_down(&mut self) {
        let cut = self.window.skip > 0 && matches!(self.mode, Mode::Hold(_, None));
        if !cut && !self.fixed {
            self.best = 0.0;
            self.rest = 4;
            self.go((self.limit / 2).max(1), Mode::Hold(4, None));
        }
    }

    fn judge(&mut self, sample: Sample) {
        self.best = self.best.max(sample.rate);
        match self.mode {
            Mode::Climb(before) => match before {
                Some(before) if !is_worth(before, sample, CLIMB_NOISE) => self.go(before.limit, Mode::Hold(1, None)),
                _ if self.limit >= self.most => self.go(self.limit, Mode::Hold(1, Some(sample))),
                _ => self.go((self.limit * 2).min(self.most), Mode::Climb(Some(sample))),
            },
            Mode::Hold(_, Some(usual)) if sample.rate > usual.rate * (1.0 + CHANGED) => {
                (self.best, self.rest) = (sample.rate, 1);
                self.climb(sample);
            }
            Mode::Hold(_, Some(usual)) if sample.rate < usual.rate * (1.0 - CHANGED) => {
                (self.best, self.rest) = (sample.rate, 1);
                self.try_less(sample);
            }
            Mode::Hold(0 | 1, _) => self.try_more(sample),
            Mode::Hold(windows, usual) => {
                let rate = usual.map_or(sample.rate, |usual| (usual.rate * 3.0 + sample.rate) / 4.0);
                self.stay(Mode::Hold(windows - 1, Some(Sample { rate, ..sample })));
            }
            // A trial that finds so much more has met another far side, and says nothing of the knee.
            Mode::Up(before) | Mode::Down(before) if sample.rate > before.rate_at_most(sample.limit) * ANOTHER => {
                (self.best, self.rest) = (sample.rate, 1);
                self.climb(sample);
            }
            Mode::Up(before) if is_worth(before, sample, NOISE) => {
                self.rest = 1;
                self.try_more(sample);
            }
            Mode::Up(before) => {
                self.go(before.limit, Mode::Hold(1, Some(before)));
                self.try_less(before);
            }
            // Less is enough if nothing is lost by it, step by step or in all.
            Mode::Down(before) if sample.rate >= before.rate.max(self.best) * (1.0 - NOISE) => {
                self.rest = 1;
                self.try_less(sample);
            }
            Mode::Down(before) => self.settle(before),
        }
    }

    fn climb(&mut self, sample: Sample) {
        match self.limit < self.most {
            true => self.go((self.limit * 2).min(self.most), Mode::Climb(Some(sample))),
            false => self.stay(Mode::Hold(self.rest, Some(sample))),
        }
    }

    fn try_more(&mut self, sample: Sample) {
        let more = (self.limit + self.limit.div_ceil(4)).min(self.most);
        match more > self.limit {
            true => self.go(more, Mode::Up(sample)),
            false => self.try_less(sample),
        }
    }

    fn try_less(&mut self, sample: Sample) {
        let less = self.limit - self.limit.div_ceil(5).min(self.limit - 1);
        match less < self.limit && sample.latency > LATENCY_CHEAP {
            true => self.go(less, Mode::Down(sample)),
            false => self.settle(sample),
        }
    }

    /// The knee is here: rests, twice as long as the last time.
    fn settle(&mut self, usual: Sample) {
        self.rest = (self.rest * 2).min(REST_MAX);
        // What was once the best may have been luck.
        self.best = self.best.min(usual.rate * (1.0 + NOISE));
        self.go(usual.limit, Mode::Hold(self.rest, Some(usual)));
    }

    fn stay(&mut self, mode: Mode) {
        (self.mode, self.window) = (mode, Window::after(0));
    }

    fn go(&mut self, limit: usize, mode: Mode) {
        // What is on its way left under the old limit.
        self.window = Window::after(if limit == self.limit { 0 } else { self.limit.max(limit) });
        (self.limit, self.mode) = (limit, mode);
    }
}

/// Whether more at a time paid.
fn is_worth(before: Sample, sample: Sample, noise: f64) -> bool {
    let dear = (sample.latency.as_secs_f64() - LATENCY_CHEAP.as_secs_f64())
        / (LATENCY_DEAR.as_secs_f64() - LATENCY_CHEAP.as_secs_f64());
    let step = sample.limit as f64 / before.limit.max(1) as f64 - 1.0;
    let asked = (WORTH * step + noise) * dear.clamp(0.0, 1.0) - noise;
    sample.rate >= before.rate * (1.0 + asked)
}

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use super::*;

    /// A far side with so many workers, each taking so long for an answer; beyond `crowd` at a time all get slower.
    #[derive(Clone, Copy)]
    struct FarSide {
        workers: usize,
        service: Duration,
        crowd: usize,
    }

    /// Plays messages against a far side that changes over time; gives how many were answered, and the limit at the end.
    /// Each service time varies by a fifth.
    fn play(seed: u64, far: impl Fn(Duration) -> FarSide, time: Duration, fixed: Option<usize>) -> (usize, usize) {
        let mut luck = fastrand::Rng::with_seed(seed);
        let (start, mut pace) = (Instant::now(), Pace::new(64));
        let (mut now, mut answered) = (start, 0);
        // When each worker is free, and when each message on its way is answered and when it was sent.
        let mut workers: Vec<Instant> = vec![start; 64];
        let mut under_way: BinaryHeap<Reverse<(Instant, Instant)>> = BinaryHeap::new();
        while now < start + time {
            let limit = fixed.unwrap_or_else(|| pace.limit());
            while under_way.len() < limit {
                let far = far(now - start);
                let crowded = under_way.len().saturating_sub(far.crowd) as f64 / far.crowd as f64;
                let service = far.service.mul_f64((0.8 + 0.4 * luck.f64()) * (1.0 + 2.0 * crowded));
                let worker = workers[..far.workers].iter_mut().min().expect("a worker");
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

    /// What the pace reaches of the best fixed limit, over some seeds.
    fn ratio(far: impl Fn(Duration) -> FarSide + Copy, time: Duration) -> f64 {
        let of = |fixed| (0..3).map(|seed| play(seed, far, time, fixed).0).sum::<usize>();
        let best = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64].into_iter().map(|fixed| of(Some(fixed))).max();
        of(None) as f64 / best.expect("a sweep") as f64
    }

    const LONG: Duration = Duration::from_secs(40);

    fn steady(workers: usize, millis: f64, crowd: usize) -> FarSide {
        FarSide { workers, service: Duration::from_secs_f64(millis / 1000.0), crowd }
    }

    #[test]
    fn it_starts_small_and_grows_while_it_helps() {
        assert_eq!(Pace::new(64).limit(), 5);
        assert_eq!(Pace::new(3).limit(), 3);
        let far = |_| steady(64, 50.0, 1000);
        assert_eq!(play(1, far, LONG, None).1, 64, "as many as there are workers");
        let far = |_| steady(8, 50.0, 1000);
        let limit = play(1, far, LONG, None).1;
        assert!((8..=14).contains(&limit), "eight work at a time; more would only wait: {limit}");
    }

    #[test]
    fn it_comes_close_to_the_best_fixed_limit() {
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
    fn who_asks_for_less_gets_half_once() {
        let (mut pace, now) = (Pace { limit: 40, ..Pace::new(64) }, Instant::now());
        for _ in 0..20 {
            pace.slow_down();
        }
        assert_eq!(pace.limit(), 20, "those that left together count once");
        for _ in 0..10 {
            for _ in 0..200 {
                pace.answered(now, Duration::from_millis(50), false, true);
            }
            pace.slow_down();
        }
        assert_eq!(pace.limit(), 1);
    }

    #[test]
    fn what_is_not_used_teaches_nothing_and_silence_forgets() {
        let (mut pace, mut now) = (Pace::new(64), Instant::now());
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
