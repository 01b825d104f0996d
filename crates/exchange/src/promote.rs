//! Properties are taken out of a message: by their place in its body, of JSON or XML, or from a header.

use tocsin_model::{
    charset::Syntax,
    exact_json,
    exchange::{CONTEXT_FIELDS, JsonPath, MessageKind, Place, Property, Step, XmlPath},
    field::{FieldType, Row},
    id::Name,
    media_type,
    value::Value,
};
use tocsin_store::spool::Head;

use crate::{
    compile::Compiled,
    pipeline::{Parcel, decoded_body},
};

mod xml; // values in a body of XML

/// Longest text of a property, in bytes; what is longer is none, so that heads stay small.
const TEXT_BYTES_MAX: usize = 1_024;
/// Most bytes of the headers that are kept of a message; further ones are left out.
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// What is kept of a message beside its body. What steps have promoted holds; the rest is found in the body and the headers
/// as they are now.
pub(crate) fn head(compiled: &Compiled, parcel: &Parcel) -> Head {
    let mut bytes = 0;
    let kept = |(name, value): &&(String, String)| {
        let wanted = compiled.headers_kept.binary_search(name).is_ok();
        bytes += if wanted { name.len() + value.len() } else { 0 };
        wanted && bytes <= HEADER_BYTES_MAX
    };
    let headers: Vec<(String, String)> = parcel.headers.iter().filter(kept).cloned().collect();
    let declared = &compiled.definition.properties;
    let promoted = |property: &Property| {
        let (_, value) = parcel.properties.iter().find(|(name, _)| *name == property.name)?;
        accepted(property, value.clone())
    };
    let mut properties: Vec<(Name, Value)> =
        declared.iter().filter_map(|property| Some((property.name.clone(), promoted(property)?))).collect();
    let missing = declared.iter().filter(|property| !properties.iter().any(|(name, _)| *name == property.name));
    let missing: Vec<(&Property, &Place)> = missing.map(|property| (property, &property.from)).collect();
    properties.extend(find(&missing, parcel));
    let (content_type, trace) = (parcel.content_type.clone(), parcel.trace.clone());
    Head { content_type, headers, properties, trace, ..Head::default() }
}

/// The properties of a message whose body an operator changed, from what it was and what it is.
///
/// A property that the body before gave has the value that the body now gives at the same place, or none if it gives none. One
/// that came from elsewhere, such as an envelope, the request that it answers or an operator, stays, unless the body now gives
/// one where the definition looks for it. Places are those that steps of the receive port promote from, the last first, and then
/// the one of the definition.
pub(crate) fn promote_again(
    compiled: &Compiled,
    port: &Name,
    before: (&Head, &Parcel),
    now: &Parcel,
) -> Vec<(Name, Value)> {
    let (head, old) = before;
    let steps = compiled.definition.receive.get(port).map_or(&[][..], |port| &port.pipeline.0);
    let promoted = steps.iter().rev().filter_map(|step| match step {
        Step::Promote(places) => Some(places),
        _ => None,
    });
    let promoted: Vec<&(Name, Place)> = promoted.flatten().collect();
    let mut properties = Vec::new();
    for property in &compiled.definition.properties {
        let steps = promoted.iter().filter(|(name, _)| *name == property.name).map(|(_, place)| place);
        let places: Vec<&Place> = steps.chain([&property.from]).collect();
        let given = |parcel: &Parcel, place: &Place| find(&[(property, place)], parcel).pop().map(|(_, value)| value);
        let stored = head.properties.iter().find(|(name, _)| *name == property.name);
        let stored = stored.and_then(|(_, value)| property.kind.accept(value.clone()).ok());
        let origin =
            stored.as_ref().and_then(|stored| places.iter().find(|place| given(old, place).as_ref() == Some(stored)));
        let value = match (origin, stored) {
            (Some(place), _) => given(now, place),
            (None, Some(stored)) => given(now, &property.from).or(Some(stored)),
            (None, None) => places.iter().find_map(|place| given(now, place)),
        };
        properties.extend(value.map(|value| (property.name.clone(), value)));
    }
    properties
}

/// Why no property can be found in the body of a message: its bytes are not of its encoding, or that is unknown. `None` if the
/// definition looks for none there.
pub(crate) fn unreadable(compiled: &Compiled, parcel: &Parcel) -> Option<String> {
    let kind = &*parcel.content_type;
    let is_xml = kind.is_empty() || media_type::is_xml(kind);
    let syntax = if is_xml { Syntax::Xml } else { Syntax::Json };
    let looks_there = |property: &Property| match property.from {
        Place::Xml(_) => is_xml,
        Place::Json(_) => kind.is_empty() || media_type::is_json(kind) || media_type::is_json_lines(kind),
        Place::Header(_) => false,
    };
    let is_looked_at = compiled.definition.properties.iter().any(looks_there);
    decoded_body(parcel, syntax).err().filter(|_| is_looked_at)
}

/// Takes properties out of a message as it is now.
pub(crate) fn take(places: &[(Property, Place)], parcel: &mut Parcel) {
    let places: Vec<(&Property, &Place)> = places.iter().map(|(property, place)| (property, place)).collect();
    for (name, value) in find(&places, parcel) {
        parcel.properties.retain(|(known, _)| *known != name);
        parcel.properties.push((name, value));
    }
}

fn find(places: &[(&Property, &Place)], parcel: &Parcel) -> Vec<(Name, Value)> {
    let json_paths: Vec<&JsonPath> = places.iter().filter_map(|(_, place)| json_path(place)).collect();
    let kind = &*parcel.content_type;
    let may_be_json = kind.is_empty() || media_type::is_json(kind) || media_type::is_json_lines(kind);
    let may_be_json = may_be_json && !parcel.body.is_empty();
    let json = (!json_paths.is_empty() && may_be_json)
        .then(|| find_json(&json_paths, decoded_body(parcel, Syntax::Json).ok()?.as_bytes()))
        .flatten();
    let mut json = json.unwrap_or_default().into_iter();
    let xml_paths: Vec<&XmlPath> = places.iter().filter_map(|(_, place)| xml_path(place)).collect();
    let may_be_xml = kind.is_empty() || media_type::is_xml(kind);
    let xml = (!xml_paths.is_empty() && may_be_xml)
        .then(|| xml::find(&decoded_body(parcel, Syntax::Xml).ok()?, &xml_paths, TEXT_BYTES_MAX))
        .flatten();
    let mut xml = xml.unwrap_or_default().into_iter();
    let found = places.iter().filter_map(|(property, place)| {
        let value = match place {
            Place::Json(_) => Value::from(json.next()??),
            Place::Xml(_) => from_text(&xml.next()??, property.kind),
            Place::Header(name) => from_text(&parcel.headers.iter().find(|(known, _)| known == name)?.1, property.kind),
        };
        Some((property.name.clone(), accepted(property, value)?))
    });
    found.collect()
}

fn find_json(paths: &[&JsonPath], body: &[u8]) -> Option<Vec<Option<serde_json::Value>>> {
    match JsonPath::find_each(paths, body) {
        Ok(found) => Some(found),
        // A number beyond a double keeps nothing else from being found.
        Err(_) if exact_json::has_inexact_numbers(body) => JsonPath::find_each_exact(paths, body).ok(),
        Err(_) => None,
    }
}

fn json_path(place: &Place) -> Option<&JsonPath> {
    match place {
        Place::Json(path) => Some(path),
        Place::Xml(_) | Place::Header(_) => None,
    }
}

fn xml_path(place: &Place) -> Option<&XmlPath> {
    match place {
        Place::Xml(path) => Some(path),
        Place::Json(_) | Place::Header(_) => None,
    }
}

/// The value of a property, if it may have it.
fn accepted(property: &Property, value: Value) -> Option<Value> {
    let value = property.kind.accept(value).ok().filter(|value| !value.is_null())?;
    let is_short = !matches!(&value, Value::Text(text) if text.len() > TEXT_BYTES_MAX);
    is_short.then_some(value)
}

/// A header is text, and so is XML: a number, a truth value or an instant is read from it as XML Schema writes these, with
/// white space collapsed: `007`, `+7`, `.5`, `1`. What cannot be read stays text, which is no value of another type.
fn from_text(text: &str, kind: FieldType) -> Value {
    let trimmed = text.trim_matches(|character| matches!(character, ' ' | '\t' | '\r' | '\n'));
    let read = match kind {
        FieldType::String => None,
        FieldType::Boolean => match trimmed {
            "true" | "1" => Some(Value::Boolean(true)),
            "false" | "0" => Some(Value::Boolean(false)),
            _ => None,
        },
        FieldType::Integer => integer(trimmed),
        FieldType::Number => number(trimmed),
        FieldType::Timestamp => Some(instant(trimmed)),
        FieldType::List | FieldType::Map => serde_json::from_str::<serde_json::Value>(trimmed).ok().map(Value::from),
    };
    read.unwrap_or_else(|| Value::from(text))
}

/// An `xs:integer`, or a number without a fraction, such as `7.0` or `1e3`.
fn integer(text: &str) -> Option<Value> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse::<i64>().ok().map(Value::Integer);
    }
    number(text)
}

/// An `xs:decimal` or a finite `xs:double`.
fn number(text: &str) -> Option<Value> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E'));
    let read = text.parse::<f64>().ok().filter(|number| is_number && number.is_finite());
    read.map(Value::Number)
}

/// An `xs:dateTime` with a zone, which is RFC 3339; or an `xs:date` with a zone, which is its first moment. One without a zone
/// is no instant.
fn instant(text: &str) -> Value {
    let date = text.get(..10).filter(|date| date.bytes().filter(|byte| *byte == b'-').count() == 2);
    match (date, text.get(10..)) {
        (Some(date), Some(zone)) if zone == "Z" || zone.starts_with(['+', '-']) => {
            Value::from(format!("{date}T00:00:00{zone}").as_str())
        }
        _ => Value::from(text),
    }
}

/// What routes see: the context, then the properties.
pub(crate) fn row(compiled: &Compiled, port: &Name, kind: MessageKind, head: &Head, bytes: usize) -> Row {
    let mut row = vec![Value::Null; compiled.fields.len()];
    row[0] = Value::from(port.as_str());
    row[1] = Value::from(kind.word());
    // Types are equal in any case: predicates see them in lower case.
    row[2] =
        if head.content_type.is_empty() { Value::Null } else { Value::from(&*media_type::normal(&head.content_type)) };
    row[3] = Value::Integer(i64::try_from(bytes).unwrap_or(i64::MAX));
    for (name, value) in &head.properties {
        if let Some(at) = compiled.fields.position(name.as_str()).filter(|at| *at >= CONTEXT_FIELDS.len()) {
            row[at] = match (value, compiled.fields.iter().as_slice()[at].kind) {
                // A head that was stored has instants as texts.
                (Value::Text(_), FieldType::Timestamp) => {
                    FieldType::Timestamp.accept(value.clone()).unwrap_or_default()
                }
                _ => value.clone(),
            };
        }
    }
    row
}

/// The text of a property, as places in URLs and searches have it.
pub(crate) fn text_of(head: &Head, name: &str) -> Option<String> {
    let (_, value) = head.properties.iter().find(|(known, _)| known.as_str() == name)?;
    Some(as_text(value))
}

/// A value as text.
pub(crate) fn as_text(value: &Value) -> String {
    match value {
        Value::Text(text) => text.to_string(),
        other => serde_json::Value::from(other.clone()).to_string(),
    }
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
