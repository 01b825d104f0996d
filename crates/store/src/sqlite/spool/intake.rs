//! Stores new messages: a row, a body, and a leg for each send port.

use rusqlite::Connection;
use tocsin_model::{
    id::{MessageId, Name},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    spool::{Ending, IdempotencyKey, MessageAcceptance, NewMessage, ReceivedMessage},
    sqlite::{
        spool::{
            groups,
            message_rows::{insert_alone, insert_as},
            replies,
        },
        statements::query_one,
    },
};

/// Existing message with the key of a new one, if any.
pub(super) fn find_known(connection: &Connection, new: &NewMessage) -> Result<Option<MessageAcceptance>, StoreError> {
    match &new.key {
        Some(key) => find_key(connection, (&new.exchange, &new.port), &new.sender, key),
        None => Ok(None),
    }
}

/// Keys are unique per sender. Messages stored before senders were recorded match any sender.
pub(super) fn find_key(
    connection: &Connection,
    (exchange, port): (&Name, &Name),
    sender: &str,
    key: &IdempotencyKey,
) -> Result<Option<MessageAcceptance>, StoreError> {
    let sql = "SELECT id, digest FROM messages WHERE exchange = ?1 AND port = ?2 AND key = ?3 AND sender IN (?4, '') \
               ORDER BY sender DESC LIMIT 1";
    let read = |row: &rusqlite::Row<'_>| Ok((MessageId(row.get(0)?), row.get::<_, Vec<u8>>(1)?));
    let found = query_one(connection, sql, (exchange.as_str(), port.as_str(), &key.key, sender), read)?;
    Ok(found.map(|(id, digest)| match digest == key.digest {
        true => MessageAcceptance::Known(id),
        false => MessageAcceptance::Reused(id),
    }))
}

/// Stores a message, and settles the leg that awaits it. Returns the change of the open count.
pub(super) fn insert(connection: &Connection, new: &NewMessage) -> Result<i64, StoreError> {
    match (new.answers, new.settles) {
        (Some(id), Some(leg)) => {
            let store = |ending| insert_alone(connection, new, ending);
            replies::answer(connection, (id, leg), new.id, new.accepted_at, store)
        }
        _ => insert_alone(connection, new, None),
    }
}

/// Stores a received message with its parts, or adds it to a group. Returns the change of the open count, and the due
/// time of the group.
pub(super) fn insert_received(
    connection: &Connection,
    taken: &ReceivedMessage,
) -> Result<(i64, Option<Timestamp>), StoreError> {
    let ReceivedMessage { whole, parts, gather } = taken;
    match (parts, gather) {
        (Some(parts), _) => {
            insert_as(connection, whole, Some(Ending::Split))?;
            Ok((insert_parts(connection, parts)?, None))
        }
        (None, None) => Ok((insert(connection, whole)?, None)),
        (None, Some(gather)) => {
            insert_as(connection, whole, None)?;
            Ok((1, Some(groups::join(connection, whole.id, gather, whole.accepted_at)?)))
        }
    }
}

/// Stores the parts of a split message. Returns the change of the open count.
pub(super) fn insert_parts(connection: &Connection, parts: &[NewMessage]) -> Result<i64, StoreError> {
    parts.iter().try_fold(0, |open, part| Ok(open + insert(connection, part)?))
}
