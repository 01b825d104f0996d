//! What is read of an event: for each place and each way of asking, the symbols of what stands there.
//!
//! A reading turns a test into a lookup: a prefix of six bytes is the equality of the first six bytes, a network the
//! equality of the masked address, a text within a text the number of a needle that was found. What no filter asks for
//! has no symbol, so it is nothing from here on.

use hashbrown::HashMap;
use tocsin_model::value::Value;

use super::{
    needles::Needles,
    symbols::{Atom, NONE, Symbols},
};
use crate::filter::{
    Case, Path, Reach, one,
    text::{Network, fold},
};

/// A way of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ask {
    /// The value itself.
    Equal,
    /// Text, lower-cased.
    Folded,
    /// So many bytes at the start of text.
    Prefix(u8, Case),
    /// So many bytes at the end of text.
    Suffix(u8, Case),
    /// The network of so many bits of an address, of IPv4 or not.
    Network(bool, u8),
    /// The needles in text.
    Needle(Case),
    /// That something is there; one symbol.
    Exists,
    /// That nothing is there; one symbol.
    Missing,
}

/// What a filter asks a reading for.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted<'a> {
    /// What has a symbol.
    Atom(Atom<'a>),
    /// A needle.
    Needle(&'a str),
    /// That it is so, of `Exists` and `Missing`.
    So,
}

/// The symbol of `Exists` and `Missing`.
const SO: u32 = 1;

/// The places and readings in use, with their symbols.
#[derive(Debug, Default)]
pub struct Readings {
    lanes: Vec<Lane>,
    lanes_free: Vec<u32>,
    lanes_by_path: HashMap<Path, u32>,
    readings: Vec<Reading>,
    readings_free: Vec<u32>,
    symbols: Symbols,
}

/// A place of the event, and what is read there.
#[derive(Debug)]
struct Lane {
    path: Path,
    readings: Vec<u32>,
    uses: u32,
    /// Whether some reading lower-cases.
    folds: bool,
    /// Whether some reading asks whether something is there.
    tells: bool,
}

#[derive(Debug)]
struct Reading {
    lane: u32,
    ask: Ask,
    uses: u32,
    needles: Option<Box<Needles>>,
}

/// The symbols that a reading finds in one event.
#[derive(Debug, Default, Clone)]
pub struct Found {
    first: u32,
    count: u32,
    more: Vec<u32>,
}

impl Found {
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

impl Readings {
    /// The place of a path, kept until it is released as often as it was acquired.
    pub fn acquire_lane(&mut self, path: &Path) -> u32 {
        if let Some(lane) = self.lanes_by_path.get(path) {
            self.lanes[*lane as usize].uses += 1;
            return *lane;
        }
        let new = Lane { path: path.clone(), readings: Vec::new(), uses: 1, folds: false, tells: false };
        let lane = place(&mut self.lanes, &mut self.lanes_free, new);
        self.lanes_by_path.insert(path.clone(), lane);
        lane
    }

    /// Gives back one use of a place.
    pub fn release_lane(&mut self, lane: u32) {
        let found = &mut self.lanes[lane as usize];
        found.uses -= 1;
        if found.uses == 0 {
            self.lanes_by_path.remove(&found.path);
            found.path = Path::field(usize::MAX);
            self.lanes_free.push(lane);
        }
    }

    /// The place of a path that somebody asks for.
    pub fn find_lane(&self, path: &Path) -> Option<u32> {
        self.lanes_by_path.get(path).copied()
    }

    /// The path of a place.
    pub fn path(&self, lane: u32) -> &Path {
        &self.lanes[lane as usize].path
    }

    /// The reading of a path that somebody asks for.
    pub fn find(&self, path: &Path, ask: Ask) -> Option<u32> {
        let lane = &self.lanes[self.find_lane(path)? as usize];
        lane.readings.iter().copied().find(|reading| self.readings[*reading as usize].ask == ask)
    }

    /// The reading of a path, kept until it is released as often as it was acquired.
    pub fn acquire(&mut self, path: &Path, ask: Ask) -> u32 {
        if let Some(reading) = self.find(path, ask) {
            self.readings[reading as usize].uses += 1;
            return reading;
        }
        let lane = self.acquire_lane(path);
        let needles = matches!(ask, Ask::Needle(_)).then(Box::default);
        let new = Reading { lane, ask, uses: 1, needles };
        let reading = place(&mut self.readings, &mut self.readings_free, new);
        self.lanes[lane as usize].readings.push(reading);
        self.note_readings(lane);
        reading
    }

    /// Gives back one use of a reading.
    pub fn release(&mut self, reading: u32) {
        let found = &mut self.readings[reading as usize];
        found.uses -= 1;
        if found.uses > 0 {
            return;
        }
        found.needles = None;
        let lane = found.lane;
        self.readings_free.push(reading);
        self.lanes[lane as usize].readings.retain(|other| *other != reading);
        self.note_readings(lane);
        self.release_lane(lane);
    }

    fn note_readings(&mut self, lane: u32) {
        let folds = |reading: &u32| {
            matches!(
                self.readings[*reading as usize].ask,
                Ask::Folded | Ask::Prefix(_, Case::Folded) | Ask::Suffix(_, Case::Folded) | Ask::Needle(Case::Folded)
            )
        };
        let tells = |reading: &u32| matches!(self.readings[*reading as usize].ask, Ask::Exists | Ask::Missing);
        let readings = &self.lanes[lane as usize].readings;
        let (folds, tells) = (readings.iter().any(folds), readings.iter().any(tells));
        let lane = &mut self.lanes[lane as usize];
        (lane.folds, lane.tells) = (folds, tells);
    }

    /// The path that a reading reads.
    pub fn path_of(&self, reading: u32) -> &Path {
        self.path(self.readings[reading as usize].lane)
    }

    /// How a reading asks.
    pub fn ask_of(&self, reading: u32) -> Ask {
        self.readings[reading as usize].ask
    }

    /// Whether a reading finds texts within text, and so several at once.
    pub fn seeks_needles(&self, reading: u32) -> bool {
        matches!(self.readings[reading as usize].ask, Ask::Needle(_))
    }

    /// The symbol of what a filter asks a reading for, kept until it is released as often as it was acquired.
    pub fn acquire_symbol(&mut self, reading: u32, wanted: &Wanted<'_>) -> u32 {
        match (wanted, &mut self.readings[reading as usize].needles) {
            (Wanted::Needle(text), Some(needles)) => needles.acquire(text),
            (Wanted::Atom(atom), _) => self.symbols.acquire(*atom),
            _ => SO,
        }
    }

    /// Takes one more use of a symbol that is in use.
    pub fn acquire_again(&mut self, reading: u32, symbol: u32) {
        let Reading { ask, needles, .. } = &mut self.readings[reading as usize];
        match (ask, needles) {
            (Ask::Exists | Ask::Missing, _) => {}
            (_, Some(needles)) => needles.acquire_again(symbol),
            _ => self.symbols.acquire_again(symbol),
        }
    }

    /// The symbol of what some filter asks a reading for, else [`NONE`].
    pub fn find_symbol(&self, reading: u32, wanted: &Wanted<'_>) -> u32 {
        match (wanted, &self.readings[reading as usize].needles) {
            (Wanted::Needle(text), Some(needles)) => needles.find(text),
            (Wanted::Atom(atom), _) => self.symbols.find(*atom),
            _ => SO,
        }
    }

    /// Gives back one use of a symbol.
    pub fn release_symbol(&mut self, reading: u32, symbol: u32) {
        let Reading { ask, needles, .. } = &mut self.readings[reading as usize];
        match (ask, needles) {
            (Ask::Exists | Ask::Missing, _) => {}
            (_, Some(needles)) => needles.release(symbol),
            _ => self.symbols.release(symbol),
        }
    }

    /// How many readings were ever in use at once.
    pub fn readings_max(&self) -> usize {
        self.readings.len()
    }

    /// Reads an event. Cost: a lookup for each reading and value, a pass over the text for each that seeks needles.
    pub fn read(&self, event: &[Value], found: &mut [Found]) {
        for lane in &self.lanes {
            if lane.readings.is_empty() {
                continue;
            }
            lane.readings.iter().for_each(|reading| found[*reading as usize].clear());
            if lane.path.reach == Reach::One {
                // What most filters ask for, without a closure between.
                let value = event.get(lane.path.field).and_then(|value| one(value, &lane.path.keys));
                if let Some(value) = value {
                    self.read_value(lane, value, found);
                }
                for reading in lane.readings.iter().filter(|_| lane.tells) {
                    match self.readings[*reading as usize].ask {
                        Ask::Exists if value.is_some_and(|value| !value.is_null()) => found[*reading as usize].add(SO),
                        Ask::Missing if value.is_none_or(Value::is_null) => found[*reading as usize].add(SO),
                        _ => {}
                    }
                }
            } else {
                let mut any = false;
                lane.path.any(event, &mut |value| {
                    any = true;
                    self.read_value(lane, value, found);
                    false
                });
                for reading in &lane.readings {
                    match self.readings[*reading as usize].ask {
                        Ask::Exists if any => found[*reading as usize].add(SO),
                        Ask::Missing if !any => found[*reading as usize].add(SO),
                        _ => found[*reading as usize].finish(),
                    }
                }
            }
        }
    }

    fn read_value(&self, lane: &Lane, value: &Value, found: &mut [Found]) {
        let text = value.as_text();
        let folded = if lane.folds { text.map(fold) } else { None };
        let cased = |case: Case| match case {
            Case::Kept => text,
            Case::Folded => folded.as_deref(),
        };
        for number in &lane.readings {
            let reading = &self.readings[*number as usize];
            let atom = match reading.ask {
                Ask::Equal => Atom::of(value),
                Ask::Folded => folded.as_deref().map(|text| Atom::Text(text.as_bytes())),
                Ask::Prefix(bytes, case) => {
                    cased(case).and_then(|text| text.as_bytes().get(..usize::from(bytes))).map(Atom::Text)
                }
                Ask::Suffix(bytes, case) => cased(case)
                    .and_then(|text| text.as_bytes().get(text.len().checked_sub(usize::from(bytes))?..))
                    .map(Atom::Text),
                Ask::Network(is_v4, bits) => {
                    text.and_then(|text| Network::address_within(text, is_v4, bits)).map(Atom::Address)
                }
                Ask::Needle(case) => {
                    if let (Some(text), Some(needles)) = (cased(case), &reading.needles) {
                        let found = &mut found[*number as usize];
                        needles.search(text, &mut |needle| found.add(needle));
                        found.finish();
                    }
                    None
                }
                Ask::Exists | Ask::Missing => None,
            };
            if let Some(atom) = atom {
                let symbol = self.symbols.find(atom);
                if symbol != NONE {
                    found[*number as usize].add(symbol);
                }
            }
        }
    }

    /// The symbol of a single value, whether it was read or not.
    pub fn symbol_of(&self, value: &Value) -> u32 {
        Atom::of(value).map_or(NONE, |atom| self.symbols.find(atom))
    }

    /// The symbol of a value, kept until it is released as often as it was acquired; [`NONE`] for what has none.
    pub fn acquire_value(&mut self, value: &Value) -> u32 {
        Atom::of(value).map_or(NONE, |atom| self.symbols.acquire(atom))
    }

    /// Gives back one use of a value's symbol.
    pub fn release_value(&mut self, symbol: u32) {
        if symbol != NONE {
            self.symbols.release(symbol);
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let path = |path: &Path| path.keys.iter().map(|key| key.len() + 32).sum::<usize>();
        let lanes: usize = self.lanes.iter().map(|lane| 2 * path(&lane.path) + lane.readings.capacity() * 4).sum();
        let needles: usize = self
            .readings
            .iter()
            .filter_map(|reading| reading.needles.as_ref())
            .map(|needles| size_of::<Needles>() + needles.memory_bytes())
            .sum();
        self.lanes.capacity() * size_of::<Lane>()
            + self.lanes_by_path.allocation_size()
            + self.readings.capacity() * size_of::<Reading>()
            + lanes
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
            u32::try_from(list.len() - 1).expect("fewer than 2^32 places are asked about")
        }
    }
}
