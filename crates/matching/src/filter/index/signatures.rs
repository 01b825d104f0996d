//! Conjunctions filed under what they ask: one signature for each set of readings, in it one group for each set of
//! symbols. So an event costs one lookup for each signature, and then what it finds.

use hashbrown::HashTable;

use super::{
    checks::{Checks, NOTHING},
    plan::KEYS_MAX,
    ranges::{Column, Filed, Interval},
    readings::{Found, Readings},
    symbols::NONE,
};

/// Beyond so many entries a group sorts those with ranges.
const LIST_MAX: usize = 64;

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

/// Where there are many: those with a range by its ends, each column with its place of the event.
#[derive(Debug, Default)]
struct Sorted {
    list: Vec<Entry>,
    columns: Vec<(u32, Column<Entry>)>,
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

/// What stands for an entry in a sorted group: a place of the event, a range, and the entry without it.
#[derive(Debug, Clone, Copy)]
pub struct SortedEntry {
    /// The place of the event.
    pub lane: u32,
    /// The range.
    pub interval: Interval,
    /// The entry with what is left beside the range.
    pub entry: Entry,
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

    /// How many entries a group has.
    pub fn group_len(&self, key: &GroupKey) -> usize {
        self.groups.find(hash(key), |group| group.key == *key).map_or(0, |group| match &group.entries {
            Entries::One(_) => 1,
            Entries::List(list) => list.len(),
            Entries::Sorted(sorted) => {
                sorted.list.len() + sorted.columns.iter().map(|(_, column)| column.len()).sum::<usize>()
            }
        })
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
        match &mut group.entries {
            Entries::One(first) => group.entries = Entries::List(vec![*first, entry]),
            Entries::List(list) if list.len() < LIST_MAX => list.push(entry),
            Entries::List(list) => {
                let mut sorted = Box::<Sorted>::default();
                list.drain(..).chain([entry]).for_each(|entry| sorted.insert(entry, readings, checks));
                group.entries = Entries::Sorted(sorted);
            }
            Entries::Sorted(sorted) => sorted.insert(entry, readings, checks),
        }
    }

    /// Takes an entry out, as it stands in a list and as it stands in a sorted group. Answers whether it was there, and
    /// gives back the use of its rest. `give` is called where the group is gone.
    pub fn remove(
        &mut self,
        key: &GroupKey,
        listed: Option<Entry>,
        sorted: Option<SortedEntry>,
        readings: &mut Readings,
        checks: &mut Checks,
        give: impl FnOnce(&mut Readings),
    ) -> bool {
        let Ok(mut found) = self.groups.find_entry(hash(key), |group| group.key == *key) else { return false };
        let group = found.get_mut();
        let removed = match &mut group.entries {
            Entries::One(entry) => (Some(*entry) == listed).then_some((*entry, true)),
            Entries::List(list) => take(list, listed).map(|entry| (entry, list.is_empty())),
            Entries::Sorted(columns) => {
                columns.remove(listed, sorted, readings).map(|entry| (entry, columns.is_empty()))
            }
        };
        let Some((entry, is_last)) = removed else { return false };
        if is_last {
            found.remove();
            give(readings);
        }
        checks.release(entry.rest, readings);
        true
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
    pub fn meet_many<'a>(&'a self, found: &[Found], meet: &mut impl FnMut(&'a Group)) {
        let lists: Vec<&Found> = self.readings.iter().map(|reading| &found[*reading as usize]).collect();
        let combinations = lists.iter().fold(1_usize, |product, list| product.saturating_mul(list.symbols().len()));
        if combinations > self.groups.len() {
            let fits = |group: &&Group| group.key.iter().zip(&lists).all(|(symbol, list)| list.has(*symbol));
            self.groups.iter().filter(fits).for_each(meet);
            return;
        }
        for mut combination in 0..combinations {
            let mut key = [NONE; KEYS_MAX];
            for (place, list) in key.iter_mut().zip(&lists) {
                let symbols = list.symbols();
                *place = symbols[combination % symbols.len()];
                combination /= symbols.len();
            }
            self.find(&key).into_iter().for_each(&mut *meet);
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let entries = |group: &Group| match &group.entries {
            Entries::One(_) => 0,
            Entries::List(list) => list.capacity() * size_of::<Entry>() + 16,
            Entries::Sorted(sorted) => {
                let columns = sorted.columns.iter().map(|(_, column)| column.memory_bytes()).sum::<usize>();
                size_of::<Sorted>()
                    + sorted.list.capacity() * size_of::<Entry>()
                    + sorted.columns.capacity() * size_of::<(u32, Column<Entry>)>()
                    + columns
            }
        };
        self.groups.allocation_size() + self.groups.iter().map(entries).sum::<usize>()
    }
}

impl Group {
    /// The entries to look at one by one.
    #[inline]
    pub fn listed(&self) -> &[Entry] {
        match &self.entries {
            Entries::One(entry) => std::slice::from_ref(entry),
            Entries::List(list) => list,
            Entries::Sorted(sorted) => &sorted.list,
        }
    }

    /// The ranges: the place of the event that each column asks, and the column.
    #[inline]
    pub fn columns(&self) -> &[(u32, Column<Entry>)] {
        match &self.entries {
            Entries::Sorted(sorted) => &sorted.columns,
            _ => &[],
        }
    }
}

impl Sorted {
    fn insert(&mut self, entry: Entry, readings: &mut Readings, checks: &mut Checks) {
        let Some((lane, interval, check)) = checks.interval(entry.rest) else {
            self.list.push(entry);
            return;
        };
        let is_of = |(other, column): &(u32, Column<Entry>)| *other == lane && column.span() == interval.span;
        let at = self.columns.iter().position(is_of).unwrap_or_else(|| {
            // The column needs the place for as long as it is there.
            let path = readings.path(lane).clone();
            readings.acquire_lane(&path);
            self.columns.push((lane, Column::new(interval.span)));
            self.columns.len() - 1
        });
        // The column asks for the range from here on.
        let rest = checks.acquire_without(entry.rest, check, readings);
        checks.release(entry.rest, readings);
        self.columns[at].1.insert(&interval, Entry { rest, ..entry });
    }

    fn remove(&mut self, listed: Option<Entry>, sorted: Option<SortedEntry>, readings: &mut Readings) -> Option<Entry> {
        let Some(SortedEntry { lane, interval, entry }) = sorted else { return take(&mut self.list, listed) };
        let is_of = |(other, column): &(u32, Column<Entry>)| *other == lane && column.span() == interval.span;
        let at = self.columns.iter().position(is_of)?;
        if !self.columns[at].1.remove(&interval, entry) {
            return None;
        }
        if self.columns[at].1.is_empty() {
            self.columns.swap_remove(at);
            readings.release_lane(lane);
        }
        Some(entry)
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty() && self.columns.is_empty()
    }
}

/// Takes an entry out of a list.
fn take(list: &mut Vec<Entry>, entry: Option<Entry>) -> Option<Entry> {
    let at = list.iter().position(|other| Some(*other) == entry)?;
    Some(list.swap_remove(at))
}
