//! Names and texts of header fields.

use std::borrow::Cow;

/// Header fields that no option may set.
pub(super) const RESERVED_HEADERS: &[&str] = &[
    "From",
    "To",
    "Cc",
    "Bcc",
    "Subject",
    "Date",
    "Message-ID",
    "Reply-To",
    "Auto-Submitted",
    "Precedence",
    "DKIM-Signature",
    "List-Unsubscribe",
    "List-Unsubscribe-Post",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
    "Received",
    "Return-Path",
];

/// Whether this is a header field name (RFC 5322).
pub(super) fn is_header_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A text as a header value: one line; control and line-break characters become spaces.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    let breaks = |c: char| c.is_control() || is_invisible(c);
    if text.contains(breaks) { text.replace(breaks, " ").into() } else { text.into() }
}

/// Line and paragraph separators, and bidirectional controls, which can make a subject read as something else.
pub(super) fn is_invisible(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
