//! Connection limits: in total, per address, and a reserve for health checks.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use tocsin_pace::rate_limit::network;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The connections that are open, and how many may be.
pub struct Seats {
    all: Arc<Semaphore>,
    all_max: u32,
    health: Arc<Semaphore>,
    per_address_max: usize,
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// The requests that a connection may make.
#[derive(Debug)]
pub enum Seat {
    /// Everything. Both are held until the connection ends.
    Full(OwnedSemaphorePermit, AddressCount),
    /// Health checks only: a limit is reached. Held until the connection ends.
    Health(OwnedSemaphorePermit),
}

/// One connection of an address; counted until it is dropped.
#[derive(Debug)]
pub struct AddressCount {
    address: IpAddr,
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Seats {
    /// Seats with these limits: in total, per address, and beyond them for health checks.
    pub fn new(all: usize, per_address: usize, health: usize) -> Seats {
        let all = all.min(Semaphore::MAX_PERMITS);
        Seats {
            all: Arc::new(Semaphore::new(all)),
            all_max: u32::try_from(all).unwrap_or(u32::MAX),
            health: Arc::new(Semaphore::new(health)),
            per_address_max: per_address,
            by_address: Arc::default(),
        }
    }

    /// A seat for a connection from this address; `None` if not even a health check has room.
    pub fn take(&self, peer: IpAddr) -> Option<Seat> {
        if let Some(counted) = self.count(network(peer))
            && let Ok(permit) = self.all.clone().try_acquire_owned()
        {
            return Some(Seat::Full(permit, counted));
        }
        self.health.clone().try_acquire_owned().ok().map(Seat::Health)
    }

    fn count(&self, address: IpAddr) -> Option<AddressCount> {
        let mut by_address = self.by_address.lock();
        let count = by_address.entry(address).or_default();
        if *count >= self.per_address_max {
            return None;
        }
        *count += 1;
        Some(AddressCount { address, by_address: self.by_address.clone() })
    }

    /// Waits until every full seat is free.
    pub async fn all_free(&self) {
        // The semaphore is never closed.
        let _ = self.all.acquire_many(self.all_max).await;
    }
}

impl Drop for AddressCount {
    fn drop(&mut self) {
        let mut by_address = self.by_address.lock();
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn a20_an_address_has_its_share_and_health_checks_have_a_reserve() {
        let seats = Seats::new(3, 2, 1);
        let one = address("192.0.2.1");
        let first = seats.take(one);
        let second = seats.take(address("::ffff:192.0.2.1"));
        assert!(matches!((&first, &second), (Some(Seat::Full(..)), Some(Seat::Full(..)))));
        let third = seats.take(one);
        assert!(matches!(third, Some(Seat::Health(_))), "the share of the address is used up");
        assert!(seats.take(one).is_none(), "so is the reserve");
        drop(third);
        let other = seats.take(address("192.0.2.2"));
        assert!(matches!(other, Some(Seat::Full(..))), "another address has its own share");
        assert!(matches!(seats.take(address("192.0.2.3")), Some(Seat::Health(_))), "no seat is left in all");
        drop(first);
        assert!(matches!(seats.take(one), Some(Seat::Full(..))), "a seat that is free again is given again");
        drop((second, other));
        assert_eq!(seats.by_address.lock().len(), 0, "no address without connections is kept");
    }

    #[test]
    fn a20_hosts_of_ipv6_are_counted_by_their_network() {
        assert_eq!(network(address("2001:db8::1")), network(address("2001:db8::ffff")));
        assert_ne!(network(address("2001:db8::1")), network(address("2001:db8:0:1::1")));
        assert_eq!(network(address("::1")), address("::1"));
    }
}
