//! Validates a body against its JSON Schema or XML Schema.

use tocsin_formatting::xsd::XmlSchema;
use tocsin_matching::schema;
use tocsin_model::{
    charset::{self, Syntax},
    exact_json::{Exact, Numbers, has_inexact_numbers},
    exchange::Validation,
    problem::Problem,
};

use crate::message::{PipelineMessage, decoded_body};

pub(super) enum Schema {
    Json(Box<schema::Schema>),
    Xml(XmlSchema),
}

impl Schema {
    pub fn compile(validation: &Validation) -> Result<Schema, Problem> {
        match validation {
            Validation::Json(schema) => schema::Schema::compile(schema).map(|schema| Schema::Json(Box::new(schema))),
            Validation::Xml(text) => {
                let at_xsd = |problem: Problem| Problem { path: "xsd".to_owned(), ..problem };
                XmlSchema::compile(text).map(Schema::Xml).map_err(at_xsd)
            }
        }
    }

    /// Errors name positions and rules, not values, because they are logged.
    pub fn check(&self, message: &PipelineMessage) -> Result<(), String> {
        let schema = match self {
            Schema::Json(schema) => schema,
            Schema::Xml(schema) => {
                return schema.check(&message.body, charset::of_media_type(&message.content_type).as_deref());
            }
        };
        let text = decoded_body(message, Syntax::Json)?;
        let json = read(text.as_bytes()).map_err(|error| format!("the body is not JSON: {error}"))?;
        let described = |problem: Problem| match &*problem.path {
            "" => problem.message,
            place => format!("{} at `{place}`", problem.message),
        };
        schema.check(&json).map_err(|problems| {
            let described: Vec<String> = problems.into_iter().map(described).collect();
            format!("the body does not match its schema: {}", described.join("; "))
        })
    }
}

/// Parses a body for validation. A number beyond the range of a double becomes the largest double.
fn read(body: &[u8]) -> Result<serde_json::Value, String> {
    match serde_json::from_slice(body) {
        Ok(json) => Ok(json),
        Err(_) if has_inexact_numbers(body) => {
            let exact = Exact::read(body).map_err(|error| error.to_string())?;
            let value = exact.value(&mut Numbers::default()).map_err(|error| error.to_string())?;
            Ok(value.into())
        }
        Err(error) => Err(error.to_string()),
    }
}
