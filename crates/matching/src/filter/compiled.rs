//! A compiled filter: its condition, its canonical form and its evaluator.

use std::{fmt, sync::Arc};

use tocsin_model::{field::Fields, filter::Dialect, value::Value};

use crate::{
    check::scope::Subject,
    eval_value::EvalError,
    expression::UserFunctions,
    filter::{condition::Condition, normal, over_budget},
    subscriber::SubscriberColumns,
};

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

/// An event without data, which some filters match whatever their condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyEvent {
    /// The first fields, in this number, are all null.
    Fields(usize),
    /// The field with this index is null or an empty map.
    Map(usize),
}

impl EmptyEvent {
    /// Whether an event is one.
    pub fn holds(self, event: &[Value]) -> bool {
        match self {
            EmptyEvent::Fields(count) => event.iter().take(count).all(Value::is_null),
            EmptyEvent::Map(at) => match event.get(at) {
                None | Some(Value::Null) => true,
                Some(Value::Map(entries)) => entries.is_empty(),
                Some(_) => false,
            },
        }
    }
}

/// The names that filters can use: the fields of an event class; in CEL also its chronicles and the subscriber.
#[derive(Debug, Clone, Default)]
pub struct FilterScope {
    pub(super) subject: Subject,
    pub(crate) event: Fields,
    pub(super) chronicled: Fields,
    /// The fields and chronicle columns, in the order of rows.
    pub(super) columns: Fields,
    pub(super) subscriber: Option<SubscriberColumns>,
    pub(crate) functions: UserFunctions,
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
    pub(super) dialect: Dialect,
    pub(super) depends_on_subscriber: bool,
    pub(super) condition: Condition,
    pub(super) exact: bool,
    /// Matches these events, whatever its condition.
    pub(super) matches_empty: Option<EmptyEvent>,
    pub(super) canonical: Box<[u8]>,
    pub(super) evaluator: Arc<dyn Evaluate>,
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

    /// The same filter, which in addition matches an event without data.
    pub fn or_empty(mut self, empty: EmptyEvent) -> CompiledFilter {
        self.matches_empty = Some(empty);
        // No other canonical form begins with these bytes.
        let first = match empty {
            EmptyEvent::Fields(_) => u8::MAX,
            EmptyEvent::Map(_) => u8::MAX - 1,
        };
        self.canonical = [&[first], &*self.canonical].concat().into();
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

    /// The events without data that the filter matches, whatever its condition.
    pub fn matches_empty(&self) -> Option<EmptyEvent> {
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
