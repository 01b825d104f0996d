//! Marks and keys, with their database types.

use serde::{Deserialize, Serialize};

/// A value that is returned to its database with the type it had.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SqlValue {
    /// NULL.
    Null,
    /// An integer.
    Integer(i64),
    /// An unsigned integer of MySQL.
    Unsigned(u64),
    /// A floating-point number, with all its digits.
    Real(#[serde(with = "digits")] f64),
    /// An exact decimal number of MySQL.
    Decimal(String),
    /// A text; for PostgreSQL a value of any type, in its text representation.
    Text(String),
    /// Bytes that are not UTF-8.
    Bytes(#[serde(with = "base64_text")] Vec<u8>),
    /// A value of unknown type: from an option, or stored by an older version as text.
    #[serde(untagged)]
    Untyped(String),
}

impl SqlValue {
    /// The value of an option.
    pub fn of_option(text: Option<&str>) -> SqlValue {
        text.map_or(SqlValue::Null, |text| SqlValue::Untyped(text.to_owned()))
    }

    /// The value for display.
    pub fn shown(&self) -> String {
        match self {
            SqlValue::Null => "NULL".to_owned(),
            SqlValue::Integer(number) => number.to_string(),
            SqlValue::Unsigned(number) => number.to_string(),
            SqlValue::Real(number) => number.to_string(),
            SqlValue::Decimal(text) | SqlValue::Text(text) | SqlValue::Untyped(text) => text.clone(),
            SqlValue::Bytes(bytes) => format!("{} bytes", bytes.len()),
        }
    }
}

/// A number as the shortest text that parses to the same number.
mod digits {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:?}"))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

mod base64_text {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_a_stored_value_keeps_its_type_and_its_digits() {
        let values = [
            SqlValue::Null,
            SqlValue::Integer(i64::MIN),
            SqlValue::Unsigned(u64::MAX),
            SqlValue::Real(0.1 + 0.2),
            SqlValue::Real(f64::INFINITY),
            SqlValue::Decimal("1.50".to_owned()),
            SqlValue::Text("002".to_owned()),
            SqlValue::Bytes(vec![0xff, 0]),
        ];
        let stored = serde_json::to_string(&values).expect("JSON");
        assert_eq!(serde_json::from_str::<Vec<SqlValue>>(&stored).expect("it was stored"), values);
        let before: Vec<SqlValue> = serde_json::from_str(r#"["002","x"]"#).expect("as the version before stored keys");
        assert_eq!(before[0], SqlValue::Untyped("002".to_owned()));
    }
}
