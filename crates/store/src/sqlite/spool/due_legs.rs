//! Due legs of a send port, in the order in which they leave.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::future::try_join_all;
use rusqlite::{Connection, Row, ToSql};
use tocsin_model::{
    exchange::MessageKind,
    id::{MessageId, Name},
    time::Timestamp,
};

use super::{
    partitions::Partition,
    views::{LEG, read_leg},
};
use crate::{
    error::StoreError,
    spool::{LegOrder, LegState, WaitingLeg},
    sqlite::{
        spool::columns::{head, parsed, word},
        statements::{query_all, query_one},
        writer::store_error,
    },
};

/// Maximum number of legs read per lane at a time, so that a long lane does not keep others out of memory.
const LANE_LEGS_MAX: usize = 32;

/// Query for due legs.
pub(super) struct DueLegsQuery {
    pub exchange: Name,
    pub port: Name,
    pub now: Timestamp,
    /// Legs that are in memory already.
    pub not: Arc<HashSet<(MessageId, u32)>>,
    pub limit: usize,
    pub bytes_max: usize,
}

/// Due legs of one partition that are not in memory, with their bodies. Legs stored before their port had an order
/// come first.
pub(super) fn due_legs(
    connection: &Connection,
    query: &DueLegsQuery,
    order: LegOrder,
) -> Result<Vec<WaitingLeg>, StoreError> {
    let mut found = outside_lanes(connection, query, order)?;
    if let LegOrder::Lanes { stops } = order {
        in_lanes(connection, query, stops, &mut found)?;
    }
    Ok(found)
}

/// The same, without legs in lanes.
fn outside_lanes(
    connection: &Connection,
    query: &DueLegsQuery,
    order: LegOrder,
) -> Result<Vec<WaitingLeg>, StoreError> {
    let mut found = Vec::new();
    let by_due = "ORDER BY due_at, message, number";
    match order {
        LegOrder::Due => scan(connection, query, &format!("state = 0 AND due_at <= ?3 {by_due}"), &mut found)?,
        LegOrder::Rank => {
            scan(connection, query, &format!("state = 0 AND due_at <= ?3 AND rank IS NULL {by_due}"), &mut found)?;
            let ranked = "state = 0 AND due_at <= ?3 AND rank IS NOT NULL ORDER BY rank, message, number";
            scan(connection, query, ranked, &mut found)?;
        }
        LegOrder::Lanes { .. } => {
            scan(connection, query, &format!("state = 0 AND due_at <= ?3 AND lane IS NULL {by_due}"), &mut found)?;
        }
    }
    Ok(found)
}

/// The same for several partitions, in the order of a single one. In lanes, no id from `horizon` on is read:
/// partitions are read one after the other, so an earlier leg of another partition may not be visible yet.
pub(super) async fn due_legs_of_all(
    partitions: &[Partition],
    query: DueLegsQuery,
    order: LegOrder,
    horizon: MessageId,
) -> Result<Vec<WaitingLeg>, StoreError> {
    let query = Arc::new(query);
    let parts = try_join_all(partitions.iter().map(|partition| {
        let query = query.clone();
        partition.read(move |connection| outside_lanes(connection, &query, order))
    }));
    let mut all: Vec<WaitingLeg> = parts.await?.into_iter().flatten().collect();
    all.sort_by_key(|leg| {
        let rank = leg.rank.filter(|_| order == LegOrder::Rank);
        (rank.is_some(), rank.unwrap_or(leg.leg.due_at), leg.message, leg.leg.number)
    });
    let mut found = Vec::new();
    let legs = all.into_iter();
    take_until_full(&query, legs, &mut found);
    if let LegOrder::Lanes { stops } = order {
        let legs = lanes_of_all(partitions, &query, stops, horizon).await?;
        take_until_full(&query, legs.into_iter(), &mut found);
    }
    Ok(found)
}

fn take_until_full(query: &DueLegsQuery, legs: impl Iterator<Item = WaitingLeg>, found: &mut Vec<WaitingLeg>) {
    for leg in legs {
        if is_full(query, found) {
            return;
        }
        found.push(leg);
    }
}

/// Columns of a waiting leg.
fn select(condition: &str) -> String {
    format!(
        "SELECT message, kind, answers, head, accepted_at, expires_at, body, lane, rank, {LEG}, messages.port FROM legs JOIN messages ON \
         messages.id = message JOIN bodies ON bodies.id = message WHERE {condition}"
    )
}

fn is_full(query: &DueLegsQuery, found: &[WaitingLeg]) -> bool {
    found.len() >= query.limit || found.iter().map(|leg| leg.body.len()).sum::<usize>() >= query.bytes_max
}

fn scan(
    connection: &Connection,
    query: &DueLegsQuery,
    condition: &str,
    found: &mut Vec<WaitingLeg>,
) -> Result<(), StoreError> {
    let sql = select(&format!("legs.exchange = ?1 AND legs.port = ?2 AND {condition}"));
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let place = (query.exchange.as_str(), query.port.as_str(), query.now.0);
    let mut rows = statement.query(place).map_err(store_error)?;
    while !is_full(query, found)
        && let Some(row) = rows.next().map_err(store_error)?
    {
        if !query.not.contains(&place_of(row, 0, 9).map_err(store_error)?) {
            found.push(read(row).map_err(store_error)?);
        }
    }
    Ok(())
}

/// Read progress of a lane.
#[derive(Default)]
struct LaneProgress {
    read: usize,
    is_blocked: bool,
}

fn in_lanes(
    connection: &Connection,
    query: &DueLegsQuery,
    stops: bool,
    found: &mut Vec<WaitingLeg>,
) -> Result<(), StoreError> {
    for place in choose(connection, query, stops)? {
        if is_full(query, found) {
            break;
        }
        found.extend(leg(connection, place)?);
    }
    Ok(())
}

fn leg(connection: &Connection, (message, number): (MessageId, u32)) -> Result<Option<WaitingLeg>, StoreError> {
    let keys: [&dyn ToSql; 2] = [&message.0, &number];
    query_one(connection, &select("legs.message = ?1 AND legs.number = ?2"), keys, read)
}

/// Leg in a lane, as found in the index.
struct LaneEntry {
    place: (MessageId, u32),
    waits: bool,
    due_at: Timestamp,
    lane: String,
}

/// Selects the legs to read from all lanes, in order of receipt.
#[derive(Default)]
struct LaneSelector {
    lanes: HashMap<String, LaneProgress>,
}

impl LaneSelector {
    fn takes(&mut self, entry: LaneEntry, query: &DueLegsQuery, stops: bool) -> bool {
        let lane = self.lanes.entry(entry.lane).or_default();
        if lane.is_blocked {
            return false;
        }
        if !entry.waits {
            lane.is_blocked = stops;
            return false;
        }
        if entry.due_at > query.now || lane.read >= LANE_LEGS_MAX {
            lane.is_blocked = true;
            return false;
        }
        lane.read += 1;
        !query.not.contains(&entry.place)
    }
}

/// Scans the lanes in order of receipt; reads only the index.
fn choose(connection: &Connection, query: &DueLegsQuery, stops: bool) -> Result<Vec<(MessageId, u32)>, StoreError> {
    let (mut selector, mut chosen) = (LaneSelector::default(), Vec::new());
    for_entries(connection, query, (MessageId(0), 0), |entry| {
        let place = entry.place;
        if selector.takes(entry, query, stops) {
            chosen.push(place);
        }
        chosen.len() < query.limit
    })?;
    Ok(chosen)
}

/// Iterates over the legs in lanes after a position, in order of receipt, until `take` returns `false`.
fn for_entries(
    connection: &Connection,
    query: &DueLegsQuery,
    (message, number): (MessageId, u32),
    mut take: impl FnMut(LaneEntry) -> bool,
) -> Result<(), StoreError> {
    let sql = "SELECT message, number, state = 0, due_at, lane FROM legs WHERE exchange = ?1 AND port = ?2 AND lane IS NOT \
               NULL AND state IN (0, 2) AND (message, number) > (?3, ?4) ORDER BY message, number";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let place = (query.exchange.as_str(), query.port.as_str(), message.0, number);
    let mut rows = statement.query(place).map_err(store_error)?;
    while let Some(row) = rows.next().map_err(store_error)? {
        let read = |row: &Row<'_>| -> rusqlite::Result<_> {
            let (waits, due_at) = (row.get(2)?, Timestamp(row.get(3)?));
            Ok(LaneEntry { place: place_of(row, 0, 1)?, waits, due_at, lane: row.get(4)? })
        };
        if !take(read(row).map_err(store_error)?) {
            break;
        }
    }
    Ok(())
}

/// Page of a partition's legs in lanes.
struct LanePage {
    entries: VecDeque<LaneEntry>,
    last: (MessageId, u32),
    is_last: bool,
}

/// Merges the lanes of all partitions in order of receipt.
async fn lanes_of_all(
    partitions: &[Partition],
    query: &Arc<DueLegsQuery>,
    stops: bool,
    horizon: MessageId,
) -> Result<Vec<WaitingLeg>, StoreError> {
    let begin = || LanePage { entries: VecDeque::new(), last: (MessageId(0), 0), is_last: false };
    let mut pages: Vec<LanePage> = partitions.iter().map(|_| begin()).collect();
    let (mut selector, mut chosen) = (LaneSelector::default(), Vec::new());
    while chosen.len() < query.limit {
        for (page, partition) in pages.iter_mut().zip(partitions) {
            fill_page(page, partition, query).await?;
        }
        let heads = pages.iter().enumerate().filter_map(|(at, page)| Some((page.entries.front()?.place, at)));
        let Some((place, at)) = heads.min().filter(|((message, _), _)| *message < horizon) else { break };
        let entry = pages[at].entries.pop_front().expect("it was looked at");
        if selector.takes(entry, query, stops) {
            chosen.push((place, at));
        }
    }
    bodies_of_all(partitions, query, &chosen).await
}

/// Reads the next page if this one is used up.
async fn fill_page(page: &mut LanePage, partition: &Partition, query: &Arc<DueLegsQuery>) -> Result<(), StoreError> {
    if !page.entries.is_empty() || page.is_last {
        return Ok(());
    }
    let (query, last, most) = (query.clone(), page.last, query.limit.max(LANE_LEGS_MAX));
    let read = partition.read(move |connection| {
        let mut entries = VecDeque::new();
        for_entries(connection, &query, last, |entry| {
            entries.push_back(entry);
            entries.len() < most
        })?;
        Ok(entries)
    });
    page.entries = read.await?;
    page.is_last = page.entries.len() < most;
    page.last = page.entries.back().map_or(page.last, |entry| entry.place);
    Ok(())
}

/// Chosen legs with their bodies, in order, up to the byte limit.
async fn bodies_of_all(
    partitions: &[Partition],
    query: &DueLegsQuery,
    chosen: &[((MessageId, u32), usize)],
) -> Result<Vec<WaitingLeg>, StoreError> {
    let bytes_max = query.bytes_max;
    let reads = partitions.iter().enumerate().map(|(at, partition)| {
        let places: Vec<_> = chosen.iter().filter(|(_, of)| *of == at).map(|(place, _)| *place).collect();
        partition.read(move |connection| {
            let (mut legs, mut bytes) = (VecDeque::new(), 0);
            for place in places {
                if bytes >= bytes_max {
                    break;
                }
                let found = leg(connection, place)?;
                bytes += found.as_ref().map_or(0, |leg| leg.body.len());
                legs.push_back(found);
            }
            Ok(legs)
        })
    });
    let mut legs = try_join_all(reads).await?;
    let mut found = Vec::new();
    for (_, at) in chosen {
        // After a leg that did not fit, nothing may be read: it could belong to the same lane.
        let Some(next) = legs[*at].pop_front() else { break };
        // The leg may have ended meanwhile.
        found.extend(next.filter(|leg| leg.leg.state == LegState::Waiting));
    }
    Ok(found)
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
        from: parsed(row, 19)?,
    })
}

/// Due time of the next leg of a send port that is not due yet.
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
