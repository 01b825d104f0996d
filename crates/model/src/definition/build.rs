//! Builds the application from checked nodes. Nodes of the wrong shape were reported already and are skipped. This
//! stage reports what needs the whole definition: missing names and types that do not agree.

use std::{collections::BTreeMap, time::Duration};

mod chronicles; // chronicles of event classes
mod collections; // collections
mod raises; // events raised by row changes

use super::{
    document::{Entry, Kind, Node, join},
    duration::parse_duration,
    shape::{Keys, listed, percent, shown},
};
use crate::{
    application::{
        Application, Channel, ContentTemplates, DeliveryLog, EventClass, FailureLog, Flow, Function, Limits, Missed,
        NotificationClass, Ordered, Pace, Presence, Rate, Recurs, Retention, RetrySchedule, Rule, RuleSchedule,
        RuleState, Source, SubscriptionClass, TemplateEngine, TemplateParts, TemplateText, Throttle, due_class,
        due_fields, endpoint_fields, endpoint_source,
    },
    content::header_problem,
    delivery_policy::{DIGEST_ITEMS, DeliveryPolicy, Digest, DigestWindow, Fallback, Priority},
    field::{Field, FieldType, Fields},
    filter::Dialect,
    id::Name,
    problem::{Code, Problem, closest},
    schedule::Schedule,
    subscriber::is_language_tag,
    time::Timestamp,
    value::Value,
};

const BATCH_SIZE: u32 = 2_500;
const CONCURRENCY: u32 = 10;
const LEASE: Duration = Duration::from_secs(300);
const RETRY_SECONDS: [u64; 5] = [60, 300, 1_800, 7_200, 43_200];
const JITTER_PERCENT: u8 = 10;
const RECIPIENT_LIMIT: u32 = 50;
const RULE_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_AFTER: u32 = 10;

/// Builds the application, as far as it has no problems; they are in `problems`.
pub fn application(root: &Node, problems: &mut Vec<Problem>) -> Application {
    let mut builder = Builder { root, problems };
    let mut application = Application {
        name: name(root, "application").unwrap_or_else(|| "unnamed".parse().expect("`unnamed` is a name")),
        description: text(root, "description"),
        events: builder.section("events", |_, path, node, builder| {
            let fields = builder.fields(node, path);
            let chronicles = builder.chronicles(node, path, &fields);
            let ordered = node.get("ordered");
            let ordered = ordered.map(|given| Ordered { by: builder.key(given, &join(path, "ordered"), &fields) });
            let (retention, throttle) = (duration(node, "retention"), throttle(node, "throttle"));
            EventClass { fields, description: text(node, "description"), chronicles, ordered, retention, throttle }
        }),
        attributes: builder.named_fields(root, "attributes", "attributes"),
        subscriptions: builder.section("subscriptions", |_, path, node, builder| SubscriptionClass {
            fields: builder.fields(node, path),
            description: text(node, "description"),
            filter: dialects(node),
            schedule: presence(node, "schedule"),
        }),
        notifications: builder.section("notifications", |_, path, node, builder| builder.notification(node, path)),
        partials: builder.section("partials", |_, path, node, builder| {
            let text = builder.template_text(node, path, TemplateEngine::Jinja);
            text.unwrap_or_else(|| TemplateText::from(""))
        }),
        functions: builder.section("functions", |_, path, node, builder| builder.function(node, path)),
        rules: BTreeMap::new(),
        channels: builder.section("channels", |_, path, node, builder| builder.channel(node, path)),
        sources: builder.section("sources", |_, path, node, builder| builder.source(node, path)),
        collections: builder.section("collections", |_, path, node, builder| builder.collection(node, path)),
        retention: retention(root),
        limits: limits(root),
    };
    builder.add_due_class(&mut application);
    let rules = builder.rules(&application);
    builder.check_order(&application, &rules);
    builder.check_collections(&application.collections);
    builder.check_raises(&application);
    builder.check_endpoint_events(&application);
    Application { rules, ..application }
}

struct Builder<'a> {
    root: &'a Node,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Builder<'a> {
    /// The entries of a section by name.
    fn section<T>(
        &mut self,
        section: &str,
        build: impl Fn(&Name, &str, &'a Node, &mut Self) -> T,
    ) -> BTreeMap<Name, T> {
        let entries: &'a [Entry] = self.root.get(section).map_or(&[], Node::entries);
        let named = entries.iter().filter_map(|entry| Some((entry.key.parse::<Name>().ok()?, entry)));
        named
            .map(|(name, entry)| (name.clone(), build(&name, &join(section, &entry.key), &entry.value, self)))
            .collect()
    }

    /// Rejects `ordered` on an event class that only feeds digests: a digest cannot keep the order.
    fn check_order(&mut self, application: &Application, rules: &BTreeMap<Name, Rule>) {
        let is_digest = |rule: &Rule| {
            application.notifications.get(&rule.notify).is_some_and(|class| class.delivery_policy.digest.is_some())
        };
        for (name, _) in application.events.iter().filter(|(_, class)| class.ordered.is_some()) {
            let mut notifying = rules.values().filter(|rule| rule.on == *name).peekable();
            if notifying.peek().is_some() && notifying.all(is_digest) {
                let text = "has no effect: all notifications of these events are sent in digests";
                let hint = "a digest lists its events in order and has no order among other messages; leave `ordered` out, or `digest`";
                self.problems.push(Problem::new(Code::NoEffect, format!("events.{name}.ordered"), text).hint(hint));
            }
        }
    }

    fn fields(&mut self, class: &Node, path: &str) -> Fields {
        self.named_fields(class, "fields", &join(path, "fields"))
    }

    fn named_fields(&mut self, node: &Node, key: &str, path: &str) -> Fields {
        let entries = node.get(key).map_or(&[][..], Node::entries);
        Fields::new(entries.iter().filter_map(|entry| self.field(entry, &join(path, &entry.key))).collect())
    }

    fn field(&mut self, entry: &Entry, path: &str) -> Option<Field> {
        let node = &entry.value;
        let kind = field_type(node.text().or_else(|| node.get("type")?.text())?)?;
        let mut default = Value::Null;
        if let Some(given) = node.get("default") {
            match kind.accept(given.value()) {
                Ok(value) => default = value,
                Err(message) => {
                    let problem = given.problem(Code::WrongType, &join(path, "default"), message);
                    let quotes = kind == FieldType::String
                        && matches!(given.kind, Kind::Boolean(_) | Kind::Integer(_) | Kind::Number(_));
                    self.problems.push(if quotes { problem.hint("put it in quotes") } else { problem });
                }
            }
        }
        Some(Field {
            name: entry.key.parse().ok()?,
            kind,
            required: boolean(node, "required").unwrap_or(false),
            default,
            description: text(node, "description"),
        })
    }

    fn notification(&mut self, node: &Node, path: &str) -> NotificationClass {
        let fields = self.fields(node, path);
        NotificationClass {
            delivery_policy: self.delivery_policy(node, path, &fields),
            fields,
            description: text(node, "description"),
            batch_size: integer(node, "batch_size").unwrap_or(BATCH_SIZE),
            expires_after: duration(node, "expires_after"),
            computed: self.computed(node, path),
            retention: duration(node, "retention"),
            content: node
                .get("content")
                .map(|content| self.content(content, &join(path, "content")))
                .unwrap_or_default(),
        }
    }

    fn delivery_policy(&mut self, node: &Node, path: &str, fields: &Fields) -> DeliveryPolicy {
        let critical = boolean(node, "critical").unwrap_or(false);
        let send_hours = self.parsed(node, "send_hours", path, "give them as `09:00-18:00` or `09:00-18:00 mo-fr`");
        if critical && let Some(hours) = node.get("send_hours") {
            let problem =
                hours.problem(Code::NotApplicable, &join(path, "send_hours"), "cannot be given for a critical class");
            self.problems.push(problem.hint("critical notifications are sent at any hour; leave one of the two out"));
        }
        let digest = node.get("digest").map(|digest| self.digest(digest, &join(path, "digest"), fields));
        let multicast = node.get("multicast").map(|node| integer(node, "recipient_limit").unwrap_or(RECIPIENT_LIMIT));
        if let (Some(_), Some(multicast)) = (&digest, node.get("multicast")) {
            let problem = multicast.problem(
                Code::ConflictingMembers,
                &join(path, "multicast"),
                "cannot be given together with `digest`",
            );
            let hint = "a digest is for one subscriber, a multicast for many; leave one of the two out";
            self.problems.push(problem.hint(hint));
        }
        let priority = node.get("priority").and_then(Node::text);
        let priority = Priority::ALL.into_iter().find(|known| Some(known.word()) == priority).unwrap_or_default();
        let fallback = self.fallback(node, &join(path, "fallback"));
        DeliveryPolicy { priority, critical, send_hours, digest, multicast, fallback }
    }

    fn fallback(&mut self, node: &Node, path: &str) -> Vec<Fallback> {
        let Some(Kind::List(items)) = node.get("fallback").map(|list| &list.kind) else { return Vec::new() };
        let channels: Vec<&str> =
            self.root.get("channels").map_or(&[][..], Node::entries).iter().map(|entry| entry.key.as_str()).collect();
        let mut chain: Vec<Fallback> = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let Some(channel) = name(item, "channel") else { continue };
            let at = format!("{path}[{at}].channel");
            if !channels.contains(&channel.as_str()) {
                let problem = item
                    .problem(
                        Code::UnknownReference,
                        &at,
                        format!("names the channel `{channel}`, which does not exist"),
                    )
                    .param("kind", "channel")
                    .param("value", channel.as_str());
                self.problems.push(problem.hint(did_you_mean(channel.as_str(), &channels, "channels")));
            } else if chain.iter().any(|step| step.channel == channel) {
                let problem = item
                    .problem(Code::Duplicate, &at, format!("names the channel `{channel}` twice"))
                    .param("value", channel.as_str());
                self.problems.push(problem.hint("each is tried once; leave one of the two out"));
            } else {
                chain.push(Fallback { channel, after: duration(item, "after") });
            }
        }
        chain
    }

    fn digest(&mut self, node: &Node, path: &str, fields: &Fields) -> Digest {
        let hint = "give `batch`, a time from 1s to 31d such as `10m`, `hourly` or `daily 08:00`";
        let window = self.parsed(node, "window", path, hint).unwrap_or(DigestWindow::Batch);
        if fields.position("digest").is_some() {
            let problem =
                node.problem(Code::ConflictingMembers, path, "cannot be given where a field is called `digest`");
            self.problems.push(problem.hint("templates read the digest by this name; call the field otherwise"));
        }
        let mut by: Vec<Name> = Vec::new();
        let given = node.get("by").map_or(&[][..], |list| if let Kind::List(items) = &list.kind { items } else { &[] });
        for (at, item) in given.iter().enumerate() {
            let Some(field) = item.text().and_then(|text| text.parse::<Name>().ok()) else { continue };
            if fields.position(field.as_str()).is_none() {
                let known: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
                let path = format!("{path}.by[{at}]");
                let problem = item
                    .problem(Code::UnknownReference, &path, format!("`{field}` is not a field of the class"))
                    .param("kind", "field")
                    .param("value", field.to_string());
                self.problems.push(problem.hint(did_you_mean(field.as_str(), &known, "fields")));
            } else if !by.contains(&field) {
                by.push(field);
            }
        }
        Digest { by, window, items_max: integer(node, "items_max").unwrap_or(DIGEST_ITEMS) }
    }

    /// Parses a text with its own syntax.
    fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        node: &Node,
        key: &str,
        path: &str,
        hint: &str,
    ) -> Option<T> {
        let given = node.get(key)?;
        match given.text()?.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems
                    .push(given.problem(Code::InvalidFormat, &join(path, key), T::Err::to_string(&error)).hint(hint));
                None
            }
        }
    }

    /// The computed fields of a notification class.
    fn computed(&mut self, class: &Node, path: &str) -> BTreeMap<Name, String> {
        let entries = class.get("computed").map_or(&[][..], Node::entries);
        for entry in entries.iter().filter(|entry| class.get("fields").is_some_and(|f| f.get(&entry.key).is_some())) {
            let path = join(&join(path, "computed"), &shown(&entry.key));
            let problem = Problem::new(Code::Duplicate, path, "is also one of the `fields`").hint("keep one of them");
            self.problems.push(problem.position(entry.line, entry.column));
        }
        entries.iter().filter_map(|entry| Some((entry.key.parse().ok()?, entry.value.text()?.to_owned()))).collect()
    }

    fn content(&mut self, content: &Node, path: &str) -> ContentTemplates {
        let engine = match content.get("engine").and_then(Node::text) {
            Some("xslt") => TemplateEngine::Xslt,
            _ => TemplateEngine::Jinja,
        };
        ContentTemplates { engine, templates: self.templates(content, path, engine) }
    }

    fn templates(&mut self, content: &Node, path: &str, engine: TemplateEngine) -> BTreeMap<String, TemplateParts> {
        let Some(node) = content.get("templates") else { return BTreeMap::new() };
        let path = join(path, "templates");
        let mut templates = BTreeMap::new();
        for entry in node.entries() {
            let path = join(&path, &shown(&entry.key));
            let key = match self.template_key(&entry.key) {
                Ok(key) => key,
                Err((message, hint)) => {
                    self.problems.push(
                        Problem::new(Code::InvalidFormat, &path, message)
                            .param("format", "name")
                            .hint(hint)
                            .position(entry.line, entry.column),
                    );
                    continue;
                }
            };
            let parts = self.parts(&entry.value, &path, engine);
            if entry.value.entries().is_empty() && matches!(entry.value.kind, Kind::Map(_) | Kind::Null) {
                let problem = Problem::new(Code::Empty, &path, "has no parts")
                    .hint("give `subject`, `text`, `html`, `json` or `sms`");
                self.problems.push(problem.position(entry.line, entry.column));
            }
            // Locales are compared without regard to case, so two spellings would be duplicates.
            if templates.keys().any(|other: &String| other.eq_ignore_ascii_case(&key)) {
                let problem = Problem::new(Code::Duplicate, &path, "is given twice, in another spelling")
                    .hint("keep one of them");
                self.problems.push(problem.position(entry.line, entry.column));
            }
            templates.insert(key, parts);
        }
        if node.entries().is_empty() {
            let hint = "give at least `base: { text: \"...\" }`";
            self.problems.push(node.problem(Code::Empty, &path, "has no templates").hint(hint));
        }
        templates
    }

    fn parts(&mut self, node: &Node, path: &str, engine: TemplateEngine) -> TemplateParts {
        let mut part = |name: &str| self.template_text(node.get(name)?, &join(path, name), engine);
        let (text, html, json, sms) = (part("text"), part("html"), part("json"), part("sms"));
        let subject = node.get("subject").and_then(|given| self.text_or_file(given, &join(path, "subject")));
        TemplateParts { subject, text, html, json, sms, headers: self.headers(node, &join(path, "headers")) }
    }

    fn headers(&mut self, parts: &Node, path: &str) -> BTreeMap<String, String> {
        let mut headers: BTreeMap<String, String> = BTreeMap::new();
        for entry in parts.get("headers").map_or(&[][..], Node::entries) {
            let header_problem = match header_problem(&entry.key) {
                None if headers.keys().any(|other| other.eq_ignore_ascii_case(&entry.key)) => {
                    Some(("is given twice, in another spelling", "keep one of them"))
                }
                header_problem => header_problem,
            };
            if let Some((message, hint)) = header_problem {
                let problem = Problem::new(Code::ReservedName, join(path, &shown(&entry.key)), message).hint(hint);
                self.problems.push(problem.position(entry.line, entry.column));
            }
            headers.extend(entry.value.text().map(|text| (entry.key.clone(), text.to_owned())));
        }
        headers
    }

    /// A template: a text in the default language, or a mapping that names one.
    fn template_text(&mut self, node: &Node, path: &str, usual: TemplateEngine) -> Option<TemplateText> {
        let named = [("jinja", TemplateEngine::Jinja), ("mjml", TemplateEngine::Mjml), ("xslt", TemplateEngine::Xslt)];
        let given: Vec<_> = named.into_iter().filter_map(|(key, engine)| Some((key, engine, node.get(key)?))).collect();
        let engines = given.len() + usize::from(node.get("file").is_some());
        if matches!(node.kind, Kind::Map(_)) && engines != 1 {
            let problem = {
                let (code, message) = match engines {
                    0 => (Code::Required, "has no text"),
                    _ => (Code::ConflictingMembers, "has more than one text"),
                };
                node.problem(code, path, message)
            };
            self.problems.push(problem.hint("give the text itself, or one of `file`, `jinja`, `mjml` and `xslt`"));
            return None;
        }
        match given.first() {
            Some((key, engine, node)) => {
                let text = self.text_or_file(node, &join(path, key))?;
                Some(TemplateText { engine: *engine, text })
            }
            None => Some(TemplateText { engine: usual, text: self.text_or_file(node, path)? }),
        }
    }

    /// A text; one that is still a file reference is reported.
    fn text_or_file(&mut self, given: &Node, path: &str) -> Option<String> {
        if let Some(file) = given.get("file").and_then(Node::text) {
            let problem = given.problem(Code::Unsupported, path, format!("is still in the file `{}`", shown(file)));
            self.problems.push(problem.hint("apply with the command line tool, which puts the texts of files in"));
        }
        given.text().map(str::to_owned)
    }

    /// The model's key for a template; or a message and a hint.
    fn template_key(&self, key: &str) -> Result<String, (String, String)> {
        let channels: Vec<&str> =
            self.root.get("channels").map_or(&[][..], Node::entries).iter().map(|entry| entry.key.as_str()).collect();
        if key == "base" {
            return Ok(String::new());
        }
        if let Some(rest) = key.strip_prefix("base/") {
            return Err(("begins with `base`".to_owned(), format!("leave it out: `{}`", shown(rest))));
        }
        if channels.contains(&key) || is_locale(key) {
            return Ok(key.to_owned());
        }
        if let Some((locale, channel)) = key.split_once('/') {
            if !is_locale(locale) {
                return Err((format!("`{}` is not a language tag", shown(locale)), locale_hint(locale)));
            }
            if channels.contains(&channel) {
                return Ok(key.to_owned());
            }
            return Err((
                format!("names the channel `{}`, which does not exist", shown(channel)),
                did_you_mean(channel, &channels, "channels"),
            ));
        }
        let hint = match closest(key, channels.iter().copied().chain(["base"])) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None if key.contains('_') && is_locale(&key.replace('_', "-")) => locale_hint(key),
            None => "give `base`, a language tag such as `de`, a channel, or both as `de/email`".to_owned(),
        };
        Err(("is neither a language tag nor a channel".to_owned(), hint))
    }

    fn function(&mut self, node: &Node, path: &str) -> Function {
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

    fn source(&mut self, node: &Node, path: &str) -> Source {
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

    fn channel(&mut self, node: &Node, path: &str) -> Channel {
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
    fn check_endpoint_events(&mut self, application: &Application) {
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
    fn check_source(&mut self, application: &Application, ours: &Name, text: &str) {
        if application.sources.contains_key(ours) {
            self.problems
                .push(Problem::new(Code::ReservedName, format!("sources.{ours}"), text).hint("choose another name"));
        }
    }

    /// The name in a node; reported if the section has no such entry.
    fn existing(&mut self, section: &str, noun: &str, node: &Node, path: &str) -> Option<Name> {
        let name: Name = node.text()?.parse().ok()?;
        let known: Vec<&str> =
            self.root.get(section).map_or(&[][..], Node::entries).iter().map(|entry| entry.key.as_str()).collect();
        if !known.contains(&name.as_str()) {
            let problem = node
                .problem(Code::UnknownReference, path, format!("names the {noun} `{name}`, which does not exist"))
                .param("kind", noun)
                .param("value", name.as_str());
            self.problems.push(problem.hint(did_you_mean(name.as_str(), &known, section)));
        }
        Some(name)
    }

    /// Adds the class of due times, if a rule is scheduled.
    fn add_due_class(&mut self, application: &mut Application) {
        let rules = self.root.get("rules").map_or(&[][..], Node::entries);
        if !rules.iter().any(|rule| is_scheduled(&rule.value)) {
            return;
        }
        let class = due_class();
        if let Some(own) = self.root.get("events").and_then(|events| events.entry(class.as_str())) {
            let problem =
                Problem::new(Code::ReservedName, "events.due", "is the class of the due times of scheduled rules");
            self.problems.push(problem.hint("choose another name").position(own.line, own.column));
        }
        let description = Some("A scheduled rule is due.".to_owned());
        let throttle = application.limits.schedule_throttle;
        let due = EventClass { fields: due_fields(), description, throttle, ..EventClass::default() };
        application.events.insert(class, due);
    }

    fn rules(&mut self, application: &Application) -> BTreeMap<Name, Rule> {
        let rules = self.root.get("rules").map_or(&[][..], Node::entries);
        let named = rules.iter().filter_map(|entry| Some((entry.key.parse::<Name>().ok()?, entry)));
        named
            .filter_map(|(name, entry)| Some((name, self.rule(&entry.value, &join("rules", &entry.key), application)?)))
            .collect()
    }

    fn rule(&mut self, node: &Node, path: &str, application: &Application) -> Option<Rule> {
        let mut named = |key: &str, section: &str, noun: &str| {
            node.get(key).and_then(|given| self.existing(section, noun, given, &join(path, key)))
        };
        let on = match node.get("on").is_none() && is_scheduled(node) {
            true => Some(due_class()),
            false => named("on", "events", "event class"),
        };
        let subscription = named("subscription", "subscriptions", "subscription class");
        let notify = named("notify", "notifications", "notification class");
        let with: Vec<(&Entry, Name)> = node
            .get("with")
            .map_or(&[][..], Node::entries)
            .iter()
            .filter_map(|entry| Some((entry, entry.key.parse().ok()?)))
            .collect();
        let sql = node.get("sql").and_then(|given| self.text_or_file(given, &join(path, "sql")));
        if let (Some(entry), Some(_)) = (node.entry("sql"), node.get("when")) {
            let problem = Problem::new(Code::ConflictingMembers, join(path, "sql"), "is given beside `when`");
            let problem = problem.hint("keep one: a query says itself what matches");
            self.problems.push(problem.position(entry.line, entry.column));
        }
        if let (Some(entry), true) = (node.entry("sql"), is_scheduled(node)) {
            let problem =
                Problem::new(Code::ConflictingMembers, join(path, "sql"), "is given to a rule with a schedule");
            let problem = problem.hint("a query is run over each event batch; write a scheduled rule with `when`");
            self.problems.push(problem.position(entry.line, entry.column));
        }
        if let Some((notify, class)) =
            notify.as_ref().and_then(|name| Some((name, application.notifications.get(name)?)))
        {
            self.unknown_expressions(node, path, &class.fields);
            // The fields of a query are known only after it is prepared.
            if sql.is_none()
                && let Some((on, event)) = on.as_ref().and_then(|name| Some((name, application.events.get(name)?)))
            {
                let given = |field: &Field| with.iter().any(|(_, name)| *name == field.name);
                for field in class.fields.iter().filter(|field| !given(field)) {
                    if let Some(problem) = missing_expression(node, path, field, notify, on, event) {
                        self.problems.push(problem);
                    }
                }
            }
        }
        if on.is_none() && node.get("on").is_none() {
            let hint = "name an event class; only a rule with `every` or `schedule` can do without";
            self.problems.push(node.problem(Code::Required, &join(path, "on"), "is missing").hint(hint));
        }
        let schedule = self.schedule(node, path);
        if let Some(RuleSchedule { recurs: Recurs::Subscription, .. }) = schedule
            && let Some((name, class)) =
                subscription.as_ref().and_then(|name| Some((name, application.subscriptions.get(name)?)))
            && class.schedule == Presence::Forbidden
            && let Some(given) = node.get("schedule")
        {
            let message = format!("follows the schedules of subscriptions, and `{name}` takes none");
            let hint = format!("give `subscriptions.{name}` a `schedule: optional` or `required`");
            self.problems.push(given.problem(Code::MissingCounterpart, &join(path, "schedule"), message).hint(hint));
        }
        Some(Rule {
            on: on?,
            subscription: subscription?,
            audience: name(node, "audience"),
            when: text(node, "when"),
            sql,
            notify: notify?,
            with: with.into_iter().filter_map(|(entry, name)| Some((name, entry.value.text()?.to_owned()))).collect(),
            description: text(node, "description"),
            enabled: boolean(node, "enabled").unwrap_or(true),
            timeout: duration(node, "timeout").unwrap_or(RULE_TIMEOUT),
            stop_after: integer(node, "stop_after").unwrap_or(STOP_AFTER),
            schedule,
            state: self.rule_state(node, path),
        })
    }

    fn rule_state(&mut self, rule: &Node, path: &str) -> RuleState {
        let state = RuleState {
            per: text(rule, "per"),
            cooldown: duration(rule, "cooldown"),
            rearm: text(rule, "rearm"),
            changed: text(rule, "changed"),
        };
        if let Some(per) = rule.get("per").filter(|_| !state.is_kept()) {
            let problem = per.problem(Code::NoEffect, &join(path, "per"), "has no effect: the rule has no state");
            self.problems.push(problem.hint("give `cooldown`, `rearm` or `changed` too, or leave it out"));
        }
        if rule.get("every").or(rule.get("schedule")).is_some() {
            for key in ["cooldown", "rearm", "changed"] {
                if let Some(given) = rule.get(key) {
                    let problem =
                        given.problem(Code::ConflictingMembers, &join(path, key), "is not allowed with a schedule");
                    self.problems
                        .push(problem.hint("the schedule decides how often notifications are sent; leave it out"));
                }
            }
        }
        state
    }

    /// The schedule of a rule.
    fn schedule(&mut self, node: &Node, path: &str) -> Option<RuleSchedule> {
        let (every, given) = (node.get("every"), node.get("schedule"));
        if let (Some(_), Some(given)) = (every, given) {
            let problem =
                given.problem(Code::ConflictingMembers, &join(path, "schedule"), "is not allowed with `every`");
            self.problems.push(problem.hint("keep one of them"));
        }
        for key in ["missed", "skip_older_than"] {
            if let (None, Some(entry)) = (every.or(given), node.entry(key)) {
                let problem = Problem::new(Code::NoEffect, join(path, key), "has no effect: the rule has no schedule");
                let problem = problem.hint("give `every` or `schedule`, or leave it out");
                self.problems.push(problem.position(entry.line, entry.column));
            }
        }
        let recurs = match given {
            None => Recurs::Fixed(Schedule::every(duration(node, "every")?)),
            Some(given) if given.text() == Some("subscription") => Recurs::Subscription,
            Some(given) => Recurs::Fixed(self.recurrence(given, &join(path, "schedule"))?),
        };
        let missed = match node.get("missed").and_then(Node::text) {
            Some("skip") => Missed::Skip,
            Some("all") => Missed::All,
            _ => Missed::Once,
        };
        Some(RuleSchedule { recurs, missed, skip_older_than: duration(node, "skip_older_than") })
    }

    /// A schedule by its text or its fields; it must have at least one due time.
    fn recurrence(&mut self, node: &Node, path: &str) -> Option<Schedule> {
        let field = |key: &str| node.get(key).and_then(Node::text);
        let schedule = match node.text() {
            Some(text) => Schedule::parse(text),
            None => Schedule::new(field("start")?, field("time_zone")?, field("rule")),
        };
        match schedule {
            Ok(schedule) if schedule.next_after(Timestamp(i64::MIN)).is_none() => {
                let problem = node.problem(Code::NeverDue, path, "is never due: the rule has no occurrences");
                self.problems.push(problem.hint("look for dates that do not exist, such as 30 February"));
                None
            }
            Ok(schedule) => Some(schedule),
            Err(problems) => {
                let problem = problems.into_iter().next()?;
                let at = node.problem(problem.code, path, format!("{}{}", part(&problem.path), problem.message));
                self.problems.push(match problem.hint {
                    Some(hint) => at.hint(hint),
                    None => at.hint("or `subscription` for each subscription's own schedule"),
                });
                None
            }
        }
    }

    /// Reports expressions for fields that the notification class does not have.
    fn unknown_expressions(&mut self, rule: &Node, path: &str, fields: &Fields) {
        for entry in rule.get("with").map_or(&[][..], Node::entries) {
            if fields.position(&entry.key).is_none() {
                let mut problem = fields.unknown(&shown(&entry.key));
                problem.path = join(&join(path, "with"), &problem.path);
                problem.message = "is not a field of the notification class".to_owned();
                self.problems.push(problem.position(entry.line, entry.column));
            }
        }
    }
}

/// Whether a rule is evaluated at due times.
fn is_scheduled(rule: &Node) -> bool {
    rule.get("schedule").is_some() || rule.get("every").is_some()
}

/// The part of a schedule that a problem is about.
fn part(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}: ") }
}

/// The problem of a field without an expression, which takes the event's field of its name.
fn missing_expression(
    rule: &Node,
    path: &str,
    field: &Field,
    notify: &Name,
    on: &Name,
    event: &EventClass,
) -> Option<Problem> {
    let name = &field.name;
    let message = match event.fields.position(name.as_str()).map(|at| event.fields[at].kind) {
        Some(kind) if kind == field.kind => return None,
        Some(kind) => format!(
            "has no expression, and the event's field of its name is of type {}, not {}",
            kind.name(),
            field.kind.name()
        ),
        None if !field.required || !field.default.is_null() => return None,
        None => format!("is required by `{notify}` and has no expression, and `{on}` has no field of its name"),
    };
    let at = rule.entry("with").map_or((rule.line, rule.column), |entry| (entry.line, entry.column));
    let problem = Problem::new(Code::WrongType, join(&join(path, "with"), name.as_str()), message);
    Some(problem.hint(format!("say how it is computed: `{name}: \"...\"`")).position(at.0, at.1))
}

pub(super) fn options(node: &Node) -> serde_json::Map<String, serde_json::Value> {
    match node.get("options").map(Node::json) {
        Some(serde_json::Value::Object(options)) => options,
        _ => serde_json::Map::new(),
    }
}

/// The delivery log of the channel `node`.
fn delivery_log(node: &Node) -> DeliveryLog {
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

fn flow(node: &Node) -> Flow {
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

pub(super) fn retry(node: Option<&Node>) -> RetrySchedule {
    let list = node.and_then(|node| if let Kind::List(items) = &node.kind { Some(items) } else { None });
    let inner = node.and_then(|node| node.get("delays"));
    let inner = inner.and_then(|node| if let Kind::List(items) = &node.kind { Some(items) } else { None });
    let delays = match list.or(inner) {
        Some(items) => items.iter().filter_map(|item| parse_duration(item.text()?).ok()).collect(),
        None => RETRY_SECONDS.map(Duration::from_secs).to_vec(),
    };
    let jitter_percent = node.and_then(|node| node.get("jitter")).and_then(percent).unwrap_or(JITTER_PERCENT);
    RetrySchedule { delays, jitter_percent }
}

fn retention(root: &Node) -> Retention {
    let given = |key: &str| root.get("retention").and_then(|node| duration(node, key));
    let default = Retention::default();
    Retention {
        finished: given("finished").unwrap_or(default.finished),
        idempotency: given("idempotency").unwrap_or(default.idempotency),
    }
}

/// The distinct dialects of a class's filters.
fn dialects(class: &Node) -> Vec<Dialect> {
    let given: Vec<&Node> = match class.get("filter").map(|node| (&node.kind, node)) {
        Some((Kind::List(items), _)) => items.iter().collect(),
        Some((_, node)) => vec![node],
        None => Vec::new(),
    };
    let mut dialects: Vec<Dialect> = Vec::new();
    for dialect in given.into_iter().filter_map(|node| node.text()?.parse().ok()) {
        if !dialects.contains(&dialect) {
            dialects.push(dialect);
        }
    }
    dialects
}

fn presence(node: &Node, key: &str) -> Presence {
    match node.get(key).and_then(Node::text) {
        Some("optional") => Presence::Optional,
        Some("required") => Presence::Required,
        _ => Presence::Forbidden,
    }
}

fn throttle(node: &Node, key: &str) -> Option<Throttle> {
    let throttle = node.get(key)?;
    let notifications = integer(throttle, "notifications").map(u64::from)?;
    Some(Throttle { notifications, per: duration(throttle, "per")? })
}

fn limits(root: &Node) -> Limits {
    let node = root.get("limits");
    let default = Limits::default();
    let given = |key: &str| node.and_then(|node| integer(node, key)).map(u64::from);
    Limits {
        subscriptions: given("subscriptions").unwrap_or(default.subscriptions),
        distinct_filters: given("distinct_filters").unwrap_or(default.distinct_filters),
        unindexed_filters: given("unindexed_filters").unwrap_or(default.unindexed_filters),
        notifications_per_event: given("notifications_per_event").unwrap_or(default.notifications_per_event),
        throttle: node.and_then(|node| throttle(node, "throttle")),
        schedule_throttle: node.and_then(|node| throttle(node, "schedule_throttle")),
        skip_older_than: node.and_then(|node| duration(node, "skip_older_than")),
        schedule_interval: node
            .and_then(|node| duration(node, "schedule_interval"))
            .unwrap_or(default.schedule_interval),
    }
}

pub(super) fn field_type(word: &str) -> Option<FieldType> {
    serde_json::from_value(word.into()).ok()
}

/// Whether a key is a language tag with a language of ISO 639: two or three letters. Longer ones are unused, and a
/// misspelt channel would look like one.
fn is_locale(key: &str) -> bool {
    is_language_tag(key) && (2..=3).contains(&key.split('-').next().unwrap_or_default().len())
}

fn locale_hint(locale: &str) -> String {
    let dashed = locale.replace('_', "-");
    if is_locale(&dashed) { format!("write `{dashed}`") } else { "give BCP 47, such as `de` or `pt-BR`".to_owned() }
}

pub(super) fn did_you_mean(wrong: &str, known: &[&str], section: &str) -> String {
    match closest(wrong, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if known.is_empty() => format!("there are no {section}"),
        None => format!("give {}", listed(&known[..known.len().min(12)])),
    }
}

pub(super) fn text(node: &Node, key: &str) -> Option<String> {
    node.get(key)?.text().map(str::to_owned)
}

pub(super) fn name(node: &Node, key: &str) -> Option<Name> {
    node.get(key)?.text()?.parse().ok()
}

pub(super) fn boolean(node: &Node, key: &str) -> Option<bool> {
    if let Kind::Boolean(value) = node.get(key)?.kind { Some(value) } else { None }
}

pub(super) fn integer(node: &Node, key: &str) -> Option<u32> {
    if let Kind::Integer(value) = node.get(key)?.kind { u32::try_from(value).ok() } else { None }
}

pub(super) fn duration(node: &Node, key: &str) -> Option<Duration> {
    parse_duration(node.get(key)?.text()?).ok()
}
