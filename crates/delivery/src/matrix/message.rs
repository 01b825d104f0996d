use serde::Serialize;
use tocsin_model::delivery_policy::Priority;

use super::options::{MatrixOptions, MessageType};
use crate::channel::Message;

/// Largest content of an event. A whole event has at most 65,536 bytes; the homeserver adds the rest.
const CONTENT_BYTES_MAX: usize = 60 * 1024;

/// Content of the event, as the specification documents `m.room.message`.
#[derive(Serialize)]
struct EventContent<'a> {
    msgtype: MessageType,
    body: &'a str,
    #[serde(flatten)]
    html: Option<Html<'a>>,
    /// Given even if empty: without it, clients search the text for names to mention.
    #[serde(rename = "m.mentions")]
    mentions: Mentions,
    #[serde(rename = "tocsin.message")]
    own: OwnField<'a>,
}

#[derive(Serialize)]
struct Html<'a> {
    format: &'static str,
    formatted_body: &'a str,
}

#[derive(Serialize)]
struct Mentions {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    room: bool,
}

/// Id and class of the notification.
#[derive(Serialize)]
struct OwnField<'a> {
    id: &'a str,
    r#type: &'a str,
}

/// The JSON of a message; the error says why there is none. HTML that makes the event too large is left out.
pub(super) fn event_content(message: &Message, options: &MatrixOptions) -> Result<Vec<u8>, String> {
    let content = &message.content;
    let is_given = |part: &&str| !part.trim().is_empty();
    let subject = content.subject.as_deref().filter(is_given);
    let text = content.text.as_deref().filter(is_given).or(subject).ok_or("the content has no text")?;
    let html = content.html.as_deref().filter(is_given).filter(|html| !is_document(html));
    let is_whole_room = options.mention_room && message.priority == Priority::Urgent;
    let mut event = EventContent {
        msgtype: options.message_type,
        body: text.trim_end(),
        html: html.map(|html| Html { format: "org.matrix.custom.html", formatted_body: html.trim() }),
        mentions: Mentions { room: is_whole_room },
        own: OwnField { id: &message.message_id, r#type: message.facts.class.as_str() },
    };
    let json = |event: &EventContent<'_>| serde_json::to_vec(event).expect("a message becomes JSON in memory");
    let mut bytes = json(&event);
    if bytes.len() > CONTENT_BYTES_MAX && event.html.take().is_some() {
        bytes = json(&event);
    }
    match bytes.len() {
        ..=CONTENT_BYTES_MAX => Ok(bytes),
        length => Err(format!("the message has {length} bytes, an event at most {CONTENT_BYTES_MAX}")),
    }
}

/// Whether HTML is a whole document, such as that of a mail. Clients show elements of a body only.
fn is_document(html: &str) -> bool {
    let start = html.trim_start().get(..9).unwrap_or_default().to_ascii_lowercase();
    start.starts_with("<!doctype") || start.starts_with("<html")
}
