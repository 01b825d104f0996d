//! The index over distinct filters: which of them an event meets, at the cost of what it meets.
//!
//! A condition is taken apart into conjunctions. The tests of one that can be looked up (equality, sets, prefixes,
//! suffixes, networks, texts within texts) are its keys; conjunctions that ask the same places in the same way share a
//! signature, in which the values asked for lead to a group. An event costs one lookup for each value it holds and each
//! signature, and then what it finds there. A group that grows is split by what else its conjunctions ask for, and ranges
//! are sorted by their ends. What is left over is asked of each candidate, equal tests once for an event. Only filters whose condition is not exact are evaluated.
//!
//! What has no key and no range is asked of every event; [`FilterIndex::insert`] says so, and it is counted.

mod checks; // what is left over, asked of each candidate
mod explain; // how a filter is filed, for people
pub(super) mod literals; // texts that a regular expression needs
mod needles; // texts looked for within a text, all at once
mod plan; // how a condition is filed
mod ranges; // ranges sorted by an end
mod readings; // what is read of an event: symbols
mod signatures; // conjunctions by what they ask and for what
mod symbols; // values as small numbers

use std::{ops::AddAssign, sync::Arc};

use hashbrown::{HashMap, HashSet};
use tocsin_model::value::Value;

use self::{
    checks::{Checks, Memory, Rest, View},
    plan::{Conjunction, KEYS_MAX, Plan},
    ranges::{Column, Key, Spot},
    readings::{Found, Readings},
    signatures::{Entry, GroupKey, Lookup, Meet, Signature},
    symbols::NONE,
};
use super::{CompiledFilter, Condition, Evaluate};

pub use explain::{Explanation, Place};

/// Most signatures with several readings. Beyond, a conjunction is filed by its best key alone, so that an event costs
/// at most so many lookups and one for each value.
pub const SIGNATURES_MAX: usize = 512;

/// Lookups that are under way at once.
const LOOKUPS: usize = 16;

/// How a filter is filed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It never holds, so it is not filed.
    Never,
    /// It holds for every event.
    Always,
    /// By values or ranges: it costs something only for events that have one of them.
    Indexed,
    /// It is a candidate for every event.
    Scanned(Scanned),
}

impl Standing {
    /// How a filter would be filed in any index.
    pub fn of(filter: &CompiledFilter) -> Standing {
        standing(&Plan::of(filter.condition(), !filter.is_exact()), filter.condition(), filter.is_exact())
    }
}

/// Why a filter is a candidate for every event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scanned {
    /// Only evaluating it tells anything.
    Opaque,
    /// One of its alternatives asks for no value and no range, only what something is not.
    NoValue,
    /// It has too many alternatives to be taken apart, and no values one of which each of them needs.
    NoCommonValue,
}

/// The distinct filters of an event class, by number. Cheap to ask, so that it has one owner and no locks; what is
/// changed between two events is seen by the second.
#[derive(Debug, Default)]
pub struct FilterIndex {
    readings: Readings,
    checks: Checks,
    signatures: Vec<Signature>,
    signatures_by_readings: HashMap<Box<[u32]>, u32>,
    /// What decides the filters whose condition is not exact.
    evaluators: HashMap<u32, Arc<dyn Evaluate>>,
    /// Those that match an event without any value.
    of_empty: HashSet<u32>,
    /// How many fields have no value then. Further columns do not count.
    fields: usize,
    len: usize,
    scanned: usize,
    /// One more than the highest number ever filed.
    numbers_max: usize,
}

/// What an index works with while it answers. Used again from event to event, with one index only.
#[derive(Debug, Default)]
pub struct Desk {
    generation: u32,
    found: Vec<Found>,
    /// Conjunctions whose keys were found.
    candidates: Vec<Entry>,
    judge: Judge,
}

/// What was found out about the event at hand.
#[derive(Debug, Default)]
struct Judge {
    /// By filter: the generation in which it was last answered. Only of those that an event may meet repeatedly.
    seen: Vec<u32>,
    memory: Memory,
    stopped: Vec<u32>,
    counts: Counts,
}

/// What an index did, added up over events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Counts {
    /// Events asked about.
    pub events: u64,
    /// Conjunctions looked at because their keys were found.
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
    /// What was added since an earlier count.
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

    /// How many filters there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many of them are candidates for every event.
    pub fn scanned(&self) -> usize {
        self.scanned
    }

    /// How many sets of readings are asked; an event costs a lookup for each.
    pub fn signatures(&self) -> usize {
        self.signatures_by_readings.len()
    }

    /// How many groups its conjunctions are filed in.
    pub fn groups(&self) -> usize {
        self.signatures.iter().map(Signature::groups).sum()
    }

    /// Files a filter under a number below 2^30 that is not in use. Cost: linear in its condition, and in what it is
    /// taken apart into.
    pub fn insert(&mut self, number: u32, filter: &CompiledFilter) -> Standing {
        let plan = Plan::of(filter.condition(), !filter.is_exact());
        let standing = standing(&plan, filter.condition(), filter.is_exact());
        let mut flags = if plan.repeats { Entry::REPEATS } else { 0 };
        if !filter.is_exact() {
            flags |= Entry::EVALUATED;
            self.evaluators.insert(number, Arc::clone(filter.evaluator()));
        }
        if let Some(fields) = filter.matches_empty() {
            self.fields = fields;
            self.of_empty.insert(number);
        }
        for conjunction in plan.conjunctions {
            self.insert_conjunction(number, flags, conjunction);
        }
        self.len += 1;
        self.scanned += usize::from(matches!(standing, Standing::Scanned(_)));
        self.numbers_max = self.numbers_max.max(number as usize + 1);
        standing
    }

    fn insert_conjunction(&mut self, number: u32, flags: u32, mut conjunction: Conjunction<'_>) {
        let mut asked = self.acquire_readings(&conjunction);
        let is_new = !self.signatures_by_readings.contains_key(&*asked);
        if is_new && asked.len() > 1 && self.signatures_by_readings.len() >= SIGNATURES_MAX {
            asked.iter().for_each(|reading| self.readings.release(*reading));
            conjunction = conjunction.narrowed();
            asked = self.acquire_readings(&conjunction);
        }
        let at = match self.signatures_by_readings.get(&*asked) {
            Some(at) => {
                asked.iter().for_each(|reading| self.readings.release(*reading));
                *at as usize
            }
            None => {
                // The signature keeps the uses of its readings.
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
            let rest = self.checks.acquire(&conjunction.rests, &mut self.readings);
            let entry = Entry::new(number, flags, rest);
            self.signatures[at].insert(&key, entry, &mut self.readings, &mut self.checks, |readings| {
                asked.iter().zip(key).for_each(|(reading, symbol)| readings.acquire_again(*reading, symbol));
            });
        }
        for (reading, symbols) in asked.iter().zip(alternatives) {
            symbols.into_iter().for_each(|symbol| self.readings.release_symbol(*reading, symbol));
        }
    }

    /// The readings of a conjunction's keys, rising; each acquired.
    fn acquire_readings(&mut self, conjunction: &Conjunction<'_>) -> Box<[u32]> {
        let mut asked: Vec<u32> = conjunction.keys.iter().map(|key| self.readings.acquire(key.path, key.ask)).collect();
        asked.sort_unstable();
        asked.into()
    }

    /// For each reading the symbols asked for, each acquired.
    fn acquire_symbols(&mut self, asked: &[u32], conjunction: &Conjunction<'_>) -> Vec<Vec<u32>> {
        let mut alternatives = vec![Vec::new(); asked.len()];
        for key in &conjunction.keys {
            let reading = self.readings.find(key.path, key.ask).expect("its reading was acquired");
            let at = asked.binary_search(&reading).expect("it is among those asked");
            alternatives[at] =
                key.names.iter().map(|name| self.readings.acquire_symbol(reading, &name.wanted())).collect();
        }
        alternatives
    }

    /// Takes out a filter that was filed under this number. It must be the same or compiled from the same text.
    pub fn remove(&mut self, number: u32, filter: &CompiledFilter) {
        self.remove_condition(number, filter.condition(), filter.is_exact());
    }

    /// Takes out a filter of which only the condition is known, and whether it is exact.
    pub(crate) fn remove_condition(&mut self, number: u32, condition: &Condition, is_exact: bool) {
        let plan = Plan::of(condition, !is_exact);
        let standing = standing(&plan, condition, is_exact);
        let mut flags = if plan.repeats { Entry::REPEATS } else { 0 };
        if !is_exact {
            flags |= Entry::EVALUATED;
            self.evaluators.remove(&number);
        }
        self.of_empty.remove(&number);
        for conjunction in plan.conjunctions {
            if let Err(conjunction) = self.remove_conjunction(number, flags, conjunction) {
                // It came when there were too many signatures.
                let gone = self.remove_conjunction(number, flags, conjunction.narrowed());
                debug_assert!(gone.is_ok(), "filter {number} was not filed as it is taken out");
            }
        }
        self.len -= 1;
        self.scanned -= usize::from(matches!(standing, Standing::Scanned(_)));
    }

    fn remove_conjunction<'a>(
        &mut self,
        number: u32,
        flags: u32,
        conjunction: Conjunction<'a>,
    ) -> Result<(), Conjunction<'a>> {
        let Some((at, alternatives)) = self.find_signature(&conjunction) else { return Err(conjunction) };
        let asked: Box<[u32]> = self.signatures[at].readings().into();
        let mut removed = true;
        for key in combinations(&alternatives) {
            removed &= self.signatures[at].remove(
                &key,
                |rest| Entry::new(number, flags, rest),
                &conjunction.rests,
                &mut self.readings,
                &mut self.checks,
                |readings| {
                    asked.iter().zip(key).for_each(|(reading, symbol)| readings.release_symbol(*reading, symbol))
                },
            );
        }
        if !removed {
            return Err(conjunction);
        }
        if self.signatures[at].is_empty() {
            self.signatures_by_readings.remove(&*asked);
            self.signatures[at] = Signature::new(Box::default());
            asked.iter().for_each(|reading| self.readings.release(*reading));
        }
        Ok(())
    }

    /// The signature of a conjunction and the symbols it asks for, if all are in use.
    fn find_signature(&self, conjunction: &Conjunction<'_>) -> Option<(usize, Vec<Vec<u32>>)> {
        let mut keys = Vec::with_capacity(conjunction.keys.len());
        for key in &conjunction.keys {
            let reading = self.readings.find(key.path, key.ask)?;
            let symbols: Vec<u32> =
                key.names.iter().map(|name| self.readings.find_symbol(reading, &name.wanted())).collect();
            keys.push((reading, symbols));
        }
        keys.sort_unstable();
        let asked: Vec<u32> = keys.iter().map(|(reading, _)| *reading).collect();
        let at = *self.signatures_by_readings.get(&*asked)?;
        Some((at as usize, keys.into_iter().map(|(_, symbols)| symbols).collect()))
    }

    /// Appends the numbers of the filters that match an event, a row of the class for which they were compiled; each
    /// once, in no particular order. [`Desk::stopped`] then holds those that could not be decided.
    pub fn matching(&self, event: &[Value], desk: &mut Desk, out: &mut Vec<u32>) {
        desk.begin(self);
        let Desk { generation, found, candidates, judge } = desk;
        self.readings.read(event, found);
        let view = View { event, found, readings: &self.readings, generation: *generation };
        let before = out.len();
        candidates.clear();
        // Lookups first, candidates after them, judgements last: the memory that one step waits for is that of others
        // as well, so that they wait together.
        for signatures in self.signatures.chunks(LOOKUPS) {
            let mut lookups = [const { Lookup::Nothing }; LOOKUPS];
            for (lookup, signature) in lookups.iter_mut().zip(signatures) {
                *lookup = signature.look_up(found);
            }
            let mut meet = |met: Meet<'_>| match met {
                Meet::Listed(entries) => candidates.extend_from_slice(entries),
                Meet::Column(lane, column) => {
                    self.answer(lane, column, event, Spot::of, candidates, &mut judge.counts, out);
                }
                Meet::Texts(lane, column) => {
                    self.answer(lane, column, event, Spot::of_text, candidates, &mut judge.counts, out);
                }
            };
            for lookup in lookups {
                match lookup {
                    Lookup::Nothing => {}
                    Lookup::One(group) => group.meet(found, &mut meet),
                    Lookup::Many(signature) => signature.meet_many(found, &mut meet),
                }
            }
        }
        judge.counts.candidates += candidates.len() as u64;
        for entry in &*candidates {
            self.judge(*entry, view, judge, out);
        }
        if !self.of_empty.is_empty() && event.iter().take(self.fields).all(Value::is_null) {
            // Each once, whether its condition holds or not.
            let found = out.split_off(before);
            out.extend(found.into_iter().filter(|number| !self.of_empty.contains(number)));
            out.extend(&self.of_empty);
        }
        judge.counts.events += 1;
        judge.counts.matched += (out.len() - before) as u64;
    }

    /// Takes what lies in ranges around the values of a place: certain matches, and further candidates.
    #[allow(clippy::too_many_arguments)]
    fn answer<'v, K: Key>(
        &self,
        lane: u32,
        column: &Column<K, Entry>,
        event: &'v [Value],
        spot: impl Fn(&'v Value) -> Option<Spot<K::Seen<'v>>>,
        candidates: &mut Vec<Entry>,
        counts: &mut Counts,
        out: &mut Vec<u32>,
    ) {
        self.readings.path(lane).any(event, &mut |value| {
            let Some(spot) = spot(value) else { return false };
            column.answer(spot, &mut |entries, is_plain| {
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
    fn judge(&self, entry: Entry, view: View<'_>, judge: &mut Judge, out: &mut Vec<u32>) {
        if !self.checks.hold(entry.rest, view, &mut judge.memory) {
            return;
        }
        if entry.is_sure() || self.judge_again(entry, view, judge) {
            out.push(entry.number());
        }
    }

    /// Whether a filter that an event may meet repeatedly, or that must be evaluated, matches for the first time.
    fn judge_again(&self, entry: Entry, view: View<'_>, judge: &mut Judge) -> bool {
        let number = entry.number();
        let seen = &mut judge.seen[number as usize];
        if *seen == view.generation {
            return false;
        }
        *seen = view.generation;
        if !entry.is_evaluated() {
            return true;
        }
        judge.counts.evaluated += 1;
        let Some(evaluator) = self.evaluators.get(&number) else { return false };
        evaluator.holds(view.event).unwrap_or_else(|_| {
            judge.stopped.push(number);
            false
        })
    }

    /// Bytes held, what evaluates the filters that are not exact included.
    pub fn memory_bytes(&self) -> usize {
        let evaluators: usize = self.evaluators.values().map(|evaluator| evaluator.memory_bytes()).sum();
        self.readings.memory_bytes()
            + self.checks.memory_bytes()
            + self.signatures.capacity() * size_of::<Signature>()
            + self.signatures.iter().map(Signature::memory_bytes).sum::<usize>()
            + self.evaluators.allocation_size()
            + self.of_empty.allocation_size()
            + evaluators
    }
}

impl Desk {
    /// A desk for an index.
    pub fn new() -> Self {
        Desk::default()
    }

    /// The filters that took too many steps on the event asked about last. They count as not matching.
    pub fn stopped(&self) -> &[u32] {
        &self.judge.stopped
    }

    /// What was done on this desk so far.
    pub fn counts(&self) -> Counts {
        self.judge.counts
    }

    fn begin(&mut self, index: &FilterIndex) {
        // 31 bits, since answers are remembered beside one more.
        if self.generation == u32::MAX >> 1 {
            self.generation = 0;
            self.judge.seen.fill(0);
            self.judge.memory.clear();
        }
        self.generation += 1;
        self.judge.stopped.clear();
        if self.found.len() < index.readings.readings_max() {
            self.found.resize(index.readings.readings_max(), Found::default());
        }
        if self.judge.seen.len() < index.numbers_max {
            self.judge.seen.resize(index.numbers_max, 0);
        }
    }
}

/// Every combination of one symbol from each list.
fn combinations(lists: &[Vec<u32>]) -> impl Iterator<Item = GroupKey> {
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

fn standing(plan: &Plan<'_>, condition: &Condition, is_exact: bool) -> Standing {
    let is_scanned =
        |conjunction: &Conjunction<'_>| conjunction.keys.is_empty() && conjunction.ranges().next().is_none();
    match plan.conjunctions.iter().find(|conjunction| is_scanned(conjunction)) {
        None if plan.conjunctions.is_empty() => Standing::Never,
        None => Standing::Indexed,
        Some(_) if is_exact && *condition == Condition::Always => Standing::Always,
        Some(conjunction) => Standing::Scanned(match conjunction.rests.first() {
            None => Scanned::Opaque,
            Some(Rest::Test(_)) => Scanned::NoValue,
            Some(Rest::Tree(_)) => Scanned::NoCommonValue,
        }),
    }
}
