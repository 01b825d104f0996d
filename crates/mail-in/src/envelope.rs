//! Envelope of a mail, and the handler that accepts it.

use std::net::SocketAddr;

use async_trait::async_trait;

/// The envelope of a mail (RFC 5321).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The reverse-path; empty for mails to which no bounce may be sent.
    pub from: String,
    /// The recipients, as written by the client; at least one.
    pub to: Vec<String>,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The host name given by the client in EHLO.
    pub host: String,
    /// The user who logged in.
    pub user: Option<String>,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
}

/// A negative reply to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code} {status} {text}")]
pub struct ErrorReply {
    /// 4xx: temporary; 5xx: permanent.
    pub code: u16,
    /// The enhanced status code (RFC 3463), such as `5.1.1`.
    pub status: &'static str,
    /// The reason and what to do, in one line.
    pub text: String,
}

/// Maximum length of the text: with code and status a reply line has at most 512 bytes.
const TEXT_BYTES_MAX: usize = 480;

impl ErrorReply {
    /// Creates a reply. Characters that are not allowed in a line are replaced by `?`.
    pub fn new(code: u16, status: &'static str, text: impl Into<String>) -> ErrorReply {
        let plain = |letter: char| if letter.is_ascii() && !letter.is_ascii_control() { letter } else { '?' };
        let text: String = text.into().chars().map(plain).take(TEXT_BYTES_MAX).collect();
        ErrorReply { code, status, text }
    }
}

/// Accepts mail.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Checks a recipient.
    ///
    /// # Errors
    /// The reply for this recipient; other recipients of the mail are not affected.
    fn check_recipient(&self, recipient: &str) -> Result<(), ErrorReply>;

    /// Accepts a mail. The client gets an acknowledgement when this returns, so the mail must be stored by then.
    ///
    /// # Errors
    /// The reply to the client.
    async fn accept(&self, envelope: Envelope, mail: Vec<u8>) -> Result<(), ErrorReply>;
}
