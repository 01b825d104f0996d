use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::options::{Options, Wait};
use tocsin_model::{field::Fields, problem::Problem};

use crate::{kind::SourceOptions, mapping::Mapping, source::Context};

/// Most patterns of recipients.
const RECIPIENTS_MAX: usize = 1_000;
/// Most connections that may be allowed.
const CONNECTIONS_MAX: usize = 1_000;
/// Largest mail that may be allowed.
const MAIL_BYTES_MAX: usize = 256 << 20;

/// Options of a source of the kind `mail`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["listen", "recipients"]))]
pub struct MailOptions {
    /// Where mail comes in, by SMTP or LMTP: `127.0.0.1:2525`. Any other than a loopback address with a port from 1024 on must
    /// be opened by the configuration: `sources.allow_listen`.
    pub listen: String,
    /// Whom mail is taken for: addresses, in which `*` is whatever stands there: `[alarms@example.org,
    /// '*@meters.example.org']`; `*` alone is everybody. Large and small letters are the same.
    pub recipients: Vec<String>,
    /// Which member of a mail each field of the event class is: `{title: subject, reading: headers.x-reading}`. Without it
    /// fields have the names of the members.
    pub fields: BTreeMap<String, String>,
    /// For locations of receive ports: what becomes the body of a message.
    pub body: Body,
    /// What the server calls itself in its greeting.
    pub host_name: String,
    /// What becomes of mail that machines send by themselves: answers, bounces, mail of lists, and other notifications.
    pub automatic: Automatic,
    /// A file with the server's certificate and those between it and its root, in PEM form. With it clients may encrypt the
    /// connection (STARTTLS).
    pub certificate_file: Option<PathBuf>,
    /// The file with its key.
    pub key_file: Option<PathBuf>,
    /// Whether mail is taken over encrypted connections only.
    pub require_tls: bool,
    /// The only user who may send mail, after a login (AUTH PLAIN) over an encrypted connection.
    pub username: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// Largest mail, in bytes.
    #[schemars(range(min = 1_024, max = 268_435_456))]
    pub mail_bytes_max: usize,
    /// Longest event that a mail becomes, in bytes: its texts and headers without what is attached.
    #[schemars(range(min = 1, max = 67_108_864))]
    pub item_bytes_max: usize,
    /// Most recipients of one mail; senders send it to the others once more.
    #[schemars(range(min = 1, max = 10_000))]
    pub recipients_max: usize,
    /// Most connections at a time; of one address at most half of them.
    #[schemars(range(min = 1, max = 1_000))]
    pub connections_max: usize,
    /// How long a connection may be idle.
    pub idle_timeout: Wait,
    /// How long mails are known again, in days.
    #[schemars(range(min = 1, max = 30))]
    pub remember_days: u32,
}

/// What becomes of mail that machines send by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Automatic {
    /// It is taken like any other.
    #[default]
    Take,
    /// Its sender is told that it is not taken.
    Refuse,
    /// Its sender is told that it is taken, and nothing comes of it.
    Drop,
}

/// What of a mail is the body of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// The mail as it came, with all that is attached: `message/rfc822`.
    #[default]
    Mail,
    /// A JSON object with the members of the mail, as events have them; what is attached is listed and not in it.
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
            problems.push(Problem::at("listen", text).hint("such as `127.0.0.1:2525` or `[::]:25`"));
        }
        if self.recipients.is_empty() || self.recipients.len() > RECIPIENTS_MAX {
            let text = match self.recipients.len() {
                0 => "are missing: for whom is the mail that becomes events?".to_owned(),
                more => format!("are {more}, and at most {RECIPIENTS_MAX}"),
            };
            problems.push(Problem::at("recipients", text).hint("such as `[alarms@example.org]`; `*` is everybody"));
        }
        for (at, pattern) in self.recipients.iter().enumerate() {
            if !(pattern == "*" || pattern.contains('@')) || pattern.len() > 320 || pattern.contains(char::is_control) {
                let text = format!("`{}` is not a pattern of addresses", pattern.escape_debug());
                let hint = "such as `alarms@example.org` or `*@example.org`";
                problems.push(Problem::at(format!("recipients[{at}]"), text).hint(hint));
            }
        }
        if !is_host_name(&self.host_name) {
            problems.push(Problem::at("host_name", "is not the name of a host").hint("such as `mx.example.org`"));
        }
        match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => problems.push(Problem::at("key_file", "is missing: a certificate needs its key")),
            (None, Some(_)) => {
                problems.push(Problem::at("certificate_file", "is missing: whose key is in `key_file`?"));
            }
            (None, None) if self.require_tls || self.username.is_some() => {
                let text = "is missing: `require_tls` and `username` need encrypted connections";
                problems.push(Problem::at("certificate_file", text));
            }
            _ => {}
        }
        match (&self.username, &self.password) {
            (Some(_), None) => problems.push(Problem::at("password", "is missing")),
            (None, Some(_)) => problems.push(Problem::at("username", "is missing: whose password is it?")),
            _ => {}
        }
        let mut bound = |option: &str, value: usize, least: usize, most: usize| {
            if !(least..=most).contains(&value) {
                problems.push(Problem::at(option, format!("is at least {least} and at most {most}")));
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
    /// Where it listens, if it may.
    pub fn address(&self, context: &Context) -> Result<SocketAddr, Problem> {
        let address: SocketAddr = self.listen.parse().expect("it was checked");
        context.listeners.judge(address).map_err(|text| Problem::at("listen", text))?;
        Ok(address)
    }
}

impl SourceOptions for MailOptions {
    fn closed(&self, context: &Context) -> Vec<Problem> {
        self.address(context).err().into_iter().collect()
    }

    fn misfits(&self, fields: &Fields) -> Vec<Problem> {
        let mut problems = Mapping::problems(fields, &self.fields);
        if self.body != Body::default() {
            let problem = Problem::at("body", "is for locations of receive ports: here mails become events");
            problems.push(problem.hint("leave it out; `fields` say what of a mail an event has"));
        }
        for (field, path) in &self.fields {
            let member = path.strip_prefix("$.").unwrap_or(path).split(['.', '/', '[']).next().unwrap_or_default();
            if !super::read::MEMBERS.contains(&member) && !matches!(path.as_str(), "$" | ".") {
                let problem = Problem::at(format!("fields.{field}"), format!("a mail has no `{member}`"));
                problems.push(problem.hint(format!("it has {}", super::read::MEMBERS.join(", "))));
            }
        }
        problems
    }
}
