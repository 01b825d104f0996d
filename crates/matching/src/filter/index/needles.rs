//! Texts that are looked for inside one text, all in one pass over it.
//!
//! They stand in automata whose sizes double, so that a new one is soon part of an automaton and each is built into a
//! new one only so often. The youngest few are looked for one by one. One automaton has at most [`TIER_MAX`] of them,
//! which bounds how long one change can take.

use std::hash::{BuildHasher, Hasher};

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use hashbrown::{DefaultHashBuilder, HashTable};

/// So many are looked for one by one.
const YOUNG_MAX: usize = 48;

/// Most needles of one automaton.
const TIER_MAX: usize = 1 << 16;

/// Up to so many, an automaton has a table for every byte, which is large and fast.
const DENSE_MAX: usize = 256;

/// The needles looked for in one field, all with case kept or all folded. Their numbers start at 1 and are used again.
#[derive(Debug, Default)]
pub struct Needles {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    needles: Vec<Needle>,
    free: Vec<u32>,
    young: Vec<u32>,
    tiers: Vec<Tier>,
}

#[derive(Debug, Default)]
struct Needle {
    text: Box<str>,
    /// 0: nobody asks any more, but an automaton still knows it.
    uses: u32,
}

#[derive(Debug)]
struct Tier {
    automaton: AhoCorasick,
    /// By the automaton's number, rising.
    needles: Box<[u32]>,
    /// Nobody asks for so many of them.
    dead: usize,
}

impl Needles {
    fn hash(&self, text: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    fn at(&self, needle: u32) -> &Needle {
        &self.needles[needle as usize - 1]
    }

    /// The number of a needle somebody asks for, else 0.
    pub fn find(&self, text: &str) -> u32 {
        let found = self.table.find(self.hash(text), |needle| *self.at(*needle).text == *text);
        found.filter(|needle| self.at(**needle).uses > 0).map_or(0, |needle| *needle)
    }

    /// The number of a needle, kept until it is released as often as it was acquired. Cost: now and then that of
    /// building an automaton, some microseconds for each needle in the end.
    pub fn acquire(&mut self, text: &str) -> u32 {
        let hash = self.hash(text);
        if let Some(needle) = self.table.find(hash, |needle| *self.at(*needle).text == *text).copied() {
            let found = &mut self.needles[needle as usize - 1];
            found.uses += 1;
            if found.uses == 1
                && let Some(tier) = self.tiers.iter_mut().find(|tier| tier.needles.binary_search(&needle).is_ok())
            {
                tier.dead -= 1;
            }
            return needle;
        }
        let new = Needle { text: text.into(), uses: 1 };
        let needle = match self.free.pop() {
            Some(needle) => {
                self.needles[needle as usize - 1] = new;
                needle
            }
            None => {
                self.needles.push(new);
                u32::try_from(self.needles.len()).expect("fewer than 2^32 texts are looked for")
            }
        };
        let (needles, hasher) = (&self.needles, &self.hasher);
        self.table.insert_unique(hash, needle, |needle| {
            let mut state = hasher.build_hasher();
            state.write(needles[*needle as usize - 1].text.as_bytes());
            state.finish()
        });
        self.young.push(needle);
        if self.young.len() > YOUNG_MAX {
            self.settle();
        }
        needle
    }

    /// Takes one more use of a needle that is in use.
    pub fn acquire_again(&mut self, needle: u32) {
        self.needles[needle as usize - 1].uses += 1;
    }

    /// Gives back one use.
    pub fn release(&mut self, needle: u32) {
        let found = &mut self.needles[needle as usize - 1];
        found.uses -= 1;
        if found.uses > 0 {
            return;
        }
        if let Some(at) = self.young.iter().position(|young| *young == needle) {
            self.young.swap_remove(at);
            self.forget(needle);
            return;
        }
        let Some(at) = self.tiers.iter().position(|tier| tier.needles.binary_search(&needle).is_ok()) else { return };
        self.tiers[at].dead += 1;
        // So that an automaton is built anew only after as many changes as it keeps needles.
        if self.tiers[at].dead * 2 > self.tiers[at].needles.len() {
            let tier = self.tiers.swap_remove(at);
            let living = self.living(tier);
            self.build(living);
        }
    }

    fn forget(&mut self, needle: u32) {
        let hash = self.hash(&self.at(needle).text);
        if let Ok(found) = self.table.find_entry(hash, |other| *other == needle) {
            found.remove();
        }
        self.needles[needle as usize - 1] = Needle::default();
        self.free.push(needle);
    }

    /// The needles of an automaton that somebody asks for; forgets the others.
    fn living(&mut self, tier: Tier) -> Vec<u32> {
        let (living, dead): (Vec<u32>, Vec<u32>) =
            tier.needles.iter().copied().partition(|needle| self.at(*needle).uses > 0);
        dead.into_iter().for_each(|needle| self.forget(needle));
        living
    }

    /// Makes an automaton of the young, and of all that are no larger than it would be.
    fn settle(&mut self) {
        let mut needles = std::mem::take(&mut self.young);
        while let Some(at) = self
            .tiers
            .iter()
            .position(|tier| tier.needles.len() <= needles.len() && tier.needles.len() + needles.len() <= TIER_MAX)
        {
            let tier = self.tiers.swap_remove(at);
            needles.extend(self.living(tier));
        }
        self.build(needles);
    }

    fn build(&mut self, mut needles: Vec<u32>) {
        if needles.is_empty() {
            return;
        }
        needles.sort_unstable();
        let kind = if needles.len() <= DENSE_MAX { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
        let texts = needles.iter().map(|needle| &*self.at(*needle).text);
        match AhoCorasick::builder().kind(Some(kind)).build(texts) {
            Ok(automaton) => self.tiers.push(Tier { automaton, needles: needles.into(), dead: 0 }),
            // Only where their texts together are larger than 2 GB.
            Err(_) => self.young.append(&mut needles),
        }
    }

    /// Calls for each needle that stands in the text; for one that is there twice, perhaps twice.
    pub fn search(&self, text: &str, found: &mut impl FnMut(u32)) {
        for needle in &self.young {
            if text.contains(&*self.at(*needle).text) {
                found(*needle);
            }
        }
        for tier in &self.tiers {
            for hit in tier.automaton.find_overlapping_iter(text) {
                let needle = tier.needles[hit.pattern().as_usize()];
                if self.at(needle).uses > 0 {
                    found(needle);
                }
            }
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let texts: usize = self.needles.iter().map(|needle| needle.text.len() + 16).sum();
        let automata: usize =
            self.tiers.iter().map(|tier| tier.automaton.memory_usage() + tier.needles.len() * 4).sum();
        self.table.allocation_size() + self.needles.capacity() * size_of::<Needle>() + texts + automata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(needles: &Needles, text: &str) -> Vec<u32> {
        let mut list = Vec::new();
        needles.search(text, &mut |needle| list.push(needle));
        list.sort_unstable();
        list.dedup();
        list
    }

    #[test]
    fn needles_come_and_go() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut needles = Needles::default();
        let mut kept: Vec<(String, u32)> = Vec::new();
        for round in 0..4_000 {
            // More come than go in the first half, fewer in the second.
            if kept.is_empty() || random.usize(0..10) < if round < 2_000 { 7 } else { 2 } {
                let text: String = (0..random.usize(1..5)).map(|_| random.char('a'..='d')).collect();
                let needle = needles.acquire(&text);
                kept.push((text, needle));
            } else {
                let (_, needle) = kept.swap_remove(random.usize(0..kept.len()));
                needles.release(needle);
            }
            if round % 50 == 0 {
                let text: String = (0..12).map(|_| random.char('a'..='d')).collect();
                let mut expected: Vec<u32> =
                    kept.iter().filter(|(part, _)| text.contains(part)).map(|(_, needle)| *needle).collect();
                expected.sort_unstable();
                expected.dedup();
                assert_eq!(found(&needles, &text), expected, "round {round}");
                kept.iter().for_each(|(text, needle)| assert_eq!(needles.find(text), *needle));
            }
        }
        kept.into_iter().for_each(|(_, needle)| needles.release(needle));
        assert!(found(&needles, "abcdabcd").is_empty());
        assert_eq!(needles.find("a"), 0);
    }

    #[test]
    fn automata_are_few() {
        let mut needles = Needles::default();
        (0..10_000).for_each(|number| {
            needles.acquire(&format!("needle-{number}"));
        });
        assert!(needles.tiers.len() <= 9, "{}", needles.tiers.len());
        assert_eq!(found(&needles, "a needle-777 in hay").len(), 3);
    }
}
