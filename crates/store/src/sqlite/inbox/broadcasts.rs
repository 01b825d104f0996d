//! Broadcasts: stored once, with a row for each reader who changed their state.

use rusqlite::Connection;
use serde_json::json;
use tocsin_model::{
    id::{InboxBroadcastId, Name, SubscriberNumber},
    inbox::Item,
    time::Timestamp,
};

use crate::{
    audit::{self, Image},
    error::StoreError,
    inbox::{BROADCASTS_MAX, Broadcast, NewBroadcast, TOMBSTONES_KEPT, no_broadcast, too_many_broadcasts},
    sqlite::{
        inbox::{
            contents,
            transaction::{InboxTransaction, body, name},
        },
        statements::{execute, query_all, query_one},
    },
};

struct Row {
    broadcast: Broadcast,
    content: u64,
}

const COLUMNS: &str = "b.number, b.name, b.audience, c.body, b.created_at, b.expires_at, b.readers, b.content
    FROM broadcasts b JOIN contents c ON c.number = b.content";

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Result<Row, StoreError>> {
    let (title, audience): (String, Option<String>) = (row.get(1)?, row.get(2)?);
    let body: String = row.get(3)?;
    let content: u64 = row.get(7)?;
    let (id, readers) = (InboxBroadcastId(row.get(0)?), row.get(6)?);
    let (created_at, expires_at) = (Timestamp(row.get(4)?), Timestamp(row.get(5)?));
    let whole = || {
        let audience = audience.as_deref().map(name).transpose()?;
        let parsed = serde_json::from_str(&body).map_err(|error| StoreError::Damaged(error.to_string()))?;
        let broadcast =
            Broadcast { id, name: name(&title)?, audience, content: parsed, created_at, expires_at, readers };
        Ok(Row { broadcast, content })
    };
    Ok(whole())
}

fn find(connection: &Connection, application: &Name, title: &Name) -> Result<Option<Row>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} WHERE b.application = ?1 AND b.name = ?2 AND b.withdrawn_at IS NULL AND b.gone = 0");
    query_one(connection, &sql, (application.as_str(), title.as_str()), read)?.transpose()
}

fn image(audience: Option<&Name>, expires_at: Timestamp) -> serde_json::Value {
    json!({ "audience": audience.map(Name::as_str), "expires_at": expires_at.to_string() })
}

pub(super) fn put(
    tx: &mut InboxTransaction<'_>,
    new: NewBroadcast,
    now: Timestamp,
) -> Result<(Broadcast, bool), StoreError> {
    let application = new.content.application.clone();
    let (title, audience) = (new.name.as_str(), new.audience.as_ref().map(Name::as_str));
    match find(tx.connection, &application, &new.name)? {
        Some(Row { broadcast, content }) if broadcast.expires_at > now => {
            let is_same = broadcast.audience == new.audience
                && broadcast.expires_at == new.expires_at
                && body(&broadcast.content) == body(&new.content);
            if is_same {
                return Ok((broadcast, false));
            }
            let new_content = contents::add_content(tx, &new.content)?;
            contents::remove_reference(tx, content)?;
            let changed = tx.next();
            let sql =
                "UPDATE broadcasts SET audience = ?2, content = ?3, expires_at = ?4, changed = ?5 WHERE number = ?1";
            execute(tx.connection, sql, (broadcast.id.0, audience, new_content, new.expires_at.0, changed))?;
            tx.broadcasts_changed = true;
            audit::changed(|| {
                let before = image(broadcast.audience.as_ref(), broadcast.expires_at);
                let after = image(new.audience.as_ref(), new.expires_at);
                Image::of("inbox_broadcast", format_args!("{application}/{title}"), Some(before), Some(after))
            });
            let NewBroadcast { audience, content, expires_at, .. } = new;
            return Ok((Broadcast { audience, content, expires_at, ..broadcast }, false));
        }
        // It has expired and is replaced.
        Some(Row { broadcast, .. }) => {
            execute(tx.connection, "UPDATE broadcasts SET gone = 1 WHERE number = ?1", [broadcast.id.0])?;
        }
        None => {}
    }
    let sql = "SELECT count(*) FROM broadcasts WHERE gone = 0 AND withdrawn_at IS NULL AND expires_at > ?1";
    let count: usize = query_one(tx.connection, sql, [now.0], |row| row.get(0))?.unwrap_or(0);
    if count >= BROADCASTS_MAX {
        return Err(too_many_broadcasts());
    }
    let new_content = contents::add_content(tx, &new.content)?;
    let number = tx.next();
    execute(
        tx.connection,
        "INSERT INTO broadcasts (number, application, name, audience, content, created_at, expires_at, changed, readers, gone)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?1, 0, 0)",
        (number, application.as_str(), title, audience, new_content, now.0, new.expires_at.0),
    )?;
    tx.broadcasts_changed = true;
    audit::changed(|| {
        let after = image(new.audience.as_ref(), new.expires_at);
        Image::of("inbox_broadcast", format_args!("{application}/{title}"), None, Some(after))
    });
    let NewBroadcast { name, audience, content, expires_at } = new;
    let id = InboxBroadcastId(number);
    Ok((Broadcast { id, name, audience, content, created_at: now, expires_at, readers: 0 }, true))
}

pub(super) fn list(connection: &Connection, application: &Name, now: Timestamp) -> Result<Vec<Broadcast>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} WHERE b.application = ?1 AND b.withdrawn_at IS NULL AND b.gone = 0 AND b.expires_at > ?2
            ORDER BY b.number DESC"
    );
    let rows = query_all(connection, &sql, (application.as_str(), now.0), read)?;
    rows.into_iter().map(|row| row.map(|row| row.broadcast)).collect()
}

pub(super) fn withdraw(
    tx: &mut InboxTransaction<'_>,
    application: &Name,
    title: &Name,
    now: Timestamp,
) -> Result<(), StoreError> {
    let found = find(tx.connection, application, title)?.filter(|row| row.broadcast.expires_at > now);
    let Row { broadcast, .. } = found.ok_or_else(|| no_broadcast(title))?;
    audit::changed(|| {
        let before = image(broadcast.audience.as_ref(), broadcast.expires_at);
        Image::of("inbox_broadcast", format_args!("{application}/{title}"), Some(before), None)
    });
    let changed = tx.next();
    let sql = "UPDATE broadcasts SET withdrawn_at = ?2, changed = ?3 WHERE number = ?1";
    execute(tx.connection, sql, (broadcast.id.0, now.0, changed))?;
    // Readers who were away for long must read everything again, so the number of records here is limited.
    let sql = "UPDATE broadcasts SET gone = 1 WHERE number IN (SELECT number FROM broadcasts
        WHERE gone = 0 AND withdrawn_at IS NOT NULL ORDER BY changed DESC LIMIT -1 OFFSET ?1) RETURNING changed";
    let forgotten: Vec<u64> = query_all(tx.connection, sql, [BROADCASTS_MAX], |row| row.get(0))?;
    tx.forgotten = forgotten.into_iter().fold(tx.forgotten, u64::max);
    tx.broadcasts_changed = true;
    Ok(())
}

/// Records the state of a broadcast for a reader; without times it is deleted.
pub(super) fn store_state(
    tx: &mut InboxTransaction<'_>,
    subscriber: SubscriberNumber,
    id: InboxBroadcastId,
    item: &Item,
    applied: Option<(Option<Timestamp>, Option<Timestamp>)>,
) -> Result<(), StoreError> {
    let (read_at, archived_at) = applied.unwrap_or((item.read_at, item.archived_at));
    let changed = tx.next();
    execute(
        tx.connection,
        "INSERT INTO touches (subscriber, broadcast, read_at, archived_at, deleted, changed) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
            ON CONFLICT DO UPDATE SET read_at = ?3, archived_at = ?4, deleted = ?5, changed = ?6",
        (
            subscriber.0,
            id.0,
            read_at.map(|time| time.0),
            archived_at.map(|time| time.0),
            applied.is_none(),
            changed,
        ),
    )?;
    let more = i64::from(read_at.is_some()) - i64::from(item.read_at.is_some());
    if more != 0 {
        let sql = "UPDATE broadcasts SET readers = readers + ?2 WHERE number = ?1";
        execute(tx.connection, sql, (id.0, more))?;
    }
    Ok(())
}

/// Merges the broadcast states of one subscriber into those of another.
pub(super) fn move_states(
    tx: &mut InboxTransaction<'_>,
    from: SubscriberNumber,
    into: SubscriberNumber,
) -> Result<(), StoreError> {
    // Where both are counted as readers, they are one reader now.
    execute(
        tx.connection,
        "UPDATE broadcasts SET readers = readers - 1 WHERE number IN (SELECT f.broadcast FROM touches f
            JOIN touches i ON i.broadcast = f.broadcast AND i.subscriber = ?2 AND i.read_at IS NOT NULL
            WHERE f.subscriber = ?1 AND f.read_at IS NOT NULL)",
        (from.0, into.0),
    )?;
    let sql = "SELECT broadcast FROM touches WHERE subscriber = ?1 ORDER BY broadcast";
    let touched: Vec<u64> = query_all(tx.connection, sql, [from.0], |row| row.get(0))?;
    for broadcast in touched {
        let changed = tx.next();
        execute(
            tx.connection,
            "INSERT INTO touches (subscriber, broadcast, read_at, archived_at, deleted, changed)
                SELECT ?2, broadcast, read_at, archived_at, deleted, ?4 FROM touches
                WHERE subscriber = ?1 AND broadcast = ?3
                ON CONFLICT DO UPDATE SET read_at = coalesce(read_at, excluded.read_at),
                    archived_at = coalesce(archived_at, excluded.archived_at),
                    deleted = max(deleted, excluded.deleted), changed = excluded.changed",
            (from.0, into.0, broadcast, changed),
        )?;
    }
    execute(tx.connection, "DELETE FROM touches WHERE subscriber = ?1", [from.0]).map(drop)
}

/// Removes expired broadcasts, and records of old withdrawals.
pub(super) fn expire(tx: &mut InboxTransaction<'_>, now: Timestamp, limit: usize) -> Result<(u64, bool), StoreError> {
    let sql = "UPDATE broadcasts SET gone = 1 WHERE gone = 0 AND expires_at <= ?1";
    let over = execute(tx.connection, sql, [now.0])?;
    let sql = "UPDATE broadcasts SET gone = 1 WHERE gone = 0 AND withdrawn_at <= ?1 RETURNING changed";
    let withdrawn: Vec<u64> = query_all(tx.connection, sql, [(now - TOMBSTONES_KEPT).0], |row| row.get(0))?;
    tx.broadcasts_changed |= over > 0 || !withdrawn.is_empty();
    tx.forgotten = withdrawn.into_iter().fold(tx.forgotten, u64::max);
    let sql = "SELECT number, content FROM broadcasts WHERE gone = 1 ORDER BY number";
    let gone = query_all(tx.connection, sql, (), |row| Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?)))?;
    let (mut removed, mut room) = (0, limit);
    for (number, content) in gone {
        let sql = "DELETE FROM touches WHERE (subscriber, broadcast) IN
            (SELECT subscriber, broadcast FROM touches WHERE broadcast = ?1 LIMIT ?2)";
        room -= execute(tx.connection, sql, (number, room))?;
        if room == 0 {
            return Ok((removed, true));
        }
        execute(tx.connection, "DELETE FROM broadcasts WHERE number = ?1", [number])?;
        contents::remove_reference(tx, content)?;
        removed += 1;
    }
    Ok((removed, false))
}
