//! JSON Schema validation: constraints on message bodies and collection rows beyond their types.

mod cost; // cost bound of a schema, computed before validation

use jsonschema::{PatternOptions, Validator};
use serde_json::Value as Json;
use tocsin_model::{
    application::Application,
    problem::{Code, Problem},
    stack::with_large_stack,
};

use self::cost::Cost;

/// Most differences reported for one value.
const DIFFERENCES_MAX: usize = 3;

/// Most evaluations for which differences are listed. Each may take a few hundred bytes until the list is built.
const DIFFERENCES_STEPS_MAX: u64 = 100_000;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    cost: Cost,
}

impl Schema {
    /// Compiles a schema. Nothing is fetched: all references must be inside the schema. Patterns take time linear in
    /// the text.
    ///
    /// # Errors
    /// The schema is invalid, or exceeds a cost limit.
    pub fn compile(schema: &Json) -> Result<Schema, Problem> {
        let cost = Cost::of(schema)?;
        with_large_stack(|| Schema::build(schema))
            .map_err(|error| thread_problem(&error))
            .flatten()
            .map(|validator| Schema { validator, cost })
    }

    fn build(schema: &Json) -> Result<Validator, Problem> {
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex()).offline();
        options.build(schema).map_err(|error| {
            let place = error.instance_path().to_string();
            let at = if place.is_empty() { String::new() } else { format!(" at `{place}`") };
            let message = format!("is no JSON Schema: {error}{at}");
            Problem::syntax("json_schema", "schema", message.chars().take(300).collect::<String>())
                .hint("put every `$ref` target inside the schema")
        })
    }

    /// Validates a value.
    ///
    /// # Errors
    /// The first differences, each with its location as a JSON pointer; a last entry says that there are more. They
    /// name locations and keywords, not values, as they are logged.
    pub fn check(&self, json: &Json) -> Result<(), Vec<Problem>> {
        self.cost.check_document(json).map_err(|problem| vec![problem])?;
        match self.cost.is_deep(json) {
            false => self.compare(json),
            true => with_large_stack(|| self.compare(json)).map_err(|error| vec![thread_problem(&error)])?,
        }
    }

    fn compare(&self, json: &Json) -> Result<(), Vec<Problem>> {
        if self.validator.is_valid(json) {
            return Ok(());
        }
        if self.cost.count(json, DIFFERENCES_STEPS_MAX).is_err() {
            let message =
                "does not match the schema; the differences are not listed, as that takes too many evaluations";
            return Err(vec![Problem::new(Code::SchemaViolation, "", message).hint("compare smaller parts of it")]);
        }
        let mut errors = self.validator.iter_errors(json);
        let differences = errors.by_ref().take(DIFFERENCES_MAX);
        let mut differences: Vec<Problem> = differences
            .map(|error| {
                Problem::new(Code::SchemaViolation, error.instance_path().to_string(), error.masked().to_string())
            })
            .collect();
        if errors.next().is_some() {
            differences.push(Problem::new(Code::MoreProblems, "", "and more"));
        }
        Err(differences)
    }
}

fn thread_problem(error: &std::io::Error) -> Problem {
    let message = format!("was not validated, as no thread could be started: {error}");
    Problem::new(Code::Internal, "schema", message)
        .hint("raise the limit of threads of the process, or try again later")
}

/// Checks the schemas of an application's collections.
///
/// # Errors
/// Every problem found, with the path of the schema.
pub fn check(application: &Application) -> Result<(), Vec<Problem>> {
    let problem = |(name, collection): (_, &tocsin_model::collection::Collection)| {
        let problem = Schema::compile(collection.schema.as_ref()?).err()?;
        Some(Problem { path: format!("collections.{name}.{}", problem.path), ..problem })
    };
    let problems: Vec<Problem> = application.collections.iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_name_locations_and_no_values() {
        let schema =
            json!({"required": ["a"], "properties": {"a": {"minimum": 3}, "b": {"items": {"type": "string"}}}});
        let schema = Schema::compile(&schema).expect("a schema");
        let check = |json: Json, expected: &[&str]| {
            let differences: Vec<String> =
                schema.check(&json).err().into_iter().flatten().map(|differences| differences.to_string()).collect();
            assert_eq!(differences, expected, "{json}");
        };
        check(json!({"a": 3, "b": ["c"]}), &[]);
        check(json!({"a": 2}), &["/a: value is less than the minimum of 3"]);
        check(json!({"b": ["c", 4711]}), &["\"a\" is a required property", "/b/1: value is not of type \"string\""]);
        let many = schema.check(&json!({"b": [1, 2, 3, 4]})).expect_err("it differs");
        assert_eq!((many.len(), &*many[3].message), (4, "and more"));
    }

    #[test]
    fn an_invalid_schema_is_reported_with_its_path() {
        let check = |schema: &str| {
            let text = format!(
                "application: a\ncollections:\n  notes:\n    fields: {{ text: string }}\n    partition: everyone\n    schema: {schema}\n"
            );
            super::check(&tocsin_model::definition::read(&text, &|_| None).expect("a definition"))
        };
        assert_eq!(check("{ properties: { text: { maxLength: 3 } } }"), Ok(()));
        for bad in ["{ type: strin }", "{ $ref: 'https://example.org/schema' }", "[]"] {
            let problems = check(bad).expect_err("it is invalid");
            assert_eq!(problems[0].path, "collections.notes.schema");
            assert!(problems[0].message.starts_with("is no JSON Schema"), "{problems:?}");
        }
    }
}
