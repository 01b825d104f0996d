//! Lockout: limits failed logins by name and client network, and by client network alone.
//!
//! A login is counted before the comparison, so that concurrent attempts cannot exceed the limit; a right password
//! clears the count of its name.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tocsin_model::time::Timestamp;
use tocsin_pace::rate_limit::network;

/// Failed logins of a name from a network, within [`WINDOW`], after which they are locked.
pub const NAME_FAILURES_MAX: u32 = 10;
/// Failed logins from a network for all names, within [`WINDOW`].
pub const NETWORK_FAILURES_MAX: u32 = 100;
/// Time in which failures are counted, and duration of the lock.
pub const WINDOW: Duration = Duration::from_secs(15 * 60);
/// Maximum number of counts; beyond it, further ones share a count.
const COUNTS_MAX: usize = 50_000;
/// Minimum time between two removals of counts that are over.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Counts of failed logins.
#[derive(Default)]
pub(super) struct Lockout {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    by_key: HashMap<Key, Count>,
    /// The last removal of counts that are over.
    swept_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Digest of the name, which a client can make as long as a body.
    Name([u8; 32], Option<IpAddr>),
    Network(Option<IpAddr>),
    OtherNames,
    OtherNetworks,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    since: Timestamp,
    failures: u32,
    locked_until: Option<Timestamp>,
}

impl Lockout {
    /// Counts a login.
    ///
    /// # Errors
    /// It is locked for this time.
    pub(super) fn count(&self, name: &str, address: Option<IpAddr>, now: Timestamp) -> Result<(), Duration> {
        let mut counts = self.counts.lock();
        if counts.by_key.len() >= COUNTS_MAX && counts.swept_at + SWEEP_INTERVAL <= now {
            counts.by_key.retain(|_, count| !count.is_over(now));
            counts.swept_at = now;
        }
        for (key, max) in keys(&counts.by_key, name, address) {
            let fresh = Count { since: now, failures: 0, locked_until: None };
            let count = counts.by_key.entry(key).or_insert(fresh);
            if count.is_over(now) {
                *count = fresh;
            }
            if let Some(until) = count.locked_until {
                return Err(until.since(now));
            }
            count.failures += 1;
            if count.failures >= max {
                count.locked_until = Some(now + WINDOW);
            }
        }
        Ok(())
    }

    /// Clears the count of a name after a right password.
    pub(super) fn clear(&self, name: &str, address: Option<IpAddr>) {
        let counts = &mut self.counts.lock().by_key;
        let [(by_network, max), (by_name, _)] = keys(counts, name, address);
        counts.remove(&by_name);
        if let Some(count) = counts.get_mut(&by_network) {
            count.failures = count.failures.saturating_sub(1);
            if count.failures < max {
                count.locked_until = None;
            }
        }
    }
}

impl Count {
    fn is_over(&self, now: Timestamp) -> bool {
        self.locked_until.unwrap_or(self.since + WINDOW) <= now
    }
}

/// The counts of a login with their limits. A network beyond its limit makes no counts of names.
fn keys(counts: &HashMap<Key, Count>, name: &str, address: Option<IpAddr>) -> [(Key, u32); 2] {
    let shared = |key: Key, other: Key| {
        if counts.len() < COUNTS_MAX || counts.contains_key(&key) { key } else { other }
    };
    let address = address.map(network);
    let name = digest(&SHA256, name.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes");
    [
        (shared(Key::Network(address), Key::OtherNetworks), NETWORK_FAILURES_MAX),
        (shared(Key::Name(name, address), Key::OtherNames), NAME_FAILURES_MAX),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));
    const AWAY: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1)));

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_millis(minutes * 60_000)
    }

    #[test]
    fn ten_failures_lock_a_name_from_its_network_for_fifteen_minutes() {
        let lockout = Lockout::default();
        for minute in 0..10 {
            assert_eq!(lockout.count("ada", HOME, at(minute)), Ok(()), "{minute}");
        }
        assert_eq!(lockout.count("ada", HOME, at(10)), Err(Duration::from_secs(14 * 60)));
        assert_eq!(lockout.count("ada", AWAY, at(10)), Ok(()), "the lock is for the network of the failures");
        assert_eq!(lockout.count("bob", HOME, at(10)), Ok(()));
        assert!(lockout.count("ada", HOME, at(23)).is_err(), "attempts while locked do not extend the lock");
        assert_eq!(lockout.count("ada", HOME, at(24)), Ok(()));
    }

    #[test]
    fn failures_are_counted_for_fifteen_minutes_and_cleared_by_a_right_password() {
        let lockout = Lockout::default();
        for _ in 0..9 {
            assert_eq!(lockout.count("ada", HOME, at(0)), Ok(()));
        }
        for _ in 0..9 {
            assert_eq!(lockout.count("ada", HOME, at(15)), Ok(()), "the count began again");
        }
        assert_eq!(lockout.count("ada", HOME, at(16)), Ok(()));
        lockout.clear("ada", HOME);
        for _ in 0..10 {
            assert_eq!(lockout.count("ada", HOME, at(16)), Ok(()));
        }
        assert!(lockout.count("ada", HOME, at(16)).is_err());
    }

    #[test]
    fn a_network_is_locked_for_all_names_and_the_memory_is_bounded() {
        let lockout = Lockout::default();
        for number in 0..NETWORK_FAILURES_MAX {
            assert_eq!(lockout.count(&number.to_string(), HOME, at(0)), Ok(()));
        }
        assert!(lockout.count("new", HOME, at(0)).is_err());
        assert_eq!(lockout.counts.lock().by_key.len(), NETWORK_FAILURES_MAX as usize + 1);
        assert_eq!(lockout.count("new", AWAY, at(0)), Ok(()));
        for number in 0..2 * COUNTS_MAX as u32 {
            let _ = lockout.count("x", Some(std::net::Ipv4Addr::from_bits(number).into()), at(0));
        }
        assert!(lockout.counts.lock().by_key.len() <= COUNTS_MAX + 3);
    }
}
