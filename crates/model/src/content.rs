//! Content of a formatted notification.

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
