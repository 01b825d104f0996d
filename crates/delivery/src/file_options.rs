//! Options of a channel that name files for reading, compared with the file policy before the channel is opened.

use std::{collections::BTreeSet, path::Path};

use serde_json::{Map, Value};
use tocsin_connect::files::Files;
use tocsin_model::{
    application::Channel,
    problem::{Code, Problem},
};

use crate::protocol::protocols;

/// Problems for the files that a channel would read and the operator of this machine has not allowed; their paths start
/// with `path` (`channels.mail.options`). Reads no file.
pub fn files_not_allowed(channel: &Channel, files: &Files, path: &str) -> Vec<Problem> {
    let Some(protocol) = protocols().iter().find(|protocol| protocol.name == channel.protocol.as_str()) else {
        return Vec::new();
    };
    let mut names = BTreeSet::new();
    collect_names((protocol.schema)().as_value(), &mut names);
    let mut problems = Vec::new();
    check(&channel.options, path, &names, files, &mut problems);
    problems
}

/// Names of all options of a schema, also of nested ones, that hold the path of a file to read.
fn collect_names(schema: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::Object(properties)) = members.get("properties") {
                names.extend(properties.keys().filter(|name| name.ends_with("_file")).cloned());
            }
            members.values().for_each(|member| collect_names(member, names));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_names(item, names)),
        _ => {}
    }
}

fn check(
    options: &Map<String, Value>,
    path: &str,
    names: &BTreeSet<String>,
    files: &Files,
    problems: &mut Vec<Problem>,
) {
    for (name, value) in options {
        let path = format!("{path}.{name}");
        match value {
            Value::String(file) if names.contains(name) => {
                let why = files.resolve_allowed(Path::new(file)).err();
                problems.extend(why.map(|why| Problem::new(Code::NotAllowed, path, why)));
            }
            Value::Object(below) => check(below, &path, names, files, problems),
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    if let Value::Object(below) = item {
                        check(below, &format!("{path}[{at}]"), names, files, problems);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_file_outside_the_allowed_folders_is_a_problem() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, "").expect("written");
        let file = file.to_str().expect("a path");
        let check = |protocol: &str, options: Value, expected: &[&str]| {
            let channel = crate::testing::channel(protocol, options, 1);
            let found = |files: &Files| {
                let found = files_not_allowed(&channel, files, "channels.c.options");
                found.into_iter().map(|problem| problem.path).collect::<BTreeSet<_>>()
            };
            let expected = expected.iter().map(|path| (*path).to_owned()).collect::<BTreeSet<_>>();
            assert_eq!(found(&Files::default()), expected, "{protocol}");
            let open = Files::new(vec![folder.path().to_owned()], "/nonexistent".into());
            assert_eq!(found(&open), BTreeSet::new(), "{protocol}");
        };
        check("http", json!({ "ca_file": file, "url": "https://a.example" }), &["channels.c.options.ca_file"]);
        check(
            "smtp",
            json!({ "servers": [{ "host": "a.example" }, { "host": "b.example", "token_file": file }],
                "dkim": [{ "selector": "s", "key_file": file }] }),
            &["channels.c.options.dkim[0].key_file", "channels.c.options.servers[1].token_file"],
        );
        check("nats", json!({ "credentials_file": file }), &["channels.c.options.credentials_file"]);
        check("file", json!({ "path": file }), &[]);
    }
}
