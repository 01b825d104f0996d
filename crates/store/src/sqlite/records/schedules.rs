//! Index of due subscriptions: the effective schedule of each. A schedule may leave the time zone open; here it is
//! stored with the subscriber's zone, so that subscriptions with the same due times are together.

use rusqlite::Connection;
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriptionId},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    records::{FollowedSchedule, ScheduledSubscription},
    sqlite::{
        records::{
            classes,
            matching::{COLUMNS, ReachReader, stored_of},
            transaction::RecordsTransaction,
        },
        statements::{execute, name_at, number_at, query_all, query_one, signed},
        writer::store_error,
    },
};

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
    let Some((class, ..)) = classes::classes(tx.connection, Some(application), Some(class))?.pop() else {
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
    let Some((number, ..)) = classes::classes(connection, Some(application), Some(class))?.pop() else {
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
