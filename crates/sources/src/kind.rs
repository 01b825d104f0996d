//! The registry of kinds of sources. A new kind is a folder like its siblings and a line in [`KINDS`].

use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};
use tocsin_delivery::options::{self, Options};
use tocsin_model::{
    application::Source,
    field::Fields,
    mark::Mark,
    problem::{Code, Problem, closest},
};

use crate::{
    directory, feed, kafka, mail, mqtt, nats, outbox, poll, process, query,
    source::{Context, OpenSource, SourceSettings},
};

/// The description of a kind, for reference pages and checks.
pub struct KindDescription {
    /// Name in definitions.
    pub name: &'static str,
    /// The summary, one line.
    pub summary: &'static str,
    /// The JSON Schema of its options.
    pub schema: fn() -> Schema,
    check: Check,
    not_allowed: NotAllowedCheck,
    open: fn(SourceSettings, Vec<Mark>) -> Opened,
}

/// Checks options, with the fields of a class where mappings refer to them.
type Check = fn(&Map<String, Value>, Option<&Fields>, &str) -> Vec<Problem>;
/// Lists options that the configuration does not allow; the options have no problems otherwise.
type NotAllowedCheck = fn(&Map<String, Value>, &Context) -> Vec<Problem>;
type Opened = Result<Box<dyn OpenSource>, Vec<Problem>>;

/// The options of a kind, which may refer to fields of an event class.
pub(crate) trait SourceOptions: Options + JsonSchema {
    /// Mismatches with the fields of the class; paths are relative: `fields.place`.
    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem>;

    /// Options that the server's configuration does not allow; paths are relative: `listen`.
    fn not_allowed(&self, _context: &Context) -> Vec<Problem> {
        Vec::new()
    }
}

static KINDS: [KindDescription; 10] = [
    describe::<directory::DirectoryOptions>(
        "directory",
        "files dropped into a folder: JSON lines, JSON, CSV or XML",
        directory::open,
    ),
    describe::<poll::PollOptions>(
        "poll",
        "a polled page with items: JSON, GeoJSON, JSON lines, CSV or XML",
        poll::open,
    ),
    describe::<feed::FeedOptions>("feed", "new and changed items of an RSS or Atom feed", feed::open),
    describe::<query::QueryOptions>(
        "query",
        "a repeated query of PostgreSQL, MySQL, MariaDB or SQLite with a high-water mark",
        query::open,
    ),
    describe::<outbox::OutboxOptions>(
        "outbox",
        "an outbox table of PostgreSQL, MySQL, MariaDB or SQLite, whose rows are taken and deleted, or marked",
        outbox::open,
    ),
    describe::<nats::NatsOptions>("nats", "messages of a NATS JetStream stream", nats::open),
    describe::<kafka::KafkaOptions>("kafka", "messages of Kafka topics", kafka::open),
    describe::<mqtt::MqttOptions>("mqtt", "messages of topics of an MQTT 5 broker", mqtt::open),
    describe::<mail::MailOptions>("mail", "mail received by SMTP or LMTP", mail::open),
    describe::<process::ProcessOptions>("process", "JSON lines from a program", process::open),
];

/// The kinds that can produce messages.
pub const LOCATIONS: [&str; 7] = ["directory", "mail", "nats", "kafka", "mqtt", "outbox", "query"];

/// Options of parsing items and mapping them to fields.
const ITEM_OPTIONS: [&str; 7] = ["format", "items", "schema", "fields", "delimiter", "columns", "item_bytes_max"];

const fn describe<T: SourceOptions>(
    name: &'static str,
    summary: &'static str,
    open: fn(SourceSettings, Vec<Mark>) -> Opened,
) -> KindDescription {
    KindDescription {
        name,
        summary,
        schema: || schemars::schema_for!(T),
        check: check_options::<T>,
        not_allowed: |given, context| {
            options::read::<T>(given, "").map_or_else(|_| Vec::new(), |it| it.not_allowed(context))
        },
        open,
    }
}

fn check_options<T: SourceOptions>(given: &Map<String, Value>, fields: Option<&Fields>, path: &str) -> Vec<Problem> {
    match (options::read::<T>(given, path), fields) {
        (Ok(_), None) => Vec::new(),
        (Ok(options), Some(fields)) => {
            let below = |problem: Problem| Problem { path: format!("{path}.{}", problem.path), ..problem };
            options.mapping_problems(fields).into_iter().map(below).collect()
        }
        (Err(problems), _) => problems,
    }
}

/// All kinds, in the order of the reference page.
pub fn kinds() -> &'static [KindDescription] {
    &KINDS
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
    if !LOCATIONS.contains(&kind) {
        let problem =
            Problem::new(Code::UnknownValue, format!("{path}.kind"), format!("`{kind}` is not a kind of location"))
                .param("value", kind.to_string());
        let hint = match closest(kind, LOCATIONS.iter().copied()) {
            Some(word) => format!("did you mean `{word}`?"),
            None => format!("the kinds are {}", LOCATIONS.join(", ")),
        };
        return vec![problem.hint(hint)];
    }
    let path = format!("{path}.options");
    let of_items = ITEM_OPTIONS.iter().filter(|name| options.contains_key(**name));
    let event_option_problem: Vec<Problem> =
        of_items.map(|name| event_option_problem(&format!("{path}.{name}"))).collect();
    if !event_option_problem.is_empty() {
        return event_option_problem;
    }
    find(kind).map_or_else(|problem| vec![problem], |kind| (kind.check)(options, None, &path))
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
    KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
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
    use tocsin_delivery::{http::call::CallOptions, protocol::protocols};
    use tocsin_model::definition::secrets::{Language, redact};

    use super::*;

    /// Options with secret-like names that are not secrets.
    const NONE: [(&str, &str); 4] =
        [("webpush", "public_key"), ("poll", "key"), ("outbox", "key"), ("smtp", "headers")];

    /// Options whose names indicate secrets, each with the shape of its value and the list that contains it.
    fn secrets(schema: &Value) -> Vec<(String, bool, Option<String>)> {
        let names_secret = |name: &str| {
            let words = ["password", "secret", "token", "key", "headers", "environment", "credential"];
            words.iter().any(|word| name.contains(word)) && !name.ends_with("_file")
        };
        let mut found = Vec::new();
        for (name, option) in schema["properties"].as_object().into_iter().flatten() {
            let definition = option["items"]["$ref"].as_str().and_then(|path| path.rsplit('/').next());
            if let Some(definition) = definition {
                let inner = secrets(&schema["$defs"][definition]).into_iter();
                found.extend(inner.map(|(inner, is_map, _)| (inner, is_map, Some(name.clone()))));
            } else if names_secret(name) {
                found.push((name.clone(), option["type"] == "object", None));
            }
        }
        found
    }

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
            ("poll", json!({}), "the kinds are directory, mail, nats"),
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
        let channels = protocols().iter().map(|protocol| ("channels", "protocol", protocol.name, (protocol.schema)()));
        let sources = kinds().iter().map(|kind| ("sources", "kind", kind.name, (kind.schema)()));
        let calls = [("send", "protocol", "http", schemars::schema_for!(CallOptions))];
        let mut seen = 0;
        for (section, key, name, given) in channels.chain(sources).chain(calls) {
            let language = if section == "send" { Language::Exchange } else { Language::Application };
            for (option, is_map, list) in secrets(&given.to_value()) {
                if NONE.contains(&(name, &option)) {
                    continue;
                }
                let value = if is_map { json!({"X-Own": "hunter2"}) } else { json!("hunter2") };
                let options = match &list {
                    Some(list) => json!({ list: [{ &option: value }] }),
                    None => json!({ &option: value }),
                };
                let text = json!({ section: { "one": { key: name, "options": options } } }).to_string();
                let shown = redact(language, &text, tocsin_delivery::channel_secrets());
                assert!(shown.contains("***") && !shown.contains("hunter2"), "{section} {name} {option}: {shown}");
                seen += 1;
            }
        }
        assert!(seen > 15, "only {seen} secrets are known");
    }
}
