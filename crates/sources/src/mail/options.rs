use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::{Options, Wait};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{description::SourceOptions, mapping::Mapping, source::Context};

/// Most patterns of recipients.
const RECIPIENTS_MAX: usize = 1_000;
/// Highest configurable number of connections.
const CONNECTIONS_MAX: usize = 1_000;
/// Highest configurable size of a mail.
const MAIL_BYTES_MAX: usize = 256 << 20;

/// Options of a source of the kind `mail`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["listen", "recipients"]))]
pub struct MailOptions {
    /// Listen address, for SMTP or LMTP: `127.0.0.1:2525`. Any other than a loopback address with a port from 1024 on
    /// must be allowed by the configuration: `sources.allow_listen`.
    pub listen: String,
    /// Accepted recipients: addresses, in which `*` is any text: `[alarms@example.org, '*@meters.example.org']`; `*`
    /// accepts all. Case-insensitive.
    pub recipients: Vec<String>,
    /// Member of a mail for each field of the event class: `{title: subject, reading: headers.x-reading}`. Default: the
    /// names of the members.
    pub fields: BTreeMap<String, String>,
    /// For locations of receive ports: the body of a message.
    pub body: Body,
    /// Host name in the server's greeting.
    pub host_name: String,
    /// Handling of automatic mail: replies, bounces, list mail, and other notifications.
    pub automatic: Automatic,
    /// A file with the server's certificate chain, in PEM form. It enables encryption (STARTTLS).
    pub certificate_file: Option<PathBuf>,
    /// The file with its key.
    pub key_file: Option<PathBuf>,
    /// Whether mail is accepted only over encrypted connections.
    pub require_tls: bool,
    /// The only user who may send mail, after a login (AUTH PLAIN) over an encrypted connection.
    pub username: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// Largest mail, in bytes.
    #[schemars(range(min = 1_024, max = 268_435_456))]
    pub mail_bytes_max: usize,
    /// Longest event of a mail, in bytes: its texts and headers without attachments.
    #[schemars(range(min = 1, max = 67_108_864))]
    pub item_bytes_max: usize,
    /// Most recipients of one mail; senders send the mail again for further ones.
    #[schemars(range(min = 1, max = 10_000))]
    pub recipients_max: usize,
    /// Most concurrent connections; at most half of them from one address.
    #[schemars(range(min = 1, max = 1_000))]
    pub connections_max: usize,
    /// Idle time limit of a connection.
    pub idle_timeout: Wait,
    /// Time for which mails are remembered for de-duplication, in days.
    #[schemars(range(min = 1, max = 30))]
    pub remember_days: u32,
}

/// Handling of automatic mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Automatic {
    /// It is accepted like any other.
    #[default]
    Take,
    /// It is rejected.
    Refuse,
    /// It is accepted and discarded.
    Drop,
}

/// The body of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// The original mail with attachments: `message/rfc822`.
    #[default]
    Mail,
    /// A JSON object with the members of the mail, as for events; attachments are listed and not included.
    Json,
}

impl Default for MailOptions {
    fn default() -> Self {
        MailOptions {
            listen: String::new(),
            recipients: Vec::new(),
            fields: BTreeMap::new(),
            body: Body::default(),
            host_name: "localhost".to_owned(),
            automatic: Automatic::default(),
            certificate_file: None,
            key_file: None,
            require_tls: false,
            username: None,
            password: None,
            mail_bytes_max: 10 << 20,
            item_bytes_max: 1 << 20,
            recipients_max: 100,
            connections_max: 50,
            idle_timeout: Wait::seconds(300),
            remember_days: 7,
        }
    }
}

fn is_host_name(name: &str) -> bool {
    (1..=253).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'[' | b']' | b':'))
}

impl Options for MailOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.listen.parse::<SocketAddr>().is_err() {
            let text = match self.listen.is_empty() {
                true => "is missing".to_owned(),
                false => format!("`{}` is not an address with a port", self.listen.escape_debug()),
            };
            let problem = match self.listen.is_empty() {
                true => Problem::new(Code::Required, "listen", text),
                false => Problem::new(Code::InvalidFormat, "listen", text).param("format", "socket_address"),
            };
            problems.push(problem.hint("such as `127.0.0.1:2525` or `[::]:25`"));
        }
        if self.recipients.is_empty() || self.recipients.len() > RECIPIENTS_MAX {
            let text = match self.recipients.len() {
                0 => "are missing: the accepted recipient addresses".to_owned(),
                more => format!("are {more}; the limit is {RECIPIENTS_MAX}"),
            };
            let problem = match self.recipients.is_empty() {
                true => Problem::new(Code::Required, "recipients", text),
                false => Problem::new(Code::TooMany, "recipients", text).param("limit", RECIPIENTS_MAX),
            };
            problems.push(problem.hint("such as `[alarms@example.org]`; `*` accepts all"));
        }
        for (at, pattern) in self.recipients.iter().enumerate() {
            if !(pattern == "*" || pattern.contains('@')) || pattern.len() > 320 || pattern.contains(char::is_control) {
                let text = format!("`{}` is not a pattern of addresses", pattern.escape_debug());
                let hint = "such as `alarms@example.org` or `*@example.org`";
                problems.push(
                    Problem::new(Code::InvalidFormat, format!("recipients[{at}]"), text)
                        .param("format", "mail_address")
                        .hint(hint),
                );
            }
        }
        if !is_host_name(&self.host_name) {
            problems.push(
                Problem::new(Code::InvalidFormat, "host_name", "is not the name of a host")
                    .param("format", "host_name")
                    .hint("such as `mx.example.org`"),
            );
        }
        match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => problems.push(Problem::new(
                Code::MissingCounterpart,
                "key_file",
                "is missing: a certificate needs its key",
            )),
            (None, Some(_)) => {
                problems.push(Problem::new(
                    Code::MissingCounterpart,
                    "certificate_file",
                    "is missing: `key_file` needs its certificate",
                ));
            }
            (None, None) if self.require_tls || self.username.is_some() => {
                let text = "is missing: `require_tls` and `username` need encrypted connections";
                problems.push(Problem::new(Code::Required, "certificate_file", text));
            }
            _ => {}
        }
        match (&self.username, &self.password) {
            (Some(_), None) => problems.push(Problem::new(Code::MissingCounterpart, "password", "is missing")),
            (None, Some(_)) => problems.push(Problem::new(
                Code::MissingCounterpart,
                "username",
                "is missing: a password needs a user name",
            )),
            _ => {}
        }
        let mut bound = |option: &str, value: usize, least: usize, most: usize| {
            if !(least..=most).contains(&value) {
                problems.push(Problem::out_of_range(option, least, most));
            }
        };
        bound("mail_bytes_max", self.mail_bytes_max, 1_024, MAIL_BYTES_MAX);
        bound("item_bytes_max", self.item_bytes_max, 1, 64 << 20);
        bound("recipients_max", self.recipients_max, 1, 10_000);
        bound("connections_max", self.connections_max, 1, CONNECTIONS_MAX);
        bound("remember_days", self.remember_days as usize, 1, 30);
        problems
    }
}

impl MailOptions {
    /// The listen address, if it is allowed.
    pub fn address(&self, context: &Context) -> Result<SocketAddr, Problem> {
        let address: SocketAddr = self.listen.parse().expect("it was checked");
        context.listeners.check_address(address).map_err(|text| Problem::new(Code::NotAllowed, "listen", text))?;
        Ok(address)
    }
}

impl SourceOptions for MailOptions {
    fn not_allowed(&self, context: &Context) -> Vec<Problem> {
        self.address(context).err().into_iter().collect()
    }

    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        let mut problems = Mapping::problems(fields, &self.fields);
        if self.body != Body::default() {
            let problem = Problem::new(Code::NotApplicable, "body", "is only for locations of receive ports");
            problems.push(problem.hint("remove it; use `fields` to select members of the mail"));
        }
        for (field, path) in &self.fields {
            let member = path.strip_prefix("$.").unwrap_or(path).split(['.', '/', '[']).next().unwrap_or_default();
            if !super::read::MEMBERS.contains(&member) && !matches!(path.as_str(), "$" | ".") {
                let problem =
                    Problem::new(Code::UnknownValue, format!("fields.{field}"), format!("a mail has no `{member}`"))
                        .param("value", member.to_string());
                problems.push(problem.hint(format!("it has {}", super::read::MEMBERS.join(", "))));
            }
        }
        problems
    }
}
