//! Pace of one mailbox provider: rate and concurrency with additive increase and multiplicative decrease, and pauses
//! with exponential back-off when the provider holds mail back.

use std::time::Duration;

use tocsin_model::application::Rate;
use tokio::time::Instant;

use super::rate::Meter;

/// Shortest and longest pause after the provider asked for a lower rate.
const RATE_PAUSES: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(30 * 60)];
/// The same, after it asked for fewer sessions.
const SESSION_PAUSES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(5 * 60)];
/// The same, after it rejected all mail for a while because of the sender's reputation.
const BLOCK_PAUSES: [Duration; 2] = [Duration::from_secs(15 * 60), Duration::from_secs(2 * 60 * 60)];
/// Delayed mails of a later server lower the rate at most once in this time: one congestion makes many of them.
const DELAY_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Time with accepted mail and without a hold-back after which rate and concurrency rise by one step.
const RECOVERY_STEP: Duration = Duration::from_secs(60);
/// Lowest rate: one mail in this time.
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Interval after the first hold-back of a provider whose rate is neither set nor measured.
const INTERVAL_UNMEASURED: Duration = Duration::from_secs(1);
/// An interval below this is no limit.
const INTERVAL_NONE: Duration = Duration::from_millis(1);
/// Period over which the rate is measured.
const MEASURED: Duration = Duration::from_secs(10);
/// Mails of this time may wait in the queue of a provider; others stay in the journal.
const ROOM_TIME: Duration = Duration::from_secs(5 * 60);
const SAID_CHARS_MAX: usize = 200;

/// Configured limits of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PaceLimits {
    /// Highest rate; `None`: no limit.
    pub rate: Option<Rate>,
    /// Most mails under way.
    pub concurrency: usize,
}

/// Kind of a hold-back, by the limit that the sender exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum HoldBack {
    /// A later server reports that mail is delayed.
    Delayed,
    /// Too many sessions at once.
    Sessions,
    /// Too many mails in a time.
    Rate,
    /// The sender's reputation: all its mail is rejected for a while.
    Blocked,
}

/// State machine of the pace of one provider. Time is an argument.
///
/// A hold-back doubles the interval between mails and begins a pause, which doubles with each hold-back in a row.
/// After a pause one mail is on its way at a time, until the provider accepts one. Then, a minute after another, the
/// rate rises by a quarter and the concurrency by one, up to the configured limits.
#[derive(Debug, Clone)]
pub(crate) struct ProviderPace {
    limits: PaceLimits,
    /// Current limit of mails under way.
    concurrency: usize,
    /// Interval between mails if it is longer than configured.
    interval: Option<Duration>,
    /// The interval measured before the first hold-back: at this interval the limit ends if no rate is configured.
    interval_before: Duration,
    meter: Option<Meter>,
    paused_until: Option<Instant>,
    /// Whether one mail at a time tests the provider.
    is_trial: bool,
    /// Hold-backs in a row.
    strikes: u32,
    /// When the next step of the recovery may follow.
    step_at: Option<Instant>,
    delayed_at: Option<Instant>,
    /// Since when it holds mail back; none after the recovery.
    held_since: Option<Instant>,
    held_at: Option<Instant>,
    said: Option<Box<str>>,
    measure: Measure,
}

/// Rate of the latest mails.
#[derive(Debug, Clone, Default)]
struct Measure {
    began: Option<Instant>,
    count: u32,
    /// Interval in the period before.
    before: Option<Duration>,
}

impl Measure {
    fn count(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        if now - began >= MEASURED {
            let elapsed = now - began;
            self.before = (elapsed < 2 * MEASURED && self.count > 0).then(|| elapsed / self.count);
            (self.began, self.count) = (Some(now), 0);
        }
        self.count += 1;
    }

    /// Mean interval between mails, if enough have left.
    fn interval(&self, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.began?).max(MEASURED / 10);
        let current = (self.count > 1).then(|| elapsed / self.count);
        match (current, self.before) {
            (Some(current), Some(before)) => Some(current.min(before)),
            (current, before) => current.or(before),
        }
    }
}

impl ProviderPace {
    pub fn new(limits: PaceLimits) -> ProviderPace {
        ProviderPace {
            limits,
            concurrency: limits.concurrency.max(1),
            interval: None,
            interval_before: Duration::ZERO,
            meter: limits.rate.map(Meter::new),
            paused_until: None,
            is_trial: false,
            strikes: 0,
            step_at: None,
            delayed_at: None,
            held_since: None,
            held_at: None,
            said: None,
            measure: Measure::default(),
        }
    }

    /// End of the pause.
    pub fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| *until > now)
    }

    /// End of the last pause, which may be over.
    pub fn pause_end(&self) -> Option<Instant> {
        self.paused_until
    }

    /// When the next mail may leave by pause and rate; `None` for now.
    pub fn wait(&self, now: Instant) -> Option<Instant> {
        let metered = self.meter.as_ref().and_then(|meter| meter.wait(now));
        self.paused_until(now).max(metered)
    }

    /// Most mails under way.
    pub fn limit(&self) -> usize {
        if self.is_trial { 1 } else { self.concurrency }
    }

    /// Most recipients of one mail, so that it exceeds no rate.
    pub fn recipients_max(&self) -> usize {
        match (self.is_trial, &self.meter) {
            (true, _) => 1,
            (false, Some(meter)) => meter.most(),
            (false, None) => usize::MAX,
        }
    }

    /// Interval between mails at the current rate; `None`: no limit.
    pub fn interval(&self) -> Option<Duration> {
        self.meter.as_ref().map(|meter| meter.span(1))
    }

    /// Mails that may wait in the queue.
    pub fn room(&self) -> usize {
        self.interval().map_or(usize::MAX, |each| (ROOM_TIME.as_nanos() / each.as_nanos().max(1)) as usize)
    }

    /// Whether rate and concurrency are lowered, or sending pauses.
    pub fn holds_back(&self) -> bool {
        self.held_since.is_some()
    }

    /// Since when the provider holds mail back.
    pub fn held_since(&self) -> Option<Instant> {
        self.held_since
    }

    /// When it last did.
    pub fn held_at(&self) -> Option<Instant> {
        self.held_at
    }

    /// Its last reply that held mail back, until the recovery is complete.
    pub fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }

    /// Its state relative to a time, equal for states that behave alike from then on.
    #[cfg(test)]
    pub fn phase(&self, now: Instant) -> impl std::hash::Hash + use<> {
        let ahead = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(now));
        let measured = (self.measure.interval(now), self.interval_before);
        let waits = (ahead(self.wait(now)), ahead(self.paused_until(now)), ahead(self.step_at));
        (self.limit(), self.concurrency, self.interval, self.strikes, self.holds_back(), measured, waits)
    }

    /// Counts a recipient whose mail leaves now.
    pub fn take(&mut self, now: Instant) {
        if let Some(meter) = &mut self.meter {
            meter.count(now);
        }
        self.measure.count(now);
    }

    /// Records an answer that does not hold mail back; `accepted`: the provider accepted a mail. Returns the time for
    /// which it had held mail back if the recovery is complete now.
    pub fn answered(&mut self, now: Instant, accepted: bool) -> Option<Duration> {
        // Answers to mails that left before the pause do not show that it is over.
        if self.paused_until(now).is_some() {
            return None;
        }
        self.is_trial = false;
        if !accepted {
            return None;
        }
        self.strikes = 0;
        if self.step_at.is_none_or(|at| at > now) {
            return None;
        }
        self.step_at = Some(now + RECOVERY_STEP);
        self.concurrency = (self.concurrency + 1).min(self.limits.concurrency.max(1));
        if let Some(interval) = self.interval {
            let next = interval.mul_f64(0.8);
            let enough = match self.limits.rate {
                Some(rate) => Meter::new(rate).span(1),
                None => self.interval_before.max(INTERVAL_NONE),
            };
            self.set_interval((next > enough).then_some(next));
        }
        if self.interval.is_some() || self.concurrency < self.limits.concurrency {
            return None;
        }
        (self.paused_until, self.step_at, self.said, self.held_at) = (None, None, None, None);
        self.held_since.take().map(|since| now - since)
    }

    /// Records that the provider holds mail back, with its reply. Returns the length of the pause if one begins.
    /// `jitter` is from 0 to 1.
    pub fn held_back(&mut self, kind: HoldBack, said: &str, now: Instant, jitter: f64) -> Option<Duration> {
        if kind == HoldBack::Delayed {
            if self.delayed_at.is_some_and(|at| now - at < DELAY_INTERVAL) {
                return None;
            }
            self.delayed_at = Some(now);
        }
        let is_new = self.held_since.is_none();
        self.held_since.get_or_insert(now);
        self.held_at = Some(now);
        self.said = Some(said.chars().take(SAID_CHARS_MAX).collect::<String>().into());
        // The mail left before the pause began.
        if self.paused_until(now).is_some() {
            return None;
        }
        if is_new {
            self.interval_before = self.measure.interval(now).unwrap_or_default();
        }
        if kind == HoldBack::Sessions {
            self.concurrency = (self.concurrency / 2).max(1);
        } else {
            self.slow_down(now);
        }
        let pauses = match kind {
            HoldBack::Delayed => {
                self.step_at = Some(now + RECOVERY_STEP);
                return None;
            }
            HoldBack::Sessions => SESSION_PAUSES,
            HoldBack::Rate => RATE_PAUSES,
            HoldBack::Blocked => BLOCK_PAUSES,
        };
        let pause = pauses[0].saturating_mul(1 << self.strikes.min(10)).min(pauses[1]);
        let pause = pause.mul_f64(0.9 + 0.2 * jitter.clamp(0.0, 1.0));
        self.strikes = self.strikes.saturating_add(1);
        self.is_trial = true;
        self.paused_until = Some(now + pause);
        self.step_at = Some(now + pause + RECOVERY_STEP);
        Some(pause)
    }

    /// Halves the rate: that in use, if it is lower than the limit.
    fn slow_down(&mut self, now: Instant) {
        let limit = self.interval().unwrap_or_default();
        let used = self.measure.interval(now).unwrap_or_default();
        let interval = match limit.max(used) {
            Duration::ZERO => INTERVAL_UNMEASURED,
            each => each * 2,
        };
        // A configured rate can be lower than the lowest.
        self.set_interval(Some(interval.clamp(INTERVAL_NONE, INTERVAL_MAX.max(limit))));
    }

    fn set_interval(&mut self, interval: Option<Duration>) {
        let meter = match interval {
            Some(each) => Some(Meter::every(each)),
            None => self.limits.rate.map(Meter::new),
        };
        self.interval = interval;
        self.meter = match (meter, &self.meter) {
            (Some(meter), Some(before)) => Some(meter.after(before)),
            (meter, _) => meter,
        };
    }
}

#[cfg(test)]
mod tests;
