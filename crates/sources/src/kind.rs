//! Table of kinds of sources. A new kind is a folder like its siblings and a line in [`KINDS`].

use std::sync::LazyLock;

use serde_json::{Map, Value};
use tocsin_connect::secrets;
use tocsin_model::{
    application::Source,
    definition::secrets::Row,
    field::Fields,
    mark::Mark,
    problem::{Code, Problem, closest},
};

use crate::{
    description::{KindDescription, LocationDescription, Opened},
    directory, feed, kafka, mail, mqtt, nats, outbox, poll, process, query,
    source::{Context, SourceSettings},
};

static KINDS: &[&KindDescription] = &[
    &directory::KIND,
    &poll::KIND,
    &feed::KIND,
    &query::KIND,
    &outbox::KIND,
    &nats::KIND,
    &kafka::KIND,
    &mqtt::KIND,
    &mail::KIND,
    &process::KIND,
];

/// All kinds, in the order of the reference page.
pub fn kinds() -> &'static [&'static KindDescription] {
    KINDS
}

/// The secret options of all kinds, with their paths in the definition of a source or a receive location.
pub fn source_secrets() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> =
        LazyLock::new(|| secrets::rows(KINDS.iter().map(|kind| (kind.name, kind.secrets))));
    &ROWS
}

/// All problems in the kind and options of a source, with paths that start with `path` (`sources.drop`). No disk or
/// network access.
pub fn check(source: &Source, fields: &Fields, path: &str) -> Vec<Problem> {
    match find(source.kind.as_str()) {
        Ok(kind) => (kind.check)(&source.options, Some(fields), &format!("{path}.options")),
        Err(problem) => vec![Problem { path: format!("{path}.kind"), ..problem }],
    }
}

/// Options of a source that the server's configuration does not allow, so that it cannot run; paths start with `path`
/// (`sources.drop`). Checks folders on disk.
pub fn not_allowed(source: &Source, context: &Context, path: &str) -> Vec<Problem> {
    let found =
        find(source.kind.as_str()).map_or_else(|_| Vec::new(), |kind| (kind.not_allowed)(&source.options, context));
    found.into_iter().map(|problem| Problem { path: format!("{path}.options.{}", problem.path), ..problem }).collect()
}

/// All problems in the kind and options of a receive location; paths start with `path`
/// (`receive.orders.locations.drop`). No disk or network access.
pub fn check_location(kind: &str, options: &Map<String, Value>, path: &str) -> Vec<Problem> {
    let locations = || KINDS.iter().filter_map(|known| Some((*known, known.location.as_ref()?)));
    let Some((kind, location)) = locations().find(|(known, _)| known.name == kind) else {
        let problem =
            Problem::new(Code::UnknownValue, format!("{path}.kind"), format!("`{kind}` is not a kind of location"))
                .param("value", kind.to_string());
        let names = || locations().map(|(known, _)| known.name);
        let hint = match closest(kind, names()) {
            Some(word) => format!("did you mean `{word}`?"),
            None => format!("the kinds are {}", names().collect::<Vec<_>>().join(", ")),
        };
        return vec![problem.hint(hint)];
    };
    let path = format!("{path}.options");
    let LocationDescription { event_options } = location;
    let given = event_options.iter().filter(|name| options.contains_key(**name));
    let problems: Vec<Problem> = given.map(|name| event_option_problem(&format!("{path}.{name}"))).collect();
    if !problems.is_empty() {
        return problems;
    }
    (kind.check)(options, None, &path)
}

fn event_option_problem(path: &str) -> Problem {
    let problem = Problem::new(Code::NotApplicable, path, "is for events: a location receives whole messages");
    problem.hint("use steps of the port to split and transform messages, and `properties` to extract values")
}

/// Opens a source at its marks. Must be called inside a tokio runtime.
///
/// # Errors
/// All problems in its options, including folders and programs that are not allowed; paths are relative: `folder`.
pub fn open(kind: &str, setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    let kind = find(kind).map_err(|problem| vec![problem])?;
    (kind.open)(setting, marks)
}

fn find(name: &str) -> Result<&'static KindDescription, Problem> {
    KINDS.iter().find(|kind| kind.name == name).copied().ok_or_else(|| {
        let problem = Problem::new(Code::UnknownValue, "kind", format!("`{name}` is not a kind of source"))
            .param("value", name.to_string());
        let names = KINDS.iter().map(|kind| kind.name).chain(["http"]);
        match closest(name, names.clone()) {
            Some(word) => problem.hint(format!("did you mean `{word}`?")),
            None => problem.hint(format!("the kinds are {}", names.collect::<Vec<_>>().join(", "))),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tocsin_model::definition::secrets::{Language, OptionSecrets, redact};

    use super::*;
    use crate::description::SourceResource;

    /// Options with secret-like names that are not secrets.
    const NOT_SECRET: [(&str, &str); 2] = [("poll", "key"), ("outbox", "key")];

    #[test]
    fn locations_must_be_of_kinds_that_produce_messages() {
        let check = |kind: &str, options: Value| {
            let problems = check_location(kind, options.as_object().expect("an object"), "at");
            problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(check("directory", json!({"folder": "orders"})), "");
        assert_eq!(check("kafka", json!({"brokers": ["a"], "topics": ["orders"]})), "");
        assert_eq!(check("mail", json!({"listen": "127.0.0.1:2525", "recipients": ["*"], "body": "json"})), "");
        assert_eq!(check("outbox", json!({"database": "postgres://a@b/c", "table": "orders"})), "");
        for (kind, options, expected) in [
            ("poll", json!({}), "the kinds are directory, query, outbox, nats"),
            ("directry", json!({}), "did you mean `directory`?"),
            ("directory", json!({"folder": "orders", "format": "csv"}), "at.options.format"),
            ("nats", json!({"servers": ["nats://a"]}), "at.options.stream"),
            ("query", json!({"fields": {}}), "is for events"),
            ("mail", json!({"listen": "127.0.0.1:2525"}), "at.options.recipients"),
            ("mail", json!({"item_bytes_max": 5}), "is for events"),
            ("kafka", json!({"brokers": ["a"]}), "at.options.topics"),
        ] {
            assert!(check(kind, options).contains(expected), "{kind} {}", check(kind, json!({})));
        }
    }

    #[test]
    fn every_secret_of_every_option_is_masked() {
        let mut seen = 0;
        for kind in kinds() {
            for found in secrets::secret_names(&(kind.schema)().to_value()) {
                let option = found.option;
                if NOT_SECRET.contains(&(kind.name, &option)) {
                    continue;
                }
                assert_eq!(found.list, None, "{}: {option}", kind.name);
                let value = if found.is_map { json!({"X-Own": "hunter2"}) } else { json!("hunter2") };
                let given = json!({ "kind": kind.name, "options": { &option: value } });
                let all = OptionSecrets { channels: &[], sources: source_secrets() };
                for (language, text) in [
                    (Language::Application, json!({ "sources": { "one": given } })),
                    (Language::Exchange, json!({ "receive": { "port": { "locations": { "one": given } } } })),
                ] {
                    let shown = redact(language, &text.to_string(), all);
                    assert!(shown.contains("***") && !shown.contains("hunter2"), "{} {option}: {shown}", kind.name);
                }
                seen += 1;
            }
        }
        assert_eq!(seen, source_secrets().len(), "a row of the table is for an option that does not exist");
    }

    #[test]
    fn the_columns_of_a_kind_agree_with_its_options() {
        for kind in kinds() {
            let schema = (kind.schema)().to_value();
            let options = schema["properties"].as_object().expect("options");
            let has = |end: &str| options.keys().any(|name| name.ends_with(end));
            let needs = |need| kind.needs.contains(&need);
            assert_eq!(needs(SourceResource::ReadableFiles), has("_file"), "{}", kind.name);
            assert_eq!(needs(SourceResource::CheckedAddresses), has("allow_networks"), "{}", kind.name);
            assert_eq!(needs(SourceResource::Programs), has("command"), "{}", kind.name);
            assert_eq!(needs(SourceResource::WatchedFolders), has("folder"), "{}", kind.name);
            assert_eq!(needs(SourceResource::DatabaseFiles), has("database"), "{}", kind.name);
            assert!(!kind.needs.is_empty(), "{}", kind.name);
            let names = kind.secrets.iter().map(|(option, _)| *option);
            let event_options = kind.location.iter().flat_map(|location| location.event_options.iter().copied());
            for option in names.chain(event_options) {
                assert!(options.contains_key(option), "{}: {option}", kind.name);
            }
        }
    }

    #[test]
    fn every_option_is_explained() {
        for kind in kinds() {
            let schema = (kind.schema)().to_value();
            for (name, option) in schema["properties"].as_object().expect("options") {
                assert!(option.get("description").is_some(), "{}: {name}", kind.name);
            }
        }
    }
}
