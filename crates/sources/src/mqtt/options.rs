use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::{
    mqtt::Broker,
    options::{Options, Wait},
};
use tocsin_model::{field::Fields, problem::Problem};

use crate::{kind::SourceOptions, mapping::Mapping};

/// Most topics of one source.
pub(super) const TOPICS_MAX: usize = 500;

/// Options of a source of the kind `mqtt`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["host", "topics"]))]
pub struct MqttOptions {
    /// The broker's name or address.
    pub host: String,
    /// Its port; without it 1883, encrypted 8883.
    pub port: Option<u16>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The topics, with wildcards: `[meters/+/reading, alarms/#]`; at most 500. A message that several of them match is one
    /// event. The broker's session is brought up to date when they change.
    #[schemars(length(min = 1, max = 500))]
    pub topics: Vec<String>,
    /// Where in a message each field of the event class comes from: `{magnitude: properties.mag}`. Without it messages name
    /// the fields themselves.
    pub fields: BTreeMap<String, String>,
    /// The name under which the broker keeps the session; without it one is made of the application and the source.
    pub client_id: Option<String>,
    /// How long the broker keeps the session, and what comes meanwhile, while we are away.
    pub session: Wait,
    /// A user name to log in with.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// Time to connect.
    pub timeout: Wait,
    /// A file of further certificates to trust, in PEM form.
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

/// Whether wildcards stand where they may: `#` alone at the end, `+` alone between slashes.
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
            problems.push(Problem::at("topics", "are missing").hint("such as `[meters/+/reading]`"));
        }
        if self.topics.len() > TOPICS_MAX {
            let text = format!("are {}, and at most {TOPICS_MAX}", self.topics.len());
            problems.push(Problem::at("topics", text).hint("take wildcards, or a second source"));
        }
        for (at, topic) in self.topics.iter().enumerate().filter(|(_, topic)| !is_filter(topic)) {
            let text = format!("`{}` is not a topic to read from", topic.escape_debug());
            problems.push(Problem::at(format!("topics[{at}]"), text).hint("`+` is one level, `#` all at the end"));
        }
        problems
    }
}

impl SourceOptions for MqttOptions {
    fn misfits(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_where_they_may() {
        for good in ["a", "a/b", "+/b", "a/+/c", "#", "a/#", "/a", "$share/g/a/#"] {
            assert!(is_filter(good), "{good}");
        }
        for wrong in ["", "a#", "#/a", "a/b+", "a\0", "$share/g", "$share//a", "$share/g/", "$share/+/a"] {
            assert!(!is_filter(wrong), "{wrong}");
        }
    }
}
