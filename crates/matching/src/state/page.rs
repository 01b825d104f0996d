//! A page: what one rule remembers for 256 neighbouring subscriptions, in columns.

use tocsin_model::pack::{Damaged, Reader, write_signed, write_varint};

/// Subscriptions of a page.
pub const WIDTH: u64 = 256;
/// Most keys that a rule remembers for one subscription; the one told longest ago makes room for another.
pub const KEYS_MAX: usize = 1_000;

/// What is remembered for one subscription and key: that it was told, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// When the event of its last notification was accepted, in microseconds since 1970.
    pub told_at: i64,
    /// A digest of what `changed` gave then; 0 where there is none.
    pub value: u64,
    /// Whether the next match may be told.
    pub armed: bool,
}

/// Which columns a page has, and what its keys mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// A digest of the text of `per`; 0 where there is none.
    pub per: u64,
    /// Whether values are kept.
    pub valued: bool,
}

/// Memories in the order of subscription and key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    places: Vec<u8>,
    armed: Vec<bool>,
    told: Vec<i64>,
    /// As long as `places` if the shape has keys, else empty.
    keys: Vec<u64>,
    /// As long as `places` if the shape has values, else empty.
    values: Vec<u64>,
}

/// The pair for which something is remembered: the subscription's place in the page, and a digest of the key.
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

    fn memory_at(&self, at: usize) -> Memory {
        Memory { told_at: self.told[at], value: self.values.get(at).copied().unwrap_or(0), armed: self.armed[at] }
    }

    /// All that it holds, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Pair, Memory)> + '_ {
        (0..self.len()).map(|at| (self.pair_at(at), self.memory_at(at)))
    }

    /// Where a pair stands, or would.
    fn find(&self, pair: Pair) -> Result<usize, usize> {
        if self.keys.is_empty() && pair.1 == 0 {
            return self.places.binary_search(&pair.0);
        }
        let at = first(self.len(), |at| self.pair_at(at) >= pair);
        if at < self.len() && self.pair_at(at) == pair { Ok(at) } else { Err(at) }
    }

    /// What is remembered for a pair.
    pub fn get(&self, pair: Pair) -> Option<Memory> {
        self.find(pair).ok().map(|at| self.memory_at(at))
    }

    /// Everything that is remembered for one subscription.
    pub fn of(&self, place: u8) -> impl Iterator<Item = (Pair, Memory)> + '_ {
        (self.places.partition_point(|other| *other < place)..self.places.partition_point(|other| *other <= place))
            .map(|at| (self.pair_at(at), self.memory_at(at)))
    }

    /// Remembers. If the subscription has too many keys, gives the one that was forgotten for it.
    pub fn put(&mut self, pair: Pair, memory: Memory, shape: Shape) -> Option<Pair> {
        let at = match self.find(pair) {
            Ok(at) => {
                self.told[at] = memory.told_at;
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
        self.told.insert(at, memory.told_at);
        if shape.per != 0 {
            self.keys.insert(at, pair.1);
        }
        if shape.valued {
            self.values.insert(at, memory.value);
        }
        let oldest = (self.of(pair.0).count() > KEYS_MAX)
            .then(|| self.of(pair.0).filter(|(other, _)| *other != pair).min_by_key(|(_, memory)| memory.told_at))?;
        let (oldest, _) = oldest?;
        self.remove(oldest);
        Some(oldest)
    }

    /// Forgets a pair.
    pub fn remove(&mut self, pair: Pair) {
        if let Ok(at) = self.find(pair) {
            self.keep_where(|other, _| other != at);
        }
    }

    /// Keeps what the test, which is given place and memory, says to keep.
    pub fn retain(&mut self, keep: impl Fn(Pair, Memory) -> bool) {
        self.keep_where(|at, page| keep(page.pair_at(at), page.memory_at(at)));
    }

    fn keep_where(&mut self, keep: impl Fn(usize, &Page) -> bool) {
        let kept: Vec<bool> = (0..self.len()).map(|at| keep(at, self)).collect();
        fn thin<T>(column: &mut Vec<T>, kept: &[bool]) {
            let mut at = 0;
            column.retain(|_| {
                at += 1;
                kept[at - 1]
            });
        }
        thin(&mut self.places, &kept);
        thin(&mut self.armed, &kept);
        thin(&mut self.told, &kept);
        thin(&mut self.keys, &kept);
        thin(&mut self.values, &kept);
    }

    /// The packed form, which `unpack` reads; empty if nothing is remembered.
    pub fn pack(&self, shape: Shape) -> Vec<u8> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(16 + self.len() * (3 + 8 * usize::from(shape.valued)));
        out.push(u8::from(shape.valued));
        out.extend_from_slice(&shape.per.to_le_bytes());
        write_varint(&mut out, self.len() as u64);
        let (mut place, mut told_at) = (0, 0);
        for ((next, key), memory) in self.iter() {
            write_varint(&mut out, (u64::from(next - place) << 1) | u64::from(memory.armed));
            write_signed(&mut out, memory.told_at.wrapping_sub(told_at));
            if shape.per != 0 {
                out.extend_from_slice(&key.to_le_bytes());
            }
            if shape.valued {
                out.extend_from_slice(&memory.value.to_le_bytes());
            }
            (place, told_at) = (next, memory.told_at);
        }
        out
    }

    /// Reads a packed page and its shape. A page of a rule that was defined otherwise has another shape.
    pub fn unpack(bytes: &[u8]) -> Result<(Shape, Vec<(Pair, Memory)>), Damaged> {
        let mut reader = Reader::new(bytes);
        let valued = reader.byte()? == 1;
        let word = |reader: &mut Reader<'_>| {
            Ok(u64::from_le_bytes(reader.take(8)?.try_into().expect("eight bytes were taken")))
        };
        let per = word(&mut reader)?;
        let count = reader.count()?;
        let (mut place, mut told_at) = (0u8, 0i64);
        let mut memories = Vec::with_capacity(count);
        for _ in 0..count {
            let head = reader.varint()?;
            let step = u8::try_from(head >> 1).map_err(|_| Damaged)?;
            place = place.checked_add(step).ok_or(Damaged)?;
            told_at = told_at.wrapping_add(reader.signed()?);
            let key = if per != 0 { word(&mut reader)? } else { 0 };
            let value = if valued { word(&mut reader)? } else { 0 };
            memories.push(((place, key), Memory { told_at, value, armed: head & 1 == 1 }));
        }
        Ok((Shape { per, valued }, memories))
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<Page>()
            + self.places.capacity()
            + self.armed.capacity()
            + (self.told.capacity() + self.keys.capacity() + self.values.capacity()) * 8
    }
}

/// The first of `0..len` for which a test that turns true once is true; `len` if it never does.
fn first(len: usize, test: impl Fn(usize) -> bool) -> usize {
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
    fn a_page_is_a_map_and_comes_back_as_it_was() {
        for seed in 0..40 {
            let mut random = fastrand::Rng::with_seed(seed);
            let shape = Shape { per: u64::from(random.bool()) * 7, valued: random.bool() };
            let (mut page, mut model) = (Page::default(), BTreeMap::new());
            for _ in 0..400 {
                let key = if shape.per == 0 { 0 } else { random.u64(0..4) };
                let pair = (random.u8(0..40), key);
                let value = if shape.valued { random.u64(..) } else { 0 };
                let memory = Memory { told_at: random.i64(..), value, armed: random.bool() };
                if random.u8(0..3) == 0 {
                    page.remove(pair);
                    model.remove(&pair);
                } else {
                    assert_eq!(page.put(pair, memory, shape), None);
                    model.insert(pair, memory);
                }
                assert_eq!(page.get(pair), model.get(&pair).copied(), "seed {seed}");
            }
            let all: Vec<(Pair, Memory)> = model.into_iter().collect();
            assert_eq!(page.iter().collect::<Vec<_>>(), all, "seed {seed}");
            assert_eq!(Page::unpack(&page.pack(shape)), Ok((shape, all)), "seed {seed}");
        }
    }

    #[test]
    fn one_key_too_many_forgets_the_one_told_longest_ago() {
        let shape = Shape { per: 1, valued: false };
        let mut page = Page::default();
        let told = |told_at| Memory { told_at, value: 0, armed: true };
        for key in 0..KEYS_MAX as u64 {
            assert_eq!(page.put((3, key), told(1_000 - key as i64), shape), None);
        }
        assert_eq!(page.put((4, 1), told(0), shape), None);
        assert_eq!(page.put((3, 5_000), told(-9), shape), Some((3, 999)));
        assert_eq!((page.of(3).count(), page.get((3, 999))), (KEYS_MAX, None));
    }

    #[test]
    fn a_damaged_page_is_an_error_or_another_page() {
        let mut random = fastrand::Rng::with_seed(3);
        let shape = Shape { per: 1, valued: true };
        let mut page = Page::default();
        for at in 0..20 {
            page.put((at, 9), Memory { told_at: 5, value: 8, armed: true }, shape);
        }
        let packed = page.pack(shape);
        for _ in 0..500 {
            let mut broken = packed.clone();
            broken[random.usize(0..packed.len())] ^= random.u8(1..);
            let _ = Page::unpack(&broken[..random.usize(0..=broken.len())]);
        }
    }
}
