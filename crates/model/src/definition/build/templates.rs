//! Templates of notification classes, by channel and locale.

use std::collections::BTreeMap;

use crate::{
    application::{ContentTemplates, TemplateEngine, TemplateParts, TemplateText},
    content::{MailField, header_problem},
    definition::{
        build::{builder::Builder, nodes::did_you_mean},
        document::{Kind, Node, join},
        shape::shown,
    },
    problem::{Code, Problem, closest},
    subscriber::is_language_tag,
};

impl<'a> Builder<'a> {
    pub(super) fn content(&mut self, content: &Node, path: &str) -> ContentTemplates {
        let engine = match content.get("engine").and_then(Node::text) {
            Some("xslt") => TemplateEngine::Xslt,
            Some("notifybc") => TemplateEngine::Notifybc,
            _ => TemplateEngine::Jinja,
        };
        ContentTemplates { engine, templates: self.templates(content, path, engine) }
    }

    pub(super) fn templates(
        &mut self,
        content: &Node,
        path: &str,
        engine: TemplateEngine,
    ) -> BTreeMap<String, TemplateParts> {
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

    pub(super) fn parts(&mut self, node: &Node, path: &str, engine: TemplateEngine) -> TemplateParts {
        let mut part = |name: &str| self.template_text(node.get(name)?, &join(path, name), engine);
        let (text, html, json, sms) = (part("text"), part("html"), part("json"), part("sms"));
        let subject = node.get("subject").and_then(|given| self.text_or_file(given, &join(path, "subject")));
        let headers = self.headers(node, &join(path, "headers"));
        TemplateParts { subject, text, html, json, sms, headers, mail: mail_fields(node) }
    }

    pub(super) fn headers(&mut self, parts: &Node, path: &str) -> BTreeMap<String, String> {
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
    pub(super) fn template_text(&mut self, node: &Node, path: &str, usual: TemplateEngine) -> Option<TemplateText> {
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
    pub(super) fn text_or_file(&mut self, given: &Node, path: &str) -> Option<String> {
        if let Some(file) = given.get("file").and_then(Node::text) {
            let problem = given.problem(Code::Unsupported, path, format!("is still in the file `{}`", shown(file)));
            self.problems.push(problem.hint("apply with the command line tool, which puts the texts of files in"));
        }
        given.text().map(str::to_owned)
    }

    /// The model's key for a template; or a message and a hint.
    pub(super) fn template_key(&self, key: &str) -> Result<String, (String, String)> {
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
}

/// Whether a key is a language tag with a language of ISO 639: two or three letters. Longer ones are unused, and a
/// misspelt channel would look like one.
pub(super) fn is_locale(key: &str) -> bool {
    is_language_tag(key) && (2..=3).contains(&key.split('-').next().unwrap_or_default().len())
}

pub(super) fn locale_hint(locale: &str) -> String {
    let dashed = locale.replace('_', "-");
    if is_locale(&dashed) { format!("write `{dashed}`") } else { "give BCP 47, such as `de` or `pt-BR`".to_owned() }
}

/// The fields of a mail that a template gives.
fn mail_fields(parts: &Node) -> BTreeMap<MailField, String> {
    let Some(given) = parts.get("mail") else { return BTreeMap::new() };
    let text = |field: MailField| Some((field, given.get(field.name())?.text()?.to_owned()));
    MailField::ALL.into_iter().filter_map(text).collect()
}
