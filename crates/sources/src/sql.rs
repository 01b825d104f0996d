//! SQL databases: SQLite, PostgreSQL, MySQL and MariaDB. Rows are names and texts, which the mapping parses as the
//! types of the event class. Marks and keys keep the type of the database ([`SqlValue`]).
//!
//! A statement is a single statement; its mark or key is its parameter. Queries run in a read-only transaction, with a
//! time limit enforced by the database.

mod mysql;
mod postgres;
mod sqlite;
mod value; // marks and keys, with their database types

#[cfg(test)]
pub(crate) mod servers;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serializer as _;
use serde_json::value::RawValue;
use tocsin_model::problem::{Code, Problem};
use tokio::sync::Notify;
use url::Url;
pub(crate) use value::SqlValue;

use crate::{
    batch_builder::BatchBuilder,
    items::{Cell, Item},
    mapping::Mapping,
    source::{BATCH_BYTES_MAX, BATCH_EVENTS_MAX, Context, Message, SourceError},
};

/// The placeholder of the parameter in a statement.
pub(crate) const PARAMETER: &str = ":mark";
/// Longest cell value; a longer one is not a valid field value.
const CELL_BYTES_MAX: usize = 1 << 20;
/// Rows with one mark are read up to this number, so that a batch never splits them.
pub(crate) const TIES_MAX: usize = 10 * BATCH_EVENTS_MAX;
/// Most bytes of such rows.
const TIES_BYTES_MAX: usize = 64 << 20;

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
struct BatchCounter {
    rows: usize,
    bytes: usize,
    rows_max: usize,
    /// Whether one row beyond the batch is read, whose mark shows whether the last group continues.
    has_marks: bool,
    is_full: bool,
}

impl BatchCounter {
    fn new(request: &QueryRequest<'_>) -> BatchCounter {
        BatchCounter {
            rows: 0,
            bytes: 0,
            rows_max: request.rows_max,
            has_marks: request.mark_column.is_some(),
            is_full: false,
        }
    }

    /// Counts a row. Returns whether it is the last one.
    fn ends_with(&mut self, bytes: usize) -> bool {
        (self.rows, self.bytes) = (self.rows + 1, self.bytes + bytes);
        let bytes_max = if self.rows_max > BATCH_EVENTS_MAX { TIES_BYTES_MAX } else { BATCH_BYTES_MAX };
        let was_full = std::mem::replace(&mut self.is_full, self.rows >= self.rows_max || self.bytes >= bytes_max);
        was_full || self.is_full && !self.has_marks
    }
}

/// A row: its cells, which of them are raw JSON, and its mark.
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
fn position_of(names: &[String], name: &str) -> Result<usize, SourceError> {
    let mut found = names.iter().enumerate().filter(|(_, known)| *known == name).map(|(at, _)| at);
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (Some(_), Some(_)) => {
            Err(SourceError::of(format!("the query returns the column `{name}` twice; name each with `AS`")))
        }
        (None, _) => Err(SourceError::of(format!("the query returns no column `{name}`, but {}", names.join(", ")))),
    }
}

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

/// A connection to a database.
#[async_trait]
pub(crate) trait Database: Send {
    /// The first rows of a query, as many as one batch takes.
    async fn query(&mut self, request: QueryRequest<'_>) -> Result<Rows, SourceError>;

    /// Executes a write statement once for each of these values, in one transaction.
    async fn run(&mut self, statement: &str, marks: &[SqlValue]) -> Result<(), SourceError>;

    /// Takes an exclusive lock on this source's data, for the lifetime of the connection.
    async fn lock(&mut self, name: &str) -> Result<(), SourceError>;

    /// Signals the bell on each notification of the channel.
    async fn listen(&mut self, channel: &str, wakeup: Arc<Notify>) -> Result<(), SourceError>;

    /// A quoted identifier.
    fn quoted(&self, name: &str) -> String;
}

/// Problems of a database address.
pub(crate) fn problems(address: &str) -> Vec<Problem> {
    if address.is_empty() {
        return vec![Problem::new(Code::Required, "database", "is missing: the address of the database")];
    }
    let hint = "such as `postgres://user:${PASSWORD}@host/name`, `mysql://user:${PASSWORD}@host/name` or `sqlite:/path/file.db`";
    match Url::parse(address) {
        Ok(url) if matches!(url.scheme(), "postgres" | "postgresql" | "mysql" | "mariadb") && url.has_host() => {
            Vec::new()
        }
        Ok(url) if url.scheme() == "sqlite" && !url.path().is_empty() => Vec::new(),
        _ => vec![
            Problem::new(Code::InvalidFormat, "database", "is not the address of a database")
                .param("format", "url")
                .hint(hint),
        ],
    }
}

/// The problem of a query without the required parameter.
pub(crate) fn statement_problem(option: &str, statement: &str) -> Option<Problem> {
    let problem =
        Problem::new(Code::Required, option, format!("has no `{PARAMETER}`, so it would always return the same rows"));
    (pieces(statement).len() < 2)
        .then(|| problem.hint(format!("such as `SELECT ... WHERE id > {PARAMETER} ORDER BY id`")))
}

/// Connects to the database.
///
/// # Errors
/// The server does not respond or refuses, with its message. The address is not included, since it may contain a
/// password.
pub(crate) async fn connect(
    address: &str,
    timeout: Duration,
    context: &Context,
) -> Result<Box<dyn Database>, SourceError> {
    let url =
        Url::parse(address).map_err(|error| SourceError::new("the address of the database cannot be read", error))?;
    let connecting = async {
        Ok::<Box<dyn Database>, SourceError>(match url.scheme() {
            "sqlite" => Box::new(sqlite::Sqlite::open(url.path(), timeout, context)?),
            "mysql" | "mariadb" => Box::new(mysql::Mysql::connect(&url, timeout).await?),
            _ => Box::new(postgres::Postgres::connect(&url, timeout).await?),
        })
    };
    match tokio::time::timeout(timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(SourceError::of("the database does not answer in time")),
    }
}

/// Parts of a database address that the configuration does not allow: the folder of a file. Servers are checked at
/// connection time.
pub(crate) fn not_allowed(address: &str, context: &Context) -> Vec<Problem> {
    let file = Url::parse(address).ok().filter(|url| url.scheme() == "sqlite");
    let checked = file.map(|url| sqlite::check_path(url.path(), context));
    checked.and_then(Result::err).map(|text| Problem::new(Code::NotAllowed, "database", text)).into_iter().collect()
}

/// The pieces of a statement between its parameters. Texts, quoted names and comments contain no parameters, nor do
/// longer words.
fn pieces(statement: &str) -> Vec<&str> {
    let (mut pieces, mut from, mut at) = (Vec::new(), 0, 0);
    while let Some(first) = statement.as_bytes().get(at) {
        let rest = &statement[at..];
        let end = |of: &str| rest[1..].find(of).map_or(rest.len(), |found| 1 + found + of.len());
        at += match first {
            b'\'' => end("'"),
            b'"' => end("\""),
            b'`' => end("`"),
            b'-' if rest.starts_with("--") => end("\n"),
            b'/' if rest.starts_with("/*") => end("*/"),
            // A PostgreSQL cast, to a type of this name.
            b':' if rest.starts_with("::") => 2,
            b':' if rest.starts_with(PARAMETER) => {
                let is_longer = rest[PARAMETER.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
                if !is_longer {
                    pieces.push(&statement[from..at]);
                    from = at + PARAMETER.len();
                }
                PARAMETER.len()
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    pieces.push(&statement[from..]);
    // Databases differ in the escaping of quotes, so if there is no other parameter, quoted ones count.
    if pieces.len() < 2 { statement.split(PARAMETER).collect() } else { pieces }
}

/// Replaces each parameter by the placeholder of a database; returns their number.
fn with_parameters(statement: &str, write: impl Fn(usize) -> String) -> (String, usize) {
    let mut pieces = pieces(statement).into_iter();
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

/// The cell of some bytes: text if they are UTF-8.
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
    fn parameters_use_the_placeholders_of_the_database() {
        let statement = "SELECT :mark, x FROM y WHERE id > :mark";
        assert_eq!(with_parameters(statement, |_| "$1".into()).0, "SELECT $1, x FROM y WHERE id > $1");
        assert_eq!(with_parameters(statement, |_| "?".into()), ("SELECT ?, x FROM y WHERE id > ?".into(), 2));
        let statement = "SELECT ':mark', \":mark\", é::mark, :marker -- :mark\n FROM y /* :mark */ WHERE id>:mark";
        let expected = "SELECT ':mark', \":mark\", é::mark, :marker -- :mark\n FROM y /* :mark */ WHERE id>$1";
        assert_eq!(with_parameters(statement, |_| "$1".into()), (expected.into(), 1));
        assert_eq!(with_parameters(r"WHERE x = '\'' AND id > :mark", |_| "?".into()).1, 1);
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
    fn addresses_must_be_of_databases() {
        for good in ["postgres://a:b@c/d", "mysql://a@c:3307/d", "sqlite:/a/b.db", "mariadb://c/d"] {
            assert!(problems(good).is_empty(), "{good}");
        }
        for wrong in ["", "a", "http://a/b", "postgres:", "oracle://a/b"] {
            assert_eq!(problems(wrong).len(), 1, "{wrong}");
        }
    }
}
