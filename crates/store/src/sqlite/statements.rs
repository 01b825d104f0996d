//! Statements and values of rows. SQLite integers are signed; our numbers start at 1 and stay below the maximum.

use std::str::FromStr;

use rusqlite::{Connection, Params, Row};
use tocsin_model::id::Name;

use crate::{error::StoreError, sqlite::writer::store_error};

/// Number as a SQLite integer. Larger numbers become the maximum.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn number_at(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, number))
}

pub(crate) fn parsed_at<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    row.get_ref(column)?.as_str()?.parse().map_err(|error| conversion_failed(column, error))
}

pub(crate) fn name_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Name> {
    parsed_at(row, column)
}

pub(crate) fn json_at<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(|error| conversion_failed(column, error))
}

pub(super) fn conversion_failed(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}

pub(crate) fn json<T: serde::Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("maps with text keys and finite numbers are JSON")
}

/// Runs a cached statement. Returns the number of rows changed.
pub(super) fn execute(connection: &Connection, sql: &str, parameters: impl Params) -> Result<usize, StoreError> {
    connection.prepare_cached(sql).and_then(|mut statement| statement.execute(parameters)).map_err(store_error)
}

pub(super) fn query_one<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query(parameters).map_err(store_error)?;
    rows.next().and_then(|row| row.map(read).transpose()).map_err(store_error)
}

pub(super) fn query_all<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let rows = statement.query_map(parameters, read).map_err(store_error)?;
    rows.collect::<Result<_, _>>().map_err(store_error)
}
