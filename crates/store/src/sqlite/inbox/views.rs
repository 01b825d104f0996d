//! Feeds and their changes. Items and broadcasts have numbers of one sequence, so that two lists can be merged.

use std::{collections::HashMap, sync::Arc};

use rusqlite::{Connection, Row, types::Value};
use tocsin_model::{
    id::{InboxBroadcastId, NotificationBatchId, NotificationId},
    inbox::{InboxContent, InboxItemFilter, Item, ItemId},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    inbox::{FeedChange, FeedChanges, FeedFilter, FeedReader, no_changes_after},
    sqlite::statements::{query_all, query_one},
};

const ITEM: &str =
    "i.number, i.changed, i.created_at, i.expires_at, i.read_at, i.archived_at, c.number, c.body, i.batch,
    i.ordinal FROM items i JOIN contents c ON c.number = i.content";

/// Broadcasts whose numbers are in the JSON list of the first parameter, with the state for the subscriber in the
/// second.
const BROADCAST: &str =
    "b.number, max(b.changed, coalesce(t.changed, 0)) AS last_change, b.created_at, b.expires_at, t.read_at,
    t.archived_at, c.number, c.body, b.withdrawn_at IS NOT NULL OR coalesce(t.deleted, 0) AS removed
    FROM json_each(?1) wanted JOIN broadcasts b ON b.number = wanted.value JOIN contents c ON c.number = b.content
    LEFT JOIN touches t ON t.subscriber = ?2 AND t.broadcast = b.number WHERE b.gone = 0";

/// Converts rows into items; a content shared by several rows is parsed once.
#[derive(Default)]
struct ItemReader(HashMap<u64, Arc<InboxContent>>);

impl ItemReader {
    fn item(&mut self, row: &Row<'_>, id: ItemId) -> rusqlite::Result<Result<Item, StoreError>> {
        let time = |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.map(Timestamp));
        let number: u64 = row.get(6)?;
        let content = match self.0.get(&number) {
            Some(content) => content.clone(),
            None => match serde_json::from_str(row.get_ref(7)?.as_str()?) {
                Ok(content) => {
                    let content = Arc::new(content);
                    self.0.insert(number, Arc::clone(&content));
                    content
                }
                Err(error) => return Ok(Err(StoreError::Damaged(format!("the content of {id}: {error}")))),
            },
        };
        Ok(Ok(Item {
            id,
            number: row.get(0)?,
            changed: row.get(1)?,
            content,
            created_at: Timestamp(row.get(2)?),
            read_at: time(4)?,
            archived_at: time(5)?,
            expires_at: Timestamp(row.get(3)?),
        }))
    }

    fn delivered(&mut self, row: &Row<'_>) -> rusqlite::Result<Result<Item, StoreError>> {
        let id = NotificationId { batch: NotificationBatchId(row.get(8)?), ordinal: row.get(9)? };
        self.item(row, ItemId::Notification(id))
    }

    fn broadcast(&mut self, row: &Row<'_>) -> rusqlite::Result<Result<Item, StoreError>> {
        self.item(row, ItemId::Broadcast(InboxBroadcastId(row.get(0)?)))
    }
}

/// The broadcasts of a reader, as the first parameter of `BROADCAST`.
fn broadcast_numbers(reader: &FeedReader) -> String {
    let numbers: Vec<u64> = reader.broadcasts.iter().map(|id| id.0).collect();
    serde_json::to_string(&numbers).expect("numbers are JSON")
}

/// The SQL conditions of a filter on read time, archive time and content, and their parameters, numbered after
/// `given`.
fn filter_conditions(filter: &FeedFilter, state: &str, given: usize) -> (String, Vec<Value>) {
    let (read, archived) = (format!("{state}.read_at"), format!("{state}.archived_at"));
    let mut sql = match filter.item_filter {
        InboxItemFilter::Current => format!(" AND {archived} IS NULL"),
        InboxItemFilter::Unread => format!(" AND {archived} IS NULL AND {read} IS NULL"),
        InboxItemFilter::Read => format!(" AND {archived} IS NULL AND {read} IS NOT NULL"),
        InboxItemFilter::Archived => format!(" AND {archived} IS NOT NULL"),
        InboxItemFilter::All => String::new(),
    };
    let mut values = Vec::new();
    let named = [("application", &filter.application), ("class", &filter.class), ("channel", &filter.channel)];
    for (column, name) in named {
        if let Some(name) = name {
            values.push(Value::Text(name.to_string()));
            sql.push_str(&format!(" AND c.{column} = ?{}", given + values.len()));
        }
    }
    (sql, values)
}

pub(super) fn feed(
    connection: &Connection,
    reader: &FeedReader,
    filter: &FeedFilter,
    before: i64,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Item>, StoreError> {
    let mut item_reader = ItemReader::default();
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let (conditions, values) = filter_conditions(filter, "i", 4);
    let sql = format!(
        "SELECT {ITEM} WHERE i.subscriber = ?1 AND i.number < ?2 AND i.expires_at > ?3{conditions} ORDER BY i.number DESC LIMIT ?4"
    );
    let mut parameters = vec![integer(reader.subscriber.0), before.into(), now.0.into(), most.into()];
    parameters.extend(values);
    let own = query_all(connection, &sql, rusqlite::params_from_iter(parameters), |row| item_reader.delivered(row))?;
    let mut items: Vec<Item> = own.into_iter().collect::<Result<_, _>>()?;
    if !reader.broadcasts.is_empty() {
        let (conditions, values) = filter_conditions(filter, "t", 5);
        let sql = format!(
            "SELECT {BROADCAST} AND NOT removed AND b.number < ?3 AND b.expires_at > ?4{conditions} ORDER BY b.number DESC LIMIT ?5"
        );
        let mut parameters = vec![
            Value::Text(broadcast_numbers(reader)),
            integer(reader.subscriber.0),
            before.into(),
            now.0.into(),
            most.into(),
        ];
        parameters.extend(values);
        let all =
            query_all(connection, &sql, rusqlite::params_from_iter(parameters), |row| item_reader.broadcast(row))?;
        for item in all {
            items.push(item?);
        }
        items.sort_by_key(|item| std::cmp::Reverse(item.number));
        items.truncate(limit);
    }
    Ok(items)
}

fn integer(number: u64) -> Value {
    Value::Integer(number.cast_signed())
}

pub(super) fn item(
    connection: &Connection,
    reader: &FeedReader,
    id: ItemId,
    now: Timestamp,
) -> Result<Option<Item>, StoreError> {
    let mut item_reader = ItemReader::default();
    match id {
        ItemId::Notification(id) => {
            let sql = format!(
                "SELECT {ITEM} WHERE i.batch = ?1 AND i.ordinal = ?2 AND i.subscriber = ?3 AND i.expires_at > ?4"
            );
            let parameters = (id.batch.0, id.ordinal, reader.subscriber.0, now.0);
            query_one(connection, &sql, parameters, |row| item_reader.delivered(row))?.transpose()
        }
        ItemId::Broadcast(id) if reader.broadcasts.contains(&id) => {
            let sql = format!("SELECT {BROADCAST} AND NOT removed AND b.expires_at > ?3");
            let parameters = (format!("[{}]", id.0), reader.subscriber.0, now.0);
            query_one(connection, &sql, parameters, |row| item_reader.broadcast(row))?.transpose()
        }
        ItemId::Broadcast(_) => Ok(None),
    }
}

pub(super) fn unread(connection: &Connection, reader: &FeedReader, now: Timestamp) -> Result<u64, StoreError> {
    let sql = "SELECT count(*) FROM items
        WHERE subscriber = ?1 AND expires_at > ?2 AND read_at IS NULL AND archived_at IS NULL";
    let own: u64 = query_one(connection, sql, (reader.subscriber.0, now.0), |row| row.get(0))?.unwrap_or(0);
    if reader.broadcasts.is_empty() {
        return Ok(own);
    }
    let sql = "SELECT count(*) FROM json_each(?1) wanted JOIN broadcasts b ON b.number = wanted.value
        LEFT JOIN touches t ON t.subscriber = ?2 AND t.broadcast = b.number
        WHERE b.gone = 0 AND b.withdrawn_at IS NULL AND b.expires_at > ?3
            AND t.read_at IS NULL AND t.archived_at IS NULL AND coalesce(t.deleted, 0) = 0";
    let parameters = (broadcast_numbers(reader), reader.subscriber.0, now.0);
    let all: u64 = query_one(connection, sql, parameters, |row| row.get(0))?.unwrap_or(0);
    Ok(own + all)
}

pub(super) fn changes(
    connection: &Connection,
    reader: &FeedReader,
    after: u64,
    limit: usize,
    now: Timestamp,
) -> Result<FeedChanges, StoreError> {
    let read = |row: &Row<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?));
    let counters = query_one(connection, "SELECT sequence, forgotten FROM books", (), read)?;
    let (sequence, forgotten) = counters.ok_or_else(|| StoreError::Damaged("the table of counters".into()))?;
    if after < forgotten || after > sequence {
        return Err(no_changes_after(after));
    }
    let mut item_reader = ItemReader::default();
    let mut changes = Vec::new();
    let to_change = |item: Item| match item.number > after {
        true => (item.changed, FeedChange::New(item)),
        false => (item.changed, FeedChange::Changed(item)),
    };
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    for sql in [
        format!(
            "SELECT {ITEM} WHERE i.subscriber = ?1 AND i.number > ?2 AND i.changed = i.number AND i.expires_at > ?3 ORDER BY i.number LIMIT ?4"
        ),
        format!(
            "SELECT {ITEM} WHERE i.subscriber = ?1 AND i.changed > ?2 AND i.changed <> i.number AND i.expires_at > ?3 ORDER BY i.changed LIMIT ?4"
        ),
    ] {
        for item in
            query_all(connection, &sql, (reader.subscriber.0, after, now.0, most), |row| item_reader.delivered(row))?
        {
            changes.push(to_change(item?));
        }
    }
    // Items that were added and removed in between were never seen.
    let sql = "SELECT changed, batch, ordinal FROM removed
        WHERE subscriber = ?1 AND changed > ?2 AND number <= ?2 ORDER BY changed LIMIT ?3";
    let removed = query_all(connection, sql, (reader.subscriber.0, after, most), |row| {
        let id = NotificationId { batch: NotificationBatchId(row.get(1)?), ordinal: row.get(2)? };
        Ok((row.get(0)?, FeedChange::Removed(ItemId::Notification(id))))
    })?;
    changes.extend(removed);
    if !reader.broadcasts.is_empty() {
        let sql = format!("SELECT {BROADCAST} AND last_change > ?3 AND b.expires_at > ?4");
        let parameters = (broadcast_numbers(reader), reader.subscriber.0, after, now.0);
        let touched =
            query_all(connection, &sql, parameters, |row| Ok((row.get::<_, bool>(8)?, item_reader.broadcast(row)?)))?;
        for (is_removed, item) in touched {
            let item = item?;
            match is_removed {
                false => changes.push(to_change(item)),
                true if item.number <= after => changes.push((item.changed, FeedChange::Removed(item.id))),
                true => {}
            }
        }
    }
    changes.sort_by_key(|(sequence, _)| *sequence);
    let more = changes.len() > limit;
    changes.truncate(limit);
    let upto = match changes.last() {
        Some((last, _)) if more => *last,
        _ => sequence,
    };
    Ok(FeedChanges { changes, upto, more })
}
