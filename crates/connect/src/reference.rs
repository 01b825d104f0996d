//! Generates the tables of reference pages from the schemas of options.

use std::{collections::VecDeque, fmt::Write};

use serde_json::{Map, Value};

/// Appends a section with a table of the options in a schema, and one table for each nested object.
pub fn section(page: &mut String, name: &str, summary: &str, schema: &Value) {
    let _ = write!(page, "\n## {name}\n\n{}.\n\n", capital(summary));
    let empty = Map::new();
    let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&empty);
    let mut inner = VecDeque::new();
    table(page, schema, "", definitions, &mut inner);
    while let Some(Nested { path, is_one, schema }) = inner.pop_front() {
        let each = if is_one { "" } else { "Each of " };
        let _ = write!(page, "\n{each}`{path}`:\n\n");
        table(page, schema, &path, definitions, &mut inner);
    }
}

/// An object in options, with a table of its own.
struct Nested<'a> {
    path: String,
    /// Whether there is one; otherwise a list of them, or a mapping to them.
    is_one: bool,
    schema: &'a Value,
}

/// The object in an option, and whether there is one of it.
fn nested<'a>(option: &'a Value, definitions: &'a Map<String, Value>) -> Option<(bool, &'a Value)> {
    let many = option.get("items").or_else(|| option.get("additionalProperties").filter(|inner| inner.is_object()));
    let (is_one, object) = match many {
        Some(object) => (false, resolve(object, definitions)),
        None => (true, option),
    };
    object.get("properties").is_some().then_some((is_one, object))
}

fn table<'a>(
    page: &mut String,
    schema: &'a Value,
    path: &str,
    definitions: &'a Map<String, Value>,
    inner: &mut VecDeque<Nested<'a>>,
) {
    page.push_str("| option | value | if not given | meaning |\n|---|---|---|---|\n");
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, option) in schema["properties"].as_object().into_iter().flatten() {
        let resolved = resolve(option, definitions);
        if let Some((is_one, schema)) = nested(resolved, definitions) {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            inner.push_back(Nested { path, is_one, schema });
        }
        let default = match option.get("default") {
            _ if required.contains(&name.as_str()) => "required".to_owned(),
            None | Some(Value::Null) => String::new(),
            Some(Value::Array(list)) if list.is_empty() => String::new(),
            Some(Value::Object(map)) if map.is_empty() => String::new(),
            Some(Value::String(text)) => format!("`{text}`"),
            Some(value) => format!("`{value}`"),
        };
        let meaning =
            option.get("description").or(resolved.get("description")).and_then(Value::as_str).unwrap_or_default();
        let meaning: Vec<&str> = meaning.split_whitespace().collect();
        let choices = choices(resolved);
        let _ = writeln!(
            page,
            "| `{name}` | {} | {default} | {}{choices} |",
            kind(resolved, definitions),
            meaning.join(" ")
        );
    }
}

/// Resolves a `$ref`, also beside `null`.
fn resolve<'a>(schema: &'a Value, definitions: &'a Map<String, Value>) -> &'a Value {
    let one = schema["anyOf"].as_array().and_then(|any| any.iter().find(|one| one["type"] != "null")).unwrap_or(schema);
    let name = one["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    name.and_then(|name| definitions.get(name)).unwrap_or(one)
}

fn kind(schema: &Value, definitions: &Map<String, Value>) -> String {
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(some) => some.iter().filter_map(Value::as_str).filter(|word| *word != "null").collect(),
        _ => Vec::new(),
    };
    let range = match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
        (Some(least), Some(most)) if most > 0 => format!(", {least} to {most}"),
        (Some(least), None) if least > 0 => format!(", at least {least}"),
        _ => String::new(),
    };
    match types.first().copied() {
        Some("string") if schema["pattern"].as_str().is_some_and(|pattern| pattern.contains("ms|s|m|h")) => {
            "time".into()
        }
        Some("string") if schema.get("enum").is_some() => "word".into(),
        Some("string") => "text".into(),
        Some("integer") => format!("whole number{range}"),
        Some("number") => format!("number{range}"),
        Some("boolean") => "`true` or `false`".into(),
        Some("array") => match kind(resolve(&schema["items"], definitions), definitions).as_str() {
            "mapping" | "mapping, see below" => "list, see below".into(),
            one => format!("list: {one}"),
        },
        Some("object") if nested(schema, definitions).is_some() => "mapping, see below".into(),
        Some("object") => "mapping".into(),
        _ => "word".into(),
    }
}

/// The permitted words, each with its meaning.
fn choices(schema: &Value) -> String {
    let of = |one: &Value| {
        let word = one["const"].as_str()?;
        let meaning = one["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        Some(format!("<br>`{word}`: {meaning}"))
    };
    let listed = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    schema["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(of)
        .chain(listed.map(|word| format!("<br>`{word}`")))
        .collect()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
