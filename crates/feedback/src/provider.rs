//! Webhooks of mail providers: verified payloads in their real formats, parsed into the same [`Feedback`] as mails.
//! Callbacks of SMS providers are in [`sms`].
//!
//! | provider | proof | age of |
//! |---|---|---|
//! | [Amazon SES](ses) by Amazon SNS | RSA signature, versions 1 and 2; topic | `Timestamp` of the message |
//! | [SendGrid](sendgrid) | ECDSA P-256 over timestamp and body | the timestamp of the signature |
//! | [Mailgun](mailgun) | HMAC-SHA-256 over timestamp and token | the timestamp of the signature |
//! | [Postmark](postmark) | credentials in the request; it signs nothing | the time of the event |
//! | [Brevo](brevo) | credentials in the request; it signs nothing | the time of the event |
//!
//! A payload older than its window is refused. Within the window the caller remembers [`VerifiedPayload::replay_key`],
//! and refuses a payload whose key it has seen. Retries of a provider have the key of the first attempt, except those
//! of SendGrid, whose events have ids.

use std::time::Duration;

use ring::hmac;
use serde::{Deserialize, Deserializer};
use tocsin_model::{mailbox::Mailbox, time::Timestamp};

use crate::{
    addresses,
    classify::classify,
    excerpt::{comparable, excerpt, start},
    feedback::{Action, Class, EnhancedStatus, Feedback, Format, Report},
    limits::Limits,
    signals::Signals,
};

pub mod brevo;
pub mod mailgun;
pub mod messagebird;
pub mod postmark;
pub mod sendgrid;
pub mod ses;
pub mod sinch;
pub mod sms;
pub mod standard_webhooks;
pub mod twilio;
pub mod vonage;

/// Greatest time by which the clock of a provider may be ahead.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(300);

/// A request of a provider.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Header fields: names in any case, and values.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body, byte for byte.
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    /// The value of the only header field of this name.
    fn header(&self, name: &str) -> Option<&'a str> {
        let mut found = self.headers.iter().filter(|(given, _)| given.eq_ignore_ascii_case(name));
        let first = found.next();
        first.filter(|_| found.next().is_none()).map(|(_, value)| *value)
    }
}

/// A payload that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// More bytes or events than the limit.
    #[error("the payload exceeds the limit of {0}")]
    TooLarge(&'static str),
    /// Not the format of the provider.
    #[error("the payload is not of this provider: {0}")]
    Format(String),
    /// A signature or credential is absent.
    #[error("the request has no {0}")]
    Unsigned(&'static str),
    /// The signature or credential is wrong.
    #[error("the signature of the request is not valid")]
    Signature,
    /// The payload is older than the window, or its time is in the future.
    #[error("the payload is outside of the replay window")]
    Stale,
    /// The certificate cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Certificate(&'static str),
    /// Another topic than the configured one.
    #[error("the payload is of another topic")]
    Topic,
}

/// A verified payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedPayload {
    events: Vec<ProviderEvent>,
    replay_key: String,
}

impl VerifiedPayload {
    /// The events with feedback. Events without, such as opens and clicks, are left out.
    pub fn events(&self) -> &[ProviderEvent] {
        &self.events
    }

    /// The key by which a repeated payload is recognized.
    pub fn replay_key(&self) -> &str {
        &self.replay_key
    }
}

/// An event of a verified payload, about one recipient. Only the verification of a payload makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderEvent {
    feedback: Feedback,
    key: String,
    reference: Option<String>,
    at: Option<Timestamp>,
}

impl ProviderEvent {
    /// The feedback, with one report.
    pub fn feedback(&self) -> &Feedback {
        &self.feedback
    }

    /// The report.
    pub fn report(&self) -> &Report {
        &self.feedback.reports[0]
    }

    /// Id of the event, or of the mail and recipient. It counts once.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value of [`REFERENCE`] in the metadata of the mail.
    pub fn reference(&self) -> Option<&str> {
        self.reference.as_deref()
    }

    /// Time of the event at the provider.
    pub fn at(&self) -> Option<Timestamp> {
        self.at
    }
}

/// Name of the metadata that the sender adds to a mail: SES tag, SendGrid custom argument, Postmark metadata, Mailgun
/// variable, Brevo `X-Mailin-custom`. Its value is a signed return address.
pub const REFERENCE: &str = "tocsin";

/// Values of an event, before its report is made.
#[derive(Default)]
struct EventParts<'a> {
    class: Option<(Class, &'static str)>,
    recipient: &'a str,
    status: &'a str,
    reply: Option<u16>,
    diagnostic: &'a str,
    message_id: Option<&'a str>,
    feedback_type: Option<&'a str>,
    reporting_mta: Option<&'a str>,
    key: String,
    reference: Option<&'a str>,
    at: Option<Timestamp>,
    action: Option<Action>,
}

impl EventParts<'_> {
    /// The event. Without a class of its own the table decides.
    fn event(self, limits: &Limits) -> ProviderEvent {
        let bytes_max = limits.diagnostic_bytes_max;
        let text = comparable(&addresses::without_addresses(start(self.diagnostic, limits.text_bytes_max)));
        let mut signals = Signals::of(text);
        signals.status = self.status.parse::<EnhancedStatus>().ok().or(signals.status);
        signals.reply = self.reply.filter(|reply| (400..600).contains(reply)).or(signals.reply);
        let verdict = classify(&signals);
        let (class, rule) = self.class.unwrap_or((verdict.class, verdict.rule));
        let report = Report {
            class,
            rule,
            recipient: Mailbox::parse(self.recipient).ok(),
            action: self.action,
            status: signals.status,
            reply: signals.reply,
            diagnostic: excerpt(self.diagnostic, bytes_max),
            remote_mta: None,
        };
        let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(|text| excerpt(text, bytes_max));
        ProviderEvent {
            feedback: Feedback {
                format: Format::Provider,
                reports: vec![report],
                reporting_mta: text(self.reporting_mta),
                message_id: text(self.message_id.map(|id| id.trim().trim_matches(['<', '>']))),
                senders: Vec::new(),
                feedback_type: text(self.feedback_type),
                is_truncated: false,
            },
            key: excerpt(&self.key, bytes_max),
            reference: text(self.reference),
            at: self.at,
        }
    }
}

/// The class of a bounce that the provider calls permanent: that of the table if it knows the cause, else hard.
fn permanent(diagnostic: &str, status: &str, limits: &Limits) -> (Class, &'static str) {
    match parts_class(diagnostic, status, limits) {
        (class @ (Class::Blocked | Class::Hard), rule) => (class, rule),
        _ => (Class::Hard, "provider.permanent"),
    }
}

/// The class of a bounce that the provider calls temporary: never hard.
fn temporary(diagnostic: &str, status: &str, limits: &Limits) -> (Class, &'static str) {
    match parts_class(diagnostic, status, limits) {
        (class @ Class::Blocked, rule) => (class, rule),
        _ => (Class::Soft, "provider.temporary"),
    }
}

fn parts_class(diagnostic: &str, status: &str, limits: &Limits) -> (Class, &'static str) {
    let text = comparable(&addresses::without_addresses(start(diagnostic, limits.text_bytes_max)));
    let mut signals = Signals::of(text);
    signals.status = status.parse().ok().or(signals.status);
    let verdict = classify(&signals);
    (verdict.class, verdict.rule)
}

/// Checks the size of a body.
fn bounded<'a>(request: &Request<'a>, limits: &Limits) -> Result<&'a [u8], ProviderError> {
    match request.body.len() > limits.payload_bytes_max {
        true => Err(ProviderError::TooLarge("payload_bytes_max")),
        false => Ok(request.body),
    }
}

fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ProviderError> {
    serde_json::from_slice(bytes).map_err(|error| ProviderError::Format(error.to_string()))
}

/// Checks that a time is within the window before now.
fn fresh(at: Timestamp, now: Timestamp, window: Duration) -> Result<(), ProviderError> {
    match now.since(at) > window || at.since(now) > CLOCK_SKEW_MAX {
        true => Err(ProviderError::Stale),
        false => Ok(()),
    }
}

/// The instant of Unix seconds.
fn seconds(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds.saturating_mul(1_000))
}

/// A text member that may also be null or a number.
fn loose_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => text,
        serde_json::Value::Number(number) => number.to_string(),
        _ => String::new(),
    })
}

/// Credentials that a provider sends with each request: the value of a header field.
pub struct Credential {
    header: String,
    key: hmac::Key,
    tag: hmac::Tag,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("header", &self.header).finish_non_exhaustive()
    }
}

impl Credential {
    /// HTTP Basic authentication (RFC 7617).
    pub fn basic(user: &str, password: &str) -> Credential {
        use base64::{Engine, prelude::BASE64_STANDARD};
        Credential::header("authorization", &format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
    }

    /// A bearer token (RFC 6750).
    pub fn bearer(token: &str) -> Credential {
        Credential::header("authorization", &format!("Bearer {token}"))
    }

    /// Any header field.
    pub fn header(name: &str, value: &str) -> Credential {
        // Comparing signatures takes the same time for all values.
        let key = hmac::Key::new(hmac::HMAC_SHA256, value.as_bytes());
        let tag = hmac::sign(&key, value.as_bytes());
        Credential { header: name.to_ascii_lowercase(), key, tag }
    }

    fn check(&self, request: &Request<'_>) -> Result<(), ProviderError> {
        let given = request.header(&self.header).ok_or(ProviderError::Unsigned("credentials"))?;
        let is_same = hmac::verify(&self.key, given.as_bytes(), self.tag.as_ref());
        is_same.map_err(|_| ProviderError::Signature)
    }
}
