//! Checkpoints of sources.

use bytes::Bytes;
use rusqlite::Connection;

use super::views::collect;
use crate::{error::StoreError, journal::Mark, sqlite::writer::store_error};

/// Stores checkpoints of a source; one without a value is deleted.
pub fn store(connection: &Connection, application: i64, source: i64, marks: &[Mark]) -> Result<(), StoreError> {
    for mark in marks {
        let done = match &mark.value {
            Some(value) => connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO source_marks (application, source, part, value) VALUES (?1, ?2, ?3, ?4)",
                )
                .and_then(|mut statement| statement.execute((application, source, &mark.part, &value[..]))),
            None => connection
                .prepare_cached("DELETE FROM source_marks WHERE application = ?1 AND source = ?2 AND part = ?3")
                .and_then(|mut statement| statement.execute((application, source, &mark.part))),
        };
        done.map_err(store_error)?;
    }
    Ok(())
}

/// Page of a source's checkpoints.
pub fn list(
    connection: &Connection,
    (application, source): (i64, i64),
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Mark>, StoreError> {
    let sql = "SELECT part, value FROM source_marks
        WHERE application = ?1 AND source = ?2 AND (?3 IS NULL OR part > ?3) ORDER BY part LIMIT ?4";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    collect(connection, sql, (application, source, after, limit), |row| {
        let (part, value): (Box<str>, Vec<u8>) = row.try_into().map_err(store_error)?;
        Ok(Mark { part, value: Some(Bytes::from(value)) })
    })
}

/// Deletes the checkpoints of all sources of an application.
pub fn delete_all(connection: &Connection, application: i64) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM source_marks WHERE application = ?1")
        .and_then(|mut statement| statement.execute([application]))
        .map_err(store_error)
        .map(|_| ())
}
