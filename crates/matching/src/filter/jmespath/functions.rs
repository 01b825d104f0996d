//! The functions of JMESPath: what they take, and how they compute it.

use std::{cmp::Ordering, rc::Rc};

use tocsin_model::value::Value;

use super::evaluate::{plain, same, write_json};
use crate::{
    datum::{Datum, List, Map, Text, Trouble, compare},
    evaluate::Steps,
    functions,
};

/// What an argument must be.
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
    /// An expression, to be asked of values.
    Reference,
}

/// What is known of a value before there is an event. Any may also be null.
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
    /// Whether a value of this shape may do; of a list, what its items are is left open.
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

    /// Whether every value of a shape it takes will do.
    pub fn is_plain(self) -> bool {
        !matches!(self, Parameter::Numbers | Parameter::Texts | Parameter::NumbersOrTexts | Parameter::Reference)
    }

    fn accepts(self, given: &Datum<'_>, steps: &mut Steps) -> Result<(), Trouble> {
        let all = |fits: fn(&Datum<'_>) -> bool, steps: &mut Steps| match given {
            Datum::List(items) => {
                steps.take(items.len())?;
                Ok(items.iter().all(|item| fits(&plain(item))))
            }
            _ => Ok(false),
        };
        let fits = match self {
            Parameter::Anything => true,
            Parameter::Number => is_number(given),
            Parameter::Text => is_text(given),
            Parameter::List => matches!(given, Datum::List(_)),
            Parameter::Map => matches!(given, Datum::Map(_)),
            Parameter::TextOrList => matches!(given, Datum::Text(_) | Datum::List(_)),
            Parameter::TextListOrMap => matches!(given, Datum::Text(_) | Datum::List(_) | Datum::Map(_)),
            Parameter::Numbers => all(is_number, steps)?,
            Parameter::Texts => all(is_text, steps)?,
            Parameter::NumbersOrTexts => all(is_number, steps)? || all(is_text, steps)?,
            Parameter::Reference => false,
        };
        match given {
            _ if fits => Ok(()),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
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

pub(super) fn is_number(datum: &Datum<'_>) -> bool {
    matches!(datum, Datum::Integer(_) | Datum::Number(_))
}

fn is_text(datum: &Datum<'_>) -> bool {
    matches!(datum, Datum::Text(_))
}

/// How a function is called.
#[derive(Debug)]
pub(super) struct Signature {
    pub name: &'static str,
    pub takes: &'static [Parameter],
    /// Whether the last parameter may be given more than once.
    pub repeats: bool,
}

impl Signature {
    pub fn parameter(&self, at: usize) -> Option<Parameter> {
        match self.takes.get(at) {
            None if self.repeats => self.takes.last().copied(),
            parameter => parameter.copied(),
        }
    }

    /// As one would write it.
    pub fn show(&self) -> String {
        let names: Vec<&str> = self.takes.iter().map(|parameter| parameter.name()).collect();
        format!("{}({}{})", self.name, names.join(", "), if self.repeats { ", ..." } else { "" })
    }
}

macro_rules! functions {
    ($($function:ident $name:literal ($($takes:ident),*) $($repeats:literal)?;)*) => {
        /// A function.
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
        // The table holds them in the order of their definition.
        &ALL[self as usize].1
    }
}

/// Calls a function that takes values only.
///
/// # Errors
/// An argument is not what the function takes, or the cost limit.
pub(super) fn call<'a>(function: Function, given: &[Datum<'a>], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    for (at, datum) in given.iter().enumerate() {
        function.signature().parameter(at).ok_or(Trouble::Type)?.accepts(datum, steps)?;
    }
    let first = &given[0];
    if let Datum::Text(text) = first {
        steps.take(text.len() / 64)?;
    }
    Ok(match (function, first) {
        (Function::Abs, Datum::Integer(value)) => match value.checked_abs() {
            Some(value) => Datum::Integer(value),
            None => Datum::Number((*value as f64).abs()),
        },
        (Function::Abs, Datum::Number(value)) => Datum::Number(value.abs()),
        (Function::Ceil | Function::Floor, Datum::Integer(value)) => Datum::Integer(*value),
        (Function::Ceil, Datum::Number(value)) => Datum::Number(value.ceil()),
        (Function::Floor, Datum::Number(value)) => Datum::Number(value.floor()),
        (Function::Avg, Datum::List(items)) if items.is_empty() => Datum::Null,
        (Function::Avg, Datum::List(items)) => finite(total(items) / items.len() as f64)?,
        (Function::Sum, Datum::List(items)) => sum(items)?,
        (Function::Contains, Datum::Text(text)) => Datum::Boolean(match &given[1] {
            Datum::Text(part) => text.contains(&**part),
            _ => false,
        }),
        (Function::Contains, Datum::List(items)) => {
            for item in items.iter() {
                if same(&plain(item), &given[1], steps)? {
                    return Ok(Datum::Boolean(true));
                }
            }
            Datum::Boolean(false)
        }
        (Function::ContainsCi, Datum::Text(text)) => {
            let part = text_of(&given[1])?;
            // Quadratic at worst, so it is charged that way.
            steps.take(text.len().saturating_mul(part.len()) / 1024)?;
            functions::charge_folding(text, steps)?;
            Datum::Boolean(!part.is_empty() && functions::contains_ci(text, part))
        }
        (Function::StartsWith, Datum::Text(text)) => Datum::Boolean(text.starts_with(text_of(&given[1])?)),
        (Function::EndsWith, Datum::Text(text)) => Datum::Boolean(text.ends_with(text_of(&given[1])?)),
        (Function::Join, Datum::Text(glue)) => {
            let Datum::List(items) = &given[1] else { return Err(Trouble::Type) };
            let mut joined = String::new();
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    joined.push_str(glue);
                }
                let before = joined.len();
                joined.push_str(text_of(&plain(item))?);
                steps.take(1 + (joined.len() - before + glue.len()) / 64)?;
            }
            Datum::text(joined)
        }
        (Function::Keys, Datum::Map(entries)) => {
            steps.take(entries.len())?;
            made(entries.iter().map(|(key, _)| key).collect())
        }
        (Function::Values, Datum::Map(entries)) => {
            steps.take(entries.len())?;
            made(entries.iter().map(|(_, value)| plain(value)).collect())
        }
        (Function::Length, Datum::Text(text)) => count(text.chars().count()),
        (Function::Length, Datum::List(items)) => count(items.len()),
        (Function::Length, Datum::Map(entries)) => count(entries.len()),
        (Function::Max, Datum::List(items)) => extreme(items, Ordering::Greater, steps)?,
        (Function::Min, Datum::List(items)) => extreme(items, Ordering::Less, steps)?,
        (Function::Merge, _) => merge(given, steps)?,
        (Function::NotNull, _) => given.iter().find(|datum| !is_null(datum)).cloned().unwrap_or(Datum::Null),
        (Function::Reverse, Datum::Text(text)) => {
            steps.take(text.len() / 32)?;
            Datum::text(text.chars().rev().collect::<String>())
        }
        (Function::Reverse, Datum::List(items)) => {
            steps.take(items.len())?;
            made((0..items.len()).rev().map(|at| items.item(at)).collect())
        }
        (Function::Sort, Datum::List(items)) => {
            let mut sorted: Vec<Datum<'a>> = items.iter().map(plain).collect();
            charge_order(&sorted, sorted.len().max(2).ilog2() as usize, steps)?;
            sorted.sort_by(order);
            made(sorted)
        }
        (Function::ToArray, Datum::List(_)) => first.clone(),
        (Function::ToArray, _) => made(vec![first.clone()]),
        (Function::ToNumber, Datum::Integer(_) | Datum::Number(_)) => first.clone(),
        (Function::ToNumber, Datum::Text(text)) => match serde_json::from_str::<serde_json::Number>(text) {
            Ok(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => Datum::Integer(integer),
                (None, Some(number)) => Datum::Number(number),
                _ => Datum::Null,
            },
            Err(_) => Datum::Null,
        },
        (Function::ToNumber, _) => Datum::Null,
        (Function::ToText, Datum::Text(_)) => first.clone(),
        (Function::ToText, _) => {
            let mut out = String::new();
            write_json(first, &mut out, steps)?;
            Datum::text(out)
        }
        (Function::Type, _) => Datum::Text(Text::Borrowed(type_name(first))),
        _ => return Err(Trouble::Type),
    })
}

/// Calls a function that asks an expression of the items of a list. `keys` holds what it gave, one for each item.
///
/// # Errors
/// The keys are neither all numbers nor all texts.
pub(super) fn call_by<'a>(
    function: Function,
    items: Vec<Datum<'a>>,
    keys: Vec<Datum<'a>>,
    steps: &mut Steps,
) -> Result<Datum<'a>, Trouble> {
    if function == Function::Map {
        return Ok(made(keys));
    }
    if !keys.iter().all(is_number) && !keys.iter().all(is_text) {
        return Err(if keys.iter().any(is_null) { Trouble::Null } else { Trouble::Type });
    }
    let rounds = if function == Function::SortBy { keys.len().max(2).ilog2() as usize } else { 1 };
    charge_order(&keys, rounds, steps)?;
    let mut pairs: Vec<(Datum<'a>, Datum<'a>)> = keys.into_iter().zip(items).collect();
    Ok(match function {
        Function::SortBy => {
            pairs.sort_by(|left, right| order(&left.0, &right.0));
            made(pairs.into_iter().map(|(_, item)| item).collect())
        }
        // The first of those that are equal.
        Function::MaxBy => pick(pairs, Ordering::Greater),
        Function::MinBy => pick(pairs, Ordering::Less),
        _ => return Err(Trouble::Type),
    })
}

fn pick<'a>(pairs: Vec<(Datum<'a>, Datum<'a>)>, wanted: Ordering) -> Datum<'a> {
    let best = pairs.into_iter().reduce(|best, next| if order(&next.0, &best.0) == wanted { next } else { best });
    best.map_or(Datum::Null, |(_, item)| item)
}

fn extreme<'a>(items: &List<'a>, wanted: Ordering, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    let items: Vec<Datum<'a>> = items.iter().map(plain).collect();
    charge_order(&items, 1, steps)?;
    let best = items.into_iter().reduce(|best, next| if order(&next, &best) == wanted { next } else { best });
    Ok(best.unwrap_or(Datum::Null))
}

/// The order of two numbers or two texts; of anything else, none is asked.
fn order(left: &Datum<'_>, right: &Datum<'_>) -> Ordering {
    compare(left, right).ok().flatten().unwrap_or(Ordering::Equal)
}

/// Charges for comparing each of some values so many times with another. Long texts may differ at their ends only.
fn charge_order(items: &[Datum<'_>], rounds: usize, steps: &mut Steps) -> Result<(), Trouble> {
    let bytes = |datum: &Datum<'_>| if let Datum::Text(text) = datum { text.len() } else { 0 };
    let each = items.iter().fold(0usize, |sum, item| sum.saturating_add(1 + bytes(item) / 64));
    steps.take(each.saturating_mul(rounds))
}

fn total(items: &List<'_>) -> f64 {
    items
        .iter()
        .map(|item| match item {
            Datum::Integer(value) => value as f64,
            Datum::Number(value) => value,
            _ => 0.0,
        })
        .sum()
}

/// Integers stay integers while they fit.
fn sum<'a>(items: &List<'a>) -> Result<Datum<'a>, Trouble> {
    let whole = items.iter().try_fold(0i64, |sum, item| match item {
        Datum::Integer(value) => sum.checked_add(value),
        _ => None,
    });
    match whole {
        Some(sum) => Ok(Datum::Integer(sum)),
        None => finite(total(items)),
    }
}

/// JSON has no number that is not finite.
fn finite<'a>(value: f64) -> Result<Datum<'a>, Trouble> {
    if value.is_finite() { Ok(Datum::Number(value)) } else { Err(Trouble::Range) }
}

fn merge<'a>(given: &[Datum<'a>], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    let mut merged: Vec<(Datum<'a>, Datum<'a>)> = Vec::new();
    for datum in given {
        let Datum::Map(entries) = datum else { return Err(Trouble::Type) };
        for (key, value) in entries.iter() {
            steps.take(1 + merged.len() / 8)?;
            let name = text_of(&key)?;
            match merged.iter_mut().find(|(known, _)| text_of(known).is_ok_and(|known| known == name)) {
                Some((_, known)) => *known = value,
                None => merged.push((key, value)),
            }
        }
    }
    Ok(Datum::Map(Map::Made(Rc::from(merged))))
}

fn type_name(datum: &Datum<'_>) -> &'static str {
    match datum {
        Datum::Null => "null",
        Datum::Boolean(_) => "boolean",
        Datum::Integer(_) | Datum::Number(_) => "number",
        Datum::List(_) => "array",
        Datum::Map(_) => "object",
        _ => "string",
    }
}

fn is_null(datum: &Datum<'_>) -> bool {
    matches!(datum, Datum::Null)
}

fn text_of<'b>(datum: &'b Datum<'_>) -> Result<&'b str, Trouble> {
    match datum {
        Datum::Text(text) => Ok(text),
        Datum::Null => Err(Trouble::Null),
        _ => Err(Trouble::Type),
    }
}

fn count<'a>(number: usize) -> Datum<'a> {
    Datum::Integer(number as i64)
}

pub(super) fn made(items: Vec<Datum<'_>>) -> Datum<'_> {
    Datum::List(List::Made(items.into()))
}
