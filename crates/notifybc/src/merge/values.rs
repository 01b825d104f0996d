//! Paths into data, and the texts of values.

use serde_json::{Number, Value};

use crate::record::truthy;

/// Most steps of a path. Longer ones find nothing.
const STEPS_MAX: usize = 64;
/// Largest number that JavaScript writes without an exponent.
const PLAIN_MAX: f64 = 1e21;

/// A path into data: names separated by points, and positions in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataPath {
    /// The text. A member of the data with this name comes first.
    text: String,
    steps: Vec<String>,
}

impl DataPath {
    /// The path of a text.
    pub fn parse(text: &str) -> DataPath {
        let mut steps = Vec::new();
        for part in text.split('.') {
            let (name, mut rest) = match part.find('[') {
                Some(at) => part.split_at(at),
                None => (part, ""),
            };
            if !name.is_empty() || rest.is_empty() {
                steps.push(name.to_owned());
            }
            while let Some((step, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                let unquoted = step.trim_matches(['"', '\'']);
                steps.push(unquoted.to_owned());
                rest = after;
            }
        }
        DataPath { text: text.to_owned(), steps }
    }

    /// The value at the path.
    pub fn find<'v>(&self, data: &'v Value) -> Option<&'v Value> {
        if let Some(value) = data.as_object().and_then(|members| members.get(&self.text)) {
            return Some(value);
        }
        if self.steps.len() > STEPS_MAX {
            return None;
        }
        self.steps.iter().try_fold(data, |value, step| match value {
            Value::Object(members) => members.get(step),
            Value::Array(items) => items.get(step.parse::<usize>().ok()?),
            _ => None,
        })
    }
}

/// The text of a value, as JavaScript writes it. `None` for values that it takes for false.
pub fn text_of(value: &Value) -> Option<String> {
    truthy(value).then(|| text(value))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number_text(number),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<String>>().join(","),
        Value::Object(_) => "[object Object]".to_owned(),
    }
}

/// A number without a fraction that is zero.
fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < PLAIN_MAX => format!("{float:.0}"),
        _ => number.to_string(),
    }
}
