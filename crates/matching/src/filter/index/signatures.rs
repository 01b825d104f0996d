//! Conjunctions grouped by extractors and symbols: one signature for each set of extractors, in it one group for each
//! set of symbols. So an event costs one lookup for each signature, plus the entries found.

use std::sync::Arc;

use hashbrown::{HashMap, HashTable};

use super::{
    checks::{Checks, NOTHING, Split},
    extractors::{Extractors, FoundSymbols},
    plan::KEYS_MAX,
    ranges::{Column, IndexEntry, Interval, Key, RangeKeys},
    symbols::NONE,
};
use crate::filter::index::plan::ResidualCheck;

/// Larger groups are split by further values, and sort their ranges.
const LIST_MAX: usize = 64;
/// Most extractors by which a group is split. An event costs a lookup for each.
const SPLITS_MAX: usize = 8;
/// Most values of a condition by which a group is split; its entry is stored under each.
const SPLIT_VALUES_MAX: usize = 32;

/// The symbols of a group, in the order of its signature's extractors; [`NONE`] fills the rest.
pub type GroupKey = [u32; KEYS_MAX];

/// A conjunction of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The filter's number and flags, see [`Entry::REPEATS`].
    word: u32,
    /// The number of its residual.
    pub rest: u32,
}

impl Entry {
    /// An event can find the filter repeatedly.
    pub const REPEATS: u32 = 1 << 31;
    /// The filter must be evaluated.
    pub const EVALUATED: u32 = 1 << 30;
    /// One more than the highest number.
    pub const NUMBERS_MAX: u32 = 1 << 30;

    /// An entry of a filter, with flags.
    pub fn new(number: u32, flags: u32, rest: u32) -> Entry {
        assert!(number < Entry::NUMBERS_MAX, "numbers of filters are below 2^30");
        Entry { word: number | flags, rest }
    }

    /// The filter.
    pub fn number(self) -> u32 {
        self.word & !(Entry::REPEATS | Entry::EVALUATED)
    }

    /// The same with a smaller residual, and optionally the `REPEATS` flag.
    fn without(self, rest: u32, repeats: bool) -> Entry {
        Entry { word: self.word | if repeats { Entry::REPEATS } else { 0 }, rest }
    }

    /// Whether it matches without any further check.
    pub fn is_exact(self) -> bool {
        self.word < Entry::NUMBERS_MAX
    }

    /// Whether the filter must be evaluated.
    pub fn is_evaluated(self) -> bool {
        self.word & Entry::EVALUATED != 0
    }
}

impl IndexEntry for Entry {
    fn is_plain(&self) -> bool {
        self.is_exact() && self.rest == NOTHING
    }
}

/// All conjunctions with the same extractors.
#[derive(Debug)]
pub struct Signature {
    extractors: Box<[u32]>,
    groups: HashTable<Group>,
}

/// The entries of one set of symbols.
#[derive(Debug)]
pub struct Group {
    key: GroupKey,
    entries: Entries,
}

/// The entries of a group. Most groups have one.
#[derive(Debug)]
enum Entries {
    One(Entry),
    List(Vec<Entry>),
    LargeGroup(Box<LargeGroup>),
}

/// A group with many entries: those with a further value are split by it, others with a range are sorted by its ends,
/// in one column per path.
#[derive(Debug, Default)]
struct LargeGroup {
    list: Vec<Entry>,
    parts: Vec<SplitEntries>,
    /// The number of entries that would be split if there were not too many splits already.
    unsplit: usize,
    columns: Columns<i64>,
    texts: Columns<Arc<str>>,
}

/// Entries split by a further value: those of each symbol of an extractor, without the test of that value.
#[derive(Debug)]
struct SplitEntries {
    extractor: u32,
    by_symbol: HashMap<u32, Entries>,
}

type Columns<K> = Vec<(u32, Column<K, Entry>)>;

/// The entries of a group that an event finds.
pub enum GroupEntries<'a> {
    /// Entries to check one by one.
    Listed(&'a [Entry]),
    /// Ranges, and the number of the path that they test.
    Column(u32, &'a Column<i64, Entry>),
    /// Ranges of text, likewise.
    Texts(u32, &'a Column<Arc<str>, Entry>),
}

/// The result of a lookup in a signature.
pub enum Lookup<'a> {
    /// No group.
    Nothing,
    /// The one group of its symbols.
    One(&'a Group),
    /// The event has several symbols of one extractor; [`Signature::collect_many`] finds the groups.
    Many(&'a Signature),
}

fn hash(key: &GroupKey) -> u64 {
    // Symbols are assigned by the index, so the hash need not resist chosen inputs.
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let one = pair(key[0], key[1]) ^ 0x9E37_79B9_7F4A_7C15;
    let two = pair(key[2], key[3]) ^ 0xD1B5_4A32_D192_ED03;
    let product = u128::from(one) * u128::from(two);
    let mixed = (product >> 64) as u64 ^ product as u64;
    mixed.wrapping_mul(0xF135_7AEA_2E62_A9C5).rotate_left(20)
}

impl Signature {
    /// An empty signature of these extractors, in rising order.
    pub fn new(extractors: Box<[u32]>) -> Self {
        Signature { extractors, groups: HashTable::new() }
    }

    /// Extractors, in rising order.
    pub fn extractors(&self) -> &[u32] {
        &self.extractors
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The most entries of a group that an event can find; of split entries, those of the most frequent value.
    pub fn group_len(&self, key: &GroupKey) -> usize {
        self.groups.find(hash(key), |group| group.key == *key).map_or(0, |group| group.entries.len())
    }

    /// The number of groups.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Adds an entry, which brings one use of its residual. A new group takes one use of each of its symbols.
    pub fn insert(
        &mut self,
        key: &GroupKey,
        entry: Entry,
        extractors: &mut Extractors,
        checks: &mut Checks,
        take: impl FnOnce(&mut Extractors),
    ) {
        let found = self.groups.find_mut(hash(key), |group| group.key == *key);
        let Some(group) = found else {
            take(extractors);
            self.groups
                .insert_unique(hash(key), Group { key: *key, entries: Entries::One(entry) }, |group| hash(&group.key));
            return;
        };
        group.entries.insert(entry, extractors, checks);
    }

    /// Removes the entry of a residual and releases its use. Returns whether it was present. Calls `give` if the group
    /// is removed.
    pub fn remove(
        &mut self,
        key: &GroupKey,
        entry: impl Fn(u32) -> Entry,
        rests: &[ResidualCheck<'_>],
        extractors: &mut Extractors,
        checks: &mut Checks,
        give: impl FnOnce(&mut Extractors),
    ) -> bool {
        let Ok(mut found) = self.groups.find_entry(hash(key), |group| group.key == *key) else { return false };
        let entries = &mut found.get_mut().entries;
        let removed = match entries {
            // The entry holds a use, so its residual is found.
            Entries::One(_) | Entries::List(_) => {
                checks.find(rests, extractors).and_then(|rest| entries.take(entry(rest), extractors, checks))
            }
            // Residuals without the sorted tests have numbers only while they are in use.
            Entries::LargeGroup(_) => {
                let whole = entry(checks.acquire(rests, extractors));
                let removed = entries.take(whole, extractors, checks);
                checks.release(whole.rest, extractors);
                removed
            }
        };
        if removed == Some(Remaining::Nothing) {
            found.remove();
            give(extractors);
        }
        removed.is_some()
    }

    /// Looks up the groups of an event's symbols.
    #[inline]
    pub fn look_up<'a>(&'a self, found: &[FoundSymbols]) -> Lookup<'a> {
        let mut key = [NONE; KEYS_MAX];
        let mut is_sole = true;
        for (place, extractor) in key.iter_mut().zip(&self.extractors) {
            let found = &found[*extractor as usize];
            match found.sole() {
                Some(symbol) => *place = symbol,
                None if found.is_empty() => return Lookup::Nothing,
                None => is_sole = false,
            }
        }
        if !is_sole {
            return Lookup::Many(self);
        }
        self.find(&key).map_or(Lookup::Nothing, Lookup::One)
    }

    #[inline]
    fn find(&self, key: &GroupKey) -> Option<&Group> {
        self.groups.find(hash(key), |group| group.key == *key)
    }

    /// For an extractor with several symbols: tries every combination, or every group, whichever are fewer.
    pub fn collect_many<'a>(&'a self, found: &[FoundSymbols], collect: &mut impl FnMut(GroupEntries<'a>)) {
        let lists: Vec<&FoundSymbols> = self.extractors.iter().map(|extractor| &found[*extractor as usize]).collect();
        let combinations = lists.iter().fold(1_usize, |product, list| product.saturating_mul(list.symbols().len()));
        if combinations > self.groups.len() {
            let fits = |group: &&Group| group.key.iter().zip(&lists).all(|(symbol, list)| list.has(*symbol));
            self.groups.iter().filter(fits).for_each(|group| group.collect(found, collect));
            return;
        }
        for mut combination in 0..combinations {
            let mut key = [NONE; KEYS_MAX];
            for (place, list) in key.iter_mut().zip(&lists) {
                let symbols = list.symbols();
                *place = symbols[combination % symbols.len()];
                combination /= symbols.len();
            }
            if let Some(group) = self.find(&key) {
                group.collect(found, collect);
            }
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        self.groups.allocation_size() + self.groups.iter().map(|group| group.entries.memory_bytes()).sum::<usize>()
    }
}

impl Group {
    /// Passes on the entries that an event with these symbols finds.
    #[inline]
    pub fn collect<'a>(&'a self, found: &[FoundSymbols], collect: &mut impl FnMut(GroupEntries<'a>)) {
        self.entries.collect(found, collect);
    }
}

/// The state after the removal of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remaining {
    Nothing,
    Others,
}

impl Remaining {
    fn of(is_empty: bool) -> Remaining {
        if is_empty { Remaining::Nothing } else { Remaining::Others }
    }
}

impl Entries {
    fn insert(&mut self, entry: Entry, extractors: &mut Extractors, checks: &mut Checks) {
        match self {
            Entries::One(first) => *self = Entries::List(vec![*first, entry]),
            Entries::List(list) if list.len() < LIST_MAX => list.push(entry),
            Entries::List(list) => {
                let mut sorted = Box::<LargeGroup>::default();
                list.drain(..).chain([entry]).for_each(|entry| sorted.insert(entry, extractors, checks));
                *self = Entries::LargeGroup(sorted);
            }
            Entries::LargeGroup(sorted) => sorted.insert(entry, extractors, checks),
        }
    }

    /// Removes an entry, if it is present, and releases its use of its residual. The caller holds another use.
    fn take(&mut self, entry: Entry, extractors: &mut Extractors, checks: &mut Checks) -> Option<Remaining> {
        let left = match self {
            Entries::One(only) => (*only == entry).then_some(Remaining::Nothing),
            Entries::List(list) => take(list, entry).then(|| Remaining::of(list.is_empty())),
            Entries::LargeGroup(sorted) => {
                return sorted.remove(entry, extractors, checks).then(|| Remaining::of(sorted.is_empty()));
            }
        };
        if left.is_some() {
            checks.release(entry.rest, extractors);
        }
        left
    }

    fn collect<'a>(&'a self, found: &[FoundSymbols], collect: &mut impl FnMut(GroupEntries<'a>)) {
        match self {
            Entries::One(entry) => collect(GroupEntries::Listed(std::slice::from_ref(entry))),
            Entries::List(list) => collect(GroupEntries::Listed(list)),
            Entries::LargeGroup(sorted) => {
                collect(GroupEntries::Listed(&sorted.list));
                sorted
                    .columns
                    .iter()
                    .for_each(|(event_path, column)| collect(GroupEntries::Column(*event_path, column)));
                sorted.texts.iter().for_each(|(event_path, column)| collect(GroupEntries::Texts(*event_path, column)));
                for SplitEntries { extractor, by_symbol } in &sorted.parts {
                    for symbol in found[*extractor as usize].symbols() {
                        if let Some(entries) = by_symbol.get(symbol) {
                            entries.collect(found, collect);
                        }
                    }
                }
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Entries::One(_) => 1,
            Entries::List(list) => list.len(),
            Entries::LargeGroup(sorted) => {
                let most = |parts: &SplitEntries| parts.by_symbol.values().map(Entries::len).max().unwrap_or(0);
                sorted.list.len()
                    + sorted.columns.iter().map(|(_, column)| column.len()).sum::<usize>()
                    + sorted.texts.iter().map(|(_, column)| column.len()).sum::<usize>()
                    + sorted.parts.iter().map(most).sum::<usize>()
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Entries::One(_) => 0,
            Entries::List(list) => list.capacity() * size_of::<Entry>() + 16,
            Entries::LargeGroup(sorted) => {
                let parts = |parts: &SplitEntries| {
                    parts.by_symbol.allocation_size()
                        + parts.by_symbol.values().map(Entries::memory_bytes).sum::<usize>()
                };
                size_of::<LargeGroup>()
                    + sorted.list.capacity() * size_of::<Entry>()
                    + columns_bytes(&sorted.columns)
                    + columns_bytes(&sorted.texts)
                    + sorted.parts.capacity() * size_of::<SplitEntries>()
                    + sorted.parts.iter().map(parts).sum::<usize>()
            }
        }
    }
}

impl LargeGroup {
    /// Adds an entry by a further value, else by a range, else to the list. Takes over the use of its residual.
    fn insert(&mut self, entry: Entry, extractors: &mut Extractors, checks: &mut Checks) {
        let Some(split) = checks.acquire_split(entry.rest, SPLIT_VALUES_MAX, extractors) else {
            return self.insert_unsplit(entry, extractors, checks);
        };
        match self.parts.iter().position(|parts| parts.extractor == split.extractor) {
            Some(at) => self.parts[at].insert(entry, split, extractors, checks),
            None if self.parts.len() < SPLITS_MAX => {
                let mut parts = SplitEntries { extractor: split.extractor, by_symbol: HashMap::new() };
                parts.insert(entry, split, extractors, checks);
                self.parts.push(parts);
            }
            None => {
                split.release_uses(extractors);
                self.unsplit += 1;
                self.insert_unsplit(entry, extractors, checks);
            }
        }
    }

    fn insert_unsplit(&mut self, entry: Entry, extractors: &mut Extractors, checks: &mut Checks) {
        let Some((event_path, ends, check)) = checks.range(entry.rest) else {
            self.list.push(entry);
            return;
        };
        // The column tests the range from here on.
        let rest = checks.acquire_without(entry.rest, check, extractors);
        match &ends {
            RangeKeys::Number(interval) => {
                add(&mut self.columns, event_path, interval, Entry { rest, ..entry }, extractors)
            }
            RangeKeys::Text(interval) => {
                add(&mut self.texts, event_path, interval, Entry { rest, ..entry }, extractors)
            }
        }
        checks.release(entry.rest, extractors);
    }

    /// Removes an entry, wherever it is stored, and releases its use of its residual. The caller holds another use.
    fn remove(&mut self, entry: Entry, extractors: &mut Extractors, checks: &mut Checks) -> bool {
        let Some(split) = checks.acquire_split(entry.rest, SPLIT_VALUES_MAX, extractors) else {
            return self.remove_unsplit(entry, extractors, checks);
        };
        let removed = if self.unsplit > 0 && self.remove_unsplit(entry, extractors, checks) {
            self.unsplit -= 1;
            true
        } else {
            let at = self.parts.iter().position(|parts| parts.extractor == split.extractor);
            at.is_some_and(|at| {
                let removed = self.parts[at].remove(entry, &split, extractors, checks);
                if self.parts[at].by_symbol.is_empty() {
                    self.parts.swap_remove(at);
                }
                removed
            })
        };
        split.release_uses(extractors);
        removed
    }

    fn remove_unsplit(&mut self, entry: Entry, extractors: &mut Extractors, checks: &mut Checks) -> bool {
        let Some((event_path, ends, check)) = checks.range(entry.rest) else {
            let removed = take(&mut self.list, entry);
            if removed {
                checks.release(entry.rest, extractors);
            }
            return removed;
        };
        let rest = checks.acquire_without(entry.rest, check, extractors);
        let sorted = Entry { rest, ..entry };
        let removed = match &ends {
            RangeKeys::Number(interval) => drop_from(&mut self.columns, event_path, interval, sorted, extractors),
            RangeKeys::Text(interval) => drop_from(&mut self.texts, event_path, interval, sorted, extractors),
        };
        // Its own use, and the one acquired here.
        if removed {
            checks.release(rest, extractors);
        }
        checks.release(rest, extractors);
        removed
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty() && self.parts.is_empty() && self.columns.is_empty() && self.texts.is_empty()
    }
}

impl SplitEntries {
    /// Adds an entry under each symbol, without the check of that value. Each holds a use of the extractor and of its
    /// symbol, so that their numbers stay valid.
    fn insert(&mut self, entry: Entry, split: Split, extractors: &mut Extractors, checks: &mut Checks) {
        let path = extractors.path_of(split.extractor).clone();
        for symbol in &split.symbols {
            let rest = checks.acquire_without(entry.rest, split.check, extractors);
            let part = entry.without(rest, split.repeats);
            match self.by_symbol.get_mut(symbol) {
                Some(entries) => entries.insert(part, extractors, checks),
                None => _ = self.by_symbol.insert(*symbol, Entries::One(part)),
            }
            // In addition to the use of the split itself, which is released below.
            extractors.acquire(&path, extractors.extraction_of(split.extractor));
            extractors.acquire_again(split.extractor, *symbol);
        }
        checks.release(entry.rest, extractors);
        split.release_uses(extractors);
    }

    fn remove(&mut self, entry: Entry, split: &Split, extractors: &mut Extractors, checks: &mut Checks) -> bool {
        let mut removed = true;
        for symbol in &split.symbols {
            let rest = checks.acquire_without(entry.rest, split.check, extractors);
            let part = entry.without(rest, split.repeats);
            let left = self.by_symbol.get_mut(symbol).and_then(|entries| entries.take(part, extractors, checks));
            checks.release(rest, extractors);
            match left {
                None => {
                    removed = false;
                    continue;
                }
                Some(Remaining::Nothing) => _ = self.by_symbol.remove(symbol),
                Some(Remaining::Others) => {}
            }
            extractors.release_symbol(split.extractor, *symbol);
            extractors.release(split.extractor);
        }
        removed
    }
}

impl Split {
    fn release_uses(self, extractors: &mut Extractors) {
        self.symbols.iter().for_each(|symbol| extractors.release_symbol(self.extractor, *symbol));
        extractors.release(self.extractor);
    }
}

/// Adds an entry to the column of its path and kind of range.
fn add<K: Key>(
    columns: &mut Columns<K>,
    event_path: u32,
    interval: &Interval<K>,
    entry: Entry,
    extractors: &mut Extractors,
) {
    let is_of = |(other, column): &(u32, Column<K, Entry>)| *other == event_path && column.span() == interval.span;
    let at = columns.iter().position(is_of).unwrap_or_else(|| {
        // The column holds a use of the path.
        let path = extractors.path(event_path).clone();
        extractors.acquire_event_path(&path);
        columns.push((event_path, Column::new(interval.span)));
        columns.len() - 1
    });
    columns[at].1.insert(interval, entry);
}

/// Removes an entry from the column of its path and kind of range.
fn drop_from<K: Key>(
    columns: &mut Columns<K>,
    event_path: u32,
    interval: &Interval<K>,
    entry: Entry,
    extractors: &mut Extractors,
) -> bool {
    let is_of = |(other, column): &(u32, Column<K, Entry>)| *other == event_path && column.span() == interval.span;
    let Some(at) = columns.iter().position(is_of) else { return false };
    if !columns[at].1.remove(interval, entry) {
        return false;
    }
    if columns[at].1.is_empty() {
        columns.swap_remove(at);
        extractors.release_event_path(event_path);
    }
    true
}

fn columns_bytes<K: Key>(columns: &Columns<K>) -> usize {
    columns.capacity() * size_of::<(u32, Column<K, Entry>)>()
        + columns.iter().map(|(_, column)| column.memory_bytes()).sum::<usize>()
}

/// Removes an entry from a list.
fn take(list: &mut Vec<Entry>, entry: Entry) -> bool {
    let at = list.iter().position(|other| *other == entry);
    at.map(|at| list.swap_remove(at)).is_some()
}
