//! The parts of a mail that decide whether a bounce counts.

use mail_parser::{Message, MessageParser, MimeHeaders, PartType};

/// Most bytes of a part that are examined.
const PART_BYTES_MAX: usize = 1 << 20;

/// The parts of a bounce that count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BounceMail {
    /// The subject, decoded.
    pub subject: Option<String>,
    /// The part `message/delivery-status`.
    pub delivery_status: Option<String>,
    /// The HTML text.
    pub html: Option<String>,
    /// The plain text.
    pub plain: Option<String>,
    /// The header `X-Failed-Recipients`.
    pub failed_recipients: Option<String>,
}

impl BounceMail {
    /// The parts of a mail. `None`: it cannot be parsed.
    pub fn parse(mail: &[u8]) -> Option<BounceMail> {
        let message = MessageParser::default().parse(mail)?;
        Some(BounceMail {
            subject: message.subject().map(str::to_owned),
            delivery_status: delivery_status(&message),
            html: part(&message, |body| matches!(body, PartType::Html(_))),
            plain: part(&message, |body| matches!(body, PartType::Text(_))),
            failed_recipients: message.header_raw("X-Failed-Recipients").map(|text| text.trim().to_owned()),
        })
    }

    /// The text in which codes and recipients are searched.
    pub fn body(&self) -> &str {
        let parts = [&self.delivery_status, &self.html, &self.plain];
        parts.into_iter().flatten().next().map(String::as_str).unwrap_or_default()
    }
}

fn delivery_status(message: &Message<'_>) -> Option<String> {
    let part = message.parts.iter().find(|part| part.is_content_type("message", "delivery-status"))?;
    Some(text(part.contents()))
}

/// The first text of a kind that is no delivery status and no attachment with a name.
fn part(message: &Message<'_>, is_kind: impl Fn(&PartType<'_>) -> bool) -> Option<String> {
    let fits = |part: &&mail_parser::MessagePart<'_>| {
        let is_text = part.content_type().is_none_or(|kind| kind.ctype().eq_ignore_ascii_case("text"));
        is_text && is_kind(&part.body) && part.attachment_name().is_none()
    };
    message.parts.iter().find(fits).map(|part| text(part.contents()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(PART_BYTES_MAX)]).into_owned()
}
