//! Key interning: the distinct keys of branches with the same event key, numbered, so that one lookup per event serves
//! all of them.

use std::hash::BuildHasher;

use hashbrown::HashTable;

use crate::index::hasher::Hasher;

/// The number of a key in its table. Numbers are small and reused.
pub type KeyNumber = u32;

/// Keys by number. Keyed hashing, since subscribers choose the keys.
#[derive(Debug)]
pub struct KeyTable {
    by_key: HashTable<KeyNumber>,
    keys: Vec<Key>,
    /// The number of groups with each key.
    uses: Vec<u32>,
    free: Vec<KeyNumber>,
    hasher: Hasher,
}

/// A key. A short one is stored inline, which saves a memory access per event.
#[derive(Debug)]
enum Key {
    Short(u8, [u8; 22]),
    Long(Box<[u8]>),
}

impl Key {
    fn new(key: &[u8]) -> Key {
        let mut short = [0; 22];
        match short.get_mut(..key.len()) {
            Some(place) => {
                place.copy_from_slice(key);
                Key::Short(key.len() as u8, short)
            }
            None => Key::Long(key.into()),
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Key::Short(length, key) => &key[..usize::from(*length)],
            Key::Long(key) => key,
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Key::Short(..) => 0,
            Key::Long(key) => key.len(),
        }
    }
}

impl KeyTable {
    /// An empty table.
    pub fn new(hasher: Hasher) -> Self {
        KeyTable { by_key: HashTable::new(), keys: Vec::new(), uses: Vec::new(), free: Vec::new(), hasher }
    }

    /// The number of a key.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<KeyNumber> {
        self.by_key.find(self.hasher.hash_one(key), |at| self.keys[*at as usize].bytes() == key).copied()
    }

    /// The number of a key, a new one if necessary. A number that no group uses afterwards must be released.
    pub fn number(&mut self, key: &[u8]) -> KeyNumber {
        let hash = self.hasher.hash_one(key);
        if let Some(number) = self.by_key.find(hash, |at| self.keys[*at as usize].bytes() == key) {
            return *number;
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.keys[number as usize] = Key::new(key);
                number
            }
            None => {
                self.keys.push(Key::new(key));
                self.uses.push(0);
                KeyNumber::try_from(self.keys.len() - 1).expect("a shard holds fewer than 2^32 subscriptions")
            }
        };
        let (keys, hasher) = (&self.keys, &self.hasher);
        self.by_key.insert_unique(hash, number, |at| hasher.hash_one(keys[*at as usize].bytes()));
        number
    }

    /// Counts a new group of a key.
    pub fn hold(&mut self, number: KeyNumber) {
        self.uses[number as usize] += 1;
    }

    /// Counts a removed group of a key. The last one frees the number.
    pub fn release(&mut self, number: KeyNumber) {
        let at = number as usize;
        self.uses[at] -= 1;
        if self.uses[at] > 0 {
            return;
        }
        let hash = self.hasher.hash_one(self.keys[at].bytes());
        if let Ok(found) = self.by_key.find_entry(hash, |other| *other == number) {
            found.remove();
        }
        self.keys[at] = Key::new(&[]);
        self.free.push(number);
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        self.by_key.allocation_size()
            + self.keys.capacity() * size_of::<Key>()
            + (self.uses.capacity() + self.free.capacity()) * 4
            + self.keys.iter().map(Key::memory_bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_use_while_a_group_has_its_key() {
        let mut key_table = KeyTable::new(Hasher::default());
        let long = [7; 100];
        let (short, long_one) = (key_table.number(b"short"), key_table.number(&long));
        key_table.hold(short);
        key_table.hold(short);
        key_table.hold(long_one);
        assert_eq!((key_table.number(b"short"), key_table.find(&long)), (short, Some(long_one)));
        key_table.release(short);
        assert_eq!(key_table.find(b"short"), Some(short));
        key_table.release(short);
        assert_eq!(key_table.find(b"short"), None);
        assert_eq!(key_table.number(b"other"), short);
        assert_eq!(key_table.find(b""), None);
    }
}
