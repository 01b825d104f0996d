//! The entries of one chronicle, and the pages that hold them in the journal.
//!
//! Pages are a log: what changed in a commit is written behind what is there, in pages with higher numbers, and the newest
//! word on a key counts. When more than half of what is written is out of date, the oldest page goes: what of it still
//! counts is written anew with the next changes. So a commit writes what it changed, and little more, whatever there is.

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

/// Entries of one page at most.
const PAGE_ENTRIES: usize = 2_000;
/// So much more than half may be out of date.
const SLACK: usize = 1_000;
/// The format of pages.
const FORMAT: u8 = 1;

/// A key, packed.
pub type Key = Arc<[u8]>;

/// An entry, and the page that holds it; 0: none yet.
#[derive(Debug, Clone, Default)]
pub struct Held {
    pub entry: Entry,
    page: u64,
}

/// The entries of one chronicle.
#[derive(Debug, Default)]
pub struct Ledger {
    pub entries: HashMap<Key, Held>,
    /// Who was not seen for the longest time comes first.
    order: BTreeMap<u64, Key>,
    touched: u64,
    /// How many words on keys each page has.
    pages: BTreeMap<u64, usize>,
    written: usize,
    last_page: u64,
    /// What changed since it was last marked, as it was before.
    before: HashMap<Key, Option<Held>>,
    touched_before: u64,
    /// The keys that changed since these were last taken, if somebody wants to know.
    noted: Option<BTreeSet<Key>>,
}

impl Ledger {
    /// One that notes which keys change.
    pub fn noting() -> Ledger {
        Ledger { noted: Some(BTreeSet::new()), ..Ledger::default() }
    }

    /// The keys that changed since this was last asked.
    pub fn take_noted(&mut self) -> BTreeSet<Key> {
        self.noted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn memory_bytes(&self) -> usize {
        let of = |(key, held): (&Key, &Held)| key.len() + 96 + held.entry.memory_bytes();
        self.entries.iter().map(of).sum()
    }

    pub fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key).map(|held| &held.entry)
    }

    /// Changes an entry, or the empty one of a new key. It was seen now.
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

    /// The key that was not seen for the longest time.
    pub fn oldest(&self) -> Option<(Key, &Entry)> {
        let (_, key) = self.order.first_key_value()?;
        Some((key.clone(), &self.entries.get(key)?.entry))
    }

    fn save(&mut self, key: &Key) {
        if let Some(noted) = &mut self.noted {
            noted.insert(key.clone());
        }
        if !self.before.contains_key(key) {
            self.before.insert(key.clone(), self.entries.get(key).cloned());
        }
    }

    /// From here on, what changes can be undone.
    pub fn mark(&mut self) {
        self.before.clear();
        self.touched_before = self.touched;
    }

    /// Undoes what changed since it was marked.
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

    /// The pages that say what changed since it was marked.
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
            // No older page says anything of these keys, so those that are gone need no word any more.
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

    /// Takes a page of the journal, after those with lower numbers. Gives whether it is of this chronicle as it is now.
    ///
    /// # Errors
    /// It is damaged. What could be read of it counts.
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
            self.entries.insert(key, Held { entry, page });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tocsin_model::value::Value;

    use super::{super::compile::Span, *};

    /// Whatever changes, in commits of any size, is there again when the pages are read, and pages do not pile up.
    #[test]
    fn pages_bring_back_what_counts_and_stay_few() {
        let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ledger = Ledger::default();
        let mut journal: BTreeMap<u64, Bytes> = BTreeMap::new();
        for commit in 0..300 {
            ledger.mark();
            for _ in 0..random.usize(0..60) {
                let key = [random.u8(..), random.u8(0..8)];
                match random.u8(0..10) {
                    0 => ledger.remove(&key),
                    _ => {
                        let value = Value::Integer(random.i64(0..9));
                        ledger.change(&key, |entry| entry.take(&Span::Always, commit, 0, value));
                    }
                }
            }
            if random.u8(0..10) == 0 {
                ledger.undo();
                continue;
            }
            for page in ledger.take_changes("chronicles.a.b", 5) {
                match page.body.is_empty() {
                    true => journal.remove(&page.number).map(|_| ()).expect("what goes was there"),
                    false => assert!(journal.insert(page.number, page.body).is_none(), "no page is written twice"),
                }
            }
            ledger.mark();
            if random.u8(0..8) > 0 {
                continue;
            }
            let mut again = Ledger::default();
            for (number, body) in &journal {
                let page = StatePage { name: "chronicles.a.b".into(), number: *number, body: body.clone() };
                assert_eq!(again.restore(&page, 5), Ok(true));
            }
            let sorted = |ledger: &Ledger| {
                let entries: BTreeMap<Key, Entry> =
                    ledger.entries.iter().map(|(key, held)| (key.clone(), held.entry.clone())).collect();
                (entries, ledger.order.clone(), ledger.pages.clone(), ledger.last_page)
            };
            assert_eq!(sorted(&again), sorted(&ledger), "seed {seed}, commit {commit}");
            assert!(ledger.written <= 2 * ledger.len() + SLACK + 60, "pages pile up");
            ledger = again;
            ledger.mark();
        }
    }
}
