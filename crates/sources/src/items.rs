//! Parses texts into items, one by one, in bounded memory.
//!
//! A text is read twice: first to its end, to find problems before any item is accepted, then to take its items. The
//! second pass can start after any number of items.

mod element; // an XML element
mod item; // an item, whatever its format
mod layout; // options of parsing texts
mod text; // a text that is read line by line, within bounds
mod csv; // CSV records with a header
mod json; // elements of an array in a JSON document
mod lines; // one JSON value per line
mod xml; // XML elements at a path

use tocsin_model::{
    charset::{self, Syntax, Utf8Reader},
    problem::{Code, Problem},
};

pub(crate) use element::Element;
pub(crate) use item::{Cell, Item, PositionedItem};
pub use layout::Format;
pub(crate) use layout::{Layout, Xml};
pub(crate) use text::{Items, Text};

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
