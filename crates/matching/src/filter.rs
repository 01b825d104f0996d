//! Subscription filters: compiled, brought to a canonical form, and indexed, so that the cost of an event grows with
//! its matches.
//!
//! A dialect lowers a filter to a [`Condition`]: a tree of single tests of the event. If the condition is exact, it
//! replaces the filter, and equivalent filters of different dialects are equal. If the condition is only necessary,
//! events that satisfy it are passed to the filter's own evaluator.

pub mod cel; // CEL filters, lowered to conditions
pub mod jmespath; // JMESPath filters: parser, interpreter, lowering to conditions
pub(crate) mod filter_table; // the distinct filters of a class, shared between subscriptions
pub mod index; // the filter index: finds the filters that match an event
mod packed; // memory representation of an indexed filter
pub mod normal; // normal form of conditions, its encoding, its disjunctions
mod over_budget; // relaxes conditions that are too expensive for the index
mod pattern; // event pattern filters, lowered to conditions
pub mod show; // conditions as text for people
pub mod text; // text tests: wildcards, networks, case folding

use std::{cmp::Ordering, fmt, sync::Arc};

use tocsin_model::{
    field::Fields,
    filter::{Dialect, Filter},
    problem::Problem,
    value::Value,
};

use crate::{
    check::Subject,
    dialect::parse_with_large_stack,
    eval_value::{EvalError, EvalValue, compare, equal},
    regex_pattern::Pattern,
    subscriber::SubscriberColumns,
    user_functions::UserFunctions,
};

use text::{Network, Wildcard, fold};

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

/// Evaluator of a filter, with the semantics of its dialect.
pub trait Evaluate: fmt::Debug + Send + Sync {
    /// Whether the filter matches an event, a row of the class it was compiled for.
    ///
    /// # Errors
    /// Only [`EvalError::Cost`]: any other error is no match.
    fn holds(&self, event: &[Value]) -> Result<bool, EvalError>;

    /// Bytes held.
    fn memory_bytes(&self) -> usize;
}

/// The names that filters can use: the fields of an event class; in CEL also its chronicles and the subscriber.
#[derive(Debug, Clone, Default)]
pub struct FilterScope {
    subject: Subject,
    event: Fields,
    chronicled: Fields,
    /// The fields and chronicle columns, in the order of rows.
    columns: Fields,
    subscriber: Option<SubscriberColumns>,
    functions: UserFunctions,
}

impl FilterScope {
    /// The fields of a class, and the functions of the application.
    pub fn new(event: Fields, functions: UserFunctions) -> FilterScope {
        FilterScope { columns: event.clone(), event, functions, ..FilterScope::default() }
    }

    /// The properties of messages.
    pub fn of_messages(properties: Fields) -> FilterScope {
        FilterScope { subject: Subject::Message, ..FilterScope::new(properties, UserFunctions::default()) }
    }

    /// Adds the columns of chronicles, which follow the fields in rows, and the columns of subscribers.
    pub(crate) fn with(self, chronicled: Fields, subscriber: Option<SubscriberColumns>) -> FilterScope {
        let columns = Fields::new(self.event.iter().chain(chronicled.iter()).cloned().collect());
        FilterScope { chronicled, columns, subscriber, ..self }
    }
}

/// A compiled filter in canonical form.
#[derive(Debug, Clone)]
pub struct CompiledFilter {
    dialect: Dialect,
    depends_on_subscriber: bool,
    condition: Condition,
    exact: bool,
    /// Matches an event in which this number of fields are all null.
    matches_empty: Option<usize>,
    canonical: Box<[u8]>,
    evaluator: Arc<dyn Evaluate>,
}

/// Compiles a filter that calls no functions of the application; see [`compile_with`].
///
/// # Errors
/// Every problem found, with line and column in the filter's text.
pub fn compile(filter: &Filter, event: &Fields) -> Result<CompiledFilter, Vec<Problem>> {
    compile_with(filter, event, &UserFunctions::default())
}

/// Compiles a filter for events of a class. Cost: linear in its text, except for regular expressions, whose size is
/// bounded.
///
/// # Errors
/// Every problem found, with line and column in the filter's text.
pub fn compile_with(
    filter: &Filter,
    event: &Fields,
    functions: &UserFunctions,
) -> Result<CompiledFilter, Vec<Problem>> {
    compile_for(filter, &FilterScope::new(event.clone(), functions.clone()), None)
}

/// Compiles a predicate over messages with these properties, as [`compile_with`] does over events.
///
/// # Errors
/// Every problem found, with line and column in its text.
pub fn compile_for_messages(filter: &Filter, properties: &Fields) -> Result<CompiledFilter, Vec<Problem>> {
    compile_for(filter, &FilterScope::of_messages(properties.clone()), None)
}

/// As [`compile_with`], for one subscriber: `values` are its columns, in their order. Without them the filter is
/// compiled for checking only.
///
/// # Errors
/// As [`compile_with`].
pub(crate) fn compile_for(
    filter: &Filter,
    scope: &FilterScope,
    subscriber: Option<&[Value]>,
) -> Result<CompiledFilter, Vec<Problem>> {
    parse_with_large_stack(&filter.text, || match filter.dialect {
        Dialect::Cel => cel::compile(&filter.text, scope, subscriber),
        Dialect::Jmespath => jmespath::compile(&filter.text, &scope.event, &scope.functions),
        Dialect::EventPattern => pattern::compile(&filter.text, &scope.event),
    })
}

impl CompiledFilter {
    /// The result of a dialect's compiler: a condition in any form, whether it is exact, the dialect's canonical text
    /// (used if the condition is not exact), and the evaluator.
    pub fn new(
        dialect: Dialect,
        condition: Condition,
        exact: bool,
        canonical_text: &str,
        evaluator: Arc<dyn Evaluate>,
    ) -> CompiledFilter {
        let exact = exact && !condition.has_unknown();
        let condition = normal::normalise(condition);
        let mut canonical = Vec::new();
        if exact {
            // An exact condition identifies the filter, whatever the dialect.
            canonical.push(0);
            normal::write_condition(&condition, &mut canonical);
        } else {
            canonical.push(1 + dialect as u8);
            canonical.extend_from_slice(canonical_text.as_bytes());
        }
        let canonical = canonical.into();
        let (condition, exact) = match over_budget::within_budget(&condition) {
            Some(lighter) => (lighter, false),
            None => (condition, exact),
        };
        CompiledFilter {
            dialect,
            depends_on_subscriber: false,
            condition,
            exact,
            matches_empty: None,
            canonical,
            evaluator,
        }
    }

    /// The same filter, which in addition matches an event whose fields, `fields` in number, are all null.
    pub fn or_empty(mut self, fields: usize) -> CompiledFilter {
        self.matches_empty = Some(fields);
        // No other canonical form begins with this byte.
        self.canonical = [&[u8::MAX], &*self.canonical].concat().into();
        self
    }

    /// The dialect it was written in.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Whether it reads columns of its subscriber, so that its text means something else for another subscriber.
    pub fn depends_on_subscriber(&self) -> bool {
        self.depends_on_subscriber
    }

    /// Canonical bytes: filters with equal bytes match the same events of their class. Not human-readable.
    pub fn canonical(&self) -> &[u8] {
        &self.canonical
    }

    /// The number of fields of the class, if the filter matches an event in which every field is null, whatever its
    /// condition.
    pub fn matches_empty(&self) -> Option<usize> {
        self.matches_empty
    }

    /// The necessary condition of a match, in normal form; but see [`CompiledFilter::matches_empty`]. A condition that
    /// is too expensive is relaxed.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Whether its condition is sufficient for a match.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether it matches an event, by its dialect's own evaluator.
    ///
    /// # Errors
    /// Only [`EvalError::Cost`]: the step limit was exceeded.
    pub fn holds(&self, event: &[Value]) -> Result<bool, EvalError> {
        self.evaluator.holds(event)
    }

    pub(crate) fn evaluator(&self) -> &Arc<dyn Evaluate> {
        &self.evaluator
    }
}
