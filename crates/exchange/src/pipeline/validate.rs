//! A body is compared with its JSON Schema.

use jsonschema::{PatternOptions, Validator};
use tocsin_model::problem::Problem;

/// Differences that are told of one body.
const TOLD_MAX: usize = 3;

pub(super) struct Schema(Validator);

impl Schema {
    /// Nothing is fetched: what a schema refers to stands in it. Patterns take time that grows with the text and no faster.
    pub fn compile(schema: &serde_json::Value) -> Result<Schema, Problem> {
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex()).offline();
        options.build(schema).map(Schema).map_err(|error| {
            let place = error.instance_path().to_string();
            let message = format!("is no JSON Schema: {error}{}", at(&place));
            Problem::at("schema", message.chars().take(300).collect::<String>())
                .hint("what it refers to with `$ref` must stand in it")
        })
    }

    /// What is told names places and rules, not values: it is written into logs.
    pub fn check(&self, body: &[u8]) -> Result<(), String> {
        let json: serde_json::Value =
            serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?;
        if self.0.is_valid(&json) {
            return Ok(());
        }
        let mut errors = self.0.iter_errors(&json);
        let told = errors.by_ref().take(TOLD_MAX);
        let told: Vec<String> =
            told.map(|error| format!("{}{}", error.masked(), at(&error.instance_path().to_string()))).collect();
        let more = if errors.next().is_some() { "; and more" } else { "" };
        Err(format!("the body does not fit its schema: {}{more}", told.join("; ")))
    }
}

fn at(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!(" at `{place}`") }
}
