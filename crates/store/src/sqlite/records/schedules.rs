//! Who follows which schedule: the index by which due subscriptions are found. A subscription's schedule may leave its
//! zone open; here it stands with the zone of its subscriber, so that those with the same due times are together.

use rusqlite::Connection;
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriptionId},
    time::Timestamp,
};

use super::{
    applications, execute,
    feed::Books,
    matching::{COLUMNS, Reaches, stored_of},
    name_at, number_at, query_all, query_one, signed, store_error,
};
use crate::{
    error::StoreError,
    records::{FollowedSchedule, ScheduledSubscription, due_schedule, since_change},
};

/// What decides when a subscription is due.
pub(super) struct Follower<'a> {
    pub(super) subscription: u64,
    pub(super) class: i64,
    pub(super) subscriber: u64,
    pub(super) schedule: Option<&'a str>,
}

/// Makes a subscription follow its schedule, or none any more; the feed must tell of a change after it. One that was let go on (`resumed`) and one that followed
/// none begins now; another schedule begins where the last run of the one before ended.
pub(super) fn follow(
    books: &Books<'_>,
    follower: &Follower<'_>,
    resumed: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let zone = "SELECT time_zone FROM subscribers WHERE number = ?1";
    let zone: Option<String> =
        query_one(books.connection, zone, [signed(follower.subscriber)], |row| row.get(0))?.flatten();
    let Some(text) = follower.schedule.and_then(|text| due_schedule(text, zone.as_deref())) else {
        return leave(books, follower.subscription);
    };
    let before: Option<(String, i64)> = query_one(
        books.connection,
        "SELECT text, since FROM scheduled JOIN schedules ON number = schedule WHERE subscription = ?1",
        [signed(follower.subscription)],
        |row| row.try_into(),
    )?;
    let since = match before {
        Some((same, _)) if *same == *text && !resumed => return Ok(()),
        Some((before, since)) if !resumed => since_change(&before, Timestamp(since), now),
        _ => now,
    };
    let schedule = number(books, follower.class, &text, now)?;
    execute(
        books.connection,
        "INSERT INTO scheduled (subscription, schedule, since, joined) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT DO UPDATE SET schedule = ?2, since = ?3, joined = ?4",
        (signed(follower.subscription), schedule, since.0, signed(books.change + 1)),
    )
    .map(|_| ())
}

/// A subscription follows no schedule any more.
pub(super) fn leave(books: &Books<'_>, subscription: u64) -> Result<(), StoreError> {
    execute(books.connection, "DELETE FROM scheduled WHERE subscription = ?1", [signed(subscription)]).map(|_| ())
}

/// The subscriptions of a subscriber follow their schedules in another zone. Gives whether there are any.
pub(super) fn change_zone(books: &Books<'_>, subscriber: u64, now: Timestamp) -> Result<bool, StoreError> {
    let sql =
        "SELECT id, class, schedule FROM subscriptions WHERE subscriber = ?1 AND schedule IS NOT NULL ORDER BY id";
    let followers: Vec<(u64, i64, String)> = query_all(books.connection, sql, [signed(subscriber)], |row| {
        Ok((number_at(row, 0)?, row.get(1)?, row.get(2)?))
    })?;
    for (subscription, class, schedule) in &followers {
        let (subscription, class) = (*subscription, *class);
        let follower = Follower { subscription, class, subscriber, schedule: Some(schedule) };
        follow(books, &follower, false, now)?;
    }
    Ok(!followers.is_empty())
}

/// The number of a schedule of a class, which is made if there is none.
fn number(books: &Books<'_>, class: i64, text: &str, now: Timestamp) -> Result<i64, StoreError> {
    let sql = "SELECT number FROM schedules WHERE class = ?1 AND text = ?2";
    if let Some(number) = query_one(books.connection, sql, (class, text), |row| row.get(0))? {
        return Ok(number);
    }
    let sql = "INSERT INTO schedules (class, text, made_at) VALUES (?1, ?2, ?3)";
    execute(books.connection, sql, (class, text, now.0))?;
    Ok(books.connection.last_insert_rowid())
}

/// The schedules of an application after a number.
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

/// Forgets a schedule that nobody follows.
pub(super) fn forget(books: &Books<'_>, application: &Name, class: &Name, schedule: &str) -> Result<bool, StoreError> {
    let Some((class, ..)) = applications::classes(books.connection, Some(application), Some(class))?.pop() else {
        return Ok(true);
    };
    let sql = "SELECT number FROM schedules WHERE class = ?1 AND text = ?2";
    let found: Option<i64> = query_one(books.connection, sql, (class, schedule), |row| row.get(0))?;
    let Some(number) = found else { return Ok(true) };
    let sql = "DELETE FROM schedules
        WHERE number = ?1 AND NOT EXISTS (SELECT 1 FROM scheduled WHERE schedule = ?1)";
    Ok(execute(books.connection, sql, [number])? > 0)
}

/// The enabled subscriptions that follow a schedule, in the order of their numbers.
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
    // CROSS JOIN keeps the order of the join, and with it that of the numbers.
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
    let mut reaches = Reaches::new(connection, None)?;
    let mut page = Vec::new();
    while page.len() < limit
        && let Some(row) = rows.next().map_err(store_error)?
    {
        let stored = stored_of(row).map_err(store_error)?;
        let since = Timestamp(row.get(9).map_err(store_error)?);
        let joined = ChangeSequence(number_at(row, 10).map_err(store_error)?);
        let found = stored.indexed(&names, &mut reaches)?;
        page.extend(found.map(|subscription| ScheduledSubscription { subscription, since, joined }));
    }
    Ok(page)
}

/// The schedule that a subscription follows, with its zone, and since when.
pub(super) fn of(
    connection: &Connection,
    subscription: SubscriptionId,
) -> Result<Option<(Box<str>, Timestamp)>, StoreError> {
    let sql = "SELECT text, since FROM scheduled JOIN schedules ON number = schedule WHERE subscription = ?1";
    query_one(connection, sql, [signed(subscription.0)], |row| Ok((row.get(0)?, Timestamp(row.get(1)?))))
}
