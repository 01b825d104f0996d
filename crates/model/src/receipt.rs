//! Receipts: each attempt ends in a disposition, and a receipt closes the notification.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    pack::{Reader, write_bytes, write_signed, write_varint},
    time::Timestamp,
};

pub use crate::field::Damaged;

/// Classified answer of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// The receiver accepted responsibility.
    Delivered {
        /// Its answer.
        reply: String,
    },
    /// Temporary failure; another attempt may succeed.
    Deferred {
        /// The reason.
        reason: Reason,
        /// The receiver's `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// Permanent failure; another attempt would fail as well.
    Refused {
        /// The reason.
        reason: Reason,
    },
}

/// Reason of a failed delivery: its kind and a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// Kind of the failure.
    pub kind: ReasonKind,
    /// Text of the receiver or of this server; at most 1,024 bytes.
    pub text: String,
}

/// Kinds of failures, for counting and filtering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    /// The receiver refused or deferred it.
    Answer,
    /// No connection could be made, or it failed.
    Connection,
    /// No answer in time.
    Timeout,
    /// TLS: certificates or handshake.
    Tls,
    /// Our credentials were not accepted.
    Authentication,
    /// The address is invalid, or the network policy forbids it.
    Address,
    /// The receiver said that the address no longer exists; further messages to it are pointless.
    Gone,
    /// The receiver said that the address is unknown, and its channel counts such replies.
    Bounced,
    /// The receiver refused the message for a reason that may pass, such as a full mailbox, and its channel counts such
    /// replies.
    SoftBounced,
    /// The address is suppressed after a bounce or complaint.
    Suppressed,
    /// The content could not be rendered.
    Format,
    /// It expired before it was sent.
    Expired,
    /// The subscriber or device is removed, disabled or has no such channel.
    Unreachable,
    /// Every attempt of the schedule failed.
    AttemptsExhausted,
    /// An internal failure.
    Internal,
    /// Not attempted, because the channel was closed first. It does not count as an attempt.
    Untried,
}

impl Reason {
    /// A reason of this kind; the text is cut at 1,024 bytes.
    pub fn new(kind: ReasonKind, text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.len() > 1024 {
            let end = (0..=1024).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
        }
        Reason { kind, text }
    }
}

/// Record of one attempt to deliver one notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Index of the notification in its batch.
    pub ordinal: u32,
    /// Number of the attempt, from 1.
    pub number: u32,
    /// When its content was ready.
    pub formatted_at: Timestamp,
    /// When it was handed to the receiver.
    pub sent_at: Timestamp,
    /// When the receiver's answer was complete.
    pub answered_at: Timestamp,
    /// Its outcome.
    pub outcome: Outcome,
    /// The receiver's text, or the reason why nothing was sent.
    pub reply: String,
}

impl Attempt {
    /// Whether it was handed to the receiver. An attempt that ended before, by a preference, a suppression or a
    /// template error, has one time for all three.
    pub fn was_sent(&self) -> bool {
        self.outcome == Outcome::Delivered || self.formatted_at != self.answered_at
    }
}

/// Outcome of an attempt for its notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Closed: delivered.
    Delivered,
    /// Open: another attempt follows.
    Deferred,
    /// Closed: permanently refused by the receiver.
    Refused,
    /// Closed: expired.
    Expired,
    /// Held: it waits for an operator.
    Suspended,
    /// Closed: an operator ended it.
    Ended,
}

impl Outcome {
    /// All outcomes, in the order of their packed form.
    pub const ALL: [Outcome; 6] =
        [Outcome::Delivered, Outcome::Deferred, Outcome::Refused, Outcome::Expired, Outcome::Suspended, Outcome::Ended];

    /// Whether the notification is closed, so that it is never sent again.
    pub fn closes(self) -> bool {
        !matches!(self, Outcome::Deferred | Outcome::Suspended)
    }

    /// Its name in tables, metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Delivered => "delivered",
            Outcome::Deferred => "deferred",
            Outcome::Refused => "refused",
            Outcome::Expired => "expired",
            Outcome::Suspended => "suspended",
            Outcome::Ended => "ended",
        }
    }
}

/// Packs the attempts of one chunk. Times are stored as differences, equal replies once.
pub fn pack_attempts(attempts: &[Attempt]) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + attempts.len() * 12);
    let mut replies: Vec<&str> = Vec::new();
    write_varint(&mut out, attempts.len() as u64);
    let (mut ordinal, mut time) = (0i64, 0i64);
    for attempt in attempts {
        write_signed(&mut out, i64::from(attempt.ordinal) - ordinal);
        ordinal = i64::from(attempt.ordinal);
        write_varint(&mut out, u64::from(attempt.number));
        write_signed(&mut out, attempt.formatted_at.0.wrapping_sub(time));
        time = attempt.formatted_at.0;
        write_signed(&mut out, attempt.sent_at.0.wrapping_sub(attempt.formatted_at.0));
        write_signed(&mut out, attempt.answered_at.0.wrapping_sub(attempt.sent_at.0));
        out.push(attempt.outcome as u8);
        // A window of the last few replies is enough: receivers repeat themselves at once.
        let known = replies.iter().rev().take(8).position(|reply| *reply == attempt.reply);
        match known {
            Some(back) => write_varint(&mut out, back as u64 + 1),
            None => {
                write_varint(&mut out, 0);
                write_bytes(&mut out, attempt.reply.as_bytes());
                replies.push(&attempt.reply);
            }
        }
    }
    out
}

/// Parses the form written by `pack_attempts`.
///
/// # Errors
/// The bytes are damaged.
pub fn unpack_attempts(bytes: &[u8]) -> Result<Vec<Attempt>, Damaged> {
    let mut reader = Reader::new(bytes);
    let mut attempts = Vec::with_capacity(reader.count()?);
    let mut replies: Vec<&str> = Vec::new();
    let (mut ordinal, mut time) = (0i64, 0i64);
    for _ in 0..attempts.capacity() {
        ordinal = ordinal.wrapping_add(reader.signed()?);
        let number = u32::try_from(reader.varint()?).map_err(|_| Damaged)?;
        time = time.wrapping_add(reader.signed()?);
        let sent = time.wrapping_add(reader.signed()?);
        let answered = sent.wrapping_add(reader.signed()?);
        let outcome = *Outcome::ALL.get(usize::from(reader.byte()?)).ok_or(Damaged)?;
        let reply = match reader.varint()? {
            0 => {
                replies.push(reader.text()?);
                replies[replies.len() - 1]
            }
            back => {
                let back = usize::try_from(back).map_err(|_| Damaged)?;
                replies.len().checked_sub(back).and_then(|at| replies.get(at)).copied().ok_or(Damaged)?
            }
        };
        attempts.push(Attempt {
            ordinal: u32::try_from(ordinal).map_err(|_| Damaged)?,
            number,
            formatted_at: Timestamp(time),
            sent_at: Timestamp(sent),
            answered_at: Timestamp(answered),
            outcome,
            reply: reply.to_owned(),
        });
    }
    if reader.is_empty() { Ok(attempts) } else { Err(Damaged) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attempt() -> impl Strategy<Value = Attempt> {
        (any::<u32>(), 1u32..9, -5i64..1_000_000_000, 0i64..9_000, 0i64..9_000_000, 0usize..6, "[a-c]{0,2}").prop_map(
            |(ordinal, number, formatted, sent, answered, outcome, reply)| Attempt {
                ordinal,
                number,
                formatted_at: Timestamp(formatted),
                sent_at: Timestamp(formatted + sent),
                answered_at: Timestamp(formatted + sent + answered),
                outcome: Outcome::ALL[outcome],
                reply,
            },
        )
    }

    #[test]
    fn an_attempt_that_ended_before_the_far_side_was_asked_was_not_sent() {
        let at = Timestamp(5);
        let refused = Attempt {
            ordinal: 0,
            number: 1,
            formatted_at: at,
            sent_at: at,
            answered_at: at,
            outcome: Outcome::Refused,
            reply: "the subscriber has switched off the channels of all its devices".to_owned(),
        };
        assert!(!refused.was_sent());
        assert!(Attempt { answered_at: Timestamp(6), ..refused.clone() }.was_sent());
        assert!(Attempt { outcome: Outcome::Delivered, ..refused }.was_sent());
    }

    proptest! {
        #[test]
        fn attempts_come_back(attempts in proptest::collection::vec(attempt(), 0..50)) {
            let packed = pack_attempts(&attempts);
            prop_assert_eq!(unpack_attempts(&packed), Ok(attempts));
        }

        #[test]
        fn damage_is_an_error(bytes: Vec<u8>) {
            let _ = unpack_attempts(&bytes);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = Reason::new(ReasonKind::Answer, "ä".repeat(1000));
        assert_eq!(reason.text.len(), 1024);
    }
}
