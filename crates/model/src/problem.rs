//! Problems of a user's input: path, message and hint.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most problems of one answer. Further ones are counted.
pub const PROBLEMS_MAX: usize = 100;

/// The first problems, at most [`PROBLEMS_MAX`], and the number of the others.
pub fn first_of(mut problems: Vec<Problem>) -> Vec<Problem> {
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    // A list that was limited when it was made ends with its own count.
    let is_counted = more == 1 && problems.last().is_some_and(|last| last.message.starts_with("and "));
    if more > 0 && !is_counted {
        problems.truncate(PROBLEMS_MAX);
        problems.push(and_more(more));
    }
    problems
}

/// The last problem of a list that is not complete.
pub fn and_more(count: usize) -> Problem {
    Problem::at("", format!("and {count} more")).hint("mend these first")
}

/// A problem in a definition, a row or an expression. A check reports all problems at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Dotted path in the document: `rules.near_me.when`. Empty for the whole.
    pub path: String,
    /// Line, from 1, if the input is a text with lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Column in characters, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The problem: one sentence, lower case, no full stop.
    pub message: String,
    /// The remedy, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    /// A problem at a path, without position or hint.
    pub fn at(path: impl Into<String>, message: impl Into<String>) -> Self {
        Problem { path: path.into(), line: None, column: None, message: message.into(), hint: None }
    }

    /// Adds a remedy.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the position in the text, from 1.
    pub fn position(mut self, line: u32, column: u32) -> Self {
        (self.line, self.column) = (Some(line), Some(column));
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
            if let Some(column) = self.column {
                write!(f, "{column}:")?;
            }
            f.write_str(" ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// The known word closest to `wrong`, if one is close enough to be a misspelling.
pub fn closest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|word| (edit_distance(wrong, word), word))
        .filter(|(distance, word)| *distance <= 1 + word.chars().count() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Levenshtein distance, in characters.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, from) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a19_an_answer_has_at_most_100_problems() {
        let many = |count: usize| (0..count).map(|at| Problem::at(at.to_string(), "is wrong")).collect::<Vec<_>>();
        assert_eq!(first_of(many(100)), many(100));
        let first = first_of(many(3_000));
        assert_eq!((first.len(), first[100].message.as_str()), (101, "and 2900 more"));
        assert_eq!(first_of(first.clone()), first);
        assert_eq!(first_of(many(101))[100].message, "and 1 more");
    }

    #[test]
    fn a_slip_finds_its_word() {
        let known = ["magnitude", "latitude", "place"];
        assert_eq!(closest("magnitud", known), Some("magnitude"));
        assert_eq!(closest("Place", known), Some("place"));
        assert_eq!(closest("colour", known), None);
    }
}
