use std::time::Duration;

use serde_json::Value;
use tocsin_model::{
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};

use crate::http::response::{Load, Response, Verdict, by_status};

/// Owner of the token of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenOwner {
    /// The channel: a refused token is an error of its options, and messages are retried.
    Channel,
    /// The device: a refused token is an address that no longer exists.
    Device,
}

/// Classifies a response of Gotify: a stored message with its id, or an error with a description. `Retry-After` is
/// respected up to `most`.
pub(super) fn classify(response: &Response, owner: TokenOwner, now: Timestamp, most: Duration) -> Verdict {
    let retry_delay = response.retry_delay(now, most);
    let fine = |disposition| Verdict { disposition, load: Load::Fine };
    let later =
        |kind, text: String| fine(Disposition::Deferred { reason: Reason::new(kind, text), retry_after: retry_delay });
    let never = |kind, text: String| fine(Disposition::Refused { reason: Reason::new(kind, text) });
    let body = response.json();
    let description = body.as_ref().and_then(|body| body.pointer("/errorDescription")).and_then(Value::as_str);
    let said = || match description {
        Some(text) => format!("{} {}", response.status, response.first_words(text.as_bytes())),
        None => format!("{}, which is not an answer of Gotify", response.status),
    };
    match (response.status, owner) {
        (200, _) if response.cut => response.undecided(retry_delay),
        (200, _) => match body.as_ref().and_then(|body| body.get("id")).and_then(Value::as_i64) {
            Some(id) => fine(Disposition::Delivered { reply: format!("message {id}") }),
            // A login page of a proxy, for example.
            None => later(ReasonKind::Answer, said()),
        },
        // Without the description, a proxy has refused the request: no statement about the token.
        (401 | 403, TokenOwner::Device) if description.is_some() => never(ReasonKind::Gone, said()),
        (401 | 403, _) => later(ReasonKind::Authentication, said()),
        // The URL leads elsewhere, such as from `http` to `https`: an error of the channel's options.
        (300..=399, _) => {
            let text = format!("{}: redirects are not followed; `url` must be the final URL", response.status);
            later(ReasonKind::Authentication, text)
        }
        // There is no Gotify below this URL.
        (404 | 405, _) => later(ReasonKind::Authentication, said()),
        (400, _) if description.is_some() => never(ReasonKind::Answer, said()),
        _ => by_status(response, retry_delay),
    }
}
