//! Progress of rule schedules. There are few rows with long texts, so names are stored as text.

use rusqlite::{Connection, OptionalExtension, Row};
use tocsin_model::{
    id::{ChangeSequence, EventBatchId, Name},
    time::Timestamp,
};

use super::{
    names::Names,
    views::{self, NUMBER_MAX, collect},
};
use crate::{
    error::StoreError,
    journal::{EventPage, ScheduleKey, ScheduleRun},
    sqlite::writer::store_error,
};

/// Stores progress; `due` is the event batch of the due time, where the next runs begin.
pub fn store(connection: &Connection, runs: &[ScheduleRun], due: Option<EventBatchId>) -> Result<(), StoreError> {
    let sql = "INSERT INTO schedule_runs (application, rule, schedule, due_at, after, skipped, skipped_at, seen)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT DO UPDATE SET due_at = ?4, after = ?5, skipped = ?6, skipped_at = ?7, seen = ?8";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    for run in runs {
        let after = due.unwrap_or(run.after);
        let skipped_at = run.skipped_at.map(|at| at.0);
        let (application, rule) = (run.application.as_str(), run.rule.as_str());
        let (skipped, seen) = (run.skipped as i64, run.seen.0 as i64);
        let row = (application, rule, &run.schedule, run.due_at.0, after.0, skipped, skipped_at, seen);
        statement.execute(row).map_err(store_error)?;
    }
    Ok(())
}

/// Page of schedules, by rule and schedule.
pub fn list(
    connection: &Connection,
    application: &Name,
    after: Option<&ScheduleKey>,
    limit: usize,
) -> Result<Vec<ScheduleRun>, StoreError> {
    let sql = "SELECT application, rule, schedule, due_at, after, skipped, skipped_at, seen FROM schedule_runs
        WHERE application = ?1 AND (rule, schedule) > (?2, ?3) ORDER BY rule, schedule LIMIT ?4";
    let (rule, schedule) = after.map_or(("", ""), |(rule, schedule)| (rule.as_str(), &**schedule));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    collect(connection, sql, (application.as_str(), rule, schedule, limit), read)
}

/// Progress of one schedule.
pub fn find(
    connection: &Connection,
    application: &Name,
    (rule, schedule): &ScheduleKey,
) -> Result<Option<ScheduleRun>, StoreError> {
    let sql = "SELECT application, rule, schedule, due_at, after, skipped, skipped_at, seen FROM schedule_runs
        WHERE application = ?1 AND rule = ?2 AND schedule = ?3";
    Ok(collect(connection, sql, (application.as_str(), rule.as_str(), schedule), read)?.pop())
}

/// Deletes one schedule.
pub fn delete(connection: &Connection, application: &Name, (rule, schedule): &ScheduleKey) -> Result<(), StoreError> {
    let sql = "DELETE FROM schedule_runs WHERE application = ?1 AND rule = ?2 AND schedule = ?3";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    statement.execute((application.as_str(), rule.as_str(), schedule)).map_err(store_error).map(|_| ())
}

/// Event batches of a class between two numbers, up to about `bytes` bytes.
pub fn events_between(
    connection: &Connection,
    names: &Names,
    [application, class]: [i64; 2],
    after: EventBatchId,
    before: EventBatchId,
    bytes: usize,
) -> Result<EventPage, StoreError> {
    let sql = "SELECT id, bytes FROM event_batches
        WHERE id > ?1 AND id < ?2 AND application = ?3 AND class = ?4 ORDER BY id";
    let mut page = EventPage::default();
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let range = (after.0.min(NUMBER_MAX), before.0.min(NUMBER_MAX), application, class);
    let mut rows = statement.query(range).map_err(store_error)?;
    let (mut taken, mut last) = (0usize, None);
    while let Some(row) = rows.next().map_err(store_error)? {
        let (id, size): (u64, usize) = row.try_into().map_err(store_error)?;
        taken = taken.saturating_add(size);
        if taken > bytes && last.is_some() {
            page.next = last;
            break;
        }
        let id = EventBatchId(id);
        last = Some(id);
        match views::find_event_batch(connection, names, id) {
            Ok(found) => page.batches.extend(found.map(|(batch, _)| batch)),
            Err(StoreError::Damaged(_)) => page.damaged.push(id),
            Err(error) => return Err(error),
        }
    }
    Ok(page)
}

/// Last event batch before those accepted at a time or later. Binary search by number, which is the order of
/// acceptance.
pub fn position_at(connection: &Connection, time: Timestamp) -> Result<EventBatchId, StoreError> {
    let sql = "SELECT id, accepted_at FROM event_batches WHERE id >= ?1 ORDER BY id LIMIT 1";
    let mut next = connection.prepare_cached(sql).map_err(store_error)?;
    let mut next_from = |id: u64| -> Result<Option<(u64, i64)>, StoreError> {
        next.query_row([id], |row| row.try_into()).optional().map_err(store_error)
    };
    // Batches up to `early` were accepted before the time; those from `late` on were not, or do not exist.
    let last: Option<u64> =
        connection.query_row("SELECT max(id) FROM event_batches", (), |row| row.get(0)).map_err(store_error)?;
    let (mut early, mut late) = (0, last.unwrap_or(0) + 1);
    while late - early > 1 {
        let middle = early + (late - early) / 2;
        match next_from(middle)? {
            Some((id, accepted_at)) if accepted_at < time.0 && id < late => early = id,
            _ => late = middle,
        }
    }
    Ok(EventBatchId(early))
}

fn read(row: &Row<'_>) -> Result<ScheduleRun, StoreError> {
    type Columns = (String, String, Box<str>, i64, u64, u64, Option<i64>, u64);
    let (application, rule, schedule, due_at, after, skipped, skipped_at, seen): Columns =
        row.try_into().map_err(store_error)?;
    let name = |text: String| text.parse().map_err(|_| StoreError::Damaged(format!("the name `{text}`")));
    Ok(ScheduleRun {
        application: name(application)?,
        rule: name(rule)?,
        schedule,
        due_at: Timestamp(due_at),
        after: EventBatchId(after),
        seen: ChangeSequence(seen),
        skipped,
        skipped_at: skipped_at.map(Timestamp),
    })
}
