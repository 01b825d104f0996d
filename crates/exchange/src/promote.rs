//! Properties are taken out of a message: by their place in its body, of JSON or XML, or from a header.

use tocsin_model::{
    exchange::{CONTEXT_FIELDS, JsonPath, MessageKind, Place, Property, XmlPath},
    field::Row,
    id::Name,
    value::Value,
};
use tocsin_store::spool::Head;

use crate::{compile::Compiled, pipeline::Parcel};

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
    let may_be_json = parcel.content_type.is_empty() || parcel.content_type.contains("json");
    let may_be_json = may_be_json && !parcel.body.is_empty();
    let json =
        (!json_paths.is_empty() && may_be_json).then(|| JsonPath::find_each(&json_paths, &parcel.body).ok()).flatten();
    let mut json = json.unwrap_or_default().into_iter();
    let xml_paths: Vec<&XmlPath> = places.iter().filter_map(|(_, place)| xml_path(place)).collect();
    let may_be_xml = parcel.content_type.is_empty() || parcel.content_type.contains("xml");
    let xml =
        (!xml_paths.is_empty() && may_be_xml).then(|| xml::find(&parcel.body, &xml_paths, TEXT_BYTES_MAX)).flatten();
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

/// A header is text, and so is XML; what a number or a truth value should be is read from it.
fn from_text(text: &str, kind: tocsin_model::field::FieldType) -> Value {
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
