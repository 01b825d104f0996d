//! Values during evaluation. They borrow from the event, the subscription and the expression where they can.

use std::{cmp::Ordering, rc::Rc, sync::Arc};

use base64::prelude::{BASE64_STANDARD, Engine};
use tocsin_model::{time::Timestamp, value::Value};

/// Evaluation error: an expression has no value. An error is never a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// An operator or function was applied to null, which is also the value of a missing field.
    #[error("a value is missing")]
    Null,
    /// An operator or function was applied to a value of an unsupported type.
    #[error("an operand has the wrong type")]
    Type,
    /// The result is out of range: an integer beyond 64 bits, a time outside the years 1 to 9999.
    #[error("the result is out of range")]
    Range,
    /// An integer was divided by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A map has no such key, or a list no such index.
    #[error("there is no such key or place")]
    NoSuchKey,
    /// A text could not be converted to the target type.
    #[error("the text cannot be converted")]
    Conversion,
    /// A regular expression built at run time is invalid or too large.
    #[error("the regular expression is wrong or too large")]
    Pattern,
    /// The expression exceeded its step limit. Unlike the others, this error is reported.
    #[error("the expression takes too many steps")]
    Cost,
    /// A rule exceeded its time limit for an event batch. Reported too, for the rule as a whole.
    #[error("the rule takes too long")]
    Time,
}

/// A value during evaluation.
#[derive(Debug, Clone)]
pub enum EvalValue<'a> {
    /// Null; also the value of a missing field.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A 64-bit integer.
    Integer(i64),
    /// An unsigned 64-bit integer.
    Unsigned(u64),
    /// A 64-bit floating-point number.
    Number(f64),
    /// Text.
    Text(Text<'a>),
    /// Bytes built by the expression.
    Bytes(Arc<[u8]>),
    /// A point in time.
    Timestamp(Timestamp),
    /// A duration in microseconds.
    Duration(i64),
    /// Values in order.
    List(List<'a>),
    /// Values by key.
    Map(Map<'a>),
    /// A type, by its CEL name.
    Type(&'static str),
    /// An optional: a value or none.
    Optional(Option<Rc<EvalValue<'a>>>),
}

/// Text, borrowed or built by the expression.
#[derive(Debug, Clone)]
pub enum Text<'a> {
    /// Borrowed from a field or literal.
    Borrowed(&'a str),
    /// Built by the expression.
    Owned(Rc<str>),
}

/// A list, borrowed or built by the expression.
#[derive(Debug, Clone)]
pub enum List<'a> {
    /// Borrowed from a field or literal.
    Stored(&'a [Value]),
    /// Built by the expression.
    Owned(Rc<[EvalValue<'a>]>),
}

/// A map, borrowed or built by the expression.
#[derive(Debug, Clone)]
pub enum Map<'a> {
    /// Borrowed from a field or literal.
    Stored(&'a [(Arc<str>, Value)]),
    /// Built by the expression.
    Owned(Rc<[(EvalValue<'a>, EvalValue<'a>)]>),
}

impl std::ops::Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Owned(text) => text,
        }
    }
}

impl<'a> List<'a> {
    /// The number of values.
    pub fn len(&self) -> usize {
        match self {
            List::Stored(items) => items.len(),
            List::Owned(items) => items.len(),
        }
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value at a valid index.
    pub fn item(&self, at: usize) -> EvalValue<'a> {
        match self {
            List::Stored(items) => EvalValue::of(&items[at]),
            List::Owned(items) => items[at].clone(),
        }
    }

    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = EvalValue<'a>> + '_ {
        (0..self.len()).map(|at| self.item(at))
    }
}

impl<'a> Map<'a> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        match self {
            Map::Stored(entries) => entries.len(),
            Map::Owned(entries) => entries.len(),
        }
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at a valid index.
    pub fn entry(&self, at: usize) -> (EvalValue<'a>, EvalValue<'a>) {
        match self {
            Map::Stored(entries) => (EvalValue::Text(Text::Borrowed(&entries[at].0)), EvalValue::of(&entries[at].1)),
            Map::Owned(entries) => entries[at].clone(),
        }
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (EvalValue<'a>, EvalValue<'a>)> + '_ {
        (0..self.len()).map(|at| self.entry(at))
    }

    /// The value of a key.
    pub fn find(&self, key: &EvalValue<'_>) -> Option<EvalValue<'a>> {
        match (self, key) {
            (Map::Stored(entries), EvalValue::Text(key)) => {
                entries.iter().find(|(name, _)| **name == **key).map(|(_, value)| EvalValue::of(value))
            }
            (Map::Stored(_), _) => None,
            (Map::Owned(entries), key) => {
                entries.iter().find(|(name, _)| equal(name, key)).map(|(_, value)| value.clone())
            }
        }
    }
}

impl<'a> EvalValue<'a> {
    /// A stored value, borrowed.
    pub fn of(value: &'a Value) -> EvalValue<'a> {
        match value {
            Value::Null => EvalValue::Null,
            Value::Boolean(value) => EvalValue::Boolean(*value),
            Value::Integer(value) => EvalValue::Integer(*value),
            Value::Number(value) => EvalValue::Number(*value),
            Value::Text(text) => EvalValue::Text(Text::Borrowed(text)),
            Value::Timestamp(time) => EvalValue::Timestamp(*time),
            Value::List(items) => EvalValue::List(List::Stored(items)),
            Value::Map(entries) => EvalValue::Map(Map::Stored(entries)),
        }
    }

    /// Text built by the expression.
    pub fn text(text: impl Into<Rc<str>>) -> EvalValue<'a> {
        EvalValue::Text(Text::Owned(text.into()))
    }

    /// Bytes built by the expression.
    pub fn bytes(bytes: impl Into<Arc<[u8]>>) -> EvalValue<'a> {
        EvalValue::Bytes(bytes.into())
    }

    /// An optional, with or without a value.
    pub fn optional(value: Option<EvalValue<'a>>) -> EvalValue<'a> {
        EvalValue::Optional(value.map(Rc::new))
    }

    /// The CEL name of the value's type.
    pub fn type_name(&self) -> &'static str {
        match self {
            EvalValue::Null => "null_type",
            EvalValue::Boolean(_) => "bool",
            EvalValue::Integer(_) => "int",
            EvalValue::Unsigned(_) => "uint",
            EvalValue::Number(_) => "double",
            EvalValue::Text(_) => "string",
            EvalValue::Bytes(_) => "bytes",
            EvalValue::Timestamp(_) => "google.protobuf.Timestamp",
            EvalValue::Duration(_) => "google.protobuf.Duration",
            EvalValue::List(_) => "list",
            EvalValue::Map(_) => "map",
            EvalValue::Type(_) => "type",
            EvalValue::Optional(_) => "optional_type",
        }
    }

    /// Converts to a stored value. A duration becomes a number of seconds, a non-finite number null, bytes base64, an
    /// integer beyond 63 bits a number, an optional its value or null.
    pub fn to_value(&self) -> Value {
        match self {
            EvalValue::Null => Value::Null,
            EvalValue::Boolean(value) => Value::Boolean(*value),
            EvalValue::Integer(value) => Value::Integer(*value),
            EvalValue::Unsigned(value) => {
                i64::try_from(*value).map_or_else(|_| Value::from(*value as f64), Value::Integer)
            }
            EvalValue::Number(value) => Value::from(*value),
            EvalValue::Text(text) => Value::from(&**text),
            EvalValue::Bytes(bytes) => Value::Text(BASE64_STANDARD.encode(bytes).into()),
            EvalValue::Type(name) => Value::from(*name),
            EvalValue::Optional(value) => value.as_ref().map_or(Value::Null, |value| value.to_value()),
            EvalValue::Timestamp(time) => Value::Timestamp(*time),
            EvalValue::Duration(micros) => Value::Number(*micros as f64 / 1e6),
            EvalValue::List(items) => Value::List(items.iter().map(|item| item.to_value()).collect()),
            EvalValue::Map(entries) => {
                Value::Map(entries.iter().map(|(key, value)| (key_text(&key).into(), value.to_value())).collect())
            }
        }
    }
}

fn key_text(key: &EvalValue<'_>) -> String {
    match key {
        EvalValue::Text(text) => text.to_string(),
        EvalValue::Integer(value) => value.to_string(),
        EvalValue::Unsigned(value) => value.to_string(),
        EvalValue::Boolean(value) => value.to_string(),
        other => format!("{:?}", other.to_value()),
    }
}

/// Equality. Integers and numbers compare by exact value; values of other different types are unequal; null equals only
/// null; NaN equals no value.
pub fn equal(left: &EvalValue<'_>, right: &EvalValue<'_>) -> bool {
    match (left, right) {
        (EvalValue::Null, EvalValue::Null) => true,
        (EvalValue::Boolean(left), EvalValue::Boolean(right)) => left == right,
        (EvalValue::Integer(left), EvalValue::Integer(right)) => left == right,
        (EvalValue::Number(left), EvalValue::Number(right)) => left == right,
        (EvalValue::Integer(left), EvalValue::Number(right)) | (EvalValue::Number(right), EvalValue::Integer(left)) => {
            compare_exact(*left, *right) == Some(Ordering::Equal)
        }
        (EvalValue::Unsigned(left), EvalValue::Unsigned(right)) => left == right,
        (EvalValue::Unsigned(left), EvalValue::Integer(right))
        | (EvalValue::Integer(right), EvalValue::Unsigned(left)) => {
            i64::try_from(*left).is_ok_and(|left| left == *right)
        }
        (EvalValue::Unsigned(left), EvalValue::Number(right))
        | (EvalValue::Number(right), EvalValue::Unsigned(left)) => {
            compare_unsigned(*left, *right) == Some(Ordering::Equal)
        }
        (EvalValue::Bytes(left), EvalValue::Bytes(right)) => left == right,
        (EvalValue::Type(left), EvalValue::Type(right)) => left == right,
        (EvalValue::Optional(left), EvalValue::Optional(right)) => match (left, right) {
            (Some(left), Some(right)) => equal(left, right),
            (left, right) => left.is_none() && right.is_none(),
        },
        (EvalValue::Text(left), EvalValue::Text(right)) => **left == **right,
        (EvalValue::Timestamp(left), EvalValue::Timestamp(right)) => left == right,
        (EvalValue::Duration(left), EvalValue::Duration(right)) => left == right,
        (EvalValue::List(left), EvalValue::List(right)) => {
            left.len() == right.len() && left.iter().zip(right.iter()).all(|(left, right)| equal(&left, &right))
        }
        (EvalValue::Map(left), EvalValue::Map(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| right.find(&key).is_some_and(|other| equal(&value, &other)))
        }
        _ => false,
    }
}

/// The order of two values; `None` if one is NaN.
///
/// # Errors
/// One of them is null, or their types are not comparable.
pub fn compare(left: &EvalValue<'_>, right: &EvalValue<'_>) -> Result<Option<Ordering>, EvalError> {
    Ok(match (left, right) {
        (EvalValue::Integer(left), EvalValue::Integer(right)) => Some(left.cmp(right)),
        (EvalValue::Number(left), EvalValue::Number(right)) => left.partial_cmp(right),
        (EvalValue::Integer(left), EvalValue::Number(right)) => compare_exact(*left, *right),
        (EvalValue::Number(left), EvalValue::Integer(right)) => compare_exact(*right, *left).map(Ordering::reverse),
        (EvalValue::Unsigned(left), EvalValue::Unsigned(right)) => Some(left.cmp(right)),
        (EvalValue::Unsigned(left), EvalValue::Integer(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (EvalValue::Integer(left), EvalValue::Unsigned(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (EvalValue::Unsigned(left), EvalValue::Number(right)) => compare_unsigned(*left, *right),
        (EvalValue::Number(left), EvalValue::Unsigned(right)) => compare_unsigned(*right, *left).map(Ordering::reverse),
        (EvalValue::Bytes(left), EvalValue::Bytes(right)) => Some(left.cmp(right)),
        (EvalValue::Text(left), EvalValue::Text(right)) => Some((**left).cmp(&**right)),
        (EvalValue::Timestamp(left), EvalValue::Timestamp(right)) => Some(left.cmp(right)),
        (EvalValue::Duration(left), EvalValue::Duration(right)) => Some(left.cmp(right)),
        (EvalValue::Boolean(left), EvalValue::Boolean(right)) => Some(left.cmp(right)),
        (EvalValue::Null, _) | (_, EvalValue::Null) => return Err(EvalError::Null),
        _ => return Err(EvalError::Type),
    })
}

/// 2^63, the first double above every integer.
const ABOVE_INTEGERS: f64 = 9_223_372_036_854_775_808.0;

/// 2^64, the first double above every integer without a sign.
const ABOVE_UNSIGNED: f64 = 18_446_744_073_709_551_616.0;

/// Compares an integer with a double by exact value, without rounding.
pub fn compare_exact(integer: i64, number: f64) -> Option<Ordering> {
    if number.is_nan() {
        None
    } else if number >= ABOVE_INTEGERS {
        Some(Ordering::Less)
    } else if number < -ABOVE_INTEGERS {
        Some(Ordering::Greater)
    } else {
        let whole = number.trunc();
        Some(integer.cmp(&(whole as i64)).then(whole.partial_cmp(&number)?))
    }
}

/// Compares an unsigned integer with a double by exact value, without rounding.
pub fn compare_unsigned(integer: u64, number: f64) -> Option<Ordering> {
    match i64::try_from(integer) {
        Ok(integer) => compare_exact(integer, number),
        Err(_) if number.is_nan() => None,
        Err(_) if number < ABOVE_INTEGERS => Some(Ordering::Greater),
        Err(_) if number >= ABOVE_UNSIGNED => Some(Ordering::Less),
        // A double this large has no fraction.
        Err(_) => Some(integer.cmp(&(number as u64))),
    }
}

/// Appends an encoding that is equal exactly for equal values.
///
/// # Errors
/// A NaN has no encoding: it equals no value.
pub fn write_key(eval_value: &EvalValue<'_>, out: &mut Vec<u8>) -> Result<(), EvalError> {
    let mut word = |tag: u8, word: u64| {
        out.push(tag);
        out.extend_from_slice(&word.to_le_bytes());
        Ok(())
    };
    match eval_value {
        EvalValue::Null => word(0, 0),
        EvalValue::Boolean(value) => word(1, u64::from(*value)),
        EvalValue::Integer(value) => word(2, *value as u64),
        EvalValue::Number(value) if value.is_nan() => Err(EvalError::Type),
        EvalValue::Number(value) if value.trunc() == *value && (-ABOVE_INTEGERS..ABOVE_INTEGERS).contains(value) => {
            word(2, *value as i64 as u64)
        }
        EvalValue::Number(value) if (ABOVE_INTEGERS..ABOVE_UNSIGNED).contains(value) => word(9, *value as u64),
        EvalValue::Number(value) => word(3, value.to_bits()),
        EvalValue::Unsigned(value) => word(if i64::try_from(*value).is_ok() { 2 } else { 9 }, *value),
        EvalValue::Timestamp(time) => word(4, time.0 as u64),
        EvalValue::Duration(micros) => word(5, *micros as u64),
        EvalValue::Text(text) => {
            write_text_key(text.as_bytes(), out);
            Ok(())
        }
        EvalValue::Bytes(bytes) => {
            word(10, bytes.len() as u64)?;
            out.extend_from_slice(bytes);
            Ok(())
        }
        EvalValue::Type(name) => {
            word(11, name.len() as u64)?;
            out.extend_from_slice(name.as_bytes());
            Ok(())
        }
        EvalValue::Optional(None) => word(12, 0),
        EvalValue::Optional(Some(value)) => {
            word(12, 1)?;
            write_key(value, out)
        }
        EvalValue::List(items) => {
            word(7, items.len() as u64)?;
            items.iter().try_for_each(|item| write_key(&item, out))
        }
        EvalValue::Map(entries) => {
            word(8, entries.len() as u64)?;
            let mut encoded = Vec::with_capacity(entries.len());
            for (key, value) in entries.iter() {
                let mut entry = Vec::new();
                write_key(&key, &mut entry)?;
                write_key(&value, &mut entry)?;
                encoded.push(entry);
            }
            encoded.sort_unstable();
            out.extend(encoded.into_iter().flatten());
            Ok(())
        }
    }
}

/// Appends the encoding of a text, given its bytes.
#[inline]
pub fn write_text_key(text: &[u8], out: &mut Vec<u8>) {
    out.reserve(text.len() + 9);
    out.push(6);
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_doubles_compare_exactly() {
        let big = 9_007_199_254_740_993; // 2^53 + 1, which has no exact double
        assert_eq!(compare_exact(big, 9_007_199_254_740_992.0), Some(Ordering::Greater));
        assert_eq!(compare_exact(i64::MAX, 9_223_372_036_854_775_808.0), Some(Ordering::Less));
        assert_eq!(compare_exact(i64::MIN, -9_223_372_036_854_775_808.0), Some(Ordering::Equal));
        assert_eq!(compare_exact(-1, -1.5), Some(Ordering::Greater));
        assert_eq!(compare_exact(-2, -1.5), Some(Ordering::Less));
        assert_eq!(compare_exact(1, 1.5), Some(Ordering::Less));
        assert_eq!(compare_exact(0, -0.0), Some(Ordering::Equal));
        assert_eq!(compare_exact(0, f64::NAN), None);
    }

    #[test]
    fn equal_values_have_equal_keys() {
        let values = [
            EvalValue::Null,
            EvalValue::Boolean(false),
            EvalValue::Integer(0),
            EvalValue::Number(-0.0),
            EvalValue::Integer(9_007_199_254_740_993),
            EvalValue::Number(9_007_199_254_740_992.0),
            EvalValue::Integer(9_007_199_254_740_992),
            EvalValue::Integer(i64::MAX),
            EvalValue::Number(9_223_372_036_854_775_808.0),
            EvalValue::Unsigned(0),
            EvalValue::Unsigned(9_223_372_036_854_775_808),
            EvalValue::Unsigned(u64::MAX),
            EvalValue::Number(18_446_744_073_709_551_616.0),
            EvalValue::bytes(*b"a"),
            EvalValue::Type("int"),
            EvalValue::optional(None),
            EvalValue::optional(Some(EvalValue::Unsigned(0))),
            EvalValue::optional(Some(EvalValue::Number(0.0))),
            EvalValue::Number(0.5),
            EvalValue::Timestamp(Timestamp(0)),
            EvalValue::Duration(0),
            EvalValue::text(""),
            EvalValue::text("0"),
            EvalValue::List(List::Owned([EvalValue::Integer(1), EvalValue::text("a")].into())),
            EvalValue::List(List::Owned([EvalValue::Number(1.0), EvalValue::text("a")].into())),
            EvalValue::Map(Map::Owned(
                [(EvalValue::text("a"), EvalValue::Null), (EvalValue::text("b"), EvalValue::Integer(2))].into(),
            )),
            EvalValue::Map(Map::Owned(
                [(EvalValue::text("b"), EvalValue::Number(2.0)), (EvalValue::text("a"), EvalValue::Null)].into(),
            )),
        ];
        let key = |eval_value: &EvalValue<'_>| {
            let mut out = Vec::new();
            write_key(eval_value, &mut out).map(|()| out)
        };
        for left in &values {
            for right in &values {
                assert_eq!(key(left) == key(right), equal(left, right), "{left:?} {right:?}");
            }
        }
        assert!(key(&EvalValue::Number(f64::NAN)).is_err());
    }
}
