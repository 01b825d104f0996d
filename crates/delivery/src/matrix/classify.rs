use std::time::Duration;

use serde_json::Value;
use tocsin_model::{
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};

use crate::http::response::{Load, Response, Verdict, by_status};

/// Longest id of a room, an event or an account.
pub(super) const ID_BYTES_MAX: usize = 255;

/// Reason of a room to accept no message of the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoomRefusal {
    /// `M_FORBIDDEN`: the account is not in the room, or its power level is too low.
    Forbidden,
    /// `M_NOT_FOUND`: the room does not exist.
    NotFound,
}

impl RoomRefusal {
    /// The refusal in a response, if it is one.
    pub fn of(response: &Response) -> Option<RoomRefusal> {
        match field(response.json().as_ref(), "errcode")? {
            "M_FORBIDDEN" => Some(RoomRefusal::Forbidden),
            "M_NOT_FOUND" => Some(RoomRefusal::NotFound),
            _ => None,
        }
    }
}

/// Classifies a response of a homeserver: an object with the id `expected`, which becomes the reply, or an error with
/// `errcode`. `Retry-After` and `retry_after_ms` are respected up to `most`.
pub(super) fn classify(response: &Response, expected: &str, now: Timestamp, most: Duration) -> Verdict {
    let body = response.json();
    let body = body.as_ref();
    let retry_delay = response.retry_delay(now, most).or_else(|| {
        // Homeservers before version 1.10 of the specification send it in the body only.
        let delay = body?.get("retry_after_ms")?.as_u64()?;
        Some(Duration::from_millis(delay).min(most))
    });
    let fine = |disposition| Verdict { disposition, load: Load::Fine };
    let later =
        |kind, text: String| fine(Disposition::Deferred { reason: Reason::new(kind, text), retry_after: retry_delay });
    let never = |kind, text: String| fine(Disposition::Refused { reason: Reason::new(kind, text) });
    let code = field(body, "errcode");
    let said = || match code {
        Some(code) => {
            let text = format!("{code}: {}", field(body, "error").unwrap_or("without a text"));
            format!("{} {}", response.status, response.first_words(text.as_bytes()))
        }
        None => format!("{}, which is not an answer of Matrix", response.status),
    };
    match (response.status, code) {
        (200, _) if response.cut => response.undecided(retry_delay),
        (200, _) => match field(body, expected) {
            Some(id) if id.len() <= ID_BYTES_MAX && response.repeated.is_empty() => {
                fine(Disposition::Delivered { reply: id.to_owned() })
            }
            Some(id) if id.len() <= ID_BYTES_MAX => {
                fine(Disposition::Delivered { reply: response.first_words(id.as_bytes()) })
            }
            // A login page of a proxy, for example.
            _ => later(ReasonKind::Answer, said()),
        },
        // The code of an error is more reliable than its status.
        (_, Some("M_LIMIT_EXCEEDED")) => Verdict { load: Load::Less, ..later(ReasonKind::Answer, said()) },
        (_, Some("M_RESOURCE_LIMIT_EXCEEDED")) => later(ReasonKind::Answer, said()),
        (_, Some("M_FORBIDDEN")) => never(ReasonKind::Answer, said()),
        (_, Some("M_NOT_FOUND")) => never(ReasonKind::Gone, said()),
        // Another token, or an account that is locked, suspended or has not consented to the terms of the server.
        (401 | 403, Some(_)) | (_, Some("M_UNKNOWN_TOKEN" | "M_MISSING_TOKEN")) => {
            later(ReasonKind::Authentication, said())
        }
        // The URL leads elsewhere, such as from `http` to `https`: an error of the channel's options.
        (300..=399, _) => {
            let text = format!("{}: redirects are not followed; `url` must be the final URL", response.status);
            later(ReasonKind::Authentication, text)
        }
        // There is no client-server API below this URL, or a proxy has refused the request.
        (_, Some("M_UNRECOGNIZED")) | (401 | 403 | 404 | 405, None) => later(ReasonKind::Authentication, said()),
        // The homeserver has no response of another one, such as that of an alias.
        (502 | 504, Some(_)) => Verdict { load: Load::Unknown, ..later(ReasonKind::Answer, said()) },
        (400 | 404 | 405 | 413, Some(_)) => never(ReasonKind::Answer, said()),
        _ => by_status(response, retry_delay),
    }
}

fn field<'a>(body: Option<&'a Value>, name: &str) -> Option<&'a str> {
    body?.get(name)?.as_str().filter(|text| !text.is_empty())
}
