use std::time::Duration;

use jiff::fmt::rfc2822::DateTimeParser;
use tocsin_model::{
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};

/// What a response means.
pub(super) fn classify(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Disposition {
    let words = || {
        let excerpt: String = String::from_utf8_lossy(&body[..body.len().min(600)]).chars().take(200).collect();
        let excerpt = excerpt
            .split(|c: char| c.is_control() || c.is_whitespace())
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        if excerpt.is_empty() { status.to_string() } else { format!("{status} {excerpt}") }
    };
    let refused = |text: String| Disposition::Refused { reason: Reason::new(ReasonKind::Answer, text) };
    match status {
        200..=299 => Disposition::Delivered { reply: status.to_string() },
        300..=399 => {
            refused(format!("{status}: redirects are not followed; the device's address must be the final URL"))
        }
        408 | 425 | 429 | 500..=599 => {
            Disposition::Deferred { reason: Reason::new(ReasonKind::Answer, words()), retry_after }
        }
        410 => refused(format!("{}; the far side is gone for good", words())),
        _ => refused(words()),
    }
}

/// The time that a `Retry-After` asks for, as seconds or as a date (RFC 9110, 10.2.3), at most `most`.
pub(super) fn retry_after(value: &str, now: Timestamp, most: Duration) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        // More digits than a number holds still mean: very late.
        Err(_) if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => Duration::MAX,
        Err(_) => {
            let date = DateTimeParser::new().parse_timestamp(value).ok()?;
            Timestamp(date.as_microsecond()).since(now)
        }
    };
    Some(wait.min(most))
}
