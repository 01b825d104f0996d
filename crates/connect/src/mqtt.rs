//! MQTT: broker and login, for channels and sources; names and filters of topics.

use std::{sync::Arc, time::Duration};

use rumqttc::{TlsConfiguration, Transport, v5::MqttOptions};
use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::{Code, Problem};

use crate::{options::Wait, tls::TlsOptions};

/// Keep-alive interval of a connection.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Longest topic in bytes.
const TOPIC_BYTES_MAX: usize = 1_024;

/// Options of connections to an MQTT 5 broker.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConnectionOptions {
    /// Host name or address of the broker.
    pub host: String,
    /// Port; default 1883, encrypted 8883.
    pub port: Option<u16>,
    /// Encryption.
    #[serde(flatten)]
    pub tls: TlsOptions,
    /// Client id, which identifies the session at the broker; default from the names of the installation, the
    /// application, and the channel or source.
    pub client_id: Option<String>,
    /// User name for the login.
    pub username: Option<String>,
    /// Password for the login.
    pub password: Option<String>,
    /// Time limit for connecting, and for each acknowledgement.
    pub timeout: Wait,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            host: String::new(),
            port: None,
            tls: TlsOptions::default(),
            client_id: None,
            username: None,
            password: None,
            timeout: Wait::seconds(10),
        }
    }
}

impl ConnectionOptions {
    /// Every problem of these options.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.host.is_empty() {
            let problem = Problem::new(Code::Required, "host", "the broker is missing");
            problems.push(problem.hint("give its name or address, such as `broker.example.org`"));
        }
        if self.username.is_none() && self.password.is_some() {
            problems.push(Problem::new(Code::MissingCounterpart, "username", "a password needs a user name"));
        }
        problems.extend(self.tls.certificates.problems());
        problems
    }

    /// The port, with its default.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.tls.is_required { 8883 } else { 1883 })
    }

    /// The options of the client, with this client id; `trust` is that of the certificates in `tls`.
    pub fn client(&self, client_id: String, trust: &Arc<ClientConfig>) -> MqttOptions {
        let mut client = MqttOptions::new(client_id, &self.host, self.port());
        client.set_keep_alive(KEEP_ALIVE).set_connection_timeout(self.timeout.0.as_secs().max(1));
        if self.tls.is_required {
            client.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(trust.clone())));
        }
        if let Some(username) = &self.username {
            client.set_credentials(username, self.password.as_deref().unwrap_or_default());
        }
        client
    }
}

/// The topic of an address below a prefix; the error says what is wrong with it.
pub fn topic(prefix: &str, address: &str) -> Result<String, String> {
    let topic = format!("{prefix}{address}");
    if topic.is_empty() || topic.len() > TOPIC_BYTES_MAX {
        return Err(format!("a topic has 1 to {TOPIC_BYTES_MAX} bytes"));
    }
    if topic.starts_with('$') || topic.contains(['+', '#']) || topic.chars().any(char::is_control) {
        return Err(format!(
            "`{}` is not a topic to write to: without `+`, `#` and control characters, and not beginning with `$`",
            topic.escape_debug()
        ));
    }
    Ok(topic)
}

/// Whether a text is a topic filter: `#` is only at the end, `+` only between slashes.
pub fn is_filter(topic: &str) -> bool {
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
    !topic.is_empty() && topic.len() <= TOPIC_BYTES_MAX && is_group && levels.iter().enumerate().all(good)
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

    #[test]
    fn a_topic_is_written_to_as_it_stands() {
        for good in ["a", "a/b", "Zürich/42", "a b", "/"] {
            assert_eq!(topic("notices/", good), Ok(format!("notices/{good}")));
        }
        for wrong in ["+", "a/#", "a\0", "a\nb", &"x".repeat(2_000)] {
            assert!(topic("notices/", wrong).is_err(), "{wrong:?}");
        }
        assert!(topic("", "").is_err() && topic("", "$SYS/broker").is_err());
    }
}
