//! Extractors: for each path and each kind of extraction, they map an event to symbols.
//!
//! An extractor turns a test into an equality lookup. A prefix of six bytes is the equality of the first six bytes, a
//! network the equality of the masked address, a substring the number of a needle. Values that no filter uses have no
//! symbol and are dropped here.

use hashbrown::HashMap;
use tocsin_model::value::Value;

use super::{
    needles::Needles,
    symbols::{Atom, NONE, Symbols},
};
use crate::{
    filter::condition::{Case, Path, Reach, one},
    text::{Network, fold},
};

/// The kind of extraction from a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Extraction {
    /// The value itself.
    Equal,
    /// Text, lower-cased.
    Folded,
    /// The first bytes of text.
    Prefix(u8, Case),
    /// The last bytes of text.
    Suffix(u8, Case),
    /// The network of an address, by prefix length, IPv4 or IPv6.
    Network(bool, u8),
    /// The needles contained in text.
    Needle(Case),
    /// The presence of a value; one symbol.
    Exists,
    /// The absence of a value; one symbol.
    Missing,
}

/// The value of a key, as looked up in an extractor.
#[derive(Debug, Clone, PartialEq)]
pub enum SymbolQuery<'a> {
    /// A value with a symbol.
    Atom(Atom<'a>),
    /// A needle.
    Needle(&'a str),
    /// Presence or absence, of `Exists` and `Missing`.
    Presence,
}

/// The symbol of `Exists` and `Missing`.
const PRESENT: u32 = 1;

/// The paths and extractors in use, with their symbols.
#[derive(Debug, Default)]
pub struct Extractors {
    event_paths: Vec<EventPath>,
    event_paths_free: Vec<u32>,
    lanes_by_path: HashMap<Path, u32>,
    extractors: Vec<Extractor>,
    extractors_free: Vec<u32>,
    symbols: Symbols,
}

/// A path in the event, and its extractors.
#[derive(Debug)]
struct EventPath {
    path: Path,
    extractors: Vec<u32>,
    uses: u32,
    /// Whether some extractor lower-cases.
    folds: bool,
    /// Whether some extractor tests presence.
    tests_presence: bool,
}

#[derive(Debug)]
struct Extractor {
    event_path: u32,
    extraction: Extraction,
    uses: u32,
    needles: Option<Box<Needles>>,
}

/// The symbols that an extractor finds in one event.
#[derive(Debug, Default, Clone)]
pub struct FoundSymbols {
    first: u32,
    count: u32,
    more: Vec<u32>,
}

impl FoundSymbols {
    /// The symbols, each once.
    pub fn symbols(&self) -> &[u32] {
        match self.count {
            0 => &[],
            1 => std::slice::from_ref(&self.first),
            _ => &self.more,
        }
    }

    /// The symbol, if it is the only one.
    pub fn sole(&self) -> Option<u32> {
        (self.count == 1).then_some(self.first)
    }

    /// Whether a symbol is among them.
    pub fn has(&self, symbol: u32) -> bool {
        match self.symbols() {
            many if many.len() > 16 => many.binary_search(&symbol).is_ok(),
            few => few.contains(&symbol),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn clear(&mut self) {
        self.count = 0;
    }

    fn add(&mut self, symbol: u32) {
        match self.count {
            0 => (self.first, self.count) = (symbol, 1),
            1 if self.first == symbol => {}
            1 => {
                self.more.clear();
                self.more.extend([self.first, symbol]);
                self.count = 2;
            }
            _ if self.more.len() < 16 && self.more.contains(&symbol) => {}
            _ => {
                self.more.push(symbol);
                self.count += 1;
            }
        }
    }

    fn finish(&mut self) {
        if self.count > 16 {
            self.more.sort_unstable();
            self.more.dedup();
            self.count = self.more.len() as u32;
        }
    }
}

impl Extractors {
    /// The number of a path, kept until it is released as often as it was acquired.
    pub fn acquire_event_path(&mut self, path: &Path) -> u32 {
        if let Some(event_path) = self.lanes_by_path.get(path) {
            self.event_paths[*event_path as usize].uses += 1;
            return *event_path;
        }
        let new =
            EventPath { path: path.clone(), extractors: Vec::new(), uses: 1, folds: false, tests_presence: false };
        let event_path = place(&mut self.event_paths, &mut self.event_paths_free, new);
        self.lanes_by_path.insert(path.clone(), event_path);
        event_path
    }

    /// Releases one use of a path.
    pub fn release_event_path(&mut self, event_path: u32) {
        let found = &mut self.event_paths[event_path as usize];
        found.uses -= 1;
        if found.uses == 0 {
            self.lanes_by_path.remove(&found.path);
            found.path = Path::field(usize::MAX);
            self.event_paths_free.push(event_path);
        }
    }

    /// The number of a path that is in use.
    pub fn find_event_path(&self, path: &Path) -> Option<u32> {
        self.lanes_by_path.get(path).copied()
    }

    /// The path of a number.
    pub fn path(&self, event_path: u32) -> &Path {
        &self.event_paths[event_path as usize].path
    }

    /// The extractor of a path, if it is in use.
    pub fn find(&self, path: &Path, extraction: Extraction) -> Option<u32> {
        let event_path = &self.event_paths[self.find_event_path(path)? as usize];
        event_path
            .extractors
            .iter()
            .copied()
            .find(|extractor| self.extractors[*extractor as usize].extraction == extraction)
    }

    /// The extractor of a path, kept until it is released as often as it was acquired.
    pub fn acquire(&mut self, path: &Path, extraction: Extraction) -> u32 {
        if let Some(extractor) = self.find(path, extraction) {
            self.extractors[extractor as usize].uses += 1;
            return extractor;
        }
        let event_path = self.acquire_event_path(path);
        let needles = matches!(extraction, Extraction::Needle(_)).then(Box::default);
        let new = Extractor { event_path, extraction, uses: 1, needles };
        let extractor = place(&mut self.extractors, &mut self.extractors_free, new);
        self.event_paths[event_path as usize].extractors.push(extractor);
        self.update_flags(event_path);
        extractor
    }

    /// Releases one use of an extractor.
    pub fn release(&mut self, extractor: u32) {
        let found = &mut self.extractors[extractor as usize];
        found.uses -= 1;
        if found.uses > 0 {
            return;
        }
        found.needles = None;
        let event_path = found.event_path;
        self.extractors_free.push(extractor);
        self.event_paths[event_path as usize].extractors.retain(|other| *other != extractor);
        self.update_flags(event_path);
        self.release_event_path(event_path);
    }

    fn update_flags(&mut self, event_path: u32) {
        let folds = |extractor: &u32| {
            matches!(
                self.extractors[*extractor as usize].extraction,
                Extraction::Folded
                    | Extraction::Prefix(_, Case::Folded)
                    | Extraction::Suffix(_, Case::Folded)
                    | Extraction::Needle(Case::Folded)
            )
        };
        let tests_presence = |extractor: &u32| {
            matches!(self.extractors[*extractor as usize].extraction, Extraction::Exists | Extraction::Missing)
        };
        let extractors = &self.event_paths[event_path as usize].extractors;
        let (folds, tests_presence) = (extractors.iter().any(folds), extractors.iter().any(tests_presence));
        let event_path = &mut self.event_paths[event_path as usize];
        (event_path.folds, event_path.tests_presence) = (folds, tests_presence);
    }

    /// The path of an extractor.
    pub fn path_of(&self, extractor: u32) -> &Path {
        self.path(self.extractors[extractor as usize].event_path)
    }

    /// The extraction of an extractor.
    pub fn extraction_of(&self, extractor: u32) -> Extraction {
        self.extractors[extractor as usize].extraction
    }

    /// Whether an extractor searches for substrings, and so can find several symbols.
    pub fn seeks_needles(&self, extractor: u32) -> bool {
        matches!(self.extractors[extractor as usize].extraction, Extraction::Needle(_))
    }

    /// The symbol of a key's value, kept until it is released as often as it was acquired.
    pub fn acquire_symbol(&mut self, extractor: u32, query: &SymbolQuery<'_>) -> u32 {
        match (query, &mut self.extractors[extractor as usize].needles) {
            (SymbolQuery::Needle(text), Some(needles)) => needles.acquire(text),
            (SymbolQuery::Atom(atom), _) => self.symbols.acquire(*atom),
            _ => PRESENT,
        }
    }

    /// Adds one use of a symbol that is in use.
    pub fn acquire_again(&mut self, extractor: u32, symbol: u32) {
        let Extractor { extraction, needles, .. } = &mut self.extractors[extractor as usize];
        match (extraction, needles) {
            (Extraction::Exists | Extraction::Missing, _) => {}
            (_, Some(needles)) => needles.acquire_again(symbol),
            _ => self.symbols.acquire_again(symbol),
        }
    }

    /// The symbol of a key's value, if some filter uses it, else [`NONE`].
    pub fn find_symbol(&self, extractor: u32, query: &SymbolQuery<'_>) -> u32 {
        match (query, &self.extractors[extractor as usize].needles) {
            (SymbolQuery::Needle(text), Some(needles)) => needles.find(text),
            (SymbolQuery::Atom(atom), _) => self.symbols.find(*atom),
            _ => PRESENT,
        }
    }

    /// Releases one use of a symbol.
    pub fn release_symbol(&mut self, extractor: u32, symbol: u32) {
        let Extractor { extraction, needles, .. } = &mut self.extractors[extractor as usize];
        match (extraction, needles) {
            (Extraction::Exists | Extraction::Missing, _) => {}
            (_, Some(needles)) => needles.release(symbol),
            _ => self.symbols.release(symbol),
        }
    }

    /// The largest number of extractors that were in use at once.
    pub fn extractors_max(&self) -> usize {
        self.extractors.len()
    }

    /// Reads an event. Cost: a lookup for each extractor and value, a pass over the text for each substring search.
    pub fn read(&self, event: &[Value], found: &mut [FoundSymbols]) {
        for event_path in &self.event_paths {
            if event_path.extractors.is_empty() {
                continue;
            }
            event_path.extractors.iter().for_each(|extractor| found[*extractor as usize].clear());
            if event_path.path.reach == Reach::One {
                // The common case, without a closure.
                let value = event.get(event_path.path.field).and_then(|value| one(value, &event_path.path.keys));
                if let Some(value) = value {
                    self.read_value(event_path, value, found);
                }
                for extractor in event_path.extractors.iter().filter(|_| event_path.tests_presence) {
                    match self.extractors[*extractor as usize].extraction {
                        Extraction::Exists if value.is_some_and(|value| !value.is_null()) => {
                            found[*extractor as usize].add(PRESENT)
                        }
                        Extraction::Missing if value.is_none_or(Value::is_null) => {
                            found[*extractor as usize].add(PRESENT)
                        }
                        _ => {}
                    }
                }
            } else {
                let mut any = false;
                event_path.path.any(event, &mut |value| {
                    any = true;
                    self.read_value(event_path, value, found);
                    false
                });
                for extractor in &event_path.extractors {
                    match self.extractors[*extractor as usize].extraction {
                        Extraction::Exists if any => found[*extractor as usize].add(PRESENT),
                        Extraction::Missing if !any => found[*extractor as usize].add(PRESENT),
                        _ => found[*extractor as usize].finish(),
                    }
                }
            }
        }
    }

    fn read_value(&self, event_path: &EventPath, value: &Value, found: &mut [FoundSymbols]) {
        let text = value.as_text();
        let folded = if event_path.folds { text.map(fold) } else { None };
        let cased = |case: Case| match case {
            Case::Sensitive => text,
            Case::Folded => folded.as_deref(),
        };
        for number in &event_path.extractors {
            let extractor = &self.extractors[*number as usize];
            let atom = match extractor.extraction {
                Extraction::Equal => Atom::of(value),
                Extraction::Folded => folded.as_deref().map(|text| Atom::Text(text.as_bytes())),
                Extraction::Prefix(bytes, case) => {
                    cased(case).and_then(|text| text.as_bytes().get(..usize::from(bytes))).map(Atom::Text)
                }
                Extraction::Suffix(bytes, case) => cased(case)
                    .and_then(|text| text.as_bytes().get(text.len().checked_sub(usize::from(bytes))?..))
                    .map(Atom::Text),
                Extraction::Network(is_v4, bits) => {
                    text.and_then(|text| Network::address_within(text, is_v4, bits)).map(Atom::Address)
                }
                Extraction::Needle(case) => {
                    if let (Some(text), Some(needles)) = (cased(case), &extractor.needles) {
                        let found = &mut found[*number as usize];
                        needles.search(text, &mut |needle| found.add(needle));
                        found.finish();
                    }
                    None
                }
                Extraction::Exists | Extraction::Missing => None,
            };
            if let Some(atom) = atom {
                let symbol = self.symbols.find(atom);
                if symbol != NONE {
                    found[*number as usize].add(symbol);
                }
            }
        }
    }

    /// The symbol of a single value, extracted or not.
    pub fn symbol_of(&self, value: &Value) -> u32 {
        Atom::of(value).map_or(NONE, |atom| self.symbols.find(atom))
    }

    /// Acquires the symbol of a value, which is reference-counted; [`NONE`] for a value without a symbol.
    pub fn acquire_value(&mut self, value: &Value) -> u32 {
        Atom::of(value).map_or(NONE, |atom| self.symbols.acquire(atom))
    }

    /// Releases one use of a value's symbol.
    pub fn release_value(&mut self, symbol: u32) {
        if symbol != NONE {
            self.symbols.release(symbol);
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let path = |path: &Path| path.keys.iter().map(|key| key.len() + 32).sum::<usize>();
        let event_paths: usize = self
            .event_paths
            .iter()
            .map(|event_path| 2 * path(&event_path.path) + event_path.extractors.capacity() * 4)
            .sum();
        let needles: usize = self
            .extractors
            .iter()
            .filter_map(|extractor| extractor.needles.as_ref())
            .map(|needles| size_of::<Needles>() + needles.memory_bytes())
            .sum();
        self.event_paths.capacity() * size_of::<EventPath>()
            + self.lanes_by_path.allocation_size()
            + self.extractors.capacity() * size_of::<Extractor>()
            + event_paths
            + needles
            + self.symbols.memory_bytes()
    }
}

fn place<T>(list: &mut Vec<T>, free: &mut Vec<u32>, new: T) -> u32 {
    match free.pop() {
        Some(at) => {
            list[at as usize] = new;
            at
        }
        None => {
            list.push(new);
            u32::try_from(list.len() - 1).expect("fewer than 2^32 paths are in use")
        }
    }
}
