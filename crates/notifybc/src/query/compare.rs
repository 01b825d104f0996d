//! Equality and order of JSON values, as MongoDB compares them: by type first.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Whether two values are equal: of one type, numbers by value, objects with their members in the same order.
pub fn equal(a: &Value, b: &Value) -> bool {
    order_of(a, b) == Ordering::Equal
}

/// The order of two values of any types: null, numbers, texts, objects, lists, booleans.
pub fn order_of(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let first = a.iter().zip(b).map(|(a, b)| order_of(a, b)).find(|order| order.is_ne());
            first.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let member = |((a_name, a), (b_name, b)): ((&String, &Value), (&String, &Value))| {
                rank(a).cmp(&rank(b)).then_with(|| a_name.cmp(b_name)).then_with(|| order_of(a, b))
            };
            let first = a.iter().zip(b).map(member).find(|order| order.is_ne());
            first.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Whether two values have types that order comparisons relate.
pub(super) fn is_comparable(a: &Value, b: &Value) -> bool {
    rank(a) == rank(b)
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Number(_) => 1,
        Value::String(_) => 2,
        Value::Object(_) => 3,
        Value::Array(_) => 4,
        Value::Bool(_) => 5,
    }
}

fn numbers(a: &Number, b: &Number) -> Ordering {
    let whole = |number: &Number| number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
    }
}
