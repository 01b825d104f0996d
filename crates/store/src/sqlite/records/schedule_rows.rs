//! Rows of schedules, kept with their subscriptions.

use tocsin_model::time::Timestamp;

use crate::{
    error::StoreError,
    records::{due_schedule, since_change},
    sqlite::{
        records::transaction::RecordsTransaction,
        statements::{execute, number_at, query_all, query_one, signed},
    },
};

/// Subscription with the properties that decide its due times.
pub(super) struct ScheduledRow<'a> {
    pub(super) subscription: u64,
    pub(super) class: i64,
    pub(super) subscriber: u64,
    pub(super) schedule: Option<&'a str>,
}

/// Updates the schedule of a subscription; the caller must log a change afterwards. A resumed subscription, or one
/// without a schedule before, begins now; one with another schedule begins where the last run of the former one
/// ended.
pub(super) fn update(
    tx: &RecordsTransaction<'_>,
    row: &ScheduledRow<'_>,
    resumed: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let zone = "SELECT time_zone FROM subscribers WHERE number = ?1";
    let zone: Option<String> = query_one(tx.connection, zone, [signed(row.subscriber)], |row| row.get(0))?.flatten();
    let Some(text) = row.schedule.and_then(|text| due_schedule(text, zone.as_deref())) else {
        return unschedule(tx, row.subscription);
    };
    let before: Option<(String, i64)> = query_one(
        tx.connection,
        "SELECT text, since FROM scheduled JOIN schedules ON number = schedule WHERE subscription = ?1",
        [signed(row.subscription)],
        |row| row.try_into(),
    )?;
    let since = match before {
        Some((same, _)) if *same == *text && !resumed => return Ok(()),
        Some((before, since)) if !resumed => since_change(&before, Timestamp(since), now),
        _ => now,
    };
    let schedule = number(tx, row.class, &text, now)?;
    execute(
        tx.connection,
        "INSERT INTO scheduled (subscription, schedule, since, joined) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT DO UPDATE SET schedule = ?2, since = ?3, joined = ?4",
        (signed(row.subscription), schedule, since.0, signed(tx.change + 1)),
    )
    .map(|_| ())
}

/// Removes a subscription from its schedule.
pub(super) fn unschedule(tx: &RecordsTransaction<'_>, subscription: u64) -> Result<(), StoreError> {
    execute(tx.connection, "DELETE FROM scheduled WHERE subscription = ?1", [signed(subscription)]).map(|_| ())
}

/// Recomputes the schedules of a subscriber's subscriptions after a change of its time zone. Returns whether it has
/// any.
pub(super) fn change_zone(tx: &RecordsTransaction<'_>, subscriber: u64, now: Timestamp) -> Result<bool, StoreError> {
    let sql =
        "SELECT id, class, schedule FROM subscriptions WHERE subscriber = ?1 AND schedule IS NOT NULL ORDER BY id";
    let rows: Vec<(u64, i64, String)> =
        query_all(tx.connection, sql, [signed(subscriber)], |row| Ok((number_at(row, 0)?, row.get(1)?, row.get(2)?)))?;
    for (subscription, class, schedule) in &rows {
        let (subscription, class) = (*subscription, *class);
        let row = ScheduledRow { subscription, class, subscriber, schedule: Some(schedule) };
        update(tx, &row, false, now)?;
    }
    Ok(!rows.is_empty())
}

/// Number of a schedule of a class, assigned on first use.
pub(crate) fn number(tx: &RecordsTransaction<'_>, class: i64, text: &str, now: Timestamp) -> Result<i64, StoreError> {
    let sql = "SELECT number FROM schedules WHERE class = ?1 AND text = ?2";
    if let Some(number) = query_one(tx.connection, sql, (class, text), |row| row.get(0))? {
        return Ok(number);
    }
    let sql = "INSERT INTO schedules (class, text, made_at) VALUES (?1, ?2, ?3)";
    execute(tx.connection, sql, (class, text, now.0))?;
    Ok(tx.connection.last_insert_rowid())
}
