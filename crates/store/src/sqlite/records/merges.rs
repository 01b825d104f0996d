//! Two subscribers become one.

use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{SubscriberId, SubscriberNumber},
    time::Timestamp,
};

use super::{
    endpoints, entries, execute, feed::Books, json, json_at, number_at, query_all, query_one, signed, subscribers,
    subscriptions, suppressions,
};
use crate::{
    error::StoreError,
    records::{Expect, MERGES_FORGOTTEN_AT_ONCE, MERGES_KEPT, Merge, NotMerged, United, no_subscriber},
};

pub(super) fn merge(
    books: &mut Books<'_>,
    from: &SubscriberId,
    into: &SubscriberId,
    now: Timestamp,
) -> Result<Result<Merge, NotMerged>, StoreError> {
    let source = subscribers::find(books.connection, from)?.ok_or_else(|| no_subscriber(from))?;
    let account = subscribers::find(books.connection, into)?.ok_or_else(|| no_subscriber(into))?;
    let (from_number, into_number) = (source.number, account.number);
    if from_number == into_number {
        return Ok(Err(NotMerged::Itself));
    }
    let sql = "SELECT 1 FROM credentials WHERE holder = ?1";
    if query_one(books.connection, sql, [entries::holder(from_number.into())], |_| Ok(()))?.is_some() {
        return Ok(Err(NotMerged::HasPassword));
    }
    let parent = |number: SubscriberNumber| {
        let sql = "SELECT parent FROM subscribers WHERE number = ?1";
        query_one(books.connection, sql, [signed(number.0)], |row| row.get::<_, Option<i64>>(0)).map(Option::flatten)
    };
    let stands = parent(from_number)?;
    if stands.is_some() && stands != parent(into_number)? {
        return Ok(Err(NotMerged::OtherContainer));
    }
    let united = United::of(&source, &account);
    books.touched.push(into_number.0);
    let (profile, devices) = (united.profile.clone(), united.devices.clone());
    let preferences = united.preferences.clone();
    subscribers::replace(books, account, profile, devices, preferences, None, now)?;
    let (moved, doubles) = subscriptions::move_over(books, from_number.0, into_number.0, &united, now)?;
    suppressions::move_over(books, (from, into), &united)?;
    endpoints::move_over(books.connection, (from, into), &united)?;
    subscribers::remove(books, from, Expect::Present)?;
    let report = united.report(from.clone(), into.clone(), moved, doubles);
    execute(
        books.connection,
        "INSERT INTO merges (from_number, into_number, from_id, report, at, finished) VALUES (?1, ?2, ?3, ?4, ?5, 0)",
        (signed(from_number.0), signed(into_number.0), from.as_str(), json(&report), now.0),
    )?;
    forget(books.connection, now)?;
    Ok(Ok(Merge { from_number, into_number, at: now, report }))
}

/// Forgets a few of those that nobody asks about any more; never one whose feed may still lie where it lay.
fn forget(connection: &Connection, now: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM merges WHERE from_number IN
        (SELECT from_number FROM merges WHERE finished = 1 AND at < ?1 ORDER BY at, from_number LIMIT ?2)";
    execute(connection, sql, ((now - MERGES_KEPT).0, signed(MERGES_FORGOTTEN_AT_ONCE as u64))).map(|_| ())
}

fn merge_of(row: &Row<'_>) -> rusqlite::Result<Merge> {
    Ok(Merge {
        from_number: SubscriberNumber(number_at(row, 0)?),
        into_number: SubscriberNumber(number_at(row, 1)?),
        at: Timestamp(row.get(2)?),
        report: json_at(row, 3)?,
    })
}

/// The last of this id.
pub(super) fn last(connection: &Connection, from: &SubscriberId) -> Result<Option<Merge>, StoreError> {
    let sql = "SELECT from_number, into_number, at, report FROM merges WHERE from_id = ?1
        ORDER BY from_number DESC LIMIT 1";
    query_one(connection, sql, [from.as_str()], merge_of)
}

pub(super) fn unfinished(connection: &Connection) -> Result<Vec<Merge>, StoreError> {
    let sql = "SELECT from_number, into_number, at, report FROM merges WHERE finished = 0 ORDER BY from_number";
    query_all(connection, sql, (), merge_of)
}

pub(super) fn finish(connection: &Connection, from: SubscriberNumber) -> Result<(), StoreError> {
    execute(connection, "UPDATE merges SET finished = 1 WHERE from_number = ?1", [signed(from.0)]).map(|_| ())
}
