//! Outcomes of legs and messages: settlement, timeouts, retention.

use rusqlite::Connection;
use tocsin_model::{
    exchange::MessageKind,
    id::{MessageId, Name},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    spool::{
        CorrelatedLeg, CorrelationKey, Ending, ExpiredMessages, HistoryAction, LegOutcome, LegState, LegTransition,
        ReceivedMessage, SettleResult,
    },
    sqlite::{
        spool::{
            columns::ordinal_of,
            history::{NewEntry, add, add_attempt, port_of},
            intake::insert_received,
            message_rows::{EndedState, insert_alone, insert_as, insert_bare, insert_leg},
            open_counts::OpenChanges,
            replies::finish_leg,
        },
        statements::{execute, query_all, query_one},
    },
};

/// Stores an outcome. Returns its effect, and the change of the open count.
pub(super) fn settle(connection: &Connection, outcome: &LegOutcome) -> Result<(SettleResult, i64), StoreError> {
    let waiting = ordinal_of(&LegState::ALL, LegState::Waiting);
    let (state, due_at) = match &outcome.then {
        LegTransition::Done(_) => (LegState::Done, None),
        LegTransition::Await(until) => (LegState::Awaiting, Some(until.0)),
        LegTransition::Retry(due_at) => (LegState::Waiting, Some(due_at.0)),
        LegTransition::Suspend(_) => (LegState::Suspended, None),
    };
    let sql = "UPDATE legs SET state = ?3, attempts = ?4, on_backup = ?5, due_at = coalesce(?6, due_at), tried_at = ?7, \
               said = ?8 WHERE message = ?1 AND number = ?2 AND state = ?9";
    let row = (
        outcome.message.0,
        outcome.leg,
        ordinal_of(&LegState::ALL, state),
        outcome.attempts,
        outcome.on_backup,
        due_at,
        outcome.tried_at.0,
        &outcome.said,
        waiting,
    );
    let was_waiting = execute(connection, sql, row)? > 0;
    if was_waiting {
        add_attempt(connection, outcome)?;
    }
    match &outcome.then {
        LegTransition::Done(None) if was_waiting => finish_leg(connection, outcome.message, outcome.tried_at, None),
        LegTransition::Done(Some(reply)) if was_waiting => {
            let mut store = |ending| insert_alone(connection, reply, ending);
            finish_leg(connection, outcome.message, outcome.tried_at, Some((reply.id, &mut store)))
        }
        // A reply to a leg that has ended is kept, so that it can be found.
        LegTransition::Done(Some(reply)) => {
            insert_as(connection, reply, Some(Ending::Late))?;
            Ok((SettleResult::Late, 0))
        }
        LegTransition::Suspend(Some(wrong)) => {
            insert_as(connection, wrong, Some(Ending::Wrong))?;
            Ok((if was_waiting { SettleResult::Stored } else { SettleResult::Gone }, 0))
        }
        _ if was_waiting => Ok((SettleResult::Stored, 0)),
        LegTransition::Await(_) => {
            // The reply overtook the response of the attempt, of which nothing is stored yet.
            let sql = "UPDATE legs SET attempts = ?3, on_backup = ?4, tried_at = ?5, said = ?6 WHERE message = ?1 AND number = ?2 \
                       AND state = 1 AND tried_at IS NULL";
            let LegOutcome { message, leg, attempts, on_backup, tried_at, said, .. } = outcome;
            execute(connection, sql, (message.0, leg, attempts, on_backup, tried_at.0, said))?;
            Ok((SettleResult::Gone, 0))
        }
        _ => Ok((SettleResult::Gone, 0)),
    }
}

/// Stores a message together with the outcome of its only leg. Returns the effect of both.
pub(super) fn insert_settled(
    connection: &Connection,
    taken: &ReceivedMessage,
    outcome: &LegOutcome,
) -> Result<(SettleResult, i64), StoreError> {
    match (taken, &*taken.whole.legs, &outcome.then) {
        // The usual case: the same rows, each written once.
        (ReceivedMessage { whole, parts: None, gather: None }, [leg], LegTransition::Done(Some(reply)))
            if whole.kind == MessageKind::Request && whole.suspended.is_none() =>
        {
            let end = EndedState { ending: Ending::Answered, at: outcome.tried_at, reply: Some(reply.id) };
            insert_bare(connection, whole, 0, Some(end))?;
            let place = (whole.id, outcome.leg);
            insert_leg(connection, place, whole.exchange.as_str(), leg, whole.accepted_at.0, Some(outcome))?;
            Ok((SettleResult::Answered, insert_alone(connection, reply, None)?))
        }
        _ => {
            let (accepted, _) = insert_received(connection, taken)?;
            let (settled, went) = settle(connection, outcome)?;
            Ok((settled, accepted + went))
        }
    }
}

/// First leg of an exchange that awaits a reply through a port with one of these keys; if none waits any more, the
/// last one that did.
pub(super) fn awaiting(
    connection: &Connection,
    exchange: &Name,
    awaits: &[CorrelationKey],
) -> Result<Option<CorrelatedLeg>, StoreError> {
    let legs =
        "SELECT message, number FROM legs WHERE exchange = ?1 AND through = ?2 AND awaits = ?3 AND awaits IS NOT NULL";
    let waits = format!("{legs} AND state IN (0, 2, 4) ORDER BY message, number LIMIT 1");
    let did = format!("{legs} ORDER BY message DESC, number DESC LIMIT 1");
    for (sql, waits) in [(waits, true), (did, false)] {
        for CorrelationKey { through, key } in awaits {
            let read = |row: &rusqlite::Row<'_>| {
                Ok(CorrelatedLeg { message: MessageId(row.get(0)?), leg: row.get(1)?, waits })
            };
            let found = query_one(connection, &sql, (exchange.as_str(), through.as_str(), key), read)?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

/// Expires requests whose reply timeout has passed: legs that expect a reply are cancelled, one-way legs continue.
/// Also suspends legs whose later reply did not come in time. Returns both, and the change of the open counts.
pub(super) fn expire(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> Result<(ExpiredMessages, OpenChanges), StoreError> {
    let sql = "SELECT id FROM messages WHERE expires_at <= ?1 AND expires_at IS NOT NULL AND ending IS NULL \
               ORDER BY expires_at LIMIT ?2";
    let expired = query_all(connection, sql, (now.0, limit), |row| Ok(MessageId(row.get(0)?)))?;
    let mut changes = OpenChanges::default();
    for id in &expired {
        let sql = "UPDATE legs SET state = ?2, said = coalesce(said, 'the request expired') \
                   WHERE message = ?1 AND replies AND state IN (0, 2, 4)";
        let given_up = execute(connection, sql, (id.0, ordinal_of(&LegState::ALL, LegState::Ended)))?;
        let sql = "UPDATE messages SET open = open - ?2, ending = ?3, suspended = NULL, \
                   ended_at = CASE WHEN open = ?2 THEN ?4 END WHERE id = ?1 RETURNING exchange, ended_at IS NOT NULL";
        let row = (id.0, given_up, ordinal_of(&Ending::ALL, Ending::Expired), now.0);
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?));
        if let Some((exchange, true)) = query_one(connection, sql, row, read)? {
            changes.add(&exchange, -1);
        }
        add(connection, *id, &NewEntry::new(now, HistoryAction::Expired, "no reply came in time"))?;
    }
    let sql = "SELECT message, number FROM legs WHERE state = 4 AND due_at <= ?1 ORDER BY due_at LIMIT ?2";
    let read = |row: &rusqlite::Row<'_>| Ok((MessageId(row.get(0)?), row.get::<_, u32>(1)?));
    let overdue = query_all(connection, sql, (now.0, limit), read)?;
    let sql = "UPDATE legs SET state = 2, said = 'no reply came through `' || through || '` in time' WHERE message = ?1 AND \
               number = ?2";
    for (id, number) in &overdue {
        execute(connection, sql, (id.0, number))?;
        let port = port_of(connection, (*id, *number))?;
        let entry = NewEntry::new(now, HistoryAction::Suspended, "no later reply came in time");
        add(connection, *id, &NewEntry { port: port.as_deref(), ..entry })?;
    }
    let unanswered = overdue.into_iter().map(|(id, _)| id).collect();
    let expires = "SELECT min(expires_at) FROM messages WHERE expires_at IS NOT NULL AND ending IS NULL";
    let awaits = "SELECT min(due_at) FROM legs WHERE state = 4";
    let first = |sql| query_one(connection, sql, (), |row| row.get::<_, Option<i64>>(0));
    let (expires, awaits) = (first(expires), first(awaits));
    let next = expires?.flatten().into_iter().chain(awaits?.flatten()).min().map(Timestamp);
    Ok((ExpiredMessages { expired, unanswered, next }, changes))
}

/// Reserves all message ids up to this one.
pub(super) fn reserve_ids(connection: &Connection, last: MessageId) -> Result<(), StoreError> {
    let sql = "INSERT INTO taken_ids VALUES (1, ?1) ON CONFLICT DO UPDATE SET last = max(last, ?1)";
    execute(connection, sql, [last.0]).map(drop)
}

/// Deletes messages past their retention. A reply is kept as long as its request.
pub(super) fn prune(connection: &Connection, now: Timestamp, limit: usize) -> Result<u64, StoreError> {
    let sql = "SELECT id FROM messages AS over WHERE ended_at + kept <= ?1 AND ended_at IS NOT NULL AND NOT EXISTS \
               (SELECT 1 FROM messages AS asked WHERE asked.id = over.answers AND asked.reply = over.id \
               AND (asked.ended_at IS NULL OR asked.ended_at + asked.kept > ?1)) LIMIT ?2";
    let over = query_all(connection, sql, (now.0, limit), |row| row.get::<_, u64>(0))?;
    if let Some(last) = over.iter().max() {
        reserve_ids(connection, MessageId(*last))?;
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
