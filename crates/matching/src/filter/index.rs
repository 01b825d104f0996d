//! Inverted index over distinct filters: finds those that match an event, at a cost that grows with the matches.
//!
//! - A condition is split into conjunctions. Tests that can be looked up are the keys of a conjunction: equality, sets,
//!   prefixes, suffixes, networks, substrings.
//! - Conjunctions whose keys use the same extractors share a signature; in it, the values of the keys lead to a group.
//! - An event costs one lookup for each of its values and each signature, plus the entries that these find.
//! - A group that grows is split by further values of its conjunctions, and ranges are sorted by their ends.
//! - The remaining tests are checked for each candidate, equal tests once per event. Only filters whose condition is
//!   not exact are evaluated.
//!
//! A conjunction without a key and a range is a candidate for every event; [`FilterIndex::insert`] reports that, and it
//! is counted.

pub(super) mod checks; // residual tests, checked for each candidate
mod needles; // multi-pattern substring search
pub(super) mod plan; // chooses keys, ranges and residual tests of a condition
mod ranges; // ranges sorted by an end
pub(super) mod extractors; // extractors, which map an event to symbols
mod signatures; // conjunctions grouped by extractors and symbols
mod symbols; // interning of values as small numbers

use std::{collections::BTreeSet, ops::AddAssign, sync::Arc};

use hashbrown::HashMap;
use tocsin_model::value::Value;

use self::{
    checks::{CheckResults, Checks, EventView},
    extractors::{Extractors, FoundSymbols},
    plan::{Conjunction, KEYS_MAX, Plan},
    ranges::{Column, Key, KeyPosition},
    signatures::{Entry, GroupEntries, GroupKey, Lookup, Signature},
    symbols::NONE,
};
use crate::filter::{
    compiled::{CompiledFilter, EmptyEvent, Evaluate},
    condition::Condition,
    index::plan::ResidualCheck,
};

/// Most signatures with several extractors. Beyond, a conjunction is indexed by its best key only, which bounds the
/// lookups per event.
pub const SIGNATURES_MAX: usize = 512;
/// Lookups in flight at once.
const LOOKUPS: usize = 16;

/// The placement of a filter in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterPlacement {
    /// Never matches, so it is not stored.
    Never,
    /// Matches every event.
    Always,
    /// Indexed by values or ranges: only events with one of them cost anything.
    Indexed,
    /// Candidate for every event.
    Scanned(ScanReason),
}

impl FilterPlacement {
    /// The placement that any index would give a filter.
    pub fn of(filter: &CompiledFilter) -> FilterPlacement {
        placement(&Plan::of(filter.condition(), !filter.is_exact()), filter.condition(), filter.is_exact())
    }
}

/// The reason why a filter is a candidate for every event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanReason {
    /// Only evaluation decides.
    Opaque,
    /// One alternative requires no value and no range, only the absence of values.
    NoValue,
    /// The filter has too many alternatives to be split, and no set of values of which each alternative requires one.
    NoCommonValue,
}

/// The distinct filters of an event class, by number. Lookups are cheap, so the index has one owner and no locks; a
/// change is visible to the next event.
#[derive(Debug, Default)]
pub struct FilterIndex {
    extractors: Extractors,
    checks: Checks,
    pub(crate) signatures: Vec<Signature>,
    signatures_by_readings: HashMap<Box<[u32]>, u32>,
    /// The evaluators of filters whose condition is not exact.
    evaluators: HashMap<u32, Arc<dyn Evaluate>>,
    /// Filters that match an event without data, by kind of such events. A class has at most one of each kind.
    of_empty: Vec<(EmptyEvent, BTreeSet<u32>)>,
    len: usize,
    scanned: usize,
    /// One more than the highest number ever used.
    numbers_max: usize,
}

/// Reusable buffers for lookups in one index.
#[derive(Debug, Default)]
pub struct FilterScratch {
    generation: u32,
    found: Vec<FoundSymbols>,
    /// Conjunctions whose keys were found.
    candidates: Vec<Entry>,
    evaluations: EvaluationCache,
}

/// Results for the current event.
#[derive(Debug, Default)]
struct EvaluationCache {
    /// By filter: the generation in which it was last evaluated. Only of filters that an event can find repeatedly.
    seen: Vec<u32>,
    memory: CheckResults,
    stopped: Vec<u32>,
    counts: Counts,
}

/// Work counters of an index, summed over events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Counts {
    /// Events looked up.
    pub events: u64,
    /// Conjunctions checked because their keys were found.
    pub candidates: u64,
    /// Filters evaluated.
    pub evaluated: u64,
    /// Filters that matched.
    pub matched: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Counts) {
        self.events += more.events;
        self.candidates += more.candidates;
        self.evaluated += more.evaluated;
        self.matched += more.matched;
    }
}

impl Counts {
    /// The difference to an earlier count.
    pub fn since(self, earlier: Counts) -> Counts {
        Counts {
            events: self.events.saturating_sub(earlier.events),
            candidates: self.candidates.saturating_sub(earlier.candidates),
            evaluated: self.evaluated.saturating_sub(earlier.evaluated),
            matched: self.matched.saturating_sub(earlier.matched),
        }
    }
}

impl FilterIndex {
    /// An empty index.
    pub fn new() -> Self {
        FilterIndex::default()
    }

    /// The number of filters.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of filters that are candidates for every event.
    pub fn scanned(&self) -> usize {
        self.scanned
    }

    /// The number of signatures; an event costs a lookup for each.
    pub fn signatures(&self) -> usize {
        self.signatures_by_readings.len()
    }

    /// The number of groups of its conjunctions.
    pub fn groups(&self) -> usize {
        self.signatures.iter().map(Signature::groups).sum()
    }

    /// Adds a filter under an unused number below 2^30. Cost: linear in its condition and in the number of its
    /// conjunctions.
    pub fn insert(&mut self, number: u32, filter: &CompiledFilter) -> FilterPlacement {
        let plan = Plan::of(filter.condition(), !filter.is_exact());
        let placement = placement(&plan, filter.condition(), filter.is_exact());
        let mut flags = if plan.repeats { Entry::REPEATS } else { 0 };
        if !filter.is_exact() {
            flags |= Entry::EVALUATED;
            self.evaluators.insert(number, Arc::clone(filter.evaluator()));
        }
        if let Some(empty) = filter.matches_empty() {
            match self.of_empty.iter_mut().find(|(known, _)| *known == empty) {
                Some((_, numbers)) => _ = numbers.insert(number),
                None => self.of_empty.push((empty, BTreeSet::from([number]))),
            }
        }
        for conjunction in plan.conjunctions {
            self.insert_conjunction(number, flags, conjunction);
        }
        self.len += 1;
        self.scanned += usize::from(matches!(placement, FilterPlacement::Scanned(_)));
        self.numbers_max = self.numbers_max.max(number as usize + 1);
        placement
    }

    fn insert_conjunction(&mut self, number: u32, flags: u32, mut conjunction: Conjunction<'_>) {
        let mut asked = self.acquire_extractors(&conjunction);
        let is_new = !self.signatures_by_readings.contains_key(&*asked);
        if is_new && asked.len() > 1 && self.signatures_by_readings.len() >= SIGNATURES_MAX {
            asked.iter().for_each(|extractor| self.extractors.release(*extractor));
            conjunction = conjunction.narrowed();
            asked = self.acquire_extractors(&conjunction);
        }
        let at = match self.signatures_by_readings.get(&*asked) {
            Some(at) => {
                asked.iter().for_each(|extractor| self.extractors.release(*extractor));
                *at as usize
            }
            None => {
                // The signature holds a use of each of its extractors.
                let new = Signature::new(asked.clone());
                let at = match self.signatures.iter().position(Signature::is_empty) {
                    Some(at) => {
                        self.signatures[at] = new;
                        at
                    }
                    None => {
                        self.signatures.push(new);
                        self.signatures.len() - 1
                    }
                };
                self.signatures_by_readings.insert(asked.clone(), at as u32);
                at
            }
        };
        let alternatives = self.acquire_symbols(&asked, &conjunction);
        for key in combinations(&alternatives) {
            let rest = self.checks.acquire(&conjunction.rests, &mut self.extractors);
            let entry = Entry::new(number, flags, rest);
            self.signatures[at].insert(&key, entry, &mut self.extractors, &mut self.checks, |extractors| {
                asked.iter().zip(key).for_each(|(extractor, symbol)| extractors.acquire_again(*extractor, symbol));
            });
        }
        for (extractor, symbols) in asked.iter().zip(alternatives) {
            symbols.into_iter().for_each(|symbol| self.extractors.release_symbol(*extractor, symbol));
        }
    }

    /// The extractors of a conjunction's keys, sorted; each acquired.
    fn acquire_extractors(&mut self, conjunction: &Conjunction<'_>) -> Box<[u32]> {
        let mut asked: Vec<u32> =
            conjunction.keys.iter().map(|key| self.extractors.acquire(key.path, key.extraction)).collect();
        asked.sort_unstable();
        asked.into()
    }

    /// For each extractor the symbols of the keys, each acquired.
    fn acquire_symbols(&mut self, asked: &[u32], conjunction: &Conjunction<'_>) -> Vec<Vec<u32>> {
        let mut alternatives = vec![Vec::new(); asked.len()];
        for key in &conjunction.keys {
            let extractor = self.extractors.find(key.path, key.extraction).expect("its extractor was acquired");
            let at = asked.binary_search(&extractor).expect("the extractor is in the signature");
            alternatives[at] =
                key.names.iter().map(|name| self.extractors.acquire_symbol(extractor, &name.query())).collect();
        }
        alternatives
    }

    /// Removes the filter of this number. `filter` must be the same or compiled from the same text.
    pub fn remove(&mut self, number: u32, filter: &CompiledFilter) {
        self.remove_condition(number, filter.condition(), filter.is_exact());
    }

    /// Removes a filter by its condition, and whether that is exact.
    pub(crate) fn remove_condition(&mut self, number: u32, condition: &Condition, is_exact: bool) {
        let plan = Plan::of(condition, !is_exact);
        let placement = placement(&plan, condition, is_exact);
        let mut flags = if plan.repeats { Entry::REPEATS } else { 0 };
        if !is_exact {
            flags |= Entry::EVALUATED;
            self.evaluators.remove(&number);
        }
        self.of_empty.iter_mut().for_each(|(_, numbers)| _ = numbers.remove(&number));
        for conjunction in plan.conjunctions {
            if let Err(conjunction) = self.remove_conjunction(number, flags, conjunction) {
                // It was added when there were too many signatures.
                let gone = self.remove_conjunction(number, flags, conjunction.narrowed());
                debug_assert!(gone.is_ok(), "filter {number} was stored at another place");
            }
        }
        self.len -= 1;
        self.scanned -= usize::from(matches!(placement, FilterPlacement::Scanned(_)));
    }

    fn remove_conjunction<'a>(
        &mut self,
        number: u32,
        flags: u32,
        conjunction: Conjunction<'a>,
    ) -> Result<(), Conjunction<'a>> {
        let Some((at, alternatives)) = self.find_signature(&conjunction) else { return Err(conjunction) };
        let asked: Box<[u32]> = self.signatures[at].extractors().into();
        let mut removed = true;
        for key in combinations(&alternatives) {
            removed &= self.signatures[at].remove(
                &key,
                |rest| Entry::new(number, flags, rest),
                &conjunction.rests,
                &mut self.extractors,
                &mut self.checks,
                |extractors| {
                    asked.iter().zip(key).for_each(|(extractor, symbol)| extractors.release_symbol(*extractor, symbol))
                },
            );
        }
        if !removed {
            return Err(conjunction);
        }
        if self.signatures[at].is_empty() {
            self.signatures_by_readings.remove(&*asked);
            self.signatures[at] = Signature::new(Box::default());
            asked.iter().for_each(|extractor| self.extractors.release(*extractor));
        }
        Ok(())
    }

    /// The signature of a conjunction and the symbols of its keys, if all are in use.
    pub(crate) fn find_signature(&self, conjunction: &Conjunction<'_>) -> Option<(usize, Vec<Vec<u32>>)> {
        let mut keys = Vec::with_capacity(conjunction.keys.len());
        for key in &conjunction.keys {
            let extractor = self.extractors.find(key.path, key.extraction)?;
            let symbols: Vec<u32> =
                key.names.iter().map(|name| self.extractors.find_symbol(extractor, &name.query())).collect();
            keys.push((extractor, symbols));
        }
        keys.sort_unstable();
        let asked: Vec<u32> = keys.iter().map(|(extractor, _)| *extractor).collect();
        let at = *self.signatures_by_readings.get(&*asked)?;
        Some((at as usize, keys.into_iter().map(|(_, symbols)| symbols).collect()))
    }

    /// Appends the numbers of the filters that match an event, a row of the class for which they were compiled; each
    /// once, in no particular order. [`FilterScratch::stopped`] then holds those that exceeded the step limit.
    pub fn matching(&self, event: &[Value], scratch: &mut FilterScratch, out: &mut Vec<u32>) {
        scratch.begin(self);
        let FilterScratch { generation, found, candidates, evaluations } = scratch;
        self.extractors.read(event, found);
        let view = EventView { event, found, extractors: &self.extractors, generation: *generation };
        let before = out.len();
        candidates.clear();
        // Lookups first, then candidates, then evaluations: each phase overlaps its memory accesses.
        for signatures in self.signatures.chunks(LOOKUPS) {
            let mut lookups = [const { Lookup::Nothing }; LOOKUPS];
            for (lookup, signature) in lookups.iter_mut().zip(signatures) {
                *lookup = signature.look_up(found);
            }
            let mut collect = |met: GroupEntries<'_>| match met {
                GroupEntries::Listed(entries) => candidates.extend_from_slice(entries),
                GroupEntries::Column(event_path, column) => {
                    self.answer(event_path, column, event, KeyPosition::of, candidates, &mut evaluations.counts, out);
                }
                GroupEntries::Texts(event_path, column) => {
                    self.answer(
                        event_path,
                        column,
                        event,
                        KeyPosition::of_text,
                        candidates,
                        &mut evaluations.counts,
                        out,
                    );
                }
            };
            for lookup in lookups {
                match lookup {
                    Lookup::Nothing => {}
                    Lookup::One(group) => group.collect(found, &mut collect),
                    Lookup::Many(signature) => signature.collect_many(found, &mut collect),
                }
            }
        }
        evaluations.counts.candidates += candidates.len() as u64;
        for entry in &*candidates {
            self.evaluate_candidate(*entry, view, evaluations, out);
        }
        for (empty, numbers) in &self.of_empty {
            if !numbers.is_empty() && empty.holds(event) {
                // Each once, whether its condition holds or not.
                let found = out.split_off(before);
                out.extend(found.into_iter().filter(|number| !numbers.contains(number)));
                out.extend(numbers);
            }
        }
        evaluations.counts.events += 1;
        evaluations.counts.matched += (out.len() - before) as u64;
    }

    /// Collects the ranges around the values of a path: certain matches, and further candidates.
    #[allow(clippy::too_many_arguments)]
    fn answer<'v, K: Key>(
        &self,
        event_path: u32,
        column: &Column<K, Entry>,
        event: &'v [Value],
        position: impl Fn(&'v Value) -> Option<KeyPosition<K::Borrowed<'v>>>,
        candidates: &mut Vec<Entry>,
        counts: &mut Counts,
        out: &mut Vec<u32>,
    ) {
        self.extractors.path(event_path).any(event, &mut |value| {
            let Some(position) = position(value) else { return false };
            column.answer(position, &mut |entries, is_plain| {
                if is_plain {
                    counts.candidates += entries.len() as u64;
                    out.extend(entries.iter().map(|entry| entry.number()));
                } else {
                    candidates.extend_from_slice(entries);
                }
            });
            false
        });
    }

    #[inline]
    fn evaluate_candidate(
        &self,
        entry: Entry,
        view: EventView<'_>,
        evaluations: &mut EvaluationCache,
        out: &mut Vec<u32>,
    ) {
        if !self.checks.hold(entry.rest, view, &mut evaluations.memory) {
            return;
        }
        if entry.is_exact() || self.evaluate_once(entry, view, evaluations) {
            out.push(entry.number());
        }
    }

    /// For a filter that an event can find repeatedly, or that must be evaluated: whether it matches for the first
    /// time.
    fn evaluate_once(&self, entry: Entry, view: EventView<'_>, evaluations: &mut EvaluationCache) -> bool {
        let number = entry.number();
        let seen = &mut evaluations.seen[number as usize];
        if *seen == view.generation {
            return false;
        }
        *seen = view.generation;
        if !entry.is_evaluated() {
            return true;
        }
        evaluations.counts.evaluated += 1;
        let Some(evaluator) = self.evaluators.get(&number) else { return false };
        evaluator.holds(view.event).unwrap_or_else(|_| {
            evaluations.stopped.push(number);
            false
        })
    }

    /// Bytes held, including the evaluators of filters that are not exact.
    pub fn memory_bytes(&self) -> usize {
        let evaluators: usize = self.evaluators.values().map(|evaluator| evaluator.memory_bytes()).sum();
        self.extractors.memory_bytes()
            + self.checks.memory_bytes()
            + self.signatures.capacity() * size_of::<Signature>()
            + self.signatures.iter().map(Signature::memory_bytes).sum::<usize>()
            + self.evaluators.allocation_size()
            + self.of_empty.iter().map(|(_, numbers)| numbers.len() * 2 * size_of::<u32>()).sum::<usize>()
            + evaluators
    }
}

impl FilterScratch {
    /// Empty buffers for an index.
    pub fn new() -> Self {
        FilterScratch::default()
    }

    /// The filters that exceeded the step limit on the last event. They count as not matching.
    pub fn stopped(&self) -> &[u32] {
        &self.evaluations.stopped
    }

    /// The work done with these buffers so far.
    pub fn counts(&self) -> Counts {
        self.evaluations.counts
    }

    fn begin(&mut self, index: &FilterIndex) {
        // 31 bits, since a result is stored with one more bit.
        if self.generation == u32::MAX >> 1 {
            self.generation = 0;
            self.evaluations.seen.fill(0);
            self.evaluations.memory.clear();
        }
        self.generation += 1;
        self.evaluations.stopped.clear();
        if self.found.len() < index.extractors.extractors_max() {
            self.found.resize(index.extractors.extractors_max(), FoundSymbols::default());
        }
        if self.evaluations.seen.len() < index.numbers_max {
            self.evaluations.seen.resize(index.numbers_max, 0);
        }
    }
}

/// Every combination of one symbol from each list.
pub(super) fn combinations(lists: &[Vec<u32>]) -> impl Iterator<Item = GroupKey> {
    let count = lists.iter().map(Vec::len).product::<usize>();
    (0..count).map(move |mut at| {
        let mut key = [NONE; KEYS_MAX];
        for (place, list) in key.iter_mut().zip(lists) {
            *place = list[at % list.len()];
            at /= list.len();
        }
        key
    })
}

pub(super) fn placement(plan: &Plan<'_>, condition: &Condition, is_exact: bool) -> FilterPlacement {
    let is_scanned =
        |conjunction: &Conjunction<'_>| conjunction.keys.is_empty() && conjunction.ranges().next().is_none();
    match plan.conjunctions.iter().find(|conjunction| is_scanned(conjunction)) {
        None if plan.conjunctions.is_empty() => FilterPlacement::Never,
        None => FilterPlacement::Indexed,
        Some(_) if is_exact && *condition == Condition::Always => FilterPlacement::Always,
        Some(conjunction) => FilterPlacement::Scanned(match conjunction.rests.first() {
            None => ScanReason::Opaque,
            Some(ResidualCheck::Test(_)) => ScanReason::NoValue,
            Some(ResidualCheck::Tree(_)) => ScanReason::NoCommonValue,
        }),
    }
}
