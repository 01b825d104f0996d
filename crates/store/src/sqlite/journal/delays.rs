//! Notifications of delayed rules that wait: one row for each, found by due time, key or subscription.

use hashbrown::HashMap;
use rusqlite::{Connection, Row, params_from_iter, types::Value};
use tocsin_model::{
    id::{EventBatchId, EventId, Name, SubscriptionId},
    time::Timestamp,
};

use super::{
    context::JournalContext,
    row_writer::RowWriter,
    views::{NUMBER_MAX, collect},
};
use crate::{
    error::StoreError,
    journal::{CancelDelayed, Correlation, Delayed, DelayedFilter, NewDelayed, Step},
    sqlite::writer::{AfterCommit, Database, store_error},
};

/// Numbers of the names in the delays of a step.
pub type DelayNames = HashMap<Name, i64>;

/// Numbers of all names in the delays of a step. New names are committed first.
pub async fn names(database: &Database, shared: &JournalContext, step: &Step) -> Result<DelayNames, StoreError> {
    let mut used: Vec<Name> = Vec::new();
    for new in &step.delayed {
        used.extend([new.application.clone(), new.rule.clone()]);
    }
    for cancel in &step.cancelled {
        used.extend([cancel.application.clone(), cancel.rule.clone()]);
    }
    used.sort_unstable();
    used.dedup();
    let mut numbers = DelayNames::new();
    for name in used {
        let [number] = shared.names.numbers(database, [&name]).await?;
        numbers.insert(name, number);
    }
    Ok(numbers)
}

/// Stores the delays of a step: first the new ones, then the cancelled ones, then those that ended at their due time.
pub fn store(rows: &mut RowWriter<'_>, step: &Step, names: &DelayNames) -> Result<(), StoreError> {
    for new in &step.delayed {
        add(rows, new, names)?;
    }
    for cancel in &step.cancelled {
        let count = cancel_by_event(rows, cancel, names)?;
        metrics::counter!("tocsin_delay_cancelled_total", "by" => "event").increment(count as u64);
    }
    for run in &step.released {
        let sql = "DELETE FROM delayed WHERE run = ?1 RETURNING application, event_batch";
        let ended = collect(rows.connection, sql, [run.0], batch_of)?;
        count_ended(rows, &ended)?;
    }
    Ok(())
}

fn add(rows: &mut RowWriter<'_>, new: &NewDelayed, names: &DelayNames) -> Result<(), StoreError> {
    let (application, rule) = (names[&new.application], names[&new.rule]);
    let added = rows.execute(
        "INSERT INTO delayed (application, rule, event_batch, event, subscription, due_at, key, run)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, 0 WHERE NOT EXISTS (SELECT 1 FROM delayed
             WHERE application = ?1 AND rule = ?2 AND event_batch = ?3 AND event = ?4 AND subscription = ?5)",
        (application, rule, new.event.batch.0, new.event.ordinal, new.subscription.0, new.due_at.0, new.key.as_deref()),
    )?;
    if added > 0 {
        let sql = "UPDATE event_matched SET open = open + 1, closed_at = NULL WHERE id = ?1";
        rows.execute(sql, [new.event.batch.0])?;
        let sql = "INSERT INTO delayed_counts (application, waiting) VALUES (?1, 1)
            ON CONFLICT (application) DO UPDATE SET waiting = waiting + 1";
        rows.execute(sql, [application])?;
    }
    Ok(())
}

/// Cancels notifications that began before an event, unless they are due before it.
fn cancel_by_event(rows: &mut RowWriter<'_>, cancel: &CancelDelayed, names: &DelayNames) -> Result<usize, StoreError> {
    let (application, rule) = (names[&cancel.application], names[&cancel.rule]);
    let (column, value) = match &cancel.correlation {
        Correlation::Subscription(subscription) => ("subscription", Value::Integer(subscription.0 as i64)),
        Correlation::Key(key) => ("key", Value::Text(key.to_string())),
    };
    let EventId { batch, ordinal } = cancel.by;
    let sql = format!(
        "DELETE FROM delayed WHERE application = ?1 AND rule = ?2 AND {column} = ?3
            AND (event_batch, event) < (?4, ?5) AND (run = 0 OR run > ?4) RETURNING application, event_batch"
    );
    let ended = collect(rows.connection, &sql, (application, rule, value, batch.0, ordinal), batch_of)?;
    count_ended(rows, &ended)?;
    Ok(ended.len())
}

fn batch_of(row: &Row<'_>) -> Result<(i64, u64), StoreError> {
    row.try_into().map_err(store_error)
}

/// Lets the event batches of ended notifications expire, and counts them.
fn count_ended(rows: &RowWriter<'_>, ended: &[(i64, u64)]) -> Result<(), StoreError> {
    for (application, batch) in ended {
        rows.execute(
            "UPDATE event_matched SET open = open - 1, closed_at = CASE WHEN open <= 1 THEN ?2 END WHERE id = ?1",
            (*batch, rows.time.0),
        )?;
        rows.execute("UPDATE delayed_counts SET waiting = waiting - 1 WHERE application = ?1", [*application])?;
    }
    Ok(())
}

/// The earliest due time of an application, with its rule, except some rules.
pub fn next(
    connection: &Connection,
    shared: &JournalContext,
    application: i64,
    except: &[i64],
) -> Result<Option<(Timestamp, Name)>, StoreError> {
    let except: String = except.iter().map(|rule| format!(" AND rule <> {rule}")).collect();
    let sql = format!(
        "SELECT due_at, rule FROM delayed WHERE application = ?1 AND run = 0{except} ORDER BY due_at, rule LIMIT 1"
    );
    let found = collect(connection, &sql, [application], |row| {
        let (due_at, rule): (i64, i64) = row.try_into().map_err(store_error)?;
        Ok((Timestamp(due_at), shared.names.name(rule)?))
    })?;
    Ok(found.into_iter().next())
}

/// Notifications of a rule that are due, the earliest first.
pub fn due(
    connection: &Connection,
    [application, rule]: [i64; 2],
    now: Timestamp,
    limit: usize,
) -> Result<Vec<u64>, StoreError> {
    let sql = "SELECT id FROM delayed WHERE application = ?1 AND run = 0 AND rule = ?2 AND due_at <= ?3
        ORDER BY due_at, id LIMIT ?4";
    collect(connection, sql, (application, rule, now.0, limit), |row| row.get(0).map_err(store_error))
}

/// Assigns notifications to the event batch of their due time.
pub fn assign(connection: &Connection, ids: &[u64], run: EventBatchId) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached("UPDATE delayed SET run = ?2 WHERE id = ?1").map_err(store_error)?;
    for id in ids {
        statement.execute((*id, run.0)).map_err(store_error)?;
    }
    Ok(())
}

const COLUMNS: &str = "id, application, rule, event_batch, event, subscription, due_at, key, run";

/// Notifications assigned to an event batch, by number.
pub fn of_run(connection: &Connection, shared: &JournalContext, run: EventBatchId) -> Result<Vec<Delayed>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM delayed WHERE run = ?1 AND run > 0 ORDER BY id");
    collect(connection, &sql, [run.0.min(NUMBER_MAX)], |row| read(row, shared))
}

/// Waiting notifications by number. `None` if a name of the filter was never used.
fn selection(shared: &JournalContext, filter: &DelayedFilter) -> Option<(String, Vec<Value>)> {
    let integer = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    let name = |name: &Option<Name>| match name {
        Some(name) => shared.names.find(name).map(|number| Some(Value::Integer(number))),
        None => Some(None),
    };
    let conditions = [
        ("id =", filter.id.map(integer)),
        ("application =", name(&filter.application)?),
        ("rule =", name(&filter.rule)?),
        ("subscription =", filter.subscription.map(|subscription| integer(subscription.0))),
        ("event_batch =", filter.event_batch.map(|batch| integer(batch.0))),
        ("due_at <", filter.due_before.map(|before| Value::Integer(before.0))),
    ];
    let (mut sql, mut values) = (String::new(), Vec::new());
    for (condition, value) in conditions.into_iter().filter_map(|(condition, value)| Some((condition, value?))) {
        values.push(value);
        sql.push_str(&format!(" AND {condition} ?{}", values.len()));
    }
    Some((sql, values))
}

/// Waiting notifications by number, after `after`.
pub fn list(
    connection: &Connection,
    shared: &JournalContext,
    filter: &DelayedFilter,
    after: u64,
    limit: usize,
) -> Result<Vec<Delayed>, StoreError> {
    let Some((conditions, mut values)) = selection(shared, filter) else { return Ok(Vec::new()) };
    let at = values.len();
    values.push(Value::Integer(after.min(NUMBER_MAX) as i64));
    values.push(Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX)));
    let sql = format!("SELECT {COLUMNS} FROM delayed WHERE id > ?{}{conditions} ORDER BY id LIMIT ?{}", at + 1, at + 2);
    collect(connection, &sql, params_from_iter(values), |row| read(row, shared))
}

/// Removes waiting notifications that are not assigned to a due time.
pub fn cancel(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    filter: &DelayedFilter,
    now: Timestamp,
    limit: usize,
) -> Result<usize, StoreError> {
    let Some((conditions, mut values)) = selection(shared, filter) else { return Ok(0) };
    values.push(Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX)));
    let sql = format!(
        "DELETE FROM delayed WHERE id IN
            (SELECT id FROM delayed WHERE run = 0{conditions} ORDER BY id LIMIT ?{})
         RETURNING application, event_batch",
        values.len()
    );
    let ended = collect(connection, &sql, params_from_iter(values), batch_of)?;
    if let (false, Some(application)) = (ended.is_empty(), &filter.application) {
        let image = serde_json::json!({ "delayed_notifications": ended.len() });
        crate::audit::changed(|| crate::audit::Image::of("application", application, Some(image), None));
    }
    let rows = RowWriter::new(connection, shared, now);
    count_ended(&rows, &ended)?;
    rows.store_counts(after, None, false)?;
    Ok(ended.len())
}

/// Number of waiting notifications of an application.
pub fn count(connection: &Connection, application: i64) -> Result<u64, StoreError> {
    let sql = "SELECT waiting FROM delayed_counts WHERE application = ?1";
    let found: Vec<i64> = collect(connection, sql, [application], |row| row.get(0).map_err(store_error))?;
    Ok(found.first().map_or(0, |waiting| (*waiting).max(0) as u64))
}

/// Removes up to `limit` notifications of a removed application, assigned or not. Returns their number.
pub fn end_some(rows: &RowWriter<'_>, application: i64, limit: usize) -> Result<usize, StoreError> {
    let sql = "DELETE FROM delayed WHERE id IN (SELECT id FROM delayed WHERE application = ?1 LIMIT ?2)
        RETURNING application, event_batch";
    let ended = collect(rows.connection, sql, (application, limit), batch_of)?;
    count_ended(rows, &ended)?;
    Ok(ended.len())
}

fn read(row: &Row<'_>, shared: &JournalContext) -> Result<Delayed, StoreError> {
    type Columns = (u64, i64, i64, u64, u32, u64, i64, Option<Box<str>>, u64);
    let (id, application, rule, batch, ordinal, subscription, due_at, key, run): Columns =
        row.try_into().map_err(store_error)?;
    Ok(Delayed {
        id,
        application: shared.names.name(application)?,
        rule: shared.names.name(rule)?,
        event: EventId { batch: EventBatchId(batch), ordinal },
        subscription: SubscriptionId(subscription),
        due_at: Timestamp(due_at),
        key,
        run: (run > 0).then_some(EventBatchId(run)),
    })
}
