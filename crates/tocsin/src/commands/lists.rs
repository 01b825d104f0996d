//! Shared code of commands for lists of the server: output as a table or JSON, and selection by a filter or all.

use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::{Terminal, printable},
};

/// Option of operations on many objects.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct DryRun {
    /// Count only; nothing is changed
    #[arg(long)]
    dry_run: bool,
}

impl DryRun {
    /// The path with the mode of the operation.
    pub fn path(self, path: &str) -> String {
        let separator = if path.contains('?') { '&' } else { '?' };
        if self.dry_run { format!("{path}{separator}dry_run=true") } else { path.to_owned() }
    }

    /// Whether nothing is changed.
    pub fn is_dry(self) -> bool {
        self.dry_run
    }

    /// The result of an operation, such as `resumed` or `would be resumed`.
    pub fn done(self, verb: &str) -> String {
        if self.dry_run { format!("would be {verb}") } else { verb.to_owned() }
    }
}

/// List returned by the server.
pub struct ItemList {
    /// Items.
    pub items: Vec<Value>,
    /// Maximum number of items shown.
    pub limit: usize,
    /// JSON instead of a table.
    pub json: bool,
}

impl ItemList {
    /// Prints a row per item, or `none` for an empty list.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn show(
        mut self,
        terminal: &Terminal,
        none: &str,
        heads: &[&str],
        row: impl Fn(&Value) -> Vec<String>,
    ) -> Outcome {
        self.items.truncate(self.limit);
        if self.json {
            return Ok(terminal.json(&self.items)?);
        }
        if self.items.is_empty() {
            return Ok(terminal.line(none)?);
        }
        let rows: Vec<Vec<String>> = self.items.iter().map(row).collect();
        terminal.cut_table(heads, &rows, "`--json`")?;
        if self.items.len() == self.limit {
            terminal.line(format_args!("there may be more than {}; --limit shows more", self.limit))?;
        }
        Ok(())
    }
}

/// Fetches up to `limit` results of a bounded search. A request that reached its bound is continued.
///
/// # Errors
/// If the server refuses a request.
pub async fn search(client: &Client, path: &str, query: &[(&str, &str)], limit: usize) -> Outcome<Vec<Value>> {
    let (mut items, mut after) = (Vec::new(), None::<String>);
    while items.len() < limit {
        let rest = (limit - items.len()).min(1_000).to_string();
        let mut query = query.to_vec();
        query.push(("limit", &rest));
        query.extend(after.as_deref().map(|after| ("after", after)));
        let mut page = client.get(path, &query).await?;
        let Some(found) = page.get_mut("items").and_then(Value::as_array_mut) else {
            return Err(Failure::failed(format!("the response to GET {path} is not a list")));
        };
        items.append(found);
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    Ok(items)
}

/// The fields `names` of an item as cells of a table: text as it is, other values as JSON, missing ones empty.
pub fn texts(item: &Value, names: &[&str]) -> Vec<String> {
    let text = |name: &&str| match &item[*name] {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => printable(&other.to_string()).into_owned(),
    };
    names.iter().map(text).collect()
}

/// Author of a change as a cell of a table: the description of the key in `NAME_name`, else its id in `NAME`.
pub fn author(item: &Value, name: &str) -> String {
    let described = &item[format!("{name}_name")];
    printable(described.as_str().or(item[name].as_str()).unwrap_or_default()).into_owned()
}

/// Prints the `warnings` of a stored object, a line each.
///
/// # Errors
/// The output cannot be written.
pub fn warnings(terminal: &Terminal, stored: &Value) -> Outcome {
    for warning in stored["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        terminal.line(format_args!("warning: {}", printable(warning)))?;
    }
    Ok(())
}

/// Changes an object by a JSON merge patch (RFC 7396) and returns the object.
///
/// # Errors
/// If the server refuses the request.
pub async fn patch(client: &Client, path: &str, changes: &Value) -> Outcome<Value> {
    let body = serde_json::to_vec(changes).expect("JSON values can be written");
    let request = client.request(Method::PATCH, path).header("content-type", "application/merge-patch+json").body(body);
    client.json(client.send(request).await?).await
}

/// An argument `NAME=VALUE`: the value is JSON if it parses as such, else a text.
///
/// # Errors
/// The argument has no `=`, or an empty name.
pub fn assignment(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            Ok((name.to_owned(), value))
        }
        _ => Err(format!("`{text}` is not NAME=VALUE, such as city=Vienna or age=42")),
    }
}

/// Request body that selects items by id, by named filters, or all.
///
/// # Errors
/// If no filter is given, or --all is combined with a filter.
pub fn chosen(id: Option<u64>, named: &[(&str, &str)], all: bool, ways: &str) -> Outcome<Value> {
    let mut body: Map<String, Value> =
        named.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect();
    if let Some(id) = id {
        body.insert("id".into(), id.into());
    }
    match (body.is_empty(), all) {
        (true, false) => Err(Failure::usage(format!("a filter is required: {ways} or --all"))),
        (false, true) => Err(Failure::usage("--all excludes other filters")),
        (true, true) => Ok(json!({"all": true})),
        (false, false) => Ok(Value::Object(body)),
    }
}
