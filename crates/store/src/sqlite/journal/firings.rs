//! Failed and skipped firings, and stopped rules. They are rare, so names are stored as text.

use rusqlite::{Connection, Row, params_from_iter, types::Value};
use serde_json::json;
use tocsin_model::{
    id::{EventBatchId, Name},
    time::Timestamp,
};

use super::views::collect;
use crate::{
    audit::{self, Image},
    error::StoreError,
    journal::{Firing, FiringFilter, FiringStatus, NewFiring, RefiredBatch, RuleStop, Step},
    sqlite::writer::store_error,
};

/// Writes the firings and stops of a step.
pub fn record(connection: &Connection, step: &Step) -> Result<(), StoreError> {
    step.firings.iter().try_for_each(|new| add(connection, new))?;
    step.refired.iter().try_for_each(|refired| refire(connection, *refired))?;
    step.stops.iter().try_for_each(|stop| add_stop(connection, stop))
}

fn execute(connection: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<usize, StoreError> {
    connection.prepare_cached(sql).and_then(|mut statement| statement.execute(params)).map_err(store_error)
}

fn add(connection: &Connection, new: &NewFiring) -> Result<(), StoreError> {
    let (application, rule, batch) = (new.application.as_str(), new.rule.as_str(), new.batch.0);
    let run = new.run.map(|run| run.0);
    let extended = execute(
        connection,
        "UPDATE firings SET last = ?4, batches = batches + 1 WHERE application = ?1 AND rule = ?2 AND run = ?3",
        (application, rule, run, batch),
    )?;
    if extended == 0 {
        execute(
            connection,
            "INSERT INTO firings (application, rule, status, reason, first, last, batches, run, since)
             VALUES (?1, ?2, ?3, ?4, ?5, ?5, 1, ?6, ?7)",
            (application, rule, new.status.name(), &new.reason, batch, run, new.at.0),
        )?;
    }
    Ok(())
}

fn refire(connection: &Connection, RefiredBatch { id, batch }: RefiredBatch) -> Result<(), StoreError> {
    let sql = "UPDATE firings SET batches = batches - 1, first = ?2 + 1 WHERE id = ?1";
    execute(connection, sql, (id, batch.0))?;
    execute(connection, "DELETE FROM firings WHERE id = ?1 AND (last <= ?2 OR batches <= 0)", (id, batch.0))?;
    Ok(())
}

/// Stops a rule, unless it is stopped already.
pub fn add_stop(connection: &Connection, stop: &RuleStop) -> Result<(), StoreError> {
    let RuleStop { application, rule, by, reason, since } = stop;
    let sql = "INSERT INTO rule_stops (application, rule, \"by\", reason, since) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT DO NOTHING";
    if execute(connection, sql, (application.as_str(), rule.as_str(), by, reason, since.0))? > 0 {
        let image = json!({ "state": "stopped", "reason": reason });
        audit::changed(|| Image::of("rule", format_args!("{application}/{rule}"), None, Some(image)));
    }
    Ok(())
}

/// Resumes a rule. Returns whether it was stopped.
pub fn remove_stop(connection: &Connection, application: &Name, rule: &Name) -> Result<bool, StoreError> {
    let sql = "DELETE FROM rule_stops WHERE application = ?1 AND rule = ?2";
    let was_stopped = execute(connection, sql, (application.as_str(), rule.as_str()))? > 0;
    if was_stopped {
        let image = json!({ "state": "stopped" });
        audit::changed(|| Image::of("rule", format_args!("{application}/{rule}"), Some(image), None));
    }
    Ok(was_stopped)
}

/// All stopped rules.
pub fn stops(connection: &Connection) -> Result<Vec<RuleStop>, StoreError> {
    let sql = "SELECT application, rule, \"by\", reason, since FROM rule_stops ORDER BY application, rule";
    collect(connection, sql, (), |row| {
        let (application, rule, by, reason, since): (String, String, String, String, i64) =
            row.try_into().map_err(store_error)?;
        Ok(RuleStop { application: name(application)?, rule: name(rule)?, by, reason, since: Timestamp(since) })
    })
}

/// Firings after a number, oldest first.
pub fn list(
    connection: &Connection,
    filter: &FiringFilter,
    after: u64,
    limit: usize,
) -> Result<Vec<Firing>, StoreError> {
    let (condition, mut params) = condition(filter);
    params.push(Value::Integer(i64::try_from(after).unwrap_or(i64::MAX)));
    params.push(Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX)));
    let sql = format!(
        "SELECT id, application, rule, status, reason, first, last, batches, since FROM firings
         WHERE {condition} AND id > ? ORDER BY id LIMIT ?"
    );
    collect(connection, &sql, params_from_iter(params), read)
}

/// Dismisses firings. Returns the number of event batches.
pub fn dismiss(connection: &Connection, filter: &FiringFilter) -> Result<u64, StoreError> {
    let (condition, params) = condition(filter);
    let sql = format!("SELECT coalesce(sum(batches), 0) FROM firings WHERE {condition}");
    let count = connection.query_row(&sql, params_from_iter(&params), |row| row.get(0)).map_err(store_error)?;
    if count > 0 {
        audit::changed(|| Image::of("firing", filter.id.unwrap_or(0), Some(json!({ "event_batches": count })), None));
    }
    let sql = format!("DELETE FROM firings WHERE {condition}");
    connection.execute(&sql, params_from_iter(&params)).map_err(store_error)?;
    Ok(count)
}

fn condition(filter: &FiringFilter) -> (String, Vec<Value>) {
    let mut sql = "1".to_owned();
    let mut params = Vec::new();
    let mut also = |column: &str, value: Option<Value>| {
        if let Some(value) = value {
            params.push(value);
            sql.push_str(&format!(" AND {column} = ?"));
        }
    };
    let text = |text: &str| Value::Text(text.to_owned());
    also("id", filter.id.map(|id| Value::Integer(i64::try_from(id).unwrap_or(i64::MAX))));
    also("application", filter.application.as_ref().map(|name| text(name.as_str())));
    also("rule", filter.rule.as_ref().map(|name| text(name.as_str())));
    also("status", filter.status.map(|status| text(status.name())));
    (sql, params)
}

fn read(row: &Row<'_>) -> Result<Firing, StoreError> {
    type Columns = (u64, String, String, String, String, u64, u64, u64, i64);
    let (id, application, rule, status, reason, first, last, batches, since): Columns =
        row.try_into().map_err(store_error)?;
    let known = [FiringStatus::Failed, FiringStatus::Skipped].into_iter().find(|known| known.name() == status);
    Ok(Firing {
        id,
        application: name(application)?,
        rule: name(rule)?,
        status: known.ok_or_else(|| StoreError::Damaged(format!("the firing {id} is `{status}`")))?,
        reason,
        first: EventBatchId(first),
        last: EventBatchId(last),
        batches,
        since: Timestamp(since),
    })
}

fn name(text: String) -> Result<Name, StoreError> {
    text.parse().map_err(|_| StoreError::Damaged(format!("the name `{text}`")))
}
