//! Rate limits of requests, by the generic cell rate algorithm (GCRA, ITU-T I.371). Each bound identity has its own
//! limit, over all its connections. Requests without a bind, and failed binds, count for their address.

use std::{collections::HashMap, net::IpAddr, num::NonZeroU32, sync::Arc};

use parking_lot::Mutex;
use tocsin_pace::rate_limit::{Clock, KEYS_MAX, KeyedRateLimiter, MonotonicClock, RateLimit};

/// Refused requests per admitted one above which a caller is disconnected.
const EXCESS: NonZeroU32 = NonZeroU32::new(10).expect("not zero");

/// The caller that a request counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Partition {
    Identity(Arc<str>),
    Address(IpAddr),
}

/// The decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// It gets `busy`.
    Busy(RateLimit),
    /// The caller keeps exceeding its limit by far and is disconnected.
    Excessive,
}

/// The rates of all callers.
pub(crate) struct RateLimits<C: Clock = MonotonicClock> {
    clock: C,
    identities: Option<CallerRates<C>>,
    addresses: Option<CallerRates<C>>,
    /// Addresses whose failed binds reached the limit, and the time of the next bind.
    blocked: Mutex<HashMap<IpAddr, C::Instant>>,
}

/// The rates of callers of one kind.
struct CallerRates<C: Clock> {
    /// Label of the metric.
    by: &'static str,
    admitted: KeyedRateLimiter<Partition, C>,
    refused: KeyedRateLimiter<Partition, C>,
}

impl RateLimits {
    pub(crate) fn new(identities: Option<RateLimit>, addresses: Option<RateLimit>) -> RateLimits {
        RateLimits::with_clock(identities, addresses, MonotonicClock)
    }
}

impl<C: Clock + Clone> RateLimits<C> {
    fn with_clock(identities: Option<RateLimit>, addresses: Option<RateLimit>, clock: C) -> RateLimits<C> {
        RateLimits {
            identities: identities.map(|limit| CallerRates::new(limit, "identity", &clock)),
            addresses: addresses.map(|limit| CallerRates::new(limit, "address", &clock)),
            blocked: Mutex::default(),
            clock,
        }
    }

    /// Counts a request of a bound identity.
    pub(crate) fn of_identity(&self, identity: &Arc<str>) -> Admission {
        let rates = self.identities.as_ref();
        rates.map_or(Admission::Admitted, |rates| rates.count(Partition::Identity(identity.clone())))
    }

    /// Counts a request without a bind.
    pub(crate) fn of_address(&self, address: IpAddr) -> Admission {
        self.addresses.as_ref().map_or(Admission::Admitted, |rates| rates.count(Partition::Address(address)))
    }

    /// Whether an address may bind: a bind counts when it fails.
    pub(crate) fn of_bind(&self, address: IpAddr) -> Admission {
        let Some(rates) = &self.addresses else { return Admission::Admitted };
        let mut blocked = self.blocked.lock();
        match blocked.get(&address) {
            None => Admission::Admitted,
            Some(until) if *until > self.clock.now() => rates.refuse(Partition::Address(address)),
            Some(_) => {
                blocked.remove(&address);
                Admission::Admitted
            }
        }
    }

    /// Counts a failed bind.
    pub(crate) fn count_failed_bind(&self, address: IpAddr) {
        let Some(rates) = &self.addresses else { return };
        if let Err(wait) = rates.admitted.count(Partition::Address(address)) {
            let (mut blocked, now) = (self.blocked.lock(), self.clock.now());
            if blocked.len() >= KEYS_MAX {
                blocked.retain(|_, until| *until > now);
            }
            if blocked.len() < KEYS_MAX {
                blocked.insert(address, now + wait.into());
            }
        }
    }
}

impl<C: Clock + Clone> CallerRates<C> {
    fn new(limit: RateLimit, by: &'static str, clock: &C) -> CallerRates<C> {
        let limiter = |limit| KeyedRateLimiter::with_clock(limit, clock.clone());
        CallerRates { by, admitted: limiter(limit), refused: limiter(limit.times(EXCESS)) }
    }

    fn count(&self, partition: Partition) -> Admission {
        match self.admitted.count(partition.clone()) {
            Ok(_) => Admission::Admitted,
            Err(_) => self.refuse(partition),
        }
    }

    fn refuse(&self, partition: Partition) -> Admission {
        metrics::counter!("tocsin_ldap_rate_limited_total", "by" => self.by).increment(1);
        match self.refused.count(partition) {
            Ok(_) => Admission::Busy(self.admitted.limit()),
            Err(_) => Admission::Excessive,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tocsin_pace::rate_limit::FakeRelativeClock;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn d_an_identity_has_its_own_limit_and_is_disconnected_far_above_it() {
        let clock = FakeRelativeClock::default();
        let limit = RateLimit::new(2, 5).expect("a limit");
        let limits = RateLimits::with_clock(Some(limit), None, clock.clone());
        let (ann, bob): (Arc<str>, Arc<str>) = ("cn=ann".into(), "cn=bob".into());
        let of =
            |identity, count: usize| -> Vec<Admission> { (0..count).map(|_| limits.of_identity(identity)).collect() };
        assert_eq!(of(&ann, 10), [Admission::Admitted; 10]);
        assert_eq!(of(&ann, 100), [Admission::Busy(limit); 100]);
        assert_eq!(of(&ann, 2), [Admission::Excessive; 2]);
        assert_eq!(of(&bob, 1), [Admission::Admitted]);
        clock.advance(Duration::from_millis(500));
        assert_eq!(of(&ann, 2), [Admission::Admitted, Admission::Busy(limit)]);
        assert_eq!(limits.of_address(ADDRESS), Admission::Admitted, "addresses have no limit");
    }

    #[test]
    fn d_binds_of_an_address_count_when_they_fail() {
        let clock = FakeRelativeClock::default();
        let limit = RateLimit::new(1, 3).expect("a limit");
        let limits = RateLimits::with_clock(None, Some(limit), clock.clone());
        for _ in 0..100 {
            assert_eq!(limits.of_bind(ADDRESS), Admission::Admitted);
        }
        for _ in 0..4 {
            assert_eq!(limits.of_bind(ADDRESS), Admission::Admitted);
            limits.count_failed_bind(ADDRESS);
        }
        assert_eq!(limits.of_bind(ADDRESS), Admission::Busy(limit));
        assert_eq!(limits.of_address(ADDRESS), Admission::Busy(limit), "requests without a bind share the limit");
        assert_eq!(limits.of_bind(IpAddr::from([192, 0, 2, 2])), Admission::Admitted);
        clock.advance(Duration::from_secs(1));
        assert_eq!(limits.of_bind(ADDRESS), Admission::Admitted);
        assert!(limits.blocked.lock().is_empty());
    }

    #[test]
    fn d_callers_without_end_take_bounded_memory() {
        let limits = RateLimits::with_clock(None, RateLimit::new(1, 1), FakeRelativeClock::default());
        for number in 0..KEYS_MAX as u32 + 10 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            limits.count_failed_bind(address);
            limits.count_failed_bind(address);
        }
        let rates = limits.addresses.as_ref().expect("limited");
        assert!(rates.admitted.key_count() <= KEYS_MAX + 1 && limits.blocked.lock().len() <= KEYS_MAX);
    }
}
