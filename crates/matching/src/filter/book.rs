//! The own filters of the subscriptions of one class, for events of one class: each distinct filter once, with a number,
//! and which of them match an event.
//!
//! A text that was seen before is found by its fingerprint and not compiled again; texts that mean the same share a
//! filter. So a million subscriptions with one filter cost one evaluation an event.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use tocsin_model::{filter::Filter, problem::Problem, value::Value};

use crate::index::table::Bits;

use super::{
    CompiledFilter, FilterScope, compile_for,
    index::{Counts, Desk, FilterIndex},
    kept::Kept,
};

/// The number of a distinct filter in its book. Numbers are used again.
pub(crate) type FilterNumber = u32;

/// The distinct filters, and the one of each subscription by slot.
#[derive(Debug)]
pub(crate) struct FilterBook {
    /// For each slot, one more than the number of its filter; 0 for none.
    of_slot: Vec<u32>,
    /// For each slot that has a filter, its text's place; only read on removal.
    texts: HashTable<Text>,
    by_meaning: HashTable<FilterNumber>,
    filters: Vec<Option<Distinct>>,
    index: FilterIndex,
    free: Vec<FilterNumber>,
    hashers: [RandomState; 2],
}

/// A text in its dialect, by a fingerprint of 128 keyed bits: no two texts share one but by a chance far below that of
/// a broken memory, which keeps the texts themselves out of the process.
#[derive(Debug, Clone, Copy)]
struct Text {
    print: [u64; 2],
    filter: FilterNumber,
}

#[derive(Debug)]
struct Distinct {
    kept: Kept,
    hash: u64,
    /// Subscriptions that have it.
    uses: u32,
    /// Fingerprints of the texts that mean it.
    prints: Vec<[u64; 2]>,
}

/// Texts remembered for one filter. A further spelling of the same is compiled each time it is put.
const SPELLINGS_MAX: usize = 8;

/// Which filters match one event.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    /// Their numbers, each once.
    pub numbers: Vec<FilterNumber>,
    has: Bits,
    desk: Desk,
}

impl Matching {
    /// Whether a filter matches.
    #[inline]
    pub fn has(&self, number: FilterNumber) -> bool {
        self.has.has(number)
    }

    /// What was done to find them, for all events so far.
    pub fn counts(&self) -> Counts {
        self.desk.counts()
    }

    /// How many filters could not be decided; they do not match.
    pub fn undecided(&self) -> u32 {
        self.desk.stopped().len() as u32
    }
}

impl FilterBook {
    pub fn new() -> Self {
        FilterBook {
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

    /// Finds or makes the filter of a text and counts a use of it. `subscriber` has the columns of the one whose it is.
    ///
    /// # Errors
    /// The text is no filter for events of these fields.
    pub fn take(
        &mut self,
        filter: &Filter,
        scope: &FilterScope,
        subscriber: &[Value],
    ) -> Result<FilterNumber, Vec<Problem>> {
        let print = [0, 1].map(|at| self.hashers[at].hash_one((filter.dialect, &filter.text)));
        if let Some(known) = self.texts.find(print[0], |text| text.print == print) {
            let number = known.filter;
            if let Some(distinct) = &mut self.filters[number as usize] {
                distinct.uses += 1;
                return Ok(number);
            }
        }
        let compiled = compile_for(filter, scope, Some(subscriber))?;
        // Such a text means something else for the next one.
        let is_for_all = !compiled.asks_subscriber();
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
            if is_for_all && distinct.prints.len() < SPELLINGS_MAX {
                distinct.prints.push(print);
                self.texts.insert_unique(print[0], Text { print, filter: number }, |text| text.print[0]);
            }
        }
        Ok(number)
    }

    fn add(&mut self, compiled: CompiledFilter, hash: u64) -> FilterNumber {
        let number = self.free.pop().unwrap_or(self.filters.len() as FilterNumber);
        let (kept, _) = Kept::file(compiled, number, &mut self.index);
        let distinct = Some(Distinct { kept, hash, uses: 0, prints: Vec::new() });
        match self.filters.get_mut(number as usize) {
            Some(place) => *place = distinct,
            None => self.filters.push(distinct),
        }
        let filters = &self.filters;
        let hash_of = |number: &FilterNumber| filters[*number as usize].as_ref().map_or(0, |distinct| distinct.hash);
        self.by_meaning.insert_unique(hash, number, hash_of);
        number
    }

    /// Gives a use of a filter back. The last one removes it.
    pub fn give_back(&mut self, number: FilterNumber) {
        let Some(distinct) = &mut self.filters[number as usize] else { return };
        distinct.uses -= 1;
        if distinct.uses > 0 {
            return;
        }
        if let Some(gone) = self.filters[number as usize].take() {
            gone.kept.take_out(number, &mut self.index);
            for print in gone.prints {
                if let Ok(found) = self.texts.find_entry(print[0], |text| text.print == print) {
                    found.remove();
                }
            }
            if let Ok(found) = self.by_meaning.find_entry(gone.hash, |other| *other == number) {
                found.remove();
            }
            self.free.push(number);
        }
    }

    /// Notes the filter of a slot's subscription.
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

    /// A slot's subscription is gone: gives its filter back.
    pub fn forget(&mut self, slot: u32) {
        if let Some(number) = self.of(slot) {
            self.file(slot, None);
            self.give_back(number);
        }
    }

    /// Finds the filters that match an event. Those that cannot be decided do not.
    pub fn matching(&self, event: &[Value], out: &mut Matching) {
        let Matching { numbers, has, desk } = out;
        for number in numbers.drain(..) {
            has.clear(number);
        }
        self.index.matching(event, desk, numbers);
        for number in numbers {
            has.set(*number);
        }
    }

    /// How many distinct filters are candidates for every event.
    pub fn scanned(&self) -> usize {
        self.index.scanned()
    }

    /// How many groups they are filed in.
    pub fn groups(&self) -> usize {
        self.index.groups()
    }

    /// How many distinct filters there are.
    pub fn distinct(&self) -> usize {
        self.filters.len() - self.free.len()
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let inner = |distinct: &Distinct| distinct.kept.memory_bytes() + distinct.prints.capacity() * 16;
        self.of_slot.capacity() * 4
            + self.texts.allocation_size()
            + self.by_meaning.allocation_size()
            + self.index.memory_bytes()
            + self.filters.capacity() * size_of::<Option<Distinct>>()
            + self.filters.iter().flatten().map(inner).sum::<usize>()
            + self.free.capacity() * 4
    }
}
