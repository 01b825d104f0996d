//! Splits a message into the items of a JSON list, its lines, or its XML elements; all of them or none.

use std::{collections::BTreeMap, rc::Rc};

use bytes::Bytes;
use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use serde_json::value::RawValue;
use tocsin_model::exchange::{JsonPath, Split};

use crate::message::{BYTES_MAX, PipelineMessage};

const DEPTH_MAX: usize = 256;
/// Maximum namespaces in scope of an element.
const NAMESPACES_MAX: usize = 256;

/// Namespace declarations in scope. Most elements declare none and share the scope of their parent.
type Scope = Rc<BTreeMap<Rc<str>, Rc<str>>>;

pub(super) struct Splitter {
    pub into: Split,
    pub most: usize,
    /// Whether a message may have no parts.
    pub may_be_empty: bool,
}

impl Splitter {
    pub fn apply(&self, whole: &PipelineMessage) -> Result<Vec<PipelineMessage>, String> {
        let bodies = match &self.into {
            Split::Json(path) => self.items(path, &whole.body)?,
            Split::Lines => self.lines(&whole.body)?,
            Split::Xml(name) => self.elements(name, &whole.body)?,
        };
        if bodies.is_empty() && !self.may_be_empty {
            let nothing = match &self.into {
                Split::Json(path) => format!("the list at {path} is empty"),
                Split::Lines => "the body has no line that is not empty".to_owned(),
                Split::Xml(name) => format!("the body has no element `{name}`"),
            };
            return Err(format!("{nothing}, so the message has no parts; `may_be_empty: true` allows that"));
        }
        Ok(bodies.into_iter().map(|body| PipelineMessage { body, ..whole.clone() }).collect())
    }

    fn check_count(&self, count: usize) -> Result<(), String> {
        if count <= self.most {
            return Ok(());
        }
        Err(format!("the message has more than {} parts, which `most` allows", self.most))
    }

    fn items(&self, path: &JsonPath, body: &Bytes) -> Result<Vec<Bytes>, String> {
        let text = std::str::from_utf8(body).map_err(|_| "the body is not JSON: it is not UTF-8")?;
        let found = path.find_written(text).map_err(|error| format!("the body is not JSON: {error}"))?;
        let is_nothing = found.is_none_or(|found| found.get() == "null");
        let found = match found {
            _ if is_nothing && self.may_be_empty => return Ok(Vec::new()),
            Some(found) => found,
            None => return Err(format!("the body has nothing at {path}")),
        };
        let items: Vec<&RawValue> = serde_json::from_str(found.get())
            .map_err(|_| format!("the value at {path} is {}, not a list", kind(found.get())))?;
        self.check_count(items.len())?;
        Ok(items.into_iter().map(|item| body.slice_ref(item.get().as_bytes())).collect())
    }

    fn lines(&self, body: &Bytes) -> Result<Vec<Bytes>, String> {
        let mut lines = Vec::new();
        for line in body.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !line.trim_ascii().is_empty() {
                lines.push(body.slice_ref(line));
                self.check_count(lines.len())?;
            }
        }
        Ok(lines)
    }

    /// The elements in their exact text, with the namespaces in scope.
    fn elements(&self, name: &str, body: &Bytes) -> Result<Vec<Bytes>, String> {
        let text = std::str::from_utf8(body).map_err(|_| "the body is not UTF-8")?;
        let broken = |why: &dyn std::fmt::Display, at: u64| format!("the body is not XML: {why} (byte {at})");
        let mut reader = Reader::from_str(text);
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut take = |element: Bytes| {
            bytes += element.len();
            found.push(element);
            // Each part repeats the inherited namespaces, so the parts can be far larger than the body.
            if bytes > BYTES_MAX {
                return Err(format!("its parts are more than {BYTES_MAX} bytes with the namespaces around them"));
            }
            self.check_count(found.len())
        };
        let mut scopes: Vec<Scope> = Vec::new();
        loop {
            let from = place(&reader);
            match reader.read_event().map_err(|error| broken(&error, reader.error_position()))? {
                Event::Start(start) => {
                    if is_named(&start, name) {
                        let end = start.to_end().into_owned();
                        reader.read_to_end(end.name()).map_err(|error| broken(&error, reader.error_position()))?;
                        take(with_scope(&text[from..place(&reader)], &start, scopes.last())?)?;
                    } else if scopes.len() >= DEPTH_MAX {
                        return Err(format!("the body is nested deeper than {DEPTH_MAX} levels"));
                    } else {
                        scopes.push(scope(scopes.last(), &start)?);
                    }
                }
                Event::Empty(start) if is_named(&start, name) => {
                    take(with_scope(&text[from..place(&reader)], &start, scopes.last())?)?;
                }
                Event::End(_) => drop(scopes.pop()),
                Event::DocType(_) => return Err("the body has a document type declaration, which is not read".into()),
                Event::Eof if scopes.is_empty() => return Ok(found),
                Event::Eof => return Err("the body ends inside of an element".to_owned()),
                _ => {}
            }
        }
    }
}

/// The type name of a JSON value.
fn kind(text: &str) -> &'static str {
    match text.bytes().next() {
        Some(b'{') => "an object",
        Some(b'"') => "a text",
        Some(b'n') => "null",
        Some(b't' | b'f') => "a truth value",
        _ => "a number",
    }
}

fn place(reader: &Reader<&[u8]>) -> usize {
    usize::try_from(reader.buffer_position()).expect("it is within the body")
}

fn is_named(start: &BytesStart<'_>, name: &str) -> bool {
    let local: &str = start.local_name().into_inner();
    local == name
}

/// The namespaces in scope of an element: inherited and its own. Values are not unescaped.
fn scope(around: Option<&Scope>, start: &BytesStart<'_>) -> Result<Scope, String> {
    let mut scope = around.cloned().unwrap_or_default();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| format!("the body is not XML: {error}"))?;
        let key: &str = attribute.key.into_inner();
        if key == "xmlns" || key.starts_with("xmlns:") {
            let value: &str = &attribute.value;
            let scope = Rc::make_mut(&mut scope);
            scope.insert(key.into(), value.into());
            if scope.len() > NAMESPACES_MAX {
                return Err(format!("the body declares more than {NAMESPACES_MAX} namespaces within each other"));
            }
        }
    }
    Ok(scope)
}

/// An element with its inherited namespace declarations added.
fn with_scope(element: &str, start: &BytesStart<'_>, around: Option<&Scope>) -> Result<Bytes, String> {
    let own = scope(None, start)?;
    let name: &str = start.name().into_inner();
    let missing: String = around
        .into_iter()
        .flat_map(|scope| scope.iter())
        .filter(|(key, _)| !own.contains_key(*key))
        .map(|(key, value)| format!(" {key}=\"{}\"", value.replace('"', "&quot;")))
        .collect();
    let (head, rest) = element.split_at(1 + name.len());
    Ok(Bytes::from(format!("{head}{missing}{rest}")))
}
