//! Groups of entries by the values of a branch's equality tests.

use super::{
    chunks::{Arrangement, Chunks, Entry},
    key_table::{KeyNumber, KeyTable},
};

/// The groups of one branch, by the key numbers of a [`KeyTable`].
#[derive(Debug)]
pub struct Groups {
    arrangement: Arrangement,
    /// The group of each key number, `NONE` where there is none.
    by_number: Vec<u32>,
    groups: Vec<Group>,
    free: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// One cache line, so that one memory access loads it.
#[derive(Debug)]
#[repr(align(64))]
struct Group {
    number: KeyNumber,
    chunks: Chunks,
}

/// The position of a sweep.
#[derive(Debug, Clone, Copy, Default)]
pub struct SweepPosition {
    group: usize,
    chunk: usize,
}

impl Groups {
    /// No groups yet.
    pub fn new(arrangement: Arrangement) -> Self {
        Groups { arrangement, by_number: Vec::new(), groups: Vec::new(), free: Vec::new() }
    }

    /// The number of groups.
    pub fn count(&self) -> usize {
        self.groups.len() - self.free.len()
    }

    /// The group of a key.
    #[inline]
    pub fn find(&self, number: KeyNumber) -> Option<&Chunks> {
        self.place(number).map(|at| self.group(at))
    }

    /// The index of the group of a key.
    #[inline]
    pub fn place(&self, number: KeyNumber) -> Option<u32> {
        self.by_number.get(number as usize).copied().filter(|at| *at != NONE)
    }

    /// The group at an index.
    #[inline]
    pub fn group(&self, place: u32) -> &Chunks {
        &self.groups[place as usize].chunks
    }

    /// Adds an entry under a key of the table.
    pub fn insert(&mut self, key_table: &mut KeyTable, number: KeyNumber, entry: Entry) {
        let place = number as usize;
        if let Some(at) = self.by_number.get(place).filter(|at| **at != NONE) {
            self.groups[*at as usize].chunks.insert(self.arrangement, entry);
            return;
        }
        key_table.hold(number);
        let group = Group { number, chunks: Chunks::One(entry) };
        let at = match self.free.pop() {
            Some(at) => {
                self.groups[at as usize] = group;
                at
            }
            None => {
                self.groups.push(group);
                (self.groups.len() - 1) as u32
            }
        };
        if place >= self.by_number.len() {
            self.by_number.resize(place + 1, NONE);
        }
        self.by_number[place] = at;
    }

    /// Removes unwanted entries, checking about as many as `looks` allows. Returns the next position; `None` at the
    /// end.
    pub fn sweep(
        &mut self,
        key_table: &mut KeyTable,
        mut sweep_position: SweepPosition,
        looks: &mut usize,
        requested: &impl Fn(u32) -> bool,
    ) -> Option<SweepPosition> {
        while *looks > 0 {
            let group = self.groups.get_mut(sweep_position.group)?;
            let was_empty = group.chunks.is_empty();
            let (looked_at, next) = group.chunks.sweep(sweep_position.chunk, requested);
            *looks = looks.saturating_sub(looked_at);
            match next {
                Some(chunk) => sweep_position.chunk = chunk,
                None => {
                    if !was_empty && group.chunks.is_empty() {
                        self.by_number[group.number as usize] = NONE;
                        key_table.release(group.number);
                        self.free.push(sweep_position.group as u32);
                    }
                    sweep_position = SweepPosition { group: sweep_position.group + 1, chunk: 0 };
                }
            }
        }
        Some(sweep_position)
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let inner: usize = self.groups.iter().map(|group| group.chunks.memory_bytes()).sum();
        (self.by_number.capacity() + self.free.capacity()) * 4 + self.groups.capacity() * size_of::<Group>() + inner
    }
}
