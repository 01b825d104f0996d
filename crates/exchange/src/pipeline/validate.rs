//! A body is compared with its JSON Schema.

use tocsin_matching::schema;
use tocsin_model::problem::Problem;

pub(super) struct Schema(schema::Schema);

impl Schema {
    pub fn compile(schema: &serde_json::Value) -> Result<Schema, Problem> {
        schema::Schema::compile(schema).map(Schema)
    }

    /// What is told names places and rules, not values: it is written into logs.
    pub fn check(&self, body: &[u8]) -> Result<(), String> {
        let json: serde_json::Value =
            serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?;
        let told = |problem: Problem| match &*problem.path {
            "" => problem.message,
            place => format!("{} at `{place}`", problem.message),
        };
        self.0.check(&json).map_err(|problems| {
            let told: Vec<String> = problems.into_iter().map(told).collect();
            format!("the body does not fit its schema: {}", told.join("; "))
        })
    }
}
