use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::{
    nats::{ConnectionOptions, is_name},
    options::Options,
};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{description::SourceOptions, mapping::Mapping};

/// Options of a source of the kind `nats`.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["servers", "stream"]))]
pub struct NatsOptions {
    /// Connection to the system.
    #[serde(flatten)]
    pub connection: ConnectionOptions,
    /// The JetStream stream. It must exist.
    pub stream: String,
    /// Subjects of the messages, with wildcards: `quakes.>`; default all.
    pub subjects: Vec<String>,
    /// Name of the durable consumer, which is created; default from application and source.
    pub consumer: Option<String>,
    /// Path of each field of the event class in a message: `{magnitude: properties.mag}`. Default: the names of the
    /// fields.
    pub fields: BTreeMap<String, String>,
}

impl Options for NatsOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.connection.problems();
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
