//! Filters of subscriptions: predicates over events, in one of several dialects.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem::closest;

/// The language of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// CEL over `event`, as in rules.
    #[default]
    Cel,
    /// JMESPath over the event as an object.
    Jmespath,
    /// JSON patterns of Amazon EventBridge and SNS.
    EventPattern,
    /// JMESPath over the field `data`, as NotifyBC evaluates it.
    Notifybc,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Dialect; 4] = [Dialect::Cel, Dialect::Jmespath, Dialect::EventPattern, Dialect::Notifybc];

    /// Its name, as definitions and requests spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Dialect::Cel => "cel",
            Dialect::Jmespath => "jmespath",
            Dialect::EventPattern => "event_pattern",
            Dialect::Notifybc => "notifybc",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no dialect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a dialect of filters; {hint}")]
pub struct DialectError {
    /// The text.
    pub text: String,
    /// A suggestion.
    pub hint: String,
}

impl FromStr for Dialect {
    type Err = DialectError;

    fn from_str(text: &str) -> Result<Self, DialectError> {
        Dialect::ALL.into_iter().find(|dialect| dialect.name() == text).ok_or_else(|| {
            let hint = match closest(text, Dialect::ALL.map(Dialect::name)) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("write one of {}", Dialect::ALL.map(Dialect::name).join(", ")),
            };
            DialectError { text: text.to_owned(), hint }
        })
    }
}

/// A filter as its author wrote it. The crate `matching` compiles it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// The language of the text.
    #[serde(default)]
    pub dialect: Dialect,
    /// The predicate.
    pub text: String,
}

impl Filter {
    /// A filter of a dialect.
    pub fn new(dialect: Dialect, text: impl Into<String>) -> Self {
        Filter { dialect, text: text.into() }
    }
}

/// `dialect:text`.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.dialect, self.text)
    }
}

/// Parses the displayed form of a filter.
impl FromStr for Filter {
    type Err = DialectError;

    fn from_str(text: &str) -> Result<Self, DialectError> {
        let (dialect, text) = text.split_once(':').unwrap_or((text, ""));
        Ok(Filter::new(dialect.parse()?, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_have_one_spelling_everywhere() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.to_string().parse(), Ok(dialect));
            assert_eq!(serde_json::to_value(dialect).expect("a name"), dialect.name());
        }
        let wrong = "event-pattern".parse::<Dialect>().expect_err("a slip");
        assert_eq!(wrong.to_string(), "`event-pattern` is not a dialect of filters; did you mean `event_pattern`?");
    }

    #[test]
    fn a_filter_without_a_dialect_is_cel() {
        let filter: Filter = serde_json::from_str(r#"{"text": "event.magnitude > 5.0"}"#).expect("a filter");
        assert_eq!(filter, Filter::new(Dialect::Cel, "event.magnitude > 5.0"));
    }

    #[test]
    fn the_displayed_form_of_a_filter_parses_back() {
        for dialect in Dialect::ALL {
            let filter = Filter::new(dialect, "a == 'x:y'");
            assert_eq!(filter.to_string().parse(), Ok(filter));
        }
        assert!("a == 1".parse::<Filter>().is_err());
    }
}
