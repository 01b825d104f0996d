//! What became of legs, and with them of messages.

use rusqlite::Connection;
use tocsin_model::{
    exchange::MessageKind,
    id::{MessageId, Name},
    time::Timestamp,
};

use super::{
    OpenChanges,
    history::{NewEntry, note, note_attempt, note_more, port_of},
    intake::{End, insert_alone, insert_as, insert_bare, insert_leg, insert_taken, place},
};
use crate::{
    error::StoreError,
    spool::{Awaiting, Awaits, Ending, HistoryAct, LegOutcome, LegState, Over, Settled, TakenMessage, Then},
    sqlite::records::{execute, query_all, query_one},
};

/// What a message is like while one of its legs is settled.
struct Standing {
    is_request: bool,
    is_answered: bool,
    ending: Option<u32>,
    open: u64,
}

/// Stores an outcome. Gives what it changed, and how many more messages are open than before.
pub(super) fn settle(connection: &Connection, outcome: &LegOutcome) -> Result<(Settled, i64), StoreError> {
    let waiting = place(&LegState::ALL, LegState::Waiting);
    let (state, due_at) = match &outcome.then {
        Then::Done(_) => (LegState::Done, None),
        Then::Await(until) => (LegState::Awaiting, Some(until.0)),
        Then::Retry(due_at) => (LegState::Waiting, Some(due_at.0)),
        Then::Suspend(_) => (LegState::Suspended, None),
    };
    let sql = "UPDATE legs SET state = ?3, attempts = ?4, on_backup = ?5, due_at = coalesce(?6, due_at), tried_at = ?7, \
               said = ?8 WHERE message = ?1 AND number = ?2 AND state = ?9";
    let row = (
        outcome.message.0,
        outcome.leg,
        place(&LegState::ALL, state),
        outcome.attempts,
        outcome.on_backup,
        due_at,
        outcome.tried_at.0,
        &outcome.said,
        waiting,
    );
    let was_waiting = execute(connection, sql, row)? > 0;
    if was_waiting {
        note_attempt(connection, outcome)?;
    }
    match &outcome.then {
        Then::Done(None) if was_waiting => finish_leg(connection, outcome.message, outcome.tried_at, None),
        Then::Done(Some(reply)) if was_waiting => {
            let mut store = |ending| insert_alone(connection, reply, ending);
            finish_leg(connection, outcome.message, outcome.tried_at, Some((reply.id, &mut store)))
        }
        // What came to a leg that was given up is kept, so that nobody looks for it in vain.
        Then::Done(Some(reply)) => {
            insert_as(connection, reply, Some(Ending::Late))?;
            Ok((Settled::Late, 0))
        }
        Then::Suspend(Some(wrong)) => {
            insert_as(connection, wrong, Some(Ending::Wrong))?;
            Ok((if was_waiting { Settled::Stored } else { Settled::Gone }, 0))
        }
        _ if was_waiting => Ok((Settled::Stored, 0)),
        Then::Await(_) => {
            // The reply was quicker than the answer to the attempt, of which nothing is known yet.
            let sql = "UPDATE legs SET attempts = ?3, on_backup = ?4, tried_at = ?5, said = ?6 WHERE message = ?1 AND number = ?2 \
                       AND state = 1 AND tried_at IS NULL";
            let LegOutcome { message, leg, attempts, on_backup, tried_at, said, .. } = outcome;
            execute(connection, sql, (message.0, leg, attempts, on_backup, tried_at.0, said))?;
            Ok((Settled::Gone, 0))
        }
        _ => Ok((Settled::Gone, 0)),
    }
}

/// Stores a message together with what came of its only leg. Gives what both changed.
pub(super) fn insert_settled(
    connection: &Connection,
    taken: &TakenMessage,
    outcome: &LegOutcome,
) -> Result<(Settled, i64), StoreError> {
    match (taken, &*taken.whole.legs, &outcome.then) {
        // What nearly always comes: the same rows, each written once.
        (TakenMessage { whole, parts: None, gather: None }, [leg], Then::Done(Some(reply)))
            if whole.kind == MessageKind::Request && whole.suspended.is_none() =>
        {
            let end = End { ending: Ending::Answered, at: outcome.tried_at, reply: Some(reply.id) };
            insert_bare(connection, whole, 0, Some(end))?;
            let place = (whole.id, outcome.leg);
            insert_leg(connection, place, whole.exchange.as_str(), leg, whole.accepted_at.0, Some(outcome))?;
            Ok((Settled::Answered, insert_alone(connection, reply, None)?))
        }
        _ => {
            let (came, _) = insert_taken(connection, taken)?;
            let (settled, went) = settle(connection, outcome)?;
            Ok((settled, came + went))
        }
    }
}

/// Which leg of an exchange waits for a message that comes through a port and has one of these keys: the one that came
/// first. If none does any more, the one that did last.
pub(super) fn awaiting(
    connection: &Connection,
    exchange: &Name,
    awaits: &[Awaits],
) -> Result<Option<Awaiting>, StoreError> {
    let place =
        "SELECT message, number FROM legs WHERE exchange = ?1 AND through = ?2 AND awaits = ?3 AND awaits IS NOT NULL";
    let waits = format!("{place} AND state IN (0, 2, 4) ORDER BY message, number LIMIT 1");
    let did = format!("{place} ORDER BY message DESC, number DESC LIMIT 1");
    for (sql, waits) in [(waits, true), (did, false)] {
        for Awaits { through, key } in awaits {
            let read =
                |row: &rusqlite::Row<'_>| Ok(Awaiting { message: MessageId(row.get(0)?), leg: row.get(1)?, waits });
            let found = query_one(connection, &sql, (exchange.as_str(), through.as_str(), key), read)?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

/// The reply to a leg came through a receive port. It is stored as a reply to it, or as [`Ending::Late`] if nothing waits for
/// it any more. Gives how many more messages are open than before.
pub(super) fn answer(
    connection: &Connection,
    (message, leg): (MessageId, u32),
    reply: MessageId,
    at: Timestamp,
    mut store: impl FnMut(Option<Ending>) -> Result<i64, StoreError>,
) -> Result<i64, StoreError> {
    // It may be quicker than what the far side answers to the attempt, and it may come though that was no success.
    let sql = "UPDATE legs SET state = ?3 WHERE message = ?1 AND number = ?2 AND state IN (0, 2, 4)";
    if execute(connection, sql, (message.0, leg, place(&LegState::ALL, LegState::Done)))? == 0 {
        return store(Some(Ending::Late));
    }
    let port = port_of(connection, (message, leg))?;
    let text = format!("by {reply}");
    note_more(
        connection,
        message,
        &NewEntry { port: port.as_deref(), ..NewEntry::new(at, HistoryAct::Replied, &text) },
    )?;
    finish_leg(connection, message, at, Some((reply, &mut store))).map(|(_, change)| change)
}

/// Stores a reply: as what it is, or as ended. Gives how many more messages are open than before.
type Store<'a> = &'a mut dyn FnMut(Option<Ending>) -> Result<i64, StoreError>;

fn finish_leg(
    connection: &Connection,
    message: MessageId,
    at: Timestamp,
    reply: Option<(MessageId, Store<'_>)>,
) -> Result<(Settled, i64), StoreError> {
    let standing = standing(connection, message)?;
    let mut opened = 0;
    let reply_id = reply.as_ref().map(|(id, _)| *id);
    let settled = match reply {
        None => Settled::Stored,
        Some((_, store)) if standing.is_request && (standing.is_answered || standing.ending.is_some()) => {
            opened += store(Some(Ending::Late))?;
            Settled::Late
        }
        Some((_, store)) => {
            opened += store(None)?;
            if standing.is_request { Settled::Answered } else { Settled::Stored }
        }
    };
    let answer = reply_id.filter(|_| settled != Settled::Late && !standing.is_answered).map(|reply| reply.0);
    let ending = match settled {
        Settled::Answered => Some(place(&Ending::ALL, Ending::Answered)),
        _ => standing.ending,
    };
    let is_over = standing.open == 1;
    let ending = ending.or_else(|| is_over.then(|| place(&Ending::ALL, Ending::Delivered)));
    let sql =
        "UPDATE messages SET open = open - 1, reply = coalesce(reply, ?2), ending = ?3, ended_at = ?4 WHERE id = ?1";
    execute(connection, sql, (message.0, answer, ending, is_over.then_some(at.0)))?;
    Ok((settled, opened - i64::from(is_over)))
}

fn standing(connection: &Connection, id: MessageId) -> Result<Standing, StoreError> {
    let sql = "SELECT kind, reply IS NOT NULL, ending, open FROM messages WHERE id = ?1";
    let request = place(&MessageKind::ALL, MessageKind::Request);
    let read = |row: &rusqlite::Row<'_>| {
        let is_request = row.get::<_, u32>(0)? == request;
        Ok(Standing { is_request, is_answered: row.get(1)?, ending: row.get(2)?, open: row.get(3)? })
    };
    query_one(connection, sql, [id.0], read)?.ok_or_else(|| StoreError::Damaged(format!("{id} has legs and no row")))
}

/// Ends requests that nobody answered in time: what of their legs was to bring an answer is given up, other legs go on. And
/// suspends legs for which no later reply came in time. Gives them, and how that changes what is open.
pub(super) fn expire(connection: &Connection, now: Timestamp, limit: usize) -> Result<(Over, OpenChanges), StoreError> {
    let sql = "SELECT id FROM messages WHERE expires_at <= ?1 AND expires_at IS NOT NULL AND ending IS NULL \
               ORDER BY expires_at LIMIT ?2";
    let expired = query_all(connection, sql, (now.0, limit), |row| Ok(MessageId(row.get(0)?)))?;
    let mut changes = OpenChanges::default();
    for id in &expired {
        let sql = "UPDATE legs SET state = ?2, said = coalesce(said, 'the request expired') \
                   WHERE message = ?1 AND replies AND state IN (0, 2, 4)";
        let given_up = execute(connection, sql, (id.0, place(&LegState::ALL, LegState::Ended)))?;
        let sql = "UPDATE messages SET open = open - ?2, ending = ?3, suspended = NULL, \
                   ended_at = CASE WHEN open = ?2 THEN ?4 END WHERE id = ?1 RETURNING exchange, ended_at IS NOT NULL";
        let row = (id.0, given_up, place(&Ending::ALL, Ending::Expired), now.0);
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?));
        if let Some((exchange, true)) = query_one(connection, sql, row, read)? {
            changes.add(&exchange, -1);
        }
        note(connection, *id, &NewEntry::new(now, HistoryAct::Expired, "no reply came in time"))?;
    }
    let sql = "SELECT message, number FROM legs WHERE state = 4 AND due_at <= ?1 ORDER BY due_at LIMIT ?2";
    let read = |row: &rusqlite::Row<'_>| Ok((MessageId(row.get(0)?), row.get::<_, u32>(1)?));
    let overdue = query_all(connection, sql, (now.0, limit), read)?;
    let sql = "UPDATE legs SET state = 2, said = 'no reply came through `' || through || '` in time' WHERE message = ?1 AND \
               number = ?2";
    for (id, number) in &overdue {
        execute(connection, sql, (id.0, number))?;
        let port = port_of(connection, (*id, *number))?;
        let entry = NewEntry::new(now, HistoryAct::Suspended, "no later reply came in time");
        note(connection, *id, &NewEntry { port: port.as_deref(), ..entry })?;
    }
    let unanswered = overdue.into_iter().map(|(id, _)| id).collect();
    let expires = "SELECT min(expires_at) FROM messages WHERE expires_at IS NOT NULL AND ending IS NULL";
    let awaits = "SELECT min(due_at) FROM legs WHERE state = 4";
    let first = |sql| query_one(connection, sql, (), |row| row.get::<_, Option<i64>>(0));
    let (expires, awaits) = (first(expires), first(awaits));
    let next = expires?.flatten().into_iter().chain(awaits?.flatten()).min().map(Timestamp);
    Ok((Over { expired, unanswered, next }, changes))
}

/// No message gets an id up to this one any more.
pub(super) fn take_ids(connection: &Connection, last: MessageId) -> Result<(), StoreError> {
    let sql = "INSERT INTO taken_ids VALUES (1, ?1) ON CONFLICT DO UPDATE SET last = max(last, ?1)";
    execute(connection, sql, [last.0]).map(drop)
}

/// Removes what need not be kept any more. A reply stays for as long as the request that it answers.
pub(super) fn prune(connection: &Connection, now: Timestamp, limit: usize) -> Result<u64, StoreError> {
    let sql = "SELECT id FROM messages AS over WHERE ended_at + kept <= ?1 AND ended_at IS NOT NULL AND NOT EXISTS \
               (SELECT 1 FROM messages AS asked WHERE asked.id = over.answers AND asked.reply = over.id \
               AND (asked.ended_at IS NULL OR asked.ended_at + asked.kept > ?1)) LIMIT ?2";
    let over = query_all(connection, sql, (now.0, limit), |row| row.get::<_, u64>(0))?;
    if let Some(last) = over.iter().max() {
        take_ids(connection, MessageId(*last))?;
    }
    for id in &over {
        execute(connection, "DELETE FROM legs WHERE message = ?1", [id])?;
        execute(connection, "DELETE FROM bodies WHERE id = ?1", [id])?;
        execute(connection, "DELETE FROM originals WHERE message = ?1", [id])?;
        execute(connection, "DELETE FROM history WHERE message = ?1", [id])?;
        execute(connection, "DELETE FROM messages WHERE id = ?1", [id])?;
    }
    Ok(over.len() as u64)
}
