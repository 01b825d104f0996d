use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::{Code, Problem};

use super::System;
use crate::options::{Options, Wait};

/// Longest subject in bytes.
const SUBJECT_BYTES_MAX: usize = 256;

/// Options of a channel with the protocol `nats`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["servers"]))]
pub struct NatsOptions {
    /// Servers of one system, tried in turn: `nats://broker.example.org:4222`, or `tls://…` for encrypted connections
    /// only.
    pub servers: Vec<String>,
    /// Prefix of all subjects, before a device's address: `notices.`. A device cannot write to any other subject.
    pub subject_prefix: String,
    /// Token for login.
    pub token: Option<String>,
    /// User name for login.
    pub username: Option<String>,
    /// Password for login.
    pub password: Option<String>,
    /// Credentials file for login, as `nsc` writes it.
    pub credentials_file: Option<PathBuf>,
    /// Timeout of connecting and of each acknowledgement.
    pub timeout: Wait,
    /// A file of further certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
}

impl Default for NatsOptions {
    fn default() -> Self {
        NatsOptions {
            servers: Vec::new(),
            subject_prefix: String::new(),
            token: None,
            username: None,
            password: None,
            credentials_file: None,
            timeout: Wait::seconds(5),
            ca_file: None,
        }
    }
}

impl Options for NatsOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.system().problems();
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

/// The subject of an address; the error says what is wrong with it.
pub(super) fn subject(prefix: &str, address: &str) -> Result<String, String> {
    let subject = format!("{prefix}{address}");
    if subject.len() > SUBJECT_BYTES_MAX {
        return Err(format!("the subject is longer than {SUBJECT_BYTES_MAX} bytes"));
    }
    let good = |word: &str| {
        !word.is_empty() && !word.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>'))
    };
    match subject.split('.').all(good) {
        true => Ok(subject),
        false => Err(format!(
            "`{}` is not a subject: words with dots between them, without spaces and wildcards",
            subject.escape_debug()
        )),
    }
}
