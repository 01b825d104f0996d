//! The functions of CEL's optionals.

use crate::{
    eval_value::{EvalError, EvalValue},
    evaluate::{Steps, index_of},
    expression::Function,
};

/// Calls one of the functions of optionals.
pub fn call<'a>(function: Function, given: &[EvalValue<'a>], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let first = given.first().ok_or(EvalError::Type)?;
    match function {
        Function::OptionalOf => return Ok(EvalValue::optional(Some(first.clone()))),
        Function::OptionalOfNonZero => return Ok(EvalValue::optional((!is_zero(first)).then(|| first.clone()))),
        Function::OptionalIndex => return index(first, &given[1], steps),
        _ => {}
    }
    let value = match first {
        EvalValue::Optional(value) => value,
        EvalValue::Null => return Err(EvalError::Null),
        _ => return Err(EvalError::Type),
    };
    match (function, value) {
        (Function::HasValue, value) => Ok(EvalValue::Boolean(value.is_some())),
        (Function::OptionalValue | Function::OrValue, Some(value)) => Ok((**value).clone()),
        (Function::OptionalValue, None) => Err(EvalError::NoSuchKey),
        (Function::OrValue, None) => Ok(given[1].clone()),
        (Function::Or, Some(_)) => Ok(first.clone()),
        (Function::Or, None) if matches!(given[1], EvalValue::Optional(_)) => Ok(given[1].clone()),
        _ => Err(EvalError::Type),
    }
}

/// The value of a key or index, as an optional that is empty if it is missing.
pub fn index<'a>(target: &EvalValue<'a>, key: &EvalValue<'a>, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let target = match target {
        EvalValue::Optional(None) => return Ok(EvalValue::optional(None)),
        EvalValue::Optional(Some(value)) => value,
        target => target,
    };
    match index_of(target, key, steps) {
        Ok(value) => Ok(EvalValue::optional(Some(value))),
        Err(EvalError::NoSuchKey) => Ok(EvalValue::optional(None)),
        Err(error) => Err(error),
    }
}

/// Whether it is the default value of its type.
fn is_zero(eval_value: &EvalValue<'_>) -> bool {
    match eval_value {
        EvalValue::Null
        | EvalValue::Boolean(false)
        | EvalValue::Integer(0)
        | EvalValue::Unsigned(0)
        | EvalValue::Duration(0) => true,
        EvalValue::Optional(value) => value.is_none(),
        EvalValue::Number(value) => *value == 0.0,
        EvalValue::Text(text) => text.is_empty(),
        EvalValue::Bytes(bytes) => bytes.is_empty(),
        EvalValue::List(items) => items.is_empty(),
        EvalValue::Map(entries) => entries.is_empty(),
        EvalValue::Timestamp(time) => time.0 == 0,
        EvalValue::Boolean(true)
        | EvalValue::Integer(_)
        | EvalValue::Unsigned(_)
        | EvalValue::Duration(_)
        | EvalValue::Type(_) => false,
    }
}
