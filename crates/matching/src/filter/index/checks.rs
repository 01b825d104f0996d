//! What the keys of a conjunction leave over, asked of each candidate.
//!
//! Equal tests are kept once, and so are equal lists of them. Tests that cost more than a comparison are answered once
//! for an event, however many filters ask.

use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};
use tocsin_model::value::Value;

use super::{
    plan,
    ranges::Ends,
    readings::{Ask, Found, Readings},
    symbols::NONE,
};
use crate::filter::{
    Condition, How, Reach, Test,
    normal::{write_condition, write_test},
};

/// One test, ready to be asked.
#[derive(Debug, PartialEq)]
enum Check {
    /// A value lies in a range.
    Within { lane: u32, ends: Ends },
    /// A value is one of these; with `but`, a value is none of these. `is_one`: there is one at most.
    Among { reading: u32, lane: u32, symbols: Box<[u32]>, but: bool, is_one: bool },
    /// Something is there, or nothing is, as a reading found out.
    So { reading: u32 },
    /// Any other test.
    Test(Box<Test>),
    /// A whole condition.
    Tree(Box<Condition>),
}

/// What is left over of a conjunction.
#[derive(Debug, Clone, Copy)]
pub enum Rest<'a> {
    /// One of its tests.
    Test(&'a Test),
    /// The whole condition.
    Tree(&'a Condition),
}

/// A check that stands for a lookup.
#[derive(Debug)]
pub struct Split {
    /// The check.
    pub check: u32,
    /// What is read of an event.
    pub reading: u32,
    /// One of these must be found.
    pub symbols: Vec<u32>,
    /// Whether an event can have several of them.
    pub repeats: bool,
}

/// Nothing is left over.
pub const NOTHING: u32 = 0;

/// Set in the number of a list of checks; without it, the number is that of a single check and one.
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

/// Spreads the half of a hash that is kept.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// What was answered for the event at hand.
#[derive(Debug, Default)]
pub struct Memory {
    /// By check: the event's generation, twice, and whether it held.
    answers: Vec<u32>,
    /// How many checks were answered one by one.
    pub asked: u64,
}

impl Memory {
    /// Forgets all; at the start, and when generations begin again.
    pub fn clear(&mut self) {
        self.answers.clear();
    }
}

/// An event as checks see it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The event.
    pub event: &'a [Value],
    /// What was read of it.
    pub found: &'a [Found],
    /// What reads.
    pub readings: &'a Readings,
    /// The number of the event, less than 2^31.
    pub generation: u32,
}

impl Checks {
    /// The number of what is left over, kept until it is released as often as it was acquired.
    pub fn acquire(&mut self, rests: &[Rest<'_>], readings: &mut Readings) -> u32 {
        let mut checks: Vec<u32> = rests.iter().map(|rest| self.acquire_check(rest, readings)).collect();
        self.list_of(&mut checks, readings)
    }

    /// The number of what is left over, if it is in use.
    pub fn find(&self, rests: &[Rest<'_>], readings: &Readings) -> Option<u32> {
        let mut checks = rests.iter().map(|rest| self.find_check(rest, readings)).collect::<Option<Vec<u32>>>()?;
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

    /// Gives back one use.
    pub fn release(&mut self, rest: u32, readings: &mut Readings) {
        if rest == NOTHING {
            return;
        }
        if rest & LIST == 0 {
            self.release_check(rest - 1, readings);
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
        checks.iter().for_each(|check| self.release_check(*check, readings));
    }

    /// The first check that is a range, those with two ends before the others: its place, the range and the check.
    pub fn range(&self, rest: u32) -> Option<(u32, Ends, u32)> {
        let of = |check: &u32| match &self.checks[*check as usize].what {
            Some(Check::Within { lane, ends }) => Some((*lane, ends, *check)),
            _ => None,
        };
        let first = |(lane, ends, _): &(u32, &Ends, u32)| (!ends.is_closed(), *lane, Ends::clone(ends));
        let found = self.list(rest).iter().filter_map(of).min_by_key(first);
        found.map(|(lane, ends, check)| (lane, ends.clone(), check))
    }

    /// The check that finds the least, if one of them can be looked up and asks for no more than `most` values: what a
    /// group is split by. Says the same of equal lists, whatever else is in use. Its reading and symbols are acquired.
    pub fn acquire_split(&self, rest: u32, most: usize, readings: &mut Readings) -> Option<Split> {
        let rank = |check: &u32| match self.checks[*check as usize].what.as_ref()? {
            Check::Among { reading, symbols, but: false, .. } if symbols.len() <= most && !symbols.contains(&NONE) => {
                // What is in use in a group keeps its numbers.
                Some(((0, symbols.len()), vec![*reading], symbols.to_vec(), Vec::new(), *check))
            }
            Check::Test(test) => {
                let key = plan::key(test).filter(|key| !key.is_rough && !key.is_weak() && key.names.len() <= most)?;
                let mut bytes = Vec::new();
                write_test(test, &mut bytes);
                Some((key.rank(), Vec::new(), Vec::new(), bytes, *check))
            }
            _ => None,
        };
        let (.., check) = self.list(rest).iter().filter_map(rank).min()?;
        let (reading, symbols, path) = match self.checks[check as usize].what.as_ref()? {
            Check::Among { lane, symbols, .. } => {
                let path = readings.path(*lane).clone();
                let reading = readings.acquire(&path, Ask::Equal);
                symbols.iter().for_each(|symbol| readings.acquire_again(reading, *symbol));
                (reading, symbols.to_vec(), path)
            }
            Check::Test(test) => {
                let key = plan::key(test)?;
                let reading = readings.acquire(key.path, key.ask);
                let acquire = |name: &plan::Name<'_>| readings.acquire_symbol(reading, &name.wanted());
                (reading, key.names.iter().map(acquire).collect(), key.path.clone())
            }
            _ => return None,
        };
        let repeats = symbols.len() > 1 && (path.reach != Reach::One || readings.seeks_needles(reading));
        Some(Split { check, reading, symbols, repeats })
    }

    /// What is left over without one check, acquired.
    pub fn acquire_without(&mut self, rest: u32, check: u32, readings: &mut Readings) -> u32 {
        let mut others: Vec<u32> = self.list(rest).iter().copied().filter(|other| *other != check).collect();
        others.iter().for_each(|other| self.checks[*other as usize].uses += 1);
        self.list_of(&mut others, readings)
    }

    fn list(&self, rest: u32) -> Vec<u32> {
        match rest {
            NOTHING => Vec::new(),
            rest if rest & LIST == 0 => vec![rest - 1],
            rest => self.lists[(rest & !LIST) as usize].what.as_deref().unwrap_or_default().to_vec(),
        }
    }

    /// Makes one number of checks, each of which was acquired.
    fn list_of(&mut self, checks: &mut Vec<u32>, readings: &mut Readings) -> u32 {
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
            checks.iter().for_each(|check| self.release_check(*check, readings));
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
            Some(Check::Within { .. } | Check::Among { .. } | Check::So { .. }) | None => 0,
            Some(Check::Test(_)) => 1,
            Some(Check::Tree(_)) => 2,
        };
        checks.sort_unstable_by_key(|check| (weight(check), *check));
    }

    fn acquire_check(&mut self, rest: &Rest<'_>, readings: &mut Readings) -> u32 {
        let check = match rest {
            Rest::Tree(condition) => Check::Tree(Box::new((*condition).clone())),
            Rest::Test(test) => match among(test) {
                Some((values, but)) => {
                    let reading = readings.acquire(&test.path, Ask::Equal);
                    let lane = readings.acquire_lane(&test.path);
                    let symbols = values.iter().map(|value| readings.acquire_value(value));
                    Check::Among {
                        reading,
                        lane,
                        symbols: sorted(symbols.collect()),
                        but,
                        is_one: test.path.reach == Reach::One,
                    }
                }
                None => match (presence(test), ends(test)) {
                    (Some(ask), _) => Check::So { reading: readings.acquire(&test.path, ask) },
                    (_, Some(ends)) => Check::Within { lane: readings.acquire_lane(&test.path), ends },
                    _ => Check::Test(Box::new((*test).clone())),
                },
            },
        };
        let hash = self.hash_check(&check);
        if let Some(at) = self.find_same(hash, &check) {
            self.checks[at as usize].uses += 1;
            give_back(check, readings);
            return at;
        }
        let at = place(&mut self.checks, &mut self.checks_free, Slot { what: Some(check), hash, uses: 1 });
        assert!(at < LIST - 1, "fewer than 2^31 tests are in use");
        let checks = &self.checks;
        self.checks_by_hash.insert_unique(spread(hash), at, |at| spread(checks[*at as usize].hash));
        at
    }

    fn find_check(&self, rest: &Rest<'_>, readings: &Readings) -> Option<u32> {
        let check = match rest {
            Rest::Tree(condition) => Check::Tree(Box::new((*condition).clone())),
            Rest::Test(test) => match among(test) {
                Some((values, but)) => {
                    let reading = readings.find(&test.path, Ask::Equal)?;
                    let lane = readings.find_lane(&test.path)?;
                    let symbols = values.iter().map(|value| readings.symbol_of(value));
                    Check::Among {
                        reading,
                        lane,
                        symbols: sorted(symbols.collect()),
                        but,
                        is_one: test.path.reach == Reach::One,
                    }
                }
                None => match (presence(test), ends(test)) {
                    (Some(ask), _) => Check::So { reading: readings.find(&test.path, ask)? },
                    (_, Some(ends)) => Check::Within { lane: readings.find_lane(&test.path)?, ends },
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

    fn release_check(&mut self, at: u32, readings: &mut Readings) {
        let slot = &mut self.checks[at as usize];
        slot.uses -= 1;
        if slot.uses > 0 {
            return;
        }
        let hash = slot.hash;
        if let Some(check) = slot.what.take() {
            give_back(check, readings);
        }
        if let Ok(found) = self.checks_by_hash.find_entry(spread(hash), |other| *other == at) {
            found.remove();
        }
        self.checks_free.push(at);
    }

    fn hash_check(&self, check: &Check) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        match check {
            Check::Within { lane, ends } => (0, lane, ends).hash(&mut hasher),
            Check::Among { reading, symbols, but, .. } => (1, reading, symbols, but).hash(&mut hasher),
            Check::So { reading } => (2, reading).hash(&mut hasher),
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
    pub fn hold(&self, rest: u32, view: View<'_>, memory: &mut Memory) -> bool {
        if rest & LIST == 0 {
            return rest == NOTHING || self.holds(rest - 1, view, memory);
        }
        let list = self.lists[(rest & !LIST) as usize].what.as_deref().unwrap_or_default();
        list.iter().all(|check| self.holds(*check, view, memory))
    }

    fn holds(&self, at: u32, view: View<'_>, memory: &mut Memory) -> bool {
        memory.asked += 1;
        let Some(check) = &self.checks[at as usize].what else { return false };
        match check {
            Check::Within { lane, ends } => view.readings.path(*lane).any(view.event, &mut |value| ends.holds(value)),
            Check::Among { reading, symbols, but: false, .. } => {
                view.found[*reading as usize].symbols().iter().any(|symbol| has(symbols, *symbol))
            }
            Check::Among { reading, symbols, lane, is_one, .. } => match view.found[*reading as usize].sole() {
                Some(symbol) if *is_one => !has(symbols, symbol),
                // What has no symbol is none of them, if it is there.
                _ => view
                    .readings
                    .path(*lane)
                    .any(view.event, &mut |value| !has(symbols, view.readings.symbol_of(value))),
            },
            Check::So { reading } => !view.found[*reading as usize].is_empty(),
            Check::Test(test) => remembered(at, view, memory, || test.holds(view.event)),
            Check::Tree(condition) => remembered(at, view, memory, || condition.holds(view.event)),
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

/// The values of a test of equality, and whether it is negated.
fn among(test: &Test) -> Option<(&[Value], bool)> {
    match &test.how {
        How::In(values) => Some((values, false)),
        How::But(inner) => match &**inner {
            How::In(values) => Some((values, true)),
            _ => None,
        },
        _ => None,
    }
}

/// How a test asks whether something is there.
fn presence(test: &Test) -> Option<Ask> {
    match &test.how {
        How::Exists => Some(Ask::Exists),
        How::Missing => Some(Ask::Missing),
        _ => None,
    }
}

/// The range of a test, as keys.
fn ends(test: &Test) -> Option<Ends> {
    match &test.how {
        How::Range(range) => Ends::of(range),
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

/// Gives back what a check uses.
fn give_back(check: Check, readings: &mut Readings) {
    match check {
        Check::Within { lane, .. } => readings.release_lane(lane),
        Check::So { reading } => readings.release(reading),
        Check::Among { reading, lane, symbols, .. } => {
            symbols.iter().for_each(|symbol| readings.release_value(*symbol));
            readings.release(reading);
            readings.release_lane(lane);
        }
        Check::Test(_) | Check::Tree(_) => {}
    }
}

fn remembered(at: u32, view: View<'_>, memory: &mut Memory, answer: impl FnOnce() -> bool) -> bool {
    let at = at as usize;
    if memory.answers.len() <= at {
        memory.answers.resize(at + 1, 0);
    }
    if memory.answers[at] >> 1 != view.generation {
        memory.answers[at] = view.generation << 1 | u32::from(answer());
    }
    memory.answers[at] & 1 == 1
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
    let how = |how: &How| match how {
        How::In(values) => values.len() * 40,
        How::Prefix(text, _) | How::Suffix(text, _) | How::Contains(text, _) | How::Folded(text) => text.len() + 16,
        How::Wildcard(wildcard) => wildcard.parts().iter().map(|part| part.len() + 32).sum(),
        // Shared with the filter. Its largest size is bounded; this is the usual.
        How::Matches(_) => 4096,
        _ => 0,
    };
    let inner = match &test.how {
        How::But(inner) => size_of::<How>() + how(inner),
        other => how(other),
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
