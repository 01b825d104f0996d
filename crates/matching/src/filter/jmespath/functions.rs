//! The built-in functions of JMESPath: signatures and implementation.

use std::{cmp::Ordering, rc::Rc};

use tocsin_model::value::Value;

use crate::{
    eval_value::{EvalError, EvalValue, List, Map, Text, compare},
    filter::jmespath::json_types::{same, to_json_types, write_json},
    functions,
    steps::Steps,
};

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parameter {
    Anything,
    Number,
    Text,
    List,
    Map,
    TextOrList,
    TextListOrMap,
    /// A list of numbers.
    Numbers,
    /// A list of texts.
    Texts,
    /// A list of numbers, or one of texts.
    NumbersOrTexts,
    /// An expression reference, evaluated by the function.
    Reference,
}

/// The static type of a value. Any value can also be null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Boolean,
    Number,
    Text,
    List,
    Map,
}

impl Shape {
    pub fn name(self) -> &'static str {
        match self {
            Shape::Boolean => "a boolean",
            Shape::Number => "a number",
            Shape::Text => "text",
            Shape::List => "a list",
            Shape::Map => "an object",
        }
    }

    pub fn of(value: &Value) -> Option<Shape> {
        Some(match value {
            Value::Null => return None,
            Value::Boolean(_) => Shape::Boolean,
            Value::Integer(_) | Value::Number(_) => Shape::Number,
            Value::Text(_) | Value::Timestamp(_) => Shape::Text,
            Value::List(_) => Shape::List,
            Value::Map(_) => Shape::Map,
        })
    }
}

impl Parameter {
    /// Whether a value of this static type can be accepted; the items of a list are not checked.
    pub fn takes(self, shape: Shape) -> bool {
        match self {
            Parameter::Anything => true,
            Parameter::Number => shape == Shape::Number,
            Parameter::Text => shape == Shape::Text,
            Parameter::List | Parameter::Numbers | Parameter::Texts | Parameter::NumbersOrTexts => shape == Shape::List,
            Parameter::Map => shape == Shape::Map,
            Parameter::TextOrList => matches!(shape, Shape::Text | Shape::List),
            Parameter::TextListOrMap => matches!(shape, Shape::Text | Shape::List | Shape::Map),
            Parameter::Reference => false,
        }
    }

    /// Whether every value of an accepted static type is accepted.
    pub fn is_plain(self) -> bool {
        !matches!(self, Parameter::Numbers | Parameter::Texts | Parameter::NumbersOrTexts | Parameter::Reference)
    }

    fn accepts(self, given: &EvalValue<'_>, steps: &mut Steps) -> Result<(), EvalError> {
        let all = |fits: fn(&EvalValue<'_>) -> bool, steps: &mut Steps| match given {
            EvalValue::List(items) => {
                steps.take(items.len())?;
                Ok(items.iter().all(|item| fits(&to_json_types(item))))
            }
            _ => Ok(false),
        };
        let fits = match self {
            Parameter::Anything => true,
            Parameter::Number => is_number(given),
            Parameter::Text => is_text(given),
            Parameter::List => matches!(given, EvalValue::List(_)),
            Parameter::Map => matches!(given, EvalValue::Map(_)),
            Parameter::TextOrList => matches!(given, EvalValue::Text(_) | EvalValue::List(_)),
            Parameter::TextListOrMap => matches!(given, EvalValue::Text(_) | EvalValue::List(_) | EvalValue::Map(_)),
            Parameter::Numbers => all(is_number, steps)?,
            Parameter::Texts => all(is_text, steps)?,
            Parameter::NumbersOrTexts => all(is_number, steps)? || all(is_text, steps)?,
            Parameter::Reference => false,
        };
        match given {
            _ if fits => Ok(()),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Parameter::Anything => "any",
            Parameter::Number => "number",
            Parameter::Text => "text",
            Parameter::List => "list",
            Parameter::Map => "object",
            Parameter::TextOrList => "text or list",
            Parameter::TextListOrMap => "text, list or object",
            Parameter::Numbers => "list of numbers",
            Parameter::Texts => "list of texts",
            Parameter::NumbersOrTexts => "list of numbers or texts",
            Parameter::Reference => "&expression",
        }
    }
}

pub(super) fn is_number(eval_value: &EvalValue<'_>) -> bool {
    matches!(eval_value, EvalValue::Integer(_) | EvalValue::Number(_))
}

fn is_text(eval_value: &EvalValue<'_>) -> bool {
    matches!(eval_value, EvalValue::Text(_))
}

/// The signature of a function.
#[derive(Debug)]
pub(super) struct Signature {
    pub name: &'static str,
    pub takes: &'static [Parameter],
    /// Whether the last parameter can be repeated.
    pub repeats: bool,
}

impl Signature {
    pub fn parameter(&self, at: usize) -> Option<Parameter> {
        match self.takes.get(at) {
            None if self.repeats => self.takes.last().copied(),
            parameter => parameter.copied(),
        }
    }

    /// The signature, as in a call.
    pub fn show(&self) -> String {
        let names: Vec<&str> = self.takes.iter().map(|parameter| parameter.name()).collect();
        format!("{}({}{})", self.name, names.join(", "), if self.repeats { ", ..." } else { "" })
    }
}

macro_rules! functions {
    ($($function:ident $name:literal ($($takes:ident),*) $($repeats:literal)?;)*) => {
        /// A built-in function.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Function { $($function),* }

        const ALL: &[(Function, Signature)] = &[$((Function::$function, Signature {
            name: $name,
            takes: &[$(Parameter::$takes),*],
            repeats: false $(|| $repeats)?,
        })),*];
    };
}

functions! {
    Abs "abs"(Number);
    Avg "avg"(Numbers);
    Ceil "ceil"(Number);
    Contains "contains"(TextOrList, Anything);
    ContainsCi "contains_ci"(Text, Text);
    EndsWith "ends_with"(Text, Text);
    Floor "floor"(Number);
    Join "join"(Text, Texts);
    Keys "keys"(Map);
    Length "length"(TextListOrMap);
    Map "map"(Reference, List);
    Max "max"(NumbersOrTexts);
    MaxBy "max_by"(List, Reference);
    Merge "merge"(Map) true;
    Min "min"(NumbersOrTexts);
    MinBy "min_by"(List, Reference);
    NotNull "not_null"(Anything) true;
    Reverse "reverse"(TextOrList);
    Sort "sort"(NumbersOrTexts);
    SortBy "sort_by"(List, Reference);
    StartsWith "starts_with"(Text, Text);
    Sum "sum"(Numbers);
    ToArray "to_array"(Anything);
    ToNumber "to_number"(Anything);
    ToText "to_string"(Anything);
    Type "type"(Anything);
    Values "values"(Map);
}

impl Function {
    pub fn named(name: &str) -> Option<Function> {
        ALL.iter().find(|(_, signature)| signature.name == name).map(|(function, _)| *function)
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|(_, signature)| signature.name)
    }

    pub fn signature(self) -> &'static Signature {
        // The table is in the order of the enum.
        &ALL[self as usize].1
    }
}

/// Calls a function that takes only values.
///
/// # Errors
/// An argument has the wrong type, or the step limit was exceeded.
pub(super) fn call<'a>(
    function: Function,
    given: &[EvalValue<'a>],
    steps: &mut Steps,
) -> Result<EvalValue<'a>, EvalError> {
    for (at, eval_value) in given.iter().enumerate() {
        function.signature().parameter(at).ok_or(EvalError::Type)?.accepts(eval_value, steps)?;
    }
    let first = &given[0];
    if let EvalValue::Text(text) = first {
        steps.take(text.len() / 64)?;
    }
    Ok(match (function, first) {
        (Function::Abs, EvalValue::Integer(value)) => match value.checked_abs() {
            Some(value) => EvalValue::Integer(value),
            None => EvalValue::Number((*value as f64).abs()),
        },
        (Function::Abs, EvalValue::Number(value)) => EvalValue::Number(value.abs()),
        (Function::Ceil | Function::Floor, EvalValue::Integer(value)) => EvalValue::Integer(*value),
        (Function::Ceil, EvalValue::Number(value)) => EvalValue::Number(value.ceil()),
        (Function::Floor, EvalValue::Number(value)) => EvalValue::Number(value.floor()),
        (Function::Avg, EvalValue::List(items)) if items.is_empty() => EvalValue::Null,
        (Function::Avg, EvalValue::List(items)) => finite(total(items) / items.len() as f64)?,
        (Function::Sum, EvalValue::List(items)) => sum(items)?,
        (Function::Contains, EvalValue::Text(text)) => EvalValue::Boolean(match &given[1] {
            EvalValue::Text(part) => text.contains(&**part),
            _ => false,
        }),
        (Function::Contains, EvalValue::List(items)) => {
            for item in items.iter() {
                if same(&to_json_types(item), &given[1], steps)? {
                    return Ok(EvalValue::Boolean(true));
                }
            }
            EvalValue::Boolean(false)
        }
        (Function::ContainsCi, EvalValue::Text(text)) => {
            let part = text_of(&given[1])?;
            // Quadratic at worst, so it is charged that way.
            steps.take(text.len().saturating_mul(part.len()) / 1024)?;
            functions::charge_folding(text, steps)?;
            EvalValue::Boolean(!part.is_empty() && functions::contains_ci(text, part))
        }
        (Function::StartsWith, EvalValue::Text(text)) => EvalValue::Boolean(text.starts_with(text_of(&given[1])?)),
        (Function::EndsWith, EvalValue::Text(text)) => EvalValue::Boolean(text.ends_with(text_of(&given[1])?)),
        (Function::Join, EvalValue::Text(glue)) => {
            let EvalValue::List(items) = &given[1] else { return Err(EvalError::Type) };
            let mut joined = String::new();
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    joined.push_str(glue);
                }
                let before = joined.len();
                joined.push_str(text_of(&to_json_types(item))?);
                steps.take(1 + (joined.len() - before + glue.len()) / 64)?;
            }
            EvalValue::text(joined)
        }
        (Function::Keys, EvalValue::Map(entries)) => {
            steps.take(entries.len())?;
            list_of(entries.iter().map(|(key, _)| key).collect())
        }
        (Function::Values, EvalValue::Map(entries)) => {
            steps.take(entries.len())?;
            list_of(entries.iter().map(|(_, value)| to_json_types(value)).collect())
        }
        (Function::Length, EvalValue::Text(text)) => count(text.chars().count()),
        (Function::Length, EvalValue::List(items)) => count(items.len()),
        (Function::Length, EvalValue::Map(entries)) => count(entries.len()),
        (Function::Max, EvalValue::List(items)) => extreme(items, Ordering::Greater, steps)?,
        (Function::Min, EvalValue::List(items)) => extreme(items, Ordering::Less, steps)?,
        (Function::Merge, _) => merge(given, steps)?,
        (Function::NotNull, _) => {
            given.iter().find(|eval_value| !is_null(eval_value)).cloned().unwrap_or(EvalValue::Null)
        }
        (Function::Reverse, EvalValue::Text(text)) => {
            steps.take(text.len() / 32)?;
            EvalValue::text(text.chars().rev().collect::<String>())
        }
        (Function::Reverse, EvalValue::List(items)) => {
            steps.take(items.len())?;
            list_of((0..items.len()).rev().map(|at| items.item(at)).collect())
        }
        (Function::Sort, EvalValue::List(items)) => {
            let mut sorted: Vec<EvalValue<'a>> = items.iter().map(to_json_types).collect();
            charge_order(&sorted, sorted.len().max(2).ilog2() as usize, steps)?;
            sorted.sort_by(order);
            list_of(sorted)
        }
        (Function::ToArray, EvalValue::List(_)) => first.clone(),
        (Function::ToArray, _) => list_of(vec![first.clone()]),
        (Function::ToNumber, EvalValue::Integer(_) | EvalValue::Number(_)) => first.clone(),
        (Function::ToNumber, EvalValue::Text(text)) => match serde_json::from_str::<serde_json::Number>(text) {
            Ok(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => EvalValue::Integer(integer),
                (None, Some(number)) => EvalValue::Number(number),
                _ => EvalValue::Null,
            },
            Err(_) => EvalValue::Null,
        },
        (Function::ToNumber, _) => EvalValue::Null,
        (Function::ToText, EvalValue::Text(_)) => first.clone(),
        (Function::ToText, _) => {
            let mut out = String::new();
            write_json(first, &mut out, steps)?;
            EvalValue::text(out)
        }
        (Function::Type, _) => EvalValue::Text(Text::Borrowed(type_name(first))),
        _ => return Err(EvalError::Type),
    })
}

/// Calls a function that evaluates an expression for the items of a list. `keys` holds the results, one for each item.
///
/// # Errors
/// The keys are neither all numbers nor all texts.
pub(super) fn call_by<'a>(
    function: Function,
    items: Vec<EvalValue<'a>>,
    keys: Vec<EvalValue<'a>>,
    steps: &mut Steps,
) -> Result<EvalValue<'a>, EvalError> {
    if function == Function::Map {
        return Ok(list_of(keys));
    }
    if !keys.iter().all(is_number) && !keys.iter().all(is_text) {
        return Err(if keys.iter().any(is_null) { EvalError::Null } else { EvalError::Type });
    }
    let rounds = if function == Function::SortBy { keys.len().max(2).ilog2() as usize } else { 1 };
    charge_order(&keys, rounds, steps)?;
    let mut pairs: Vec<(EvalValue<'a>, EvalValue<'a>)> = keys.into_iter().zip(items).collect();
    Ok(match function {
        Function::SortBy => {
            pairs.sort_by(|left, right| order(&left.0, &right.0));
            list_of(pairs.into_iter().map(|(_, item)| item).collect())
        }
        // The first of equal ones.
        Function::MaxBy => select_extreme(pairs, Ordering::Greater),
        Function::MinBy => select_extreme(pairs, Ordering::Less),
        _ => return Err(EvalError::Type),
    })
}

fn select_extreme<'a>(pairs: Vec<(EvalValue<'a>, EvalValue<'a>)>, requested: Ordering) -> EvalValue<'a> {
    let best = pairs.into_iter().reduce(|best, next| if order(&next.0, &best.0) == requested { next } else { best });
    best.map_or(EvalValue::Null, |(_, item)| item)
}

fn extreme<'a>(items: &List<'a>, requested: Ordering, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let items: Vec<EvalValue<'a>> = items.iter().map(to_json_types).collect();
    charge_order(&items, 1, steps)?;
    let best = items.into_iter().reduce(|best, next| if order(&next, &best) == requested { next } else { best });
    Ok(best.unwrap_or(EvalValue::Null))
}

/// The order of two numbers or two texts; never called for other values.
fn order(left: &EvalValue<'_>, right: &EvalValue<'_>) -> Ordering {
    compare(left, right).ok().flatten().unwrap_or(Ordering::Equal)
}

/// Charges for comparing each value `rounds` times with another. Long texts may differ only at their ends.
fn charge_order(items: &[EvalValue<'_>], rounds: usize, steps: &mut Steps) -> Result<(), EvalError> {
    let bytes = |eval_value: &EvalValue<'_>| if let EvalValue::Text(text) = eval_value { text.len() } else { 0 };
    let each = items.iter().fold(0usize, |sum, item| sum.saturating_add(1 + bytes(item) / 64));
    steps.take(each.saturating_mul(rounds))
}

fn total(items: &List<'_>) -> f64 {
    items
        .iter()
        .map(|item| match item {
            EvalValue::Integer(value) => value as f64,
            EvalValue::Number(value) => value,
            _ => 0.0,
        })
        .sum()
}

/// Integers stay integers while they fit.
fn sum<'a>(items: &List<'a>) -> Result<EvalValue<'a>, EvalError> {
    let whole = items.iter().try_fold(0i64, |sum, item| match item {
        EvalValue::Integer(value) => sum.checked_add(value),
        _ => None,
    });
    match whole {
        Some(sum) => Ok(EvalValue::Integer(sum)),
        None => finite(total(items)),
    }
}

/// JSON has no infinite numbers and no NaN.
fn finite<'a>(value: f64) -> Result<EvalValue<'a>, EvalError> {
    if value.is_finite() { Ok(EvalValue::Number(value)) } else { Err(EvalError::Range) }
}

fn merge<'a>(given: &[EvalValue<'a>], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let mut merged: Vec<(EvalValue<'a>, EvalValue<'a>)> = Vec::new();
    for eval_value in given {
        let EvalValue::Map(entries) = eval_value else { return Err(EvalError::Type) };
        for (key, value) in entries.iter() {
            steps.take(1 + merged.len() / 8)?;
            let name = text_of(&key)?;
            match merged.iter_mut().find(|(known, _)| text_of(known).is_ok_and(|known| known == name)) {
                Some((_, known)) => *known = value,
                None => merged.push((key, value)),
            }
        }
    }
    Ok(EvalValue::Map(Map::Owned(Rc::from(merged))))
}

fn type_name(eval_value: &EvalValue<'_>) -> &'static str {
    match eval_value {
        EvalValue::Null => "null",
        EvalValue::Boolean(_) => "boolean",
        EvalValue::Integer(_) | EvalValue::Number(_) => "number",
        EvalValue::List(_) => "array",
        EvalValue::Map(_) => "object",
        _ => "string",
    }
}

fn is_null(eval_value: &EvalValue<'_>) -> bool {
    matches!(eval_value, EvalValue::Null)
}

fn text_of<'b>(eval_value: &'b EvalValue<'_>) -> Result<&'b str, EvalError> {
    match eval_value {
        EvalValue::Text(text) => Ok(text),
        EvalValue::Null => Err(EvalError::Null),
        _ => Err(EvalError::Type),
    }
}

fn count<'a>(number: usize) -> EvalValue<'a> {
    EvalValue::Integer(number as i64)
}

pub(super) fn list_of(items: Vec<EvalValue<'_>>) -> EvalValue<'_> {
    EvalValue::List(List::Owned(items.into()))
}
