use std::{path::Path, sync::Arc, time::Duration};

use async_nats::{ConnectOptions, ServerAddr};
use rustls::ClientConfig;
use tocsin_model::problem::{Code, Problem};

use crate::files::Files;

/// A NATS system in options: servers and login.
#[derive(Clone, Copy)]
pub struct System<'a> {
    /// The servers.
    pub servers: &'a [String],
    /// Token for login.
    pub token: Option<&'a str>,
    /// User name for login.
    pub username: Option<&'a str>,
    /// Password for login.
    pub password: Option<&'a str>,
    /// Credentials file for login.
    pub credentials_file: Option<&'a Path>,
    /// Timeout of connecting and of each answer.
    pub timeout: Duration,
}

impl System<'_> {
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
        problems
    }

    /// Connection options with this client name.
    ///
    /// # Errors
    /// The credentials file cannot be read.
    pub fn connect(&self, files: &Files, trust: &Arc<ClientConfig>, name: String) -> Result<ConnectOptions, Problem> {
        let mut connect = ConnectOptions::new()
            .name(name)
            .tls_client_config((**trust).clone())
            .connection_timeout(self.timeout)
            .request_timeout(Some(self.timeout));
        if let Some(token) = self.token {
            connect = connect.token(token.to_owned());
        }
        if let (Some(username), Some(password)) = (self.username, self.password) {
            connect = connect.user_and_password(username.to_owned(), password.to_owned());
        }
        match self.credentials_file {
            Some(file) => {
                let text =
                    files.read_text(file).map_err(|why| Problem::new(Code::Unreadable, "credentials_file", why))?;
                connect.credentials(&text).map_err(|error| {
                    Problem::new(
                        Code::Unreadable,
                        "credentials_file",
                        format!("{} cannot be used: {error}", file.display()),
                    )
                })
            }
            None => Ok(connect),
        }
    }

    /// The parsed servers; there must be no problems.
    pub fn addresses(&self) -> Vec<ServerAddr> {
        self.servers.iter().map(|server| server.parse().expect("checked options have good addresses")).collect()
    }
}
