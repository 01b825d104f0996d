use std::{fmt::Write, sync::Arc, time::Duration};

use async_trait::async_trait;
use mysql_async::{
    Conn, IsolationLevel, Opts, OptsBuilder, Params, TxOpts, Value, consts::ColumnType, prelude::Queryable,
};
use tokio::sync::Notify;
use url::Url;

use super::{Cell, Database, Rows, Taking, check_cell, with_parameters};
use crate::source::Trouble;

/// A connection to MySQL or MariaDB.
pub(super) struct Mysql {
    connection: Conn,
    timeout: Duration,
}

impl Mysql {
    pub async fn connect(url: &Url, timeout: Duration) -> Result<Mysql, Trouble> {
        let address = url.as_str().replacen("mariadb:", "mysql:", 1);
        let opts = Opts::from_url(&address).map_err(|error| Trouble::new("the address of the database", error))?;
        let builder = OptsBuilder::from_opts(opts)
            .prefer_socket(false)
            .setup(vec!["SET time_zone = '+00:00'", "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')"]);
        let mut connection = Conn::new(builder).await.map_err(trouble)?;
        // The two have their limits of time under different names.
        let seconds = timeout.as_secs_f64();
        let mariadb = format!("SET SESSION max_statement_time = {seconds}");
        if connection.query_drop(mariadb).await.is_err() {
            let mysql = format!("SET SESSION max_execution_time = {}", timeout.as_millis());
            connection.query_drop(mysql).await.map_err(trouble)?;
        }
        Ok(Mysql { connection, timeout })
    }

    async fn patient<T>(timeout: Duration, work: impl Future<Output = mysql_async::Result<T>>) -> Result<T, Trouble> {
        match tokio::time::timeout(timeout + timeout / 2, work).await {
            Ok(done) => done.map_err(trouble),
            Err(_) => Err(Trouble::of("MySQL does not answer in time")),
        }
    }
}

fn trouble(error: mysql_async::Error) -> Trouble {
    Trouble::new("MySQL", error)
}

fn cell((value, is_bare): (Value, bool)) -> Result<Cell, Trouble> {
    let text = match value {
        Value::NULL => return Ok((None, false)),
        Value::Bytes(bytes) => String::from_utf8(bytes).map_err(|_| Trouble::of("a cell is not text in UTF-8"))?,
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Double(number) => number.to_string(),
        // The zone of the session is UTC.
        Value::Date(year, month, day, hour, minute, second, micros) => {
            format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
        }
        Value::Time(negative, days, hours, minutes, seconds, micros) => {
            let sign = if negative { "-" } else { "" };
            let hours = u32::from(hours) + days * 24;
            let mut text = format!("{sign}{hours:02}:{minutes:02}:{seconds:02}");
            if micros > 0 {
                let _ = write!(text, ".{micros:06}");
            }
            text
        }
    };
    Ok((Some(check_cell(text)?), is_bare))
}

/// Whether values of a type stand in JSON as they are.
fn is_bare(kind: ColumnType) -> bool {
    kind.is_numeric_type() || kind == ColumnType::MYSQL_TYPE_JSON
}

fn bytes_of(value: &Value) -> usize {
    if let Value::Bytes(bytes) = value { bytes.len() } else { size_of::<Value>() }
}

/// The parameter, once for each place. A time goes back as it came, in the form that the server reads.
fn parameters(mark: Option<&str>, count: usize) -> Params {
    let value = match mark {
        // A number as one: against a text MySQL would compare doubles.
        Some(text) => match text.parse() {
            Ok(number) => Value::Int(number),
            Err(_) => Value::Bytes(server_time(text).unwrap_or_else(|| text.to_owned()).into_bytes()),
        },
        None => Value::NULL,
    };
    if count == 0 { Params::Empty } else { Params::Positional(vec![value; count]) }
}

fn server_time(text: &str) -> Option<String> {
    let is_time = text.len() == 27 && text.ends_with('Z') && text.as_bytes()[10] == b'T';
    is_time.then(|| text.replacen('T', " ", 1).trim_end_matches('Z').to_owned())
}

#[async_trait]
impl Database for Mysql {
    async fn query(&mut self, query: &str, mark: Option<&str>) -> Result<Rows, Trouble> {
        let (query, count) = with_parameters(query.trim().trim_end_matches(';'), |_| "?".to_owned());
        let parameters = parameters(mark, count);
        let connection = &mut self.connection;
        let asked = Self::patient(self.timeout, async {
            let mut options = TxOpts::default();
            options.with_readonly(true).with_isolation_level(IsolationLevel::RepeatableRead);
            let mut transaction = connection.start_transaction(options).await?;
            let statement = transaction.prep(&query).await?;
            let names: Arc<[String]> =
                statement.columns().iter().map(|column| column.name_str().into_owned()).collect();
            let (mut taking, mut more, mut found) = (Taking::default(), false, Vec::new());
            {
                let mut result = transaction.exec_iter(&statement, parameters).await?;
                while !more && let Some(row) = result.next().await? {
                    more = taking.is_full_with((0..row.len()).filter_map(|at| row.as_ref(at)).map(bytes_of).sum());
                    found.push(row);
                }
                result.drop_result().await?;
            }
            transaction.commit().await?;
            Ok((names, found, more))
        });
        let (names, found, more) = asked.await?;
        let bare =
            |row: &mysql_async::Row| row.columns_ref().iter().map(|column| is_bare(column.column_type())).collect();
        let cells = |row: mysql_async::Row| {
            let bare: Vec<bool> = bare(&row);
            row.unwrap().into_iter().zip(bare).map(cell).collect()
        };
        let rows = found.into_iter().map(cells).collect::<Result<_, _>>()?;
        Ok(Rows::new(names, rows, more))
    }

    async fn run(&mut self, statement: &str, marks: &[Option<String>]) -> Result<(), Trouble> {
        let (statement, count) = with_parameters(statement, |_| "?".to_owned());
        let connection = &mut self.connection;
        let done = Self::patient(self.timeout, async {
            let mut transaction = connection.start_transaction(TxOpts::default()).await?;
            let prepared = transaction.prep(&statement).await?;
            for mark in marks {
                transaction.exec_drop(&prepared, parameters(mark.as_deref(), count)).await?;
            }
            transaction.commit().await
        });
        done.await
    }

    async fn lock(&mut self, name: &str) -> Result<(), Trouble> {
        // A name may have 64 characters.
        let name = format!("tocsin {}", &crate::known::hash(&[name.as_bytes()]));
        let asked = self.connection.exec_first("SELECT GET_LOCK(?, 0)", (name,));
        let got: Option<Option<i64>> = Self::patient(self.timeout, asked).await?;
        match got.flatten() {
            Some(1) => Ok(()),
            _ => Err(Trouble::of("another source takes from there")),
        }
    }

    async fn listen(&mut self, _channel: &str, _bell: Arc<Notify>) -> Result<(), Trouble> {
        Err(Trouble::of("MySQL notifies nobody; leave `listen` out"))
    }

    fn quoted(&self, name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}
