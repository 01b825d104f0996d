use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::{
    nats::{ConnectionOptions, subject},
    options::Options,
};
use tocsin_model::problem::{Code, Problem};

/// Options of a channel with the protocol `nats`.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["servers"]))]
pub struct NatsOptions {
    /// Connection to the system.
    #[serde(flatten)]
    pub connection: ConnectionOptions,
    /// Prefix of all subjects, before a device's address: `notices.`. A device cannot write to any other subject.
    pub subject_prefix: String,
}

impl Options for NatsOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.connection.problems();
        let prefix = self.subject_prefix.trim_end_matches('.');
        if !self.subject_prefix.is_empty() && subject("", prefix).is_err() {
            let text = "a subject is words with dots between them, without spaces and wildcards";
            problems.push(
                Problem::new(Code::InvalidFormat, "subject_prefix", text)
                    .param("format", "subject")
                    .hint("such as `notices.`"),
            );
        }
        problems
    }
}
