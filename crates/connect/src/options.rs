//! Parses untyped options of a definition into typed options and reports every problem at once.

use std::{borrow::Cow, fmt, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tocsin_model::problem::{Code, Problem, closest};

/// Options of a protocol. Every field has a default, so that each can be checked alone; `problems` reports missing
/// options and invalid combinations.
pub trait Options: DeserializeOwned + JsonSchema {
    /// Former names of options, each with its name now. Definitions may use either.
    const RENAMED: &'static [(&'static str, &'static str)] = &[];

    /// Problems of the options as a whole; paths are relative: `host`.
    fn problems(&self) -> Vec<Problem>;
}

/// Reads options; their paths start with `path`.
///
/// # Errors
/// All problems at once.
pub fn read<T: Options>(given: &Map<String, Value>, path: &str) -> Result<T, Vec<Problem>> {
    let schema = schemars::schema_for!(T);
    let known: Vec<&str> = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::keys)
        .map(String::as_str)
        .collect();
    let (mut good, mut problems) = (Map::new(), Vec::new());
    for (written, value) in given {
        let at = join(path, written);
        let key = T::RENAMED.iter().find(|(former, _)| former == written).map_or(written.as_str(), |(_, name)| name);
        if key != written && given.contains_key(key) {
            let problem = Problem::new(Code::ConflictingMembers, at, format!("is the former name of `{key}`"));
            problems.push(problem.hint(format!("give `{key}` alone")));
            continue;
        }
        if !known.contains(&key) {
            let problem = Problem::new(Code::UnknownMember, at, format!("`{key}` is not an option here"))
                .known(key, known.iter().copied());
            problems.push(match closest(key, known.iter().copied()) {
                Some(word) => problem.hint(format!("did you mean `{word}`?")),
                None => problem.hint(format!("the options are {}", known.join(", "))),
            });
            continue;
        }
        let alone = Map::from_iter([(key.to_owned(), value.clone())]);
        match (serde_json::from_value::<T>(Value::Object(alone)), unquoted(value)) {
            (Ok(_), _) => drop(good.insert(key.to_owned(), value.clone())),
            (Err(_), Some(plain)) if is_readable::<T>(key, &plain) => drop(good.insert(key.to_owned(), plain)),
            (Err(error), _) => {
                let text = error.to_string();
                let code = if text.starts_with("unknown variant") { Code::UnknownValue } else { Code::WrongType };
                problems.push(Problem::new(code, at, text));
            }
        }
    }
    let wrong: Vec<String> = problems.iter().map(|problem| problem.path.clone()).collect();
    let options: T = serde_json::from_value(Value::Object(good))
        .map_err(|error| vec![Problem::new(Code::WrongType, path, error.to_string())])?;
    // A value that could not be read is not also reported as missing.
    problems.extend(options.problems().into_iter().filter_map(|mut problem| {
        problem.path = join(path, &as_written::<T>(&problem.path, given));
        (!wrong.contains(&problem.path)).then_some(problem)
    }));
    if problems.is_empty() { Ok(options) } else { Err(problems) }
}

/// The path of a problem in options that may use a former name.
fn as_written<T: Options>(path: &str, given: &Map<String, Value>) -> String {
    let renamed = T::RENAMED.iter().find_map(|(former, name)| {
        let rest = path.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))?;
        given.contains_key(*former).then(|| format!("{former}{rest}"))
    });
    renamed.unwrap_or_else(|| path.to_owned())
}

/// The number or truth value in a quoted text: `"${SMTP_PORT}"` is a text in YAML even if the variable holds a
/// number.
fn unquoted(value: &Value) -> Option<Value> {
    let plain: Value = serde_json::from_str(value.as_str()?).ok()?;
    (plain.is_number() || plain.is_boolean()).then_some(plain)
}

fn is_readable<T: Options>(key: &str, value: &Value) -> bool {
    let alone = Map::from_iter([(key.to_owned(), value.clone())]);
    serde_json::from_value::<T>(Value::Object(alone)).is_ok()
}

fn join(path: &str, key: &str) -> String {
    match (path.is_empty(), key.is_empty()) {
        (true, _) => key.to_owned(),
        (_, true) => path.to_owned(),
        _ => format!("{path}.{key}"),
    }
}

/// A duration in options: `500ms`, `30s`, `5m`, `2h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait(pub Duration);

impl Wait {
    /// A duration in seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Wait(Duration::from_secs(seconds))
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => 0,
        };
        match number.parse::<u64>() {
            Ok(number) if millis > 0 && (1..=86_400_000).contains(&number.saturating_mul(millis)) => {
                Ok(Wait(Duration::from_millis(number * millis)))
            }
            _ => Err(serde::de::Error::custom(format!(
                "`{text}` is not a time from 1ms to 24h, such as `500ms`, `30s`, `5m` or `2h`"
            ))),
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        match [(3_600_000, "h"), (60_000, "m"), (1_000, "s")]
            .into_iter()
            .find(|(size, _)| millis >= *size && millis.is_multiple_of(*size))
        {
            Some((size, unit)) => write!(f, "{}{unit}", millis / size),
            None => write!(f, "{millis}ms"),
        }
    }
}

impl Serialize for Wait {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Wait {
    fn schema_name() -> Cow<'static, str> {
        "Wait".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h)$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_number_is_accepted_where_a_number_is_expected() {
        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(default)]
        struct TestOptions {
            host: String,
            port: u16,
            pipelining: bool,
        }
        impl Options for TestOptions {
            fn problems(&self) -> Vec<Problem> {
                Vec::new()
            }
        }
        let given = |value: Value| read::<TestOptions>(value.as_object().expect("an object"), "options");
        let read = given(serde_json::json!({"host": "25", "port": "2525", "pipelining": "true"})).expect("options");
        assert_eq!((read.host.as_str(), read.port, read.pipelining), ("25", 2525, true));
        for wrong in ["", "smtp", "65536", "-1", "2 5", "[25]", "true"] {
            let problems = given(serde_json::json!({"port": wrong})).expect_err(wrong);
            assert_eq!(problems[0].path, "options.port", "{wrong}");
        }
    }

    #[test]
    fn a_former_name_is_still_read() {
        #[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
        #[serde(default)]
        struct TestOptions {
            servers: Vec<String>,
        }
        impl Options for TestOptions {
            const RENAMED: &'static [(&'static str, &'static str)] = &[("brokers", "servers")];

            fn problems(&self) -> Vec<Problem> {
                let is_empty = |(at, server): (usize, &String)| {
                    server.is_empty().then(|| Problem::new(Code::Required, format!("servers[{at}]"), "is empty"))
                };
                self.servers.iter().enumerate().filter_map(is_empty).collect()
            }
        }
        let check = |value: Value, expected: &str| {
            let shown = match read::<TestOptions>(value.as_object().expect("an object"), "options") {
                Ok(options) => options.servers.join(" "),
                Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
            };
            assert_eq!(shown, expected, "{value}");
        };
        check(serde_json::json!({"servers": ["a", "b"]}), "a b");
        check(serde_json::json!({"brokers": ["a", "b"]}), "a b");
        check(serde_json::json!({"servers": ["a", ""]}), "options.servers[1]: is empty");
        // A problem is reported at the name that the definition uses.
        check(serde_json::json!({"brokers": ["a", ""]}), "options.brokers[1]: is empty");
        check(
            serde_json::json!({"brokers": ["a"], "servers": ["b"]}),
            "options.brokers: is the former name of `servers`; give `servers` alone",
        );
    }

    #[test]
    fn times_are_read_and_shown() {
        for text in ["500ms", "30s", "5m", "24h"] {
            let wait: Wait = serde_json::from_value(Value::from(text)).expect("a time");
            assert_eq!(wait.to_string(), text);
        }
        for wrong in ["", "5", "s", "-1s", "1d", "25h", "0s", "99999999999999999999h"] {
            assert!(serde_json::from_value::<Wait>(Value::from(wrong)).is_err(), "{wrong}");
        }
    }
}
