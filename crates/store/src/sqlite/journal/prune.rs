//! Retention. Expired rows are deleted in small commits, so that other writers wait only briefly.

use rusqlite::Connection;
use tocsin_model::time::Timestamp;

use super::{
    activity::{self, BatchKind, ClassKey},
    broadcasts,
    names::Names,
    packing::unpack_numbers,
    views::{CHUNK_BITS, collect},
};
use crate::{error::StoreError, journal::Cutoffs, sqlite::writer::store_error};

/// Maximum number of batches per commit.
pub const BATCHES_MAX: usize = 64;
/// Maximum number of idempotency keys, quanta or minutes per commit.
pub const KEYS_MAX: usize = 1_000;

/// Applications and classes with expired batches, each with its cutoff.
pub fn expired_classes(
    connection: &Connection,
    names: &Names,
    of: BatchKind,
    cutoffs: &Cutoffs,
) -> Result<Vec<(ClassKey, Timestamp)>, StoreError> {
    let sql = match of {
        BatchKind::Notifications => {
            "SELECT EXISTS (SELECT 1 FROM notification_states WHERE application = ?1 AND class = ?2 AND closed_at < ?3)"
        }
        BatchKind::Events => {
            "SELECT EXISTS (SELECT 1 FROM event_matched WHERE application = ?1 AND class = ?2 AND closed_at < ?3)"
        }
    };
    let mut any = connection.prepare_cached(sql).map_err(store_error)?;
    let mut found = Vec::new();
    for ((application, class), lane) in activity::classes(connection, names, of)? {
        let before = match of {
            BatchKind::Notifications => cutoffs.of_notifications(application, class),
            BatchKind::Events => cutoffs.of_events(application, class),
        };
        if any.query_row((lane.0, lane.1, before.0), |row| row.get(0)).map_err(store_error)? {
            found.push((lane, before));
        }
    }
    Ok(found)
}

/// Number of expired batches of a class, counted up to `most`.
pub fn count(
    connection: &Connection,
    of: BatchKind,
    (application, class): ClassKey,
    before: Timestamp,
    most: usize,
) -> Result<usize, StoreError> {
    let sql = match of {
        BatchKind::Notifications => {
            "SELECT count(*) FROM (SELECT 1 FROM notification_states
             WHERE application = ?1 AND class = ?2 AND closed_at < ?3 LIMIT ?4)"
        }
        BatchKind::Events => {
            "SELECT count(*) FROM (SELECT 1 FROM event_matched
             WHERE application = ?1 AND class = ?2 AND closed_at < ?3 LIMIT ?4)"
        }
    };
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    statement.query_row((application, class, before.0, most), |row| row.get(0)).map_err(store_error)
}

/// Deletes the notification batches of a class that were closed first, with dependent rows. Returns their number.
pub fn prune_notifications(
    connection: &Connection,
    (application, class): ClassKey,
    before: Timestamp,
    limit: usize,
) -> Result<usize, StoreError> {
    let sql = "SELECT id, events FROM notification_states WHERE application = ?1 AND class = ?2 AND closed_at < ?3
        ORDER BY closed_at, id LIMIT ?4";
    let closed = collect(connection, sql, (application, class, before.0, limit), |row| {
        let (id, events): (u64, Vec<u8>) = row.try_into().map_err(store_error)?;
        Ok((id, unpack_numbers(&events)?))
    })?;
    for (id, events) in &closed {
        broadcasts::keep_counts(connection, *id)?;
        execute(connection, "DELETE FROM notification_batches WHERE id = ?1", [*id])?;
        execute(connection, "DELETE FROM notification_states WHERE id = ?1", [*id])?;
        let chunks = [*id << CHUNK_BITS, (*id + 1) << CHUNK_BITS];
        execute(connection, "DELETE FROM receipts WHERE id > ?1 AND id < ?2", chunks)?;
        for event in events {
            execute(connection, "DELETE FROM links WHERE event_batch = ?1 AND notification_batch = ?2", [*event, *id])?;
        }
    }
    Ok(closed.len())
}

/// Deletes the event batches of a class that were closed first. Returns their number.
pub fn prune_events(
    connection: &Connection,
    (application, class): ClassKey,
    before: Timestamp,
    limit: usize,
) -> Result<usize, StoreError> {
    let sql = "SELECT id FROM event_matched WHERE application = ?1 AND class = ?2 AND closed_at < ?3
        ORDER BY closed_at, id LIMIT ?4";
    let closed = collect(connection, sql, (application, class, before.0, limit), |row| {
        row.get::<_, u64>(0).map_err(store_error)
    })?;
    for id in &closed {
        execute(connection, "DELETE FROM event_batches WHERE id = ?1", [*id])?;
        execute(connection, "DELETE FROM event_matched WHERE id = ?1", [*id])?;
        execute(connection, "DELETE FROM event_chronicles WHERE id = ?1", [*id])?;
        execute(connection, "DELETE FROM event_traces WHERE id = ?1", [*id])?;
        execute(connection, "DELETE FROM run_links WHERE run = ?1", [*id])?;
    }
    // The last row stays: it applies to future batches.
    let sql = "DELETE FROM places
        WHERE first < (SELECT max(first) FROM places WHERE first <= (SELECT coalesce(min(id), ?1) FROM event_batches))";
    execute(connection, sql, [i64::MAX as u64])?;
    Ok(closed.len())
}

/// Deletes expired idempotency keys. Returns their number.
pub fn prune_keys(connection: &Connection, now: Timestamp) -> Result<usize, StoreError> {
    let sql =
        "DELETE FROM idempotency WHERE key IN (SELECT key FROM idempotency WHERE until <= ?1 ORDER BY until LIMIT ?2)";
    connection.prepare_cached(sql).and_then(|mut statement| statement.execute((now.0, KEYS_MAX))).map_err(store_error)
}

fn execute<const N: usize>(connection: &Connection, sql: &str, numbers: [u64; N]) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    statement.execute(rusqlite::params_from_iter(numbers)).map_err(store_error)?;
    Ok(())
}
