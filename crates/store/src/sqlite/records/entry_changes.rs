//! Index keys, credentials and placements of entries, kept with each change of a subscriber or object.

use rusqlite::Connection;
use tocsin_model::{id::SubscriberNumber, subscriber::Subscriber};

use crate::{
    entries::{EntryChange, EntryKey, EntryNode, EntryNumber, EntryState, IndexDiff, LoginNames, Placement},
    error::StoreError,
    sqlite::{
        records::{entries::Writer, entry_log::start_new_log, transaction::RecordsTransaction},
        statements::{execute, query_one, signed},
    },
};

/// Key of a credential's owner. Negated, so that new subscribers are appended at the end.
pub(super) fn holder(number: EntryNumber) -> i64 {
    -number.0
}

/// Stores or removes a credential.
pub(super) fn put_credential(
    tx: &mut RecordsTransaction<'_>,
    number: EntryNumber,
    credential: Option<&str>,
) -> Result<(), StoreError> {
    tx.credentials_touched.push(number);
    let stored = match credential {
        Some(credential) => execute(
            tx.connection,
            "INSERT INTO credentials (holder, credential) VALUES (?1, ?2)
                ON CONFLICT DO UPDATE SET credential = excluded.credential",
            (holder(number), credential),
        ),
        None => execute(tx.connection, "DELETE FROM credentials WHERE holder = ?1", [holder(number)]),
    };
    stored.map(|_| ())
}

pub(crate) fn put_key(connection: &Connection, key: &EntryKey, entry: EntryNumber) -> Result<(), StoreError> {
    let sql = "INSERT INTO entry_keys (name, key, entry) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    execute(connection, sql, (&*key.index, &*key.key, entry.0)).map(|_| ())
}

/// Updates the index keys of an entry, and records the change for the watcher.
pub(crate) fn change(
    tx: &mut RecordsTransaction<'_>,
    old: Option<&EntryNode>,
    now: Option<EntryNode>,
) -> Result<(), StoreError> {
    let Some(watcher) = tx.watcher.clone() else { return invalidate_indexes(tx) };
    let Some(IndexDiff { gone, made, change }) = IndexDiff::of(&*watcher, old, now) else { return Ok(()) };
    let append_change_log = old
        .filter(|_| change.renamed || matches!(change.now, EntryState::Gone))
        .map(|old| (old, change.now.node().cloned()));
    index_diff(tx, &gone, &made, change)?;
    match append_change_log {
        Some((old, now)) => watcher.update_references(&mut Writer(tx), old, now.as_ref()),
        None => Ok(()),
    }
}

/// Returns an error if another entry has one of the login names.
pub(super) fn check_login(
    tx: &RecordsTransaction<'_>,
    entry: Option<EntryNumber>,
    names: LoginNames<'_>,
) -> Result<(), StoreError> {
    let Some(watcher) = &tx.watcher else { return Ok(()) };
    match watcher.find_login_conflict(tx.connection, entry, names)? {
        Some(name) => Err(StoreError::Taken(format!("another entry with the login name `{name}`"))),
        None => Ok(()),
    }
}

/// Whether a prepared change may add a login name that another entry has.
pub(super) fn may_conflict(
    tx: &RecordsTransaction<'_>,
    entry: Option<EntryNumber>,
    made: &[EntryKey],
) -> Result<bool, StoreError> {
    match &tx.watcher {
        Some(watcher) => watcher.may_conflict(tx.connection, entry, made),
        None => Ok(false),
    }
}

/// Writes the difference of an entry's index keys, and records the change for the watcher.
pub(super) fn index_diff(
    tx: &mut RecordsTransaction<'_>,
    gone: &[EntryKey],
    made: &[EntryKey],
    change: EntryChange,
) -> Result<(), StoreError> {
    for key in gone {
        let sql = "DELETE FROM entry_keys WHERE name = ?1 AND key = ?2 AND entry = ?3";
        execute(tx.connection, sql, (&*key.index, &*key.key, change.number.0))?;
    }
    for key in made {
        put_key(tx.connection, key, change.number)?;
    }
    tx.entry_changes.push(change);
    Ok(())
}

/// Without a watcher the keys are unknown, so the indexes are no longer complete.
pub(crate) fn invalidate_indexes(tx: &mut RecordsTransaction<'_>) -> Result<(), StoreError> {
    if std::mem::take(&mut tx.indexed) {
        execute(tx.connection, "DELETE FROM entry_indexes", ())?;
        start_new_log(tx.connection)?;
    }
    Ok(())
}

/// Whether any index is complete.
pub(super) fn is_indexed(connection: &Connection) -> Result<bool, StoreError> {
    Ok(query_one(connection, "SELECT 1 FROM entry_indexes LIMIT 1", (), |_| Ok(()))?.is_some())
}

/// Stores the placement of a subscriber.
pub(super) fn set_placement(
    connection: &Connection,
    number: SubscriberNumber,
    placement: &Placement,
) -> Result<(), StoreError> {
    let sql = "UPDATE subscribers SET parent = ?2, rdn = ?3, rdn_key = ?4, classes = ?5 WHERE number = ?1";
    let Placement { parent, rdn, rdn_key, classes } = placement;
    execute(connection, sql, (signed(number.0), parent.0, rdn, rdn_key, classes)).map(|_| ())
}

/// Placement of a subscriber; `None` without a watcher.
pub(super) fn placement_of(
    tx: &RecordsTransaction<'_>,
    number: SubscriberNumber,
) -> Result<Option<Placement>, StoreError> {
    if tx.watcher.is_none() {
        return Ok(None);
    }
    let sql = "SELECT parent, rdn, rdn_key, classes FROM subscribers WHERE number = ?1 AND parent IS NOT NULL";
    query_one(tx.connection, sql, [signed(number.0)], |row| {
        Ok(Placement { parent: EntryNumber(row.get(0)?), rdn: row.get(1)?, rdn_key: row.get(2)?, classes: row.get(3)? })
    })
}

/// Whether a subscriber has a placement or gets one.
pub(super) fn is_placed(
    tx: &RecordsTransaction<'_>,
    number: SubscriberNumber,
    new: Option<&Placement>,
) -> Result<bool, StoreError> {
    if tx.watcher.is_none() || new.is_some() {
        return Ok(new.is_some());
    }
    let sql = "SELECT 1 FROM subscribers WHERE number = ?1 AND parent IS NOT NULL";
    Ok(query_one(tx.connection, sql, [signed(number.0)], |_| Ok(()))?.is_some())
}

/// A subscriber was added.
pub(super) fn made(
    tx: &mut RecordsTransaction<'_>,
    made: &Subscriber,
    placement: Option<Placement>,
) -> Result<(), StoreError> {
    let now = tx.watcher.is_some().then(|| EntryNode::Subscriber(Box::new(made.clone()), placement));
    change(tx, None, now)
}

/// A subscriber was changed, and possibly moved.
pub(super) fn replaced(
    tx: &mut RecordsTransaction<'_>,
    (old, stood): (Subscriber, Option<Placement>),
    new: &Subscriber,
    placement: Option<Placement>,
) -> Result<(), StoreError> {
    if tx.watcher.is_none() {
        return invalidate_indexes(tx);
    }
    changed(tx, &EntryNode::Subscriber(Box::new(old), stood), new.clone(), placement)
}

/// The same, with the former entry already read.
pub(super) fn changed(
    tx: &mut RecordsTransaction<'_>,
    before: &EntryNode,
    new: Subscriber,
    placement: Option<Placement>,
) -> Result<(), StoreError> {
    let EntryNode::Subscriber(_, stood) = before else { return Ok(()) };
    let now = EntryNode::Subscriber(Box::new(new), placement.or_else(|| stood.clone()));
    change(tx, Some(before), Some(now))
}

/// A subscriber is about to be removed.
pub(super) fn removed(tx: &mut RecordsTransaction<'_>, old: &Subscriber) -> Result<(), StoreError> {
    put_credential(tx, old.number.into(), None)?;
    if tx.watcher.is_none() {
        return invalidate_indexes(tx);
    }
    let before = EntryNode::Subscriber(Box::new(old.clone()), placement_of(tx, old.number)?);
    change(tx, Some(&before), None)
}
