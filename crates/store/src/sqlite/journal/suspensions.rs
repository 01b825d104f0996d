//! Suspended work: list, edit, resume, end.

use rusqlite::{Connection, Row, params_from_iter, types::Value};
use serde_json::json;
use tocsin_model::{
    id::{Name, NotificationBatchId},
    time::Timestamp,
};

use super::{
    packing::{pack_ordinals, unpack_ordinals},
    views::collect,
};
use crate::{
    audit::{self, Image},
    bounded_scan::{SCANNED_ROWS_MAX, ScanPage},
    error::StoreError,
    journal::{
        ENDED_BY_OPERATOR, Resolution, StoredSuspension, Suspension, SuspensionFilter, WorkState, ended_attempt,
        split_suspension, work_state::priority_of,
    },
    sqlite::{
        journal::{context::JournalContext, row_writer::RowWriter},
        writer::{AfterCommit, store_error},
    },
};

/// Maximum number of suspensions per commit.
const SUSPENSIONS_MAX: usize = 256;
/// Maximum number of notifications per commit, if it affects more than one suspension.
const NOTIFICATIONS_MAX: usize = 10_000;

/// Page of suspensions after a number, oldest first. Without an id or a batch, rows are read by number and the filter
/// is tested row by row.
pub fn scan(
    connection: &Connection,
    shared: &JournalContext,
    filter: &SuspensionFilter,
    after: u64,
    limit: usize,
) -> Result<ScanPage<StoredSuspension, u64>, StoreError> {
    let mut reached = None;
    if filter.id.is_none() && filter.batch.is_none() {
        let sql = "SELECT count(*), max(id) FROM (SELECT id FROM suspensions WHERE id > ?1 ORDER BY id LIMIT ?2)";
        let most = SCANNED_ROWS_MAX as u64;
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let read = |row: &Row<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, Option<u64>>(1)?));
        let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
        let (scanned, last) = statement.query_row((after, most), read).map_err(store_error)?;
        reached = last.filter(|_| scanned == most);
    }
    let found = list(connection, shared, filter, (after, reached), limit.saturating_add(1))?;
    Ok(ScanPage::cut(found, limit, reached, |found: &StoredSuspension| found.id))
}

/// Suspensions after one number and up to another, oldest first.
pub fn list(
    connection: &Connection,
    shared: &JournalContext,
    filter: &SuspensionFilter,
    (after, through): (u64, Option<u64>),
    limit: usize,
) -> Result<Vec<StoredSuspension>, StoreError> {
    let number = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    // A name that was never used has no number; no row has the number 0.
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

fn read_suspension(row: &Row<'_>, shared: &JournalContext) -> Result<StoredSuspension, StoreError> {
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
        work_state: WorkState {
            priority: priority_of(priority),
            window: window.map(Timestamp),
            fallback,
            since: None,
            edit: edit.map(Into::into),
        },
    };
    Ok(StoredSuspension { id, suspension })
}

/// Sets the edit of a suspension; with ordinals, splits these notifications off first.
pub fn edit(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    id: u64,
    ordinals: Option<&[u32]>,
    edit: Option<&str>,
) -> Result<Option<u64>, StoreError> {
    let filter = SuspensionFilter { id: Some(id), ..SuspensionFilter::default() };
    let Some(StoredSuspension { mut suspension, .. }) = list(connection, shared, &filter, (0, None), 1)?.pop() else {
        return Ok(None);
    };
    let whole = suspension.ordinals.len();
    match ordinals.map_or(Some(None), |ordinals| split_suspension(&mut suspension, ordinals)) {
        None => Ok(None),
        Some(None) => {
            connection
                .prepare_cached("UPDATE suspensions SET edit = ?2 WHERE id = ?1")
                .and_then(|mut statement| statement.execute((id, edit)))
                .map_err(store_error)?;
            let before = suspension.work_state.edit.as_deref();
            audit::changed(|| Image::of("suspension", id, edit_image(before), edit_image(edit)));
            Ok(Some(id))
        }
        Some(Some(mut cut)) => {
            cut.work_state.edit = edit.map(Into::into);
            let number = |name| shared.names.find(name).unwrap_or(0);
            let lane = (number(&suspension.application), number(&suspension.channel));
            let mut rows = RowWriter::new(connection, shared, Timestamp::default());
            rows.shrink_suspension(id, &suspension.ordinals, whole)?;
            let made = rows.suspend(lane, &cut)?;
            audit::changed(|| Image::of("suspension", made, None, edit_image(edit)));
            rows.store_counts(after, None, false)?;
            Ok(Some(made))
        }
    }
}

fn image(suspension: &Suspension) -> serde_json::Value {
    json!({
        "notification_batch": suspension.batch.to_string(),
        "application": suspension.application.as_str(),
        "channel": suspension.channel.as_str(),
        "notifications": suspension.ordinals.len(),
        "reason": suspension.reason,
    })
}

/// The content of an edit is that of a message to a person, so only its presence is logged.
fn edit_image(edit: Option<&str>) -> Option<serde_json::Value> {
    Some(json!({ "is_edited": edit.is_some() }))
}

/// Progress of a resolution.
pub struct ResolutionProgress {
    /// Last suspension processed; the next chunk begins after it. `None` at the end.
    pub last: Option<u64>,
    /// Notifications affected by this chunk.
    pub notifications: u64,
}

/// Resumes or ends the next suspensions in a range of numbers, as many as fit one commit.
pub fn resolve_some(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    filter: &SuspensionFilter,
    resolution: Resolution,
    now: Timestamp,
    (from, to): (u64, u64),
) -> Result<ResolutionProgress, StoreError> {
    let mut rows = RowWriter::new(connection, shared, now);
    let ended = |suspension: &Suspension, ordinal| ended_attempt(suspension.attempts, ordinal, ENDED_BY_OPERATOR, now);
    let mut resolved = ResolutionProgress { last: None, notifications: 0 };
    for StoredSuspension { id, suspension } in list(connection, shared, filter, (from, Some(to)), SUSPENSIONS_MAX)? {
        let count = suspension.ordinals.len();
        let is_too_much = resolved.last.is_some() && resolved.notifications as usize + count > NOTIFICATIONS_MAX;
        if id > to || is_too_much {
            break;
        }
        resolved.last = Some(id);
        resolved.notifications += count as u64;
        audit::changed(|| Image::of("suspension", id, Some(image(&suspension)), None));
        rows.remove_suspension(id, count)?;
        match resolution {
            Resolution::Resume => {
                let number = |name| shared.names.find(name).unwrap_or(0);
                let lane = (number(&suspension.application), number(&suspension.channel));
                let ordinals = pack_ordinals(&suspension.ordinals);
                rows.add_work(suspension.batch, lane, 0, now, count, Some(&ordinals), &suspension.work_state)?;
            }
            Resolution::End => {
                let attempts: Vec<_> = suspension.ordinals.iter().map(|ordinal| ended(&suspension, *ordinal)).collect();
                let channel = shared.names.find(&suspension.channel).unwrap_or(0);
                rows.add_receipts(suspension.batch, channel, &attempts)?;
            }
        }
    }
    rows.store_counts(after, None, resolution == Resolution::Resume && resolved.last.is_some())?;
    Ok(resolved)
}
