//! Orphaned legs: legs to send ports that no longer exist.

use std::collections::HashSet;

use rusqlite::Connection;
use tocsin_model::{
    id::{MessageId, Name},
    time::Timestamp,
};

use super::history::{NewEntry, add};
use crate::{
    error::StoreError,
    spool::{HistoryAction, LegState, NewLeg},
    sqlite::{
        spool::{columns::ordinal_of, message_rows::insert_legs_from},
        statements::{execute, query_all, query_one},
    },
};

/// Send ports that legs of an exchange wait for, other than `known`. One index search per port.
pub(super) fn ports(connection: &Connection, exchange: &Name, known: &[Name]) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT port FROM legs WHERE exchange = ?1 AND port > ?2 AND state = 0 ORDER BY port LIMIT 1";
    let (mut found, mut last) = (Vec::new(), String::new());
    while let Some(port) = query_one(connection, sql, (exchange.as_str(), &last), |row| row.get::<_, String>(0))? {
        if !known.iter().any(|known| known.as_str() == port) {
            found.push(port.clone());
        }
        last = port;
    }
    Ok(found)
}

/// Suspends legs that wait for these ports, up to `limit` and without those in `not`. Returns their messages.
pub(super) fn suspend(
    connection: &Connection,
    exchange: &Name,
    ports: &[String],
    not: &HashSet<(MessageId, u32)>,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<MessageId>, StoreError> {
    let waiting = "SELECT message, number FROM legs WHERE exchange = ?1 AND port = ?2 AND state = 0 LIMIT ?3";
    let suspend = "UPDATE legs SET state = ?3, said = ?4 WHERE message = ?1 AND number = ?2";
    let suspended = ordinal_of(&LegState::ALL, LegState::Suspended);
    let mut messages = Vec::new();
    for port in ports {
        let most = limit - messages.len() + not.len();
        let read = |row: &rusqlite::Row<'_>| Ok((MessageId(row.get(0)?), row.get::<_, u32>(1)?));
        let found = query_all(connection, waiting, (exchange.as_str(), port, most), read)?;
        let said = format!("the send port `{port}` does not exist any more");
        for (message, number) in found.into_iter().filter(|place| !not.contains(place)) {
            if messages.len() == limit {
                return Ok(messages);
            }
            execute(connection, suspend, (message.0, number, suspended, &said))?;
            let entry = NewEntry { port: Some(port.as_str()), ..NewEntry::new(now, HistoryAction::Suspended, &said) };
            add(connection, message, &entry)?;
            messages.push(message);
        }
    }
    Ok(messages)
}

/// Replaces suspended legs of a message by others, or stores the reason why there are none. Returns the number of new
/// legs.
pub(super) fn replace(
    connection: &Connection,
    (exchange, id): (&Name, MessageId),
    orphans: &[u32],
    legs: &Result<Vec<NewLeg>, String>,
    now: Timestamp,
) -> Result<u64, StoreError> {
    let suspended = ordinal_of(&LegState::ALL, LegState::Suspended);
    let legs = match legs {
        Ok(legs) => legs,
        Err(why) => {
            let sql = "UPDATE legs SET said = ?4 WHERE message = ?1 AND number = ?2 AND state = ?3";
            for number in orphans {
                execute(connection, sql, (id.0, number, suspended, why))?;
            }
            return Ok(0);
        }
    };
    let sql = "UPDATE legs SET state = ?4, said = said || '; it was routed anew' WHERE message = ?1 AND number = ?2 AND \
               state = ?3";
    let mut ended = 0;
    for number in orphans {
        ended += execute(connection, sql, (id.0, number, suspended, ordinal_of(&LegState::ALL, LegState::Ended)))?;
    }
    if ended == 0 {
        return Ok(0);
    }
    let last = query_one(connection, "SELECT max(number) FROM legs WHERE message = ?1", [id.0], |row| row.get(0))?;
    insert_legs_from(connection, last.map_or(0, |last: u32| last + 1), id, exchange.as_str(), legs, now.0)?;
    let sql = "UPDATE messages SET open = open + ?2 - ?3 WHERE id = ?1";
    execute(connection, sql, (id.0, legs.len(), ended))?;
    Ok(legs.len() as u64)
}
