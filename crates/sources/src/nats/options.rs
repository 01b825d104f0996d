use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::{
    nats::System,
    options::{Options, Wait},
};
use tocsin_model::{field::Fields, problem::Problem};

use crate::{kind::SourceOptions, mapping::Mapping};

/// Options of a source of the kind `nats`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["servers", "stream"]))]
pub struct NatsOptions {
    /// Servers of one system, tried in turn: `nats://broker.example.org:4222`, or `tls://…` for encrypted connections
    /// only.
    pub servers: Vec<String>,
    /// The stream of JetStream whose messages are taken. It must be there.
    pub stream: String,
    /// Only messages of these subjects, with wildcards: `quakes.>`. All without it.
    pub subjects: Vec<String>,
    /// The name of the durable consumer, which is made; without it one is made of the application and the source.
    pub consumer: Option<String>,
    /// Where in a message each field of the event class comes from: `{magnitude: properties.mag}`. Without it messages name
    /// the fields themselves.
    pub fields: BTreeMap<String, String>,
    /// A token to log in with.
    pub token: Option<String>,
    /// A user name to log in with.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// A file of credentials to log in with, as `nsc` writes it.
    pub credentials_file: Option<PathBuf>,
    /// Time to connect, and for each answer.
    pub timeout: Wait,
    /// A file of further certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
}

impl Default for NatsOptions {
    fn default() -> Self {
        NatsOptions {
            servers: Vec::new(),
            stream: String::new(),
            subjects: Vec::new(),
            consumer: None,
            fields: BTreeMap::new(),
            token: None,
            username: None,
            password: None,
            credentials_file: None,
            timeout: Wait::seconds(5),
            ca_file: None,
        }
    }
}

impl NatsOptions {
    /// The system.
    pub(super) fn system(&self) -> System<'_> {
        System {
            servers: &self.servers,
            token: self.token.as_deref(),
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            credentials_file: self.credentials_file.as_deref(),
            timeout: self.timeout.0,
        }
    }
}

impl Options for NatsOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.system().problems();
        let is_name =
            |name: &str| !name.is_empty() && !name.contains(['.', '*', '>', '/', '\\', ' ', '\t', '\n', '\r']);
        if !is_name(&self.stream) {
            problems.push(Problem::at("stream", "is missing, or not the name of a stream").hint("such as `QUAKES`"));
        }
        if self.consumer.as_ref().is_some_and(|name| !is_name(name)) {
            problems.push(Problem::at("consumer", "is not the name of a consumer"));
        }
        problems
    }
}

impl SourceOptions for NatsOptions {
    fn misfits(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
