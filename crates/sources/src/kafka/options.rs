use std::{borrow::Cow, collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::{
    options::{Options, Wait},
    scram,
};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{kind::SourceOptions, mapping::Mapping};

/// Most topics of a source.
const TOPICS_MAX: usize = 100;

/// Options of a source of the kind `kafka`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["brokers", "topics"]))]
pub struct KafkaOptions {
    /// Bootstrap brokers of one cluster: `broker.example.org:9092`. The default port is 9092.
    pub brokers: Vec<String>,
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
    /// Whether connections are encrypted.
    pub tls: bool,
    /// A file of additional certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
    /// A file with the client certificate, in PEM form.
    pub certificate_file: Option<PathBuf>,
    /// The file with its key.
    pub key_file: Option<PathBuf>,
    /// User name for the login.
    pub username: Option<String>,
    /// Password for the login.
    pub password: Option<String>,
    /// SASL mechanism.
    pub mechanism: Mechanism,
    /// Whether `plain` may be used on an unencrypted connection.
    pub allow_plain_auth: bool,
    /// Time limit for connecting, and for each response.
    pub timeout: Wait,
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

/// A SASL mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
pub enum Mechanism {
    /// SCRAM-SHA-512: the password is not transmitted.
    #[default]
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
    /// SCRAM-SHA-256: the password is not transmitted.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// PLAIN: the password is transmitted, so the connection should be encrypted.
    #[serde(rename = "plain")]
    Plain,
}

impl Mechanism {
    /// Name in the protocol.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mechanism::ScramSha512 => "SCRAM-SHA-512",
            Mechanism::ScramSha256 => "SCRAM-SHA-256",
            Mechanism::Plain => "PLAIN",
        }
    }
}

impl Default for KafkaOptions {
    fn default() -> Self {
        KafkaOptions {
            brokers: Vec::new(),
            topics: Vec::new(),
            fields: BTreeMap::new(),
            start: Start::Earliest,
            group: None,
            tls: false,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            username: None,
            password: None,
            mechanism: Mechanism::ScramSha512,
            allow_plain_auth: false,
            timeout: Wait::seconds(10),
        }
    }
}

/// The address of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Parses `host`, `host:port`, `[::1]:port`.
    pub fn read(text: &str) -> Option<Address> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':')?)),
            None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/@[]".contains(&byte));
        let port = port.map_or(Some(9_092), |port| port.parse().ok().filter(|port| *port > 0))?;
        is_host.then(|| Address { host: host.to_owned(), port })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl KafkaOptions {
    /// The brokers, from checked options.
    pub(super) fn addresses(&self) -> Vec<Address> {
        self.brokers.iter().filter_map(|broker| Address::read(broker)).collect()
    }

    fn login_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.username.is_some() != self.password.is_some() {
            let (path, text) = match self.username {
                Some(_) => ("password", "is missing: a user name needs a password"),
                None => ("username", "is missing: a password needs a user name"),
            };
            problems.push(
                Problem::new(Code::MissingCounterpart, path, text)
                    .hint("take it from the environment: `${KAFKA_PASSWORD}`"),
            );
        }
        if self.mechanism == Mechanism::Plain && self.username.is_some() && !self.tls && !self.allow_plain_auth {
            let problem = Problem::new(Code::Insecure, "mechanism", "`plain` would send the password in clear text");
            problems.push(problem.hint("set `tls: true`, or use `scram-sha-512`; `allow_plain_auth: true` allows it"));
        }
        if self.mechanism != Mechanism::Plain {
            for (path, text) in [("username", &self.username), ("password", &self.password)] {
                // Brokers hash a text as it is, against RFC 5802.
                if text.as_ref().is_some_and(|text| scram::prepared(text).as_ref() != Some(&Cow::from(text))) {
                    let problem = Problem::new(
                        Code::InvalidCharacters,
                        path,
                        "has characters that SASLprep (RFC 4013) replaces or prohibits",
                    );
                    problems.push(problem.hint("choose another, or use `plain` over `tls`"));
                }
            }
        }
        problems
    }
}

/// Whether a topic or group can have this name.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && name.len() <= 249 && !matches!(name, "." | "..") && name.bytes().all(is_letter)
}

impl Options for KafkaOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.brokers.is_empty() {
            let problem = Problem::new(Code::Required, "brokers", "are missing");
            problems.push(problem.hint("give one or more, such as `[broker.example.org:9092]`"));
        }
        for (at, broker) in self.brokers.iter().enumerate().filter(|(_, broker)| Address::read(broker).is_none()) {
            let text = format!("`{}` is not the address of a broker", broker.escape_debug());
            problems.push(
                Problem::new(Code::InvalidFormat, format!("brokers[{at}]"), text)
                    .param("format", "host_name")
                    .hint("such as `broker.example.org:9092`"),
            );
        }
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
        if self.certificate_file.is_some() != self.key_file.is_some() {
            problems.push(Problem::new(
                Code::MissingCounterpart,
                "certificate_file",
                "goes with `key_file`: give both or neither",
            ));
        }
        let of_tls = [("ca_file", &self.ca_file), ("certificate_file", &self.certificate_file)];
        for (path, _) in of_tls.into_iter().filter(|(_, file)| file.is_some() && !self.tls) {
            problems.push(Problem::new(Code::NoEffect, path, "is for encrypted connections").hint("set `tls: true`"));
        }
        problems.extend(self.login_problems());
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
    use tocsin_delivery::options::read;

    use super::*;

    #[test]
    fn addresses_may_have_ports() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(Address::read(text).map(|address| address.to_string()).as_deref(), expected, "{text}");
        };
        check("broker.example.org", Some("broker.example.org:9092"));
        check("10.0.0.1:19092", Some("10.0.0.1:19092"));
        check("[::1]:9093", Some("[::1]:9093"));
        check("[::1]", Some("[::1]:9092"));
        for wrong in ["", ":9092", "a:0", "a:b", "a:65536", "kafka://a:9092", "u@a:1", "[::1", "a b:1", "[]:1"] {
            check(wrong, None);
        }
    }

    #[test]
    fn problems_are_reported() {
        let check = |options: serde_json::Value, expected: &str| {
            let mut given = json!({"brokers": ["a"], "topics": ["quakes"]});
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
        check(json!({"brokers": []}), "o.brokers: are missing");
        check(json!({"brokers": ["a:b"]}), "o.brokers[0]: `a:b` is not the address of a broker");
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
        check(json!({"tls": true, "key_file": "/a"}), "goes with `key_file`");
        check(json!({"start": "now"}), "o.start");
    }
}
