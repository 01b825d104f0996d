//! What is known against addresses and devices.

use rusqlite::{Connection, Row, params_from_iter, types::Value};
use tocsin_model::{
    id::{Name, SubscriberId},
    suppression::{Policy, Report, Suppression, Target},
    time::Timestamp,
};

use super::{conversion_failed, execute, feed::Books, json, json_at, parsed_at, query_all, query_one, signed};
use crate::{
    error::StoreError,
    look::{LOOKS_MAX, Looked},
    records::{SuppressionFilter, United, no_suppression},
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

/// The suppression of a target, also in the form in which versions before stored it.
pub(super) fn find_in_any_form(connection: &Connection, target: &Target) -> Result<Option<Suppression>, StoreError> {
    match find(connection, &target.to_string())? {
        Some(found) => Ok(Some(found)),
        None => target.former().map_or(Ok(None), |former| find(connection, &former.to_string())),
    }
}

/// Brings a suppression that a version before stored into the form of now. One that is there in this form already wins.
fn adopt(books: &mut Books<'_>, target: &Target) -> Result<(), StoreError> {
    let Some(former) = target.former().map(|former| former.to_string()) else { return Ok(()) };
    if find(books.connection, &former)?.is_none() {
        return Ok(());
    }
    let target = target.to_string();
    match find(books.connection, &target)? {
        Some(_) => execute(books.connection, "DELETE FROM suppressions WHERE target = ?1", [&former])?,
        None => execute(books.connection, "UPDATE suppressions SET target = ?1 WHERE target = ?2", (&target, &former))?,
    };
    books.suppressions_changed(&[target])
}

fn find(connection: &Connection, target: &str) -> Result<Option<Suppression>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM suppressions WHERE target = ?1");
    query_one(connection, &sql, [target], suppression_of)
}

/// A page. The key leads; what is left of the filter is tested row by row.
pub(super) fn list(
    connection: &Connection,
    filter: &SuppressionFilter,
    after: Option<&str>,
    limit: usize,
) -> Result<Looked<Suppression, Target>, StoreError> {
    let Some(prefix) = filter.prefix() else { return Ok(Looked { items: Vec::new(), next: None }) };
    let mut values = vec![Value::Text(after.unwrap_or_default().to_owned()), Value::Text(prefix.clone())];
    let mut candidates = "SELECT * FROM suppressions WHERE target > ?1 AND target >= ?2".to_owned();
    // A target that begins with the prefix sorts before the prefix with its last `/` turned into the next character.
    if let Some(rest) = prefix.strip_suffix('/') {
        values.push(Value::Text(format!("{rest}0")));
        candidates.push_str(" AND target < ?3");
    }
    candidates.push_str(&format!(" ORDER BY target LIMIT {LOOKS_MAX}"));
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
        let looked = query_one(connection, &sql, params_from_iter(&values[..of_candidates]), |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?))
        })?;
        let last = looked.filter(|(looks, _)| *looks == LOOKS_MAX as i64).and_then(|(_, last)| last);
        let damaged = |_| StoreError::Damaged("the target of a suppression".to_owned());
        reached = last.map(|last| last.parse::<Target>().map_err(damaged)).transpose()?;
    }
    Ok(Looked::cut(found, limit, reached, |found: &Suppression| found.target.clone()))
}

pub(super) fn put_many(books: &mut Books<'_>, new: &[Suppression]) -> Result<(), StoreError> {
    let mut changed = Vec::new();
    for suppression in new {
        adopt(books, &suppression.target)?;
        if write(books, suppression)? {
            changed.push(suppression.target.to_string());
        }
    }
    books.suppressions_changed(&changed)
}

pub(super) fn report(
    books: &mut Books<'_>,
    reports: Vec<Report>,
    policy: &Policy,
    now: Timestamp,
) -> Result<Vec<Suppression>, StoreError> {
    let mut known = Vec::with_capacity(reports.len());
    let mut changed = Vec::new();
    for report in reports {
        adopt(books, &report.target)?;
        let target = report.target.to_string();
        let after = policy.take(find(books.connection, &target)?, report, now);
        if write(books, &after)? {
            changed.push(target);
        }
        known.push(after);
    }
    books.suppressions_changed(&changed)?;
    Ok(known)
}

/// Gives whether it says anything new.
fn write(books: &Books<'_>, suppression: &Suppression) -> Result<bool, StoreError> {
    let target = suppression.target.to_string();
    if find(books.connection, &target)?.as_ref() == Some(suppression) {
        return Ok(false);
    }
    execute(
        books.connection,
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

pub(super) fn remove(books: &mut Books<'_>, target: &Target) -> Result<(), StoreError> {
    adopt(books, target)?;
    let text = target.to_string();
    match execute(books.connection, "DELETE FROM suppressions WHERE target = ?1", [&text])? {
        0 => Err(no_suppression(target)),
        _ => books.suppressions_changed(&[text]),
    }
}

pub(super) fn is_any_over(connection: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM suppressions WHERE expires_at <= ?1)";
    Ok(query_one(connection, sql, [now.0], |row| row.get(0))?.unwrap_or(false))
}

pub(super) fn prune(books: &mut Books<'_>, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
    let sql = "SELECT target FROM suppressions WHERE expires_at <= ?1 ORDER BY target LIMIT ?2";
    remove_found(books, query_all(books.connection, sql, (now.0, signed(limit as u64)), |row| row.get(0))?)
}

/// What is known against devices of one subscriber is known against those that another has in their place, unless something
/// is known against these already.
pub(super) fn move_over(
    books: &mut Books<'_>,
    (from, into): (&SubscriberId, &SubscriberId),
    united: &United,
) -> Result<(), StoreError> {
    let mut moved = Vec::new();
    for (old, new) in united.moved.iter().chain(&united.doubles) {
        let device = |subscriber: &SubscriberId, device: &Name| Target::Device {
            subscriber: subscriber.clone(),
            device: device.clone(),
        };
        let target = device(into, new);
        let found = find(books.connection, &device(from, old).to_string())?;
        if let Some(known) = found.filter(|known| known.in_force)
            && find(books.connection, &target.to_string())?.is_none_or(|there| !there.in_force)
        {
            moved.push(Suppression { target, ..known });
        }
    }
    put_many(books, &moved)
}

/// Those of its devices.
pub(super) fn remove_all_of_subscriber(books: &mut Books<'_>, id: &SubscriberId) -> Result<(), StoreError> {
    let sql = "SELECT target FROM suppressions WHERE target > ?1 AND target < ?2 ORDER BY target";
    let range = (format!("device/{id}/"), format!("device/{id}0"));
    remove_found(books, query_all(books.connection, sql, range, |row| row.get(0))?).map(drop)
}

fn remove_found(books: &mut Books<'_>, targets: Vec<String>) -> Result<usize, StoreError> {
    for target in &targets {
        execute(books.connection, "DELETE FROM suppressions WHERE target = ?1", [target])?;
    }
    books.suppressions_changed(&targets)?;
    Ok(targets.len())
}
