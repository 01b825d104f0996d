//! Parses the text of an [`Exchange`] and reports every problem: first the keys, then the names.

use std::{collections::BTreeMap, time::Duration};

mod port_policy; // schedule and priority of a port
mod pipeline; // the steps of a port
mod tracking; // which bodies are stored

use pipeline::{PipelinePosition, STEPS};
use port_policy::{ORDERED, PRIORITY, WINDOW};
use tracking::TRACKING;

use super::{
    build::{boolean, did_you_mean, duration, field_type, integer, name, options, retry, text},
    document::{self, Entry, Kind, Node, join},
    in_order,
    language::{DAY, DIALECT, RETRY, optional, required, seconds},
    shape::{self, Keys, Shape},
    variables,
};
use crate::{
    exchange::{
        CONTEXT_FIELDS, Exchange, JsonPath, LaterReplies, Location, MessageFlow, Mode, Property, PropertyLocation,
        ReceivePort, Route, SendPort, Step, TrackPoint, Tracking, Transport, XmlPath,
    },
    field::FieldType,
    filter::{Dialect, Filter},
    id::Name,
    problem::{Code, Problem},
};

/// Most properties of an exchange; each is extracted from every message.
const PROPERTIES_MAX: usize = 64;
const ROUTES_MAX: usize = 100_000;
const PORTS_MAX: usize = 10_000;
const LOCATIONS_MAX: usize = 100;
const WAIT: Duration = seconds(30);
const EXPIRES_AFTER: Duration = seconds(300);
const REPLY_WITHIN: Duration = seconds(DAY);
const BODY_BYTES: u32 = 1 << 20;
const BODY_BYTES_MOST: i64 = 64 << 20;
const CONCURRENCY: u32 = 32;
const RETENTION: Duration = seconds(7 * DAY);
const OPEN_MESSAGES: u32 = 100_000;

static EXCHANGE: Shape = Shape::Object(&[
    required("exchange", &Shape::Name, "The name of the exchange."),
    optional("description", &Shape::Text, "A description for readers."),
    optional(
        "properties",
        &PROPERTIES,
        "Values extracted from each message; routes see them as `message.NAME`, beside `port`, `kind` (`one_way`, \
         `request` or `reply`), `content_type` and `bytes`.",
    ),
    required("receive", &RECEIVE, "Receive ports, which accept messages."),
    required("send", &SEND, "Send ports, which send messages to other systems."),
    optional("groups", &GROUPS, "Named groups of send ports, for routes."),
    required("routes", &ROUTES, "Routes from messages to send ports."),
    optional(
        "retention",
        &Shape::Duration { least: seconds(60), most: seconds(3_660 * DAY) },
        "Retention of ended messages; for this time a repeated request gets the stored reply. 7d if not given.",
    ),
    optional(
        "open_messages",
        &Shape::Integer { least: 1, most: 100_000_000 },
        "Most open messages; above this the receive ports answer 503. 100000 if not given.",
    ),
    optional("flow", &FLOW, "Flow control of the receive ports."),
    optional(
        "tracking",
        &TRACKING,
        "Tracking: which message bodies are stored for inspection; a port can override it.",
    ),
]);
static FLOW: Shape = Shape::Object(&[
    optional(
        "wait",
        &Shape::Duration { least: seconds(1), most: seconds(7 * DAY) },
        "Longest expected waiting time of a new message at a working send port; above this it is answered 503 with \
         `rate_imbalance`. 30s if not given.",
    ),
    optional(
        "in_flight",
        &Shape::Integer { least: 1, most: 1_000_000 },
        "Most messages whose senders wait for a reply; further ones get 503 with `in_flight`. 10000 if not given.",
    ),
]);
static PROPERTIES: Shape = Shape::Entries { keys: Keys::Fields, of: &PROPERTY, most: PROPERTIES_MAX };
static PROPERTY: Shape = Shape::Either(&[&Shape::Text, &PROPERTY_OBJECT]);
static PROPERTY_OBJECT: Shape = Shape::Object(&[
    optional(
        "type",
        &Shape::Choice(&["boolean", "integer", "number", "string", "timestamp"]),
        "Type of the property; `string` if not given. A message with a value of another type lacks the property.",
    ),
    optional("json", &Shape::Text, "Location in a JSON body: a JSONPath to one value, such as `$.order.id`."),
    optional(
        "xml",
        &Shape::Text,
        "Location in an XML body: an XPath from the root to an attribute, a text or an element, such as `/order/@id`. \
         Prefixes of names are ignored.",
    ),
    optional("header", &Shape::Text, "Name of the header with the value."),
    optional("search", &Shape::Boolean, "Whether messages can be searched by it; false if not given."),
]);
static RECEIVE: Shape = Shape::Entries { keys: Keys::Names, of: &RECEIVE_PORT, most: PORTS_MAX };
static RECEIVE_PORT: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    required("mode", &MODE, "`request` if senders wait for a reply, else `one_way`."),
    optional("enabled", &Shape::Boolean, "Whether it accepts messages; true if not given."),
    optional(
        "wait",
        &Shape::Duration { least: seconds(0), most: seconds(600) },
        "Time that a caller waits synchronously; then it gets 202 with the location of the reply. 30s if not given.",
    ),
    optional(
        "expires_after",
        &Shape::Duration { least: seconds(1), most: seconds(30 * DAY) },
        "Expiry of an unanswered request; 5m if not given.",
    ),
    optional(
        "store_first",
        &Shape::Boolean,
        "Whether a request is stored before it leaves; true if not given. If false, one without an idempotency key whose \
         caller waits leaves at once and is stored with its reply: sooner there, and lost with the caller's connection if the \
         server dies meanwhile.",
    ),
    optional(
        "body_bytes",
        &Shape::Integer { least: 1, most: BODY_BYTES_MOST },
        "Most bytes of a body; 1048576 if not given.",
    ),
    optional("pipeline", &STEPS, "Pipeline that runs before routing."),
    optional("service_window", &WINDOW, "Hours at which it accepts messages; at other times it answers 503."),
    optional("tracking", &TRACKING, "Tracking of this port, where it differs from the exchange."),
    optional("locations", &LOCATIONS, "Receive locations: sources that it polls, in addition to messages sent to it."),
]);
static LOCATIONS: Shape = Shape::Entries { keys: Keys::Names, of: &LOCATION, most: LOCATIONS_MAX };
static LOCATION: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    required(
        "kind",
        &Shape::Name,
        "Kind of the source: `directory`, `mail`, `nats`, `kafka`, `mqtt`, `outbox` or `query`.",
    ),
    optional("options", &OPTIONS, "Options of the kind. `${NAME}` takes a value from the environment."),
    optional("enabled", &Shape::Boolean, "Whether it is active; true if not given."),
    optional("service_window", &WINDOW, "Hours at which it is active, within the window of the port."),
    optional("content_type", &Shape::Text, "Media type of bodies without one."),
]);
static MODE: Shape = Shape::Choice(&["one_way", "request"]);
static SEND: Shape = Shape::Entries { keys: Keys::Names, of: &SEND_PORT, most: PORTS_MAX };
static SEND_PORT: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    required("mode", &MODE, "`request` if the peer's response is a message too, else `one_way`."),
    optional(
        "state",
        &Shape::Choice(&["off", "hold", "active"]),
        "`active`; `hold`: routed messages wait, durably; `off`: no route leads to it. `active` if not given.",
    ),
    required("protocol", &Shape::Name, "Protocol of the transport: `http`."),
    optional("options", &OPTIONS, "Options of the protocol. `${NAME}` takes a value from the environment."),
    optional("retry", &RETRY, "Retry delays; 1m, 5m, 30m, 2h, 12h if not given."),
    optional("backup", &BACKUP, "Backup transport, used when all attempts by the primary one have failed."),
    optional("concurrency", &Shape::Integer { least: 1, most: 10_000 }, "Most concurrent requests; 32 if not given."),
    optional(
        "correlate",
        &NAMES,
        "Properties in which a reply must equal its request; another reply suspends the message.",
    ),
    optional(
        "reply_through",
        &Shape::Name,
        "The receive port of asynchronous replies, which are matched by `correlate`; the response then only \
         acknowledges the message.",
    ),
    optional(
        "reply_within",
        &Shape::Duration { least: seconds(1), most: seconds(366 * DAY) },
        "Timeout of an asynchronous reply, from the acceptance of the message; then the message is suspended. 1d if \
         not given.",
    ),
    optional("pipeline", &STEPS, "Pipeline of outgoing messages, run at each attempt."),
    optional("reply_pipeline", &STEPS, "Pipeline of replies, run before they are stored."),
    optional("service_window", &WINDOW, "Hours at which it sends; at other times messages wait."),
    optional(
        "ordered",
        &ORDERED,
        "Ordered delivery: messages with the same key leave one after the other, in order of arrival.",
    ),
    optional("priority", &PRIORITY, "Priority delivery: messages of a higher priority leave first."),
    optional("tracking", &TRACKING, "Tracking of this port, where it differs from the exchange."),
]);
static BACKUP: Shape = Shape::Object(&[
    required("protocol", &Shape::Name, "Protocol of the transport: `http`."),
    optional("options", &OPTIONS, "Options of the protocol."),
    optional("retry", &RETRY, "Retry delays; 1m, 5m, 30m, 2h, 12h if not given."),
]);
static OPTIONS: Shape = Shape::Entries { keys: Keys::Free, of: &Shape::Any, most: 200 };
static NAMES: Shape = Shape::List { of: &Shape::Name, most: PROPERTIES_MAX };
static ROUTES: Shape = Shape::Entries { keys: Keys::Names, of: &ROUTE, most: ROUTES_MAX };
static ROUTE: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    required("when", &Shape::Text, "A predicate over `message` that selects the messages."),
    optional("dialect", &DIALECT, "The language of `when`; `cel` if not given."),
    required("to", &TO, "The send port or group, or a list of them."),
    optional("tracking", &TRACKING, "Tracking of these messages, in addition to that of their ports."),
]);
static GROUPS: Shape = Shape::Entries { keys: Keys::Names, of: &TARGETS, most: 1_000 };
static TO: Shape = Shape::Either(&[&Shape::Name, &TARGETS]);
static TARGETS: Shape = Shape::List { of: &Shape::Name, most: 100 };

/// Parses and checks the definition of an exchange. `environment` looks up `${NAME}` in its send ports.
///
/// # Errors
/// As [`super::read`].
pub fn read(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Exchange, Vec<Problem>> {
    let mut problems = Vec::new();
    let exchange = document::parse(text, &mut problems).and_then(|mut root| {
        variables::fill_in_exchange(&mut root, environment, &mut problems);
        let is_readable = shape::check(&EXCHANGE, &root, &mut problems);
        is_readable.then(|| Builder { root: &root, problems: &mut problems }.exchange())
    });
    match exchange {
        Some(exchange) if problems.is_empty() => Ok(exchange),
        _ => Err(in_order(problems)),
    }
}

/// The JSON Schema of exchanges (draft 2020-12), for editors.
pub fn json_schema() -> serde_json::Value {
    shape::json_schema(&EXCHANGE, "Exchange", "How systems talk through Tocsin: ports, properties and routes.")
}

struct Builder<'a> {
    root: &'a Node,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Builder<'a> {
    fn exchange(&mut self) -> Exchange {
        let properties = self.properties();
        let tracking = self.tracking(self.root, "", &Tracking::default(), &TrackPoint::ALL);
        let receive =
            self.section("receive", |builder, path, node| builder.receive_port(path, node, &properties, &tracking));
        let send =
            self.section("send", |builder, path, node| builder.send_port(path, node, &properties, &receive, &tracking));
        let groups = self.groups(&send);
        Exchange {
            name: name(self.root, "exchange").unwrap_or_else(|| "unnamed".parse().expect("`unnamed` is a name")),
            description: text(self.root, "description"),
            routes: self.section("routes", |builder, path, node| builder.route(path, node, &send, &groups, &tracking)),
            properties,
            receive,
            send,
            groups,
            retention: duration(self.root, "retention").unwrap_or(RETENTION),
            open_messages_max: integer(self.root, "open_messages").unwrap_or(OPEN_MESSAGES).into(),
            flow: flow(self.root.get("flow")),
        }
    }

    fn section<T>(&mut self, section: &str, build: impl Fn(&mut Self, &str, &'a Node) -> T) -> BTreeMap<Name, T> {
        let entries: &'a [Entry] = self.root.get(section).map_or(&[], Node::entries);
        let named = entries.iter().filter_map(|entry| Some((entry.key.parse::<Name>().ok()?, entry)));
        named.map(|(name, entry)| (name, build(self, &join(section, &entry.key), &entry.value))).collect()
    }

    fn properties(&mut self) -> Vec<Property> {
        let entries = self.root.get("properties").map_or(&[][..], Node::entries);
        entries.iter().filter_map(|entry| self.property(entry)).collect()
    }

    fn property(&mut self, entry: &Entry) -> Option<Property> {
        let (node, path) = (&entry.value, join("properties", &entry.key));
        if CONTEXT_FIELDS.iter().any(|(name, _)| *name == entry.key) {
            let problem = Problem::new(Code::ReservedName, &path, "is a predefined field of every message")
                .hint("choose another name");
            self.problems.push(problem.position(entry.line, entry.column));
        }
        let kind = text(node, "type").and_then(|word| field_type(&word)).unwrap_or(FieldType::String);
        let from = self.place(node, &path);
        let search = boolean(node, "search").unwrap_or(false);
        Some(Property { name: entry.key.parse().ok()?, kind, from: from?, search })
    }

    /// The location of a property: a path, whose first character distinguishes JSON from XML; or `json`, `xml` or
    /// `header`.
    fn place(&mut self, node: &Node, path: &str) -> Option<PropertyLocation> {
        match (node.text(), node.get("json"), node.get("xml"), node.get("header")) {
            (Some(xml), ..) if xml.starts_with('/') => self.xml_path(node, path, xml),
            (Some(json), ..) => self.json_path(node, path, json),
            (_, Some(json), None, None) => self.json_path(json, &join(path, "json"), json.text()?),
            (_, None, Some(xml), None) => self.xml_path(xml, &join(path, "xml"), xml.text()?),
            (_, None, None, Some(header)) => self.header(header, &join(path, "header")),
            _ => {
                let hint = "give one of `json`, such as `$.order.id`, `xml`, such as `/order/@id`, and `header`, such as \
                            `X-Sender`";
                let given = ["json", "xml", "header"].into_iter().filter(|name| node.get(name).is_some()).count();
                let (code, what) = match given {
                    0 => (Code::Required, "does not say where it stands"),
                    _ => (Code::ConflictingMembers, "says in more than one way where it stands"),
                };
                self.problems.push(node.problem(code, path, what).hint(hint));
                None
            }
        }
    }

    fn json_path(&mut self, node: &Node, path: &str, given: &str) -> Option<PropertyLocation> {
        match given.parse::<JsonPath>() {
            Ok(found) => Some(PropertyLocation::Json(found)),
            Err(error) => {
                self.problems.push(
                    node.problem(Code::InvalidFormat, path, error.to_string())
                        .param("format", "json_path")
                        .hint("give a JSONPath such as `$.order.id`"),
                );
                None
            }
        }
    }

    fn xml_path(&mut self, node: &Node, path: &str, given: &str) -> Option<PropertyLocation> {
        match given.parse::<XmlPath>() {
            Ok(found) => Some(PropertyLocation::Xml(found)),
            Err(error) => {
                let hint = "give an XPath such as `/order/@id` or `/order/customer/text()`";
                self.problems.push(
                    node.problem(Code::InvalidFormat, path, error.to_string()).param("format", "xml_path").hint(hint),
                );
                None
            }
        }
    }

    fn header(&mut self, node: &Node, path: &str) -> Option<PropertyLocation> {
        let name = node.text()?;
        let is_token = (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if !is_token {
            let problem =
                node.problem(Code::InvalidFormat, path, "is not the name of a header").param("format", "header_field");
            self.problems.push(problem.hint("give up to 64 letters, digits, `-` or `_`, such as `X-Sender`"));
            return None;
        }
        Some(PropertyLocation::Header(name.to_ascii_lowercase()))
    }

    fn receive_port(&mut self, path: &str, node: &Node, properties: &[Property], tracking: &Tracking) -> ReceivePort {
        let mode = mode(node);
        let place = if mode == Mode::Request { PipelinePosition::ReceiveRequest } else { PipelinePosition::Receive };
        let store_first = boolean(node, "store_first").unwrap_or(true);
        if let (Mode::OneWay, Some(given)) = (mode, node.get("store_first").filter(|_| !store_first)) {
            let problem = given.problem(
                Code::NotApplicable,
                &join(path, "store_first"),
                "can be false only where callers wait for replies",
            );
            self.problems.push(problem.hint("remove it, or give `mode: request`"));
        }
        ReceivePort {
            description: text(node, "description"),
            mode,
            enabled: boolean(node, "enabled").unwrap_or(true),
            wait: duration(node, "wait").unwrap_or(WAIT),
            expires_after: duration(node, "expires_after").unwrap_or(EXPIRES_AFTER),
            store_first,
            body_bytes_max: integer(node, "body_bytes").unwrap_or(BODY_BYTES),
            pipeline: self.pipeline(node, "pipeline", path, place, properties),
            window: self.window(node, path),
            tracking: self.tracking(node, path, tracking, &TrackPoint::OF_RECEIVE),
            locations: self.locations(node, path, mode),
        }
    }

    fn locations(&mut self, port: &Node, path: &str, mode: Mode) -> BTreeMap<Name, Location> {
        let Some(given) = port.get("locations") else { return BTreeMap::new() };
        let path = join(path, "locations");
        if mode == Mode::Request && !given.entries().is_empty() {
            let problem =
                given.problem(Code::NotApplicable, &path, "are for `one_way` ports, where no sender waits for a reply");
            self.problems.push(problem.hint("give `mode: one_way`; a route can forward the reply"));
        }
        let named = given.entries().iter().filter_map(|entry| Some((entry.key.parse::<Name>().ok()?, entry)));
        named.map(|(name, entry)| (name, self.location(&join(&path, &entry.key), &entry.value))).collect()
    }

    fn location(&mut self, path: &str, node: &Node) -> Location {
        let content_type = text(node, "content_type");
        let is_header = |text: &str| text.len() <= 255 && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if content_type.as_deref().is_some_and(|text| !text.contains('/') || !is_header(text)) {
            let problem = node
                .problem(Code::InvalidFormat, &join(path, "content_type"), "is not a media type")
                .param("format", "media_type");
            self.problems.push(problem.hint("give one such as `application/xml`"));
        }
        Location {
            description: text(node, "description"),
            kind: name(node, "kind").unwrap_or_else(|| "none".parse().expect("`none` is a name")),
            options: options(node),
            enabled: boolean(node, "enabled").unwrap_or(true),
            window: self.window(node, path),
            content_type,
        }
    }

    fn send_port(
        &mut self,
        path: &str,
        node: &Node,
        properties: &[Property],
        receive: &BTreeMap<Name, ReceivePort>,
        tracking: &Tracking,
    ) -> SendPort {
        let known: Vec<&str> = properties.iter().map(|property| property.name.as_str()).collect();
        let mode = mode(node);
        let correlate = self.names(node, path, "correlate", &known, "properties");
        if !correlate.is_empty() && mode == Mode::OneWay {
            let problem =
                node.problem(Code::NoEffect, &join(path, "correlate"), "has no effect: a one-way port gets no replies");
            self.problems.push(problem.hint("leave it out, or give `mode: request`"));
        }
        if mode == Mode::OneWay
            && let Some(given) = node.get("reply_pipeline")
        {
            let problem = given.problem(
                Code::NoEffect,
                &join(path, "reply_pipeline"),
                "has no effect: a one-way port gets no replies",
            );
            self.problems.push(problem.hint("leave it out, or give `mode: request`"));
        }
        SendPort {
            description: text(node, "description"),
            mode,
            state: text(node, "state").and_then(|word| word.parse().ok()).unwrap_or_default(),
            transport: transport(node),
            backup: node.get("backup").map(transport),
            concurrency: integer(node, "concurrency").unwrap_or(CONCURRENCY),
            later: self.later_replies(node, path, mode, &correlate, receive),
            correlate,
            pipeline: self.pipeline(node, "pipeline", path, PipelinePosition::Send, properties),
            reply_pipeline: self.pipeline(node, "reply_pipeline", path, PipelinePosition::Reply, properties),
            window: self.window(node, path),
            order: self.order(node, path, properties),
            tracking: self.tracking(node, path, tracking, &TrackPoint::OF_SEND),
        }
    }

    /// Configuration of asynchronous replies, which are not the peer's response.
    fn later_replies(
        &mut self,
        node: &Node,
        path: &str,
        mode: Mode,
        correlate: &[Name],
        receive: &BTreeMap<Name, ReceivePort>,
    ) -> Option<LaterReplies> {
        let Some(given) = node.get("reply_through") else {
            if let Some(within) = node.get("reply_within") {
                let problem = within.problem(
                    Code::NoEffect,
                    &join(path, "reply_within"),
                    "has no effect without `reply_through`",
                );
                self.problems.push(problem.hint("name the receive port of the replies"));
            }
            return None;
        };
        let place = join(path, "reply_through");
        let mut problem = |code: Code, what: String, hint: String| {
            self.problems.push(given.problem(code, &place, what).hint(hint));
        };
        let through: Name = given.text()?.parse().ok()?;
        match receive.get(&through) {
            None => {
                let known: Vec<&str> = receive.keys().map(Name::as_str).collect();
                let hint = did_you_mean(through.as_str(), &known, "receive ports");
                problem(Code::UnknownReference, format!("`{through}` is not among the receive ports"), hint);
            }
            Some(port) if port.mode == Mode::Request => {
                problem(
                    Code::NotApplicable,
                    format!("`{through}` is a request port; its senders wait for a reply"),
                    "give that port `mode: one_way`".into(),
                );
            }
            Some(port) if port.pipeline.0.iter().any(|step| matches!(step, Step::Assemble(_))) => {
                problem(
                    Code::NotApplicable,
                    format!("`{through}` makes one message of several, and a reply is one"),
                    "take `assemble` out of its pipeline".into(),
                );
            }
            Some(_) => {}
        }
        if mode == Mode::OneWay {
            problem(
                Code::NoEffect,
                "has no effect: a one-way port gets no replies".into(),
                "leave it out, or give `mode: request`".into(),
            );
        } else if correlate.is_empty() {
            problem(
                Code::MissingCounterpart,
                "does not say by what a reply is known".into(),
                "give `correlate`, such as `correlate: [order]`, with properties that request and reply have in common"
                    .into(),
            );
        }
        if let Some(steps) = node.get("reply_pipeline") {
            let problem =
                steps.problem(Code::NoEffect, &join(path, "reply_pipeline"), "has no effect: replies come later");
            self.problems.push(problem.hint(format!("let the pipeline of `{through}` do it")));
        }
        Some(LaterReplies { through, within: duration(node, "reply_within").unwrap_or(REPLY_WITHIN) })
    }

    fn groups(&mut self, send: &BTreeMap<Name, SendPort>) -> BTreeMap<Name, Vec<Name>> {
        let known: Vec<&str> = send.keys().map(Name::as_str).collect();
        let entries = self.root.get("groups").map_or(&[][..], Node::entries);
        let mut groups = BTreeMap::new();
        for entry in entries {
            let Ok(name) = entry.key.parse::<Name>() else { continue };
            let path = join("groups", &entry.key);
            if send.contains_key(&name) {
                let problem = entry.value.problem(Code::ReservedName, &path, "is the name of a send port");
                self.problems.push(problem.hint("choose another name"));
            }
            let ports = self.names(
                self.root.get("groups").expect("it has entries"),
                "groups",
                &entry.key,
                &known,
                "send ports",
            );
            if matches!(&entry.value.kind, Kind::List(items) if items.is_empty()) {
                self.problems.push(
                    entry
                        .value
                        .problem(Code::UnknownReference, &path, "names no send port")
                        .param("kind", "port")
                        .hint(did_you_mean("", &known, "send ports")),
                );
            }
            groups.insert(name, ports);
        }
        groups
    }

    fn route(
        &mut self,
        path: &str,
        node: &Node,
        send: &BTreeMap<Name, SendPort>,
        groups: &BTreeMap<Name, Vec<Name>>,
        tracking: &Tracking,
    ) -> Route {
        let known: Vec<&str> = send.keys().chain(groups.keys()).map(Name::as_str).collect();
        let named = self.names(node, path, "to", &known, "send ports");
        let mut to: Vec<Name> = Vec::new();
        for port in named.iter().flat_map(|name| groups.get(name).map_or(std::slice::from_ref(name), Vec::as_slice)) {
            if !to.contains(port) {
                to.push(port.clone());
            }
        }
        if let Some(Kind::List(items)) = node.get("to").map(|to| &to.kind)
            && items.is_empty()
        {
            let problem =
                node.problem(Code::UnknownReference, &join(path, "to"), "names no send port").param("kind", "port");
            self.problems.push(problem.hint(did_you_mean("", &known, "send ports")));
        }
        let dialect = text(node, "dialect").and_then(|word| word.parse().ok()).unwrap_or(Dialect::Cel);
        let when = Filter { dialect, text: text(node, "when").unwrap_or_default() };
        // Settings of the whole exchange apply to its ports; a route has its own tracking points.
        let base = Tracking { points: Vec::new(), sample_percent: 100, ..tracking.clone() };
        let tracking = self.tracking(node, path, &base, &TrackPoint::ALL);
        Route { description: text(node, "description"), when, to, tracking }
    }

    /// Names that must be among the known ones: one, or a list.
    fn names(&mut self, node: &Node, path: &str, key: &str, known: &[&str], noun: &str) -> Vec<Name> {
        let items = match node.get(key).map(|given| (&given.kind, given)) {
            Some((Kind::List(items), _)) => items.iter().collect(),
            Some((_, one)) => vec![one],
            None => Vec::new(),
        };
        let mut names: Vec<Name> = Vec::new();
        for item in items {
            let Some(name) = item.text().and_then(|text| text.parse::<Name>().ok()) else { continue };
            if !known.contains(&name.as_str()) {
                let problem = item
                    .problem(Code::UnknownReference, &join(path, key), format!("`{name}` is not among the {noun}"))
                    .param("value", name.to_string());
                self.problems.push(problem.hint(did_you_mean(name.as_str(), known, noun)));
            } else if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

fn flow(node: Option<&Node>) -> MessageFlow {
    let usual = MessageFlow::default();
    let Some(node) = node else { return usual };
    MessageFlow {
        wait_max: duration(node, "wait").unwrap_or(usual.wait_max),
        in_flight_max: integer(node, "in_flight").unwrap_or(usual.in_flight_max),
    }
}

fn transport(node: &Node) -> Transport {
    Transport {
        protocol: name(node, "protocol").unwrap_or_else(|| "none".parse().expect("`none` is a name")),
        options: options(node),
        retry: retry(node.get("retry")),
    }
}

fn mode(node: &Node) -> Mode {
    match node.get("mode").and_then(Node::text) {
        Some("request") => Mode::Request,
        _ => Mode::OneWay,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    const GOOD: &str = r#"
exchange: orders
properties:
  type: $.type
  amount: { type: number, json: $.amount }
  sender: { header: X-Sender }
receive:
  intake: { mode: request, wait: 2s }
  files:
    mode: one_way
    locations:
      drop: { kind: directory, options: { folder: "${SHOP}" }, content_type: application/xml }
      bus: { kind: nats, enabled: false, service_window: { hours: "08:00-18:00" } }
send:
  shop:
    mode: request
    protocol: http
    options: { url: "${SHOP}/orders" }
    retry: [1s, 5s]
    correlate: [type]
routes:
  large: { when: "message.amount > 100.0", to: shop }
"#;

    fn check(text: &str, expected: Expect) {
        let problems = read(text, &|_| None).expect_err("problems");
        expected.assert_eq(&problems.iter().map(|problem| format!("{problem}\n")).collect::<String>());
    }

    #[test]
    fn a_definition_is_read() {
        let exchange = read(GOOD, &|name| (name == "SHOP").then(|| "http://shop".to_owned())).expect("good");
        assert_eq!(
            exchange.send[&"shop".parse::<Name>().expect("a name")].transport.options["url"],
            "http://shop/orders"
        );
        assert_eq!(exchange.fields().len(), CONTEXT_FIELDS.len() + 3);
        let port = |name: &str| &exchange.receive[&name.parse::<Name>().expect("a name")];
        assert_eq!(port("intake").wait, seconds(2));
        let locations: Vec<&Location> = port("files").locations.values().collect();
        assert_eq!((locations[0].enabled, locations[0].window.is_some()), (false, true));
        assert_eq!(locations[1].options["folder"], "http://shop");
        assert_eq!(locations[1].content_type.as_deref(), Some("application/xml"));
    }

    #[test]
    fn receive_locations_require_one_way_ports() {
        let text = GOOD
            .replace(
                "intake: { mode: request, wait: 2s }",
                "intake: { mode: request, locations: { a: { kind: nats } } }",
            )
            .replace("application/xml", "xml");
        check(
            &text.replace("${SHOP}", "x"),
            expect![[r#"
                8:39: receive.intake.locations: are for `one_way` ports, where no sender waits for a reply; give `mode: one_way`; a route can forward the reply
                12:13: receive.files.locations.drop.content_type: is not a media type; give one such as `application/xml`
            "#]],
        );
    }

    #[test]
    fn later_replies_require_a_receive_port_and_correlation() {
        let shop = "{ mode: request, protocol: http, reply_through";
        let text = format!(
            r#"
exchange: orders
properties: {{ order: $.order }}
receive:
  intake: {{ mode: request }}
  results: {{ mode: one_way }}
  lists: {{ mode: one_way, pipeline: [{{ assemble: {{ by: [order], within: 1m }} }}] }}
send:
  good: {shop}: results, correlate: [order] }}
  typo: {shop}: result, correlate: [order] }}
  asks: {shop}: intake, correlate: [order] }}
  list: {shop}: lists, correlate: [order] }}
  some: {shop}: results }}
  none: {{ mode: one_way, protocol: http, reply_through: results }}
  alone: {{ mode: request, protocol: http, reply_within: 1h }}
  steps: {shop}: results, correlate: [order], reply_pipeline: [{{ decompress: auto }}] }}
routes: {{}}
"#
        );
        check(
            &text,
            expect![[r#"
            10:57: send.typo.reply_through: `result` is not among the receive ports; did you mean `results`?
            11:57: send.asks.reply_through: `intake` is a request port; its senders wait for a reply; give that port `mode: one_way`
            12:57: send.list.reply_through: `lists` makes one message of several, and a reply is one; take `assemble` out of its pipeline
            13:57: send.some.reply_through: does not say by what a reply is known; give `correlate`, such as `correlate: [order]`, with properties that request and reply have in common
            14:57: send.none.reply_through: has no effect: a one-way port gets no replies; leave it out, or give `mode: request`
            15:57: send.alone.reply_within: has no effect without `reply_through`; name the receive port of the replies
            16:103: send.steps.reply_pipeline: has no effect: replies come later; let the pipeline of `results` do it
        "#]],
        );
        let good = text.lines().filter(|line| {
            !["typo", "asks", "list:", "some", "none", "alone", "steps"].iter().any(|bad| line.trim().starts_with(bad))
        });
        let exchange = read(&good.collect::<Vec<_>>().join("\n"), &|_| None).expect("good");
        let later = exchange.send.values().next().and_then(|port| port.later.clone()).expect("it has");
        assert_eq!((later.through.as_str(), later.within), ("results", seconds(DAY)));
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        check(
            r#"
exchange: orders
properties:
  port: $.port
  type: order.type
  both: { json: $.a, header: B }
  none: { type: string }
  mark: //order
receive:
  intake: { mode: sometimes }
send:
  shop: { mode: one_way, protocol: http, correlate: [typ] }
routes:
  some: { when: "true", to: [shpo, shop] }
  few: { when: "true", to: [] }
"#,
            expect![[r#"
                4:3: properties.port: is a predefined field of every message; choose another name
                5:9: properties.type: `order.type` is not a path to one value: it begins with `$`; give a JSONPath such as `$.order.id`
                6:9: properties.both: says in more than one way where it stands; give one of `json`, such as `$.order.id`, `xml`, such as `/order/@id`, and `header`, such as `X-Sender`
                7:9: properties.none: does not say where it stands; give one of `json`, such as `$.order.id`, `xml`, such as `/order/@id`, and `header`, such as `X-Sender`
                8:9: properties.mark: `//order` is not a path to one value: its steps are the names of elements, with `@name` or `text()` at the end; give an XPath such as `/order/@id` or `/order/customer/text()`
                10:19: receive.intake.mode: `sometimes` is not known here; give `one_way` or `request`
                12:54: send.shop.correlate: `typ` is not among the properties; give `port`
                14:30: routes.some.to: `shpo` is not among the send ports; did you mean `shop`?
                15:8: routes.few.to: names no send port; give `shop`
            "#]],
        );
    }
}
