//! Conversion of model values to SQL and back.
//!
//! | model | SQL |
//! |---|---|
//! | boolean | integer, 0 or 1 |
//! | integer, number, string | integer, real, text |
//! | timestamp | text in UTC with six decimals, such as `2026-11-21T09:30:00.000000Z`: sorts by time |
//! | list, map | text: JSON, for `json_each` and `->>` |

use rusqlite::types::{Value as Sql, ValueRef};
use tocsin_model::{field::FieldType, time::Timestamp, value::Value};

/// The column type of a field.
pub(super) fn column_type(kind: FieldType) -> &'static str {
    match kind {
        FieldType::Boolean | FieldType::Integer => "INTEGER",
        FieldType::Number => "REAL",
        FieldType::String | FieldType::Timestamp | FieldType::List | FieldType::Map => "TEXT",
    }
}

pub(super) fn to_sql(value: &Value) -> Sql {
    match value {
        Value::Null => Sql::Null,
        Value::Boolean(value) => Sql::Integer(i64::from(*value)),
        Value::Integer(value) => Sql::Integer(*value),
        Value::Number(value) => Sql::Real(*value),
        Value::Text(text) => Sql::Text(text.to_string()),
        Value::Timestamp(time) => Sql::Text(timestamp_text(*time)),
        Value::List(_) | Value::Map(_) => Sql::Text(serde_json::to_string(value).expect("a value is always JSON")),
    }
}

/// Fixed length, so that texts sort in the order of time. Years outside 0 to 9999 use the plain format.
pub(super) fn timestamp_text(time: Timestamp) -> String {
    let text = time.to_string();
    match text.strip_suffix('Z') {
        Some(second) if second.len() == 19 => format!("{second}.000000Z"),
        Some(fraction) if fraction.len() > 19 => format!("{fraction:0<26}Z"),
        _ => text,
    }
}

/// Converts a value of SQL without an expected type.
pub(super) fn plain(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(value) => Value::Integer(value),
        ValueRef::Real(value) => Value::from(value),
        ValueRef::Text(text) | ValueRef::Blob(text) => Value::from(&*String::from_utf8_lossy(text)),
    }
}

/// Converts a value of SQL to a field type.
///
/// # Errors
/// A description of the unexpected value.
pub(super) fn from_sql(value: ValueRef<'_>, kind: FieldType) -> Result<Value, String> {
    let wrong = |given: &str| Err(format!("{given} where a {} is expected", kind.name()));
    match (kind, value) {
        (_, ValueRef::Null) => Ok(Value::Null),
        (_, ValueRef::Blob(_)) => wrong("bytes"),
        (FieldType::Boolean, ValueRef::Integer(value @ (0 | 1))) => Ok(Value::Boolean(value == 1)),
        (FieldType::Integer, ValueRef::Integer(value)) => Ok(Value::Integer(value)),
        (FieldType::Number, ValueRef::Integer(value)) => Ok(Value::Number(value as f64)),
        (FieldType::Number, ValueRef::Real(value)) => Ok(Value::from(value)),
        (FieldType::Integer, ValueRef::Real(value)) => kind.accept(Value::from(value)),
        (_, ValueRef::Integer(value)) => wrong(&format!("the integer {value}")),
        (_, ValueRef::Real(value)) => wrong(&format!("the number {value}")),
        (_, ValueRef::Text(text)) => {
            let Ok(text) = std::str::from_utf8(text) else { return wrong("text that is not UTF-8") };
            match kind {
                FieldType::String => Ok(Value::from(text)),
                FieldType::Timestamp => timestamp(text).map(Value::Timestamp),
                FieldType::List | FieldType::Map => match serde_json::from_str::<Value>(text) {
                    Ok(value) => kind.accept(value),
                    Err(_) => wrong("text that is not JSON"),
                },
                _ => wrong("text"),
            }
        }
    }
}

/// Parses RFC 3339, or the format of SQLite's `datetime`, in UTC.
fn timestamp(text: &str) -> Result<Timestamp, String> {
    let error = match text.parse() {
        Ok(time) => return Ok(time),
        Err(error) => error,
    };
    let of_sqlite = text.len() >= 16 && text.as_bytes()[10] == b' ';
    if of_sqlite && let Ok(time) = format!("{}Z", text.replacen(' ', "T", 1)).parse() {
        return Ok(time);
    }
    let error: tocsin_model::time::TimestampError = error;
    Err(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_sort_as_text() {
        let text = |text: &str| timestamp_text(text.parse().expect("a time"));
        assert_eq!(text("2026-11-21T09:30:00Z"), "2026-11-21T09:30:00.000000Z");
        assert_eq!(text("2026-11-21T09:30:00.25Z"), "2026-11-21T09:30:00.250000Z");
        assert_eq!(text("9999-12-31T23:59:59Z"), "9999-12-31T23:59:59.000000Z");
        assert!(text("2026-11-21T09:30:00Z") < text("2026-11-21T09:30:00.5Z"));
    }

    #[test]
    fn values_of_sql_are_checked_against_the_type() {
        let text = |text: &'static str| ValueRef::Text(text.as_bytes());
        assert_eq!(from_sql(ValueRef::Integer(1), FieldType::Boolean), Ok(Value::Boolean(true)));
        assert_eq!(from_sql(ValueRef::Integer(3), FieldType::Number), Ok(Value::Number(3.0)));
        assert_eq!(from_sql(ValueRef::Real(3.0), FieldType::Integer), Ok(Value::Integer(3)));
        assert_eq!(from_sql(text("[1]"), FieldType::List), Ok(Value::List([Value::Integer(1)].into())));
        let moment = "2026-11-21T09:30:00Z".parse().expect("a time");
        assert_eq!(from_sql(text("2026-11-21 09:30:00"), FieldType::Timestamp), Ok(Value::Timestamp(moment)));
        for (given, kind) in [
            (ValueRef::Integer(2), FieldType::Boolean),
            (ValueRef::Real(2.5), FieldType::Integer),
            (ValueRef::Integer(2), FieldType::String),
            (text("2"), FieldType::Integer),
            (text("{}"), FieldType::List),
            (text("soon"), FieldType::Timestamp),
            (ValueRef::Blob(b"x"), FieldType::String),
        ] {
            assert!(from_sql(given, kind).is_err(), "{given:?} as {kind:?}");
        }
    }
}
