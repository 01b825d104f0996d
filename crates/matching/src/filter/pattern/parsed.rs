//! A parsed event pattern.

use crate::filter::condition::{Path, ValueTest};

/// A parsed pattern.
#[derive(Debug, PartialEq)]
pub(super) enum Pattern {
    /// All of them match.
    All(Vec<Pattern>),
    /// At least one matches.
    Any(Vec<Pattern>),
    /// One leaf passes all of these tests.
    Leaf(Path, Vec<ValueTest>),
    /// There is a leaf.
    Exists(Path),
    /// There is no leaf.
    Missing(Path),
}

/// The number of leading keys that two paths of one field have in common.
pub(super) fn shared(one: &Path, other: &Path) -> usize {
    one.keys.iter().zip(&other.keys).take_while(|(one, other)| one == other).count()
}
