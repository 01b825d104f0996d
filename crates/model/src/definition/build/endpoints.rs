//! Sources, channels and functions, and the events of endpoints.

use std::time::Duration;

use crate::{
    application::{
        Application, Channel, DeliveryLog, FailureLog, Flow, Function, Pace, Rate, Source, endpoint_fields,
        endpoint_source,
    },
    definition::{
        build::{
            builder::Builder,
            nodes::{CONCURRENCY, duration, integer, name, options, retry, text},
        },
        document::{Kind, Node, join},
        shape::{Keys, listed},
    },
    id::Name,
    problem::{Code, Problem},
};

impl<'a> Builder<'a> {
    pub(super) fn function(&mut self, node: &Node, path: &str) -> Function {
        let path = join(path, "parameters");
        let mut parameters: Vec<Name> = Vec::new();
        if let Some(Kind::List(items)) = node.get("parameters").map(|parameters| &parameters.kind) {
            for (at, item) in items.iter().enumerate() {
                let Some(name) = item.text().and_then(|text| text.parse::<Name>().ok()) else { continue };
                let path = format!("{path}[{at}]");
                if parameters.contains(&name) {
                    let problem = item
                        .problem(Code::Duplicate, &path, format!("`{name}` is given twice"))
                        .param("value", name.to_string());
                    self.problems.push(problem.hint("each parameter has a name of its own"));
                } else if let Some((message, hint)) = Keys::Functions.key_problem(name.as_str()) {
                    self.problems.push(
                        item.problem(Code::InvalidFormat, &path, format!("`{name}` {message}"))
                            .param("format", "name")
                            .param("value", name.to_string())
                            .hint(hint),
                    );
                }
                parameters.push(name);
            }
        }
        Function {
            description: text(node, "description"),
            parameters,
            expression: text(node, "expression").unwrap_or_default(),
        }
    }

    pub(super) fn source(&mut self, node: &Node, path: &str) -> Source {
        let path = join(path, "events");
        let mut events = Vec::new();
        if let Some(Kind::List(items)) = node.get("events").map(|events| &events.kind) {
            for (at, item) in items.iter().enumerate() {
                if let Some(event) = self.existing("events", "event class", item, &format!("{path}[{at}]"))
                    && !events.contains(&event)
                {
                    events.push(event);
                }
            }
        }
        let kind = name(node, "kind").unwrap_or_else(|| "http".parse().expect("`http` is a name"));
        let source = Source { kind, events, options: options(node) };
        match (source.is_submitted(), node.get("options")) {
            (true, Some(options)) => {
                let at = path.trim_end_matches("events");
                let problem = Problem::new(
                    Code::NotApplicable,
                    format!("{at}options"),
                    "a source of the kind `http` has no options",
                );
                self.problems.push(problem.position(options.line, options.column));
            }
            (false, _) if source.events.len() != 1 && node.get("kind").is_some() => {
                let problem = Problem::new(
                    Code::ConflictingMembers,
                    path,
                    "a source that the platform runs has events of one class",
                );
                let at = node.get("events").unwrap_or(node);
                self.problems.push(problem.hint("name it: `events: [...]`").position(at.line, at.column));
            }
            _ => {}
        }
        source
    }

    pub(super) fn channel(&mut self, node: &Node, path: &str) -> Channel {
        let path = join(path, "endpoint_event");
        let endpoint_event = node.get("endpoint_event");
        Channel {
            protocol: name(node, "protocol").unwrap_or_else(|| "none".parse().expect("`none` is a name")),
            options: options(node),
            retry: retry(node.get("retry")),
            concurrency: integer(node, "concurrency").unwrap_or(CONCURRENCY),
            flow: node.get("flow").map_or_else(Flow::default, flow),
            lease: duration(node, "lease").unwrap_or(LEASE),
            disable_after: duration(node, "disable_after"),
            endpoint_event: endpoint_event.and_then(|given| self.existing("events", "event class", given, &path)),
            log: delivery_log(node),
        }
    }

    /// Checks that endpoint events fit their classes.
    pub(super) fn check_endpoint_events(&mut self, application: &Application) {
        let known = endpoint_fields();
        let channels = application.channels.iter();
        let mut reporting =
            channels.filter_map(|(name, channel)| Some((name, channel.endpoint_event.as_ref()?))).peekable();
        if reporting.peek().is_some() {
            self.check_source(application, &endpoint_source(), "is the source of endpoint events");
        }
        let names: Vec<&str> = known.iter().map(|field| field.name.as_str()).collect();
        let names = listed(&names);
        for (channel, event) in reporting {
            let Some(class) = application.events.get(event) else { continue };
            for field in class.fields.iter() {
                let text = match known.position(field.name.as_str()).map(|at| known[at].kind) {
                    Some(kind) if kind == field.kind => continue,
                    Some(kind) => {
                        format!("is {}, and the field of endpoint events is {}", field.kind.name(), kind.name())
                    }
                    None if !field.required || !field.default.is_null() => continue,
                    None => "is required, and endpoint events have no field of this name".to_owned(),
                };
                let problem = Problem::new(Code::WrongType, format!("events.{event}.fields.{}", field.name), text);
                let hint = format!("the channel `{channel}` reports endpoints by it; it may have {names}");
                let entry = |node: Option<&'a Node>, key: &str| node.and_then(|node| node.entry(key));
                let given = entry(self.root.get("events"), event.as_str()).and_then(|class| class.value.get("fields"));
                let problem = match entry(given, field.name.as_str()) {
                    Some(entry) => problem.position(entry.line, entry.column),
                    None => problem,
                };
                self.problems.push(problem.hint(hint));
            }
        }
    }

    /// Checks that no source has the reserved name `ours`.
    pub(super) fn check_source(&mut self, application: &Application, ours: &Name, text: &str) {
        if application.sources.contains_key(ours) {
            self.problems
                .push(Problem::new(Code::ReservedName, format!("sources.{ours}"), text).hint("choose another name"));
        }
    }
}

/// The delivery log of the channel `node`.
pub(super) fn delivery_log(node: &Node) -> DeliveryLog {
    let usual = FailureLog::default();
    let failures = node.get("log_failures").map_or(usual, |node| FailureLog {
        after: integer(node, "after").unwrap_or(usual.after),
        every: duration(node, "every").unwrap_or(usual.every),
    });
    let Some(Kind::List(items)) = node.get("log").map(|node| &node.kind) else {
        return DeliveryLog { failures, ..DeliveryLog::default() };
    };
    let has = |word: &str| items.iter().any(|item| item.text() == Some(word));
    DeliveryLog { status: has("status"), attempts: has("attempts"), text: has("text"), failures }
}

pub(super) fn flow(node: &Node) -> Flow {
    let default = Flow::default();
    let rate = |key: &str| {
        let rate = node.get(key)?;
        Some(Rate { messages: integer(rate, "messages")?, per: duration(rate, "per")? })
    };
    Flow {
        per_destination: integer(node, "per_destination").unwrap_or(default.per_destination),
        pace: match node.get("pace").and_then(Node::text) {
            Some("fixed") => Pace::Fixed,
            _ => Pace::Auto,
        },
        rate: rate("rate"),
        rate_per_destination: rate("rate_per_destination"),
        failures_before_pause: integer(node, "failures_before_pause").unwrap_or(default.failures_before_pause),
    }
}

pub(super) const LEASE: Duration = Duration::from_secs(300);
