//! Databases that sources ask: SQLite, PostgreSQL, MySQL and MariaDB. Rows come as names and texts, which the mapping reads
//! as the types of the event class.
//!
//! A statement is one statement; what it is told comes as its parameter. Queries run in a transaction that cannot write,
//! with a limit of time in the database itself.

mod mysql;
mod postgres;
mod sqlite;

#[cfg(test)]
pub(crate) mod servers;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tocsin_model::problem::Problem;
use tokio::sync::Notify;
use url::Url;

use crate::{
    items::Item,
    source::{Context, Message, PORTION_BYTES_MAX, PORTION_EVENTS_MAX, Trouble},
};

/// Where in a statement its parameter stands.
pub(crate) const PARAMETER: &str = ":mark";
/// Longest value of a cell that is taken.
const CELL_BYTES_MAX: usize = 1 << 20;

/// Rows of a query.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Rows {
    /// The names of the columns.
    pub names: Arc<[String]>,
    /// Cells; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
    /// Which of them stand in JSON as they are: numbers, truth values, documents.
    bare: Vec<Vec<bool>>,
    /// Whether there may be more: these are as many as one portion takes.
    pub more: bool,
}

/// How much a portion has taken.
#[derive(Debug, Default)]
struct Taking {
    rows: usize,
    bytes: usize,
}

impl Taking {
    /// Counts a row. Gives whether the portion is full with it.
    fn is_full_with(&mut self, bytes: usize) -> bool {
        (self.rows, self.bytes) = (self.rows + 1, self.bytes + bytes);
        self.rows >= PORTION_EVENTS_MAX || self.bytes >= PORTION_BYTES_MAX
    }
}

/// A cell, and whether it stands in JSON as it is.
type Cell = (Option<String>, bool);

impl Rows {
    fn new(names: Arc<[String]>, cells: Vec<Vec<Cell>>, more: bool) -> Rows {
        let (rows, bare) = cells.into_iter().map(|row| row.into_iter().unzip()).unzip();
        Rows { names, rows, bare, more }
    }

    /// A row as a message: a JSON object with its columns.
    pub fn message(&self, at: usize) -> Message {
        let cells = self.names.iter().zip(&self.rows[at]).zip(&self.bare[at]);
        let member = |((name, cell), is_bare): ((&String, &Option<String>), &bool)| {
            let value = match cell {
                None => serde_json::Value::Null,
                Some(text) if *is_bare => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
                Some(text) => text.as_str().into(),
            };
            (name.clone(), value)
        };
        let object = serde_json::Value::Object(cells.map(member).collect());
        Message { content_type: "application/json".to_owned(), headers: Vec::new(), body: object.to_string().into() }
    }

    /// The place of a column.
    pub fn column(&self, name: &str) -> Result<usize, Trouble> {
        let found = self.names.iter().position(|known| known == name);
        found.ok_or_else(|| Trouble::of(format!("the query gives no column `{name}`, but {}", self.names.join(", "))))
    }

    /// A row as an item.
    pub fn item(&self, at: usize) -> Item {
        Item::Cells { names: self.names.clone(), cells: self.rows[at].clone() }
    }
}

/// A connection to a database.
#[async_trait]
pub(crate) trait Database: Send {
    /// The first rows of a query, as many as one portion takes.
    async fn query(&mut self, query: &str, mark: Option<&str>) -> Result<Rows, Trouble>;

    /// Runs a statement that writes, once for each of these values, in one transaction.
    async fn run(&mut self, statement: &str, marks: &[Option<String>]) -> Result<(), Trouble>;

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

fn check_cell(text: String) -> Result<String, Trouble> {
    match text.len() > CELL_BYTES_MAX {
        true => Err(Trouble::of(format!("a cell has more than {CELL_BYTES_MAX} bytes"))),
        false => Ok(text),
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
        let cells = vec![vec![(Some("7".to_owned()), true), (Some("7".to_owned()), false), (None, false)]];
        let rows = Rows::new(Arc::from(["order".to_owned(), "place".to_owned(), "note".to_owned()]), cells, false);
        assert_eq!(rows.message(0).body, r#"{"order":7,"place":"7","note":null}"#);
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
