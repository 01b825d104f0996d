//! Kafka: servers and login, for channels and sources; names of topics and groups.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::{Code, Problem};

use crate::{options::Wait, scram, tls::TlsOptions};

/// Options of connections to a Kafka cluster.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConnectionOptions {
    /// Bootstrap servers of one cluster: `broker.example.org:9092`. The default port is 9092.
    pub servers: Vec<String>,
    /// Encryption.
    #[serde(flatten)]
    pub tls: TlsOptions,
    /// Client id in requests, for logs and quotas of the brokers; default from application and source.
    pub client_id: Option<String>,
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

/// Former names of the options, each with its name now.
pub const RENAMED: &[(&str, &str)] = &[("brokers", "servers")];

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
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::ScramSha512 => "SCRAM-SHA-512",
            Mechanism::ScramSha256 => "SCRAM-SHA-256",
            Mechanism::Plain => "PLAIN",
        }
    }
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            servers: Vec::new(),
            tls: TlsOptions::default(),
            client_id: None,
            username: None,
            password: None,
            mechanism: Mechanism::default(),
            allow_plain_auth: false,
            timeout: Wait::seconds(10),
        }
    }
}

impl ConnectionOptions {
    /// Every problem of these options.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.servers.is_empty() {
            let problem = Problem::new(Code::Required, "servers", "are missing");
            problems.push(problem.hint("give one or more, such as `[broker.example.org:9092]`"));
        }
        for (at, server) in self.servers.iter().enumerate().filter(|(_, server)| Address::read(server).is_none()) {
            let text = format!("`{}` is not the address of a server", server.escape_debug());
            problems.push(
                Problem::new(Code::InvalidFormat, format!("servers[{at}]"), text)
                    .param("format", "host_name")
                    .hint("such as `broker.example.org:9092`"),
            );
        }
        problems.extend(self.tls.certificates.problems());
        let of_tls = [
            ("ca_file", &self.tls.certificates.ca_file),
            ("certificate_file", &self.tls.certificates.certificate_file),
        ];
        for (path, _) in of_tls.into_iter().filter(|(_, file)| file.is_some() && !self.tls.is_required) {
            problems.push(Problem::new(Code::NoEffect, path, "is for encrypted connections").hint("set `tls: true`"));
        }
        problems.extend(self.login_problems());
        problems
    }

    /// The servers, from checked options.
    pub fn addresses(&self) -> Vec<Address> {
        self.servers.iter().filter_map(|server| Address::read(server)).collect()
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
        if self.mechanism == Mechanism::Plain
            && self.username.is_some()
            && !self.tls.is_required
            && !self.allow_plain_auth
        {
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

/// The address of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host name or address.
    pub host: String,
    /// Port.
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

/// Whether a topic or group can have this name.
pub fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && name.len() <= 249 && !matches!(name, "." | "..") && name.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
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
}
