//! The steps of a port's pipeline: their keys, and the positions where each is allowed.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::{
        build::{did_you_mean, duration, integer, text},
        document::{Entry, Kind, Node, join},
        language::{DAY, optional, required, seconds},
        shape::{Keys, Shape, listed},
    },
    Builder,
};
use crate::{
    exchange::{Assembled, Assembly, Compression, Pipeline, Property, Split, Step, TransformLanguage, Validation},
    filter::{Dialect, Filter},
    id::Name,
    problem::Code,
};

const STEPS_MAX: usize = 32;
const DECOMPRESSED_BYTES: u32 = 16 << 20;
const SPLIT_MOST: u32 = 1_000;
const RUN_TIMEOUT: Duration = seconds(10);
const ASSEMBLED_COUNT: u32 = 100;
const ASSEMBLED_BYTES: u32 = 4 << 20;
const WORDS: [&str; 9] =
    ["decompress", "compress", "split", "validate", "assemble", "promote", "transform", "sign", "run"];

pub(super) static STEPS: Shape = Shape::List { of: &STEP, most: STEPS_MAX };
static STEP: Shape = Shape::Object(&[
    optional(
        "decompress",
        &DECOMPRESS,
        "Decompresses the body: `gzip`, `zstd`, or `auto`, as `Content-Encoding` says.",
    ),
    optional("compress", &Shape::Choice(&["gzip", "zstd"]), "Compresses the body and sets `Content-Encoding`."),
    optional("split", &SPLIT, "Splits the message into several."),
    optional("validate", &VALIDATE, "Validates the body against a schema."),
    optional("assemble", &ASSEMBLE, "Aggregates messages with the same key into one; the last step."),
    optional(
        "promote",
        &PROMOTE,
        "Promotes properties: extracts them from the message at this step, unaffected by later steps.",
    ),
    optional("transform", &TRANSFORM, "Transforms the body."),
    optional("sign", &SIGN, "Signs the body at this step (Standard Webhooks)."),
    optional("run", &RUN, "Transforms the message by a program."),
]);
static DECOMPRESS: Shape = Shape::Either(&[&DECOMPRESS_WORD, &DECOMPRESS_OBJECT]);
static DECOMPRESS_WORD: Shape = Shape::Choice(&["auto", "gzip", "zstd"]);
static DECOMPRESS_OBJECT: Shape = Shape::Object(&[
    optional("as", &DECOMPRESS_WORD, "The compression; `auto` if not given."),
    optional(
        "bytes",
        &Shape::Integer { least: 1, most: 64 << 20 },
        "Most bytes after decompression; 16777216 if not given. A larger body suspends the message.",
    ),
]);
static SPLIT: Shape = Shape::Object(&[
    optional("json", &Shape::Text, "The items of this list, as a JSONPath: `$.orders`."),
    optional("lines", &Shape::Boolean, "Lines, such as those of NDJSON; empty ones are skipped."),
    optional("xml", &Shape::Text, "The elements of this name, without a prefix."),
    optional(
        "most",
        &Shape::Integer { least: 1, most: 10_000 },
        "Most parts of a message; 1000 if not given. A message with more is suspended.",
    ),
    optional(
        "may_be_empty",
        &Shape::Boolean,
        "Whether a message may have no parts, and then ends. If not given, such a message is suspended.",
    ),
]);
static VALIDATE: Shape = Shape::Object(&[
    optional("schema", &Shape::Any, "A JSON Schema (draft 4 to 2020-12)."),
    optional("xsd", &Shape::Text, "An XML Schema (1.0), in one piece."),
]);
static ASSEMBLE: Shape = Shape::Object(&[
    optional(
        "by",
        &super::port_policy::NAMES_OR_ONE,
        "The property, or properties, of the correlation key; all messages belong together if not given.",
    ),
    optional(
        "count",
        &Shape::Integer { least: 1, most: 10_000 },
        "Number of messages that completes an aggregate; 100 if not given.",
    ),
    required(
        "within",
        &Shape::Duration { least: seconds(1), most: seconds(30 * DAY) },
        "Time after the first message that completes an aggregate.",
    ),
    optional(
        "until",
        &Shape::Text,
        "A predicate over `message`, in CEL: a message that satisfies it completes the aggregate.",
    ),
    optional(
        "bytes",
        &Shape::Integer { least: 1, most: 64 << 20 },
        "Number of bytes that completes an aggregate; 4194304 if not given.",
    ),
    optional("as", &Shape::Choice(&["json", "lines"]), "A JSON list, or lines; `json` if not given."),
    optional("xml", &Shape::Text, "Instead: elements within a root element of this name."),
]);
static PROMOTE: Shape = Shape::Entries { keys: Keys::Fields, of: &PLACE, most: 64 };
static PLACE: Shape = Shape::Either(&[&Shape::Text, &PLACE_OBJECT]);
static PLACE_OBJECT: Shape = Shape::Object(&[
    optional("json", &Shape::Text, "Location in a JSON body."),
    optional("xml", &Shape::Text, "Location in an XML body."),
    optional("header", &Shape::Text, "Name of the header with the value."),
]);
static TRANSFORM: Shape = Shape::Object(&[
    optional("jmespath", &Shape::Text, "A JMESPath expression, from JSON to JSON."),
    optional("template", &Shape::Text, "A Jinja template, which sees `body` and `message`, its properties."),
    optional("xslt", &Shape::Text, "An XSLT 1.0 stylesheet, for XML and JSON."),
    optional(
        "content_type",
        &Shape::Text,
        "The media type of the result; without it `application/json`, of a stylesheet as its `xsl:output` says: `media-type`, \
         or `application/xml`, `text/html` or `text/plain` by its method. The result is encoded in the `charset` named here \
         or in the `encoding` of `xsl:output`; else in UTF-8.",
    ),
]);
static SIGN: Shape = Shape::Object(&[required(
    "secret",
    &Shape::Text,
    "`whsec_` and 24 to 64 bytes in base64; several separated by spaces. `${NAME}` takes it from the environment.",
)]);
static RUN: Shape = Shape::Object(&[
    required("command", &COMMAND, "The program and its arguments; the configuration must allow it."),
    optional("environment", &ENVIRONMENT, "Environment variables of the program, besides `PATH`."),
    optional(
        "timeout",
        &Shape::Duration { least: seconds(1), most: seconds(300) },
        "Timeout for a message; 10s if not given.",
    ),
]);
static COMMAND: Shape = Shape::List { of: &Shape::Text, most: 100 };
static ENVIRONMENT: Shape = Shape::Entries { keys: Keys::Free, of: &Shape::Text, most: 100 };

/// Position of a pipeline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PipelinePosition {
    Receive,
    ReceiveRequest,
    Send,
    Reply,
}

impl PipelinePosition {
    /// The problem of a step at this position, and a hint.
    fn key_problem(self, step: &Step) -> Option<(&'static str, &'static str)> {
        let comes = self != PipelinePosition::Send;
        match step {
            Step::Split { .. } if self == PipelinePosition::ReceiveRequest => Some((
                "cannot stand in a port of mode `request`",
                "one reply answers one message: give `mode: one_way`",
            )),
            Step::Assemble(_) if self == PipelinePosition::ReceiveRequest => Some((
                "cannot stand in a port of mode `request`",
                "one reply answers one message: give `mode: one_way`",
            )),
            Step::Assemble(_) if self != PipelinePosition::Receive => {
                Some(("can stand in receive ports only", "gather messages before they are routed"))
            }
            Step::Split { .. } if self != PipelinePosition::Receive => {
                Some(("can stand in receive ports only", "split the message before it is routed"))
            }
            Step::Decompress { .. } | Step::Promote(_) if !comes => {
                Some(("can stand only where messages come in", "put it into the pipeline of the receive port"))
            }
            Step::Compress(_) | Step::Sign { .. } if comes => {
                Some(("can stand only where messages leave", "put it into the pipeline of the send port"))
            }
            _ => None,
        }
    }
}

impl Builder<'_> {
    pub(super) fn pipeline(
        &mut self,
        port: &Node,
        key: &str,
        path: &str,
        place: PipelinePosition,
        properties: &[Property],
    ) -> Pipeline {
        let Some(Kind::List(items)) = port.get(key).map(|node| &node.kind) else { return Pipeline::default() };
        let mut steps = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let path = format!("{}[{at}]", join(path, key));
            let given: Vec<&Entry> = item.entries().iter().filter(|entry| WORDS.contains(&&*entry.key)).collect();
            let [entry] = given[..] else {
                let problem = item.problem(Code::Required, &path, "is not one step");
                self.problems.push(problem.hint(format!("give one of {}", listed(&WORDS))));
                continue;
            };
            let path = join(&path, &entry.key);
            let Some(step) = self.step(entry, &path, properties) else { continue };
            if let Some((message, hint)) = place.key_problem(&step) {
                self.problems.push(entry.value.problem(Code::NotApplicable, &path, message).hint(hint));
            }
            if matches!(step, Step::Sign { .. }) && steps.iter().any(|step| matches!(step, Step::Sign { .. })) {
                let problem = entry.value.problem(Code::Duplicate, &path, "is given twice");
                self.problems.push(problem.hint("give both secrets to one, separated by a space"));
            }
            steps.push(step);
        }
        self.check_assembly(port, &join(path, key), &steps);
        Pipeline(steps)
    }

    /// An assembly is stored before it is complete: no step may follow it, and no split may precede it.
    fn check_assembly(&mut self, port: &Node, path: &str, steps: &[Step]) {
        let Some(at) = steps.iter().position(|step| matches!(step, Step::Assemble(_))) else { return };
        if at + 1 < steps.len() {
            let problem = port.problem(Code::NotApplicable, &format!("{path}[{at}].assemble"), "is not the last step");
            self.problems.push(problem.hint("put later steps into the pipelines of the send ports"));
        }
        if steps.iter().any(|step| matches!(step, Step::Split { .. })) {
            let problem =
                port.problem(Code::NotApplicable, &format!("{path}[{at}].assemble"), "cannot stand behind `split`");
            self.problems.push(problem.hint("send the parts through another receive port, and aggregate them there"));
        }
    }

    fn validation(&mut self, node: &Node, path: &str) -> Option<Validation> {
        match (node.get("schema"), node.get("xsd")) {
            (Some(schema), None) => Some(Validation::Json(schema.json())),
            (None, Some(xsd)) => Some(Validation::Xml(xsd.text()?.to_owned())),
            _ => {
                let hint = "give one of `schema`, a JSON Schema, and `xsd`, an XML Schema";
                self.problems.push(node.problem(Code::Required, path, "has no schema").hint(hint));
                None
            }
        }
    }

    fn assembly(&mut self, node: &Node, path: &str, properties: &[Property]) -> Option<Assembly> {
        let known: Vec<&str> = properties.iter().map(|property| property.name.as_str()).collect();
        let into = match (text(node, "as").as_deref(), text(node, "xml")) {
            (None, Some(root)) if is_element_name(&root) => Assembled::Xml(root),
            (None, Some(_)) => {
                let problem = node
                    .problem(Code::InvalidFormat, &join(path, "xml"), "is not the name of an element")
                    .param("format", "xml_name");
                self.problems.push(problem.hint("give letters, digits, `_`, `-` and `.`, such as `orders`"));
                return None;
            }
            (Some(_), Some(_)) => {
                let problem = node.problem(Code::NoEffect, &join(path, "xml"), "has no effect beside `as`");
                self.problems.push(problem.hint("give one of the two"));
                return None;
            }
            (Some("lines"), None) => Assembled::Lines,
            (_, None) => Assembled::Json,
        };
        Some(Assembly {
            by: self.names(node, path, "by", &known, "properties"),
            count: integer(node, "count").unwrap_or(ASSEMBLED_COUNT),
            within: duration(node, "within")?,
            until: text(node, "until").map(|text| Filter { dialect: Dialect::Cel, text }),
            bytes: integer(node, "bytes").unwrap_or(ASSEMBLED_BYTES),
            into,
        })
    }

    fn step(&mut self, entry: &Entry, path: &str, properties: &[Property]) -> Option<Step> {
        let node = &entry.value;
        match entry.key.as_str() {
            "decompress" => {
                let word = node.text().map(str::to_owned).or_else(|| text(node, "as"));
                let bytes_max = integer(node, "bytes").unwrap_or(DECOMPRESSED_BYTES);
                Some(Step::Decompress { compression: word.as_deref().and_then(Compression::of), bytes_max })
            }
            "compress" => Some(Step::Compress(Compression::of(node.text()?)?)),
            "split" => self.split(node, path),
            "validate" => self.validation(node, path).map(Step::Validate),
            "assemble" => self.assembly(node, path, properties).map(Step::Assemble),
            "promote" => Some(self.promote(node, path, properties)),
            "transform" => self.transform(node, path),
            "sign" => Some(Step::Sign { secret: text(node, "secret")? }),
            _ => self.run(node, path),
        }
    }

    fn split(&mut self, node: &Node, path: &str) -> Option<Step> {
        let lines = node.get("lines").filter(|node| node.kind == Kind::Boolean(true));
        let into = match (node.get("json"), lines, node.get("xml")) {
            (Some(json), None, None) => match json.text()?.parse() {
                Ok(found) => Split::Json(found),
                Err(error) => {
                    let error: crate::exchange::JsonPathError = error;
                    let problem = json
                        .problem(Code::InvalidFormat, &join(path, "json"), error.to_string())
                        .param("format", "json_path");
                    self.problems.push(problem.hint("give a JSONPath such as `$.orders`"));
                    return None;
                }
            },
            (None, Some(_), None) => Split::Lines,
            (None, None, Some(xml)) => Split::Xml(xml.text()?.to_owned()),
            _ => {
                let hint = "give one of `json: $.orders`, `lines: true` and `xml: order`";
                self.problems.push(node.problem(Code::Required, path, "does not define the parts").hint(hint));
                return None;
            }
        };
        let may_be_empty = node.get("may_be_empty").is_some_and(|node| node.kind == Kind::Boolean(true));
        Some(Step::Split { into, most: integer(node, "most").unwrap_or(SPLIT_MOST), may_be_empty })
    }

    fn promote(&mut self, node: &Node, path: &str, properties: &[Property]) -> Step {
        let known: Vec<&str> = properties.iter().map(|property| property.name.as_str()).collect();
        let mut places = Vec::new();
        for entry in node.entries() {
            let path = join(path, &entry.key);
            if !known.contains(&entry.key.as_str()) {
                let problem = entry
                    .value
                    .problem(Code::UnknownReference, &path, "is not among the properties")
                    .param("kind", "property");
                self.problems.push(problem.hint(did_you_mean(&entry.key, &known, "properties")));
                continue;
            }
            let name = entry.key.parse::<Name>().ok();
            places.extend(name.zip(self.place(&entry.value, &path)));
        }
        Step::Promote(places)
    }

    fn transform(&mut self, node: &Node, path: &str) -> Option<Step> {
        let languages = [
            ("jmespath", TransformLanguage::Jmespath),
            ("template", TransformLanguage::Template),
            ("xslt", TransformLanguage::Xslt),
        ];
        let given: Vec<_> = languages.into_iter().filter_map(|(key, kind)| Some((kind, text(node, key)?))).collect();
        let [(language, text_given)] = &given[..] else {
            let hint = "give one of `jmespath`, `template` and `xslt`";
            self.problems.push(node.problem(Code::Required, path, "has no language").hint(hint));
            return None;
        };
        // A stylesheet declares its output type.
        let usual = if *language == TransformLanguage::Xslt { "" } else { "application/json" };
        let content_type = text(node, "content_type").unwrap_or_else(|| usual.to_owned());
        Some(Step::Transform { language: *language, text: text_given.clone(), content_type })
    }

    fn run(&mut self, node: &Node, path: &str) -> Option<Step> {
        let Some(Kind::List(items)) = node.get("command").map(|node| &node.kind) else { return None };
        let command: Vec<String> = items.iter().filter_map(|item| item.text().map(str::to_owned)).collect();
        if command.is_empty() {
            let problem = node.problem(Code::Required, &join(path, "command"), "names no program");
            self.problems.push(problem.hint("give the path of a program and its arguments"));
            return None;
        }
        let entries = node.get("environment").map_or(&[][..], Node::entries);
        let environment: BTreeMap<String, String> =
            entries.iter().filter_map(|entry| Some((entry.key.clone(), entry.value.text()?.to_owned()))).collect();
        Some(Step::Run { command, environment, timeout: duration(node, "timeout").unwrap_or(RUN_TIMEOUT) })
    }
}

fn is_element_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') && name.bytes().all(inner)
}
