//! What waits for an operator: listed, edited, resumed, ended.

use rusqlite::{Connection, Row, params_from_iter, types::Value};
use tocsin_model::{
    id::{Name, NotificationBatchId},
    time::Timestamp,
};

use super::{
    Shared,
    packing::{pack_ordinals, unpack_ordinals},
    reading::collect,
    step::Rows,
};
use crate::{
    error::StoreError,
    journal::{
        Course, Resolution, StoredSuspension, Suspension, SuspensionFilter, course::priority_of, cut_out, ended,
    },
    look::{LOOKS_MAX, Looked},
    sqlite::writer::{AfterCommit, store_error},
};

/// Suspensions of one commit.
const SUSPENSIONS_MAX: usize = 256;
/// Notifications of one commit, if it touches more than one suspension.
const NOTIFICATIONS_MAX: usize = 10_000;

/// A page of suspensions after a number, oldest first. Without an id or a batch, numbers lead, and the filter is tested row by
/// row.
pub fn look(
    connection: &Connection,
    shared: &Shared,
    filter: &SuspensionFilter,
    after: u64,
    limit: usize,
) -> Result<Looked<StoredSuspension, u64>, StoreError> {
    let mut reached = None;
    if filter.id.is_none() && filter.batch.is_none() {
        let sql = "SELECT count(*), max(id) FROM (SELECT id FROM suspensions WHERE id > ?1 ORDER BY id LIMIT ?2)";
        let most = LOOKS_MAX as u64;
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let read = |row: &Row<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, Option<u64>>(1)?));
        let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
        let (looks, last) = statement.query_row((after, most), read).map_err(store_error)?;
        reached = last.filter(|_| looks == most);
    }
    let found = list(connection, shared, filter, (after, reached), limit.saturating_add(1))?;
    Ok(Looked::cut(found, limit, reached, |found: &StoredSuspension| found.id))
}

/// Suspensions after a number and up to another one, oldest first.
pub fn list(
    connection: &Connection,
    shared: &Shared,
    filter: &SuspensionFilter,
    (after, through): (u64, Option<u64>),
    limit: usize,
) -> Result<Vec<StoredSuspension>, StoreError> {
    let number = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    // A name that was never used has no number, and nothing has the number 0.
    let named = |name: &Name| Value::Integer(shared.names.find(name).unwrap_or(0));
    let conditions = [
        (filter.id.map(number), "id ="),
        (through.map(number), "id <="),
        (filter.batch.map(|batch| number(batch.0)), "batch ="),
        (filter.application.as_ref().map(named), "application ="),
        (filter.channel.as_ref().map(named), "channel ="),
        (
            filter.class.as_ref().map(named),
            "(SELECT b.class FROM notification_batches b WHERE b.id = suspensions.batch) =",
        ),
        (filter.before.map(|before| Value::Integer(before.0)), "since <"),
        (filter.reason.clone().map(|reason| Value::Text(reason.to_ascii_lowercase())), "0 < instr(lower(reason),"),
    ];
    let mut sql =
        "SELECT id, batch, application, channel, attempts, since, ordinals, reason, priority, window_end, fallback,
        edit FROM suspensions WHERE id > ?1"
            .to_owned();
    let mut params = vec![number(after)];
    for (value, condition) in conditions {
        let Some(value) = value else { continue };
        params.push(value);
        let close = if condition.ends_with(',') { ")" } else { "" };
        sql.push_str(&format!(" AND {condition} ?{}{close}", params.len()));
    }
    params.push(Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX)));
    sql.push_str(&format!(" ORDER BY id LIMIT ?{}", params.len()));
    collect(connection, &sql, params_from_iter(params), |row| read_suspension(row, shared))
}

fn read_suspension(row: &Row<'_>, shared: &Shared) -> Result<StoredSuspension, StoreError> {
    type Columns = (u64, u64, i64, i64, u32, i64, Vec<u8>, String, u8, Option<i64>, u8, Option<String>);
    let (id, batch, application, channel, attempts, since, ordinals, reason, priority, window, fallback, edit): Columns =
        row.try_into().map_err(store_error)?;
    let suspension = Suspension {
        batch: NotificationBatchId(batch),
        application: shared.names.name(application)?,
        channel: shared.names.name(channel)?,
        ordinals: unpack_ordinals(&ordinals)?,
        attempts,
        reason,
        since: Timestamp(since),
        course: Course {
            priority: priority_of(priority),
            window: window.map(Timestamp),
            fallback,
            since: None,
            edit: edit.map(Into::into),
        },
    };
    Ok(StoredSuspension { id, suspension })
}

/// Puts an edit into a suspension, or into one of its own for some of its notifications.
pub fn edit(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &Shared,
    id: u64,
    ordinals: Option<&[u32]>,
    edit: Option<&str>,
) -> Result<Option<u64>, StoreError> {
    let filter = SuspensionFilter { id: Some(id), ..SuspensionFilter::default() };
    let Some(StoredSuspension { mut suspension, .. }) = list(connection, shared, &filter, (0, None), 1)?.pop() else {
        return Ok(None);
    };
    let whole = suspension.ordinals.len();
    match ordinals.map_or(Some(None), |ordinals| cut_out(&mut suspension, ordinals)) {
        None => Ok(None),
        Some(None) => {
            connection
                .prepare_cached("UPDATE suspensions SET edit = ?2 WHERE id = ?1")
                .and_then(|mut statement| statement.execute((id, edit)))
                .map_err(store_error)?;
            Ok(Some(id))
        }
        Some(Some(mut cut)) => {
            cut.course.edit = edit.map(Into::into);
            let number = |name| shared.names.find(name).unwrap_or(0);
            let lane = (number(&suspension.application), number(&suspension.channel));
            let mut rows = Rows::new(connection, shared, Timestamp::default());
            rows.shrink_suspension(id, &suspension.ordinals, whole)?;
            let made = rows.suspend(lane, &cut)?;
            rows.keep(after, None, false)?;
            Ok(Some(made))
        }
    }
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
    for StoredSuspension { id, suspension } in list(connection, shared, filter, (from, Some(to)), SUSPENSIONS_MAX)? {
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
                rows.add_work(suspension.batch, lane, 0, now, count, Some(&ordinals), &suspension.course)?;
            }
            Resolution::End => {
                let attempts: Vec<_> =
                    suspension.ordinals.iter().map(|ordinal| ended(&suspension, *ordinal, now)).collect();
                let channel = shared.names.find(&suspension.channel).unwrap_or(0);
                rows.add_receipts(suspension.batch, channel, &attempts)?;
            }
        }
    }
    rows.keep(after, None, resolution == Resolution::Resume && resolved.last.is_some())?;
    Ok(resolved)
}
