//! A message as data, for programs: a JSON object in a line with all that is known of it, or a body with what it says.

use serde::Serialize;
use serde_json::value::RawValue;
use tocsin_model::{
    id::{EventId, Name, NotificationId},
    time::Timestamp,
};

use crate::channel::{Message, Outgoing};

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

/// Appends a message as a JSON object, without a line end and with nothing in it that looks like one.
pub(crate) fn write_json(outgoing: &Outgoing, out: &mut Vec<u8>) {
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

/// The payload of Standard Webhooks 1.0.
#[derive(Serialize)]
struct Payload<'a> {
    id: &'a str,
    r#type: &'a Name,
    timestamp: Timestamp,
    data: &'a serde_json::Map<String, serde_json::Value>,
}

/// What a message says to a program: the JSON that its template made, or the payload of Standard Webhooks.
pub(crate) fn body(message: &Message) -> String {
    if let Some(json) = &message.content.json {
        return json.clone();
    }
    let payload = Payload {
        id: &message.message_id,
        r#type: &message.facts.class,
        timestamp: message.formatted_at,
        data: &message.facts.fields,
    };
    serde_json::to_string(&payload).expect("text, a time and JSON become JSON")
}
