//! In-memory cache of suppressed addresses, checked before every attempt: addresses that bounced or complained get no
//! messages.
//!
//! The cache is complete, at about 50 bytes per address. It is brought up to the newest change sequence before each
//! chunk of notifications; without changes that is one comparison.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
};

use parking_lot::RwLock;
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberId},
    suppression::{Cause, Policy, Suppression, Target, bound, canonical, reply_address},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    records::{ChangeKind, SuppressionFilter, SuppressionStore},
};

/// Suppressions read at a time.
const PAGE: usize = 5_000;
/// Changes read at a time.
const CHANGES: usize = 100;

/// The cache, and the policy by which critical notifications bypass it.
pub(crate) struct Suppressions {
    policy: Policy,
    /// Two hashes of a target make its key. Their seeds are secrets of the process, which prevents chosen collisions.
    hashers: [RandomState; 2],
    known: RwLock<SuppressionCache>,
    following: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct SuppressionCache {
    /// All changes up to here are in the cache.
    place: ChangeSequence,
    marks: HashMap<u128, Mark>,
}

/// A suppression in force.
#[derive(Debug, Clone, Copy)]
struct Mark {
    cause: Cause,
    ends: Option<Timestamp>,
    /// For a device suppressed at one address only: the hash of that address.
    address: Option<u64>,
}

/// Destination of a notification about to be sent.
pub(crate) struct Destination<'a> {
    pub protocol: &'a Name,
    pub application: &'a Name,
    pub channel: &'a Name,
    pub address: &'a str,
    pub subscriber: &'a SubscriberId,
    pub device: &'a Name,
}

impl Suppressions {
    /// An empty cache.
    pub fn new(policy: Policy) -> Self {
        let hashers = [RandomState::new(), RandomState::new()];
        Suppressions { policy, hashers, known: RwLock::default(), following: tokio::sync::Mutex::default() }
    }

    /// Policy that decides how reports suppress an address.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether nothing is suppressed, which is the usual case.
    pub fn is_empty(&self) -> bool {
        self.known.read().marks.is_empty()
    }

    /// The most severe cause why this destination is suppressed. Notifications of critical classes bypass some
    /// causes, as the policy says.
    pub fn cause(&self, to: &Destination<'_>, critical: bool, now: Timestamp) -> Option<Cause> {
        let known = self.known.read();
        let address = canonical(to.protocol, to.address);
        let by_address = known.marks.get(&self.address_key(to.protocol, &address));
        let by_device = known.marks.get(&self.device_key(to.subscriber, to.device));
        let by_channel = known.marks.get(&self.channel_key(to.application, to.channel, &reply_address(to.address)));
        let has = |hash| self.hashers[0].hash_one(bound(to.address)) == hash;
        let by_device = by_device.filter(|mark| mark.address.is_none_or(has));
        let holds =
            |mark: &&Mark| mark.ends.is_none_or(|end| now < end) && !(critical && self.policy.ignores(mark.cause));
        by_address.into_iter().chain(by_channel).chain(by_device).filter(holds).map(|mark| mark.cause).max()
    }

    /// Applies the changes since the last call.
    ///
    /// # Errors
    /// The records failed; nothing may be sent until they answer.
    pub async fn refresh(&self, records: &dyn SuppressionStore) -> Result<(), StoreError> {
        if records.newest_suppression() <= self.known.read().place {
            return Ok(());
        }
        let _one_at_a_time = self.following.lock().await;
        loop {
            let place = self.known.read().place;
            if records.newest_suppression() <= place {
                return Ok(());
            }
            let changes = match records.suppression_changes(place, CHANGES).await {
                Ok(changes) => changes,
                Err(StoreError::Missing(_)) => return self.load(records).await,
                Err(error) => return Err(error),
            };
            let Some(last) = changes.last().map(|last| last.sequence) else { return Ok(()) };
            for change in changes {
                let ChangeKind::Suppressions(targets) = change.what else { continue };
                for target in targets {
                    // The current state, which is at least as new as the change.
                    let found = records.suppression(&target).await?;
                    self.put(&mut self.known.write(), &target, found);
                }
            }
            let mut known = self.known.write();
            known.place = last;
            metrics::gauge!("tocsin_deliver_suppressions").set(known.marks.len() as f64);
        }
    }

    /// Reads all suppressions.
    ///
    /// # Errors
    /// The records failed.
    pub async fn load(&self, records: &dyn SuppressionStore) -> Result<(), StoreError> {
        let mut fresh = SuppressionCache { place: *records.newest_change().borrow(), ..SuppressionCache::default() };
        let filter = SuppressionFilter { in_force: Some(true), ..SuppressionFilter::all(Timestamp(i64::MIN)) };
        let mut after: Option<Target> = None;
        loop {
            let page = records.suppressions(&filter, after.as_ref(), PAGE).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|last| last.target.clone());
            for found in page {
                self.put(&mut fresh, &found.target.clone(), Some(found));
            }
            if is_last {
                break;
            }
        }
        metrics::gauge!("tocsin_deliver_suppressions").set(fresh.marks.len() as f64);
        *self.known.write() = fresh;
        Ok(())
    }

    fn put(&self, known: &mut SuppressionCache, target: &Target, found: Option<Suppression>) {
        let key = match target {
            // Canonicalized again: an earlier version may have stored the address in another form.
            Target::Address { protocol, address } => self.address_key(protocol, &canonical(protocol, address)),
            Target::Channel { application, channel, address } => self.channel_key(application, channel, address),
            Target::Device { subscriber, device } => self.device_key(subscriber, device),
        };
        match found.filter(|found| found.in_force) {
            Some(Suppression { cause, expires_at: ends, address, .. }) => {
                let address = address.map(|address| self.hashers[0].hash_one(bound(&address)));
                known.marks.insert(key, Mark { cause, ends, address });
            }
            None => drop(known.marks.remove(&key)),
        }
    }

    fn address_key(&self, protocol: &Name, canonical: &str) -> u128 {
        self.key((0u8, protocol.as_str(), canonical))
    }

    fn device_key(&self, subscriber: &SubscriberId, device: &Name) -> u128 {
        self.key((1u8, subscriber.as_str(), device.as_str()))
    }

    fn channel_key(&self, application: &Name, channel: &Name, reply_address: &str) -> u128 {
        self.key((2u8, application.as_str(), channel.as_str(), reply_address))
    }

    fn key(&self, what: impl Hash) -> u128 {
        let [one, other] = &self.hashers;
        u128::from(one.hash_one(&what)) << 64 | u128::from(other.hash_one(&what))
    }
}

#[cfg(test)]
mod tests {
    use tocsin_store::memory::records::MemoryRecords;

    use super::*;

    #[tokio::test]
    async fn changes_are_applied_before_the_next_check() {
        let records = MemoryRecords::with_changes_kept(10).expect("records in memory");
        let suppressions = Suppressions::new(Policy::default());
        suppressions.load(&records).await.expect("loaded");
        let now = Timestamp::from_millis(1);
        let (mail, device): (Name, Name) = ("smtp".parse().expect("a name"), "home".parse().expect("a name"));
        let ann: SubscriberId = "ann".parse().expect("an id");
        let (shop, home_channel): (Name, Name) = ("shop".parse().expect("a name"), "sms".parse().expect("a name"));
        let cause = async |address: &str, critical| {
            suppressions.refresh(&records).await.expect("followed");
            let to = Destination {
                protocol: &mail,
                application: &shop,
                channel: &home_channel,
                address,
                subscriber: &ann,
                device: &device,
            };
            suppressions.cause(&to, critical, now)
        };
        let report = async |target: Target, address: Option<&str>, cause| {
            let suppression = Suppression {
                target,
                address: address.map(str::to_owned),
                cause,
                in_force: cause != Cause::SoftBounce,
                origin: "t".to_owned(),
                detail: String::new(),
                notification: None,
                bounces: Vec::new(),
                since: now,
                updated_at: now,
                expires_at: None,
            };
            records.put_suppressions(vec![suppression]).await.expect("stored");
        };
        assert_eq!(cause("a@b.example", false).await, None);
        report(Target::address(&mail, "A@b.example"), None, Cause::HardBounce).await;
        assert_eq!(cause("a@B.example", false).await, Some(Cause::HardBounce));
        assert_eq!(cause("a@B.example", true).await, Some(Cause::HardBounce));
        report(Target::address(&mail, "soft@b.example"), None, Cause::SoftBounce).await;
        assert_eq!(cause("soft@b.example", false).await, None, "one soft bounce does no harm");
        let spellings = [
            ("u@müller.example", "u@xn--mller-kva.example"),
            ("v@xn--mller-kva.example", "v@müller.example"),
            ("w@example.org", "<w@example.org>"),
            ("x@straße.example", "x@xn--strae-oqa.example"),
            ("y@日本語。jp", "y@日本語.jp"),
            ("jose\u{301}@b.example", "José@b.example"),
        ];
        for (device, reported) in spellings {
            report(Target::address(&mail, reported), None, Cause::HardBounce).await;
            assert_eq!(cause(device, false).await, Some(Cause::HardBounce), "{device} {reported}");
        }
        // As an earlier version stored it.
        let former = Target::Address { protocol: mail.clone(), address: "z@müller.example".to_owned() };
        report(former, None, Cause::HardBounce).await;
        assert_eq!(cause("z@xn--mller-kva.example", false).await, Some(Cause::HardBounce));
        let home = Target::Device { subscriber: ann.clone(), device: device.clone() };
        report(home.clone(), Some("x@b.example"), Cause::Complaint).await;
        assert_eq!(cause("X@b.example", false).await, Some(Cause::Complaint));
        assert_eq!(cause("y@b.example", false).await, None, "the device has another address now");
        records.remove_suppression(&home).await.expect("removed");
        assert_eq!(cause("x@b.example", false).await, None);
        report(Target::channel(&shop, &home_channel, "+49 170 1234567"), None, Cause::Unsubscribed).await;
        assert_eq!(cause("0049170-1234567", true).await, Some(Cause::Unsubscribed));
        assert_eq!(cause("+491701234568", false).await, None);
        let other: Name = "bank".parse().expect("a name");
        report(Target::channel(&other, &home_channel, "+491701234568"), None, Cause::Unsubscribed).await;
        assert_eq!(cause("+491701234568", false).await, None, "another application's channel");
    }
}
