//! Values that may be absent: the functions of CEL's optionals.

use crate::{
    datum::{Datum, Trouble},
    evaluate::{Steps, index_of},
    expression::Function,
};

/// Calls one of the functions of optionals.
pub fn call<'a>(function: Function, given: &[Datum<'a>], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    let first = given.first().ok_or(Trouble::Type)?;
    match function {
        Function::OptionalOf => return Ok(Datum::optional(Some(first.clone()))),
        Function::OptionalOfNonZero => return Ok(Datum::optional((!is_zero(first)).then(|| first.clone()))),
        Function::OptionalIndex => return index(first, &given[1], steps),
        _ => {}
    }
    let value = match first {
        Datum::Optional(value) => value,
        Datum::Null => return Err(Trouble::Null),
        _ => return Err(Trouble::Type),
    };
    match (function, value) {
        (Function::HasValue, value) => Ok(Datum::Boolean(value.is_some())),
        (Function::OptionalValue | Function::OrValue, Some(value)) => Ok((**value).clone()),
        (Function::OptionalValue, None) => Err(Trouble::NoSuchKey),
        (Function::OrValue, None) => Ok(given[1].clone()),
        (Function::Or, Some(_)) => Ok(first.clone()),
        (Function::Or, None) if matches!(given[1], Datum::Optional(_)) => Ok(given[1].clone()),
        _ => Err(Trouble::Type),
    }
}

/// The value of a key or place, as an optional that is empty where there is none.
pub fn index<'a>(target: &Datum<'a>, key: &Datum<'a>, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    let target = match target {
        Datum::Optional(None) => return Ok(Datum::optional(None)),
        Datum::Optional(Some(value)) => value,
        target => target,
    };
    match index_of(target, key, steps) {
        Ok(value) => Ok(Datum::optional(Some(value))),
        Err(Trouble::NoSuchKey) => Ok(Datum::optional(None)),
        Err(trouble) => Err(trouble),
    }
}

/// Whether it is the value that a field of its type would have if nobody set it.
fn is_zero(datum: &Datum<'_>) -> bool {
    match datum {
        Datum::Null | Datum::Boolean(false) | Datum::Integer(0) | Datum::Unsigned(0) | Datum::Duration(0) => true,
        Datum::Optional(value) => value.is_none(),
        Datum::Number(value) => *value == 0.0,
        Datum::Text(text) => text.is_empty(),
        Datum::Bytes(bytes) => bytes.is_empty(),
        Datum::List(items) => items.is_empty(),
        Datum::Map(entries) => entries.is_empty(),
        Datum::Timestamp(time) => time.0 == 0,
        Datum::Boolean(true) | Datum::Integer(_) | Datum::Unsigned(_) | Datum::Duration(_) | Datum::Type(_) => false,
    }
}
