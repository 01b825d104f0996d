use std::time::Duration;

use tocsin_model::application::Rate;
use tokio::time::Instant;

/// Shorter intervals between messages are not timed singly; messages leave in bursts of this length.
const GRAIN: Duration = Duration::from_millis(10);

/// Rate limiter that spreads messages evenly: any period of the rate has at most the rate's number of messages. If the
/// interval between messages is below 10 ms, one burst of 10 ms may come on top.
#[derive(Debug, Clone)]
pub struct Meter {
    /// Interval between messages.
    each: Duration,
    /// Largest burst.
    most: usize,
    /// Largest lead over the even pace.
    ahead: Duration,
    /// When the next message is due at an even pace.
    due: Option<Instant>,
}

impl Meter {
    /// A limiter without a history.
    pub fn new(rate: Rate) -> Meter {
        let nanos = rate.per.as_nanos().div_ceil(u128::from(rate.messages.max(1)));
        let each = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Meter {
            each,
            most: rate.messages.max(1) as usize,
            ahead: if each >= GRAIN { Duration::ZERO } else { GRAIN },
            due: None,
        }
    }

    /// A limiter of one message in each interval, without a history.
    pub(crate) fn every(interval: Duration) -> Meter {
        Meter::new(Rate { messages: 1, per: interval })
    }

    /// This limiter with the history of another.
    pub(crate) fn after(self, before: &Meter) -> Meter {
        Meter { due: before.due, ..self }
    }

    /// When a message may leave: `None` for now.
    pub fn wait(&self, now: Instant) -> Option<Instant> {
        let at = self.due?.checked_sub(self.ahead)?;
        (at > now).then_some(at)
    }

    /// Counts a message that leaves now.
    pub fn count(&mut self, now: Instant) {
        self.due = Some(self.due.map_or(now, |due| due.max(now)) + self.each);
    }

    /// Most messages that may leave in one burst without exceeding the rate's number in its span.
    pub fn most(&self) -> usize {
        self.most
    }

    /// The span of so many messages at the even pace.
    pub fn span(&self, messages: usize) -> Duration {
        self.each.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages that leave in each of the first spans if the queue is never empty.
    fn check(messages: u32, per: Duration, expected: [usize; 3]) {
        let (start, mut meter) = (Instant::now(), Meter::new(Rate { messages, per }));
        let (mut now, mut seen) = (start, [0; 3]);
        while now < start + per * 3 {
            match meter.wait(now) {
                Some(at) => now = at,
                None => {
                    meter.count(now);
                    seen[((now - start).as_nanos() / per.as_nanos()) as usize] += 1;
                }
            }
        }
        assert_eq!(seen, expected, "{messages} in {per:?}");
    }

    #[test]
    fn no_more_than_the_rate() {
        check(1, Duration::from_secs(1), [1; 3]);
        check(20, Duration::from_secs(60), [20; 3]);
        check(30, Duration::from_secs(1), [30; 3]);
        // A burst of 10 ms.
        check(10_000, Duration::from_secs(1), [10_100, 10_000, 10_000]);
    }

    #[test]
    fn unused_capacity_of_a_pause_is_not_saved() {
        let start = Instant::now();
        let mut meter = Meter::new(Rate { messages: 1, per: Duration::from_secs(1) });
        meter.count(start);
        let later = start + Duration::from_secs(60);
        assert_eq!(meter.wait(later), None);
        meter.count(later);
        assert_eq!(meter.wait(later), Some(later + Duration::from_secs(1)));
        assert_eq!(meter.span(5), Duration::from_secs(5));
    }
}
