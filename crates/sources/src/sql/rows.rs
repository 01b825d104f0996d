//! A query, and its rows within the bounds of a batch.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serializer as _;
use serde_json::value::RawValue;
use tocsin_model::problem::{Code, Problem};

use super::value::SqlValue;
use crate::{
    batch_builder::BatchBuilder,
    items::{Cell, Item},
    mapping::Mapping,
    source::{BATCH_BYTES_MAX, BATCH_EVENTS_MAX, Message, SourceError},
};

/// Longest cell value; a longer one is not a valid field value.
pub(super) const CELL_BYTES_MAX: usize = 1 << 20;
/// Rows with one mark are read up to this number, so that a batch never splits them.
pub(crate) const TIES_MAX: usize = 10 * BATCH_EVENTS_MAX;
/// Most bytes of such rows.
const TIES_BYTES_MAX: usize = 64 << 20;

/// A query with its parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueryRequest<'a> {
    /// The statement.
    pub query: &'a str,
    /// The column of the marks or keys.
    pub mark_column: Option<&'a str>,
    /// The parameter.
    pub mark: &'a SqlValue,
    /// Most rows of the batch.
    pub rows_max: usize,
}

/// The rows of a query.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Rows {
    /// The names of the columns.
    pub names: Arc<[String]>,
    /// The cells of each row.
    pub rows: Vec<Vec<Cell>>,
    /// The value of the mark column per row, with its type; empty if the query has no mark column.
    pub marks: Vec<SqlValue>,
    /// Cells that are written as raw JSON: numbers, booleans, documents.
    bare: Vec<Vec<bool>>,
    /// Whether there may be more: there are as many rows as one batch takes, plus one if they have marks.
    pub more: bool,
}

/// Counts the rows and bytes of a batch.
#[derive(Debug, Clone)]
pub(super) struct BatchCounter {
    rows: usize,
    bytes: usize,
    rows_max: usize,
    /// Whether one row beyond the batch is read, whose mark shows whether the last group continues.
    has_marks: bool,
    is_full: bool,
}

impl BatchCounter {
    pub fn new(request: &QueryRequest<'_>) -> BatchCounter {
        BatchCounter {
            rows: 0,
            bytes: 0,
            rows_max: request.rows_max,
            has_marks: request.mark_column.is_some(),
            is_full: false,
        }
    }

    /// Counts a row. Returns whether it is the last one.
    pub fn ends_with(&mut self, bytes: usize) -> bool {
        (self.rows, self.bytes) = (self.rows + 1, self.bytes + bytes);
        let bytes_max = if self.rows_max > BATCH_EVENTS_MAX { TIES_BYTES_MAX } else { BATCH_BYTES_MAX };
        let was_full = std::mem::replace(&mut self.is_full, self.rows >= self.rows_max || self.bytes >= bytes_max);
        was_full || self.is_full && !self.has_marks
    }
}

/// A row: its cells, which of them are raw JSON, and its mark.
pub(super) struct RowRead {
    pub cells: Vec<(Cell, bool)>,
    pub mark: Option<SqlValue>,
}

impl Rows {
    pub(super) fn new(names: Arc<[String]>, read: Vec<RowRead>, more: bool) -> Rows {
        let mut rows = Rows { names, more, ..Rows::default() };
        for RowRead { cells, mark } in read {
            let (cells, bare) = cells.into_iter().unzip();
            rows.rows.push(cells);
            rows.bare.push(bare);
            rows.marks.extend(mark);
        }
        rows
    }

    /// A row as a message: a JSON object of its columns. Bytes that are not UTF-8 are in Base64.
    ///
    /// # Errors
    /// A cell is too long.
    pub fn message(&self, at: usize) -> Result<Message, Problem> {
        let cells = self.names.iter().zip(&self.rows[at]).zip(&self.bare[at]);
        let member = |((name, cell), is_bare): ((&String, &Cell), &bool)| {
            let value: Box<RawValue> = match cell {
                Cell::Null => RawValue::NULL.to_owned(),
                // Documents and numbers are written as in the database, digit by digit.
                Cell::Text(text) if *is_bare => match RawValue::from_string(text.clone()) {
                    Ok(raw) => raw,
                    Err(_) => raw_text(text),
                },
                Cell::Text(text) => raw_text(text),
                Cell::Binary(bytes) => raw_text(&STANDARD.encode(bytes)),
                Cell::TooLong(bytes) => return Err(too_long(name, *bytes)),
            };
            Ok((name.clone(), value))
        };
        let members: Vec<(String, Box<RawValue>)> = cells.map(member).collect::<Result<_, _>>()?;
        let mut body = Vec::new();
        let mut serializer = serde_json::Serializer::new(&mut body);
        serializer.collect_map(members.iter().map(|(name, value)| (name, value))).expect("texts are JSON");
        Ok(Message { content_type: "application/json".to_owned(), headers: Vec::new(), body: body.into() })
    }

    /// A row as an item.
    pub fn item(&self, at: usize) -> Item {
        Item::Cells { names: self.names.clone(), cells: self.rows[at].clone() }
    }

    /// Adds a row to a batch, as an event or as a message.
    pub fn take_into(&self, builder: &mut BatchBuilder, mapping: &Mapping, at: usize) {
        match builder.gives_messages().then(|| self.message(at)) {
            Some(Err(problem)) => builder.reject(&[problem], self.item(at).shown()),
            Some(Ok(message)) => builder.batch.messages.push(message),
            None => builder.take(mapping, || self.item(at), Message::default, None),
        }
    }

    /// The number of rows to take so that rows with one mark stay together. The remaining rows are left for the next
    /// query. `None`: all rows have one mark, and there may be more.
    pub fn whole_marks(&self) -> Option<usize> {
        let last = self.marks.last();
        if !self.more || last.is_none() {
            return Some(self.rows.len());
        }
        let whole = self.marks.iter().rposition(|mark| Some(mark) != last)? + 1;
        // Rows without a mark do not advance the position.
        self.marks[..whole].iter().any(|mark| *mark != SqlValue::Null).then_some(whole)
    }
}

fn raw_text(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).expect("a text is JSON")
}

fn too_long(name: &str, bytes: usize) -> Problem {
    Problem::new(Code::TooLong, name, format!("has {bytes} bytes, and a cell has at most {CELL_BYTES_MAX}"))
        .param("given", bytes)
        .param("limit", CELL_BYTES_MAX)
        .param("unit", "bytes")
}

/// The index of a column.
pub(super) fn position_of(names: &[String], name: &str) -> Result<usize, SourceError> {
    let mut found = names.iter().enumerate().filter(|(_, known)| *known == name).map(|(at, _)| at);
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (Some(_), Some(_)) => {
            Err(SourceError::of(format!("the query returns the column `{name}` twice; name each with `AS`")))
        }
        (None, _) => Err(SourceError::of(format!("the query returns no column `{name}`, but {}", names.join(", ")))),
    }
}

/// The cell of a text, within its bound.
pub(super) fn text_cell(text: String) -> Cell {
    if text.len() > CELL_BYTES_MAX { Cell::TooLong(text.len()) } else { Cell::Text(text) }
}

/// The cell of some bytes: text if they are UTF-8.
pub(super) fn bytes_cell(bytes: Vec<u8>) -> Cell {
    match String::from_utf8(bytes) {
        Ok(text) => text_cell(text),
        Err(error) if error.as_bytes().len() > CELL_BYTES_MAX => Cell::TooLong(error.as_bytes().len()),
        Err(error) => Cell::Binary(error.into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_an_object_with_numbers_as_numbers() {
        let text = |text: &str| Cell::Text(text.to_owned());
        let cells = vec![(text("12345678901234567890.10"), true), (text("7"), false), (Cell::Null, false)];
        let names = Arc::from(["order", "place", "note"].map(str::to_owned));
        let rows = Rows::new(names, vec![RowRead { cells, mark: None }], false);
        let expected = r#"{"order":12345678901234567890.10,"place":"7","note":null}"#;
        assert_eq!(rows.message(0).expect("short cells").body, expected);
    }
}
