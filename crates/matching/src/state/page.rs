//! A state page: the state of one rule for 256 consecutive subscriptions, in columns.

use tocsin_model::pack::{Damaged, Reader, write_signed, write_varint};

use crate::rule::rule_set::Shape;

/// The number of a page is that of its subscriptions; the bits above hold the partition of the shard that wrote it.
pub(super) const PART_BITS: u32 = 48;
/// Subscriptions of a page.
pub const WIDTH: u64 = 256;
/// Most keys with state for one subscription; beyond, the least recently notified one is evicted.
pub const KEYS_MAX: usize = 1_000;

/// The state of one subscription and key after a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionState {
    /// When the event of its last notification was accepted, in microseconds since 1970.
    pub notified_at: i64,
    /// A digest of the value of `changed` at that time; 0 if it is not declared.
    pub value: u64,
    /// Whether the next match is allowed.
    pub armed: bool,
}

/// State entries in the order of subscription and key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    places: Vec<u8>,
    armed: Vec<bool>,
    notified: Vec<i64>,
    /// As long as `places` if the shape has keys, else empty.
    keys: Vec<u64>,
    /// As long as `places` if the shape has values, else empty.
    values: Vec<u64>,
}

/// The key of an entry: the subscription's position in the page, and a digest of the value of `per`.
pub type Pair = (u8, u64);

impl Page {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn pair_at(&self, at: usize) -> Pair {
        (self.places[at], self.keys.get(at).copied().unwrap_or(0))
    }

    fn memory_at(&self, at: usize) -> SubscriptionState {
        SubscriptionState {
            notified_at: self.notified[at],
            value: self.values.get(at).copied().unwrap_or(0),
            armed: self.armed[at],
        }
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Pair, SubscriptionState)> + '_ {
        (0..self.len()).map(|at| (self.pair_at(at), self.memory_at(at)))
    }

    /// The position of a pair, or its insertion position.
    fn find(&self, pair: Pair) -> Result<usize, usize> {
        if self.keys.is_empty() && pair.1 == 0 {
            return self.places.binary_search(&pair.0);
        }
        let at = first(self.len(), |at| self.pair_at(at) >= pair);
        if at < self.len() && self.pair_at(at) == pair { Ok(at) } else { Err(at) }
    }

    /// The state of a pair.
    pub fn get(&self, pair: Pair) -> Option<SubscriptionState> {
        self.find(pair).ok().map(|at| self.memory_at(at))
    }

    /// All entries of one subscription.
    pub fn of(&self, place: u8) -> impl Iterator<Item = (Pair, SubscriptionState)> + '_ {
        (self.places.partition_point(|other| *other < place)..self.places.partition_point(|other| *other <= place))
            .map(|at| (self.pair_at(at), self.memory_at(at)))
    }

    /// Sets the state of a pair. Returns the evicted pair, if the subscription has too many keys.
    pub fn put(&mut self, pair: Pair, memory: SubscriptionState, shape: Shape) -> Option<Pair> {
        let at = match self.find(pair) {
            Ok(at) => {
                self.notified[at] = memory.notified_at;
                self.armed[at] = memory.armed;
                if shape.valued {
                    self.values[at] = memory.value;
                }
                return None;
            }
            Err(at) => at,
        };
        self.places.insert(at, pair.0);
        self.armed.insert(at, memory.armed);
        self.notified.insert(at, memory.notified_at);
        if shape.per != 0 {
            self.keys.insert(at, pair.1);
        }
        if shape.valued {
            self.values.insert(at, memory.value);
        }
        let oldest = (self.of(pair.0).count() > KEYS_MAX).then(|| {
            self.of(pair.0).filter(|(other, _)| *other != pair).min_by_key(|(_, memory)| memory.notified_at)
        })?;
        let (oldest, _) = oldest?;
        self.remove(oldest);
        Some(oldest)
    }

    /// Removes a pair.
    pub fn remove(&mut self, pair: Pair) {
        if let Ok(at) = self.find(pair) {
            self.keep_where(|other, _| other != at);
        }
    }

    /// Keeps the entries that pass the test.
    pub fn retain(&mut self, keep: impl Fn(Pair, SubscriptionState) -> bool) {
        self.keep_where(|at, page| keep(page.pair_at(at), page.memory_at(at)));
    }

    fn keep_where(&mut self, keep: impl Fn(usize, &Page) -> bool) {
        let kept: Vec<bool> = (0..self.len()).map(|at| keep(at, self)).collect();
        fn compact<T>(column: &mut Vec<T>, kept: &[bool]) {
            let mut at = 0;
            column.retain(|_| {
                at += 1;
                kept[at - 1]
            });
        }
        compact(&mut self.places, &kept);
        compact(&mut self.armed, &kept);
        compact(&mut self.notified, &kept);
        compact(&mut self.keys, &kept);
        compact(&mut self.values, &kept);
    }

    /// The packed form, which `unpack` reads; empty if there are no entries.
    pub fn pack(&self, shape: Shape) -> Vec<u8> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(16 + self.len() * (3 + 8 * usize::from(shape.valued)));
        out.push(u8::from(shape.valued));
        out.extend_from_slice(&shape.per.to_le_bytes());
        write_varint(&mut out, self.len() as u64);
        let (mut place, mut notified_at) = (0, 0);
        for ((next, key), memory) in self.iter() {
            write_varint(&mut out, (u64::from(next - place) << 1) | u64::from(memory.armed));
            write_signed(&mut out, memory.notified_at.wrapping_sub(notified_at));
            if shape.per != 0 {
                out.extend_from_slice(&key.to_le_bytes());
            }
            if shape.valued {
                out.extend_from_slice(&memory.value.to_le_bytes());
            }
            (place, notified_at) = (next, memory.notified_at);
        }
        out
    }

    /// Reads a packed page and its shape. The shape differs if the rule was defined differently.
    pub fn unpack(bytes: &[u8]) -> Result<(Shape, Vec<(Pair, SubscriptionState)>), Damaged> {
        let mut reader = Reader::new(bytes);
        let valued = reader.byte()? == 1;
        let word = |reader: &mut Reader<'_>| {
            Ok(u64::from_le_bytes(reader.take(8)?.try_into().expect("eight bytes were read")))
        };
        let per = word(&mut reader)?;
        let count = reader.count()?;
        let (mut place, mut notified_at) = (0u8, 0i64);
        let mut states = Vec::with_capacity(count);
        for _ in 0..count {
            let head = reader.varint()?;
            let step = u8::try_from(head >> 1).map_err(|_| Damaged)?;
            place = place.checked_add(step).ok_or(Damaged)?;
            notified_at = notified_at.wrapping_add(reader.signed()?);
            let key = if per != 0 { word(&mut reader)? } else { 0 };
            let value = if valued { word(&mut reader)? } else { 0 };
            states.push(((place, key), SubscriptionState { notified_at, value, armed: head & 1 == 1 }));
        }
        Ok((Shape { per, valued }, states))
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<Page>()
            + self.places.capacity()
            + self.armed.capacity()
            + (self.notified.capacity() + self.keys.capacity() + self.values.capacity()) * 8
    }
}

/// The first of `0..len` for which a monotonic test is true; `len` if there is none.
pub(crate) fn first(len: usize, test: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low.midpoint(high);
        if test(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_page_is_a_map_and_survives_packing() {
        for seed in 0..40 {
            let mut random = fastrand::Rng::with_seed(seed);
            let shape = Shape { per: u64::from(random.bool()) * 7, valued: random.bool() };
            let (mut page, mut model) = (Page::default(), BTreeMap::new());
            for _ in 0..400 {
                let key = if shape.per == 0 { 0 } else { random.u64(0..4) };
                let pair = (random.u8(0..40), key);
                let value = if shape.valued { random.u64(..) } else { 0 };
                let memory = SubscriptionState { notified_at: random.i64(..), value, armed: random.bool() };
                if random.u8(0..3) == 0 {
                    page.remove(pair);
                    model.remove(&pair);
                } else {
                    assert_eq!(page.put(pair, memory, shape), None);
                    model.insert(pair, memory);
                }
                assert_eq!(page.get(pair), model.get(&pair).copied(), "seed {seed}");
            }
            let all: Vec<(Pair, SubscriptionState)> = model.into_iter().collect();
            assert_eq!(page.iter().collect::<Vec<_>>(), all, "seed {seed}");
            assert_eq!(Page::unpack(&page.pack(shape)), Ok((shape, all)), "seed {seed}");
        }
    }

    #[test]
    fn one_key_too_many_evicts_the_least_recently_notified() {
        let shape = Shape { per: 1, valued: false };
        let mut page = Page::default();
        let notified = |notified_at| SubscriptionState { notified_at, value: 0, armed: true };
        for key in 0..KEYS_MAX as u64 {
            assert_eq!(page.put((3, key), notified(1_000 - key as i64), shape), None);
        }
        assert_eq!(page.put((4, 1), notified(0), shape), None);
        assert_eq!(page.put((3, 5_000), notified(-9), shape), Some((3, 999)));
        assert_eq!((page.of(3).count(), page.get((3, 999))), (KEYS_MAX, None));
    }

    #[test]
    fn a_damaged_page_is_an_error_or_another_page() {
        let mut random = fastrand::Rng::with_seed(3);
        let shape = Shape { per: 1, valued: true };
        let mut page = Page::default();
        for at in 0..20 {
            page.put((at, 9), SubscriptionState { notified_at: 5, value: 8, armed: true }, shape);
        }
        let packed = page.pack(shape);
        for _ in 0..500 {
            let mut broken = packed.clone();
            broken[random.usize(0..packed.len())] ^= random.u8(1..);
            let _ = Page::unpack(&broken[..random.usize(0..=broken.len())]);
        }
    }
}
