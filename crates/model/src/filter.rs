//! A subscriber's own predicate over an event, as text. What it means, the matching says.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A language of filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// The Common Expression Language, the language of rules.
    #[default]
    Cel,
    /// A JMESPath expression, wrapped as `[?filter]` over the event, as NotifyBC does.
    Jmespath,
    /// The JSON patterns of EventBridge and SNS.
    EventPattern,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Dialect; 3] = [Dialect::Cel, Dialect::Jmespath, Dialect::EventPattern];

    /// As it is written: `cel`, `jmespath`, `event_pattern`.
    pub const fn name(self) -> &'static str {
        match self {
            Dialect::Cel => "cel",
            Dialect::Jmespath => "jmespath",
            Dialect::EventPattern => "event_pattern",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dialect {
    type Err = UnknownDialect;
    fn from_str(text: &str) -> Result<Self, UnknownDialect> {
        Dialect::ALL.into_iter().find(|dialect| dialect.name() == text).ok_or(UnknownDialect)
    }
}

/// The word is no dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a dialect is `cel`, `jmespath` or `event_pattern`")]
pub struct UnknownDialect;

/// A filter: text in a dialect. Displays as `dialect:text`, and is read from that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// The language of the text.
    pub dialect: Dialect,
    /// The expression.
    pub text: Box<str>,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.dialect, self.text)
    }
}

impl FromStr for Filter {
    type Err = UnknownDialect;
    fn from_str(stored: &str) -> Result<Self, UnknownDialect> {
        let (dialect, text) = stored.split_once(':').ok_or(UnknownDialect)?;
        Ok(Filter { dialect: dialect.parse()?, text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_from_what_it_displays() {
        for dialect in Dialect::ALL {
            let filter = Filter { dialect, text: "a == 'x:y'".into() };
            assert_eq!(filter.to_string().parse(), Ok(filter));
        }
        assert_eq!("sql:a = 1".parse::<Filter>(), Err(UnknownDialect));
        assert_eq!("a = 1".parse::<Filter>(), Err(UnknownDialect));
    }
}
