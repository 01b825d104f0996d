//! The dialect of NotifyBC: JMESPath over the field `data`, as the JavaScript library of NotifyBC 6 evaluates it.
//!
//! # Differences from the dialect `jmespath`
//!
//! | case | meaning |
//! |---|---|
//! | the evaluated object | the value of the field `data`, a map |
//! | no data, or `{}` | the filter is not applied: it matches |
//! | unknown functions, wrong numbers of arguments | accepted; an evaluation error when they are reached |
//! | unknown fields | null |
//! | `<`, `<=`, `>`, `>=` | as in JavaScript: two texts by UTF-16 code units, other values as numbers, null as 0 |
//! | `==`, `!=` | deep, without conversion; numbers as doubles |
//! | `contains(list, x)` | false for a list or an object `x` |
//! | `contains(text, x)` | converts `x` to text |
//! | `starts_with(text, part)` | whether the last occurrence of `part` is at the start: false for `''` |
//! | `!a.b` | `(!a).b`, which is null |
//! | `contains_ci` | false for null |
//! | `sort` | by text, also numbers |
//! | `max_by`, `min_by` | a text counts by its number |
//!
//! Known differences from the library: `max` and `min` of texts order by code point, not by locale; `reverse` of a text
//! keeps surrogate pairs; `keys` and `values` keep the order of the object; members of JavaScript's `Object.prototype`
//! are no fields; an expression reference outside its place is an error; `-` without digits is refused.

use std::sync::{Arc, LazyLock};

use tocsin_model::{
    field::{Field, FieldType, Fields},
    filter::Dialect,
    id::Name,
    problem::{Code, Problem},
    value::Value,
};

use super::{
    evaluate::Evaluation,
    lower, memory_bytes, parse, print,
    syntax::{Kind, Mode, Node},
};
use crate::{
    dialect::parse_with_large_stack,
    eval_value::EvalError,
    expression::UserFunctions,
    filter::compiled::{CompiledFilter, EmptyEvent, Evaluate},
};

/// The field over which filters are evaluated.
pub const DATA_FIELD: &str = "data";

/// Compiles a filter for a class with the field `data`.
pub(in crate::filter) fn compile(
    text: &str,
    event: &Fields,
    functions: &UserFunctions,
) -> Result<CompiledFilter, Vec<Problem>> {
    let mut root = parse::parse(text, functions, Mode::Notifybc).map_err(|problem| vec![problem])?;
    let data = event.iter().position(|field| field.name.as_str() == DATA_FIELD && field.kind == FieldType::Map);
    let Some(data) = data else {
        let message = format!("the dialect `notifybc` reads the field `{DATA_FIELD}`, and the class has no such map");
        let problem = Problem::new(Code::UnknownName, "", message).param("value", DATA_FIELD);
        return Err(vec![problem.hint("declare the field `data` as a map, or use the dialect `jmespath`")]);
    };
    resolve(&mut root, data, true);
    let (condition, exact) = lower::lower(&root, event, Mode::Notifybc);
    let mut canonical = String::new();
    if !exact {
        print(&root, &mut canonical);
    }
    let evaluator = Arc::new(DataFilter { root, fields: event.clone(), data });
    let filter = CompiledFilter::new(Dialect::Notifybc, condition, exact, &canonical, evaluator);
    Ok(filter.or_empty(EmptyEvent::Map(data)))
}

/// Replaces the fields of the root, and the root itself, by those of the field `data`.
fn resolve(node: &mut Node, data: usize, is_root: bool) {
    if !is_root {
        return;
    }
    match &mut node.kind {
        Kind::Current => node.kind = Kind::Event(data),
        Kind::Field(name) => {
            let name = Arc::clone(name);
            let part = |kind: Kind| Node { kind, span: node.span, height: 1 };
            node.kind = Kind::Sub(Box::new([part(Kind::Event(data)), part(Kind::Field(name))]));
            node.height = 2;
        }
        // The other parts are evaluated on the result of the first.
        Kind::Sub(parts) | Kind::Project(_, parts) => resolve(&mut parts[0], data, true),
        Kind::Filter(parts) => resolve(&mut parts[0], data, true),
        Kind::Not(inner) => resolve(inner, data, true),
        Kind::Compare(_, parts) => parts.iter_mut().for_each(|part| resolve(part, data, true)),
        Kind::Or(parts)
        | Kind::And(parts)
        | Kind::List(parts)
        | Kind::Call(_, parts)
        | Kind::UserFunction(_, parts) => parts.iter_mut().for_each(|part| resolve(part, data, true)),
        Kind::Map(entries) => entries.iter_mut().for_each(|(_, value)| resolve(value, data, true)),
        Kind::Event(_) | Kind::Literal(_) | Kind::Index(_) | Kind::Slice(_) | Kind::Reference(_) | Kind::Failing => {}
    }
}

#[derive(Debug)]
struct DataFilter {
    root: Node,
    fields: Fields,
    data: usize,
}

impl Evaluate for DataFilter {
    fn holds(&self, event: &[Value]) -> Result<bool, EvalError> {
        if EmptyEvent::Map(self.data).holds(event) {
            return Ok(true);
        }
        match Evaluation::new(&self.fields, event, Mode::Notifybc).truth(&self.root, None) {
            Ok(truth) => Ok(truth),
            Err(EvalError::Cost) => Err(EvalError::Cost),
            Err(_) => Ok(false),
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + memory_bytes(&self.root)
    }
}

/// A filter over a data object alone, without an event class.
#[derive(Debug)]
pub struct NotifybcFilter(DataFilter);

impl NotifybcFilter {
    /// Parses a filter. Only its syntax is checked.
    ///
    /// # Errors
    /// The first syntax error, with line and column.
    pub fn compile(text: &str) -> Result<NotifybcFilter, Problem> {
        static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
            let name: Name = DATA_FIELD.parse().expect("`data` is a name");
            Fields::new(vec![Field::new(name, FieldType::Map)])
        });
        let parsed = parse_with_large_stack(text, || {
            parse::parse(text, &UserFunctions::default(), Mode::Notifybc).map_err(|problem| vec![problem])
        });
        let mut root = parsed.map_err(|mut problems| problems.remove(0))?;
        resolve(&mut root, 0, true);
        Ok(NotifybcFilter(DataFilter { root, fields: FIELDS.clone(), data: 0 }))
    }

    /// Whether a data object matches. Null and `{}` match, since the filter is not applied to them; an evaluation error
    /// and an exceeded step limit are no match.
    pub fn matches(&self, data: &serde_json::Value) -> bool {
        self.0.holds(&[Value::from(data.clone())]).unwrap_or(false)
    }
}
