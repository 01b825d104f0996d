use std::{borrow::Cow, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tocsin_connect::options::Options;
use tocsin_model::{
    definition::{parse_duration, write_duration},
    problem::{Code, Problem},
};

/// Default limit of items in a feed.
const ITEMS: u32 = 1_000;
/// Largest limit of items in a feed.
pub const ITEMS_MAX: u32 = 10_000;
const RETENTION_MIN: Duration = Duration::from_secs(60);
const RETENTION_MAX: Duration = Duration::from_secs(3_660 * 86_400);

/// Options of a channel with the protocol `inbox`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct InboxOptions {
    /// Retention of an item, such as `30d`; a shorter `expires_after` of its notification class applies.
    pub retention: Retention,
    /// Most items of a feed, including those of other channels. A further item removes the oldest, read or not.
    #[schemars(range(min = 1, max = 10_000))]
    pub items_max: u32,
}

impl Default for InboxOptions {
    fn default() -> Self {
        InboxOptions { retention: Retention(Duration::from_secs(90 * 86_400)), items_max: ITEMS }
    }
}

impl Options for InboxOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !(1..=ITEMS_MAX).contains(&self.items_max) {
            let problem =
                Problem::new(Code::OutOfRange, "items_max", format!("a feed has from 1 to {ITEMS_MAX} items"))
                    .param("least", 1)
                    .param("most", ITEMS_MAX);
            problems.push(problem.hint(format!("leave it out for {ITEMS}")));
        }
        problems
    }
}

/// Retention of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention(pub Duration);

impl<'de> Deserialize<'de> for Retention {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        match parse_duration(&text) {
            Ok(time) if (RETENTION_MIN..=RETENTION_MAX).contains(&time) => Ok(Retention(time)),
            _ => Err(serde::de::Error::custom(format!(
                "`{text}` is not a time from 1m to 3660d, such as `30d` or `12h`"
            ))),
        }
    }
}

impl Serialize for Retention {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&write_duration(self.0))
    }
}

impl JsonSchema for Retention {
    fn schema_name() -> Cow<'static, str> {
        "Retention".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$" })
    }
}
