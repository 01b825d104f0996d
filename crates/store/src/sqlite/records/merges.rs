//! Merges of two subscribers.

use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{SubscriberId, SubscriberNumber},
    time::Timestamp,
};

use super::{consent_rows, endpoints, subscribers, subscriptions, suppressions, transaction::RecordsTransaction};
use crate::{
    error::StoreError,
    records::{EXPIRED_MERGES_MAX, MERGES_KEPT, Merge, MergeRefusal, MergedSubscriber, Precondition, no_subscriber},
    sqlite::{
        records::{entry_changes, subscriber_rows},
        statements::{execute, json, json_at, number_at, query_all, query_one, signed},
    },
};

pub(super) fn merge(
    tx: &mut RecordsTransaction<'_>,
    from: &SubscriberId,
    into: &SubscriberId,
    now: Timestamp,
) -> Result<Result<Merge, MergeRefusal>, StoreError> {
    let source = subscriber_rows::find(tx.connection, from)?.ok_or_else(|| no_subscriber(from))?;
    let account = subscriber_rows::find(tx.connection, into)?.ok_or_else(|| no_subscriber(into))?;
    let (from_number, into_number) = (source.number, account.number);
    if from_number == into_number {
        return Ok(Err(MergeRefusal::Itself));
    }
    let sql = "SELECT 1 FROM credentials WHERE holder = ?1";
    if query_one(tx.connection, sql, [entry_changes::holder(from_number.into())], |_| Ok(()))?.is_some() {
        return Ok(Err(MergeRefusal::HasPassword));
    }
    let parent = |number: SubscriberNumber| {
        let sql = "SELECT parent FROM subscribers WHERE number = ?1";
        query_one(tx.connection, sql, [signed(number.0)], |row| row.get::<_, Option<i64>>(0)).map(Option::flatten)
    };
    let container = parent(from_number)?;
    if container.is_some() && container != parent(into_number)? {
        return Ok(Err(MergeRefusal::OtherContainer));
    }
    let merged = MergedSubscriber::of(&source, &account);
    tx.touched.push(into_number.0);
    let (profile, devices) = (merged.profile.clone(), merged.devices.clone());
    let preferences = merged.preferences.clone();
    subscribers::replace(tx, account, profile, devices, preferences, None, now)?;
    let (moved, doubles) = subscriptions::move_to_account(tx, from_number.0, into_number.0, &merged, now)?;
    suppressions::move_to_account(tx, (from, into), &merged)?;
    endpoints::move_to_account(tx.connection, (from, into), &merged)?;
    consent_rows::move_to_account(tx.connection, from_number.0, into_number.0)?;
    subscribers::remove(tx, from, Precondition::Present, now)?;
    let report = merged.report(from.clone(), into.clone(), moved, doubles);
    execute(
        tx.connection,
        "INSERT INTO merges (from_number, into_number, from_id, report, at, finished) VALUES (?1, ?2, ?3, ?4, ?5, 0)",
        (signed(from_number.0), signed(into_number.0), from.as_str(), json(&report), now.0),
    )?;
    prune(tx.connection, now)?;
    Ok(Ok(Merge { from_number, into_number, at: now, report }))
}

/// Deletes a few expired merges, except those whose inbox feed may not have been moved.
fn prune(connection: &Connection, now: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM merges WHERE from_number IN
        (SELECT from_number FROM merges WHERE finished = 1 AND at < ?1 ORDER BY at, from_number LIMIT ?2)";
    execute(connection, sql, ((now - MERGES_KEPT).0, signed(EXPIRED_MERGES_MAX as u64))).map(|_| ())
}

fn merge_of(row: &Row<'_>) -> rusqlite::Result<Merge> {
    Ok(Merge {
        from_number: SubscriberNumber(number_at(row, 0)?),
        into_number: SubscriberNumber(number_at(row, 1)?),
        at: Timestamp(row.get(2)?),
        report: json_at(row, 3)?,
    })
}

/// Last merge of this id.
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
