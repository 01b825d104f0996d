//! What `LIKE` and `GLOB` ask of a text. The answers are those of SQLite, which looks for some patterns in some texts for
//! minutes and never at the clock.

use std::str::Chars;

/// A pattern.
#[derive(Debug)]
pub(super) struct Wildcards {
    /// None: it cannot be finished, and fits nothing.
    parts: Option<Vec<Part>>,
    /// Whether letters of ASCII count whatever their case.
    is_folded: bool,
    /// Before which letter the wildcards of `LIKE` stand for themselves.
    pub escape: Option<char>,
}

#[derive(Debug)]
enum Part {
    /// Any letters, or none.
    Many,
    One,
    Letter(char),
    /// One within these ranges, or outside of all of them.
    Among {
        ranges: Vec<(char, char)>,
        is_inverted: bool,
    },
}

/// Letters that are looked at between two looks at the clock.
const LOOKS: u32 = 1 << 16;

impl Wildcards {
    /// `%` and `_`, and a letter before which they stand for themselves.
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

    /// `*`, `?` and `[...]`.
    pub fn glob(pattern: &str) -> Wildcards {
        let parts = parts(pattern, |letter, rest| match letter {
            '*' => Some(Part::Many),
            '?' => Some(Part::One),
            '[' => among(rest),
            letter => Some(Part::Letter(letter)),
        });
        Wildcards { parts, is_folded: false, escape: None }
    }

    /// Whether a whole text fits; `None` if `is_over` said so before that was clear.
    pub fn fits(&self, text: &str, is_over: &dyn Fn() -> bool) -> Option<bool> {
        let Some(parts) = &self.parts else { return Some(false) };
        let (mut part, mut at) = (0, 0);
        // Behind the last `Many`: the part that follows it, and where that was last tried.
        let mut retry: Option<(usize, usize)> = None;
        let mut looks = 0;
        loop {
            looks += 1;
            if looks % LOOKS == 0 && is_over() {
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
                // Whatever is left of the pattern needs letters, and later there are fewer.
                (Some(_), None) => return Some(false),
                (Some(wanted), Some(letter)) if self.takes(wanted, letter) => {
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

    fn takes(&self, part: &Part, letter: char) -> bool {
        match part {
            Part::Many | Part::One => true,
            Part::Letter(wanted) if self.is_folded => *wanted == letter.to_ascii_lowercase(),
            Part::Letter(wanted) => *wanted == letter,
            Part::Among { ranges, is_inverted } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&letter)) != *is_inverted
            }
        }
    }
}

/// The parts of a pattern, each read from a letter and what it takes of those behind it. `None`: one is not finished.
fn parts(pattern: &str, read: impl Fn(char, &mut Chars<'_>) -> Option<Part>) -> Option<Vec<Part>> {
    let mut letters = pattern.chars();
    let mut parts = Vec::new();
    while let Some(letter) = letters.next() {
        parts.push(read(letter, &mut letters)?);
    }
    Some(parts)
}

/// What follows on `[`. `None`: it is never closed.
fn among(letters: &mut Chars<'_>) -> Option<Part> {
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
    // What a `-` makes a range of.
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
    Some(Part::Among { ranges, is_inverted })
}
