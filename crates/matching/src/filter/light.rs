//! Conditions that would cost an event too much: what the index still asks of them.
//!
//! Every test of a condition is asked without counting what it costs, since most are comparisons. Looking through a long
//! text hundreds of times is none. What does so is left to the filter's evaluator, which counts its steps and stops; the
//! index keeps what finds the filter.

use super::{Case, Condition, How, Test, index::literals, normal::normalise, text::Wildcard};

/// Most passes over a text that a condition may ask for, in passes that look for one text.
pub const PASSES_MAX: usize = 64;

/// What lower-casing a text costs, in passes.
const FOLDING: usize = 16;

/// Texts of which a regular expression needs one, at most.
const LITERALS_MAX: usize = 8;

/// A condition in normal form that must hold where the given one does and asks for few passes, if that asks for too many.
pub fn lightened(condition: &Condition) -> Option<Condition> {
    let (mut passes, mut heavy) = (0, false);
    condition.visit(&mut |test| {
        passes += passes_of(&test.how);
        heavy |= is_heavy(&test.how);
    });
    (heavy || passes > PASSES_MAX).then(|| normalise(lighter(condition)))
}

/// A regular expression that costs more for each letter than reading it.
fn is_heavy(how: &How) -> bool {
    match how {
        How::Matches(pattern) => !pattern.is_light(),
        How::But(inner) => is_heavy(inner),
        _ => false,
    }
}

fn passes_of(how: &How) -> usize {
    match how {
        How::Prefix(_, Case::Folded)
        | How::Suffix(_, Case::Folded)
        | How::Contains(_, Case::Folded)
        | How::Folded(_) => FOLDING,
        How::Contains(_, Case::Kept) | How::Wildcard(_) => 1,
        How::Matches(_) => 4,
        How::But(inner) => passes_of(inner),
        _ => 0,
    }
}

fn lighter(condition: &Condition) -> Condition {
    match condition {
        Condition::Any(parts) => Condition::Any(parts.iter().map(lighter).collect()),
        Condition::All(parts) => {
            // One of them finds the filter, for all such are sought in one pass; the longest is the rarest.
            let (mut kept, mut longest) = (Vec::new(), None);
            for part in parts {
                match lighter(part) {
                    Condition::Test(test) if passes_of(&test.how) > 0 => {
                        let length = length(&test.how);
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
        Condition::Test(Test { path, how }) => {
            let test = |how: How| Condition::test(path.clone(), how);
            match how {
                How::Wildcard(wildcard) => Condition::All(needed(wildcard).into_iter().map(test).collect()),
                How::Matches(pattern) => {
                    let literals = regex_syntax::parse(pattern.as_str()).ok();
                    match literals.and_then(|hir| literals::required(&hir, LITERALS_MAX)) {
                        Some((case, texts)) => {
                            Condition::Any(texts.iter().map(|text| test(How::contains(text, case))).collect())
                        }
                        None => Condition::Unknown,
                    }
                }
                How::But(inner) if passes_of(inner) > 0 => Condition::Unknown,
                how => test(how.clone()),
            }
        }
        Condition::Always => Condition::Always,
        Condition::Unknown => Condition::Unknown,
    }
}

/// What a text that fits a pattern has: its ends, and the longest part between.
fn needed(wildcard: &Wildcard) -> Vec<How> {
    let [first, middle @ .., last] = wildcard.parts() else {
        return wildcard.parts().iter().map(|whole| How::equals(&**whole)).collect();
    };
    let longest = middle.iter().max_by_key(|part| part.len()).filter(|part| !part.is_empty());
    let mut needed: Vec<How> = longest.map(|part| How::contains(part, Case::Kept)).into_iter().collect();
    if !first.is_empty() {
        needed.push(How::prefix(first, Case::Kept));
    }
    if !last.is_empty() {
        needed.push(How::suffix(last, Case::Kept));
    }
    needed
}

fn length(how: &How) -> usize {
    match how {
        How::Prefix(text, _) | How::Suffix(text, _) | How::Contains(text, _) | How::Folded(text) => text.len(),
        _ => 0,
    }
}
