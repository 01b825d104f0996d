//! Values while an expression runs. They borrow from the event, the subscription and the expression where they can.

use std::{cmp::Ordering, rc::Rc, sync::Arc};

use base64::prelude::{BASE64_STANDARD, Engine};
use tocsin_model::{time::Timestamp, value::Value};

/// Why an evaluation has no value. An error is never a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// An operator or function met null, which is also what a missing field holds.
    #[error("a value is missing")]
    Null,
    /// An operator or function met a value of a type it does not take.
    #[error("an operand has the wrong type")]
    Type,
    /// The result does not fit: an integer beyond 64 bits, a time outside the years 1 to 9999.
    #[error("the result is out of range")]
    Range,
    /// An integer was divided by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A map has no such key, or a list no such place.
    #[error("there is no such key or place")]
    NoSuchKey,
    /// A text could not be read as what it was converted to.
    #[error("the text cannot be converted")]
    Conversion,
    /// A regular expression made at run time is wrong or too large.
    #[error("the regular expression is wrong or too large")]
    Pattern,
    /// The expression took more steps than it may. Unlike the others, this one is reported.
    #[error("the expression takes too many steps")]
    Cost,
    /// A rule took longer for an event batch than it may. Reported too, and of the rule as a whole.
    #[error("the rule takes too long")]
    Time,
}

/// A value while an expression runs.
#[derive(Debug, Clone)]
pub enum Datum<'a> {
    /// Nothing; also what a missing field holds.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A 64-bit integer.
    Integer(i64),
    /// A 64-bit integer without a sign.
    Unsigned(u64),
    /// A double.
    Number(f64),
    /// Text.
    Text(Text<'a>),
    /// Bytes made by the expression.
    Bytes(Arc<[u8]>),
    /// An instant.
    Timestamp(Timestamp),
    /// Microseconds between two instants.
    Duration(i64),
    /// Values in order.
    List(List<'a>),
    /// Values by key.
    Map(Map<'a>),
    /// A type, by its name in CEL.
    Type(&'static str),
    /// A value or none.
    Optional(Option<Rc<Datum<'a>>>),
}

/// Text, borrowed or made by the expression.
#[derive(Debug, Clone)]
pub enum Text<'a> {
    /// Of a field or literal.
    Borrowed(&'a str),
    /// Made by the expression.
    Made(Rc<str>),
}

/// A list, borrowed or made by the expression.
#[derive(Debug, Clone)]
pub enum List<'a> {
    /// Of a field or literal.
    Stored(&'a [Value]),
    /// Made by the expression.
    Made(Rc<[Datum<'a>]>),
}

/// A map, borrowed or made by the expression.
#[derive(Debug, Clone)]
pub enum Map<'a> {
    /// Of a field or literal.
    Stored(&'a [(Arc<str>, Value)]),
    /// Made by the expression.
    Made(Rc<[(Datum<'a>, Datum<'a>)]>),
}

impl std::ops::Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Made(text) => text,
        }
    }
}

impl<'a> List<'a> {
    /// How many values.
    pub fn len(&self) -> usize {
        match self {
            List::Stored(items) => items.len(),
            List::Made(items) => items.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value at a place that exists.
    pub fn item(&self, at: usize) -> Datum<'a> {
        match self {
            List::Stored(items) => Datum::of(&items[at]),
            List::Made(items) => items[at].clone(),
        }
    }

    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = Datum<'a>> + '_ {
        (0..self.len()).map(|at| self.item(at))
    }
}

impl<'a> Map<'a> {
    /// How many entries.
    pub fn len(&self) -> usize {
        match self {
            Map::Stored(entries) => entries.len(),
            Map::Made(entries) => entries.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at a place that exists.
    pub fn entry(&self, at: usize) -> (Datum<'a>, Datum<'a>) {
        match self {
            Map::Stored(entries) => (Datum::Text(Text::Borrowed(&entries[at].0)), Datum::of(&entries[at].1)),
            Map::Made(entries) => entries[at].clone(),
        }
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (Datum<'a>, Datum<'a>)> + '_ {
        (0..self.len()).map(|at| self.entry(at))
    }

    /// The value of a key.
    pub fn find(&self, key: &Datum<'_>) -> Option<Datum<'a>> {
        match (self, key) {
            (Map::Stored(entries), Datum::Text(key)) => {
                entries.iter().find(|(name, _)| **name == **key).map(|(_, value)| Datum::of(value))
            }
            (Map::Stored(_), _) => None,
            (Map::Made(entries), key) => {
                entries.iter().find(|(name, _)| equal(name, key)).map(|(_, value)| value.clone())
            }
        }
    }
}

impl<'a> Datum<'a> {
    /// A stored value, borrowed.
    pub fn of(value: &'a Value) -> Datum<'a> {
        match value {
            Value::Null => Datum::Null,
            Value::Boolean(value) => Datum::Boolean(*value),
            Value::Integer(value) => Datum::Integer(*value),
            Value::Number(value) => Datum::Number(*value),
            Value::Text(text) => Datum::Text(Text::Borrowed(text)),
            Value::Timestamp(time) => Datum::Timestamp(*time),
            Value::List(items) => Datum::List(List::Stored(items)),
            Value::Map(entries) => Datum::Map(Map::Stored(entries)),
        }
    }

    /// Text made by the expression.
    pub fn text(text: impl Into<Rc<str>>) -> Datum<'a> {
        Datum::Text(Text::Made(text.into()))
    }

    /// Bytes made by the expression.
    pub fn bytes(bytes: impl Into<Arc<[u8]>>) -> Datum<'a> {
        Datum::Bytes(bytes.into())
    }

    /// An optional with a value, or without.
    pub fn optional(value: Option<Datum<'a>>) -> Datum<'a> {
        Datum::Optional(value.map(Rc::new))
    }

    /// The name of its type in CEL.
    pub fn type_name(&self) -> &'static str {
        match self {
            Datum::Null => "null_type",
            Datum::Boolean(_) => "bool",
            Datum::Integer(_) => "int",
            Datum::Unsigned(_) => "uint",
            Datum::Number(_) => "double",
            Datum::Text(_) => "string",
            Datum::Bytes(_) => "bytes",
            Datum::Timestamp(_) => "google.protobuf.Timestamp",
            Datum::Duration(_) => "google.protobuf.Duration",
            Datum::List(_) => "list",
            Datum::Map(_) => "map",
            Datum::Type(_) => "type",
            Datum::Optional(_) => "optional_type",
        }
    }

    /// The value to keep. A duration becomes a number of seconds, what is not finite becomes null, bytes become
    /// base64, an integer beyond 63 bits becomes a number, an optional becomes its value or null.
    pub fn to_value(&self) -> Value {
        match self {
            Datum::Null => Value::Null,
            Datum::Boolean(value) => Value::Boolean(*value),
            Datum::Integer(value) => Value::Integer(*value),
            Datum::Unsigned(value) => i64::try_from(*value).map_or_else(|_| Value::from(*value as f64), Value::Integer),
            Datum::Number(value) => Value::from(*value),
            Datum::Text(text) => Value::from(&**text),
            Datum::Bytes(bytes) => Value::Text(BASE64_STANDARD.encode(bytes).into()),
            Datum::Type(name) => Value::from(*name),
            Datum::Optional(value) => value.as_ref().map_or(Value::Null, |value| value.to_value()),
            Datum::Timestamp(time) => Value::Timestamp(*time),
            Datum::Duration(micros) => Value::Number(*micros as f64 / 1e6),
            Datum::List(items) => Value::List(items.iter().map(|item| item.to_value()).collect()),
            Datum::Map(entries) => {
                Value::Map(entries.iter().map(|(key, value)| (key_text(&key).into(), value.to_value())).collect())
            }
        }
    }
}

fn key_text(key: &Datum<'_>) -> String {
    match key {
        Datum::Text(text) => text.to_string(),
        Datum::Integer(value) => value.to_string(),
        Datum::Unsigned(value) => value.to_string(),
        Datum::Boolean(value) => value.to_string(),
        other => format!("{:?}", other.to_value()),
    }
}

/// Whether two values are equal. Integers and numbers compare by exact value; other types are never equal to each
/// other; null equals only null; NaN equals nothing.
pub fn equal(left: &Datum<'_>, right: &Datum<'_>) -> bool {
    match (left, right) {
        (Datum::Null, Datum::Null) => true,
        (Datum::Boolean(left), Datum::Boolean(right)) => left == right,
        (Datum::Integer(left), Datum::Integer(right)) => left == right,
        (Datum::Number(left), Datum::Number(right)) => left == right,
        (Datum::Integer(left), Datum::Number(right)) | (Datum::Number(right), Datum::Integer(left)) => {
            compare_exact(*left, *right) == Some(Ordering::Equal)
        }
        (Datum::Unsigned(left), Datum::Unsigned(right)) => left == right,
        (Datum::Unsigned(left), Datum::Integer(right)) | (Datum::Integer(right), Datum::Unsigned(left)) => {
            i64::try_from(*left).is_ok_and(|left| left == *right)
        }
        (Datum::Unsigned(left), Datum::Number(right)) | (Datum::Number(right), Datum::Unsigned(left)) => {
            compare_unsigned(*left, *right) == Some(Ordering::Equal)
        }
        (Datum::Bytes(left), Datum::Bytes(right)) => left == right,
        (Datum::Type(left), Datum::Type(right)) => left == right,
        (Datum::Optional(left), Datum::Optional(right)) => match (left, right) {
            (Some(left), Some(right)) => equal(left, right),
            (left, right) => left.is_none() && right.is_none(),
        },
        (Datum::Text(left), Datum::Text(right)) => **left == **right,
        (Datum::Timestamp(left), Datum::Timestamp(right)) => left == right,
        (Datum::Duration(left), Datum::Duration(right)) => left == right,
        (Datum::List(left), Datum::List(right)) => {
            left.len() == right.len() && left.iter().zip(right.iter()).all(|(left, right)| equal(&left, &right))
        }
        (Datum::Map(left), Datum::Map(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| right.find(&key).is_some_and(|other| equal(&value, &other)))
        }
        _ => false,
    }
}

/// The order of two values; `None` where a NaN is involved.
///
/// # Errors
/// One of them is null, or their types have no order between them.
pub fn compare(left: &Datum<'_>, right: &Datum<'_>) -> Result<Option<Ordering>, Trouble> {
    Ok(match (left, right) {
        (Datum::Integer(left), Datum::Integer(right)) => Some(left.cmp(right)),
        (Datum::Number(left), Datum::Number(right)) => left.partial_cmp(right),
        (Datum::Integer(left), Datum::Number(right)) => compare_exact(*left, *right),
        (Datum::Number(left), Datum::Integer(right)) => compare_exact(*right, *left).map(Ordering::reverse),
        (Datum::Unsigned(left), Datum::Unsigned(right)) => Some(left.cmp(right)),
        (Datum::Unsigned(left), Datum::Integer(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (Datum::Integer(left), Datum::Unsigned(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (Datum::Unsigned(left), Datum::Number(right)) => compare_unsigned(*left, *right),
        (Datum::Number(left), Datum::Unsigned(right)) => compare_unsigned(*right, *left).map(Ordering::reverse),
        (Datum::Bytes(left), Datum::Bytes(right)) => Some(left.cmp(right)),
        (Datum::Text(left), Datum::Text(right)) => Some((**left).cmp(&**right)),
        (Datum::Timestamp(left), Datum::Timestamp(right)) => Some(left.cmp(right)),
        (Datum::Duration(left), Datum::Duration(right)) => Some(left.cmp(right)),
        (Datum::Boolean(left), Datum::Boolean(right)) => Some(left.cmp(right)),
        (Datum::Null, _) | (_, Datum::Null) => return Err(Trouble::Null),
        _ => return Err(Trouble::Type),
    })
}

/// 2^63, the first double above every integer.
const ABOVE_INTEGERS: f64 = 9_223_372_036_854_775_808.0;

/// 2^64, the first double above every integer without a sign.
const ABOVE_UNSIGNED: f64 = 18_446_744_073_709_551_616.0;

/// Compares an integer with a double by value, without rounding either.
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

/// Compares an integer without a sign with a double by value, without rounding either.
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

/// Appends a form that is equal for equal values and different for different ones.
///
/// # Errors
/// A NaN has no such form: it equals nothing.
pub fn write_key(datum: &Datum<'_>, out: &mut Vec<u8>) -> Result<(), Trouble> {
    let mut word = |tag: u8, word: u64| {
        out.push(tag);
        out.extend_from_slice(&word.to_le_bytes());
        Ok(())
    };
    match datum {
        Datum::Null => word(0, 0),
        Datum::Boolean(value) => word(1, u64::from(*value)),
        Datum::Integer(value) => word(2, *value as u64),
        Datum::Number(value) if value.is_nan() => Err(Trouble::Type),
        Datum::Number(value) if value.trunc() == *value && (-ABOVE_INTEGERS..ABOVE_INTEGERS).contains(value) => {
            word(2, *value as i64 as u64)
        }
        Datum::Number(value) if (ABOVE_INTEGERS..ABOVE_UNSIGNED).contains(value) => word(9, *value as u64),
        Datum::Number(value) => word(3, value.to_bits()),
        Datum::Unsigned(value) => word(if i64::try_from(*value).is_ok() { 2 } else { 9 }, *value),
        Datum::Timestamp(time) => word(4, time.0 as u64),
        Datum::Duration(micros) => word(5, *micros as u64),
        Datum::Text(text) => {
            write_text_key(text.as_bytes(), out);
            Ok(())
        }
        Datum::Bytes(bytes) => {
            word(10, bytes.len() as u64)?;
            out.extend_from_slice(bytes);
            Ok(())
        }
        Datum::Type(name) => {
            word(11, name.len() as u64)?;
            out.extend_from_slice(name.as_bytes());
            Ok(())
        }
        Datum::Optional(None) => word(12, 0),
        Datum::Optional(Some(value)) => {
            word(12, 1)?;
            write_key(value, out)
        }
        Datum::List(items) => {
            word(7, items.len() as u64)?;
            items.iter().try_for_each(|item| write_key(&item, out))
        }
        Datum::Map(entries) => {
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

/// Appends the key of a text, given its bytes.
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
    fn no_digit_is_lost_in_a_comparison() {
        let big = 9_007_199_254_740_993; // 2^53 + 1, which no double is
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
    fn keys_are_equal_where_values_are() {
        let values = [
            Datum::Null,
            Datum::Boolean(false),
            Datum::Integer(0),
            Datum::Number(-0.0),
            Datum::Integer(9_007_199_254_740_993),
            Datum::Number(9_007_199_254_740_992.0),
            Datum::Integer(9_007_199_254_740_992),
            Datum::Integer(i64::MAX),
            Datum::Number(9_223_372_036_854_775_808.0),
            Datum::Unsigned(0),
            Datum::Unsigned(9_223_372_036_854_775_808),
            Datum::Unsigned(u64::MAX),
            Datum::Number(18_446_744_073_709_551_616.0),
            Datum::bytes(*b"a"),
            Datum::Type("int"),
            Datum::optional(None),
            Datum::optional(Some(Datum::Unsigned(0))),
            Datum::optional(Some(Datum::Number(0.0))),
            Datum::Number(0.5),
            Datum::Timestamp(Timestamp(0)),
            Datum::Duration(0),
            Datum::text(""),
            Datum::text("0"),
            Datum::List(List::Made([Datum::Integer(1), Datum::text("a")].into())),
            Datum::List(List::Made([Datum::Number(1.0), Datum::text("a")].into())),
            Datum::Map(Map::Made([(Datum::text("a"), Datum::Null), (Datum::text("b"), Datum::Integer(2))].into())),
            Datum::Map(Map::Made([(Datum::text("b"), Datum::Number(2.0)), (Datum::text("a"), Datum::Null)].into())),
        ];
        let key = |datum: &Datum<'_>| {
            let mut out = Vec::new();
            write_key(datum, &mut out).map(|()| out)
        };
        for left in &values {
            for right in &values {
                assert_eq!(key(left) == key(right), equal(left, right), "{left:?} {right:?}");
            }
        }
        assert!(key(&Datum::Number(f64::NAN)).is_err());
    }
}
