use rumqttc::v5::mqttbytes::QoS;
use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::{
    mqtt::{ConnectionOptions, topic},
    options::Options,
};
use tocsin_model::problem::{Code, Problem};

/// Most messages in flight on a connection.
pub(super) const WINDOW_MAX: u32 = 1024;

/// Options of a channel with the protocol `mqtt`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["host"]))]
pub struct MqttOptions {
    /// Connection to the broker.
    #[serde(flatten)]
    pub connection: ConnectionOptions,
    /// Prefix of all topics, before a device's address: `notices/`. A device cannot write to any other topic.
    pub topic_prefix: String,
    /// Quality of service. 1: at least once; 2: exactly once up to the broker.
    #[schemars(range(min = 1, max = 2))]
    pub qos: u8,
    /// Whether the broker retains the latest message of each topic for later subscribers.
    pub retain: bool,
}

impl Default for MqttOptions {
    fn default() -> Self {
        MqttOptions { connection: ConnectionOptions::default(), topic_prefix: String::new(), qos: 1, retain: false }
    }
}

impl Options for MqttOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.connection.problems();
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
    pub(super) fn quality(&self) -> QoS {
        if self.qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce }
    }
}
