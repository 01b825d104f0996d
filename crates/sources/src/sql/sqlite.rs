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

use super::{CELL_BYTES_MAX, Cell, Database, Rows, Taking, check_cell, with_parameters};
use crate::source::{Context, Trouble};

/// A file of SQLite.
pub(super) struct Sqlite {
    connection: Arc<Mutex<Connection>>,
    timeout: Duration,
}

impl Sqlite {
    pub fn open(path: &str, timeout: Duration, context: &Context) -> Result<Sqlite, Trouble> {
        judge(path, context).map_err(Trouble::of)?;
        let path = Path::new(path);
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let mut connection = Connection::open_with_flags(path, flags)
            .map_err(|error| Trouble::new(format!("{} cannot be opened", path.display()), error))?;
        let prepared = connection
            .busy_timeout(timeout)
            .and_then(|()| connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, 4 * CELL_BYTES_MAX as i32))
            .and_then(|_| connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0))
            .and_then(|_| connection.authorizer(Some(authorize)));
        prepared.map_err(trouble)?;
        Ok(Sqlite { connection: Arc::new(Mutex::new(connection)), timeout })
    }

    /// Works with the connection, off the threads of the runtime, and within its time.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let (connection, timeout) = (self.connection.clone(), self.timeout);
        let working = spawn_blocking(move || {
            let mut connection = connection.lock();
            let deadline = std::time::Instant::now() + timeout;
            connection.progress_handler(10_000, Some(move || std::time::Instant::now() > deadline)).map_err(trouble)?;
            work(&connection)
        });
        working.await.map_err(|error| Trouble::new("asking broke", error))?
    }
}

/// Whether a file may be used. The error says why not.
pub(super) fn judge(path: &str, context: &Context) -> Result<(), String> {
    let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
    context.folders.judge(folder, &context.data_folder).map(|_| ())
}

/// No other files, no settings, no code: a statement reads and writes tables.
fn authorize(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Attach { .. } | AuthAction::Detach { .. } | AuthAction::Pragma { .. } => Authorization::Deny,
        AuthAction::Function { function_name } if function_name.eq_ignore_ascii_case("load_extension") => {
            Authorization::Deny
        }
        _ => Authorization::Allow,
    }
}

fn trouble(error: rusqlite::Error) -> Trouble {
    Trouble::new("SQLite", error)
}

/// A number as one, since SQLite holds that every text is greater than every number.
struct Parameter<'a>(Option<&'a str>);

impl ToSql for Parameter<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let Some(text) = self.0 else { return Ok(ToSqlOutput::Borrowed(ValueRef::Null)) };
        if let Ok(integer) = text.parse::<i64>() {
            return Ok(ToSqlOutput::Borrowed(ValueRef::Integer(integer)));
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(ToSqlOutput::Borrowed(ValueRef::Real(number))),
            _ => Ok(ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes()))),
        }
    }
}

fn cell(value: ValueRef<'_>) -> Result<Cell, Trouble> {
    let is_bare = matches!(value, ValueRef::Integer(_) | ValueRef::Real(_));
    let text = match value {
        ValueRef::Null => return Ok((None, false)),
        ValueRef::Integer(integer) => integer.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) | ValueRef::Blob(text) => {
            let text = std::str::from_utf8(text).map_err(|_| Trouble::of("a cell is not text in UTF-8"))?;
            text.to_owned()
        }
    };
    Ok((Some(check_cell(text)?), is_bare))
}

#[async_trait]
impl Database for Sqlite {
    async fn query(&mut self, query: &str, mark: Option<&str>) -> Result<Rows, Trouble> {
        let (query, mark) = (with_parameters(query, |_| "?1".to_owned()), mark.map(str::to_owned));
        self.work(move |connection| {
            let mut statement = connection.prepare(&query.0).map_err(trouble)?;
            if !statement.readonly() {
                return Err(Trouble::of("the query would write"));
            }
            let names: Arc<[String]> = statement.column_names().map(str::to_owned).collect();
            let parameter = Parameter(mark.as_deref());
            let parameters: &[&dyn ToSql] = if query.1 > 0 { &[&parameter] } else { &[] };
            let mut found = statement.query(parameters).map_err(trouble)?;
            let (mut taking, mut more, mut rows) = (Taking::default(), false, Vec::new());
            while !more && let Some(row) = found.next().map_err(trouble)? {
                let cells = (0..names.len()).map(|at| cell(row.get_ref(at).map_err(trouble)?));
                let cells: Vec<Cell> = cells.collect::<Result<_, _>>()?;
                more = taking.is_full_with(cells.iter().filter_map(|(cell, _)| cell.as_ref()).map(String::len).sum());
                rows.push(cells);
            }
            Ok(Rows::new(names, rows, more))
        })
        .await
    }

    async fn run(&mut self, statement: &str, marks: &[Option<String>]) -> Result<(), Trouble> {
        let (statement, marks) = (with_parameters(statement, |_| "?1".to_owned()), marks.to_vec());
        self.work(move |connection| {
            let transaction = connection.unchecked_transaction().map_err(trouble)?;
            {
                let mut prepared = transaction.prepare(&statement.0).map_err(trouble)?;
                for mark in &marks {
                    let parameter = Parameter(mark.as_deref());
                    let parameters: &[&dyn ToSql] = if statement.1 > 0 { &[&parameter] } else { &[] };
                    prepared.execute(parameters).map_err(trouble)?;
                }
            }
            transaction.commit().map_err(trouble)
        })
        .await
    }

    /// A file is of one machine, where who may write to it is settled by its rights.
    async fn lock(&mut self, _name: &str) -> Result<(), Trouble> {
        Ok(())
    }

    async fn listen(&mut self, _channel: &str, _bell: Arc<Notify>) -> Result<(), Trouble> {
        Err(Trouble::of("SQLite notifies nobody; leave `listen` out"))
    }

    fn quoted(&self, name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}
