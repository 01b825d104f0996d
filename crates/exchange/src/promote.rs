//! Property promotion: extracts properties from a JSON or XML body by path, or from a header.

use std::collections::BTreeMap;

use ring::digest;
use tocsin_model::{
    charset::Syntax,
    exact_json,
    exchange::{CONTEXT_FIELDS, Exchange, JsonPath, MessageKind, Property, PropertyLocation, Step, XmlPath},
    field::{FieldType, Fields, Row},
    id::Name,
    media_type,
    value::Value,
};
use tocsin_store::spool::Head;

use crate::message::{PipelineMessage, decoded_body};

mod xml; // values at paths of an XML body

/// Maximum text of a property, in bytes. Longer texts are ignored, so that heads stay small.
const TEXT_BYTES_MAX: usize = 1_024;
/// Maximum bytes of stored headers; further headers are dropped.
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Values that an exchange reads from its messages: properties, the fields of predicates, and headers.
pub(crate) struct MessageSchema {
    /// The fields of predicates: those of the context, then the properties.
    pub fields: Fields,
    properties: Vec<Property>,
    /// Headers that are stored with each message, sorted, in lower case.
    headers_kept: Vec<String>,
    /// The properties that the steps of each receive port promote.
    promoted: BTreeMap<Name, Vec<(Name, PropertyLocation)>>,
}

impl MessageSchema {
    pub fn new(exchange: &Exchange) -> MessageSchema {
        let promoted = |steps: &[Step]| -> Vec<(Name, PropertyLocation)> {
            let promoted = steps.iter().rev().filter_map(|step| match step {
                Step::Promote(places) => Some(places.iter().cloned()),
                _ => None,
            });
            promoted.flatten().collect()
        };
        MessageSchema {
            fields: exchange.fields(),
            properties: exchange.properties.clone(),
            headers_kept: headers_kept(exchange),
            promoted: exchange.receive.iter().map(|(name, port)| (name.clone(), promoted(&port.pipeline.0))).collect(),
        }
    }
}

/// The headers that a property, a step or a send port uses, and `content-encoding`, without which the body cannot be
/// decoded.
fn headers_kept(exchange: &Exchange) -> Vec<String> {
    let header = |place: &PropertyLocation| match place {
        PropertyLocation::Header(name) => Some(name.clone()),
        PropertyLocation::Json(_) | PropertyLocation::Xml(_) => None,
    };
    let properties = exchange.properties.iter().filter_map(|property| header(&property.from));
    let receive = exchange.receive.values().map(|port| &port.pipeline);
    let pipelines = receive.chain(exchange.send.values().map(|port| &port.reply_pipeline));
    let steps = pipelines.flat_map(|pipeline| &pipeline.0).flat_map(|step| match step {
        Step::Promote(places) => places.iter().filter_map(|(_, place)| header(place)).collect(),
        _ => Vec::new(),
    });
    let transports = exchange.send.values().flat_map(|port| std::iter::once(&port.transport).chain(&port.backup));
    let forwarded = transports.filter_map(|transport| transport.options.get("forward")?.as_array());
    let forwarded = forwarded.flatten().filter_map(|name| Some(name.as_str()?.to_ascii_lowercase()));
    let packed = std::iter::once("content-encoding".to_owned());
    let mut kept: Vec<String> = packed.chain(properties).chain(steps).chain(forwarded).collect();
    kept.sort();
    kept.dedup();
    kept
}

/// Builds the head: the part of a message that is stored beside its body. Properties that steps promoted have
/// precedence; the others are extracted from the present body and headers.
pub(crate) fn head(schema: &MessageSchema, message: &PipelineMessage) -> Head {
    let mut bytes = 0;
    let kept = |(name, value): &&(String, String)| {
        let wanted = schema.headers_kept.binary_search(name).is_ok();
        bytes += if wanted { name.len() + value.len() } else { 0 };
        wanted && bytes <= HEADER_BYTES_MAX
    };
    let headers: Vec<(String, String)> = message.headers.iter().filter(kept).cloned().collect();
    let declared = &schema.properties;
    let promoted = |property: &Property| {
        let (_, value) = message.properties.iter().find(|(name, _)| *name == property.name)?;
        accepted(property, value.clone())
    };
    let mut properties: Vec<(Name, Value)> =
        declared.iter().filter_map(|property| Some((property.name.clone(), promoted(property)?))).collect();
    let missing = declared.iter().filter(|property| !properties.iter().any(|(name, _)| *name == property.name));
    let missing: Vec<(&Property, &PropertyLocation)> = missing.map(|property| (property, &property.from)).collect();
    properties.extend(find(&missing, message));
    let (content_type, trace) = (message.content_type.clone(), message.trace.clone());
    Head { content_type, headers, properties, trace, ..Head::default() }
}

/// Promotes properties again after an operator changed the body.
///
/// A property whose value came from the old body gets the value at the same path of the new body, or none. A property
/// from another origin (an envelope, the request, an operator) stays, unless the new body has a value at the path of
/// the definition. Paths are tried in this order: those of the receive port's steps, last first, then that of the
/// definition.
pub(crate) fn promote_again(
    schema: &MessageSchema,
    port: &Name,
    before: (&Head, &PipelineMessage),
    now: &PipelineMessage,
) -> Vec<(Name, Value)> {
    let (head, old) = before;
    let promoted = schema.promoted.get(port).map_or(&[][..], Vec::as_slice);
    let mut properties = Vec::new();
    for property in &schema.properties {
        let steps = promoted.iter().filter(|(name, _)| *name == property.name).map(|(_, place)| place);
        let places: Vec<&PropertyLocation> = steps.chain([&property.from]).collect();
        let given = |message: &PipelineMessage, place: &PropertyLocation| {
            find(&[(property, place)], message).pop().map(|(_, value)| value)
        };
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

/// The reason why the body cannot be read for properties: its bytes do not match its encoding, or the encoding is
/// unknown. `None` if no property is defined on the body.
pub(crate) fn unreadable(schema: &MessageSchema, message: &PipelineMessage) -> Option<String> {
    let kind = &*message.content_type;
    let is_xml = kind.is_empty() || media_type::is_xml(kind);
    let syntax = if is_xml { Syntax::Xml } else { Syntax::Json };
    let looks_there = |property: &Property| match property.from {
        PropertyLocation::Xml(_) => is_xml,
        PropertyLocation::Json(_) => kind.is_empty() || media_type::is_json(kind) || media_type::is_json_lines(kind),
        PropertyLocation::Header(_) => false,
    };
    let is_looked_at = schema.properties.iter().any(looks_there);
    decoded_body(message, syntax).err().filter(|_| is_looked_at)
}

/// Promotes properties from the present message.
pub(crate) fn promote(places: &[(Property, PropertyLocation)], message: &mut PipelineMessage) {
    let places: Vec<(&Property, &PropertyLocation)> =
        places.iter().map(|(property, place)| (property, place)).collect();
    for (name, value) in find(&places, message) {
        message.properties.retain(|(known, _)| *known != name);
        message.properties.push((name, value));
    }
}

fn find(places: &[(&Property, &PropertyLocation)], message: &PipelineMessage) -> Vec<(Name, Value)> {
    let json_paths: Vec<&JsonPath> = places.iter().filter_map(|(_, place)| json_path(place)).collect();
    let kind = &*message.content_type;
    let may_be_json = kind.is_empty() || media_type::is_json(kind) || media_type::is_json_lines(kind);
    let may_be_json = may_be_json && !message.body.is_empty();
    let json = (!json_paths.is_empty() && may_be_json)
        .then(|| find_json(&json_paths, decoded_body(message, Syntax::Json).ok()?.as_bytes()))
        .flatten();
    let mut json = json.unwrap_or_default().into_iter();
    let xml_paths: Vec<&XmlPath> = places.iter().filter_map(|(_, place)| xml_path(place)).collect();
    let may_be_xml = kind.is_empty() || media_type::is_xml(kind);
    let xml = (!xml_paths.is_empty() && may_be_xml)
        .then(|| xml::find(&decoded_body(message, Syntax::Xml).ok()?, &xml_paths, TEXT_BYTES_MAX))
        .flatten();
    let mut xml = xml.unwrap_or_default().into_iter();
    let found = places.iter().filter_map(|(property, place)| {
        let value = match place {
            PropertyLocation::Json(_) => Value::from(json.next()??),
            PropertyLocation::Xml(_) => from_text(&xml.next()??, property.kind),
            PropertyLocation::Header(name) => {
                from_text(&message.headers.iter().find(|(known, _)| known == name)?.1, property.kind)
            }
        };
        Some((property.name.clone(), accepted(property, value)?))
    });
    found.collect()
}

fn find_json(paths: &[&JsonPath], body: &[u8]) -> Option<Vec<Option<serde_json::Value>>> {
    match JsonPath::find_each(paths, body) {
        Ok(found) => Some(found),
        // A number beyond the range of a double must not hide other values.
        Err(_) if exact_json::has_inexact_numbers(body) => JsonPath::find_each_exact(paths, body).ok(),
        Err(_) => None,
    }
}

fn json_path(place: &PropertyLocation) -> Option<&JsonPath> {
    match place {
        PropertyLocation::Json(path) => Some(path),
        PropertyLocation::Xml(_) | PropertyLocation::Header(_) => None,
    }
}

fn xml_path(place: &PropertyLocation) -> Option<&XmlPath> {
    match place {
        PropertyLocation::Xml(path) => Some(path),
        PropertyLocation::Json(_) | PropertyLocation::Header(_) => None,
    }
}

/// The value in the property's type, if it is valid and short enough.
fn accepted(property: &Property, value: Value) -> Option<Value> {
    let value = property.kind.accept(value).ok().filter(|value| !value.is_null())?;
    let is_short = !matches!(&value, Value::Text(text) if text.len() > TEXT_BYTES_MAX);
    is_short.then_some(value)
}

/// Parses a header or XML text as XML Schema writes values, with white space collapsed: `007`, `+7`, `.5`, `1`. Text
/// that cannot be parsed stays text, which is no value of another type.
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

/// An `xs:dateTime` with a zone (RFC 3339), or an `xs:date` with a zone, which means its first moment. Values without a
/// zone are not instants.
fn instant(text: &str) -> Value {
    let date = text.get(..10).filter(|date| date.bytes().filter(|byte| *byte == b'-').count() == 2);
    match (date, text.get(10..)) {
        (Some(date), Some(zone)) if zone == "Z" || zone.starts_with(['+', '-']) => {
            Value::from(format!("{date}T00:00:00{zone}").as_str())
        }
        _ => Value::from(text),
    }
}

/// The row that routes evaluate: the context fields, then the properties.
pub(crate) fn row(schema: &MessageSchema, port: &Name, kind: MessageKind, head: &Head, bytes: usize) -> Row {
    let mut row = vec![Value::Null; schema.fields.len()];
    row[0] = Value::from(port.as_str());
    row[1] = Value::from(kind.word());
    // Media types are case-insensitive; predicates get them in lower case.
    row[2] =
        if head.content_type.is_empty() { Value::Null } else { Value::from(&*media_type::normal(&head.content_type)) };
    row[3] = Value::Integer(i64::try_from(bytes).unwrap_or(i64::MAX));
    for (name, value) in &head.properties {
        if let Some(at) = schema.fields.position(name.as_str()).filter(|at| *at >= CONTEXT_FIELDS.len()) {
            row[at] = match (value, schema.fields.iter().as_slice()[at].kind) {
                // A stored head has instants as text.
                (Value::Text(_), FieldType::Timestamp) => {
                    FieldType::Timestamp.accept(value.clone()).unwrap_or_default()
                }
                _ => value.clone(),
            };
        }
    }
    row
}

/// The text of a property, for placeholders in URLs and for searches.
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

/// Copies properties that a reply lacks from its request, so that a route can return the reply.
pub(crate) fn inherit(reply: &mut Head, request: &Head) {
    reply.hops = request.hops + 1;
    for (name, value) in &request.properties {
        if !reply.properties.iter().any(|(known, _)| known == name) {
            reply.properties.push((name.clone(), value.clone()));
        }
    }
}

/// The correlation key of a message (a hash of these properties), or the property that it lacks.
pub(crate) fn correlation_key(head: &Head, properties: &[Name]) -> Result<String, Name> {
    let mut hash = digest::Context::new(&digest::SHA256);
    for name in properties {
        let value = text_of(head, name.as_str()).ok_or_else(|| name.clone())?;
        for text in [name.as_str(), &value] {
            hash.update(&(text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
    }
    Ok(hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}
