//! Subscribers' own filters: compiled, brought to a canonical form, and indexed, so that an event costs what it matches.
//!
//! A dialect lowers a filter to a [`Condition`]: a tree of single tests of the event. Where the condition says exactly
//! what the filter says, nothing else is kept of it, and filters of different dialects that mean the same are the same.
//! Where it says less, an event that meets the condition is put to the filter's own evaluator.

pub mod cel; // CEL as conditions
pub mod jmespath; // JMESPath: read, evaluated, as conditions
pub(crate) mod book; // the distinct filters of a class, and who has which
pub mod index; // which of them an event meets
mod kept; // what stays of a filter in memory once it is filed
pub mod normal; // the normal form, its encoding, its disjunctions
mod light; // what is too much for an index to ask
mod pattern; // event patterns as conditions
pub mod show; // conditions in words
pub mod text; // wildcards, addresses, folding: what tests do with text

use std::{cmp::Ordering, fmt, sync::Arc};

use tocsin_model::{
    field::Fields,
    filter::{Dialect, Filter},
    problem::Problem,
    value::Value,
};

use crate::{
    check::Subject,
    datum::{Datum, Trouble, compare, equal},
    defined::Functions,
    dialect::read_with_room,
    regular::Pattern,
    subscriber::SubscriberColumns,
};

use text::{Network, Wildcard, fold};

/// What the index knows of a filter: a condition on the event, without negations but those of single tests.
///
/// The filter matches only where the condition holds. `CompiledFilter::is_exact` says that the reverse is true as well.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// Every one of them holds.
    All(Vec<Condition>),
    /// At least one of them holds. Of none: never.
    Any(Vec<Condition>),
    /// One test holds.
    Test(Test),
    /// Nothing is asked.
    Always,
    /// Only evaluating the filter tells. Counts as holding.
    Unknown,
}

impl Condition {
    /// What never holds.
    pub fn never() -> Condition {
        Condition::Any(Vec::new())
    }

    /// One test.
    pub fn test(path: Path, how: How) -> Condition {
        Condition::Test(Test { path, how })
    }

    /// Whether it holds for an event, by looking at each test; [`Condition::Unknown`] does.
    pub fn holds(&self, event: &[Value]) -> bool {
        match self {
            Condition::All(parts) => parts.iter().all(|part| part.holds(event)),
            Condition::Any(parts) => parts.iter().any(|part| part.holds(event)),
            Condition::Test(test) => test.holds(event),
            Condition::Always | Condition::Unknown => true,
        }
    }

    /// Sees every test in it.
    pub fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a Test)) {
        match self {
            Condition::All(parts) | Condition::Any(parts) => parts.iter().for_each(|part| part.visit(see)),
            Condition::Test(test) => see(test),
            Condition::Always | Condition::Unknown => {}
        }
    }

    /// Whether it asks for something that only evaluating the filter tells.
    pub fn has_unknown(&self) -> bool {
        match self {
            Condition::All(parts) | Condition::Any(parts) => parts.iter().any(Condition::has_unknown),
            Condition::Unknown => true,
            Condition::Test(_) | Condition::Always => false,
        }
    }
}

/// One test of one place of the event.
#[derive(Debug, Clone, PartialEq)]
pub struct Test {
    /// Where it looks.
    pub path: Path,
    /// What it asks there.
    pub how: How,
}

/// A place of the event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The place of the field in the event class.
    pub field: usize,
    /// Keys into maps, from the field downwards.
    pub keys: Vec<Arc<str>>,
    /// Which values the test is put to.
    pub reach: Reach,
}

/// Which values at a path a test is put to. It holds if it holds for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// The value itself: one, or none where a key is missing or something on the way is not a map. A field of the class
    /// always has a value, null if nothing was said.
    One,
    /// The items of the list that stands there; none if it is not a list.
    Items,
    /// As event patterns reach: what is no list and no map, through lists on the way and at the end, however deep. A
    /// field of the class that is null has none, a key whose value is null has one.
    Leaves,
}

impl Path {
    /// A field of the class.
    pub fn field(field: usize) -> Path {
        Path { field, keys: Vec::new(), reach: Reach::One }
    }

    /// Calls for each value that a test is put to, until one answers true. Answers whether one did.
    pub fn any<'a>(&self, event: &'a [Value], see: &mut dyn FnMut(&'a Value) -> bool) -> bool {
        let Some(value) = event.get(self.field) else { return false };
        match self.reach {
            Reach::One => one(value, &self.keys).is_some_and(see),
            Reach::Items => match one(value, &self.keys) {
                Some(Value::List(items)) => items.iter().any(see),
                _ => false,
            },
            Reach::Leaves if value.is_null() => false,
            Reach::Leaves => leaves(value, &self.keys, see),
        }
    }
}

/// The value that keys lead to, through maps only.
pub(crate) fn one<'a>(value: &'a Value, keys: &[Arc<str>]) -> Option<&'a Value> {
    keys.iter().try_fold(value, |value, key| match value {
        Value::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
        _ => None,
    })
}

/// The leaves that keys lead to, through lists too.
fn leaves<'a>(value: &'a Value, keys: &[Arc<str>], see: &mut dyn FnMut(&'a Value) -> bool) -> bool {
    match (value, keys) {
        (Value::List(items), _) => items.iter().any(|item| leaves(item, keys, see)),
        (Value::Map(entries), [key, rest @ ..]) => {
            entries.iter().find(|(name, _)| name == key).is_some_and(|(_, value)| leaves(value, rest, see))
        }
        (Value::Map(_), []) | (_, [_, ..]) => false,
        (leaf, []) => see(leaf),
    }
}

/// What a test asks of a value.
#[derive(Debug, Clone)]
pub enum How {
    /// It equals one of these, numbers by exact value; null equals null. Lists and maps are never among them.
    In(Vec<Value>),
    /// It lies between limits of its kind: numbers, text or instants.
    Range(Range),
    /// It is text that starts so.
    Prefix(Arc<str>, Case),
    /// It is text that ends so.
    Suffix(Arc<str>, Case),
    /// It is text that contains this.
    Contains(Arc<str>, Case),
    /// It is text that equals this but for case. Equality with case is `In`.
    Folded(Arc<str>),
    /// It is text that fits a pattern with `*`.
    Wildcard(Wildcard),
    /// It is text in which a regular expression is found.
    Matches(Pattern),
    /// It is text, and an address within a network.
    Cidr(Network),
    /// With [`Reach::One`]: the value is there and not null. Else: there is at least one.
    Exists,
    /// The opposite of [`How::Exists`].
    Missing,
    /// There is a value, null among them, of which this is not so. Not for `Exists` and `Missing`.
    But(Box<How>),
}

/// Limits of a value, both of one kind; at least one of them is given.
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
    /// Whether the end itself is within.
    pub inclusive: bool,
}

/// Whether upper and lower case count as different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Case {
    /// They do.
    Kept,
    /// They do not: both texts are lower-cased by Unicode first.
    Folded,
}

impl Test {
    /// Whether it holds for an event.
    pub fn holds(&self, event: &[Value]) -> bool {
        match (&self.how, self.path.reach) {
            (How::Exists, Reach::One) => self.path.any(event, &mut |value| !value.is_null()),
            (How::Missing, Reach::One) => !self.path.any(event, &mut |value| !value.is_null()),
            (How::Exists, _) => self.path.any(event, &mut |_| true),
            (How::Missing, _) => !self.path.any(event, &mut |_| true),
            (how, _) => self.path.any(event, &mut |value| how.accepts(value)),
        }
    }
}

impl How {
    /// Equality with one value.
    pub fn equals(value: impl Into<Value>) -> How {
        How::In(vec![value.into()])
    }

    /// Equality with none of these; the value must be there.
    pub fn anything_but(values: Vec<Value>) -> How {
        How::But(Box::new(How::In(values)))
    }

    /// Text that starts so.
    pub fn prefix(text: &str, case: Case) -> How {
        How::Prefix(case.of(text), case)
    }

    /// Text that ends so.
    pub fn suffix(text: &str, case: Case) -> How {
        How::Suffix(case.of(text), case)
    }

    /// Text that contains this.
    pub fn contains(text: &str, case: Case) -> How {
        How::Contains(case.of(text), case)
    }

    /// Text that equals this but for case.
    pub fn equals_ignore_case(text: &str) -> How {
        How::Folded(Case::Folded.of(text))
    }

    /// What asking it of a value costs, in steps of an evaluation.
    pub fn steps(&self, value: &Value) -> usize {
        let bytes = value.as_text().map_or(0, str::len);
        match self {
            How::In(values) => values.len() / 4,
            How::Contains(_, Case::Kept) => bytes / 256,
            // The parts between its stars are looked for one after another, and found wherever they begin alike.
            How::Wildcard(_) => bytes / 64,
            How::Prefix(_, Case::Folded)
            | How::Suffix(_, Case::Folded)
            | How::Contains(_, Case::Folded)
            | How::Folded(_) => bytes / 8,
            How::Matches(pattern) => value.as_text().map_or(0, |text| pattern.steps(text)),
            How::But(inner) => inner.steps(value),
            _ => 0,
        }
    }

    /// Whether it is so of one value. Whether a value is there is not asked here.
    pub fn accepts(&self, value: &Value) -> bool {
        let text = value.as_text();
        match self {
            How::In(values) => values.iter().any(|other| equal(&Datum::of(other), &Datum::of(value))),
            How::Range(range) => range.accepts(value),
            How::Prefix(part, Case::Kept) => text.is_some_and(|text| text.starts_with(&**part)),
            How::Prefix(part, Case::Folded) => text.is_some_and(|text| fold(text).starts_with(&**part)),
            How::Suffix(part, Case::Kept) => text.is_some_and(|text| text.ends_with(&**part)),
            How::Suffix(part, Case::Folded) => text.is_some_and(|text| fold(text).ends_with(&**part)),
            How::Contains(part, Case::Kept) => text.is_some_and(|text| text.contains(&**part)),
            How::Contains(part, Case::Folded) => text.is_some_and(|text| fold(text).contains(&**part)),
            How::Folded(other) => text.is_some_and(|text| *fold(text) == **other),
            How::Wildcard(wildcard) => text.is_some_and(|text| wildcard.fits(text)),
            How::Matches(pattern) => text.is_some_and(|text| pattern.is_match(text)),
            How::Cidr(network) => text.is_some_and(|text| network.has(text)),
            How::Exists => true,
            How::Missing => false,
            How::But(how) => !how.accepts(value),
        }
    }
}

impl Case {
    fn of(self, text: &str) -> Arc<str> {
        match self {
            Case::Kept => text.into(),
            Case::Folded => fold(text).into(),
        }
    }
}

impl Range {
    /// Both ends, or one of them.
    pub fn within(low: Option<Limit>, high: Option<Limit>) -> How {
        How::Range(Range { low, high })
    }

    /// Whether a value lies within. One of another kind does not.
    pub fn accepts(&self, value: &Value) -> bool {
        let order = |limit: &Limit| compare(&Datum::of(value), &Datum::of(&limit.value)).ok().flatten();
        let within = |limit: &Limit, side: Ordering| match order(limit) {
            Some(Ordering::Equal) => limit.inclusive,
            Some(order) => order == side,
            None => false,
        };
        self.low.as_ref().is_none_or(|low| within(low, Ordering::Greater))
            && self.high.as_ref().is_none_or(|high| within(high, Ordering::Less))
    }
}

/// Regular expressions are equal where their texts are.
impl PartialEq for How {
    fn eq(&self, other: &How) -> bool {
        match (self, other) {
            (How::In(left), How::In(right)) => left == right,
            (How::Range(left), How::Range(right)) => left == right,
            (How::Prefix(left, case), How::Prefix(right, other))
            | (How::Suffix(left, case), How::Suffix(right, other))
            | (How::Contains(left, case), How::Contains(right, other)) => left == right && case == other,
            (How::Folded(left), How::Folded(right)) => left == right,
            (How::Wildcard(left), How::Wildcard(right)) => left == right,
            (How::Matches(left), How::Matches(right)) => left.as_str() == right.as_str(),
            (How::Cidr(left), How::Cidr(right)) => left == right,
            (How::Exists, How::Exists) | (How::Missing, How::Missing) => true,
            (How::But(left), How::But(right)) => left == right,
            _ => false,
        }
    }
}

/// What decides a filter by itself, as its dialect means it.
pub trait Evaluate: fmt::Debug + Send + Sync {
    /// Whether the filter matches an event, a row of the class it was compiled for.
    ///
    /// # Errors
    /// Only [`Trouble::Cost`]: every other trouble is no match.
    fn holds(&self, event: &[Value]) -> Result<bool, Trouble>;

    /// Bytes held.
    fn memory_bytes(&self) -> usize;
}

/// What filters may speak of: the fields of an event class; in CEL also its chronicles, and who the subscriber is.
#[derive(Debug, Clone, Default)]
pub struct FilterScope {
    subject: Subject,
    event: Fields,
    chronicled: Fields,
    /// Both, as rows have them.
    columns: Fields,
    subscriber: Option<SubscriberColumns>,
    functions: Functions,
}

impl FilterScope {
    /// The fields of a class, and functions of the application.
    pub fn new(event: Fields, functions: Functions) -> FilterScope {
        FilterScope { columns: event.clone(), event, functions, ..FilterScope::default() }
    }

    /// The properties of messages.
    pub fn of_messages(properties: Fields) -> FilterScope {
        FilterScope { subject: Subject::Message, ..FilterScope::new(properties, Functions::default()) }
    }

    /// With the columns of chronicles, which stand behind the fields in rows, and with what is known of subscribers.
    pub(crate) fn with(self, chronicled: Fields, subscriber: Option<SubscriberColumns>) -> FilterScope {
        let columns = Fields::new(self.event.iter().chain(chronicled.iter()).cloned().collect());
        FilterScope { chronicled, columns, subscriber, ..self }
    }
}

/// A filter that was read, checked and brought to its canonical form.
#[derive(Debug, Clone)]
pub struct CompiledFilter {
    dialect: Dialect,
    asks_subscriber: bool,
    condition: Condition,
    exact: bool,
    /// Of an event in which so many fields are null.
    matches_empty: Option<usize>,
    canonical: Box<[u8]>,
    evaluator: Arc<dyn Evaluate>,
}

/// Reads and checks a filter that calls no functions of the application; see [`compile_with`].
///
/// # Errors
/// Every problem found, with line and column in the filter's text.
pub fn compile(filter: &Filter, event: &Fields) -> Result<CompiledFilter, Vec<Problem>> {
    compile_with(filter, event, &Functions::default())
}

/// Reads and checks a filter for events of a class. Cost: linear in its text, but for regular expressions, whose size
/// is bounded.
///
/// # Errors
/// Every problem found, with line and column in the filter's text.
pub fn compile_with(filter: &Filter, event: &Fields, functions: &Functions) -> Result<CompiledFilter, Vec<Problem>> {
    compile_for(filter, &FilterScope::new(event.clone(), functions.clone()), None)
}

/// Reads and checks a predicate over messages with these properties, as [`compile_with`] does over events.
///
/// # Errors
/// Every problem found, with line and column in its text.
pub fn compile_for_messages(filter: &Filter, properties: &Fields) -> Result<CompiledFilter, Vec<Problem>> {
    compile_for(filter, &FilterScope::of_messages(properties.clone()), None)
}

/// As [`compile_with`], for somebody: the values of the columns of a subscriber, in their order. Without them the filter
/// is as it would be for somebody of whom everything is known.
///
/// # Errors
/// As [`compile_with`].
pub(crate) fn compile_for(
    filter: &Filter,
    scope: &FilterScope,
    subscriber: Option<&[Value]>,
) -> Result<CompiledFilter, Vec<Problem>> {
    read_with_room(&filter.text, || match filter.dialect {
        Dialect::Cel => cel::compile(&filter.text, scope, subscriber),
        Dialect::Jmespath => jmespath::compile(&filter.text, &scope.event, &scope.functions),
        Dialect::EventPattern => pattern::compile(&filter.text, &scope.event),
    })
}

impl CompiledFilter {
    /// What a dialect makes of a filter: its condition in any form, whether that is exact, its text in the dialect's
    /// own canonical form (used where the condition is not exact), and what evaluates it.
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
            // What it means says all, whatever the dialect.
            canonical.push(0);
            normal::write_condition(&condition, &mut canonical);
        } else {
            canonical.push(1 + dialect as u8);
            canonical.extend_from_slice(canonical_text.as_bytes());
        }
        let canonical = canonical.into();
        let (condition, exact) = match light::lightened(&condition) {
            Some(lighter) => (lighter, false),
            None => (condition, exact),
        };
        CompiledFilter { dialect, asks_subscriber: false, condition, exact, matches_empty: None, canonical, evaluator }
    }

    /// The same, but it matches an event in which every one of so many fields is null, whatever its condition says of it.
    pub fn or_empty(mut self, fields: usize) -> CompiledFilter {
        self.matches_empty = Some(fields);
        // No canonical form begins so.
        self.canonical = [&[u8::MAX], &*self.canonical].concat().into();
        self
    }

    /// The dialect it was written in.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Whether it asks who its subscriber is, so that its text means something else for another one.
    pub fn asks_subscriber(&self) -> bool {
        self.asks_subscriber
    }

    /// Filters with equal bytes match the same events of their class. Not for people.
    pub fn canonical(&self) -> &[u8] {
        &self.canonical
    }

    /// Whether it matches an event in which every field is null, whatever its condition says of it; how many fields the
    /// class has, if so.
    pub fn matches_empty(&self) -> Option<usize> {
        self.matches_empty
    }

    /// What must hold for it to match, in normal form; but see [`CompiledFilter::matches_empty`]. Where that would cost an
    /// event too much, it says less.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Whether it matches wherever its condition holds.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether it matches an event, by its dialect's own evaluator.
    ///
    /// # Errors
    /// Only [`Trouble::Cost`]: it took too many steps.
    pub fn holds(&self, event: &[Value]) -> Result<bool, Trouble> {
        self.evaluator.holds(event)
    }

    pub(crate) fn evaluator(&self) -> &Arc<dyn Evaluate> {
        &self.evaluator
    }
}
