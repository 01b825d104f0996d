//! Items, the contents that they share, and the number of items of each feed.

use std::collections::{HashMap, HashSet};

use ring::digest;
use tocsin_model::{
    id::{NotificationId, SubscriberNumber},
    inbox::{InboxContent, Item, ItemId, Mark},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    inbox::{DeliveryCounts, TOMBSTONES_KEPT},
    sqlite::{
        inbox::{
            broadcasts,
            contents::remove_reference,
            transaction::{InboxTransaction, body},
        },
        statements::{execute, query_all, query_one},
    },
};

/// A content in its stored form.
pub(super) struct PreparedContent {
    scope: u64,
    hash: [u8; 16],
    application: String,
    class: String,
    channel: Option<String>,
    body: String,
}

impl PreparedContent {
    pub fn new(content: &InboxContent) -> PreparedContent {
        let body = body(content);
        let digest = digest::digest(&digest::SHA256, body.as_bytes());
        PreparedContent {
            scope: content.event.map_or(0, |event| event.batch.0),
            hash: digest.as_ref()[..16].try_into().expect("SHA-256 has 32 bytes"),
            application: content.application.to_string(),
            class: content.class.to_string(),
            channel: content.channel.as_ref().map(ToString::to_string),
            body,
        }
    }
}

/// A new item, with the index of its content in the list of contents.
pub(super) struct NewInboxItem {
    pub subscriber: SubscriberNumber,
    pub id: NotificationId,
    pub content: usize,
    pub expires_at: Timestamp,
}

pub(super) fn put(
    tx: &mut InboxTransaction<'_>,
    new_items: &[NewInboxItem],
    contents: Vec<PreparedContent>,
    items_max: u32,
    now: Timestamp,
) -> Result<DeliveryCounts, StoreError> {
    let mut delivered = DeliveryCounts::default();
    let mut seen = HashSet::with_capacity(new_items.len());
    let mut new = Vec::with_capacity(new_items.len());
    let mut holders = vec![0u64; contents.len()];
    for item in new_items {
        if !seen.insert(item.id) || is_known(tx, item.id)? {
            delivered.known += 1;
            continue;
        }
        holders[item.content] += 1;
        new.push(item);
    }
    delivered.new = new.len() as u64;
    let mut numbers = Vec::with_capacity(contents.len());
    for (content, holders) in contents.iter().zip(&holders) {
        numbers.push(if *holders > 0 { add_references(tx, content, *holders)? } else { 0 });
    }
    // In the order of arrival, so that the numbers are deterministic.
    let (mut feeds, mut positions) = (Vec::new(), HashMap::new());
    for item in new {
        let number = tx.next();
        execute(
            tx.connection,
            "INSERT INTO items (subscriber, number, batch, ordinal, content, created_at, expires_at, changed)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?2)",
            (
                item.subscriber.0,
                number,
                item.id.batch.0,
                item.id.ordinal,
                numbers[item.content],
                now.0,
                item.expires_at.0,
            ),
        )?;
        let position = *positions.entry(item.subscriber).or_insert(feeds.len());
        match feeds.get_mut(position) {
            None => feeds.push((item.subscriber, 1u64)),
            Some((_, count)) => *count += 1,
        }
    }
    tx.items += delivered.new;
    for (subscriber, count) in feeds {
        tx.touched.push(subscriber);
        let sql = "INSERT INTO feeds (subscriber, items) VALUES (?1, ?2)
            ON CONFLICT DO UPDATE SET items = items + ?2 RETURNING items";
        let has: u64 = query_one(tx.connection, sql, (subscriber.0, count), |row| row.get(0))?.unwrap_or(count);
        if has > u64::from(items_max) {
            delivered.evicted += evict(tx, subscriber, has - u64::from(items_max), now)?;
        }
    }
    Ok(delivered)
}

/// Whether the item was delivered before.
fn is_known(tx: &InboxTransaction<'_>, id: NotificationId) -> Result<bool, StoreError> {
    for sql in [
        "SELECT 1 FROM items WHERE batch = ?1 AND ordinal = ?2",
        "SELECT 1 FROM removed WHERE batch = ?1 AND ordinal = ?2",
    ] {
        if query_one(tx.connection, sql, (id.batch.0, id.ordinal), |_| Ok(()))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds references to a content, and returns its number.
fn add_references(tx: &mut InboxTransaction<'_>, content: &PreparedContent, holders: u64) -> Result<u64, StoreError> {
    let sql = "INSERT INTO contents (scope, hash, application, class, channel, body, holders) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
        ON CONFLICT DO UPDATE SET holders = holders + excluded.holders RETURNING number, holders";
    let PreparedContent { scope, hash, application, class, channel, body } = content;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, u64>(1)?));
    let row = query_one(tx.connection, sql, (scope, hash, application, class, channel, body, holders), read)?;
    let (number, all) = row.ok_or_else(|| StoreError::Damaged("a content was not stored".into()))?;
    tx.contents += u64::from(all == holders);
    Ok(number)
}

/// Removes the oldest items of a feed.
fn evict(
    tx: &mut InboxTransaction<'_>,
    subscriber: SubscriberNumber,
    count: u64,
    now: Timestamp,
) -> Result<u64, StoreError> {
    let sql = "SELECT number FROM items WHERE subscriber = ?1 ORDER BY number LIMIT ?2";
    let oldest: Vec<u64> = query_all(tx.connection, sql, (subscriber.0, count), |row| row.get(0))?;
    for number in &oldest {
        remove(tx, subscriber, *number, now)?;
    }
    Ok(oldest.len() as u64)
}

/// Removes an item before its expiry.
fn remove(
    tx: &mut InboxTransaction<'_>,
    subscriber: SubscriberNumber,
    number: u64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM items WHERE subscriber = ?1 AND number = ?2 RETURNING batch, ordinal, content";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, u32>(1)?, row.get(2)?));
    let Some((batch, ordinal, content)) = query_one(tx.connection, sql, (subscriber.0, number), read)? else {
        return Ok(());
    };
    remove_reference(tx, content)?;
    reduce_count(tx, subscriber, 1)?;
    let changed = tx.next();
    execute(
        tx.connection,
        "INSERT INTO removed (subscriber, changed, number, batch, ordinal, removed_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        (subscriber.0, changed, number, batch, ordinal, now.0),
    )?;
    Ok(())
}

/// Reduces the item count of a feed.
fn reduce_count(tx: &mut InboxTransaction<'_>, subscriber: SubscriberNumber, count: u64) -> Result<(), StoreError> {
    tx.items -= count;
    let sql = "UPDATE feeds SET items = items - ?2 WHERE subscriber = ?1 RETURNING items";
    if query_one(tx.connection, sql, (subscriber.0, count), |row| row.get::<_, i64>(0))? == Some(0) {
        execute(tx.connection, "DELETE FROM feeds WHERE subscriber = ?1", [subscriber.0])?;
    }
    Ok(())
}

/// Marks an existing item. Returns whether that changed anything.
pub(super) fn mark(
    tx: &mut InboxTransaction<'_>,
    subscriber: SubscriberNumber,
    item: &Item,
    mark: Mark,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let applied = mark.applied(item.read_at, item.archived_at, now);
    if applied == Some((item.read_at, item.archived_at)) {
        return Ok(false);
    }
    tx.touched.push(subscriber);
    match (item.id, applied) {
        (ItemId::Broadcast(id), applied) => broadcasts::store_state(tx, subscriber, id, item, applied)?,
        (ItemId::Notification(_), None) => remove(tx, subscriber, item.number, now)?,
        (ItemId::Notification(_), Some((read_at, archived_at))) => {
            let changed = tx.next();
            let (read_at, archived_at) = (read_at.map(|time| time.0), archived_at.map(|time| time.0));
            let sql =
                "UPDATE items SET read_at = ?3, archived_at = ?4, changed = ?5 WHERE subscriber = ?1 AND number = ?2";
            execute(tx.connection, sql, (subscriber.0, item.number, read_at, archived_at, changed))?;
        }
    }
    Ok(true)
}

/// Moves the feed of one subscriber to another.
pub(super) fn move_feed(
    tx: &mut InboxTransaction<'_>,
    from: SubscriberNumber,
    into: SubscriberNumber,
) -> Result<u64, StoreError> {
    let sql = "SELECT number FROM items WHERE subscriber = ?1 ORDER BY number";
    let numbers: Vec<u64> = query_all(tx.connection, sql, [from.0], |row| row.get(0))?;
    for number in &numbers {
        let changed = tx.next();
        let sql = "UPDATE items SET subscriber = ?3, changed = ?4 WHERE subscriber = ?1 AND number = ?2";
        execute(tx.connection, sql, (from.0, number, into.0, changed))?;
    }
    let count = numbers.len() as u64;
    if count > 0 {
        let sql = "INSERT INTO feeds (subscriber, items) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET items = items + ?2";
        execute(tx.connection, sql, (into.0, count))?;
        execute(tx.connection, "DELETE FROM feeds WHERE subscriber = ?1", [from.0])?;
    }
    execute(tx.connection, "UPDATE removed SET subscriber = ?2 WHERE subscriber = ?1", (from.0, into.0))?;
    broadcasts::move_states(tx, from, into)?;
    tx.touched.extend([from, into]);
    Ok(count)
}

pub(super) fn remove_feed(tx: &mut InboxTransaction<'_>, subscriber: SubscriberNumber) -> Result<(), StoreError> {
    let sql = "DELETE FROM items WHERE subscriber = ?1 RETURNING content";
    let contents: Vec<u64> = query_all(tx.connection, sql, [subscriber.0], |row| row.get(0))?;
    tx.items -= contents.len() as u64;
    for content in contents {
        remove_reference(tx, content)?;
    }
    for sql in [
        "DELETE FROM feeds WHERE subscriber = ?1",
        "DELETE FROM removed WHERE subscriber = ?1",
        "DELETE FROM touches WHERE subscriber = ?1",
    ] {
        execute(tx.connection, sql, [subscriber.0])?;
    }
    tx.touched.push(subscriber);
    Ok(())
}

/// Removes expired items, and records of old removals.
pub(super) fn expire(tx: &mut InboxTransaction<'_>, now: Timestamp, limit: usize) -> Result<(u64, bool), StoreError> {
    let sql = "SELECT subscriber, number, content FROM items WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?, row.get::<_, u64>(2)?));
    let expired = query_all(tx.connection, sql, (now.0, limit), read)?;
    for (subscriber, number, content) in &expired {
        let sql = "DELETE FROM items WHERE subscriber = ?1 AND number = ?2";
        execute(tx.connection, sql, (subscriber, number))?;
        remove_reference(tx, *content)?;
        reduce_count(tx, SubscriberNumber(*subscriber), 1)?;
    }
    let sql = "DELETE FROM removed WHERE (subscriber, changed) IN
        (SELECT subscriber, changed FROM removed WHERE removed_at <= ?1 ORDER BY removed_at LIMIT ?2) RETURNING changed";
    let forgotten: Vec<u64> = query_all(tx.connection, sql, ((now - TOMBSTONES_KEPT).0, limit), |row| row.get(0))?;
    tx.forgotten = forgotten.iter().copied().fold(tx.forgotten, u64::max);
    Ok((expired.len() as u64, expired.len() == limit || forgotten.len() == limit))
}
