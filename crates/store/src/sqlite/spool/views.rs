//! Read-only queries: messages, their legs, and lists of them.

use rusqlite::{Connection, Row, types::Value};
use tocsin_model::{exchange::MessageKind, id::MessageId, time::Timestamp};

use crate::{
    bounded_scan::ScanPage,
    error::StoreError,
    spool::{
        Ending, Leg, LegState, MessageFilter, MessageStatus, OriginalMessage, StoredExchange, StoredMessage,
        WaitingLegs,
    },
    sqlite::{
        spool::columns::{head, parsed, word},
        statements::{query_all, query_one},
    },
};

const MESSAGE: &str = "SELECT id, exchange, port, kind, answers, reply, head, bytes, accepted_at, expires_at, ended_at, \
                       ending, suspended, part_of, sender FROM messages";

pub(super) const LEG: &str = "number, legs.port, replies, state, attempts, on_backup, due_at, tried_at, said, through";

/// Highest message id ever assigned.
pub(super) fn last_id(connection: &Connection) -> Result<u64, StoreError> {
    let sql = "SELECT max(coalesce((SELECT max(id) FROM messages), 0), coalesce((SELECT last FROM taken_ids), 0))";
    Ok(query_one(connection, sql, (), |row| row.get(0))?.unwrap_or(0))
}

/// Number of open messages per exchange.
pub(super) fn open(connection: &Connection) -> Result<Vec<(String, i64)>, StoreError> {
    let sql = "SELECT exchange, count(DISTINCT message) FROM (SELECT exchange, message FROM legs WHERE state = 0 UNION ALL \
               SELECT exchange, message FROM legs WHERE state = 2 UNION ALL \
               SELECT exchange, message FROM legs WHERE state = 4 UNION ALL \
               SELECT exchange, id FROM messages WHERE suspended IS NOT NULL UNION ALL \
               SELECT exchange, message FROM gathered JOIN gatherings ON gatherings.id = gathering) GROUP BY exchange";
    query_all(connection, sql, (), |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Number of suspended messages. Only indexes are read; each of both counts ends at `limit`.
pub(super) fn suspended(connection: &Connection, limit: u64) -> Result<u64, StoreError> {
    let sql = "SELECT (SELECT count(*) FROM (SELECT id FROM messages WHERE suspended IS NOT NULL LIMIT ?1) AS whole) + \
               (SELECT count(*) FROM (SELECT DISTINCT message FROM legs WHERE state = 2 AND NOT EXISTS \
               (SELECT 1 FROM messages WHERE id = legs.message AND suspended IS NOT NULL) LIMIT ?1) AS by_leg)";
    Ok(query_one(connection, sql, [limit.cast_signed()], |row| row.get(0))?.unwrap_or(0))
}

/// Legs that wait to be sent, by exchange and send port.
pub(super) fn waiting_legs(connection: &Connection, now: Timestamp) -> Result<Vec<WaitingLegs>, StoreError> {
    let sql = "SELECT exchange, port, count(*) FILTER (WHERE due_at <= ?1), count(*) FILTER (WHERE due_at > ?1), \
               min(due_at) FILTER (WHERE due_at > ?1) FROM legs WHERE state = 0 GROUP BY exchange, port";
    query_all(connection, sql, [now.0], |row| {
        Ok(WaitingLegs {
            exchange: parsed(row, 0)?,
            port: parsed(row, 1)?,
            due: row.get(2)?,
            later: row.get(3)?,
            next: row.get::<_, Option<i64>>(4)?.map(Timestamp),
        })
    })
}

/// Message before its first edit.
pub(super) fn original(connection: &Connection, id: MessageId) -> Result<Option<OriginalMessage>, StoreError> {
    let sql = "SELECT head, body, edited_by, edited_at FROM originals WHERE message = ?1";
    query_one(connection, sql, [id.0], |row| {
        Ok(OriginalMessage {
            head: head(row, 0)?,
            body: row.get::<_, Vec<u8>>(1)?.into(),
            by: row.get(2)?,
            at: Timestamp(row.get(3)?),
        })
    })
}

pub(super) fn exchanges(connection: &Connection) -> Result<Vec<StoredExchange>, StoreError> {
    let sql = "SELECT name, max(version), text, author, applied_at FROM exchanges GROUP BY name ORDER BY name";
    query_all(connection, sql, (), |row| {
        Ok(StoredExchange {
            name: parsed(row, 0)?,
            version: row.get(1)?,
            text: row.get(2)?,
            author: row.get(3)?,
            applied_at: Timestamp(row.get(4)?),
        })
    })
}

pub(super) fn message(connection: &Connection, id: MessageId) -> Result<Option<StoredMessage>, StoreError> {
    let Some(mut found) = query_one(connection, &format!("{MESSAGE} WHERE id = ?1"), [id.0], read_message)? else {
        return Ok(None);
    };
    found.legs = legs(connection, id)?;
    Ok(Some(found))
}

/// Existing messages among these ids.
pub(super) fn existing(connection: &Connection, ids: &[MessageId]) -> Result<Vec<MessageId>, StoreError> {
    let sql = "SELECT id FROM messages WHERE id = ?1";
    let find = |id: &MessageId| query_one(connection, sql, [id.0], |row| row.get(0).map(MessageId)).transpose();
    ids.iter().filter_map(find).collect()
}

pub(super) fn messages(
    connection: &Connection,
    filter: &MessageFilter,
    before: Option<MessageId>,
    limit: usize,
) -> Result<Vec<StoredMessage>, StoreError> {
    let mut sql = format!("{MESSAGE} WHERE id < ?1");
    let mut values: Vec<rusqlite::types::Value> = vec![before.map_or(i64::MAX, |before| before.0.cast_signed()).into()];
    let mut and = |condition: &str, value: rusqlite::types::Value| {
        values.push(value);
        sql.push_str(&condition.replace("{}", &format!("?{}", values.len())));
    };
    if let Some(id) = filter.id {
        and(" AND id = {}", id.0.cast_signed().into());
    }
    for (column, name) in [("exchange", &filter.exchange), ("port", &filter.port)] {
        if let Some(name) = name {
            and(&format!(" AND {column} = {{}}"), name.to_string().into());
        }
    }
    if let Some(whole) = filter.part_of {
        and(" AND part_of = {}", whole.0.cast_signed().into());
    }
    if let Some(to) = &filter.to {
        and(" AND id IN (SELECT message FROM legs WHERE port = {})", to.to_string().into());
    }
    if let Some(before) = filter.before {
        and(" AND accepted_at < {}", before.0.into());
    }
    if let Some(reason) = &filter.reason {
        let said = "id IN (SELECT message FROM legs WHERE state = 2 AND instr(said, {}))";
        and(&format!(" AND (instr(suspended, {{}}) OR {said})"), reason.clone().into());
    }
    sql.push_str(match filter.standing {
        None => "",
        Some(MessageStatus::Open) => {
            " AND (suspended IS NOT NULL OR id IN (SELECT message FROM legs WHERE state = 0) OR id IN (SELECT message \
             FROM legs WHERE state = 2) OR id IN (SELECT message FROM legs WHERE state = 4) OR id IN (SELECT message FROM \
             gathered))"
        }
        Some(MessageStatus::Suspended) => " AND (suspended IS NOT NULL OR id IN (SELECT message FROM legs WHERE state = 2))",
        Some(MessageStatus::Ended) => " AND ended_at IS NOT NULL",
    });
    sql.push_str(&format!(" ORDER BY id DESC LIMIT {limit}"));
    let mut found = query_all(connection, &sql, rusqlite::params_from_iter(values), read_message)?;
    for message in &mut found {
        message.legs = legs(connection, message.id)?;
    }
    Ok(found)
}

/// Up to `limit + 1` messages, newest first, of at most `rows_max` rows; `next` is the last row read if the scan
/// stopped there.
pub(super) fn scan(
    connection: &Connection,
    filter: &MessageFilter,
    before: Option<MessageId>,
    limit: usize,
    rows_max: usize,
) -> Result<ScanPage<StoredMessage, MessageId>, StoreError> {
    let MessageFilter { id, exchange, port, part_of, to, standing, reason, before: accepted_before } = filter;
    let before = before.map_or(i64::MAX, |before| before.0.cast_signed());
    let number = |id: &MessageId| Value::Integer(id.0.cast_signed());
    // Candidates in descending order of their ids, read from one index; `?1` is the id before which they are.
    let suspended = "SELECT id FROM messages WHERE suspended IS NOT NULL AND id < ?1 \
                     UNION SELECT message AS id FROM legs WHERE state = 2 AND message < ?1";
    let (candidates, lead) = match (id, part_of, standing) {
        (Some(id), ..) => ("SELECT id FROM messages WHERE id < ?1 AND id = ?2", Some(number(id))),
        (_, Some(whole), _) => ("SELECT id FROM messages WHERE id < ?1 AND part_of = ?2", Some(number(whole))),
        (_, _, Some(MessageStatus::Suspended)) => (suspended, None),
        _ => ("SELECT id FROM messages WHERE id < ?1", None),
    };
    let candidates = format!("{candidates} ORDER BY id DESC LIMIT {rows_max}");
    let mut values: Vec<Value> = std::iter::once(before.into()).chain(lead).collect();
    let bound = values.clone();
    let mut rest = String::new();
    let mut and = |condition: &str, value: Value| {
        values.push(value);
        rest.push_str(&condition.replace("{}", &format!("?{}", values.len())));
    };
    for (column, name) in [("exchange", exchange), ("port", port)] {
        if let Some(name) = name {
            and(&format!(" AND {column} = {{}}"), name.to_string().into());
        }
    }
    if let (Some(_), Some(whole)) = (id, part_of) {
        and(" AND part_of = {}", number(whole));
    }
    if let Some(to) = to {
        let leg = "EXISTS (SELECT 1 FROM legs WHERE message = messages.id AND legs.port = {})";
        and(&format!(" AND {leg}"), to.to_string().into());
    }
    if let Some(before) = accepted_before {
        and(" AND accepted_at < {}", before.0.into());
    }
    if let Some(reason) = reason {
        let said = "EXISTS (SELECT 1 FROM legs WHERE message = messages.id AND state = 2 AND instr(said, {}))";
        and(&format!(" AND (instr(suspended, {{}}) OR {said})"), reason.clone().into());
    }
    let has_leg =
        |states: &str| format!("EXISTS (SELECT 1 FROM legs WHERE message = messages.id AND state IN ({states}))");
    rest.push_str(&match standing {
        None => String::new(),
        Some(MessageStatus::Open) => {
            let waits = "EXISTS (SELECT 1 FROM gathered WHERE message = messages.id)";
            format!(" AND (suspended IS NOT NULL OR {} OR {waits})", has_leg("0, 2, 4"))
        }
        Some(MessageStatus::Suspended) => format!(" AND (suspended IS NOT NULL OR {})", has_leg("2")),
        Some(MessageStatus::Ended) => " AND ended_at IS NOT NULL".to_owned(),
    });
    let most = limit.saturating_add(1);
    let sql = format!("{MESSAGE} WHERE id IN ({candidates}){rest} ORDER BY id DESC LIMIT {most}");
    let mut found = query_all(connection, &sql, rusqlite::params_from_iter(values), read_message)?;
    let mut reached = None;
    if found.len() <= limit {
        let sql = format!("SELECT count(*), min(id) FROM ({candidates})");
        let read = |row: &Row<'_>| Ok((row.get::<_, usize>(0)?, row.get::<_, Option<u64>>(1)?));
        let scanned = query_one(connection, &sql, rusqlite::params_from_iter(bound), read)?;
        reached = scanned.filter(|(count, _)| *count == rows_max).and_then(|(_, last)| last).map(MessageId);
    }
    for message in &mut found {
        message.legs = legs(connection, message.id)?;
    }
    Ok(ScanPage { items: found, next: reached })
}

fn legs(connection: &Connection, id: MessageId) -> Result<Vec<Leg>, StoreError> {
    query_all(connection, &format!("SELECT {LEG} FROM legs WHERE message = ?1 ORDER BY number"), [id.0], |row| {
        read_leg(row, 0)
    })
}

fn read_message(row: &Row<'_>) -> rusqlite::Result<StoredMessage> {
    Ok(StoredMessage {
        id: MessageId(row.get(0)?),
        exchange: parsed(row, 1)?,
        port: parsed(row, 2)?,
        kind: word(row, 3, &MessageKind::ALL)?,
        answers: row.get::<_, Option<u64>>(4)?.map(MessageId),
        reply: row.get::<_, Option<u64>>(5)?.map(MessageId),
        head: head(row, 6)?,
        bytes: row.get(7)?,
        accepted_at: Timestamp(row.get(8)?),
        expires_at: row.get::<_, Option<i64>>(9)?.map(Timestamp),
        ended_at: row.get::<_, Option<i64>>(10)?.map(Timestamp),
        ending: row.get::<_, Option<u32>>(11)?.map(|_| word(row, 11, &Ending::ALL)).transpose()?,
        suspended: row.get(12)?,
        part_of: row.get::<_, Option<u64>>(13)?.map(MessageId),
        sender: row.get::<_, String>(14)?.into(),
        legs: Vec::new(),
    })
}

pub(super) fn read_leg(row: &Row<'_>, at: usize) -> rusqlite::Result<Leg> {
    Ok(Leg {
        number: row.get(at)?,
        port: parsed(row, at + 1)?,
        replies: row.get(at + 2)?,
        state: word(row, at + 3, &LegState::ALL)?,
        attempts: row.get(at + 4)?,
        on_backup: row.get(at + 5)?,
        due_at: Timestamp(row.get(at + 6)?),
        tried_at: row.get::<_, Option<i64>>(at + 7)?.map(Timestamp),
        said: row.get(at + 8)?,
        through: row.get::<_, Option<String>>(at + 9)?.map(|_| parsed(row, at + 9)).transpose()?,
    })
}
