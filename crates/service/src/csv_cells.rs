//! Cells of CSV that no spreadsheet takes for a formula, and that come back as what they were.

pub(crate) use tocsin_delivery::file::guarded;
use tocsin_model::{field::FieldType, value::Value};

/// Takes the prefix off again. A `'` before anything else belongs to the text.
pub(crate) fn unguarded(cell: &str) -> &str {
    match cell.as_bytes() {
        [b'\'', b'=' | b'+' | b'-' | b'@' | b'\t' | b'\r' | b'\'', ..] => &cell[1..],
        _ => cell,
    }
}

/// A value of no declared type as a cell: text as it is unless it would be read as something else, the rest as JSON.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Text(text) if text.is_empty() || serde_json::from_str::<Value>(text).is_ok() => {
            serde_json::to_string(value).expect("a value is always JSON")
        }
        value => typed_cell(value),
    }
}

/// A value of a declared type as a cell.
pub(crate) fn typed_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Text(text) => text.to_string(),
        Value::Timestamp(time) => time.to_string(),
        other => serde_json::to_string(other).expect("a value is always JSON"),
    }
}

/// The value of a cell without a declared type: JSON if it is JSON, else text.
pub(crate) fn value(cell: &str) -> Value {
    serde_json::from_str(cell).unwrap_or_else(|_| Value::from(cell))
}

/// The value of a cell of this type; what does not fit is left to the check of the class.
pub(crate) fn typed_value(cell: &str, kind: FieldType) -> Value {
    match kind {
        FieldType::String => Value::from(cell),
        FieldType::Timestamp => cell.parse().map_or_else(|_| Value::from(cell), Value::Integer),
        _ => value(cell),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_begins_a_formula_and_all_come_back() {
        for text in ["=1+1", "+49", "-5", "@SUM(A1)", "\tx", "\rx", "'", "''", "'=x", "plain", "", "a=b"] {
            let guarded = guarded(text);
            assert!(!guarded.starts_with(['=', '+', '-', '@', '\t', '\r']), "{text:?}");
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
}
