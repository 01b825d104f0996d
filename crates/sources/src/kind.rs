//! Which kinds of sources there are. A new one is a folder like its siblings and a line in [`KINDS`].

use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};
use tocsin_delivery::options::{self, Options};
use tocsin_model::{
    application::Source,
    field::Fields,
    mark::Mark,
    problem::{Problem, closest},
};

use crate::{
    directory, feed, kafka, mail, mqtt, nats, outbox, poll, process, query,
    source::{Context, OpenSource, Setting},
};

/// What a kind is, for reference pages and checks.
pub struct KindDescription {
    /// Its name in definitions.
    pub name: &'static str,
    /// Where its events come from, in one line.
    pub summary: &'static str,
    /// The JSON Schema of its options.
    pub schema: fn() -> Schema,
    check: Check,
    closed: Closed,
    open: fn(Setting, Vec<Mark>) -> Opened,
}

/// Problems of options, with the fields of a class if they may speak of some.
type Check = fn(&Map<String, Value>, Option<&Fields>, &str) -> Vec<Problem>;
/// What is not open, of options in which there are no problems.
type Closed = fn(&Map<String, Value>, &Context) -> Vec<Problem>;
type Opened = Result<Box<dyn OpenSource>, Vec<Problem>>;

/// The options of a kind, which may speak of the fields of an event class.
pub(crate) trait SourceOptions: Options + JsonSchema {
    /// What does not fit the fields of the class; paths are relative: `fields.place`.
    fn misfits(&self, fields: &Fields) -> Vec<Problem>;

    /// What of them the operator of the machine has not opened; paths are relative: `listen`.
    fn closed(&self, _context: &Context) -> Vec<Problem> {
        Vec::new()
    }
}

static KINDS: [KindDescription; 10] = [
    describe::<directory::DirectoryOptions>(
        "directory",
        "files that are dropped into a folder: lines of JSON, JSON, CSV or XML",
        directory::open,
    ),
    describe::<poll::PollOptions>(
        "poll",
        "a page with items that is fetched again and again: JSON, GeoJSON, lines of JSON, CSV or XML",
        poll::open,
    ),
    describe::<feed::FeedOptions>(
        "feed",
        "a feed in RSS or Atom: its new items, and those that have changed",
        feed::open,
    ),
    describe::<query::QueryOptions>(
        "query",
        "a query of PostgreSQL, MySQL, MariaDB or SQLite, each time for what is beyond a high-water mark",
        query::open,
    ),
    describe::<outbox::OutboxOptions>(
        "outbox",
        "a table of PostgreSQL, MySQL, MariaDB or SQLite whose rows are taken and deleted, or marked",
        outbox::open,
    ),
    describe::<nats::NatsOptions>("nats", "messages of a stream of NATS JetStream", nats::open),
    describe::<kafka::KafkaOptions>("kafka", "messages of topics of Kafka", kafka::open),
    describe::<mqtt::MqttOptions>("mqtt", "messages of topics of an MQTT 5 broker", mqtt::open),
    describe::<mail::MailOptions>("mail", "mail that comes in by SMTP or LMTP", mail::open),
    describe::<process::ProcessOptions>("process", "lines of JSON from a program of yours", process::open),
];

/// The kinds that can give messages as they are.
pub const LOCATIONS: [&str; 7] = ["directory", "mail", "nats", "kafka", "mqtt", "outbox", "query"];

/// Options that say how texts hold items and where the fields of a class are in these.
const ITEM_OPTIONS: [&str; 7] = ["format", "items", "schema", "fields", "delimiter", "columns", "item_bytes_max"];

const fn describe<T: SourceOptions>(
    name: &'static str,
    summary: &'static str,
    open: fn(Setting, Vec<Mark>) -> Opened,
) -> KindDescription {
    KindDescription {
        name,
        summary,
        schema: || schemars::schema_for!(T),
        check: check_options::<T>,
        closed: |given, context| options::read::<T>(given, "").map_or_else(|_| Vec::new(), |it| it.closed(context)),
        open,
    }
}

fn check_options<T: SourceOptions>(given: &Map<String, Value>, fields: Option<&Fields>, path: &str) -> Vec<Problem> {
    match (options::read::<T>(given, path), fields) {
        (Ok(_), None) => Vec::new(),
        (Ok(options), Some(fields)) => {
            let below = |problem: Problem| Problem { path: format!("{path}.{}", problem.path), ..problem };
            options.misfits(fields).into_iter().map(below).collect()
        }
        (Err(problems), _) => problems,
    }
}

/// All kinds that run by themselves, in the order in which they are best explained.
pub fn kinds() -> &'static [KindDescription] {
    &KINDS
}

/// Every problem in the kind and the options of a source, their paths starting with `path` (`sources.drop`). Touches
/// neither disk nor network.
pub fn check(source: &Source, fields: &Fields, path: &str) -> Vec<Problem> {
    match find(source.kind.as_str()) {
        Ok(kind) => (kind.check)(&source.options, Some(fields), &format!("{path}.options")),
        Err(problem) => vec![Problem { path: format!("{path}.kind"), ..problem }],
    }
}

/// What of the options of a source the operator of the machine has not opened, so that it cannot run; paths start with `path`
/// (`sources.drop`). Looks at the disk for folders.
pub fn closed(source: &Source, context: &Context, path: &str) -> Vec<Problem> {
    let found = find(source.kind.as_str()).map_or_else(|_| Vec::new(), |kind| (kind.closed)(&source.options, context));
    found.into_iter().map(|problem| Problem { path: format!("{path}.options.{}", problem.path), ..problem }).collect()
}

/// Every problem in the kind and the options of a location, which gives messages as they are; their paths start with `path`
/// (`receive.orders.locations.drop`). Touches neither disk nor network.
pub fn check_location(kind: &str, options: &Map<String, Value>, path: &str) -> Vec<Problem> {
    if !LOCATIONS.contains(&kind) {
        let problem = Problem::at(format!("{path}.kind"), format!("`{kind}` is not a kind of location"));
        let hint = match closest(kind, LOCATIONS.iter().copied()) {
            Some(word) => format!("did you mean `{word}`?"),
            None => format!("the kinds are {}", LOCATIONS.join(", ")),
        };
        return vec![problem.hint(hint)];
    }
    let path = format!("{path}.options");
    let of_items = ITEM_OPTIONS.iter().filter(|name| options.contains_key(**name));
    let misplaced: Vec<Problem> = of_items.map(|name| misplaced(&format!("{path}.{name}"))).collect();
    if !misplaced.is_empty() {
        return misplaced;
    }
    find(kind).map_or_else(|problem| vec![problem], |kind| (kind.check)(options, None, &path))
}

fn misplaced(path: &str) -> Problem {
    let problem = Problem::at(path, "is for events: a location gives messages as they come");
    problem.hint("steps of the port take messages apart and reshape them; `properties` take values out of them")
}

/// Opens a source where its marks say that it stopped. Must be called inside a tokio runtime.
///
/// # Errors
/// Every problem in its options, including folders and programs that may not be used; paths are relative: `folder`.
pub fn open(kind: &str, setting: Setting, marks: Vec<Mark>) -> Opened {
    let kind = find(kind).map_err(|problem| vec![problem])?;
    (kind.open)(setting, marks)
}

fn find(name: &str) -> Result<&'static KindDescription, Problem> {
    KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
        let problem = Problem::at("kind", format!("`{name}` is not a kind of source"));
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

    /// Options that sound like secrets and are none.
    const NONE: [(&str, &str); 4] =
        [("webpush", "public_key"), ("poll", "key"), ("outbox", "key"), ("smtp", "headers")];

    /// Options whose names tell of secrets, each with the shape of its value and the list that it stands in.
    fn secrets(schema: &Value) -> Vec<(String, bool, Option<String>)> {
        let tells = |name: &str| {
            let words = ["password", "secret", "token", "key", "headers", "environment", "credential"];
            words.iter().any(|word| name.contains(word)) && !name.ends_with("_file")
        };
        let mut found = Vec::new();
        for (name, option) in schema["properties"].as_object().into_iter().flatten() {
            let definition = option["items"]["$ref"].as_str().and_then(|path| path.rsplit('/').next());
            if let Some(definition) = definition {
                let inner = secrets(&schema["$defs"][definition]).into_iter();
                found.extend(inner.map(|(inner, is_map, _)| (inner, is_map, Some(name.clone()))));
            } else if tells(name) {
                found.push((name.clone(), option["type"] == "object", None));
            }
        }
        found
    }

    #[test]
    fn locations_are_of_kinds_that_give_messages_as_they_are() {
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
                let shown = redact(language, &text);
                assert!(shown.contains("***") && !shown.contains("hunter2"), "{section} {name} {option}: {shown}");
                seen += 1;
            }
        }
        assert!(seen > 15, "only {seen} secrets are known");
    }
}
