//! The entries of one chronicle, and their journal pages.
//!
//! Pages are a log: each commit appends its changes in pages with higher numbers, and the newest record of a key wins.
//! When more than half of the records are outdated, the oldest page is compacted: its live records are written again
//! with the next changes, and the page is removed. So a commit writes little more than its changes, whatever the total
//! size.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use hashbrown::HashMap;
use tocsin_model::{
    pack::{Damaged, Reader, write_bytes},
    state::StatePage,
};

use super::entry::Entry;

/// Most entries of one page.
const PAGE_ENTRIES: usize = 2_000;
/// Outdated records allowed in addition to half.
const SLACK: usize = 1_000;
/// The format of pages.
const FORMAT: u8 = 1;

/// A packed key.
pub type Key = Arc<[u8]>;

/// An entry, and the page with its newest record; 0: none yet.
#[derive(Debug, Clone, Default)]
pub struct StoredEntry {
    pub entry: Entry,
    page: u64,
}

/// The entries of one chronicle.
#[derive(Debug, Default)]
pub struct AggregateTable {
    pub entries: HashMap<Key, StoredEntry>,
    /// Least recently used first.
    order: BTreeMap<u64, Key>,
    touched: u64,
    /// The number of records in each page.
    pages: BTreeMap<u64, usize>,
    written: usize,
    last_page: u64,
    /// The previous state of everything changed since the last `mark`, for undo.
    before: HashMap<Key, Option<StoredEntry>>,
    touched_before: u64,
    /// The keys changed since the last `take_changed_keys`, if recorded.
    changed_keys: Option<BTreeSet<Key>>,
}

impl AggregateTable {
    /// A table that records which keys change.
    pub fn noting() -> AggregateTable {
        AggregateTable { changed_keys: Some(BTreeSet::new()), ..AggregateTable::default() }
    }

    /// The keys changed since the last call.
    pub fn take_changed_keys(&mut self) -> BTreeSet<Key> {
        self.changed_keys.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn memory_bytes(&self) -> usize {
        let of = |(key, held): (&Key, &StoredEntry)| key.len() + 96 + held.entry.memory_bytes();
        self.entries.iter().map(of).sum()
    }

    pub fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key).map(|held| &held.entry)
    }

    /// Changes an entry, or the empty one of a new key, and marks it as recently used.
    pub fn change<T>(&mut self, key: &[u8], change: impl FnOnce(&mut Entry) -> T) -> T {
        let key = match self.entries.get_key_value(key) {
            Some((key, _)) => key.clone(),
            None => Key::from(key),
        };
        self.save(&key);
        self.touched += 1;
        let held = self.entries.entry(key.clone()).or_default();
        self.order.remove(&held.entry.touched);
        let done = change(&mut held.entry);
        held.entry.touched = self.touched;
        self.order.insert(self.touched, key);
        done
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: &[u8]) {
        let Some((key, _)) = self.entries.get_key_value(key) else { return };
        let key = key.clone();
        self.save(&key);
        if let Some(held) = self.entries.remove(&key) {
            self.order.remove(&held.entry.touched);
        }
    }

    /// The least recently used key.
    pub fn oldest(&self) -> Option<(Key, &Entry)> {
        let (_, key) = self.order.first_key_value()?;
        Some((key.clone(), &self.entries.get(key)?.entry))
    }

    fn save(&mut self, key: &Key) {
        if let Some(changed_keys) = &mut self.changed_keys {
            changed_keys.insert(key.clone());
        }
        if !self.before.contains_key(key) {
            self.before.insert(key.clone(), self.entries.get(key).cloned());
        }
    }

    /// Starts recording changes for undo.
    pub fn mark(&mut self) {
        self.before.clear();
        self.touched_before = self.touched;
    }

    /// Undoes the changes since the last `mark`.
    pub fn undo(&mut self) {
        for (key, before) in std::mem::take(&mut self.before) {
            if let Some(held) = self.entries.remove(&key) {
                self.order.remove(&held.entry.touched);
            }
            if let Some(held) = before {
                self.order.insert(held.entry.touched, key.clone());
                self.entries.insert(key, held);
            }
        }
        self.touched = self.touched_before;
    }

    /// The pages with the changes since the last `mark`.
    pub fn take_changes(&mut self, name: &str, signature: u64) -> Vec<StatePage> {
        let mut changed: BTreeSet<Key> = BTreeSet::new();
        for (key, before) in &self.before {
            let was_written = before.as_ref().is_some_and(|before| before.page > 0);
            if self.entries.contains_key(key) || was_written {
                changed.insert(key.clone());
            }
        }
        let mut pages = Vec::new();
        if changed.is_empty() {
            return pages;
        }
        while self.written + changed.len() > 2 * self.entries.len() + SLACK {
            let Some((oldest, written)) = self.pages.pop_first() else { break };
            self.written -= written;
            // No older page has records of these keys, so removed keys need no tombstone.
            let of_page = self.entries.iter().filter(|(_, held)| held.page == oldest).map(|(key, _)| key.clone());
            changed.extend(of_page);
            pages.push(StatePage { name: name.into(), number: oldest, body: Bytes::new() });
        }
        let changed: Vec<Key> = changed.into_iter().collect();
        for keys in changed.chunks(PAGE_ENTRIES) {
            self.last_page += 1;
            let mut body = vec![FORMAT];
            body.extend_from_slice(&signature.to_le_bytes());
            for key in keys {
                write_bytes(&mut body, key);
                match self.entries.get_mut(key) {
                    Some(held) => {
                        held.page = self.last_page;
                        body.push(1);
                        held.entry.pack(&mut body);
                    }
                    None => body.push(0),
                }
            }
            self.pages.insert(self.last_page, keys.len());
            self.written += keys.len();
            pages.push(StatePage { name: name.into(), number: self.last_page, body: body.into() });
        }
        pages
    }

    /// Applies a page of the journal, after those with lower numbers. Returns whether it belongs to the present
    /// definition of the chronicle.
    ///
    /// # Errors
    /// The page is damaged. The records before the damage are applied.
    pub fn restore(&mut self, page: &StatePage, signature: u64) -> Result<bool, Damaged> {
        self.last_page = self.last_page.max(page.number);
        let mut reader = Reader::new(&page.body);
        if reader.byte()? != FORMAT {
            return Ok(false);
        }
        if reader.take(8)? != signature.to_le_bytes() {
            return Ok(false);
        }
        let mut words = 0;
        let read = loop {
            if reader.is_empty() {
                break Ok(true);
            }
            match self.restore_one(&mut reader, page.number) {
                Ok(()) => words += 1,
                Err(damaged) => break Err(damaged),
            }
        };
        self.pages.insert(page.number, words);
        self.written += words;
        read
    }

    fn restore_one(&mut self, reader: &mut Reader<'_>, page: u64) -> Result<(), Damaged> {
        let key = Key::from(reader.bytes()?);
        let entry = match reader.byte()? {
            0 => None,
            _ => Some(Entry::unpack(reader)?),
        };
        if let Some(before) = self.entries.remove(&key) {
            self.order.remove(&before.entry.touched);
        }
        if let Some(entry) = entry {
            self.touched = self.touched.max(entry.touched);
            self.order.insert(entry.touched, key.clone());
            self.entries.insert(key, StoredEntry { entry, page });
        }
        Ok(())
    }
}

/// A page without the records for which `is_erased` holds, by key and entry; `None` if there are none. Without records,
/// the body is empty. Since all records of a key are left out, no earlier one becomes valid again. The page of another
/// definition has no valid record.
///
/// # Errors
/// The page is damaged.
pub(super) fn erase_records(
    body: &[u8],
    signature: u64,
    is_erased: impl Fn(&[u8], Option<&Entry>) -> bool,
) -> Result<Option<Bytes>, Damaged> {
    let mut reader = Reader::new(body);
    if reader.byte()? != FORMAT || reader.take(8)? != signature.to_le_bytes() {
        return Ok(Some(Bytes::new()));
    }
    let mut erased: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut records: Vec<(Vec<u8>, Option<Entry>)> = Vec::new();
    while !reader.is_empty() {
        let key = reader.bytes()?.to_vec();
        let entry = match reader.byte()? {
            0 => None,
            _ => Some(Entry::unpack(&mut reader)?),
        };
        if is_erased(&key, entry.as_ref()) {
            erased.insert(key.clone());
        }
        records.push((key, entry));
    }
    if erased.is_empty() {
        return Ok(None);
    }
    let mut out = body[..9].to_vec();
    for (key, entry) in records.iter().filter(|(key, _)| !erased.contains(key)) {
        write_bytes(&mut out, key);
        out.push(u8::from(entry.is_some()));
        entry.iter().for_each(|entry| entry.pack(&mut out));
    }
    Ok(Some(if out.len() == 9 { Bytes::new() } else { out.into() }))
}

#[cfg(test)]
mod tests {
    use tocsin_model::value::Value;

    use super::*;
    use crate::chronicle_span::Span;

    /// After any changes, in commits of any size, reading the pages restores the entries, and pages do not pile up.
    #[test]
    fn pages_restore_live_entries_and_stay_few() {
        let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut table = AggregateTable::default();
        let mut journal: BTreeMap<u64, Bytes> = BTreeMap::new();
        for commit in 0..300 {
            table.mark();
            for _ in 0..random.usize(0..60) {
                let key = [random.u8(..), random.u8(0..8)];
                match random.u8(0..10) {
                    0 => table.remove(&key),
                    _ => {
                        let value = Value::Integer(random.i64(0..9));
                        table.change(&key, |entry| entry.take(&Span::Always, commit, 0, value));
                    }
                }
            }
            if random.u8(0..10) == 0 {
                table.undo();
                continue;
            }
            for page in table.take_changes("chronicles.a.b", 5) {
                match page.body.is_empty() {
                    true => journal.remove(&page.number).map(|_| ()).expect("a removed page exists"),
                    false => assert!(journal.insert(page.number, page.body).is_none(), "no page is written twice"),
                }
            }
            table.mark();
            if random.u8(0..8) > 0 {
                continue;
            }
            let mut again = AggregateTable::default();
            for (number, body) in &journal {
                let page = StatePage { name: "chronicles.a.b".into(), number: *number, body: body.clone() };
                assert_eq!(again.restore(&page, 5), Ok(true));
            }
            let sorted = |table: &AggregateTable| {
                let entries: BTreeMap<Key, Entry> =
                    table.entries.iter().map(|(key, held)| (key.clone(), held.entry.clone())).collect();
                (entries, table.order.clone(), table.pages.clone(), table.last_page)
            };
            assert_eq!(sorted(&again), sorted(&table), "seed {seed}, commit {commit}");
            assert!(table.written <= 2 * table.len() + SLACK + 60, "pages pile up");
            table = again;
            table.mark();
        }
    }

    #[test]
    fn erased_records_leave_all_pages_and_others_stay() {
        let mut table = AggregateTable::default();
        let mut pages = Vec::new();
        table.mark();
        for (key, value) in [(b"ann", 1), (b"bob", 2), (b"ann", 3)] {
            table.change(key, |entry| entry.take(&Span::Always, value, 0, Value::Integer(value)));
            pages.extend(table.take_changes("chronicles.a.b", 5));
            table.mark();
        }
        let is_ann = |key: &[u8], _: Option<&Entry>| key == b"ann";
        let erase = |page: &StatePage| erase_records(&page.body, 5, is_ann).expect("readable");
        let left: Vec<_> = pages.iter().map(erase).collect();
        assert_eq!(left, [Some(Bytes::new()), None, Some(Bytes::new())]);
        let both = StatePage { name: "chronicles.a.b".into(), number: 9, body: pages[0].body.clone() };
        let both = StatePage { body: [&both.body[..], &pages[1].body[9..]].concat().into(), ..both };
        assert_eq!(erase(&both).as_ref(), Some(&pages[1].body), "of a page with both");
        assert_eq!(erase_records(&pages[1].body, 6, is_ann), Ok(Some(Bytes::new())), "of another definition");
    }
}
