//! Rate limits of requests, by the generic cell rate algorithm (GCRA, ITU-T I.371). Each bound identity has its own
//! limit, over all its connections. Requests without a bind, and failed binds, count for their address.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, MonotonicClock},
    middleware::StateInformationMiddleware,
    state::keyed::DashMapStateStore,
};
use parking_lot::Mutex;

/// Maximum callers with their own rate; further ones share one.
const CALLERS_KEPT: usize = 100_000;
/// Number of requests after which idle callers are removed.
const FORGET_EVERY: u32 = 65_536;
/// Refused requests per admitted one above which a caller is disconnected.
const EXCESS: NonZeroU32 = NonZeroU32::new(10).expect("not zero");

/// The most requests of a caller: `per_second`, and `burst` at once after a pause.
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
}

/// The caller that a request counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Partition {
    Identity(Arc<str>),
    Address(IpAddr),
    /// All callers beyond [`CALLERS_KEPT`].
    Others,
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

type Limiter<C> = RateLimiter<Partition, DashMapStateStore<Partition>, C, StateInformationMiddleware>;

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
    limit: RateLimit,
    /// Label of the metric.
    by: &'static str,
    admitted: Limiter<C>,
    refused: Limiter<C>,
    requests: AtomicU32,
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
            Some(until) if *until > self.clock.now() => rates.refuse(&Partition::Address(address)),
            Some(_) => {
                blocked.remove(&address);
                Admission::Admitted
            }
        }
    }

    /// Counts a failed bind.
    pub(crate) fn count_failed_bind(&self, address: IpAddr) {
        let Some(rates) = &self.addresses else { return };
        let partition = rates.kept(Partition::Address(address));
        if let Err(not_until) = rates.admitted.check_key(&partition) {
            let (mut blocked, now) = (self.blocked.lock(), self.clock.now());
            if blocked.len() >= CALLERS_KEPT {
                blocked.retain(|_, until| *until > now);
            }
            if blocked.len() < CALLERS_KEPT {
                blocked.insert(address, not_until.earliest_possible());
            }
        }
    }
}

impl<C: Clock + Clone> CallerRates<C> {
    fn new(limit: RateLimit, by: &'static str, clock: &C) -> CallerRates<C> {
        let limiter = |times: NonZeroU32| {
            let quota = Quota::per_second(limit.per_second.saturating_mul(times));
            let quota = quota.allow_burst(limit.burst.saturating_mul(times));
            Limiter::<C>::new(quota, DashMapStateStore::default(), clock.clone())
        };
        CallerRates {
            limit,
            by,
            admitted: limiter(NonZeroU32::MIN),
            refused: limiter(EXCESS),
            requests: AtomicU32::new(0),
        }
    }

    fn count(&self, partition: Partition) -> Admission {
        let partition = self.kept(partition);
        match self.admitted.check_key(&partition) {
            Ok(_) => Admission::Admitted,
            Err(_) => self.refuse(&partition),
        }
    }

    fn refuse(&self, partition: &Partition) -> Admission {
        metrics::counter!("tocsin_ldap_rate_limited_total", "by" => self.by).increment(1);
        match self.refused.check_key(partition) {
            Ok(_) => Admission::Busy(self.limit),
            Err(_) => Admission::Excessive,
        }
    }

    /// The partition of a caller; [`Partition::Others`] if there are too many.
    fn kept(&self, partition: Partition) -> Partition {
        let forget = || {
            self.admitted.retain_recent();
            self.refused.retain_recent();
        };
        if self.admitted.len() >= CALLERS_KEPT {
            forget();
            if self.admitted.len() >= CALLERS_KEPT {
                return Partition::Others;
            }
        } else if self.requests.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            forget();
        }
        partition
    }
}

/// The address that limits count: an IPv4 address, or the /64 network of an IPv6 address, which one host usually has
/// for itself.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use governor::clock::FakeRelativeClock;

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
        for number in 0..CALLERS_KEPT as u32 + 10 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            limits.count_failed_bind(address);
            limits.count_failed_bind(address);
        }
        let rates = limits.addresses.as_ref().expect("limited");
        assert!(rates.admitted.len() <= CALLERS_KEPT + 1 && limits.blocked.lock().len() <= CALLERS_KEPT);
    }

    #[test]
    fn d_an_ipv6_network_counts_as_one_address() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1:2:3"), of("2001:db8::9"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), ADDRESS);
        assert_eq!(of("::1"), "::1".parse::<IpAddr>().expect("an address"));
    }
}
