//! Quanta: runs of the matcher.

use rusqlite::{Connection, OptionalExtension, Row};
use tocsin_model::time::Timestamp;

use super::views::collect;
use crate::{error::StoreError, journal::quanta::Quantum, sqlite::writer::store_error};

/// Adds a quantum under the next number.
pub fn add(connection: &Connection, quantum: &Quantum) -> Result<(), StoreError> {
    connection
        .prepare_cached("INSERT INTO quanta (started_at, ended_at, body) VALUES (?1, ?2, ?3)")
        .and_then(|mut statement| statement.execute((quantum.started_at.0, quantum.ended_at.0, quantum.pack())))
        .map(|_| ())
        .map_err(store_error)
}

/// Quanta that ended in a time range, newest first.
pub fn list(
    connection: &Connection,
    from: Timestamp,
    to: Timestamp,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<Quantum>, StoreError> {
    let sql = "SELECT id, started_at, ended_at, body FROM quanta
        WHERE ended_at >= ?1 AND ended_at < ?2 AND id < ?3 ORDER BY ended_at DESC, id DESC LIMIT ?4";
    let before = before.and_then(|before| i64::try_from(before).ok()).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    collect(connection, sql, (from.0, to.0, before, limit), read)
}

/// Quantum by number.
pub fn find(connection: &Connection, id: u64) -> Result<Option<Quantum>, StoreError> {
    let Ok(id) = i64::try_from(id) else { return Ok(None) };
    let mut statement = connection
        .prepare_cached("SELECT id, started_at, ended_at, body FROM quanta WHERE id = ?1")
        .map_err(store_error)?;
    statement.query_row([id], |row| Ok(read(row))).optional().map_err(store_error)?.transpose()
}

fn read(row: &Row<'_>) -> Result<Quantum, StoreError> {
    let (id, started_at, ended_at, body): (u64, i64, i64, Vec<u8>) = row.try_into().map_err(store_error)?;
    Ok(Quantum::unpack(id, Timestamp(started_at), Timestamp(ended_at), &body)?)
}

/// Deletes quanta that ended before a time, oldest first. Returns their number.
pub fn prune(connection: &Connection, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
    let sql = "DELETE FROM quanta WHERE id IN (SELECT id FROM quanta WHERE ended_at < ?1 ORDER BY ended_at LIMIT ?2)";
    connection.prepare_cached(sql).and_then(|mut found| found.execute((before.0, limit))).map_err(store_error)
}
