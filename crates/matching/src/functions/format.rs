//! `'%d of %s'.format([1, 'a'])` and `strings.quote`, as in CEL's string extension.

use std::fmt::Write;

use crate::{
    eval_value::{EvalError, EvalValue},
    functions::arguments::{number, to_text},
    steps::Steps,
};

/// Most digits after the point.
const PRECISION_MAX: usize = 1000;

/// Fills the clauses of a template: `%s`, `%d`, `%f`, `%e`, `%b`, `%o`, `%x`, `%X`, with a precision such as `%.2f`
/// before `f` and `e`; `%%` is a percent sign.
pub fn format<'a>(template: &str, given: &EvalValue<'a>, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let EvalValue::List(items) = given else { return Err(EvalError::Type) };
    let (mut made, mut rest, mut next) = (String::new(), template, 0);
    while let Some(at) = rest.find('%') {
        made.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            made.push('%');
            rest = after;
            continue;
        }
        let mut precision = None;
        if let Some(after) = rest.strip_prefix('.') {
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let asked = after[..digits].parse().ok().filter(|asked| *asked <= PRECISION_MAX);
            precision = Some(asked.ok_or(EvalError::Conversion)?);
            rest = &after[digits..];
        }
        let clause = rest.chars().next().ok_or(EvalError::Conversion)?;
        rest = &rest[clause.len_utf8()..];
        if next >= items.len() {
            return Err(EvalError::NoSuchKey);
        }
        let before = made.len();
        write_clause(clause, precision.unwrap_or(6), &items.item(next), &mut made, steps)?;
        steps.take(1 + (made.len() - before) / 32)?;
        next += 1;
    }
    made.push_str(rest);
    Ok(EvalValue::text(made))
}

fn write_clause(
    clause: char,
    precision: usize,
    eval_value: &EvalValue<'_>,
    made: &mut String,
    steps: &mut Steps,
) -> Result<(), EvalError> {
    match (clause, eval_value) {
        ('s', eval_value) => return write_text(eval_value, made, steps),
        ('d', EvalValue::Integer(_) | EvalValue::Unsigned(_)) => return write_text(eval_value, made, steps),
        ('d' | 'f' | 'e', EvalValue::Number(value)) if !value.is_finite() => write_number(*value, made),
        ('d', EvalValue::Number(value)) => write_number(*value, made),
        ('f', EvalValue::Integer(_) | EvalValue::Unsigned(_) | EvalValue::Number(_)) => {
            // Rounds half to even, by the exact value.
            let _ = write!(made, "{:.precision$}", number(eval_value)?);
        }
        ('e', EvalValue::Integer(_) | EvalValue::Unsigned(_) | EvalValue::Number(_)) => {
            let written = format!("{:.precision$e}", number(eval_value)?);
            let (digits, power) = written.split_once('e').ok_or(EvalError::Conversion)?;
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
            let _ = write!(made, "{digits}e{sign}{power:0>2}");
        }
        ('b', EvalValue::Boolean(value)) => made.push(if *value { '1' } else { '0' }),
        ('b' | 'o' | 'x' | 'X', EvalValue::Integer(value)) => {
            made.push_str(if *value < 0 { "-" } else { "" });
            write_radix(clause, value.unsigned_abs(), made);
        }
        ('b' | 'o' | 'x' | 'X', EvalValue::Unsigned(value)) => write_radix(clause, *value, made),
        ('x' | 'X', EvalValue::Text(text)) => write_bytes(clause, text.as_bytes(), made, steps)?,
        ('x' | 'X', EvalValue::Bytes(bytes)) => write_bytes(clause, bytes, made, steps)?,
        (_, EvalValue::Null) => return Err(EvalError::Null),
        _ => return Err(EvalError::Type),
    }
    Ok(())
}

fn write_radix(clause: char, value: u64, made: &mut String) {
    let _ = match clause {
        'b' => write!(made, "{value:b}"),
        'o' => write!(made, "{value:o}"),
        'x' => write!(made, "{value:x}"),
        _ => write!(made, "{value:X}"),
    };
}

fn write_bytes(clause: char, bytes: &[u8], made: &mut String, steps: &mut Steps) -> Result<(), EvalError> {
    steps.take(bytes.len() / 4)?;
    for byte in bytes {
        let _ = if clause == 'x' { write!(made, "{byte:02x}") } else { write!(made, "{byte:02X}") };
    }
    Ok(())
}

fn write_number(value: f64, made: &mut String) {
    let _ = match value {
        f64::INFINITY => write!(made, "Infinity"),
        f64::NEG_INFINITY => write!(made, "-Infinity"),
        value => write!(made, "{value}"),
    };
}

/// The text of `%s`. Charged as it grows, since one list can be nested in another many times.
fn write_text(eval_value: &EvalValue<'_>, made: &mut String, steps: &mut Steps) -> Result<(), EvalError> {
    steps.take(1)?;
    match eval_value {
        EvalValue::Null => made.push_str("null"),
        EvalValue::Number(value) => write_number(*value, made),
        EvalValue::Type(name) => made.push_str(name),
        EvalValue::List(items) => {
            made.push('[');
            for (at, item) in items.iter().enumerate() {
                made.push_str(if at > 0 { ", " } else { "" });
                write_text(&item, made, steps)?;
            }
            made.push(']');
        }
        EvalValue::Map(entries) => {
            let mut written = Vec::with_capacity(entries.len());
            for (key, value) in entries.iter() {
                let (mut name, mut text) = (String::new(), String::new());
                write_text(&key, &mut name, steps)?;
                write_text(&value, &mut text, steps)?;
                steps.take((name.len() + text.len()) / 32)?;
                written.push((name, text));
            }
            written.sort_unstable();
            made.push('{');
            for (at, (name, text)) in written.iter().enumerate() {
                let _ = write!(made, "{}{name}: {text}", if at > 0 { ", " } else { "" });
            }
            made.push('}');
        }
        EvalValue::Optional(_) => return Err(EvalError::Type),
        other => {
            let EvalValue::Text(text) = to_text(other)? else { return Err(EvalError::Type) };
            steps.take(text.len() / 32)?;
            made.push_str(&text);
        }
    }
    Ok(())
}

/// A text as a literal in double quotes.
pub fn quote(text: &str) -> String {
    let mut made = String::with_capacity(text.len() + 2);
    made.push('"');
    for character in text.chars() {
        match character {
            '\u{7}' => made.push_str("\\a"),
            '\u{8}' => made.push_str("\\b"),
            '\u{c}' => made.push_str("\\f"),
            '\n' => made.push_str("\\n"),
            '\r' => made.push_str("\\r"),
            '\t' => made.push_str("\\t"),
            '\u{b}' => made.push_str("\\v"),
            '\\' => made.push_str("\\\\"),
            '"' => made.push_str("\\\""),
            character => made.push(character),
        }
    }
    made.push('"');
    made
}
