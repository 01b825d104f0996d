//! The entries of one group. Small groups are one entry in place; larger ones are chunks of at most
//! `CHUNK_ENTRIES_MAX` entries, sorted by key within and across chunks, so that an insertion moves little and an
//! answer is a few contiguous slices.

use super::key::Bound;

/// Most entries of a chunk; a full one is split in half.
pub const CHUNK_ENTRIES_MAX: usize = 2048;

/// Entries whose highest `high` is kept together.
const BLOCK: usize = 64;

/// One entry. What a branch does not use is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The key by which a group is sorted: the one of an ordered test, or the low end of a range.
    pub key: i64,
    /// The high end of a range.
    pub high: i64,
    /// The subscription's slot.
    pub slot: u32,
}

/// How the entries of a branch's groups are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// In no order: the key alone decides.
    Plain,
    /// Sorted by one key.
    Sorted,
    /// Sorted by the low end, with the highest high end of each block beside it.
    Ranges,
}

/// What is asked of a group.
#[derive(Debug, Clone, Copy)]
pub enum Query {
    /// All entries.
    All,
    /// Those whose key is in the bound.
    Keys(Bound),
    /// Those whose low end is at most the first and whose high end is at least the second.
    Around(i64, i64),
}

/// The entries of one group.
#[derive(Debug)]
pub enum Chunks {
    /// Exactly one.
    One(Entry),
    /// Any number.
    Many(Vec<Chunk>),
}

/// Entries in columns.
#[derive(Debug, Default)]
pub struct Chunk {
    keys: Vec<i64>,
    highs: Vec<i64>,
    /// The highest of each block of `highs`.
    tops: Vec<i64>,
    slots: Vec<u32>,
}

impl Chunks {
    /// Files an entry. O(log n), and at most a chunk is moved.
    pub fn insert(&mut self, arrangement: Arrangement, entry: Entry) {
        if let Chunks::One(first) = self {
            let mut chunk = Chunk::default();
            chunk.insert(arrangement, 0, *first);
            *self = Chunks::Many(vec![chunk]);
        }
        let Chunks::Many(chunks) = self else { return };
        // After equal keys, so that the order of filing is kept among them.
        let after = match arrangement {
            Arrangement::Plain => chunks.len(),
            _ => chunks.partition_point(|chunk| chunk.keys.first().is_some_and(|first| *first <= entry.key)),
        };
        let mut at = after.saturating_sub(1);
        if chunks.is_empty() {
            chunks.push(Chunk::default());
        }
        if chunks[at].slots.len() >= CHUNK_ENTRIES_MAX {
            let upper = match arrangement {
                Arrangement::Plain => Chunk::default(),
                _ => chunks[at].split(arrangement),
            };
            let goes_up = upper.keys.first().is_none_or(|first| *first <= entry.key);
            chunks.insert(at + 1, upper);
            at += usize::from(goes_up);
        }
        let chunk = &mut chunks[at];
        let place = match arrangement {
            Arrangement::Plain => chunk.slots.len(),
            _ => chunk.keys.partition_point(|key| *key <= entry.key),
        };
        chunk.insert(arrangement, place, entry);
    }

    /// Hands over the slots that answer, in contiguous slices.
    pub fn answer<'a>(&'a self, arrangement: Arrangement, query: Query, give: &mut impl FnMut(&'a [u32])) {
        match self {
            Chunks::One(entry) => {
                let found = match query {
                    Query::All => true,
                    Query::Keys(Bound::UpTo(bound)) => entry.key <= bound,
                    Query::Keys(Bound::From(bound)) => entry.key >= bound,
                    Query::Around(low, high) => entry.key <= low && entry.high >= high,
                };
                if found {
                    give(std::slice::from_ref(&entry.slot));
                }
            }
            Chunks::Many(chunks) => match query {
                Query::All => chunks.iter().for_each(|chunk| give(&chunk.slots)),
                Query::Keys(Bound::UpTo(bound)) => {
                    let beyond =
                        chunks.partition_point(|chunk| chunk.keys.first().is_some_and(|first| *first <= bound));
                    let Some((last, before)) = chunks[..beyond].split_last() else { return };
                    before.iter().for_each(|chunk| give(&chunk.slots));
                    give(&last.slots[..up_to(&last.keys, bound)]);
                }
                Query::Keys(Bound::From(bound)) => {
                    let start = chunks.partition_point(|chunk| chunk.keys.last().is_none_or(|last| *last < bound));
                    let Some((first, after)) = chunks[start..].split_first() else { return };
                    give(&first.slots[bound.checked_sub(1).map_or(0, |below| up_to(&first.keys, below))..]);
                    after.iter().for_each(|chunk| give(&chunk.slots));
                }
                Query::Around(low, high) => {
                    debug_assert_eq!(arrangement, Arrangement::Ranges);
                    let beyond = chunks.partition_point(|chunk| chunk.keys.first().is_some_and(|first| *first <= low));
                    chunks[..beyond].iter().for_each(|chunk| chunk.around(low, high, give));
                }
            },
        }
    }

    /// Drops the entries of one chunk that are not wanted any more. Answers how many it looked at, and the chunk to
    /// look at next; `None` when this was the last.
    pub fn sweep(&mut self, at: usize, wanted: &impl Fn(u32) -> bool) -> (usize, Option<usize>) {
        match self {
            Chunks::One(entry) => {
                if !wanted(entry.slot) {
                    *self = Chunks::Many(Vec::new());
                }
                (1, None)
            }
            Chunks::Many(chunks) => {
                let Some(chunk) = chunks.get_mut(at) else { return (1, None) };
                let looked_at = chunk.slots.len();
                chunk.retain(wanted);
                let next = if chunk.slots.is_empty() {
                    chunks.remove(at);
                    at
                } else {
                    at + 1
                };
                (looked_at.max(1), (next < chunks.len()).then_some(next))
            }
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        matches!(self, Chunks::Many(chunks) if chunks.is_empty())
    }

    /// Bytes held beside the value itself.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Chunks::One(_) => 0,
            Chunks::Many(chunks) => {
                let inner = |chunk: &Chunk| {
                    (chunk.keys.capacity() + chunk.highs.capacity() + chunk.tops.capacity()) * 8
                        + chunk.slots.capacity() * 4
                };
                chunks.capacity() * size_of::<Chunk>() + chunks.iter().map(inner).sum::<usize>()
            }
        }
    }
}

impl Chunk {
    fn insert(&mut self, arrangement: Arrangement, at: usize, entry: Entry) {
        // Doubling would waste a third of the memory on average; an eighth at a time costs little more.
        let more = self.slots.len() / 8 + 2;
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(more);
        }
        self.slots.insert(at, entry.slot);
        if arrangement != Arrangement::Plain {
            if self.keys.len() == self.keys.capacity() {
                self.keys.reserve_exact(more);
            }
            self.keys.insert(at, entry.key);
        }
        if arrangement == Arrangement::Ranges {
            if self.highs.len() == self.highs.capacity() {
                self.highs.reserve_exact(more);
            }
            self.highs.insert(at, entry.high);
            self.top_from(at / BLOCK);
        }
    }

    fn split(&mut self, arrangement: Arrangement) -> Chunk {
        let half = self.slots.len() / 2;
        let mut upper = Chunk {
            keys: self.keys.split_off(half),
            highs: if arrangement == Arrangement::Ranges { self.highs.split_off(half) } else { Vec::new() },
            tops: Vec::new(),
            slots: self.slots.split_off(half),
        };
        self.shrink();
        self.top_from(0);
        upper.top_from(0);
        upper
    }

    fn shrink(&mut self) {
        self.keys.shrink_to_fit();
        self.highs.shrink_to_fit();
        self.slots.shrink_to_fit();
    }

    /// Computes the tops again from a block on.
    fn top_from(&mut self, block: usize) {
        self.tops.truncate(block);
        let tops = self.highs[(block * BLOCK).min(self.highs.len())..].chunks(BLOCK);
        self.tops.extend(tops.map(|block| block.iter().copied().max().unwrap_or(i64::MIN)));
    }

    fn around<'a>(&'a self, low: i64, high: i64, give: &mut impl FnMut(&'a [u32])) {
        let end = up_to(&self.keys, low);
        for (block, top) in self.tops.iter().enumerate() {
            let start = block * BLOCK;
            if start >= end {
                return;
            }
            if *top < high {
                continue;
            }
            let stop = end.min(start + BLOCK);
            let mut run = start;
            for at in start..stop {
                if self.highs[at] < high {
                    if run < at {
                        give(&self.slots[run..at]);
                    }
                    run = at + 1;
                }
            }
            if run < stop {
                give(&self.slots[run..stop]);
            }
        }
    }

    fn retain(&mut self, wanted: &impl Fn(u32) -> bool) {
        if self.slots.iter().all(|slot| wanted(*slot)) {
            return;
        }
        let mut kept = 0;
        for at in 0..self.slots.len() {
            if wanted(self.slots[at]) {
                self.slots[kept] = self.slots[at];
                if !self.keys.is_empty() {
                    self.keys[kept] = self.keys[at];
                }
                if !self.highs.is_empty() {
                    self.highs[kept] = self.highs[at];
                }
                kept += 1;
            }
        }
        self.slots.truncate(kept);
        self.keys.truncate(kept);
        self.highs.truncate(kept);
        self.shrink();
        self.top_from(0);
    }
}

/// How many keys of a sorted column are at most a bound.
///
/// Bisection walks through as many cache lines as it takes steps, one after the other. So the place is guessed as if the
/// keys were spread evenly, and looked for near it; where the guess is wrong, bisection finds it in what is left.
fn up_to(keys: &[i64], bound: i64) -> usize {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return 0 };
    if bound < *first {
        return 0;
    }
    if bound >= *last {
        return keys.len();
    }
    // The last key is greater than the first. Where both are one double, so is the bound, and the guess is 0.
    let share = (bound as f64 - *first as f64) / (*last as f64 - *first as f64);
    let guess = (share * keys.len() as f64) as usize;
    // Twice the deviation that evenly spread keys have.
    let reach = keys.len().isqrt() + 1;
    let (low, high) = (guess.saturating_sub(reach), (guess + reach).min(keys.len()));
    // Before `start` all keys are within the bound, from `end` on none.
    let (start, end) = match (low == 0 || keys[low - 1] <= bound, high == keys.len() || keys[high] > bound) {
        (true, true) => (low, high),
        (true, false) => (high, keys.len()),
        (false, _) => (0, low),
    };
    start + keys[start..end].partition_point(|key| *key <= bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_finds_what_bisection_finds() {
        for seed in 0..200u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            // Evenly spread, crowded at one end, far apart, and at the limits.
            let spread = [10, 1_000, 1 << 40, i64::MAX][seed as usize % 4];
            let power = random.i32(1..12);
            let mut keys: Vec<i64> = (0..random.usize(0..3000))
                .map(|_| (random.f64().powi(power) * spread as f64) as i64 - spread / 2)
                .collect();
            keys.extend([i64::MIN, i64::MAX].into_iter().filter(|_| random.bool()));
            keys.sort_unstable();
            let near = keys.iter().flat_map(|key| [key.saturating_sub(1), *key, key.saturating_add(1)]);
            for bound in near.chain([i64::MIN, -1, 0, i64::MAX]) {
                assert_eq!(up_to(&keys, bound), keys.partition_point(|key| *key <= bound), "seed {seed}, {bound}");
            }
        }
    }

    /// Every arrangement against a plain list, through splits and sweeps.
    #[test]
    fn answers_agree_with_a_plain_list() {
        for seed in 0..9u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let arrangement = [Arrangement::Plain, Arrangement::Sorted, Arrangement::Ranges][seed as usize % 3];
            let (mut chunks, mut plain) = (Chunks::Many(Vec::new()), Vec::new());
            for slot in 0..random.u32(1..6000) {
                let key = random.i64(-500..500);
                let entry = Entry { key, high: key + random.i64(-5..300), slot };
                chunks.insert(arrangement, entry);
                plain.push(entry);
            }
            let gone = random.u32(2..10);
            for round in 0..2 {
                for _ in 0..50 {
                    let (low, high) = (random.i64(-600..600), random.i64(-600..600));
                    let query = match arrangement {
                        Arrangement::Plain => Query::All,
                        Arrangement::Sorted if random.bool() => Query::Keys(Bound::UpTo(low)),
                        Arrangement::Sorted => Query::Keys(Bound::From(low)),
                        Arrangement::Ranges => Query::Around(low, high),
                    };
                    let expected = plain.iter().filter(|entry| match query {
                        Query::All => true,
                        Query::Keys(Bound::UpTo(bound)) => entry.key <= bound,
                        Query::Keys(Bound::From(bound)) => entry.key >= bound,
                        Query::Around(low, high) => entry.key <= low && entry.high >= high,
                    });
                    let mut expected: Vec<u32> = expected.map(|entry| entry.slot).collect();
                    let mut found = Vec::new();
                    chunks.answer(arrangement, query, &mut |slots| found.extend_from_slice(slots));
                    found.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(found, expected, "seed {seed}, round {round}, {query:?}");
                }
                let wanted = |slot: u32| !slot.is_multiple_of(gone);
                let mut next = Some(0);
                while let Some(at) = next {
                    next = chunks.sweep(at, &wanted).1;
                }
                plain.retain(|entry| wanted(entry.slot));
            }
        }
    }
}
