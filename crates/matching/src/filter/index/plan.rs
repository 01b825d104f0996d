//! How a condition is filed: its conjunctions, the keys of each, and what the keys leave over.
//!
//! A plan depends on the condition alone, so that what was filed by it is found by it again.

use std::sync::Arc;

use super::{
    checks::Rest,
    literals,
    ranges::Ends,
    readings::{Ask, Wanted},
    symbols::Atom,
};
use crate::filter::{Case, Condition, How, Path, Reach, Test, normal::disjunction};

/// Most keys of a conjunction.
pub const KEYS_MAX: usize = 4;

/// Most entries that sets of values are multiplied to; beyond, the largest set is asked of each candidate.
const PRODUCT_MAX: usize = 8;

/// Most entries of a condition with more conjunctions than are taken apart.
const COVER_MAX: usize = 1024;

/// Most texts one of which a regular expression must contain.
const LITERALS_MAX: usize = 8;

/// The lengths by which prefixes and suffixes are filed, so that there are few readings.
const LENGTHS: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64];

/// How a condition is filed.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Where it is filed; nowhere, if it never holds.
    pub conjunctions: Vec<Conjunction<'a>>,
    /// Whether one event may meet it in several places.
    pub repeats: bool,
}

/// What must hold together.
#[derive(Debug)]
pub struct Conjunction<'a> {
    /// What finds it.
    pub keys: Vec<Key<'a>>,
    /// What is left over.
    pub rests: Vec<Rest<'a>>,
}

/// A test as a lookup.
#[derive(Debug, Clone)]
pub struct Key<'a> {
    /// Where it looks.
    pub path: &'a Path,
    /// How it asks.
    pub ask: Ask,
    /// For what; one of these must be found.
    pub names: Vec<Name<'a>>,
    /// The test it stands for.
    pub test: &'a Test,
    /// Whether the test must be asked all the same.
    pub is_rough: bool,
}

/// What a key looks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Name<'a> {
    /// What has a symbol.
    Atom(Atom<'a>),
    /// A text within a text.
    Needle(Arc<str>),
    /// That it is so.
    So,
}

impl Name<'_> {
    /// As readings take it.
    pub fn wanted(&self) -> Wanted<'_> {
        match self {
            Name::Atom(atom) => Wanted::Atom(*atom),
            Name::Needle(text) => Wanted::Needle(text),
            Name::So => Wanted::So,
        }
    }
}

impl Key<'_> {
    /// How much a key can be expected to find, most useful first: how it asks, then how much it asks for.
    pub fn rank(&self) -> (u8, usize) {
        // The longer, the better.
        let text = |bytes: usize| 256_usize.saturating_sub(bytes);
        match self.ask {
            Ask::Equal | Ask::Folded => (0, self.names.len()),
            Ask::Network(_, bits) => (1, 128 - usize::from(bits)),
            Ask::Prefix(bytes, _) | Ask::Suffix(bytes, _) => (2, text(usize::from(bytes))),
            Ask::Needle(_) => {
                let least = self.names.iter().map(|name| match name {
                    Name::Needle(text) => text.len(),
                    _ => 0,
                });
                (3, text(least.min().unwrap_or(0)))
            }
            Ask::Exists => (4, 0),
            Ask::Missing => (5, 0),
        }
    }

    /// Whether it only asks whether something is there.
    pub fn is_weak(&self) -> bool {
        matches!(self.ask, Ask::Exists | Ask::Missing)
    }

    /// Whether an event can have several of what it looks for.
    fn is_many(&self) -> bool {
        self.path.reach != Reach::One || matches!(self.ask, Ask::Needle(_))
    }
}

impl<'a> Plan<'a> {
    /// The plan of a condition in normal form. Where the filter is evaluated in any case, a condition with too many
    /// conjunctions need not be asked.
    pub fn of(condition: &'a Condition, is_evaluated: bool) -> Plan<'a> {
        let Some(conjunctions) = disjunction(condition) else {
            return Plan::of_tree(condition, is_evaluated);
        };
        let conjunctions: Vec<Conjunction<'a>> = conjunctions.into_iter().map(Conjunction::of).collect();
        let repeats = conjunctions.len() > 1 || conjunctions.iter().any(Conjunction::repeats);
        Plan { conjunctions, repeats }
    }

    /// Of what has too many conjunctions: keys of which one must be found, and the whole left over.
    fn of_tree(condition: &'a Condition, is_evaluated: bool) -> Plan<'a> {
        let rests = || if is_evaluated { Vec::new() } else { vec![Rest::Tree(condition)] };
        let conjunctions = match cover(condition) {
            Some(keys) => keys.into_iter().map(|key| Conjunction { keys: vec![key], rests: rests() }).collect(),
            None => vec![Conjunction { keys: Vec::new(), rests: rests() }],
        };
        Plan { conjunctions, repeats: true }
    }
}

impl<'a> Conjunction<'a> {
    fn of(tests: Vec<&'a Test>) -> Conjunction<'a> {
        let mut keys: Vec<Key<'a>> = Vec::new();
        let mut rests: Vec<&'a Test> = Vec::new();
        for test in &tests {
            match key(test) {
                // A second one of the same reading would need its own place in the signature.
                Some(key) if keys.iter().any(|other| other.path == key.path && other.ask == key.ask) => {
                    rests.push(test);
                }
                Some(key) => keys.push(key),
                None => rests.push(test),
            }
        }
        keys.sort_by_key(Key::rank);
        let has_strong = keys.iter().any(|key| !key.is_weak());
        let mut taken: Vec<Key<'a>> = Vec::with_capacity(keys.len().min(KEYS_MAX));
        for key in keys {
            let fits = match key.ask {
                // One is enough where nothing better is there.
                Ask::Exists | Ask::Missing => !has_strong && taken.is_empty(),
                Ask::Needle(_) => !taken.iter().any(|other| matches!(other.ask, Ask::Needle(_))),
                _ => true,
            };
            if fits && taken.len() < KEYS_MAX {
                taken.push(key);
            } else {
                rests.push(key.test);
            }
        }
        while taken.len() > 1 && taken.iter().map(|key| key.names.len()).product::<usize>() > PRODUCT_MAX {
            let widest = (0..taken.len()).max_by_key(|at| taken[*at].names.len()).unwrap_or(0);
            rests.push(taken.remove(widest).test);
        }
        rests.extend(taken.iter().filter(|key| key.is_rough).map(|key| key.test));
        // What another test implies is not asked again.
        let implied = |test: &&Test| {
            matches!(test.how, How::Exists)
                && tests.iter().any(|other| other.path == test.path && needs_value(&other.how, other.path.reach))
        };
        rests.retain(|test| !implied(test));
        Conjunction { keys: taken, rests: rests.into_iter().map(Rest::Test).collect() }
    }

    /// The same with the best key alone.
    pub fn narrowed(mut self) -> Conjunction<'a> {
        let others = self.keys.drain(1.min(self.keys.len())..);
        // What is rough is among the rests already.
        self.rests.extend(others.filter(|key| !key.is_rough).map(|key| Rest::Test(key.test)));
        self
    }

    /// The ranges by which it can be found.
    pub fn ranges(&self) -> impl Iterator<Item = (&'a Test, Ends)> + '_ {
        self.rests.iter().filter_map(|rest| match rest {
            Rest::Test(test) => match &test.how {
                How::Range(range) => Ends::of(range).map(|ends| (*test, ends)),
                _ => None,
            },
            Rest::Tree(_) => None,
        })
    }

    /// Whether an event can meet it in several places.
    fn repeats(&self) -> bool {
        let many_ranges = self.rests.iter().any(|rest| match rest {
            Rest::Test(test) => test.path.reach != Reach::One && matches!(test.how, How::Range(_)),
            Rest::Tree(_) => false,
        });
        many_ranges || self.keys.iter().any(|key| key.names.len() > 1 && key.is_many())
    }
}

/// Whether a test holds only for what is there and not null, or, beyond one value, for what is there.
fn needs_value(how: &How, reach: Reach) -> bool {
    match how {
        How::Exists | How::Missing => false,
        How::In(values) => reach != Reach::One || values.iter().all(|value| !value.is_null()),
        How::But(_) => reach != Reach::One,
        _ => true,
    }
}

/// The test as a key.
pub fn key(test: &Test) -> Option<Key<'_>> {
    let rough = |is_rough, ask, names| Some(Key { path: &test.path, ask, names, test, is_rough });
    let exact = |ask, names| rough(false, ask, names);
    match &test.how {
        How::In(values) => {
            let names: Option<Vec<Name<'_>>> = values.iter().map(|value| Atom::of(value).map(Name::Atom)).collect();
            exact(Ask::Equal, names?)
        }
        How::Folded(text) => exact(Ask::Folded, vec![Name::Atom(Atom::Text(text.as_bytes()))]),
        How::Prefix(text, case) => {
            let (ask, name, is_rough) = prefix(text, *case)?;
            rough(is_rough, ask, vec![name])
        }
        How::Suffix(text, case) => {
            let (ask, name, is_rough) = suffix(text, *case)?;
            rough(is_rough, ask, vec![name])
        }
        How::Contains(text, _) if text.is_empty() => None,
        How::Contains(text, case) => exact(Ask::Needle(*case), vec![Name::Needle(Arc::clone(text))]),
        How::Wildcard(wildcard) => {
            let [first, middle @ .., last] = wildcard.parts() else {
                let whole = wildcard.parts().first()?;
                return exact(Ask::Equal, vec![Name::Atom(Atom::Text(whole.as_bytes()))]);
            };
            let ends = first.len().max(last.len());
            match middle.iter().max_by_key(|part| part.len()) {
                // A needle costs a pass over the text, so the ends are preferred unless they say little.
                Some(inner) if inner.len() > ends && ends < 3 => {
                    rough(true, Ask::Needle(Case::Kept), vec![Name::Needle(Arc::clone(inner))])
                }
                inner => {
                    let by_first = first.len() >= last.len();
                    let (ask, name, is_rough) =
                        if by_first { prefix(first, Case::Kept)? } else { suffix(last, Case::Kept)? };
                    let is_all = inner.is_none() && first.len().min(last.len()) == 0;
                    rough(is_rough || !is_all, ask, vec![name])
                }
            }
        }
        How::Matches(regex) => {
            let hir = regex_syntax::parse(regex.as_str()).ok()?;
            let (case, texts) = literals::required(&hir, LITERALS_MAX)?;
            rough(true, Ask::Needle(case), texts.into_iter().map(|text| Name::Needle(text.into())).collect())
        }
        How::Cidr(network) => {
            let (is_v4, bits, address) = network.key();
            exact(Ask::Network(is_v4, bits), vec![Name::Atom(Atom::Address(address))])
        }
        How::Exists => exact(Ask::Exists, vec![Name::So]),
        How::Missing => exact(Ask::Missing, vec![Name::So]),
        How::Range(_) | How::But(_) => None,
    }
}

fn length(text: &str) -> Option<u8> {
    LENGTHS.iter().rev().copied().find(|length| usize::from(*length) <= text.len())
}

fn prefix(text: &str, case: Case) -> Option<(Ask, Name<'_>, bool)> {
    let length = length(text)?;
    let start = &text.as_bytes()[..usize::from(length)];
    Some((Ask::Prefix(length, case), Name::Atom(Atom::Text(start)), start.len() < text.len()))
}

fn suffix(text: &str, case: Case) -> Option<(Ask, Name<'_>, bool)> {
    let length = length(text)?;
    let end = &text.as_bytes()[text.len() - usize::from(length)..];
    Some((Ask::Suffix(length, case), Name::Atom(Atom::Text(end)), end.len() < text.len()))
}

/// Keys with one name each, one of which must be found if the condition holds.
fn cover(condition: &Condition) -> Option<Vec<Key<'_>>> {
    let keys = match condition {
        Condition::Test(test) => {
            let key = key(test).filter(|key| !key.is_weak())?;
            key.names.iter().map(|name| Key { names: vec![name.clone()], ..key.clone() }).collect()
        }
        Condition::All(parts) => {
            let worst = |keys: &Vec<Key<'_>>| keys.iter().map(|key| key.rank().0).max();
            parts.iter().filter_map(cover).min_by_key(|keys| (keys.len(), worst(keys)))?
        }
        Condition::Any(parts) => {
            let mut keys: Vec<Key<'_>> = Vec::new();
            for part in parts {
                for key in cover(part)? {
                    let is_same =
                        |other: &Key<'_>| other.path == key.path && other.ask == key.ask && other.names == key.names;
                    if !keys.iter().any(is_same) {
                        keys.push(key);
                    }
                }
                if keys.len() > COVER_MAX {
                    return None;
                }
            }
            keys
        }
        Condition::Always | Condition::Unknown => return None,
    };
    Some(keys)
}
