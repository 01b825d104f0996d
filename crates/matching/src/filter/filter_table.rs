//! The filters of the subscriptions of one class, for events of one class. Each distinct filter is stored once, with a
//! number.
//!
//! A text that was compiled before is found by its fingerprint; equivalent texts share a filter. So a million
//! subscriptions with one filter cost one evaluation per event.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use tocsin_model::{filter::Filter, problem::Problem, value::Value};

use super::{
    index::{Counts, FilterIndex, FilterScratch},
    packed::PackedFilter,
};
use crate::{
    filter::{
        compile::compile_for,
        compiled::{CompiledFilter, FilterScope},
    },
    index::table::Bits,
};

/// The number of a distinct filter in its table. Numbers are reused.
pub(crate) type FilterNumber = u32;

/// The distinct filters, and the filter of each subscription by slot.
#[derive(Debug)]
pub(crate) struct FilterTable {
    /// For each slot, one more than the number of its filter; 0 for none.
    of_slot: Vec<u32>,
    /// For each slot with a filter, the position of its text; only read on removal.
    texts: HashTable<SourceText>,
    by_meaning: HashTable<FilterNumber>,
    filters: Vec<Option<DistinctFilter>>,
    index: FilterIndex,
    free: Vec<FilterNumber>,
    hashers: [RandomState; 2],
}

/// A filter text in its dialect, by a keyed 128-bit fingerprint. Texts themselves are not stored; a collision is far
/// less likely than a memory error.
#[derive(Debug, Clone, Copy)]
struct SourceText {
    fingerprint: [u64; 2],
    filter: FilterNumber,
}

#[derive(Debug)]
struct DistinctFilter {
    kept: PackedFilter,
    hash: u64,
    /// Number of subscriptions with this filter.
    uses: u32,
    /// Fingerprints of the texts that compile to it.
    fingerprints: Vec<[u64; 2]>,
}

/// Most fingerprints stored for one filter. Further spellings are compiled each time.
const FINGERPRINTS_MAX: usize = 8;

/// The filters that match one event.
#[derive(Debug, Default)]
pub(crate) struct MatchingFilters {
    /// Numbers of the filters, each once.
    pub numbers: Vec<FilterNumber>,
    has: Bits,
    scratch: FilterScratch,
}

impl MatchingFilters {
    /// Whether a filter matches.
    #[inline]
    pub fn has(&self, number: FilterNumber) -> bool {
        self.has.has(number)
    }

    /// The work done to find them, over all events so far.
    pub fn counts(&self) -> Counts {
        self.scratch.counts()
    }

    /// The number of filters that exceeded the step limit; they do not match.
    pub fn undecided(&self) -> u32 {
        self.scratch.stopped().len() as u32
    }
}

impl FilterTable {
    pub fn new() -> Self {
        FilterTable {
            of_slot: Vec::new(),
            texts: HashTable::new(),
            by_meaning: HashTable::new(),
            filters: Vec::new(),
            index: FilterIndex::new(),
            free: Vec::new(),
            hashers: [RandomState::new(), RandomState::new()],
        }
    }

    /// The filter of a slot's subscription.
    #[inline]
    pub fn of(&self, slot: u32) -> Option<FilterNumber> {
        self.of_slot.get(slot as usize).copied().unwrap_or(0).checked_sub(1)
    }

    /// Finds or compiles the filter of a text and counts a use of it. `subscriber` has the columns of the subscriber.
    ///
    /// # Errors
    /// The text is not a valid filter for events of these fields.
    pub fn take(
        &mut self,
        filter: &Filter,
        scope: &FilterScope,
        subscriber: &[Value],
    ) -> Result<FilterNumber, Vec<Problem>> {
        let fingerprint = [0, 1].map(|at| self.hashers[at].hash_one((filter.dialect, &filter.text)));
        if let Some(known) = self.texts.find(fingerprint[0], |text| text.fingerprint == fingerprint) {
            let number = known.filter;
            if let Some(distinct) = &mut self.filters[number as usize] {
                distinct.uses += 1;
                return Ok(number);
            }
        }
        let compiled = compile_for(filter, scope, Some(subscriber))?;
        // A text that reads subscriber columns means something else for another subscriber.
        let is_for_all = !compiled.depends_on_subscriber();
        let hash = self.hashers[0].hash_one(compiled.canonical());
        let filters = &self.filters;
        let same = |number: &FilterNumber| {
            filters[*number as usize].as_ref().is_some_and(|distinct| distinct.kept.canonical() == compiled.canonical())
        };
        let number = match self.by_meaning.find(hash, same) {
            Some(number) => *number,
            None => self.add(compiled, hash),
        };
        if let Some(distinct) = &mut self.filters[number as usize] {
            distinct.uses += 1;
            if is_for_all && distinct.fingerprints.len() < FINGERPRINTS_MAX {
                distinct.fingerprints.push(fingerprint);
                self.texts.insert_unique(fingerprint[0], SourceText { fingerprint, filter: number }, |text| {
                    text.fingerprint[0]
                });
            }
        }
        Ok(number)
    }

    fn add(&mut self, compiled: CompiledFilter, hash: u64) -> FilterNumber {
        let number = self.free.pop().unwrap_or(self.filters.len() as FilterNumber);
        let (kept, _) = PackedFilter::file(compiled, number, &mut self.index);
        let distinct = Some(DistinctFilter { kept, hash, uses: 0, fingerprints: Vec::new() });
        match self.filters.get_mut(number as usize) {
            Some(place) => *place = distinct,
            None => self.filters.push(distinct),
        }
        let filters = &self.filters;
        let hash_of = |number: &FilterNumber| filters[*number as usize].as_ref().map_or(0, |distinct| distinct.hash);
        self.by_meaning.insert_unique(hash, number, hash_of);
        number
    }

    /// Releases a use of a filter. The last release removes it.
    pub fn release(&mut self, number: FilterNumber) {
        let Some(distinct) = &mut self.filters[number as usize] else { return };
        distinct.uses -= 1;
        if distinct.uses > 0 {
            return;
        }
        if let Some(gone) = self.filters[number as usize].take() {
            gone.kept.take_out(number, &mut self.index);
            for fingerprint in gone.fingerprints {
                if let Ok(found) = self.texts.find_entry(fingerprint[0], |text| text.fingerprint == fingerprint) {
                    found.remove();
                }
            }
            if let Ok(found) = self.by_meaning.find_entry(gone.hash, |other| *other == number) {
                found.remove();
            }
            self.free.push(number);
        }
    }

    /// Records the filter of a slot's subscription.
    pub fn file(&mut self, slot: u32, number: Option<FilterNumber>) {
        let at = slot as usize;
        if at >= self.of_slot.len() {
            if number.is_none() {
                return;
            }
            if at >= self.of_slot.capacity() {
                let more = self.of_slot.len() / 4 + 16;
                self.of_slot.reserve_exact(more.max(at + 1 - self.of_slot.len()));
            }
            self.of_slot.resize(at + 1, 0);
        }
        self.of_slot[at] = number.map_or(0, |number| number + 1);
    }

    /// Releases the filter of a removed subscription.
    pub fn release_slot(&mut self, slot: u32) {
        if let Some(number) = self.of(slot) {
            self.file(slot, None);
            self.release(number);
        }
    }

    /// Finds the filters that match an event. Those that exceed the step limit do not match.
    pub fn matching(&self, event: &[Value], out: &mut MatchingFilters) {
        let MatchingFilters { numbers, has, scratch } = out;
        for number in numbers.drain(..) {
            has.clear(number);
        }
        self.index.matching(event, scratch, numbers);
        for number in numbers {
            has.set(*number);
        }
    }

    /// The number of distinct filters that are evaluated for every event.
    pub fn scanned(&self) -> usize {
        self.index.scanned()
    }

    /// The number of index groups.
    pub fn groups(&self) -> usize {
        self.index.groups()
    }

    /// The number of distinct filters.
    pub fn distinct(&self) -> usize {
        self.filters.len() - self.free.len()
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let inner = |distinct: &DistinctFilter| distinct.kept.memory_bytes() + distinct.fingerprints.capacity() * 16;
        self.of_slot.capacity() * 4
            + self.texts.allocation_size()
            + self.by_meaning.allocation_size()
            + self.index.memory_bytes()
            + self.filters.capacity() * size_of::<Option<DistinctFilter>>()
            + self.filters.iter().flatten().map(inner).sum::<usize>()
            + self.free.capacity() * 4
    }
}
