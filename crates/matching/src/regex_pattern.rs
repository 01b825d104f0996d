//! Regular expressions with a cost bound.
//!
//! Matching takes time linear in the text, but the factor can be as large as the expression: an automaton with
//! thousands of states may be in all of them at once. So an expression has a weight, and each match is charged for both
//! weight and text length.

use std::ops::ControlFlow;

use regex::{Regex, RegexBuilder};
use regex_syntax::{
    ast::{self, Ast, ClassSetItem},
    hir::{Class, ClassUnicode, Hir, HirKind},
};

/// Deepest nesting.
const NESTING_MAX: u32 = 32;

/// Most bytes of a compiled expression, and of its cache at run time.
const COMPILED_BYTES_MAX: usize = 256 * 1024;

/// Most regular expressions in one expression.
pub const PATTERNS_MAX: u32 = 64;

/// Most classes such as `\w` or `\pL` in them. Each stands for hundreds of ranges, which case folding multiplies.
pub const CLASSES_MAX: u32 = 32;

/// Cost of a Unicode class, in ASCII classes.
const ASCII_CLASSES: u32 = 8;

/// Most states of a light expression. Above this, the number of states counts in the cost of a match. An automaton with
/// so few states fits into the DFA cache.
const LIGHT_STATES_MAX: usize = 8;

/// Literal letters are found by substring search, unless there are more than this.
const LETTERS_MAX: usize = 256;
const LETTERS_PER_STATE: usize = 16;

/// A compiled regular expression; two with the same text are equal.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    states: usize,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.as_str() == other.as_str()
    }
}

/// Remaining budget for the regular expressions of one expression.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    patterns: u32,
    classes: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { patterns: PATTERNS_MAX, classes: CLASSES_MAX * ASCII_CLASSES }
    }
}

impl Budget {
    fn take(&mut self, classes: u32) -> Result<(), String> {
        self.patterns = self.patterns.checked_sub(1).ok_or_else(|| {
            format!("at most {PATTERNS_MAX} regular expressions fit into one expression; join some with `|`")
        })?;
        let left = self.classes.checked_sub(classes);
        // Once the budget is exceeded, further patterns are not compiled either.
        self.classes = left.unwrap_or(0);
        left.map(drop).ok_or_else(|| {
            format!(r"at most {CLASSES_MAX} classes such as `\w` fit into the regular expressions of one expression")
        })
    }
}

impl Pattern {
    /// Compiles one. Takes some milliseconds at worst: nesting, size and the number of classes are bounded.
    ///
    /// # Errors
    /// The reason, for the author of the regular expression.
    pub fn read(text: &str) -> Result<Pattern, String> {
        Pattern::read_within(text, &mut Budget::default())
    }

    /// Compiles one of several that share a budget.
    ///
    /// # Errors
    /// As [`Pattern::read`], or the shared budget is exceeded.
    pub fn read_within(text: &str, budget: &mut Budget) -> Result<Pattern, String> {
        // A syntax error is reported by the build below.
        if let Ok(syntax) = ast::parse::ParserBuilder::new().nest_limit(NESTING_MAX).build().parse(text) {
            budget.take(count_classes(&syntax))?;
        }
        let built = RegexBuilder::new(text)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(COMPILED_BYTES_MAX)
            .nest_limit(NESTING_MAX)
            .build();
        let regex = built.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "the regular expression is too large".to_owned(),
            error => {
                let message = error.to_string();
                let last = message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                format!("the regular expression is wrong: {last}")
            }
        })?;
        let states = regex_syntax::parse(text).map_or(usize::MAX, |hir| count_states(&hir));
        Ok(Pattern { regex, states })
    }

    /// The source text.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// Whether it is found anywhere in a text.
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// Whether a match costs no more than reading the text.
    pub fn is_light(&self) -> bool {
        self.states <= LIGHT_STATES_MAX
    }

    /// The cost of a search in a text, in evaluation steps.
    pub fn steps(&self, text: &str) -> usize {
        let heavy = if self.is_light() { 0 } else { text.len().saturating_mul(self.states) / 16 };
        (1 + text.len() / 8).saturating_add(heavy)
    }
}

/// Counts classes: an ASCII class counts 1, others [`ASCII_CLASSES`].
fn count_classes(syntax: &Ast) -> u32 {
    struct Counter(u32);
    impl Counter {
        fn add(&mut self, count: u32) -> Result<(), ()> {
            self.0 = self.0.saturating_add(count);
            // Above the limit the exact count does not matter.
            if self.0 > CLASSES_MAX * ASCII_CLASSES { Err(()) } else { Ok(()) }
        }
    }
    impl ast::Visitor for Counter {
        type Output = u32;
        type Err = ();

        fn finish(self) -> Result<u32, ()> {
            Ok(self.0)
        }

        fn visit_pre(&mut self, ast: &Ast) -> Result<(), ()> {
            self.add(match ast {
                Ast::ClassUnicode(_) | Ast::ClassPerl(_) => ASCII_CLASSES,
                Ast::ClassBracketed(_) | Ast::Dot(_) => 1,
                _ => 0,
            })
        }

        fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), ()> {
            self.add(match item {
                ClassSetItem::Unicode(_) | ClassSetItem::Perl(_) => ASCII_CLASSES,
                ClassSetItem::Range(range) if !range.end.c.is_ascii() => ASCII_CLASSES,
                _ => 0,
            })
        }
    }
    ast::visit(syntax, Counter(0)).unwrap_or(u32::MAX)
}

/// Estimates how many states the automaton can be in at once; rarely too low.
fn count_states(hir: &Hir) -> usize {
    let mut counter = StateCounter::default();
    counter.add(hir, 1, false);
    let letters = if counter.letters > LETTERS_MAX { counter.letters } else { counter.letters / LETTERS_PER_STATE };
    counter.states.saturating_add(letters)
}

#[derive(Default)]
struct StateCounter {
    states: usize,
    letters: usize,
}

impl StateCounter {
    /// Adds the states of an expression, `times` over. `repeated`: it is inside a repetition.
    fn add(&mut self, hir: &Hir, times: usize, repeated: bool) {
        let mut letters = |count: usize| match repeated {
            true => self.states = self.states.saturating_add(count.saturating_mul(times)),
            false => self.letters = self.letters.saturating_add(count.saturating_mul(times)),
        };
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => {}
            HirKind::Literal(literal) => letters(literal.0.len()),
            HirKind::Class(Class::Unicode(class)) if is_letter(class) => letters(1),
            HirKind::Class(_) => self.states = self.states.saturating_add(times),
            HirKind::Repetition(repetition) => {
                let most = repetition.max.unwrap_or(repetition.min.saturating_add(1)).max(1) as usize;
                let repeated = repeated || repetition.max.is_none_or(|max| max > 1);
                self.add(&repetition.sub, times.saturating_mul(most), repeated);
            }
            HirKind::Capture(capture) => self.add(&capture.sub, times, repeated),
            HirKind::Concat(parts) | HirKind::Alternation(parts) => {
                parts.iter().for_each(|part| self.add(part, times, repeated));
            }
        }
    }
}

/// Whether a class is one letter in either case.
fn is_letter(class: &ClassUnicode) -> bool {
    let count: usize = class.iter().map(|range| (range.end() as u32 - range.start() as u32) as usize + 1).sum();
    let mut all = class.iter().flat_map(|range| range.start()..=range.end());
    let Some(first) = all.next().filter(|_| count <= 4) else { return false };
    let same =
        |other: char| other.to_lowercase().eq(first.to_lowercase()) || other.to_uppercase().eq(first.to_uppercase());
    all.try_for_each(|other| if same(other) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }).is_continue()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_counted() {
        let check = |text: &str, expected: usize| {
            assert_eq!(Pattern::read(text).expect(text).states, expected, "{text}");
        };
        check("closure", 0);
        check("^road (closure|repair)s? in [a-z]+$", 3);
        check("(?i)vancouver|victoria", 1);
        check(r"\d{4}-\d{2}-\d{2}", 8);
        check("a[ab]{1000}c", 1000);
        check("a{3000}", 3000);
        check("(?:ab|ba){50}", 200);
        check(&"a?".repeat(300), 300);
        check(".*", 1);
    }

    #[test]
    fn heavy_patterns_cost_more_steps() {
        let steps = |text: &str| Pattern::read(text).expect(text).steps(&"a".repeat(16_000));
        assert_eq!(steps("(?i)vancouver [0-9]+"), 2_001);
        assert_eq!(steps("a[ab]{100}c"), 102_001);
    }

    #[test]
    fn oversized_patterns_are_rejected() {
        let refused = |text: String, expected: &str| {
            let message = Pattern::read(&text).expect_err("a bomb");
            assert!(message.contains(expected), "{message}");
        };
        refused("(((a{100}){100}){100}){100}".to_owned(), "too large");
        refused(r"\pL{50}".to_owned(), "too large");
        refused(r"(?i:\pL)|".repeat(1_600), "at most 32 classes");
        refused(r"[\pL--[\pN&&\w]]".repeat(900), "at most 32 classes");
        refused("(?i)".to_owned() + &"[!-🏿]".repeat(33), "at most 32 classes");
        refused("(".repeat(5_000) + &")".repeat(5_000), "is wrong: ");
        assert!(Pattern::read(&"[a-f0-9]".repeat(100)).is_ok());
        let mut budget = Budget::default();
        assert_eq!((0..100).filter(|_| Pattern::read_within("a", &mut budget).is_ok()).count(), 64);
        let mut budget = Budget::default();
        assert_eq!((0..100).filter(|_| Pattern::read_within(r"\d", &mut budget).is_ok()).count(), 32);
    }
}
