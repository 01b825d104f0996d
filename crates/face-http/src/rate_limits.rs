//! Rate limits of callers, by the generic cell rate algorithm (GCRA, ITU-T I.371). Each key has its own limit, so that
//! a busy caller delays no other. Requests without a valid key count for their address.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue},
};
use tocsin_pace::rate_limit::{Clock, KeyedRateLimiter, MonotonicClock, RateLimit};
use tocsin_service::{Caller, ServiceError};

/// Address of the client, as counted by the limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Caller whose limit a request counts against.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Partition {
    /// A key, by its id.
    Key(Arc<str>),
    /// A device with its token, by its id.
    Device(String),
    /// A subscriber with an inbox token, by its number.
    Subscriber(u64),
    /// A request without a valid key.
    Address(IpAddr),
    /// A request without a valid key whose address is unknown.
    Unknown,
}

impl Partition {
    pub(crate) fn of(caller: &Caller) -> Partition {
        Partition::Key(caller.key_id())
    }

    /// The name of its policy, and the label of the metric.
    fn word(&self) -> &'static str {
        match self {
            Partition::Key(_) | Partition::Device(_) | Partition::Subscriber(_) => "key",
            Partition::Address(_) | Partition::Unknown => "address",
        }
    }
}

/// The rates of all callers.
pub(crate) struct RateLimits<C: Clock = MonotonicClock> {
    keys: Option<KeyedRateLimiter<Partition, C>>,
    addresses: Option<KeyedRateLimiter<Partition, C>>,
}

/// Remaining quota after a request, for its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    policy: &'static str,
    limit: RateLimit,
    remaining: u32,
    /// Time until the next request is admitted, if this one is refused.
    wait: Option<Duration>,
}

impl RateLimits {
    pub(crate) fn new(keys: Option<RateLimit>, addresses: Option<RateLimit>) -> RateLimits {
        RateLimits::with_clock(keys, addresses, MonotonicClock)
    }
}

impl<C: Clock + Clone> RateLimits<C> {
    fn with_clock(keys: Option<RateLimit>, addresses: Option<RateLimit>, clock: C) -> RateLimits<C> {
        let limiter = |limit| KeyedRateLimiter::with_clock(limit, clock.clone());
        RateLimits { keys: keys.map(limiter), addresses: addresses.map(limiter) }
    }

    /// Counts a request. `None`: there is no limit.
    pub(crate) fn count(&self, partition: Partition) -> Option<Left> {
        let policy = partition.word();
        let of = if policy == "key" { &self.keys } else { &self.addresses };
        let limiter = of.as_ref()?;
        let left = |remaining, wait| Left { policy, limit: limiter.limit(), remaining, wait };
        Some(match limiter.count(partition) {
            Ok(remaining) => left(remaining, None),
            Err(wait) => {
                metrics::counter!("tocsin_http_rate_limited_total", "by" => policy).increment(1);
                left(0, Some(wait))
            }
        })
    }
}

impl Left {
    /// Whether the request is admitted.
    ///
    /// # Errors
    /// `RateLimited`, with the time to wait.
    pub(crate) fn check(&self) -> Result<(), ServiceError> {
        let Some(retry_after) = self.wait else { return Ok(()) };
        let RateLimit { per_second, burst } = self.limit;
        let who = match self.policy {
            "key" => "this key or token",
            _ => "this address without a good key",
        };
        let reason = format!(
            "{who} sent more than {per_second} requests a second, {burst} at once: send fewer, or several things in one request"
        );
        Err(ServiceError::RateLimited { reason, retry_after })
    }

    /// Writes what is left (draft-ietf-httpapi-ratelimit-headers-10): `q` requests in `w` seconds, `r` of them left, and `t`
    /// seconds until there is one again.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let Left { policy, limit, remaining, wait } = self;
        let window = limit.burst.get().div_ceil(limit.per_second.get());
        let reset = wait.map_or(String::new(), |wait| format!(";t={}", wait.as_secs_f64().ceil().max(1.0)));
        for (name, value) in [
            ("ratelimit-policy", format!("\"{policy}\";q={};w={window}", limit.burst)),
            ("ratelimit", format!("\"{policy}\";r={remaining}{reset}")),
        ] {
            let value = HeaderValue::try_from(value).expect("numbers and quoted words are a header value");
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// The address that a request came from.
pub(crate) fn address(request: &Request) -> Partition {
    request.extensions().get::<Peer>().map_or(Partition::Unknown, |peer| Partition::Address(peer.0))
}

#[cfg(test)]
mod tests {
    use tocsin_pace::rate_limit::{FakeRelativeClock, KEYS_MAX};

    use super::*;

    fn key(name: &str) -> Partition {
        Partition::Key(name.into())
    }

    #[test]
    fn i12_a_tenant_that_sends_50_times_as_much_takes_nothing_from_others() {
        // Ten tenants send 10 requests a second each; one sends 500. A key may send 20 a second, 40 at once.
        let clock = FakeRelativeClock::default();
        let limits = RateLimits::with_clock(RateLimit::new(20, 2), None, clock.clone());
        let (seconds, tick) = (60, Duration::from_millis(2));
        let (mut noisy, mut quiet) = ((0, 0), [(0, 0); 10]);
        let count_request = |tenant: Partition, counts: &mut (u32, u32)| {
            let left = limits.count(tenant).expect("keys are limited");
            match left.check() {
                Ok(()) => counts.0 += 1,
                Err(_) => counts.1 += 1,
            }
        };
        for number in 0..seconds * 500 {
            count_request(key("noisy"), &mut noisy);
            if number % 50 == 0 {
                for (tenant, counts) in quiet.iter_mut().enumerate() {
                    count_request(key(&format!("quiet-{tenant}")), counts);
                }
            }
            clock.advance(tick);
        }
        assert_eq!(quiet, [(seconds * 10, 0); 10], "no request of another tenant is refused");
        assert_eq!(noisy.0 + noisy.1, seconds * 500);
        // The burst, and 20 a second: what the server does for all is bounded.
        assert!((seconds * 20..=seconds * 20 + 40).contains(&noisy.0), "{noisy:?}");
    }

    #[test]
    fn i12_a_refused_caller_gets_a_retry_time_and_is_admitted_then() {
        let clock = FakeRelativeClock::default();
        let limits = RateLimits::with_clock(RateLimit::new(2, 5), RateLimit::new(1, 1), clock.clone());
        for left in (0..10).rev() {
            let counted = limits.count(key("a")).expect("limited");
            assert_eq!((counted.remaining, counted.wait), (left, None));
        }
        let refused = limits.count(key("a")).expect("limited");
        assert_eq!(refused.wait, Some(Duration::from_millis(500)));
        let Err(ServiceError::RateLimited { reason, retry_after }) = refused.check() else { panic!("it is let in") };
        assert!(reason.contains("2 requests a second, 10 at once"), "{reason}");
        let mut headers = HeaderMap::new();
        refused.write(&mut headers);
        assert_eq!(headers["ratelimit-policy"], "\"key\";q=10;w=5");
        assert_eq!(headers["ratelimit"], "\"key\";r=0;t=1");
        clock.advance(retry_after);
        assert_eq!(limits.count(key("a")).expect("limited").wait, None);
        // Callers without a valid key have separate limits, by address.
        let address = Partition::Address([192, 0, 2, 1].into());
        assert_eq!(limits.count(address.clone()).expect("limited").wait, None);
        assert!(limits.count(address).expect("limited").check().is_err());
        assert_eq!(limits.count(Partition::Address([192, 0, 2, 2].into())).expect("limited").wait, None);
        assert_eq!(RateLimits::new(None, None).count(key("a")), None);
    }

    #[test]
    fn i12_callers_without_end_take_bounded_memory() {
        let clock = FakeRelativeClock::default();
        let limits = RateLimits::with_clock(None, RateLimit::new(1, 1), clock.clone());
        let address = |number: u32| Partition::Address(std::net::Ipv4Addr::from_bits(number).into());
        for number in 0..KEYS_MAX as u32 {
            assert_eq!(limits.count(address(number)).expect("limited").wait, None);
        }
        assert_eq!(limits.count(address(u32::MAX)).expect("limited").wait, None, "the first of the others");
        assert!(limits.count(address(u32::MAX - 1)).expect("limited").wait.is_some(), "the others share a rate");
        clock.advance(Duration::from_secs(2));
        assert_eq!(
            limits.count(address(u32::MAX - 1)).expect("limited").wait,
            None,
            "those that sent nothing are forgotten"
        );
        assert!(limits.addresses.as_ref().expect("limited").key_count() < 10);
    }
}
