//! Merge of the configuration layers, with the source of each value.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use clap::Args;
use serde_json::Value;
use tocsin_model::problem::{Code, Problem, closest};
use toml::de::{DeTable, DeValue};

use super::{Configuration, Key, keys, otel};
use crate::failure::{Failure, Outcome, read_text_file};

/// Variables of the command line that are not configuration keys.
const OTHER_VARIABLES: [&str; 4] = ["TOCSIN_CONFIG", "TOCSIN_SERVER", "TOCSIN_KEY", "TOCSIN_KEY_FILE"];

/// File name of the configuration in the working folder or the data folder.
pub const FILE: &str = "tocsin.toml";

/// Configuration flags.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigurationArgs {
    /// Configuration file [default: tocsin.toml in the working folder, otherwise in the data folder]
    #[arg(long, global = true, value_name = "FILE", env = "TOCSIN_CONFIG", help_heading = "Configuration")]
    pub config: Option<PathBuf>,
    /// Data folder; same as --set data.folder=FOLDER
    #[arg(long, global = true, value_name = "FOLDER", help_heading = "Configuration")]
    pub data: Option<PathBuf>,
    /// Value of any key, such as --set http.listen=0.0.0.0:8480; repeatable
    #[arg(long, global = true, value_name = "KEY=VALUE", help_heading = "Configuration")]
    pub set: Vec<String>,
}

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Default.
    Default,
    /// Path and line of the configuration file.
    File(String, u32),
    /// Environment variable.
    Variable(String),
    /// Flag.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File(path, line) => write!(f, "{path}:{line}"),
            Source::Variable(name) => f.write_str(name),
            Source::Flag(name) => f.write_str(name),
        }
    }
}

/// Value and its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Value.
    pub value: Value,
    /// Source.
    pub source: Source,
}

/// Raw layers before the merge.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// Path and text of the file.
    pub file: Option<(String, String)>,
    /// Environment variables: `TOCSIN_*`, and below them `OTEL_*`; others are ignored.
    pub variables: Vec<(String, String)>,
    /// Flags: as typed, key, value.
    pub flags: Vec<(String, String, String)>,
}

/// Merged configuration with the source of each value.
#[derive(Debug, Clone)]
pub struct MergedConfiguration {
    /// Configuration.
    pub configuration: Configuration,
    /// Value and source of each key.
    pub settings: BTreeMap<&'static str, Setting>,
    /// Warnings: probable mistakes without effect.
    pub warnings: Vec<String>,
}

impl MergedConfiguration {
    /// All values as shown to operators, secrets masked, with their sources, in the order of the sections.
    pub fn shown(&self) -> impl Iterator<Item = (&'static Key, Value, &Source)> {
        keys().filter_map(|key| {
            let setting = self.settings.get(key.path.as_str())?;
            let masked = key.secret && setting.value.as_str().is_none_or(|text| !text.is_empty());
            let value = if masked { Value::from("********") } else { setting.value.clone() };
            Some((key, value, &setting.source))
        })
    }
}

/// The configuration of a program that reads no layers, such as the demo.
impl From<Configuration> for MergedConfiguration {
    fn from(configuration: Configuration) -> Self {
        let document = serde_json::to_value(&configuration).unwrap_or_default();
        let setting = |key: &'static Key| {
            let value = document.pointer(&format!("/{}", key.path.replace('.', "/"))).unwrap_or(&key.default).clone();
            let is_default = value == key.default;
            let source = if is_default { Source::Default } else { Source::Flag("program".to_owned()) };
            (key.path.as_str(), Setting { value, source })
        };
        let settings = keys().map(setting).collect();
        MergedConfiguration { configuration, settings, warnings: Vec::new() }
    }
}

impl Layers {
    /// Merges the layers.
    ///
    /// # Errors
    /// All problems, each with its position.
    pub fn merge(&self) -> Result<MergedConfiguration, Vec<String>> {
        let (mut problems, mut warnings) = (Vec::new(), Vec::new());
        let mut settings: BTreeMap<&'static str, Setting> = keys()
            .map(|key| (key.path.as_str(), Setting { value: key.default.clone(), source: Source::Default }))
            .collect();
        let mut set = |key: &'static Key, value: Value, source: Source, position: &str| match try_alone(key, &value) {
            Ok(()) => {
                settings.insert(&key.path, Setting { value, source });
            }
            Err(message) => problems.push(format!("{position}: {}: {message}", key.path)),
        };
        let mut wrong = Vec::new();
        let said = otel::read(&self.variables, &mut warnings);
        let set_said = |is_weak: bool, set: &mut dyn FnMut(&'static Key, Value, Source, &str)| {
            for one in said.iter().filter(|one| one.is_weak == is_weak) {
                let key = keys().find(|key| key.path == one.key).expect("these variables name existing keys");
                set(key, typed_value(key, &one.text), Source::Variable(one.variable.to_owned()), one.variable);
            }
        };
        set_said(true, &mut set);
        if let Some((path, text)) = &self.file {
            for (position, key, value) in read_file(path, text, &mut wrong) {
                set(
                    key,
                    value,
                    Source::File(path.clone(), position.0),
                    &format!("{path}:{}:{}", position.0, position.1),
                );
            }
        }
        set_said(false, &mut set);
        for (name, text) in &self.variables {
            if !name.starts_with("TOCSIN_") || OTHER_VARIABLES.contains(&name.as_str()) {
                continue;
            }
            match keys().find(|key| key.variable() == *name) {
                Some(key) => set(key, typed_value(key, text), Source::Variable(name.clone()), name),
                // Not an error: container platforms create variables from service names.
                None => {
                    let known: Vec<String> = keys().map(Key::variable).collect();
                    let meant = closest(name, known.iter().map(String::as_str));
                    let hint = meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
                    warnings.push(format!("the variable {name} is not a configuration key and is ignored{hint}"));
                }
            }
        }
        for (flag, path, text) in &self.flags {
            match keys().find(|key| key.path == *path) {
                Some(key) => set(key, typed_value(key, text), Source::Flag(flag.clone()), flag),
                None => wrong.push(format!("{flag}: {}", unknown(path))),
            }
        }
        wrong.extend(problems);
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let configuration = assemble(settings.iter().map(|(path, setting)| (*path, setting.value.clone())));
        let configuration = configuration.map_err(|message| vec![message])?;
        Ok(MergedConfiguration { configuration, settings, warnings })
    }
}

/// Reads flags, variables and the file of this process.
///
/// # Errors
/// All problems.
pub fn load(args: &ConfigurationArgs, more: &[(&str, &str, String)]) -> Outcome<MergedConfiguration> {
    let mut flags = Vec::new();
    for assignment in &args.set {
        let Some((key, value)) = assignment.split_once('=') else {
            return Err(Failure::usage(format!("--set must be KEY=VALUE; found `{assignment}`")));
        };
        flags.push((format!("--set {key}"), key.trim().to_owned(), value.trim().to_owned()));
    }
    if let Some(folder) = &args.data {
        flags.push(("--data".to_owned(), "data.folder".to_owned(), folder.display().to_string()));
    }
    flags.extend(more.iter().map(|(flag, key, value)| (flag.to_string(), key.to_string(), value.clone())));
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("TOCSIN_") || name.starts_with("OTEL_"))
        .collect();
    let mut layers = Layers { file: None, variables, flags };
    layers.file = match file_of(args, &layers)? {
        Some(path) => {
            let text = read_text_file("read the configuration", &path)?;
            Some((path.display().to_string(), text))
        }
        None => None,
    };
    layers.merge().map_err(|problems| {
        let mut failure = Failure::usage("the configuration is invalid:");
        failure.details = problems;
        failure
    })
}

/// Path of the configuration file: the given one, otherwise the first existing one of the usual places.
///
/// # Errors
/// If flags or variables are invalid, so that the data folder is unknown.
pub fn file_of(args: &ConfigurationArgs, layers: &Layers) -> Outcome<Option<PathBuf>> {
    if let Some(path) = &args.config {
        return Ok(Some(path.clone()));
    }
    // The layers above the file determine the data folder, the second place of the file.
    let above = Layers { file: None, ..layers.clone() };
    let folder = above
        .merge()
        .map_or_else(|_| Configuration::default().data.folder, |layered| layered.configuration.data.folder);
    Ok([PathBuf::from(FILE), folder.join(FILE)].into_iter().find(|path| path.is_file()))
}

/// Converts text to the key's type. Unconvertible text stays text, and deserialization reports the error.
fn typed_value(key: &Key, text: &str) -> Value {
    let parsed = match key.kind {
        "integer" => text.trim().parse::<i64>().ok().map(Value::from),
        "number" => text.trim().parse::<f64>().ok().map(Value::from),
        "boolean" => match text.trim() {
            "true" | "1" | "yes" | "on" => Some(Value::Bool(true)),
            "false" | "0" | "no" | "off" => Some(Value::Bool(false)),
            _ => None,
        },
        // As in the file, or without brackets and quotation marks.
        "list of strings" if text.trim_start().starts_with('[') => {
            serde_json::from_str::<Vec<String>>(text).ok().map(Value::from)
        }
        "list of strings" => {
            Some(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect())
        }
        _ => None,
    };
    parsed.unwrap_or_else(|| Value::from(text))
}

/// Deserializes the key's value alone, with defaults for all other keys.
fn try_alone(key: &Key, value: &Value) -> Result<(), String> {
    assemble([(key.path.as_str(), value.clone())])?;
    key.check_range(value)?;
    match key.path.as_str() {
        "log.level" => crate::logging::check_level(value.as_str().unwrap_or_default()),
        _ => Ok(()),
    }
}

fn assemble<'a>(values: impl IntoIterator<Item = (&'a str, Value)>) -> Result<Configuration, String> {
    let mut root = serde_json::Map::new();
    for (path, value) in values {
        let (section, name) = path.split_once('.').expect("a key has a section");
        let section = root.entry(section).or_insert_with(|| Value::Object(Default::default()));
        section.as_object_mut().expect("only sections are inserted").insert(name.to_owned(), value);
    }
    serde_json::from_value(Value::Object(root)).map_err(|error| error.to_string())
}

fn unknown(path: &str) -> String {
    let sections = keys().filter_map(|key| key.path.split_once('.')).map(|(section, _)| section);
    let meant = closest(path, keys().map(|key| key.path.as_str())).map(str::to_owned).or_else(|| {
        // A key in the wrong section is a common mistake.
        let name = path.rsplit('.').next().unwrap_or(path);
        keys().find(|key| key.path.rsplit('.').next() == Some(name)).map(|key| key.path.clone())
    });
    let hint = match (meant, path.split_once('.')) {
        (Some(meant), _) => format!("did you mean `{meant}`?"),
        (None, Some((section, _))) if let Some(known) = sections.clone().find(|known| *known == section) => {
            let of: Vec<&str> = keys().filter_map(|key| key.path.strip_prefix(known)?.strip_prefix('.')).collect();
            format!("the keys of `[{known}]` are {}", of.join(", "))
        }
        _ => "`tocsin config` lists all keys".to_owned(),
    };
    Problem::new(Code::UnknownMember, path, "unknown key").hint(hint).to_string()
}

/// Line and column, starting at 1.
type Position = (u32, u32);

fn read_file<'a>(path: &str, text: &'a str, wrong: &mut Vec<String>) -> Vec<(Position, &'static Key, Value)> {
    let position = |offset: usize| -> Position {
        let before = &text[..offset.min(text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
        (line as u32, column as u32)
    };
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            let (line, column) = position(error.span().map_or(0, |span| span.start));
            wrong.push(format!("{path}:{line}:{column}: {}", error.message()));
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    let mut take = |key_path: String, offset: usize, value: &DeValue<'a>| {
        let at = position(offset);
        match keys().find(|key| key.path == key_path) {
            Some(key) => found.push((at, key, json(value))),
            None => wrong.push(format!("{path}:{}:{}: {}", at.0, at.1, unknown(&key_path))),
        }
    };
    for (section, value) in table.iter() {
        match value.get_ref() {
            DeValue::Table(fields) => {
                for (name, value) in fields.iter() {
                    take(format!("{}.{}", section.get_ref(), name.get_ref()), name.span().start, value.get_ref());
                }
            }
            other => take(section.get_ref().to_string(), section.span().start, other),
        }
    }
    found.sort_by_key(|(at, ..)| *at);
    found
}

fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::from(number.as_str()), Value::from),
        DeValue::Float(number) => {
            number.as_str().parse::<f64>().map_or_else(|_| Value::from(number.as_str()), Value::from)
        }
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Datetime(time) => Value::from(time.to_string()),
        DeValue::Array(items) => items.iter().map(|item| json(item.get_ref())).collect(),
        DeValue::Table(fields) => Value::Object(
            fields.iter().map(|(name, value)| (name.get_ref().to_string(), json(value.get_ref()))).collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    /// Merges layers; shows values that are not default, or the problems.
    fn check(file: &str, variables: &[(&str, &str)], flags: &[(&str, &str)], expected: Expect) {
        let layers = Layers {
            file: Some(("tocsin.toml".into(), file.into())),
            variables: variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            flags: flags
                .iter()
                .map(|(key, value)| (format!("--set {key}"), key.to_string(), value.to_string()))
                .collect(),
        };
        let shown = match layers.merge() {
            Ok(layered) => {
                let set = layered.settings.iter().filter(|(_, setting)| setting.source != Source::Default);
                let lines = set.map(|(path, setting)| format!("{path} = {} ({})", setting.value, setting.source));
                lines
                    .chain(layered.warnings.iter().map(|warning| format!("warning: {warning}")))
                    .collect::<Vec<_>>()
                    .join("\n")
            }
            Err(problems) => problems.join("\n"),
        };
        expected.assert_eq(&shown);
    }

    #[test]
    fn each_layer_overrides_the_previous_one() {
        check(
            "[http]\nlisten = '127.0.0.1:1'\n",
            &[],
            &[],
            expect![[r#"http.listen = "127.0.0.1:1" (tocsin.toml:2)"#]],
        );
        check(
            "[http]\nlisten = '127.0.0.1:1'\n",
            &[("TOCSIN_HTTP_LISTEN", "127.0.0.1:2")],
            &[],
            expect![[r#"http.listen = "127.0.0.1:2" (TOCSIN_HTTP_LISTEN)"#]],
        );
        check(
            "[http]\nlisten = '127.0.0.1:1'\n",
            &[("TOCSIN_HTTP_LISTEN", "127.0.0.1:2")],
            &[("http.listen", "127.0.0.1:3")],
            expect![[r#"http.listen = "127.0.0.1:3" (--set http.listen)"#]],
        );
    }

    #[test]
    fn otel_variables_override_the_file_and_are_overridden_by_tocsin_variables() {
        check(
            "[telemetry]\nendpoint = 'http://file:4318'\nservice_name = 'file'\n",
            &[
                ("OTEL_TRACES_EXPORTER", "otlp"),
                ("OTEL_SERVICE_NAME", "otel"),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
                ("TOCSIN_TELEMETRY_QUEUE_SPANS", "9"),
            ],
            &[],
            expect![[r#"OTEL_BSP_MAX_QUEUE_SIZE: telemetry.queue_spans: invalid type: string "many", expected u32"#]],
        );
        check(
            "[telemetry]\nendpoint = 'http://file:4318'\nservice_name = 'file'\n",
            &[
                ("OTEL_TRACES_EXPORTER", "otlp"),
                ("OTEL_SERVICE_NAME", "otel"),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
                ("TOCSIN_TELEMETRY_QUEUE_SPANS", "9"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ],
            &[],
            expect![[r#"
                telemetry.endpoint = "http://file:4318" (tocsin.toml:2)
                telemetry.queue_spans = 9 (TOCSIN_TELEMETRY_QUEUE_SPANS)
                telemetry.service_name = "otel" (OTEL_SERVICE_NAME)
                warning: OTEL_EXPORTER_OTLP_PROTOCOL: `grpc` is not supported; use `http/protobuf` or `http/json`, usually at port 4318"#]],
        );
    }

    #[test]
    fn text_is_converted_to_the_type_of_its_key() {
        check(
            "journal.disk_reserve = '1GiB'\nrecords.readers = 0x4\n",
            &[
                ("TOCSIN_METRICS_ENABLED", "off"),
                ("TOCSIN_DELIVERY_ALLOW_NETWORKS", "10.0.0.0/8, 127.0.0.1/32"),
                ("TOCSIN_KEY", "x"),
            ],
            &[
                ("runtime.threads", "3"),
                ("pipeline.drain_patience", "5s"),
                ("http.allow_origins", r#"["https://a.example", "https://b.example"]"#),
            ],
            expect![[r#"
                delivery.allow_networks = ["10.0.0.0/8","127.0.0.1/32"] (TOCSIN_DELIVERY_ALLOW_NETWORKS)
                http.allow_origins = ["https://a.example","https://b.example"] (--set http.allow_origins)
                journal.disk_reserve = "1GiB" (tocsin.toml:1)
                metrics.enabled = false (TOCSIN_METRICS_ENABLED)
                pipeline.drain_patience = "5s" (--set pipeline.drain_patience)
                records.readers = 4 (tocsin.toml:2)
                runtime.threads = 3 (--set runtime.threads)"#]],
        );
    }

    #[test]
    fn every_problem_is_reported_with_its_position() {
        check(
            "[http]\nlisten = 5\nlistn = 'x'\n[jurnal]\nreaders = 2\n[log]\nformat = 'xml'\ncolour = true\n",
            &[("TOCSIN_RUNTIME_THREADS", "many"), ("TOCSIN_HTTP_LISTN", "x"), ("TOCSIN_PORT", "tcp://10.0.0.1:80")],
            &[("drain_patience", "1s"), ("http.header_timeout", "soon")],
            expect![[r#"
                tocsin.toml:3:1: http.listn: unknown key; did you mean `http.listen`?
                tocsin.toml:5:1: jurnal.readers: unknown key; did you mean `records.readers`?
                tocsin.toml:8:1: log.colour: unknown key; the keys of `[log]` are level, format
                --set drain_patience: drain_patience: unknown key; did you mean `pipeline.drain_patience`?
                tocsin.toml:2:1: http.listen: invalid type: integer `5`, expected socket address
                tocsin.toml:7:1: log.format: unknown variant `xml`, expected `text` or `json`
                TOCSIN_RUNTIME_THREADS: runtime.threads: invalid type: string "many", expected u32
                --set http.header_timeout: http.header_timeout: `soon` is not a duration; expected an integer with a unit, such as `250ms`, `30s`, `5m`, `2h` or `7d`"#]],
        );
        check("[http\nlisten = 5", &[], &[], expect!["tocsin.toml:1:6: unclosed table, expected `]`"]);
        check(
            "",
            &[("TOCSIN_HTTP_LISTN", "x"), ("TOCSIN_PORT", "tcp://10.0.0.1:80")],
            &[],
            expect![[r#"
            warning: the variable TOCSIN_HTTP_LISTN is not a configuration key and is ignored; did you mean `TOCSIN_HTTP_LISTEN`?
            warning: the variable TOCSIN_PORT is not a configuration key and is ignored"#]],
        );
    }
}
