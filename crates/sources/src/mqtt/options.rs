use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::{
    mqtt::Broker,
    options::{Options, Wait},
};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{kind::SourceOptions, mapping::Mapping};

/// Most topics of one source.
pub(super) const TOPICS_MAX: usize = 500;

/// Options of a source of the kind `mqtt`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["host", "topics"]))]
pub struct MqttOptions {
    /// Host name or address of the broker.
    pub host: String,
    /// Port; default 1883, encrypted 8883.
    pub port: Option<u16>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Topic filters, with wildcards: `[meters/+/reading, alarms/#]`; at most 500. A message that matches several of
    /// them is one event. The subscriptions of the broker's session are updated when they change.
    #[schemars(length(min = 1, max = 500))]
    pub topics: Vec<String>,
    /// Path of each field of the event class in a message: `{magnitude: properties.mag}`. Default: the names of the
    /// fields.
    pub fields: BTreeMap<String, String>,
    /// Client id, which identifies the session at the broker; default from application and source.
    pub client_id: Option<String>,
    /// Session expiry: how long the broker keeps the session and its messages while the source is disconnected.
    pub session: Wait,
    /// User name for the login.
    pub username: Option<String>,
    /// Password for the login.
    pub password: Option<String>,
    /// Time limit for connecting.
    pub timeout: Wait,
    /// A file of additional certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
}

impl Default for MqttOptions {
    fn default() -> Self {
        MqttOptions {
            host: String::new(),
            port: None,
            tls: false,
            topics: Vec::new(),
            fields: BTreeMap::new(),
            client_id: None,
            session: Wait::seconds(86_400),
            username: None,
            password: None,
            timeout: Wait::seconds(10),
            ca_file: None,
        }
    }
}

impl MqttOptions {
    /// The broker.
    pub(super) fn broker(&self) -> Broker<'_> {
        Broker {
            host: &self.host,
            port: self.port,
            tls: self.tls,
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            timeout: self.timeout.0,
        }
    }
}

/// Whether wildcards are at valid positions: `#` only at the end, `+` only between slashes.
fn is_filter(topic: &str) -> bool {
    let levels: Vec<&str> = topic.split('/').collect();
    let last = levels.len() - 1;
    let good = |(at, level): (usize, &&str)| match *level {
        "#" => at == last,
        "+" => true,
        level => !level.contains(['#', '+', '\0']),
    };
    let is_group = match topic.strip_prefix("$share/") {
        Some(rest) => rest
            .split_once('/')
            .is_some_and(|(group, filter)| !group.is_empty() && !group.contains(['+', '#']) && !filter.is_empty()),
        None => true,
    };
    !topic.is_empty() && topic.len() <= 1_024 && is_group && levels.iter().enumerate().all(good)
}

impl Options for MqttOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.broker().problems();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_must_be_at_valid_positions() {
        for good in ["a", "a/b", "+/b", "a/+/c", "#", "a/#", "/a", "$share/g/a/#"] {
            assert!(is_filter(good), "{good}");
        }
        for wrong in ["", "a#", "#/a", "a/b+", "a\0", "$share/g", "$share//a", "$share/g/", "$share/+/a"] {
            assert!(!is_filter(wrong), "{wrong}");
        }
    }
}
