//! A parsed item, whatever its format.

use std::sync::Arc;

use tocsin_model::problem::Problem;

use super::element::Element;

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
