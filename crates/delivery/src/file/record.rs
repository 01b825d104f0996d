use serde::Serialize;
use serde_json::value::RawValue;
use tocsin_model::{
    id::{EventId, Name, NotificationId},
    time::Timestamp,
};

use super::options::RecordFormat;
use crate::channel::Outgoing;

/// A record as a JSON object.
#[derive(Serialize)]
struct Record<'a> {
    id: NotificationId,
    message_id: &'a str,
    timestamp: Timestamp,
    application: &'a Name,
    #[serde(rename = "type")]
    class: &'a Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<EventId>,
    address: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<&'a str>,
    data: Data<'a>,
}

/// What a template made, or the notification's fields.
#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Made(Box<RawValue>),
    Fields(&'a serde_json::Map<String, serde_json::Value>),
}

/// Appends the record of a message, with its line end, and nothing else that looks like a line end.
pub(super) fn write(outgoing: &Outgoing, format: RecordFormat, out: &mut Vec<u8>) {
    match format {
        RecordFormat::Ndjson => write_json(outgoing, out),
        RecordFormat::Text => write_text(outgoing.message.content.text.as_deref().unwrap_or_default(), out),
    }
    out.push(b'\n');
}

fn write_json(outgoing: &Outgoing, out: &mut Vec<u8>) {
    let content = &outgoing.message.content;
    let made = content.json.as_deref().and_then(|json| {
        // A template may break its JSON into lines; between tokens, where only they can stand, line ends are spaces.
        let line = if json.contains(['\n', '\r']) { json.replace(['\n', '\r'], " ") } else { json.to_owned() };
        RawValue::from_string(line).ok()
    });
    let record = Record {
        id: outgoing.id,
        message_id: &outgoing.message.message_id,
        timestamp: outgoing.message.formatted_at,
        application: &outgoing.message.facts.application,
        class: &outgoing.message.facts.class,
        event: outgoing.message.facts.event,
        address: &outgoing.address,
        subject: content.subject.as_deref(),
        text: content.text.as_deref(),
        html: content.html.as_deref(),
        data: made.map_or(Data::Fields(&outgoing.message.facts.fields), Data::Made),
    };
    serde_json::to_writer(out, &record).expect("text, times and JSON become JSON in memory");
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.find(['\n', '\r', '\\']) {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        out.extend_from_slice(match rest.as_bytes()[at] {
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            _ => b"\\\\",
        });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest.as_bytes());
}
