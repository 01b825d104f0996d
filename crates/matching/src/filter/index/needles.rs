//! Multi-pattern substring search: finds all needles in a text in one pass.
//!
//! Needles are in Aho-Corasick automata whose sizes double (logarithmic method), so each needle is rebuilt only a
//! logarithmic number of times. The youngest few are searched one by one. One automaton has at most [`TIER_MAX`]
//! needles, which bounds the time of one change.

use std::hash::{BuildHasher, Hasher};

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use hashbrown::{DefaultHashBuilder, HashTable};

/// Most needles that are searched one by one.
const RECENT_MAX: usize = 48;

/// Most needles of one automaton.
const TIER_MAX: usize = 1 << 16;

/// Up to this size, an automaton has a dense table for every byte, which is large and fast.
const DENSE_MAX: usize = 256;

/// The needles of one field, all case-sensitive or all folded. Their numbers start at 1 and are reused.
#[derive(Debug, Default)]
pub struct Needles {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    needles: Vec<Needle>,
    free: Vec<u32>,
    recent: Vec<u32>,
    tiers: Vec<Tier>,
}

#[derive(Debug, Default)]
struct Needle {
    text: Box<str>,
    /// 0: unused, but still part of an automaton.
    uses: u32,
}

#[derive(Debug)]
struct Tier {
    automaton: AhoCorasick,
    /// By the automaton's pattern number, rising.
    needles: Box<[u32]>,
    /// The number of unused needles.
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

    /// The number of a needle that is in use, else 0.
    pub fn find(&self, text: &str) -> u32 {
        let found = self.table.find(self.hash(text), |needle| *self.at(*needle).text == *text);
        found.filter(|needle| self.at(**needle).uses > 0).map_or(0, |needle| *needle)
    }

    /// The number of a needle, kept until it is released as often as it was acquired. Amortized cost: some microseconds
    /// for building automata.
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
                u32::try_from(self.needles.len()).expect("fewer than 2^32 needles are in use")
            }
        };
        let (needles, hasher) = (&self.needles, &self.hasher);
        self.table.insert_unique(hash, needle, |needle| {
            let mut state = hasher.build_hasher();
            state.write(needles[*needle as usize - 1].text.as_bytes());
            state.finish()
        });
        self.recent.push(needle);
        if self.recent.len() > RECENT_MAX {
            self.merge_recent();
        }
        needle
    }

    /// Adds one use of a needle that is in use.
    pub fn acquire_again(&mut self, needle: u32) {
        self.needles[needle as usize - 1].uses += 1;
    }

    /// Releases one use.
    pub fn release(&mut self, needle: u32) {
        let found = &mut self.needles[needle as usize - 1];
        found.uses -= 1;
        if found.uses > 0 {
            return;
        }
        if let Some(at) = self.recent.iter().position(|recent| *recent == needle) {
            self.recent.swap_remove(at);
            self.remove_needle(needle);
            return;
        }
        let Some(at) = self.tiers.iter().position(|tier| tier.needles.binary_search(&needle).is_ok()) else { return };
        self.tiers[at].dead += 1;
        // So an automaton is rebuilt only after as many changes as it keeps needles.
        if self.tiers[at].dead * 2 > self.tiers[at].needles.len() {
            let tier = self.tiers.swap_remove(at);
            let live_needles = self.live_needles(tier);
            self.build(live_needles);
        }
    }

    fn remove_needle(&mut self, needle: u32) {
        let hash = self.hash(&self.at(needle).text);
        if let Ok(found) = self.table.find_entry(hash, |other| *other == needle) {
            found.remove();
        }
        self.needles[needle as usize - 1] = Needle::default();
        self.free.push(needle);
    }

    /// The needles of an automaton that are in use; forgets the others.
    fn live_needles(&mut self, tier: Tier) -> Vec<u32> {
        let (live_needles, dead): (Vec<u32>, Vec<u32>) =
            tier.needles.iter().copied().partition(|needle| self.at(*needle).uses > 0);
        dead.into_iter().for_each(|needle| self.remove_needle(needle));
        live_needles
    }

    /// Builds an automaton of the recent needles, and of all automata that are no larger than it would be.
    fn merge_recent(&mut self) {
        let mut needles = std::mem::take(&mut self.recent);
        while let Some(at) = self
            .tiers
            .iter()
            .position(|tier| tier.needles.len() <= needles.len() && tier.needles.len() + needles.len() <= TIER_MAX)
        {
            let tier = self.tiers.swap_remove(at);
            needles.extend(self.live_needles(tier));
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
            // Only if their texts together exceed 2 GB.
            Err(_) => self.recent.append(&mut needles),
        }
    }

    /// Calls `found` for each needle in the text; for one that occurs twice, perhaps twice.
    pub fn search(&self, text: &str, found: &mut impl FnMut(u32)) {
        for needle in &self.recent {
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
    fn needles_are_added_and_removed() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut needles = Needles::default();
        let mut kept: Vec<(String, u32)> = Vec::new();
        for round in 0..4_000 {
            // More are added than removed in the first half, fewer in the second.
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
