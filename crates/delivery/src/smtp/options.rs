use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::Problem;

use super::message::{Mailbox, RESERVED_HEADERS, is_header_name};
use crate::options::{Options, Wait};

/// Options of a channel with the protocol `smtp`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["host", "from"]))]
pub struct SmtpOptions {
    /// The mail server: a name or an address.
    pub host: Option<String>,
    /// Its port. Without one: 465 with `tls: implicit`, 587 with a user name, else 25.
    pub port: Option<u16>,
    /// Whether the conversation is encrypted. Certificates are always verified.
    pub tls: TlsMode,
    /// A file of further certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
    /// Who we are to the server.
    pub username: Option<String>,
    /// The proof of it.
    pub password: Option<String>,
    /// Whether the password may travel over a connection that is not encrypted.
    pub allow_plain_auth: bool,
    /// The sender, `name@domain` or `Shown Name <name@domain>`; also the return address.
    pub from: Option<String>,
    /// Where answers go, if not to the sender.
    pub reply_to: Option<String>,
    /// The name by which we introduce ourselves. Without one: the address of our side of the connection.
    pub ehlo: Option<String>,
    /// Further header fields for every mail.
    pub headers: BTreeMap<String, String>,
    /// Whether commands are sent ahead of their replies where the server offers it.
    pub pipelining: bool,
    /// Mails after which a session makes room for a fresh one.
    #[schemars(range(min = 1))]
    pub messages_per_session: u32,
    /// Recipients of one mail, at most, where the same content goes to several. They do not see each other's addresses.
    #[schemars(range(min = 1, max = 1000))]
    pub recipients_max: u32,
    /// After this time without a mail a session ends.
    pub idle_timeout: Wait,
    /// Time for the connection and the encryption.
    pub connect_timeout: Wait,
    /// Time for the greeting and the reply to each command.
    pub reply_timeout: Wait,
    /// Time for the reply to a mail's content.
    pub content_timeout: Wait,
    /// How long a mail waits for a server that cannot be reached before it is deferred.
    pub patience: Wait,
}

/// Whether the conversation is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TlsMode {
    /// Never.
    Off,
    /// By STARTTLS if the server offers it. Whoever sits in between can hide the offer.
    IfOffered,
    /// By STARTTLS, or the server is not used.
    Required,
    /// From the first byte.
    Implicit,
}

impl Default for SmtpOptions {
    /// Timeouts are those of RFC 5321, 4.5.3.2, shortened: its minutes are for servers that store mail on slow disks.
    fn default() -> Self {
        SmtpOptions {
            host: None,
            port: None,
            tls: TlsMode::IfOffered,
            ca_file: None,
            username: None,
            password: None,
            allow_plain_auth: false,
            from: None,
            reply_to: None,
            ehlo: None,
            headers: BTreeMap::new(),
            pipelining: true,
            messages_per_session: 10_000,
            recipients_max: 50,
            idle_timeout: Wait::seconds(30),
            connect_timeout: Wait::seconds(10),
            reply_timeout: Wait::seconds(60),
            content_timeout: Wait::seconds(120),
            patience: Wait::seconds(15),
        }
    }
}

impl SmtpOptions {
    /// The server's port, given or by custom.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match (self.tls, &self.username) {
            (TlsMode::Implicit, _) => 465,
            (_, Some(_)) => 587,
            _ => 25,
        })
    }
}

impl Options for SmtpOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut tell = |path: &str, message: &str, hint: &str| problems.push(Problem::at(path, message).hint(hint));
        match self.host.as_deref() {
            None => tell("host", "the mail server is missing", "give its name or address, such as `mail.example.org`"),
            Some(host) if !is_host(host) => {
                tell("host", "this is not a host name or address", "give it without scheme and port")
            }
            Some(_) => {}
        }
        let mailbox = "write `name@domain` or `Shown Name <name@domain>`";
        match self.from.as_deref().map(Mailbox::parse) {
            None => tell("from", "the sender is missing", mailbox),
            Some(None) => tell("from", "this is not a mail address", mailbox),
            Some(Some(_)) => {}
        }
        if self.reply_to.as_deref().is_some_and(|text| Mailbox::parse(text).is_none()) {
            tell("reply_to", "this is not a mail address", mailbox);
        }
        match (&self.username, &self.password) {
            (Some(_), None) => {
                tell("password", "a user name needs a password", "take it from the environment: `${SMTP_PASSWORD}`")
            }
            (None, Some(_)) => tell("username", "a password needs a user name", "give `username` as well"),
            (Some(_), Some(_)) if self.tls == TlsMode::Off && !self.allow_plain_auth => {
                tell(
                    "tls",
                    "the password would travel in clear text",
                    "set `tls: required`, or `allow_plain_auth: true` if that is meant",
                );
            }
            _ => {}
        }
        if self.ehlo.as_deref().is_some_and(|name| !is_host(name.trim_matches(['[', ']']))) {
            tell("ehlo", "this is not a host name", "give the full name of this machine, such as `tocsin.example.org`");
        }
        if self.messages_per_session == 0 {
            tell("messages_per_session", "a session carries at least one mail", "leave it out for 10000");
        }
        if !(1..=1000).contains(&self.recipients_max) {
            tell(
                "recipients_max",
                "a mail has from 1 to 1000 recipients",
                "leave it out for 50; servers take 100 at least",
            );
        }
        for name in self.headers.keys() {
            let path = format!("headers.{name}");
            if !is_header_name(name) {
                tell(&path, "this is not the name of a header field", "letters, digits and `-`");
            } else if RESERVED_HEADERS.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
                tell(&path, "this header field is written by the channel itself", "leave it out");
            }
        }
        problems
    }
}

fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:_".contains(&byte))
}
