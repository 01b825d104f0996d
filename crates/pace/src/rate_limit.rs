//! Rate limits by key, by the generic cell rate algorithm (GCRA, ITU-T I.371). Each key has its own limit, so that a
//! busy caller delays no other.

use std::{
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

pub use governor::clock::{Clock, FakeRelativeClock, MonotonicClock};
use governor::{Quota, RateLimiter, middleware::StateInformationMiddleware, state::keyed::DashMapStateStore};

/// Maximum number of keys with their own rate; further ones share one.
pub const KEYS_MAX: usize = 100_000;
/// Number of requests after which idle keys are removed.
const FORGET_EVERY: u32 = 65_536;

/// Maximum request rate of a caller: `per_second`, and a burst of `burst` after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests a second in the long run.
    pub per_second: NonZeroU32,
    /// Requests at once.
    pub burst: NonZeroU32,
}

impl RateLimit {
    /// A limit in requests per second, with a burst in seconds; 0: no limit.
    pub fn new(per_second: u32, burst_seconds: u32) -> Option<RateLimit> {
        let per_second = NonZeroU32::new(per_second)?;
        Some(RateLimit { per_second, burst: per_second.saturating_mul(NonZeroU32::new(burst_seconds.max(1))?) })
    }

    /// The limit multiplied by a factor.
    #[must_use]
    pub fn times(self, factor: NonZeroU32) -> RateLimit {
        RateLimit { per_second: self.per_second.saturating_mul(factor), burst: self.burst.saturating_mul(factor) }
    }
}

/// A key, or all keys beyond [`KEYS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Slot<K> {
    Key(K),
    Others,
}

type Limiter<K, C> = RateLimiter<Slot<K>, DashMapStateStore<Slot<K>>, C, StateInformationMiddleware>;

/// A rate limiter with one limit for each key, in bounded memory: beyond [`KEYS_MAX`] active keys, further ones share
/// a limit.
pub struct KeyedRateLimiter<K: Hash + Eq + Clone, C: Clock = MonotonicClock> {
    limit: RateLimit,
    limiter: Limiter<K, C>,
    clock: C,
    requests: AtomicU32,
}

impl<K: Hash + Eq + Clone> KeyedRateLimiter<K> {
    /// A limiter on the monotonic clock of the system.
    pub fn new(limit: RateLimit) -> KeyedRateLimiter<K> {
        KeyedRateLimiter::with_clock(limit, MonotonicClock)
    }
}

impl<K: Hash + Eq + Clone, C: Clock + Clone> KeyedRateLimiter<K, C> {
    /// A limiter on a clock, for tests.
    pub fn with_clock(limit: RateLimit, clock: C) -> KeyedRateLimiter<K, C> {
        let quota = Quota::per_second(limit.per_second).allow_burst(limit.burst);
        let limiter = Limiter::<K, C>::new(quota, DashMapStateStore::default(), clock.clone());
        KeyedRateLimiter { limit, limiter, clock, requests: AtomicU32::new(0) }
    }

    /// The limit of each key.
    pub fn limit(&self) -> RateLimit {
        self.limit
    }

    /// Counts a request of a key. Returns the number of further requests that are admitted at once.
    ///
    /// # Errors
    /// The request exceeds the limit: the time until the next one is admitted.
    pub fn count(&self, key: K) -> Result<u32, Duration> {
        let mut slot = Slot::Key(key);
        if self.limiter.len() >= KEYS_MAX {
            self.limiter.retain_recent();
            if self.limiter.len() >= KEYS_MAX {
                slot = Slot::Others;
            }
        } else if self.requests.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            self.limiter.retain_recent();
        }
        match self.limiter.check_key(&slot) {
            Ok(snapshot) => Ok(snapshot.remaining_burst_capacity()),
            Err(until) => Err(until.wait_time_from(self.clock.now())),
        }
    }

    /// Number of keys with a rate of their own.
    pub fn key_count(&self) -> usize {
        self.limiter.len()
    }
}

/// The address that limits count: an IPv4 address, or the /64 network of an IPv6 address, which one host usually has
/// for itself.
pub fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_own_limit() {
        let clock = FakeRelativeClock::default();
        let limiter = KeyedRateLimiter::with_clock(RateLimit::new(2, 5).expect("a limit"), clock.clone());
        for remaining in (0..10).rev() {
            assert_eq!(limiter.count("ann"), Ok(remaining));
        }
        assert_eq!(limiter.count("ann"), Err(Duration::from_millis(500)));
        assert_eq!(limiter.count("bob"), Ok(9));
        clock.advance(Duration::from_millis(500));
        assert_eq!(limiter.count("ann"), Ok(0));
    }

    #[test]
    fn keys_without_end_take_bounded_memory() {
        let clock = FakeRelativeClock::default();
        let limiter = KeyedRateLimiter::with_clock(RateLimit::new(1, 1).expect("a limit"), clock.clone());
        for key in 0..KEYS_MAX {
            assert_eq!(limiter.count(key), Ok(0));
        }
        assert_eq!(limiter.count(KEYS_MAX), Ok(0), "the first of the others");
        assert!(limiter.count(KEYS_MAX + 1).is_err(), "the others share a limit");
        clock.advance(Duration::from_secs(2));
        assert_eq!(limiter.count(KEYS_MAX + 1), Ok(0), "idle keys are removed");
        assert!(limiter.key_count() < 10);
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1:2:3"), of("2001:db8::9"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), IpAddr::from([192, 0, 2, 1]));
        assert_eq!(of("::1"), "::1".parse::<IpAddr>().expect("an address"));
    }
}
