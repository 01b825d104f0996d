//! MIME structure of a mail: texts and attachments.
//!
//! The library that decodes headers and texts recurses into nested mails without a limit, until the stack overflows. So
//! mails are split here, to a bounded depth, and the library sees only single parts.

use encoding_rs::WINDOWS_1252;
use mail_parser::{ContentType, Message, MessageParser, MimeHeaders, PartType, decoders::html::html_to_text};
use serde_json::{Map, Value, json};

use super::heads::{self, body_of};

/// Most parts that are processed.
pub(super) const PARTS_MAX: usize = 200;
/// Deepest nesting of parts.
const DEPTH_MAX: usize = 16;

/// The parts of a mail.
#[derive(Default)]
pub(super) struct Parts {
    texts: Vec<String>,
    html: Option<String>,
    attachments: Vec<Value>,
    count: usize,
}

impl Parts {
    /// Splits a mail.
    pub fn of(mail: &[u8]) -> Parts {
        let mut parts = Parts::default();
        parts.take(mail, 0);
        parts
    }

    /// Adds them to an item.
    pub fn add_to(self, item: &mut Map<String, Value>) {
        let text = match (self.texts.is_empty(), &self.html) {
            (true, Some(html)) => Some(html_to_text(html)),
            (true, None) => None,
            (false, _) => Some(self.texts.join("\n")),
        };
        if let Some(text) = text {
            item.insert("text".to_owned(), text.into());
        }
        if let Some(html) = self.html {
            item.insert("html".to_owned(), html.into());
        }
        item.insert("attachments".to_owned(), self.attachments.into());
    }

    fn take(&mut self, part: &[u8], depth: usize) {
        let right = heads::repair_header(part);
        let part = &*right;
        let Some(head) = MessageParser::default().parse_headers(part).filter(|head| !head.parts.is_empty()) else {
            // A part without headers is text.
            return self.texts.extend(text(part.trim_ascii_start()));
        };
        let body = body_of(part);
        let kind = head.content_type().map(kind_of).unwrap_or_else(|| "text/plain".to_owned());
        let boundary = head.content_type().and_then(|kind| kind.attribute("boundary"));
        if kind.starts_with("multipart/") {
            match boundary {
                Some(boundary) if depth < DEPTH_MAX => self.split_multipart(body, boundary, depth),
                _ => self.attach(&kind, None, body.len()),
            }
            return;
        }
        let name = head.attachment_name();
        let is_attached = head.content_disposition().is_some_and(ContentType::is_attachment);
        if kind.starts_with("message/") {
            return self.attach(&kind, name, body.len());
        }
        // A single part, by its header, so that the recursion ends here.
        let whole = MessageParser::default().parse(part);
        match whole.as_ref().and_then(|whole| whole.parts.first()).map(|part| &part.body) {
            Some(PartType::Text(text)) if kind == "text/plain" && !is_attached => {
                let parameter = |name: &str| head.content_type().and_then(|kind| kind.attribute(name));
                let text = match is_unlabelled(&head) {
                    true => text_of(body),
                    false => text.to_string(),
                };
                let is =
                    |name: &str, value: &str| parameter(name).is_some_and(|given| given.eq_ignore_ascii_case(value));
                self.texts.push(match is("format", "flowed") {
                    true => unflowed(&text, is("delsp", "yes")),
                    false => text,
                });
            }
            Some(PartType::Html(html)) if !is_attached => match self.html {
                None => self.html = Some(html.to_string()),
                Some(_) => self.attach(&kind, name, html.len()),
            },
            Some(PartType::Text(text) | PartType::Html(text)) => self.attach(&kind, name, text.len()),
            Some(PartType::Binary(bytes) | PartType::InlineBinary(bytes)) => self.attach(&kind, name, bytes.len()),
            _ => self.attach(&kind, name, body.len()),
        }
    }

    fn attach(&mut self, kind: &str, name: Option<&str>, size: usize) {
        self.attachments.push(json!({ "name": name, "type": kind, "size": size }));
    }

    /// Splits a body at its delimiters (RFC 2046, section 5.1.1).
    fn split_multipart(&mut self, body: &[u8], boundary: &str, depth: usize) {
        let delimiter = [b"--", boundary.as_bytes()].concat();
        let (mut start, mut at) = (None, 0);
        while at < body.len() && self.count < PARTS_MAX {
            let end = body[at..].iter().position(|byte| *byte == b'\n').map_or(body.len(), |length| at + length + 1);
            let rest = body[at..end].trim_ascii_end().strip_prefix(delimiter.as_slice());
            if let Some(rest) = rest.filter(|rest| rest.is_empty() || *rest == b"--") {
                if let Some(start) = start {
                    self.take_piece(&body[start..at], depth);
                }
                start = rest.is_empty().then_some(end);
            }
            at = end;
        }
        // A part without a closing delimiter.
        if let Some(start) = start.filter(|start| at >= body.len() && *start < body.len()) {
            self.take_piece(&body[start..], depth);
        }
    }

    fn take_piece(&mut self, piece: &[u8], depth: usize) {
        if self.count < PARTS_MAX {
            self.count += 1;
            // The line break before a delimiter belongs to the delimiter.
            let whole = piece.strip_suffix(b"\r\n").or(piece.strip_suffix(b"\n")).unwrap_or(piece);
            self.take(whole, depth + 1);
        }
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    (!bytes.is_empty()).then(|| text_of(bytes))
}

/// A text of unknown encoding: UTF-8, else windows-1252, which maps nearly every byte.
pub(super) fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned(),
    }
}

/// Whether a text has raw 8-bit bytes and no declared encoding.
fn is_unlabelled(head: &Message) -> bool {
    let charset = head.content_type().and_then(|kind| kind.attribute("charset"));
    let says_nothing = charset.is_none_or(|charset| {
        ["us-ascii", "ascii", "unknown-8bit", "x-unknown"]
            .iter()
            .any(|known| charset.trim().eq_ignore_ascii_case(known))
    });
    let coding = head.content_transfer_encoding().map(str::trim);
    let is_plain =
        coding.is_none_or(|coding| ["7bit", "8bit", "binary"].iter().any(|known| coding.eq_ignore_ascii_case(known)));
    says_nothing && is_plain
}

/// A flowed text (RFC 3676) with its lines joined. Quote marks and signature separators are kept.
fn unflowed(text: &str, deletes_space: bool) -> String {
    let mut out = String::with_capacity(text.len());
    // The quote depth of the previous line, if it flows into the next one.
    let mut open: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches(['\r', '\n']);
        let ending = &line[bare.len()..];
        let quoted = bare.trim_start_matches('>');
        let depth = bare.len() - quoted.len();
        // Space-stuffing: a leading space protects the line's first characters.
        let inner = quoted.strip_prefix(' ').unwrap_or(quoted);
        if open.is_some_and(|open| open != depth) || inner == "-- " && open.is_some() {
            // A paragraph that is not continued.
            out.push_str("\r\n");
            open = None;
        }
        if open.is_none() && depth > 0 {
            out.push_str(&bare[..depth]);
            out.push(' ');
        }
        let flows = inner.ends_with(' ') && inner != "-- " && !ending.is_empty();
        match flows {
            true => {
                out.push_str(if deletes_space { &inner[..inner.len() - 1] } else { inner });
                open = Some(depth);
            }
            false => {
                out.push_str(inner);
                out.push_str(ending);
                open = None;
            }
        }
    }
    out
}

fn kind_of(kind: &ContentType) -> String {
    format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or("x-unknown")).to_ascii_lowercase()
}
