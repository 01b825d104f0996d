//! Who sends to whom, and who decides about it.

use std::net::SocketAddr;

use async_trait::async_trait;

/// What was said about a mail before it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Where returns go; empty for mails that must not return.
    pub from: String,
    /// Its recipients, as they were written; at least one.
    pub to: Vec<String>,
    /// Where the connection comes from.
    pub peer: SocketAddr,
    /// What the client calls itself.
    pub host: String,
    /// As whom it has logged in.
    pub user: Option<String>,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
}

/// Why something is not taken, in the words that the sender hears.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code} {status} {text}")]
pub struct Refusal {
    /// 4xx: try again later; 5xx: do not.
    pub code: u16,
    /// The status of RFC 3463: `5.1.1`.
    pub status: &'static str,
    /// What is wrong and what to do, in one line.
    pub text: String,
}

/// Longest text of an answer: with code and status a line of SMTP is at most 512 bytes long.
const TEXT_BYTES_MAX: usize = 480;

impl Refusal {
    /// An answer. What no line can hold is left out of the text.
    pub fn new(code: u16, status: &'static str, text: impl Into<String>) -> Refusal {
        let plain = |letter: char| if letter.is_ascii() && !letter.is_ascii_control() { letter } else { '?' };
        let text: String = text.into().chars().map(plain).take(TEXT_BYTES_MAX).collect();
        Refusal { code, status, text }
    }
}

/// Whoever wants the mail.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Whether there is such a recipient.
    ///
    /// # Errors
    /// What the sender is told; the other recipients of the mail are not concerned.
    fn judge(&self, recipient: &str) -> Result<(), Refusal>;

    /// Takes a mail. The sender hears that it is taken when this returns, so it must be safe by then.
    ///
    /// # Errors
    /// What the sender is told.
    async fn take(&self, envelope: Envelope, mail: Vec<u8>) -> Result<(), Refusal>;
}
