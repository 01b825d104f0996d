//! Values of fields of events, subscriptions and notifications.

use std::sync::Arc;

use serde::{Deserialize, Serialize, de::DeserializeSeed, ser::SerializeMap};

use crate::{
    json::{Unbounded, ValueSeed},
    time::Timestamp,
};

/// A value. Integers and numbers are different types, and conversions lose no digits.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Value {
    /// No value.
    #[default]
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A 64-bit integer.
    Integer(i64),
    /// A finite IEEE 754 double.
    Number(f64),
    /// Text in UTF-8.
    Text(Arc<str>),
    /// An instant.
    Timestamp(Timestamp),
    /// Values in order.
    List(Arc<[Value]>),
    /// Values by key, in the order given.
    Map(Arc<[(Arc<str>, Value)]>),
}

impl Value {
    /// Whether there is no value.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The name of its type, as the definition language spells it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Boolean(_) => "boolean",
            Value::Integer(_) => "integer",
            Value::Number(_) => "number",
            Value::Text(_) => "string",
            Value::Timestamp(_) => "timestamp",
            Value::List(_) => "list",
            Value::Map(_) => "map",
        }
    }

    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Boolean(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Integer(value)
    }
}

impl From<f64> for Value {
    /// JSON cannot represent a non-finite number, so that becomes null.
    fn from(value: f64) -> Self {
        if value.is_finite() { Value::Number(value) } else { Value::Null }
    }
}

impl From<Timestamp> for Value {
    fn from(value: Timestamp) -> Self {
        Value::Timestamp(value)
    }
}

impl From<serde_json::Value> for Value {
    fn from(json: serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(value) => Value::Boolean(value),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(integer) => Value::Integer(integer),
                None => Value::from(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Value::Text(text.into()),
            serde_json::Value::Array(items) => Value::List(items.into_iter().map(Value::from).collect()),
            serde_json::Value::Object(entries) => {
                Value::Map(entries.into_iter().map(|(key, value)| (key.into(), Value::from(value))).collect())
            }
        }
    }
}

impl From<Value> for serde_json::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => serde_json::Value::Null,
            Value::Boolean(value) => value.into(),
            Value::Integer(value) => value.into(),
            Value::Number(value) => value.into(),
            Value::Text(value) => value.as_ref().into(),
            Value::Timestamp(value) => value.to_string().into(),
            Value::List(items) => items.iter().cloned().map(serde_json::Value::from).collect(),
            Value::Map(entries) => {
                entries.iter().map(|(key, value)| (key.to_string(), serde_json::Value::from(value.clone()))).collect()
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Boolean(value) => serializer.serialize_bool(*value),
            Value::Integer(value) => serializer.serialize_i64(*value),
            Value::Number(value) => serializer.serialize_f64(*value),
            Value::Text(value) => serializer.serialize_str(value),
            Value::Timestamp(value) => value.serialize(serializer),
            Value::List(items) => serializer.collect_seq(items.iter()),
            Value::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries.iter() {
                    map.serialize_entry(key.as_ref(), value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    /// Parses JSON; strings stay text, so a timestamp needs its field's type to become one. An integer beyond 64 bits
    /// becomes a number, which a field of type integer then refuses.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ValueSeed { bound: &mut Unbounded, depth: 1 }.deserialize(deserializer)
    }
}
