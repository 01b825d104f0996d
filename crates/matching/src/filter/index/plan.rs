//! The index plan of a condition: its conjunctions, the keys of each, and its residual tests.
//!
//! A plan depends on the condition only, so an entry can be found again for removal.

use std::sync::Arc;

use crate::filter::{
    condition::{Case, Condition, Path, Reach, Test, ValueTest},
    index::{
        extractors::{Extraction, SymbolQuery},
        ranges::RangeKeys,
        symbols::Atom,
    },
    literals,
    normal::disjunction,
};

/// Most keys of a conjunction.
pub const KEYS_MAX: usize = 4;
/// Most entries of a conjunction with several sets of values; beyond, the largest set becomes a residual test.
const PRODUCT_MAX: usize = 8;
/// Most entries of a condition with too many conjunctions.
const COVER_MAX: usize = 1024;
/// Most alternative literals of a regular expression.
const LITERALS_MAX: usize = 8;
/// The lengths by which prefixes and suffixes are indexed; few, so that there are few extractors.
const LENGTHS: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64];

/// The index plan of a condition.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Conjunctions; none if it never holds.
    pub conjunctions: Vec<Conjunction<'a>>,
    /// Whether one event can find it repeatedly.
    pub repeats: bool,
}

/// A conjunction of tests.
#[derive(Debug)]
pub struct Conjunction<'a> {
    /// The tests used as keys.
    pub keys: Vec<Key<'a>>,
    /// The residual tests.
    pub rests: Vec<ResidualCheck<'a>>,
}

/// A test as a lookup.
#[derive(Debug, Clone)]
pub struct Key<'a> {
    /// The path it reads.
    pub path: &'a Path,
    /// The extraction from the value.
    pub extraction: Extraction,
    /// The values; one of these must be found.
    pub names: Vec<Name<'a>>,
    /// The test it replaces.
    pub test: &'a Test,
    /// Whether the key is only a necessary condition, so that the test stays in the residual.
    pub is_approximate: bool,
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Name<'a> {
    /// A value with a symbol.
    Atom(Atom<'a>),
    /// A substring.
    Needle(Arc<str>),
    /// The fact that a value is present or missing.
    Presence,
}

impl Name<'_> {
    /// As an extractor query.
    pub fn query(&self) -> SymbolQuery<'_> {
        match self {
            Name::Atom(atom) => SymbolQuery::Atom(*atom),
            Name::Needle(text) => SymbolQuery::Needle(text),
            Name::Presence => SymbolQuery::Presence,
        }
    }
}

impl Key<'_> {
    /// The expected selectivity of a key, best first: by the kind of extraction, then by the size of the value.
    pub fn rank(&self) -> (u8, usize) {
        // A longer text is more selective.
        let text = |bytes: usize| 256_usize.saturating_sub(bytes);
        match self.extraction {
            Extraction::Equal | Extraction::Folded => (0, self.names.len()),
            Extraction::Network(_, bits) => (1, 128 - usize::from(bits)),
            Extraction::Prefix(bytes, _) | Extraction::Suffix(bytes, _) => (2, text(usize::from(bytes))),
            Extraction::Needle(_) => {
                let least = self.names.iter().map(|name| match name {
                    Name::Needle(text) => text.len(),
                    _ => 0,
                });
                (3, text(least.min().unwrap_or(0)))
            }
            Extraction::Exists => (4, 0),
            Extraction::Missing => (5, 0),
        }
    }

    /// Whether it only tests presence.
    pub fn is_weak(&self) -> bool {
        matches!(self.extraction, Extraction::Exists | Extraction::Missing)
    }

    /// Whether an event can have several matching values.
    fn is_many(&self) -> bool {
        self.path.reach != Reach::One || matches!(self.extraction, Extraction::Needle(_))
    }
}

impl<'a> Plan<'a> {
    /// The plan of a condition in normal form. If the filter is evaluated in any case, a condition with too many
    /// conjunctions need not be checked.
    pub fn of(condition: &'a Condition, is_evaluated: bool) -> Plan<'a> {
        let Some(conjunctions) = disjunction(condition) else {
            return Plan::of_tree(condition, is_evaluated);
        };
        let conjunctions: Vec<Conjunction<'a>> = conjunctions.into_iter().map(Conjunction::of).collect();
        let repeats = conjunctions.len() > 1 || conjunctions.iter().any(Conjunction::repeats);
        Plan { conjunctions, repeats }
    }

    /// The plan for too many conjunctions: keys of which one must be found, and the whole condition as residual.
    fn of_tree(condition: &'a Condition, is_evaluated: bool) -> Plan<'a> {
        let rests = || if is_evaluated { Vec::new() } else { vec![ResidualCheck::Tree(condition)] };
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
                // A second key of the same extractor would need its own position in the signature.
                Some(key) if keys.iter().any(|other| other.path == key.path && other.extraction == key.extraction) => {
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
            let fits = match key.extraction {
                // One presence key is enough, if there is nothing better.
                Extraction::Exists | Extraction::Missing => !has_strong && taken.is_empty(),
                Extraction::Needle(_) => !taken.iter().any(|other| matches!(other.extraction, Extraction::Needle(_))),
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
        rests.extend(taken.iter().filter(|key| key.is_approximate).map(|key| key.test));
        // A test that is implied by another one is dropped.
        let implied = |test: &&Test| {
            matches!(test.value_test, ValueTest::Exists)
                && tests.iter().any(|other| other.path == test.path && needs_value(&other.value_test, other.path.reach))
        };
        rests.retain(|test| !implied(test));
        Conjunction { keys: taken, rests: rests.into_iter().map(ResidualCheck::Test).collect() }
    }

    /// The same with the best key only.
    pub fn narrowed(mut self) -> Conjunction<'a> {
        let others = self.keys.drain(1.min(self.keys.len())..);
        // Approximate keys are among the residual tests already.
        self.rests.extend(others.filter(|key| !key.is_approximate).map(|key| ResidualCheck::Test(key.test)));
        self
    }

    /// The ranges that can be indexed.
    pub fn ranges(&self) -> impl Iterator<Item = (&'a Test, RangeKeys)> + '_ {
        self.rests.iter().filter_map(|rest| match rest {
            ResidualCheck::Test(test) => match &test.value_test {
                ValueTest::Range(range) => RangeKeys::of(range).map(|ends| (*test, ends)),
                _ => None,
            },
            ResidualCheck::Tree(_) => None,
        })
    }

    /// Whether an event can find it repeatedly.
    fn repeats(&self) -> bool {
        let many_ranges = self.rests.iter().any(|rest| match rest {
            ResidualCheck::Test(test) => {
                test.path.reach != Reach::One && matches!(test.value_test, ValueTest::Range(_))
            }
            ResidualCheck::Tree(_) => false,
        });
        many_ranges || self.keys.iter().any(|key| key.names.len() > 1 && key.is_many())
    }
}

/// Whether a test holds only for a value that is present and not null, or, beyond one value, that is present.
fn needs_value(value_test: &ValueTest, reach: Reach) -> bool {
    match value_test {
        ValueTest::Exists | ValueTest::Missing => false,
        ValueTest::In(values) => reach != Reach::One || values.iter().all(|value| !value.is_null()),
        ValueTest::But(_) => reach != Reach::One,
        _ => true,
    }
}

/// The test as a key.
pub fn key(test: &Test) -> Option<Key<'_>> {
    let approximate =
        |is_approximate, extraction, names| Some(Key { path: &test.path, extraction, names, test, is_approximate });
    let exact = |extraction, names| approximate(false, extraction, names);
    match &test.value_test {
        ValueTest::In(values) => {
            let names: Option<Vec<Name<'_>>> = values.iter().map(|value| Atom::of(value).map(Name::Atom)).collect();
            exact(Extraction::Equal, names?)
        }
        ValueTest::Folded(text) => exact(Extraction::Folded, vec![Name::Atom(Atom::Text(text.as_bytes()))]),
        ValueTest::Prefix(text, case) => {
            let (extraction, name, is_approximate) = prefix(text, *case)?;
            approximate(is_approximate, extraction, vec![name])
        }
        ValueTest::Suffix(text, case) => {
            let (extraction, name, is_approximate) = suffix(text, *case)?;
            approximate(is_approximate, extraction, vec![name])
        }
        ValueTest::Contains(text, _) if text.is_empty() => None,
        ValueTest::Contains(text, case) => exact(Extraction::Needle(*case), vec![Name::Needle(Arc::clone(text))]),
        ValueTest::Wildcard(wildcard) => {
            let [first, middle @ .., last] = wildcard.parts() else {
                let whole = wildcard.parts().first()?;
                return exact(Extraction::Equal, vec![Name::Atom(Atom::Text(whole.as_bytes()))]);
            };
            let ends = first.len().max(last.len());
            match middle.iter().max_by_key(|part| part.len()) {
                // A substring search costs a pass over the text, so the ends are preferred unless they are short.
                Some(inner) if inner.len() > ends && ends < 3 => {
                    approximate(true, Extraction::Needle(Case::Sensitive), vec![Name::Needle(Arc::clone(inner))])
                }
                inner => {
                    let by_first = first.len() >= last.len();
                    let (extraction, name, is_approximate) =
                        if by_first { prefix(first, Case::Sensitive)? } else { suffix(last, Case::Sensitive)? };
                    let is_all = inner.is_none() && first.len().min(last.len()) == 0;
                    approximate(is_approximate || !is_all, extraction, vec![name])
                }
            }
        }
        ValueTest::Matches(regex) => {
            let hir = regex_syntax::parse(regex.as_str()).ok()?;
            let (case, texts) = literals::required(&hir, LITERALS_MAX)?;
            approximate(
                true,
                Extraction::Needle(case),
                texts.into_iter().map(|text| Name::Needle(text.into())).collect(),
            )
        }
        ValueTest::Cidr(network) => {
            let (is_v4, bits, address) = network.key();
            exact(Extraction::Network(is_v4, bits), vec![Name::Atom(Atom::Address(address))])
        }
        ValueTest::Exists => exact(Extraction::Exists, vec![Name::Presence]),
        ValueTest::Missing => exact(Extraction::Missing, vec![Name::Presence]),
        ValueTest::Range(_) | ValueTest::But(_) => None,
    }
}

fn length(text: &str) -> Option<u8> {
    LENGTHS.iter().rev().copied().find(|length| usize::from(*length) <= text.len())
}

fn prefix(text: &str, case: Case) -> Option<(Extraction, Name<'_>, bool)> {
    let length = length(text)?;
    let start = &text.as_bytes()[..usize::from(length)];
    Some((Extraction::Prefix(length, case), Name::Atom(Atom::Text(start)), start.len() < text.len()))
}

fn suffix(text: &str, case: Case) -> Option<(Extraction, Name<'_>, bool)> {
    let length = length(text)?;
    let end = &text.as_bytes()[text.len() - usize::from(length)..];
    Some((Extraction::Suffix(length, case), Name::Atom(Atom::Text(end)), end.len() < text.len()))
}

/// Keys with one value each, one of which must be found if the condition holds.
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
                    let is_same = |other: &Key<'_>| {
                        other.path == key.path && other.extraction == key.extraction && other.names == key.names
                    };
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

/// A residual condition of a conjunction.
#[derive(Debug, Clone, Copy)]
pub enum ResidualCheck<'a> {
    /// One of its tests.
    Test(&'a Test),
    /// The whole condition.
    Tree(&'a Condition),
}
