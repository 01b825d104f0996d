//! Legs that are due, in the order in which they leave.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use rusqlite::{Connection, Row, ToSql};
use tocsin_model::{
    exchange::MessageKind,
    id::{MessageId, Name},
    time::Timestamp,
};

use super::reading::{LEG, head, parsed, read_leg, word};
use crate::{
    error::StoreError,
    spool::{LegOrder, WaitingLeg},
    sqlite::{
        records::{query_all, query_one},
        writer::store_error,
    },
};

/// Legs of one lane that are read at a time, so that a long one does not keep others out of memory.
const OF_LANE_MAX: usize = 32;

/// Which legs are asked for.
pub(super) struct Asked {
    pub exchange: Name,
    pub port: Name,
    pub now: Timestamp,
    /// Those that are in memory already.
    pub not: std::sync::Arc<HashSet<(MessageId, u32)>>,
    pub limit: usize,
    pub bytes_max: usize,
}

/// Legs that are due and not in memory, with their bodies. Those that were stored before their port had an order come first.
pub(super) fn due_legs(connection: &Connection, asked: &Asked, order: LegOrder) -> Result<Vec<WaitingLeg>, StoreError> {
    let mut found = Vec::new();
    match order {
        LegOrder::Due => {
            scan(connection, asked, "state = 0 AND due_at <= ?3 ORDER BY due_at, message, number", &mut found)?
        }
        LegOrder::Rank => {
            let unranked = "state = 0 AND due_at <= ?3 AND rank IS NULL ORDER BY due_at, message, number";
            scan(connection, asked, unranked, &mut found)?;
            let ranked = "state = 0 AND due_at <= ?3 AND rank IS NOT NULL ORDER BY rank, message, number";
            scan(connection, asked, ranked, &mut found)?;
        }
        LegOrder::Lanes { stops } => {
            let free = "state = 0 AND due_at <= ?3 AND lane IS NULL ORDER BY due_at, message, number";
            scan(connection, asked, free, &mut found)?;
            in_lanes(connection, asked, stops, &mut found)?;
        }
    }
    Ok(found)
}

/// What a leg takes beside itself.
fn select(condition: &str) -> String {
    format!(
        "SELECT message, kind, answers, head, accepted_at, expires_at, body, lane, rank, {LEG}, messages.port FROM legs JOIN messages ON \
         messages.id = message JOIN bodies ON bodies.id = message WHERE {condition}"
    )
}

fn is_full(asked: &Asked, found: &[WaitingLeg]) -> bool {
    found.len() >= asked.limit || found.iter().map(|leg| leg.body.len()).sum::<usize>() >= asked.bytes_max
}

fn scan(
    connection: &Connection,
    asked: &Asked,
    condition: &str,
    found: &mut Vec<WaitingLeg>,
) -> Result<(), StoreError> {
    let sql = select(&format!("legs.exchange = ?1 AND legs.port = ?2 AND {condition}"));
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let place = (asked.exchange.as_str(), asked.port.as_str(), asked.now.0);
    let mut rows = statement.query(place).map_err(store_error)?;
    while !is_full(asked, found)
        && let Some(row) = rows.next().map_err(store_error)?
    {
        if !asked.not.contains(&place_of(row, 0, 9).map_err(store_error)?) {
            found.push(read(row).map_err(store_error)?);
        }
    }
    Ok(())
}

/// How much of a lane may be read.
#[derive(Default)]
struct Lane {
    read: usize,
    is_blocked: bool,
}

fn in_lanes(
    connection: &Connection,
    asked: &Asked,
    stops: bool,
    found: &mut Vec<WaitingLeg>,
) -> Result<(), StoreError> {
    let sql = select("legs.message = ?1 AND legs.number = ?2");
    for (message, number) in choose(connection, asked, stops)? {
        if is_full(asked, found) {
            break;
        }
        let keys: [&dyn ToSql; 2] = [&message.0, &number];
        found.extend(query_one(connection, &sql, keys, read)?);
    }
    Ok(())
}

/// Goes through the lanes as their legs came; reads no more than the index.
fn choose(connection: &Connection, asked: &Asked, stops: bool) -> Result<Vec<(MessageId, u32)>, StoreError> {
    let sql = "SELECT message, number, state = 0, due_at, lane FROM legs WHERE exchange = ?1 AND port = ?2 AND lane IS NOT \
               NULL AND state IN (0, 2) ORDER BY message, number";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query((asked.exchange.as_str(), asked.port.as_str())).map_err(store_error)?;
    let mut lanes: HashMap<String, Lane> = HashMap::new();
    let mut chosen = Vec::new();
    while chosen.len() < asked.limit
        && let Some(row) = rows.next().map_err(store_error)?
    {
        let read = |row: &Row<'_>| -> rusqlite::Result<_> {
            Ok((place_of(row, 0, 1)?, row.get::<_, bool>(2)?, Timestamp(row.get(3)?), row.get::<_, String>(4)?))
        };
        let (place, waits, due_at, lane) = read(row).map_err(store_error)?;
        let lane = lanes.entry(lane).or_default();
        if lane.is_blocked {
            continue;
        }
        if !waits {
            lane.is_blocked = stops;
        } else if due_at > asked.now || lane.read >= OF_LANE_MAX {
            lane.is_blocked = true;
        } else {
            lane.read += 1;
            if !asked.not.contains(&place) {
                chosen.push(place);
            }
        }
    }
    Ok(chosen)
}

fn place_of(row: &Row<'_>, message: usize, number: usize) -> rusqlite::Result<(MessageId, u32)> {
    Ok((MessageId(row.get(message)?), row.get(number)?))
}

fn read(row: &Row<'_>) -> rusqlite::Result<WaitingLeg> {
    Ok(WaitingLeg {
        message: MessageId(row.get(0)?),
        kind: word(row, 1, &MessageKind::ALL)?,
        answers: row.get::<_, Option<u64>>(2)?.map(MessageId),
        head: head(row, 3)?,
        accepted_at: Timestamp(row.get(4)?),
        expires_at: row.get::<_, Option<i64>>(5)?.map(Timestamp),
        body: Bytes::from(row.get::<_, Vec<u8>>(6)?),
        lane: row.get(7)?,
        rank: row.get::<_, Option<i64>>(8)?.map(Timestamp),
        leg: read_leg(row, 9)?,
        from: parsed(row, 18)?,
    })
}

/// When the next leg of a send port is due that is not due yet.
pub(super) fn next_due(
    connection: &Connection,
    exchange: &Name,
    port: &Name,
    now: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT min(due_at) FROM legs WHERE exchange = ?1 AND port = ?2 AND state = 0 AND due_at > ?3";
    let row = (exchange.as_str(), port.as_str(), now.0);
    let next: Vec<Option<i64>> = query_all(connection, sql, row, |row| row.get(0))?;
    Ok(next.into_iter().flatten().next().map(Timestamp))
}
