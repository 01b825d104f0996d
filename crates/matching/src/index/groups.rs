//! Groups of entries by the values that a branch's equality tests ask for.

use hashbrown::HashTable;

use super::chunks::{Arrangement, Chunks, Entry};

/// The groups of one branch.
#[derive(Debug)]
pub struct Groups {
    arrangement: Arrangement,
    by_key: HashTable<u32>,
    groups: Vec<Group>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Group {
    hash: u64,
    key: Key,
    chunks: Chunks,
}

/// The key of a group. A short one stands in place, which spares a walk through memory for each event.
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

/// How far a sweep has come.
#[derive(Debug, Clone, Copy, Default)]
pub struct Broom {
    group: usize,
    chunk: usize,
}

impl Groups {
    /// No groups yet.
    pub fn new(arrangement: Arrangement) -> Self {
        Groups { arrangement, by_key: HashTable::new(), groups: Vec::new(), free: Vec::new() }
    }

    /// How their entries are arranged.
    pub fn arrangement(&self) -> Arrangement {
        self.arrangement
    }

    /// The group of a key.
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<&Chunks> {
        let at = self.by_key.find(hash, |at| self.groups[*at as usize].key.bytes() == key)?;
        Some(&self.groups[*at as usize].chunks)
    }

    /// Files an entry under a key.
    pub fn insert(&mut self, hash: u64, key: &[u8], entry: Entry) {
        if let Some(at) = self.by_key.find(hash, |at| self.groups[*at as usize].key.bytes() == key) {
            self.groups[*at as usize].chunks.insert(self.arrangement, entry);
            return;
        }
        let group = Group { hash, key: Key::new(key), chunks: Chunks::One(entry) };
        let at = match self.free.pop() {
            Some(at) => {
                self.groups[at as usize] = group;
                at
            }
            None => {
                self.groups.push(group);
                u32::try_from(self.groups.len() - 1).expect("a shard holds fewer than 2^32 subscriptions")
            }
        };
        self.by_key.insert_unique(hash, at, |at| self.groups[*at as usize].hash);
    }

    /// Sweeps out entries that are not wanted any more, looking at about as many as `looks` has left.
    /// Answers where to go on; `None` when all were seen.
    pub fn sweep(&mut self, mut broom: Broom, looks: &mut usize, wanted: &impl Fn(u32) -> bool) -> Option<Broom> {
        while *looks > 0 {
            let group = self.groups.get_mut(broom.group)?;
            let was_empty = group.chunks.is_empty();
            let (looked_at, next) = group.chunks.sweep(broom.chunk, wanted);
            *looks = looks.saturating_sub(looked_at);
            match next {
                Some(chunk) => broom.chunk = chunk,
                None => {
                    if !was_empty && group.chunks.is_empty() {
                        let (hash, at) = (group.hash, broom.group as u32);
                        group.key = Key::new(&[]);
                        if let Ok(found) = self.by_key.find_entry(hash, |other| *other == at) {
                            found.remove();
                        }
                        self.free.push(at);
                    }
                    broom = Broom { group: broom.group + 1, chunk: 0 };
                }
            }
        }
        Some(broom)
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let inner: usize = self.groups.iter().map(|group| group.key.memory_bytes() + group.chunks.memory_bytes()).sum();
        self.by_key.allocation_size() + self.groups.capacity() * size_of::<Group>() + self.free.capacity() * 4 + inner
    }
}
