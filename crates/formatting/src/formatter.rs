//! Compile once, look up by locale and channel, render into bounds.

use std::{collections::HashMap, fmt, io};

use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use tocsin_model::{
    application::{ContentTemplates, TemplateParts},
    content::Content,
    field::{FieldType, Fields, Row},
    id::{Name, NotificationBatchId, NotificationId},
    problem::{Problem, closest},
    receipt::{Reason, ReasonKind},
    subscriber::Profile,
    time::Timestamp,
    value::Value,
};

use crate::{
    filters,
    scope::{
        DEVICE, DIGEST, DeviceScope, DigestItem, DigestScope, EventScope, KnownVariables, NOTIFICATION, ROOTS, Root,
        SUBSCRIBER, Scope, Uses,
    },
};

/// The longest part, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Steps of one part.
const FUEL: u64 = 100_000;
/// Macros within each other count four, blocks one.
const RECURSION_MAX: usize = 64;

/// A part of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// One line.
    Subject,
    /// Plain text.
    Text,
    /// HTML.
    Html,
    /// JSON.
    Json,
}

impl Part {
    const ALL: [Part; 4] = [Part::Subject, Part::Text, Part::Html, Part::Json];

    /// Its key in a definition.
    pub fn name(self) -> &'static str {
        match self {
            Part::Subject => "subject",
            Part::Text => "text",
            Part::Html => "html",
            Part::Json => "json",
        }
    }

    fn of(self, parts: &TemplateParts) -> Option<&str> {
        match self {
            Part::Subject => parts.subject.as_deref(),
            Part::Text => parts.text.as_deref(),
            Part::Html => parts.html.as_deref(),
            Part::Json => parts.json.as_deref(),
        }
    }
}

/// Why a notification could not be formatted. It concerns this notification only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No template serves this locale and channel.
    #[error("there is no template for the channel `{channel}`{}", locale.as_ref().map(|locale| format!(" and the locale `{locale}`")).unwrap_or_default())]
    Missing {
        /// The locale asked for.
        locale: Option<String>,
        /// The channel asked for.
        channel: String,
    },
    /// A template failed.
    #[error("template `{template}`, {}{}: {message}", part.name(), line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Template {
        /// The template's key: `base`, `de`, `de/email`.
        template: String,
        /// The part of it.
        part: Part,
        /// The line of the part's text, from 1.
        line: Option<u32>,
        /// What was wrong.
        message: String,
    },
}

impl FormatError {
    /// The reason that a receipt or a suspended notification carries.
    pub fn reason(&self) -> Reason {
        Reason::new(ReasonKind::Format, self.to_string())
    }
}

/// The templates of one notification class, compiled. Shared by any number of threads; put it into an `Arc`.
pub struct Formatter {
    environment: Environment<'static>,
    fields: Fields,
    templates: Vec<Template>,
    /// For no locale.
    base: Place,
    /// By locale, in lower case.
    locales: HashMap<String, Place>,
}

impl fmt::Debug for Formatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.templates.iter().map(|template| &template.name)).finish()
    }
}

/// One part of one template.
#[derive(Debug)]
struct Template {
    /// Its name in the environment.
    name: String,
    key: String,
    part: Part,
    uses: Uses,
    /// About how long its output is.
    bytes: usize,
}

/// Numbers of templates, by part.
type Parts = [Option<u32>; 4];

/// The templates of one locale.
#[derive(Debug, Default)]
struct Place {
    any: Parts,
    devices: HashMap<String, Parts>,
}

impl Formatter {
    /// Compiles the templates of a class. `class_path` is the path of the class in its definition, for the problems:
    /// `notifications.quake_alert`.
    ///
    /// # Errors
    /// Every problem of every template: syntax, names that are not known, filters that do not exist.
    pub fn compile(
        class_path: &str,
        templates: &ContentTemplates,
        variables: &KnownVariables,
    ) -> Result<Formatter, Vec<Problem>> {
        let mut formatter = Formatter {
            environment: environment(),
            fields: variables.fields.clone(),
            templates: Vec::new(),
            base: Place::default(),
            locales: HashMap::new(),
        };
        let mut problems = Vec::new();
        for (key, parts) in &templates.templates {
            let shown = if key.is_empty() { "base" } else { key };
            let mut places = Parts::default();
            for part in Part::ALL {
                let Some(source) = part.of(parts) else { continue };
                let path = format!("{class_path}.content.templates.{shown}.{}", part.name());
                match formatter.add(shown, part, source) {
                    Ok(number) => {
                        problems.extend(
                            formatter
                                .lint(number, source, variables)
                                .into_iter()
                                .map(|problem| Problem { path: path.clone(), ..problem }),
                        );
                        places[part as usize] = Some(number);
                    }
                    Err(problem) => problems.push(Problem { path, ..problem }),
                }
            }
            formatter.place(key, places);
        }
        if problems.is_empty() { Ok(formatter) } else { Err(problems) }
    }

    /// Formats one notification. `channel` is the name of the channel by which it leaves.
    ///
    /// Each part is looked for on its own: `de-AT/email`, `de/email`, `de-AT`, `de`, `email`, base. Cost: a few
    /// microseconds for a common template; the event is not converted again.
    ///
    /// # Errors
    /// No template serves, or one fails: the template, its part and line, and what was wrong.
    pub fn format(&self, locale: Option<&str>, channel: &str, scope: &Scope<'_>) -> Result<Content, FormatError> {
        let found = self.find(locale, channel);
        if found == Parts::default() {
            return Err(FormatError::Missing { locale: locale.map(str::to_owned), channel: channel.to_owned() });
        }
        let templates = found.iter().flatten().map(|number| &self.templates[*number as usize]);
        let uses = templates.fold(Uses::default(), |uses, template| uses.or(template.uses));
        let root = Root::value(&self.fields, scope, locale, uses);
        let mut parts = [None, None, None, None];
        for (part, number) in parts.iter_mut().zip(found) {
            if let Some(number) = number {
                *part = Some(self.render(&self.templates[number as usize], &root)?);
            }
        }
        let [subject, text, html, json] = parts;
        Ok(Content { subject: subject.map(|subject| one_line(&subject)), text, html, json })
    }

    /// What its templates read that is not the same for all who are told of one event: the template, its part, and the name.
    pub fn personal(&self) -> Vec<(&str, Part, String)> {
        let is_personal = |name: &String| {
            let (root, step) = name.split_once('.').unwrap_or((name, ""));
            match root {
                "subscriber" | "sub" | "device" => true,
                "notification" => step.is_empty() || step == "id",
                _ => false,
            }
        };
        let read = |template: &Template| {
            let compiled = self.environment.get_template(&template.name).expect("it was added");
            let mut names: Vec<String> = compiled.undeclared_variables(true).into_iter().filter(is_personal).collect();
            names.sort();
            names
        };
        let of = |template| read(template).into_iter().map(|name| (template.key.as_str(), template.part, name));
        self.templates.iter().flat_map(of).collect()
    }

    fn find(&self, locale: Option<&str>, channel: &str) -> Parts {
        let mut found = Parts::default();
        let mut fill = |parts: Option<&Parts>| {
            for (found, part) in found.iter_mut().zip(parts.into_iter().flatten()) {
                *found = found.or(*part);
            }
        };
        if !self.locales.is_empty()
            && let Some(locale) = locale
        {
            let locale = locale.to_ascii_lowercase();
            let places = || truncations(&locale).filter_map(|locale| self.locales.get(locale));
            places().for_each(|place| fill(place.devices.get(channel)));
            places().for_each(|place| fill(Some(&place.any)));
        }
        fill(self.base.devices.get(channel));
        fill(Some(&self.base.any));
        found
    }

    fn render(&self, template: &Template, root: &minijinja::Value) -> Result<String, FormatError> {
        let failed = |line: Option<usize>, message: String| FormatError::Template {
            template: template.key.clone(),
            part: template.part,
            line: line.and_then(|line| u32::try_from(line).ok()),
            message,
        };
        let mut output = Bounded { bytes: Vec::with_capacity(template.bytes.min(1 << 16)), full: false };
        if let Err(error) = run(&self.environment, &template.name, root, &mut output) {
            if output.full {
                return Err(failed(error.line(), format!("the output is longer than {OUTPUT_BYTES_MAX} bytes")));
            }
            // What was undefined is only known to the slower run that keeps notes.
            let error = match error.kind() {
                ErrorKind::UndefinedError => self.run_with_notes(template, root).unwrap_or(error),
                _ => error,
            };
            return Err(failed(error.line(), said(&error)));
        }
        let output = String::from_utf8(output.bytes).expect("templates and values are UTF-8");
        if template.part == Part::Json
            && let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&output)
        {
            return Err(failed(None, format!("the output is not JSON: {error}")));
        }
        Ok(output)
    }

    fn run_with_notes(&self, template: &Template, root: &minijinja::Value) -> Option<Error> {
        let mut environment = self.environment.clone();
        environment.set_debug(true);
        run(&environment, &template.name, root, &mut Bounded { bytes: Vec::new(), full: false }).err()
    }

    /// Compiles one part and gives its number.
    fn add(&mut self, key: &str, part: Part, source: &str) -> Result<u32, Problem> {
        let name = format!("{key}:{}", part.name());
        if let Some((line, word)) = reference(source) {
            let problem = Problem::at("", format!("line {line} of the template has `{word}`"));
            return Err(problem.hint("a template stands alone; use `{% macro %}` or `{% set %}` within it"));
        }
        self.environment.add_template_owned(name.clone(), source.to_owned()).map_err(|error| {
            let line = error.line().map(|line| format!("line {line} of the template: ")).unwrap_or_default();
            Problem::at("", format!("{line}{}", said(&error)))
        })?;
        let uses = Uses::in_text(source);
        self.templates.push(Template { name, key: key.to_owned(), part, uses, bytes: source.len() + source.len() / 4 });
        Ok(self.templates.len() as u32 - 1)
    }

    fn place(&mut self, key: &str, parts: Parts) {
        match key.split_once('/') {
            Some((locale, device)) => {
                let place = self.locales.entry(locale.to_ascii_lowercase()).or_default();
                place.devices.insert(device.to_owned(), parts);
            }
            None if key.is_empty() => self.base.any = parts,
            None => {
                // A key alone is a locale or a channel. The definition's checker saw to it that it is one of them; which
                // one shows when it is looked for.
                self.base.devices.insert(key.to_owned(), parts);
                self.locales.entry(key.to_ascii_lowercase()).or_default().any = parts;
            }
        }
    }

    /// What can be known to fail without an event.
    fn lint(&self, number: u32, source: &str, variables: &KnownVariables) -> Vec<Problem> {
        let template = &self.templates[number as usize];
        let compiled = self.environment.get_template(&template.name).expect("it was added");
        let mut names: Vec<String> = compiled.undeclared_variables(true).into_iter().collect();
        names.sort();
        let mut problems: Vec<Problem> = names
            .iter()
            .filter(|name| !self.environment.globals().any(|(global, _)| global == *name))
            .filter_map(|name| {
                let (message, hint) = objection(name, variables)?;
                let line = source.lines().position(|line| line.contains(name.as_str())).map_or(1, |at| at + 1);
                Some(Problem::at("", format!("line {line} of the template uses `{name}`, {message}")).hint(hint))
            })
            .collect();
        if problems.is_empty() {
            problems.extend(self.rehearse(template, variables));
        }
        problems
    }

    /// Renders with made-up values, to find filters, tests and functions that do not exist or are called wrongly. What
    /// else fails may do so because of the values, and is no problem.
    fn rehearse(&self, template: &Template, variables: &KnownVariables) -> Option<Problem> {
        let sample = |fields: &Fields| fields.iter().map(|field| sample(field.kind)).collect();
        let nothing = |fields: &Fields| vec![Value::Null; fields.len()];
        let rows: [fn(&Fields) -> Row; 2] = [sample, nothing];
        let empty = Fields::default();
        let event_fields = variables.events.first().map_or(&empty, |(_, fields)| fields);
        let sub_fields = variables.subscriptions.first().map_or(&empty, |(_, fields)| fields);
        let uses = template.uses;
        rows.into_iter().find_map(|row| {
            let id = NotificationId { batch: NotificationBatchId(1), ordinal: 0 };
            let (rule, fields) = ("rule".parse().expect("`rule` is a name"), row(&variables.fields));
            let event = EventScope::new(event_fields, &row(event_fields));
            let (matched_at, accepted_at) = (Timestamp(0), Timestamp(0));
            let item = DigestItem { id, rule: &rule, matched_at, accepted_at, fields: &fields, event: &event };
            let items = [item];
            let scope = Scope {
                id,
                rule: &rule,
                matched_at,
                accepted_at,
                fields: &fields,
                event: &event,
                digest: variables.digest.then_some(DigestScope { items: &items, count: 2 }),
                subscriber: &"someone".parse().expect("`someone` is an id"),
                profile: &Profile::default(),
                subscription: (sub_fields, &row(sub_fields)),
                device: DeviceScope { name: "device", channel: "channel", address: "address" },
            };
            let root = Root::value(&variables.fields, &scope, None, uses);
            let error =
                run(&self.environment, &template.name, &root, &mut Bounded { bytes: Vec::new(), full: false }).err()?;
            let about = match error.kind() {
                ErrorKind::UnknownFilter => filters::hint(error.detail().unwrap_or_default()),
                ErrorKind::UnknownTest => {
                    "tests are those of Jinja: `defined`, `none`, `number`, `string`, ...".to_owned()
                }
                ErrorKind::UnknownFunction | ErrorKind::UnknownMethod => {
                    "only `range`, `dict` and your own macros can be called".to_owned()
                }
                ErrorKind::TooManyArguments | ErrorKind::MissingArgument => "check the arguments".to_owned(),
                _ => return None,
            };
            let line = error.line().unwrap_or(1);
            Some(Problem::at("", format!("line {line} of the template: {}", said(&error))).hint(about))
        })
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_debug(false);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_auto_escape_callback(|name| match name.rsplit(':').next() {
        Some("html") => AutoEscape::Html,
        Some("json") => AutoEscape::Json,
        _ => AutoEscape::None,
    });
    // A field without a value reads as nothing, not as the word `none`; in JSON it is null.
    environment.set_formatter(|out, state, value| {
        if value.is_none() && *state.auto_escape() != AutoEscape::Json {
            return Ok(());
        }
        minijinja::escape_formatter(out, state, value)
    });
    filters::install(&mut environment);
    environment
}

fn run(
    environment: &Environment<'static>,
    name: &str,
    root: &minijinja::Value,
    output: &mut Bounded,
) -> Result<(), Error> {
    environment.get_template(name)?.render_captured_to(root.clone(), output).map(|_| ())
}

/// Takes output up to its bound.
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > OUTPUT_BYTES_MAX {
            self.full = true;
            return Err(io::Error::other("the output is too long"));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A locale and what it is a variety of: `zh-hant-tw`, `zh-hant`, `zh` (RFC 4647, section 3.4).
fn truncations(locale: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(locale), |locale| {
        let shorter = locale.rsplit_once('-')?.0;
        // A single letter only introduces what follows it, so it goes as well.
        match shorter.rsplit_once('-') {
            Some((before, introducer)) if introducer.len() == 1 => Some(before),
            _ => Some(shorter),
        }
    })
}

/// White space collapsed to single spaces, so that a subject is one line and can never begin another header.
fn one_line(text: &str) -> String {
    let breaks = |c: char| c.is_whitespace() || c.is_control();
    let mut line = String::with_capacity(text.len());
    for word in text.split(breaks).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

/// What an error says, without the place, which we tell ourselves.
fn said(error: &Error) -> String {
    let mut said = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        said = format!("{said}: {cause}");
        source = cause.source();
    }
    said
}

/// The first tag that refers to another template, with its line.
fn reference(source: &str) -> Option<(usize, &str)> {
    source.match_indices("{%").find_map(|(at, _)| {
        let rest = source[at + 2..].trim_start_matches(['-', '+']).trim_start();
        let word = &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len())];
        let line = source[..at].matches('\n').count() + 1;
        matches!(word, "include" | "import" | "from" | "extends").then_some((line, word))
    })
}

/// What is wrong with a variable's name, and what would be right.
fn objection(name: &str, variables: &KnownVariables) -> Option<(String, String)> {
    let mut steps = name.split('.');
    let root = steps.next().unwrap_or_default();
    let step = steps.next();
    let fields = || variables.fields.iter().map(|field| field.name.as_str());
    if fields().any(|field| field == root) {
        return None;
    }
    let fixed = |known: &[&str]| {
        let step = step.filter(|step| !known.contains(step))?;
        let hint = if root == "notification" && fields().any(|field| field == step) {
            format!("fields of the notification stand alone: `{step}`")
        } else {
            did_you_mean(root, step, known)
        };
        Some(("which does not exist".to_owned(), hint))
    };
    let of_classes = |classes: &[(Name, Fields)]| {
        let step = step?;
        let (class, fields) = classes.iter().find(|(_, fields)| fields.position(step).is_none())?;
        let known: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        Some((format!("but `{class}` has no field of this name"), did_you_mean(root, step, &known)))
    };
    match root {
        "event" => of_classes(&variables.events),
        "sub" => of_classes(&variables.subscriptions),
        "subscriber" => fixed(&SUBSCRIBER),
        "device" => fixed(&DEVICE),
        "notification" => fixed(&NOTIFICATION),
        "digest" if variables.digest => fixed(&DIGEST),
        "digest" => {
            let hint = "give the class `digest: { by: [...] }`, or leave it out";
            Some(("but its class is not told in digests".to_owned(), hint.to_owned()))
        }
        _ => {
            let elsewhere = [("event", &variables.events), ("sub", &variables.subscriptions)]
                .into_iter()
                .find(|(_, classes)| classes.iter().any(|(_, fields)| fields.position(root).is_some()));
            let hint = match (closest(root, fields().chain(ROOTS)), elsewhere) {
                (Some(meant), _) => format!("did you mean `{meant}`?"),
                (None, Some((place, _))) => format!("did you mean `{place}.{root}`?"),
                (None, None) => {
                    let known: Vec<&str> = fields().chain(ROOTS).collect();
                    format!("known are {}", known.join(", "))
                }
            };
            Some(("which is not known".to_owned(), hint))
        }
    }
}

fn did_you_mean(root: &str, step: &str, known: &[&str]) -> String {
    match closest(step, known.iter().copied()) {
        Some(meant) => format!("did you mean `{root}.{meant}`?"),
        None => format!("`{root}` has {}", known.join(", ")),
    }
}

fn sample(kind: FieldType) -> Value {
    match kind {
        FieldType::Boolean => Value::Boolean(true),
        FieldType::Integer => Value::Integer(7),
        FieldType::Number => Value::Number(4.5),
        FieldType::String => Value::from("text"),
        FieldType::Timestamp => Value::Timestamp(Timestamp(0)),
        FieldType::List => Value::List([Value::from("text")].into()),
        FieldType::Map => Value::Map([("key".into(), Value::from("text"))].into()),
    }
}
