//! Open work of removed applications.

use rusqlite::Connection;
use tocsin_model::{
    id::{EventBatchId, Name},
    receipt::Attempt,
    time::Timestamp,
};

use super::{broadcasts, claim::find_item, counters::oldest_event, delays, suspensions, views::collect};
use crate::{
    error::StoreError,
    journal::{APPLICATION_REMOVED, EndedWork, SuspensionFilter, ended_attempt},
    sqlite::{
        journal::{context::JournalContext, row_writer::RowWriter},
        writer::{AfterCommit, store_error},
    },
};

/// Maximum number of work items, of suspensions and of event batches per commit.
const ROWS_MAX: usize = 256;
/// Maximum number of notifications per commit, if it affects more than one work item or suspension.
const NOTIFICATIONS_MAX: u64 = 10_000;

/// Applications with event batches that wait or failed, work items, or suspensions.
pub fn open_applications(connection: &Connection) -> Result<Vec<Name>, StoreError> {
    let sql = "SELECT name FROM names n
        WHERE EXISTS (SELECT 1 FROM work w WHERE w.application = n.id)
           OR EXISTS (SELECT 1 FROM event_waiting e WHERE e.application = n.id)
           OR id IN (SELECT application FROM event_failed)
           OR id IN (SELECT application FROM delayed_counts WHERE waiting > 0)
           OR id IN (SELECT application FROM suspensions) ORDER BY name";
    let found = collect(connection, sql, (), |row| row.get::<_, String>(0).map_err(store_error))?;
    found.into_iter().map(|name| name.parse().map_err(|_| StoreError::Damaged(format!("the name `{name}`")))).collect()
}

/// Ends as much open work of an application as fits one commit. Returns whether none is left.
pub fn end_some(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    application: i64,
    now: Timestamp,
) -> Result<(EndedWork, bool), StoreError> {
    let mut rows = RowWriter::new(connection, shared, now);
    let mut ended = EndedWork::default();
    let is_done = end_rows(connection, after, shared, application, now, &mut rows, &mut ended)?;
    let oldest = if ended.event_batches > 0 { Some(oldest_event(connection)?) } else { None };
    rows.store_counts(after, oldest, false)?;
    Ok((ended, is_done))
}

fn end_rows(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    application: i64,
    now: Timestamp,
    rows: &mut RowWriter<'_>,
    ended: &mut EndedWork,
) -> Result<bool, StoreError> {
    let closing = |attempts: u32, ordinals: &[u32]| -> Vec<Attempt> {
        ordinals.iter().map(|ordinal| ended_attempt(attempts, *ordinal, APPLICATION_REMOVED, now)).collect()
    };
    let sql = "SELECT id, channel, notifications FROM work WHERE application = ?1 LIMIT ?2";
    let items: Vec<(u64, i64, u32)> =
        collect(connection, sql, (application, ROWS_MAX), |row| row.try_into().map_err(store_error))?;
    let is_last = items.len() < ROWS_MAX;
    for (id, channel, notifications) in items {
        if ended.notifications > NOTIFICATIONS_MAX {
            return Ok(false);
        }
        let Some(item) = find_item(connection, id, 0)? else { continue };
        let open = item.ordinals.unwrap_or_else(|| (0..notifications).collect());
        rows.finish(item.claim)?;
        rows.add_receipts(item.batch, channel, &closing(item.attempts, &open))?;
        ended.notifications += open.len() as u64;
        // A worker that still has it cannot commit.
        let claims = shared.claims.clone();
        after.run(move || claims.lock().work.drop_lease(id));
    }
    if !is_last {
        return Ok(false);
    }
    let filter = SuspensionFilter { application: Some(shared.names.name(application)?), ..SuspensionFilter::default() };
    let suspended = suspensions::list(connection, shared, &filter, (0, None), ROWS_MAX)?;
    let is_last = suspended.len() < ROWS_MAX;
    for stored in suspended {
        if ended.notifications > NOTIFICATIONS_MAX {
            return Ok(false);
        }
        let suspension = stored.suspension;
        rows.remove_suspension(stored.id, suspension.ordinals.len())?;
        let channel = shared.names.find(&suspension.channel).unwrap_or(0);
        rows.add_receipts(suspension.batch, channel, &closing(suspension.attempts, &suspension.ordinals))?;
        ended.notifications += suspension.ordinals.len() as u64;
    }
    if !is_last {
        return Ok(false);
    }
    let sql = "SELECT id FROM (SELECT id FROM event_waiting WHERE application = ?1
            UNION ALL SELECT id FROM event_failed WHERE application = ?1) LIMIT ?2";
    let batches: Vec<u64> = collect(connection, sql, (application, ROWS_MAX), |row| row.get(0).map_err(store_error))?;
    for id in &batches {
        rows.close_unmatched(EventBatchId(*id))?;
        let (claims, id) = (shared.claims.clone(), *id);
        after.run(move || claims.lock().events.drop_lease(id));
    }
    ended.event_batches += batches.len() as u64;
    let is_last = batches.len() < ROWS_MAX && delays::end_some(rows, application, ROWS_MAX)? < ROWS_MAX;
    if is_last {
        broadcasts::end_application(connection, &shared.names.name(application)?, APPLICATION_REMOVED, now)?;
    }
    Ok(is_last)
}
