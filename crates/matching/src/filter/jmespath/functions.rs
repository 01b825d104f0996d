//! The built-in functions of JMESPath: signatures and implementation.

use std::{cmp::Ordering, rc::Rc};

use tocsin_model::value::Value;

use crate::{
    eval_value::{EvalError, EvalValue, List, Map, Text, compare},
    filter::jmespath::{
        javascript,
        json_types::{same, to_json_types, write_json},
        syntax::Mode,
    },
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
    mode: Mode,
    steps: &mut Steps,
) -> Result<EvalValue<'a>, EvalError> {
    if mode == Mode::Notifybc
        && let Some(result) = call_as_javascript(function, given, steps)?
    {
        return Ok(result);
    }
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

/// A function where NotifyBC's library has a result of its own; `None` where it decides as JMESPath does.
///
/// # Errors
/// As [`call`].
fn call_as_javascript<'a>(
    function: Function,
    given: &[EvalValue<'a>],
    steps: &mut Steps,
) -> Result<Option<EvalValue<'a>>, EvalError> {
    let [first, others @ ..] = given else { return Ok(None) };
    let accepts = |at: usize, eval_value: &EvalValue<'a>, steps: &mut Steps| {
        function.signature().parameter(at).ok_or(EvalError::Type)?.accepts(eval_value, steps)
    };
    // An argument of the wrong type is an error, as in JMESPath.
    let is_repeated = function.signature().repeats;
    match function {
        Function::ContainsCi if given.iter().any(is_null) => {
            for (at, eval_value) in given.iter().enumerate().filter(|(_, eval_value)| !is_null(eval_value)) {
                accepts(at, eval_value, steps)?;
            }
            return Ok(Some(EvalValue::Boolean(false)));
        }
        // Only the first argument is checked.
        _ if is_repeated => accepts(0, first, steps)?,
        _ => given.iter().enumerate().try_for_each(|(at, eval_value)| accepts(at, eval_value, steps))?,
    }
    if let EvalValue::Text(text) = first {
        steps.take(text.len() / 64)?;
    }
    Ok(Some(match (function, first, others) {
        (Function::Contains, EvalValue::Text(text), [part]) => {
            let part = javascript::text(part, steps)?;
            EvalValue::Boolean(text.contains(&part))
        }
        (Function::Contains, EvalValue::List(items), [requested]) => {
            for item in items.iter() {
                steps.take(1)?;
                if javascript::same_scalar(&item, requested, steps)? {
                    return Ok(Some(EvalValue::Boolean(true)));
                }
            }
            EvalValue::Boolean(false)
        }
        // The last occurrence of the part must be the first.
        (Function::StartsWith, EvalValue::Text(text), [part]) => {
            EvalValue::Boolean(text.rfind(text_of(part)?) == Some(0))
        }
        (Function::Length, EvalValue::Text(text), _) => count(text.encode_utf16().count()),
        (Function::Avg, EvalValue::List(items), _) => EvalValue::Number(total(items) / items.len() as f64),
        (Function::Sum, EvalValue::List(items), _) => EvalValue::Number(total(items)),
        (Function::Sort, EvalValue::List(items), _) => {
            let mut sorted = Vec::with_capacity(items.len());
            for item in items.iter() {
                sorted.push((javascript::text(&item, steps)?, to_json_types(item)));
            }
            let bytes = sorted.iter().fold(0usize, |sum, (text, _)| sum.saturating_add(1 + text.len() / 64));
            steps.take(bytes.saturating_mul(sorted.len().max(2).ilog2() as usize))?;
            sorted.sort_by(|left, right| javascript::order_of_texts(&left.0, &right.0));
            list_of(sorted.into_iter().map(|(_, item)| item).collect())
        }
        (Function::ToNumber, EvalValue::Text(text), _) => match javascript::number_of(text) {
            number if number.is_nan() => EvalValue::Null,
            number => EvalValue::Number(number),
        },
        (Function::Merge, _, _) => merge_as_javascript(given, steps)?,
        _ => return Ok(None),
    }))
}

/// `merge`, which also takes the items of lists and the characters of texts, by their position, and skips other values.
fn merge_as_javascript<'a>(given: &[EvalValue<'a>], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let numbered = |items: Vec<EvalValue<'a>>| -> EvalValue<'a> {
        let entries = items.into_iter().enumerate().map(|(at, item)| (EvalValue::text(at.to_string()), item));
        EvalValue::Map(Map::Owned(entries.collect()))
    };
    let mut maps = Vec::with_capacity(given.len());
    for eval_value in given {
        match eval_value {
            EvalValue::Map(_) => maps.push(eval_value.clone()),
            EvalValue::List(items) => {
                steps.take(items.len())?;
                maps.push(numbered(items.iter().collect()));
            }
            EvalValue::Text(text) => {
                steps.take(text.len())?;
                maps.push(numbered(text.chars().map(|c| EvalValue::text(c.to_string())).collect()));
            }
            _ => {}
        }
    }
    merge(&maps, steps)
}

/// `max_by` and `min_by`, which begin with an infinite number: a text that is no number never counts. Without a result
/// the value is undefined.
fn extreme_as_javascript<'a>(
    function: Function,
    items: Vec<EvalValue<'a>>,
    keys: &[EvalValue<'a>],
    steps: &mut Steps,
) -> Result<EvalValue<'a>, EvalError> {
    let (start, requested) = match function {
        Function::MaxBy => (f64::NEG_INFINITY, Ordering::Greater),
        _ => (f64::INFINITY, Ordering::Less),
    };
    let mut best = (EvalValue::Number(start), EvalValue::Number(f64::NAN));
    for (key, item) in keys.iter().zip(items) {
        if !is_number(key) && !is_text(key) {
            return Err(if is_null(key) { EvalError::Null } else { EvalError::Type });
        }
        if javascript::order(key, &best.0, steps)? == Some(requested) {
            best = (key.clone(), item);
        }
    }
    Ok(best.1)
}

/// Calls a function that evaluates an expression for the items of a list. `keys` holds the results, one for each item.
///
/// # Errors
/// The keys are neither all numbers nor all texts.
pub(super) fn call_by<'a>(
    function: Function,
    items: Vec<EvalValue<'a>>,
    keys: Vec<EvalValue<'a>>,
    mode: Mode,
    steps: &mut Steps,
) -> Result<EvalValue<'a>, EvalError> {
    if function == Function::Map {
        return Ok(list_of(keys));
    }
    if mode == Mode::Notifybc && function != Function::SortBy {
        return extreme_as_javascript(function, items, &keys, steps);
    }
    if !keys.iter().all(is_number) && !keys.iter().all(is_text) {
        return Err(if keys.iter().any(is_null) { EvalError::Null } else { EvalError::Type });
    }
    let rounds = if function == Function::SortBy { keys.len().max(2).ilog2() as usize } else { 1 };
    charge_order(&keys, rounds, steps)?;
    let mut pairs: Vec<(EvalValue<'a>, EvalValue<'a>)> = keys.into_iter().zip(items).collect();
    Ok(match function {
        Function::SortBy => {
            pairs.sort_by(|left, right| match (mode, &left.0, &right.0) {
                (Mode::Notifybc, EvalValue::Text(left), EvalValue::Text(right)) => {
                    javascript::order_of_texts(left, right)
                }
                (_, left, right) => order(left, right),
            });
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
