//! Lossless JSON: keeps every literal as written, with numbers of any size and precision, the order of members, and
//! duplicate names.
//!
//! A double holds about 17 digits, and [`Value`] one or a 64-bit integer. That is enough for reading, but a program
//! that writes JSON again must not change numbers. For that a body is parsed into [`Exact`]. If an expression
//! computes with it, it is parsed into a [`Value`] with the [`Numbers`] that a double cannot represent.

use std::collections::HashMap;

use serde::de::IgnoredAny;

use crate::{merge_patch::TooDeep, value::Value};

/// The depth to which lists and objects may be nested.
pub const DEPTH_MAX: usize = 128;

/// A JSON value as it is written, without white space between tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exact {
    /// A literal: null, true, false, a number, or a string with its quotation marks.
    Literal(Box<str>),
    /// Items in order.
    List(Vec<Exact>),
    /// Members in order, names with their quotation marks.
    Object(Vec<(Box<str>, Exact)>),
}

/// A text that is not JSON, or is nested too deeply.
#[derive(Debug, thiserror::Error)]
pub enum ExactError {
    /// It is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It is nested too deeply.
    #[error("it is nested deeper than {DEPTH_MAX} levels")]
    Deep,
}

impl Exact {
    /// Reads a text.
    ///
    /// # Errors
    /// It is not JSON, or is nested deeper than [`DEPTH_MAX`].
    pub fn read(text: &[u8]) -> Result<Exact, ExactError> {
        let text = std::str::from_utf8(text).map_err(<serde_json::Error as serde::de::Error>::custom)?;
        serde_json::from_str::<IgnoredAny>(text)?;
        // The text was validated before, so the reader can rely on its syntax.
        let mut reader = Reader { text, at: 0 };
        reader.value(0)
    }

    /// Whether it is an object.
    fn is_object(&self) -> bool {
        matches!(self, Exact::Object(_))
    }

    /// Appends it to a text.
    pub fn write(&self, out: &mut String) {
        match self {
            Exact::Literal(literal) => out.push_str(literal),
            Exact::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    item.write(out);
                }
                out.push(']');
            }
            Exact::Object(members) => {
                out.push('{');
                for (at, (name, value)) in members.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    out.push_str(name);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    /// Applies a merge patch (RFC 7396): null removes, objects merge, everything else replaces. Other members stay,
    /// in order. Of duplicate names that the patch contains, the last counts.
    ///
    /// # Errors
    /// Objects are nested in more than `depth` others; the target may have changed in part.
    pub fn merge(&mut self, patch: &Exact, depth: usize) -> Result<(), TooDeep> {
        let Exact::Object(changes) = patch else {
            self.clone_from(patch);
            return Ok(());
        };
        if !self.is_object() {
            *self = Exact::Object(Vec::new());
        }
        let Exact::Object(members) = self else { unreachable!("it was just made an object") };
        for (at, (name, change)) in changes.iter().enumerate() {
            let name = decoded(name);
            if changes[at + 1..].iter().any(|(other, _)| decoded(other) == name) {
                continue; // a later duplicate counts
            }
            let last = members.iter().rposition(|(known, _)| decoded(known) == name);
            let before = last.map(|last| {
                let mut kept = last;
                let mut position = 0;
                members.retain(|(known, _)| {
                    let goes = position != last && decoded(known) == name;
                    kept -= usize::from(goes && position < last);
                    position += 1;
                    !goes
                });
                kept
            });
            match (before, matches!(change, Exact::Literal(literal) if **literal == *"null")) {
                (Some(at), true) => drop(members.remove(at)),
                (None, true) => {}
                (Some(at), false) => members[at].1.merge(change, depth.checked_sub(1).ok_or(TooDeep)?)?,
                (None, false) => {
                    let mut value = Exact::Literal("null".into());
                    value.merge(change, depth.checked_sub(1).ok_or(TooDeep)?)?;
                    members.push((changes[at].0.clone(), value));
                }
            }
        }
        Ok(())
    }

    /// Its value for expressions. Numbers that a double cannot represent are added to [`Numbers`].
    ///
    /// # Errors
    /// A string has half of a surrogate pair.
    pub fn value(&self, numbers: &mut Numbers) -> Result<Value, serde_json::Error> {
        Ok(match self {
            Exact::Literal(literal) if literal.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
                numbers.value(literal)
            }
            Exact::Literal(literal) => serde_json::from_str(literal)?,
            Exact::List(items) => {
                Value::List(items.iter().map(|item| item.value(numbers)).collect::<Result<Vec<_>, _>>()?.into())
            }
            Exact::Object(members) => {
                let mut map: Vec<(std::sync::Arc<str>, Value)> = Vec::with_capacity(members.len());
                let mut places: HashMap<std::sync::Arc<str>, usize> = HashMap::with_capacity(members.len());
                for (name, value) in members {
                    let name: std::sync::Arc<str> = serde_json::from_str::<String>(name)?.into();
                    let value = value.value(numbers)?;
                    // Of duplicate names, the last counts.
                    match places.get(&name) {
                        Some(at) => map[*at].1 = value,
                        None => {
                            places.insert(name.clone(), map.len());
                            map.push((name, value));
                        }
                    }
                }
                Value::Map(map.into())
            }
        })
    }
}

impl std::fmt::Display for Exact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        f.write_str(&text)
    }
}

/// The name in a literal; one with half of a surrogate pair stands for itself.
fn decoded(name: &str) -> std::borrow::Cow<'_, str> {
    match name.contains('\\') {
        false => std::borrow::Cow::Borrowed(name.trim_matches('"')),
        true => match serde_json::from_str::<String>(name) {
            Ok(name) => std::borrow::Cow::Owned(name),
            Err(_) => std::borrow::Cow::Borrowed(name),
        },
    }
}

/// Original texts of numbers, by the double that stands for each in a [`Value`].
///
/// Two different numbers with the same double get neighbouring doubles. Equal numbers written differently share a
/// double and are written as the first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers(HashMap<u64, Box<str>>);

impl Numbers {
    /// Whether a double represents every number exactly.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text of a number that a double does not represent.
    pub fn text(&self, number: f64) -> Option<&str> {
        self.0.get(&number.to_bits()).map(|text| &**text)
    }

    fn value(&mut self, literal: &str) -> Value {
        if is_plain_integer(literal)
            && let Ok(integer) = literal.parse::<i64>()
        {
            return Value::Integer(integer);
        }
        // The text is a JSON number, which Rust parses too; a number too large for a double becomes infinite.
        let read: f64 = literal.parse().unwrap_or(f64::MAX);
        let mut number = read.clamp(f64::MIN, f64::MAX);
        if number == 0.0 && !is_zero(literal) {
            number = f64::from_bits(1).copysign(number);
        }
        for _ in 0..1_024 {
            match self.0.get(&number.to_bits()) {
                Some(known) if **known == *literal || is_same(known, literal) => return Value::Number(number),
                Some(_) => {
                    number = if number.abs() >= f64::MAX { number.next_towards_zero() } else { number.next_up() }
                }
                None => {
                    self.0.insert(number.to_bits(), literal.into());
                    return Value::Number(number);
                }
            }
        }
        Value::Number(number)
    }

    /// Serializes a value as JSON, with the original numbers.
    pub fn write(&self, value: &Value, out: &mut String) {
        match value {
            Value::Number(number) => match self.text(*number) {
                Some(text) => out.push_str(text),
                None => out.push_str(&serde_json::Value::from(*number).to_string()),
            },
            Value::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    self.write(item, out);
                }
                out.push(']');
            }
            Value::Map(members) => {
                out.push('{');
                for (at, (name, value)) in members.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    out.push_str(&serde_json::Value::from(&**name).to_string());
                    out.push(':');
                    self.write(value, out);
                }
                out.push('}');
            }
            other => out.push_str(&serde_json::Value::from(other.clone()).to_string()),
        }
    }
}

trait TowardsZero {
    fn next_towards_zero(self) -> Self;
}

impl TowardsZero for f64 {
    fn next_towards_zero(self) -> f64 {
        if self > 0.0 { self.next_down() } else { self.next_up() }
    }
}

/// Whether a number is a 64-bit integer in its canonical form.
fn is_plain_integer(literal: &str) -> bool {
    literal != "-0" && literal.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn is_zero(literal: &str) -> bool {
    let mantissa = literal.split(['e', 'E']).next().unwrap_or_default();
    mantissa.bytes().all(|byte| matches!(byte, b'0' | b'.' | b'-'))
}

/// Whether two literals are the same number: equal digits without surrounding zeros, and the same exponent.
fn is_same(one: &str, other: &str) -> bool {
    fn parts(literal: &str) -> Option<(bool, String, i64)> {
        let (mantissa, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits: String = whole.trim_start_matches('-').chars().chain(fraction.chars()).collect();
        let leading = digits.len() - digits.trim_start_matches('0').len();
        let point = i64::try_from(whole.trim_start_matches('-').len()).ok()? - i64::try_from(leading).ok()?;
        let digits = digits.trim_matches('0').to_owned();
        let point = if digits.is_empty() { 0 } else { point.checked_add(exponent.parse::<i64>().ok()?)? };
        Some((literal.starts_with('-'), digits, point))
    }
    match (parts(one), parts(other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// Whether a JSON text has a number that a [`Value`] would write differently. One pass over the bytes.
pub fn has_inexact_numbers(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => at = end_of_string(text, at),
            b'-' | b'0'..=b'9' => {
                let end = end_of_number(text, at);
                if !is_canonical_number(&text[at..end]) {
                    return true;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    false
}

fn is_canonical_number(literal: &[u8]) -> bool {
    let Ok(literal) = std::str::from_utf8(literal) else { return false };
    if is_plain_integer(literal) {
        return literal.len() <= 18 || literal.parse::<i64>().is_ok();
    }
    let number = literal.parse::<f64>().ok().filter(|number| number.is_finite());
    number.is_some_and(|number| serde_json::to_string(&number).is_ok_and(|written| written == literal))
}

fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() && text[at] != b'"' {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

fn end_of_number(text: &[u8], start: usize) -> usize {
    let is_inner = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
    start + text[start..].iter().take_while(|byte| is_inner(byte)).count()
}

/// A valid JSON text without white space between tokens, otherwise unchanged.
pub fn compact(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at, mut from) = (String::with_capacity(text.len()), 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_string(bytes, at),
            b' ' | b'\n' | b'\r' | b'\t' => {
                out.push_str(&text[from..at]);
                at += 1;
                from = at;
            }
            _ => at += 1,
        }
    }
    out.push_str(&text[from..]);
    out
}

/// Reader of valid JSON.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied().unwrap_or(0)
    }

    fn literal(&mut self, end: usize) -> Box<str> {
        let literal = self.text[self.at..end].into();
        self.at = end;
        literal
    }

    fn value(&mut self, depth: usize) -> Result<Exact, ExactError> {
        let bytes = self.text.as_bytes();
        match self.next() {
            b'[' | b'{' if depth >= DEPTH_MAX => Err(ExactError::Deep),
            b'[' => {
                self.at += 1;
                let mut items = Vec::new();
                while self.next() != b']' {
                    items.push(self.value(depth + 1)?);
                    if self.next() == b',' {
                        self.at += 1;
                    }
                }
                self.at += 1;
                Ok(Exact::List(items))
            }
            b'{' => {
                self.at += 1;
                let mut members = Vec::new();
                while self.next() != b'}' {
                    let name = self.literal(end_of_string(bytes, self.at));
                    self.next();
                    self.at += 1; // the colon
                    members.push((name, self.value(depth + 1)?));
                    if self.next() == b',' {
                        self.at += 1;
                    }
                }
                self.at += 1;
                Ok(Exact::Object(members))
            }
            b'"' => Ok(Exact::Literal(self.literal(end_of_string(bytes, self.at)))),
            b'-' | b'0'..=b'9' => Ok(Exact::Literal(self.literal(end_of_number(bytes, self.at)))),
            _ => {
                let word = bytes[self.at..].iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
                Ok(Exact::Literal(self.literal(self.at + word)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: [&str; 11] = [
        "123456789012345678901234567890",
        "1.10",
        "1e400",
        "-0",
        "0.1e1",
        "1E+2",
        "-1.5e-400",
        "0.30000000000000004440892098500626",
        "9223372036854775808",
        "100000000000000000000000000000000000000001",
        "100000000000000000000000000000000000000002",
    ];

    #[test]
    fn b19_numbers_stay_as_they_are_written() {
        let body = format!("{{ \"n\" : [ {} ] , \"s\": \" 1.10 \\\" \" }}", NUMBERS.join(" , "));
        let expected = format!("{{\"n\":[{}],\"s\":\" 1.10 \\\" \"}}", NUMBERS.join(","));
        let exact = Exact::read(body.as_bytes()).expect("JSON");
        assert_eq!(exact.to_string(), expected);
        assert_eq!(compact(&body), expected);
        let (mut numbers, mut written) = (Numbers::default(), String::new());
        let value = exact.value(&mut numbers).expect("a value");
        numbers.write(&value, &mut written);
        assert_eq!(written, expected);
        for number in NUMBERS {
            assert!(has_inexact_numbers(format!("[{number}]").as_bytes()), "{number}");
        }
        for exact in ["1", "-7", "1.5", "0.1", "1.0", "9007199254740993", "\"1.10\"", "null", "{\"1e400\":1}"] {
            assert!(!has_inexact_numbers(exact.as_bytes()), "{exact}");
        }
        assert!(Exact::read(b"{} x").is_err() && Exact::read(b"01").is_err());
        assert!(Exact::read("[".repeat(200).as_bytes()).is_err());
    }

    #[test]
    fn b19_a_patch_changes_what_it_names_and_nothing_else() {
        let check = |target: &str, patch: &str, expected: &str| {
            let mut exact = Exact::read(target.as_bytes()).expect("JSON");
            exact.merge(&Exact::read(patch.as_bytes()).expect("JSON"), 3).expect("a patch");
            assert_eq!(exact.to_string(), expected, "{target} with {patch}");
        };
        check(r#"{"z":1.10,"a":{"b":1e400,"c":-0}}"#, r#"{"a":{"b":2.50}}"#, r#"{"z":1.10,"a":{"b":2.50,"c":-0}}"#);
        check(r#"{"a":1,"b":2,"a":3}"#, r#"{"b":1.0}"#, r#"{"a":1,"b":1.0,"a":3}"#);
        check(r#"{"a":1,"b":2,"a":{"x":3}}"#, r#"{"a":{"y":4}}"#, r#"{"b":2,"a":{"x":3,"y":4}}"#);
        check(r#"{"a":1,"b":2,"a":3}"#, r#"{"a":null}"#, r#"{"b":2}"#);
        check(r#"{"\u0061":1}"#, r#"{"a":2}"#, r#"{"\u0061":2}"#);
        check(r#"{"a":[1.10]}"#, r#"{"a":{"b":{"c":null}}}"#, r#"{"a":{"b":{}}}"#);
        check("[1.10]", r#"{"a":1}"#, r#"{"a":1}"#);
        check(r#"{"a":1}"#, "1.10", "1.10");
        // From the RFC's appendix A.
        check(r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#);
        check(r#"{}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#);
        let deep = Exact::read(br#"{"a":{"b":{"c":1}}}"#).expect("JSON");
        assert_eq!(Exact::Literal("null".into()).merge(&deep, 2), Err(TooDeep));
    }
}
