//! Formats requests: method, URL, header fields and body, from a channel's options and a message.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tocsin_model::{
    content::{JsonUse, PartsUsed, header_problem},
    problem::{Code, Problem},
};
use url::Url;

use super::{
    connect::Target,
    credentials::credentials,
    options::{Body, HttpOptions},
    recipients::Sharing,
    template::{Escape, JsonTemplate, Template},
};
use crate::{channel::Outgoing, pending::PendingDelivery, record};

/// Request format of a channel: its options, compiled.
#[derive(Debug)]
pub(super) struct Form {
    pub method: Method,
    /// The URL; without one, the device's address is used.
    url: Option<Template>,
    /// Fields that are the same in each request.
    headers: HeaderMap,
    filled: Vec<(HeaderName, Template)>,
    body: Filled,
    /// Sharing of a request among many recipients, if configured.
    pub sharing: Option<Sharing>,
}

#[derive(Debug)]
enum Filled {
    /// The template's JSON, or the payload of Standard Webhooks.
    Standard,
    Json(JsonTemplate),
    Form(Vec<(String, Template)>),
    Text(Template),
    None,
}

/// Header fields that the channel writes itself.
const RESERVED_HEADERS: [&str; 9] = [
    "host",
    "content-length",
    "connection",
    "transfer-encoding",
    "traceparent",
    "tracestate",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
];

impl Form {
    /// Compiles the options; returns every problem in them. `with` are the parameters of the recipe.
    pub fn read(options: &HttpOptions, with: &BTreeMap<String, String>) -> Result<Form, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut template = |path: String, text: &str| match Template::read(text, with) {
            Ok(template) => Some(template),
            Err(wrong) => {
                problems.push(Problem::syntax("template", path, wrong));
                None
            }
        };
        let url = options.url.as_deref().and_then(|url| template("url".into(), url));
        let (body, content_type) = match &options.body {
            None if options.method.has_body() => (Filled::Standard, "application/json"),
            None => (Filled::None, ""),
            Some(Body::Json(_)) => (Filled::None, "application/json"),
            Some(Body::Form(entries)) => {
                let filled = |(name, text): (&String, &String)| {
                    Some((encoded(name), template(format!("body.form.{name}"), text)?))
                };
                (Filled::Form(entries.iter().filter_map(filled).collect()), "application/x-www-form-urlencoded")
            }
            Some(Body::Text(text)) => match template("body.text".into(), text) {
                Some(template) => (Filled::Text(template), "text/plain; charset=utf-8"),
                None => (Filled::None, ""),
            },
        };
        let mut headers = HeaderMap::new();
        if !content_type.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        let agent = concat!("Tocsin/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        let mut filled = Vec::new();
        let mut wrong_headers = Vec::new();
        for (name, text) in &options.headers {
            let path = format!("headers.{name}");
            let Ok(name) = HeaderName::try_from(name.as_str()) else {
                wrong_headers.push(
                    Problem::new(Code::InvalidFormat, path, "this is not the name of a header field")
                        .param("format", "header_field"),
                );
                continue;
            };
            if RESERVED_HEADERS.contains(&name.as_str()) {
                let problem =
                    Problem::new(Code::ReservedName, path, "this header field is written by the channel itself");
                wrong_headers.push(problem.hint("leave it out"));
                continue;
            }
            let Some(template) = template(path.clone(), text) else { continue };
            match template.constant().map(HeaderValue::try_from) {
                Some(Ok(value)) => drop(headers.insert(name, value)),
                Some(Err(_)) => {
                    wrong_headers.push(Problem::new(
                        Code::InvalidCharacters,
                        path,
                        "the value holds characters that no header field may hold",
                    ));
                }
                None => {
                    headers.remove(&name);
                    filled.push((name, template));
                }
            }
        }
        let mut body = body;
        if let Some(Body::Json(value)) = &options.body {
            match JsonTemplate::read(value, with) {
                Ok(template) => body = Filled::Json(template),
                Err((at, wrong)) => problems.push(Problem::syntax("template", format!("body.json{at}"), wrong)),
            }
        }
        problems.extend(wrong_headers);
        if options.body.is_some() && !options.method.has_body() {
            problems.push(
                Problem::new(Code::NotApplicable, "body", "a GET has no body")
                    .hint("leave it out, or choose another `method`"),
            );
        }
        if let Some(url) = &url
            && let Some(problem) = url_problem(url)
        {
            problems.push(problem);
        }
        match credentials(options, with) {
            Ok(Some(value)) if headers.contains_key(header::AUTHORIZATION) => {
                drop(value);
                let problem =
                    Problem::new(Code::ConflictingMembers, "username", "`headers.authorization` says the same");
                problems.push(problem.hint("give either"));
            }
            Ok(Some(value)) => drop(headers.insert(header::AUTHORIZATION, value)),
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
        let sharing = Sharing::read(options, with).unwrap_or_else(|wrong| {
            problems.extend(wrong);
            None
        });
        let method = options.method.into();
        let form = Form { method, url, headers, filled, body, sharing };
        problems.extend(form.sharing_problems(options.recipients.is_some()));
        if problems.is_empty() { Ok(form) } else { Err(problems) }
    }

    /// Problems of placeholders for one recipient in a shared request, and the reverse.
    fn sharing_problems(&self, is_shared: bool) -> Vec<Problem> {
        let Filled::Json(body) = &self.body else { return Vec::new() };
        let (path, what, hint) = match (is_shared, body.has_recipients()) {
            (false, false) => return Vec::new(),
            (false, true) => ("body.json", "`{recipients}` is a list of how many?", "say so with `recipients.most`"),
            (true, false) => {
                ("body.json", "the request does not say who its recipients are", "put `{recipients}` into it")
            }
            (true, true) => {
                let headers =
                    self.filled.iter().map(|(name, template)| (format!("headers.{name}"), template.is_personal()));
                let url = self.url.iter().map(|url| ("url".to_owned(), url.is_personal()));
                let places = headers.chain(url).chain([("body.json".to_owned(), body.is_personal())]);
                let one = |(path, _)| {
                    Problem::new(Code::NotApplicable, path, "`{address}` is that of one of many recipients")
                };
                let hint = "put it into `recipients.each`";
                return places.filter(|(_, is_personal)| *is_personal).map(|place| one(place).hint(hint)).collect();
            }
        };
        vec![Problem::new(Code::MissingCounterpart, path, what).hint(hint)]
    }

    /// Parts of a content in a request.
    pub fn parts_used(&self) -> PartsUsed {
        let mut used = PartsUsed::NONE;
        match &self.body {
            Filled::Standard => used.json = JsonUse::Always,
            Filled::Json(template) => template.add_used_parts(&mut used),
            Filled::Form(entries) => entries.iter().for_each(|(_, template)| template.add_used_parts(&mut used)),
            Filled::Text(template) => template.add_used_parts(&mut used),
            Filled::None => {}
        }
        self.sharing.iter().for_each(|sharing| sharing.each().add_used_parts(&mut used));
        let filled = self.filled.iter().map(|(_, template)| template);
        self.url.iter().chain(filled).for_each(|template| template.add_used_parts(&mut used));
        used
    }

    /// The URL of a message. The error says why the inserted values make no valid URL.
    pub fn url<'a>(&'a self, outgoing: &'a Outgoing) -> Result<Cow<'a, str>, String> {
        let Some(url) = &self.url else { return Ok(Cow::from(&*outgoing.address)) };
        if let Some(url) = url.constant() {
            return Ok(url.into());
        }
        let filled = url.fill(outgoing, Escape::Url);
        let path = filled.split(['?', '#']).next().unwrap_or_default();
        if path.split('/').any(is_dots) {
            return Err(format!("`{path}` would lead elsewhere: what fills in a part of a path is `.` or `..`"));
        }
        Ok(filled.into())
    }

    /// The constant beginning of all URLs, including the host, if the channel has a URL. Placeholders come after the
    /// host only.
    pub fn destination(&self) -> Option<&str> {
        self.url.as_ref().map(Template::beginning)
    }

    /// The body of a message to these recipients, at least one.
    pub fn body(&self, recipients: &[PendingDelivery]) -> Bytes {
        let outgoing = &recipients[0].outgoing;
        match &self.body {
            Filled::Standard => record::body(&outgoing.message).into(),
            Filled::Json(template) => {
                let all = recipients.iter().map(|pending| &pending.outgoing);
                let list = self.sharing.as_ref().map(|sharing| sharing.list(all)).unwrap_or_default();
                template.fill(outgoing, &list).into()
            }
            Filled::Text(template) => template.fill(outgoing, Escape::Plain).into(),
            Filled::None => Bytes::new(),
            Filled::Form(entries) => {
                let mut out = String::new();
                for (name, template) in entries {
                    if !out.is_empty() {
                        out.push('&');
                    }
                    out.push_str(name);
                    out.push('=');
                    match template.constant() {
                        Some(text) => out.push_str(&encoded(text)),
                        None => write_form(template, outgoing, &mut out),
                    }
                }
                out.into()
            }
        }
    }

    /// Writes the header fields of a message. Fields of a template override those of the options.
    pub fn write_headers(&self, outgoing: &Outgoing, request: &mut Request) {
        let own = &outgoing.message.content.headers;
        let is_own = |name: &HeaderName| own.iter().any(|(own, _)| own.eq_ignore_ascii_case(name.as_str()));
        for (name, value) in self.headers.iter().filter(|(name, _)| !is_own(name)) {
            request.field(name.as_str(), value);
        }
        for (name, template) in self.filled.iter().filter(|(name, _)| !is_own(name)) {
            // Control characters have been removed, so anything else is a valid value.
            request.field(name.as_str(), template.fill(outgoing, Escape::Header));
        }
        // Templates cannot produce invalid names; the definition's checks ensure that.
        for (name, value) in own.iter().filter(|(name, _)| header_problem(name).is_none()) {
            request.field(name, value);
        }
    }
}

/// A request in wire form, while its head is being written.
pub(crate) struct Request {
    bytes: Vec<u8>,
    has_body: bool,
}

/// Initial capacity for a head; most are shorter.
const HEAD_BYTES: usize = 512;

impl Request {
    /// Begins a request with a body of about `body_bytes`.
    pub fn new(method: &Method, target: &Target, body_bytes: usize) -> Request {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + body_bytes);
        for part in [method.as_str(), " ", &target.path, " HTTP/1.1\r\nhost: ", &target.site.authority, "\r\n"] {
            bytes.extend_from_slice(part.as_bytes());
        }
        Request { bytes, has_body: *method != Method::GET }
    }

    /// Adds a header field. The caller guarantees the name; an invalid value drops the field.
    pub fn field(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        if value.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control()) {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                self.bytes.extend_from_slice(part);
            }
        }
    }

    /// Completes the request with its body.
    pub fn with_body(mut self, body: &[u8]) -> Vec<u8> {
        if self.has_body {
            self.field("content-length", body.len().to_string());
        }
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes.extend_from_slice(body);
        self.bytes
    }
}

/// Whether servers would resolve a path segment; escaping the dots does not prevent that.
fn is_dots(segment: &str) -> bool {
    segment.len() <= 6 && matches!(&*segment.to_ascii_lowercase().replace("%2e", "."), "." | "..")
}

/// Literals of a form are escaped as well, so that they can be written plainly.
fn write_form(template: &Template, outgoing: &Outgoing, out: &mut String) {
    out.push_str(&encoded(&template.fill(outgoing, Escape::Plain)));
}

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// The problem of a URL, apart from its placeholders.
fn url_problem(url: &Template) -> Option<Problem> {
    let beginning = url.constant().unwrap_or_else(|| url.beginning());
    let example = "such as `https://api.example.org/send/{address}`";
    match Url::parse(beginning) {
        Err(error) => Some(
            Problem::new(Code::InvalidFormat, "url", format!("this is not a URL: {error}"))
                .param("format", "url")
                .hint(example),
        ),
        Ok(parsed) if !matches!(parsed.scheme(), "http" | "https") => Some(
            Problem::new(Code::InvalidFormat, "url", "a URL starts with `https://` or `http://`")
                .param("format", "url")
                .hint(example),
        ),
        Ok(_) => {
            let host = beginning.find("//").map_or(0, |at| at + 2);
            let ends = url.constant().is_some() || beginning[host..].contains('/');
            let problem = Problem::new(
                Code::Insecure,
                "url",
                "the message cannot choose the host: a placeholder stands before the path",
            );
            (!ends).then(|| problem.hint(example))
        }
    }
}
