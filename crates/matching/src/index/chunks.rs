//! The entries of one group. Most groups are a single inline entry or one chunk. Larger ones are chunks of at most
//! `CHUNK_ENTRIES_MAX` entries, sorted by key within and across chunks. So an insertion moves few entries, and an
//! answer is a few contiguous slices.

use super::{
    columns::{Columns, SearchHint},
    key::Bound,
};

/// Most entries of a chunk; a full one is split in half.
pub const CHUNK_ENTRIES_MAX: usize = 2048;

/// Entries per block; the highest `high` of each block is stored.
const BLOCK: usize = 64;

/// An index entry. Fields that a branch does not use are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The key by which a group is sorted: the one of an ordered test, or the low end of a range.
    pub key: i64,
    /// The high end of a range.
    pub high: i64,
    /// The subscription's slot.
    pub slot: u32,
}

/// The order of entries in the groups of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// Unsorted: the hash key alone decides.
    Plain,
    /// Sorted by one key.
    Sorted,
    /// Sorted by the low end, with the highest high end of each block.
    Ranges,
}

/// A query of a group.
#[derive(Debug, Clone, Copy)]
pub enum Query {
    /// All entries.
    All,
    /// Entries with a key within the bound.
    Keys(Bound),
    /// Entries whose low end is at most the first value and whose high end is at least the second.
    Around(i64, i64),
}

pub use super::columns::KeySlice;

/// A contiguous slice of a group's entries.
#[derive(Debug, Clone, Copy)]
pub struct EntrySlice<'a> {
    /// Slots of the entries.
    pub slots: &'a [u32],
    /// Keys of the entries, in the same order; none if entries are unsorted.
    pub keys: KeySlice<'a>,
}

impl<'a> EntrySlice<'a> {
    /// Splits into the first `at` entries and the rest.
    pub fn split_at(self, at: usize) -> (EntrySlice<'a>, EntrySlice<'a>) {
        let (first, others) = self.slots.split_at(at);
        let keys = [self.keys.slice(0, at), self.keys.slice(at, self.slots.len())];
        (EntrySlice { slots: first, keys: keys[0] }, EntrySlice { slots: others, keys: keys[1] })
    }
}

/// The entries of one group.
#[derive(Debug)]
pub enum Chunks {
    /// Exactly one entry.
    One(Entry),
    /// The entries of one chunk, inline, which saves a memory access per event.
    Few(Chunk),
    /// Any number.
    Many(Vec<Chunk>),
}

/// Contiguous entries.
#[derive(Debug, Default)]
pub struct Chunk {
    columns: Columns,
    highs: Option<Box<HighEnds>>,
}

/// The high ends of ranges.
#[derive(Debug, Default)]
struct HighEnds {
    each: Vec<i64>,
    /// The highest end of each block of `each`.
    tops: Vec<i64>,
}

impl Chunks {
    /// Adds an entry. O(log n), and at most a chunk is moved.
    pub fn insert(&mut self, arrangement: Arrangement, entry: Entry) {
        match self {
            Chunks::One(first) => {
                let mut chunk = Chunk::default();
                chunk.insert(arrangement, *first);
                chunk.insert(arrangement, entry);
                *self = Chunks::Few(chunk);
            }
            Chunks::Few(chunk) if chunk.columns.len() < CHUNK_ENTRIES_MAX => chunk.insert(arrangement, entry),
            Chunks::Few(chunk) => {
                let mut chunks = vec![std::mem::take(chunk)];
                insert_into(&mut chunks, arrangement, entry);
                *self = Chunks::Many(chunks);
            }
            Chunks::Many(chunks) => insert_into(chunks, arrangement, entry),
        }
    }

    /// Passes on the matching entries, in contiguous slices.
    pub fn answer<'a>(&'a self, query: Query, give: &mut impl FnMut(EntrySlice<'a>)) {
        if let Some(search) = self.search(query) {
            self.answer_at(search, query, give);
        }
    }

    /// Prefetches the memory that a search reads first; the result is meaningless.
    #[inline]
    pub fn touch(&self) -> bool {
        matches!(self, Chunks::One(_))
    }

    /// Locates the matching entries. `None`: there are none.
    #[inline]
    pub fn search(&self, query: Query) -> Option<Search> {
        match self {
            Chunks::Few(chunk) => {
                // Without a branch: whether there is a match is unpredictable.
                let (answers, hint) = chunk.probe(query);
                answers.then_some(Search { edge: 0, hint })
            }
            Chunks::One(entry) => {
                let found = match query {
                    Query::All => true,
                    Query::Keys(Bound::UpTo(bound)) => entry.key <= bound,
                    Query::Keys(Bound::From(bound)) => entry.key >= bound,
                    Query::Around(low, high) => entry.key <= low && entry.high >= high,
                };
                found.then_some(Search { edge: 0, hint: SearchHint::default() })
            }
            Chunks::Many(chunks) => {
                let edge = match query {
                    Query::All => 0,
                    Query::Keys(Bound::UpTo(bound)) | Query::Around(bound, _) => {
                        chunks.partition_point(|chunk| chunk.columns.first() <= bound).checked_sub(1)?
                    }
                    Query::Keys(Bound::From(bound)) => chunks.partition_point(|chunk| chunk.columns.last() < bound),
                };
                let (_, hint) = chunks.get(edge)?.probe(query);
                Some(Search { edge: edge as u32, hint })
            }
        }
    }

    /// Prefetches the memory that an answer reads; the result is meaningless.
    #[inline]
    pub fn touch_at(&self, search: Search) -> u32 {
        match self {
            Chunks::One(_) => 0,
            Chunks::Few(chunk) => chunk.columns.touch(search.hint),
            Chunks::Many(chunks) => {
                chunks.get(search.edge as usize).map_or(0, |chunk| chunk.columns.touch(search.hint))
            }
        }
    }

    /// Passes on the matching entries, in contiguous slices, given their location for this query.
    #[inline]
    pub fn answer_at<'a>(&'a self, search: Search, query: Query, give: &mut impl FnMut(EntrySlice<'a>)) {
        match self {
            Chunks::Few(chunk) => chunk.answer(query, search.hint, give),
            Chunks::One(entry) => {
                let keys = KeySlice::Plain(std::slice::from_ref(&entry.key));
                give(EntrySlice { slots: std::slice::from_ref(&entry.slot), keys });
            }
            Chunks::Many(chunks) => {
                let edge = search.edge as usize;
                let answering = match query {
                    Query::All => 0..chunks.len(),
                    Query::Keys(Bound::UpTo(_)) | Query::Around(..) => 0..edge + 1,
                    Query::Keys(Bound::From(_)) => edge..chunks.len(),
                };
                for (chunk, at) in chunks[answering.clone()].iter().zip(answering) {
                    match query {
                        Query::Keys(_) if at != edge => give(chunk.whole()),
                        _ => chunk.answer(query, search.hint, give),
                    }
                }
            }
        }
    }

    /// Removes unwanted entries of one chunk. Returns how many entries were checked, and the next chunk; `None` after
    /// the last one.
    pub fn sweep(&mut self, at: usize, requested: &impl Fn(u32) -> bool) -> (usize, Option<usize>) {
        match self {
            Chunks::One(entry) => {
                if !requested(entry.slot) {
                    *self = Chunks::Many(Vec::new());
                }
                (1, None)
            }
            Chunks::Few(chunk) => {
                let looked_at = chunk.columns.len();
                chunk.retain(requested);
                if chunk.columns.is_empty() {
                    *self = Chunks::Many(Vec::new());
                }
                (looked_at, None)
            }
            Chunks::Many(chunks) => {
                let Some(chunk) = chunks.get_mut(at) else { return (1, None) };
                let looked_at = chunk.columns.len();
                chunk.retain(requested);
                let next = if chunk.columns.is_empty() {
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
            Chunks::Few(chunk) => chunk.memory_bytes(),
            Chunks::Many(chunks) => {
                chunks.capacity() * size_of::<Chunk>() + chunks.iter().map(Chunk::memory_bytes).sum::<usize>()
            }
        }
    }
}

/// The location of the entries of a group that match a query.
///
/// An answer needs two dependent memory accesses: to the group, and to a position in its columns. With many queries,
/// the first step is done for all of them before the second, so that cache misses overlap: see [`Chunks::touch`] and
/// [`Chunks::touch_at`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Search {
    /// The chunk whose entries match only in part, and the position of the bound among its keys.
    edge: u32,
    hint: SearchHint,
}

fn insert_into(chunks: &mut Vec<Chunk>, arrangement: Arrangement, entry: Entry) {
    // After equal keys, so that the insertion order is kept among them.
    let after = match arrangement {
        Arrangement::Plain => chunks.len(),
        _ => chunks.partition_point(|chunk| chunk.columns.first() <= entry.key),
    };
    let mut at = after.saturating_sub(1);
    if chunks.is_empty() {
        chunks.push(Chunk::default());
    }
    if chunks[at].columns.len() >= CHUNK_ENTRIES_MAX {
        let upper = match arrangement {
            Arrangement::Plain => Chunk::default(),
            _ => chunks[at].split(),
        };
        let goes_up = upper.columns.is_empty() || upper.columns.first() <= entry.key;
        chunks.insert(at + 1, upper);
        at += usize::from(goes_up);
    }
    chunks[at].insert(arrangement, entry);
}

impl Chunk {
    fn insert(&mut self, arrangement: Arrangement, entry: Entry) {
        if arrangement == Arrangement::Plain {
            return self.columns.push(entry.slot);
        }
        let at = self.columns.insert(entry.key, entry.slot);
        if arrangement == Arrangement::Ranges {
            let highs = self.highs.get_or_insert_default();
            if highs.each.len() == highs.each.capacity() {
                highs.each.reserve_exact(highs.each.len() / 8 + 2);
            }
            highs.each.insert(at, entry.high);
            highs.top_from(at / BLOCK);
        }
    }

    /// Keeps the lower half, returns the upper.
    fn split(&mut self) -> Chunk {
        let half = self.columns.len() / 2;
        let highs = self.highs.as_mut().map(|highs| {
            let mut upper = HighEnds { each: highs.each.split_off(half), tops: Vec::new() };
            upper.top_from(0);
            highs.top_from(0);
            highs.each.shrink_to_fit();
            Box::new(upper)
        });
        Chunk { columns: self.columns.split_off(half), highs }
    }

    /// Whether any entry may match, and the position of the bound among the keys.
    #[inline]
    fn probe(&self, query: Query) -> (bool, SearchHint) {
        let (answers, bound) = match query {
            Query::All => return (true, SearchHint::default()),
            Query::Around(bound, _) | Query::Keys(Bound::UpTo(bound)) => (self.columns.first() <= bound, bound),
            // Keys below the bound are those up to the previous key.
            Query::Keys(Bound::From(bound)) => (self.columns.last() >= bound, bound.saturating_sub(1)),
        };
        (answers, self.columns.hint(bound))
    }

    fn whole(&self) -> EntrySlice<'_> {
        EntrySlice { slots: self.columns.slots(), keys: self.columns.keys() }
    }

    #[inline]
    fn stretch(&self, from: usize, to: usize) -> EntrySlice<'_> {
        EntrySlice { slots: &self.columns.slots()[from..to], keys: self.columns.keys().slice(from, to) }
    }

    #[inline]
    fn answer<'a>(&'a self, query: Query, hint: SearchHint, give: &mut impl FnMut(EntrySlice<'a>)) {
        let (start, end) = match query {
            Query::All | Query::Keys(Bound::From(i64::MIN)) => (0, self.columns.len()),
            Query::Keys(Bound::UpTo(bound)) => (0, self.columns.up_to_near(bound, hint)),
            Query::Keys(Bound::From(bound)) => (self.columns.up_to_near(bound - 1, hint), self.columns.len()),
            Query::Around(low, high) => return self.surrounding(low, high, give),
        };
        if start < end {
            give(self.stretch(start, end));
        }
    }

    fn surrounding<'a>(&'a self, low: i64, high: i64, give: &mut impl FnMut(EntrySlice<'a>)) {
        let Some(highs) = &self.highs else { return };
        let end = self.columns.up_to(low);
        let mut give_range = |from: usize, to: usize| {
            if from < to {
                give(self.stretch(from, to));
            }
        };
        for (block, top) in highs.tops.iter().enumerate() {
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
                if highs.each[at] < high {
                    give_range(run, at);
                    run = at + 1;
                }
            }
            give_range(run, stop);
        }
    }

    fn retain(&mut self, requested: &impl Fn(u32) -> bool) {
        let requested: Vec<bool> = self.columns.slots().iter().map(|slot| requested(*slot)).collect();
        if requested.iter().all(|requested| *requested) {
            return;
        }
        self.columns.retain(|at| requested[at]);
        if let Some(highs) = &mut self.highs {
            let mut requested = requested.iter();
            highs.each.retain(|_| requested.next().is_some_and(|requested| *requested));
            highs.each.shrink_to_fit();
            highs.top_from(0);
        }
    }

    fn memory_bytes(&self) -> usize {
        let highs = self
            .highs
            .as_ref()
            .map_or(0, |highs| size_of::<HighEnds>() + (highs.each.capacity() + highs.tops.capacity()) * 8);
        self.columns.memory_bytes() + highs
    }
}

impl HighEnds {
    /// Computes the tops again from a block on.
    fn top_from(&mut self, block: usize) {
        self.tops.truncate(block);
        let tops = self.each[(block * BLOCK).min(self.each.len())..].chunks(BLOCK);
        self.tops.extend(tops.map(|block| block.iter().copied().max().unwrap_or(i64::MIN)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain_key(plain: &[Entry], slot: u32) -> i64 {
        let at = plain.binary_search_by_key(&slot, |entry| entry.slot).expect("its slot was filed");
        plain[at].key
    }

    /// Compares every arrangement with a plain list, through splits and sweeps.
    #[test]
    fn answers_agree_with_a_plain_list() {
        for seed in 0..9u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let arrangement = [Arrangement::Plain, Arrangement::Sorted, Arrangement::Ranges][seed as usize % 3];
            let (mut chunks, mut plain) = (Chunks::Many(Vec::new()), Vec::new());
            let far = if random.bool() { 1 } else { 1 << 33 };
            for slot in 0..random.u32(1..6000) {
                let key = random.i64(-500..500) * far;
                let entry = Entry { key, high: key + random.i64(-5..300) * far, slot };
                chunks.insert(arrangement, entry);
                plain.push(entry);
            }
            let gone = random.u32(2..10);
            for round in 0..2 {
                for _ in 0..50 {
                    let (low, high) = (random.i64(-600..600) * far, random.i64(-600..600) * far);
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
                    chunks.answer(query, &mut |stretch| {
                        for (at, slot) in stretch.slots.iter().enumerate() {
                            found.push(*slot);
                            if arrangement != Arrangement::Plain {
                                assert_eq!(stretch.keys.at(at), plain_key(&plain, *slot), "seed {seed}, {query:?}");
                            }
                        }
                    });
                    found.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(found, expected, "seed {seed}, round {round}, {query:?}");
                }
                let requested = |slot: u32| !slot.is_multiple_of(gone);
                let mut next = Some(0);
                while let Some(at) = next {
                    next = chunks.sweep(at, &requested).1;
                }
                plain.retain(|entry| requested(entry.slot));
            }
        }
    }
}
