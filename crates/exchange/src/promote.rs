//! Properties are taken out of a message: by their place in its body, or from a header.

use tocsin_model::{
    exchange::{CONTEXT_FIELDS, MessageKind, Place},
    field::Row,
    id::Name,
    value::Value,
};
use tocsin_store::spool::Head;

use crate::compile::Compiled;

/// Longest text of a property, in bytes; what is longer is none, so that heads stay small.
const TEXT_BYTES_MAX: usize = 1_024;
/// Most bytes of the headers that are kept of a message; further ones are left out.
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// What is kept of a message's headers and body beside the body.
pub(crate) fn head(compiled: &Compiled, content_type: String, headers: Vec<(String, String)>, body: &[u8]) -> Head {
    let mut bytes = 0;
    let kept = |(name, value): &(String, String)| {
        let wanted = compiled.headers_kept.binary_search(name).is_ok();
        bytes += if wanted { name.len() + value.len() } else { 0 };
        wanted && bytes <= HEADER_BYTES_MAX
    };
    let headers: Vec<(String, String)> = headers.into_iter().filter(kept).collect();
    let properties = properties(compiled, &content_type, &headers, body);
    Head { content_type, headers, properties, hops: 0 }
}

fn properties(
    compiled: &Compiled,
    content_type: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> Vec<(Name, Value)> {
    let properties = &compiled.definition.properties;
    let asks_body = properties.iter().any(|property| matches!(property.from, Place::Json(_)));
    let may_be_json = content_type.is_empty() || content_type.contains("json");
    let json: Option<serde_json::Value> =
        (asks_body && may_be_json).then(|| serde_json::from_slice(body).ok()).flatten();
    let found = properties.iter().filter_map(|property| {
        let value = match &property.from {
            Place::Json(path) => Value::from(path.find(json.as_ref()?)?.clone()),
            Place::Header(name) => from_header(&headers.iter().find(|(known, _)| known == name)?.1, property.kind),
        };
        let value = property.kind.accept(value).ok().filter(|value| !value.is_null())?;
        let is_short = !matches!(&value, Value::Text(text) if text.len() > TEXT_BYTES_MAX);
        is_short.then(|| (property.name.clone(), value))
    });
    found.collect()
}

/// A header is text; what a number or a truth value should be is read from it.
fn from_header(text: &str, kind: tocsin_model::field::FieldType) -> Value {
    use tocsin_model::field::FieldType;
    match kind {
        FieldType::String | FieldType::Timestamp => Value::from(text),
        _ => serde_json::from_str::<serde_json::Value>(text).map_or_else(|_| Value::from(text), Value::from),
    }
}

/// What routes see: the context, then the properties.
pub(crate) fn row(compiled: &Compiled, port: &Name, kind: MessageKind, head: &Head, bytes: usize) -> Row {
    let mut row = vec![Value::Null; compiled.fields.len()];
    row[0] = Value::from(port.as_str());
    row[1] = Value::from(kind.word());
    row[2] = if head.content_type.is_empty() { Value::Null } else { Value::from(head.content_type.as_str()) };
    row[3] = Value::Integer(i64::try_from(bytes).unwrap_or(i64::MAX));
    for (name, value) in &head.properties {
        if let Some(at) = compiled.fields.position(name.as_str()).filter(|at| *at >= CONTEXT_FIELDS.len()) {
            row[at] = value.clone();
        }
    }
    row
}

/// The text of a property, as places in URLs and searches have it.
pub(crate) fn text_of(head: &Head, name: &str) -> Option<String> {
    let (_, value) = head.properties.iter().find(|(known, _)| known.as_str() == name)?;
    Some(match value {
        Value::Text(text) => text.to_string(),
        other => serde_json::Value::from(other.clone()).to_string(),
    })
}

/// What a reply does not say itself it has from its request, so that a route can lead it back.
pub(crate) fn inherit(reply: &mut Head, request: &Head) {
    reply.hops = request.hops + 1;
    for (name, value) in &request.properties {
        if !reply.properties.iter().any(|(known, _)| known == name) {
            reply.properties.push((name.clone(), value.clone()));
        }
    }
}
