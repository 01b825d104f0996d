use std::{fmt::Write, sync::Arc, time::Duration};

use async_trait::async_trait;
use mysql_async::{
    Conn, IsolationLevel, Opts, OptsBuilder, Params, TxOpts, Value, consts::ColumnType, prelude::Queryable,
};
use tokio::sync::Notify;
use url::Url;

use super::{
    database::Database,
    rows::{BatchCounter, QueryRequest, RowRead, Rows, bytes_cell, position_of},
    statement::with_parameters,
    value::SqlValue,
};
use crate::{items::Cell, source::SourceError};

/// A connection to MySQL or MariaDB.
pub(super) struct Mysql {
    connection: Conn,
    timeout: Duration,
}

impl Mysql {
    pub async fn connect(url: &Url, timeout: Duration) -> Result<Mysql, SourceError> {
        let address = url.as_str().replacen("mariadb:", "mysql:", 1);
        let opts = Opts::from_url(&address).map_err(|error| SourceError::new("the address of the database", error))?;
        let builder = OptsBuilder::from_opts(opts)
            .prefer_socket(false)
            .setup(vec!["SET time_zone = '+00:00'", "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')"]);
        let mut connection = Conn::new(builder).await.map_err(source_error)?;
        // MySQL and MariaDB have different names for their time limits.
        let seconds = timeout.as_secs_f64();
        let mariadb = format!("SET SESSION max_statement_time = {seconds}");
        if connection.query_drop(mariadb).await.is_err() {
            let mysql = format!("SET SESSION max_execution_time = {}", timeout.as_millis());
            connection.query_drop(mysql).await.map_err(source_error)?;
        }
        Ok(Mysql { connection, timeout })
    }

    async fn with_timeout<T>(
        timeout: Duration,
        work: impl Future<Output = mysql_async::Result<T>>,
    ) -> Result<T, SourceError> {
        match tokio::time::timeout(timeout + timeout / 2, work).await {
            Ok(done) => done.map_err(source_error),
            Err(_) => Err(SourceError::of("MySQL does not answer in time")),
        }
    }
}

fn source_error(error: mysql_async::Error) -> SourceError {
    SourceError::new("MySQL", error)
}

/// A time as text; the session time zone is UTC.
fn time_text(value: &Value) -> Option<String> {
    match value {
        Value::Date(year, month, day, hour, minute, second, micros) => {
            Some(format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}"))
        }
        Value::Time(negative, days, hours, minutes, seconds, micros) => {
            let sign = if *negative { "-" } else { "" };
            let hours = u32::from(*hours) + days * 24;
            let mut text = format!("{sign}{hours:02}:{minutes:02}:{seconds:02}");
            if *micros > 0 {
                let _ = write!(text, ".{micros:06}");
            }
            Some(text)
        }
        _ => None,
    }
}

/// A bit field as a number.
fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn cell(value: &Value, kind: ColumnType) -> Cell {
    match value {
        Value::NULL => Cell::Null,
        Value::Bytes(bytes) if kind == ColumnType::MYSQL_TYPE_BIT => Cell::Text(bits(bytes).to_string()),
        Value::Bytes(bytes) => bytes_cell(bytes.clone()),
        Value::Int(number) => Cell::Text(number.to_string()),
        Value::UInt(number) => Cell::Text(number.to_string()),
        Value::Float(number) => Cell::Text(number.to_string()),
        Value::Double(number) => Cell::Text(number.to_string()),
        date @ Value::Date(..) => Cell::Text(time_text(date).unwrap_or_default().replacen(' ', "T", 1) + "Z"),
        time @ Value::Time(..) => Cell::Text(time_text(time).unwrap_or_default()),
    }
}

/// The value of a mark, with its type.
fn mark_of(value: &Value, kind: ColumnType) -> SqlValue {
    match value {
        Value::NULL => SqlValue::Null,
        Value::Int(number) => SqlValue::Integer(*number),
        Value::UInt(number) => SqlValue::Unsigned(*number),
        // Stored as a double with the same value.
        Value::Float(number) => SqlValue::Real(f64::from(*number)),
        Value::Double(number) => SqlValue::Real(*number),
        Value::Bytes(bytes) if kind == ColumnType::MYSQL_TYPE_BIT => SqlValue::Unsigned(bits(bytes)),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if is_decimal(kind) => SqlValue::Decimal(text.to_owned()),
            Ok(text) => SqlValue::Text(text.to_owned()),
            Err(_) => SqlValue::Bytes(bytes.clone()),
        },
        time @ (Value::Date(..) | Value::Time(..)) => SqlValue::Text(time_text(time).unwrap_or_default()),
    }
}

fn is_decimal(kind: ColumnType) -> bool {
    matches!(kind, ColumnType::MYSQL_TYPE_DECIMAL | ColumnType::MYSQL_TYPE_NEWDECIMAL)
}

/// Whether values of a type are written as raw JSON.
fn is_bare(kind: ColumnType) -> bool {
    kind.is_numeric_type() || matches!(kind, ColumnType::MYSQL_TYPE_JSON | ColumnType::MYSQL_TYPE_BIT)
}

fn bytes_of(value: &Value) -> usize {
    if let Value::Bytes(bytes) = value { bytes.len() } else { size_of::<Value>() }
}

/// An untyped value, as the type of the mark column.
fn of_type(text: &str, kind: ColumnType) -> SqlValue {
    if is_decimal(kind) && scale_of(text).is_some() {
        return SqlValue::Decimal(text.to_owned());
    }
    if kind.is_numeric_type() {
        return match (text.parse(), text.parse()) {
            (Ok(number), _) => SqlValue::Integer(number),
            (_, Ok(number)) => SqlValue::Unsigned(number),
            _ => SqlValue::Text(text.to_owned()),
        };
    }
    let is_time = matches!(
        kind,
        ColumnType::MYSQL_TYPE_DATE | ColumnType::MYSQL_TYPE_DATETIME | ColumnType::MYSQL_TYPE_TIMESTAMP
    );
    let time = server_time(text).filter(|_| is_time);
    SqlValue::Text(time.unwrap_or_else(|| text.to_owned()))
}

/// An untyped value without a known column type. The server compares a text with a number as doubles, which is exact up
/// to 53 bits; so a longer integer is sent as an integer.
fn of_no_type(text: &str) -> SqlValue {
    const EXACT: u64 = 1 << 53;
    match text.parse::<i64>() {
        Ok(number) if number.unsigned_abs() > EXACT && number.to_string() == text => SqlValue::Integer(number),
        Err(_) if text.parse::<u64>().is_ok_and(|number| number.to_string() == text) => {
            SqlValue::Unsigned(text.parse().unwrap_or_default())
        }
        _ => SqlValue::Text(server_time(text).unwrap_or_else(|| text.to_owned())),
    }
}

/// The number of fraction digits of a decimal number.
fn scale_of(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let all = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (!whole.is_empty() && all(whole) && all(part) && part.len() <= 38 && digits.len() <= 66).then_some(part.len())
}

/// The placeholder of this value in a statement. The server would compare a decimal number with a text as doubles.
fn placeholder(mark: &SqlValue) -> String {
    match mark {
        SqlValue::Decimal(text) => {
            scale_of(text).map_or("?".to_owned(), |scale| format!("CAST(? AS DECIMAL(65,{scale}))"))
        }
        _ => "?".to_owned(),
    }
}

/// The parameter, once per placeholder.
fn parameters(mark: &SqlValue, count: usize) -> Params {
    let value = match mark {
        SqlValue::Null => Value::NULL,
        SqlValue::Integer(number) => Value::Int(*number),
        SqlValue::Unsigned(number) => Value::UInt(*number),
        SqlValue::Real(number) => Value::Double(*number),
        SqlValue::Bytes(bytes) => Value::Bytes(bytes.clone()),
        SqlValue::Decimal(text) | SqlValue::Text(text) | SqlValue::Untyped(text) => {
            Value::Bytes(text.clone().into_bytes())
        }
    };
    if count == 0 { Params::Empty } else { Params::Positional(vec![value; count]) }
}

/// Converts an event time to the format of the server.
fn server_time(text: &str) -> Option<String> {
    let is_time = text.len() == 27 && text.ends_with('Z') && text.as_bytes()[10] == b'T';
    is_time.then(|| text.replacen('T', " ", 1).trim_end_matches('Z').to_owned())
}

#[async_trait]
impl Database for Mysql {
    async fn query(&mut self, request: QueryRequest<'_>) -> Result<Rows, SourceError> {
        let asked = request.query.trim().trim_end_matches(';');
        let connection = &mut self.connection;
        let asked = Self::with_timeout(self.timeout, async {
            let mut options = TxOpts::default();
            options.with_readonly(true).with_isolation_level(IsolationLevel::RepeatableRead);
            let mut transaction = connection.start_transaction(options).await?;
            let (query, count) = with_parameters(asked, |_| placeholder(request.mark));
            let mut statement = transaction.prep(&query).await?;
            let names: Arc<[String]> =
                statement.columns().iter().map(|column| column.name_str().into_owned()).collect();
            let mark_at = match request.mark_column.map(|name| position_of(&names, name)).transpose() {
                Ok(at) => at,
                Err(error) => return Ok(Err(error)),
            };
            let mut mark = request.mark.clone();
            if let (SqlValue::Untyped(text), Some(at)) = (&mark, mark_at) {
                mark = of_type(text, statement.columns()[at].column_type());
                if placeholder(&mark) != "?" {
                    statement = transaction.prep(&with_parameters(asked, |_| placeholder(&mark)).0).await?;
                }
            }
            let (mut counter, mut more, mut found) = (BatchCounter::new(&request), false, Vec::new());
            {
                let mut result = transaction.exec_iter(&statement, parameters(&mark, count)).await?;
                while !more && let Some(row) = result.next().await? {
                    more = counter.ends_with((0..row.len()).filter_map(|at| row.as_ref(at)).map(bytes_of).sum());
                    found.push(row);
                }
                result.drop_result().await?;
            }
            transaction.commit().await?;
            Ok(Ok((names, mark_at, found, more)))
        });
        let (names, mark_at, found, more) = asked.await??;
        let read = |row: mysql_async::Row| {
            let kinds: Vec<ColumnType> = row.columns_ref().iter().map(|column| column.column_type()).collect();
            let values = row.unwrap();
            let mark = mark_at.map(|at| mark_of(&values[at], kinds[at]));
            let cells = values.iter().zip(kinds).map(|(value, kind)| (cell(value, kind), is_bare(kind))).collect();
            RowRead { cells, mark }
        };
        Ok(Rows::new(names, found.into_iter().map(read).collect(), more))
    }

    async fn run(&mut self, statement: &str, marks: &[SqlValue]) -> Result<(), SourceError> {
        let connection = &mut self.connection;
        let done = Self::with_timeout(self.timeout, async {
            let mut transaction = connection.start_transaction(TxOpts::default()).await?;
            // Marks of one column have one form, so one statement is prepared.
            let mut prepared = None;
            for mark in marks {
                let mark = if let SqlValue::Untyped(text) = mark { of_no_type(text) } else { mark.clone() };
                let (text, count) = with_parameters(statement, |_| placeholder(&mark));
                let known = prepared.take_if(|(known, _)| *known == text);
                let (text, ready) = match known {
                    Some(known) => known,
                    None => {
                        let ready = transaction.prep(&text).await?;
                        (text, ready)
                    }
                };
                transaction.exec_drop(&ready, parameters(&mark, count)).await?;
                prepared = Some((text, ready));
            }
            transaction.commit().await
        });
        done.await
    }

    async fn lock(&mut self, name: &str) -> Result<(), SourceError> {
        // A lock name may have 64 characters.
        let name = format!("tocsin {}", &crate::seen_items::hash(&[name.as_bytes()]));
        let asked = self.connection.exec_first("SELECT GET_LOCK(?, 0)", (name,));
        let got: Option<Option<i64>> = Self::with_timeout(self.timeout, asked).await?;
        match got.flatten() {
            Some(1) => Ok(()),
            _ => Err(SourceError::of("another source takes from there")),
        }
    }

    async fn listen(&mut self, _channel: &str, _wakeup: Arc<Notify>) -> Result<(), SourceError> {
        Err(SourceError::of("MySQL has no notifications; remove `listen`"))
    }

    fn quoted(&self, name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}
