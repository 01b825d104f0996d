//! Mail merge: tokens in braces, replaced by values of subscription and notification.
//!
//! A text is parsed once into a [`Template`] and rendered for each recipient. Static tokens have fixed names in any
//! letter case; every other token is a path into the data of the notification or the subscription. A dynamic token
//! without a value stays as it is. `\{` and `\}` are plain braces. Values go in unchanged and are not merged again.

mod token; // names of static tokens
mod values; // paths into data, and texts of values

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

pub use token::Static;
pub use values::{DataPath, text_of};

use crate::record::{Document, text};

/// Most parts of a template.
pub const PARTS_MAX: usize = 100_000;
/// Most characters of a token. A text of open braces would otherwise be searched to its end for each of them.
const TOKEN_CHARS_MAX: usize = 1_000;

/// Characters that `encodeURIComponent` of JavaScript escapes.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'!')
    .remove(b'~')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')');

/// A text encoded as a component of a URI, as JavaScript does it.
pub fn uri_component(text: &str) -> String {
    utf8_percent_encode(text, COMPONENT).to_string()
}

/// A parsed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The parts in their order.
    pub parts: Vec<Part>,
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A text without tokens.
    Text(String),
    /// A token with a fixed name.
    Static(Static),
    /// A path into data.
    Dynamic {
        /// The record with the data.
        scope: Scope,
        /// The path.
        path: DataPath,
        /// The token with its braces. It stays when there is no value.
        original: String,
    },
}

/// The records whose data a dynamic token reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// `{notification::path}`
    Notification,
    /// `{subscription::path}`
    Subscription,
    /// `{path}`: the notification, else the subscription.
    Either,
}

/// Values of a rendering. Absent ones give empty texts for static tokens, and leave dynamic tokens as they are.
#[derive(Debug, Clone, Default)]
pub struct Context<'c> {
    /// The subscription record.
    pub subscription: Option<&'c Document>,
    /// The notification record.
    pub notification: Option<&'c Document>,
    /// The base URL of links; see [`http_host`].
    pub http_host: &'c str,
    /// The path prefix of all routes.
    pub rest_api_root: &'c str,
    /// Whether the subscription's data is not used, as in confirmation requests.
    pub ignores_subscription_data: bool,
}

/// The base URL of links: of the notification, of the configuration, of the request.
pub fn http_host(notification: Option<&Document>, configured: Option<&str>, request: &str) -> String {
    let own = notification.and_then(|notification| text(notification, "httpHost"));
    own.or(configured).unwrap_or(request).trim_end_matches('/').to_owned()
}

/// The services of an unsubscription: `service A`, `services A and B`, `services A, B and C`.
pub fn service_names(subscription: &Document) -> String {
    let mut names: Vec<&str> = text(subscription, "serviceName").into_iter().collect();
    let additional = subscription.get("unsubscribedAdditionalServices").and_then(|services| services.get("names"));
    for name in additional.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    match names.as_slice() {
        [] => String::new(),
        [name] => format!("service {name}"),
        [first @ .., last] => format!("services {} and {last}", first.join(", ")),
    }
}

/// Merges a text once.
pub fn merged(text: &str, context: &Context<'_>) -> String {
    Template::parse(text).render(context)
}

impl Template {
    /// The parts of a text. Static tokens come first: they are found anywhere, also within other braces.
    pub fn parse(text: &str) -> Template {
        let mut template = Template { parts: Vec::new() };
        let mut start = 0;
        for (at, _) in text.match_indices('{') {
            if at < start || text[..at].ends_with('\\') || template.parts.len() >= PARTS_MAX {
                continue;
            }
            if let Some((token, length)) = Static::at_start(&text[at + 1..]) {
                template.parse_dynamic(&text[start..at]);
                template.parts.push(Part::Static(token));
                start = at + 1 + length;
            }
        }
        template.parse_dynamic(&text[start..]);
        template
    }

    /// Adds the parts of a text without static tokens.
    fn parse_dynamic(&mut self, text: &str) {
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '\\']) {
            plain.push_str(&rest[..at]);
            let here = &rest[at..];
            if let Some(after) = here.strip_prefix('\\') {
                // An escaped brace is plain; a backslash before anything else is itself.
                let escaped = after.chars().next().filter(|c| matches!(c, '{' | '}'));
                plain.push(escaped.unwrap_or('\\'));
                rest = &after[escaped.map_or(0, char::len_utf8)..];
                continue;
            }
            match token(here).filter(|_| self.parts.len() < PARTS_MAX) {
                Some(inner) => {
                    self.push_text(&mut plain);
                    self.parts.push(dynamic(inner));
                    rest = &here[inner.len() + 2..];
                }
                None => {
                    plain.push('{');
                    rest = &here[1..];
                }
            }
        }
        plain.push_str(rest);
        self.push_text(&mut plain);
    }

    fn push_text(&mut self, plain: &mut String) {
        if !plain.is_empty() {
            self.parts.push(Part::Text(std::mem::take(plain)));
        }
    }

    /// Whether the result is the same for all subscriptions.
    pub fn is_independent_of_subscription(&self) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Text(_) | Part::Static(Static::HttpHost | Static::RestApiRoot) => true,
            Part::Static(_) => false,
            Part::Dynamic { scope, .. } => *scope == Scope::Notification,
        })
    }

    /// The template with all values of the notification, the base URL and the prefix in place, so that a rendering for
    /// a subscription has less to do. The context's subscription is not used.
    pub fn with_notification(&self, context: &Context<'_>) -> Template {
        let fixed = Context { subscription: None, ..context.clone() };
        let mut bound = Template { parts: Vec::with_capacity(self.parts.len()) };
        let mut plain = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => plain.push_str(text),
                Part::Static(token @ (Static::HttpHost | Static::RestApiRoot)) => token.render(&fixed, &mut plain),
                Part::Dynamic { scope: scope @ (Scope::Notification | Scope::Either), path, original } => {
                    match fixed.value(Scope::Notification, path) {
                        Some(text) => plain.push_str(&text),
                        None if *scope == Scope::Notification => plain.push_str(original),
                        None => {
                            bound.push_text(&mut plain);
                            let (path, original) = (path.clone(), original.clone());
                            bound.parts.push(Part::Dynamic { scope: Scope::Subscription, path, original });
                        }
                    }
                }
                part => {
                    bound.push_text(&mut plain);
                    bound.parts.push(part.clone());
                }
            }
        }
        bound.push_text(&mut plain);
        bound
    }

    /// The text for these values.
    pub fn render(&self, context: &Context<'_>) -> String {
        let mut output = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => output.push_str(text),
                Part::Static(token) => token.render(context, &mut output),
                Part::Dynamic { scope, path, original } => match context.value(*scope, path) {
                    Some(text) => output.push_str(&text),
                    None => output.push_str(original),
                },
            }
        }
        output
    }
}

impl Context<'_> {
    /// The text of the value at a path. `None` if there is none, or JavaScript takes it for false.
    fn value(&self, scope: Scope, path: &DataPath) -> Option<String> {
        let of_notification = || of_data(self.notification, path);
        let of_subscription = || of_data(self.subscription.filter(|_| !self.ignores_subscription_data), path);
        match scope {
            Scope::Notification => of_notification(),
            Scope::Subscription => of_subscription(),
            Scope::Either => of_notification().or_else(of_subscription),
        }
    }
}

/// The text of a value in the data of a record.
fn of_data(record: Option<&Document>, path: &DataPath) -> Option<String> {
    text_of(path.find(record?.get("data")?)?)
}

/// The inner text of the token at the beginning of a text: up to the next brace that is not escaped, at least one
/// character, on one line.
fn token(text: &str) -> Option<&str> {
    let inner = &text[1..];
    let mut is_escaped = false;
    for (at, c) in inner.char_indices().take(TOKEN_CHARS_MAX) {
        match c {
            '}' if at > 0 && !is_escaped => return Some(&inner[..at]),
            '\n' | '\r' | '\u{2028}' | '\u{2029}' => return None,
            _ => {}
        }
        is_escaped = c == '\\';
    }
    None
}

/// The part of a dynamic token.
fn dynamic(inner: &str) -> Part {
    let (scope, path) = match inner.split_once("::") {
        Some(("subscription", path)) => (Scope::Subscription, path.split("::").next().unwrap_or_default()),
        Some(("notification", path)) => (Scope::Notification, path.split("::").next().unwrap_or_default()),
        _ => (Scope::Either, inner),
    };
    Part::Dynamic { scope, path: DataPath::parse(path), original: format!("{{{inner}}}") }
}

#[cfg(test)]
mod tests;
