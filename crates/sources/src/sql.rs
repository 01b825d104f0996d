//! Databases that sources ask: SQLite, PostgreSQL, MySQL and MariaDB. Rows come as names and texts, which the mapping reads
//! as the types of the event class. Marks and keys keep the type of the database ([`SqlValue`]).
//!
//! A statement is one statement; its mark or key is its parameter. Queries run in a transaction that cannot write,
//! with a limit of time in the database itself.

mod mysql;
mod postgres;
mod sqlite;
mod value; // marks and keys, with the type that the database gave them

#[cfg(test)]
pub(crate) mod servers;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serializer as _;
use serde_json::value::RawValue;
use tocsin_model::problem::Problem;
use tokio::sync::Notify;
use url::Url;
pub(crate) use value::SqlValue;

use crate::{
    items::{Cell, Item},
    mapping::Mapping,
    source::{Context, Message, PORTION_BYTES_MAX, PORTION_EVENTS_MAX, Trouble},
    tray::Tray,
};

/// Where in a statement its parameter stands.
pub(crate) const PARAMETER: &str = ":mark";
/// Longest value of a cell that is taken; a longer one is no value of a field.
const CELL_BYTES_MAX: usize = 1 << 20;
/// Rows of one mark are read up to this number, so that a portion never ends between two of them.
pub(crate) const TIES_MAX: usize = 10 * PORTION_EVENTS_MAX;
/// Bytes of such rows.
const TIES_BYTES_MAX: usize = 64 << 20;

/// Rows of a query.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Rows {
    /// The names of the columns.
    pub names: Arc<[String]>,
    /// The cells of each row.
    pub rows: Vec<Vec<Cell>>,
    /// The value of the mark column in each row, with its type; empty if the query has no mark column.
    pub marks: Vec<SqlValue>,
    /// Cells that stand in JSON as they are: numbers, truth values, documents.
    bare: Vec<Vec<bool>>,
    /// Whether there may be more: these are as many as one portion takes, and one beyond if they have marks.
    pub more: bool,
}

/// How much a portion has taken.
#[derive(Debug, Clone)]
struct Taking {
    rows: usize,
    bytes: usize,
    rows_max: usize,
    /// Whether one row beyond the portion is read, whose mark shows whether the last group goes on.
    has_marks: bool,
    is_full: bool,
}

impl Taking {
    fn new(ask: &Ask<'_>) -> Taking {
        Taking { rows: 0, bytes: 0, rows_max: ask.rows_max, has_marks: ask.mark_column.is_some(), is_full: false }
    }

    /// Counts a row. Gives whether it is the last one.
    fn ends_with(&mut self, bytes: usize) -> bool {
        (self.rows, self.bytes) = (self.rows + 1, self.bytes + bytes);
        let bytes_max = if self.rows_max > PORTION_EVENTS_MAX { TIES_BYTES_MAX } else { PORTION_BYTES_MAX };
        let was_full = std::mem::replace(&mut self.is_full, self.rows >= self.rows_max || self.bytes >= bytes_max);
        was_full || self.is_full && !self.has_marks
    }
}

/// A row that was read: its cells, which of them stand in JSON as they are, and its mark.
struct RowRead {
    cells: Vec<(Cell, bool)>,
    mark: Option<SqlValue>,
}

impl Rows {
    fn new(names: Arc<[String]>, read: Vec<RowRead>, more: bool) -> Rows {
        let mut rows = Rows { names, more, ..Rows::default() };
        for RowRead { cells, mark } in read {
            let (cells, bare) = cells.into_iter().unzip();
            rows.rows.push(cells);
            rows.bare.push(bare);
            rows.marks.extend(mark);
        }
        rows
    }

    /// A row as a message: a JSON object with its columns. Bytes that are no text in UTF-8 are in Base64.
    ///
    /// # Errors
    /// A cell is too long.
    pub fn message(&self, at: usize) -> Result<Message, Problem> {
        let cells = self.names.iter().zip(&self.rows[at]).zip(&self.bare[at]);
        let member = |((name, cell), is_bare): ((&String, &Cell), &bool)| {
            let value: Box<RawValue> = match cell {
                Cell::Null => RawValue::NULL.to_owned(),
                // A document or a number of the database stands as it is, digit by digit.
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

    /// Takes a row, as an event or as a message.
    pub fn take_into(&self, tray: &mut Tray, mapping: &Mapping, at: usize) {
        match tray.gives_messages().then(|| self.message(at)) {
            Some(Err(problem)) => tray.refuse(&[problem], self.item(at).shown()),
            Some(Ok(message)) => tray.portion.messages.push(message),
            None => tray.take(mapping, || self.item(at), Message::default, None),
        }
    }

    /// The number of rows to take so that no two of one mark are parted. The rows behind them stay for the next query. `None`: all of them have one mark, and there may be more.
    pub fn whole_marks(&self) -> Option<usize> {
        let last = self.marks.last();
        if !self.more || last.is_none() {
            return Some(self.rows.len());
        }
        let whole = self.marks.iter().rposition(|mark| Some(mark) != last)? + 1;
        // Rows without a mark alone are no progress.
        self.marks[..whole].iter().any(|mark| *mark != SqlValue::Null).then_some(whole)
    }
}

fn raw_text(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).expect("a text is JSON")
}

fn too_long(name: &str, bytes: usize) -> Problem {
    Problem::at(name, format!("has {bytes} bytes, and a cell has at most {CELL_BYTES_MAX}"))
}

/// The position of a column among these names.
fn position_of(names: &[String], name: &str) -> Result<usize, Trouble> {
    let mut found = names.iter().enumerate().filter(|(_, known)| *known == name).map(|(at, _)| at);
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (Some(_), Some(_)) => {
            Err(Trouble::of(format!("the query gives the column `{name}` twice; name each with `AS`")))
        }
        (None, _) => Err(Trouble::of(format!("the query gives no column `{name}`, but {}", names.join(", ")))),
    }
}

/// A query with its mark.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// The statement.
    pub query: &'a str,
    /// The column whose values are marks or keys.
    pub mark_column: Option<&'a str>,
    /// The parameter.
    pub mark: &'a SqlValue,
    /// Most rows of the portion.
    pub rows_max: usize,
}

/// A connection to a database.
#[async_trait]
pub(crate) trait Database: Send {
    /// The first rows of a query, as many as one portion takes.
    async fn query(&mut self, ask: Ask<'_>) -> Result<Rows, Trouble>;

    /// Runs a statement that writes, once for each of these values, in one transaction.
    async fn run(&mut self, statement: &str, marks: &[SqlValue]) -> Result<(), Trouble>;

    /// Keeps others away from what this source takes, as long as the connection lives.
    async fn lock(&mut self, name: &str) -> Result<(), Trouble>;

    /// Rings the bell when somebody notifies the channel.
    async fn listen(&mut self, channel: &str, bell: Arc<Notify>) -> Result<(), Trouble>;

    /// A name as it stands in a statement.
    fn quoted(&self, name: &str) -> String;
}

/// Which database an address leads to.
pub(crate) fn problems(address: &str) -> Vec<Problem> {
    if address.is_empty() {
        return vec![Problem::at("database", "is missing: which database is asked?")];
    }
    let hint = "such as `postgres://user:${PASSWORD}@host/name`, `mysql://user:${PASSWORD}@host/name` or `sqlite:/path/file.db`";
    match Url::parse(address) {
        Ok(url) if matches!(url.scheme(), "postgres" | "postgresql" | "mysql" | "mariadb") && url.has_host() => {
            Vec::new()
        }
        Ok(url) if url.scheme() == "sqlite" && !url.path().is_empty() => Vec::new(),
        _ => vec![Problem::at("database", "is not the address of a database").hint(hint)],
    }
}

/// What is wrong with a query that should have a parameter.
pub(crate) fn statement_problem(option: &str, statement: &str) -> Option<Problem> {
    let problem = Problem::at(option, format!("has no `{PARAMETER}`, so it would give the same rows for ever"));
    (!statement.contains(PARAMETER))
        .then(|| problem.hint(format!("such as `SELECT ... WHERE id > {PARAMETER} ORDER BY id`")))
}

/// Connects.
///
/// # Errors
/// The far side does not answer or refuses, in its words. The address may hold a password and is not told.
pub(crate) async fn connect(address: &str, timeout: Duration, context: &Context) -> Result<Box<dyn Database>, Trouble> {
    let url = Url::parse(address).map_err(|error| Trouble::new("the address of the database cannot be read", error))?;
    let connecting = async {
        Ok::<Box<dyn Database>, Trouble>(match url.scheme() {
            "sqlite" => Box::new(sqlite::Sqlite::open(url.path(), timeout, context)?),
            "mysql" | "mariadb" => Box::new(mysql::Mysql::connect(&url, timeout).await?),
            _ => Box::new(postgres::Postgres::connect(&url, timeout).await?),
        })
    };
    match tokio::time::timeout(timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(Trouble::of("the database does not answer in time")),
    }
}

/// What of a database the operator of the machine has not opened: the folder of a file. Servers are asked by name when they
/// are connected to.
pub(crate) fn closed(address: &str, context: &Context) -> Vec<Problem> {
    let file = Url::parse(address).ok().filter(|url| url.scheme() == "sqlite");
    let judged = file.map(|url| sqlite::judge(url.path(), context));
    judged.and_then(Result::err).map(|text| Problem::at("database", text)).into_iter().collect()
}

/// A statement with each parameter as a database writes it; gives how many there are.
fn with_parameters(statement: &str, write: impl Fn(usize) -> String) -> (String, usize) {
    let mut pieces = statement.split(PARAMETER);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    let mut count = 0;
    for piece in pieces {
        count += 1;
        text.push_str(&write(count));
        text.push_str(piece);
    }
    (text, count)
}

/// The cell of a text, within its bound.
fn text_cell(text: String) -> Cell {
    if text.len() > CELL_BYTES_MAX { Cell::TooLong(text.len()) } else { Cell::Text(text) }
}

/// The cell of some bytes: a text if they are one in UTF-8.
fn bytes_cell(bytes: Vec<u8>) -> Cell {
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
    fn parameters_are_written_as_the_database_has_them() {
        let statement = "SELECT :mark, x FROM y WHERE id > :mark";
        assert_eq!(with_parameters(statement, |_| "$1".into()).0, "SELECT $1, x FROM y WHERE id > $1");
        assert_eq!(with_parameters(statement, |_| "?".into()), ("SELECT ?, x FROM y WHERE id > ?".into(), 2));
    }

    #[test]
    fn a_row_is_an_object_with_numbers_as_numbers() {
        let text = |text: &str| Cell::Text(text.to_owned());
        let cells = vec![(text("12345678901234567890.10"), true), (text("7"), false), (Cell::Null, false)];
        let names = Arc::from(["order", "place", "note"].map(str::to_owned));
        let rows = Rows::new(names, vec![RowRead { cells, mark: None }], false);
        let expected = r#"{"order":12345678901234567890.10,"place":"7","note":null}"#;
        assert_eq!(rows.message(0).expect("short cells").body, expected);
    }

    #[test]
    fn addresses_are_of_databases() {
        for good in ["postgres://a:b@c/d", "mysql://a@c:3307/d", "sqlite:/a/b.db", "mariadb://c/d"] {
            assert!(problems(good).is_empty(), "{good}");
        }
        for wrong in ["", "a", "http://a/b", "postgres:", "oracle://a/b"] {
            assert_eq!(problems(wrong).len(), 1, "{wrong}");
        }
    }
}
