use std::{sync::Arc, time::Duration};

use rumqttc::{TlsConfiguration, Transport};
use rustls::ClientConfig;
use tocsin_model::problem::{Code, Problem};

/// Keep-alive interval of a connection.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// An MQTT broker in options: address and login.
#[derive(Clone, Copy)]
pub struct Broker<'a> {
    /// Host name or address.
    pub host: &'a str,
    /// Port; the default depends on `tls`.
    pub port: Option<u16>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// User name.
    pub username: Option<&'a str>,
    /// Password.
    pub password: Option<&'a str>,
    /// Connect timeout.
    pub timeout: Duration,
}

impl Broker<'_> {
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
        problems
    }

    /// The port, with its default.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.tls { 8883 } else { 1883 })
    }

    /// Connection options with this client id.
    pub fn connect(&self, client_id: String, trust: &Arc<ClientConfig>) -> rumqttc::v5::MqttOptions {
        let mut connect = rumqttc::v5::MqttOptions::new(client_id, self.host, self.port());
        connect.set_keep_alive(KEEP_ALIVE).set_connection_timeout(self.timeout.as_secs().max(1));
        if self.tls {
            connect.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(trust.clone())));
        }
        if let Some(username) = self.username {
            connect.set_credentials(username, self.password.unwrap_or_default());
        }
        connect
    }
}
