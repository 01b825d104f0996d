//! Conditions: trees of single tests of an event, the common form of all filter dialects.

use std::{cmp::Ordering, sync::Arc};

use tocsin_model::value::Value;

use crate::{
    eval_value::{EvalValue, compare, equal},
    regex_pattern::Pattern,
    text::{Network, Wildcard, fold},
};

/// The part of a filter that the index uses: a condition on the event, without negations except those of single tests.
///
/// The condition is necessary for a match. `CompiledFilter::is_exact` says that it is sufficient as well.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// All of them hold.
    All(Vec<Condition>),
    /// At least one of them holds. An empty list never holds.
    Any(Vec<Condition>),
    /// One test holds.
    Test(Test),
    /// Always holds.
    Always,
    /// Only evaluating the filter decides. Counts as holding.
    Unknown,
}

impl Condition {
    /// A condition that never holds.
    pub fn never() -> Condition {
        Condition::Any(Vec::new())
    }

    /// One test.
    pub fn test(path: Path, value_test: ValueTest) -> Condition {
        Condition::Test(Test { path, value_test })
    }

    /// Whether it holds for an event, by checking each test; [`Condition::Unknown`] holds.
    pub fn holds(&self, event: &[Value]) -> bool {
        match self {
            Condition::All(parts) => parts.iter().all(|part| part.holds(event)),
            Condition::Any(parts) => parts.iter().any(|part| part.holds(event)),
            Condition::Test(test) => test.holds(event),
            Condition::Always | Condition::Unknown => true,
        }
    }

    /// Visits every test in it.
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a Test)) {
        match self {
            Condition::All(parts) | Condition::Any(parts) => parts.iter().for_each(|part| part.visit(visit)),
            Condition::Test(test) => visit(test),
            Condition::Always | Condition::Unknown => {}
        }
    }

    /// Whether it contains [`Condition::Unknown`].
    pub fn has_unknown(&self) -> bool {
        match self {
            Condition::All(parts) | Condition::Any(parts) => parts.iter().any(Condition::has_unknown),
            Condition::Unknown => true,
            Condition::Test(_) | Condition::Always => false,
        }
    }
}

/// One test of one path in the event.
#[derive(Debug, Clone, PartialEq)]
pub struct Test {
    /// The tested path.
    pub path: Path,
    /// The test.
    pub value_test: ValueTest,
}

/// A path in the event: a field and keys below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The index of the field in the event class.
    pub field: usize,
    /// Keys into maps, from the field downwards.
    pub keys: Vec<Arc<str>>,
    /// The set of values at the path that are tested.
    pub reach: Reach,
}

/// The set of values at a path that are tested. A test holds if it holds for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// The value itself: one, or none where a key is missing or a parent is not a map. A field of the class always has
    /// a value, null if it was not set.
    One,
    /// The items of the list at the path; none if it is not a list.
    Items,
    /// The leaves, as in event patterns: values other than lists and maps, reached through lists along the path and at
    /// its end, at any depth. A null field of the class has no leaf; a key with a null value has one.
    Leaves,
}

impl Path {
    /// A field of the class.
    pub fn field(field: usize) -> Path {
        Path { field, keys: Vec::new(), reach: Reach::One }
    }

    /// Calls `visit` for each tested value, until one call returns true. Returns whether one did.
    pub fn any<'a>(&self, event: &'a [Value], visit: &mut dyn FnMut(&'a Value) -> bool) -> bool {
        let Some(value) = event.get(self.field) else { return false };
        match self.reach {
            Reach::One => one(value, &self.keys).is_some_and(visit),
            Reach::Items => match one(value, &self.keys) {
                Some(Value::List(items)) => items.iter().any(visit),
                _ => false,
            },
            Reach::Leaves if value.is_null() => false,
            Reach::Leaves => leaves(value, &self.keys, visit),
        }
    }
}

/// The value at the end of the keys, through maps only.
pub(crate) fn one<'a>(value: &'a Value, keys: &[Arc<str>]) -> Option<&'a Value> {
    keys.iter().try_fold(value, |value, key| match value {
        Value::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
        _ => None,
    })
}

/// The leaves at the end of the keys, through lists too.
fn leaves<'a>(value: &'a Value, keys: &[Arc<str>], visit: &mut dyn FnMut(&'a Value) -> bool) -> bool {
    match (value, keys) {
        (Value::List(items), _) => items.iter().any(|item| leaves(item, keys, visit)),
        (Value::Map(entries), [key, rest @ ..]) => {
            entries.iter().find(|(name, _)| name == key).is_some_and(|(_, value)| leaves(value, rest, visit))
        }
        (Value::Map(_), []) | (_, [_, ..]) => false,
        (leaf, []) => visit(leaf),
    }
}

/// The test of a single value.
#[derive(Debug, Clone)]
pub enum ValueTest {
    /// Equals one of these, numbers by exact value; null equals null. Lists and maps are never among them.
    In(Vec<Value>),
    /// Is between limits of its type: numbers, text or timestamps.
    Range(Range),
    /// Is text with this prefix.
    Prefix(Arc<str>, Case),
    /// Is text with this suffix.
    Suffix(Arc<str>, Case),
    /// Is text that contains this.
    Contains(Arc<str>, Case),
    /// Is text that equals this, ignoring case. Case-sensitive equality is `In`.
    Folded(Arc<str>),
    /// Is text that matches a pattern with `*`.
    Wildcard(Wildcard),
    /// Is text that contains a match of a regular expression.
    Matches(Pattern),
    /// Is text with an address in a network.
    Cidr(Network),
    /// With [`Reach::One`]: the value is present and not null. Otherwise: there is at least one value.
    Exists,
    /// The opposite of [`ValueTest::Exists`].
    Missing,
    /// Negation: there is a value, possibly null, that fails the inner test. Not for `Exists` and `Missing`.
    But(Box<ValueTest>),
}

/// Limits of a value, both of one type; at least one of them is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Range {
    /// The low end.
    pub low: Option<Limit>,
    /// The high end.
    pub high: Option<Limit>,
}

/// One end of a range.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// An integer, a number that is not NaN, text or an instant.
    pub value: Value,
    /// Whether the limit itself is in the range.
    pub inclusive: bool,
}

/// Case sensitivity of a text test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Case {
    /// Upper and lower case differ.
    Sensitive,
    /// Case is ignored: both texts are lower-cased by Unicode first.
    Folded,
}

impl Test {
    /// Whether it holds for an event.
    pub fn holds(&self, event: &[Value]) -> bool {
        match (&self.value_test, self.path.reach) {
            (ValueTest::Exists, Reach::One) => self.path.any(event, &mut |value| !value.is_null()),
            (ValueTest::Missing, Reach::One) => !self.path.any(event, &mut |value| !value.is_null()),
            (ValueTest::Exists, _) => self.path.any(event, &mut |_| true),
            (ValueTest::Missing, _) => !self.path.any(event, &mut |_| true),
            (value_test, _) => self.path.any(event, &mut |value| value_test.accepts(value)),
        }
    }
}

impl ValueTest {
    /// Equality with one value.
    pub fn equals(value: impl Into<Value>) -> ValueTest {
        ValueTest::In(vec![value.into()])
    }

    /// Equal to none of these; the value must be present.
    pub fn anything_but(values: Vec<Value>) -> ValueTest {
        ValueTest::But(Box::new(ValueTest::In(values)))
    }

    /// Text with this prefix.
    pub fn prefix(text: &str, case: Case) -> ValueTest {
        ValueTest::Prefix(case.of(text), case)
    }

    /// Text with this suffix.
    pub fn suffix(text: &str, case: Case) -> ValueTest {
        ValueTest::Suffix(case.of(text), case)
    }

    /// Text that contains this.
    pub fn contains(text: &str, case: Case) -> ValueTest {
        ValueTest::Contains(case.of(text), case)
    }

    /// Text that equals this, ignoring case.
    pub fn equals_ignore_case(text: &str) -> ValueTest {
        ValueTest::Folded(Case::Folded.of(text))
    }

    /// The cost of testing a value, in evaluation steps.
    pub fn steps(&self, value: &Value) -> usize {
        let bytes = value.as_text().map_or(0, str::len);
        match self {
            ValueTest::In(values) => values.len() / 4,
            ValueTest::Contains(_, Case::Sensitive) => bytes / 256,
            // The parts between its stars are searched one after another; repeated starts make each search cost more.
            ValueTest::Wildcard(_) => bytes / 64,
            ValueTest::Prefix(_, Case::Folded)
            | ValueTest::Suffix(_, Case::Folded)
            | ValueTest::Contains(_, Case::Folded)
            | ValueTest::Folded(_) => bytes / 8,
            ValueTest::Matches(pattern) => value.as_text().map_or(0, |text| pattern.steps(text)),
            ValueTest::But(inner) => inner.steps(value),
            _ => 0,
        }
    }

    /// Whether a value passes. Presence is not tested here.
    pub fn accepts(&self, value: &Value) -> bool {
        let text = value.as_text();
        match self {
            ValueTest::In(values) => values.iter().any(|other| equal(&EvalValue::of(other), &EvalValue::of(value))),
            ValueTest::Range(range) => range.accepts(value),
            ValueTest::Prefix(part, Case::Sensitive) => text.is_some_and(|text| text.starts_with(&**part)),
            ValueTest::Prefix(part, Case::Folded) => text.is_some_and(|text| fold(text).starts_with(&**part)),
            ValueTest::Suffix(part, Case::Sensitive) => text.is_some_and(|text| text.ends_with(&**part)),
            ValueTest::Suffix(part, Case::Folded) => text.is_some_and(|text| fold(text).ends_with(&**part)),
            ValueTest::Contains(part, Case::Sensitive) => text.is_some_and(|text| text.contains(&**part)),
            ValueTest::Contains(part, Case::Folded) => text.is_some_and(|text| fold(text).contains(&**part)),
            ValueTest::Folded(other) => text.is_some_and(|text| *fold(text) == **other),
            ValueTest::Wildcard(wildcard) => text.is_some_and(|text| wildcard.fits(text)),
            ValueTest::Matches(pattern) => text.is_some_and(|text| pattern.is_match(text)),
            ValueTest::Cidr(network) => text.is_some_and(|text| network.has(text)),
            ValueTest::Exists => true,
            ValueTest::Missing => false,
            ValueTest::But(value_test) => !value_test.accepts(value),
        }
    }
}

impl Case {
    fn of(self, text: &str) -> Arc<str> {
        match self {
            Case::Sensitive => text.into(),
            Case::Folded => fold(text).into(),
        }
    }
}

impl Range {
    /// A range with both ends, or one of them.
    pub fn within(low: Option<Limit>, high: Option<Limit>) -> ValueTest {
        ValueTest::Range(Range { low, high })
    }

    /// Whether a value is in the range. A value of another type is not.
    pub fn accepts(&self, value: &Value) -> bool {
        let order = |limit: &Limit| compare(&EvalValue::of(value), &EvalValue::of(&limit.value)).ok().flatten();
        let within = |limit: &Limit, side: Ordering| match order(limit) {
            Some(Ordering::Equal) => limit.inclusive,
            Some(order) => order == side,
            None => false,
        };
        self.low.as_ref().is_none_or(|low| within(low, Ordering::Greater))
            && self.high.as_ref().is_none_or(|high| within(high, Ordering::Less))
    }
}

/// Regular expressions are equal if their texts are.
impl PartialEq for ValueTest {
    fn eq(&self, other: &ValueTest) -> bool {
        match (self, other) {
            (ValueTest::In(left), ValueTest::In(right)) => left == right,
            (ValueTest::Range(left), ValueTest::Range(right)) => left == right,
            (ValueTest::Prefix(left, case), ValueTest::Prefix(right, other))
            | (ValueTest::Suffix(left, case), ValueTest::Suffix(right, other))
            | (ValueTest::Contains(left, case), ValueTest::Contains(right, other)) => left == right && case == other,
            (ValueTest::Folded(left), ValueTest::Folded(right)) => left == right,
            (ValueTest::Wildcard(left), ValueTest::Wildcard(right)) => left == right,
            (ValueTest::Matches(left), ValueTest::Matches(right)) => left.as_str() == right.as_str(),
            (ValueTest::Cidr(left), ValueTest::Cidr(right)) => left == right,
            (ValueTest::Exists, ValueTest::Exists) | (ValueTest::Missing, ValueTest::Missing) => true,
            (ValueTest::But(left), ValueTest::But(right)) => left == right,
            _ => false,
        }
    }
}
