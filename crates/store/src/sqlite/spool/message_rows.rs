//! Rows of a message: the message, its body, and its legs.

use rusqlite::Connection;
use tocsin_model::{exchange::MessageKind, id::MessageId, time::Timestamp};

use crate::{
    error::StoreError,
    spool::{Ending, HistoryAction, LegOutcome, LegState, NewLeg, NewMessage},
    sqlite::{
        spool::{
            columns::ordinal_of,
            history::{NewEntry, add},
        },
        statements::execute,
    },
};

/// Stores a message, possibly already ended. Returns 1 if it is open.
pub(super) fn insert_alone(
    connection: &Connection,
    new: &NewMessage,
    ending: Option<Ending>,
) -> Result<i64, StoreError> {
    let has_more = !new.legs.is_empty() || new.suspended.is_some();
    let ending = ending.or_else(|| (!has_more).then_some(Ending::Delivered));
    insert_as(connection, new, ending)?;
    Ok(i64::from(ending.is_none()))
}

/// Stores a message; one that has already ended gets no legs.
pub(super) fn insert_as(connection: &Connection, new: &NewMessage, ending: Option<Ending>) -> Result<(), StoreError> {
    let legs = if ending.is_some() { &[][..] } else { &new.legs };
    let end = ending.map(|ending| EndedState { ending, at: new.accepted_at, reply: None });
    insert_bare(connection, new, legs.len(), end)?;
    insert_legs(connection, new.id, new.exchange.as_str(), legs, new.accepted_at.0)
}

/// Ending of a message that ends before it is stored.
pub(super) struct EndedState {
    pub ending: Ending,
    pub at: Timestamp,
    pub reply: Option<MessageId>,
}

/// Stores a message without its legs; `open` of them are open.
pub(super) fn insert_bare(
    connection: &Connection,
    new: &NewMessage,
    open: usize,
    end: Option<EndedState>,
) -> Result<(), StoreError> {
    let head = serde_json::to_string(&new.head).expect("a head is always JSON");
    let suspended = new.suspended.as_deref().filter(|_| end.is_none());
    let kept = i64::try_from(new.kept.as_micros()).unwrap_or(i64::MAX / 4);
    let sql = "INSERT INTO messages (id, exchange, port, kind, answers, reply, key, digest, head, bytes, accepted_at, \
               expires_at, open, suspended, ended_at, ending, kept, part_of, sender) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";
    let row = rusqlite::params![
        new.id.0,
        new.exchange.as_str(),
        new.port.as_str(),
        ordinal_of(&MessageKind::ALL, new.kind),
        new.answers.map(|id| id.0),
        end.as_ref().and_then(|end| end.reply).map(|id| id.0),
        new.key.as_ref().map(|key| &key.key),
        new.key.as_ref().map(|key| &key.digest[..]),
        head,
        new.body.len() as u64,
        new.accepted_at.0,
        new.expires_at.map(|at| at.0),
        open as u64,
        suspended,
        end.as_ref().map(|end| end.at.0),
        end.as_ref().map(|end| ordinal_of(&Ending::ALL, end.ending)),
        kept,
        new.part_of.map(|id| id.0),
        &*new.sender,
    ];
    execute(connection, sql, row)?;
    if let Some(reason) = suspended {
        add(connection, new.id, &NewEntry::new(new.accepted_at, HistoryAction::Suspended, reason))?;
    }
    execute(connection, "INSERT INTO bodies VALUES (?1, ?2)", (new.id.0, &*new.body)).map(drop)
}

pub(super) fn insert_legs(
    connection: &Connection,
    id: MessageId,
    exchange: &str,
    legs: &[NewLeg],
    due_at: i64,
) -> Result<(), StoreError> {
    insert_legs_from(connection, 0, id, exchange, legs, due_at)
}

/// The same after existing legs: `first` is the number of the first new leg.
pub(super) fn insert_legs_from(
    connection: &Connection,
    first: u32,
    id: MessageId,
    exchange: &str,
    legs: &[NewLeg],
    due_at: i64,
) -> Result<(), StoreError> {
    (first..).zip(legs).try_for_each(|(number, leg)| insert_leg(connection, (id, number), exchange, leg, due_at, None))
}

/// Stores a leg: waiting, or done with the given outcome.
pub(super) fn insert_leg(
    connection: &Connection,
    (id, number): (MessageId, u32),
    exchange: &str,
    leg: &NewLeg,
    due_at: i64,
    done: Option<&LegOutcome>,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO legs (message, number, exchange, port, replies, state, attempts, on_backup, due_at, tried_at, said, \
               lane, rank, through, awaits) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
    let state = if done.is_some() { LegState::Done } else { LegState::Waiting };
    let rank = leg.ahead.map(|ahead| due_at - i64::try_from(ahead.as_micros()).unwrap_or(0));
    let awaits = leg.awaits.as_ref();
    let row = rusqlite::params![
        id.0,
        number,
        exchange,
        leg.port.as_str(),
        leg.replies,
        ordinal_of(&LegState::ALL, state),
        done.map_or(0, |outcome| outcome.attempts),
        done.is_some_and(|outcome| outcome.on_backup),
        due_at,
        done.map(|outcome| outcome.tried_at.0),
        done.map(|outcome| &outcome.said),
        &leg.lane,
        rank,
        awaits.map(|awaits| awaits.through.as_str()),
        awaits.map(|awaits| &awaits.key),
    ];
    execute(connection, sql, row).map(drop)
}
