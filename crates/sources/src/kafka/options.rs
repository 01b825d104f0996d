use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::{
    kafka::{self, ConnectionOptions, is_name},
    options::Options,
};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{description::SourceOptions, mapping::Mapping};

/// Most topics of a source.
const TOPICS_MAX: usize = 100;

/// Options of a source of the kind `kafka`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["servers", "topics"]))]
pub struct KafkaOptions {
    /// Connection to the cluster.
    #[serde(flatten)]
    pub connection: ConnectionOptions,
    /// Topics, with all their partitions. They must exist.
    pub topics: Vec<String>,
    /// Path of each field of the event class in a message: `{magnitude: properties.mag}`. Default: the names of the
    /// fields.
    pub fields: BTreeMap<String, String>,
    /// Start position for a topic without consumed messages.
    pub start: Start,
    /// Consumer group to which offsets are committed, for monitoring; default from application and source. No other
    /// consumer may use it.
    pub group: Option<String>,
}

/// The start position in a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// The oldest available message.
    #[default]
    Earliest,
    /// Messages after the first connection.
    Latest,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        KafkaOptions {
            connection: ConnectionOptions::default(),
            topics: Vec::new(),
            fields: BTreeMap::new(),
            start: Start::Earliest,
            group: None,
        }
    }
}

impl Options for KafkaOptions {
    const RENAMED: &'static [(&'static str, &'static str)] = kafka::RENAMED;

    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.connection.problems();
        if self.topics.is_empty() {
            problems.push(Problem::new(Code::Required, "topics", "are missing").hint("such as `[quakes]`"));
        }
        if self.topics.len() > TOPICS_MAX {
            problems.push(
                Problem::new(Code::TooMany, "topics", format!("are more than {TOPICS_MAX}"))
                    .param("limit", TOPICS_MAX)
                    .hint("use two sources"),
            );
        }
        for (at, topic) in self.topics.iter().enumerate() {
            if !is_name(topic) {
                let text = format!("`{}` is not the name of a topic", topic.escape_debug());
                problems.push(
                    Problem::new(Code::InvalidFormat, format!("topics[{at}]"), text)
                        .param("format", "topic")
                        .hint("letters, digits, `.`, `_` and `-`"),
                );
            } else if self.topics[..at].contains(topic) {
                problems.push(Problem::new(Code::Duplicate, format!("topics[{at}]"), "is named twice"));
            }
        }
        if self.group.as_deref().is_some_and(|group| !is_name(group)) {
            problems
                .push(Problem::new(Code::InvalidFormat, "group", "is not the name of a group").param("format", "name"));
        }
        problems
    }
}

impl SourceOptions for KafkaOptions {
    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tocsin_connect::options::read;

    use super::*;

    #[test]
    fn problems_are_reported() {
        let check = |options: serde_json::Value, expected: &str| {
            let mut given = json!({"servers": ["a"], "topics": ["quakes"]});
            given.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
            let found = match read::<KafkaOptions>(given.as_object().expect("an object"), "o") {
                Ok(_) => String::new(),
                Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
            };
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{options}: {found}");
        };
        check(json!({}), "");
        check(json!({"username": "u", "password": "p"}), "");
        check(json!({"username": "ü", "password": "pä"}), "");
        check(json!({"username": "u", "password": "p", "mechanism": "plain", "tls": true}), "");
        check(json!({"servers": []}), "o.servers: are missing");
        check(json!({"servers": ["a:b"]}), "o.servers[0]: `a:b` is not the address of a server");
        check(json!({"topics": ["a b"]}), "o.topics[0]: `a b` is not the name of a topic");
        check(json!({"topics": ["a", "a"]}), "o.topics[1]: is named twice");
        check(json!({"group": ""}), "o.group: is not the name of a group");
        check(json!({"username": "u"}), "o.password: is missing: a user name needs a password");
        check(json!({"username": "u", "password": "p", "mechanism": "plain"}), "in clear text");
        check(
            json!({"username": "u", "password": "pa\u{308}"}),
            "o.password: has characters that SASLprep (RFC 4013) replaces or prohibits",
        );
        check(json!({"ca_file": "/a"}), "o.ca_file: is for encrypted connections");
        check(json!({"tls": true, "key_file": "/a"}), "o.certificate_file: a private key needs its certificate");
        check(json!({"start": "now"}), "o.start");
    }

    #[test]
    fn definitions_with_the_former_name_of_the_servers_stay_valid() {
        let given = json!({"brokers": ["a:9093"], "topics": ["quakes"]});
        let options: KafkaOptions = read(given.as_object().expect("an object"), "o").unwrap_or_else(|_| panic!("good"));
        assert_eq!(options.connection.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:9093"]);
    }
}
