//! Suppressions of addresses and devices.

use rusqlite::{Connection, Row, params_from_iter, types::Value};
use tocsin_model::{
    id::{Name, SubscriberId},
    suppression::{Suppression, Target},
    time::Timestamp,
};

use super::{feedback, images, transaction::RecordsTransaction};
use crate::{
    audit,
    bounded_scan::{SCANNED_ROWS_MAX, ScanPage},
    error::StoreError,
    records::{MergedSubscriber, SuppressionFilter, no_suppression},
    sqlite::statements::{conversion_failed, execute, json, json_at, parsed_at, query_all, query_one, signed},
};

const COLUMNS: &str =
    "target, address, cause, in_force, origin, detail, notification, bounces, since, updated_at, expires_at";

fn suppression_of(row: &Row<'_>) -> rusqlite::Result<Suppression> {
    let cause = row.get_ref(2)?.as_str()?.parse();
    let notification: Option<String> = row.get(6)?;
    Ok(Suppression {
        target: parsed_at(row, 0)?,
        address: row.get(1)?,
        cause: cause
            .map_err(|()| conversion_failed(2, StoreError::Damaged("the cause of a suppression".to_owned())))?,
        in_force: row.get(3)?,
        origin: row.get(4)?,
        detail: row.get(5)?,
        notification: notification.map(|id| id.parse().map_err(|error| conversion_failed(6, error))).transpose()?,
        bounces: json_at(row, 7)?,
        since: Timestamp(row.get(8)?),
        updated_at: Timestamp(row.get(9)?),
        expires_at: row.get::<_, Option<i64>>(10)?.map(Timestamp),
    })
}

/// Suppression of a target, also in the form used by earlier versions.
pub(super) fn find_in_any_form(connection: &Connection, target: &Target) -> Result<Option<Suppression>, StoreError> {
    match find(connection, &target.to_string())? {
        Some(found) => Ok(Some(found)),
        None => target.former().map_or(Ok(None), |former| find(connection, &former.to_string())),
    }
}

/// Converts a suppression stored by an earlier version to the present form. An existing one in the present form wins.
fn convert_former(tx: &mut RecordsTransaction<'_>, target: &Target) -> Result<(), StoreError> {
    let Some(former) = target.former().map(|former| former.to_string()) else { return Ok(()) };
    if find(tx.connection, &former)?.is_none() {
        return Ok(());
    }
    let target = target.to_string();
    match find(tx.connection, &target)? {
        Some(_) => execute(tx.connection, "DELETE FROM suppressions WHERE target = ?1", [&former])?,
        None => execute(tx.connection, "UPDATE suppressions SET target = ?1 WHERE target = ?2", (&target, &former))?,
    };
    tx.suppressions_changed(&[target])
}

fn find(connection: &Connection, target: &str) -> Result<Option<Suppression>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM suppressions WHERE target = ?1");
    query_one(connection, &sql, [target], suppression_of)
}

/// Page of suppressions in key order; the rest of the filter is tested row by row.
pub(super) fn list(
    connection: &Connection,
    filter: &SuppressionFilter,
    after: Option<&str>,
    limit: usize,
) -> Result<ScanPage<Suppression, Target>, StoreError> {
    let Some(prefix) = filter.prefix() else { return Ok(ScanPage { items: Vec::new(), next: None }) };
    let mut values = vec![Value::Text(after.unwrap_or_default().to_owned()), Value::Text(prefix.clone())];
    let mut candidates = "SELECT * FROM suppressions WHERE target > ?1 AND target >= ?2".to_owned();
    // A target with this prefix sorts before the prefix with its last `/` replaced by the next character.
    if let Some(rest) = prefix.strip_suffix('/') {
        values.push(Value::Text(format!("{rest}0")));
        candidates.push_str(" AND target < ?3");
    }
    candidates.push_str(&format!(" ORDER BY target LIMIT {SCANNED_ROWS_MAX}"));
    let of_candidates = values.len();
    values.push(Value::Integer(filter.now.0));
    let mut sql =
        format!("SELECT {COLUMNS} FROM ({candidates}) WHERE (expires_at IS NULL OR expires_at > ?{})", values.len());
    let contains = filter.contains.as_ref().map(|text| Value::Text(text.to_ascii_lowercase()));
    let conditions = [
        (filter.cause.map(|cause| Value::Text(cause.word().to_owned())), "cause ="),
        (filter.in_force.map(|force| Value::Integer(i64::from(force))), "in_force ="),
        (contains, "0 < instr(lower(substr(target, instr(target, '/') + 1)),"),
    ];
    for (value, condition) in conditions {
        let Some(value) = value else { continue };
        values.push(value);
        let close = if condition.ends_with(',') { ")" } else { "" };
        sql.push_str(&format!(" AND {condition} ?{}{close}", values.len()));
    }
    values.push(Value::Integer(signed(limit.saturating_add(1) as u64)));
    sql.push_str(&format!(" ORDER BY target LIMIT ?{}", values.len()));
    let found = query_all(connection, &sql, params_from_iter(values.iter()), suppression_of)?;
    let mut reached = None;
    if found.len() <= limit {
        let sql = format!("SELECT count(*), max(target) FROM ({candidates})");
        let scan = query_one(connection, &sql, params_from_iter(&values[..of_candidates]), |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?))
        })?;
        let last = scan.filter(|(scanned, _)| *scanned == SCANNED_ROWS_MAX as i64).and_then(|(_, last)| last);
        let damaged = |_| StoreError::Damaged("the target of a suppression".to_owned());
        reached = last.map(|last| last.parse::<Target>().map_err(damaged)).transpose()?;
    }
    Ok(ScanPage::cut(found, limit, reached, |found: &Suppression| found.target.clone()))
}

pub(super) fn put_many(tx: &mut RecordsTransaction<'_>, new: &[Suppression]) -> Result<(), StoreError> {
    let mut changed = Vec::new();
    for suppression in new {
        convert_former(tx, &suppression.target)?;
        if find(tx.connection, &suppression.target.to_string())?.is_some_and(|held| held.outranks(suppression)) {
            continue;
        }
        if write(tx, suppression)? {
            changed.push(suppression.target.to_string());
        }
    }
    tx.suppressions_changed(&changed)
}

/// Stores a suppression. Returns whether it changed.
fn write(tx: &RecordsTransaction<'_>, suppression: &Suppression) -> Result<bool, StoreError> {
    let target = suppression.target.to_string();
    let before = find(tx.connection, &target)?;
    if before.as_ref() == Some(suppression) {
        return Ok(false);
    }
    images::suppression(&target, before.as_ref(), Some(suppression));
    execute(
        tx.connection,
        "INSERT OR REPLACE INTO suppressions (target, address, cause, in_force, origin, detail, notification, bounces,
                since, updated_at, expires_at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        (
            &target,
            &suppression.address,
            suppression.cause.word(),
            suppression.in_force,
            &suppression.origin,
            &suppression.detail,
            suppression.notification.map(|id| id.to_string()),
            json(&suppression.bounces),
            suppression.since.0,
            suppression.updated_at.0,
            suppression.expires_at.map(|end| end.0),
        ),
    )?;
    Ok(true)
}

pub(super) fn remove(tx: &mut RecordsTransaction<'_>, target: &Target) -> Result<(), StoreError> {
    convert_former(tx, target)?;
    let text = target.to_string();
    feedback::clear(tx, &text)?;
    if audit::is_recording() {
        images::suppression(&text, find(tx.connection, &text)?.as_ref(), None);
    }
    match execute(tx.connection, "DELETE FROM suppressions WHERE target = ?1", [&text])? {
        0 => Err(no_suppression(target)),
        _ => tx.suppressions_changed(&[text]),
    }
}

pub(super) fn is_any_expired(connection: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM suppressions WHERE expires_at <= ?1)";
    Ok(query_one(connection, sql, [now.0], |row| row.get(0))?.unwrap_or(false))
}

pub(super) fn prune(tx: &mut RecordsTransaction<'_>, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
    let sql = "SELECT target FROM suppressions WHERE expires_at <= ?1 ORDER BY target LIMIT ?2";
    remove_found(tx, query_all(tx.connection, sql, (now.0, signed(limit as u64)), |row| row.get(0))?)
}

/// Copies suppressions of a merged subscriber's devices to those of the account, unless these have some in force
/// already.
pub(super) fn move_to_account(
    tx: &mut RecordsTransaction<'_>,
    (from, into): (&SubscriberId, &SubscriberId),
    merged: &MergedSubscriber,
) -> Result<(), StoreError> {
    let mut moved = Vec::new();
    for (old, new) in merged.moved.iter().chain(&merged.doubles) {
        let device = |subscriber: &SubscriberId, device: &Name| Target::Device {
            subscriber: subscriber.clone(),
            device: device.clone(),
        };
        let target = device(into, new);
        let found = find(tx.connection, &device(from, old).to_string())?;
        if let Some(known) = found.filter(|known| known.in_force)
            && find(tx.connection, &target.to_string())?.is_none_or(|there| !there.in_force)
        {
            moved.push(Suppression { target, ..known });
        }
    }
    put_many(tx, &moved)
}

/// Removes the suppressions of an address, within any protocol and channel.
pub(super) fn remove_all_of_address(tx: &mut RecordsTransaction<'_>, address: &str) -> Result<(), StoreError> {
    let sql = "SELECT target FROM suppressions WHERE substr(target, 1, 7) <> 'device/'
        AND substr(target, -length(?1) - 1) = '/' || ?1 ORDER BY target";
    remove_found(tx, query_all(tx.connection, sql, [address], |row| row.get(0))?).map(drop)
}

/// Removes the suppressions of a subscriber's devices.
pub(super) fn remove_all_of_subscriber(tx: &mut RecordsTransaction<'_>, id: &SubscriberId) -> Result<(), StoreError> {
    let sql = "SELECT target FROM suppressions WHERE target > ?1 AND target < ?2 ORDER BY target";
    let range = (format!("device/{id}/"), format!("device/{id}0"));
    remove_found(tx, query_all(tx.connection, sql, range, |row| row.get(0))?).map(drop)
}

fn remove_found(tx: &mut RecordsTransaction<'_>, targets: Vec<String>) -> Result<usize, StoreError> {
    for target in &targets {
        execute(tx.connection, "DELETE FROM suppressions WHERE target = ?1", [target])?;
    }
    tx.suppressions_changed(&targets)?;
    Ok(targets.len())
}
