//! Payload of a message for a service worker, with its topic and urgency.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::digest;
use serde::Serialize;
use serde_json::{Map, Value};
use tocsin_model::{delivery_policy::Priority, length::floor_boundary};

use super::encrypt::TEXT_BYTES_MAX;
use crate::channel::Message;

/// Default payload, if no template makes one.
#[derive(Serialize)]
struct Payload<'a> {
    /// The same at every attempt.
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    /// Unsubscribe link of the recipient.
    #[serde(skip_serializing_if = "Option::is_none")]
    unsubscribe: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Map<String, Value>>,
}

/// The payload: the JSON made by a template, or `{id, title, body, unsubscribe, data}`, shortened if necessary.
///
/// # Errors
/// The length of a template's JSON that is too long.
pub(super) fn payload(message: &Message, unsubscribe: Option<&str>) -> Result<Vec<u8>, usize> {
    let said = &message.content;
    if let Some(json) = &said.json {
        return if json.len() <= TEXT_BYTES_MAX { Ok(json.clone().into_bytes()) } else { Err(json.len()) };
    }
    let mut payload = Payload {
        id: &message.message_id,
        title: said.subject.as_deref(),
        body: said.sms.as_deref().or(said.text.as_deref()).map(str::trim_end),
        unsubscribe,
        data: Some(&**message.facts.fields),
    };
    let write = |payload: &Payload<'_>| serde_json::to_vec(payload).expect("text and JSON become JSON");
    let mut bytes = write(&payload);
    if bytes.len() > TEXT_BYTES_MAX {
        payload.data = None;
        bytes = write(&payload);
    }
    // Escapes lengthen the text, so several rounds may be needed; each removes at least the excess.
    while bytes.len() > TEXT_BYTES_MAX {
        let Some(text) = payload.body.filter(|text| !text.is_empty()).or(payload.title) else {
            return Err(bytes.len());
        };
        let keep = text.len().saturating_sub((bytes.len() - TEXT_BYTES_MAX).div_ceil(6).max(1));
        let end = floor_boundary(text, keep);
        match payload.body.filter(|text| !text.is_empty()) {
            Some(_) => payload.body = Some(&text[..end]),
            None if text.is_empty() => return Err(bytes.len()),
            None => payload.title = Some(&text[..end]),
        }
        bytes = write(&payload);
    }
    Ok(bytes)
}

/// Value of `Topic`, from the content's header of this name: a push service keeps only the latest message of a topic
/// for an offline browser. An invalid topic (RFC 8030, 5.4) is replaced by a hash.
pub(super) fn topic(message: &Message) -> Option<String> {
    let (_, text) = message.content.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("topic"))?;
    let is_topic = (1..=32).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if text.is_empty() {
        return None;
    }
    let hashed = || BASE64_URL_SAFE_NO_PAD.encode(&digest::digest(&digest::SHA256, text.as_bytes()).as_ref()[..24]);
    Some(if is_topic { text.clone() } else { hashed() })
}

/// The value of `Urgency` (RFC 8030, 5.3).
pub(super) fn urgency(priority: Priority) -> &'static str {
    match priority {
        Priority::Urgent | Priority::High => "high",
        Priority::Normal => "normal",
        Priority::Low => "low",
    }
}
