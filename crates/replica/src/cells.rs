//! Conversion between SQLite cells and field values. A cell that its field cannot hold is reported, never replaced.

use rusqlite::types::{Value as Cell, ValueRef};
use serde_json::Value as Json;
use tocsin_model::{field::FieldType, value::Value};

use crate::ReplicaError;

/// The protocol value of a cell.
///
/// # Errors
/// The field cannot hold the cell; the text says why.
pub(crate) fn value_of(kind: FieldType, cell: ValueRef<'_>) -> Result<Json, String> {
    let value = match cell {
        ValueRef::Null => return Ok(Json::Null),
        ValueRef::Blob(bytes) => {
            return Err(format!("is a BLOB of {} bytes; a field of type {} was expected", bytes.len(), kind.name()));
        }
        ValueRef::Text(bytes) => {
            let text = std::str::from_utf8(bytes).map_err(|_| "is text that is not UTF-8".to_owned())?;
            match kind {
                FieldType::List | FieldType::Map => {
                    serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?
                }
                _ => Json::from(text),
            }
        }
        ValueRef::Integer(integer) if kind == FieldType::Boolean => match integer {
            0 => Json::Bool(false),
            1 => Json::Bool(true),
            other => return Err(format!("is {other}; 0 (false) or 1 (true) was expected")),
        },
        ValueRef::Integer(integer) => Json::from(integer),
        ValueRef::Real(number) if !number.is_finite() => {
            return Err(format!("is {}; a finite number was expected", infinity_name(number)));
        }
        ValueRef::Real(number) => Json::from(number),
    };
    kind.accept(Value::from(value.clone()))?;
    Ok(value)
}

/// The cell of a value: booleans are 0 or 1, lists and maps are JSON.
///
/// # Errors
/// `Protocol`: no cell holds this number.
pub(crate) fn cell_of(kind: FieldType, value: &Json) -> Result<Cell, ReplicaError> {
    let double = |number: &serde_json::Number| {
        let double = number.as_f64().filter(|double| double.is_finite());
        double.ok_or_else(|| ReplicaError::Protocol(format!("the number {number} is larger than a double")))
    };
    Ok(match (kind, value) {
        (_, Json::Null) => Cell::Null,
        (_, Json::Bool(truth)) => Cell::Integer(i64::from(*truth)),
        (FieldType::Number, Json::Number(number)) => Cell::Real(double(number)?),
        (_, Json::Number(number)) => match number.as_i64() {
            Some(integer) => Cell::Integer(integer),
            None => Cell::Real(double(number)?),
        },
        (_, Json::String(text)) => Cell::Text(text.clone()),
        (_, value) => Cell::Text(value.to_string()),
    })
}

/// Whether a server value has the current type of its field. A value stored under an earlier version of the collection
/// can have another type, and counts as missing.
pub(crate) fn is_of_type(kind: FieldType, value: &Json) -> bool {
    match kind {
        FieldType::Boolean => value.is_boolean(),
        FieldType::Integer | FieldType::Number => value.is_number(),
        FieldType::String => value.is_string(),
        FieldType::Timestamp => value.is_string() || value.is_i64(),
        FieldType::List => value.is_array(),
        FieldType::Map => value.is_object(),
    }
}

/// Describes a rejected cell: its text, or its type and length.
pub(crate) fn shown(cell: ValueRef<'_>) -> Json {
    match cell {
        ValueRef::Null => Json::Null,
        ValueRef::Integer(integer) => integer.into(),
        ValueRef::Real(number) if number.is_finite() => number.into(),
        ValueRef::Real(number) => infinity_name(number).into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => format!("{} bytes", bytes.len()).into(),
    }
}

/// Name of a number that is not finite. SQLite stores NaN as NULL.
fn infinity_name(number: f64) -> &'static str {
    if number < 0.0 { "-Infinity" } else { "Infinity" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn b4_a_cell_that_its_field_cannot_hold_is_reported() {
        let bad = [
            (FieldType::Number, ValueRef::Real(f64::INFINITY), "is Infinity; a finite number was expected"),
            (FieldType::Integer, ValueRef::Real(f64::NEG_INFINITY), "is -Infinity; a finite number was expected"),
            (FieldType::Number, ValueRef::Text(b"many"), "should be a number, not a string"),
            (FieldType::Integer, ValueRef::Real(1.5), "should be an integer of 64 bits without fraction"),
            (FieldType::Integer, ValueRef::Real(1e19), "should be an integer of 64 bits without fraction"),
            (FieldType::Boolean, ValueRef::Integer(2), "is 2; 0 (false) or 1 (true) was expected"),
            (FieldType::String, ValueRef::Blob(b"\0\xff"), "is a BLOB of 2 bytes; a field of type string was expected"),
            (FieldType::String, ValueRef::Text(b"\xff"), "is text that is not UTF-8"),
            (FieldType::List, ValueRef::Text(b"{}"), "should be a list, not a map"),
        ];
        for (kind, cell, expected) in bad {
            assert_eq!(value_of(kind, cell), Err(expected.to_owned()), "{kind:?} {cell:?}");
        }
        assert!(value_of(FieldType::Map, ValueRef::Text(b"{")).unwrap_err().starts_with("is not JSON"));
        assert!(value_of(FieldType::Timestamp, ValueRef::Text(b"2026-02-30T00:00:00Z")).is_err());
        let good = [
            (FieldType::Number, ValueRef::Real(0.1 + 0.2), json!(0.1 + 0.2)),
            (FieldType::Integer, ValueRef::Integer(i64::MIN), json!(i64::MIN)),
            (FieldType::String, ValueRef::Text(b"a\0b"), json!("a\0b")),
            (FieldType::Boolean, ValueRef::Integer(1), json!(true)),
            (FieldType::Timestamp, ValueRef::Text(b"2026-01-02T03:04:05+01:00"), json!("2026-01-02T03:04:05+01:00")),
        ];
        for (kind, cell, expected) in good {
            assert_eq!(value_of(kind, cell), Ok(expected), "{kind:?} {cell:?}");
        }
    }
}
