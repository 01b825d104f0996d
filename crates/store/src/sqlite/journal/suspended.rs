//! What waits for an operator: listed, resumed, ended.

use rusqlite::{Connection, Row, params_from_iter};
use tocsin_model::{id::NotificationBatchId, time::Timestamp};

use super::{
    Shared,
    packing::{pack_ordinals, unpack_ordinals},
    reading::collect,
    step::Rows,
};
use crate::{
    error::StoreError,
    journal::{Resolution, StoredSuspension, Suspension, SuspensionFilter, ended},
    sqlite::writer::{AfterCommit, store_error},
};

/// Suspensions of one commit.
const SUSPENSIONS_MAX: usize = 256;
/// Notifications of one commit, if it touches more than one suspension.
const NOTIFICATIONS_MAX: usize = 10_000;

/// Suspensions after a number, oldest first.
pub fn list(
    connection: &Connection,
    shared: &Shared,
    filter: &SuspensionFilter,
    after: u64,
    limit: usize,
) -> Result<Vec<StoredSuspension>, StoreError> {
    let mut sql = "SELECT id, batch, application, channel, attempts, since, ordinals, reason FROM suspensions
        WHERE id > ?1"
        .to_owned();
    let mut params = vec![i64::try_from(after).unwrap_or(i64::MAX)];
    let mut also = |column: &str, value: i64| {
        params.push(value);
        sql.push_str(&format!(" AND {column} = ?{}", params.len()));
    };
    if let Some(id) = filter.id {
        also("id", i64::try_from(id).unwrap_or(i64::MAX));
    }
    if let Some(batch) = filter.batch {
        also("batch", i64::try_from(batch.0).unwrap_or(i64::MAX));
    }
    for (column, name) in [("application", &filter.application), ("channel", &filter.channel)] {
        if let Some(name) = name {
            // A name that was never used has no number, and nothing has the number 0.
            also(column, shared.names.find(name).unwrap_or(0));
        }
    }
    params.push(i64::try_from(limit).unwrap_or(i64::MAX));
    sql.push_str(&format!(" ORDER BY id LIMIT ?{}", params.len()));
    collect(connection, &sql, params_from_iter(params), |row| read_suspension(row, shared))
}

fn read_suspension(row: &Row<'_>, shared: &Shared) -> Result<StoredSuspension, StoreError> {
    type Columns = (u64, u64, i64, i64, u32, i64, Vec<u8>, String);
    let (id, batch, application, channel, attempts, since, ordinals, reason): Columns =
        row.try_into().map_err(store_error)?;
    let suspension = Suspension {
        batch: NotificationBatchId(batch),
        application: shared.names.name(application)?,
        channel: shared.names.name(channel)?,
        ordinals: unpack_ordinals(&ordinals)?,
        attempts,
        reason,
        since: Timestamp(since),
    };
    Ok(StoredSuspension { id, suspension })
}

/// How far a resolution has come.
pub struct Resolved {
    /// The last suspension touched; the next chunk begins after it. `None` when nothing is left.
    pub last: Option<u64>,
    /// Notifications touched by this chunk.
    pub notifications: u64,
}

/// Resumes or ends the next suspensions after one and up to another, as many as one commit may hold.
pub fn resolve_some(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &Shared,
    filter: &SuspensionFilter,
    resolution: Resolution,
    now: Timestamp,
    (from, to): (u64, u64),
) -> Result<Resolved, StoreError> {
    let mut rows = Rows::new(connection, shared, now);
    let mut resolved = Resolved { last: None, notifications: 0 };
    for StoredSuspension { id, suspension } in list(connection, shared, filter, from, SUSPENSIONS_MAX)? {
        let count = suspension.ordinals.len();
        let is_too_much = resolved.last.is_some() && resolved.notifications as usize + count > NOTIFICATIONS_MAX;
        if id > to || is_too_much {
            break;
        }
        resolved.last = Some(id);
        resolved.notifications += count as u64;
        rows.remove_suspension(id, count)?;
        match resolution {
            Resolution::Resume => {
                let number = |name| shared.names.find(name).unwrap_or(0);
                let lane = (number(&suspension.application), number(&suspension.channel));
                let ordinals = pack_ordinals(&suspension.ordinals);
                rows.add_work(suspension.batch, lane, 0, now, count, Some(&ordinals))?;
            }
            Resolution::End => {
                let attempts: Vec<_> =
                    suspension.ordinals.iter().map(|ordinal| ended(&suspension, *ordinal, now)).collect();
                rows.add_receipts(suspension.batch, &attempts)?;
            }
        }
    }
    rows.keep(after, None, resolution == Resolution::Resume && resolved.last.is_some())?;
    Ok(resolved)
}
