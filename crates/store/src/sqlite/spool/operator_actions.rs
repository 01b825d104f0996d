//! Operator actions on messages: resume, reroute, edit, end.

use rusqlite::Connection;
use tocsin_model::{exchange::MessageKind, id::MessageId, time::Timestamp};

use super::{
    history::{NewEntry, add, port_of},
    intake::insert_parts,
};
use crate::{
    error::StoreError,
    spool::{
        AffectedCounts, EditedMessage, Ending, Head, HistoryAction, LegState, MessageEdit, NewLeg, ReprocessedMessage,
    },
    sqlite::{
        spool::{
            columns::ordinal_of,
            groups::{join, leave_group},
            message_rows::insert_legs,
            open_counts::OpenChanges,
            replies::answer,
        },
        statements::{execute, query_one},
    },
};

/// Legs of one message must be consecutive.
pub(super) fn resume_legs(
    connection: &Connection,
    places: &[(MessageId, u32)],
    by: &str,
    now: Timestamp,
) -> Result<AffectedCounts, StoreError> {
    let sql = "UPDATE legs SET state = ?2, attempts = 0, on_backup = 0, due_at = ?3 WHERE message = ?1 AND state = ?4 AND \
               number = ?5";
    let (waiting, suspended) =
        (ordinal_of(&LegState::ALL, LegState::Waiting), ordinal_of(&LegState::ALL, LegState::Suspended));
    let mut affected = AffectedCounts::default();
    let mut last = None;
    for (id, number) in places {
        if execute(connection, sql, (id.0, waiting, now.0, suspended, number))? > 0 {
            affected.messages += u64::from(last.replace(id) != Some(id));
            affected.legs += 1;
            let port = port_of(connection, (*id, *number))?;
            let entry = NewEntry { port: port.as_deref(), by, ..NewEntry::new(now, HistoryAction::Resumed, "") };
            add(connection, *id, &entry)?;
        }
    }
    Ok(affected)
}

/// Stores the result of processing a suspended raw message again. Returns the change of the open count.
pub(super) fn rework(
    connection: &Connection,
    id: MessageId,
    reworked: &ReprocessedMessage,
    by: &str,
    now: Timestamp,
) -> Result<i64, StoreError> {
    let is_suspended = "SELECT 1 FROM messages WHERE id = ?1 AND suspended IS NOT NULL";
    if query_one(connection, is_suspended, [id.0], |_| Ok(()))?.is_none() {
        return Ok(0);
    }
    match reworked {
        ReprocessedMessage::One { legs, .. } => record_routed(connection, id, legs, by, now)?,
        ReprocessedMessage::Stuck(reason) => record_routed(connection, id, &Err(reason.clone()), by, now)?,
        ReprocessedMessage::Parts(_) | ReprocessedMessage::Gathered { .. } => {
            add(connection, id, &NewEntry { by, ..NewEntry::new(now, HistoryAction::Resumed, "") })?;
        }
    }
    match reworked {
        ReprocessedMessage::One { head, body, answers, legs } => {
            replace(connection, id, head, body)?;
            match answers {
                Some(waiting) => convert_to_reply(connection, id, *waiting, legs, now),
                None => reroute(connection, id, legs, now).map(|_| 0),
            }
        }
        ReprocessedMessage::Parts(parts) => {
            let sql = "UPDATE messages SET suspended = NULL, open = 0, ended_at = ?2, ending = ?3 WHERE id = ?1";
            execute(connection, sql, (id.0, now.0, ordinal_of(&Ending::ALL, Ending::Split)))?;
            Ok(insert_parts(connection, parts)? - 1)
        }
        ReprocessedMessage::Gathered { head, body, gather } => {
            replace(connection, id, head, body)?;
            join(connection, id, gather, now)?;
            Ok(0)
        }
        ReprocessedMessage::Stuck(reason) => {
            reroute(connection, id, &Err(reason.clone()), now)?;
            Ok(0)
        }
    }
}

/// Turns a suspended message into the reply of a leg that awaits it. Returns the change of the open count.
fn convert_to_reply(
    connection: &Connection,
    id: MessageId,
    waiting: (MessageId, u32),
    legs: &Result<Vec<NewLeg>, String>,
    now: Timestamp,
) -> Result<i64, StoreError> {
    let sql = "UPDATE messages SET kind = ?2, answers = ?3 WHERE id = ?1";
    execute(connection, sql, (id.0, ordinal_of(&MessageKind::ALL, MessageKind::Reply), waiting.0.0))?;
    let end = |ending: Ending| {
        let sql = "UPDATE messages SET suspended = NULL, open = 0, ended_at = ?2, ending = ?3 WHERE id = ?1";
        execute(connection, sql, (id.0, now.0, ordinal_of(&Ending::ALL, ending)))?;
        Ok(-1)
    };
    answer(connection, waiting, id, now, |ending| match (ending, legs) {
        (Some(ending), _) => end(ending),
        (None, Ok(legs)) if legs.is_empty() => end(Ending::Delivered),
        (None, legs) => reroute(connection, id, legs, now).map(|_| 0),
    })
}

/// Replaces head and body of a message.
fn replace(connection: &Connection, id: MessageId, head: &Head, body: &[u8]) -> Result<(), StoreError> {
    let text = serde_json::to_string(head).expect("a head is always JSON");
    let sql = "UPDATE messages SET head = ?2, bytes = ?3 WHERE id = ?1";
    execute(connection, sql, (id.0, text, body.len() as u64))?;
    execute(connection, "UPDATE bodies SET body = ?2 WHERE id = ?1", (id.0, body))?;
    Ok(())
}

pub(super) fn edit(connection: &Connection, id: MessageId, edited: &EditedMessage) -> Result<MessageEdit, StoreError> {
    let sql = "SELECT suspended IS NOT NULL OR id IN (SELECT message FROM legs WHERE state = 2), id IN (SELECT message FROM \
               legs WHERE state = 0) FROM messages WHERE id = ?1";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, bool>(0)?, row.get::<_, bool>(1)?));
    match query_one(connection, sql, [id.0], read)? {
        None | Some((false, _)) => return Ok(MessageEdit::NotSuspended),
        Some((true, true)) => return Ok(MessageEdit::Waits),
        Some((true, false)) => {}
    }
    let sql = "INSERT OR IGNORE INTO originals SELECT messages.id, head, body, ?2, ?3 FROM messages JOIN bodies ON bodies.id = \
               messages.id WHERE messages.id = ?1";
    execute(connection, sql, (id.0, &edited.by, edited.at.0))?;
    replace(connection, id, &edited.head, &edited.body)?;
    for (number, leg) in &edited.legs {
        let sql = "UPDATE legs SET lane = ?3, awaits = coalesce(?4, awaits) WHERE message = ?1 AND number = ?2 AND state = ?5";
        let awaits = leg.awaits.as_ref().map(|awaits| &awaits.key);
        let suspended = ordinal_of(&LegState::ALL, LegState::Suspended);
        execute(connection, sql, (id.0, number, &leg.lane, awaits, suspended))?;
    }
    if edited.is_other {
        add(
            connection,
            id,
            &NewEntry { by: &edited.by, ..NewEntry::new(edited.at, HistoryAction::Edited, &edited.change) },
        )?;
    }
    Ok(MessageEdit::Done)
}

/// Records that an operator resumed a message, and the result of routing it again.
pub(super) fn record_routed(
    connection: &Connection,
    id: MessageId,
    legs: &Result<Vec<NewLeg>, String>,
    by: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    add(connection, id, &NewEntry { by, ..NewEntry::new(now, HistoryAction::Resumed, "") })?;
    match legs {
        Ok(legs) if legs.is_empty() => Ok(()),
        Ok(legs) => {
            let ports: Vec<&str> = legs.iter().map(|leg| leg.port.as_str()).collect();
            add(connection, id, &NewEntry::new(now, HistoryAction::Routed, &format!("to {}", ports.join(", "))))
        }
        Err(reason) => add(connection, id, &NewEntry::new(now, HistoryAction::Suspended, reason)),
    }
}

pub(super) fn reroute(
    connection: &Connection,
    id: MessageId,
    legs: &Result<Vec<NewLeg>, String>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "SELECT exchange FROM messages WHERE id = ?1 AND suspended IS NOT NULL";
    let Some(exchange) = query_one(connection, sql, [id.0], |row| row.get::<_, String>(0))? else { return Ok(false) };
    match legs {
        Ok(legs) => {
            insert_legs(connection, id, &exchange, legs, now.0)?;
            let sql = "UPDATE messages SET suspended = NULL, open = ?2 WHERE id = ?1";
            execute(connection, sql, (id.0, legs.len()))?;
        }
        Err(reason) => {
            execute(connection, "UPDATE messages SET suspended = ?2 WHERE id = ?1", (id.0, reason))?;
        }
    }
    Ok(true)
}

pub(super) fn end(
    connection: &Connection,
    ids: &[MessageId],
    by: &str,
    now: Timestamp,
) -> Result<(AffectedCounts, OpenChanges), StoreError> {
    let (mut affected, mut changes) = (AffectedCounts::default(), OpenChanges::default());
    for id in ids {
        let sql = "UPDATE messages SET suspended = NULL, open = 0, ended_at = ?2, ending = coalesce(ending, ?3) \
                   WHERE id = ?1 AND ended_at IS NULL RETURNING exchange";
        let row = (id.0, now.0, ordinal_of(&Ending::ALL, Ending::Ended));
        let ended = query_one(connection, sql, row, |row| row.get::<_, String>(0))?;
        leave_group(connection, *id)?;
        let sql = "UPDATE legs SET state = ?2 WHERE message = ?1 AND state IN (0, 2, 4)";
        affected.legs += execute(connection, sql, (id.0, ordinal_of(&LegState::ALL, LegState::Ended)))? as u64;
        affected.messages += u64::from(ended.is_some());
        if ended.is_some() {
            add(connection, *id, &NewEntry { by, ..NewEntry::new(now, HistoryAction::Ended, "") })?;
        }
        if let Some(exchange) = ended {
            changes.add(&exchange, -1);
        }
    }
    Ok((affected, changes))
}
