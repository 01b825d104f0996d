//! Query strings and form bodies with names in brackets: `filter[where][state][$in][]=a`.
//!
//! The rules are those of the library `qs`: `a[b]` is an object, `a[]` and `a[0]` a list, a repeated name a list. All
//! values are texts.

use serde_json::{Map, Value};

use self::indexed::Members;
use super::error::{DEPTH_MAX, QUERY_BYTES_MAX, QueryError};
use crate::record::Document;

/// Most parameters of a query string or form body.
pub const PARAMS_MAX: usize = 1_000;
/// Largest position of a list. Larger ones are names of an object.
const POSITION_MAX: usize = 100;

/// The parameters of a query string.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Params(Document);

/// A form body as a document. Names in brackets are nested; values stay texts.
pub fn form_body(body: &[u8]) -> Result<Document, QueryError> {
    Ok(Params::from_bytes(body)?.0)
}

impl Params {
    /// The parameters of a query string, without its question mark.
    pub fn parse(query: &str) -> Result<Params, QueryError> {
        Params::from_bytes(query.as_bytes())
    }

    fn from_bytes(bytes: &[u8]) -> Result<Params, QueryError> {
        if bytes.len() > QUERY_BYTES_MAX {
            return Err(QueryError::TooLarge { limit: QUERY_BYTES_MAX, unit: "bytes" });
        }
        let mut root = Node::default();
        for (count, (name, value)) in form_urlencoded::parse(bytes).enumerate() {
            if count == PARAMS_MAX {
                return Err(QueryError::TooLarge { limit: PARAMS_MAX, unit: "parameters" });
            }
            let steps = steps(&name);
            if steps.len() > DEPTH_MAX + 2 {
                return Err(QueryError::TooLarge { limit: DEPTH_MAX, unit: "levels" });
            }
            root.insert(&steps, value.into_owned());
        }
        let Node::Members(members) = root else { return Ok(Params::default()) };
        Ok(Params(members.into_iter().map(|(name, node)| (name, node.into_value())).collect()))
    }

    /// The value of a parameter: a text, list or object.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The text of a parameter. Of a list, the first.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.0.get(name)? {
            Value::String(text) => Some(text),
            Value::Array(items) => items.first()?.as_str(),
            _ => None,
        }
    }

    /// The texts of a list parameter: repeated, with `[]` or positions, or one text with commas. `None` if absent.
    pub fn texts(&self, name: &str) -> Option<Vec<String>> {
        let texts = match self.0.get(name)? {
            Value::String(text) => text.split(',').map(str::to_owned).collect(),
            Value::Array(items) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Value::Object(members) => members.values().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        Some(texts)
    }

    /// The value of a parameter that is a JSON text or in bracket form. An empty text is no JSON.
    pub fn json(&self, name: &str) -> Result<Option<Value>, QueryError> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => {
                let value = serde_json::from_str(text)
                    .map_err(|error| QueryError::Syntax(format!("the parameter {name} is not JSON: {error}")))?;
                Ok(Some(value))
            }
            Some(value) => Ok(Some(value.clone())),
        }
    }
}

/// The steps of a name: `a[b][]` is `a`, `b` and the empty step.
fn steps(name: &str) -> Vec<&str> {
    let Some((first, rest)) = name.split_once('[').filter(|(first, _)| !first.is_empty()) else { return vec![name] };
    let mut steps = vec![first];
    let mut rest = Some(rest);
    while let Some(part) = rest {
        match part.split_once(']') {
            Some((step, after)) => {
                steps.push(step);
                rest = after.strip_prefix('[');
            }
            None => {
                // A bracket that is not closed belongs to no step.
                steps.push(part);
                rest = None;
            }
        }
    }
    steps
}

/// A value under construction. Lists keep their positions until the end.
enum Node {
    Texts(Vec<String>),
    Members(Members),
}

impl Default for Node {
    fn default() -> Node {
        Node::Members(Members::default())
    }
}

impl Node {
    fn insert(&mut self, steps: &[&str], text: String) {
        let Some((step, rest)) = steps.split_first() else {
            match self {
                Node::Texts(texts) => texts.push(text),
                Node::Members(members) if members.is_empty() => *self = Node::Texts(vec![text]),
                Node::Members(members) => members.next().insert(&[], text),
            }
            return;
        };
        if let Node::Texts(texts) = self {
            // A text beside members is a member of the next position.
            let mut members = Members::default();
            for text in texts.drain(..) {
                members.next().insert(&[], text);
            }
            *self = Node::Members(members);
        }
        let Node::Members(members) = self else { return };
        match *step {
            "" => members.next().insert(rest, text),
            name => members.at(name).insert(rest, text),
        }
    }

    fn into_value(self) -> Value {
        match self {
            Node::Texts(mut texts) if texts.len() == 1 => Value::from(texts.pop().unwrap_or_default()),
            Node::Texts(texts) => Value::from(texts),
            Node::Members(members) => match members.is_list() {
                true => {
                    let mut items: Vec<(usize, Node)> =
                        members.into_iter().map(|(name, node)| (name.parse().unwrap_or(usize::MAX), node)).collect();
                    items.sort_by_key(|(position, _)| *position);
                    Value::Array(items.into_iter().map(|(_, node)| node.into_value()).collect())
                }
                false => {
                    let members = members.into_iter().map(|(name, node)| (name, node.into_value()));
                    Value::Object(members.collect::<Map<String, Value>>())
                }
            },
        }
    }
}

mod indexed {
    //! Members in the order of their insertion, found by name.

    use std::collections::HashMap;

    use super::{Node, POSITION_MAX};

    #[derive(Default)]
    pub(super) struct Members {
        places: HashMap<String, usize>,
        entries: Vec<(String, Node)>,
        next: usize,
    }

    impl Members {
        pub(super) fn is_empty(&self) -> bool {
            self.entries.is_empty()
        }

        /// The member of a name, which is made if it is new.
        pub(super) fn at(&mut self, name: &str) -> &mut Node {
            let place = *self.places.entry(name.to_owned()).or_insert_with(|| {
                self.entries.push((name.to_owned(), Node::default()));
                self.entries.len() - 1
            });
            if let Some(position) = position(name) {
                self.next = self.next.max(position + 1);
            }
            &mut self.entries[place].1
        }

        /// A new member at the next position.
        pub(super) fn next(&mut self) -> &mut Node {
            let name = self.next.to_string();
            self.next += 1;
            self.at(&name)
        }

        /// Whether all names are positions.
        pub(super) fn is_list(&self) -> bool {
            let is_position =
                |name: &str| position(name).is_some() || name.parse::<usize>().is_ok_and(|at| at < self.next);
            !self.is_empty() && self.entries.iter().all(|(name, _)| is_position(name))
        }

        pub(super) fn into_iter(self) -> impl Iterator<Item = (String, Node)> {
            self.entries.into_iter()
        }
    }

    fn position(name: &str) -> Option<usize> {
        name.parse().ok().filter(|position| *position <= POSITION_MAX)
    }
}
