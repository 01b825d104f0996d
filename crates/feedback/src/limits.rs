//! Limits of one mail or payload.

/// Limits of the parser. Input beyond a limit is left out, and the result says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a mail that are read, from its start.
    pub mail_bytes_max: usize,
    /// Most bytes of a provider's payload. A longer one is refused.
    pub payload_bytes_max: usize,
    /// Most events in a provider's payload. A payload with more is refused.
    pub events_max: usize,
    /// Most MIME parts, with the containers.
    pub parts_max: usize,
    /// Deepest nesting of MIME parts.
    pub depth_max: usize,
    /// Most header fields of a mail, a part or a group of a report.
    pub fields_max: usize,
    /// Longest value of a header field after unfolding; a longer one is cut at the end of a line.
    pub field_bytes_max: usize,
    /// Most bytes of one part that are decoded.
    pub text_bytes_max: usize,
    /// Most recipients of one mail.
    pub recipients_max: usize,
    /// Most bytes of a diagnostic text and of each other text in the result.
    pub diagnostic_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            mail_bytes_max: 1 << 20,
            payload_bytes_max: 1 << 20,
            events_max: 10_000,
            parts_max: 100,
            depth_max: 8,
            fields_max: 500,
            field_bytes_max: 8 << 10,
            text_bytes_max: 64 << 10,
            recipients_max: 100,
            diagnostic_bytes_max: 1_024,
        }
    }
}
