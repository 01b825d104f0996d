//! What became of a notification: each attempt ends in a disposition, and a receipt closes it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    pack::{Reader, write_bytes, write_signed, write_varint},
    time::Timestamp,
};

pub use crate::field::Damaged;

/// The far side's answer, as we understand it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// The far side took responsibility.
    Delivered {
        /// What it said.
        reply: String,
    },
    /// Not now; another attempt may succeed.
    Deferred {
        /// Why.
        reason: Reason,
        /// When the far side asks to be tried again.
        retry_after: Option<Duration>,
    },
    /// No; another attempt would fail as well.
    Refused {
        /// Why.
        reason: Reason,
    },
}

/// Why a delivery did not happen: whose word it is, and the words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What kind of trouble.
    pub kind: ReasonKind,
    /// The far side's own words or ours; at most 1,024 bytes.
    pub text: String,
}

/// Kinds of trouble, for counting and filtering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    /// The far side said no or not now.
    Answer,
    /// No connection could be made, or it broke.
    Connection,
    /// No answer in time.
    Timeout,
    /// Certificates or handshake.
    Tls,
    /// Our credentials were not accepted.
    Authentication,
    /// The address cannot be an address, or is one we do not talk to.
    Address,
    /// The far side said that the address is gone for good; nothing else for it is worth trying.
    Gone,
    /// The far side said that there is no such address, and its channel wants such addresses suppressed.
    Bounced,
    /// Nothing may be sent to the address: it bounced, or complained.
    Suppressed,
    /// The content could not be made.
    Format,
    /// Its time was over before it was sent.
    Expired,
    /// The subscriber or device is gone, switched off or has no such channel.
    Unreachable,
    /// Every attempt of the schedule failed.
    AttemptsExhausted,
    /// Something of our own broke.
    Internal,
    /// Nothing was tried, because the channel was closed first. It is no attempt.
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

/// How one attempt to deliver one notification went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The notification's place in its batch.
    pub ordinal: u32,
    /// Which attempt it was, from 1.
    pub number: u32,
    /// When its content was ready.
    pub formatted_at: Timestamp,
    /// When it was handed to the far side.
    pub sent_at: Timestamp,
    /// When the far side's answer was complete.
    pub answered_at: Timestamp,
    /// What came of it.
    pub outcome: Outcome,
    /// The far side's words, or why it was not even asked.
    pub reply: String,
}

/// What an attempt means for its notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Closed: delivered.
    Delivered,
    /// Open: another attempt follows.
    Deferred,
    /// Closed: refused by the far side for good.
    Refused,
    /// Closed: too late to be worth sending.
    Expired,
    /// Held: it waits for an operator.
    Suspended,
    /// Closed: an operator ended it.
    Ended,
}

impl Outcome {
    /// All of them, in the order of their packed form.
    pub const ALL: [Outcome; 6] =
        [Outcome::Delivered, Outcome::Deferred, Outcome::Refused, Outcome::Expired, Outcome::Suspended, Outcome::Ended];

    /// Whether the notification is closed, so that it is never sent again.
    pub fn closes(self) -> bool {
        !matches!(self, Outcome::Deferred | Outcome::Suspended)
    }

    /// Its one word, in tables, metrics and answers.
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

/// Packs the attempts of one chunk. Times are kept as differences, equal replies once.
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
        // The last few replies are enough: a far side that repeats itself does so at once.
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

/// Reads what `pack_attempts` wrote.
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
