use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_nats::{ConnectOptions, ServerAddr};
use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::{id::Name, problem::Problem};

use crate::options::{Options, Wait};

/// The longest subject, in bytes.
const SUBJECT_BYTES_MAX: usize = 256;

/// Options of a channel with the protocol `nats`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["servers"]))]
pub struct NatsOptions {
    /// Servers of one system, tried in turn: `nats://broker.example.org:4222`, or `tls://…` for encrypted connections
    /// only.
    pub servers: Vec<String>,
    /// What stands before a device's address in the subject: `notices.`. A device can then write to no other subject.
    pub subject_prefix: String,
    /// A token to log in with.
    pub token: Option<String>,
    /// A user name to log in with.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// A file of credentials to log in with, as `nsc` writes it.
    pub credentials_file: Option<PathBuf>,
    /// Time to connect, and time for the stream's acknowledgement.
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
        let mut problems = Vec::new();
        if self.servers.is_empty() {
            let problem = Problem::at("servers", "the servers are missing");
            problems.push(problem.hint("give one or more, such as `[nats://broker.example.org:4222]`"));
        }
        for (number, server) in self.servers.iter().enumerate() {
            if server.parse::<ServerAddr>().is_err() {
                let problem = Problem::at(format!("servers[{number}]"), "this is not the address of a server");
                problems.push(problem.hint("such as `nats://broker.example.org:4222` or `tls://…`"));
            }
        }
        let prefix = self.subject_prefix.trim_end_matches('.');
        if !self.subject_prefix.is_empty() && subject("", prefix).is_err() {
            let text = "a subject is words with dots between them, without spaces and wildcards";
            problems.push(Problem::at("subject_prefix", text).hint("such as `notices.`"));
        }
        let ways = [
            ("token", self.token.is_some()),
            ("username", self.username.is_some()),
            ("credentials_file", self.credentials_file.is_some()),
        ];
        let mut given = ways.into_iter().filter(|(_, given)| *given).map(|(name, _)| name);
        if let (Some(name), Some(_)) = (given.next(), given.next()) {
            let problem = Problem::at(name, "there is more than one way to log in here");
            problems.push(problem.hint("keep one of `token`, `username` and `credentials_file`"));
        }
        if self.username.is_some() != self.password.is_some() {
            let (path, text) = match self.username {
                Some(_) => ("password", "a user name needs a password"),
                None => ("username", "a password needs a user name"),
            };
            problems.push(Problem::at(path, text).hint("take it from the environment: `${NATS_PASSWORD}`"));
        }
        problems
    }
}

impl NatsOptions {
    /// How to connect. Fails if a file cannot be read.
    pub(super) fn connect(
        &self,
        trust: &Arc<ClientConfig>,
        installation: &str,
        channel: &Name,
    ) -> Result<ConnectOptions, Problem> {
        let mut connect = ConnectOptions::new()
            .name(format!("tocsin {installation} {channel}"))
            .tls_client_config((**trust).clone())
            .connection_timeout(self.timeout.0)
            .request_timeout(Some(self.timeout.0));
        if let Some(token) = &self.token {
            connect = connect.token(token.clone());
        }
        if let (Some(username), Some(password)) = (&self.username, &self.password) {
            connect = connect.user_and_password(username.clone(), password.clone());
        }
        if let Some(file) = &self.credentials_file {
            connect = credentials(connect, file)?;
        }
        Ok(connect)
    }

    /// The servers.
    pub(super) fn addresses(&self) -> Vec<ServerAddr> {
        self.servers.iter().map(|server| server.parse().expect("checked options have good addresses")).collect()
    }
}

fn credentials(connect: ConnectOptions, file: &Path) -> Result<ConnectOptions, Problem> {
    std::fs::read_to_string(file)
        .and_then(|text| connect.credentials(&text))
        .map_err(|error| Problem::at("credentials_file", format!("{} cannot be used: {error}", file.display())))
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
