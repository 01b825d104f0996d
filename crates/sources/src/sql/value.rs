//! Marks and keys, with the type that the database gave them.

use serde::{Deserialize, Serialize};

/// A value that goes back to its database as the type that it came in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SqlValue {
    /// NULL.
    Null,
    /// An integer.
    Integer(i64),
    /// An integer of MySQL that has no sign.
    Unsigned(u64),
    /// A floating-point number, with all its digits.
    Real(#[serde(with = "digits")] f64),
    /// An exact number of MySQL, in decimal digits.
    Decimal(String),
    /// A text; of PostgreSQL a value of any type, in the form that the server itself reads.
    Text(String),
    /// Bytes that are no text in UTF-8.
    Bytes(#[serde(with = "base64_text")] Vec<u8>),
    /// A value whose type is not known: of an option, or stored by a version that kept texts alone.
    #[serde(untagged)]
    Untyped(String),
}

impl SqlValue {
    /// The value of an option.
    pub fn of_option(text: Option<&str>) -> SqlValue {
        text.map_or(SqlValue::Null, |text| SqlValue::Untyped(text.to_owned()))
    }

    /// The value for people.
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

/// A number as the shortest text that is read as the same number.
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
