//! Matching of `LIKE` and `GLOB`. The results are those of SQLite, which needs minutes for some patterns and texts
//! without a check of the deadline.

use std::str::Chars;

/// A pattern.
#[derive(Debug)]
pub(super) struct Wildcards {
    /// `None`: the pattern is incomplete and matches nothing.
    parts: Option<Vec<Part>>,
    /// Whether ASCII letters are compared without case.
    is_folded: bool,
    /// The character before which the wildcards of `LIKE` are literal.
    pub escape: Option<char>,
}

#[derive(Debug)]
enum Part {
    /// Any number of characters.
    Many,
    One,
    Letter(char),
    /// A character within these ranges, or outside of all of them.
    Class {
        ranges: Vec<(char, char)>,
        is_inverted: bool,
    },
}

/// Number of characters that are compared between two checks of the deadline.
const CHECK_INTERVAL: u32 = 1 << 16;

impl Wildcards {
    /// A pattern with `%` and `_`, and an optional escape character.
    pub fn like(pattern: &str, escape: Option<char>) -> Wildcards {
        let literal = |letter: char| Part::Letter(letter.to_ascii_lowercase());
        let parts = parts(pattern, |letter, rest| match letter {
            letter if Some(letter) == escape => rest.next().map(literal),
            '%' => Some(Part::Many),
            '_' => Some(Part::One),
            letter => Some(literal(letter)),
        });
        Wildcards { parts, is_folded: true, escape }
    }

    /// A pattern with `*`, `?` and `[...]`.
    pub fn glob(pattern: &str) -> Wildcards {
        let parts = parts(pattern, |letter, rest| match letter {
            '*' => Some(Part::Many),
            '?' => Some(Part::One),
            '[' => class(rest),
            letter => Some(Part::Letter(letter)),
        });
        Wildcards { parts, is_folded: false, escape: None }
    }

    /// Whether a whole text matches; `None` if `is_past_deadline` returned true before.
    pub fn matches(&self, text: &str, is_past_deadline: &dyn Fn() -> bool) -> Option<bool> {
        let Some(parts) = &self.parts else { return Some(false) };
        let (mut part, mut at) = (0, 0);
        // After the last `Many`: the next part, and the position where it was last tried.
        let mut retry: Option<(usize, usize)> = None;
        let mut steps = 0;
        loop {
            steps += 1;
            if steps % CHECK_INTERVAL == 0 && is_past_deadline() {
                return None;
            }
            let letter = text[at..].chars().next();
            match (parts.get(part), letter) {
                (None, None) => return Some(true),
                (Some(Part::Many), _) => {
                    part += 1;
                    retry = Some((part, at));
                    continue;
                }
                // The rest of the pattern needs characters, and later positions have fewer.
                (Some(_), None) => return Some(false),
                (Some(requested), Some(letter)) if self.matches_one(requested, letter) => {
                    part += 1;
                    at += letter.len_utf8();
                    continue;
                }
                _ => {}
            }
            let Some((after, tried)) = retry else { return Some(false) };
            let Some(passed) = text[tried..].chars().next() else { return Some(false) };
            (part, at) = (after, tried + passed.len_utf8());
            retry = Some((part, at));
        }
    }

    fn matches_one(&self, part: &Part, letter: char) -> bool {
        match part {
            Part::Many | Part::One => true,
            Part::Letter(requested) if self.is_folded => *requested == letter.to_ascii_lowercase(),
            Part::Letter(requested) => *requested == letter,
            Part::Class { ranges, is_inverted } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&letter)) != *is_inverted
            }
        }
    }
}

/// The parts of a pattern, each parsed from a character and the following ones. `None`: the pattern is incomplete.
fn parts(pattern: &str, read: impl Fn(char, &mut Chars<'_>) -> Option<Part>) -> Option<Vec<Part>> {
    let mut letters = pattern.chars();
    let mut parts = Vec::new();
    while let Some(letter) = letters.next() {
        parts.push(read(letter, &mut letters)?);
    }
    Some(parts)
}

/// Parses the characters after `[`. `None`: there is no closing bracket.
fn class(letters: &mut Chars<'_>) -> Option<Part> {
    let mut ranges = Vec::new();
    let mut letter = letters.next()?;
    let is_inverted = letter == '^';
    if is_inverted {
        letter = letters.next()?;
    }
    if letter == ']' {
        ranges.push((letter, letter));
        letter = letters.next()?;
    }
    // The start of a possible range with `-`.
    let mut before = None;
    while letter != ']' {
        let next = letters.clone().next();
        match (letter, before, next) {
            ('-', Some(low), Some(high)) if high != ']' => {
                letters.next();
                ranges.push((low, high));
                before = None;
            }
            _ => {
                ranges.push((letter, letter));
                before = Some(letter);
            }
        }
        letter = letters.next()?;
    }
    Some(Part::Class { ranges, is_inverted })
}
