//! Read-only queries for reports and traces.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Params, Row};
use tocsin_model::{
    event::{EventBatch, PackedEvents},
    id::{ChangeSequence, EventBatchId, Name, NotificationBatchId},
    notification::{NotificationHead, Notifications},
    receipt::{Attempt, unpack_attempts},
    time::Timestamp,
    trace_context::Traces,
};

use super::{names::Names, packing::unpack_body};
use crate::{
    error::StoreError,
    journal::{EventBatchState, Progress, StoredNotificationBatch, WorkCounts},
    sqlite::writer::store_error,
};

/// Reads all rows of a query.
pub fn collect<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query(params).map_err(store_error)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(store_error)? {
        found.push(read(row)?);
    }
    Ok(found)
}

fn find<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    statement.query_row(params, |row| Ok(read(row))).optional().map_err(store_error)?.transpose()
}

/// Channels of an application that have work. One index search per known name, so that a long queue is not scanned.
pub fn open_channels(connection: &Connection, application: i64) -> Result<Vec<Name>, StoreError> {
    let sql = "SELECT name FROM names n
        WHERE EXISTS (SELECT 1 FROM work w WHERE w.application = ?1 AND w.channel = n.id)
           OR id IN (SELECT channel FROM suspensions WHERE application = ?1) ORDER BY name";
    let found = collect(connection, sql, [application], |row| row.get::<_, String>(0).map_err(store_error))?;
    found.into_iter().map(|name| name.parse().map_err(|_| StoreError::Damaged(format!("the name `{name}`")))).collect()
}

/// Counts due and future work items.
pub fn work_counts(connection: &Connection, now: Timestamp) -> Result<WorkCounts, StoreError> {
    let sql = "SELECT count(*) FILTER (WHERE due_at <= ?1), count(*) FILTER (WHERE due_at > ?1),
            min(due_at) FILTER (WHERE due_at > ?1)
        FROM work";
    let read = |row: &Row<'_>| {
        let next = row.get::<_, Option<i64>>(2)?.map(Timestamp);
        Ok(WorkCounts { due: row.get(0)?, later: row.get(1)?, next })
    };
    connection.prepare_cached(sql).and_then(|mut statement| statement.query_row([now.0], read)).map_err(store_error)
}

// The body is the last column, so that reading the other columns does not touch its overflow pages.
const EVENTS: &str = "SELECT b.id, b.application, b.version, b.class, b.source, b.received_at, b.accepted_at, b.events,
        m.matched_at, f.reason, (SELECT p.sees FROM places p WHERE p.first <= b.id ORDER BY p.first DESC LIMIT 1),
        b.bytes, b.body, t.body
    FROM event_batches b LEFT JOIN event_matched m ON m.id = b.id LEFT JOIN event_failed f ON f.id = b.id
        LEFT JOIN event_traces t ON t.id = b.id";

/// Event batch with its state.
pub fn find_event_batch(
    connection: &Connection,
    names: &Names,
    id: EventBatchId,
) -> Result<Option<(EventBatch, EventBatchState)>, StoreError> {
    if id.0 > NUMBER_MAX {
        return Ok(None);
    }
    let found = find(connection, &format!("{EVENTS} WHERE b.id = ?1"), [id.0], |row| {
        let body = row.get_ref(12).and_then(|body| Ok(body.as_blob()?)).map_err(store_error)?;
        read_event_batch(row, names, unpack_body(body, row.get(11).map_err(store_error)?)?)
    })?;
    let Some((batch, state)) = found else { return Ok(None) };
    let chronicled = find(connection, "SELECT bytes, body FROM event_chronicles WHERE id = ?1", [id.0], |row| {
        let body = row.get_ref(1).and_then(|body| Ok(body.as_blob()?)).map_err(store_error)?;
        unpack_body(body, row.get(0).map_err(store_error)?)
    })?;
    Ok(Some((EventBatch { chronicled: chronicled.unwrap_or_default(), ..batch }, state)))
}

/// Newest event batches before one, newest first, without bodies.
pub fn event_batches(
    connection: &Connection,
    names: &Names,
    before: Option<EventBatchId>,
    limit: usize,
) -> Result<Vec<(EventBatch, EventBatchState)>, StoreError> {
    let sql = format!("{EVENTS} WHERE b.id < ?1 ORDER BY b.id DESC LIMIT ?2");
    collect(connection, &sql, range(before.map(|id| id.0), limit), |row| read_event_batch(row, names, Bytes::new()))
}

/// Snapshot sequence of the oldest waiting batch.
pub fn oldest_waiting_sequence(connection: &Connection) -> Result<Option<ChangeSequence>, StoreError> {
    let sql = "SELECT p.sees FROM places p WHERE p.first <= (SELECT min(id) FROM event_waiting)
        ORDER BY p.first DESC LIMIT 1";
    find(connection, sql, (), |row| row.get(0).map(ChangeSequence).map_err(store_error))
}

/// Upper bound and limit as SQLite integers.
fn range(before: Option<u64>, limit: usize) -> (i64, i64) {
    let before = before.and_then(|before| i64::try_from(before).ok()).unwrap_or(i64::MAX);
    (before, i64::try_from(limit).unwrap_or(i64::MAX))
}

fn read_event_batch(row: &Row<'_>, names: &Names, body: Bytes) -> Result<(EventBatch, EventBatchState), StoreError> {
    let number = |at: usize| row.get::<_, i64>(at).map_err(store_error);
    let state = match (row.get(8).map_err(store_error)?, row.get(9).map_err(store_error)?) {
        (Some(matched_at), _) => EventBatchState::Matched(Timestamp(matched_at)),
        (None, Some(reason)) => EventBatchState::Failed(reason),
        (None, None) => EventBatchState::Accepted,
    };
    let traces = match row.get_ref(13).and_then(|body| Ok(body.as_blob_or_null()?)).map_err(store_error)? {
        Some(packed) => Traces::unpack(packed)?,
        None => Traces::default(),
    };
    let batch = EventBatch {
        id: EventBatchId(row.get(0).map_err(store_error)?),
        application: names.name(number(1)?)?,
        version: row.get(2).map_err(store_error)?,
        class: names.name(number(3)?)?,
        source: names.name(number(4)?)?,
        received_at: Timestamp(number(5)?),
        accepted_at: Timestamp(number(6)?),
        snapshot_sequence: row.get::<_, Option<u64>>(10).map_err(store_error)?.map(ChangeSequence),
        events: PackedEvents::from_parts(row.get(7).map_err(store_error)?, body).with_traces(traces),
        chronicled: Bytes::new(),
    };
    Ok((batch, state))
}

const NOTIFICATIONS: &str =
    "SELECT id, application, version, rule, class, event_class, channel, matched_at, accepted_at,
        expires_at, notifications, bytes, body
    FROM notification_batches";

/// Notification batch.
pub fn find_notification_batch(
    connection: &Connection,
    names: &Names,
    id: NotificationBatchId,
) -> Result<Option<StoredNotificationBatch>, StoreError> {
    if id.0 > NUMBER_MAX {
        return Ok(None);
    }
    find(connection, &format!("{NOTIFICATIONS} WHERE id = ?1"), [id.0], |row| {
        let body = row.get_ref(12).and_then(|body| Ok(body.as_blob()?)).map_err(store_error)?;
        let body = unpack_body(body, row.get(11).map_err(store_error)?)?;
        let notifications = Notifications::unpack(&body)?;
        Ok(StoredNotificationBatch { id, head: read_head(row, names)?, notifications })
    })
}

/// Newest notification batches before one, newest first, without bodies.
pub fn notification_batches(
    connection: &Connection,
    names: &Names,
    before: Option<NotificationBatchId>,
    limit: usize,
) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
    let sql = format!("{NOTIFICATIONS} WHERE id < ?1 ORDER BY id DESC LIMIT ?2");
    collect(connection, &sql, range(before.map(|id| id.0), limit), |row| read_row(row, names))
}

/// Listed columns of a batch.
fn read_row(row: &Row, names: &Names) -> Result<(NotificationBatchId, NotificationHead, u32), StoreError> {
    let id = NotificationBatchId(row.get(0).map_err(store_error)?);
    Ok((id, read_head(row, names)?, row.get(10).map_err(store_error)?))
}

/// Notification batches after one, oldest first, without bodies.
pub fn notification_batches_after(
    connection: &Connection,
    names: &Names,
    after: NotificationBatchId,
    limit: usize,
) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
    let sql = format!("{NOTIFICATIONS} WHERE id > ?1 ORDER BY id LIMIT ?2");
    let (after, limit) = (i64::try_from(after.0).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    collect(connection, &sql, (after, limit), |row| read_row(row, names))
}

/// Notification batches of an application after one that have open work items, by number, without bodies.
pub fn open_batches(
    connection: &Connection,
    names: &Names,
    application: i64,
    after: NotificationBatchId,
    limit: usize,
) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
    let (after, limit) = (i64::try_from(after.0).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    // Uses the index on the batch, so that closed batches are not read.
    let sql = format!(
        "{NOTIFICATIONS} WHERE id IN (
             SELECT DISTINCT batch FROM work INDEXED BY work_of_batch WHERE batch > ?1 AND application = ?2
             ORDER BY batch LIMIT ?3
         ) ORDER BY id"
    );
    collect(connection, &sql, (after, application, limit), |row| {
        Ok((NotificationBatchId(row.get(0).map_err(store_error)?), read_head(row, names)?))
    })
}

fn read_head(row: &Row<'_>, names: &Names) -> Result<NotificationHead, StoreError> {
    let number = |at: usize| row.get::<_, i64>(at).map_err(store_error);
    Ok(NotificationHead {
        application: names.name(number(1)?)?,
        version: row.get(2).map_err(store_error)?,
        rule: names.name(number(3)?)?,
        class: names.name(number(4)?)?,
        event_class: names.name(number(5)?)?,
        channel: names.name(number(6)?)?,
        matched_at: Timestamp(number(7)?),
        accepted_at: Timestamp(number(8)?),
        expires_at: row.get::<_, Option<i64>>(9).map_err(store_error)?.map(Timestamp),
    })
}

/// Notification batches made from an event batch or by a run at its due time, oldest first.
pub fn notification_batches_of(
    connection: &Connection,
    names: &Names,
    events: EventBatchId,
    after: NotificationBatchId,
    limit: usize,
) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError> {
    if events.0 > NUMBER_MAX || after.0 > NUMBER_MAX {
        return Ok(Vec::new());
    }
    let sql = format!(
        "{NOTIFICATIONS} WHERE id IN (SELECT notification_batch FROM links WHERE event_batch = ?1
             UNION SELECT notification_batch FROM run_links WHERE run = ?1) AND id > ?2
         ORDER BY id LIMIT ?3"
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    collect(connection, &sql, (events.0, after.0, limit), |row| read_row(row, names))
}

/// Low bits of a chunk number: its position among the chunks of its batch.
pub const CHUNK_BITS: u32 = 24;
/// Maximum batch number, so that chunk numbers fit. A query for a higher number finds nothing.
pub const NUMBER_MAX: u64 = (1 << (63 - CHUNK_BITS)) - 2;

/// All attempts at the notifications of a batch, in the order they were recorded.
pub fn attempts(connection: &Connection, batch: NotificationBatchId) -> Result<Vec<Attempt>, StoreError> {
    if batch.0 > NUMBER_MAX {
        return Ok(Vec::new());
    }
    let sql = "SELECT body, bytes FROM receipts WHERE id > ?1 AND id < ?2 ORDER BY id";
    let chunks = collect(connection, sql, (batch.0 << CHUNK_BITS, (batch.0 + 1) << CHUNK_BITS), |row| {
        let body = row.get_ref(0).and_then(|body| Ok(body.as_blob()?)).map_err(store_error)?;
        let body = unpack_body(body, row.get(1).map_err(store_error)?)?;
        Ok(unpack_attempts(&body)?)
    })?;
    Ok(chunks.into_iter().flatten().collect())
}

/// Delivery progress of notification batches.
pub fn progress(connection: &Connection, batches: &[NotificationBatchId]) -> Result<Vec<Option<Progress>>, StoreError> {
    let sql = "SELECT open, attempts, delivered, failed, first_sent_at, last_answered_at, closed_at
        FROM notification_states WHERE id = ?1";
    let read = |row: &Row<'_>| {
        let time = |at: usize| row.get::<_, Option<i64>>(at).map(|time| time.map(Timestamp)).map_err(store_error);
        Ok(Progress {
            open: row.get(0).map_err(store_error)?,
            attempts: row.get(1).map_err(store_error)?,
            delivered: row.get(2).map_err(store_error)?,
            failed: row.get(3).map_err(store_error)?,
            first_sent_at: time(4)?,
            last_answered_at: time(5)?,
            closed_at: time(6)?,
        })
    };
    let of_one = |id: &NotificationBatchId| match id.0 > NUMBER_MAX {
        true => Ok(None),
        false => find(connection, sql, [id.0], read),
    };
    batches.iter().map(of_one).collect()
}

/// Newest notification batches before one with failed notifications, newest first.
pub fn failed_batches(
    connection: &Connection,
    names: &Names,
    before: Option<NotificationBatchId>,
    limit: usize,
) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError> {
    let sql = format!(
        "{NOTIFICATIONS} WHERE id IN (
             SELECT id FROM notification_states INDEXED BY notification_failed WHERE failed > 0 AND id < ?1
             ORDER BY id DESC LIMIT ?2
         ) ORDER BY id DESC"
    );
    collect(connection, &sql, range(before.map(|id| id.0), limit), |row| {
        Ok((NotificationBatchId(row.get(0).map_err(store_error)?), read_head(row, names)?))
    })
}
