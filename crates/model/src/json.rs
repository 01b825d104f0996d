//! Limits for JSON from outside: depth and number of values, by their cost in memory rather than in bytes.
//!
//! `[],[],` takes three bytes a value, and each value takes 32 to 100 bytes in memory. [`check`] scans a text before
//! it is parsed; [`ValueSeed`] counts while a [`Value`] is read.

use std::{fmt, sync::Arc};

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::{
    problem::{Code, Problem},
    value::Value,
};

/// Deepest nesting of lists and objects.
pub const DEPTH_MAX: usize = 100;
/// Most values and keys of one object: an event, a row, the body of a single resource.
pub const VALUES_MAX: usize = 100_000;
/// Approximate memory of one value or key.
pub const VALUE_BYTES: usize = 64;

/// A text without the byte-order mark at its start, which RFC 8259 (8.1) lets a reader ignore.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Counts the values and keys of a JSON text without parsing it. O(length), without recursion. Syntax errors are left
/// to the parser.
///
/// # Errors
/// It is nested deeper than [`DEPTH_MAX`], or has more than `values_max` values and keys; with line and column.
pub fn check(text: &[u8], values_max: usize) -> Result<usize, Problem> {
    let (mut values, mut depth, mut at) = (1usize, 0usize, 0);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at = end_of_string(text, at),
            b'[' | b'{' => {
                depth += 1;
                values += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' | b':' => values += 1,
            _ => {}
        }
        if depth > DEPTH_MAX || values > values_max {
            let message = if depth > DEPTH_MAX { too_deep() } else { too_many(values_max) };
            let before = &text[..at];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
            let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            return Err(Problem::new(Code::TooComplex, "", message).hint(HINT).position(number(line), number(column)));
        }
        at += 1;
    }
    Ok(values)
}

const HINT: &str = "send less at once";

fn too_deep() -> String {
    format!("is nested deeper than {DEPTH_MAX} lists and objects")
}

fn too_many(values_max: usize) -> String {
    format!("holds more than {values_max} values and keys")
}

/// Index of the quote that closes a string.
fn end_of_string(text: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// Remaining budget of values for one object.
#[derive(Debug)]
pub(crate) struct Budget {
    values: usize,
    /// The exceeded limit. The rest is skipped, so that the problem has the name of its field.
    pub excess: Option<String>,
}

impl Budget {
    pub fn new() -> Budget {
        Budget { values: VALUES_MAX, excess: None }
    }
}

/// A limit on the values that are read.
pub(crate) trait Bound {
    /// Takes budget for one value or key at a depth. False from the first one that exceeds it.
    fn take(&mut self, depth: usize) -> bool;
    /// Whether the limit was exceeded.
    fn is_exceeded(&self) -> bool;
}

/// No limit: the reader has its own.
pub(crate) struct Unbounded;

impl Bound for Unbounded {
    fn take(&mut self, _depth: usize) -> bool {
        true
    }

    fn is_exceeded(&self) -> bool {
        false
    }
}

impl Bound for Budget {
    fn take(&mut self, depth: usize) -> bool {
        if depth > DEPTH_MAX {
            self.excess.get_or_insert_with(too_deep);
        }
        match self.values.checked_sub(1) {
            Some(left) => self.values = left,
            None => {
                self.excess.get_or_insert_with(|| too_many(VALUES_MAX));
            }
        }
        self.excess.is_none()
    }

    fn is_exceeded(&self) -> bool {
        self.excess.is_some()
    }
}

/// Reads a [`Value`] within a limit. Beyond it the text is skipped and the value is null.
pub(crate) struct ValueSeed<'a, B> {
    pub bound: &'a mut B,
    pub depth: usize,
}

impl<'de, B: Bound> DeserializeSeed<'de> for ValueSeed<'_, B> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.bound.take(self.depth) {
            true => deserializer.deserialize_any(self),
            false => deserializer.deserialize_ignored_any(IgnoredAny).map(|IgnoredAny| Value::Null),
        }
    }
}

impl<'de, B: Bound> Visitor<'de> for ValueSeed<'_, B> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Number(value as f64), Value::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let ValueSeed { bound, depth } = self;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(ValueSeed { bound: &mut *bound, depth: depth + 1 })? {
            match bound.is_exceeded() {
                false => list.push(item),
                true => list.clear(),
            }
        }
        Ok(Value::List(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let ValueSeed { bound, depth } = self;
        let mut map: Vec<(Arc<str>, Value)> = Vec::new();
        loop {
            if bound.is_exceeded() {
                map.clear();
                while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                break;
            }
            let Some(key) = entries.next_key::<String>()? else { break };
            bound.take(depth);
            map.push((key.into(), entries.next_value_seed(ValueSeed { bound: &mut *bound, depth: depth + 1 })?));
        }
        Ok(Value::Map(map.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a19_values_and_depth_are_counted_before_a_text_is_read() {
        let count = |text: &str| check(text.as_bytes(), 10).map_err(|problem| problem.to_string());
        assert_eq!(count("1"), Ok(1));
        assert_eq!(count(r#"{"a,[{": "\",[\\", "b": [1, 2]}"#), Ok(7));
        assert_eq!(
            count("{\n\"a\": [1,1,1,1,1,1,1,1,1]}"),
            Err("2:20: holds more than 10 values and keys; send less at once".to_owned())
        );
        let deep = check("[".repeat(100_000).as_bytes(), usize::MAX).map_err(|problem| problem.to_string());
        assert_eq!(deep, Err("1:101: is nested deeper than 100 lists and objects; send less at once".to_owned()));
        assert_eq!(check(b"\"\\", 10), Ok(1));
    }
}
