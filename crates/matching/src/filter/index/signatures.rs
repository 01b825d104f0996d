//! Conjunctions filed under what they ask: one signature for each set of readings, in it one group for each set of
//! symbols. So an event costs one lookup for each signature, and then what it finds.

use std::sync::Arc;

use hashbrown::{HashMap, HashTable};

use super::{
    checks::{Checks, NOTHING, Rest, Split},
    plan::KEYS_MAX,
    ranges::{Column, Ends, Filed, Interval, Key},
    readings::{Found, Readings},
    symbols::NONE,
};

/// Beyond so many entries a group is split by what else they ask for, and sorts ranges.
const LIST_MAX: usize = 64;

/// Most readings by which a group is split. An event costs a lookup for each.
const SPLITS_MAX: usize = 8;

/// Most values of a condition by which a group is split; its entry is filed under each.
const SPLIT_VALUES_MAX: usize = 32;

/// The symbols of a group, in the order of its signature's readings; [`NONE`] fills the rest.
pub type GroupKey = [u32; KEYS_MAX];

/// A conjunction of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The filter's number and flags, see [`Entry::REPEATS`].
    word: u32,
    /// What is left to ask.
    pub rest: u32,
}

impl Entry {
    /// An event may meet the filter in several places.
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

    /// The same with less left to ask, and if so, met repeatedly.
    fn without(self, rest: u32, repeats: bool) -> Entry {
        Entry { word: self.word | if repeats { Entry::REPEATS } else { 0 }, rest }
    }

    /// Whether nothing is to be done but to take its number.
    pub fn is_sure(self) -> bool {
        self.word < Entry::NUMBERS_MAX
    }

    /// Whether the filter must be evaluated.
    pub fn is_evaluated(self) -> bool {
        self.word & Entry::EVALUATED != 0
    }
}

impl Filed for Entry {
    fn is_plain(&self) -> bool {
        self.is_sure() && self.rest == NOTHING
    }
}

/// All conjunctions that ask the same readings.
#[derive(Debug)]
pub struct Signature {
    readings: Box<[u32]>,
    groups: HashTable<Group>,
}

/// The entries of one set of symbols.
#[derive(Debug)]
pub struct Group {
    key: GroupKey,
    entries: Entries,
}

/// The entries of a group. Most have one.
#[derive(Debug)]
enum Entries {
    One(Entry),
    List(Vec<Entry>),
    Sorted(Box<Sorted>),
}

/// Where there are many: those that ask for a further value by that, others with a range by its ends, each column with
/// its place of the event.
#[derive(Debug, Default)]
struct Sorted {
    list: Vec<Entry>,
    parts: Vec<Parts>,
    /// How many would be in parts if there were not too many parts already.
    unsplit: usize,
    columns: Columns<i64>,
    texts: Columns<Arc<str>>,
}

/// Entries by what an event must have as well: those of each symbol of a reading. They are entries without that test.
#[derive(Debug)]
struct Parts {
    reading: u32,
    by_symbol: HashMap<u32, Entries>,
}

type Columns<K> = Vec<(u32, Column<K, Entry>)>;

/// What an event meets in a group.
pub enum Meet<'a> {
    /// Entries to look at one by one.
    Listed(&'a [Entry]),
    /// Ranges, and the place of the event that they ask.
    Column(u32, &'a Column<i64, Entry>),
    /// Ranges of text, likewise.
    Texts(u32, &'a Column<Arc<str>, Entry>),
}

/// What an event finds in a signature.
pub enum Lookup<'a> {
    /// No group.
    Nothing,
    /// The one group of its symbols.
    One(&'a Group),
    /// It has several symbols of one reading; [`Signature::meet_many`] finds the groups.
    Many(&'a Signature),
}

fn hash(key: &GroupKey) -> u64 {
    // Symbols are numbers that we give, so nobody outside chooses them.
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let one = pair(key[0], key[1]) ^ 0x9E37_79B9_7F4A_7C15;
    let two = pair(key[2], key[3]) ^ 0xD1B5_4A32_D192_ED03;
    let product = u128::from(one) * u128::from(two);
    let mixed = (product >> 64) as u64 ^ product as u64;
    mixed.wrapping_mul(0xF135_7AEA_2E62_A9C5).rotate_left(20)
}

impl Signature {
    /// Of these readings, in rising order, without groups.
    pub fn new(readings: Box<[u32]>) -> Self {
        Signature { readings, groups: HashTable::new() }
    }

    /// The readings it asks, rising.
    pub fn readings(&self) -> &[u32] {
        &self.readings
    }

    /// Whether nothing is filed.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How many entries a group has at most for an event; of what a further value splits, those of the most frequent one.
    pub fn group_len(&self, key: &GroupKey) -> usize {
        self.groups.find(hash(key), |group| group.key == *key).map_or(0, |group| group.entries.len())
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Files an entry, which brings one use of its rest. A new group takes one use of each of its symbols.
    pub fn insert(
        &mut self,
        key: &GroupKey,
        entry: Entry,
        readings: &mut Readings,
        checks: &mut Checks,
        take: impl FnOnce(&mut Readings),
    ) {
        let found = self.groups.find_mut(hash(key), |group| group.key == *key);
        let Some(group) = found else {
            take(readings);
            self.groups
                .insert_unique(hash(key), Group { key: *key, entries: Entries::One(entry) }, |group| hash(&group.key));
            return;
        };
        group.entries.insert(entry, readings, checks);
    }

    /// Takes out the entry of what is left over. Answers whether it was there, and gives back the use of its rest. `give`
    /// is called where the group is gone.
    pub fn remove(
        &mut self,
        key: &GroupKey,
        entry: impl Fn(u32) -> Entry,
        rests: &[Rest<'_>],
        readings: &mut Readings,
        checks: &mut Checks,
        give: impl FnOnce(&mut Readings),
    ) -> bool {
        let Ok(mut found) = self.groups.find_entry(hash(key), |group| group.key == *key) else { return false };
        let entries = &mut found.get_mut().entries;
        let removed = match entries {
            // The entry holds a use, so its rest is found.
            Entries::One(_) | Entries::List(_) => {
                checks.find(rests, readings).and_then(|rest| entries.take(entry(rest), readings, checks))
            }
            // What it asks beside what it is sorted by is numbered only while that is asked for.
            Entries::Sorted(_) => {
                let whole = entry(checks.acquire(rests, readings));
                let removed = entries.take(whole, readings, checks);
                checks.release(whole.rest, readings);
                removed
            }
        };
        if removed == Some(Left::Nothing) {
            found.remove();
            give(readings);
        }
        removed.is_some()
    }

    /// Looks up what an event's symbols find.
    #[inline]
    pub fn look_up<'a>(&'a self, found: &[Found]) -> Lookup<'a> {
        let mut key = [NONE; KEYS_MAX];
        let mut is_sole = true;
        for (place, reading) in key.iter_mut().zip(&self.readings) {
            let found = &found[*reading as usize];
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

    /// Where some reading found several symbols: every combination, or every group, whichever are fewer.
    pub fn meet_many<'a>(&'a self, found: &[Found], meet: &mut impl FnMut(Meet<'a>)) {
        let lists: Vec<&Found> = self.readings.iter().map(|reading| &found[*reading as usize]).collect();
        let combinations = lists.iter().fold(1_usize, |product, list| product.saturating_mul(list.symbols().len()));
        if combinations > self.groups.len() {
            let fits = |group: &&Group| group.key.iter().zip(&lists).all(|(symbol, list)| list.has(*symbol));
            self.groups.iter().filter(fits).for_each(|group| group.meet(found, meet));
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
                group.meet(found, meet);
            }
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        self.groups.allocation_size() + self.groups.iter().map(|group| group.entries.memory_bytes()).sum::<usize>()
    }
}

impl Group {
    /// Hands over what an event of which this was read meets.
    #[inline]
    pub fn meet<'a>(&'a self, found: &[Found], meet: &mut impl FnMut(Meet<'a>)) {
        self.entries.meet(found, meet);
    }
}

/// What is left where an entry was taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Others,
}

impl Left {
    fn of(is_empty: bool) -> Left {
        if is_empty { Left::Nothing } else { Left::Others }
    }
}

impl Entries {
    fn insert(&mut self, entry: Entry, readings: &mut Readings, checks: &mut Checks) {
        match self {
            Entries::One(first) => *self = Entries::List(vec![*first, entry]),
            Entries::List(list) if list.len() < LIST_MAX => list.push(entry),
            Entries::List(list) => {
                let mut sorted = Box::<Sorted>::default();
                list.drain(..).chain([entry]).for_each(|entry| sorted.insert(entry, readings, checks));
                *self = Entries::Sorted(sorted);
            }
            Entries::Sorted(sorted) => sorted.insert(entry, readings, checks),
        }
    }

    /// Takes an entry out, if it is there, and gives back the use that it has of its rest. The caller holds one as well.
    fn take(&mut self, entry: Entry, readings: &mut Readings, checks: &mut Checks) -> Option<Left> {
        let left = match self {
            Entries::One(only) => (*only == entry).then_some(Left::Nothing),
            Entries::List(list) => take(list, entry).then(|| Left::of(list.is_empty())),
            Entries::Sorted(sorted) => {
                return sorted.remove(entry, readings, checks).then(|| Left::of(sorted.is_empty()));
            }
        };
        if left.is_some() {
            checks.release(entry.rest, readings);
        }
        left
    }

    fn meet<'a>(&'a self, found: &[Found], meet: &mut impl FnMut(Meet<'a>)) {
        match self {
            Entries::One(entry) => meet(Meet::Listed(std::slice::from_ref(entry))),
            Entries::List(list) => meet(Meet::Listed(list)),
            Entries::Sorted(sorted) => {
                meet(Meet::Listed(&sorted.list));
                sorted.columns.iter().for_each(|(lane, column)| meet(Meet::Column(*lane, column)));
                sorted.texts.iter().for_each(|(lane, column)| meet(Meet::Texts(*lane, column)));
                for Parts { reading, by_symbol } in &sorted.parts {
                    for symbol in found[*reading as usize].symbols() {
                        if let Some(entries) = by_symbol.get(symbol) {
                            entries.meet(found, meet);
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
            Entries::Sorted(sorted) => {
                let most = |parts: &Parts| parts.by_symbol.values().map(Entries::len).max().unwrap_or(0);
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
            Entries::Sorted(sorted) => {
                let parts = |parts: &Parts| {
                    parts.by_symbol.allocation_size()
                        + parts.by_symbol.values().map(Entries::memory_bytes).sum::<usize>()
                };
                size_of::<Sorted>()
                    + sorted.list.capacity() * size_of::<Entry>()
                    + columns_bytes(&sorted.columns)
                    + columns_bytes(&sorted.texts)
                    + sorted.parts.capacity() * size_of::<Parts>()
                    + sorted.parts.iter().map(parts).sum::<usize>()
            }
        }
    }
}

impl Sorted {
    /// Files an entry by a further value, else by a range, else in the list. Takes over the use of its rest.
    fn insert(&mut self, entry: Entry, readings: &mut Readings, checks: &mut Checks) {
        let Some(split) = checks.acquire_split(entry.rest, SPLIT_VALUES_MAX, readings) else {
            return self.insert_unsplit(entry, readings, checks);
        };
        match self.parts.iter().position(|parts| parts.reading == split.reading) {
            Some(at) => self.parts[at].insert(entry, split, readings, checks),
            None if self.parts.len() < SPLITS_MAX => {
                let mut parts = Parts { reading: split.reading, by_symbol: HashMap::new() };
                parts.insert(entry, split, readings, checks);
                self.parts.push(parts);
            }
            None => {
                split.give_back(readings);
                self.unsplit += 1;
                self.insert_unsplit(entry, readings, checks);
            }
        }
    }

    fn insert_unsplit(&mut self, entry: Entry, readings: &mut Readings, checks: &mut Checks) {
        let Some((lane, ends, check)) = checks.range(entry.rest) else {
            self.list.push(entry);
            return;
        };
        // The column asks for the range from here on.
        let rest = checks.acquire_without(entry.rest, check, readings);
        match &ends {
            Ends::Number(interval) => add(&mut self.columns, lane, interval, Entry { rest, ..entry }, readings),
            Ends::Text(interval) => add(&mut self.texts, lane, interval, Entry { rest, ..entry }, readings),
        }
        checks.release(entry.rest, readings);
    }

    /// Takes an entry out, wherever it was filed, and gives back the use that it has of its rest. The caller holds one as
    /// well.
    fn remove(&mut self, entry: Entry, readings: &mut Readings, checks: &mut Checks) -> bool {
        let Some(split) = checks.acquire_split(entry.rest, SPLIT_VALUES_MAX, readings) else {
            return self.remove_unsplit(entry, readings, checks);
        };
        let removed = if self.unsplit > 0 && self.remove_unsplit(entry, readings, checks) {
            self.unsplit -= 1;
            true
        } else {
            let at = self.parts.iter().position(|parts| parts.reading == split.reading);
            at.is_some_and(|at| {
                let removed = self.parts[at].remove(entry, &split, readings, checks);
                if self.parts[at].by_symbol.is_empty() {
                    self.parts.swap_remove(at);
                }
                removed
            })
        };
        split.give_back(readings);
        removed
    }

    fn remove_unsplit(&mut self, entry: Entry, readings: &mut Readings, checks: &mut Checks) -> bool {
        let Some((lane, ends, check)) = checks.range(entry.rest) else {
            let removed = take(&mut self.list, entry);
            if removed {
                checks.release(entry.rest, readings);
            }
            return removed;
        };
        let rest = checks.acquire_without(entry.rest, check, readings);
        let sorted = Entry { rest, ..entry };
        let removed = match &ends {
            Ends::Number(interval) => drop_from(&mut self.columns, lane, interval, sorted, readings),
            Ends::Text(interval) => drop_from(&mut self.texts, lane, interval, sorted, readings),
        };
        // Its own use, and the one from here.
        if removed {
            checks.release(rest, readings);
        }
        checks.release(rest, readings);
        removed
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty() && self.parts.is_empty() && self.columns.is_empty() && self.texts.is_empty()
    }
}

impl Parts {
    /// Files an entry under each symbol, without the check that asks for them. Each keeps a use of the reading and of its
    /// symbol, so that both mean the same for as long as it is there.
    fn insert(&mut self, entry: Entry, split: Split, readings: &mut Readings, checks: &mut Checks) {
        let path = readings.path_of(split.reading).clone();
        for symbol in &split.symbols {
            let rest = checks.acquire_without(entry.rest, split.check, readings);
            let part = entry.without(rest, split.repeats);
            match self.by_symbol.get_mut(symbol) {
                Some(entries) => entries.insert(part, readings, checks),
                None => _ = self.by_symbol.insert(*symbol, Entries::One(part)),
            }
            // Beside the one of the split itself, which is given back below.
            readings.acquire(&path, readings.ask_of(split.reading));
            readings.acquire_again(split.reading, *symbol);
        }
        checks.release(entry.rest, readings);
        split.give_back(readings);
    }

    fn remove(&mut self, entry: Entry, split: &Split, readings: &mut Readings, checks: &mut Checks) -> bool {
        let mut removed = true;
        for symbol in &split.symbols {
            let rest = checks.acquire_without(entry.rest, split.check, readings);
            let part = entry.without(rest, split.repeats);
            let left = self.by_symbol.get_mut(symbol).and_then(|entries| entries.take(part, readings, checks));
            checks.release(rest, readings);
            match left {
                None => {
                    removed = false;
                    continue;
                }
                Some(Left::Nothing) => _ = self.by_symbol.remove(symbol),
                Some(Left::Others) => {}
            }
            readings.release_symbol(split.reading, *symbol);
            readings.release(split.reading);
        }
        removed
    }
}

impl Split {
    fn give_back(self, readings: &mut Readings) {
        self.symbols.iter().for_each(|symbol| readings.release_symbol(self.reading, *symbol));
        readings.release(self.reading);
    }
}

/// Files an entry in the column of its place and kind of range.
fn add<K: Key>(columns: &mut Columns<K>, lane: u32, interval: &Interval<K>, entry: Entry, readings: &mut Readings) {
    let is_of = |(other, column): &(u32, Column<K, Entry>)| *other == lane && column.span() == interval.span;
    let at = columns.iter().position(is_of).unwrap_or_else(|| {
        // The column needs the place for as long as it is there.
        let path = readings.path(lane).clone();
        readings.acquire_lane(&path);
        columns.push((lane, Column::new(interval.span)));
        columns.len() - 1
    });
    columns[at].1.insert(interval, entry);
}

/// Takes an entry out of the column of its place and kind of range.
fn drop_from<K: Key>(
    columns: &mut Columns<K>,
    lane: u32,
    interval: &Interval<K>,
    entry: Entry,
    readings: &mut Readings,
) -> bool {
    let is_of = |(other, column): &(u32, Column<K, Entry>)| *other == lane && column.span() == interval.span;
    let Some(at) = columns.iter().position(is_of) else { return false };
    if !columns[at].1.remove(interval, entry) {
        return false;
    }
    if columns[at].1.is_empty() {
        columns.swap_remove(at);
        readings.release_lane(lane);
    }
    true
}

fn columns_bytes<K: Key>(columns: &Columns<K>) -> usize {
    columns.capacity() * size_of::<(u32, Column<K, Entry>)>()
        + columns.iter().map(|(_, column)| column.memory_bytes()).sum::<usize>()
}

/// Takes an entry out of a list.
fn take(list: &mut Vec<Entry>, entry: Entry) -> bool {
    let at = list.iter().position(|other| *other == entry);
    at.map(|at| list.swap_remove(at)).is_some()
}
