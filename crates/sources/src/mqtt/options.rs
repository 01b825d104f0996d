use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::{
    mqtt::{ConnectionOptions, is_filter},
    options::{Options, Wait},
};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{description::SourceOptions, mapping::Mapping};

/// Most topics of one source.
pub(super) const TOPICS_MAX: usize = 500;

/// Options of a source of the kind `mqtt`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["host", "topics"]))]
pub struct MqttOptions {
    /// Connection to the broker.
    #[serde(flatten)]
    pub connection: ConnectionOptions,
    /// Topic filters, with wildcards: `[meters/+/reading, alarms/#]`; at most 500. A message that matches several of
    /// them is one event. The subscriptions of the broker's session are updated when they change.
    #[schemars(length(min = 1, max = 500))]
    pub topics: Vec<String>,
    /// Path of each field of the event class in a message: `{magnitude: properties.mag}`. Default: the names of the
    /// fields.
    pub fields: BTreeMap<String, String>,
    /// Session expiry: how long the broker keeps the session and its messages while the source is disconnected.
    pub session: Wait,
}

impl Default for MqttOptions {
    fn default() -> Self {
        MqttOptions {
            connection: ConnectionOptions::default(),
            topics: Vec::new(),
            fields: BTreeMap::new(),
            session: Wait::seconds(86_400),
        }
    }
}

impl Options for MqttOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.connection.problems();
        if self.topics.is_empty() {
            problems.push(Problem::new(Code::Required, "topics", "are missing").hint("such as `[meters/+/reading]`"));
        }
        if self.topics.len() > TOPICS_MAX {
            let text = format!("are {}; the limit is {TOPICS_MAX}", self.topics.len());
            problems.push(
                Problem::new(Code::TooMany, "topics", text)
                    .param("limit", TOPICS_MAX)
                    .hint("use wildcards, or a second source"),
            );
        }
        for (at, topic) in self.topics.iter().enumerate().filter(|(_, topic)| !is_filter(topic)) {
            let text = format!("`{}` is not a valid topic filter", topic.escape_debug());
            problems.push(
                Problem::new(Code::InvalidFormat, format!("topics[{at}]"), text)
                    .param("format", "topic")
                    .hint("`+` matches one level, `#` all remaining levels"),
            );
        }
        problems
    }
}

impl SourceOptions for MqttOptions {
    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
