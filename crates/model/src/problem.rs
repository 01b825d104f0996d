//! Problems of a user's input: code, path, message with its parameters, and hint.

mod code;

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub use code::Code;

/// Most problems of one answer. Further ones are counted.
pub const PROBLEMS_MAX: usize = 100;

/// Most words in the parameter `known`.
const KNOWN_MAX: usize = 50;

/// The first problems, at most [`PROBLEMS_MAX`], and the number of the others.
pub fn first_of(mut problems: Vec<Problem>) -> Vec<Problem> {
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    // A list that was limited when it was made ends with its own count.
    let is_counted = more == 1 && problems.last().is_some_and(|last| last.code == Code::MoreProblems);
    if more > 0 && !is_counted {
        problems.truncate(PROBLEMS_MAX);
        problems.push(and_more(more));
    }
    problems
}

/// The last problem of a list that is not complete.
pub fn and_more(count: usize) -> Problem {
    Problem::new(Code::MoreProblems, "", format!("and {count} more")).param("count", count).hint("mend these first")
}

/// A problem in a definition, a row or an expression. A check reports all problems at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Machine-readable kind.
    #[serde(default = "unclassified")]
    pub code: Code,
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
    /// Parameters of the message.
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub params: Params,
    /// The remedy, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The code of a problem that a server of an earlier version reports.
fn unclassified() -> Code {
    Code::Unclassified
}

/// Reason why a key or token is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialError {
    /// None was given.
    Required,
    /// The header does not have its form.
    Malformed,
    /// It does not exist.
    Unknown,
    /// It has expired.
    Expired,
    /// It was revoked.
    Revoked,
    /// Its permissions were changed during the request.
    Changed,
}

/// Parameters of a message by name, such as `limit`. A client needs them to write the message in another language.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
#[allow(clippy::box_collection, reason = "a problem is an error type: it stays small, and most have no parameters")]
pub struct Params(Option<Box<BTreeMap<String, Json>>>);

impl Params {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.0.as_ref()?.get(name)
    }

    /// The parameters in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().flat_map(|params| params.iter()).map(|(name, value)| (name.as_str(), value))
    }
}

impl Problem {
    /// A problem at a path, without parameters, position or hint.
    pub fn new(code: Code, path: impl Into<String>, message: impl Into<String>) -> Self {
        let (path, message) = (path.into(), message.into());
        Problem { code, path, line: None, column: None, message, params: Params::default(), hint: None }
    }

    /// A required value that is missing.
    pub fn required(path: impl Into<String>) -> Self {
        Problem::new(Code::Required, path, "is required")
    }

    /// A name or value that is given more than once.
    pub fn duplicate(path: impl Into<String>) -> Self {
        Problem::new(Code::Duplicate, path, "is given twice")
    }

    /// A number that is not within `least` and `most`.
    pub fn out_of_range<T>(path: impl Into<String>, least: T, most: T) -> Self
    where
        T: fmt::Display + Into<Json>,
    {
        let message = format!("should be from {least} to {most}");
        Problem::new(Code::OutOfRange, path, message).param("least", least).param("most", most)
    }

    /// A list or map with more than `limit` entries.
    pub fn too_many(path: impl Into<String>, given: usize, limit: usize) -> Self {
        let message = format!("has {given} entries; at most {limit} fit");
        Problem::new(Code::TooMany, path, message).param("given", given).param("limit", limit)
    }

    /// A text with more than `limit` bytes.
    pub fn too_long(path: impl Into<String>, given: usize, limit: usize) -> Self {
        let problem = Problem::new(Code::TooLong, path, format!("takes {given} bytes; at most {limit} fit"));
        problem.param("given", given).param("limit", limit).param("unit", "bytes")
    }

    /// A value that is not of a type or format, which `expected` describes: `a name`.
    pub fn not(code: Code, path: impl Into<String>, expected: &str) -> Self {
        Problem::new(code, path, format!("is not {expected}")).param("expected", expected)
    }

    /// A value in the body that differs from the one in the address.
    pub fn address_mismatch(path: impl Into<String>, value: impl fmt::Display, address: impl fmt::Display) -> Self {
        let message = format!("is `{value}`, but the address says `{address}`");
        let problem = Problem::new(Code::Mismatch, path, message);
        problem.param("value", value.to_string()).param("expected", address.to_string())
    }

    /// A name that is not one of the IANA time zone database.
    pub fn unknown_time_zone(path: impl Into<String>, zone: impl fmt::Display) -> Self {
        let problem = Problem::new(Code::InvalidFormat, path, format!("`{zone}` is not a time zone"));
        problem.param("format", "time_zone").param("value", zone.to_string())
    }

    /// A text that is not valid in its language, such as `cel`.
    pub fn syntax(language: &'static str, path: impl Into<String>, message: impl Into<String>) -> Self {
        Problem::new(Code::InvalidSyntax, path, message).param("language", language)
    }

    /// Adds a parameter of the message.
    pub fn param(mut self, name: &str, value: impl Into<Json>) -> Self {
        debug_assert!(self.code.params().contains(&name), "{:?} has no parameter `{name}`", self.code);
        self.params.0.get_or_insert_default().insert(name.to_owned(), value.into());
        self
    }

    /// Adds the known words, and the closest to `wrong`, as parameters.
    pub fn known<'a>(self, wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let meant = closest(wrong, known.iter().copied());
        let shown: Vec<&str> = known.iter().copied().take(KNOWN_MAX).collect();
        let problem = self.param("value", wrong).param("known", shown);
        match meant {
            Some(meant) => problem.param("meant", meant),
            None => problem,
        }
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
        let many = |count: usize| (0..count).map(|at| Problem::required(at.to_string())).collect::<Vec<_>>();
        assert_eq!(first_of(many(100)), many(100));
        let first = first_of(many(3_000));
        assert_eq!((first.len(), first[100].message.as_str()), (101, "and 2900 more"));
        assert_eq!(first_of(first.clone()), first);
        assert_eq!(first_of(many(101))[100].message, "and 1 more");
    }

    #[test]
    fn a_problem_is_json_with_its_code_and_parameters() {
        let problem = Problem::out_of_range("limit", 1, 100);
        let json = serde_json::json!({
            "code": "out_of_range", "path": "limit", "message": "should be from 1 to 100",
            "params": {"least": 1, "most": 100},
        });
        assert_eq!(serde_json::to_value(&problem).expect("JSON"), json);
        assert_eq!(serde_json::from_value::<Problem>(json).expect("a problem"), problem);
        let known = Problem::new(Code::UnknownMember, "magnitud", "is not known here").known("magnitud", ["magnitude"]);
        assert_eq!(known.params.get("meant"), Some(&Json::from("magnitude")));
        // A server of an earlier version sends no code.
        let old: Problem = serde_json::from_str(r#"{"path": "a", "message": "is wrong"}"#).expect("a problem");
        assert_eq!((old.code, old.params.is_empty()), (Code::Unclassified, true));
    }

    #[test]
    fn a_slip_finds_its_word() {
        let known = ["magnitude", "latitude", "place"];
        assert_eq!(closest("magnitud", known), Some("magnitude"));
        assert_eq!(closest("Place", known), Some("place"));
        assert_eq!(closest("colour", known), None);
    }
}
