//! Groups of messages that are aggregated: joined by received messages, left by ended ones.

use rusqlite::{Connection, Row};
use tocsin_model::{id::MessageId, time::Timestamp};

use crate::{
    error::StoreError,
    spool::AggregationRule,
    sqlite::statements::{execute, query_one},
};

/// Adds a stored message to the group of its key. Returns when the group is due, or `now` if a former group of
/// another format became due.
pub(super) fn join(
    connection: &Connection,
    id: MessageId,
    gather: &AggregationRule,
    now: Timestamp,
) -> Result<Timestamp, StoreError> {
    let sql = "UPDATE messages SET suspended = NULL, open = 1 WHERE id = ?1 RETURNING exchange, port, bytes";
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, u64>(2)?));
    let found = query_one(connection, sql, [id.0], read)?;
    let (exchange, port, bytes) = found.ok_or_else(|| StoreError::Damaged(format!("{id} has no row")))?;
    let sql = "UPDATE gatherings SET is_full = 1, due_at = min(due_at, ?5) WHERE exchange = ?1 AND port = ?2 AND key = ?3 AND \
               is_full = 0 AND form <> ?4";
    let closes_another = execute(connection, sql, (&exchange, &port, &gather.key, &gather.form, now.0))? > 0;
    let sql = "UPDATE gatherings SET count = count + 1, bytes = bytes + ?4 WHERE exchange = ?1 AND port = ?2 AND key = ?3 \
               AND is_full = 0 RETURNING id, count, bytes, due_at";
    let read = |row: &Row<'_>| -> rusqlite::Result<(u64, u64, u64, i64)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    };
    let joined = query_one(connection, sql, (&exchange, &port, &gather.key, bytes), read)?;
    let (gathering, count, bytes, due_at) = match joined {
        Some(joined) => joined,
        None => {
            let sql = "INSERT INTO gatherings (exchange, port, key, form, count, bytes, due_at, is_full) VALUES (?1, ?2, ?3, \
                       ?4, 1, ?5, ?6, 0) RETURNING id, count, bytes, due_at";
            let row = (&exchange, &port, &gather.key, &gather.form, bytes, (now + gather.within).0);
            let made = query_one(connection, sql, row, read)?;
            made.ok_or_else(|| StoreError::Damaged("the groups of messages".into()))?
        }
    };
    execute(connection, "INSERT INTO gathered VALUES (?1, ?2)", (id.0, gathering))?;
    if !gather.closes && count < u64::from(gather.count_max) && bytes < gather.bytes_max {
        return Ok(if closes_another { now } else { Timestamp(due_at) });
    }
    execute(connection, "UPDATE gatherings SET is_full = 1, due_at = ?2 WHERE id = ?1", (gathering, now.0))?;
    Ok(now)
}

/// Removes an ended message from its group.
pub(super) fn leave_group(connection: &Connection, id: MessageId) -> Result<(), StoreError> {
    let sql = "DELETE FROM gathered WHERE message = ?1 RETURNING gathering";
    let Some(gathering) = query_one(connection, sql, [id.0], |row| row.get::<_, u64>(0))? else { return Ok(()) };
    let sql = "UPDATE gatherings SET count = count - 1, bytes = bytes - (SELECT messages.bytes FROM messages WHERE id = ?2) \
               WHERE id = ?1";
    execute(connection, sql, (gathering, id.0))?;
    execute(connection, "DELETE FROM gatherings WHERE id = ?1 AND count = 0", [gathering])?;
    Ok(())
}
