//! The functions of CEL's optionals.

use crate::{
    eval_value::{EvalError, EvalValue},
    expression::Function,
    steps::Steps,
};

/// Calls one of the functions of optionals.
pub fn call<'a>(function: Function, given: &[EvalValue<'a>], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let first = given.first().ok_or(EvalError::Type)?;
    match function {
        Function::OptionalOf => return Ok(EvalValue::optional(Some(first.clone()))),
        Function::OptionalOfNonZero => return Ok(EvalValue::optional((!is_zero(first)).then(|| first.clone()))),
        Function::OptionalIndex => return index_optional(first, &given[1], steps),
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
pub fn index_optional<'a>(
    target: &EvalValue<'a>,
    key: &EvalValue<'a>,
    steps: &mut Steps,
) -> Result<EvalValue<'a>, EvalError> {
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

/// An item of a list, or the value of a map key. An optional gives an optional.
pub(crate) fn index_of<'a>(
    target: &EvalValue<'a>,
    index: &EvalValue<'a>,
    steps: &mut Steps,
) -> Result<EvalValue<'a>, EvalError> {
    use EvalValue::{Boolean, Integer, Number, Unsigned};
    match (target, index) {
        (EvalValue::List(items), Integer(_) | Unsigned(_) | Number(_)) => {
            let at = match index {
                Integer(at) => *at,
                Unsigned(at) => i64::try_from(*at).map_err(|_| EvalError::NoSuchKey)?,
                Number(at) if at.fract() == 0.0 && at.abs() < 1e15 => *at as i64,
                _ => return Err(EvalError::Type),
            };
            let at = usize::try_from(at).map_err(|_| EvalError::NoSuchKey)?;
            if at < items.len() { Ok(items.item(at)) } else { Err(EvalError::NoSuchKey) }
        }
        (EvalValue::Map(map), key @ (EvalValue::Text(_) | Integer(_) | Unsigned(_) | Boolean(_) | Number(_))) => {
            steps.take(map.len() / 8)?;
            map.find(key).ok_or(EvalError::NoSuchKey)
        }
        (EvalValue::Optional(_), _) => index_optional(target, index, steps),
        (EvalValue::Null, _) | (_, EvalValue::Null) => Err(EvalError::Null),
        _ => Err(EvalError::Type),
    }
}
