use std::time::Duration;

use serde::Deserialize;
use tocsin_model::{
    id::NotificationId,
    receipt::{Disposition, Reason, ReasonKind},
};

/// Longest `retry_after_seconds` that is respected.
const RETRY_AFTER_MAX: f64 = 24.0 * 3600.0;

/// A program's answer to one message.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: NotificationId,
    outcome: Outcome,
    #[serde(default)]
    reply: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    retry_after_seconds: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Delivered,
    Deferred,
    Refused,
}

/// Parses an answer. The error says what is wrong with it.
pub(super) fn read(line: &[u8]) -> Result<(NotificationId, Disposition), String> {
    let line: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let reason = |usual: &str| Reason::new(ReasonKind::Answer, line.reason.clone().unwrap_or_else(|| usual.to_owned()));
    let disposition = match line.outcome {
        Outcome::Delivered => Disposition::Delivered { reply: line.reply.unwrap_or_else(|| "taken".into()) },
        Outcome::Deferred => {
            let retry_after = match line.retry_after_seconds {
                None => None,
                Some(seconds) if seconds >= 0.0 => Some(Duration::from_secs_f64(seconds.min(RETRY_AFTER_MAX))),
                Some(seconds) => return Err(format!("`retry_after_seconds` is {seconds}; it is 0 or more")),
            };
            Disposition::Deferred { reason: reason("not now"), retry_after }
        }
        Outcome::Refused => Disposition::Refused { reason: reason("no") },
    };
    Ok((line.id, disposition))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::show;

    fn check(line: &str, expected: &str) {
        let shown = match read(line.as_bytes()) {
            Ok((id, disposition)) => {
                let after = match &disposition {
                    Disposition::Deferred { retry_after: Some(after), .. } => format!(" after {after:?}"),
                    _ => String::new(),
                };
                format!("{id} {}{after}", show(&disposition))
            }
            Err(text) => text,
        };
        assert!(shown.starts_with(expected), "{line}: {shown}");
    }

    #[test]
    fn lines_become_dispositions() {
        check(r#"{"id": "n-7-1", "outcome": "delivered"}"#, "n-7-1 delivered taken");
        check(r#"{"id": "n-7-1", "outcome": "delivered", "reply": "as 4711"}"#, "n-7-1 delivered as 4711");
        check(r#"{"id": "n-7-1", "outcome": "deferred", "reason": "busy"}"#, "n-7-1 deferred Answer busy");
        let deferred_after =
            |seconds: &str| format!(r#"{{"id": "n-7-1", "outcome": "deferred", "retry_after_seconds": {seconds}}}"#);
        check(&deferred_after("1.5"), "n-7-1 deferred Answer not now after 1.5s");
        check(&deferred_after("1e300"), "n-7-1 deferred Answer not now after 86400s");
        check(&deferred_after("-1"), "`retry_after_seconds` is -1; it is 0 or more");
        check(r#"{"id": "n-7-1", "outcome": "refused", "reason": "no such number"}"#, "n-7-1 refused Answer no such");
        for wrong in ["", "OK", "[]", "{}", r#"{"id": "n-7-1"}"#, r#"{"id": "7", "outcome": "delivered"}"#] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(
            read(br#"{"id": "n-7-1", "outcome": "delivered", "rason": "?"}"#).is_err(),
            "a misspelled member is rejected"
        );
        assert!(read(b"{\"id\": \"\xff\"").is_err());
    }
}
