//! Shared components: replaces repeated parts of the description by references to one component.
//!
//! The derived description spells out each schema of a generic type, such as the items of a list, and each error
//! response of routes that describe their own. References make it, and types generated from it, half as large.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

/// Smaller schemas are not shared: a reference has this size, and hides what it names.
const BYTES_MIN: usize = 120;
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Replaces schemas that equal a component, then repeated error responses.
pub(super) fn share(document: &mut Value) {
    share_schemas(document);
    share_responses(document);
}

fn share_schemas(document: &mut Value) {
    let mut names: HashMap<String, String> = HashMap::new();
    let mut ambiguous: HashSet<String> = HashSet::new();
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        let text = schema.to_string();
        if text.len() >= BYTES_MIN && names.insert(text.clone(), name.clone()).is_some() {
            ambiguous.insert(text);
        }
    }
    // Two names of one form mean two things.
    names.retain(|text, _| !ambiguous.contains(text));
    let Value::Object(members) = document else { return };
    for (name, member) in members {
        let is_components = name == "components";
        replace(member, &names, if is_components { Depth::Components } else { Depth::Inside });
    }
}

/// Distance from the components: the schemas directly below them are the originals.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    Components,
    Section,
    Original,
    Inside,
}

impl Depth {
    fn next(self) -> Depth {
        match self {
            Depth::Components => Depth::Section,
            Depth::Section => Depth::Original,
            Depth::Original | Depth::Inside => Depth::Inside,
        }
    }
}

fn replace(value: &mut Value, names: &HashMap<String, String>, depth: Depth) {
    if depth == Depth::Inside
        && value.is_object()
        && let Some(name) = names.get(&value.to_string())
    {
        *value = json!({ "$ref": format!("#/components/schemas/{name}") });
        return;
    }
    match value {
        Value::Object(members) => members.values_mut().for_each(|member| replace(member, names, depth.next())),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, names, depth.next())),
        _ => {}
    }
}

/// Moves error responses that occur more than once to the components, named by their kind and status, such as
/// `scim-404`.
fn share_responses(document: &mut Value) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for_each_error(document, |_, response| *counts.entry(response.to_string()).or_default() += 1);
    let mut shared: Map<String, Value> = Map::new();
    for_each_error(document, |status, response| {
        let text = response.to_string();
        if counts[&text] < 2 || text.len() < BYTES_MIN {
            return;
        }
        let media_types = response["content"].as_object();
        let kind = match media_types.and_then(|types| types.keys().next()).map(String::as_str) {
            Some("application/scim+json") => "scim",
            Some("application/problem+json") => "problem",
            _ => return,
        };
        let base = format!("{kind}-{status}");
        // One status may have several descriptions.
        let name = (1..).map(|at| if at == 1 { base.clone() } else { format!("{base}-{at}") });
        let mut free = name.filter(|name| shared.get(name).is_none_or(|other| other == response));
        let name = free.next().expect("the numbers have no end");
        let reference = json!({ "$ref": format!("#/components/responses/{name}") });
        shared.insert(name, std::mem::replace(response, reference));
    });
    let components = document["components"]["responses"].as_object_mut();
    let components = components.expect("the description has shared responses");
    components.extend(shared);
    components.sort_keys();
}

/// Visits the error responses of all operations that are no references.
fn for_each_error(document: &mut Value, mut visit: impl FnMut(&str, &mut Value)) {
    let items = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    let operations = items.filter_map(Value::as_object_mut).flat_map(Map::iter_mut);
    for (_, operation) in operations.filter(|(method, _)| METHODS.contains(&method.as_str())) {
        for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
            let is_error = status == "default" || status.parse::<u16>().is_ok_and(|status| status >= 400);
            if is_error && response.get("$ref").is_none() {
                visit(status, response);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(word: &str) -> Value {
        json!({ "type": "object", "description": format!("{word} {}", "x".repeat(BYTES_MIN)) })
    }

    #[test]
    fn a_repeated_schema_becomes_a_reference_and_the_original_stays() {
        let listed = json!({ "type": "object", "properties": { "items": { "type": "array", "items": schema("a") } } });
        let content = json!({ "content": { "application/json": { "schema": schema("a") } } });
        let mut document = json!({
            "paths": { "/a": { "get": { "responses": { "200": content } } } },
            "components": {
                "schemas": { "A": schema("a"), "List_A": listed, "B": schema("b"), "C": schema("b") },
                "responses": {},
            },
        });
        share(&mut document);
        let reference = json!({ "$ref": "#/components/schemas/A" });
        let response = &document["paths"]["/a"]["get"]["responses"]["200"];
        assert_eq!(response["content"]["application/json"]["schema"], reference);
        let schemas = &document["components"]["schemas"];
        assert_eq!((&schemas["A"], &schemas["List_A"]["properties"]["items"]["items"]), (&schema("a"), &reference));
        // Schemas of one form under two names stay.
        assert_eq!((&schemas["B"], &schemas["C"]), (&schema("b"), &schema("b")));
    }

    #[test]
    fn repeated_error_responses_are_shared_by_kind_and_status() {
        let error =
            |word: &str| json!({ "description": word.repeat(BYTES_MIN), "content": { "application/scim+json": {} } });
        let responses = |word: &str| json!({ "responses": { "200": error("good"), "404": error(word) } });
        let mut document = json!({
            "paths": {
                "/a": { "get": responses("a"), "put": responses("b") },
                "/b": { "get": responses("a"), "put": responses("b"), "post": responses("once") },
            },
            "components": { "schemas": {}, "responses": { "zzz": {} } },
        });
        share(&mut document);
        let at = |path: &str, method: &str| document["paths"][path][method]["responses"]["404"]["$ref"].clone();
        assert_eq!([at("/a", "get"), at("/b", "get")], ["#/components/responses/scim-404"; 2].map(Value::from));
        assert_eq!([at("/a", "put"), at("/b", "put")], ["#/components/responses/scim-404-2"; 2].map(Value::from));
        assert_eq!(at("/b", "post"), Value::Null);
        assert_eq!(document["paths"]["/a"]["get"]["responses"]["200"], error("good"));
        let names: Vec<&String> = document["components"]["responses"].as_object().expect("responses").keys().collect();
        assert_eq!(names, ["scim-404", "scim-404-2", "zzz"]);
    }
}
