use std::path::PathBuf;

use rumqttc::v5::mqttbytes::QoS;
use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::{Code, Problem};

use super::Broker;
use crate::options::{Options, Wait};

/// Most messages in flight on a connection.
pub(super) const WINDOW_MAX: u32 = 1024;
/// Longest topic in bytes.
const TOPIC_BYTES_MAX: usize = 1024;

/// Options of a channel with the protocol `mqtt`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["host"]))]
pub struct MqttOptions {
    /// Host name or address of the broker.
    pub host: String,
    /// Port; 1883 by default, 8883 with `tls`.
    pub port: Option<u16>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Prefix of all topics, before a device's address: `notices/`. A device cannot write to any other topic.
    pub topic_prefix: String,
    /// Quality of service. 1: at least once; 2: exactly once up to the broker.
    #[schemars(range(min = 1, max = 2))]
    pub qos: u8,
    /// Whether the broker retains the latest message of each topic for later subscribers.
    pub retain: bool,
    /// Client id of the connection; by default made of the installation and the channel.
    pub client_id: Option<String>,
    /// User name for login.
    pub username: Option<String>,
    /// Password for login.
    pub password: Option<String>,
    /// Timeout of connecting and of each acknowledgement.
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
            topic_prefix: String::new(),
            qos: 1,
            retain: false,
            client_id: None,
            username: None,
            password: None,
            timeout: Wait::seconds(10),
            ca_file: None,
        }
    }
}

impl Options for MqttOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.broker().problems();
        if !self.topic_prefix.is_empty() && topic(&self.topic_prefix, "").is_err() {
            problems.push(
                Problem::new(
                    Code::InvalidFormat,
                    "topic_prefix",
                    "a topic that is written to holds no `+`, `#` or NUL",
                )
                .param("format", "topic"),
            );
        }
        if !(1..=2).contains(&self.qos) {
            let text = "1 (at least once) or 2 (exactly once); with 0 the broker does not acknowledge it";
            problems.push(Problem::new(Code::OutOfRange, "qos", text).param("least", 1).param("most", 2));
        }
        problems
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

    pub(super) fn quality(&self) -> QoS {
        if self.qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce }
    }
}

/// The topic of an address; the error says what is wrong with it.
pub(super) fn topic(prefix: &str, address: &str) -> Result<String, String> {
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
