//! Legs that are due, in the order in which they leave.

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
    reading::{LEG, head, parsed, read_leg, word},
};
use crate::{
    error::StoreError,
    spool::{LegOrder, LegState, WaitingLeg},
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
    pub not: Arc<HashSet<(MessageId, u32)>>,
    pub limit: usize,
    pub bytes_max: usize,
}

/// Legs that are due and not in memory, with their bodies, of one partition. Those that were stored before their port had an
/// order come first.
pub(super) fn due_legs(connection: &Connection, asked: &Asked, order: LegOrder) -> Result<Vec<WaitingLeg>, StoreError> {
    let mut found = outside_lanes(connection, asked, order)?;
    if let LegOrder::Lanes { stops } = order {
        in_lanes(connection, asked, stops, &mut found)?;
    }
    Ok(found)
}

/// The same without those of lanes.
fn outside_lanes(connection: &Connection, asked: &Asked, order: LegOrder) -> Result<Vec<WaitingLeg>, StoreError> {
    let mut found = Vec::new();
    let by_due = "ORDER BY due_at, message, number";
    match order {
        LegOrder::Due => scan(connection, asked, &format!("state = 0 AND due_at <= ?3 {by_due}"), &mut found)?,
        LegOrder::Rank => {
            scan(connection, asked, &format!("state = 0 AND due_at <= ?3 AND rank IS NULL {by_due}"), &mut found)?;
            let ranked = "state = 0 AND due_at <= ?3 AND rank IS NOT NULL ORDER BY rank, message, number";
            scan(connection, asked, ranked, &mut found)?;
        }
        LegOrder::Lanes { .. } => {
            scan(connection, asked, &format!("state = 0 AND due_at <= ?3 AND lane IS NULL {by_due}"), &mut found)?;
        }
    }
    Ok(found)
}

/// The same of several partitions, in the order in which they would be read if they were one. No id from `horizon` on is
/// read in lanes: partitions are read one after the other, and what one does not show yet may be before it.
pub(super) async fn due_legs_of_all(
    partitions: &[Partition],
    asked: Asked,
    order: LegOrder,
    horizon: MessageId,
) -> Result<Vec<WaitingLeg>, StoreError> {
    let asked = Arc::new(asked);
    let parts = try_join_all(partitions.iter().map(|partition| {
        let asked = asked.clone();
        partition.read(move |connection| outside_lanes(connection, &asked, order))
    }));
    let mut all: Vec<WaitingLeg> = parts.await?.into_iter().flatten().collect();
    all.sort_by_key(|leg| {
        let rank = leg.rank.filter(|_| order == LegOrder::Rank);
        (rank.is_some(), rank.unwrap_or(leg.leg.due_at), leg.message, leg.leg.number)
    });
    let mut found = Vec::new();
    let legs = all.into_iter();
    take_until_full(&asked, legs, &mut found);
    if let LegOrder::Lanes { stops } = order {
        let legs = lanes_of_all(partitions, &asked, stops, horizon).await?;
        take_until_full(&asked, legs.into_iter(), &mut found);
    }
    Ok(found)
}

fn take_until_full(asked: &Asked, legs: impl Iterator<Item = WaitingLeg>, found: &mut Vec<WaitingLeg>) {
    for leg in legs {
        if is_full(asked, found) {
            return;
        }
        found.push(leg);
    }
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
    for place in choose(connection, asked, stops)? {
        if is_full(asked, found) {
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

/// A leg in a lane, as far as the index has it.
struct Entry {
    place: (MessageId, u32),
    waits: bool,
    due_at: Timestamp,
    lane: String,
}

/// Says of the legs of all lanes, as they came, which are read.
#[derive(Default)]
struct Chooser {
    lanes: HashMap<String, Lane>,
}

impl Chooser {
    fn takes(&mut self, entry: Entry, asked: &Asked, stops: bool) -> bool {
        let lane = self.lanes.entry(entry.lane).or_default();
        if lane.is_blocked {
            return false;
        }
        if !entry.waits {
            lane.is_blocked = stops;
            return false;
        }
        if entry.due_at > asked.now || lane.read >= OF_LANE_MAX {
            lane.is_blocked = true;
            return false;
        }
        lane.read += 1;
        !asked.not.contains(&entry.place)
    }
}

/// Goes through the lanes as their legs came; reads no more than the index.
fn choose(connection: &Connection, asked: &Asked, stops: bool) -> Result<Vec<(MessageId, u32)>, StoreError> {
    let (mut chooser, mut chosen) = (Chooser::default(), Vec::new());
    for_entries(connection, asked, (MessageId(0), 0), |entry| {
        let place = entry.place;
        if chooser.takes(entry, asked, stops) {
            chosen.push(place);
        }
        chosen.len() < asked.limit
    })?;
    Ok(chosen)
}

/// Hands over the legs of lanes behind a place, as they came, for as long as more are wanted.
fn for_entries(
    connection: &Connection,
    asked: &Asked,
    (message, number): (MessageId, u32),
    mut take: impl FnMut(Entry) -> bool,
) -> Result<(), StoreError> {
    let sql = "SELECT message, number, state = 0, due_at, lane FROM legs WHERE exchange = ?1 AND port = ?2 AND lane IS NOT \
               NULL AND state IN (0, 2) AND (message, number) > (?3, ?4) ORDER BY message, number";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let place = (asked.exchange.as_str(), asked.port.as_str(), message.0, number);
    let mut rows = statement.query(place).map_err(store_error)?;
    while let Some(row) = rows.next().map_err(store_error)? {
        let read = |row: &Row<'_>| -> rusqlite::Result<_> {
            let (waits, due_at) = (row.get(2)?, Timestamp(row.get(3)?));
            Ok(Entry { place: place_of(row, 0, 1)?, waits, due_at, lane: row.get(4)? })
        };
        if !take(read(row).map_err(store_error)?) {
            break;
        }
    }
    Ok(())
}

/// The legs of lanes of a partition, a page at a time.
struct Page {
    entries: VecDeque<Entry>,
    last: (MessageId, u32),
    is_last: bool,
}

/// Goes through the lanes of all partitions together, as their legs came.
async fn lanes_of_all(
    partitions: &[Partition],
    asked: &Arc<Asked>,
    stops: bool,
    horizon: MessageId,
) -> Result<Vec<WaitingLeg>, StoreError> {
    let begin = || Page { entries: VecDeque::new(), last: (MessageId(0), 0), is_last: false };
    let mut pages: Vec<Page> = partitions.iter().map(|_| begin()).collect();
    let (mut chooser, mut chosen) = (Chooser::default(), Vec::new());
    while chosen.len() < asked.limit {
        for (page, partition) in pages.iter_mut().zip(partitions) {
            turn(page, partition, asked).await?;
        }
        let heads = pages.iter().enumerate().filter_map(|(at, page)| Some((page.entries.front()?.place, at)));
        let Some((place, at)) = heads.min().filter(|((message, _), _)| *message < horizon) else { break };
        let entry = pages[at].entries.pop_front().expect("it was looked at");
        if chooser.takes(entry, asked, stops) {
            chosen.push((place, at));
        }
    }
    bodies_of_all(partitions, asked, &chosen).await
}

/// Reads the next page if this one is done with.
async fn turn(page: &mut Page, partition: &Partition, asked: &Arc<Asked>) -> Result<(), StoreError> {
    if !page.entries.is_empty() || page.is_last {
        return Ok(());
    }
    let (asked, last, most) = (asked.clone(), page.last, asked.limit.max(OF_LANE_MAX));
    let read = partition.read(move |connection| {
        let mut entries = VecDeque::new();
        for_entries(connection, &asked, last, |entry| {
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

/// The chosen legs with their bodies, in their order, as far as there is room for them.
async fn bodies_of_all(
    partitions: &[Partition],
    asked: &Asked,
    chosen: &[((MessageId, u32), usize)],
) -> Result<Vec<WaitingLeg>, StoreError> {
    let bytes_max = asked.bytes_max;
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
        // Where one was left out for want of room, nothing behind it may be read either: it may be of its lane.
        let Some(next) = legs[*at].pop_front() else { break };
        // It may have been ended since.
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
