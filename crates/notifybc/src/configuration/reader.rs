//! Lenient access to JSON: a value of another type than expected counts as absent.

use serde_json::Value;

/// A place in a document, which can be absent.
#[derive(Clone, Copy)]
pub(super) struct Reader<'v>(Option<&'v Value>);

impl<'v> Reader<'v> {
    pub(super) fn new(value: &'v Value) -> Reader<'v> {
        Reader(Some(value))
    }

    pub(super) fn at(&self, name: &str) -> Reader<'v> {
        Reader(self.0.and_then(|value| value.get(name)).filter(|value| !value.is_null()))
    }

    pub(super) fn value(&self) -> Option<&'v Value> {
        self.0
    }

    /// A text that is not empty.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        match self.at(name).0? {
            Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// One text or a list of them.
    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        match self.at(name).0 {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }

    /// A flag, as JavaScript reads it; the text `false` is false.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.at(name).0.is_some_and(|value| value != "false" && crate::record::truthy(value))
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        match self.at(name).0? {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub(super) fn whole(&self, name: &str) -> Option<u64> {
        self.number(name).filter(|number| *number >= 0.0 && number.fract() == 0.0).map(|number| number as u64)
    }
}
