//! Limit of wrong codes and passwords, by record and by client address.
//!
//! An attempt is counted before the comparison, so concurrent attempts cannot exceed the limit; the right code takes
//! its count back. Beyond the limit also the right code is refused until the hour is over.

use std::{collections::HashMap, net::IpAddr};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tocsin_model::time::Timestamp;
use tocsin_pace::rate_limit::network;

/// Wrong attempts for a record within [`WINDOW_MILLIS`].
pub const RECORD_ATTEMPTS_MAX: u32 = 10;
/// Wrong attempts from an address within [`WINDOW_MILLIS`].
pub const ADDRESS_ATTEMPTS_MAX: u32 = 300;
/// Time after which the count begins again.
const WINDOW_MILLIS: i64 = 3_600_000;
/// Most keys with a count. Beyond it, new keys share one count.
const KEYS_MAX: usize = 100_000;
/// Least time between two removals of counts that are over.
const SWEEP_MILLIS: i64 = 60_000;

/// A record or an address has reached its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many wrong codes or passwords")]
pub struct TooManyAttempts;

/// Counts of wrong attempts.
#[derive(Debug, Default)]
pub struct Guesses {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    by_key: HashMap<Key, Count>,
    /// The last removal of counts that are over.
    swept: i64,
}

/// Subject of a count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Digest of the record or account, which a caller can make as long as a body.
    Record([u8; 32]),
    Address(IpAddr),
    OtherRecords,
    OtherAddresses,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    since: i64,
    attempts: u32,
}

impl Guesses {
    /// Counts an attempt for a record or account, from an address.
    ///
    /// # Errors
    /// The record or the address has reached its limit.
    pub(crate) fn count(&self, record: &str, address: IpAddr, now: Timestamp) -> Result<(), TooManyAttempts> {
        let mut counts = self.counts.lock();
        let now = now.as_millis();
        if counts.by_key.len() >= KEYS_MAX && counts.swept + SWEEP_MILLIS <= now {
            counts.by_key.retain(|_, count| count.since + WINDOW_MILLIS > now);
            counts.swept = now;
        }
        // An address beyond its limit neither counts for records nor makes keys.
        for (key, max) in keys(&counts.by_key, record, address) {
            let count = counts.by_key.entry(key).or_insert(Count { since: now, attempts: 0 });
            if count.since + WINDOW_MILLIS <= now {
                *count = Count { since: now, attempts: 0 };
            }
            let is_within = count.attempts < max;
            count.attempts = count.attempts.saturating_add(1);
            if !is_within {
                return Err(TooManyAttempts);
            }
        }
        Ok(())
    }

    /// Takes back the count of an attempt that was right.
    pub(crate) fn forgive(&self, record: &str, address: IpAddr) {
        let mut counts = self.counts.lock();
        for (key, _) in keys(&counts.by_key, record, address) {
            if let Some(count) = counts.by_key.get_mut(&key) {
                count.attempts = count.attempts.saturating_sub(1);
            }
        }
    }
}

/// The keys of an attempt with their limits.
fn keys(counts: &HashMap<Key, Count>, record: &str, address: IpAddr) -> [(Key, u32); 2] {
    let shared = |key: Key, other: Key| if counts.len() < KEYS_MAX || counts.contains_key(&key) { key } else { other };
    let address = shared(Key::Address(network(address)), Key::OtherAddresses);
    let mut record_digest = [0_u8; 32];
    record_digest.copy_from_slice(digest(&SHA256, record.as_bytes()).as_ref());
    [(address, ADDRESS_ATTEMPTS_MAX), (shared(Key::Record(record_digest), Key::OtherRecords), RECORD_ATTEMPTS_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s12_wrong_codes_are_limited_by_record_and_by_address() {
        let guesses = Guesses::default();
        let address = IpAddr::from([192, 0, 2, 1]);
        let at = |minutes: i64| Timestamp::from_millis(minutes * 60_000);
        for _ in 0..RECORD_ATTEMPTS_MAX {
            assert!(guesses.count("a", address, at(0)).is_ok());
        }
        assert_eq!(guesses.count("a", address, at(59)), Err(TooManyAttempts));
        assert!(guesses.count("b", address, at(0)).is_ok(), "another record has its own limit");
        assert!(guesses.count("a", address, at(60)).is_ok(), "an hour later the count begins again");
        let guesses = Guesses::default();
        for number in 0..ADDRESS_ATTEMPTS_MAX {
            assert!(guesses.count(&number.to_string(), address, at(0)).is_ok());
        }
        assert!(guesses.count("new", address, at(0)).is_err(), "the address has its own limit");
        assert!(guesses.count("new", IpAddr::from([192, 0, 2, 2]), at(0)).is_ok());
    }

    #[test]
    fn an_address_beyond_its_limit_makes_no_keys() {
        let (guesses, address) = (Guesses::default(), IpAddr::from([192, 0, 2, 1]));
        let now = Timestamp::from_millis(0);
        for number in 0..2 * ADDRESS_ATTEMPTS_MAX {
            let _ = guesses.count(&number.to_string(), address, now);
        }
        assert_eq!(guesses.counts.lock().by_key.len(), ADDRESS_ATTEMPTS_MAX as usize + 1);
        let owner = IpAddr::from([192, 0, 2, 2]);
        for _ in 0..RECORD_ATTEMPTS_MAX {
            assert!(guesses.count("other", address, now).is_err());
        }
        assert!(guesses.count("other", owner, now).is_ok(), "it does not use up the attempts of a record");
    }

    #[test]
    fn a_right_code_is_not_counted() {
        let (guesses, address) = (Guesses::default(), IpAddr::from([192, 0, 2, 1]));
        for _ in 0..10 * RECORD_ATTEMPTS_MAX {
            assert!(guesses.count("a", address, Timestamp::from_millis(0)).is_ok());
            guesses.forgive("a", address);
        }
    }
}
