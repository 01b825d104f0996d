//! Template checks: errors that are detectable without an event, and likely mistakes.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::{Environment, ErrorKind};
use tocsin_model::{
    application::{Application, TemplateEngine, TemplateParts},
    field::{Field, FieldType, Fields, Row},
    id::{Name, NotificationBatchId, NotificationId},
    problem::{Code, Problem, closest},
    subscriber::{Profile, is_language_tag},
    time::Timestamp,
    value::Value,
};

use crate::{
    compile::references,
    filters,
    formatter::Formatter,
    locale::truncations,
    parts::{Part, message_of},
    sandbox::{self, CalleeKind, PreparedTemplate},
    scope::{
        DEVICE, DIGEST, DeviceScope, DigestItem, DigestScope, EventScope, KnownVariables, LINKS, LinkScope,
        NOTIFICATION, ROOTS, SUBSCRIBER, Scope, TemplateRoot,
    },
    template::Template,
    xslt,
};

/// The unknown variables of a template, as problems.
pub fn unknown(
    environment: &Environment<'static>,
    name: &str,
    prepared: &PreparedTemplate,
    variables: &KnownVariables,
) -> Vec<(String, Problem)> {
    let Ok(compiled) = environment.get_template(name) else { return Vec::new() };
    let mut names: Vec<String> = compiled.undeclared_variables(true).into_iter().collect();
    names.sort();
    let is_global = |name: &str| environment.globals().any(|(global, _)| global == name) || sandbox::is_own(name);
    names
        .into_iter()
        .filter(|name| !is_global(name))
        .filter_map(|name| {
            let (message, hint) = unknown_variable_problem(&name, variables)?;
            let below = format!("{name}.");
            let place = prepared.variables.iter().find(|(path, ..)| *path == name || path.starts_with(&below));
            let (line, column) = place.map_or((1, 1), |(_, line, column)| (*line, *column));
            let problem = Problem::new(Code::UnknownName, "", format!("the template uses `{name}`, {message}"))
                .param("value", name.to_string())
                .hint(hint);
            Some((name, problem.position(line, column)))
        })
        .collect()
}

/// The unknown filters and tests of a template.
pub fn unknown_calls(environment: &Environment<'static>, prepared: &PreparedTemplate) -> Vec<Problem> {
    let mut state = environment.empty_state();
    let mut is_known = |kind: &str, name: &str| state.perform_test(kind, &[name.into()]).unwrap_or(false);
    let mut found = Vec::new();
    for (called, name, line, column) in &prepared.called {
        let (kind, hint) = match called {
            CalleeKind::Filter if !is_known("filter", name) => ("filter", filters::filter_hint(name)),
            CalleeKind::Test if !is_known("test", name) => ("test", filters::test_hint(name)),
            _ => continue,
        };
        let problem = Problem::new(Code::UnknownName, "", format!("the template has an unknown {kind}: `{name}`"))
            .param("value", name.to_string())
            .hint(hint);
        found.push(problem.position(*line, *column));
    }
    found
}

/// URLs in HTML that are an unfiltered value.
pub fn unsafe_urls(source: &str) -> Vec<Problem> {
    let mut found = Vec::new();
    for attribute in ["href=", "src=", "action=", "background="] {
        for (at, _) in source.match_indices(attribute) {
            let value = source[at + attribute.len()..].trim_start_matches(['"', '\'']);
            let Some(end) = value.strip_prefix("{{").and_then(|tag| tag.find("}}")) else { continue };
            let tag = &value[2..end + 2];
            // The output of the filter `url` is safe; others are not known to be.
            if tag.contains("url") && tag.contains('|') || tag.contains("safe") {
                continue;
            }
            let before = &source[..at];
            let (line, column) = (before.matches('\n').count() + 1, before.rsplit('\n').next().map_or(0, str::len) + 1);
            let message = format!("a value becomes an address, and could be `javascript:`: `{{{{{tag}}}}}`");
            let hint = format!("write `{{{{ {}|url }}}}`, which lets only web and mail addresses through", tag.trim());
            found.push(Problem::new(Code::UnsafeUrl, "", message).hint(hint).position(line as u32, column as u32));
        }
    }
    found
}

/// Renders every template with sample values, to find unknown or wrongly called filters, tests and functions: once with
/// a value in each field, and once without the optional ones. Returns problems, and warnings for templates that fail
/// only without the optional values. Other failures may be due to the sample values.
pub fn try_with_samples(
    formatter: &Formatter,
    class_path: &str,
    variables: &KnownVariables,
) -> (Vec<Problem>, Vec<Problem>) {
    let (mut problems, mut warnings) = (Vec::new(), Vec::new());
    let mut is_late = false;
    // Texts with tokens cannot fail.
    for template in formatter.templates.iter().filter(|template| template.merge.is_none()) {
        let path = path_of(class_path, template);
        let found: Option<Problem> = match &template.stylesheet {
            // One that is stopped at a limit is enough: each takes a second.
            Some(_) if is_late => None,
            Some(stylesheet) => [Sample::Full, Sample::Least].into_iter().find_map(|rows| {
                let failed = with_scope(variables, rows, |scope| {
                    let (fields, uses) = (&variables.fields, template.uses);
                    stylesheet.apply(&xslt::Input { fields, scope, locale: None, uses }).err()
                });
                let error = failed.filter(|error| error.is_static || error.is_limit)?;
                is_late |= error.is_limit;
                let problem = Problem::new(Code::RenderFailed, "", format!("the stylesheet fails: {}", error.message));
                Some(problem.position(error.line.unwrap_or(1), 1))
            }),
            None => {
                let with_values = render_sample(formatter, template, variables, Sample::Full);
                let without = render_sample(formatter, template, variables, Sample::Least);
                let found =
                    [&with_values, &without].into_iter().flatten().find_map(|(error, _)| wrong_call(template, error));
                if let (None, None, Some((error, missing))) = (&found, &with_values, &without) {
                    let message = format!("fails where optional fields have no value: {}{missing}", message_of(error));
                    let hint = "test with `{% if field is not none %}`, add a default with `{{ field or 'text' }}`, or make the field required";
                    let line = error.line().unwrap_or(1) as u32;
                    warnings.push(Problem::new(Code::RenderFailed, &path, message).hint(hint).position(line, 1));
                }
                found
            }
        };
        problems.extend(found.map(|problem| match problem.path.is_empty() {
            true => Problem { path, ..problem },
            false => problem,
        }));
    }
    problems.dedup();
    (problems, warnings)
}

/// Sample rows.
#[derive(Debug, Clone, Copy)]
enum Sample {
    /// A value in each field.
    Full,
    /// No value in optional fields. A field with the name of an event field is not optional: rules copy it.
    Least,
}

impl Sample {
    fn row(self, fields: &Fields, variables: &KnownVariables) -> Row {
        let is_taken_over = |field: &Field| {
            let of_event = |fields: &Fields| fields.position(field.name.as_str()).is_some_and(|at| fields[at].required);
            !variables.events.is_empty() && variables.events.iter().all(|(_, fields)| of_event(fields))
        };
        let value = |field: &Field| match self {
            Sample::Least if !field.required && !is_taken_over(field) => field.default.clone(),
            Sample::Full | Sample::Least => sample(field.kind),
        };
        fields.iter().map(value).collect()
    }
}

/// The problem of an unknown or wrongly called filter, test or function, whatever the values are.
fn wrong_call(template: &Template, error: &minijinja::Error) -> Option<Problem> {
    let about = match error.kind() {
        ErrorKind::UnknownFilter => filters::hint(error.detail().unwrap_or_default()),
        ErrorKind::UnknownTest => "tests are those of Jinja: `defined`, `none`, `number`, `string`, ...".to_owned(),
        ErrorKind::UnknownFunction | ErrorKind::UnknownMethod => {
            "only `range`, `dict` and your own macros can be called".to_owned()
        }
        ErrorKind::TooManyArguments | ErrorKind::MissingArgument => "check the arguments".to_owned(),
        _ => return None,
    };
    let partial = error.name().filter(|name| *name != template.name).and_then(crate::compile::partial_of_name);
    let path = partial.map(|partial| format!("partials.{partial}")).unwrap_or_default();
    let problem =
        Problem::new(Code::RenderFailed, path, format!("the template fails: {}", message_of(error))).hint(about);
    Some(problem.position(error.line().unwrap_or(1) as u32, 1))
}

fn path_of(class_path: &str, template: &Template) -> String {
    match &template.header {
        Some(field) if template.part == Part::Mail => {
            format!("{class_path}.content.templates.{}.mail.{field}", template.key)
        }
        Some(header) => format!("{class_path}.content.templates.{}.headers.{header}", template.key),
        None => format!("{class_path}.content.templates.{}.{}", template.key, template.part.name()),
    }
}

/// Renders a template over sample rows. Returns its error, with the variables without a value in its line.
fn render_sample(
    formatter: &Formatter,
    template: &Template,
    variables: &KnownVariables,
    rows: Sample,
) -> Option<(minijinja::Error, String)> {
    with_scope(variables, rows, |scope| {
        let computed = variables.computed.keys().map(|name| (name.clone(), minijinja::Value::from(1)));
        let root = TemplateRoot::new(&variables.fields, scope, None, template.uses).with_computed(computed.collect());
        let root = minijinja::Value::from_object(root);
        let error = formatter.render_for_errors(&template.name, &root)?;
        let without = formatter.null_variables(&error, &root);
        Some((error, without))
    })
}

/// A scope over sample rows.
fn with_scope<T>(variables: &KnownVariables, rows: Sample, work: impl FnOnce(&Scope<'_>) -> T) -> T {
    let row = |fields: &Fields| rows.row(fields, variables);
    let empty = Fields::default();
    let event_fields = variables.events.first().map_or(&empty, |(_, fields)| fields);
    let sub_fields = variables.subscriptions.first().map_or(&empty, |(_, fields)| fields);
    let id = NotificationId { batch: NotificationBatchId(1), ordinal: 0 };
    let (rule, fields) = ("rule".parse().expect("`rule` is a name"), row(&variables.fields));
    let event = EventScope::new(event_fields, &row(event_fields));
    let (matched_at, accepted_at) = (Timestamp(0), Timestamp(0));
    let items = [DigestItem { id, rule: &rule, matched_at, accepted_at, fields: &fields, event: &event }];
    work(&Scope {
        id,
        rule: &rule,
        matched_at,
        accepted_at,
        now: Timestamp(0),
        fields: &fields,
        event: &event,
        digest: variables.digest.then_some(DigestScope { items: &items, count: 2 }),
        subscriber: &"someone".parse().expect("`someone` is an id"),
        profile: &Profile::default(),
        subscription: (sub_fields, &row(sub_fields)),
        device: DeviceScope { name: "device", channel: "channel", address: "address" },
        links: LinkScope { preferences: Some("link"), confirm: Some("link"), code: Some("code") },
    })
}

/// Likely gaps in the templates of an application. `needs` returns, for a protocol, the parts of which a message must
/// have at least one; empty if it needs none.
pub fn application(application: &Application, needs: &dyn Fn(&Name) -> &'static [Part]) -> Vec<Problem> {
    let mut warnings = Vec::new();
    let locales: BTreeMap<&Name, BTreeSet<String>> =
        application.notifications.keys().map(|name| (name, locales_of(application, name))).collect();
    for (name, class) in &application.notifications {
        let path = format!("notifications.{name}.content.templates");
        let own = &locales[name];
        let mut missing: BTreeMap<&String, &Name> = BTreeMap::new();
        for (other, theirs) in locales.iter().filter(|(other, _)| **other != name) {
            for locale in theirs.iter().filter(|locale| !truncations(locale).any(|locale| own.contains(locale))) {
                missing.entry(locale).or_insert(other);
            }
        }
        if !missing.is_empty() {
            let listed: Vec<String> =
                missing.iter().map(|(locale, other)| format!("`{locale}`, which `{other}` has")).collect();
            let message = format!("has nothing for the locale {}", listed.join(", and none for "));
            warnings.push(
                Problem::new(Code::MissingTranslation, &path, message)
                    .hint("its readers get another language; add a template for this locale"),
            );
        }
        let Some(base) = class.content.templates.get("") else { continue };
        for (key, parts) in class.content.templates.iter().filter(|(key, _)| own.contains(&key.to_ascii_lowercase())) {
            let lacking: Vec<&str> = [Part::Subject, Part::Text, Part::Html, Part::Sms]
                .into_iter()
                .filter(|part| has(base, *part) && !has(parts, *part))
                // A text is derived from the HTML.
                .filter(|part| !(*part == Part::Text && has(parts, Part::Html)))
                .map(Part::name)
                .collect();
            if !lacking.is_empty() && has_text(parts) {
                let message = format!("has no {}: readers of `{key}` get that of `base`", lacking.join(" and no "));
                warnings.push(
                    Problem::new(Code::MissingTranslation, format!("{path}.{key}"), message)
                        .hint("add it in this language too"),
                );
            }
        }
    }
    warnings.extend(unsendable(application, needs));
    warnings.extend(unused(application));
    warnings
}

/// The locales that a class has templates for, in lower case.
fn locales_of(application: &Application, class: &Name) -> BTreeSet<String> {
    let keys = application.notifications[class].content.templates.keys();
    let locale = |key: &String| {
        let locale = key.split('/').next().unwrap_or_default();
        let is_channel = !key.contains('/') && application.channels.keys().any(|name| name.as_str() == key);
        (is_language_tag(locale) && !is_channel && !locale.is_empty()).then(|| locale.to_ascii_lowercase())
    };
    keys.filter_map(locale).collect()
}

fn has(parts: &TemplateParts, part: Part) -> bool {
    part.of(parts).is_some()
}

fn has_text(parts: &TemplateParts) -> bool {
    [Part::Subject, Part::Text, Part::Html, Part::Sms].into_iter().any(|part| has(parts, part))
}

/// Channels for which a class has no content. Subscribers choose the channels, so a class with templates for named
/// channels is assumed to be for these only.
fn unsendable(application: &Application, needs: &dyn Fn(&Name) -> &'static [Part]) -> Vec<Problem> {
    let mut warnings = Vec::new();
    for (name, class) in &application.notifications {
        let templates = &class.content.templates;
        for (channel_name, channel) in &application.channels {
            let requested = needs(&channel.protocol);
            let serves = |key: &str| {
                let device = key.rsplit_once('/').map_or(key, |(_, device)| device);
                device == channel_name.as_str() || !application.channels.keys().any(|name| name.as_str() == device)
            };
            let served = templates.iter().filter(|(key, _)| serves(key)).map(|(_, parts)| parts);
            let mut served = served.peekable();
            if requested.is_empty() || served.peek().is_none() {
                continue;
            }
            if !served.any(|parts| requested.iter().any(|part| has(parts, *part))) {
                let list = requested.iter().map(|part| format!("`{}`", part.name())).collect::<Vec<_>>().join(" or ");
                let path = format!("notifications.{name}.content.templates");
                let message = format!("has no {list} for the channel `{channel_name}` ({})", channel.protocol);
                warnings.push(
                    Problem::new(Code::MissingPart, path, message)
                        .hint("messages through it would be empty; add a part"),
                );
            }
        }
    }
    warnings
}

/// Unused partials.
fn unused(application: &Application) -> Vec<Problem> {
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut check = |engine: TemplateEngine, text: &str| match engine {
        TemplateEngine::Notifybc => {}
        TemplateEngine::Xslt => used.extend(xslt::imports(text)),
        _ => used.extend(references(text).into_iter().map(|reference| reference.name)),
    };
    for class in application.notifications.values() {
        if class.content.engine == TemplateEngine::Notifybc {
            continue;
        }
        for parts in class.content.templates.values() {
            let texts = Part::ALL.into_iter().filter_map(|part| part.of(parts));
            texts.for_each(|(engine, text)| check(engine, text));
            let lines = parts.headers.values().chain(parts.mail.values());
            lines.for_each(|text| check(TemplateEngine::Jinja, text));
        }
    }
    application.partials.values().for_each(|partial| check(partial.engine, &partial.text));
    let unused = application.partials.keys().filter(|name| !used.contains(name.as_str()));
    unused
        .map(|name| {
            Problem::new(Code::Unused, format!("partials.{name}"), "is not used")
                .hint("include or extend it, or remove it")
        })
        .collect()
}

/// The problem and hint for an unknown variable.
fn unknown_variable_problem(name: &str, variables: &KnownVariables) -> Option<(String, String)> {
    let mut steps = name.split('.');
    let root = steps.next().unwrap_or_default();
    let step = steps.next();
    let fields =
        || variables.fields.iter().map(|field| field.name.as_str()).chain(variables.computed.keys().map(Name::as_str));
    if fields().any(|field| field == root) {
        return None;
    }
    let fixed = |known: &[&str]| {
        let step = step.filter(|step| !known.contains(step))?;
        let hint = if root == "notification" && fields().any(|field| field == step) {
            format!("write fields of the notification without a prefix: `{step}`")
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
        root if LINKS.contains(&root) => None,
        "digest" if variables.digest => fixed(&DIGEST),
        "digest" => {
            let hint = "give the class `digest: { by: [...] }`, or remove it";
            Some(("but its class has no digests".to_owned(), hint.to_owned()))
        }
        _ => {
            let elsewhere = [("event", &variables.events), ("sub", &variables.subscriptions)]
                .into_iter()
                .find(|(_, classes)| classes.iter().any(|(_, fields)| fields.position(root).is_some()));
            let hint = match (closest(root, fields().chain(ROOTS).chain(LINKS)), elsewhere) {
                (Some(meant), _) => format!("did you mean `{meant}`?"),
                (None, Some((place, _))) => format!("did you mean `{place}.{root}`?"),
                (None, None) => {
                    let known: Vec<&str> = fields().chain(ROOTS).chain(LINKS).collect();
                    format!("known are {}", known.join(", "))
                }
            };
            Some(("which is unknown".to_owned(), hint))
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
