//! What the commands that work through a list of the server have in common: they show it as a table or as JSON, and
//! choose from it by a filter or take all.

use serde_json::{Map, Value, json};

use crate::{
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// What a list of the server gave.
pub struct Listed {
    /// The things.
    pub items: Vec<Value>,
    /// How many are shown at most.
    pub limit: usize,
    /// As JSON instead of a table.
    pub json: bool,
}

impl Listed {
    /// Shows them with a row for each, or says that there are none.
    ///
    /// # Errors
    /// The terminal cannot be written to.
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

/// The filter of a request that works on what it chooses: by number, by name, or everything if that is said.
///
/// # Errors
/// Nothing is chosen, or something beside everything.
pub fn chosen(id: Option<u64>, named: &[(&str, &str)], all: bool, ways: &str) -> Outcome<Value> {
    let mut body: Map<String, Value> =
        named.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect();
    if let Some(id) = id {
        body.insert("id".into(), id.into());
    }
    match (body.is_empty(), all) {
        (true, false) => Err(Failure::usage(format!("say which: {ways} or --all"))),
        (false, true) => Err(Failure::usage("--all goes alone")),
        (true, true) => Ok(json!({"all": true})),
        (false, false) => Ok(Value::Object(body)),
    }
}
