//! Residual tests of a conjunction, checked for each candidate.
//!
//! Equal tests are stored once, and so are equal lists of them. Tests that cost more than a comparison are evaluated
//! once per event, however many filters use them.

use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};
use tocsin_model::value::Value;

use super::plan;
use crate::filter::{
    condition::{Condition, Reach, Test, ValueTest},
    index::{
        extractors::{Extraction, Extractors, FoundSymbols},
        plan::ResidualCheck,
        ranges::RangeKeys,
        symbols::NONE,
    },
    normal::{write_condition, write_test},
};

/// One compiled test.
#[derive(Debug, PartialEq)]
enum Check {
    /// A value is in a range.
    Within { event_path: u32, ends: RangeKeys },
    /// A value is one of these; with `but`, a value is none of these. `is_one`: there is one at most.
    Among { extractor: u32, event_path: u32, symbols: Box<[u32]>, but: bool, is_one: bool },
    /// Presence or absence, by an extractor.
    Presence { extractor: u32 },
    /// Any other test.
    Test(Box<Test>),
    /// A whole condition.
    Tree(Box<Condition>),
}

/// A check that can be replaced by a lookup.
#[derive(Debug)]
pub struct Split {
    /// The check.
    pub check: u32,
    /// The extractor.
    pub extractor: u32,
    /// One of these must be found.
    pub symbols: Vec<u32>,
    /// Whether an event can have several of them.
    pub repeats: bool,
}

/// No residual.
pub const NOTHING: u32 = 0;
/// Flag in the number of a list of checks; without it, the number is one more than that of a single check.
const LIST: u32 = 1 << 31;

/// The checks in use.
#[derive(Debug, Default)]
pub struct Checks {
    checks: Vec<Slot<Check>>,
    checks_by_hash: HashTable<u32>,
    checks_free: Vec<u32>,
    lists: Vec<Slot<Box<[u32]>>>,
    lists_by_hash: HashTable<u32>,
    lists_free: Vec<u32>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Slot<T> {
    what: Option<T>,
    hash: u32,
    uses: u32,
}

/// Spreads the stored half of a hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Results of checks for the current event.
#[derive(Debug, Default)]
pub struct CheckResults {
    /// By check: the event's generation, times two, plus the result.
    answers: Vec<u32>,
    /// The number of checks evaluated.
    pub asked: u64,
}

impl CheckResults {
    /// Clears all results; at the start, and when generations wrap around.
    pub fn clear(&mut self) {
        self.answers.clear();
    }
}

/// An event as checks see it.
#[derive(Clone, Copy)]
pub struct EventView<'a> {
    /// The event.
    pub event: &'a [Value],
    /// The symbols extracted from it.
    pub found: &'a [FoundSymbols],
    /// The extractors.
    pub extractors: &'a Extractors,
    /// The generation of the event, less than 2^31.
    pub generation: u32,
}

impl Checks {
    /// The number of a residual, kept until it is released as often as it was acquired.
    pub fn acquire(&mut self, rests: &[ResidualCheck<'_>], extractors: &mut Extractors) -> u32 {
        let mut checks: Vec<u32> = rests.iter().map(|rest| self.acquire_check(rest, extractors)).collect();
        self.list_of(&mut checks, extractors)
    }

    /// The number of a residual, if it is in use.
    pub fn find(&self, rests: &[ResidualCheck<'_>], extractors: &Extractors) -> Option<u32> {
        let mut checks = rests.iter().map(|rest| self.find_check(rest, extractors)).collect::<Option<Vec<u32>>>()?;
        self.sort(&mut checks);
        match checks.as_slice() {
            [] => Some(NOTHING),
            [check] => Some(check + 1),
            checks => {
                let hash = self.hash_list(checks);
                let found = self
                    .lists_by_hash
                    .find(spread(hash), |list| self.lists[*list as usize].what.as_deref() == Some(checks))?;
                Some(LIST | found)
            }
        }
    }

    /// Releases one use.
    pub fn release(&mut self, rest: u32, extractors: &mut Extractors) {
        if rest == NOTHING {
            return;
        }
        if rest & LIST == 0 {
            self.release_check(rest - 1, extractors);
            return;
        }
        let at = rest & !LIST;
        let slot = &mut self.lists[at as usize];
        slot.uses -= 1;
        if slot.uses > 0 {
            return;
        }
        let hash = slot.hash;
        let checks = slot.what.take().unwrap_or_default();
        if let Ok(found) = self.lists_by_hash.find_entry(spread(hash), |other| *other == at) {
            found.remove();
        }
        self.lists_free.push(at);
        checks.iter().for_each(|check| self.release_check(*check, extractors));
    }

    /// The first check that is a range, those with two ends first: its path, the range and the check.
    pub fn range(&self, rest: u32) -> Option<(u32, RangeKeys, u32)> {
        let of = |check: &u32| match &self.checks[*check as usize].what {
            Some(Check::Within { event_path, ends }) => Some((*event_path, ends, *check)),
            _ => None,
        };
        let first =
            |(event_path, ends, _): &(u32, &RangeKeys, u32)| (!ends.is_closed(), *event_path, RangeKeys::clone(ends));
        let found = self.list(rest).iter().filter_map(of).min_by_key(first);
        found.map(|(event_path, ends, check)| (event_path, ends.clone(), check))
    }

    /// The most selective check that can be looked up with at most `most` values: a group is split by it. The same for
    /// equal lists, whatever else is in use. Its extractor and symbols are acquired.
    pub fn acquire_split(&self, rest: u32, most: usize, extractors: &mut Extractors) -> Option<Split> {
        let rank = |check: &u32| match self.checks[*check as usize].what.as_ref()? {
            Check::Among { extractor, symbols, but: false, .. }
                if symbols.len() <= most && !symbols.contains(&NONE) =>
            {
                // Numbers that are in use in a group do not change.
                Some(((0, symbols.len()), vec![*extractor], symbols.to_vec(), Vec::new(), *check))
            }
            Check::Test(test) => {
                let key =
                    plan::key(test).filter(|key| !key.is_approximate && !key.is_weak() && key.names.len() <= most)?;
                let mut bytes = Vec::new();
                write_test(test, &mut bytes);
                Some((key.rank(), Vec::new(), Vec::new(), bytes, *check))
            }
            _ => None,
        };
        let (.., check) = self.list(rest).iter().filter_map(rank).min()?;
        let (extractor, symbols, path) = match self.checks[check as usize].what.as_ref()? {
            Check::Among { event_path, symbols, .. } => {
                let path = extractors.path(*event_path).clone();
                let extractor = extractors.acquire(&path, Extraction::Equal);
                symbols.iter().for_each(|symbol| extractors.acquire_again(extractor, *symbol));
                (extractor, symbols.to_vec(), path)
            }
            Check::Test(test) => {
                let key = plan::key(test)?;
                let extractor = extractors.acquire(key.path, key.extraction);
                let acquire = |name: &plan::Name<'_>| extractors.acquire_symbol(extractor, &name.query());
                (extractor, key.names.iter().map(acquire).collect(), key.path.clone())
            }
            _ => return None,
        };
        let repeats = symbols.len() > 1 && (path.reach != Reach::One || extractors.seeks_needles(extractor));
        Some(Split { check, extractor, symbols, repeats })
    }

    /// The residual without one check, acquired.
    pub fn acquire_without(&mut self, rest: u32, check: u32, extractors: &mut Extractors) -> u32 {
        let mut others: Vec<u32> = self.list(rest).iter().copied().filter(|other| *other != check).collect();
        others.iter().for_each(|other| self.checks[*other as usize].uses += 1);
        self.list_of(&mut others, extractors)
    }

    fn list(&self, rest: u32) -> Vec<u32> {
        match rest {
            NOTHING => Vec::new(),
            rest if rest & LIST == 0 => vec![rest - 1],
            rest => self.lists[(rest & !LIST) as usize].what.as_deref().unwrap_or_default().to_vec(),
        }
    }

    /// One number for a list of checks, each of which was acquired.
    fn list_of(&mut self, checks: &mut Vec<u32>, extractors: &mut Extractors) -> u32 {
        self.sort(checks);
        match checks.as_slice() {
            [] => return NOTHING,
            [check] => return check + 1,
            _ => {}
        }
        let hash = self.hash_list(checks);
        let found = self
            .lists_by_hash
            .find(spread(hash), |list| self.lists[*list as usize].what.as_deref() == Some(checks.as_slice()));
        if let Some(list) = found.copied() {
            self.lists[list as usize].uses += 1;
            checks.iter().for_each(|check| self.release_check(*check, extractors));
            return LIST | list;
        }
        let new = Slot { what: Some(checks.as_slice().into()), hash, uses: 1 };
        let list = place(&mut self.lists, &mut self.lists_free, new);
        let lists = &self.lists;
        self.lists_by_hash.insert_unique(spread(hash), list, |list| spread(lists[*list as usize].hash));
        LIST | list
    }

    /// The cheapest first.
    fn sort(&self, checks: &mut [u32]) {
        let weight = |check: &u32| match &self.checks[*check as usize].what {
            Some(Check::Within { .. } | Check::Among { .. } | Check::Presence { .. }) | None => 0,
            Some(Check::Test(_)) => 1,
            Some(Check::Tree(_)) => 2,
        };
        checks.sort_unstable_by_key(|check| (weight(check), *check));
    }

    fn acquire_check(&mut self, rest: &ResidualCheck<'_>, extractors: &mut Extractors) -> u32 {
        let check = match rest {
            ResidualCheck::Tree(condition) => Check::Tree(Box::new((*condition).clone())),
            ResidualCheck::Test(test) => match among(test) {
                Some((values, but)) => {
                    let extractor = extractors.acquire(&test.path, Extraction::Equal);
                    let event_path = extractors.acquire_event_path(&test.path);
                    let symbols = values.iter().map(|value| extractors.acquire_value(value));
                    Check::Among {
                        extractor,
                        event_path,
                        symbols: sorted(symbols.collect()),
                        but,
                        is_one: test.path.reach == Reach::One,
                    }
                }
                None => match (presence(test), ends(test)) {
                    (Some(extraction), _) => Check::Presence { extractor: extractors.acquire(&test.path, extraction) },
                    (_, Some(ends)) => Check::Within { event_path: extractors.acquire_event_path(&test.path), ends },
                    _ => Check::Test(Box::new((*test).clone())),
                },
            },
        };
        let hash = self.hash_check(&check);
        if let Some(at) = self.find_same(hash, &check) {
            self.checks[at as usize].uses += 1;
            release_uses(check, extractors);
            return at;
        }
        let at = place(&mut self.checks, &mut self.checks_free, Slot { what: Some(check), hash, uses: 1 });
        assert!(at < LIST - 1, "fewer than 2^31 tests are in use");
        let checks = &self.checks;
        self.checks_by_hash.insert_unique(spread(hash), at, |at| spread(checks[*at as usize].hash));
        at
    }

    fn find_check(&self, rest: &ResidualCheck<'_>, extractors: &Extractors) -> Option<u32> {
        let check = match rest {
            ResidualCheck::Tree(condition) => Check::Tree(Box::new((*condition).clone())),
            ResidualCheck::Test(test) => match among(test) {
                Some((values, but)) => {
                    let extractor = extractors.find(&test.path, Extraction::Equal)?;
                    let event_path = extractors.find_event_path(&test.path)?;
                    let symbols = values.iter().map(|value| extractors.symbol_of(value));
                    Check::Among {
                        extractor,
                        event_path,
                        symbols: sorted(symbols.collect()),
                        but,
                        is_one: test.path.reach == Reach::One,
                    }
                }
                None => match (presence(test), ends(test)) {
                    (Some(extraction), _) => Check::Presence { extractor: extractors.find(&test.path, extraction)? },
                    (_, Some(ends)) => Check::Within { event_path: extractors.find_event_path(&test.path)?, ends },
                    _ => Check::Test(Box::new((*test).clone())),
                },
            },
        };
        self.find_same(self.hash_check(&check), &check)
    }

    fn find_same(&self, hash: u32, check: &Check) -> Option<u32> {
        let same = |at: &u32| self.checks[*at as usize].what.as_ref() == Some(check);
        self.checks_by_hash.find(spread(hash), same).copied()
    }

    fn release_check(&mut self, at: u32, extractors: &mut Extractors) {
        let slot = &mut self.checks[at as usize];
        slot.uses -= 1;
        if slot.uses > 0 {
            return;
        }
        let hash = slot.hash;
        if let Some(check) = slot.what.take() {
            release_uses(check, extractors);
        }
        if let Ok(found) = self.checks_by_hash.find_entry(spread(hash), |other| *other == at) {
            found.remove();
        }
        self.checks_free.push(at);
    }

    fn hash_check(&self, check: &Check) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        match check {
            Check::Within { event_path, ends } => (0, event_path, ends).hash(&mut hasher),
            Check::Among { extractor, symbols, but, .. } => (1, extractor, symbols, but).hash(&mut hasher),
            Check::Presence { extractor } => (2, extractor).hash(&mut hasher),
            Check::Test(test) => {
                let mut bytes = Vec::new();
                write_test(test, &mut bytes);
                (3, bytes).hash(&mut hasher);
            }
            Check::Tree(condition) => {
                let mut bytes = Vec::new();
                write_condition(condition, &mut bytes);
                (4, bytes).hash(&mut hasher);
            }
        }
        hasher.finish() as u32
    }

    fn hash_list(&self, checks: &[u32]) -> u32 {
        self.hasher.hash_one(checks) as u32
    }

    /// Whether what is left over holds for an event.
    pub fn hold(&self, rest: u32, view: EventView<'_>, results: &mut CheckResults) -> bool {
        if rest & LIST == 0 {
            return rest == NOTHING || self.holds(rest - 1, view, results);
        }
        let list = self.lists[(rest & !LIST) as usize].what.as_deref().unwrap_or_default();
        list.iter().all(|check| self.holds(*check, view, results))
    }

    fn holds(&self, at: u32, view: EventView<'_>, results: &mut CheckResults) -> bool {
        results.asked += 1;
        let Some(check) = &self.checks[at as usize].what else { return false };
        match check {
            Check::Within { event_path, ends } => {
                view.extractors.path(*event_path).any(view.event, &mut |value| ends.holds(value))
            }
            Check::Among { extractor, symbols, but: false, .. } => {
                view.found[*extractor as usize].symbols().iter().any(|symbol| has(symbols, *symbol))
            }
            Check::Among { extractor, symbols, event_path, is_one, .. } => match view.found[*extractor as usize].sole()
            {
                Some(symbol) if *is_one => !has(symbols, symbol),
                // A value without a symbol is none of them, if it is present.
                _ => view
                    .extractors
                    .path(*event_path)
                    .any(view.event, &mut |value| !has(symbols, view.extractors.symbol_of(value))),
            },
            Check::Presence { extractor } => !view.found[*extractor as usize].is_empty(),
            Check::Test(test) => cached(at, view, results, || test.holds(view.event)),
            Check::Tree(condition) => cached(at, view, results, || condition.holds(view.event)),
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let inner = |slot: &Slot<Check>| match &slot.what {
            Some(Check::Among { symbols, .. }) => symbols.len() * 4 + 16,
            Some(Check::Within { ends, .. }) => ends.memory_bytes(),
            Some(Check::Test(test)) => test_bytes(test),
            Some(Check::Tree(condition)) => tree_bytes(condition),
            _ => 0,
        };
        let list = |slot: &Slot<Box<[u32]>>| slot.what.as_ref().map_or(0, |list| list.len() * 4 + 16);
        self.checks.capacity() * size_of::<Slot<Check>>()
            + self.checks.iter().map(inner).sum::<usize>()
            + self.lists.capacity() * size_of::<Slot<Box<[u32]>>>()
            + self.lists.iter().map(list).sum::<usize>()
            + self.checks_by_hash.allocation_size()
            + self.lists_by_hash.allocation_size()
            + (self.checks_free.capacity() + self.lists_free.capacity()) * 4
    }
}

/// The values of an equality test, and whether it is negated.
fn among(test: &Test) -> Option<(&[Value], bool)> {
    match &test.value_test {
        ValueTest::In(values) => Some((values, false)),
        ValueTest::But(inner) => match &**inner {
            ValueTest::In(values) => Some((values, true)),
            _ => None,
        },
        _ => None,
    }
}

/// The extraction of a presence test.
fn presence(test: &Test) -> Option<Extraction> {
    match &test.value_test {
        ValueTest::Exists => Some(Extraction::Exists),
        ValueTest::Missing => Some(Extraction::Missing),
        _ => None,
    }
}

/// The range of a test, as keys.
fn ends(test: &Test) -> Option<RangeKeys> {
    match &test.value_test {
        ValueTest::Range(range) => RangeKeys::of(range),
        _ => None,
    }
}

fn sorted(mut symbols: Vec<u32>) -> Box<[u32]> {
    symbols.sort_unstable();
    symbols.into()
}

fn has(symbols: &[u32], symbol: u32) -> bool {
    symbol != NONE
        && if symbols.len() <= 8 { symbols.contains(&symbol) } else { symbols.binary_search(&symbol).is_ok() }
}

/// Releases what a check uses.
fn release_uses(check: Check, extractors: &mut Extractors) {
    match check {
        Check::Within { event_path, .. } => extractors.release_event_path(event_path),
        Check::Presence { extractor } => extractors.release(extractor),
        Check::Among { extractor, event_path, symbols, .. } => {
            symbols.iter().for_each(|symbol| extractors.release_value(*symbol));
            extractors.release(extractor);
            extractors.release_event_path(event_path);
        }
        Check::Test(_) | Check::Tree(_) => {}
    }
}

fn cached(at: u32, view: EventView<'_>, results: &mut CheckResults, answer: impl FnOnce() -> bool) -> bool {
    let at = at as usize;
    if results.answers.len() <= at {
        results.answers.resize(at + 1, 0);
    }
    if results.answers[at] >> 1 != view.generation {
        results.answers[at] = view.generation << 1 | u32::from(answer());
    }
    results.answers[at] & 1 == 1
}

fn place<T>(list: &mut Vec<Slot<T>>, free: &mut Vec<u32>, new: Slot<T>) -> u32 {
    match free.pop() {
        Some(at) => {
            list[at as usize] = new;
            at
        }
        None => {
            list.push(new);
            u32::try_from(list.len() - 1).expect("fewer than 2^31 tests are in use")
        }
    }
}

fn test_bytes(test: &Test) -> usize {
    let value_test = |value_test: &ValueTest| match value_test {
        ValueTest::In(values) => values.len() * 40,
        ValueTest::Prefix(text, _)
        | ValueTest::Suffix(text, _)
        | ValueTest::Contains(text, _)
        | ValueTest::Folded(text) => text.len() + 16,
        ValueTest::Wildcard(wildcard) => wildcard.parts().iter().map(|part| part.len() + 32).sum(),
        // Shared with the filter. The typical size; the largest is bounded.
        ValueTest::Matches(_) => 4096,
        _ => 0,
    };
    let inner = match &test.value_test {
        ValueTest::But(inner) => size_of::<ValueTest>() + value_test(inner),
        other => value_test(other),
    };
    size_of::<Test>() + inner + test.path.keys.iter().map(|key| key.len() + 32).sum::<usize>()
}

fn tree_bytes(condition: &Condition) -> usize {
    let inner = match condition {
        Condition::All(parts) | Condition::Any(parts) => parts.iter().map(tree_bytes).sum(),
        Condition::Test(test) => test_bytes(test) - size_of::<Test>(),
        Condition::Always | Condition::Unknown => 0,
    };
    size_of::<Condition>() + inner
}
