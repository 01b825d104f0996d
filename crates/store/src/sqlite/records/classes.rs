//! Numbers of subscription classes.

use rusqlite::Connection;
use tocsin_model::id::Name;

use crate::{
    error::StoreError,
    sqlite::statements::{execute, name_at, query_all, query_one},
};

/// Classes that have had subscriptions, by application and class name; `None` matches all.
pub(super) fn classes(
    connection: &Connection,
    application: Option<&Name>,
    class: Option<&Name>,
) -> Result<Vec<(i64, Name, Name)>, StoreError> {
    query_all(
        connection,
        "SELECT number, application, name FROM classes
            WHERE (?1 IS NULL OR application = ?1) AND (?2 IS NULL OR name = ?2) ORDER BY number",
        (application.map(Name::as_str), class.map(Name::as_str)),
        |row| Ok((row.get(0)?, name_at(row, 1)?, name_at(row, 2)?)),
    )
}

/// Number of a class, assigned on first use.
pub(super) fn class_number(connection: &Connection, application: &Name, class: &Name) -> Result<i64, StoreError> {
    let names = (application.as_str(), class.as_str());
    let sql = "SELECT number FROM classes WHERE application = ?1 AND name = ?2";
    if let Some(number) = query_one(connection, sql, names, |row| row.get(0))? {
        return Ok(number);
    }
    execute(connection, "INSERT INTO classes (application, name) VALUES (?1, ?2)", names)?;
    Ok(connection.last_insert_rowid())
}
