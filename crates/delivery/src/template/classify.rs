use std::time::Duration;

use tocsin_model::receipt::{Disposition, Reason, ReasonKind};

/// Disposition of a reply. An unknown reply is retried: the server may have accepted the message.
pub(super) fn classify(reply: &str) -> Disposition {
    let (word, rest) = reply.split_once(' ').unwrap_or((reply, ""));
    let reason = |kind| Reason::new(kind, reply);
    match word {
        "ok" => Disposition::Delivered { reply: reply.to_owned() },
        "gone" => Disposition::Refused { reason: reason(ReasonKind::Gone) },
        "no" => Disposition::Refused { reason: reason(ReasonKind::Answer) },
        "busy" => {
            let retry_after = rest.parse().ok().map(Duration::from_secs);
            Disposition::Deferred { reason: reason(ReasonKind::Answer), retry_after }
        }
        _ => Disposition::Deferred { reason: reason(ReasonKind::Answer), retry_after: None },
    }
}
