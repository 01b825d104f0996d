//! CSV cells escaped against formula injection, and their inverse.

use std::borrow::Cow;

pub(crate) use tocsin_delivery::file::guarded;
use tocsin_model::{field::FieldType, value::Value};

/// Removes the escape prefix. A `'` before text that needs none belongs to the text.
pub(crate) fn unguarded(cell: &str) -> &str {
    match cell.strip_prefix('\'') {
        Some(text) if matches!(guarded(text), Cow::Owned(_)) => text,
        _ => cell,
    }
}

/// Formats an untyped value: text unchanged unless it would be parsed as something else or has a NUL, which CSV cannot
/// contain; all else as JSON.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Text(text) if text.is_empty() || text.contains('\0') || serde_json::from_str::<Value>(text).is_ok() => {
            serde_json::to_string(value).expect("a value is always JSON")
        }
        value => typed_cell(value),
    }
}

/// Formats a value of a declared type.
pub(crate) fn typed_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Text(text) => text.to_string(),
        Value::Timestamp(time) => time.to_string(),
        other => serde_json::to_string(other).expect("a value is always JSON"),
    }
}

/// Parses an untyped cell. JSON in the canonical form of this server is parsed; all else stays text, so that no digit
/// and no spelling is lost: `007`, `1e5`, `1.50`, `null` and a number of thirty digits are texts.
pub(crate) fn value(cell: &str) -> Value {
    match serde_json::from_str::<Value>(cell) {
        Ok(Value::Null) | Err(_) => Value::from(cell),
        Ok(value) => match serde_json::to_string(&value).is_ok_and(|written| written == cell) {
            true => value,
            false => Value::from(cell),
        },
    }
}

/// Parses a cell of a type; an invalid cell stays text, and fails the type check later.
pub(crate) fn typed_value(text: &str, kind: FieldType) -> Value {
    kind.read_text(text)
}

/// Parses a cell of a declared attribute. A text that an export wrote as JSON, to prevent misinterpretation, is
/// restored.
pub(crate) fn attribute_value(text: &str, kind: FieldType) -> Value {
    if kind == FieldType::String
        && let Ok(inner) = serde_json::from_str::<String>(text)
        && cell(&Value::from(inner.as_str())) == text
    {
        return Value::from(inner.as_str());
    }
    kind.read_text(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_begins_a_formula_and_all_come_back() {
        for text in [
            "=1+1", "+49", "-5", "@SUM(A1)", "\tx", "\rx", "'", "''", "'=x", "plain", "", "a=b", "＝1", "＋49", "－5",
            "＠x", "'＝1",
        ] {
            let guarded = guarded(text);
            assert!(!guarded.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠', '\t', '\r']), "{text:?}");
            assert_eq!(unguarded(&guarded), text);
        }
    }

    #[test]
    fn free_values_keep_their_type() {
        for text in [r#""42""#, "42", "-1.5", "true", r#""true""#, r#"["a",1]"#, r#""hello""#, r#""""#, r#""null""#] {
            let original: Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(value(&cell(&original)), original, "{text}");
        }
        assert_eq!(cell(&Value::from("hello")), "hello");
    }

    #[test]
    fn b5_a_text_with_a_nul_is_escaped_and_comes_back() {
        for text in ["\0", "a\0b", "\0=1", "\"\0\""] {
            let original = Value::from(text);
            let cell = cell(&original);
            assert!(!cell.contains('\0'), "{text:?}: {cell:?}");
            assert_eq!(value(&cell), original, "{text:?}: without a declared type");
            assert_eq!(attribute_value(&cell, FieldType::String), original, "{text:?}: of a declared type");
        }
    }

    #[test]
    fn d_a_declared_type_decides_and_no_digit_is_lost() {
        for text in
            ["91234", "01234", "1e5", "12345678901234567890123", "null", "true", "1.50", "=1+1", "\"42\"", "{}", "[1"]
        {
            let original = Value::from(text);
            assert_eq!(attribute_value(&cell(&original), FieldType::String), original, "{text}: as exported");
            assert_eq!(value(&cell(&original)), original, "{text}: as exported, without a declared type");
        }
        for text in ["91234", "01234", "1e5", "12345678901234567890123", "null", "true", "1.50"] {
            assert_eq!(attribute_value(text, FieldType::String), Value::from(text), "{text}: as a person writes it");
            assert_eq!(typed_value(text, FieldType::String), Value::from(text));
        }
        for text in ["01234", "1e5", "1.50", "12345678901234567890123", "null", "-0", "1E2", "True"] {
            assert_eq!(value(text), Value::from(text), "{text}: nothing of it would come back");
        }
        assert_eq!(typed_value("TRUE", FieldType::Boolean), Value::Boolean(true));
        assert_eq!(typed_value("1e5", FieldType::Number), Value::Number(1e5));
        assert_eq!(typed_value("1,5", FieldType::Number), Value::from("1,5"), "which is refused");
    }
}
