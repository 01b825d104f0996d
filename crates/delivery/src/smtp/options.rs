use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tocsin_connect::options::{Options, Wait};
use tocsin_model::problem::{Code, Problem};

use super::{
    address::{Mailbox, is_address},
    dkim::DkimOptions,
    header::{RESERVED_HEADERS, is_header_name},
    pacing::PacingOptions,
};
use crate::{feedback_options::FeedbackOptions, token_signer::RETURN_LOCAL_MAX};

/// Options of a channel with the protocol `smtp`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["from"]))]
pub struct SmtpOptions {
    /// Host name or address of the mail server.
    pub host: Option<String>,
    /// Several mail servers, in place of `host`. Defaults of a server are the channel's options: `port`, `tls`,
    /// `ca_file`, `username`, `password`, `token_file`.
    pub servers: Vec<ServerOptions>,
    /// Distribution of new sessions over several servers. A server that refuses a session is paused for half a
    /// second, then longer each time, up to a minute, and the others take over.
    pub balance: Balance,
    /// Port of the server. Default: 465 with `tls: implicit`, 587 with a user name, else 25.
    pub port: Option<u16>,
    /// Whether the connection is encrypted. Certificates are always verified.
    pub tls: TlsMode,
    /// A file of further certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
    /// User name for login.
    pub username: Option<String>,
    /// Password for login, by SCRAM-SHA-256, PLAIN or LOGIN: the first of these that the server offers.
    pub password: Option<String>,
    /// A file with an OAuth 2.0 access token, in place of a password; read again for each session. Used by
    /// OAUTHBEARER or XOAUTH2.
    pub token_file: Option<PathBuf>,
    /// Whether the password or token may be sent over an unencrypted connection.
    pub allow_plain_auth: bool,
    /// The sender, `name@domain` or `Shown Name <name@domain>`.
    pub from: Option<String>,
    /// The envelope sender, to which servers return undeliverable mail. Default: a signed return address of each mail if
    /// `[feedback]` of the server's configuration has a domain or an address, else the sender.
    pub return_path: Option<String>,
    /// The address for replies, if not the sender.
    pub reply_to: Option<String>,
    /// Whether each mail has its own return address (VERP), `local+...@domain` with the `return_path`: it names the
    /// notification and is signed, so that a bounce is recognised and cannot be forged. The mail server that receives
    /// `return_path` must accept the part after a `+`.
    pub return_path_signed: bool,
    /// Whether permanent refusals of the server count as bounces: an unknown address as a hard one, a full mailbox as a
    /// soft one. Default: `true` if `[feedback]` of the server's configuration has a domain or an address.
    pub suppress_unknown: Option<bool>,
    /// Whether mails carry `List-Id` with their class and application, as `<class.application.domain>` with the
    /// domain of `from` (RFC 2919), for filters of mail programs. A field of that name in `headers` or in a template
    /// takes precedence.
    pub list_id: bool,
    /// Whether mails to one recipient carry `List-Unsubscribe`: a link, which ends the subscription with one click
    /// (RFC 8058), and an address, to which any mail ends it. The link requires `http.public_url`, the address
    /// `[feedback]`.
    pub list_unsubscribe: bool,
    /// Webhooks by which the provider behind the server reports bounces and complaints. Mails then carry a signed
    /// reference in the provider's header field, which it returns with its events.
    pub feedback: Option<FeedbackOptions>,
    /// Whether content may give the sender, the envelope sender, `List-ID` and `List-Unsubscribe` of its mails: the
    /// member `mail` of a template. Without it, such mails are refused.
    pub fields_from_content: bool,
    /// Whether mails carry `X-Trace-Parent` if their event belongs to a trace (W3C Trace Context).
    pub trace_header: bool,
    /// The client's name in EHLO. Default: the local address of the connection.
    pub ehlo: Option<String>,
    /// Further header fields for every mail.
    pub headers: BTreeMap<String, String>,
    /// Value of the header field `Precedence`, which automatic responders respect.
    pub precedence: Precedence,
    /// DKIM keys that sign every mail, one signature for each. Two or three: verifiers ignore more.
    pub dkim: Vec<DkimOptions>,
    /// Whether commands are sent ahead of their replies if the server offers PIPELINING.
    pub pipelining: bool,
    /// Mails after which a session is replaced by a new one.
    #[schemars(range(min = 1))]
    pub messages_per_session: u32,
    /// Most recipients of one mail, if several get the same content. They do not see each other's addresses.
    #[schemars(range(min = 1, max = 1000))]
    pub recipients_max: u32,
    /// An idle session is closed after this time.
    pub idle_timeout: Wait,
    /// Timeout of connecting and of the TLS handshake.
    pub connect_timeout: Wait,
    /// Timeout of the greeting and of the reply to each command.
    pub reply_timeout: Wait,
    /// Timeout of the reply to a mail's content.
    pub content_timeout: Wait,
    /// Time that a mail waits for an unreachable server before it is deferred.
    pub patience: Wait,
    /// Pacing by mailbox provider: rate, concurrency and warm-up for each, and back-off when one holds mail back.
    pub pacing: Option<PacingOptions>,
}

/// One of several mail servers.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerOptions {
    /// Host name or address.
    pub host: String,
    /// Port.
    #[serde(default)]
    pub port: Option<u16>,
    /// Whether the connection is encrypted.
    #[serde(default)]
    pub tls: Option<TlsMode>,
    /// A file of further certificates to trust, in PEM form.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// User name for login.
    #[serde(default)]
    pub username: Option<String>,
    /// Password for login.
    #[serde(default)]
    pub password: Option<String>,
    /// A file with an OAuth 2.0 access token.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Its share of the sessions with `balance: weighted`: weight 3 gets three times as many as weight 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

impl ServerOptions {
    /// The port, given or default.
    pub fn port_or_custom(&self) -> u16 {
        self.port.unwrap_or(match (self.tls, &self.username) {
            (Some(TlsMode::Implicit), _) => 465,
            (_, Some(_)) => 587,
            _ => 25,
        })
    }
}

/// Distribution of sessions over several servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// The first server that accepts a session; the others are its fall-back.
    #[default]
    Ordered,
    /// Each gets sessions in proportion to its weight.
    Weighted,
}

/// Value of the header field `Precedence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precedence {
    /// `bulk`.
    #[default]
    Bulk,
    /// `list`.
    List,
    /// No such field.
    None,
}

/// Encryption of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TlsMode {
    /// Never.
    Off,
    /// STARTTLS if the server offers it. An attacker in between can hide the offer.
    #[default]
    IfOffered,
    /// STARTTLS; a server without it is not used.
    Required,
    /// TLS from the first byte.
    Implicit,
}

impl Default for SmtpOptions {
    /// Timeouts are those of RFC 5321, 4.5.3.2, shortened: its minutes are for servers that store mail on slow disks.
    fn default() -> Self {
        SmtpOptions {
            host: None,
            servers: Vec::new(),
            balance: Balance::Ordered,
            port: None,
            tls: TlsMode::IfOffered,
            ca_file: None,
            username: None,
            password: None,
            token_file: None,
            allow_plain_auth: false,
            from: None,
            return_path: None,
            return_path_signed: false,
            suppress_unknown: None,
            list_id: true,
            list_unsubscribe: true,
            feedback: None,
            fields_from_content: false,
            trace_header: false,
            reply_to: None,
            ehlo: None,
            headers: BTreeMap::new(),
            precedence: Precedence::Bulk,
            dkim: Vec::new(),
            pipelining: true,
            messages_per_session: 10_000,
            recipients_max: 50,
            idle_timeout: Wait::seconds(30),
            connect_timeout: Wait::seconds(10),
            reply_timeout: Wait::seconds(60),
            content_timeout: Wait::seconds(120),
            patience: Wait::seconds(15),
            pacing: None,
        }
    }
}

impl SmtpOptions {
    /// The servers with the channel's defaults filled in.
    pub fn servers(&self) -> Vec<ServerOptions> {
        let only = self.host.iter().map(|host| ServerOptions { host: host.clone(), weight: 1, ..Default::default() });
        let all = self.servers.iter().cloned().chain(only);
        all.map(|server| ServerOptions {
            port: server.port.or(self.port),
            tls: server.tls.or(Some(self.tls)),
            ca_file: server.ca_file.or_else(|| self.ca_file.clone()),
            // Another user name does not use the channel's password.
            password: server.password.or_else(|| self.password.clone().filter(|_| server.username.is_none())),
            token_file: server.token_file.or_else(|| self.token_file.clone().filter(|_| server.username.is_none())),
            username: server.username.or_else(|| self.username.clone()),
            ..server
        })
        .collect()
    }

    /// Every problem of a server; `path` leads to it in `servers`, or to the channel's options.
    fn server_problems(&self, path: &str, server: &ServerOptions) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut report = |code: Code, key: &str, message: &str, hint: &str| {
            problems.push(Problem::new(code, format!("{path}{key}"), message).hint(hint))
        };
        if !is_host(&server.host) {
            report(
                Code::InvalidFormat,
                "host",
                "this is not a host name or address",
                "give it without scheme and port",
            );
        }
        match (&server.username, &server.password, &server.token_file) {
            (Some(_), None, None) => report(
                Code::MissingCounterpart,
                "password",
                "a user name needs a password",
                "take it from the environment: `${SMTP_PASSWORD}`",
            ),
            (None, Some(_), _) => {
                report(Code::MissingCounterpart, "username", "a password needs a user name", "give `username` as well")
            }
            (None, _, Some(_)) => {
                report(Code::MissingCounterpart, "username", "a token needs a user name", "give `username` as well")
            }
            (Some(_), Some(_), Some(_)) => {
                report(Code::ConflictingMembers, "token_file", "there is a password already", "leave one of them out");
            }
            (Some(_), ..) if server.tls == Some(TlsMode::Off) && !self.allow_plain_auth => {
                report(
                    Code::Insecure,
                    "tls",
                    "the password would travel in clear text",
                    "set `tls: required`, or `allow_plain_auth: true` if that is meant",
                );
            }
            _ => {}
        }
        if !(1..=1000).contains(&server.weight) {
            report(Code::OutOfRange, "weight", "a weight is from 1 to 1000", "leave it out for 1");
        }
        problems
    }
}

impl Options for SmtpOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let path = |at: usize| if self.servers.is_empty() { String::new() } else { format!("servers[{at}].") };
        match (&self.host, self.servers.len()) {
            (Some(_), 1..) => problems.push(
                Problem::new(Code::ConflictingMembers, "host", "there are `servers` already")
                    .hint("leave one of them out, or add it to `servers`"),
            ),
            (None, 0) => {
                problems.push(
                    Problem::new(Code::Required, "host", "the mail server is missing")
                        .hint("give its name or address, such as `mail.example.org`"),
                );
                // Its options can be checked all the same.
                let unnamed = SmtpOptions { host: Some("missing".into()), ..self.clone() };
                problems.extend(unnamed.servers().iter().flat_map(|server| self.server_problems("", server)));
            }
            (_, 17..) => problems.push(
                Problem::new(Code::TooMany, "servers", "these are too many").param("limit", 16).hint("16 at most"),
            ),
            _ => problems.extend(
                self.servers().iter().enumerate().flat_map(|(at, server)| self.server_problems(&path(at), server)),
            ),
        }
        if self.dkim.len() > 4 {
            problems.push(
                Problem::new(Code::TooMany, "dkim", "a mail with more than 4 signatures is not verified")
                    .param("limit", 4)
                    .hint("2 are common"),
            );
        }
        for (at, key) in self.dkim.iter().enumerate() {
            problems.extend(key.problems().into_iter().map(|mut problem| {
                problem.path = format!("dkim[{at}].{}", problem.path);
                problem
            }));
        }
        let pacing = self.pacing.iter().flat_map(PacingOptions::problems).map(|mut problem| {
            problem.path = format!("pacing.{}", problem.path);
            problem
        });
        problems.extend(pacing);
        let mut report = |code: Code, path: &str, message: &str, hint: &str| {
            problems.push(Problem::new(code, path, message).hint(hint));
        };
        let mailbox = "write `name@domain` or `Shown Name <name@domain>`";
        match self.from.as_deref().map(Mailbox::parse) {
            None => report(Code::Required, "from", "the sender is missing", mailbox),
            Some(None) => report(Code::InvalidFormat, "from", "this is not a mail address", mailbox),
            Some(Some(_)) => {}
        }
        if self.reply_to.as_deref().is_some_and(|text| Mailbox::parse(text).is_none()) {
            report(Code::InvalidFormat, "reply_to", "this is not a mail address", mailbox);
        }
        if self.return_path.as_deref().is_some_and(|text| !is_address(text)) {
            report(
                Code::InvalidFormat,
                "return_path",
                "this is not a mail address",
                "write `bounces@example.org`, without a shown name",
            );
        }
        match self.return_path.as_deref().and_then(|address| address.rsplit_once('@')) {
            None if self.return_path_signed => {
                report(
                    Code::MissingCounterpart,
                    "return_path",
                    "a signed return address needs one to start from",
                    "such as `bounces@example.org`",
                );
            }
            Some((local, _)) if self.return_path_signed && local.len() > RETURN_LOCAL_MAX => {
                report(
                    Code::TooLong,
                    "return_path",
                    "its left side leaves no room for the signature",
                    "20 letters at most",
                );
            }
            _ => {}
        }
        if self.ehlo.as_deref().is_some_and(|name| !is_host(name.trim_matches(['[', ']']))) {
            report(
                Code::InvalidFormat,
                "ehlo",
                "this is not a host name",
                "give the full name of this machine, such as `tocsin.example.org`",
            );
        }
        if self.messages_per_session == 0 {
            report(
                Code::OutOfRange,
                "messages_per_session",
                "a session carries at least one mail",
                "leave it out for 10000",
            );
        }
        if !(1..=1000).contains(&self.recipients_max) {
            report(
                Code::OutOfRange,
                "recipients_max",
                "a mail has from 1 to 1000 recipients",
                "leave it out for 50; servers take 100 at least",
            );
        }
        if let Some(feedback) = &self.feedback {
            problems.extend(feedback.problems(true));
        }
        let provider = self.feedback.as_ref().and_then(|feedback| feedback.provider);
        let reference_field = provider.and_then(|provider| provider.reference_field("")).map(|(field, _)| field);
        let mut report = |code: Code, path: &str, message: &str, hint: &str| {
            problems.push(Problem::new(code, path, message).hint(hint));
        };
        for name in self.headers.keys() {
            let path = format!("headers.{name}");
            if !is_header_name(name) {
                report(Code::InvalidFormat, &path, "this is not the name of a header field", "letters, digits and `-`");
            } else if RESERVED_HEADERS.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
                report(Code::ReservedName, &path, "this header field is written by the channel itself", "leave it out");
            } else if reference_field.is_some_and(|field| field.eq_ignore_ascii_case(name)) {
                let message = "this header field carries the reference of `feedback`";
                report(Code::ReservedName, &path, message, "leave it out, or leave out `feedback`");
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
