//! Sort keys of a list.

use std::cmp::Ordering;

use serde_json::Value;

use super::{
    compare::order_of,
    error::{PATH_STEPS_MAX, QueryError},
    path::Path,
};
use crate::record::Document;

/// Most sort keys.
const KEYS_MAX: usize = 32;

/// A property to sort by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortKey {
    /// The property.
    pub path: Path,
    /// Whether the largest comes first.
    pub is_descending: bool,
}

/// The order of a list. Records that are equal in all keys keep their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order(pub Vec<SortKey>);

impl Order {
    /// The order of a text (`a -b`), an object (`{"a": -1}`), or a list of pairs or texts.
    pub fn parse(value: &Value) -> Result<Order, QueryError> {
        let mut keys = Vec::new();
        match value {
            Value::Null => {}
            Value::String(text) => keys.extend(text.split_whitespace().map(of_text)),
            Value::Object(members) => {
                for (name, direction) in members {
                    keys.push(SortKey { path: Path::parse(name), is_descending: is_descending(direction)? });
                }
            }
            Value::Array(items) => {
                for item in items {
                    match item {
                        Value::String(text) => keys.extend(text.split_whitespace().map(of_text)),
                        Value::Array(pair) => match pair.as_slice() {
                            [Value::String(name)] => keys.push(of_text(name)),
                            [Value::String(name), direction] => {
                                let is_descending = is_descending(direction)?;
                                keys.push(SortKey { path: Path::parse(name), is_descending });
                            }
                            _ => return Err(invalid(item)),
                        },
                        Value::Object(_) => keys.extend(Order::parse(item)?.0),
                        _ => return Err(invalid(item)),
                    }
                }
            }
            other => return Err(invalid(other)),
        }
        if keys.iter().any(|key| key.path.len() > PATH_STEPS_MAX) {
            return Err(QueryError::TooLarge { limit: PATH_STEPS_MAX, unit: "levels" });
        }
        match keys.len() > KEYS_MAX {
            true => Err(QueryError::TooLarge { limit: KEYS_MAX, unit: "sort keys" }),
            false => Ok(Order(keys)),
        }
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether records sorted by id are in this order.
    pub fn is_by_id(&self) -> bool {
        self.0.first().is_none_or(|key| key.path.as_str() == "id" && !key.is_descending)
    }

    /// The order of two records.
    pub fn compare(&self, a: &Document, b: &Document) -> Ordering {
        let key = |key: &SortKey| {
            let order = order_of(key.value(a), key.value(b));
            if key.is_descending { order.reverse() } else { order }
        };
        self.0.iter().map(key).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }

    /// Sorts records.
    pub fn sort(&self, records: &mut [Document]) {
        if !self.is_empty() {
            records.sort_by(|a, b| self.compare(a, b));
        }
    }
}

impl SortKey {
    /// The value that a record is sorted by: of several, the smallest, or the largest in descending order. An absent
    /// value is `Null`.
    fn value<'r>(&self, record: &'r Document) -> &'r Value {
        let mut values: Vec<&'r Value> = Vec::new();
        self.path.any(record, &mut |value| {
            match value {
                Some(Value::Array(items)) if !items.is_empty() => values.extend(items),
                Some(value) => values.push(value),
                None => {}
            }
            false
        });
        let values = values.into_iter();
        let best = match self.is_descending {
            true => values.max_by(|a, b| order_of(a, b)),
            false => values.min_by(|a, b| order_of(a, b)),
        };
        best.unwrap_or(&Value::Null)
    }
}

fn of_text(text: &str) -> SortKey {
    match text.strip_prefix('-') {
        Some(name) => SortKey { path: Path::parse(name), is_descending: true },
        None => SortKey { path: Path::parse(text.trim_start_matches('+')), is_descending: false },
    }
}

fn is_descending(direction: &Value) -> Result<bool, QueryError> {
    let text = match direction {
        Value::String(text) => text.to_lowercase(),
        Value::Number(number) => number.to_string(),
        _ => return Err(invalid(direction)),
    };
    match text.as_str() {
        "1" | "1.0" | "asc" | "ascending" => Ok(false),
        "-1" | "-1.0" | "desc" | "descending" => Ok(true),
        _ => Err(invalid(direction)),
    }
}

fn invalid(value: &Value) -> QueryError {
    QueryError::Operand(format!("Invalid sort value: {value}"))
}
