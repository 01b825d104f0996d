//! The secret options in a table of protocols or kinds: rows for their masks, and the options that should have one.

use serde_json::Value;
use tocsin_model::definition::secrets::{Row, SecretShape};

/// Options that hold secrets, each with its path (`servers.password`, without list indexes), and how much of it is
/// secret. Passwords in URLs are found without a row.
pub type SecretOptions = &'static [(&'static str, SecretShape)];

/// The rows of some protocols or kinds, with the paths of their options in a definition. Their texts live as long as
/// the process: call it once.
pub fn rows(table: impl IntoIterator<Item = (&'static str, SecretOptions)>) -> Vec<Row> {
    let of = |(name, secrets): (&'static str, SecretOptions)| {
        secrets.iter().map(move |(option, shape)| {
            let path: &'static str = format!("options.{option}").leak();
            (name, path, *shape)
        })
    };
    table.into_iter().flat_map(of).collect()
}

/// An option whose name indicates a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretName {
    /// The name of the option.
    pub option: String,
    /// Whether its value is a mapping, with the secrets in it.
    pub is_map: bool,
    /// The list of objects that contains it, if any.
    pub list: Option<String>,
}

/// The options in a schema whose names indicate secrets. Tests compare them with the table.
pub fn secret_names(schema: &Value) -> Vec<SecretName> {
    const WORDS: [&str; 7] = ["password", "secret", "token", "key", "headers", "environment", "credential"];
    let mut found = Vec::new();
    for (name, option) in schema["properties"].as_object().into_iter().flatten() {
        let definition = option["items"]["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        if let Some(definition) = definition {
            let inner = secret_names(&schema["$defs"][definition]).into_iter();
            found.extend(inner.map(|inner| SecretName { list: Some(name.clone()), ..inner }));
        } else if WORDS.iter().any(|word| name.contains(word)) && !name.ends_with("_file") {
            found.push(SecretName { option: name.clone(), is_map: option["type"] == "object", list: None });
        }
    }
    found
}
