//! Ends a leg, and assigns a reply to the message that it answers.

use rusqlite::Connection;
use tocsin_model::{exchange::MessageKind, id::MessageId, time::Timestamp};

use crate::{
    error::StoreError,
    spool::{Ending, HistoryAction, LegState, SettleResult},
    sqlite::{
        spool::{
            columns::ordinal_of,
            history::{NewEntry, add_if_any, port_of},
        },
        statements::{execute, query_one},
    },
};

/// State of a message while one of its legs is settled.
struct MessageRow {
    is_request: bool,
    is_answered: bool,
    ending: Option<u32>,
    open: u64,
}

/// Settles a leg whose reply came through a receive port. The reply is stored as such, or as [`Ending::Late`] if the
/// leg no longer waits. Returns the change of the open count.
pub(super) fn answer(
    connection: &Connection,
    (message, leg): (MessageId, u32),
    reply: MessageId,
    at: Timestamp,
    mut store: impl FnMut(Option<Ending>) -> Result<i64, StoreError>,
) -> Result<i64, StoreError> {
    // The reply can overtake the response of the attempt, and can come even if the attempt failed.
    let sql = "UPDATE legs SET state = ?3 WHERE message = ?1 AND number = ?2 AND state IN (0, 2, 4)";
    if execute(connection, sql, (message.0, leg, ordinal_of(&LegState::ALL, LegState::Done)))? == 0 {
        return store(Some(Ending::Late));
    }
    let port = port_of(connection, (message, leg))?;
    let text = format!("by {reply}");
    add_if_any(
        connection,
        message,
        &NewEntry { port: port.as_deref(), ..NewEntry::new(at, HistoryAction::Replied, &text) },
    )?;
    finish_leg(connection, message, at, Some((reply, &mut store))).map(|(_, change)| change)
}

/// Stores a reply, possibly as ended. Returns the change of the open count.
type Store<'a> = &'a mut dyn FnMut(Option<Ending>) -> Result<i64, StoreError>;

pub(crate) fn finish_leg(
    connection: &Connection,
    message: MessageId,
    at: Timestamp,
    reply: Option<(MessageId, Store<'_>)>,
) -> Result<(SettleResult, i64), StoreError> {
    let message_row = message_row(connection, message)?;
    let mut opened = 0;
    let reply_id = reply.as_ref().map(|(id, _)| *id);
    let settled = match reply {
        None => SettleResult::Stored,
        Some((_, store)) if message_row.is_request && (message_row.is_answered || message_row.ending.is_some()) => {
            opened += store(Some(Ending::Late))?;
            SettleResult::Late
        }
        Some((_, store)) => {
            opened += store(None)?;
            if message_row.is_request { SettleResult::Answered } else { SettleResult::Stored }
        }
    };
    let answer = reply_id.filter(|_| settled != SettleResult::Late && !message_row.is_answered).map(|reply| reply.0);
    let ending = match settled {
        SettleResult::Answered => Some(ordinal_of(&Ending::ALL, Ending::Answered)),
        _ => message_row.ending,
    };
    let is_ended = message_row.open == 1;
    let ending = ending.or_else(|| is_ended.then(|| ordinal_of(&Ending::ALL, Ending::Delivered)));
    let sql =
        "UPDATE messages SET open = open - 1, reply = coalesce(reply, ?2), ending = ?3, ended_at = ?4 WHERE id = ?1";
    execute(connection, sql, (message.0, answer, ending, is_ended.then_some(at.0)))?;
    Ok((settled, opened - i64::from(is_ended)))
}

fn message_row(connection: &Connection, id: MessageId) -> Result<MessageRow, StoreError> {
    let sql = "SELECT kind, reply IS NOT NULL, ending, open FROM messages WHERE id = ?1";
    let request = ordinal_of(&MessageKind::ALL, MessageKind::Request);
    let read = |row: &rusqlite::Row<'_>| {
        let is_request = row.get::<_, u32>(0)? == request;
        Ok(MessageRow { is_request, is_answered: row.get(1)?, ending: row.get(2)?, open: row.get(3)? })
    };
    query_one(connection, sql, [id.0], read)?.ok_or_else(|| StoreError::Damaged(format!("{id} has legs and no row")))
}
