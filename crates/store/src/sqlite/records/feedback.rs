//! Feedback to sent messages.

use rusqlite::{Connection, Row, params_from_iter, types::Value};
use tocsin_model::{
    feedback::{Class, FeedbackEntry, Stage},
    id::{NotificationBatchId, NotificationId, SubscriberId, SubscriberNumber},
    subscriber::Subscriber,
    suppression::Target,
    time::Timestamp,
};

use super::{subscriber_rows, suppressions, transaction::RecordsTransaction};
use crate::{
    bounded_scan::{SCANNED_ROWS_MAX, ScanPage},
    error::StoreError,
    records::{FeedbackChange, FeedbackFilter, FeedbackState, MERGES_FOLLOWED_MAX, STATE_ENTRIES_MAX, device_prefix},
    sqlite::statements::{conversion_failed, execute, number_at, parsed_at, query_all, query_one, signed},
};

const COLUMNS: &str = "number, target, class, report_key, reported_at, stage, counts, effect, origin, detail, status,
    batch, ordinal, subscriber, device, expires_at";

fn entry_of(row: &Row<'_>) -> rusqlite::Result<(u64, FeedbackEntry)> {
    let damaged = |column: usize, what: &str| conversion_failed(column, StoreError::Damaged(what.to_owned()));
    let (batch, subscriber): (Option<i64>, Option<String>) = (row.get(11)?, row.get(13)?);
    let notification = match batch {
        Some(_) => {
            let ordinal = u32::try_from(number_at(row, 12)?).map_err(|_| damaged(12, "an ordinal"))?;
            Some(NotificationId { batch: NotificationBatchId(number_at(row, 11)?), ordinal })
        }
        None => None,
    };
    let device = match subscriber {
        Some(_) => Some((parsed_at::<SubscriberId>(row, 13)?, parsed_at(row, 14)?)),
        None => None,
    };
    let entry = FeedbackEntry {
        target: parsed_at(row, 1)?,
        class: row.get_ref(2)?.as_str()?.parse().map_err(|()| damaged(2, "the class of feedback"))?,
        key: row.get(3)?,
        at: Timestamp(row.get(4)?),
        stage: row.get_ref(5)?.as_str()?.parse().map_err(|()| damaged(5, "the stage of feedback"))?,
        counts: row.get(6)?,
        effect: row.get(7)?,
        origin: row.get(8)?,
        detail: row.get(9)?,
        status: row.get(10)?,
        notification,
        device,
        expires_at: Timestamp(row.get(15)?),
    };
    Ok((number_at(row, 0)?, entry))
}

pub(super) fn state(connection: &Connection, target: &Target) -> Result<FeedbackState, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM feedback WHERE target = ?1 ORDER BY number DESC LIMIT ?2");
    let limit = signed(STATE_ENTRIES_MAX as u64);
    let mut entries = query_all(connection, &sql, (target.to_string(), limit), entry_of)?;
    entries.reverse();
    let suppression = suppressions::find_in_any_form(connection, target)?;
    Ok(FeedbackState { entries: entries.into_iter().map(|(_, entry)| entry).collect(), suppression })
}

pub(super) fn change(tx: &mut RecordsTransaction<'_>, changes: Vec<FeedbackChange>) -> Result<(), StoreError> {
    // All are compared before any is written.
    for change in &changes {
        if state(tx.connection, &change.target)? != change.before {
            return Err(StoreError::Changed(format!("the feedback of `{}`", change.target)));
        }
    }
    let mut new = Vec::new();
    for change in changes {
        change.added.iter().try_for_each(|entry| add(tx, entry))?;
        for (class, key) in &change.cleared {
            let sql = "UPDATE feedback SET counts = 0 WHERE target = ?1 AND class = ?2 AND report_key = ?3";
            execute(tx.connection, sql, (change.target.to_string(), class.word(), key))?;
        }
        new.extend(change.suppression);
    }
    suppressions::put_many(tx, &new)
}

fn add(tx: &RecordsTransaction<'_>, entry: &FeedbackEntry) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO feedback ({COLUMNS})
            SELECT coalesce(max(number), 0) + 1, ?1, ?2, ?3, CAST(?4 AS BIGINT), ?5, CAST(?6 AS BIGINT), ?7, ?8, ?9,
                CAST(?10 AS TEXT), CAST(?11 AS BIGINT), CAST(?12 AS BIGINT), CAST(?13 AS TEXT), CAST(?14 AS TEXT),
                CAST(?15 AS BIGINT)
            FROM feedback WHERE TRUE
            ON CONFLICT (target, class, report_key) DO NOTHING"
    );
    let values: [Value; 15] = [
        entry.target.to_string().into(),
        entry.class.word().to_owned().into(),
        entry.key.clone().into(),
        entry.at.0.into(),
        entry.stage.word().to_owned().into(),
        i64::from(entry.counts).into(),
        entry.effect.clone().into(),
        entry.origin.clone().into(),
        entry.detail.clone().into(),
        entry.status.clone().into(),
        entry.notification.map(|id| signed(id.batch.0)).into(),
        entry.notification.map(|id| i64::from(id.ordinal)).into(),
        entry.device.as_ref().map(|(subscriber, _)| subscriber.to_string()).into(),
        entry.device.as_ref().map(|(_, device)| device.to_string()).into(),
        entry.expires_at.0.into(),
    ];
    execute(tx.connection, &sql, params_from_iter(values)).map(drop)
}

/// Page of entries, newest first; the class is tested row by row.
pub(super) fn list(
    connection: &Connection,
    filter: &FeedbackFilter,
    before: Option<u64>,
    limit: usize,
) -> Result<ScanPage<(u64, FeedbackEntry), u64>, StoreError> {
    let mut values = vec![Value::Integer(before.map_or(i64::MAX, signed))];
    let mut sql = format!("SELECT {COLUMNS} FROM feedback WHERE number < ?1");
    let conditions = [
        (filter.target.as_ref().map(|target| Value::Text(target.to_string())), "target"),
        (filter.batch.map(|batch| Value::Integer(signed(batch.0))), "batch"),
    ];
    for (value, column) in conditions {
        let Some(value) = value else { continue };
        values.push(value);
        sql.push_str(&format!(" AND {column} = ?{}", values.len()));
    }
    sql.push_str(&format!(" ORDER BY number DESC LIMIT {SCANNED_ROWS_MAX}"));
    let scanned = query_all(connection, &sql, params_from_iter(values), entry_of)?;
    let reached = scanned.last().filter(|_| scanned.len() == SCANNED_ROWS_MAX).map(|(number, _)| *number);
    let is_match = |(_, entry): &(u64, FeedbackEntry)| filter.class.is_none_or(|class| entry.class == class);
    let found = scanned.into_iter().filter(is_match).take(limit.saturating_add(1)).collect();
    Ok(ScanPage::cut(found, limit, reached, |(number, _): &(u64, FeedbackEntry)| *number))
}

pub(super) fn counted_in_sessions(connection: &Connection) -> Result<Vec<Target>, StoreError> {
    let sql = "SELECT DISTINCT target FROM feedback WHERE counts = 1 AND stage = ?1 AND class IN (?2, ?3)
        ORDER BY target";
    let words = (Stage::Session.word(), Class::Soft.word(), Class::Challenge.word());
    query_all(connection, sql, words, |row| parsed_at(row, 0))
}

/// Follows merges, of which there are few.
pub(super) fn subscriber(connection: &Connection, number: SubscriberNumber) -> Result<Option<Subscriber>, StoreError> {
    let mut number = number;
    for _ in 0..MERGES_FOLLOWED_MAX {
        if let Some(found) = subscriber_rows::find_numbered(connection, number)? {
            return Ok(Some(found));
        }
        let sql = "SELECT into_number FROM merges WHERE from_number = ?1";
        match query_one(connection, sql, [signed(number.0)], |row| number_at(row, 0))? {
            Some(into) => number = SubscriberNumber(into),
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// Entries of a target whose suppression is lifted no longer count.
pub(super) fn clear(tx: &RecordsTransaction<'_>, target: &str) -> Result<(), StoreError> {
    let sql = "UPDATE feedback SET counts = 0 WHERE target = ?1 AND counts = 1";
    execute(tx.connection, sql, [target]).map(drop)
}

pub(super) fn forget(tx: &RecordsTransaction<'_>, target: &Target) -> Result<(), StoreError> {
    execute(tx.connection, "DELETE FROM feedback WHERE target = ?1", [target.to_string()]).map(drop)
}

/// Deletes the entries of a subscriber's devices, and the names of these devices from other entries.
pub(super) fn remove_all_of_subscriber(tx: &RecordsTransaction<'_>, id: &SubscriberId) -> Result<(), StoreError> {
    let prefix = device_prefix(id);
    let end = format!("{}0", prefix.trim_end_matches('/'));
    execute(tx.connection, "DELETE FROM feedback WHERE target > ?1 AND target < ?2", (&prefix, &end))?;
    let sql = "UPDATE feedback SET subscriber = NULL, device = NULL WHERE subscriber = ?1";
    execute(tx.connection, sql, [id.as_str()]).map(drop)
}

pub(super) fn is_any_expired(connection: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM feedback WHERE expires_at <= ?1 LIMIT 1";
    Ok(query_one(connection, sql, [now.0], |_| Ok(()))?.is_some())
}

pub(super) fn prune(tx: &RecordsTransaction<'_>, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
    let sql = "DELETE FROM feedback WHERE number IN
        (SELECT number FROM feedback WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)";
    execute(tx.connection, sql, (now.0, signed(limit as u64)))
}
