//! Resend requests, and the notifications that they reopen.

use rusqlite::{Connection, OptionalExtension, Row};
use tocsin_model::{id::NotificationBatchId, time::Timestamp};

use super::{
    packing::{pack_ordinals, unpack_numbers},
    suspensions,
    views::collect,
};
use crate::{
    audit::{self, Image},
    error::StoreError,
    journal::{
        NewResend, ReopenedNotifications, Resend, ResendProgress, StoredSuspension, SuspensionFilter, split_suspension,
    },
    sqlite::{
        journal::{context::JournalContext, row_writer::RowWriter},
        writer::store_error,
    },
};

const COLUMNS: &str = "id, request, \"by\", asked_at, reached, last, notifications, done_at";

fn resend_of(row: &Row<'_>) -> rusqlite::Result<Resend> {
    Ok(Resend {
        id: row.get(0)?,
        request: row.get(1)?,
        by: row.get(2)?,
        asked_at: Timestamp(row.get(3)?),
        reached: NotificationBatchId(row.get(4)?),
        last: NotificationBatchId(row.get(5)?),
        notifications: row.get(6)?,
        done_at: row.get::<_, Option<i64>>(7)?.map(Timestamp),
    })
}

/// Stores a request unless its key exists. Returns the stored request and whether it is new.
pub fn begin(connection: &Connection, new: &NewResend) -> Result<(Resend, bool), StoreError> {
    let find = || {
        let sql = format!("SELECT {COLUMNS} FROM resends WHERE key = ?1");
        let found =
            connection.prepare_cached(&sql).and_then(|mut found| found.query_row([&new.key], resend_of).optional());
        found.map_err(store_error)
    };
    if let Some(known) = find()? {
        return Ok((known, false));
    }
    connection
        .prepare_cached(
            "INSERT INTO resends (key, request, \"by\", asked_at, reached, last, notifications)
             SELECT ?1, ?2, ?3, ?4, 0, coalesce(max(id), 0), 0 FROM notification_batches",
        )
        .and_then(|mut statement| statement.execute((&new.key, &new.request, &new.by, new.asked_at.0)))
        .map_err(store_error)?;
    let made = find()?;
    if let Some(made) = &made {
        audit::changed(|| {
            let request = serde_json::from_str(&new.request).unwrap_or_default();
            Image::of("resend", made.id, None, Some(request))
        });
    }
    made.map(|stored| (stored, true)).ok_or_else(|| StoreError::Damaged("a resend request".to_owned()))
}

/// Requests after a number, oldest first.
pub fn list(connection: &Connection, unfinished: bool, after: u64, limit: usize) -> Result<Vec<Resend>, StoreError> {
    let open = if unfinished { "AND done_at IS NULL" } else { "" };
    let sql = format!("SELECT {COLUMNS} FROM resends WHERE id > ?1 {open} ORDER BY id LIMIT ?2");
    let (after, limit) = (i64::try_from(after).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    collect(connection, &sql, (after, limit), |row| resend_of(row).map_err(store_error))
}

/// Records a step's progress of a request (compare-and-set).
pub fn record_progress(
    connection: &Connection,
    shared: &JournalContext,
    rows: &mut RowWriter<'_>,
    resent: &ResendProgress,
) -> Result<(), StoreError> {
    let mut count = resent.reopens();
    for reopened in &resent.reopened {
        rows.reopen(reopened)?;
    }
    for (batch, ordinals) in &resent.resumed {
        let filter = SuspensionFilter { batch: Some(*batch), ..SuspensionFilter::default() };
        for StoredSuspension { id, mut suspension } in
            suspensions::list(connection, shared, &filter, (0, None), usize::MAX)?
        {
            let whole = suspension.ordinals.len();
            let selected = match split_suspension(&mut suspension, ordinals) {
                None => continue,
                Some(None) => {
                    rows.remove_suspension(id, whole)?;
                    suspension
                }
                Some(Some(cut)) => {
                    rows.shrink_suspension(id, &suspension.ordinals, whole)?;
                    cut
                }
            };
            let number = |name| shared.names.find(name).unwrap_or(0);
            let lane = (number(&selected.application), number(&selected.channel));
            let packed = pack_ordinals(&selected.ordinals);
            rows.add_work(*batch, lane, 0, resent.now, selected.ordinals.len(), Some(&packed), &selected.work_state)?;
            count += selected.ordinals.len() as u64;
        }
    }
    let moved = connection
        .prepare_cached(
            "UPDATE resends SET reached = ?3, done_at = ?4, notifications = notifications + ?5
             WHERE id = ?1 AND reached = ?2 AND done_at IS NULL",
        )
        .and_then(|mut statement| {
            let done_at = resent.done_at.map(|at| at.0);
            statement.execute((resent.id, resent.from.0, resent.reached.0, done_at, count))
        })
        .map_err(store_error)?;
    match moved {
        0 => Err(StoreError::Fenced(format!("the resend request {}", resent.id))),
        _ => Ok(()),
    }
}

/// Whether any request was completed before a time.
pub fn is_any_expired(connection: &Connection, before: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM resends WHERE done_at < ?1)";
    let found = connection.prepare_cached(sql).and_then(|mut found| found.query_row([before.0], |row| row.get(0)));
    found.map_err(store_error)
}

/// Deletes requests completed before a time.
pub fn prune(connection: &Connection, before: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM resends WHERE done_at < ?1";
    connection.prepare_cached(sql).and_then(|mut statement| statement.execute([before.0])).map_err(store_error)?;
    Ok(())
}

impl RowWriter<'_> {
    /// Reopens closed notifications of a batch, and the event batches they belong to.
    fn reopen(&mut self, reopened: &ReopenedNotifications) -> Result<(), StoreError> {
        let ReopenedNotifications { batch, ordinals, failed } = reopened;
        type State = (Option<i64>, Vec<u8>);
        let state: Option<State> =
            self.find("SELECT closed_at, events FROM notification_states WHERE id = ?1", [batch.0], |row| {
                row.try_into()
            })?;
        let (closed_at, events) = state.ok_or_else(|| StoreError::Missing(batch.to_string()))?;
        self.execute(
            "UPDATE notification_states SET open = open + ?2, failed = max(0, failed - ?3), closed_at = NULL
             WHERE id = ?1",
            (batch.0, ordinals.len(), failed),
        )?;
        if closed_at.is_some() {
            for event in unpack_numbers(&events)? {
                self.execute("UPDATE event_matched SET open = open + 1, closed_at = NULL WHERE id = ?1", [event])?;
            }
        }
        Ok(())
    }
}
