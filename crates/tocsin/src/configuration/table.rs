//! Table of all configuration keys with type, default and description, derived from the structs.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::{
    Configuration,
    ranges::{self, Range},
};

/// Configuration key.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// Section and name: `http.listen`.
    pub path: String,
    /// Type, in a word or two.
    pub kind: &'static str,
    /// Default value.
    pub default: Value,
    /// Description.
    pub doc: String,
    /// Whether its value is hidden in output.
    pub secret: bool,
    /// Range of a numeric key.
    pub range: Option<Range>,
}

impl Key {
    /// Environment variable: `TOCSIN_HTTP_LISTEN`.
    pub fn variable(&self) -> String {
        format!("TOCSIN_{}", self.path.replace('.', "_").to_uppercase())
    }
}

/// Section: name, description, keys.
pub(super) type Section = (String, String, Vec<Key>);

pub(super) static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<Configuration>().to_value();
    let defaults = serde_json::to_value(Configuration::default()).expect("a configuration is serializable");
    let sections = schema["properties"].as_object().expect("the configuration has sections");
    sections
        .iter()
        .map(|(section, schema)| {
            let fields = schema["properties"].as_object().expect("a section has keys");
            let keys = fields.iter().map(|(name, field)| Key {
                path: format!("{section}.{name}"),
                kind: kind(field),
                default: defaults[section][name].clone(),
                doc: doc(field),
                secret: field["format"] == "secret",
                range: ranges::range_of(&format!("{section}.{name}")),
            });
            (section.clone(), doc(schema), keys.collect())
        })
        .collect()
});

/// All keys, in the order of their sections.
pub fn keys() -> impl Iterator<Item = &'static Key> + Clone {
    SECTIONS.iter().flat_map(|(_, _, keys)| keys)
}

/// Doc comment as one line.
fn doc(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn kind(schema: &Value) -> &'static str {
    match (schema["format"].as_str(), schema["type"].as_str()) {
        (Some("duration"), _) => "duration",
        (Some("size"), _) => "size",
        (_, Some("integer")) => "integer",
        (_, Some("number")) => "number",
        (_, Some("boolean")) => "boolean",
        (_, Some("array")) => "list of strings",
        _ => "string",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_documented_and_typed() {
        let undocumented: Vec<&str> = keys().filter(|key| key.doc.is_empty()).map(|key| key.path.as_str()).collect();
        assert_eq!(undocumented, Vec::<&str>::new());
        let listen = keys().find(|key| key.path == "http.listen").expect("a key");
        assert_eq!((listen.kind, &listen.default), ("string", &Value::from("127.0.0.1:8480")));
        assert_eq!(listen.variable(), "TOCSIN_HTTP_LISTEN");
        let reserve = keys().find(|key| key.path == "journal.disk_reserve").expect("a key");
        assert_eq!((reserve.kind, &reserve.default), ("size", &Value::from("256MiB")));
    }

    #[test]
    fn no_two_keys_share_a_variable() {
        let mut variables: Vec<String> = keys().map(Key::variable).collect();
        variables.sort();
        let all = variables.len();
        variables.dedup();
        assert_eq!(variables.len(), all);
    }
}
