use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::{
    options::{Options, Wait},
    scram,
};
use tocsin_model::{field::Fields, problem::Problem};

use crate::{kind::SourceOptions, mapping::Mapping};

/// A source takes from at most so many topics.
const TOPICS_MAX: usize = 100;

/// Options of a source of the kind `kafka`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["brokers", "topics"]))]
pub struct KafkaOptions {
    /// Some brokers of one cluster, asked in turn for all others: `broker.example.org:9092`. Without a port it is 9092.
    pub brokers: Vec<String>,
    /// The topics whose messages are taken, from all of their partitions. They must be there.
    pub topics: Vec<String>,
    /// Where in a message each field of the event class comes from: `{magnitude: properties.mag}`. Without it messages name
    /// the fields themselves.
    pub fields: BTreeMap<String, String>,
    /// Where to begin with a topic of which nothing was taken so far.
    pub start: Start,
    /// The group under whose name offsets are committed, for others to see how far we are; without it one is made of the
    /// application and the source. No other consumer may use it.
    pub group: Option<String>,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// A file of further certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
    /// A file with a certificate that proves who we are, in PEM form.
    pub certificate_file: Option<PathBuf>,
    /// The file with its key.
    pub key_file: Option<PathBuf>,
    /// A user name to log in with.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// How the password is shown.
    pub mechanism: Mechanism,
    /// Whether `plain` may be used on a connection that is not encrypted.
    pub allow_plain_auth: bool,
    /// Time to connect, and for each answer.
    pub timeout: Wait,
}

/// Where to begin with a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// With the oldest message that is still there.
    #[default]
    Earliest,
    /// With what comes after the first connection.
    Latest,
}

/// How a password is shown to a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
pub enum Mechanism {
    /// SCRAM-SHA-512: the password does not travel.
    #[default]
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
    /// SCRAM-SHA-256: the password does not travel.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// PLAIN: the password travels, so the connection should be encrypted.
    #[serde(rename = "plain")]
    Plain,
}

impl Mechanism {
    /// Its name in the protocol.
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

/// Where a broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Reads `host`, `host:port`, `[::1]:port`.
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
    /// The brokers, of options without problems.
    pub(super) fn addresses(&self) -> Vec<Address> {
        self.brokers.iter().filter_map(|broker| Address::read(broker)).collect()
    }

    fn login_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.username.is_some() != self.password.is_some() {
            let (path, text) = match self.username {
                Some(_) => ("password", "a user name needs a password"),
                None => ("username", "a password needs a user name"),
            };
            problems.push(Problem::at(path, text).hint("take it from the environment: `${KAFKA_PASSWORD}`"));
        }
        if self.mechanism == Mechanism::Plain && self.username.is_some() && !self.tls && !self.allow_plain_auth {
            let problem = Problem::at("mechanism", "`plain` would send the password in clear text");
            problems.push(problem.hint("set `tls: true`, or take `scram-sha-512`; `allow_plain_auth: true` allows it"));
        }
        if self.mechanism != Mechanism::Plain {
            for (path, text) in [("username", &self.username), ("password", &self.password)] {
                if text.as_ref().is_some_and(|text| !scram::can_say(text)) {
                    let problem = Problem::at(path, "has letters beyond ASCII, which SCRAM cannot say here");
                    problems.push(problem.hint("choose another, or take `plain` over `tls`"));
                }
            }
        }
        problems
    }
}

/// Whether a topic or a group may be named so.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && name.len() <= 249 && !matches!(name, "." | "..") && name.bytes().all(is_letter)
}

impl Options for KafkaOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.brokers.is_empty() {
            let problem = Problem::at("brokers", "are missing");
            problems.push(problem.hint("give one or more, such as `[broker.example.org:9092]`"));
        }
        for (at, broker) in self.brokers.iter().enumerate().filter(|(_, broker)| Address::read(broker).is_none()) {
            let text = format!("`{}` is not the address of a broker", broker.escape_debug());
            problems.push(Problem::at(format!("brokers[{at}]"), text).hint("such as `broker.example.org:9092`"));
        }
        if self.topics.is_empty() {
            problems.push(Problem::at("topics", "are missing").hint("such as `[quakes]`"));
        }
        if self.topics.len() > TOPICS_MAX {
            problems.push(Problem::at("topics", format!("are more than {TOPICS_MAX}")).hint("make two sources of it"));
        }
        for (at, topic) in self.topics.iter().enumerate() {
            if !is_name(topic) {
                let text = format!("`{}` is not the name of a topic", topic.escape_debug());
                problems.push(Problem::at(format!("topics[{at}]"), text).hint("letters, digits, `.`, `_` and `-`"));
            } else if self.topics[..at].contains(topic) {
                problems.push(Problem::at(format!("topics[{at}]"), "is named twice"));
            }
        }
        if self.group.as_deref().is_some_and(|group| !is_name(group)) {
            problems.push(Problem::at("group", "is not the name of a group"));
        }
        if self.certificate_file.is_some() != self.key_file.is_some() {
            problems.push(Problem::at("certificate_file", "goes with `key_file`: give both or neither"));
        }
        let of_tls = [("ca_file", &self.ca_file), ("certificate_file", &self.certificate_file)];
        for (path, _) in of_tls.into_iter().filter(|(_, file)| file.is_some() && !self.tls) {
            problems.push(Problem::at(path, "is for encrypted connections").hint("set `tls: true`"));
        }
        problems.extend(self.login_problems());
        problems
    }
}

impl SourceOptions for KafkaOptions {
    fn misfits(&self, fields: &Fields) -> Vec<Problem> {
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
    fn what_is_wrong_is_said() {
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
        check(json!({"username": "u", "password": "p", "mechanism": "plain", "tls": true}), "");
        check(json!({"brokers": []}), "o.brokers: are missing");
        check(json!({"brokers": ["a:b"]}), "o.brokers[0]: `a:b` is not the address of a broker");
        check(json!({"topics": ["a b"]}), "o.topics[0]: `a b` is not the name of a topic");
        check(json!({"topics": ["a", "a"]}), "o.topics[1]: is named twice");
        check(json!({"group": ""}), "o.group: is not the name of a group");
        check(json!({"username": "u"}), "o.password: a user name needs a password");
        check(json!({"username": "u", "password": "p", "mechanism": "plain"}), "in clear text");
        check(json!({"username": "u", "password": "pä"}), "o.password: has letters beyond ASCII");
        check(json!({"ca_file": "/a"}), "o.ca_file: is for encrypted connections");
        check(json!({"tls": true, "key_file": "/a"}), "goes with `key_file`");
        check(json!({"start": "now"}), "o.start");
    }
}
