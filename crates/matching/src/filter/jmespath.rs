//! JMESPath (jmespath.org) as NotifyBC uses it: a filter `f` is asked as `[?f]` of a list that holds the event alone, and
//! matches where the answer is not empty.
//!
//! # What expressions mean
//!
//! | case | meaning |
//! |---|---|
//! | a field or key that is missing, or null | null; `@` holds the fields that have a value |
//! | true | all but null, `false`, `''`, `[]` and `{}`; the number 0 is true |
//! | `==`, `!=` | deep, by type; numbers by exact value, also beyond 2^53 |
//! | `<`, `<=`, `>`, `>=` | of two numbers; null, which is not true, of anything else |
//! | a function given what it does not take, null too | an error: the whole filter does not match, also below `!` |
//! | `\|\|`, `&&` | what is not asked makes no error |
//! | `contains_ci(text, part)` | by Unicode's lower case; never where either is empty |
//! | an instant | the text of RFC 3339 in UTC that the API shows |
//! | a function of the application | CEL over its arguments, fields as they are; its errors are errors here |
//! | an event without any value | matches every filter. Only where the class demands no field |
//! | more than [`STEPS_MAX`](crate::evaluate::STEPS_MAX) steps | no match, and it is reported |
//!
//! Refused on entry: unknown functions and fields, wrong numbers of arguments, comparisons and arguments of types that
//! never fit. Text between backticks that is not JSON is text, as in older JMESPath.

mod check; // fields are found, types are checked
mod evaluate; // the plain interpreter
mod functions; // what expressions may call
mod lex; // text becomes words
mod lower; // the tree becomes conditions
mod parse; // words become a tree
mod syntax; // the tree

use std::{fmt::Write, sync::Arc};

use tocsin_model::{field::Fields, filter::Dialect, problem::Problem, value::Value};

use super::{CompiledFilter, Evaluate};
use crate::{
    datum::{Datum, Trouble},
    defined::Functions,
};

use evaluate::Run;
use syntax::{Kind, Node};

/// Reads a filter in JMESPath.
pub(super) fn compile(text: &str, event: &Fields, functions: &Functions) -> Result<CompiledFilter, Vec<Problem>> {
    let mut root = parse::parse(text, functions).map_err(|problem| vec![problem])?;
    check::check(&mut root, text, event)?;
    let (condition, exact) = lower::lower(&root, event);
    let demands = event.iter().any(|field| field.required || !field.default.is_null());
    let mut canonical = String::new();
    if !exact {
        print(&root, &mut canonical);
    }
    let evaluator = Arc::new(JmespathFilter { root, event: event.clone(), demands });
    let filter = CompiledFilter::new(Dialect::Jmespath, condition, exact, &canonical, evaluator);
    Ok(if demands { filter } else { filter.or_empty(event.len()) })
}

/// Whether the language has a function of this name.
pub(crate) fn is_built_in(name: &str) -> bool {
    functions::Function::named(name).is_some()
}

#[derive(Debug)]
struct JmespathFilter {
    root: Node,
    event: Fields,
    /// Whether every event has a value.
    demands: bool,
}

impl Evaluate for JmespathFilter {
    fn holds(&self, event: &[Value]) -> Result<bool, Trouble> {
        if !self.demands && event.iter().take(self.event.len()).all(Value::is_null) {
            return Ok(true);
        }
        match Run::new(&self.event, event).truth(&self.root, None) {
            Ok(truth) => Ok(truth),
            Err(Trouble::Cost) => Err(Trouble::Cost),
            Err(_) => Ok(false),
        }
    }

    fn memory_bytes(&self) -> usize {
        let mut bytes = size_of::<Self>();
        self.root.visit(&mut |node| {
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
}

/// An expression in JMESPath over any JSON, without an event class; for tests and comparisons.
#[derive(Debug)]
pub struct Query(Node);

impl Query {
    /// Reads an expression.
    ///
    /// # Errors
    /// The first thing that is not JMESPath, with line and column.
    pub fn compile(text: &str) -> Result<Query, Problem> {
        parse::parse(text, &Functions::default()).map(Query)
    }

    /// What it gives for a value.
    ///
    /// # Errors
    /// A function was given what it does not take, or the cost limit.
    pub fn search(&self, value: &Value) -> Result<Value, Trouble> {
        let (fields, here) = (Fields::default(), Datum::of(value));
        Run::new(&fields, &[]).value(&self.0, Some(&here)).map(|datum| datum.to_value())
    }
}

/// Appends a text that is equal for expressions that differ in spelling alone: white space, parentheses, the quoting of
/// names and literals. The order of operands counts, since an error in the first keeps the second from being asked.
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
    // Writing to a string does not fail. Texts are quoted, so that none can pass for syntax.
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
        Kind::Defined(function, _) => list(&format!("{function:?}"), &parts, out),
        Kind::Reference(_) => list("&", &parts, out),
    }
}
