//! The history of messages: attempts that failed, and what operators and the upkeep did, a bounded number for each.
//!
//! A message whose legs succeed at the first attempt has none, so the usual way writes nothing here.

use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{MessageId, Name},
    time::Timestamp,
};

use super::{intake::place, reading};
use crate::{
    error::StoreError,
    spool::{HISTORY_FIRST, HISTORY_MAX, HISTORY_TEXT_BYTES_MAX, HistoryAct, HistoryEntry, LegOutcome, Then},
    sqlite::records::{execute, query_all, query_one},
};

/// An entry that is to be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewEntry<'a> {
    pub at: Timestamp,
    pub act: HistoryAct,
    pub port: Option<&'a str>,
    pub attempt: Option<u32>,
    pub on_backup: bool,
    pub by: &'a str,
    pub text: &'a str,
}

impl<'a> NewEntry<'a> {
    pub fn new(at: Timestamp, act: HistoryAct, text: &'a str) -> NewEntry<'a> {
        NewEntry { at, act, port: None, attempt: None, on_backup: false, by: "", text }
    }
}

/// Writes an entry. Behind the bound, the oldest one behind the first entries goes.
pub(super) fn note(connection: &Connection, id: MessageId, entry: &NewEntry<'_>) -> Result<(), StoreError> {
    let NewEntry { at, act, port, attempt, on_backup, by, text } = *entry;
    let text = &text[..text.floor_char_boundary(HISTORY_TEXT_BYTES_MAX)];
    let sql = "INSERT INTO history (message, number, at, act, port, attempt, on_backup, acted_by, text) \
               SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 FROM history WHERE message = ?1 \
               RETURNING number";
    let row = (id.0, at.0, place(&HistoryAct::ALL, act), port, attempt, on_backup, by, text);
    let number = query_one(connection, sql, row, |row| row.get::<_, u32>(0))?.unwrap_or(0);
    if number > HISTORY_MAX {
        // Numbers are without gaps behind the first ones, so one goes for each that comes.
        let sql = "DELETE FROM history WHERE message = ?1 AND number > ?2 AND number <= ?3";
        execute(connection, sql, (id.0, HISTORY_FIRST, number - HISTORY_MAX + HISTORY_FIRST))?;
    }
    Ok(())
}

/// The port of a leg.
pub(super) fn port_of(connection: &Connection, (id, leg): (MessageId, u32)) -> Result<Option<String>, StoreError> {
    let sql = "SELECT port FROM legs WHERE message = ?1 AND number = ?2";
    query_one(connection, sql, (id.0, leg), |row| row.get(0))
}

/// Writes what came of an attempt, unless it is the leg's first and succeeded.
pub(super) fn note_attempt(connection: &Connection, outcome: &LegOutcome) -> Result<(), StoreError> {
    let LegOutcome { attempts, on_backup, said, tried_at, .. } = outcome;
    let (act, attempt, was_on_backup) = match &outcome.then {
        Then::Done(_) | Then::Await(_) if outcome.is_first => return Ok(()),
        Then::Done(_) => (HistoryAct::Sent, Some(*attempts), *on_backup),
        Then::Await(_) => (HistoryAct::Awaiting, Some(*attempts), *on_backup),
        // The backup transport begins with its first attempt.
        Then::Retry(_) if *on_backup && *attempts == 0 => (HistoryAct::Backup, None, false),
        Then::Retry(_) => (HistoryAct::Failed, Some(*attempts), *on_backup),
        Then::Suspend(_) => (HistoryAct::Suspended, Some(*attempts), *on_backup),
    };
    let port = port_of(connection, (outcome.message, outcome.leg))?;
    let entry =
        NewEntry { port: port.as_deref(), attempt, on_backup: was_on_backup, ..NewEntry::new(*tried_at, act, said) };
    note(connection, outcome.message, &entry)
}

/// Writes an entry, if the message has others.
pub(super) fn note_more(connection: &Connection, id: MessageId, entry: &NewEntry<'_>) -> Result<(), StoreError> {
    let sql = "SELECT 1 FROM history WHERE message = ?1 LIMIT 1";
    match query_one(connection, sql, [id.0], |_| Ok(()))? {
        Some(()) => note(connection, id, entry),
        None => Ok(()),
    }
}

/// The history of a message, oldest first.
pub(super) fn of(connection: &Connection, id: MessageId) -> Result<Vec<HistoryEntry>, StoreError> {
    let sql = "SELECT number, at, act, port, attempt, on_backup, acted_by, text FROM history WHERE message = ?1 ORDER BY number";
    query_all(connection, sql, [id.0], read)
}

fn read(row: &Row<'_>) -> rusqlite::Result<HistoryEntry> {
    let port = row.get::<_, Option<String>>(3)?.map(|_| reading::parsed::<Name>(row, 3)).transpose()?;
    Ok(HistoryEntry {
        number: row.get(0)?,
        at: Timestamp(row.get(1)?),
        act: reading::word(row, 2, &HistoryAct::ALL)?,
        port,
        attempt: row.get(4)?,
        on_backup: row.get(5)?,
        by: row.get::<_, String>(6)?.into(),
        text: row.get::<_, String>(7)?.into(),
    })
}
