//! Values as JMESPath sees them: JSON types, truth, equality and text.

use std::fmt::Write;

use tocsin_model::value::Value;

use crate::{
    eval_value::{EvalError, EvalValue, equal},
    steps::{Steps, charge_comparison},
};

/// Converts to JSON types: a timestamp becomes text.
pub(super) fn to_json_types(eval_value: EvalValue<'_>) -> EvalValue<'_> {
    match eval_value {
        EvalValue::Timestamp(time) => EvalValue::text(time.to_string()),
        eval_value => eval_value,
    }
}

/// Whether a value counts as true.
pub(super) fn is_true(eval_value: &EvalValue<'_>) -> bool {
    match eval_value {
        EvalValue::Null | EvalValue::Boolean(false) => false,
        EvalValue::Text(text) => !text.is_empty(),
        EvalValue::List(items) => !items.is_empty(),
        EvalValue::Map(entries) => !entries.is_empty(),
        _ => true,
    }
}

/// Whether two values are deeply equal; numbers by exact value.
///
/// # Errors
/// Only the step limit.
pub(super) fn same(left: &EvalValue<'_>, right: &EvalValue<'_>, steps: &mut Steps) -> Result<bool, EvalError> {
    steps.take(1)?;
    charge_comparison(left, right, steps)?;
    Ok(equal(left, right))
}

/// Appends a value as JSON, without white space; numbers as JavaScript writes them.
///
/// # Errors
/// Only the step limit.
pub(super) fn write_json(eval_value: &EvalValue<'_>, out: &mut String, steps: &mut Steps) -> Result<(), EvalError> {
    steps.take(1)?;
    // Writing to a string cannot fail.
    match eval_value {
        EvalValue::Null => out.push_str("null"),
        EvalValue::Boolean(value) => out.push_str(if *value { "true" } else { "false" }),
        EvalValue::Integer(value) => _ = write!(out, "{value}"),
        EvalValue::Number(value) if value.is_finite() => out.push_str(&super::javascript::number_text(*value)),
        EvalValue::Number(_) => out.push_str("null"),
        EvalValue::List(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_json(&item, out, steps)?;
            }
            out.push(']');
        }
        EvalValue::Map(entries) => {
            out.push('{');
            for (at, (key, value)) in entries.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_json(&key, out, steps)?;
                out.push(':');
                write_json(&value, out, steps)?;
            }
            out.push('}');
        }
        EvalValue::Text(text) => {
            steps.take(text.len() / 16)?;
            out.push_str(&json(&Value::from(&**text)));
        }
        other => out.push_str(&json(&other.to_value())),
    }
    Ok(())
}

fn json(value: &Value) -> String {
    serde_json::to_string(value).expect("a value is JSON")
}
