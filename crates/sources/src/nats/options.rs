use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::{
    nats::System,
    options::{Options, Wait},
};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{kind::SourceOptions, mapping::Mapping};

/// Options of a source of the kind `nats`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["servers", "stream"]))]
pub struct NatsOptions {
    /// Servers of one NATS system: `nats://broker.example.org:4222`, or `tls://…` to require encryption.
    pub servers: Vec<String>,
    /// The JetStream stream. It must exist.
    pub stream: String,
    /// Subjects of the messages, with wildcards: `quakes.>`; default all.
    pub subjects: Vec<String>,
    /// Name of the durable consumer, which is created; default from application and source.
    pub consumer: Option<String>,
    /// Path of each field of the event class in a message: `{magnitude: properties.mag}`. Default: the names of the
    /// fields.
    pub fields: BTreeMap<String, String>,
    /// Token for the login.
    pub token: Option<String>,
    /// User name for the login.
    pub username: Option<String>,
    /// Password for the login.
    pub password: Option<String>,
    /// Credentials file for the login, as written by `nsc`.
    pub credentials_file: Option<PathBuf>,
    /// Time limit for connecting, and for each response.
    pub timeout: Wait,
    /// A file of additional certificates to trust, in PEM form.
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
    /// The NATS system.
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
            let code = if self.stream.is_empty() { Code::Required } else { Code::InvalidFormat };
            problems
                .push(Problem::new(code, "stream", "is missing, or not the name of a stream").hint("such as `QUAKES`"));
        }
        if self.consumer.as_ref().is_some_and(|name| !is_name(name)) {
            problems.push(
                Problem::new(Code::InvalidFormat, "consumer", "is not the name of a consumer").param("format", "name"),
            );
        }
        problems
    }
}

impl SourceOptions for NatsOptions {
    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
