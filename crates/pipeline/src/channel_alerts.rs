//! Log alerts for a failing channel: one line when failures in a row reach a limit, repeated at an interval, and one
//! on recovery. Single failures are not logged here.

use tocsin_model::{
    application::FailureLog,
    receipt::{Disposition, ReasonKind},
    time::Timestamp,
};

/// Failures of a channel in a row.
pub(crate) struct ChannelAlerts {
    log: FailureLog,
    failures: u64,
    since: Timestamp,
    /// Time of the last alert.
    alerted_at: Option<Timestamp>,
}

/// An alert to log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChannelAlert<'d> {
    /// All attempts since this time have failed; the last one for this reason.
    Fails { failures: u64, since: Timestamp, reason: &'d str },
    /// The channel delivers again, after these failures.
    Delivers { failures: u64, since: Timestamp },
}

impl ChannelAlerts {
    /// A channel without failures.
    pub fn new(log: FailureLog) -> Self {
        ChannelAlerts { log, failures: 0, since: Timestamp(0), alerted_at: None }
    }

    /// Counts the outcome of an attempt. Returns an alert if one is due.
    pub fn count<'d>(&mut self, disposition: &'d Disposition, at: Timestamp) -> Option<ChannelAlert<'d>> {
        match disposition {
            Disposition::Delivered { .. } => self.delivered(),
            Disposition::Deferred { reason, .. } | Disposition::Refused { reason } => {
                // A server that defers each mailbox may be the one that fails.
                let is_deferred = matches!(disposition, Disposition::Deferred { .. });
                if fails(reason.kind) || is_deferred && reason.kind == ReasonKind::SoftBounced {
                    self.failed(&reason.text, at)
                } else {
                    None
                }
            }
        }
    }

    fn delivered<'d>(&mut self) -> Option<ChannelAlert<'d>> {
        let alert =
            self.alerted_at.take().map(|_| ChannelAlert::Delivers { failures: self.failures, since: self.since });
        self.failures = 0;
        alert
    }

    fn failed<'d>(&mut self, reason: &'d str, at: Timestamp) -> Option<ChannelAlert<'d>> {
        if self.failures == 0 {
            self.since = at;
        }
        self.failures += 1;
        let is_enough = self.log.after > 0 && self.failures >= u64::from(self.log.after);
        if !is_enough || self.alerted_at.is_some_and(|last| at < last + self.log.every) {
            return None;
        }
        self.alerted_at = Some(at);
        Some(ChannelAlert::Fails { failures: self.failures, since: self.since, reason })
    }
}

/// Whether an outcome means that the channel fails. A problem of the message or the address alone counts neither as
/// failure nor as success.
fn fails(kind: ReasonKind) -> bool {
    match kind {
        ReasonKind::Answer
        | ReasonKind::Connection
        | ReasonKind::Timeout
        | ReasonKind::Tls
        | ReasonKind::Authentication
        | ReasonKind::Internal => true,
        ReasonKind::Untried
        | ReasonKind::Expired
        | ReasonKind::Format
        | ReasonKind::Address
        | ReasonKind::Unreachable
        | ReasonKind::AttemptsExhausted
        | ReasonKind::Gone
        | ReasonKind::Bounced
        | ReasonKind::SoftBounced
        | ReasonKind::Suppressed => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tocsin_model::receipt::Reason;

    use super::*;

    /// Attempts are `minute:outcome`, of a channel with alerts after 3 failures, every 10 minutes. Compares the
    /// alerts.
    fn check(after: u32, attempts: &str, expected: &str) {
        let mut counter = ChannelAlerts::new(FailureLog { after, every: Duration::from_secs(600) });
        let minute = |number: u64| Timestamp(0) + Duration::from_secs(60 * number);
        let mut alerts = Vec::new();
        for attempt in attempts.split(' ') {
            let (at, outcome) = attempt.split_once(':').expect("a minute and an outcome");
            let at: u64 = at.parse().expect("a minute");
            let deferred = |kind| Disposition::Deferred { reason: Reason::new(kind, "x"), retry_after: None };
            let disposition = match outcome {
                "ok" => Disposition::Delivered { reply: String::new() },
                "no" => deferred(ReasonKind::Answer),
                "silent" => deferred(ReasonKind::Timeout),
                "refused" => Disposition::Refused { reason: Reason::new(ReasonKind::Answer, "x") },
                "unknown" => Disposition::Refused { reason: Reason::new(ReasonKind::Bounced, "x") },
                "later" => deferred(ReasonKind::Untried),
                other => panic!("`{other}` is no outcome"),
            };
            let since = |since: Timestamp| since.since(minute(0)).as_secs() / 60;
            match counter.count(&disposition, minute(at)) {
                Some(ChannelAlert::Fails { failures, since: begun, .. }) => {
                    alerts.push(format!("{at}: fails {failures} times since {}", since(begun)));
                }
                Some(ChannelAlert::Delivers { failures, since: begun }) => {
                    alerts.push(format!("{at}: delivers after {failures} since {}", since(begun)));
                }
                None => {}
            }
        }
        assert_eq!(alerts.join(", "), expected, "{attempts}");
    }

    #[test]
    fn failures_in_a_row_are_alerted_at_an_interval() {
        check(3, "1:no 2:silent 3:ok 4:no 5:no 6:ok", "");
        check(
            3,
            "1:no 2:silent 3:refused 4:no 12:no 13:no 14:no",
            "3: fails 3 times since 1, 13: fails 6 times since 1",
        );
        check(3, "1:no 1:no 1:no 5:ok 6:ok", "1: fails 3 times since 1, 5: delivers after 3 since 1");
        check(
            3,
            "1:no 1:no 1:no 2:ok 3:no 4:no 5:no",
            "1: fails 3 times since 1, 2: delivers after 3 since 1, 5: fails 3 times since 3",
        );
        check(1, "1:no", "1: fails 1 times since 1");
        check(0, "1:no 1:no 1:no 1:no 2:ok", "");
    }

    #[test]
    fn a_problem_of_an_address_is_no_failure_of_the_channel() {
        check(3, "1:no 1:unknown 1:later 1:no 2:unknown 3:no", "3: fails 3 times since 1");
    }
}
