//! What a notification says, once it is formatted.

/// A formatted notification. Each protocol takes the parts that it can carry.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Content {
    /// One line.
    pub subject: Option<String>,
    /// Plain text.
    pub text: Option<String>,
    /// HTML.
    pub html: Option<String>,
    /// JSON, for machines.
    pub json: Option<String>,
}
