//! History of messages: failed attempts, and actions of operators and the upkeep; bounded per message.
//!
//! A message whose legs succeed at the first attempt has no history, so the normal case writes nothing here.

use rusqlite::{Connection, Row};
use serde_json::json;
use tocsin_model::{
    id::{MessageId, Name},
    time::Timestamp,
};

use crate::{
    audit::{self, Image},
    error::StoreError,
    spool::{
        HISTORY_FIRST, HISTORY_MAX, HISTORY_TEXT_BYTES_MAX, HistoryAction, HistoryEntry, LegOutcome, LegTransition,
    },
    sqlite::{
        spool::columns::{self, ordinal_of},
        statements::{execute, query_all, query_one},
    },
};

/// Entry to write.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewEntry<'a> {
    pub at: Timestamp,
    pub act: HistoryAction,
    pub port: Option<&'a str>,
    pub attempt: Option<u32>,
    pub on_backup: bool,
    pub by: &'a str,
    pub text: &'a str,
}

impl<'a> NewEntry<'a> {
    pub fn new(at: Timestamp, act: HistoryAction, text: &'a str) -> NewEntry<'a> {
        NewEntry { at, act, port: None, attempt: None, on_backup: false, by: "", text }
    }
}

/// Writes an entry. Beyond the limit, the oldest entry after the protected first ones is dropped.
pub(super) fn add(connection: &Connection, id: MessageId, entry: &NewEntry<'_>) -> Result<(), StoreError> {
    let NewEntry { at, act, port, attempt, on_backup, by, text } = *entry;
    audit::changed(|| Image::of("message", id, None, Some(json!({ "act": act.word(), "port": port }))));
    let text = &text[..text.floor_char_boundary(HISTORY_TEXT_BYTES_MAX)];
    let sql = "INSERT INTO history (message, number, at, act, port, attempt, on_backup, acted_by, text) \
               SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 FROM history WHERE message = ?1 \
               RETURNING number";
    let row = (id.0, at.0, ordinal_of(&HistoryAction::ALL, act), port, attempt, on_backup, by, text);
    let number = query_one(connection, sql, row, |row| row.get::<_, u32>(0))?.unwrap_or(0);
    if number > HISTORY_MAX {
        // Numbers after the first entries have no gaps, so one is dropped per new entry.
        let sql = "DELETE FROM history WHERE message = ?1 AND number > ?2 AND number <= ?3";
        execute(connection, sql, (id.0, HISTORY_FIRST, number - HISTORY_MAX + HISTORY_FIRST))?;
    }
    Ok(())
}

/// Port of a leg.
pub(super) fn port_of(connection: &Connection, (id, leg): (MessageId, u32)) -> Result<Option<String>, StoreError> {
    let sql = "SELECT port FROM legs WHERE message = ?1 AND number = ?2";
    query_one(connection, sql, (id.0, leg), |row| row.get(0))
}

/// Writes the outcome of an attempt, unless it is the leg's first and succeeded.
pub(super) fn add_attempt(connection: &Connection, outcome: &LegOutcome) -> Result<(), StoreError> {
    let LegOutcome { attempts, on_backup, said, tried_at, .. } = outcome;
    let (act, attempt, was_on_backup) = match &outcome.then {
        LegTransition::Done(_) | LegTransition::Await(_) if outcome.is_first => return Ok(()),
        LegTransition::Done(_) => (HistoryAction::Sent, Some(*attempts), *on_backup),
        LegTransition::Await(_) => (HistoryAction::Awaiting, Some(*attempts), *on_backup),
        // The backup transport starts with its own first attempt.
        LegTransition::Retry(_) if *on_backup && *attempts == 0 => (HistoryAction::Backup, None, false),
        LegTransition::Retry(_) => (HistoryAction::Failed, Some(*attempts), *on_backup),
        LegTransition::Suspend(_) => (HistoryAction::Suspended, Some(*attempts), *on_backup),
    };
    let port = port_of(connection, (outcome.message, outcome.leg))?;
    let entry =
        NewEntry { port: port.as_deref(), attempt, on_backup: was_on_backup, ..NewEntry::new(*tried_at, act, said) };
    add(connection, outcome.message, &entry)
}

/// Writes an entry if the message has others.
pub(super) fn add_if_any(connection: &Connection, id: MessageId, entry: &NewEntry<'_>) -> Result<(), StoreError> {
    let sql = "SELECT 1 FROM history WHERE message = ?1 LIMIT 1";
    match query_one(connection, sql, [id.0], |_| Ok(()))? {
        Some(()) => add(connection, id, entry),
        None => Ok(()),
    }
}

/// History of a message, oldest first.
pub(super) fn of(connection: &Connection, id: MessageId) -> Result<Vec<HistoryEntry>, StoreError> {
    let sql = "SELECT number, at, act, port, attempt, on_backup, acted_by, text FROM history WHERE message = ?1 ORDER BY number";
    query_all(connection, sql, [id.0], read)
}

fn read(row: &Row<'_>) -> rusqlite::Result<HistoryEntry> {
    let port = row.get::<_, Option<String>>(3)?.map(|_| columns::parsed::<Name>(row, 3)).transpose()?;
    Ok(HistoryEntry {
        number: row.get(0)?,
        at: Timestamp(row.get(1)?),
        act: columns::word(row, 2, &HistoryAction::ALL)?,
        port,
        attempt: row.get(4)?,
        on_backup: row.get(5)?,
        by: row.get::<_, String>(6)?.into(),
        text: row.get::<_, String>(7)?.into(),
    })
}
