//! Index of due subscriptions: the effective schedule of each. A schedule may leave the time zone open; here it is
//! stored with the subscriber's zone, so that subscriptions with the same due times are together.

use rusqlite::Connection;
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriptionId},
    time::Timestamp,
};

use super::{
    applications, execute,
    matching::{COLUMNS, ReachReader, stored_of},
    name_at, number_at, query_all, query_one, signed, store_error,
    transaction::RecordsTransaction,
};
use crate::{
    error::StoreError,
    records::{FollowedSchedule, ScheduledSubscription, due_schedule, since_change},
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
fn number(tx: &RecordsTransaction<'_>, class: i64, text: &str, now: Timestamp) -> Result<i64, StoreError> {
    let sql = "SELECT number FROM schedules WHERE class = ?1 AND text = ?2";
    if let Some(number) = query_one(tx.connection, sql, (class, text), |row| row.get(0))? {
        return Ok(number);
    }
    let sql = "INSERT INTO schedules (class, text, made_at) VALUES (?1, ?2, ?3)";
    execute(tx.connection, sql, (class, text, now.0))?;
    Ok(tx.connection.last_insert_rowid())
}

/// Schedules of an application after a number.
pub(super) fn list(
    connection: &Connection,
    application: &Name,
    after: u64,
    limit: usize,
) -> Result<Vec<FollowedSchedule>, StoreError> {
    let sql = "SELECT schedules.number, name, text, made_at FROM schedules JOIN classes ON classes.number = class
        WHERE schedules.number > ?2 AND application = ?1 ORDER BY schedules.number LIMIT ?3";
    query_all(connection, sql, (application.as_str(), signed(after), signed(limit as u64)), |row| {
        Ok(FollowedSchedule {
            number: number_at(row, 0)?,
            class: name_at(row, 1)?,
            schedule: row.get(2)?,
            made_at: Timestamp(row.get(3)?),
        })
    })
}

/// Removes a schedule without subscriptions.
pub(super) fn remove(
    tx: &RecordsTransaction<'_>,
    application: &Name,
    class: &Name,
    schedule: &str,
) -> Result<bool, StoreError> {
    let Some((class, ..)) = applications::classes(tx.connection, Some(application), Some(class))?.pop() else {
        return Ok(true);
    };
    let sql = "SELECT number FROM schedules WHERE class = ?1 AND text = ?2";
    let found: Option<i64> = query_one(tx.connection, sql, (class, schedule), |row| row.get(0))?;
    let Some(number) = found else { return Ok(true) };
    let sql = "DELETE FROM schedules
        WHERE number = ?1 AND NOT EXISTS (SELECT 1 FROM scheduled WHERE schedule = ?1)";
    Ok(execute(tx.connection, sql, [number])? > 0)
}

/// Enabled subscriptions of a schedule, by number.
pub(super) fn members(
    connection: &Connection,
    application: &Name,
    class: &Name,
    schedule: &str,
    after: Option<SubscriptionId>,
    limit: usize,
) -> Result<Vec<ScheduledSubscription>, StoreError> {
    let Some((number, ..)) = applications::classes(connection, Some(application), Some(class))?.pop() else {
        return Ok(Vec::new());
    };
    // CROSS JOIN fixes the join order, and with it the order by number.
    let sql = format!(
        "SELECT {COLUMNS}, since, joined FROM
            (SELECT subscription, since, joined FROM scheduled
                WHERE schedule = (SELECT number FROM schedules WHERE class = ?1 AND text = ?2) AND subscription > ?3
                ORDER BY subscription)
            CROSS JOIN subscriptions ON id = subscription WHERE enabled ORDER BY subscription"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let after = after.map_or(0, |after| signed(after.0));
    let mut rows = statement.query((number, schedule, after)).map_err(store_error)?;
    let names = [(number, class.clone())].into();
    let mut reaches = ReachReader::new(connection, None)?;
    let mut page = Vec::new();
    while page.len() < limit
        && let Some(row) = rows.next().map_err(store_error)?
    {
        let stored = stored_of(row).map_err(store_error)?;
        let since = Timestamp(row.get(10).map_err(store_error)?);
        let joined = ChangeSequence(number_at(row, 11).map_err(store_error)?);
        let found = stored.indexed(&names, &mut reaches)?;
        page.extend(found.map(|subscription| ScheduledSubscription { subscription, since, joined }));
    }
    Ok(page)
}

/// Schedule of a subscription, with its time zone, and when it joined.
pub(super) fn of(
    connection: &Connection,
    subscription: SubscriptionId,
) -> Result<Option<(Box<str>, Timestamp)>, StoreError> {
    let sql = "SELECT text, since FROM scheduled JOIN schedules ON number = schedule WHERE subscription = ?1";
    query_one(connection, sql, [signed(subscription.0)], |row| Ok((row.get(0)?, Timestamp(row.get(1)?))))
}
