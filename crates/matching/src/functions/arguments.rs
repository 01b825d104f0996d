//! Arguments of functions as values of their type.

use crate::eval_value::{EvalError, EvalValue};

pub(super) fn number(eval_value: &EvalValue<'_>) -> Result<f64, EvalError> {
    match eval_value {
        EvalValue::Integer(value) => Ok(*value as f64),
        EvalValue::Unsigned(value) => Ok(*value as f64),
        EvalValue::Number(value) => Ok(*value),
        EvalValue::Null => Err(EvalError::Null),
        _ => Err(EvalError::Type),
    }
}

pub(super) fn text<'b>(eval_value: &'b EvalValue<'_>) -> Result<&'b str, EvalError> {
    match eval_value {
        EvalValue::Text(text) => Ok(text),
        EvalValue::Null => Err(EvalError::Null),
        _ => Err(EvalError::Type),
    }
}

pub(super) fn integer(eval_value: &EvalValue<'_>) -> Result<i64, EvalError> {
    match eval_value {
        EvalValue::Integer(value) => Ok(*value),
        EvalValue::Null => Err(EvalError::Null),
        _ => Err(EvalError::Type),
    }
}

pub(super) fn to_text<'a>(given: &EvalValue<'a>) -> Result<EvalValue<'a>, EvalError> {
    Ok(match given {
        EvalValue::Text(_) => given.clone(),
        EvalValue::Integer(value) => EvalValue::text(value.to_string()),
        EvalValue::Unsigned(value) => EvalValue::text(value.to_string()),
        EvalValue::Bytes(bytes) => EvalValue::text(std::str::from_utf8(bytes).map_err(|_| EvalError::Conversion)?),
        EvalValue::Number(value) => EvalValue::text(value.to_string()),
        EvalValue::Boolean(value) => EvalValue::text(if *value { "true" } else { "false" }),
        EvalValue::Timestamp(time) => EvalValue::text(time.to_string()),
        EvalValue::Duration(micros) => {
            let (sign, micros) = (if *micros < 0 { "-" } else { "" }, micros.unsigned_abs());
            let fraction = format!(".{:06}", micros % 1_000_000);
            let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
            EvalValue::text(format!("{sign}{}{fraction}s", micros / 1_000_000))
        }
        EvalValue::Null => return Err(EvalError::Null),
        _ => return Err(EvalError::Type),
    })
}
