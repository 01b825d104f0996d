//! Subscription ids by slot. Ids and slots are both assigned in order, so an id is mostly its slot plus a constant:
//! such blocks store only the constant.

use tocsin_model::id::SubscriptionId;

/// Slots of a block.
const BLOCK: usize = 1024;

/// Ids by slot.
#[derive(Debug, Default)]
pub struct Ids {
    blocks: Vec<Block>,
    /// The difference between id and slot, if it is the same for every slot.
    shift: Option<u64>,
}

#[derive(Debug)]
enum Block {
    /// The difference between id and slot.
    Shift(u64),
    /// The lowest difference, and for each slot the distance from it.
    Near(u64, Box<[u32; BLOCK]>),
    Far(Box<[u64; BLOCK]>),
}

impl Block {
    fn put(&mut self, block: usize, place: usize, id: u64) {
        match self {
            Block::Shift(shift) if shift.wrapping_add((block * BLOCK + place) as u64) == id => {}
            Block::Near(lowest, offsets) if offset(*lowest, id).is_some() => {
                offsets[place] = offset(*lowest, id).unwrap_or_default();
            }
            Block::Far(ids) => ids[place] = id,
            _ => {
                let mut ids = Box::new([0; BLOCK]);
                for (place, id) in ids.iter_mut().enumerate() {
                    *id = self.get(block, place);
                }
                ids[place] = id;
                *self = Block::of(ids);
            }
        }
    }

    fn of(ids: Box<[u64; BLOCK]>) -> Block {
        let lowest = ids.iter().copied().min().unwrap_or_default();
        let mut offsets = Box::new([0; BLOCK]);
        for (place, id) in ids.iter().enumerate() {
            match offset(lowest, *id) {
                Some(offset) => offsets[place] = offset,
                None => return Block::Far(ids),
            }
        }
        Block::Near(lowest, offsets)
    }

    #[inline]
    fn get(&self, block: usize, place: usize) -> u64 {
        match self {
            Block::Shift(shift) => shift.wrapping_add((block * BLOCK + place) as u64),
            Block::Near(lowest, offsets) => lowest + u64::from(offsets[place]),
            Block::Far(ids) => ids[place],
        }
    }
}

fn offset(lowest: u64, id: u64) -> Option<u32> {
    u32::try_from(id.checked_sub(lowest)?).ok()
}

impl Ids {
    /// Sets the id of a slot. New slots come in order.
    pub fn put(&mut self, slot: u32, id: SubscriptionId) {
        let (block, place) = (slot as usize / BLOCK, slot as usize % BLOCK);
        let shift = id.0.wrapping_sub(u64::from(slot));
        if slot == 0 && self.blocks.is_empty() {
            self.shift = Some(shift);
        }
        self.shift = self.shift.filter(|known| *known == shift);
        if block >= self.blocks.len() {
            self.blocks.push(Block::Shift(shift));
        }
        self.blocks[block].put(block, place, id.0);
    }

    /// The id of a slot.
    #[inline]
    pub fn get(&self, slot: u32) -> SubscriptionId {
        let (block, place) = (slot as usize / BLOCK, slot as usize % BLOCK);
        SubscriptionId(self.blocks[block].get(block, place))
    }

    /// Appends the ids of some slots.
    #[inline]
    pub fn append(&self, slots: &[u32], out: &mut Vec<SubscriptionId>) {
        match self.shift {
            Some(shift) => out.extend(slots.iter().map(|slot| SubscriptionId(shift.wrapping_add(u64::from(*slot))))),
            None => out.extend(slots.iter().map(|slot| self.get(*slot))),
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let inner = |block: &Block| match block {
            Block::Shift(_) => 0,
            Block::Near(..) => BLOCK * 4,
            Block::Far(_) => BLOCK * 8,
        };
        self.blocks.capacity() * size_of::<Block>() + self.blocks.iter().map(inner).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_keeps_its_id() {
        for seed in 0..40u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut ids, mut expected) = (Ids::default(), Vec::new());
            let mut next = random.u64(0..1 << 40);
            // Consecutive, with gaps, and random.
            let step = [1, 6, 1 << 50][seed as usize % 3];
            for slot in 0..random.u32(1..4000) {
                ids.put(slot, SubscriptionId(next));
                expected.push(SubscriptionId(next));
                next = next.wrapping_add(random.u64(1..=step));
            }
            for _ in 0..random.usize(0..50) {
                let slot = random.usize(0..expected.len());
                let id = SubscriptionId(if random.bool() { next } else { random.u64(..) });
                next += 1;
                ids.put(slot as u32, id);
                expected[slot] = id;
            }
            let slots: Vec<u32> = (0..expected.len() as u32).collect();
            let mut found = Vec::new();
            ids.append(&slots, &mut found);
            assert_eq!(found, expected, "seed {seed}");
            assert!(slots.iter().all(|slot| ids.get(*slot) == expected[*slot as usize]), "seed {seed}");
        }
    }

    #[test]
    fn consecutive_ids_take_no_memory() {
        let mut ids = Ids::default();
        (0..100_000).for_each(|slot| ids.put(slot, SubscriptionId(u64::from(slot) + 7)));
        assert!(ids.memory_bytes() < 10_000, "{}", ids.memory_bytes());
    }
}
