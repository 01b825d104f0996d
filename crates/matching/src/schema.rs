//! JSON Schemas: what a body of an exchange or a row of a collection must be like beyond its type.

mod cost; // evaluations of a schema, bounded before the work

use jsonschema::{PatternOptions, Validator};
use serde_json::Value as Json;
use tocsin_model::{application::Application, problem::Problem, stack::with_large_stack};

use self::cost::Cost;

/// Differences that are told of one value.
const TOLD_MAX: usize = 3;

/// Evaluations for which differences are listed. Each may take a few hundred bytes until the list is made.
const TOLD_STEPS_MAX: u64 = 100_000;

/// A schema, ready for use.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    cost: Cost,
}

impl Schema {
    /// Nothing is fetched: what a schema refers to stands in it. Patterns take time that grows with the text and no faster.
    ///
    /// # Errors
    /// It is no JSON Schema, or is beyond a bound of its cost.
    pub fn compile(schema: &Json) -> Result<Schema, Problem> {
        let cost = Cost::of(schema)?;
        with_large_stack(|| Schema::build(schema))
            .map_err(|error| no_thread(&error))
            .flatten()
            .map(|validator| Schema { validator, cost })
    }

    fn build(schema: &Json) -> Result<Validator, Problem> {
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex()).offline();
        options.build(schema).map_err(|error| {
            let place = error.instance_path().to_string();
            let at = if place.is_empty() { String::new() } else { format!(" at `{place}`") };
            let message = format!("is no JSON Schema: {error}{at}");
            Problem::at("schema", message.chars().take(300).collect::<String>())
                .hint("what it refers to with `$ref` must stand in it")
        })
    }

    /// Compares a value.
    ///
    /// # Errors
    /// The first differences, each with its place as a JSON pointer; that there are more is the last. They name places and
    /// rules, not values: they are written into logs.
    pub fn check(&self, json: &Json) -> Result<(), Vec<Problem>> {
        self.cost.check_document(json).map_err(|problem| vec![problem])?;
        match self.cost.is_deep(json) {
            false => self.compare(json),
            true => with_large_stack(|| self.compare(json)).map_err(|error| vec![no_thread(&error)])?,
        }
    }

    fn compare(&self, json: &Json) -> Result<(), Vec<Problem>> {
        if self.validator.is_valid(json) {
            return Ok(());
        }
        if self.cost.count(json, TOLD_STEPS_MAX).is_err() {
            let message = "does not fit the schema; its differences are not listed, as it takes too many evaluations";
            return Err(vec![Problem::at("", message).hint("compare smaller parts of it")]);
        }
        let mut errors = self.validator.iter_errors(json);
        let told = errors.by_ref().take(TOLD_MAX);
        let mut told: Vec<Problem> =
            told.map(|error| Problem::at(error.instance_path().to_string(), error.masked().to_string())).collect();
        if errors.next().is_some() {
            told.push(Problem::at("", "and more"));
        }
        Err(told)
    }
}

fn no_thread(error: &std::io::Error) -> Problem {
    let message = format!("was not compared with its schema, as no thread starts: {error}");
    Problem::at("schema", message).hint("raise the limit of threads of the process, or try again later")
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
    fn differences_name_places_and_no_values() {
        let schema =
            json!({"required": ["a"], "properties": {"a": {"minimum": 3}, "b": {"items": {"type": "string"}}}});
        let schema = Schema::compile(&schema).expect("a schema");
        let check = |json: Json, expected: &[&str]| {
            let told: Vec<String> =
                schema.check(&json).err().into_iter().flatten().map(|told| told.to_string()).collect();
            assert_eq!(told, expected, "{json}");
        };
        check(json!({"a": 3, "b": ["c"]}), &[]);
        check(json!({"a": 2}), &["/a: value is less than the minimum of 3"]);
        check(json!({"b": ["c", 4711]}), &["\"a\" is a required property", "/b/1: value is not of type \"string\""]);
        let many = schema.check(&json!({"b": [1, 2, 3, 4]})).expect_err("it differs");
        assert_eq!((many.len(), &*many[3].message), (4, "and more"));
    }

    #[test]
    fn a_schema_that_is_none_is_told_with_its_place() {
        let check = |schema: &str| {
            let text = format!(
                "application: a\ncollections:\n  notes:\n    fields: {{ text: string }}\n    partition: everyone\n    schema: {schema}\n"
            );
            super::check(&tocsin_model::definition::read(&text, &|_| None).expect("a definition"))
        };
        assert_eq!(check("{ properties: { text: { maxLength: 3 } } }"), Ok(()));
        for bad in ["{ type: strin }", "{ $ref: 'https://example.org/schema' }", "[]"] {
            let problems = check(bad).expect_err("it is none");
            assert_eq!(problems[0].path, "collections.notes.schema");
            assert!(problems[0].message.starts_with("is no JSON Schema"), "{problems:?}");
        }
    }
}
