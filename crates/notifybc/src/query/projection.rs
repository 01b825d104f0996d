//! Selected properties of a list: `fields`.

use serde_json::Value;

use super::{error::QueryError, path::Path};
use crate::record::Document;

/// Most selected properties.
const FIELDS_MAX: usize = 200;

/// The selected properties of a record. The default selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Projection {
    mode: Mode,
    paths: Vec<Path>,
    without_id: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    All,
    Include,
    Exclude,
}

impl Projection {
    /// The projection of an object (`{"a": true}`, `{"a": 0}`), a list of names, or a text (`a b`, `-a -b`).
    pub fn parse(value: &Value) -> Result<Projection, QueryError> {
        let mut projection = Projection::default();
        match value {
            Value::Null => {}
            Value::String(text) => projection.add_names(text)?,
            Value::Array(items) => {
                for item in items {
                    match item {
                        Value::String(text) => projection.add_names(text)?,
                        other => return Err(invalid(other)),
                    }
                }
            }
            Value::Object(members) => {
                for (name, value) in members {
                    projection.add(name, is_included(value)?)?;
                }
            }
            other => return Err(invalid(other)),
        }
        Ok(projection)
    }

    fn add_names(&mut self, text: &str) -> Result<(), QueryError> {
        for name in text.split(|c: char| c.is_whitespace() || c == ',').filter(|name| !name.is_empty()) {
            match name.strip_prefix('-') {
                Some(name) => self.add(name, false)?,
                None => self.add(name.trim_start_matches('+'), true)?,
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &str, is_included: bool) -> Result<(), QueryError> {
        let path = Path::parse(name);
        if path.as_str() == "id" {
            self.without_id = !is_included;
            // Of a selection of the id alone only the id comes.
            if is_included && self.mode == Mode::All {
                self.mode = Mode::Include;
            }
            return Ok(());
        }
        let mode = if is_included { Mode::Include } else { Mode::Exclude };
        // The id may be named with either mode.
        if self.mode != Mode::All && self.mode != mode && !self.paths.is_empty() {
            let kind = if is_included { "inclusion" } else { "exclusion" };
            let other = if is_included { "exclusion" } else { "inclusion" };
            return Err(QueryError::Operand(format!("Cannot do {kind} on field {name} in {other} projection")));
        }
        if self.paths.len() == FIELDS_MAX {
            return Err(QueryError::TooLarge { limit: FIELDS_MAX, unit: "fields" });
        }
        self.mode = mode;
        self.paths.push(path);
        Ok(())
    }

    /// The selected part of a record.
    pub fn apply(&self, mut record: Document) -> Document {
        let id = record.get("id").cloned().filter(|_| !self.without_id);
        let mut selected = match self.mode {
            Mode::All => record,
            Mode::Include => {
                let paths: Vec<&[String]> = self.paths.iter().map(Path::steps).collect();
                included(&record, &paths)
            }
            Mode::Exclude => {
                self.paths.iter().for_each(|path| exclude(&mut record, path.steps()));
                record
            }
        };
        match id {
            Some(id) => {
                if !selected.contains_key("id") {
                    selected.shift_insert(0, "id".to_owned(), id);
                }
            }
            None => {
                selected.shift_remove("id");
            }
        }
        selected
    }
}

/// The members of an object that the paths name, in the object's order.
fn included(members: &Document, paths: &[&[String]]) -> Document {
    let mut selected = Document::new();
    for (name, value) in members {
        let below: Vec<&[String]> = paths.iter().filter(|path| path[0] == *name).map(|path| &path[1..]).collect();
        if below.iter().any(|path| path.is_empty()) {
            selected.insert(name.clone(), value.clone());
        } else if !below.is_empty()
            && let Some(value) = included_below(value, &below)
        {
            selected.insert(name.clone(), value);
        }
    }
    selected
}

fn included_below(value: &Value, paths: &[&[String]]) -> Option<Value> {
    match value {
        Value::Object(members) => Some(Value::Object(included(members, paths))),
        Value::Array(items) => {
            Some(Value::Array(items.iter().filter_map(|item| included_below(item, paths)).collect()))
        }
        _ => None,
    }
}

fn exclude(members: &mut Document, steps: &[String]) {
    match steps {
        [] => {}
        [name] => {
            members.shift_remove(name);
        }
        [name, rest @ ..] => {
            if let Some(value) = members.get_mut(name) {
                exclude_below(value, rest);
            }
        }
    }
}

fn exclude_below(value: &mut Value, steps: &[String]) {
    match value {
        Value::Object(members) => exclude(members, steps),
        Value::Array(items) => items.iter_mut().for_each(|item| exclude_below(item, steps)),
        _ => {}
    }
}

fn is_included(value: &Value) -> Result<bool, QueryError> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::Number(number) => Ok(number.as_f64() != Some(0.0)),
        Value::String(text) => match text.as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(invalid(value)),
        },
        _ => Err(invalid(value)),
    }
}

fn invalid(value: &Value) -> QueryError {
    QueryError::Operand(format!("invalid fields: {value}"))
}
