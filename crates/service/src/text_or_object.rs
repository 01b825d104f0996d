//! JSON members that are a text or an object. An untagged enum would only report that no variant fits, not which
//! member of the object is wrong.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// A text or an object.
pub enum TextOrObject<T> {
    /// A text.
    Text(String),
    /// An object.
    Object(T),
}

/// Reads a text or an object. `expecting` completes an error: "a rule, or an object with `start`".
///
/// # Errors
/// It is neither, or the object is not a `T`: the error of `T`.
pub fn read<'de, D: de::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    expecting: &'static str,
) -> Result<TextOrObject<T>, D::Error> {
    struct Reader<T>(&'static str, PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
        type Value = TextOrObject<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(TextOrObject::Text(text.to_owned()))
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(TextOrObject::Object)
        }
    }

    deserializer.deserialize_any(Reader(expecting, PhantomData))
}

#[cfg(test)]
mod tests {
    use crate::subscriptions::{FilterDraft, ScheduleDraft};

    #[test]
    fn an_error_names_the_member_that_is_wrong() {
        let check = |json: &str, expected: &str| {
            let error = serde_json::from_str::<ScheduleDraft>(json).expect_err("wrong").to_string();
            assert!(error.starts_with(expected), "{json}: {error}");
        };
        check(r#"{"start": "x", "zone": "y"}"#, "unknown field `zone`, expected one of `start`, `time_zone`, `rule`");
        check(r#"{"rule": "FREQ=DAILY"}"#, "missing field `start`");
        check(r#"{"start": 7}"#, "invalid type: integer `7`, expected a string");
        check("7", "invalid type: integer `7`, expected lines of RFC 5545, or an object with `start`");
        assert!(matches!(serde_json::from_str(r#""DTSTART""#), Ok(ScheduleDraft::Text(text)) if text == "DTSTART"));

        let error = serde_json::from_str::<FilterDraft>(r#"{"dialects": "cel"}"#).expect_err("wrong").to_string();
        assert!(error.starts_with("unknown field `dialects`, expected `dialect` or `text`"), "{error}");
        let pattern = serde_json::from_str::<FilterDraft>(r#"{"text": {"a": [1]}}"#).expect("a pattern");
        assert!(matches!(pattern, FilterDraft::Whole(whole) if whole.text["a"][0] == 1));
    }
}
