use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{
    Connection, OpenFlags, ToSql,
    hooks::{AuthAction, AuthContext, Authorization},
    limits::Limit,
    types::{ToSqlOutput, ValueRef},
};
use tokio::{sync::Notify, task::spawn_blocking};

use super::{
    database::Database,
    rows::{BatchCounter, CELL_BYTES_MAX, QueryRequest, RowRead, Rows, bytes_cell, position_of},
    statement::with_parameters,
    value::SqlValue,
};
use crate::{items::Cell, source::SourceError};

/// Longest row. A longer one ends its query; cells between [`CELL_BYTES_MAX`] and this are rejected individually.
const ROW_BYTES_MAX: i32 = 64 << 20;

/// A SQLite database file.
pub(super) struct Sqlite {
    connection: Arc<Mutex<Connection>>,
    timeout: Duration,
}

impl Sqlite {
    pub fn open(path: &str, timeout: Duration) -> Result<Sqlite, SourceError> {
        let path = Path::new(path);
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let mut connection = Connection::open_with_flags(path, flags)
            .map_err(|error| SourceError::new(format!("{} cannot be opened", path.display()), error))?;
        let prepared = connection
            .busy_timeout(timeout)
            .and_then(|()| connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, ROW_BYTES_MAX))
            .and_then(|_| connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0))
            .and_then(|_| connection.authorizer(Some(authorize)));
        prepared.map_err(source_error)?;
        Ok(Sqlite { connection: Arc::new(Mutex::new(connection)), timeout })
    }

    /// Runs work on the connection, off the runtime's threads, with its time limit.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let (connection, timeout) = (self.connection.clone(), self.timeout);
        let working = spawn_blocking(move || {
            let mut connection = connection.lock();
            let deadline = std::time::Instant::now() + timeout;
            connection
                .progress_handler(10_000, Some(move || std::time::Instant::now() > deadline))
                .map_err(source_error)?;
            work(&connection)
        });
        working.await.map_err(|error| SourceError::new("asking broke", error))?
    }
}

/// Statements may only read and write tables: no other files, settings or code.
fn authorize(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Attach { .. } | AuthAction::Detach { .. } | AuthAction::Pragma { .. } => Authorization::Deny,
        AuthAction::Function { function_name } if function_name.eq_ignore_ascii_case("load_extension") => {
            Authorization::Deny
        }
        _ => Authorization::Allow,
    }
}

fn source_error(error: rusqlite::Error) -> SourceError {
    SourceError::new("SQLite", error)
}

impl ToSql for SqlValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            SqlValue::Null => ValueRef::Null,
            SqlValue::Integer(number) => ValueRef::Integer(*number),
            SqlValue::Real(number) => ValueRef::Real(*number),
            SqlValue::Bytes(bytes) => ValueRef::Blob(bytes),
            SqlValue::Decimal(text) | SqlValue::Text(text) | SqlValue::Untyped(text) => ValueRef::Text(text.as_bytes()),
            SqlValue::Unsigned(number) => return Ok(ToSqlOutput::from(i64::try_from(*number).unwrap_or(i64::MAX))),
        }))
    }
}

/// The possible types of a value. SQLite orders every text after every number, so an untyped value is tried as a number
/// and as a text.
fn readings(mark: &SqlValue) -> Vec<SqlValue> {
    let SqlValue::Untyped(text) = mark else { return vec![mark.clone()] };
    let number = match text.parse::<i64>() {
        Ok(integer) => Some(SqlValue::Integer(integer)),
        Err(_) => text.parse().ok().filter(|number: &f64| number.is_finite()).map(SqlValue::Real),
    };
    number.into_iter().chain([SqlValue::Text(text.clone())]).collect()
}

/// The types for an untyped value in a write statement: a number with a unique spelling first, and then, if no row
/// matched, the text.
fn written(mark: &SqlValue) -> Vec<SqlValue> {
    let mut readings = readings(mark);
    if let SqlValue::Untyped(text) = mark {
        readings.retain(|reading| matches!(reading, SqlValue::Text(_)) || reading.shown() == *text);
    }
    readings
}

fn is_number(value: &SqlValue) -> bool {
    matches!(value, SqlValue::Integer(_) | SqlValue::Real(_))
}

/// A cell, and whether it is written as raw JSON.
fn cell(value: ValueRef<'_>) -> (Cell, bool) {
    match value {
        ValueRef::Null => (Cell::Null, false),
        ValueRef::Integer(integer) => (Cell::Text(integer.to_string()), true),
        ValueRef::Real(number) => (Cell::Text(number.to_string()), true),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) if bytes.len() > CELL_BYTES_MAX => {
            (Cell::TooLong(bytes.len()), false)
        }
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => (bytes_cell(bytes.to_vec()), false),
    }
}

fn mark_of(value: ValueRef<'_>) -> SqlValue {
    match value {
        ValueRef::Null => SqlValue::Null,
        ValueRef::Integer(integer) => SqlValue::Integer(integer),
        ValueRef::Real(number) => SqlValue::Real(number),
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => SqlValue::Text(text.to_owned()),
            Err(_) => SqlValue::Bytes(bytes.to_vec()),
        },
        ValueRef::Blob(bytes) => SqlValue::Bytes(bytes.to_vec()),
    }
}

/// A query with SQLite's parameter placeholders.
struct PreparedQuery {
    query: String,
    has_parameter: bool,
    mark_column: Option<String>,
}

impl PreparedQuery {
    fn query(&self, connection: &Connection, mark: &SqlValue, mut counter: BatchCounter) -> Result<Rows, SourceError> {
        let mut statement = connection.prepare(&self.query).map_err(source_error)?;
        if !statement.readonly() {
            return Err(SourceError::of("the query would write"));
        }
        let names: Arc<[String]> = statement.column_names().map(str::to_owned).collect();
        let mark_at = self.mark_column.as_deref().map(|name| position_of(&names, name)).transpose()?;
        let parameters: &[&dyn ToSql] = if self.has_parameter { &[mark] } else { &[] };
        let mut found = statement.query(parameters).map_err(source_error)?;
        let (mut more, mut rows) = (false, Vec::new());
        while !more && let Some(row) = found.next().map_err(source_error)? {
            let cells = (0..names.len()).map(|at| row.get_ref(at).map(cell).map_err(source_error));
            let cells: Vec<(Cell, bool)> = cells.collect::<Result<_, _>>()?;
            more = counter.ends_with(cells.iter().map(|(cell, _)| cell.bytes()).sum());
            let mark = mark_at.map(|at| row.get_ref(at).map(mark_of).map_err(source_error)).transpose()?;
            rows.push(RowRead { cells, mark });
        }
        Ok(Rows::new(names, rows, more))
    }
}

#[async_trait]
impl Database for Sqlite {
    async fn query(&mut self, request: QueryRequest<'_>) -> Result<Rows, SourceError> {
        let (query, parameters) = with_parameters(request.query, |_| "?1".to_owned());
        let mark_column = request.mark_column.map(str::to_owned);
        let question = PreparedQuery { query, has_parameter: parameters > 0, mark_column };
        let (counter, mark) = (BatchCounter::new(&request), request.mark.clone());
        self.work(move |connection| {
            let mut readings = readings(&mark);
            if !question.has_parameter {
                readings.truncate(1);
            }
            let mut empty = Rows::default();
            for reading in &readings {
                let rows = question.query(connection, reading, counter.clone())?;
                // An untyped value has the type of the rows beyond it.
                let fits = rows.marks.first().is_none_or(|mark| is_number(mark) == is_number(reading));
                if readings.len() == 1 || fits && !rows.rows.is_empty() {
                    return Ok(rows);
                }
                empty.names = rows.names;
            }
            Ok(empty)
        })
        .await
    }

    async fn run(&mut self, statement: &str, marks: &[SqlValue]) -> Result<(), SourceError> {
        let (statement, marks) = (with_parameters(statement, |_| "?1".to_owned()), marks.to_vec());
        self.work(move |connection| {
            let transaction = connection.unchecked_transaction().map_err(source_error)?;
            {
                let mut prepared = transaction.prepare(&statement.0).map_err(source_error)?;
                for mark in &marks {
                    for reading in written(mark) {
                        let parameters: &[&dyn ToSql] = if statement.1 > 0 { &[&reading] } else { &[] };
                        if prepared.execute(parameters).map_err(source_error)? > 0 || statement.1 == 0 {
                            break;
                        }
                    }
                }
            }
            transaction.commit().map_err(source_error)
        })
        .await
    }

    /// A file is local to one machine, and its permissions control who may write to it.
    async fn lock(&mut self, _name: &str) -> Result<(), SourceError> {
        Ok(())
    }

    async fn listen(&mut self, _channel: &str, _wakeup: Arc<Notify>) -> Result<(), SourceError> {
        Err(SourceError::of("SQLite has no notifications; remove `listen`"))
    }

    fn quoted(&self, name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}
