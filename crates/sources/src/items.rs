//! Parses texts into items, one by one, in bounded memory.
//!
//! A text is read twice: first to its end, to find problems before any item is accepted, then to take its items. The
//! second pass can start after any number of items.

mod csv; // CSV records with a header
mod json; // elements of an array in a JSON document
mod lines; // one JSON value per line
mod xml; // XML elements at a path
mod xsd; // paths and types from an XML Schema

use std::{
    io::{BufRead, Read},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::{
    charset::{self, Syntax, Utf8Reader},
    problem::{Code, Problem},
};

pub(crate) use xml::Element;
pub(crate) use xsd::Schema;

/// A parsed item, a candidate for an event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    /// A JSON value.
    Json(Vec<u8>),
    /// A record with the names of its columns.
    Cells { names: Arc<[String]>, cells: Vec<Cell> },
    /// An XML element with its descendants.
    Xml(Element),
    /// A JSON value whose texts are parsed as the types of their fields.
    Texts(serde_json::Value),
    /// An unreadable item; further items can follow.
    Unreadable { problem: Problem, text: Vec<u8> },
}

/// A cell of a record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    /// NULL, or a cell missing from the record.
    Null,
    /// A text.
    Text(String),
    /// Bytes that are not UTF-8: not a valid field value.
    Binary(Vec<u8>),
    /// A value that is too long, of this many bytes: not a valid field value.
    TooLong(usize),
}

impl Cell {
    /// The text, if there is one.
    ///
    /// # Errors
    /// The reason why it is not a valid field value.
    pub fn text(&self) -> Result<Option<&str>, String> {
        match self {
            Cell::Null => Ok(None),
            Cell::Text(text) => Ok(Some(text)),
            Cell::Binary(_) => {
                Err("is binary, not a text in UTF-8: have the query convert it, such as by `hex(...)`".to_owned())
            }
            Cell::TooLong(bytes) => Err(format!("has {bytes} bytes, more than a cell may have")),
        }
    }

    /// The number of its bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Cell::Null | Cell::TooLong(_) => 0,
            Cell::Text(text) => text.len(),
            Cell::Binary(bytes) => bytes.len(),
        }
    }
}

impl Item {
    /// The item as text, for display.
    pub fn shown(&self) -> Vec<u8> {
        match self {
            Item::Json(bytes) => bytes.clone(),
            Item::Cells { cells, .. } => {
                let shown = cells.iter().map(|cell| match cell {
                    Cell::Null => None,
                    Cell::Text(text) => Some(text.clone()),
                    Cell::Binary(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
                    Cell::TooLong(bytes) => Some(format!("({bytes} bytes)")),
                });
                serde_json::to_vec(&shown.collect::<Vec<_>>()).expect("texts are JSON")
            }
            Item::Xml(element) => format!("{element:?}").into_bytes(),
            Item::Texts(json) => json.to_string().into_bytes(),
            Item::Unreadable { text, .. } => text.clone(),
        }
    }
}

/// An item and its position: its line, or its number where lines mean little.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PositionedItem {
    pub line: Option<u32>,
    pub item: Item,
}

/// The items of a text in order. An error ends the sequence.
pub(crate) type Items = Box<dyn Iterator<Item = Result<PositionedItem, Problem>> + Send>;

/// A text that is being read.
pub(crate) type Text = Box<dyn BufRead + Send>;

/// The format of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A JSON object per line.
    #[default]
    Ndjson,
    /// A JSON document with one item, or an array of them.
    Json,
    /// Comma-separated values with a header.
    Csv,
    /// XML.
    Xml,
}

/// Options of parsing texts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    pub format: Format,
    /// The path of the items: names with dots for JSON, with slashes for XML; empty: the document itself.
    pub items: String,
    /// The delimiter between cells; `None`: detected from the first line.
    pub delimiter: Option<u8>,
    /// The character encoding; `None`: declared in the text, or UTF-8.
    pub encoding: Option<String>,
    /// The names of the columns for texts without a header.
    pub columns: Vec<String>,
    /// Longest item.
    pub item_bytes_max: usize,
    /// Strictness of the XML parser.
    pub xml: Xml,
    /// Columns that CSV must have. A human-readable error page has none of them.
    pub required: Vec<String>,
}

/// Strictness of the XML parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Xml {
    /// Document type declarations and undefined entities are rejected.
    #[default]
    Plain,
    /// For feeds: a document type declaration is skipped. HTML entities are replaced, unknown ones are kept as text.
    Feed,
}

impl Layout {
    /// Checks a text as a whole, without taking items. `charset` is that of its media type, if it names one; else a
    /// byte-order mark, the XML declaration, or UTF-8 apply.
    pub fn examine(&self, text: Text, charset: Option<&str>) -> Result<(), Problem> {
        match self.format {
            Format::Json => json::examine(self.decoded(text, charset), &self.items),
            Format::Ndjson | Format::Csv | Format::Xml => Ok(()),
        }
    }

    /// The items of a checked text, with the same `charset`.
    pub fn items(&self, text: Text, charset: Option<&str>) -> Items {
        let text = self.decoded(text, charset);
        match self.format {
            Format::Ndjson => Box::new(lines::Lines::new(text, self.item_bytes_max)),
            Format::Json => Box::new(json::Elements::new(text, &self.items, self.item_bytes_max)),
            Format::Csv => Box::new(csv::Records::new(text, self)),
            Format::Xml => Box::new(xml::Elements::new(text, self)),
        }
    }

    /// Decodes a text to UTF-8 without a byte-order mark.
    fn decoded(&self, text: Text, charset: Option<&str>) -> Text {
        let syntax = match self.format {
            Format::Xml => Syntax::Xml,
            Format::Json | Format::Ndjson => Syntax::Json,
            Format::Csv => Syntax::Text,
        };
        let charset = self.encoding.clone().or_else(|| charset.map(str::to_owned));
        Box::new(Utf8Reader::new(text, syntax, charset))
    }

    /// Problems of the options.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.format == Format::Xml && self.items.trim_matches('/').is_empty() {
            let problem = Problem::new(Code::Required, "items", "is missing: the path of the elements that are events");
            problems.push(problem.hint("give their path: `/orders/order`"));
        }
        if matches!(self.format, Format::Ndjson | Format::Csv) && !self.items.is_empty() {
            problems.push(Problem::new(
                Code::NotApplicable,
                "items",
                "is for `json` and `xml`: every line or record is an item",
            ));
        }
        if let Some(Err(error)) = self.encoding.as_deref().map(|name| charset::decode(b"", Syntax::Text, Some(name))) {
            problems.push(Problem::new(Code::UnknownValue, "encoding", error.to_string()));
        }
        if self.format != Format::Csv && !self.columns.is_empty() {
            problems.push(Problem::new(Code::NotApplicable, "columns", "is for `csv`"));
        }
        problems
    }
}

fn too_long(bytes_max: usize) -> Problem {
    Problem::new(Code::TooLong, "", format!("is longer than {bytes_max} bytes"))
        .param("limit", bytes_max)
        .param("unit", "bytes")
        .hint("`item_bytes_max` can be raised")
}

/// A line that was not read completely.
enum LineError {
    /// The line is too long; its beginning has been read.
    TooLong,
    /// The text cannot be read.
    Broken(Problem),
}

/// Reads a line of at most so many bytes into `line`, which is cleared first.
fn read_line(text: &mut (impl BufRead + ?Sized), line: &mut Vec<u8>, bytes_max: usize) -> Result<bool, LineError> {
    line.clear();
    let limit = bytes_max as u64 + 1;
    let read = text.take(limit).read_until(b'\n', line);
    read.map_err(|error| LineError::Broken(unreadable(&error)))?;
    match line.last() {
        None => Ok(false),
        Some(b'\n') => Ok(true),
        Some(_) if line.len() > bytes_max => Err(LineError::TooLong),
        Some(_) => Ok(true),
    }
}

fn unreadable(error: &std::io::Error) -> Problem {
    Problem::new(Code::Unreadable, "", format!("cannot be read: {error}"))
}

/// A line number for display.
fn line_number(number: u64) -> Option<u32> {
    u32::try_from(number).ok()
}

#[cfg(test)]
pub(crate) fn of_text(layout: &Layout, text: &[u8]) -> Vec<Result<PositionedItem, Problem>> {
    let open = || -> Text { Box::new(std::io::Cursor::new(text.to_vec())) };
    match layout.examine(open(), None) {
        Ok(()) => layout.items(open(), None).collect(),
        Err(problem) => vec![Err(problem)],
    }
}

#[cfg(test)]
pub(crate) fn layout(format: Format, items: &str) -> Layout {
    Layout {
        format,
        items: items.to_owned(),
        delimiter: None,
        encoding: None,
        columns: Vec::new(),
        item_bytes_max: 1 << 20,
        xml: Xml::default(),
        required: Vec::new(),
    }
}
