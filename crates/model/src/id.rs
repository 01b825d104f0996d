//! Ids are types, each with one readable external form.
//!
//! | id | form | example |
//! |---|---|---|
//! | event batch | `eb-<number>` | `eb-12` |
//! | event | `e-<batch>-<ordinal>` | `e-12-0` |
//! | notification batch | `nb-<number>` | `nb-7` |
//! | notification | `n-<batch>-<ordinal>` | `n-7-2499` |
//! | work item | `w-<number>` | `w-31` |
//! | subscription | `s-<number>` | `s-1000000` |
//! | broadcast | `bc-<number>` | `bc-7` |
//! | inbox broadcast | `b-<number>` | `b-4` |
//! | message | `m-<number>` | `m-41` |
//! | subscriber | as its creator chose | `alice` |

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A text that is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct IdError {
    /// The text.
    pub text: String,
    /// The expected form, with an example.
    pub expected: &'static str,
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "-{}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix(concat!($prefix, "-"))
                    .and_then(parse_number)
                    .map($name)
                    .ok_or_else(|| IdError { text: text.to_owned(), expected: $expected })
            }
        }

        text_serde!($name);
    };
}

macro_rules! ordinal {
    ($(#[$doc:meta])* $name:ident, $batch:ident, $prefix:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            /// Its batch.
            pub batch: $batch,
            /// Its index in the batch, from 0.
            pub ordinal: u32,
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "-{}-{}"), self.batch.0, self.ordinal)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix(concat!($prefix, "-"))
                    .and_then(|rest| rest.split_once('-'))
                    .and_then(|(batch, ordinal)| {
                        let ordinal = u32::try_from(parse_number(ordinal)?).ok()?;
                        Some($name { batch: $batch(parse_number(batch)?), ordinal })
                    })
                    .ok_or_else(|| IdError { text: text.to_owned(), expected: $expected })
            }
        }

        text_serde!($name);
    };
}

macro_rules! text_serde {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// The greatest number of an id: stores keep numbers as signed 64-bit integers.
pub const NUMBER_MAX: u64 = i64::MAX as u64;

/// Digits only, without sign or leading zeros, so that an id has exactly one spelling; at most [`NUMBER_MAX`].
fn parse_number(text: &str) -> Option<u64> {
    let canonical = !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && (text.len() == 1 || !text.starts_with('0'));
    if canonical { text.parse().ok().filter(|number| *number <= NUMBER_MAX) } else { None }
}

/// A number in a path, a cursor or a query: digits only, from 0 to [`NUMBER_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredNumber(pub u64);

impl FromStr for StoredNumber {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        parse_number(text)
            .map(StoredNumber)
            .ok_or_else(|| IdError { text: text.to_owned(), expected: "a number from 0 to 9223372036854775807" })
    }
}

impl<'de> Deserialize<'de> for StoredNumber {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

numbered!(
    /// A batch of events, numbered by the journal in the order of acceptance.
    EventBatchId, "eb", "the id of an event batch, such as `eb-12`"
);
numbered!(
    /// A batch of notifications, numbered by the journal.
    NotificationBatchId, "nb", "the id of a notification batch, such as `nb-7`"
);
numbered!(
    /// A work item, numbered by the journal.
    WorkItemId, "w", "the id of a work item, such as `w-31`"
);
numbered!(
    /// A subscription, numbered by the records; never used twice.
    SubscriptionId, "s", "the id of a subscription, such as `s-15`"
);
numbered!(
    /// A broadcast, numbered by the journal; never used twice. Its text is also the name of its rule.
    BroadcastId, "bc", "the id of a broadcast, such as `bc-7`"
);
numbered!(
    /// An inbox broadcast, numbered by the inbox; never used twice.
    InboxBroadcastId, "b", "the id of an inbox broadcast, such as `b-4`"
);
numbered!(
    /// A message of an exchange, numbered by the spool; never used twice.
    MessageId, "m", "the id of a message, such as `m-41`"
);
ordinal!(
    /// One event: its batch and its index in it.
    EventId, EventBatchId, "e", "the id of an event, such as `e-12-0`"
);
ordinal!(
    /// One notification: its batch and its index in it. Stable over retries, crashes and nodes.
    NotificationId, NotificationBatchId, "n", "the id of a notification, such as `n-7-15`"
);

/// Internal number of a subscriber in the records; never used twice, never shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriberNumber(pub u64);

/// Sequence number of a change of the records. 0 is before the first change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ChangeSequence(pub u64);

/// External id of a subscriber: 1 to 255 characters, no control characters, no `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SubscriberId(String);

/// Name of an application, class, rule, channel, source, device or field: a letter, then letters, digits, `_` and
/// `-`, at most 64 in all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Name(#[schemars(regex(pattern = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"))] std::sync::Arc<str>);

macro_rules! checked_text {
    ($name:ident) => {
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

checked_text!(SubscriberId);
checked_text!(Name);

impl FromStr for SubscriberId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let length = text.chars().count();
        // `.` and `..` are dot segments in a URL, so that no request could name them.
        let is_dots = matches!(text, "." | "..");
        let fits = (1..=255).contains(&length) && !is_dots && !text.chars().any(|c| c.is_control() || c == '/');
        if fits {
            Ok(SubscriberId(text.to_owned()))
        } else {
            Err(IdError {
                text: text.to_owned(),
                expected: "a subscriber id: 1 to 255 characters without control characters or `/`, and not `.` or `..`",
            })
        }
    }
}

impl FromStr for Name {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut bytes = text.bytes();
        let fits = text.len() <= 64
            && bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        if fits {
            Ok(Name(text.into()))
        } else {
            Err(IdError {
                text: text.to_owned(),
                expected: "a name: a letter, then up to 63 letters, digits, `_` or `-`",
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_spelling() {
        assert_eq!("eb-12".parse(), Ok(EventBatchId(12)));
        assert_eq!(NotificationId { batch: NotificationBatchId(7), ordinal: 15 }.to_string(), "n-7-15");
        assert_eq!("n-7-15".parse(), Ok(NotificationId { batch: NotificationBatchId(7), ordinal: 15 }));
        for wrong in ["", "eb-", "eb-012", "eb-+1", "eb--1", "nb-1", "eb-1-2", "eb-99999999999999999999"] {
            assert!(wrong.parse::<EventBatchId>().is_err(), "{wrong}");
        }
        for wrong in ["n-7", "n-7-", "n-7-4294967296", "e-7-1"] {
            assert!(wrong.parse::<NotificationId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn c6_no_id_has_a_number_that_a_store_cannot_hold() {
        let max = NUMBER_MAX.to_string();
        let above = (NUMBER_MAX + 1).to_string();
        assert_eq!(format!("m-{max}").parse(), Ok(MessageId(NUMBER_MAX)));
        assert_eq!(max.parse(), Ok(StoredNumber(NUMBER_MAX)));
        for wrong in [above.as_str(), "18446744073709551615", "99999999999999999999", "-1", "+1", "01", "", "1e3"] {
            assert!(format!("m-{wrong}").parse::<MessageId>().is_err(), "{wrong}");
            assert!(format!("n-{wrong}-0").parse::<NotificationId>().is_err(), "{wrong}");
            assert!(wrong.parse::<StoredNumber>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_plain() {
        for right in ["quakes", "near_me", "A-1"] {
            assert!(right.parse::<Name>().is_ok(), "{right}");
        }
        for wrong in ["", "1a", "a b", "a/b", "é", &"a".repeat(65)] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn subscriber_ids_are_almost_free() {
        for right in ["alice", "Zoë Ω", "a@b.example", &"x".repeat(255)] {
            assert!(right.parse::<SubscriberId>().is_ok(), "{right}");
        }
        for wrong in ["", "a/b", "a\nb", &"x".repeat(256)] {
            assert!(wrong.parse::<SubscriberId>().is_err(), "{wrong}");
        }
    }
}
