//! Groups of entries by the values that a branch's equality tests ask for.

use super::{
    chunks::{Arrangement, Chunks, Entry},
    numbers::{KeyBook, KeyNumber},
};

/// The groups of one branch, by the numbers that a [`KeyBook`] gives their keys.
#[derive(Debug)]
pub struct Groups {
    arrangement: Arrangement,
    /// The group of each key number, `NONE` where there is none.
    by_number: Vec<u32>,
    groups: Vec<Group>,
    free: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// A cache line, so that one step through memory gets it.
#[derive(Debug)]
#[repr(align(64))]
struct Group {
    number: KeyNumber,
    chunks: Chunks,
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
        Groups { arrangement, by_number: Vec::new(), groups: Vec::new(), free: Vec::new() }
    }

    /// How many groups there are.
    pub fn count(&self) -> usize {
        self.groups.len() - self.free.len()
    }

    /// The group of a key.
    #[inline]
    pub fn find(&self, number: KeyNumber) -> Option<&Chunks> {
        self.place(number).map(|at| self.group(at))
    }

    /// The place of the group of a key.
    #[inline]
    pub fn place(&self, number: KeyNumber) -> Option<u32> {
        self.by_number.get(number as usize).copied().filter(|at| *at != NONE)
    }

    /// The group of a place.
    #[inline]
    pub fn group(&self, place: u32) -> &Chunks {
        &self.groups[place as usize].chunks
    }

    /// Files an entry under a key of the book.
    pub fn insert(&mut self, book: &mut KeyBook, number: KeyNumber, entry: Entry) {
        let place = number as usize;
        if let Some(at) = self.by_number.get(place).filter(|at| **at != NONE) {
            self.groups[*at as usize].chunks.insert(self.arrangement, entry);
            return;
        }
        book.hold(number);
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

    /// Sweeps out entries that are not wanted any more, looking at about as many as `looks` has left.
    /// Answers where to go on; `None` when all were seen.
    pub fn sweep(
        &mut self,
        book: &mut KeyBook,
        mut broom: Broom,
        looks: &mut usize,
        wanted: &impl Fn(u32) -> bool,
    ) -> Option<Broom> {
        while *looks > 0 {
            let group = self.groups.get_mut(broom.group)?;
            let was_empty = group.chunks.is_empty();
            let (looked_at, next) = group.chunks.sweep(broom.chunk, wanted);
            *looks = looks.saturating_sub(looked_at);
            match next {
                Some(chunk) => broom.chunk = chunk,
                None => {
                    if !was_empty && group.chunks.is_empty() {
                        self.by_number[group.number as usize] = NONE;
                        book.give_back(group.number);
                        self.free.push(broom.group as u32);
                    }
                    broom = Broom { group: broom.group + 1, chunk: 0 };
                }
            }
        }
        Some(broom)
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let inner: usize = self.groups.iter().map(|group| group.chunks.memory_bytes()).sum();
        (self.by_number.capacity() + self.free.capacity()) * 4 + self.groups.capacity() * size_of::<Group>() + inner
    }
}
