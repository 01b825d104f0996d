//! Values as JavaScript compares and converts them (ECMAScript, 7.1 and 7.2), for the dialect of NotifyBC.
//!
//! `undefined`, which some functions return there, is NaN here: both are true, equal nothing and order nothing.

use std::cmp::Ordering;

use crate::{
    eval_value::{EvalError, EvalValue},
    filter::jmespath::json_types::to_json_types,
    steps::Steps,
};

/// The largest integer below which every integer is a double of its own.
pub(super) const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// The order of two values under `<` and its relatives: two texts by UTF-16 code units, others as numbers. `None` if
/// one of them is not a number.
///
/// # Errors
/// Only the step limit.
pub(super) fn order(
    left: &EvalValue<'_>,
    right: &EvalValue<'_>,
    steps: &mut Steps,
) -> Result<Option<Ordering>, EvalError> {
    Ok(match (primitive(left, steps)?, primitive(right, steps)?) {
        (EvalValue::Text(left), EvalValue::Text(right)) => {
            steps.take(left.len().min(right.len()) / 32)?;
            Some(order_of_texts(&left, &right))
        }
        (left, right) => number(&left, steps)?.partial_cmp(&number(&right, steps)?),
    })
}

/// The order of two texts by UTF-16 code units.
pub(super) fn order_of_texts(left: &str, right: &str) -> Ordering {
    left.encode_utf16().cmp(right.encode_utf16())
}

/// Deep equality without conversion; numbers as doubles.
///
/// # Errors
/// Only the step limit.
pub(super) fn same(left: &EvalValue<'_>, right: &EvalValue<'_>, steps: &mut Steps) -> Result<bool, EvalError> {
    steps.take(1)?;
    Ok(match (left, right) {
        (EvalValue::List(left), EvalValue::List(right)) => {
            if left.len() != right.len() {
                return Ok(false);
            }
            for (left, right) in left.iter().zip(right.iter()) {
                if !same(&left, &right, steps)? {
                    return Ok(false);
                }
            }
            true
        }
        (EvalValue::Map(left), EvalValue::Map(right)) => {
            if left.len() != right.len() {
                return Ok(false);
            }
            steps.take(left.len().saturating_mul(left.len()) / 8)?;
            for (key, value) in left.iter() {
                match right.find(&key) {
                    Some(other) if same(&value, &other, steps)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (left, right) => same_scalar(left, right, steps)?,
    })
}

/// `===` of two values; lists and objects are never the same.
///
/// # Errors
/// Only the step limit.
pub(super) fn same_scalar(left: &EvalValue<'_>, right: &EvalValue<'_>, steps: &mut Steps) -> Result<bool, EvalError> {
    Ok(match (left, right) {
        (EvalValue::Null, EvalValue::Null) => true,
        (EvalValue::Boolean(left), EvalValue::Boolean(right)) => left == right,
        (EvalValue::Integer(left), EvalValue::Integer(right)) => *left as f64 == *right as f64,
        (EvalValue::Integer(integer), EvalValue::Number(number))
        | (EvalValue::Number(number), EvalValue::Integer(integer)) => *integer as f64 == *number,
        (EvalValue::Number(left), EvalValue::Number(right)) => left == right,
        (EvalValue::Text(left), EvalValue::Text(right)) => {
            steps.take(left.len().min(right.len()) / 64)?;
            **left == **right
        }
        (EvalValue::Timestamp(left), EvalValue::Timestamp(right)) => left == right,
        (EvalValue::Timestamp(time), EvalValue::Text(text)) | (EvalValue::Text(text), EvalValue::Timestamp(time)) => {
            time.to_string() == **text
        }
        _ => false,
    })
}

/// A list or an object as text, any other value as it is (ToPrimitive).
fn primitive<'a>(value: &EvalValue<'a>, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    Ok(match to_json_types(value.clone()) {
        EvalValue::List(_) | EvalValue::Map(_) => EvalValue::text(text(value, steps)?),
        other => other,
    })
}

/// A value as text (ToString).
///
/// # Errors
/// Only the step limit.
pub(super) fn text(value: &EvalValue<'_>, steps: &mut Steps) -> Result<String, EvalError> {
    let mut out = String::new();
    write_text(value, &mut out, steps)?;
    Ok(out)
}

fn write_text(value: &EvalValue<'_>, out: &mut String, steps: &mut Steps) -> Result<(), EvalError> {
    steps.take(1)?;
    match to_json_types(value.clone()) {
        EvalValue::Null => out.push_str("null"),
        EvalValue::Boolean(value) => out.push_str(if value { "true" } else { "false" }),
        EvalValue::Integer(value) => out.push_str(&number_text(value as f64)),
        EvalValue::Number(value) => out.push_str(&number_text(value)),
        EvalValue::Text(text) => {
            steps.take(text.len() / 64)?;
            out.push_str(&text);
        }
        EvalValue::List(items) => {
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                match item {
                    EvalValue::Null => steps.take(1)?,
                    item => write_text(&item, out, steps)?,
                }
            }
        }
        _ => out.push_str("[object Object]"),
    }
    Ok(())
}

/// A value as a number (ToNumber); NaN if it is none.
fn number(value: &EvalValue<'_>, steps: &mut Steps) -> Result<f64, EvalError> {
    Ok(match value {
        EvalValue::Null => 0.0,
        EvalValue::Boolean(value) => f64::from(u8::from(*value)),
        EvalValue::Integer(value) => *value as f64,
        EvalValue::Number(value) => *value,
        EvalValue::Text(text) => {
            steps.take(text.len() / 32)?;
            number_of(text)
        }
        _ => f64::NAN,
    })
}

/// The number that a text is; an empty one is 0, any other text NaN.
pub(super) fn number_of(text: &str) -> f64 {
    let text = trimmed(text);
    if text.is_empty() {
        return 0.0;
    }
    if let Some((prefix, digits)) = text.split_at_checked(2) {
        let radix = match prefix {
            "0x" | "0X" => Some(16),
            "0o" | "0O" => Some(8),
            "0b" | "0B" => Some(2),
            _ => None,
        };
        if let Some(radix) = radix {
            let digits: Option<Vec<u32>> = digits.chars().map(|digit| digit.to_digit(radix)).collect();
            return match digits {
                Some(digits) if !digits.is_empty() => {
                    digits.into_iter().fold(0.0, |sum, digit| sum * f64::from(radix) + f64::from(digit))
                }
                _ => f64::NAN,
            };
        }
    }
    match text {
        "Infinity" | "+Infinity" => f64::INFINITY,
        "-Infinity" => f64::NEG_INFINITY,
        _ if text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)) => {
            text.parse().unwrap_or(f64::NAN)
        }
        _ => f64::NAN,
    }
}

/// A number as text (Number::toString): the shortest digits that give it back.
pub(super) fn number_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let shortest = format!("{:e}", value.abs());
    let (mantissa, exponent) = shortest.split_once('e').expect("a number in exponent form");
    let digits = mantissa.replace('.', "");
    let point = exponent.parse::<i32>().expect("an exponent") + 1;
    let length = digits.len() as i32;
    let sign = if value < 0.0 { "-" } else { "" };
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    if length <= point && point <= 21 {
        return format!("{sign}{digits}{}", zeros(point - length));
    }
    if 0 < point && point <= 21 {
        let (whole, fraction) = digits.split_at(point as usize);
        return format!("{sign}{whole}.{fraction}");
    }
    if -6 < point && point <= 0 {
        return format!("{sign}0.{}{digits}", zeros(-point));
    }
    let (first, rest) = digits.split_at(1);
    let fraction = if rest.is_empty() { String::new() } else { format!(".{rest}") };
    let exponent = point - 1;
    let exponent_sign = if exponent < 0 { '-' } else { '+' };
    format!("{sign}{first}{fraction}e{exponent_sign}{}", exponent.abs())
}

/// The text without white space and line ends at both ends.
pub(super) fn trimmed(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// The text without white space and line ends at its start.
pub(super) fn trimmed_left(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

fn is_space(c: char) -> bool {
    c == '\u{feff}' || (c.is_whitespace() && c != '\u{85}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_in_javascript() {
        for (number, expected) in [
            (0.0, "0"),
            (-0.0, "0"),
            (5.0, "5"),
            (-1.5, "-1.5"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1.25e22, "1.25e+22"),
            (0.000_001, "0.000001"),
            (1e-7, "1e-7"),
            (-1.5e-9, "-1.5e-9"),
            (123_456.789, "123456.789"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(number_text(number), expected);
        }
    }

    #[test]
    fn texts_are_read_as_numbers_as_in_javascript() {
        for (text, expected) in [
            ("", 0.0),
            (" \n\u{feff}", 0.0),
            (" 42 ", 42.0),
            ("+1.", 1.0),
            (".5", 0.5),
            ("-1e3", -1000.0),
            ("0x1F", 31.0),
            ("0b11", 3.0),
            ("Infinity", f64::INFINITY),
        ] {
            assert_eq!(number_of(text), expected, "{text:?}");
        }
        for text in ["x", "1x", "1_000", "inf", "nan", "0x", "-0x1", "1 2", "--1", ".", "\u{85}"] {
            assert!(number_of(text).is_nan(), "{text:?}");
        }
    }
}
