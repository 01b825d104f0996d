//! Dotted paths into records: members of objects, positions in lists, and members of all elements of a list.

use serde_json::Value;

use crate::record::Document;

/// A dotted path: `items.0.v`. `id` stands for the id of the record, also as `_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Path {
    text: String,
    steps: Vec<String>,
}

impl Path {
    /// The path of a text.
    pub fn parse(text: &str) -> Path {
        let text = if text == "_id" { "id" } else { text };
        Path { text: text.to_owned(), steps: text.split('.').map(str::to_owned).collect() }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it has no step.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Calls `visit` with each value at the path, and with `None` where a member is missing. Stops at `true`, which is
    /// returned. Elements of a list that are not objects are passed over.
    pub fn any<'v>(&self, record: &'v Document, visit: &mut dyn FnMut(Option<&'v Value>) -> bool) -> bool {
        let Some((first, rest)) = self.steps.split_first() else { return false };
        match record.get(first) {
            None => visit(None),
            Some(value) => walk(value, rest, visit),
        }
    }

    /// The value at the path without a look into the elements of lists.
    pub fn value<'v>(&self, record: &'v Document) -> Option<&'v Value> {
        let (first, rest) = self.steps.split_first()?;
        let mut value = record.get(first)?;
        for step in rest {
            value = match value {
                Value::Object(members) => members.get(step)?,
                Value::Array(items) => items.get(step.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(value)
    }

    /// The steps.
    pub(super) fn steps(&self) -> &[String] {
        &self.steps
    }
}

fn walk<'v>(value: &'v Value, steps: &[String], visit: &mut dyn FnMut(Option<&'v Value>) -> bool) -> bool {
    let Some((step, rest)) = steps.split_first() else { return visit(Some(value)) };
    match value {
        Value::Object(members) => match members.get(step) {
            None => visit(None),
            Some(value) => walk(value, rest, visit),
        },
        Value::Array(items) => {
            let element = step.parse::<usize>().ok().and_then(|position| items.get(position));
            if let Some(element) = element
                && walk(element, rest, visit)
            {
                return true;
            }
            items.iter().filter(|item| item.is_object()).any(|item| walk(item, steps, visit))
        }
        _ => visit(None),
    }
}
