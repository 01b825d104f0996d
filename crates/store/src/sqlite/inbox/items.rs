//! What comes and goes: items, the contents that they share, and how many each feed has.

use std::collections::{HashMap, HashSet};

use ring::digest;
use tocsin_model::{
    id::{NotificationId, SubscriberNumber},
    inbox::{InboxContent, Item, ItemId, Mark},
    time::Timestamp,
};

use super::{Books, body, broadcasts};
use crate::{
    error::StoreError,
    inbox::{Delivered, REMOVED_KEPT},
    sqlite::records::{execute, query_all, query_one},
};

/// A content as it is stored.
pub(super) struct Prepared {
    scope: u64,
    hash: [u8; 16],
    application: String,
    class: String,
    channel: Option<String>,
    body: String,
}

impl Prepared {
    pub fn new(content: &InboxContent) -> Prepared {
        let body = body(content);
        let digest = digest::digest(&digest::SHA256, body.as_bytes());
        Prepared {
            scope: content.event.map_or(0, |event| event.batch.0),
            hash: digest.as_ref()[..16].try_into().expect("SHA-256 has 32 bytes"),
            application: content.application.to_string(),
            class: content.class.to_string(),
            channel: content.channel.as_ref().map(ToString::to_string),
            body,
        }
    }
}

/// An item, and the place of its content among the prepared ones.
pub(super) struct Arriving {
    pub subscriber: SubscriberNumber,
    pub id: NotificationId,
    pub content: usize,
    pub expires_at: Timestamp,
}

pub(super) fn put(
    books: &mut Books<'_>,
    arriving: &[Arriving],
    contents: Vec<Prepared>,
    items_max: u32,
    now: Timestamp,
) -> Result<Delivered, StoreError> {
    let mut delivered = Delivered::default();
    let mut seen = HashSet::with_capacity(arriving.len());
    let mut new = Vec::with_capacity(arriving.len());
    let mut holders = vec![0u64; contents.len()];
    for item in arriving {
        if !seen.insert(item.id) || is_known(books, item.id)? {
            delivered.known += 1;
            continue;
        }
        holders[item.content] += 1;
        new.push(item);
    }
    delivered.new = new.len() as u64;
    let mut numbers = Vec::with_capacity(contents.len());
    for (content, holders) in contents.iter().zip(&holders) {
        numbers.push(if *holders > 0 { hold(books, content, *holders)? } else { 0 });
    }
    // In the order in which they came, so that whatever is done twice gives the same numbers.
    let (mut feeds, mut places) = (Vec::new(), HashMap::new());
    for item in new {
        let number = books.next();
        execute(
            books.connection,
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
        let place = *places.entry(item.subscriber).or_insert(feeds.len());
        match feeds.get_mut(place) {
            None => feeds.push((item.subscriber, 1u64)),
            Some((_, count)) => *count += 1,
        }
    }
    books.items += delivered.new;
    for (subscriber, count) in feeds {
        books.touched.push(subscriber);
        let sql = "INSERT INTO feeds (subscriber, items) VALUES (?1, ?2)
            ON CONFLICT DO UPDATE SET items = items + ?2 RETURNING items";
        let has: u64 = query_one(books.connection, sql, (subscriber.0, count), |row| row.get(0))?.unwrap_or(count);
        if has > u64::from(items_max) {
            delivered.evicted += evict(books, subscriber, has - u64::from(items_max), now)?;
        }
    }
    Ok(delivered)
}

/// Whether it was delivered before.
fn is_known(books: &Books<'_>, id: NotificationId) -> Result<bool, StoreError> {
    for sql in [
        "SELECT 1 FROM items WHERE batch = ?1 AND ordinal = ?2",
        "SELECT 1 FROM removed WHERE batch = ?1 AND ordinal = ?2",
    ] {
        if query_one(books.connection, sql, (id.batch.0, id.ordinal), |_| Ok(()))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The number of a content that so many more say.
fn hold(books: &mut Books<'_>, content: &Prepared, holders: u64) -> Result<u64, StoreError> {
    let sql = "INSERT INTO contents (scope, hash, application, class, channel, body, holders) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
        ON CONFLICT DO UPDATE SET holders = holders + excluded.holders RETURNING number, holders";
    let Prepared { scope, hash, application, class, channel, body } = content;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, u64>(1)?));
    let row = query_one(books.connection, sql, (scope, hash, application, class, channel, body, holders), read)?;
    let (number, all) = row.ok_or_else(|| StoreError::Damaged("a content was not stored".into()))?;
    books.contents += u64::from(all == holders);
    Ok(number)
}

/// A content of its own, which nothing else shares.
pub(super) fn keep(books: &mut Books<'_>, content: &InboxContent) -> Result<u64, StoreError> {
    let sql = "INSERT INTO contents (application, class, body, holders) VALUES (?1, ?2, ?3, 1) RETURNING number";
    let values = (content.application.as_str(), content.class.as_str(), body(content));
    let number = query_one(books.connection, sql, values, |row| row.get(0))?;
    books.contents += 1;
    number.ok_or_else(|| StoreError::Damaged("a content was not stored".into()))
}

/// One less says it.
pub(super) fn release(books: &mut Books<'_>, content: u64) -> Result<(), StoreError> {
    let sql = "UPDATE contents SET holders = holders - 1 WHERE number = ?1 RETURNING holders";
    if query_one(books.connection, sql, [content], |row| row.get::<_, i64>(0))? == Some(0) {
        execute(books.connection, "DELETE FROM contents WHERE number = ?1", [content])?;
        books.contents -= 1;
    }
    Ok(())
}

/// The oldest of a feed go.
fn evict(books: &mut Books<'_>, subscriber: SubscriberNumber, count: u64, now: Timestamp) -> Result<u64, StoreError> {
    let sql = "SELECT number FROM items WHERE subscriber = ?1 ORDER BY number LIMIT ?2";
    let oldest: Vec<u64> = query_all(books.connection, sql, (subscriber.0, count), |row| row.get(0))?;
    for number in &oldest {
        remove(books, subscriber, *number, now)?;
    }
    Ok(oldest.len() as u64)
}

/// Removes an item before its time.
fn remove(books: &mut Books<'_>, subscriber: SubscriberNumber, number: u64, now: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM items WHERE subscriber = ?1 AND number = ?2 RETURNING batch, ordinal, content";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, u32>(1)?, row.get(2)?));
    let Some((batch, ordinal, content)) = query_one(books.connection, sql, (subscriber.0, number), read)? else {
        return Ok(());
    };
    release(books, content)?;
    shrink(books, subscriber, 1)?;
    let changed = books.next();
    execute(
        books.connection,
        "INSERT INTO removed (subscriber, changed, number, batch, ordinal, removed_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        (subscriber.0, changed, number, batch, ordinal, now.0),
    )?;
    Ok(())
}

/// A feed has so many items less.
fn shrink(books: &mut Books<'_>, subscriber: SubscriberNumber, count: u64) -> Result<(), StoreError> {
    books.items -= count;
    let sql = "UPDATE feeds SET items = items - ?2 WHERE subscriber = ?1 RETURNING items";
    if query_one(books.connection, sql, (subscriber.0, count), |row| row.get::<_, i64>(0))? == Some(0) {
        execute(books.connection, "DELETE FROM feeds WHERE subscriber = ?1", [subscriber.0])?;
    }
    Ok(())
}

/// Marks an item that is there. Gives whether that changed anything.
pub(super) fn mark(
    books: &mut Books<'_>,
    subscriber: SubscriberNumber,
    item: &Item,
    mark: Mark,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let applied = mark.applied(item.read_at, item.archived_at, now);
    if applied == Some((item.read_at, item.archived_at)) {
        return Ok(false);
    }
    books.touched.push(subscriber);
    match (item.id, applied) {
        (ItemId::Broadcast(id), applied) => broadcasts::touch(books, subscriber, id, item, applied)?,
        (ItemId::Notification(_), None) => remove(books, subscriber, item.number, now)?,
        (ItemId::Notification(_), Some((read_at, archived_at))) => {
            let changed = books.next();
            let (read_at, archived_at) = (read_at.map(|time| time.0), archived_at.map(|time| time.0));
            let sql =
                "UPDATE items SET read_at = ?3, archived_at = ?4, changed = ?5 WHERE subscriber = ?1 AND number = ?2";
            execute(books.connection, sql, (subscriber.0, item.number, read_at, archived_at, changed))?;
        }
    }
    Ok(true)
}

/// Gives the feed of one to another.
pub(super) fn move_feed(
    books: &mut Books<'_>,
    from: SubscriberNumber,
    into: SubscriberNumber,
) -> Result<u64, StoreError> {
    let sql = "SELECT number FROM items WHERE subscriber = ?1 ORDER BY number";
    let numbers: Vec<u64> = query_all(books.connection, sql, [from.0], |row| row.get(0))?;
    for number in &numbers {
        let changed = books.next();
        let sql = "UPDATE items SET subscriber = ?3, changed = ?4 WHERE subscriber = ?1 AND number = ?2";
        execute(books.connection, sql, (from.0, number, into.0, changed))?;
    }
    let count = numbers.len() as u64;
    if count > 0 {
        let sql = "INSERT INTO feeds (subscriber, items) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET items = items + ?2";
        execute(books.connection, sql, (into.0, count))?;
        execute(books.connection, "DELETE FROM feeds WHERE subscriber = ?1", [from.0])?;
    }
    execute(books.connection, "UPDATE removed SET subscriber = ?2 WHERE subscriber = ?1", (from.0, into.0))?;
    broadcasts::move_touches(books, from, into)?;
    books.touched.extend([from, into]);
    Ok(count)
}

pub(super) fn remove_feed(books: &mut Books<'_>, subscriber: SubscriberNumber) -> Result<(), StoreError> {
    let sql = "DELETE FROM items WHERE subscriber = ?1 RETURNING content";
    let contents: Vec<u64> = query_all(books.connection, sql, [subscriber.0], |row| row.get(0))?;
    books.items -= contents.len() as u64;
    for content in contents {
        release(books, content)?;
    }
    for sql in [
        "DELETE FROM feeds WHERE subscriber = ?1",
        "DELETE FROM removed WHERE subscriber = ?1",
        "DELETE FROM touches WHERE subscriber = ?1",
    ] {
        execute(books.connection, sql, [subscriber.0])?;
    }
    books.touched.push(subscriber);
    Ok(())
}

/// Removes what has expired, and what was removed so long ago that nobody asks.
pub(super) fn expire(books: &mut Books<'_>, now: Timestamp, limit: usize) -> Result<(u64, bool), StoreError> {
    let sql = "SELECT subscriber, number, content FROM items WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?, row.get::<_, u64>(2)?));
    let expired = query_all(books.connection, sql, (now.0, limit), read)?;
    for (subscriber, number, content) in &expired {
        let sql = "DELETE FROM items WHERE subscriber = ?1 AND number = ?2";
        execute(books.connection, sql, (subscriber, number))?;
        release(books, *content)?;
        shrink(books, SubscriberNumber(*subscriber), 1)?;
    }
    let sql = "DELETE FROM removed WHERE (subscriber, changed) IN
        (SELECT subscriber, changed FROM removed WHERE removed_at <= ?1 ORDER BY removed_at LIMIT ?2) RETURNING changed";
    let forgotten: Vec<u64> = query_all(books.connection, sql, ((now - REMOVED_KEPT).0, limit), |row| row.get(0))?;
    books.forgotten = forgotten.iter().copied().fold(books.forgotten, u64::max);
    Ok((expired.len() as u64, expired.len() == limit || forgotten.len() == limit))
}
