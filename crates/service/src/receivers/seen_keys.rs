//! Replay protection: keys of accepted webhooks, each for the replay window of its receiver.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use parking_lot::Mutex;
use tocsin_model::time::Timestamp;

/// Most keys in memory. Beyond it, the key whose window ends first is forgotten.
pub const KEYS_MAX: usize = 200_000;

/// Keys of accepted webhooks, as hashes with secret seeds.
///
/// They are in memory. After a restart, a repeated event has no effect either, since its key is in the log of feedback.
pub(super) struct SeenKeys {
    hashers: [RandomState; 2],
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Keys {
    /// End of the window, and whether the webhook is still processed.
    ends: HashMap<u128, (Timestamp, bool)>,
    by_end: BTreeMap<(Timestamp, u128), ()>,
}

/// A key whose webhook is processed. Dropping it without [`Reservation::keep`] forgets the key, so that the provider
/// can send the webhook again.
pub(super) struct Reservation<'a> {
    seen: &'a SeenKeys,
    key: u128,
    is_kept: bool,
}

/// A webhook that is not accepted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReservationError {
    /// It was accepted before.
    Accepted,
    /// Another request with the same key is processed.
    InProgress,
}

impl Default for SeenKeys {
    fn default() -> Self {
        SeenKeys { hashers: [RandomState::new(), RandomState::new()], keys: Mutex::default() }
    }
}

impl SeenKeys {
    /// Reserves a key of a receiver until `now + window`.
    ///
    /// # Errors
    /// The key is known.
    pub fn reserve(
        &self,
        receiver: &str,
        key: &str,
        window: Duration,
        now: Timestamp,
    ) -> Result<Reservation<'_>, ReservationError> {
        let [one, other] = &self.hashers;
        let what = (receiver, key);
        let key = u128::from(one.hash_one(what)) << 64 | u128::from(other.hash_one(what));
        let mut keys = self.keys.lock();
        keys.forget_until(now);
        if let Some((_, is_open)) = keys.ends.get(&key) {
            return Err(if *is_open { ReservationError::InProgress } else { ReservationError::Accepted });
        }
        if keys.ends.len() >= KEYS_MAX {
            keys.forget_first();
        }
        let end = now + window;
        keys.ends.insert(key, (end, true));
        keys.by_end.insert((end, key), ());
        Ok(Reservation { seen: self, key, is_kept: false })
    }
}

impl Keys {
    fn forget_until(&mut self, now: Timestamp) {
        while self.by_end.first_key_value().is_some_and(|((end, _), ())| *end <= now) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(((_, key), ())) = self.by_end.pop_first() {
            self.ends.remove(&key);
        }
    }
}

impl Reservation<'_> {
    /// Keeps the key: the webhook was processed.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut keys = self.seen.keys.lock();
        match (self.is_kept, keys.ends.get_mut(&self.key)) {
            (true, Some((_, is_open))) => *is_open = false,
            (false, Some((end, _))) => {
                let end = *end;
                keys.ends.remove(&self.key);
                keys.by_end.remove(&(end, self.key));
            }
            (_, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_accepted_once_within_its_window() {
        let (seen, window) = (SeenKeys::default(), Duration::from_secs(60));
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1_000);
        let reserve = |receiver: &str, key: &str, seconds| seen.reserve(receiver, key, window, at(seconds));
        let first = reserve("shop/mail", "a", 0).map_err(drop).expect("new");
        assert_eq!(reserve("shop/mail", "a", 1).err(), Some(ReservationError::InProgress));
        drop(first);
        reserve("shop/mail", "a", 2).map_err(drop).expect("the first failed").keep();
        assert_eq!(reserve("shop/mail", "a", 3).err(), Some(ReservationError::Accepted));
        assert!(reserve("shop/other", "a", 3).is_ok(), "another receiver");
        assert!(reserve("shop/mail", "a", 62).is_ok(), "the window is over");
        assert!(seen.keys.lock().ends.is_empty() && seen.keys.lock().by_end.is_empty());
    }

    #[test]
    fn the_number_of_keys_is_bounded() {
        let (seen, now) = (SeenKeys::default(), Timestamp::from_millis(0));
        for number in 0..KEYS_MAX + 10 {
            let window = Duration::from_secs(60 + number as u64);
            seen.reserve("r", &number.to_string(), window, now).map_err(drop).expect("new").keep();
        }
        assert_eq!(seen.keys.lock().ends.len(), KEYS_MAX);
        assert!(seen.reserve("r", "0", Duration::from_secs(1), now).is_ok(), "the first window ended first");
        assert!(seen.reserve("r", &KEYS_MAX.to_string(), Duration::from_secs(1), now).is_err());
    }
}
