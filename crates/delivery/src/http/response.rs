//! Responses, and their verdict by status.

use std::time::Duration;

use serde_json::Value;
use tocsin_model::{
    http_date,
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};

use crate::repeated::mask;

/// The relevant parts of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Response {
    pub status: u16,
    /// All values of `Retry-After`, joined by commas.
    pub retry_after: Option<String>,
    /// Names in lower case; empty unless requested.
    pub headers: Vec<(String, String)>,
    /// The first 64 KiB, or as much as requested.
    pub body: Vec<u8>,
    /// Whether the body is known to be complete.
    pub whole: bool,
    /// Whether the body is known to be incomplete: it broke off, or is longer.
    pub cut: bool,
    /// Credentials of the request that the beginning of the body repeats.
    pub repeated: Vec<String>,
}

impl Response {
    /// The duration of its `Retry-After`, at most `most`.
    pub fn retry_delay(&self, now: Timestamp, most: Duration) -> Option<Duration> {
        http_date::retry_after(self.retry_after.as_deref(), now, most)
    }

    /// The body as JSON, without a byte-order mark.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(self.body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.body)).ok()
    }

    /// Verdict where the body decides and is incomplete. The receiver may have accepted the message, so a retry can
    /// duplicate it; assuming success could lose it.
    pub fn undecided(&self, retry_delay: Option<Duration>) -> Verdict {
        let verdict = by_status(self, retry_delay);
        match verdict.disposition {
            Disposition::Deferred { .. } => verdict,
            _ => {
                let text = format!(
                    "{}: the body decides what this response means, and it broke off or is too long",
                    self.status
                );
                Verdict::deferred(Reason::new(ReasonKind::Answer, text))
            }
        }
    }

    /// The beginning of a part of the body, without credentials that it repeats.
    pub fn first_words(&self, text: &[u8]) -> String {
        mask(&excerpt(text), self.repeated.iter().map(String::as_str))
    }
}

/// Classification of a response.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    pub disposition: Disposition,
    pub load: Load,
}

impl Verdict {
    /// The message is permanently refused.
    pub fn refused(kind: ReasonKind, text: impl Into<String>) -> Verdict {
        Verdict { disposition: Disposition::Refused { reason: Reason::new(kind, text) }, load: Load::Fine }
    }

    /// Another attempt may succeed.
    pub fn deferred(reason: Reason) -> Verdict {
        Verdict { disposition: Disposition::Deferred { reason, retry_after: None }, load: Load::Fine }
    }
}

/// Load of the destination, as far as a response shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Normal.
    Fine,
    /// The destination asks for a lower rate.
    Less,
    /// The destination or a server behind it is overloaded.
    Over,
    /// Unknown: the failure is that of another server, or of a limit for other requests.
    Unknown,
}

/// Classifies a response by its status alone.
pub(crate) fn by_status(response: &Response, retry_delay: Option<Duration>) -> Verdict {
    let status = response.status;
    let refused = |kind, text: String| Disposition::Refused { reason: Reason::new(kind, text) };
    let disposition = match status {
        200..=299 => Disposition::Delivered { reply: status.to_string() },
        300..=399 => refused(
            ReasonKind::Answer,
            format!("{status}: redirects are not followed; the device's address must be the final URL"),
        ),
        // An invalid status is treated as 500 (RFC 9110, 15).
        408 | 425 | 429 | 500.. => {
            Disposition::Deferred { reason: Reason::new(ReasonKind::Answer, words(response)), retry_after: retry_delay }
        }
        410 => refused(ReasonKind::Gone, format!("{}; the endpoint is gone for good", words(response))),
        _ => refused(ReasonKind::Answer, words(response)),
    };
    let load = match status {
        429 => Load::Less,
        408 | 425 | 500.. if retry_delay.is_some() => Load::Less,
        502..=504 => Load::Over,
        _ => Load::Fine,
    };
    Verdict { disposition, load }
}

/// The status and the beginning of the body.
pub(crate) fn words(response: &Response) -> String {
    let said = response.first_words(&response.body);
    if said.is_empty() { response.status.to_string() } else { format!("{} {said}", response.status) }
}

/// The beginning of a text, in one line.
pub(super) fn excerpt(text: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(&text[..text.len().min(600)]).chars().take(200).collect();
    let words = text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}
