//! Formats a message as a line of the file.

use std::borrow::Cow;

use serde_json::Value;
use tocsin_model::content::{JsonUse, PartsUsed};

use super::options::RecordFormat;
use crate::{
    channel::Outgoing,
    record::{self, Ending},
};

/// Columns of a CSV file without the option `columns`.
pub(super) const COLUMNS: [&str; 8] = ["id", "timestamp", "application", "type", "address", "subject", "text", "data"];

/// Line format of a file.
pub(super) struct Lines {
    format: RecordFormat,
    columns: Vec<String>,
}

impl Lines {
    /// `columns` are those of CSV; empty means the default columns.
    pub fn new(format: RecordFormat, columns: &[String]) -> Self {
        let columns = match columns {
            [] => COLUMNS.map(str::to_owned).to_vec(),
            named => named.to_vec(),
        };
        Lines { format, columns }
    }

    /// Parts of a content that the lines contain.
    pub fn parts_used(&self) -> PartsUsed {
        match self.format {
            RecordFormat::Ndjson => record::RECORD_PARTS,
            RecordFormat::Text => PartsUsed { text: true, ..PartsUsed::NONE },
            RecordFormat::Csv => {
                let has = |name: &str| self.columns.iter().any(|column| column == name);
                let json = if has("data") { JsonUse::Always } else { JsonUse::Never };
                PartsUsed { subject: has("subject"), text: has("text"), html: has("html"), json, sms: false }
            }
        }
    }

    /// The header line of each file.
    pub fn head(&self) -> Vec<u8> {
        let mut head = Vec::new();
        if self.format == RecordFormat::Csv {
            for (number, column) in self.columns.iter().enumerate() {
                write_cell(number, column, &mut head);
            }
            head.extend_from_slice(b"\r\n");
        }
        head
    }

    /// Appends the record of a message with its line end; the record contains no other line end.
    pub fn write(&self, outgoing: &Outgoing, ending: &mut Ending, out: &mut Vec<u8>) {
        match self.format {
            RecordFormat::Ndjson => record::write_json(outgoing, ending, out),
            RecordFormat::Text => write_text(outgoing.message.content.text.as_deref().unwrap_or_default(), out),
            RecordFormat::Csv => {
                for (number, column) in self.columns.iter().enumerate() {
                    write_cell(number, &cell(column, outgoing), out);
                }
                out.push(b'\r');
            }
        }
        out.push(b'\n');
    }
}

/// Value of a CSV column: empty if there is no such field. No value begins a formula.
fn cell(column: &str, outgoing: &Outgoing) -> String {
    let (message, facts) = (&outgoing.message, &outgoing.message.facts);
    let text = |part: &Option<_>| part.as_ref().map(ToString::to_string).unwrap_or_default();
    let cell = match column {
        "id" => outgoing.id.to_string(),
        "message_id" => message.message_id.clone(),
        "timestamp" => message.formatted_at.to_string(),
        "application" => facts.application.to_string(),
        "type" => facts.class.to_string(),
        "event" => facts.event.map(|event| event.to_string()).unwrap_or_default(),
        "address" => outgoing.address.clone(),
        "subject" => text(&message.content.subject),
        "text" => text(&message.content.text),
        "html" => text(&message.content.html),
        "data" => {
            return match &message.content.json {
                Some(json) => json.to_string(),
                None => facts.fields.text().to_owned(),
            };
        }
        field => match facts.fields.get(field.strip_prefix("data.").unwrap_or(field)) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => return other.to_string(),
        },
    };
    match guarded(&cell) {
        Cow::Borrowed(_) => cell,
        Cow::Owned(guarded) => guarded,
    }
}

/// Prefixes `'` to text that a spreadsheet would run as a formula, and to text that begins with `'`, so that the
/// prefix is unambiguous. Full-width signs begin formulas under East Asian settings.
pub fn guarded(text: &str) -> Cow<'_, str> {
    match text.chars().next() {
        Some('=' | '+' | '-' | '@' | '＝' | '＋' | '－' | '＠' | '\t' | '\r' | '\'') => {
            Cow::Owned(format!("'{text}"))
        }
        _ => Cow::Borrowed(text),
    }
}

/// A cell as in RFC 4180, except that line breaks are written as in the text format: a record is a line.
fn write_cell(number: usize, text: &str, out: &mut Vec<u8>) {
    if number > 0 {
        out.push(b',');
    }
    let quoted = text.is_empty() && number == 0 || text.contains(['"', ',']) || text.trim() != text;
    if !quoted {
        return write_text(text, out);
    }
    out.push(b'"');
    for (number, part) in text.split('"').enumerate() {
        if number > 0 {
            out.extend_from_slice(b"\"\"");
        }
        write_text(part, out);
    }
    out.push(b'"');
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.find(['\n', '\r', '\\']) {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        out.extend_from_slice(match rest.as_bytes()[at] {
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            _ => b"\\\\",
        });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest.as_bytes());
}
