//! Conditions as trees.

use serde_json::Value;

use super::{path::Path, search::Search};

/// A condition over a record. The default holds for every record.
#[derive(Debug, Clone)]
pub enum Where {
    /// All hold.
    All(Vec<Where>),
    /// At least one holds.
    Any(Vec<Where>),
    /// None holds.
    Nor(Vec<Where>),
    /// All tests hold for a property.
    Property(Path, Vec<Test>),
    /// A text search over all texts of the record.
    Text(Search),
    /// The condition holds for the record without these properties.
    Without(&'static [&'static str], Box<Where>),
}

/// A test of the values at a path.
#[derive(Debug, Clone)]
pub enum Test {
    /// `$eq`: one equals; for `null` also: it is absent.
    Equal(Value),
    /// `$gt`, `$gte`, `$lt`, `$lte`.
    Compare(Comparison, Value),
    /// `$in`: one equals one of the list.
    In(Vec<Value>),
    /// `$exists`.
    Exists(bool),
    /// `$regex`: a text matches.
    Regex(regex::Regex),
    /// `$size`: a list has this many elements.
    Size(u64),
    /// `$all`: each holds.
    All(Vec<Test>),
    /// `$elemMatch`: an element of a list, which is an object, satisfies the condition.
    Element(Box<Where>),
    /// `$elemMatch` with operators: an element of a list passes all tests.
    ElementTests(Vec<Test>),
    /// `$not`, `$ne` and `$nin`: not all of the tests hold.
    Not(Vec<Test>),
}

/// An order comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `$gt`
    Greater,
    /// `$gte`
    GreaterOrEqual,
    /// `$lt`
    Less,
    /// `$lte`
    LessOrEqual,
}

impl Where {
    /// Whether its evaluation reads whole texts: regular expressions and text searches.
    pub fn scans_texts(&self) -> bool {
        match self {
            Where::All(parts) | Where::Any(parts) | Where::Nor(parts) => parts.iter().any(Where::scans_texts),
            Where::Property(_, tests) => tests.iter().any(Test::scans_texts),
            Where::Text(_) => true,
            Where::Without(_, condition) => condition.scans_texts(),
        }
    }
}

impl Test {
    fn scans_texts(&self) -> bool {
        match self {
            Test::Regex(_) => true,
            Test::All(tests) | Test::ElementTests(tests) | Test::Not(tests) => tests.iter().any(Test::scans_texts),
            Test::Element(condition) => condition.scans_texts(),
            Test::Equal(_) | Test::Compare(..) | Test::In(_) | Test::Exists(_) | Test::Size(_) => false,
        }
    }
}

impl Default for Where {
    fn default() -> Where {
        Where::All(Vec::new())
    }
}
