use std::time::Duration;

use tocsin_model::{
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};

use crate::http::response::{Load, Response, Verdict, by_status, words};

/// Classifies the response of a push service (RFC 8030, 5 and 7.3; RFC 8292, 4.2). `Retry-After` is respected up to
/// `most`.
pub(super) fn classify(response: &Response, now: Timestamp, most: Duration) -> Verdict {
    let retry_delay = response.retry_delay(now, most);
    let fine = |disposition| Verdict { disposition, load: Load::Fine };
    let said = words(response);
    match response.status {
        // The browser has ended its subscription, or never had it.
        404 | 410 => fine(Disposition::Refused {
            reason: Reason::new(ReasonKind::Gone, format!("{said}; the browser has no such subscription any more")),
        }),
        // A problem of our key or clock, not of the message: retried, so that nothing is lost.
        401 | 403 => fine(Disposition::Deferred {
            reason: Reason::new(
                ReasonKind::Authentication,
                format!("{said}; the push service does not accept our key for this subscription"),
            ),
            retry_after: retry_delay,
        }),
        413 => fine(Disposition::Refused {
            reason: Reason::new(ReasonKind::Answer, format!("{said}; the push service takes no message of this size")),
        }),
        _ => by_status(response, retry_delay),
    }
}
