//! JSON records of messages for files and programs: one object a line, or the body of a message.

use std::{borrow::Cow, io::Write, sync::Arc};

use serde::de::IgnoredAny;
use tocsin_model::content::{Content, JsonUse, PartsUsed};

use crate::channel::{FactFields, Facts, Message, Outgoing};

/// Parts of a content in a record.
pub(crate) const RECORD_PARTS: PartsUsed = PartsUsed { sms: false, ..PartsUsed::ALL };
/// Parts of a content in a body.
pub(crate) const BODY_PARTS: PartsUsed = PartsUsed { json: JsonUse::Always, ..PartsUsed::NONE };

/// Cached end of a record: the content's fields. Consecutive messages often share it.
#[derive(Default)]
pub(crate) struct Ending {
    of: Option<(Arc<Content>, Arc<FactFields>)>,
    text: Vec<u8>,
}

impl Ending {
    fn of(&mut self, message: &Message) -> &[u8] {
        let (content, fields) = (&message.content, &message.facts.fields);
        let is_same = |(known, cached): &(Arc<Content>, Arc<FactFields>)| {
            Arc::ptr_eq(known, content) && Arc::ptr_eq(cached, fields)
        };
        if !self.of.as_ref().is_some_and(is_same) {
            self.text.clear();
            for (name, part) in [("subject", &content.subject), ("text", &content.text), ("html", &content.html)] {
                if let Some(part) = part {
                    write_member(name, part, &mut self.text);
                }
            }
            self.text.extend_from_slice(b",\"data\":");
            self.text.extend_from_slice(data(content).as_deref().unwrap_or_else(|| fields.text()).as_bytes());
            self.text.push(b'}');
            self.of = Some((content.clone(), fields.clone()));
        }
        &self.text
    }
}

/// JSON made by a template, in one line: line ends between tokens become spaces.
fn data(content: &Content) -> Option<Cow<'_, str>> {
    let json = content.json.as_deref()?;
    serde_json::from_str::<IgnoredAny>(json).ok()?;
    Some(if json.contains(['\n', '\r']) { json.replace(['\n', '\r'], " ").into() } else { json.into() })
}

/// Appends a message as a JSON object, without any line end.
pub(crate) fn write_json(outgoing: &Outgoing, ending: &mut Ending, out: &mut Vec<u8>) {
    let Outgoing { id, address, message, .. } = outgoing;
    // These names and numbers need no escaping.
    let _ = write!(out, r#"{{"id":"{id}""#);
    write_member("message_id", &message.message_id, out);
    let Facts { application, class, event, .. } = &message.facts;
    let _ = write!(out, r#","timestamp":"{}","application":"{application}","type":"{class}""#, message.formatted_at);
    if let Some(event) = event {
        let _ = write!(out, r#","event":"{event}""#);
    }
    write_member("address", address, out);
    out.extend_from_slice(ending.of(message));
}

/// Appends a further member with a text.
fn write_member(name: &str, text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    serde_json::to_writer(out, text).expect("a text becomes JSON in memory");
}

/// Body for a program: the JSON made by a template, or the payload of Standard Webhooks 1.0.
pub(crate) fn body(message: &Message) -> String {
    if let Some(json) = &message.content.json {
        return json.clone();
    }
    let (Facts { class, fields, .. }, time) = (&message.facts, message.formatted_at);
    let mut out = Vec::with_capacity(128 + fields.text().len());
    out.extend_from_slice(b"{\"id\":");
    serde_json::to_writer(&mut out, &message.message_id).expect("a text becomes JSON in memory");
    let _ = write!(out, r#","type":"{class}","timestamp":"{time}","data":{}}}"#, fields.text());
    String::from_utf8(out).expect("JSON is text")
}
