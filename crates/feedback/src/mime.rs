//! MIME structure of a mail within limits (RFC 5322, 2045, 2046): header fields and decoded texts.
//!
//! `mail-parser` decodes fields, transfer encodings and charsets. It recurses into embedded mails without a limit, so
//! the parts are split here, to a bounded depth, and an embedded mail yields its header fields only.

use mail_parser::{
    MessageParser, MimeHeaders,
    decoders::quoted_printable::quoted_printable_decode,
    decoders::{base64::base64_decode, charsets::map::charset_decoder, html::html_to_text},
};

use crate::limits::Limits;

/// The header fields of a mail, a part or a group of a report, in their order.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Splits the fields at the start of a text, until its first empty line. Returns them with the remaining text.
    ///
    /// Values are unfolded. A line that is neither a field nor a continuation ends the fields: real reports have
    /// texts without a separating empty line.
    pub fn split<'a>(text: &'a [u8], limits: &Limits) -> (Fields, &'a [u8]) {
        let (mut fields, mut rest) = (Fields::default(), text);
        while !rest.is_empty() {
            let (line, after) = split_line(rest);
            if line.trim_ascii().is_empty() {
                return (fields, after);
            }
            let is_continuation = line[0].is_ascii_whitespace();
            match (is_continuation, field(line)) {
                (true, _) => fields.unfold(line, limits),
                (false, Some((name, value))) => {
                    if fields.0.len() < limits.fields_max {
                        fields.0.push((name, value));
                    }
                }
                (false, None) => return (fields, rest),
            }
            rest = after;
        }
        (fields, rest)
    }

    fn unfold(&mut self, line: &[u8], limits: &Limits) {
        if let Some((_, value)) = self.0.last_mut().filter(|(_, value)| value.len() < limits.field_bytes_max) {
            value.push(' ');
            value.push_str(String::from_utf8_lossy(line).trim());
        }
    }

    /// The value of the first field of this name, which is in lower case.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The values of all fields of this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Divides the fields before each repetition of a field of this name.
    pub fn divided(self, name: &str) -> Vec<Fields> {
        let mut all = vec![Fields::default()];
        for (found, value) in self.0 {
            let last = all.last_mut().expect("never empty");
            match found == name && last.has(name) {
                true => all.push(Fields(vec![(found, value)])),
                false => last.0.push((found, value)),
            }
        }
        all.retain(|fields| !fields.is_empty());
        all
    }

    /// Whether a field of this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A leaf of the MIME structure.
#[derive(Debug)]
pub(crate) struct Part {
    /// Media type in lower case, without parameters.
    pub media_type: String,
    /// Decoded text. HTML is converted into plain text.
    pub text: String,
    /// The header fields of the embedded mail, if the part contains one.
    pub embedded: Fields,
}

/// A mail: its header fields and the leaves of its structure, in their order.
#[derive(Debug)]
pub(crate) struct Mail {
    /// The header fields.
    pub fields: Fields,
    /// The parameter `report-type` of the whole, in lower case.
    pub report_type: Option<String>,
    /// The leaves.
    pub parts: Vec<Part>,
    /// Whether a limit left out a part of it.
    pub is_truncated: bool,
}

impl Mail {
    /// Splits a mail whose line ends are LF.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Mail {
        // The line before the header of a mail in an mbox file.
        let bytes = match bytes.strip_prefix(b"From ") {
            Some(_) => split_line(bytes).1,
            None => bytes,
        };
        let mut walk = Walk { limits, parts: Vec::new(), entities: 0, is_truncated: false };
        let (fields, body) = Fields::split(bytes, limits);
        let report_type = Content::of(&fields).report_type;
        walk.visit(&fields, body, 0);
        Mail { fields, report_type, parts: walk.parts, is_truncated: walk.is_truncated }
    }
}

/// Values of the header field `Content-Type`.
struct Content {
    media_type: String,
    boundary: Option<String>,
    charset: Option<String>,
    report_type: Option<String>,
}

impl Content {
    fn of(fields: &Fields) -> Content {
        let value = fields.first("content-type").unwrap_or("text/plain");
        let field = format!("Content-Type: {value}\r\n\r\n");
        let parsed = MessageParser::default().parse_headers(&field);
        let parsed = parsed.as_ref().and_then(|message| message.content_type());
        let media_type = match parsed {
            Some(kind) => format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or("plain")).to_ascii_lowercase(),
            None => value.split([';', ' ']).next().unwrap_or("text/plain").to_ascii_lowercase(),
        };
        let attribute = |name: &str| {
            parsed.and_then(|kind| kind.attribute(name)).map(str::to_owned).or_else(|| parameter(value, name))
        };
        Content {
            boundary: attribute("boundary").filter(|boundary| !boundary.is_empty()),
            charset: attribute("charset"),
            report_type: attribute("report-type").map(|kind| kind.to_ascii_lowercase()),
            media_type,
        }
    }
}

/// A parameter of a field whose syntax the library rejects: up to the next semicolon, without quotes.
fn parameter(value: &str, name: &str) -> Option<String> {
    let at = value.to_ascii_lowercase().find(&format!("{name}="))? + name.len() + 1;
    let text = value.get(at..)?.split(';').next()?.trim().trim_matches('"');
    (!text.is_empty()).then(|| text.to_owned())
}

struct Walk<'a> {
    limits: &'a Limits,
    parts: Vec<Part>,
    entities: usize,
    is_truncated: bool,
}

impl Walk<'_> {
    fn visit(&mut self, fields: &Fields, body: &[u8], depth: usize) {
        if self.entities >= self.limits.parts_max {
            self.is_truncated = true;
            return;
        }
        self.entities += 1;
        let content = Content::of(fields);
        if content.media_type.starts_with("multipart/") {
            if depth >= self.limits.depth_max {
                self.is_truncated = true;
            } else {
                let declared = content.boundary.as_deref().unwrap_or_default();
                let is_split = !declared.is_empty() && self.split(body, declared, depth) > 0;
                if is_split || boundary_of(body).is_some_and(|found| self.split(body, &found, depth) > 0) {
                    return;
                }
            }
            // A multipart without parts is a text.
            return self.leaf(fields, "text/plain".to_owned(), None, body);
        }
        self.leaf(fields, content.media_type, content.charset.as_deref(), body);
    }

    /// Splits a body at its delimiters (RFC 2046, section 5.1.1). Returns the number of parts.
    fn split(&mut self, body: &[u8], boundary: &str, depth: usize) -> usize {
        let delimiter = [b"--", boundary.as_bytes()].concat();
        let (mut start, mut rest, mut found) = (None, body, 0);
        while !rest.is_empty() {
            let at = body.len() - rest.len();
            let (line, after) = split_line(rest);
            // Some servers indent it.
            if let Some(tail) = line.trim_ascii().strip_prefix(delimiter.as_slice()) {
                let is_end = tail == b"--";
                if is_end || tail.is_empty() {
                    if let Some(start) = start.take() {
                        found += self.entity(&body[start..at], depth);
                    }
                    start = (!is_end).then_some(body.len() - after.len());
                }
            }
            rest = after;
        }
        // A part without a closing delimiter.
        match start {
            Some(start) => found + self.entity(&body[start..], depth),
            None => found,
        }
    }

    fn entity(&mut self, bytes: &[u8], depth: usize) -> usize {
        let (fields, body) = Fields::split(bytes, self.limits);
        self.visit(&fields, body, depth + 1);
        1
    }

    fn leaf(&mut self, fields: &Fields, media_type: String, charset: Option<&str>, body: &[u8]) {
        let encoding = fields.first("content-transfer-encoding").unwrap_or_default().to_ascii_lowercase();
        let body = &body[..body.len().min(self.limits.text_bytes_max)];
        let decoded = match encoding.trim() {
            "base64" => base64_decode(body),
            "quoted-printable" => quoted_printable_decode(body),
            _ => None,
        };
        let bytes = decoded.as_deref().unwrap_or(body);
        let text = match charset.and_then(|charset| charset_decoder(charset.as_bytes())) {
            Some(decode) if !bytes.is_ascii() || bytes.contains(&0x1b) => decode(bytes),
            _ => String::from_utf8_lossy(bytes).into_owned(),
        };
        let is_embedded = matches!(
            media_type.as_str(),
            "message/rfc822" | "message/global" | "text/rfc822-headers" | "message/global-headers"
        );
        // An embedded mail can begin with empty lines.
        let embedded = match is_embedded {
            true => Fields::split(text.as_bytes().trim_ascii_start(), self.limits).0,
            false => Fields::default(),
        };
        let text = if media_type == "text/html" { html_to_text(&text) } else { text };
        let text = text.replace("\r\n", "\n");
        self.parts.push(Part { media_type, text, embedded });
    }
}

/// The boundary of a body whose header declares none or another one: the first line of this form before a field.
fn boundary_of(body: &[u8]) -> Option<String> {
    let mut rest = body;
    while !rest.is_empty() {
        let (line, after) = split_line(rest);
        let boundary = line.trim_ascii_end().strip_prefix(b"--").filter(|boundary| boundary.len() > 4);
        let is_field = after.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"content-"));
        if let Some(boundary) = boundary.filter(|_| is_field) {
            return Some(String::from_utf8_lossy(boundary).into_owned());
        }
        rest = after;
    }
    None
}

/// Divides a text after its first line; the line has no line end.
pub(crate) fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, b""),
    }
}

/// Name in lower case and value of a field.
fn field(line: &[u8]) -> Option<(String, String)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = line[..colon].trim_ascii_end();
    let is_name = !name.is_empty() && name.iter().all(|byte| (33..=126).contains(byte));
    is_name.then(|| {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        (name, String::from_utf8_lossy(&line[colon + 1..]).trim().to_owned())
    })
}

/// The value of an unstructured field with its encoded words decoded (RFC 2047).
pub(crate) fn decoded(value: &str) -> String {
    if !value.contains("=?") {
        return value.to_owned();
    }
    let field = format!("Subject: {value}\r\n\r\n");
    let message = MessageParser::default().parse_headers(&field);
    message.as_ref().and_then(|message| message.subject()).unwrap_or(value).to_owned()
}

/// The same mail with LF as the only line end. A mail without LF has CR as its line end.
pub(crate) fn with_lf(bytes: &[u8]) -> Vec<u8> {
    let is_cr_only = !bytes.contains(&b'\n');
    let mut out = Vec::with_capacity(bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\r' if is_cr_only => out.push(b'\n'),
            b'\r' if bytes.get(at + 1) == Some(&b'\n') => {}
            _ => out.push(*byte),
        }
    }
    out
}
