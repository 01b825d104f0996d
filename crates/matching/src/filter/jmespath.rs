//! JMESPath (jmespath.org) as NotifyBC uses it: a filter `f` is evaluated as `[?f]` over a list that contains only the
//! event. It matches if the result is not empty.
//!
//! # Semantics of expressions
//!
//! | case | meaning |
//! |---|---|
//! | a missing field or key, or null | null; `@` holds the fields that have a value |
//! | true | any value except null, `false`, `''`, `[]` and `{}`; the number 0 is true |
//! | `==`, `!=` | deep, by type; numbers by exact value, also beyond 2^53 |
//! | `<`, `<=`, `>`, `>=` | of two numbers; for other values the result is null, which is not true |
//! | an argument of the wrong type, also null | an error: the whole filter does not match, also below `!` |
//! | `\|\|`, `&&` | operands that are not evaluated cause no error |
//! | `contains_ci(text, part)` | by Unicode's lower case; false if either is empty |
//! | a timestamp | text in RFC 3339, in UTC, as in the API |
//! | a user-defined function | CEL over its arguments; fields keep their types; its errors are errors here |
//! | an event without any value | matches every filter. Possible only if the class requires no field |
//! | more than [`STEPS_MAX`](crate::steps::STEPS_MAX) steps | no match, and it is reported |
//!
//! Rejected at compile time: unknown functions and fields, wrong numbers of arguments, comparisons and arguments of
//! incompatible types. Text between backticks that is not JSON is text, as in older JMESPath.

mod json_types; // values as JSON types
mod check; // resolves fields, checks types
mod evaluate; // the interpreter
mod functions; // the built-in functions
mod lex; // the lexer
mod javascript; // order, equality and conversion of values as in JavaScript
mod lower; // lowers the syntax tree to conditions
mod notifybc; // the dialect of NotifyBC
mod parse; // the parser
mod syntax; // the syntax tree

use std::{fmt::Write, sync::Arc};

use evaluate::Evaluation;
pub(super) use notifybc::compile as compile_for_notifybc;
pub use notifybc::{DATA_FIELD, NotifybcFilter};
use syntax::{Kind, Mode, Node};
use tocsin_model::{field::Fields, filter::Dialect, problem::Problem, value::Value};

use crate::{
    eval_value::{EvalError, EvalValue},
    expression::UserFunctions,
    filter::compiled::{CompiledFilter, EmptyEvent, Evaluate},
};

/// Compiles a JMESPath filter.
pub(super) fn compile(text: &str, event: &Fields, functions: &UserFunctions) -> Result<CompiledFilter, Vec<Problem>> {
    let mut root = parse::parse(text, functions, Mode::Standard).map_err(|problem| vec![problem])?;
    check::check(&mut root, text, event)?;
    let (condition, exact) = lower::lower(&root, event, Mode::Standard);
    let demands = event.iter().any(|field| field.required || !field.default.is_null());
    let mut canonical = String::new();
    if !exact {
        print(&root, &mut canonical);
    }
    let evaluator = Arc::new(JmespathFilter { root, event: event.clone(), demands });
    let filter = CompiledFilter::new(Dialect::Jmespath, condition, exact, &canonical, evaluator);
    Ok(if demands { filter } else { filter.or_empty(EmptyEvent::Fields(event.len())) })
}

/// Whether there is a built-in function of this name.
pub(crate) fn is_built_in(name: &str) -> bool {
    functions::Function::named(name).is_some()
}

#[derive(Debug)]
struct JmespathFilter {
    root: Node,
    event: Fields,
    /// Whether the class requires a field, so that every event has a value.
    demands: bool,
}

impl Evaluate for JmespathFilter {
    fn holds(&self, event: &[Value]) -> Result<bool, EvalError> {
        if !self.demands && event.iter().take(self.event.len()).all(Value::is_null) {
            return Ok(true);
        }
        match Evaluation::new(&self.event, event, Mode::Standard).truth(&self.root, None) {
            Ok(truth) => Ok(truth),
            Err(EvalError::Cost) => Err(EvalError::Cost),
            Err(_) => Ok(false),
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + memory_bytes(&self.root)
    }
}

/// Bytes held by a syntax tree.
fn memory_bytes(root: &Node) -> usize {
    let mut bytes = 0;
    root.visit(&mut |node| {
        bytes += size_of::<Node>();
        bytes += match &node.kind {
            Kind::Field(name) => name.len(),
            Kind::Literal(Value::Text(text)) => text.len(),
            Kind::Literal(Value::List(items)) => items.len() * 2 * size_of::<Value>(),
            _ => 0,
        }
    });
    bytes
}

/// A JMESPath expression over any JSON, without an event class; for tests and comparisons.
#[derive(Debug)]
pub struct Query {
    root: Node,
    mode: Mode,
}

impl Query {
    /// Parses an expression.
    ///
    /// # Errors
    /// The first syntax error, with line and column.
    pub fn compile(text: &str) -> Result<Query, Problem> {
        Query::in_mode(text, Mode::Standard)
    }

    /// Parses an expression as NotifyBC's library does.
    ///
    /// # Errors
    /// As [`Query::compile`].
    pub fn compile_for_notifybc(text: &str) -> Result<Query, Problem> {
        Query::in_mode(text, Mode::Notifybc)
    }

    fn in_mode(text: &str, mode: Mode) -> Result<Query, Problem> {
        parse::parse(text, &UserFunctions::default(), mode).map(|root| Query { root, mode })
    }

    /// Evaluates the expression over a value.
    ///
    /// # Errors
    /// An argument has the wrong type, or the step limit was exceeded.
    pub fn search(&self, value: &Value) -> Result<Value, EvalError> {
        let (fields, here) = (Fields::default(), EvalValue::of(value));
        Evaluation::new(&fields, &[], self.mode).value(&self.root, Some(&here)).map(|eval_value| eval_value.to_value())
    }
}

/// Appends the canonical text: equal for expressions that differ only in white space, parentheses, and the quoting of
/// names and literals. The order of operands matters, since an error in the first one prevents the evaluation of the
/// second.
fn print(node: &Node, out: &mut String) {
    let list = |name: &str, parts: &[&Node], out: &mut String| {
        let _ = write!(out, "({name}");
        for part in parts {
            out.push(' ');
            print(part, out);
        }
        out.push(')');
    };
    let parts = node.parts();
    // Writing to a string cannot fail. Texts are quoted, so they cannot be confused with syntax.
    match &node.kind {
        Kind::Current => out.push('@'),
        Kind::Event(at) => _ = write!(out, "e{at}"),
        Kind::Field(name) => _ = write!(out, "{name:?}"),
        Kind::Literal(value) => _ = write!(out, "{value:?}"),
        Kind::Index(at) => _ = write!(out, "[{at}]"),
        Kind::Slice(slice) => _ = write!(out, "{slice:?}"),
        Kind::Sub(_) => list(".", &parts, out),
        Kind::Or(_) => list("||", &parts, out),
        Kind::And(_) => list("&&", &parts, out),
        Kind::Not(_) => list("!", &parts, out),
        Kind::Compare(comparison, _) => list(comparison.symbol(), &parts, out),
        Kind::Project(over, _) => list(&format!("{over:?}"), &parts, out),
        Kind::Filter(_) => list("?", &parts, out),
        Kind::List(_) => list("list", &parts, out),
        Kind::Map(entries) => {
            let names: Vec<&str> = entries.iter().map(|(name, _)| &**name).collect();
            list(&format!("map {names:?}"), &parts, out);
        }
        Kind::Call(function, _) => list(function.signature().name, &parts, out),
        Kind::UserFunction(function, _) => list(&format!("{function:?}"), &parts, out),
        Kind::Reference(_) => list("&", &parts, out),
        Kind::Failing => out.push_str("fail"),
    }
}
