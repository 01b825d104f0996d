//! Broadcasts, their progress, and the work that they hold. Broadcasts are few, so names are stored as text.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::json;
use tocsin_model::{
    id::{BroadcastId, EventBatchId, Name, NotificationBatchId, SubscriptionId},
    time::Timestamp,
};

use super::{
    accept,
    context::JournalContext,
    row_writer::RowWriter,
    submission_queue::NewRow,
    views::{NUMBER_MAX, collect},
};
use crate::{
    audit::{self, Image},
    error::StoreError,
    journal::{
        Broadcast, BroadcastChange, BroadcastFilter, BroadcastState, BroadcastStep, BroadcastTotals, HELD,
        NewBroadcast, NextPart, RequestedState, changed_state, no_broadcast,
    },
    sqlite::writer::{AfterCommit, store_error},
};

const COLUMNS: &str =
    "id, application, draft, \"by\", created_at, starts_at, state, queued, version, started_at, reached,
    examined, matched_at, changed_at, changed_by, reason";

/// Condition of an unfinished match without an event in the journal; the same as that of the index.
const STARTABLE: &str = "state IN ('scheduled', 'running') AND queued = 0 AND matched_at IS NULL";

fn read(row: &Row<'_>) -> Result<Broadcast, StoreError> {
    let time = |at: usize| row.get::<_, Option<i64>>(at).map(|time| time.map(Timestamp)).map_err(store_error);
    let id = BroadcastId(row.get(0).map_err(store_error)?);
    let damaged = || StoreError::Damaged(format!("the broadcast {id}"));
    let text = |at: usize| row.get::<_, String>(at).map_err(store_error);
    let (application, state) = (text(1)?, text(6)?);
    let state = BroadcastState::ALL.into_iter().find(|known| known.word() == state);
    Ok(Broadcast {
        id,
        application: application.parse().map_err(|_| damaged())?,
        draft: text(2)?,
        by: text(3)?,
        created_at: time(4)?.ok_or_else(damaged)?,
        starts_at: time(5)?.ok_or_else(damaged)?,
        state: state.ok_or_else(damaged)?,
        is_queued: row.get(7).map_err(store_error)?,
        version: row.get(8).map_err(store_error)?,
        started_at: time(9)?,
        reached: SubscriptionId(row.get(10).map_err(store_error)?),
        examined: row.get(11).map_err(store_error)?,
        matched_at: time(12)?,
        changed_at: time(13)?.ok_or_else(damaged)?,
        changed_by: text(14)?,
        reason: row.get(15).map_err(store_error)?,
    })
}

fn execute(connection: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<usize, StoreError> {
    connection.prepare_cached(sql).and_then(|mut statement| statement.execute(params)).map_err(store_error)
}

/// Stores a broadcast unless its key exists. Returns the stored broadcast and whether it is new.
pub fn put(connection: &Connection, new: &NewBroadcast) -> Result<(Broadcast, bool), StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM broadcasts WHERE key = ?1");
    if let Some(known) = collect(connection, &sql, [&new.key], read)?.pop() {
        return Ok((known, false));
    }
    let NewBroadcast { key, application, draft, by, created_at, starts_at } = new;
    execute(
        connection,
        "INSERT INTO broadcasts (key, application, draft, \"by\", created_at, starts_at, state, queued, reached,
             examined, changed_at, changed_by, recipients, delivered, failed)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'scheduled', 0, 0, 0, ?5, ?4, 0, 0, 0)",
        (key, application.as_str(), draft, by, created_at.0, starts_at.0),
    )?;
    let stored = collect(connection, &sql, [key], read)?.pop();
    if let Some(stored) = &stored {
        audit::changed(|| {
            let draft = serde_json::from_str(draft).unwrap_or_default();
            Image::of("broadcast", stored.id, None, Some(draft))
        });
    }
    stored.map(|stored| (stored, true)).ok_or_else(|| StoreError::Damaged("a broadcast".to_owned()))
}

/// Broadcast by number.
pub fn find(connection: &Connection, id: BroadcastId) -> Result<Option<Broadcast>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM broadcasts WHERE id = ?1");
    Ok(collect(connection, &sql, [id.0.min(NUMBER_MAX)], read)?.pop())
}

/// Broadcasts before a number, newest first.
pub fn list(
    connection: &Connection,
    filter: &BroadcastFilter,
    before: Option<BroadcastId>,
    limit: usize,
) -> Result<Vec<Broadcast>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM broadcasts
         WHERE id < ?1 AND (?2 IS NULL OR application = ?2) AND (?3 IS NULL OR state = ?3) AND (?4 IS NULL OR key = ?4)
         ORDER BY id DESC LIMIT ?5"
    );
    let before = before.map_or(i64::MAX as u64, |before| before.0.min(i64::MAX as u64));
    let (application, state) = (filter.application.as_ref().map(Name::as_str), filter.state.map(BroadcastState::word));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    collect(connection, &sql, params![before, application, state, filter.key, limit], read)
}

/// Broadcasts that need an event, by start time.
pub fn startable(connection: &Connection, limit: usize) -> Result<Vec<Broadcast>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM broadcasts WHERE {STARTABLE} ORDER BY starts_at, id LIMIT ?1");
    collect(connection, &sql, [i64::try_from(limit).unwrap_or(i64::MAX)], read)
}

/// Accepts the event of the next part, unless the broadcast has one or its state does not permit it.
pub fn begin(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    id: BroadcastId,
    event: &NewRow,
) -> Result<Option<EventBatchId>, StoreError> {
    let sql = format!(
        "UPDATE broadcasts SET state = 'running', queued = 1, version = coalesce(version, ?2),
             started_at = coalesce(started_at, ?3)
         WHERE id = ?1 AND {STARTABLE}"
    );
    if execute(connection, &sql, (id.0, event.version, event.accepted_at.0))? == 0 {
        return Ok(None);
    }
    let accepted = accept::store_all(connection, after, shared, std::slice::from_ref(event))?;
    Ok(accepted.first().map(|accepted| accepted.id()))
}

/// Changes the state of a broadcast, and the due time of its work.
pub fn change(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    id: BroadcastId,
    change: &BroadcastChange,
) -> Result<Broadcast, StoreError> {
    let present = find(connection, id)?.ok_or_else(|| no_broadcast(id))?;
    let Some(state) = changed_state(&present, change.to) else { return Ok(present) };
    let BroadcastChange { to, by, reason, now } = change;
    audit::changed(|| {
        let image = |state: BroadcastState| Some(json!({ "state": state.word() }));
        Image::of("broadcast", id, image(present.state), image(state))
    });
    execute(
        connection,
        "UPDATE broadcasts SET state = ?2, changed_at = ?3, changed_by = ?4, reason = ?5 WHERE id = ?1",
        (id.0, state.word(), now.0, by, reason.as_deref()),
    )?;
    // A cancellation closes all open work, so all of it becomes due.
    let from = match to {
        RequestedState::Resumed => Some(HELD),
        RequestedState::Cancelled => Some(Timestamp(now.0 + 1)),
        RequestedState::Paused | RequestedState::Failed => None,
    };
    if let Some(from) = from {
        execute(
            connection,
            "UPDATE work SET due_at = ?2, window_end = NULL
             WHERE due_at >= ?3 AND batch IN (SELECT notification_batch FROM broadcast_batches WHERE broadcast = ?1)",
            (id.0, now.0, from.0),
        )?;
        let shared = shared.clone();
        after.run(move || shared.arrivals.work());
    }
    find(connection, id)?.ok_or_else(|| no_broadcast(id))
}

/// Due time of a retry: work is held only while its broadcast is paused.
pub fn due_at(
    connection: &Connection,
    batch: NotificationBatchId,
    due_at: Timestamp,
    now: Timestamp,
) -> Result<Timestamp, StoreError> {
    if due_at != HELD {
        return Ok(due_at);
    }
    let sql = "SELECT b.state = 'paused' FROM broadcast_batches l JOIN broadcasts b ON b.id = l.broadcast
        WHERE l.notification_batch = ?1";
    let is_paused = connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row([batch.0], |row| row.get::<_, bool>(0)).optional())
        .map_err(store_error)?;
    Ok(if is_paused == Some(true) { HELD } else { now })
}

/// Records the progress of a step.
pub fn record(connection: &Connection, step: &BroadcastStep) -> Result<(), StoreError> {
    let BroadcastStep { id, reached, examined, next, now } = step;
    execute(
        connection,
        "UPDATE broadcasts SET reached = ?2, examined = examined + ?3, queued = ?4, matched_at = ?5 WHERE id = ?1",
        (id.0, reached.0, *examined, *next == NextPart::Continued, (*next == NextPart::Matched).then_some(now.0)),
    )?;
    if let NextPart::Failed(reason) = next {
        execute(
            connection,
            "UPDATE broadcasts SET state = 'failed', reason = ?2, changed_at = ?3
             WHERE id = ?1 AND state <> 'cancelled'",
            (id.0, reason, now.0),
        )?;
    }
    Ok(())
}

/// Sums over the notifications of a broadcast.
pub fn totals(connection: &Connection, id: BroadcastId) -> Result<BroadcastTotals, StoreError> {
    let sql = "SELECT
        b.recipients + (SELECT coalesce(sum(n.notifications), 0) FROM broadcast_batches l
            JOIN notification_batches n ON n.id = l.notification_batch WHERE l.broadcast = b.id),
        coalesce(sum(s.open), 0),
        (SELECT coalesce(sum(w.notifications), 0) FROM broadcast_batches l
            JOIN suspensions w ON w.batch = l.notification_batch WHERE l.broadcast = b.id),
        b.delivered + coalesce(sum(s.delivered), 0),
        b.failed + coalesce(sum(s.failed), 0)
        FROM broadcasts b LEFT JOIN broadcast_batches l ON l.broadcast = b.id
        LEFT JOIN notification_states s ON s.id = l.notification_batch
        WHERE b.id = ?1 GROUP BY b.id, b.recipients, b.delivered, b.failed";
    let found = collect(connection, sql, [id.0.min(NUMBER_MAX)], |row| {
        let (recipients, open, suspended, delivered, failed) = row.try_into().map_err(store_error)?;
        Ok(BroadcastTotals { recipients, open, suspended, delivered, failed })
    })?;
    Ok(found.into_iter().next().unwrap_or_default())
}

/// Notification batches of a broadcast after one, oldest first.
pub fn batches(
    connection: &Connection,
    id: BroadcastId,
    after: NotificationBatchId,
    limit: usize,
) -> Result<Vec<NotificationBatchId>, StoreError> {
    let sql = "SELECT notification_batch FROM broadcast_batches WHERE broadcast = ?1 AND notification_batch > ?2
        ORDER BY notification_batch LIMIT ?3";
    let (after, limit) = (after.0.min(NUMBER_MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    collect(connection, sql, (id.0.min(NUMBER_MAX), after, limit), |row| {
        row.get(0).map(NotificationBatchId).map_err(store_error)
    })
}

/// Adds a notification batch that is about to be deleted to the counts of its broadcast.
pub fn keep_counts(connection: &Connection, batch: u64) -> Result<(), StoreError> {
    let sql = "DELETE FROM broadcast_batches WHERE notification_batch = ?1 RETURNING broadcast";
    let of = connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row([batch], |row| row.get::<_, u64>(0)).optional())
        .map_err(store_error)?;
    let Some(broadcast) = of else { return Ok(()) };
    execute(
        connection,
        "UPDATE broadcasts SET recipients = broadcasts.recipients + n.notifications,
             delivered = broadcasts.delivered + s.delivered, failed = broadcasts.failed + s.failed
         FROM notification_batches n JOIN notification_states s ON s.id = n.id
         WHERE broadcasts.id = ?1 AND n.id = ?2",
        (broadcast, batch),
    )
    .map(|_| ())
}

const FINISHED: &str = "queued = 0
    AND (matched_at < ?1 AND state <> 'paused' OR state IN ('cancelled', 'failed') AND changed_at < ?1)
    AND NOT EXISTS (SELECT 1 FROM broadcast_batches l WHERE l.broadcast = broadcasts.id)";

/// Whether any broadcast was finished before a time and has no notification batches left.
pub fn is_any_expired(connection: &Connection, before: Timestamp) -> Result<bool, StoreError> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM broadcasts WHERE {FINISHED})");
    let found = connection.prepare_cached(&sql).and_then(|mut found| found.query_row([before.0], |row| row.get(0)));
    found.map_err(store_error)
}

/// Deletes broadcasts that were finished before a time and have no notification batches left.
pub fn prune(connection: &Connection, before: Timestamp) -> Result<(), StoreError> {
    execute(connection, &format!("DELETE FROM broadcasts WHERE {FINISHED}"), [before.0]).map(|_| ())
}

/// Cancels the broadcasts of a removed application.
pub fn end_application(
    connection: &Connection,
    application: &Name,
    reason: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    execute(
        connection,
        "UPDATE broadcasts SET state = 'cancelled', queued = 0, reason = ?2, changed_at = ?3
         WHERE application = ?1 AND (queued = 1 OR matched_at IS NULL AND state IN ('scheduled', 'running', 'paused'))",
        (application.as_str(), reason, now.0),
    )
    .map(|_| ())
}

impl RowWriter<'_> {
    /// Records that a notification batch belongs to a broadcast, if its rule is named after one.
    pub(super) fn link_broadcast(&mut self, batch: NotificationBatchId, rule: &Name) -> Result<(), StoreError> {
        let Ok(id) = rule.as_str().parse::<BroadcastId>() else { return Ok(()) };
        let sql = "INSERT INTO broadcast_batches (notification_batch, broadcast) VALUES (?1, ?2)";
        self.execute(sql, (batch.0, id.0)).map(|_| ())
    }
}
