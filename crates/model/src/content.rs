//! Content of a formatted notification.

use serde::Serialize;

/// A formatted notification. Each protocol uses the parts that it can carry.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Content {
    /// One line.
    pub subject: Option<String>,
    /// Plain text.
    pub text: Option<String>,
    /// HTML.
    pub html: Option<String>,
    /// JSON, for machines.
    pub json: Option<String>,
    /// A text for SMS.
    pub sms: Option<String>,
    /// Further headers by name, of a mail or of a request. Each name is a token, each value one line.
    pub headers: Vec<(String, String)>,
    /// Fields of a mail in place of the channel's. Each value is one line.
    pub mail: Vec<(MailField, String)>,
}

impl Content {
    /// A field of the mail, if the content gives it.
    pub fn mail_field(&self, field: MailField) -> Option<&str> {
        self.mail.iter().find(|(given, _)| *given == field).map(|(_, value)| value.as_str())
    }
}

/// A field of a mail that content may give in place of its channel, if the channel permits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MailField {
    /// `From` (RFC 5322): `name@domain` or `Shown Name <name@domain>`.
    From,
    /// The envelope sender (RFC 5321), to which undeliverable mail is returned. Default: the address of `From`.
    ReturnPath,
    /// `List-ID` (RFC 2919).
    ListId,
    /// `List-Unsubscribe` (RFC 2369). With a web address, the mail has `List-Unsubscribe-Post` (RFC 8058) too.
    ListUnsubscribe,
}

impl MailField {
    /// All fields.
    pub const ALL: [MailField; 4] =
        [MailField::From, MailField::ReturnPath, MailField::ListId, MailField::ListUnsubscribe];

    /// Key in a definition.
    pub fn name(self) -> &'static str {
        match self {
            MailField::From => "from",
            MailField::ReturnPath => "return_path",
            MailField::ListId => "list_id",
            MailField::ListUnsubscribe => "list_unsubscribe",
        }
    }
}

/// The parts of a content that are used; others need not be rendered. Headers are always used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartsUsed {
    /// See [`Content`].
    pub subject: bool,
    /// See [`Content`].
    pub text: bool,
    /// See [`Content`].
    pub html: bool,
    /// See [`Content`].
    pub json: JsonUse,
    /// See [`Content`].
    pub sms: bool,
}

/// When JSON is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonUse {
    /// There is none.
    Never,
    /// If there is neither text nor HTML.
    InTheirPlace,
    /// Always.
    Always,
}

impl PartsUsed {
    /// Every part.
    pub const ALL: PartsUsed = PartsUsed { subject: true, text: true, html: true, json: JsonUse::Always, sms: true };
    /// Only headers.
    pub const NONE: PartsUsed =
        PartsUsed { subject: false, text: false, html: false, json: JsonUse::Never, sms: false };
}

/// Headers that a protocol writes itself, so that templates cannot: of mail (RFC 5322, 2045, 8058) and of requests
/// (RFC 9110).
const OWN_HEADERS: [&str; 38] = [
    "authorization",
    "auto-submitted",
    "bcc",
    "cc",
    "connection",
    "content-encoding",
    "content-length",
    "content-transfer-encoding",
    "content-type",
    "cookie",
    "date",
    "dkim-signature",
    "expect",
    "from",
    "host",
    "keep-alive",
    "list-unsubscribe",
    "list-unsubscribe-post",
    "message-id",
    "mime-version",
    "precedence",
    "proxy-authorization",
    "proxy-connection",
    "received",
    "reply-to",
    "return-path",
    "sender",
    "subject",
    "te",
    "to",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// The problem of a header name in a template, and a hint.
pub fn header_problem(name: &str) -> Option<(&'static str, &'static str)> {
    let is_token = (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !is_token {
        return Some(("is not the name of a header", "give a letter, then up to 63 letters, digits or `-`"));
    }
    let lower = name.to_ascii_lowercase();
    let is_own = OWN_HEADERS.contains(&lower.as_str()) || lower.starts_with("resent-");
    is_own.then_some(("is a header that the channel gives itself", "choose another name, such as `X-Magnitude`"))
}
