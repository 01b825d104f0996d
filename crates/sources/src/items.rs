//! Texts become items, one after the other, in bounded memory.
//!
//! A text is read twice: once to its end, to find what is wrong with it before anything of it is accepted, and once to
//! take its items. The second reading may begin behind any number of items.

mod csv; // records with a head
mod json; // the elements of an array somewhere in a document
mod lines; // one JSON value in a line
mod xml; // elements by their path
mod xsd; // what an XML Schema says of them

use std::{
    io::{BufRead, Read},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::Problem;

pub(crate) use xml::Element;
pub(crate) use xsd::Schema;

/// Something that may be an event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    /// A JSON value.
    Json(Vec<u8>),
    /// A record with the names of its columns; `None` is NULL.
    Cells { names: Arc<[String]>, cells: Vec<Option<String>> },
    /// An element with all below it.
    Xml(Element),
    /// A JSON value whose texts are read as the types of their fields.
    Texts(serde_json::Value),
}

impl Item {
    /// The item as text, for whoever looks at it.
    pub fn shown(&self) -> Vec<u8> {
        match self {
            Item::Json(bytes) => bytes.clone(),
            Item::Cells { cells, .. } => serde_json::to_vec(cells).expect("texts are JSON"),
            Item::Xml(element) => format!("{element:?}").into_bytes(),
            Item::Texts(json) => json.to_string().into_bytes(),
        }
    }
}

/// An item and where it stands: its line, or its number where lines mean little.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placed {
    pub line: Option<u32>,
    pub item: Item,
}

/// The items of a text in order. After an error there are no more.
pub(crate) type Items = Box<dyn Iterator<Item = Result<Placed, Problem>> + Send>;

/// A text that is being read.
pub(crate) type Text = Box<dyn BufRead + Send>;

/// How a text holds its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A JSON object in each line.
    #[default]
    Ndjson,
    /// A JSON document with one item, or an array of them.
    Json,
    /// Comma-separated values with a head.
    Csv,
    /// XML.
    Xml,
}

/// What there is to know of texts before they are read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    pub format: Format,
    /// Where the items lie: names with dots for JSON, with slashes for XML; empty: the document itself.
    pub items: String,
    /// What stands between cells.
    pub delimiter: u8,
    /// The names of columns where texts have no head.
    pub columns: Vec<String>,
    /// Longest item.
    pub item_bytes_max: usize,
}

impl Layout {
    /// Looks at what can only be said of a text as a whole, without taking items.
    pub fn examine(&self, text: Text) -> Result<(), Problem> {
        match self.format {
            Format::Json => json::examine(text),
            Format::Ndjson | Format::Csv | Format::Xml => Ok(()),
        }
    }

    /// The items of a text that was examined.
    pub fn items(&self, text: Text) -> Items {
        match self.format {
            Format::Ndjson => Box::new(lines::Lines::new(text, self.item_bytes_max)),
            Format::Json => Box::new(json::Elements::new(text, &self.items, self.item_bytes_max)),
            Format::Csv => Box::new(csv::Records::new(text, self)),
            Format::Xml => Box::new(xml::Elements::new(text, &self.items, self.item_bytes_max)),
        }
    }

    /// What is wrong with it.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.format == Format::Xml && self.items.trim_matches('/').is_empty() {
            let problem = Problem::at("items", "is missing: which elements are the events?");
            problems.push(problem.hint("give their path: `/orders/order`"));
        }
        if matches!(self.format, Format::Ndjson | Format::Csv) && !self.items.is_empty() {
            problems.push(Problem::at("items", "is for `json` and `xml`: every line or record is an item"));
        }
        if self.format != Format::Csv && !self.columns.is_empty() {
            problems.push(Problem::at("columns", "is for `csv`"));
        }
        problems
    }
}

fn too_long(bytes_max: usize) -> Problem {
    Problem::at("", format!("is longer than {bytes_max} bytes")).hint("`item_bytes_max` can be raised")
}

/// Reads up to the end of a line into `line`, which is emptied first, and at most so many bytes.
///
/// # Errors
/// The text cannot be read, or the line is longer.
fn read_line(text: &mut (impl BufRead + ?Sized), line: &mut Vec<u8>, bytes_max: usize) -> Result<bool, Problem> {
    line.clear();
    let limit = bytes_max as u64 + 1;
    text.take(limit).read_until(b'\n', line).map_err(|error| unreadable(&error))?;
    match line.last() {
        None => Ok(false),
        Some(b'\n') => Ok(true),
        Some(_) if line.len() > bytes_max => Err(too_long(bytes_max)),
        Some(_) => Ok(true),
    }
}

fn unreadable(error: &std::io::Error) -> Problem {
    Problem::at("", format!("cannot be read: {error}"))
}

/// A line number for people.
fn line_number(number: u64) -> Option<u32> {
    u32::try_from(number).ok()
}

#[cfg(test)]
pub(crate) fn of_text(layout: &Layout, text: &[u8]) -> Vec<Result<Placed, Problem>> {
    let open = || -> Text { Box::new(std::io::Cursor::new(text.to_vec())) };
    match layout.examine(open()) {
        Ok(()) => layout.items(open()).collect(),
        Err(problem) => vec![Err(problem)],
    }
}

#[cfg(test)]
pub(crate) fn layout(format: Format, items: &str) -> Layout {
    Layout { format, items: items.to_owned(), delimiter: b',', columns: Vec::new(), item_bytes_max: 1 << 20 }
}
