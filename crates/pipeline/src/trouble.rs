//! When a channel only fails the log says so once, again from time to time, and when it is over; never for each failure.

use tocsin_model::{
    application::FailureLog,
    receipt::{Disposition, ReasonKind},
    time::Timestamp,
};

/// The failures of a channel in a row.
pub(crate) struct Trouble {
    log: FailureLog,
    failures: u64,
    since: Timestamp,
    /// When it was told last.
    told: Option<Timestamp>,
}

/// What the log is to say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tidings<'d> {
    /// So many attempts in a row have failed since then, the last for this reason.
    Fails { failures: u64, since: Timestamp, reason: &'d str },
    /// Something was delivered, after so many failures since then.
    Delivers { failures: u64, since: Timestamp },
}

impl Trouble {
    /// A channel of which nothing is known.
    pub fn new(log: FailureLog) -> Self {
        Trouble { log, failures: 0, since: Timestamp(0), told: None }
    }

    /// Takes in what became of an attempt.
    pub fn note<'d>(&mut self, disposition: &'d Disposition, at: Timestamp) -> Option<Tidings<'d>> {
        match disposition {
            Disposition::Delivered { .. } => self.delivered(),
            Disposition::Deferred { reason, .. } | Disposition::Refused { reason } => {
                if fails(reason.kind) {
                    self.failed(&reason.text, at)
                } else {
                    None
                }
            }
        }
    }

    fn delivered<'d>(&mut self) -> Option<Tidings<'d>> {
        let told = self.told.take().map(|_| Tidings::Delivers { failures: self.failures, since: self.since });
        self.failures = 0;
        told
    }

    fn failed<'d>(&mut self, reason: &'d str, at: Timestamp) -> Option<Tidings<'d>> {
        if self.failures == 0 {
            self.since = at;
        }
        self.failures += 1;
        let is_enough = self.log.after > 0 && self.failures >= u64::from(self.log.after);
        if !is_enough || self.told.is_some_and(|told| at < told + self.log.every) {
            return None;
        }
        self.told = Some(at);
        Some(Tidings::Fails { failures: self.failures, since: self.since, reason })
    }
}

/// Whether an attempt that ended so says that the channel fails. What was wrong with the message or the address alone says
/// neither that it fails nor that it works.
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
        | ReasonKind::Suppressed => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tocsin_model::receipt::Reason;

    use super::*;

    /// Attempts as `minute:outcome`, of a channel that is told of after 3 failures, every 10 minutes; what the log says.
    fn check(after: u32, attempts: &str, expected: &str) {
        let mut trouble = Trouble::new(FailureLog { after, every: Duration::from_secs(600) });
        let minute = |number: u64| Timestamp(0) + Duration::from_secs(60 * number);
        let mut told = Vec::new();
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
            match trouble.note(&disposition, minute(at)) {
                Some(Tidings::Fails { failures, since: begun, .. }) => {
                    told.push(format!("{at}: fails {failures} times since {}", since(begun)));
                }
                Some(Tidings::Delivers { failures, since: begun }) => {
                    told.push(format!("{at}: delivers after {failures} since {}", since(begun)));
                }
                None => {}
            }
        }
        assert_eq!(told.join(", "), expected, "{attempts}");
    }

    #[test]
    fn failures_in_a_row_are_told_now_and_then() {
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
    fn what_is_wrong_with_an_address_says_nothing_of_the_channel() {
        check(3, "1:no 1:unknown 1:later 1:no 2:unknown 3:no", "3: fails 3 times since 1");
    }
}
