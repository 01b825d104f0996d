//! NATS: servers and login, for channels and sources; names of subjects, streams and consumers.

use std::path::PathBuf;

use async_nats::{ConnectOptions, ServerAddr};
use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::{Code, Problem};

use crate::{files::Files, options::Wait, tls::TlsOptions};

/// Longest subject in bytes.
const SUBJECT_BYTES_MAX: usize = 256;

/// Options of connections to a NATS system.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConnectionOptions {
    /// Servers of one NATS system, tried in turn: `nats://broker.example.org:4222`. `tls://…` requires encryption, as
    /// `tls` does for all; other connections are encrypted if the server requires it.
    pub servers: Vec<String>,
    /// Encryption.
    #[serde(flatten)]
    pub tls: TlsOptions,
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
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            servers: Vec::new(),
            tls: TlsOptions::default(),
            token: None,
            username: None,
            password: None,
            credentials_file: None,
            timeout: Wait::seconds(5),
        }
    }
}

impl ConnectionOptions {
    /// Every problem of these options.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.servers.is_empty() {
            let problem = Problem::new(Code::Required, "servers", "the servers are missing");
            problems.push(problem.hint("give one or more, such as `[nats://broker.example.org:4222]`"));
        }
        for (number, server) in self.servers.iter().enumerate() {
            if server.parse::<ServerAddr>().is_err() {
                let problem = Problem::new(
                    Code::InvalidFormat,
                    format!("servers[{number}]"),
                    "this is not the address of a server",
                )
                .param("format", "url");
                problems.push(problem.hint("such as `nats://broker.example.org:4222` or `tls://…`"));
            }
        }
        let ways = [
            ("token", self.token.is_some()),
            ("username", self.username.is_some()),
            ("credentials_file", self.credentials_file.is_some()),
        ];
        let mut given = ways.into_iter().filter(|(_, given)| *given).map(|(name, _)| name);
        if let (Some(name), Some(_)) = (given.next(), given.next()) {
            let problem = Problem::new(Code::ConflictingMembers, name, "there is more than one way to log in here");
            problems.push(problem.hint("keep one of `token`, `username` and `credentials_file`"));
        }
        if self.username.is_some() != self.password.is_some() {
            let (path, text) = match self.username {
                Some(_) => ("password", "a user name needs a password"),
                None => ("username", "a password needs a user name"),
            };
            problems.push(
                Problem::new(Code::MissingCounterpart, path, text)
                    .hint("take it from the environment: `${NATS_PASSWORD}`"),
            );
        }
        problems.extend(self.tls.certificates.problems());
        problems
    }

    /// The options of the client, with this client name.
    ///
    /// # Errors
    /// One of the files cannot be used.
    pub fn client(&self, files: &Files, name: String) -> Result<ConnectOptions, Problem> {
        let mut client = ConnectOptions::new()
            .name(name)
            .tls_client_config((*self.tls.certificates.client_config(files)?).clone())
            .require_tls(self.tls.is_required)
            .connection_timeout(self.timeout.0)
            .request_timeout(Some(self.timeout.0));
        if let Some(token) = &self.token {
            client = client.token(token.clone());
        }
        if let (Some(username), Some(password)) = (&self.username, &self.password) {
            client = client.user_and_password(username.clone(), password.clone());
        }
        let Some(file) = &self.credentials_file else { return Ok(client) };
        let failed = |why: String| Problem::new(Code::Unreadable, "credentials_file", why);
        let text = files.read_text(file).map_err(failed)?;
        client.credentials(&text).map_err(|error| failed(format!("{} cannot be used: {error}", file.display())))
    }

    /// The parsed servers; there must be no problems.
    pub fn addresses(&self) -> Vec<ServerAddr> {
        self.servers.iter().map(|server| server.parse().expect("checked options have good addresses")).collect()
    }
}

/// The subject of an address below a prefix; the error says what is wrong with it.
pub fn subject(prefix: &str, address: &str) -> Result<String, String> {
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

/// Whether a subject matches a filter: `*` is one token, `>` one or more at the end.
pub fn matches(filter: &str, subject: &str) -> bool {
    let (mut filter, mut subject) = (filter.split('.'), subject.split('.'));
    loop {
        match (filter.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(token_pattern), Some(token)) if token_pattern == token => {}
            _ => return false,
        }
    }
}

/// Whether a stream or a consumer can have this name.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['.', '*', '>', '/', '\\', ' ', '\t', '\n', '\r'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_words() {
        for good in ["a", "a.b.c", "Zürich.42", "a-b_c"] {
            assert_eq!(subject("notices.", good), Ok(format!("notices.{good}")));
        }
        for wrong in ["", ".", "a.", ".a", "a..b", "a b", "a*", ">", "a.>", "a\nb", &"x".repeat(300)] {
            assert!(subject("notices.", wrong).is_err(), "{wrong:?}");
        }
    }
}
