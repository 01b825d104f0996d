//! Codes: random texts that a regular expression matches, and their comparison in constant time.

use regex_syntax::{
    ParserBuilder,
    hir::{Capture, Class, Hir, HirKind, Literal},
};
use subtle::ConstantTimeEq;

/// Most bytes of a regular expression for codes.
pub const PATTERN_BYTES_MAX: usize = 1_000;
/// Most characters of a code.
pub const CODE_CHARS_MAX: usize = 1_000;
/// Most repetitions of an unbounded quantifier beyond its minimum.
const UNBOUNDED_MAX: u32 = 100;
/// Most steps of a generation: parts without text count too.
const STEPS_MAX: usize = 20_000;
/// Most levels of a regular expression.
const NESTING_MAX: u32 = 50;

/// A regular expression that yields no code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// It is not a regular expression that can be generated, for example because it looks ahead.
    #[error("the regular expression of codes is invalid: {0}")]
    Pattern(String),
    /// It is longer than a limit, or its codes would be.
    #[error("the regular expression of codes is too long: at most {PATTERN_BYTES_MAX} bytes")]
    TooLong,
}

/// A random text that the whole regular expression matches: character classes, ranges, quantifiers, groups and
/// alternatives. `random` returns the next random number.
pub fn generate(pattern: &str, random: &dyn Fn() -> u64) -> Result<String, CodeError> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(CodeError::TooLong);
    }
    // As in JavaScript, `\d` has ten digits and a point stands for a character that can be printed.
    let mut builder = ParserBuilder::new();
    builder.unicode(false).utf8(false).nest_limit(NESTING_MAX);
    let hir = match builder.build().parse(pattern) {
        Ok(hir) => hir,
        // Letters outside of ASCII need the Unicode mode.
        Err(error) if pattern.is_ascii() => return Err(CodeError::Pattern(error.to_string())),
        Err(_) => {
            let parsed = ParserBuilder::new().nest_limit(NESTING_MAX).build().parse(pattern);
            parsed.map_err(|error| CodeError::Pattern(error.to_string()))?
        }
    };
    let mut generator = Generator { random, code: Vec::new(), chars: 0, steps: 0 };
    generator.append(&hir)?;
    String::from_utf8(generator.code).map_err(|_| CodeError::Pattern("its codes are no texts".to_owned()))
}

/// A code under construction, with its bounds.
struct Generator<'g> {
    random: &'g dyn Fn() -> u64,
    code: Vec<u8>,
    chars: usize,
    steps: usize,
}

impl Generator<'_> {
    /// Adds a random text of an expression.
    fn append(&mut self, hir: &Hir) -> Result<(), CodeError> {
        self.steps += 1;
        if self.steps > STEPS_MAX || self.chars > CODE_CHARS_MAX {
            return Err(CodeError::TooLong);
        }
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => Ok(()),
            HirKind::Literal(Literal(bytes)) => {
                self.chars += bytes.len();
                self.code.extend_from_slice(bytes);
                Ok(())
            }
            HirKind::Class(class) => {
                self.chars += 1;
                append_of_class(class, self.random, &mut self.code)
            }
            HirKind::Repetition(repetition) => {
                let max = repetition.max.unwrap_or_else(|| repetition.min.saturating_add(UNBOUNDED_MAX));
                let span = u64::from(max.saturating_sub(repetition.min)) + 1;
                let count = u64::from(repetition.min) + below(span, self.random);
                (0..count).try_for_each(|_| self.append(&repetition.sub))
            }
            HirKind::Capture(Capture { sub, .. }) => self.append(sub),
            HirKind::Concat(parts) => parts.iter().try_for_each(|part| self.append(part)),
            HirKind::Alternation(parts) => {
                let chosen = below(parts.len() as u64, self.random) as usize;
                self.append(&parts[chosen])
            }
        }
    }
}

/// Adds a character of a class. Of large classes, such as negated ones, those that can be printed are preferred.
fn append_of_class(class: &Class, random: &dyn Fn() -> u64, code: &mut Vec<u8>) -> Result<(), CodeError> {
    let ranges: Vec<(u32, u32)> = match class {
        Class::Unicode(class) => class.iter().map(|range| (u32::from(range.start()), u32::from(range.end()))).collect(),
        Class::Bytes(class) => class.iter().map(|range| (range.start().into(), range.end().into())).collect(),
    };
    let printable: Vec<(u32, u32)> = ranges
        .iter()
        .map(|(start, end)| ((*start).max(0x20), (*end).min(0x7e)))
        .filter(|(start, end)| start <= end)
        .collect();
    let ranges = if printable.is_empty() { ranges } else { printable };
    let total: u64 = ranges.iter().map(|(start, end)| u64::from(end - start) + 1).sum();
    if total == 0 {
        return Err(CodeError::Pattern("a class has no character".to_owned()));
    }
    let mut chosen = below(total, random) as u32;
    for (start, end) in ranges {
        let size = end - start + 1;
        if chosen < size {
            let c = char::from_u32(start + chosen).unwrap_or('\u{fffd}');
            code.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            return Ok(());
        }
        chosen -= size;
    }
    Ok(())
}

/// A random number below a limit that is at least 1. The bias is below 2^-40.
fn below(limit: u64, random: &dyn Fn() -> u64) -> u64 {
    ((u128::from(random()) * u128::from(limit)) >> 64) as u64
}

/// Whether two codes are equal. The time does not depend on the place of the first difference.
pub fn equals(stored: &str, given: &str) -> bool {
    stored.as_bytes().ct_eq(given.as_bytes()).into()
}

#[cfg(test)]
mod tests;
