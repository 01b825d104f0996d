//! Relaxes conditions that are too expensive for the index.
//!
//! The index runs every test of a condition without counting its cost, since most are comparisons. Searching a long
//! text hundreds of times is expensive. Such tests are left to the filter's evaluator, which counts its steps and
//! stops; the index keeps the tests that find the filter.

use super::normal::normalise;
use crate::{
    filter::{
        condition::{Case, Condition, Test, ValueTest},
        literals,
    },
    text::Wildcard,
};

/// Most passes over a text in one condition. The unit is a search for one text.
pub const PASSES_MAX: usize = 64;
/// The cost of lower-casing a text, in passes.
const FOLDING: usize = 16;
/// Most alternative literals extracted from a regular expression.
const LITERALS_MAX: usize = 8;

/// A relaxed condition in normal form, implied by the given one and within the budget; `None` if the given one is
/// within the budget.
pub fn within_budget(condition: &Condition) -> Option<Condition> {
    let (mut passes, mut heavy) = (0, false);
    condition.visit(&mut |test| {
        passes += passes_of(&test.value_test);
        heavy |= is_heavy(&test.value_test);
    });
    (heavy || passes > PASSES_MAX).then(|| normalise(lighter_condition(condition)))
}

/// A regular expression that costs more per character than reading it.
fn is_heavy(value_test: &ValueTest) -> bool {
    match value_test {
        ValueTest::Matches(pattern) => !pattern.is_light(),
        ValueTest::But(inner) => is_heavy(inner),
        _ => false,
    }
}

fn passes_of(value_test: &ValueTest) -> usize {
    match value_test {
        ValueTest::Prefix(_, Case::Folded)
        | ValueTest::Suffix(_, Case::Folded)
        | ValueTest::Contains(_, Case::Folded)
        | ValueTest::Folded(_) => FOLDING,
        ValueTest::Contains(_, Case::Sensitive) | ValueTest::Wildcard(_) => 1,
        ValueTest::Matches(_) => 4,
        ValueTest::But(inner) => passes_of(inner),
        _ => 0,
    }
}

fn lighter_condition(condition: &Condition) -> Condition {
    match condition {
        Condition::Any(parts) => Condition::Any(parts.iter().map(lighter_condition).collect()),
        Condition::All(parts) => {
            // One substring is enough to find the filter, since all are searched in one pass; the longest is the
            // rarest.
            let (mut kept, mut longest) = (Vec::new(), None);
            for part in parts {
                match lighter_condition(part) {
                    Condition::Test(test) if passes_of(&test.value_test) > 0 => {
                        let length = length(&test.value_test);
                        if longest.as_ref().is_none_or(|(other, _)| length > *other) {
                            longest = Some((length, test));
                        }
                    }
                    part => kept.push(part),
                }
            }
            kept.extend(longest.map(|(_, test)| Condition::Test(test)));
            Condition::All(kept)
        }
        Condition::Test(Test { path, value_test }) => {
            let test = |value_test: ValueTest| Condition::test(path.clone(), value_test);
            match value_test {
                ValueTest::Wildcard(wildcard) => Condition::All(needed(wildcard).into_iter().map(test).collect()),
                ValueTest::Matches(pattern) => {
                    let literals = regex_syntax::parse(pattern.as_str()).ok();
                    match literals.and_then(|hir| literals::required(&hir, LITERALS_MAX)) {
                        Some((case, texts)) => {
                            Condition::Any(texts.iter().map(|text| test(ValueTest::contains(text, case))).collect())
                        }
                        None => Condition::Unknown,
                    }
                }
                ValueTest::But(inner) if passes_of(inner) > 0 => Condition::Unknown,
                value_test => test(value_test.clone()),
            }
        }
        Condition::Always => Condition::Always,
        Condition::Unknown => Condition::Unknown,
    }
}

/// Necessary conditions of a wildcard match: its ends, and the longest part between.
fn needed(wildcard: &Wildcard) -> Vec<ValueTest> {
    let [first, middle @ .., last] = wildcard.parts() else {
        return wildcard.parts().iter().map(|whole| ValueTest::equals(&**whole)).collect();
    };
    let longest = middle.iter().max_by_key(|part| part.len()).filter(|part| !part.is_empty());
    let mut needed: Vec<ValueTest> =
        longest.map(|part| ValueTest::contains(part, Case::Sensitive)).into_iter().collect();
    if !first.is_empty() {
        needed.push(ValueTest::prefix(first, Case::Sensitive));
    }
    if !last.is_empty() {
        needed.push(ValueTest::suffix(last, Case::Sensitive));
    }
    needed
}

fn length(value_test: &ValueTest) -> usize {
    match value_test {
        ValueTest::Prefix(text, _)
        | ValueTest::Suffix(text, _)
        | ValueTest::Contains(text, _)
        | ValueTest::Folded(text) => text.len(),
        _ => 0,
    }
}
