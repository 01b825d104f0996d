//! Assignment of messages to partitions.
//!
//! The id of a message contains its partition. Ids increase across all partitions in order of receipt; their low bits
//! are the partition number. Ids assigned before there were partitions belong to the first.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::RwLock;
use ring::digest;
use tocsin_model::id::{MessageId, Name};

use crate::spool::PartitionNumber;

/// Bits of an id that hold its partition.
const BITS: u32 = 4;
/// Maximum number of partitions.
pub const PARTITIONS_MAX: u8 = 1 << BITS;

/// Assigns ids and partitions.
pub(super) struct PartitionAssignment {
    count: u8,
    /// Ids up to this one belong to the first partition and contain no number; `None`: all ids.
    dense: Option<u64>,
    /// Next id, without the bits of its partition.
    next: AtomicU64,
    turn: AtomicU64,
    /// Partition counts used for keys before, as long as messages from then may exist.
    before: Vec<u8>,
    /// Home partitions of receive ports whose messages stay together.
    homes: RwLock<BTreeMap<(Name, Name), PartitionNumber>>,
}

/// Initial state of an assignment.
pub(super) struct AssignmentState {
    pub count: u8,
    pub dense: Option<u64>,
    /// Highest message id ever assigned.
    pub last: u64,
    pub before: Vec<u8>,
    pub homes: BTreeMap<(Name, Name), PartitionNumber>,
}

impl PartitionAssignment {
    pub fn new(AssignmentState { count, dense, last, before, homes }: AssignmentState) -> PartitionAssignment {
        let next = if dense.is_some() { (last >> BITS) + 1 } else { last + 1 };
        PartitionAssignment {
            count,
            dense,
            next: next.into(),
            turn: AtomicU64::new(0),
            before,
            homes: RwLock::new(homes),
        }
    }

    /// Partition of an id. An impossible id gets the first partition, which has no such message.
    pub fn of(&self, id: MessageId) -> PartitionNumber {
        match self.dense {
            Some(dense) if id.0 > dense => {
                let said = (id.0 & u64::from(PARTITIONS_MAX - 1)) as u8;
                PartitionNumber(if said < self.count { said } else { 0 })
            }
            _ => PartitionNumber(0),
        }
    }

    pub fn next_id(&self, partition: PartitionNumber) -> MessageId {
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        MessageId(match self.dense {
            Some(_) => number << BITS | u64::from(partition.0),
            None => number,
        })
    }

    pub fn ids_before(&self, id: MessageId, count: u64) -> MessageId {
        let step = if self.dense.is_some_and(|dense| id.0 > dense) { 1 << BITS } else { 1 };
        MessageId(id.0.saturating_sub(count * step))
    }

    /// Distance between consecutive ids.
    fn step(&self) -> u64 {
        if self.dense.is_some() { 1 << BITS } else { 1 }
    }

    /// Last of the next `count` ids.
    pub fn ids_ahead(&self, count: u64) -> MessageId {
        MessageId(self.horizon().0 + count * self.step())
    }

    /// Lower bound of all ids assigned after this call.
    pub fn horizon(&self) -> MessageId {
        let number = self.next.load(Ordering::Acquire);
        MessageId(if self.dense.is_some() { number << BITS } else { number })
    }

    /// Round-robin partition for messages without affinity.
    pub fn in_turn(&self) -> PartitionNumber {
        PartitionNumber((self.turn.fetch_add(1, Ordering::Relaxed) % u64::from(self.count)) as u8)
    }

    /// Partition of messages with a caller's key.
    pub fn of_key(&self, exchange: &Name, port: &Name, key: &str) -> PartitionNumber {
        match self.count {
            1 => PartitionNumber(0),
            count => among(hash(&[exchange.as_str(), port.as_str(), key]), count),
        }
    }

    /// Other partitions that may hold a message with this key, from a time with another number of partitions or
    /// another home of the port.
    pub fn former_of_key(&self, exchange: &Name, port: &Name, key: &str) -> BTreeSet<PartitionNumber> {
        if self.count == 1 && self.before.is_empty() {
            return BTreeSet::new();
        }
        let hash = hash(&[exchange.as_str(), port.as_str(), key]);
        let counts = self.before.iter().chain([&self.count]);
        let of_hash = counts.map(|count| among(hash, *count));
        of_hash.chain(self.home(exchange, port)).filter(|partition| partition.0 < self.count).collect()
    }

    /// Home partition of a port, if it has one.
    pub fn home(&self, exchange: &Name, port: &Name) -> Option<PartitionNumber> {
        self.homes.read().get(&(exchange.clone(), port.clone())).copied()
    }

    /// Home partition for a port that has none yet.
    pub fn new_home(&self, exchange: &Name, port: &Name) -> PartitionNumber {
        among(hash(&[exchange.as_str(), port.as_str()]), self.count)
    }

    pub fn remember_home(&self, exchange: Name, port: Name, home: PartitionNumber) {
        self.homes.write().insert((exchange, port), home);
    }
}

fn among(hash: u64, count: u8) -> PartitionNumber {
    PartitionNumber((hash % u64::from(count.max(1))) as u8)
}

/// Must be stable across versions: stored messages are looked up by it.
fn hash(texts: &[&str]) -> u64 {
    let digest = digest::digest(&digest::SHA256, texts.join("\0").as_bytes());
    u64::from_be_bytes(digest.as_ref()[..8].try_into().expect("SHA-256 has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment(count: u8, dense: Option<u64>, last: u64) -> PartitionAssignment {
        PartitionAssignment::new(AssignmentState { count, dense, last, before: vec![1], homes: BTreeMap::new() })
    }

    #[test]
    fn ids_increase_and_contain_their_partition() {
        let one = assignment(1, None, 41);
        assert_eq!((one.next_id(PartitionNumber(0)), one.of(MessageId(47))), (MessageId(42), PartitionNumber(0)));
        assert_eq!(one.ids_ahead(10), MessageId(53));
        let three = assignment(3, Some(47), 47);
        let mut last = MessageId(47);
        assert_eq!(three.of(last), PartitionNumber(0), "it is from before");
        for number in 0..100 {
            let partition = PartitionNumber(number % 3);
            let id = three.next_id(partition);
            assert!(id > last && id < three.horizon());
            assert_eq!(three.of(id), partition);
            last = id;
        }
        let ahead = three.ids_ahead(10);
        (0..10).for_each(|number| assert!(three.next_id(PartitionNumber(number % 3)) <= ahead));
        assert_eq!(three.of(MessageId(u64::MAX)), PartitionNumber(0));
        assert!(assignment(5, Some(47), last.0).next_id(PartitionNumber(0)) > last);
    }

    #[test]
    fn keys_are_found_in_former_partitions() {
        let (exchange, port) = ("e".parse().expect("a name"), "p".parse().expect("a name"));
        let (before, now) = (assignment(3, Some(0), 0), |counts: &[u8]| {
            let beginning =
                AssignmentState { count: 5, dense: Some(0), last: 0, before: counts.to_vec(), homes: BTreeMap::new() };
            PartitionAssignment::new(beginning)
        });
        let mut moved = 0;
        for number in 0..100 {
            let key = format!("k{number}");
            let (was, is) = (before.of_key(&exchange, &port, &key), now(&[]).of_key(&exchange, &port, &key));
            moved += u32::from(was != is);
            let looked = now(&[1, 3]).former_of_key(&exchange, &port, &key);
            assert!(looked.contains(&was) && looked.contains(&is) && looked.contains(&PartitionNumber(0)), "{key}");
        }
        assert!(moved > 0);
        assert!(assignment(1, None, 0).former_of_key(&exchange, &port, "k").len() <= 1);
    }
}
